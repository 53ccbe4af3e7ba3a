/* SPDX-License-Identifier: Apache-2.0 */
/* Map u64 -> u64: open addressing, linear probing, backward-shift deletion. Keys may be chosen by somebody hostile: places depend
 * on the process's secret. Single-threaded. */
#ifndef KVR_MAP64_H
#define KVR_MAP64_H

#include "base/base.h"

struct kvr_map64_slot {
    uint64_t key, value;
    uint64_t used;
};

struct kvr_map64 {
    struct kvr_map64_slot *slots;
    size_t cap, n; /* cap: power of two or 0 */
    uint64_t secret;
};

static inline size_t kvr_map64_home(const struct kvr_map64 *m, uint64_t key)
{
    return kvr_mix64_keyed(key, m->secret) & (m->cap - 1);
}

static inline size_t kvr_map64_place(const struct kvr_map64 *m, uint64_t key)
{
    size_t i = kvr_map64_home(m, key);
    while (m->slots[i].used && m->slots[i].key != key) i = (i + 1) & (m->cap - 1);
    return i;
}

/* Returns the value's place, valid until the next put or del, or NULL. */
static inline uint64_t *kvr_map64_get(const struct kvr_map64 *m, uint64_t key)
{
    if (m->n == 0) return NULL;
    size_t i = kvr_map64_place(m, key);
    return m->slots[i].used ? &m->slots[i].value : NULL;
}

static inline int kvr_map64_put(struct kvr_map64 *m, uint64_t key, uint64_t value)
{
    if ((m->n + 1) * 3 > m->cap * 2) {
        struct kvr_map64 bigger = {.cap = m->cap ? m->cap * 2 : 16, .secret = kvr_secret()};
        bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
        if (!bigger.slots) return -KVR_ENOMEM;
        for (size_t i = 0; i < m->cap; i++)
            if (m->slots[i].used) bigger.slots[kvr_map64_place(&bigger, m->slots[i].key)] = m->slots[i];
        bigger.n = m->n;
        free(m->slots);
        *m = bigger;
    }
    size_t i = kvr_map64_place(m, key);
    m->n += !m->slots[i].used;
    m->slots[i] = (struct kvr_map64_slot){key, value, 1};
    return 0;
}

static inline void kvr_map64_del(struct kvr_map64 *m, uint64_t key)
{
    if (m->n == 0) return;
    size_t mask = m->cap - 1, i = kvr_map64_place(m, key);
    if (!m->slots[i].used) return;
    for (size_t j = (i + 1) & mask; m->slots[j].used; j = (j + 1) & mask) {
        size_t home = kvr_map64_home(m, m->slots[j].key);
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        m->slots[i] = m->slots[j];
        i = j;
    }
    m->slots[i].used = 0;
    m->n--;
}

static inline void kvr_map64_clear(struct kvr_map64 *m)
{
    free(m->slots);
    *m = (struct kvr_map64){0};
}

#endif
