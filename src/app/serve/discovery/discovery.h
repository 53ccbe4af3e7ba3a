/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers that are found rather than configured.
 *
 *     discovery.c       which finder runs
 *     file.c            a file of --worker lines, read again when it changes         (main loop)
 *     dns.c             A, AAAA or SRV records, resolved again every few seconds     (main loop)
 *     nats.c            a registry in NATS (net/nats/registry.h)                     (the registry's thread)
 *     kubernetes.c      pods of an InferencePool or of labels (net/kube/kube.h); kube_peers.c: routers of a Service   (main loop)
 *     found_place.c     an address and --discovery-worker -> what is told of a worker
 *     found_workers.c   what was found -> the worker table; the mail box between finders on other threads and the main loop
 *
 * A finder says what is there under a key of its own, and when that goes. Only what was found is removed again: workers of the
 * command line and of the admin port are left alone, and their ids refused to others. What a finder cannot read it leaves as it was.
 *
 * Threads: the main loop.
 */
#ifndef KVR_SERVE_DISCOVERY_H
#define KVR_SERVE_DISCOVERY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kvr_prom_page;
struct config;
struct discovery;
struct peers;
struct process;
struct serve_options;
struct workers;

/* NULL: out of memory */
struct discovery *discovery_create(struct process *p, struct workers *workers, struct config *config, struct peers *peers);
/* What start would read, without starting. Returns: 0, or -1 with the reason in err. */
int discovery_check(struct discovery *d, char *err, size_t cap);
const char *discovery_words(const struct serve_options *o); /* ", more by discovery from ..."; "": none */
int discovery_start(struct discovery *d, char *err, size_t cap);
/* Tells others of this router, whose admin port is open now. Returns: 0, or -1 with the reason in err. */
int discovery_announce(struct discovery *d, uint16_t admin_port, char *err, size_t cap);
void discovery_tick(struct discovery *d);
/* The file, now. Returns: 0, or -1 with the reason in err; then nothing is changed. */
int discovery_reload(struct discovery *d, char *err, size_t cap);
bool discovery_settled(const struct discovery *d);
/* No finder runs any more. The main loop is run once more before discovery_destroy. */
void discovery_stop(struct discovery *d);
void discovery_destroy(struct discovery *d);
void discovery_metrics(struct discovery *d, struct kvr_prom_page *out);

#endif
