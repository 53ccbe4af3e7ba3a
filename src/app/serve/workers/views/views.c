/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV events into the index, what a view is worth into the router. The callbacks run on the ingest thread; `user` is the worker's partition,
 * which lives as long as the process.
 */
#include "app/serve/workers/views/views.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/workers/engines/learnt.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/views/evidence.h"
#include "base/log.h"
#include "store/event_recorder.h"
#include "store/view_store.h"

/* ---- what our own requests show of partial views ----------------------------------------------------------------- */

/* The ingest thread's, in a list: few views are partial. */
struct supposition {
    struct supposition *next;
    struct kvr_worker worker;
    struct workers *workers;
    struct partition *partition;
    struct kvr_supposed *supposed;
};

static struct supposition **place_of(struct workers *ws, struct kvr_worker w)
{
    struct supposition **at = &ws->suppositions;
    while (*at && kvr_worker_cmp((*at)->worker, w) != 0) at = &(*at)->next;
    return at;
}

static int apply_supposed(void *ctx, const struct kvr_event *ev)
{
    const struct supposition *u = ctx;
    return kvr_index_apply(u->partition->index, ev);
}

static int take_known(void *ctx, const struct kvr_event *ev)
{
    const struct supposition *u = ctx;
    if (ev->tier == KVR_TIER_DEVICE) kvr_supposed_stored(u->supposed, ev, 0, atomic_load(&u->workers->view_tick));
    return 0;
}

static void suppose(struct workers *ws, struct partition *p, struct kvr_worker w)
{
    struct supposition **at = place_of(ws, w);
    if (*at) return;
    struct supposition *u = calloc(1, sizeof *u);
    struct kvr_supposed_config c = {.worker = w, .apply = apply_supposed, .ctx = u};
    if (u && kvr_supposed_create(&c, &u->supposed) == 0) {
        *u = (struct supposition){NULL, w, ws, p, u->supposed};
        kvr_supposed_reset(u->supposed, atomic_fetch_add(&ws->view_tick, 1) + 1);
        (void)kvr_index_dump(p->index, &w, take_known, u);
        *at = u;
    } else {
        free(u);
    }
}

static void on_leave(void *ctx, struct kvr_worker w)
{
    struct supposition **at = place_of(ctx, w), *u = *at;
    if (!u) return;
    *at = u->next;
    kvr_supposed_destroy(u->supposed);
    free(u);
}

static bool makes_up(void *ctx, struct kvr_worker w)
{
    const struct supposition *u = *place_of(ctx, w);
    struct kvr_supposed_stats st = {0};
    if (u) kvr_supposed_stats(u->supposed, &st);
    return st.anonymous > 0;
}

/* When nothing that is supposed is left. */
static void stop_supposing(struct workers *ws, struct kvr_worker w)
{
    if (!makes_up(ws, w)) on_leave(ws, w);
}

/* Removals go to the index name by name, so that each one is known to have been found or not. */
static int remove_names(const struct supposition *u, const struct kvr_event *ev, uint64_t tick)
{
    int rc = 0;
    for (size_t i = 0; i < ev->removed_n; i++) {
        struct kvr_event one = *ev;
        one.removed = &ev->removed[i];
        one.removed_n = 1;
        int found = kvr_index_apply(u->partition->index, &one);
        kvr_supposed_removed(u->supposed, ev->removed[i], found, tick);
        if (found) rc = found;
    }
    return rc;
}

static int apply_event(struct workers *ws, const struct partition *p, const struct kvr_event *ev)
{
    const struct supposition *u = ev->tier == KVR_TIER_DEVICE ? *place_of(ws, ev->worker) : NULL;
    if (!u) return kvr_index_apply(p->index, ev);
    uint64_t tick = atomic_fetch_add(&ws->view_tick, 1) + 1;
    if (ev->kind == KVR_EVENT_REMOVED) return remove_names(u, ev, tick);
    int rc = kvr_index_apply(p->index, ev);
    if (ev->kind == KVR_EVENT_CLEARED) kvr_supposed_reset(u->supposed, tick);
    else kvr_supposed_stored(u->supposed, ev, rc, tick);
    return rc;
}

