/* SPDX-License-Identifier: Apache-2.0 */
#include "app/indexer/stage.h"

#include <string.h>

static bool grow(void *ptr, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return true;
    size_t n = KVR_MAX(need, *cap * 2);
    void **at = ptr, *p = realloc(*at, n * elem);
    if (!p) return false;
    *at = p;
    *cap = n;
    return true;
}

static struct staged *pair_of(struct stage *s, struct partition *p, struct kvr_worker w)
{
    for (size_t i = s->n; i-- > 0;) /* dumps go pair by pair: mostly the last one */
        if (s->list[i].part == p && kvr_worker_cmp(s->list[i].worker, w) == 0) return &s->list[i];
    if (!grow(&s->list, &s->cap, s->n + 1, sizeof *s->list)) return NULL;
    partition_ref(p);
    s->list[s->n] = (struct staged){.part = p, .worker = w};
    return &s->list[s->n++];
}

int stage_add(struct stage *s, struct partition *p, const struct kvr_event *ev)
{
    struct staged *g = pair_of(s, p, ev->worker);
    if (!g || !grow(&g->events, &g->events_cap, g->events_n + 1, sizeof *g->events) ||
        !grow(&g->blocks, &g->blocks_cap, g->blocks_n + ev->blocks_n, sizeof *g->blocks))
        return -KVR_ENOMEM;
    g->events[g->events_n] = *ev;
    g->events[g->events_n++].blocks = NULL;
    if (ev->blocks_n) memcpy(g->blocks + g->blocks_n, ev->blocks, ev->blocks_n * sizeof *ev->blocks);
    g->blocks_n += ev->blocks_n;
    return 0;
}

const struct staged *stage_find(const struct stage *s, const struct partition *p, struct kvr_worker w)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->list[i].part == p && kvr_worker_cmp(s->list[i].worker, w) == 0) return &s->list[i];
    return NULL;
}

const struct kvr_event *stage_events(const struct staged *g)
{
    const struct kvr_block *at = g->blocks; /* the array may have moved since the events were added */
    for (size_t i = 0; i < g->events_n; i++) {
        g->events[i].blocks = at;
        at += g->events[i].blocks_n;
    }
    return g->events;
}

int stage_put(const struct staged *g, struct partition *p, struct kvr_worker w)
{
    if (!g) {
        kvr_index_remove_rank(p->index, w);
        return 0;
    }
    for (size_t i = 0; i < g->events_n; i++)
        if (g->events[i].tier != KVR_TIER_DEVICE) atomic_store(&p->tiers, true);
    return kvr_index_restore(p->index, w, stage_events(g), g->events_n);
}

void stage_free(struct stage *s)
{
    for (size_t i = 0; i < s->n; i++) {
        partition_unref(s->list[i].part);
        free(s->list[i].events);
        free(s->list[i].blocks);
    }
    free(s->list);
    *s = (struct stage){0};
}
