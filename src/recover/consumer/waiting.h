/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that wait while a view is being repaired, in the order in which they came. Bounded in number and bytes: one that finds the
 * queue full is refused, which shows as a gap when the others are taken. A zeroed queue is an empty one. Threads: one for each.
 */
#ifndef KVR_RECOVER_WAITING_H
#define KVR_RECOVER_WAITING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVR_WAITING_MESSAGES_MAX = 4096, KVR_WAITING_BYTES_MAX = 32 << 20 };

struct kvr_waiting_batch {
    struct kvr_waiting_batch *next;
    uint64_t seq;
    bool seen; /* the cursor knows that the live stream showed it */
    size_t len;
    char data[];
};

struct kvr_waiting {
    struct kvr_waiting_batch *head, *tail;
    size_t n, bytes;
};

/* A copy of the batch, last in the queue. Returns: false: there is no room, or no memory. */
bool kvr__waiting_put(struct kvr_waiting *w, uint64_t seq, bool seen, const char *data, size_t len);
/* The first, which is the caller's then (free); NULL: none. */
struct kvr_waiting_batch *kvr__waiting_take(struct kvr_waiting *w);
/* Moves the others behind these. */
void kvr__waiting_append(struct kvr_waiting *w, struct kvr_waiting *others);
void kvr__waiting_clear(struct kvr_waiting *w);

#endif
