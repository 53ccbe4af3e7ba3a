/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What finders have found, as workers of the table; and the state of the room of discovery with the functions of each finder: private to
 * this room, as room.h is in others. Threads: the main loop, but the functions that post.
 */
#ifndef KVR_SERVE_FOUND_WORKERS_H
#define KVR_SERVE_FOUND_WORKERS_H

#include "app/serve/common/process.h"
#include "app/serve/discovery/discovery.h"
#include "base/buf.h"
#include "base/lock.h"

enum { DISCOVERY_KEY_MAX = 160, DISCOVERY_SPEC_MAX = 4096, DISCOVERY_FOUND_MAX = 16384 };

struct found_worker;
struct mail;

/* Where a worker was found. */
struct found_place {
    const char *host; /* an IPv6 address in brackets */
    uint16_t port;
    const char *pod;  /* NULL: it is none's */
    size_t rank;      /* of a pod: the place of its port */
    const char *role; /* NULL: not said */
};

struct discovery {
    const struct serve_options *o;
    struct process *process;
    struct workers *workers;
    struct config *config;
    struct peers *peers;
    struct kvr_lock lock; /* the three that follow */
    struct mail *head, **tail;
    size_t mail_n;
    uint64_t dropped;
    /* the main loop's */
    struct found_worker *found;
    size_t found_n, known_n; /* that serve; all */
    uint64_t round, refused;
    bool in_round;
    bool may_fit;                /* what waits may be taken: something was told, or has gone */
    size_t workers_n;            /* of the table, when that was tried */
    bool settled;                /* all that was there at the start is told */
    struct worker_spec *scratch; /* found_workers_tell reads into it: a finder has one of its own */
    /* that one of them which runs */
    struct discovery_file *file;
    struct discovery_dns *dns;
    struct discovery_nats *nats;
    struct discovery_kubernetes *kubernetes;
};

bool found_workers_open(struct discovery *d); /* false: out of memory */
void found_workers_close(struct discovery *d);
void found_workers_take_mail(struct discovery *d); /* main loop */

/* For finders on threads of their own; what does not fit is dropped and counted. `spec` is a --worker text, or a worker object as
 * JSON. */
void found_workers_post(struct discovery *d, const char *key, const char *spec, size_t len);
void found_workers_post_gone(struct discovery *d, const char *key);
/* All that is there now has been told once. */
void found_workers_post_settled(struct discovery *d);

/* On the main loop. */
void found_workers_tell(struct discovery *d, const char *key, const char *spec, size_t len);
/* A round tells everything: what lies between a begin and an end, and what was not told in it is gone, unless it is not `whole`. */
void found_workers_round_begins(struct discovery *d);
void found_workers_round_ends(struct discovery *d, bool whole);

/* What was told of some, of which all has been told since the round began: what has such a key and was not told is gone. */
void found_workers_round_ends_of(struct discovery *d, const char *prefix);
bool found_workers_knows(struct discovery *d, const char *key);
bool found_workers_is_told(struct discovery *d, const char *key);         /* in this round */
size_t found_workers_told_of(const struct discovery *d, const char *key); /* the same: how many have it, or KEY#... */

/* What --discovery-scheme and --discovery-worker make of a place, as a --worker text. */
void found_place_put(const struct discovery *d, const struct found_place *at, struct kvr_buf *out);
/* Keys of an entry in which {host}, {port} and, of a pod, {pod}, {rank} and {N+rank} stand for those of the place. */
void found_place_put_keys(const char *keys, const struct found_place *at, struct kvr_buf *out);
/* --discovery-worker, on a worker that might be found. Returns: 0, or -1 with the reason in err. */
int found_place_check(const struct discovery *d, char *err, size_t cap);

/* What start would read, without starting. Returns: 0, or -1 with the reason in err. */
int discovery_file_check(struct discovery *d, char *err, size_t cap);
int discovery_dns_check(struct discovery *d, char *err, size_t cap);
int discovery_kubernetes_check(struct discovery *d, char *err, size_t cap);

int discovery_file_start(struct discovery *d, char *err, size_t cap);
void discovery_file_tick(struct discovery *d, struct discovery_file *f);
int discovery_file_reload(struct discovery *d, struct discovery_file *f, char *err, size_t cap); /* at once */
void discovery_file_stop(struct discovery_file *f);

int discovery_dns_start(struct discovery *d, char *err, size_t cap);
void discovery_dns_stop(struct discovery_dns *d); /* its handles are closed by the main loop; then it is freed */
void discovery_dns_free(struct discovery_dns *d);
void discovery_dns_metrics(const struct discovery_dns *d, struct kvr_prom_page *out);

int discovery_nats_start(struct discovery *d, char *err, size_t cap);
int discovery_nats_announce(struct discovery_nats *n, uint16_t admin_port); /* Returns: 0 or -KVR_E... */
void discovery_nats_stop(struct discovery_nats *n);

int discovery_kubernetes_start(struct discovery *d, char *err, size_t cap);
void discovery_kubernetes_stop(struct discovery_kubernetes *k);
void discovery_kubernetes_metrics(const struct discovery_kubernetes *k, struct kvr_prom_page *out);

#endif
