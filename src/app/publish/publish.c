/* SPDX-License-Identifier: Apache-2.0 */
/* Start, signals and end of `kvroute publish`; app/publish/state.h says which thread may touch what. */
#include "app/publish/state.h"
#include "base/log.h"
#include "net/http/produce.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

/* ---- the engine's streams ---------------------------------------------------------------------------------------- */

static int on_event(void *, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *origin)
{
    return feed_event(user, ev, origin);
}

static bool holds(void *, void *user, struct kvr_worker, enum kvr_tier tier, uint64_t name)
{
    const struct feed *f = user;
    return kvr_local_index_holds(f->index, tier, name);
}

static void on_reset(void *, void *user, struct kvr_worker)
{
    feed_reset(user);
}

/* Only a whole view answers for all the engine holds. */
static void on_view(void *, void *user, struct kvr_worker w, enum kvr_view_knowledge knowledge, const char *reason)
{
    struct feed *f = user;
    const char *name = kvr_view_knowledge_name(knowledge), *colon = reason[0] ? ": " : "";
    kvr_local_index_set_incomplete(f->index, knowledge == KVR_VIEW_WHOLE ? NULL : reason);
    if (knowledge != KVR_VIEW_UNKNOWN) atomic_store(&f->outlet->partial, knowledge == KVR_VIEW_PARTIAL);
    if (knowledge == KVR_VIEW_WHOLE) kvr_log("kvroute publish: the view of rank %u is whole", w.dp_rank);
    else
        kvr_log_warning_of(kvr_log_key(0, w.dp_rank, reason), "kvroute publish: the view of rank %u is %s%s%s", w.dp_rank, name, colon,
                           reason);
}

static void on_wiring(void *, void *, struct kvr_worker w, enum kvr_wiring wiring, const char *endpoint, const char *why)
{
    kvr_ingest_tell_wiring("kvroute publish: worker", w, wiring, endpoint, why);
}

static int follow(struct publish *p, struct feed *f, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    char events[256], replay[256];
    uint32_t place = f->worker.dp_rank - p->dp_start;
    if (!kvr_ingest_endpoint_shift(o->events, place, events, sizeof events) ||
        (o->replay && !kvr_ingest_endpoint_shift(o->replay, place, replay, sizeof replay)))
        return kvr_refuse(err, cap, "--events, --replay: no port for rank %u; allowed: tcp endpoints whose ports leave room for every rank",
                          f->worker.dp_rank);
    struct kvr_ingest_source src = {.worker = f->worker,
                                    .block_size = (uint32_t)o->block_size,
                                    .events = events,
                                    .replay = o->replay ? replay : NULL,
                                    .user = f,
                                    .tiers = true};
    int rc = kvr_ingest_add(p->ingest, &src);
    if (rc)
        snprintf(err, cap, "--events, --replay: %s: '%s' or its replay; allowed: tcp://host:port, ipc://path", kvr_strerror(rc), events);
    return rc;
}

enum { BODY_MAX = 1 << 16, BODIES_MAX = 64 << 20 };

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void on_phase(void *ctx, enum kvr_ending_phase phase)
{
    struct publish *p = ctx;
    if (!p->server) return;
    if (phase == KVR_LAME) kvr_http_server_lame(p->server);
    else kvr_http_server_drain(p->server);
}

static bool is_done(void *ctx)
{
    const struct publish *p = ctx;
    struct kvr_http_server_stats st = {0};
    if (p->server) kvr_http_server_stats(p->server, &st);
    return st.owed == 0;
}

/* The loop answers; what it answers is right as long as events are followed. */
static bool is_alive(void *ctx)
{
    struct publish *p = ctx;
    return kvr_ingest_moved(p->ingest);
}

static void watch_for_end(struct publish *p)
{
    struct kvr_ending_config c = {.program = "kvroute publish",
                                  .lame_duck_s = p->o->lame_duck_time,
                                  .drain_s = p->o->drain_timeout,
                                  .enter = on_phase,
                                  .is_done = is_done,
                                  .ctx = p};
    kvr_ending_init(&p->ending, &p->loop, &c);
    kvr_watchdog_init(&p->watchdog, &p->loop, is_alive, p);
}

static int serve(struct publish *p, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    struct kvr_http_server_config c = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .body_max = BODY_MAX,
        .connections_max = KVR_MIN((size_t)1024, KVR_MAX(kvr_http_descriptors_room(0) / 2, (size_t)2)),
        .head_timeout_s = 10,
        .body_timeout_s = 10,
        .idle_timeout_s = 75,
        .write_timeout_s = o->client_write_timeout,
        .shared = &p->http,
        .handler = {publish_on_request, kvr_produce_on_gone, kvr_produce_on_drained, publish_error_body, p},
    };
    struct kvr_access_config ac = {o->host, o->allowed_hosts, NULL, o->advertise_host};
    if (kvr_access_create(&ac, &p->access, err, cap)) return -1;
    int rc = kvr_http_server_start(&p->loop, &c, &p->server);
    if (rc) snprintf(err, cap, "cannot listen on %s:%llu: %s", o->host, (unsigned long long)o->port, uv_strerror(rc));
    return rc;
}

