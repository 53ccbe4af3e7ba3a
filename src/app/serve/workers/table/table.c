/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker table: who is there, may it be chosen, what does it serve. Whoever adds to it or removes from it is in workers.c.
 *
 * All under the table's lock, but what is atomic in a worker that is held.
 */
#include "app/serve/workers/table/room.h"

#include <string.h>

struct worker *worker_find_locked(struct workers *ws, uint64_t id)
{
    const uint64_t *at = kvr_map64_get(&ws->workers_by_id, id);
    return at ? (struct worker *)(uintptr_t)*at : NULL;
}

bool worker_is_same(struct workers *ws, uint64_t id, uint64_t ups)
{
    kvr_lock(&ws->lock);
    const struct worker *w = worker_find_locked(ws, id);
    bool same = w && atomic_load(&w->ups) == ups;
    kvr_unlock(&ws->lock);
    return same;
}

void worker_copy_locked(struct worker_spec *to, const struct worker *from)
{
    memset(to, 0, sizeof *to);
    memcpy(&to->w, from, offsetof(struct worker, refs));
    to->w.ranks = to->ranks;
    for (uint32_t r = 0; r < from->dp_size; r++) memcpy(&to->ranks[r], &from->ranks[r], offsetof(struct worker_rank, view));
}

void worker_note_events(struct worker *w)
{
    w->has_events = false;
    for (uint32_t r = 0; r < w->dp_size; r++) w->has_events |= w->ranks[r].endpoints[RANK_EVENTS][0] != 0;
}

struct worker *worker_hold(struct worker *w)
{
    atomic_fetch_add(&w->refs, 1);
    return w;
}

void worker_let_go(struct worker *w)
{
    if (!w || atomic_fetch_sub(&w->refs, 1) != 1) return;
    kvr_tls_peer_let_go(w->tls);
    free(w->models);
    free(w);
}

bool worker_is_schedulable(const struct worker *w, uint64_t now)
{
    return !w->removed && !w->unreachable && !w->misplaced && !w->draining && w->health != HEALTH_DOWN && w->open_until_ms <= now;
}

bool worker_takes_whole(const struct worker *w)
{
    return w->role == ROLE_BOTH || (w->role == ROLE_DECODE && w->local_prefill && w->kv_protocol != KVR_KV_SGLANG);
}

void worker_sync_locked(struct workers *, struct worker *w)
{
    bool ok = worker_is_schedulable(w, kvr_now_ms());
    w->schedulable = ok;
    if (!w->removed) kvr_router_set_schedulable(w->partition->router, w->id, ok);
}

bool worker_serves_locked(const struct workers *ws, const struct worker *w, const char *model, size_t len, bool *is_lora)
{
    *is_lora = false;
    if (!model) return true;
    for (size_t i = 0; i < w->models_n; i++)
        if (kvr_span_is(model, len, w->models[i].id)) {
            *is_lora = w->models[i].is_lora;
            return true;
        }
    if (w->model[0]) return kvr_span_is(model, len, w->model);
    if (ws->o->model && kvr_span_is(model, len, ws->o->model)) return true;
    return w->models == NULL && !ws->o->model; /* not known yet: let the engine say */
}

const char *worker_model(const struct workers *ws, const struct worker *w)
{
    return w->model[0] ? w->model : ws->o->model ? ws->o->model : w->models_n ? w->models[0].id : "default";
}

uint64_t worker_room_locked(const struct worker *w, const char *model)
{
    for (size_t i = 0; i < w->models_n; i++)
        if (!*model || strcmp(w->models[i].id, model) == 0) return w->models[i].max_model_len;
    return 0;
}

/* ---- for other rooms --------------------------------------------------------------------------------- */

void workers_set_listener(struct workers *ws, void *listener)
{
    ws->listener = listener;
}

void workers_lock(struct workers *ws)
{
    kvr_lock(&ws->lock);
}

void workers_unlock(struct workers *ws)
{
    kvr_unlock(&ws->lock);
}

struct worker *workers_first(const struct workers *ws)
{
    return ws->workers;
}

size_t workers_count(const struct workers *ws)
{
    return ws->workers_n;
}

int workers_mode(const struct workers *ws)
{
    return atomic_load(&ws->mode);
}

void workers_set_mode(struct workers *ws, int mode)
{
    atomic_store(&ws->mode, mode);
    kvr_lock(&ws->lock);
    for (struct partition *p = ws->partitions; p; p = p->next) kvr_router_set_mode(p->router, (enum kvr_router_mode)mode);
    kvr_unlock(&ws->lock);
}

bool workers_have_roles(const struct workers *ws)
{
    return atomic_load(&ws->has_roles);
}

uint64_t workers_version(const struct workers *ws)
{
    return atomic_load(&ws->workers_version);
}

struct worker_counters *workers_counters(struct workers *ws)
{
    return &ws->counters;
}
