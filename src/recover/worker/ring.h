/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last events of a local index, oldest first, bounded in number and bytes.
 *
 * Entries are counted from 0 for ever ("place"); the ring holds places [first, end), and shows [first, shown). An entry owns a
 * copy of its event's blocks or hashes, in memory that the next entry in the same slot uses again.
 * Not thread-safe: the local index locks.
 */
#ifndef KVR_RECOVER_RING_H
#define KVR_RECOVER_RING_H

#include <kvroute/event.h>

#include "base/base.h"

struct kvr_ring_entry {
    struct kvr_event ev; /* blocks or removed point to data */
    void *data;
    size_t cap;
};

struct kvr_ring {
    struct kvr_mem *mem;
    struct kvr_ring_entry *slots;
    size_t slots_n, bytes, bytes_max;
    uint64_t first, end, shown;
    uint64_t evicted_id; /* of the last event that fell out */
    bool evicted_any;
};

int kvr__ring_init(struct kvr_ring *r, struct kvr_mem *mem, size_t events_max, size_t bytes_max);
void kvr__ring_free(struct kvr_ring *r);
/* Adds a copy; the oldest fall out. One that does not fit, or for which there is no memory, empties the ring. */
void kvr__ring_add(struct kvr_ring *r, const struct kvr_event *ev);
/* An event with this id is not to be had: empties the ring. */
void kvr__ring_skip(struct kvr_ring *r, uint64_t id);
const struct kvr_event *kvr__ring_at(const struct kvr_ring *r, uint64_t place);
/* First shown place whose id is at least `id`. */
uint64_t kvr__ring_find(const struct kvr_ring *r, uint64_t id);
/* Are all events from this id on still here? */
bool kvr__ring_reaches(const struct kvr_ring *r, uint64_t id);

#endif