static int open_outlet(struct publish *p, struct kvr_worker w, struct kvr_outlet **out, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    char endpoint[256];
    if (o->plane.plane == KVR_PLANE_JETSTREAM)
        return kvr_outlet_jetstream(p->nats, p->scope, (int)o->plane.nats_replicas, w, out, err, cap);
    if (o->plane.plane == KVR_PLANE_NATS) return kvr_outlet_nats(p->nats, p->scope, w, out, err, cap);
    if (kvr_ingest_endpoint_shift(o->publish, w.dp_rank - p->dp_start, endpoint, sizeof endpoint))
        return kvr_outlet_zmq(p->zmq, p->door, endpoint, o->publish_format, w, out, err, cap);
    return kvr_refuse(err, cap, "--publish: '%s' leaves no port for rank %u; allowed: tcp://host:port, ipc://path for one rank", o->publish,
                      w.dp_rank);
}

static int open_feeds(struct publish *p, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    for (uint32_t r = 0; r < p->dp_size; r++) {
        struct kvr_outlet *outlet = NULL;
        uint32_t rank = p->dp_start + r;
        if (open_outlet(p, (struct kvr_worker){o->worker_id, rank}, &outlet, err, cap)) return -1;
        if (feed_open(&p->feeds[p->feeds_n++], o, rank, p->block_size, outlet, err, cap)) return -1;
    }
    return 0;
}

static void on_heartbeat(uv_timer_t *t)
{
    struct publish *p = t->data;
    for (size_t i = 0; i < p->feeds_n; i++)
        if (p->feeds[i].outlet->heartbeat) p->feeds[i].outlet->heartbeat(p->feeds[i].outlet);
}

static void on_tend(uv_timer_t *t)
{
    struct publish *p = t->data;
    for (size_t i = 0; i < p->feeds_n; i++)
        if (p->feeds[i].outlet->tend) p->feeds[i].outlet->tend(p->feeds[i].outlet);
}

static int connect_plane(struct publish *p, char *err, size_t cap)
{
    const struct kvr_plane_options *o = &p->o->plane;
    char name[64];
    if (o->plane == KVR_PLANE_ZMQ && !p->o->announce) return 0;
    snprintf(name, sizeof name, "kvroute publish, worker %llu", (unsigned long long)p->o->worker_id);
    return kvr_plane_scope(o, p->scope, err, cap) || kvr_plane_connect(o, name, &p->nats, err, cap) ? -1 : 0;
}

static void put_worker(const struct publish *p, const char *host, struct kvr_buf *b)
{
    const struct publish_options *o = p->o;
    char text[400];
    const char *port = strrchr(o->publish, ':');
    kvr_json_printf(b, "{'worker_id':%ju,'endpoint':%s", o->worker_id, o->announce);
    if (strcmp(p->model, "default") != 0) kvr_json_printf(b, "'model_name':%s", p->model);
    if (p->block_size) kvr_json_printf(b, "'block_size':%u", p->block_size); /* else routers learn it as we do */
    kvr_json_printf(b, "'data_parallel_start_rank':%u,'data_parallel_size':%u,'engine':%s", p->dp_start, p->dp_size,
                    p->sglang ? "sglang" : "vllm");
    if (p->total_kv_blocks) kvr_json_printf(b, "'total_kv_blocks':%ju", p->total_kv_blocks);
    if (o->max_num_batched_tokens) kvr_json_printf(b, "'max_num_batched_tokens':%ju", o->max_num_batched_tokens);
    if (o->plane.plane == KVR_PLANE_ZMQ) {
        snprintf(text, sizeof text, "tcp://%.200s%.32s", host, port ? port : "");
        kvr_json_printf(b, "'kv_events_endpoints':%s", text);
    }
    snprintf(text, sizeof text, "http://%.200s:%llu/kv_recover", host, (unsigned long long)kvr_http_server_port(p->server));
    kvr_json_printf(b, "'recover_endpoint':%s}", text);
}

/* The worker object that routers find, see app/serve/discovery/nats.c. */
static int announce(struct publish *p, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    struct kvr_registry_config rc = {
        .link = p->nats, .bucket = KVR_REGISTRY_BUCKET, .ttl_s = KVR_REGISTRY_TTL_S, .replicas = (int)o->plane.nats_replicas};
    char host[64] = "", scope[96], key[KVR_REGISTRY_KEY_MAX];
    struct kvr_buf b = {0};
    struct kvr_endpoint e;
    if (!o->announce) return 0;
    if (kvr_endpoint_parse(o->announce, strlen(o->announce), &e))
        return kvr_refuse(err, cap, "--announce: bad value '%.200s'; allowed: http://host[:port]", o->announce);
    (void)gethostname(host, sizeof host - 1);
    if (strncmp(o->host, "127.", 4) == 0 && (!o->advertise_host || strncmp(o->advertise_host, "127.", 4) != 0))
        kvr_log_warning("kvroute publish: warning: what is announced can be asked on %s only; --host 0.0.0.0 lets other machines ask",
                        o->host);
    kvr_registry_token(p->scope, scope, sizeof scope);
    snprintf(key, sizeof key, "worker.%.90s.%llu", scope, (unsigned long long)o->worker_id);
    put_worker(p, o->advertise_host ? o->advertise_host : host, &b);
    kvr_buf_add(&b, "", 1);
    int failed = b.failed || kvr_registry_open(&rc, &p->registry) || kvr_registry_keep(p->registry, key, b.data, false);
    kvr_buf_free(&b);
    if (failed) snprintf(err, cap, "--announce: out of memory");
    return failed ? -1 : 0;
}

