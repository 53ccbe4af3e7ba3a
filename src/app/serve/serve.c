/* SPDX-License-Identifier: Apache-2.0 */
/* Start, threads, signals, drain. The map of threads is in state.h. */
#include "app/serve/admin/admin.h"
#include "app/serve/admin/reload.h"
#include "app/serve/data/data_port.h"
#include "app/serve/data/flow.h"
#include "app/serve/data/note.h"
#include "app/serve/data/here.h"
#include "app/serve/data/bootstrap.h"
#include "app/serve/data/side_call.h"
#include "app/serve/data/reply.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/handover.h"
#include "app/serve/life.h"
#include "app/serve/config/doors.h"
#include "app/serve/config/models_config.h"
#include "app/serve/config/policies.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/evidence.h"
#include "base/log.h"
#include "net/otlp/otlp.h"
#include "store/line_log.h"
#include "token/given.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { TOKEN_CACHE_BYTES = 16 << 20, ACCESS_LANE_BYTES = 1 << 20 };

/* ---- data loops -------------------------------------------------------------------------------------- */

static void follow_phase(struct loop *l)
{
    struct serve *s = l->serve;
    int phase = atomic_load(&s->phase);
    if (atomic_load(&s->handover.go) && !l->took_over) {
        l->took_over = true;
        kvr_http_server_go(l->server);
        atomic_fetch_add(&s->handover.gone, 1);
    }
    if (phase >= KVR_LAME) kvr_http_server_lame(l->server);
    if (atomic_load(&s->handover.given)) kvr_http_server_deaf(l->server, true);
    if (phase < KVR_DRAINING || l->draining) return;
    l->draining = true;
    kvr_http_server_drain(l->server);
}

static void on_wake(uv_async_t *a)
{
    struct loop *l = a->data;
    follow_phase(l);
    flow_take_ready(l);
    if (atomic_load(&l->stop)) { /* who still waits is told */
        flow_refuse_parked(l);
        uv_stop(&l->uv);
        return;
    }
    flow_try_parked(l);
    if (!l->draining) return;
    struct kvr_http_server_stats st;
    kvr_http_server_stats(l->server, &st);
    atomic_store(&l->owed_conns, st.owed);
}

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

static void *loop_main(void *arg)
{
    struct loop *l = arg;
    uv_run(&l->uv, UV_RUN_DEFAULT);
    return NULL;
}

/* Its thread has ended. `wake` stays open until loop_free: another thread may be about to use it. */
static void loop_end(struct loop *l)
{
    flow_refuse_parked(l);
    here_stop_checks(l);
    kvr_http_server_close(l->server);
    side_calls_stop(l);
    bootstraps_free(l);
    remote_close(l);
    kvr_http_client_close(l->client);
    uv_unref((uv_handle_t *)&l->wake);
    while (uv_run(&l->uv, UV_RUN_DEFAULT)) continue; /* a late wake-up stops it */
}

/* The first loop takes the port, which --port may leave open; the others join it. */
static uint16_t port_of(const struct serve *s)
{
    return s->loops_n ? kvr_http_server_port(s->loops[0]->server) : (uint16_t)s->o->port;
}

static struct loop *loop_new(struct serve *s, size_t connections_max, int *rc)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->serve = s;
    l->place = s->loops_n;
    l->ids.state = kvr_mix64_keyed(l->place, kvr_secret()) ^ s->salt;
    kvr_lock_init(&l->mail_lock, KVR_LOCK_MAIL);
    uv_loop_init(&l->uv);
    uv_async_init(&l->uv, &l->wake, on_wake);
    l->wake.data = l;
    l->json = kvr_json_parser_new();
    if (kvr_http_client_create(&l->uv, 3, &l->client) == 0)
        kvr_http_client_count_reopened(l->client, &s->metrics.reopened_connections_total);
    *rc = remote_open(s, l) ? UV_ENOMEM : 0;
    struct kvr_http_server_config sc = {.host = s->o->host,
                                        .port = port_of(s),
                                        .joins_port = s->loops_n > 0,
                                        .listener = handover_listener(&s->handover, 1 + s->loops_n),
                                        .waits = s->handover.waits,
                                        .body_max = s->o->max_body_size,
                                        .body_option = "--max-body-size",
                                        .connections_max = connections_max,
                                        .head_timeout_s = 10,
                                        .body_timeout_s = 30,
                                        .idle_timeout_s = 75,
                                        .write_timeout_s = s->o->client_write_timeout,
                                        .shared = &s->http,
                                        .tls = s->tls,
                                        .handler = {data_port_on_request, data_port_on_gone, data_port_on_drained, reply_error_body, l},
                                        .on_refused = data_port_on_refused,
                                        .body_room = data_port_body_room,
                                        .put_headers = s->o->cors_allow_origin ? data_port_put_headers : NULL};
    if (*rc == 0) *rc = kvr_http_server_start(&l->uv, &sc, &l->server);
    return l;
}

