/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the event streams said of prompts while they were served: which of their blocks were stored since, and how many blocks of any
 * kind their rank removed. Views tell what is there now; a small cache may have stored a prompt and given it up in between, and that is
 * nothing to hold against it.
 *
 * Blocks are known by (rank, local hash), wherever in a chain they stand. Only those that somebody waits for are kept, WATCHED_MAX of
 * them (3 MiB); prompts beyond that are not watched, which is the caller's to count.
 *
 * Threads: any; it has its own lock, under which nothing else is taken.
 */
#ifndef KVR_SERVE_WATCHES_H
#define KVR_SERVE_WATCHES_H

#include <stddef.h>
#include <kvroute/event.h>

struct watches;

struct watch {
    struct kvr_worker worker;
    size_t n;
    const uint64_t *locals;  /* borrowed until watches_end */
    uint64_t since, removed; /* marks of when it began */
};

struct watches *watches_create(void);
void watches_destroy(struct watches *ws);
/* Begins to watch for w's blocks. Returns: false: there are too many, or no memory. */
bool watches_begin(struct watches *ws, struct watch *w);
void watches_end(struct watches *ws, const struct watch *w);
/* seen[n]: was the block stored since? Returns: how many blocks the rank removed since; a cleared cache counts as all there are. */
uint64_t watches_look(struct watches *ws, const struct watch *w, bool *seen);
/* An event of a stream. */
void watches_event(struct watches *ws, const struct kvr_event *ev);
/* All that was known of a rank is gone. */
void watches_reset(struct watches *ws, struct kvr_worker worker);

#endif