static int open_all(struct publish *p, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    if (open_feeds(p, err, cap)) return -1;
    for (size_t i = 0; i < p->feeds_n; i++)
        if (follow(p, &p->feeds[i], err, cap)) return -1;
    if (announce(p, err, cap)) return -1;
    printf("kvroute publish: worker %llu, %zu rank(s) from %s, published on %s, http://%s:%llu/kv_recover\n",
           (unsigned long long)o->worker_id, p->feeds_n, o->events, p->feeds[0].outlet->where, o->host,
           (unsigned long long)kvr_http_server_port(p->server));
    fflush(stdout);
    return 0;
}

void publish_open(struct publish *p)
{
    char err[512] = "";
    if (open_all(p, err, sizeof err) == 0) return;
    kvr_log_error("kvroute publish: %s", err);
    p->failed = 1;
    uv_stop(&p->loop);
}

static int start(struct publish *p, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    struct kvr_ingest_handler h = {
        .on_event = on_event, .on_reset = on_reset, .holds = holds, .on_view = on_view, .on_wiring = on_wiring, .ctx = p};
    p->zmq = zmq_ctx_new();
    if (kvr_curve_load(&o->plane.curve, &p->curve, err, cap)) return -1;
    int closed = p->zmq ? 0 : -KVR_ENOMEM;
    if (!closed && o->plane.plane == KVR_PLANE_ZMQ) closed = kvr_curve_door_open(p->curve, p->zmq, &p->door);
    if (closed)
        return kvr_refuse(err, cap, "%s",
                          closed == -KVR_EINVAL ? "--zmq-curve-key: needs --zmq-curve-clients, the keys that may hear what is published"
                                                : "out of memory");
    if (connect_plane(p, err, cap)) return -1;
    if (kvr_ingest_create(&h, o->restore_timeout, &p->ingest)) return kvr_refuse(err, cap, "out of memory");
    kvr_ingest_set_curve(p->ingest, p->curve);
    uv_timer_init(&p->loop, &p->heartbeat);
    p->heartbeat.data = p;
    uv_timer_start(&p->heartbeat, on_heartbeat, KVR_HEARTBEAT_MS, KVR_HEARTBEAT_MS);
    uv_timer_init(&p->loop, &p->tend);
    p->tend.data = p;
    uv_timer_start(&p->tend, on_tend, KVR_TEND_MS, KVR_TEND_MS);
    if (engine_metrics_start(p, err, cap) || serve(p, err, cap) || learning_start(p, err, cap)) return -1;
    return learning_waits(p) ? 0 : open_all(p, err, cap);
}

static void stop(struct publish *p)
{
    kvr_registry_close(p->registry);
    for (size_t i = 0; i < p->feeds_n; i++)
        if (p->feeds[i].index) kvr_local_index_shutdown(p->feeds[i].index);
    if (p->server) kvr_http_server_close(p->server);
    engine_metrics_stop(p);
    learning_stop(p);
    kvr_ending_tell(&p->ending, (struct kvr_http_shared *[]){&p->http}, 1);
    while (p->answers) uv_run(&p->loop, UV_RUN_ONCE); /* their threads end as their clients are gone */
    kvr_loop_end(&p->loop);
    kvr_access_destroy(p->access);
    kvr_ingest_destroy(p->ingest);
    for (size_t i = 0; i < p->feeds_n; i++) feed_close(&p->feeds[i]);
    kvr_nats_close(p->nats);
    if (p->zmq) zmq_ctx_term(p->zmq);
    kvr_curve_door_close(p->door);
    kvr_curve_free(p->curve);
}

int publish_main(const struct publish_options *o)
{
    struct publish *p = calloc(1, sizeof *p);
    char err[512] = "";
    if (!p) return 1;
    p->o = o;
    p->http.bodies_max = BODIES_MAX;
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&p->loop);
    watch_for_end(p);
    int rc = start(p, err, sizeof err);
    if (rc) {
        kvr_log_error("kvroute publish: %s", err);
    } else {
        kvr_systemd_tell("READY=1");
        kvr_watchdog_start(&p->watchdog);
        uv_run(&p->loop, UV_RUN_DEFAULT);
        rc = p->failed;
    }
    stop(p);
    free(p);
    return rc ? 1 : 0;
}
