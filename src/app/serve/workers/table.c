/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker table: who is there, may it be chosen, what does it serve. Whoever adds to it or removes from it is in workers.c.
 *
 * All under serve.lock, but what is atomic in a worker that is held.
 */
#include "app/serve/workers/room.h"
#include "app/serve/common/clock.h"

#include <string.h>

struct worker *worker_find_locked(struct workers *s, uint64_t id)
{
    const uint64_t *at = kvr_map64_get(&s->workers_by_id, id);
    return at ? (struct worker *)(uintptr_t)*at : NULL;
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

void worker_sync_locked(struct workers *s, struct worker *w)
{
    bool ok = worker_is_schedulable(w, now_ms());
    (void)s;
    w->schedulable = ok;
    if (!w->removed) kvr_router_set_schedulable(w->partition->router, w->id, ok);
}

static bool name_is(const char *name, const char *s, size_t len)
{
    return strlen(name) == len && memcmp(name, s, len) == 0;
}

bool worker_serves_locked(const struct workers *s, const struct worker *w, const char *model, size_t len, bool *is_lora)
{
    *is_lora = false;
    if (!model) return true;
    for (size_t i = 0; i < w->models_n; i++)
        if (name_is(w->models[i].id, model, len)) {
            *is_lora = w->models[i].is_lora;
            return true;
        }
    if (w->model[0]) return name_is(w->model, model, len);
    if (s->o->model && name_is(s->o->model, model, len)) return true;
    return w->models == NULL && !s->o->model; /* not known yet: let the engine say */
}

const char *worker_model(const struct workers *s, const struct worker *w)
{
    return w->model[0] ? w->model : s->o->model ? s->o->model : w->models_n ? w->models[0].id : "default";
}

uint64_t worker_room_locked(const struct worker *w, const char *model)
{
    for (size_t i = 0; i < w->models_n; i++)
        if (!*model || strcmp(w->models[i].id, model) == 0) return w->models[i].max_model_len;
    return 0;
}
