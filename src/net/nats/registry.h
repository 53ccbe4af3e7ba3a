/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A registry with leases: a NATS key-value bucket whose keys end when they are not renewed.
 *
 *     kept keys   put again every third of the time to live; exclusive ones by compare-and-set, so that of several processes
 *                 that want one, one holds it
 *     watching    entries that come, change and go; one goes when it is deleted or has not been renewed for the time to live
 *
 * While there is no connection nothing is told to have gone: who is not heard of may live. A lease, though, counts as lost when
 * it could not be renewed for four fifths of its time to live, because somebody else may hold it soon.
 *
 * Threads: one of its own, which calls the handlers. Functions from any thread but that one.
 */
#ifndef KVR_NET_NATS_REGISTRY_H
#define KVR_NET_NATS_REGISTRY_H

#include "net/nats/link.h"

enum { KVR_REGISTRY_KEY_MAX = 128, KVR_REGISTRY_VALUE_MAX = 16384, KVR_REGISTRY_TTL_S = 5 };
#define KVR_REGISTRY_BUCKET "kvroute-registry" /* of workers, routers and indexers */

struct kvr_registry;

struct kvr_registry_config {
    struct kvr_nats *link; /* must outlive it */
    const char *bucket;    /* letters, digits, - and _ */
    double ttl_s;
    int replicas;
    const char *watch; /* keys to watch, with NATS wildcards; NULL: none */
    /* An entry is there, or is another than before. The value is borrowed and not terminated. */
    void (*on_entry)(void *ctx, const char *key, const char *value, size_t len);
    void (*on_gone)(void *ctx, const char *key);
    void (*on_known)(void *ctx); /* the initial entries have been told; after each connection */
    /* A lease was won or lost. */
    void (*on_lease)(void *ctx, const char *key, bool held);
    void *ctx;
};

/* Returns at once; the bucket is made when there is a connection. Returns: 0, -KVR_ENOMEM. */
int kvr_registry_open(const struct kvr_registry_config *config, struct kvr_registry **out);
/* Deletes what is kept. Soon after a reconnect it takes up to 3 s, until the client library has come to rest. No handler runs after the
 * return. NULL is fine. */
void kvr_registry_close(struct kvr_registry *r);

/* Keeps a key, copied; a key that is kept already gets the new value. Returns: 0, -KVR_ENOMEM, -KVR_EINVAL (too
 * long), -KVR_ELIMIT (256 are kept). */
int kvr_registry_keep(struct kvr_registry *r, const char *key, const char *value, bool exclusive);
/* Is this exclusive key ours? If not, `owner` (may be NULL) gets the value of who holds it, "" when nobody is known to. */
bool kvr_registry_holds(struct kvr_registry *r, const char *key, char *owner, size_t cap);
/* Have the initial entries been told, and kept keys been tried? */
bool kvr_registry_settled(struct kvr_registry *r);

/* Is this key of those that are watched there? */
bool kvr_registry_sees(struct kvr_registry *r, const char *key);

/* Any text as part of a key: what NATS does not allow becomes -, and a hash tells changed ones apart. */
void kvr_registry_token(const char *text, char *out, size_t cap);

#endif