/* No other thread is left. */
static void loop_free(struct loop *l)
{
    uv_walk(&l->uv, close_handle, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT);
    uv_loop_close(&l->uv);
    ctx_list_free(&l->ctxs);
    kvr_json_parser_free(l->json);
    kvr_buf_free(&l->line);
    kvr_lock_destroy(&l->mail_lock);
    free(l);
}

/* ---- main loop --------------------------------------------------------------------------------------- */

/* No request is open and every answer has left. */
static bool all_idle(const struct serve *s)
{
    for (size_t i = 0; i < s->loops_n; i++)
        if (atomic_load(&s->loops[i]->in_flight) || atomic_load(&s->loops[i]->owed_conns)) return false;
    struct kvr_http_server_stats st;
    kvr_http_server_stats(s->admin, &st);
    return st.owed == 0;
}

/* Requests that wait for a worker are looked at again. */
static void wake_parked(struct serve *s)
{
    for (size_t i = 0; i < s->loops_n; i++)
        if (atomic_load(&s->loops[i]->parked_n)) uv_async_send(&s->loops[i]->wake);
}

static void wake_loops(struct serve *s)
{
    for (size_t i = 0; i < s->loops_n; i++) uv_async_send(&s->loops[i]->wake);
}

static void on_second(uv_timer_t *t)
{
    struct serve *s = t->data;
    partitions_tick(s);
    roster_tick(s);
    disagg_states_look(s);
    selection_tick(s);
    doors_tick(s);
    quality_tick(s);
    wake_parked(s); /* a breaker's pause may be over */
}

/* A durable stream begins when the workers are known whose events it brings. */
static void follow_durable(struct serve *s)
{
    enum { PATIENCE_MS = 5000 };
    if (s->durable || s->o->plane.plane != KVR_PLANE_JETSTREAM) return;
    if (!discovery_settled(s) && now_ms() - s->started_ms < PATIENCE_MS) return;
    if (views_start_durable(s)) kvr_log_error("kvroute: the durable stream cannot be followed: out of memory");
}

/* Nobody tells when decode workers are no longer overloaded. */
static void wake_gated(struct serve *s)
{
    for (size_t i = 0; i < s->loops_n; i++)
        if (atomic_load(&s->loops[i]->gated_n)) uv_async_send(&s->loops[i]->wake);
}

/* Decay alone can release what waits. */
static void on_poll(uv_timer_t *t)
{
    struct serve *s = t->data;
    for (const struct partition *p = s->partitions; p; p = p->next) kvr_router_poll(p->router);
    wake_gated(s);
    views_tick(s);
    evidence_tick(s);
    engine_load_tick(s);
    survey_tick(s);
    if (++s->polls % (WIRING_EVERY_MS / 100) == 0) views_wiring_tick(s);
    served_tick(s);
    discovery_tick(s);
    follow_durable(s);
    shards_tick(s);
    missed_tick(s);
    tokenizers_tick(s);
    reload_tick(s);
    handover_tick(s);
}

