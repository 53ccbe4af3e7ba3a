/* SPDX-License-Identifier: Apache-2.0 */
#include "app/indexer/stage.h"

static struct staged *pair_of(struct stage *s, struct partition *p, struct kvr_worker w)
{
    for (size_t i = s->n; i-- > 0;) /* dumps go pair by pair: mostly the last one */
        if (s->list[i].part == p && kvr_worker_cmp(s->list[i].worker, w) == 0) return &s->list[i];
    if (!kvr_grow(&s->list, &s->cap, s->n + 1, sizeof *s->list)) return NULL;
    partition_ref(p);
    s->list[s->n] = (struct staged){.part = p, .worker = w};
    kvr__event_list_init(&s->list[s->n].content, NULL);
    return &s->list[s->n++];
}

int stage_add(struct stage *s, struct partition *p, const struct kvr_event *ev)
{
    struct staged *g = pair_of(s, p, ev->worker);
    return g ? kvr__event_list_add(&g->content, ev) : -KVR_ENOMEM;
}

struct staged *stage_find(const struct stage *s, const struct partition *p, struct kvr_worker w)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->list[i].part == p && kvr_worker_cmp(s->list[i].worker, w) == 0) return &s->list[i];
    return NULL;
}

int stage_put(struct staged *g, struct partition *p, struct kvr_worker w)
{
    if (!g) {
        kvr_index_drop_rank(p->index, w);
        return 0;
    }
    for (size_t i = 0; i < g->content.n; i++)
        if (g->content.events[i].tier != KVR_TIER_DEVICE) atomic_store(&p->tiers, true);
    return kvr_index_restore(p->index, w, kvr__event_list_events(&g->content), g->content.n);
}

void stage_free(struct stage *s)
{
    for (size_t i = 0; i < s->n; i++) {
        partition_unref(s->list[i].part);
        kvr__event_list_free(&s->list[i].content);
    }
    free(s->list);
    *s = (struct stage){0};
}
