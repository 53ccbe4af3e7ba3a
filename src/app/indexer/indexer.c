/* SPDX-License-Identifier: Apache-2.0 */
/* Start, threads, signals. The map of threads is in state.h. */
#include "app/indexer/state.h"
#include "base/log.h"
#include "token/given.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

enum { SWEEP_MS = 1000 };

/* ---- what the command line says ------------------------------------------------------------------------------------------- */

/* The next item of a comma list into out, without spaces around it; false at the end. Empty items are skipped. */
static bool next_item(const char **list, char *out, size_t cap)
{
    while (*list && **list) {
        const char *comma = strchr(*list, ','), *end = comma ? comma : *list + strlen(*list), *p = *list;
        *list = comma ? comma + 1 : end;
        while (p < end && *p == ' ') p++;
        while (end > p && end[-1] == ' ') end--;
        if (p == end) continue;
        snprintf(out, cap, "%.*s", (int)(end - p), p);
        return true;
    }
    return false;
}

static bool whole(const char *s, uint64_t max, uint64_t *out)
{
    return kvr_parse_u64(s, strlen(s), max, out);
}

/* A registration's text. Returns: false, said: it does not fit. */
static bool put_text(char *out, size_t cap, const char *option, const char *text)
{
    if ((size_t)snprintf(out, cap, "%s", text) < cap) return true;
    kvr_log_error("kvroute indexer: --%s: `%.64s...` is too long; allowed: at most %zu bytes", option, text, cap - 1);
    return false;
}

/* instance_id[:dp_rank]=endpoint */
static int add_worker(struct indexer *x, char *item)
{
    struct registration r = {.block_size = (uint32_t)x->o->block_size};
    char err[1024], copy[512], *eq = strchr(item, '='), *colon;
    uint64_t rank = 0;
    snprintf(copy, sizeof copy, "%s", item);
    if (!eq) {
        kvr_log_error("kvroute indexer: --workers: invalid worker entry `%s`; expected worker_id[:dp_rank]=endpoint", copy);
        return 1;
    }
    *eq = 0;
    colon = strchr(item, ':');
    if (colon) *colon = 0;
    if (!whole(item, UINT64_MAX, &r.instance_id)) {
        kvr_log_error("kvroute indexer: --workers: invalid worker id in `%s`: allowed: a whole number", copy);
        return 1;
    }
    if (colon && !whole(colon + 1, UINT32_MAX, &rank)) {
        kvr_log_error("kvroute indexer: --workers: invalid dp_rank in `%s`: allowed: a whole number below 2^32", copy);
        return 1;
    }
    r.dp_rank = (uint32_t)rank;
    if (!put_text(r.model, sizeof r.model, "model", x->o->model) || !put_text(r.group, sizeof r.group, "routing-group", x->o->group) ||
        !put_text(r.endpoint, sizeof r.endpoint, "workers", eq + 1))
        return 1;
    if (catalogue_register(x, &r, err, sizeof err) == 0) return 0;
    kvr_log_error("kvroute indexer: --workers: `%s`: %s", copy, err);
    return 1;
}

static int add_configured(struct indexer *x)
{
    const char *list = x->o->workers;
    char item[512];
    while (next_item(&list, item, sizeof item))
        if (add_worker(x, item)) return 1;
    for (list = x->o->peers; next_item(&list, item, sizeof item);) {
        struct kvr_endpoint e;
        if (kvr_endpoint_parse_any(item, strlen(item), &e) || !catalogue_add_peer(x, item, strlen(item), true)) {
            kvr_log_error("kvroute indexer: --peers: bad value '%s'; allowed: at most %d of http:// or https://host[:port]", item,
                          PEERS_MAX);
            return 1;
        }
    }
    return 0;
}

/* Who may ask, and with what peers are asked. */
static int read_keys(struct indexer *x)
{
    struct kvr_access_config c = {x->o->bind, x->o->allowed_hosts, x->o->api_key_file, x->o->advertise_host};
    char text[400];
    if (kvr_access_create(&c, &x->access, text, sizeof text)) {
        kvr_log_error("kvroute indexer: --api-key-file: %s", text);
        return 1;
    }
    const char *out = x->o->peer_key_file ? x->o->peer_key_file : x->o->api_key_file;
    if (out && !(x->peer_keys = kvr_keys_read(out, text, sizeof text))) {
        kvr_log_error("kvroute indexer: --peer-key-file: %s", text);
        return 1;
    }
    if (kvr_access_warning(x->access, text, sizeof text)) kvr_log_warning("kvroute indexer: %s (--api-key-file)", text);
    return 0;
}