static void on_phase(void *ctx, enum kvr_ending_phase phase)
{
    struct serve *s = ctx;
    atomic_store(&s->phase, phase);
    if (phase == KVR_LAME) kvr_http_server_lame(s->admin);
    for (size_t i = 0; i < s->loops_n; i++) atomic_store(&s->loops[i]->owed_conns, 1); /* until each has looked */
    wake_loops(s);
    if (phase != KVR_DRAINING) return;
    kvr_http_server_drain(s->admin);
    views_let_go_of_disk(s);
}

static bool is_done(void *ctx)
{
    struct serve *s = ctx;
    bool done = all_idle(s);
    wake_loops(s);
    return done;
}

static void watch_for_end(struct serve *s)
{
    struct kvr_ending_config c = {.program = s->o->select_only ? "kvroute select" : "kvroute serve",
                                  .lame_duck_s = s->o->lame_duck_time,
                                  .drain_s = s->o->drain_timeout,
                                  .enter = on_phase,
                                  .is_done = is_done,
                                  .ctx = s};
    kvr_ending_init(&s->ending, &s->main_loop, &c);
}

static void on_reload(uv_signal_t *sig, int signum)
{
    (void)signum;
    (void)reload_all(sig->data, "SIGHUP", NULL);
}

int serve_add_worker(struct serve *s, const struct kvr_entry *e, uint64_t place, char *err, size_t cap)
{
    struct worker_spec spec;
    char name[WORKER_NAME_MAX], why[512];
    if (worker_read(s, e, &spec, err, cap)) return -1;
    spec.w.id = spec.has_id ? spec.id : place;
    kvr_lock(&s->lock);
    bool duplicate = worker_find_locked(s, spec.w.id) != NULL;
    kvr_unlock(&s->lock);
    worker_name(e, 0, name, sizeof name);
    if (duplicate) {
        snprintf(err, cap, "%s: bad value '%llu' for 'id'; allowed: an id that no other worker has", name, (unsigned long long)spec.w.id);
        return -1;
    }
    if (worker_add(s, &spec.w, why, sizeof why) == 0) return 0;
    snprintf(err, cap, "%s: %s", name, why);
    return -1;
}

static int add_configured_workers(struct serve *s)
{
    char err[2048];
    if (!s->o->workers_n && s->o->discovery == DISCOVERY_STATIC)
        kvr_log_warning("kvroute serve: warning: there is no worker and none is looked for; use --worker, --discovery or POST /workers");
    for (size_t i = 0; i < s->o->workers_n; i++)
        if (serve_add_worker(s, &s->o->workers[i], i + 1, err, sizeof err)) {
            kvr_log_error("kvroute serve: %s", err);
            return 1;
        }
    return 0;
}

static int listen_failed(const char *flag, const char *host, uint64_t port, int rc)
{
    kvr_log_error("kvroute serve: --%s: cannot listen on %s:%llu: %s; allowed: a free port and an address of this machine", flag, host,
                  (unsigned long long)port, uv_strerror(rc));
    return 1;
}

enum {
    ADMIN_CONNECTIONS_MAX = 4096,
    FOR_EACH_WORKER = 8 /* descriptors: sockets of its events and their monitors, a health check, a survey, its metrics */
};

/* Of the descriptors that are left an eighth is for the admin port, and each client of the data port may need one to a worker. */
static size_t admin_connections(const struct serve *s)
{
    size_t room = kvr_http_descriptors_room(FOR_EACH_WORKER * s->workers_n);
    return KVR_MIN((size_t)ADMIN_CONNECTIONS_MAX, KVR_MAX(s->o->select_only ? room / 2 : room / 8, (size_t)2));
}

static size_t data_connections(const struct serve *s)
{
    size_t room = kvr_http_descriptors_room(s->admin_connections + FOR_EACH_WORKER * s->workers_n);
    size_t most = KVR_MIN((size_t)s->o->max_connections, KVR_MAX(room / 2 / s->o->threads, (size_t)2));
    if (most < KVR_MIN(s->o->max_connections, (uint64_t)1024))
        kvr_log_warning("kvroute serve: warning: only %zu client connections per loop: this process may open too few files (ulimit -n)",
                        most);
    return most;
}

