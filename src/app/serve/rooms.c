/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The map of `serve`. A room uses those below it and its own files, never one above; what it tells those above goes through hooks that
 * are tied here. Its state is in its room.h, which its own files see alone; others hold it by pointer and use the functions of its headers.
 *
 *     serve.c       start, timers, signals, end; check.c reads what a start would
 *       admin/        the admin port: routes, /metrics, the selection service                      main loop
 *       data/         requests of clients (request/request.h has the map), what is kept of them    data loops
 *       discovery/    workers that are found rather than configured                                main loop, NATS
 *       peers/        other routers: replicas.h, index_server.h; indexes elsewhere: remote.h,      main loop, sync, NATS
 *                     shards.h
 *       tokenizers/   which model's tokens are made here                                           main loop, pool
 *       config/       files that say what is routed how and who may ask; certificates              main loop
 *       workers/      table/worker.h the table, table/partition.h partitions, engines/health.h     main loop, ingest
 *                     how they stand, views/views.h what is known of their caches
 *       common/       process.h what all are given; options, limits, clock, members of bodies
 *
 * tests/links.cmake has the arrows among all folders; docs/how/code.md the lives of a request, an event and a worker.
 *
 * Threads:
 *   main loop    admin port, health checks, timers; the only one that adds workers and partitions, and removes workers
 *   data loops   requests of their own connections; never each other's
 *   ingest       KV events; calls into workers/views/views.c only
 *   sync         other routers' bookings; calls into peers/replicas.c, and from there into what peers_hooks says
 *   NATS         one for each subscription and registry: peers/index_server.c, workers/engines/engine_load.c, discovery/nats.c
 *   pool         tokens of long prompts (token/pool.h); hands them to the loop whose request asked
 *   folders      of `select` with --tokenizer-dir, from the first SIGHUP on: reads the folders again
 * Shared state: the worker table is under its lock (workers.h); what is made of it for requests is the roster (workers/table/roster.h),
 * which does not change. Sessions, decisions, labelled counters, evidence and the quality of predictions have locks of their own, leaves
 * all; counters are atomic; kvr_router and kvr_index have their own locks. base/lock.h has the order of all. Nothing blocks under the lock
 * of the table, and a request neither hashes, nor copies, nor looks through workers under it.
 */
#include "app/serve/rooms.h"

#include <stdio.h>
#include <unistd.h>

#include "app/serve/admin/admin.h"
#include "app/serve/config/config.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/state/sessions.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/peers/peers.h"
#include "app/serve/peers/replicas.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/table/partition.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "base/base.h"
#include "net/zmq/curve.h"

/* ---- what rooms tell those above them ------------------------------------------------------------------ */

static void on_workers_changed(void *ctx)
{
    struct rooms *r = ctx;
    replicas_workers_changed(r->peers);
}

static void on_tokens_doubted(void *ctx, const char *model)
{
    struct rooms *r = ctx;
    tokenizers_doubted(r->tokenizers, model);
}

static bool on_partition_asked(void *ctx, const struct partition *p)
{
    struct rooms *r = ctx;
    return admin_asks_partition(r->admin, p);
}

static void on_may_route(void *ctx)
{
    struct rooms *r = ctx;
    if (r->data) data_plane_wake_parked(r->data);
}

static void on_session_heard(void *ctx, const char *id, size_t len, struct kvr_worker w)
{
    struct rooms *r = ctx;
    bindings_heard(r->data, id, len, w);
}

/* ---- life ---------------------------------------------------------------------------------------------- */

static bool process_init(struct process *p, const struct serve_options *o)
{
    p->o = o;
    p->started_ms = kvr_now_ms();
    p->salt = kvr_mix64(kvr_monotonic_ns() ^ (uint64_t)getpid() << 32);
    p->json = kvr_json_parser_new();
    return p->json != NULL;
}

bool rooms_create(struct rooms *r, const struct serve_options *o)
{
    const struct peers_hooks told_by_peers = {r, on_session_heard};
    *r = (struct rooms){0};
    bool ok = process_init(&r->process, o);
    struct workers_hooks told_by_workers = {.ctx = r,
                                            .changed = on_workers_changed,
                                            .tokens_doubted = on_tokens_doubted,
                                            .partition_asked = on_partition_asked,
                                            .may_route = on_may_route,
                                            .booked = replicas_wanted(o) ? replicas_on_change : NULL};
    ok = ok && (r->workers = workers_create(&r->process, &told_by_workers)) && (r->config = config_create(&r->process, r->workers)) &&
         (r->tokenizers = tokenizers_create(&r->process, r->workers)) &&
         (r->peers = peers_create(&r->process, r->workers, &told_by_peers)) &&
         (r->discovery = discovery_create(&r->process, r->workers, r->config, r->peers));
    const struct data_plane_uses below_data = {r->workers, r->config, r->tokenizers, r->peers};
    ok = ok && (r->data = data_plane_create(&r->process, &below_data));
    const struct admin_uses below_admin = {r->workers, r->config, r->tokenizers, r->discovery, r->peers, r->data};
    ok = ok && (r->admin = admin_create(&r->process, &below_admin));
    if (ok) workers_set_listener(r->workers, r->peers);
    else rooms_destroy(r);
    return ok;
}

void rooms_destroy(struct rooms *r)
{
    if (r->data) data_plane_free_loops(r->data);
    admin_destroy(r->admin);
    data_plane_destroy(r->data);
    discovery_destroy(r->discovery);
    peers_destroy(r->peers);
    tokenizers_destroy(r->tokenizers);
    config_destroy(r->config);
    workers_destroy(r->workers);
    kvr_curve_free(r->process.curve);
    kvr_json_parser_free(r->process.json);
}

/* ---- workers that are configured ----------------------------------------------------------------------- */

int rooms_add_worker(struct rooms *r, const struct kvr_entry *e, uint64_t place, char *err, size_t cap)
{
    struct workers *ws = r->workers;
    struct worker_spec spec;
    char name[WORKER_NAME_MAX], why[512];
    if (worker_read(ws, e, &spec, err, cap)) return -1;
    spec.w.id = spec.has_id ? spec.id : place;
    workers_lock(ws);
    bool duplicate = worker_find_locked(ws, spec.w.id) != NULL;
    workers_unlock(ws);
    worker_name(e, 0, name, sizeof name);
    if (duplicate)
        return kvr_refuse(err, cap, "%s: bad value '%llu' for 'id'; allowed: an id that no other worker has", name,
                          (unsigned long long)spec.w.id);
    if (worker_add(ws, &spec.w, why, sizeof why) == 0) return 0;
    return kvr_refuse(err, cap, "%s: %s", name, why);
}