static int read_certificate(struct indexer *x)
{
    char err[512];
    if (x->o->tls_ca && kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = x->o->tls_ca}, err, sizeof err)) {
        kvr_log_error("kvroute indexer: --tls-ca: %s; allowed: a PEM file of certificates", err);
        return 1;
    }
    if (!x->o->tls_cert) return 0;
    x->tls = kvr_tls_ctx_new(&(struct kvr_tls_files){.cert = x->o->tls_cert, .key = x->o->tls_key, .client_ca = x->o->tls_client_ca}, err,
                             sizeof err);
    if (!x->tls) kvr_log_error("kvroute indexer: --tls-cert, --tls-key, --tls-client-ca: %s; allowed: PEM files that belong together", err);
    return x->tls ? 0 : 1;
}

/* ---- data loops --------------------------------------------------------------------------------------------------------------- */

static void on_wake(uv_async_t *a)
{
    struct loop *l = a->data;
    int phase = atomic_load(&l->indexer->phase);
    struct kvr_http_server_stats st;
    atomic_store(&l->answered, atomic_load(&l->indexer->asked));
    if (phase >= KVR_LAME) kvr_http_server_lame(l->server);
    if (phase >= KVR_DRAINING) kvr_http_server_drain(l->server);
    kvr_http_server_stats(l->server, &st);
    atomic_store(&l->owed_conns, st.owed);
    if (atomic_load(&l->stop)) uv_stop(&l->uv);
}

static void on_sweep(uv_timer_t *t)
{
    desks_sweep(t->data, false);
}

static void *loop_main(void *arg)
{
    struct loop *l = arg;
    uv_run(&l->uv, UV_RUN_DEFAULT);
    kvr_http_server_close(l->server);
    uv_close((uv_handle_t *)&l->wake, NULL);
    uv_close((uv_handle_t *)&l->sweep, NULL);
    uv_run(&l->uv, UV_RUN_DEFAULT); /* until the last dump has noticed */
    uv_loop_close(&l->uv);
    desks_sweep(l, true);
    return NULL;
}

/* Half of the descriptors: engines' sockets take the others. */
static size_t connections_max(const struct indexer_options *o)
{
    return KVR_MIN((size_t)o->max_connections, KVR_MAX(kvr_http_descriptors_room(0) / 2 / o->threads, (size_t)2));
}

/* That is open; before that the one that is wanted. */
static uint16_t indexer_port(const struct indexer *x)
{
    return x->loops_n ? kvr_http_server_port(x->loops[0]->server) : (uint16_t)x->o->port;
}

static struct loop *loop_new(struct indexer *x, int *rc)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->indexer = x;
    l->place = x->loops_n;
    uv_loop_init(&l->uv);
    uv_async_init(&l->uv, &l->wake, on_wake);
    uv_timer_init(&l->uv, &l->sweep);
    l->wake.data = l->sweep.data = l;
    uv_timer_start(&l->sweep, on_sweep, SWEEP_MS, SWEEP_MS);
    l->json = kvr_json_parser_new();
    struct kvr_http_server_config c = {.host = x->o->bind,
                                       .port = indexer_port(x),
                                       .joins_port = x->loops_n > 0,
                                       .body_max = x->o->max_body_size,
                                       .body_option = "--max-body-size",
                                       .connections_max = connections_max(x->o),
                                       .head_timeout_s = 10,
                                       .body_timeout_s = 30,
                                       .idle_timeout_s = 75,
                                       .write_timeout_s = x->o->client_write_timeout,
                                       .shared = &x->http,
                                       .tls = x->tls,
                                       .handler = {routes_on_request, routes_on_gone, routes_on_drained, answer_error_body, l},
                                       .body_room = routes_body_room};
    *rc = kvr_http_server_start(&l->uv, &c, &l->server);
    return l;
}

static void loop_free(struct loop *l)
{
    kvr_json_parser_free(l->json);
    kvr_buf_free(&l->body);
    free(l->desks);
    free(l->tokens);
    free(l->locals);
    free(l->prefixes);
    kvr_service_question_free(&l->question);
    free(l->overlaps);
    free(l->reaches);
    free(l);
}

