/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Content from elsewhere, when the engines themselves cannot give it.
 *
 *     loading --disk is read--> settling --every view settled--> asking peers --> ready
 *                                                                               ^               |
 *                                                                               +--a view is lost+
 *
 * Authority, highest first: the engine's replay and the worker's recover endpoint (the ingest thread does both by itself), a
 * peer's dump, our own disk. So a peer is asked only for views that are not whole. What it gives is
 * taken over for a view only if the peer trusts its own, and is not behind us or the engine can replay the rest: then the
 * content at the peer's place in the stream replaces ours, and the source goes on from there. Of workers that are not
 * registered here everything is taken.
 * A peer without places (no "views" in its dump) fills views that have nothing; they stay unknown.
 *
 * Everything here runs on the main loop; one question at a time.
 */
#include "app/indexer/stage.h"

#include <string.h>

#include "base/log.h"
#include "wire/dump_stream.h"

enum { TICK_MS = 100, PEER_TIMEOUT_MS = 10000, LOST_MS = 1000, RETRY_MIN_MS = 1000, RETRY_MAX_MS = 60000 };

enum phase { LOADING, SETTLING, ASKING, READY };

struct place {
    struct partition *part;
    struct kvr_dump_view view;
};

struct recovery {
    struct indexer *x;
    uv_timer_t tick;
    struct kvr_http_client *client;
    struct kvr_http_call *call;
    uint64_t deadline_ms, next_ask_ms, pause_ms;
    enum phase phase;
    struct kvr_catch_up progress; /* of a durable stream */
    /* the question */
    char url[ENDPOINT_MAX + 256];
    size_t peer; /* the next one to ask */
    struct peer *peers;
    size_t peers_n;
    bool configured; /* the one that is asked: it gets the key */
    struct kvr_dump_stream dump;
    bool dump_open;
    int status, error;
    struct partition *part; /* the dump is in; a reference */
    struct stage stage;
    struct place *places;
    size_t places_n, places_cap;
};

static void ask_next_peer(struct recovery *r);

/* ---- taking over -------------------------------------------------------------------------------------------------- */

struct takeover {
    struct kvr_ingest *ingest;
    struct partition *part;
    struct stage *stage;
    const bool *others;        /* by place in the stage: ranks that came by this worker's stream beside its own */
    const struct place *place; /* NULL: the content has no place */
    bool taken;
};

/* On the ingest thread: a view that is not whole gets the staged content, if that knows more and is at least as far as the view, or the
 * engine can replay the rest. */
static void take_over(void *arg, const struct kvr_view_status *st, const uint32_t *ranks, size_t n, struct kvr_view_cursor *adopt)
{
    struct takeover *t = arg;
    const struct kvr_dump_view *v = t->place ? &t->place->view : NULL;
    enum kvr_view_knowledge offered = v && !v->partial ? KVR_VIEW_WHOLE : KVR_VIEW_PARTIAL;
    if (st->knowledge >= offered) return;
    if (v ? v->next_sequence < st->next_sequence && !st->can_replay : st->next_sequence > 0) return;
    for (size_t i = 0; i < n; i++) {
        struct kvr_worker w = {st->worker.worker_id, ranks[i]};
        if (stage_put(stage_find(t->stage, t->part, w), t->part, w)) return;
    }
    for (size_t i = 0; i < t->stage->n; i++) {
        struct kvr_worker w = t->stage->list[i].worker;
        if (t->others[i] && (kvr_ingest_carry(t->ingest, w.dp_rank) || stage_put(&t->stage->list[i], t->part, w))) return;
    }
    t->taken = true;
    if (v) *adopt = (struct kvr_view_cursor){true, v->partial, v->next_sequence, v->last_hash, v->last_ts};
}

static const struct place *place_of(const struct recovery *r, const struct partition *p, struct kvr_worker w)
{
    for (size_t i = 0; i < r->places_n; i++)
        if (r->places[i].part == p && kvr_worker_cmp(r->places[i].view.worker, w) == 0) return &r->places[i];
    return NULL;
}

/* Did that rank come by the stream that w stands for? It has neither a place nor a listener of its own, and the worker has no
 * other stream that could have brought it. */
static bool came_with(const struct recovery *r, const struct staged *g, struct partition *p, struct kvr_worker w)
{
    size_t places = 0;
    if (g->part != p || g->worker.worker_id != w.worker_id || kvr_worker_cmp(g->worker, w) == 0) return false;
    if (place_of(r, p, g->worker) || catalogue_has_listener(r->x, g->worker)) return false;
    for (size_t i = 0; i < r->places_n; i++) places += r->places[i].part == p && r->places[i].view.worker.worker_id == w.worker_id;
    return places <= 1 && catalogue_listeners(r->x, w.worker_id) <= 1;
}

