/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of a Kubernetes API server: listed in pages, then watched for as long as somebody wants to know of them.
 *
 *     list, page by page --> whole --> watch from that resourceVersion --> its end --> watch again --> ...
 *       ^                                |
 *       '------- the version is too old (410), or a line cannot be read ----------'
 *
 * What holds:
 * - Whoever watches is told of each object, each time it changes, and when it is gone; after a list that is whole, of all that there is.
 *   What was not told between `begin` and `whole` is gone. A list that breaks off begins anew, and a watch that breaks off goes on from
 *   the last whole line, so what is known while the server is away is what was known before.
 * - The server is asked again after 0.5 to 30 seconds, doubled with each failure and spread; at once after an end that was due, after the
 *   first 410, and with a new token after a 401. A Retry-After is heeded.
 * - A watch of which nothing, not even a bookmark, was heard for two minutes is begun anew: a connection may die without a word.
 *
 * The token is read again each minute and after a 401; it is sent by https alone. What goes wrong is logged, of each kind once a minute.
 *
 * Threads: everything belongs to one loop and is used from its thread only.
 */
#ifndef KVR_NET_KUBE_H
#define KVR_NET_KUBE_H

#include <uv.h>

#include "wire/kube.h"

struct kvr_kube;
struct kvr_kube_watch;

struct kvr_kube_config {
    uv_loop_t *loop;
    const char *api;        /* https://host[:port][/path] */
    const char *ca;         /* a PEM file; NULL: the system's */
    const char *token_file; /* NULL: none */
};

/* Texts are copied. Returns: 0, or -1 with the reason in err. */
int kvr_kube_open(const struct kvr_kube_config *config, struct kvr_kube **out, char *err, size_t cap);
/* After its watches have been stopped; memory goes with the loop's close callbacks. NULL is fine. */
void kvr_kube_close(struct kvr_kube *k);

enum kvr_kube_told { KVR_KUBE_LISTED, KVR_KUBE_CHANGED, KVR_KUBE_DELETED };

/* None may stop the watch that calls. */
struct kvr_kube_handler {
    void (*begin)(void *ctx);
    void (*object)(void *ctx, struct kvr_json object, enum kvr_kube_told told); /* borrowed until it returns */
    void (*whole)(void *ctx);
};

struct kvr_kube_watch_config {
    const char *path;                         /* of the collection: /api/v1/namespaces/NAME/pods; its last part is the name in logs */
    const char *label_selector, *object_name; /* of all in it; NULL: any */
    const struct kvr_kube_handler *handler;   /* borrowed */
    void *ctx;
};

/* Never calls back before it returns. NULL: out of memory. */
struct kvr_kube_watch *kvr_kube_watch_start(struct kvr_kube *k, const struct kvr_kube_watch_config *config);
void kvr_kube_watch_stop(struct kvr_kube_watch *w); /* NULL is fine */

struct kvr_kube_stats {
    uint64_t lists, events, errors; /* lists that are whole; lines of watches; answers that did not come, or were refused */
    uint64_t watching;              /* 1: the server tells of changes now */
};

void kvr_kube_watch_stats(const struct kvr_kube_watch *w, struct kvr_kube_stats *out);

#endif