static int start_loops(struct serve *s)
{
    int rc = 0;
    s->loops = calloc(s->o->threads, sizeof(struct loop *));
    if (!s->loops) return 1;
    size_t most = data_connections(s);
    for (uint64_t i = 0; i < s->o->threads; i++) {
        struct loop *l = loop_new(s, most, &rc);
        if (!l) return 1;
        kvr_http_client_open_max(l->client, most);
        s->loops[s->loops_n++] = l;
        if (rc) return listen_failed("port", s->o->host, s->o->port, rc);
    }
    return 0;
}

static void stop_loops(struct serve *s, bool started)
{
    for (const struct partition *p = s->partitions; started && p; p = p->next) kvr_router_shut_queue(p->router);
    for (size_t i = 0; i < s->loops_n; i++) atomic_store(&s->loops[i]->stop, true);
    if (started) wake_loops(s);
    for (size_t i = 0; started && i < s->loops_n; i++) pthread_join(s->loops[i]->thread, NULL);
    for (size_t i = 0; i < s->loops_n; i++) loop_end(s->loops[i]);
}

const char *serve_mode_name(const struct serve_options *o)
{
    static const char *const modes[] = {"kv", "round-robin", "random", "least-loaded", "direct"};
    return modes[o->mode];
}

static void announce(const struct serve *s)
{
    if (s->o->select_only)
        printf("kvroute select: on %s://%s:%u/, mode %s, %s\n", s->admin_tls ? "https" : "http", s->o->admin_host,
               kvr_http_server_port(s->admin), serve_mode_name(s->o), s->ingest ? "KV events" : "predicted cache");
    else
        printf("kvroute serve: data on %s%s:%u, admin on %s://%s:%u/, mode %s, %s, %zu worker(s)\n", s->tls ? "https://" : "", s->o->host,
               kvr_http_server_port(s->loops[0]->server), s->admin_tls ? "https" : "http", s->o->admin_host, kvr_http_server_port(s->admin),
               serve_mode_name(s->o), s->ingest ? "KV events" : "predicted cache", s->workers_n);
    fflush(stdout);
}

static void raise_file_limit(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max;
        setrlimit(RLIMIT_NOFILE, &r);
    }
}

void serve_free(struct serve *s)
{
    ctx_list_free(&s->admin_ctxs);
    for (size_t i = 0; i < s->loops_n; i++) loop_free(s->loops[i]);
    free(s->loops);
    workers_destroy(s);
    labels_destroy(s->labels);
    model_counts_destroy(s->model_counts);
    fallback_counts_destroy(&s->fallback_counts);
    disagg_states_destroy(s->disagg_states);
    kvr_curve_free(s->curve);
    evidence_destroy(s->evidence);
    health_destroy(s->health_checks);
    partitions_destroy(s);
    sessions_destroy(s->sessions);
    sessions_destroy(s->responses);
    token_cache_destroy(s->tokens);
    tokenizers_destroy(s);
    kvr_given_tokens_close(s->given_tokens);
    decisions_destroy(s->decisions);
    selection_destroy(s);
    kvr_json_parser_free(s->json);
    kvr_access_destroy(s->access);
    keyrings_close(s);
    kvr_addresses_destroy(&s->addresses);
    kvr_addresses_destroy(&s->unfinished);
    kvr_tls_ctx_free(s->tls);
    kvr_tls_ctx_free(s->admin_tls);
    kvr_keys_free(s->remote_keys);
    kvr_lock_destroy(&s->quality.lock);
    kvr_lock_destroy(&s->lock);
    kvr_lock_destroy(&s->roster_lock);
    models_config_destroy(s);
    policies_destroy(s);
    kvr_lock_destroy(&s->models_lock);
    free(s);
}

/* What rooms below others tell them; before anything of them begins. */
static void connect_rooms(struct serve *s)
{
    s->hooks = (struct serve_hooks){.workers_changed = replicas_workers_changed,
                                    .partition_asked = selection_asks,
                                    .may_route = wake_parked,
                                    .tokens_doubted = tokenizers_doubted,
                                    .booked = replicas_wanted(s) ? replicas_on_change : NULL,
                                    .session_heard = bindings_heard};
}

