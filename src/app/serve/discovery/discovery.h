/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that are found rather than configured.
 *
 *     discovery.c        what was found -> the worker table; the mail box between finders and the main loop
 *     discovery/file.c   a file of --worker lines, read again when it changes         (main loop)
 *     discovery/dns.c    A, AAAA or SRV records, resolved again every few seconds     (a thread)
 *     discovery/nats.c   a registry in NATS (net/nats/registry.h)                     (the registry's thread)
 *
 * A finder says what is there under a key of its own, and when that goes. Only what was found is removed again: workers of the
 * command line and of the admin port are left alone, and their ids refused to others. What a finder cannot read it leaves as it was.
 */
#ifndef KVR_SERVE_DISCOVERY_H
#define KVR_SERVE_DISCOVERY_H

#include "app/serve/state.h"

struct kvr_prom_page;

enum { DISCOVERY_KEY_MAX = 160, DISCOVERY_SPEC_MAX = 4096, DISCOVERY_FOUND_MAX = 16384 };

/* For finders on threads of their own; what does not fit is dropped and counted. `spec` is a --worker text, or a worker object as
 * JSON. */
void discovery_post_found(struct serve *s, const char *key, const char *spec, size_t len);
void discovery_post_gone(struct serve *s, const char *key);
/* A whole round was told: keys that it lacked are gone. Begins with discovery_post_round(s, true), ends with false. */
void discovery_post_round(struct serve *s, bool begins);
/* All that is there now has been told once. */
void discovery_post_settled(struct serve *s);

/* On the main loop. */
void discovery_found(struct serve *s, const char *key, const char *spec, size_t len);
void discovery_gone(struct serve *s, const char *key);
void discovery_round(struct serve *s, bool begins);

/* A number for a worker that has none, the same at every router: of its address. */
uint64_t discovery_id_of(const char *url);

int discovery_start(struct serve *s, char *err, size_t cap);
void discovery_tick(struct serve *s);   /* main loop */
void discovery_reload(struct serve *s); /* the file, now; main loop */
bool discovery_settled(void);
void discovery_stop(struct serve *s);
void discovery_metrics(struct serve *s, struct kvr_prom_page *out);

int discovery_file_start(struct serve *s, char *err, size_t cap);
void discovery_file_tick(struct serve *s);
void discovery_file_reload(struct serve *s); /* at once */
int discovery_dns_start(struct serve *s, char *err, size_t cap);
void discovery_dns_stop(void);
int discovery_nats_start(struct serve *s, char *err, size_t cap);
void discovery_nats_stop(void);

#endif