static bool give_to_view(struct recovery *r, struct partition *p, struct kvr_worker w, const struct place *place)
{
    struct takeover t = {.ingest = r->x->ingest, .part = p, .stage = &r->stage, .place = place};
    bool *others = calloc(r->stage.n + 1, sizeof *others);
    if (!others) return false;
    for (size_t i = 0; i < r->stage.n; i++) others[i] = came_with(r, &r->stage.list[i], p, w);
    t.others = others;
    int rc = kvr_ingest_visit_view(r->x->ingest, w, take_over, &t);
    free(others);
    return rc == 0 && t.taken;
}

/* Of a worker that nobody follows here: what its stream has brought waits, with the place in it, until it is registered. */
static bool keep_for_later(struct recovery *r, const struct place *pl)
{
    struct kvr_worker w = pl->view.worker;
    struct kvr_view_cursor c = {pl->view.trusted, pl->view.partial, pl->view.next_sequence, pl->view.last_hash, pl->view.last_ts};
    uint32_t ranks[RANKS_OF_INSTANCE_MAX];
    size_t n = 0;
    if (stage_put(stage_find(&r->stage, pl->part, w), pl->part, w)) return false;
    for (size_t i = 0; i < r->stage.n && n < RANKS_OF_INSTANCE_MAX && !catalogue_listeners(r->x, w.worker_id); i++) {
        struct staged *g = &r->stage.list[i];
        if (came_with(r, g, pl->part, w) && stage_put(g, pl->part, g->worker) == 0) ranks[n++] = g->worker.dp_rank;
    }
    catalogue_seed(r->x, &(struct seed){.worker = w, .cursor = c, .ranks = ranks, .ranks_n = n});
    return true;
}

/* Puts what is staged in place; returns how many views it helped. Nobody is registered or unregistered meanwhile. */
static size_t use_stage(struct recovery *r)
{
    size_t taken = 0;
    kvr_lock(&r->x->change_lock);
    for (size_t i = 0; i < r->places_n; i++) { /* views with a place; an empty one may have no events */
        const struct place *pl = &r->places[i];
        if (catalogue_has_listener(r->x, pl->view.worker)) {
            if (pl->view.trusted) taken += give_to_view(r, pl->part, pl->view.worker, pl);
        } else {
            taken += keep_for_later(r, pl);
        }
    }
    for (size_t i = 0; i < r->stage.n; i++) {
        struct staged *g = &r->stage.list[i];
        if (place_of(r, g->part, g->worker)) continue;
        if (catalogue_has_listener(r->x, g->worker)) taken += r->places_n ? 0 : give_to_view(r, g->part, g->worker, NULL);
        else if (!r->places_n) taken += stage_put(g, g->part, g->worker) == 0;
    }
    kvr_unlock(&r->x->change_lock);
    return taken;
}

/* ---- a question --------------------------------------------------------------------------------------------------- */

static void forget_question(struct recovery *r)
{
    if (r->call) kvr_http_call_cancel(r->call);
    r->call = NULL;
    if (r->dump_open) kvr_dump_stream_free(&r->dump);
    r->dump_open = false;
    if (r->part) partition_unref(r->part);
    r->part = NULL;
    for (size_t i = 0; i < r->places_n; i++) partition_unref(r->places[i].part);
    free(r->places);
    r->places = NULL;
    r->places_n = r->places_cap = 0;
    stage_free(&r->stage);
    r->status = r->error = 0;
}

static void forget_peers(struct recovery *r)
{
    for (size_t i = 0; i < r->peers_n; i++) free(r->peers[i].url);
    free(r->peers);
    r->peers = NULL;
    r->peers_n = r->peer = 0;
}

static void asked(struct recovery *r, bool helped)
{
    forget_question(r);
    forget_peers(r);
    r->pause_ms = helped ? RETRY_MIN_MS : KVR_MIN(KVR_MAX(r->pause_ms * 2, (uint64_t)RETRY_MIN_MS), (uint64_t)RETRY_MAX_MS);
    r->next_ask_ms = kvr_now_ms() + r->pause_ms;
    if (r->phase == ASKING) r->phase = READY;
}