struct serve *serve_new(const struct serve_options *o)
{
    struct serve *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = o;
    connect_rooms(s);
    s->http.bodies_max = o->max_bodies_bytes;
    s->admin_http.bodies_max = o->select_only ? o->max_bodies_bytes : o->max_bodies_bytes / 4;
    kvr_lock_init(&s->lock, KVR_LOCK_SERVE);
    kvr_lock_init(&s->roster_lock, KVR_LOCK_ROSTER);
    kvr_lock_init(&s->keyrings.lock, KVR_LOCK_KEYRING);
    kvr_addresses_init(&s->addresses, o->address_connections);
    if (o->address_connections) s->http.addresses = &s->addresses;
    kvr_addresses_init(&s->unfinished, o->max_bodies_bytes ? KVR_MAX(o->max_bodies_bytes / 2, o->max_body_size) : 0);
    s->http.unfinished = &s->unfinished;
    kvr_lock_init(&s->models_lock, KVR_LOCK_MODELS);
    policies_open(s);
    fallback_counts_init(&s->fallback_counts);
    metrics_init(&s->metrics);
    atomic_store(&s->mode, o->mode);
    s->started_ms = now_ms();
    s->salt = kvr_mix64(kvr_now_ns(kvr_clock_monotonic()) ^ (uint64_t)getpid() << 32);
    s->json = kvr_json_parser_new();
    s->decisions = decisions_create();
    kvr_lock_init(&s->quality.lock, KVR_LOCK_QUALITY);
    s->tokens = token_cache_create(TOKEN_CACHE_BYTES);
    if (o->session_ttl > 0) s->sessions = sessions_create(o->session_ttl);
    s->responses = responses_create();
    s->labels = labels_create();
    s->model_counts = model_counts_create();
    s->disagg_states = disagg_states_create();
    s->evidence = evidence_create();
    s->health_checks = health_create();
    if (s->tokens && s->health_checks && s->labels && s->model_counts && s->disagg_states && s->decisions) return s;
    serve_free(s);
    return NULL;
}

static int connect_nats(struct serve *s, char *err, size_t cap)
{
    const struct kvr_plane_options *o = &s->o->plane;
    if (kvr_plane_scope(o, s->scope, err, cap)) return -1;
    if (remote_parse(s, err, cap)) return -1;
    if (o->plane == KVR_PLANE_ZMQ && !remote_needs_nats(s) && !replicas_over_nats(s) && s->o->discovery != DISCOVERY_NATS) return 0;
    return kvr_plane_connect(o, s->o->select_only ? "kvroute select" : "kvroute serve", &s->nats, err, cap);
}

/* Where single requests are told of. */
static int observe_start(struct serve *s, char *err, size_t cap)
{
    const struct serve_options *o = s->o;
    char why[480], instance[32];
    struct kvr_line_log_config log = {o->access_log, "kvroute: access log", o->threads, ACCESS_LANE_BYTES};
    if (o->access_log && kvr_line_log_create(&log, &s->access_log, why, sizeof why)) {
        snprintf(err, cap, "--access-log: %s", why);
        return -1;
    }
    snprintf(instance, sizeof instance, "%016llx", (unsigned long long)s->salt);
    struct kvr_otlp_config traces = {o->otlp_endpoint, o->otlp_service_name, instance};
    if (o->otlp_endpoint && kvr_otlp_create(&traces, &s->otlp, why, sizeof why)) {
        snprintf(err, cap, "--otlp-endpoint: %s", why);
        return -1;
    }
    return 0;
}

