/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that somebody waits for, and how many a rank removed, each in a map under one lock: watches.h. */
#include "app/serve/workers/views/watches.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/lock.h"
#include "base/map64.h"

/* A value of `blocks`: how many watch for the block, and the number of the last event that stored it. */
enum { WATCHED_MAX = 64 << 10, WATCHERS_BITS = 16, REMOVED_MAX = 64 << 10 };
static const uint64_t ALL_BLOCKS = UINT64_C(1) << 40;

struct watches {
    struct kvr_lock lock;
    struct kvr_map64 blocks;  /* (rank, local hash) */
    struct kvr_map64 removed; /* rank: blocks removed so far */
    uint64_t events;
    bool uncounted; /* removals of some rank: any may have happened */
};

static uint64_t key_of_rank(struct kvr_worker w)
{
    return kvr_mix64(w.worker_id) ^ kvr_mix64(UINT64_C(0x9e3779b97f4a7c15) + w.dp_rank);
}

static uint64_t key_of(uint64_t rank, uint64_t local)
{
    return kvr_mix64(rank ^ local);
}

struct watches *watches_create(void)
{
    struct watches *ws = calloc(1, sizeof *ws);
    if (ws) kvr_lock_init(&ws->lock, KVR_LOCK_WATCHES);
    return ws;
}

void watches_destroy(struct watches *ws)
{
    if (!ws) return;
    kvr_map64_clear(&ws->blocks);
    kvr_map64_clear(&ws->removed);
    kvr_lock_destroy(&ws->lock);
    free(ws);
}

static void let_go_locked(struct watches *ws, const struct watch *w, size_t n)
{
    uint64_t rank = key_of_rank(w->worker);
    for (size_t i = 0; i < n; i++) {
        uint64_t key = key_of(rank, w->locals[i]), *v = kvr_map64_get(&ws->blocks, key);
        if (v && ((*v)-- & ((1 << WATCHERS_BITS) - 1)) == 1) kvr_map64_del(&ws->blocks, key);
    }
}

static bool take_locked(struct watches *ws, const struct watch *w)
{
    uint64_t rank = key_of_rank(w->worker);
    for (size_t i = 0; i < w->n; i++) {
        uint64_t key = key_of(rank, w->locals[i]), *v = kvr_map64_get(&ws->blocks, key);
        bool full = v ? (*v + 1) % (1 << WATCHERS_BITS) == 0 : ws->blocks.n == WATCHED_MAX;
        if (v && !full) ++*v;
        if (full || (!v && kvr_map64_put(&ws->blocks, key, 1))) {
            let_go_locked(ws, w, i);
            return false;
        }
    }
    return true;
}

static uint64_t removed_locked(const struct watches *ws, struct kvr_worker worker)
{
    const uint64_t *v = kvr_map64_get(&ws->removed, key_of_rank(worker));
    return v ? *v : 0;
}

bool watches_begin(struct watches *ws, struct watch *w)
{
    kvr_lock(&ws->lock);
    bool ok = take_locked(ws, w);
    w->since = ws->events;
    w->removed = removed_locked(ws, w->worker);
    kvr_unlock(&ws->lock);
    return ok;
}

void watches_end(struct watches *ws, const struct watch *w)
{
    kvr_lock(&ws->lock);
    let_go_locked(ws, w, w->n);
    kvr_unlock(&ws->lock);
}

uint64_t watches_look(struct watches *ws, const struct watch *w, bool *seen)
{
    uint64_t rank = key_of_rank(w->worker);
    kvr_lock(&ws->lock);
    for (size_t i = 0; i < w->n; i++) {
        const uint64_t *v = kvr_map64_get(&ws->blocks, key_of(rank, w->locals[i]));
        seen[i] = v && *v >> WATCHERS_BITS > w->since;
    }
    uint64_t removed = ws->uncounted ? ALL_BLOCKS : removed_locked(ws, w->worker) - w->removed;
    kvr_unlock(&ws->lock);
    return removed;
}

static void add_removed_locked(struct watches *ws, struct kvr_worker worker, uint64_t n)
{
    uint64_t rank = key_of_rank(worker), *v = kvr_map64_get(&ws->removed, rank);
    if (v) *v += n;
    else if (ws->removed.n == REMOVED_MAX || kvr_map64_put(&ws->removed, rank, n)) ws->uncounted = true;
}

static void mark_stored_locked(struct watches *ws, const struct kvr_event *ev)
{
    uint64_t rank = key_of_rank(ev->worker);
    ws->events++;
    for (size_t i = 0; i < ev->blocks_n; i++) {
        uint64_t *v = kvr_map64_get(&ws->blocks, key_of(rank, ev->blocks[i].tokens_hash));
        if (v) *v = ws->events << WATCHERS_BITS | *v % (1 << WATCHERS_BITS);
    }
}

void watches_event(struct watches *ws, const struct kvr_event *ev)
{
    kvr_lock(&ws->lock);
    if (ev->kind == KVR_EVENT_STORED) mark_stored_locked(ws, ev);
    else if (ev->kind == KVR_EVENT_CLEARED) add_removed_locked(ws, ev->worker, ALL_BLOCKS);
    else if (ev->tier == KVR_TIER_DEVICE) add_removed_locked(ws, ev->worker, ev->removed_n);
    kvr_unlock(&ws->lock);
}

void watches_reset(struct watches *ws, struct kvr_worker worker)
{
    kvr_lock(&ws->lock);
    add_removed_locked(ws, worker, ALL_BLOCKS);
    kvr_unlock(&ws->lock);
}