static void on_served(void *ctx, void *, const struct kvr_served *v)
{
    struct supposition *u = *place_of(ctx, v->worker);
    if (u) kvr_supposed_served(u->supposed, v, kvr_now_ms());
}

static void on_tick(void *ctx, uint64_t)
{
    struct workers *ws = ctx;
    struct kvr_supposed_stats sum = {0}, st;
    for (const struct supposition *u = ws->suppositions; u; u = u->next) {
        kvr_supposed_tick(u->supposed, kvr_now_ms());
        kvr_supposed_stats(u->supposed, &st);
        sum.anonymous += st.anonymous;
    }
    atomic_store(&ws->view_supposed, sum.anonymous);
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

static int on_event(void *ctx, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    struct workers *ws = ctx;
    const struct partition *p = user;
    if (ev->tier != KVR_TIER_DEVICE) kvr_router_use_lower_tiers(p->router);
    kvr_recorder_event(ws->recorder, ev);
    int rc = apply_event(ws, p, ev);
    evidence_event(ws, ev);
    atomic_fetch_add_explicit(rc ? &ws->counters.events_failed_total : &ws->counters.events_applied_total, 1, memory_order_relaxed);
    return rc;
}

static bool holds(void *, void *user, struct kvr_worker w, enum kvr_tier tier, uint64_t name)
{
    const struct partition *p = user;
    return kvr_index_holds(p->index, w, tier, name);
}

bool views_make_up(struct workers *ws, struct kvr_worker w)
{
    return makes_up(ws, w);
}

static void on_window(void *, void *user, const struct kvr_window_event *ev)
{
    const struct partition *p = user;
    (void)kvr_index_window(p->index, ev);
}

static void forget(struct workers *ws, struct kvr_worker w)
{
    kvr_recorder_event(ws->recorder, &(struct kvr_event){.worker = w, .kind = KVR_EVENT_CLEARED});
    evidence_reset(ws, w);
    kvr_lock(&ws->lock); /* nobody waits for the ingest thread under it */
    struct worker *worker = worker_find_locked(ws, w.worker_id);
    if (worker) atomic_store(&worker->reports, false); /* it may be another engine */
    kvr_unlock(&ws->lock);
}

static void on_reset(void *ctx, void *user, struct kvr_worker w)
{
    const struct partition *p = user;
    struct workers *ws = ctx;
    struct supposition *u = *place_of(ws, w);
    if (u) kvr_supposed_reset(u->supposed, atomic_fetch_add(&ws->view_tick, 1) + 1);
    kvr_index_drop_rank(p->index, w);
    forget(ws, w);
}

void views_replace(struct workers *ws, struct kvr_worker w)
{
    on_leave(ws, w); /* a partial view supposes anew, from its new content */
    forget(ws, w);
}

/* Less is known than before, or nothing still: requests go by load, or by what is known. */
static void tell_view(struct kvr_worker w, enum kvr_view_knowledge was, enum kvr_view_knowledge is, const char *reason)
{
    unsigned long long id = w.worker_id;
    const char *name = kvr_view_knowledge_name(is), *before = kvr_view_knowledge_name(was), *colon = reason[0] ? ": " : "";
    if (is < was || is == KVR_VIEW_UNKNOWN)
        kvr_log_warning_of(kvr_log_key(id, w.dp_rank, reason),
                           "kvroute: view of worker %llu rank %u is %s%s%s; worker_id=%llu dp_rank=%u view=%s was=%s", id, w.dp_rank, name,
                           colon, reason, id, w.dp_rank, name, before);
    else
        kvr_log("kvroute: view of worker %llu rank %u is %s%s%s; worker_id=%llu dp_rank=%u view=%s was=%s", id, w.dp_rank, name, colon,
                reason, id, w.dp_rank, name, before);
}

static void on_view(void *ctx, void *user, struct kvr_worker w, enum kvr_view_knowledge knowledge, const char *reason)
{
    struct workers *ws = ctx;
    struct partition *p = user;
    if (knowledge == KVR_VIEW_PARTIAL) suppose(ws, p, w);
    if (knowledge == KVR_VIEW_WHOLE) stop_supposing(ws, w);
    kvr_router_set_trusted(p->router, w, knowledge != KVR_VIEW_UNKNOWN);
    enum kvr_view_knowledge was = KVR_VIEW_UNKNOWN;
    kvr_lock(&ws->lock); /* nobody waits for the ingest thread under it */
    struct worker *worker = worker_find_locked(ws, w.worker_id);
    if (worker && w.dp_rank - worker->dp_start < worker->dp_size)
        was = atomic_exchange(&worker->ranks[w.dp_rank - worker->dp_start].view, knowledge);
    kvr_unlock(&ws->lock);
    tell_view(w, was, knowledge, reason);
}

void views_served(struct workers *ws, struct kvr_served *v)
{
    if (kvr_ingest_served(ws->ingest, v)) atomic_fetch_add(&ws->counters.view_prompts_dropped_total, 1);
}

void views_expect_reports(struct workers *ws, struct worker *w)
{
    if (ws->ingest && !atomic_exchange(&w->reports, true) && !kvr_ingest_expect_reports(ws->ingest, w->id))
        atomic_store(&w->reports, false);
}

enum kvr_view_knowledge views_knowledge(const struct worker *w, uint32_t rank)
{
    return rank - w->dp_start < w->dp_size ? (enum kvr_view_knowledge)atomic_load(&w->ranks[rank - w->dp_start].view) : KVR_VIEW_UNKNOWN;
}

bool views_run(const struct workers *ws)
{
    return ws->ingest != NULL;
}

bool views_move(const struct workers *ws)
{
    return kvr_ingest_moved(ws->ingest);
}

bool views_durable_runs(const struct workers *ws)
{
    return ws->durable != NULL;
}

uint64_t views_moment(const struct workers *ws)
{
    return atomic_load(&ws->view_tick);
}

struct kvr_view_status *views_status(struct workers *ws, size_t *n)
{
    size_t room = ws->ingest ? kvr_ingest_status(ws->ingest, NULL, 0) + 8 : 1; /* some may come meanwhile */
    struct kvr_view_status *st = calloc(room, sizeof *st);
    *n = ws->ingest && st ? KVR_MIN(kvr_ingest_status(ws->ingest, st, room), room) : 0;
    return st;
}

/* Returns: 0, KVR_DATA_DIR_TAKEN, or -1, which is said. */
static int open_disk(struct workers *ws, unsigned patience_ms)
{
    const char *who = serve_program(ws->o);
    char why[KVR_PATH_ERROR_MAX];
    struct kvr_view_store_config c = {ws->ingest, ws->o->data_dir, ws->o->snapshot_interval, who, patience_ms};
    int rc = kvr_view_store_open(&c, &ws->store, why, sizeof why);
    if (rc && (patience_ms || rc != KVR_DATA_DIR_TAKEN))
        kvr_log_error("%s: --data-dir: %s; allowed: a directory that can be written, for this process alone", who, why);
    return rc;
}

/* Does something read views from the start on? */
static bool reads_views(const struct serve_options *o)
{
    const int kv_leg = KVR_MODE_KV + 1;
    bool routes = o->mode == KVR_MODE_KV || o->prefill_mode == kv_leg || o->decode_mode == kv_leg;
    return routes || o->select_only || o->serve_indexer || o->record_events || o->data_dir || o->plane.plane != KVR_PLANE_ZMQ;
}

int views_start(struct workers *ws)
{
    if (reads_views(ws->o)) atomic_store(&ws->views_wanted, true);
    if (!ws->o->kv_events || ws->o->overlap_credit <= 0 || ws->o->use_remote_indexer) return 0;
    struct kvr_recorder_config rc = {ws->o->record_events, ws->o->record_max_lines, ws->o->record_max_count, ws->o->record_max_secs};
    char err[400];
    if (rc.path && kvr_recorder_create(&rc, &ws->recorder, err, sizeof err)) {
        kvr_log_error("kvroute: --record-events: %s", err);
        return -KVR_EINVAL;
    }
    struct kvr_ingest_handler h = {.on_event = on_event,
                                   .on_reset = on_reset,
                                   .holds = holds,
                                   .on_window = on_window,
                                   .on_view = on_view,
                                   .on_leave = on_leave,
                                   .makes_up = makes_up,
                                   .on_served = on_served,
                                   .on_tick = on_tick,
                                   .ctx = ws};
    int failed = kvr_ingest_create(&h, ws->o->restore_timeout, &ws->ingest);
    if (failed) return failed;
    kvr_ingest_set_curve(ws->ingest, ws->process->curve);
    if (ws->o->data_dir && !ws->process->succeeds && open_disk(ws, KVR_DATA_DIR_PATIENCE_MS)) return -KVR_EINVAL;
    return ws->o->plane.plane != KVR_PLANE_NATS ? 0 : kvr_plane_feed_nats(ws->process->nats, ws->process->scope, ws->ingest, &ws->feed);
}

/* Partitions live as long as the process. */
static struct kvr_index *hold(void *, void *user)
{
    const struct partition *p = user;
    return p->index;
}

static void release(void *, void *) {}

int views_start_durable(struct workers *ws)
{
    const struct kvr_plane_options *o = &ws->o->plane;
    struct kvr_durable_config c = {.link = ws->process->nats,
                                   .scope = ws->process->scope,
                                   .in = ws->ingest,
                                   .replicas = (int)o->nats_replicas,
                                   .threshold = o->snapshot_threshold,
                                   .reset = o->reset_states,
                                   .hold = hold,
                                   .release = release};
    return o->plane == KVR_PLANE_JETSTREAM && ws->ingest ? kvr_durable_feed_open(&c, &ws->durable) : 0;
}

void views_take_disk(struct workers *ws)
{
    if (!ws->o->data_dir || !ws->ingest || ws->store || ws->disk_refused || process_is_ending(ws->process)) return;
    int rc = open_disk(ws, 0);
    ws->disk_refused = rc && rc != KVR_DATA_DIR_TAKEN;
    if (rc) return;
    for (const struct worker *w = ws->workers; w; w = w->next)
        for (uint32_t r = 0; r < w->dp_size; r++) {
            struct kvr_view_of of;
            if (views_describe(ws, w, r, &of)) (void)kvr_view_store_keep(ws->store, &of);
        }
    kvr_log("%s: --data-dir: '%s' is this process's now", serve_program(ws->o), ws->o->data_dir);
}

void views_let_go_of_disk(struct workers *ws)
{
    kvr_view_store_stop(ws->store);
}

void views_stop(struct workers *ws)
{
    kvr_plane_feed_close(ws->feed);
    kvr_durable_feed_close(ws->durable);
    ws->durable = NULL;
    kvr_view_store_stop(ws->store);
    kvr_ingest_destroy(ws->ingest);
    kvr_view_store_destroy(ws->store);
    ws->store = NULL;
    kvr_recorder_destroy(ws->recorder);
    ws->feed = NULL;
    ws->ingest = NULL;
}

bool views_has_source(const struct workers *ws, const struct worker *w, uint32_t place)
{
    bool usable = ws->ingest && atomic_load(&ws->views_wanted) && !w->learnt.waits && !w->learnt.ranks_unknown;
    return usable && (w->ranks[place].endpoints[RANK_EVENTS][0] || ws->o->plane.plane != KVR_PLANE_ZMQ);
}

bool views_describe(struct workers *ws, const struct worker *w, uint32_t place, struct kvr_view_of *of)
{
    const char *events = w->ranks[place].endpoints[RANK_EVENTS];
    struct kvr_view_identity id = {w->model, w->group, events};
    if (!views_has_source(ws, w, place) || !events[0] || !w->partition || !w->partition->index) return false;
    kvr_view_of_init(of, &id, ws->ingest, w->partition->index, (struct kvr_worker){w->id, w->dp_start + place}, w->block_size);
    return true;
}

const char *views_why_none(const struct workers *ws, const struct worker *w)
{
    if (!atomic_load(&ws->views_wanted)) return "nothing reads it: it is followed when something is routed by kv, or asks what is cached";
    if (w->learnt.waits) return "waiting for what the engine says of itself";
    if (w->learnt.ranks_unknown) return "the engine has several data-parallel ranks, and does not take one";
    return "no KV events endpoint is configured";
}

/* From what the data directory has of it. A rank of a shared stream has no place of its own to go on from. */
static void follow(struct workers *ws, const struct worker *w, struct partition *partition, struct kvr_ingest_source *src)
{
    struct kvr_view_identity id = {w->model, w->group, src->events ? src->events : ""};
    struct kvr_view_of of;
    bool tiers = false;
    kvr_view_of_init(&of, &id, ws->ingest, partition->index, src->worker, src->block_size);
    if (ws->store && src->events) kvr_view_store_follow(ws->store, &of, src, &tiers);
    else kvr_ingest_add(ws->ingest, src);
    if (tiers) kvr_router_use_lower_tiers(partition->router);
}

/* A pool is known by the hash of its name. */
static void join_pool(const struct worker *w, struct partition *partition, struct kvr_worker rank)
{
    uint64_t pool = w->kv_pool[0] ? kvr_hash_bytes(w->kv_pool, strlen(w->kv_pool), kvr_secret()) | 1 : 0;
    if (!pool) return;
    if (kvr_index_set_pool(partition->index, rank, pool))
        kvr_log_warning("kvroute: worker %llu: there is no room for the pool '%s': its external tier is its own", (unsigned long long)w->id,
                        w->kv_pool);
    kvr_router_use_lower_tiers(partition->router);
}

void views_follow(struct workers *ws, const struct worker *w, struct partition *partition)
{
    for (uint32_t r = 0; ws->ingest && r < w->dp_size; r++) {
        const char *events = w->ranks[r].endpoints[RANK_EVENTS], *replay = w->ranks[r].endpoints[RANK_REPLAY];
        struct kvr_ingest_source src = {.worker = {w->id, w->dp_start + r},
                                        .block_size = w->block_size,
                                        .events = *events ? events : NULL,
                                        .replay = *replay ? replay : NULL,
                                        .recover = w->recover[0] ? w->recover : NULL,
                                        .tiers = true,
                                        .lossy = ws->o->index_max_bytes > 0,
                                        .tier_chunk = w->kv_offload_chunk / w->block_size,
                                        .user = partition};
        if (partition->index) join_pool(w, partition, src.worker);
        if (views_has_source(ws, w, r)) follow(ws, w, partition, &src);
    }
}

void views_want(struct workers *ws)
{
    if (atomic_exchange(&ws->views_wanted, true)) return;
    for (const struct worker *w = ws->workers; w; w = w->next) views_follow(ws, w, w->partition);
}

void views_unfollow(struct workers *ws, uint64_t id)
{
    if (ws->ingest) kvr_ingest_remove(ws->ingest, id, NULL);
    if (ws->store) kvr_view_store_unfollow(ws->store, id);
}

/* The views of a durable stream are declared untrusted at once; what settles them is the end of the stream. */
void views_tick(struct workers *ws)
{
    bool all = true;
    if (ws->o->plane.plane != KVR_PLANE_JETSTREAM || !ws->ingest || atomic_load(&ws->caught_up)) return;
    size_t n = kvr_ingest_status(ws->ingest, NULL, 0);
    struct kvr_view_status *st = calloc(n + 1, sizeof *st);
    n = st ? KVR_MIN(kvr_ingest_status(ws->ingest, st, n), n) : 0;
    for (size_t i = 0; i < n; i++) all &= st[i].trusted;
    if (kvr_catch_up_step(&ws->catch_up, ws->ingest, all && st, kvr_now_ms(), (uint64_t)(ws->o->restore_timeout * 1000)))
        atomic_store(&ws->caught_up, true);
    free(st);
}

/* How many sources there are, of all workers; false while one is not known yet, or without memory. */
static bool count_sources(struct workers *ws, size_t *n)
{
    const struct roster_row *all = roster_hold(ws, "");
    bool waits = !all;
    *n = 0;
    for (size_t i = 0; !waits && i < all->servers_n; i++) {
        const struct worker *w = all->servers[i].worker;
        kvr_lock(&ws->lock);
        waits = w->learnt.waits;
        for (uint32_t r = 0; r < w->dp_size; r++) *n += views_has_source(ws, w, r);
        kvr_unlock(&ws->lock);
    }
    roster_let_go(all);
    return !waits;
}

bool views_settled(struct workers *ws)
{
    struct kvr_view_status *st;
    size_t want, n, cap, settled = 0;
    if (!ws->ingest) return true;
    if (ws->o->plane.plane == KVR_PLANE_JETSTREAM && !atomic_load(&ws->caught_up)) return false;
    if (!count_sources(ws, &want)) return false;
    cap = want + 16;
    st = calloc(cap, sizeof *st);
    if (!st) return false;
    n = kvr_ingest_status(ws->ingest, st, cap);
    for (size_t i = 0; i < KVR_MIN(n, cap); i++) settled += st[i].settled;
    free(st);
    return settled >= want;
}

/* ---- wiring ------------------------------------------------------------------------------------------------------- */

/* Where the engine has been asked, learn.c says what it lacks. */
static bool lacks_replay(const struct workers *ws, const struct worker *w, const struct kvr_view_status *st)
{
    return st->connected && !st->can_replay && !w->learnt.answered && (!learns(ws, w) || !w->learnt.waits);
}

static enum wiring wiring_of(const struct workers *ws, const struct worker *w, const struct kvr_view_status *st, uint64_t now)
{
    if (st->events_trouble) return WIRING_EVENTS;
    if (st->replay_trouble) return WIRING_REPLAY;
    if (now - w->learnt.since_ms >= WIRING_PATIENCE_MS && lacks_replay(ws, w, st)) return WIRING_NO_REPLAY;
    if (st->connected || st->paused || w->health != HEALTH_UP || now - w->learnt.since_ms < WIRING_PATIENCE_MS) return WIRING_FINE;
    return WIRING_SILENT;
}

static void tell_wiring(const struct worker *w, uint32_t place, const struct kvr_view_status *st, enum wiring is)
{
    unsigned long long id = w->id;
    unsigned rank = w->dp_start + place;
    bool replay = is == WIRING_REPLAY;
    const char *why = is == WIRING_EVENTS ? st->events_trouble
                      : replay            ? st->replay_trouble
                      : is == WIRING_SILENT
                          ? "no publisher answers there"
                          : "no replay endpoint is known, so what is lost on the way stays lost: give replay=tcp://host:port";
    if (is != WIRING_FINE)
        kvr_log_warning_of(kvr_log_key(id, rank, why), "kvroute: worker %llu rank %u: %s=%s: %s", id, rank, replay ? "replay" : "events",
                           w->ranks[place].endpoints[replay ? RANK_REPLAY : RANK_EVENTS], why);
    else kvr_log("kvroute: worker %llu rank %u: its events endpoint answers", id, rank);
}

static void look_at_wiring_locked(struct workers *ws, const struct kvr_view_status *st, uint64_t now)
{
    struct worker *w = worker_find_locked(ws, st->worker.worker_id);
    uint32_t place = w ? st->worker.dp_rank - w->dp_start : 0;
    if (!w || place >= w->dp_size || !w->ranks[place].endpoints[RANK_EVENTS][0]) return;
    enum wiring is = wiring_of(ws, w, st, now);
    if (is == w->ranks[place].wiring || (is == WIRING_FINE && !st->connected)) return; /* the latter: nothing has answered */
    tell_wiring(w, place, st, is);
    w->ranks[place].wiring = (unsigned char)is;
}

void views_wiring_tick(struct workers *ws)
{
    size_t n = ws->ingest && ws->o->plane.plane == KVR_PLANE_ZMQ ? kvr_ingest_status(ws->ingest, NULL, 0) : 0;
    struct kvr_view_status *st = n ? calloc(n, sizeof *st) : NULL;
    uint64_t now = kvr_now_ms();
    n = st ? KVR_MIN(kvr_ingest_status(ws->ingest, st, n), n) : 0;
    for (size_t i = 0; i < n; i++) {
        kvr_lock(&ws->lock);
        look_at_wiring_locked(ws, &st[i], now);
        kvr_unlock(&ws->lock);
    }
    free(st);
}
