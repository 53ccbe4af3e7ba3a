/* SPDX-License-Identifier: Apache-2.0 */
/* The worker table, as one request sees it: data/eligible.h. */
#include "app/serve/data/eligible.h"

#include <string.h>

static bool serves_locked(const struct request *r, const struct worker *w, bool *lora)
{
    return worker_serves_locked(serve_of(r), w, r->model[0] ? r->model : NULL, strlen(r->model), lora);
}

static struct pool *most_used_locked(const struct request *r)
{
    struct pool *found = NULL;
    size_t best = 0;
    bool lora;
    for (struct pool *pool = serve_of(r)->pools; pool; pool = pool->next) {
        size_t k = 0;
        for (const struct worker *w = serve_of(r)->workers; w; w = w->next) k += w->pool == pool && serves_locked(r, w, &lora);
        if (k > best) {
            best = k;
            found = pool;
        }
    }
    return found;
}

void eligible_workers_locked(struct request *r, struct eligible *e)
{
    struct serve *s = serve_of(r);
    bool lora;
    e->n = 0;
    e->all = true;
    e->pool = most_used_locked(r);
    for (struct worker *w = s->workers; w && e->pool; w = w->next) {
        if (w->pool != e->pool) continue;
        if (!serves_locked(r, w, &lora)) {
            e->all = false;
            continue;
        }
        if (lora) r->is_lora = true;
        if (w->schedulable != worker_is_schedulable(w, now_ms())) worker_sync_locked(s, w); /* a breaker's pause is over */
        if (e->n < e->cap) e->ids[e->n++] = w->id;
    }
}

struct pool *eligible_pool(struct request *r)
{
    struct serve *s = serve_of(r);
    struct eligible e = {0};
    kvr_lock(&s->lock);
    eligible_workers_locked(r, &e);
    kvr_unlock(&s->lock);
    return e.pool;
}

struct worker *eligible_tokenizer(const struct request *r, bool *exists)
{
    struct serve *s = serve_of(r);
    struct worker *found = NULL;
    size_t seen = 0;
    bool lora;
    kvr_lock(&s->lock);
    *exists = s->workers_n > 0;
    for (struct worker *w = s->workers; w; w = w->next) {
        if (!worker_is_schedulable(w, now_ms()) || !serves_locked(r, w, &lora)) continue;
        if (atomic_fetch_add(&s->next_id, 1) % ++seen == 0) found = w; /* spread over them */
    }
    if (found) found->refs++;
    kvr_unlock(&s->lock);
    return found;
}

bool eligible_truncates(const struct request *r, uint64_t *room)
{
    struct serve *s = serve_of(r);
    bool does = true, lora;
    *room = 0;
    kvr_lock(&s->lock);
    for (const struct worker *w = s->workers; w; w = w->next) {
        if (!serves_locked(r, w, &lora)) continue;
        if (w->engine == ENGINE_SGLANG) does = false;
        if (!*room) *room = worker_room_locked(w, r->model);
    }
    kvr_unlock(&s->lock);
    return does;
}
