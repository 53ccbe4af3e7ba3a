/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of the room of workers: what it consists of is made, started, looked after each tick and second, and ended here. Main loop.
 * Views begin before the rest and end after it (views/views.c): serve.c says when.
 */
#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/counts/model_counts.h"
#include "app/serve/workers/engines/engine_load.h"
#include "app/serve/workers/engines/health.h"
#include "app/serve/workers/learn.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/views/evidence.h"
#include "app/serve/workers/views/views.h"

struct workers *workers_create(struct process *p, const struct workers_hooks *hooks)
{
    struct workers *ws = calloc(1, sizeof *ws);
    if (!ws) return NULL;
    ws->o = p->o;
    ws->process = p;
    ws->hooks = *hooks;
    ws->profiles = p->o->profiles;
    ws->profiles_n = p->o->profiles_n;
    atomic_store(&ws->mode, p->o->mode);
    kvr_lock_init(&ws->lock, KVR_LOCK_SERVE);
    kvr_lock_init(&ws->roster_lock, KVR_LOCK_ROSTER);
    ws->labels = labels_create();
    ws->model_counts = model_counts_create();
    ws->evidence = evidence_create();
    ws->health_checks = health_create();
    if (ws->labels && ws->model_counts && ws->evidence && ws->health_checks) return ws;
    workers_destroy(ws);
    return NULL;
}

void workers_destroy(struct workers *ws)
{
    if (!ws) return;
    workers_clear(ws);
    labels_destroy(ws->labels);
    model_counts_destroy(ws->model_counts);
    evidence_destroy(ws->evidence);
    health_destroy(ws->health_checks);
    partitions_destroy(ws);
    kvr_lock_destroy(&ws->lock);
    kvr_lock_destroy(&ws->roster_lock);
    free(ws);
}

int workers_start(struct workers *ws, char *err, size_t cap)
{
    if (engine_load_start(ws)) return kvr_refuse(err, cap, "out of memory");
    return ws->o->select_only || health_start(ws) == 0 ? 0 : -1;
}

void workers_tick(struct workers *ws)
{
    for (const struct partition *p = ws->partitions; p; p = p->next) kvr_router_poll(p->router); /* decay alone can release what waits */
    views_tick(ws);
    evidence_tick(ws);
    engine_load_tick(ws);
    engine_survey_tick(ws);
    if (++ws->ticks % (WIRING_EVERY_MS / TICK_MS) == 0) views_wiring_tick(ws);
    missed_rendezvous_tick(ws);
}

void workers_second(struct workers *ws)
{
    partitions_tick(ws);
    roster_tick(ws);
}

void workers_stop(struct workers *ws)
{
    engine_survey_stop(ws);
    health_stop(ws);
    engine_load_stop(ws);
}