static int run(struct serve *s)
{
    char err[2048];
    reload_begin(s); /* before they are read: what changes in between is seen later */
    if (handover_begin(s, err, sizeof err) || observe_start(s, err, sizeof err) || doors_open(s, err, sizeof err) ||
        models_config_open(s, err, sizeof err) || admin_open(s, err, sizeof err) || keyrings_open(s, err, sizeof err) ||
        kvr_curve_load(&s->o->plane.curve, &s->curve, err, sizeof err) || connect_nats(s, err, sizeof err)) {
        kvr_log_error("kvroute %s: %s", s->o->select_only ? "select" : "serve", err);
        return 1;
    }
    int rc = views_start(s);
    if (rc) return 1;
    if (served_start(s, err, sizeof err) || replicas_start(s, err, sizeof err)) {
        kvr_log_error("kvroute %s: %s", s->o->select_only ? "select" : "serve", err);
        return 1;
    }
    if (engine_load_start(s) || shards_start(s)) {
        kvr_log_error("kvroute %s: out of memory", s->o->select_only ? "select" : "serve");
        return 1;
    }
    if ((!s->o->select_only && tokenizers_open(s, err, sizeof err)) || admin_text_open(s, err, sizeof err)) {
        kvr_log_error("kvroute %s: %s", s->o->select_only ? "select" : "serve", err);
        return 1;
    }
    if (!s->o->select_only && (health_start(s) || add_configured_workers(s))) return 1;
    if (discovery_start(s, err, sizeof err)) {
        kvr_log_error("kvroute %s: %s", s->o->select_only ? "select" : "serve", err);
        return 1;
    }
    s->admin_connections = admin_connections(s);
    if (!s->o->select_only && start_loops(s)) return 1;
    if (remote_open_admin(s)) return 1;
    rc = admin_start(s);
    if (rc) return listen_failed(s->o->select_only ? "port" : "admin-port", s->o->admin_host, s->o->admin_port, rc);
    if (discovery_announce(s, err, sizeof err)) {
        kvr_log_error("kvroute serve: %s", err);
        return 1;
    }
    watch_for_end(s);
    uv_signal_init(&s->main_loop, &s->handles.hup);
    s->handles.hup.data = s;
    uv_signal_start(&s->handles.hup, on_reload, SIGHUP);
    uv_timer_init(&s->main_loop, &s->handles.expire);
    uv_timer_init(&s->main_loop, &s->handles.poll);
    s->handles.poll.data = s;
    uv_timer_start(&s->handles.poll, on_poll, 100, 100);
    s->handles.expire.data = s;
    uv_timer_start(&s->handles.expire, on_second, 1000, 1000);
    if (handover_start(s)) return 1;
    for (size_t i = 0; i < s->loops_n; i++)
        if (pthread_create(&s->loops[i]->thread, NULL, loop_main, s->loops[i])) return 1;
    s->loops_run = true;
    announce(s);
    uv_run(&s->main_loop, UV_RUN_DEFAULT);
    uv_timer_stop(&s->handles.expire); /* what they look after ends now */
    uv_timer_stop(&s->handles.poll);
    return s->handover.failed;
}

int serve_main(const struct serve_options *o)
{
    struct serve *s = serve_new(o);
    if (!s) {
        kvr_log_error("kvroute %s: out of memory", o->select_only ? "select" : "serve");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of a write */
    raise_file_limit();
    kvr_jobs_reserve_threads((o->select_only ? 0 : o->threads) + 1);
    uv_loop_init(&s->main_loop);
    int rc = run(s);
    stop_loops(s, s->loops_run);
    handover_stop(s);
    kvr_line_log_destroy(s->access_log);
    kvr_otlp_destroy(s->otlp);
    s->access_log = NULL;
    s->otlp = NULL;
    remote_close_admin(s);
    survey_stop(s);
    tokenizers_stop(s);
    adapters_stop(s);
    health_stop(s);
    kvr_http_server_close(s->admin);
    selection_stop(s);
    engine_load_stop(s);
    discovery_stop(s);
    shards_stop(s);
    served_stop(s);
    views_stop(s);
    replicas_stop(s);
    kvr_nats_close(s->nats);
    if (s->loops_run) kvr_ending_tell(&s->ending, (struct kvr_http_shared *[]){&s->http, &s->admin_http}, 2);
    uv_run(&s->main_loop, UV_RUN_NOWAIT);
    uv_walk(&s->main_loop, close_handle, NULL);
    uv_run(&s->main_loop, UV_RUN_DEFAULT);
    uv_loop_close(&s->main_loop);
    discovery_free(s);
    serve_free(s);
    return rc;
}