static int start_loops(struct indexer *x)
{
    int rc = 0;
    x->loops = calloc(x->o->threads, sizeof *x->loops);
    for (uint64_t i = 0; x->loops && i < x->o->threads; i++) {
        struct loop *l = loop_new(x, &rc);
        if (!l) return 1;
        if (!rc && pthread_create(&l->thread, NULL, loop_main, l)) rc = UV_EAGAIN;
        if (rc) {
            kvr_log_error("kvroute indexer: --port: cannot listen on %s:%llu: %s; allowed: a free port and an address of this machine",
                          x->o->bind, (unsigned long long)x->o->port, uv_strerror(rc));
            uv_stop(&l->uv);
            loop_main(l);
            loop_free(l);
            return 1;
        }
        x->loops[x->loops_n++] = l;
    }
    return x->loops ? 0 : 1;
}

static void stop_loops(struct indexer *x)
{
    for (size_t i = 0; i < x->loops_n; i++) {
        atomic_store(&x->loops[i]->stop, true);
        uv_async_send(&x->loops[i]->wake);
        pthread_join(x->loops[i]->thread, NULL);
        loop_free(x->loops[i]);
    }
    free(x->loops);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------------ */

static void wake_loops(struct indexer *x)
{
    for (size_t i = 0; i < x->loops_n; i++) uv_async_send(&x->loops[i]->wake);
}

static void on_phase(void *ctx, enum kvr_ending_phase phase)
{
    struct indexer *x = ctx;
    for (size_t i = 0; i < x->loops_n; i++) atomic_store(&x->loops[i]->owed_conns, 1); /* until each has looked */
    atomic_store(&x->phase, phase);
    wake_loops(x);
}

static bool is_done(void *ctx)
{
    struct indexer *x = ctx;
    size_t owed = 0;
    for (size_t i = 0; i < x->loops_n; i++) owed += atomic_load(&x->loops[i]->owed_conns);
    wake_loops(x);
    return owed == 0;
}

/* Questions are answered by the loops, and rightly as long as events are followed. */
static bool is_alive(void *ctx)
{
    struct indexer *x = ctx;
    bool alive = kvr_ingest_moved(x->ingest);
    for (size_t i = 0; i < x->loops_n; i++) alive &= atomic_load(&x->loops[i]->answered) == atomic_load(&x->asked);
    if (!alive) return false;
    atomic_fetch_add(&x->asked, 1);
    wake_loops(x);
    return true;
}

static void watch_for_end(struct indexer *x)
{
    struct kvr_ending_config c = {.program = "kvroute indexer",
                                  .lame_duck_s = x->o->lame_duck_time,
                                  .drain_s = x->o->drain_timeout,
                                  .enter = on_phase,
                                  .is_done = is_done,
                                  .ctx = x};
    kvr_ending_init(&x->ending, &x->main_loop, &c);
    kvr_watchdog_init(&x->watchdog, &x->main_loop, is_alive, x);
}

/* SIGHUP: what is in files is read again. What cannot be read stays as it was. */
static void on_reload(uv_signal_t *s, int)
{
    struct indexer *x = s->data;
    const char *out = x->o->peer_key_file ? x->o->peer_key_file : x->o->api_key_file;
    char err[512];
    kvr_systemd_reloading();
    kvr_line_log_reopen(x->telemetry.log);
    if (kvr_access_reload(x->access, err, sizeof err))
        kvr_log_warning("kvroute indexer: SIGHUP: --api-key-file: %s; the old keys stay", err);
    char **keys = out ? kvr_keys_read(out, err, sizeof err) : NULL;
    if (out && !keys) kvr_log_warning("kvroute indexer: SIGHUP: --peer-key-file: %s; the old key stays", err);
    if (keys) {
        kvr_keys_free(x->peer_keys);
        x->peer_keys = keys;
    }
    if (x->tls && kvr_tls_ctx_reload(x->tls, err, sizeof err))
        kvr_log_warning("kvroute indexer: SIGHUP: --tls-cert, --tls-key: %s; the old certificate stays", err);
    if (x->o->tls_ca && kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = x->o->tls_ca}, err, sizeof err))
        kvr_log_warning("kvroute indexer: SIGHUP: --tls-ca: %s; the old certificates stay", err);
    kvr_given_tokens_reload(x->tokenizers);
    kvr_log("kvroute indexer: SIGHUP: read again");
    kvr_systemd_reloaded();
}

