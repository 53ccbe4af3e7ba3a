/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events into the index, trust into the router. The callbacks run on the ingest thread; pools live as long as
 * the process, and a pool of a worker is found once when it is followed.
 */
#include "app/serve/state.h"

#include <string.h>

static struct pool *pool_of(struct serve *s, uint64_t worker_id)
{
    pthread_mutex_lock(&s->lock);
    const struct worker *w = worker_find_locked(s, worker_id);
    struct pool *p = w ? w->pool : NULL;
    pthread_mutex_unlock(&s->lock);
    return p;
}

static int on_event(void *ctx, const struct kvr_event *ev)
{
    struct serve *s = ctx;
    const struct pool *p = pool_of(s, ev->worker.worker_id);
    int rc = p && p->index ? kvr_index_apply(p->index, ev) : -KVR_ENOTFOUND;
    atomic_fetch_add_explicit(rc ? &s->metrics.events_failed_total : &s->metrics.events_applied_total, 1, memory_order_relaxed);
    return rc;
}

static void on_reset(void *ctx, struct kvr_worker w)
{
    const struct pool *p = pool_of(ctx, w.worker_id);
    if (p && p->index) kvr_index_remove_rank(p->index, w);
}

static void on_trust(void *ctx, struct kvr_worker w, bool trusted, const char *reason)
{
    struct serve *s = ctx;
    const struct pool *p = pool_of(s, w.worker_id);
    if (p) kvr_router_set_trusted(p->router, w, trusted);
    fprintf(stderr, "kvroute: view of worker %llu rank %u is %s%s%s\n", (unsigned long long)w.worker_id, w.dp_rank,
            trusted ? "trusted" : "not trusted", reason[0] ? ": " : "", reason);
}

int views_start(struct serve *s)
{
    if (!s->o->kv_events || s->o->overlap_credit <= 0) return 0;
    struct kvr_ingest_handler h = {on_event, on_reset, on_trust, s};
    return kvr_ingest_create(&h, s->o->restore_timeout, &s->ingest);
}

void views_follow(struct serve *s, const struct worker *w)
{
    for (uint32_t r = 0; s->ingest && w->has_events && r < w->dp_size; r++)
        if (w->events[r][0])
            kvr_ingest_add(s->ingest, (struct kvr_worker){w->id, w->dp_start + r}, w->block_size, w->events[r],
                           w->replay[r][0] ? w->replay[r] : NULL);
}

void views_unfollow(struct serve *s, uint64_t id)
{
    if (s->ingest) kvr_ingest_remove(s->ingest, id);
}

bool views_settled(struct serve *s)
{
    struct kvr_view_status *st;
    size_t want = 0, n, cap, settled = 0;
    if (!s->ingest) return true;
    pthread_mutex_lock(&s->lock);
    for (const struct worker *w = s->workers; w; w = w->next)
        for (uint32_t r = 0; w->has_events && r < w->dp_size; r++) want += w->events[r][0] != 0;
    pthread_mutex_unlock(&s->lock);
    cap = want + 16;
    st = calloc(cap, sizeof *st);
    if (!st) return false;
    n = kvr_ingest_status(s->ingest, st, cap);
    for (size_t i = 0; i < KVR_MIN(n, cap); i++) settled += st[i].settled;
    free(st);
    return settled >= want;
}
