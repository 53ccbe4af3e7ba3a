/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Use frequencies: how often a block was asked for within a window of time. A block is known here by the rolling hash
 * of the local hashes up to it, so uses are counted for prefixes, whoever holds them. Exact: every use is in a queue
 * in order of time, and leaves its block's count when it is older than the window. The queue is bounded; when it is
 * full the oldest use goes early, which is counted.
 */
#include "index/internal.h"
#include "base/lock.h"
#include "base/map64.h"

enum { USES_MAX = 1 << 20 };

struct use {
    uint64_t hash, at;
};
struct usage {
    struct kvr_lock lock;
    struct kvr_mem mem;
    struct use *ring;
    size_t cap, head, n;
    struct kvr_map64 counts;
    uint64_t dropped;
};

static void forget_oldest(struct usage *u)
{
    uint64_t hash = u->ring[u->head].hash, *count = kvr_map64_get(&u->counts, hash);
    u->head = (u->head + 1) % u->cap;
    u->n--;
    if (count && --*count == 0) kvr_map64_del(&u->counts, hash);
}

static int ring_grow(struct usage *u)
{
    size_t cap = u->cap ? u->cap * 2 : 1024;
    struct use *bigger = kvr_mem_get(&u->mem, cap * sizeof *bigger);
    if (!bigger) return -KVR_ENOMEM;
    for (size_t i = 0; i < u->n; i++) bigger[i] = u->ring[(u->head + i) % u->cap];
    kvr_mem_put(&u->mem, u->ring, u->cap * sizeof *u->ring);
    u->ring = bigger;
    u->cap = cap;
    u->head = 0;
    return 0;
}

static void note_use(struct usage *u, uint64_t hash, uint64_t now)
{
    uint64_t *count = kvr_map64_get(&u->counts, hash);
    if (u->n == u->cap && (u->cap >= USES_MAX || ring_grow(u))) {
        if (!u->n) return;
        forget_oldest(u);
        u->dropped++;
        count = kvr_map64_get(&u->counts, hash);
    }
    if (count) ++*count;
    else if (kvr_map64_put(&u->counts, hash, 1)) return;
    u->ring[(u->head + u->n++) % u->cap] = (struct use){hash, now};
}

int kvr__usage_create(struct kvr_index *ix)
{
    struct kvr_mem mem;
    kvr_mem_init(&mem, &ix->mem.a, 0);
    struct usage *u = kvr_mem_zget(&mem, sizeof *u);
    if (!u) return -KVR_ENOMEM;
    u->mem = mem;
    kvr_lock_init(&u->lock, KVR_LOCK_INDEX_USAGE);
    ix->usage = u;
    return 0;
}

void kvr__usage_destroy(struct kvr_index *ix)
{
    struct usage *u = ix->usage;
    if (!u) return;
    kvr_map64_clear(&u->counts);
    kvr_mem_put(&u->mem, u->ring, u->cap * sizeof *u->ring);
    kvr_lock_destroy(&u->lock);
    struct kvr_mem mem = u->mem;
    kvr_mem_put(&mem, u, sizeof *u);
}

int kvr_index_use(struct kvr_index *ix, const uint64_t *locals, size_t n, uint32_t *frequencies)
{
    struct usage *u = ix->usage;
    if (!u) return -KVR_EUNSUPPORTED;
    uint64_t now = kvr_now_ns(&ix->clock), hash = 0;
    kvr_lock(&u->lock);
    while (u->n && now - u->ring[u->head].at >= ix->config.frequency_window_ns) forget_oldest(u);
    for (size_t i = 0; i < n; i++) {
        hash = kvr_mix64(hash * 0x9e3779b97f4a7c15ULL ^ locals[i]);
        const uint64_t *count = kvr_map64_get(&u->counts, hash);
        if (frequencies) frequencies[i] = count ? (uint32_t)*count : 0;
        note_use(u, hash, now);
    }
    kvr_unlock(&u->lock);
    return 0;
}

uint64_t kvr__usage_dropped(struct kvr_index *ix)
{
    if (!ix->usage) return 0;
    kvr_lock(&ix->usage->lock);
    uint64_t n = ix->usage->dropped;
    kvr_unlock(&ix->usage->lock);
    return n;
}