static void each_index(struct indexer *x, size_t (*fn)(struct kvr_index *index))
{
    size_t n;
    struct partition **list = catalogue_list(x, &n);
    for (size_t i = 0; i < n; i++) {
        (void)fn(list[i]->index);
        partition_unref(list[i]);
    }
    free(list);
}

/* Gives memory back that has become free. */
static void on_second(uv_timer_t *t)
{
    each_index(t->data, kvr_index_expire);
}

/* What was dropped is given back in slices; this loop serves nobody. */
static size_t tend(struct kvr_index *index)
{
    enum { SLICE = 65536 };
    return kvr_index_tend(index, SLICE);
}

static void on_tend(uv_timer_t *t)
{
    each_index(t->data, tend);
}

static void announce(const struct indexer *x)
{
    const struct indexer_options *o = x->o;
    printf("kvroute indexer: %s://%s:%llu, %llu thread(s), %s, %s\n", x->tls ? "https" : "http", o->bind,
           (unsigned long long)indexer_port(x), (unsigned long long)o->threads, kvr_access_has_keys(x->access) ? "API keys" : "no API key",
           o->data_dir ? o->data_dir : "nothing kept on disk");
    fflush(stdout);
}

static int run(struct indexer *x)
{
    if (telemetry_init(x) || read_keys(x) || read_certificate(x) || text_start(x) || catalogue_start(x)) return 1;
    watch_for_end(x);
    uv_timer_init(&x->main_loop, &x->handles.second);
    uv_timer_init(&x->main_loop, &x->handles.tend);
    uv_signal_init(&x->main_loop, &x->handles.hup);
    x->handles.second.data = x->handles.tend.data = x->handles.hup.data = x;
    uv_signal_start(&x->handles.hup, on_reload, SIGHUP);
    uv_timer_start(&x->handles.second, on_second, 1000, 1000);
    uv_timer_start(&x->handles.tend, on_tend, 100, 100);
    if (keeper_start(x) || start_loops(x) || catalogue_announce(x, indexer_port(x))) return 1;
    while (x->o->data_dir && x->o->workers && !atomic_load(&x->loaded)) uv_sleep(1); /* --workers go on from what is on disk */
    if (add_configured(x) || catalogue_start_durable(x) || recovery_start(x)) return 1;
    announce(x);
    kvr_systemd_tell("READY=1");
    kvr_watchdog_start(&x->watchdog);
    uv_run(&x->main_loop, UV_RUN_DEFAULT);
    return 0;
}

int indexer_main(const struct indexer_options *o)
{
    struct indexer *x = calloc(1, sizeof *x);
    if (!x) return 1;
    struct kvr_stamp number;
    x->o = o;
    x->http.bodies_max = o->max_bodies_bytes;
    kvr_stamp_init(&number);
    x->instance_number = number.publisher;
    snprintf(x->why, sizeof x->why, "loading what is on disk");
    kvr_lock_init(&x->lock, KVR_LOCK_INDEXER);
    kvr_lock_init(&x->change_lock, KVR_LOCK_INDEXER_CHANGES);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of a write */
    kvr_http_descriptors_raise();
    kvr_jobs_reserve_threads(o->threads);
    uv_loop_init(&x->main_loop);
    int rc = run(x);
    atomic_store(&x->stopping, true);
    stop_loops(x);
    kvr_ending_tell(&x->ending, (struct kvr_http_shared *[]){&x->http}, 1);
    keeper_stop(x);
    recovery_stop(x);
    uv_run(&x->main_loop, UV_RUN_NOWAIT);
    kvr_loop_end(&x->main_loop);
    free(x->recovery);
    catalogue_destroy(x);
    kvr_given_tokens_close(x->tokenizers);
    kvr_line_log_destroy(x->telemetry.log);
    kvr_tls_ctx_free(x->tls);
    kvr_access_destroy(x->access);
    kvr_keys_free(x->peer_keys);
    kvr_lock_destroy(&x->lock);
    kvr_lock_destroy(&x->change_lock);
    free(x);
    return rc;
}