static int on_partition(void *ctx, const char *model, const char *group, uint32_t block_size)
{
    struct recovery *r = ctx;
    if (r->part) partition_unref(r->part);
    r->part = catalogue_get(r->x, model, group, block_size);
    if (!r->part) /* another block size here: this partition is left out, as the original does */
        kvr_log_warning("kvroute indexer: %s: model=%s routing_group=%s has block size %u there; left out", r->url, model, group,
                        block_size);
    return 0;
}

static int on_event(void *ctx, const struct kvr_event *ev)
{
    struct recovery *r = ctx;
    return r->part ? stage_add(&r->stage, r->part, ev) : 0;
}

static int on_view(void *ctx, const struct kvr_dump_view *v)
{
    struct recovery *r = ctx;
    if (!r->part) return 0;
    if (!kvr_grow(&r->places, &r->places_cap, r->places_n + 1, sizeof *r->places)) return -KVR_ENOMEM;
    partition_ref(r->part);
    r->places[r->places_n++] = (struct place){r->part, *v};
    return 0;
}

static void fail(struct recovery *r, const char *why)
{
    kvr_log_warning("kvroute indexer: recovery from %s failed: %s", r->url, why);
    atomic_fetch_add(&r->x->telemetry.peer_failures, 1);
    r->call = NULL;
    forget_question(r);
    ask_next_peer(r);
}

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *, int64_t)
{
    struct recovery *r = ctx;
    r->status = status;
    r->deadline_ms = kvr_now_ms() + PEER_TIMEOUT_MS;
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct recovery *r = ctx;
    r->deadline_ms = kvr_now_ms() + PEER_TIMEOUT_MS; /* ten seconds without progress, however large the dump is */
    if (r->status / 100 != 2 || r->error) return;
    r->error = kvr_dump_stream_feed(&r->dump, data, len);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct recovery *r = ctx;
    char why[96];
    r->call = NULL;
    snprintf(why, sizeof why, "status %d", r->status);
    if (r->status / 100 != 2) {
        fail(r, why);
    } else if (r->error) {
        fail(r, r->dump.why ? r->dump.why : kvr_strerror(r->error));
    } else if (!kvr_dump_stream_over(&r->dump)) {
        fail(r, "the dump ends too early");
    } else {
        size_t taken = use_stage(r);
        kvr_log("kvroute indexer: took %zu view(s) over from %s", taken, r->url);
        atomic_fetch_add(&r->x->telemetry.peer_recoveries, 1);
        asked(r, taken > 0);
    }
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct recovery *r = ctx;
    r->call = NULL;
    fail(r, text);
}

/* Asks r->url for its dump. */
static bool ask(struct recovery *r)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    static const struct kvr_dump_handler dump = {.on_partition = on_partition, .on_event = on_event, .on_view = on_view};
    struct kvr_dump_handler h = dump;
    struct kvr_endpoint e;
    struct kvr_buf head = {0};
    h.ctx = r;
    if (kvr_endpoint_parse_any(r->url, strlen(r->url), &e) || kvr_dump_stream_init(&r->dump, &h)) return false;
    r->dump_open = true;
    kvr_request_put(&head, &e, "/dump?views=1", -1);
    if (r->configured && r->x->peer_keys) kvr_buf_printf(&head, "Authorization: Bearer %s\r\n", r->x->peer_keys[0]);
    kvr_buf_str(&head, "\r\n");
    struct kvr_http_call_config c = {
        .endpoint = &e, .head = head.data, .head_len = head.len, .connect_timeout_s = 2, .handler = &handler, .ctx = r};
    r->deadline_ms = kvr_now_ms() + PEER_TIMEOUT_MS;
    r->call = head.failed ? NULL : kvr_http_call_start(r->client, &c);
    kvr_buf_free(&head);
    if (r->call) return true;
    forget_question(r);
    return false;
}

static void ask_next_peer(struct recovery *r)
{
    while (r->peer < r->peers_n) {
        const struct peer *p = &r->peers[r->peer++];
        snprintf(r->url, sizeof r->url, "%s", p->url);
        r->configured = p->configured;
        if (ask(r)) return;
    }
    asked(r, false);
}

/* ---- when ---------------------------------------------------------------------------------------------------------- */

static void copy_peers(struct recovery *r)
{
    struct indexer *x = r->x;
    kvr_lock(&x->lock);
    r->peers = calloc(x->peers_n + 1, sizeof *r->peers);
    for (size_t i = 0; r->peers && i < x->peers_n; i++)
        if ((r->peers[r->peers_n].url = strdup(x->peers[i].url))) r->peers[r->peers_n++].configured = x->peers[i].configured;
    kvr_unlock(&x->lock);
}

/* A view that is connected and will not become whole by itself. */
static bool lost_a_view(const struct kvr_view_status *st, size_t n)
{
    uint64_t now = kvr_monotonic_ns();
    for (size_t i = 0; i < n; i++) {
        bool waits =
            st[i].knowledge == KVR_VIEW_WHOLE || st[i].repairing || !st[i].settled || st[i].paused || st[i].failed || !st[i].connected;
        if (!waits && !st[i].filtered.block_size_mismatch && now - st[i].since_ns > (uint64_t)LOST_MS * 1000000) return true;
    }
    return false;
}

static void begin(struct recovery *r)
{
    copy_peers(r);
    ask_next_peer(r);
}

/* The views of a durable stream are settled when it has been read to its end. */
static bool caught_up(struct recovery *r, const struct kvr_view_status *st, size_t n)
{
    bool all = true;
    if (r->x->o->plane.plane != KVR_PLANE_JETSTREAM) return true;
    for (size_t i = 0; i < n; i++) all &= st[i].trusted;
    return kvr_catch_up_step(&r->progress, r->x->ingest, all, kvr_now_ms(), (uint64_t)(r->x->o->restore_timeout * 1000));
}

static bool settled(struct recovery *r, const struct kvr_view_status *st, size_t n)
{
    size_t missing = 0, want = r->x->o->min_workers;
    bool at_end = caught_up(r, st, n);
    kvr_lock(&r->x->lock);
    size_t have = r->x->instances_n;
    for (size_t i = 0; i < n; i++) missing += !st[i].settled;
    bool yes = !missing && have >= want && at_end;
    if (!yes && missing) snprintf(r->x->why, sizeof r->x->why, "waiting for the engines of %zu listener(s)", missing);
    if (!yes && !missing && have >= want) snprintf(r->x->why, sizeof r->x->why, "catching up with the stream");
    if (!yes && !missing && have < want)
        snprintf(r->x->why, sizeof r->x->why, "waiting for workers: %zu of %zu are registered", have, want);
    kvr_unlock(&r->x->lock);
    return yes;
}

static bool has_peers(struct indexer *x)
{
    kvr_lock(&x->lock);
    bool any = x->peers_n > 0;
    kvr_unlock(&x->lock);
    return any;
}

/* At start: is there anything that peers could tell? */
static bool should_ask_peers(const struct recovery *r, const struct kvr_view_status *st, size_t n)
{
    bool all = n > 0;
    for (size_t i = 0; i < n; i++) all = all && st[i].knowledge == KVR_VIEW_WHOLE;
    return has_peers(r->x) && !all;
}

static void step(struct recovery *r)
{
    struct indexer *x = r->x;
    size_t n;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    if (r->phase == LOADING && atomic_load(&x->loaded)) r->phase = SETTLING;
    if (r->phase == SETTLING && settled(r, st, n)) {
        r->phase = ASKING;
        kvr_lock(&x->lock);
        snprintf(x->why, sizeof x->why, "asking the peers");
        kvr_unlock(&x->lock);
        if (should_ask_peers(r, st, n)) begin(r);
        else r->phase = READY;
    }
    if (r->phase == READY && !atomic_load(&x->ready)) {
        atomic_store(&x->ready, true);
        kvr_log("kvroute indexer: ready");
    }
    bool free_to_ask = r->phase == READY && !r->call && kvr_now_ms() >= r->next_ask_ms;
    if (free_to_ask && lost_a_view(st, n) && has_peers(x)) begin(r);
    free(st);
}

static void on_tick(uv_timer_t *t)
{
    struct recovery *r = t->data;
    if (r->call && kvr_now_ms() >= r->deadline_ms) {
        kvr_http_call_cancel(r->call);
        fail(r, "no answer in time");
    }
    step(r);
}

int recovery_start(struct indexer *x)
{
    struct recovery *r = calloc(1, sizeof *r);
    if (!r) return -1;
    r->x = x;
    x->recovery = r;
    kvr_http_client_create(&x->main_loop, 3, &r->client);
    uv_timer_init(&x->main_loop, &r->tick);
    r->tick.data = r;
    return uv_timer_start(&r->tick, on_tick, 0, TICK_MS);
}

void recovery_stop(struct indexer *x)
{
    struct recovery *r = x->recovery;
    if (!r) return;
    uv_timer_stop(&r->tick);
    uv_close((uv_handle_t *)&r->tick, NULL);
    forget_question(r);
    forget_peers(r);
    kvr_http_client_close(r->client);
}
