/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP around the simulated engine: one loop, one engine and one event stream per data-parallel rank.
 *
 * Tokens are bytes: a text's token ids are its bytes, so text that was generated and comes back in the next turn has
 * the same tokens. Ids above 255 (from token prompts) detokenize to "?".
 */
#include "app/mock/mock.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include <uv.h>
#include <zmq.h>

#include "app/mock/encode.h"
#include "app/mock/generate.h"
#include "app/mock/state.h"
#include "base/log.h"
#include "token/given.h"

/* ---- requests ---------------------------------------------------------------------------------------- */

static void reset_cache(struct mock *m, struct kvr_http_conn *c)
{
    bool ok = true;
    for (uint64_t r = 0; r < m->o->dp_size; r++) {
        ok &= mock_engine_reset_cache(m->ranks[r].engine);
        if (m->ranks[r].events && m->o->reset_at_once) mock_events_flush(m->ranks[r].events);
    }
    if (ok) kvr_http_reply(c, 200, NULL, NULL, "", 0);
    else mock_reply_error(c, 500, "requests are running");
}

static void health(struct mock *m, struct kvr_http_conn *c)
{
    bool up = (double)(uv_now(&m->loop) - m->started_ms) >= m->o->startup_time * 1000;
    kvr_http_reply(c, up ? 200 : 503, NULL, NULL, "", 0);
}

enum route {
    COMPLETIONS,
    CHAT,
    RESPONSES,
    MESSAGES,
    COUNT_TOKENS,
    MODELS,
    TOKENIZE,
    DETOKENIZE,
    HEALTH,
    PING,
    LOAD,
    METRICS,
    RESET,
    VERSION,
    SOURCES,
    INFO,
    RENDER,
    RENDER_CHAT,
    KV,
    LOAD_ADAPTER,
    UNLOAD_ADAPTER,
    SGLANG_INFO,
    SGLANG_INFO_OLD,
    SGLANG_MODEL,
    SGLANG_MODEL_OLD,
    SGLANG_LOAD,
    SGLANG_LOADS,
    SGLANG_TOKENIZE,
    SGLANG_ABORT,
    SGLANG_LOAD_ADAPTER,
    SGLANG_UNLOAD_ADAPTER,
    ROUTES
};

static void serve_route(struct mock *m, struct kvr_http_conn *c, enum route route)
{
    switch (route) {
    case COMPLETIONS: mock_generate(m, c, MOCK_COMPLETIONS); return;
    case CHAT: mock_generate(m, c, MOCK_CHAT); return;
    case RESPONSES: mock_generate(m, c, MOCK_RESPONSES); return;
    case MESSAGES: mock_generate(m, c, MOCK_MESSAGES); return;
    case COUNT_TOKENS: mock_count_tokens(m, c); return;
    case MODELS: mock_models(m, c); return;
    case SGLANG_TOKENIZE:
    case TOKENIZE: mock_tokenize(m, c); return;
    case DETOKENIZE: mock_detokenize(m, c); return;
    case PING:
    case HEALTH: health(m, c); return;
    case LOAD: kvr_http_reply(c, 200, "application/json", NULL, "{\"server_load\":0}", 17); return;
    case METRICS: mock_metrics(m, c); return;
    case RESET: reset_cache(m, c); return;
    case VERSION: mock_version(c); return;
    case SOURCES: mock_event_sources(m, c); return;
    case INFO: mock_server_info(m, c); return;
    case KV: mock_kv_tell(m, c); return;
    case RENDER: mock_render(m, c, MOCK_COMPLETIONS); return;
    case RENDER_CHAT: mock_render(m, c, MOCK_CHAT); return;
    case SGLANG_INFO:
    case SGLANG_INFO_OLD: mock_sglang_server_info(m, c); return;
    case SGLANG_MODEL:
    case SGLANG_MODEL_OLD: mock_sglang_model_info(m, c); return;
    case SGLANG_ABORT: mock_abort_request(m, c); return;
    case LOAD_ADAPTER:
    case SGLANG_LOAD_ADAPTER: mock_load_adapter(m, c); return;
    case UNLOAD_ADAPTER:
    case SGLANG_UNLOAD_ADAPTER: mock_unload_adapter(m, c); return;
    case SGLANG_LOAD: mock_sglang_load(m, c); return;
    default: mock_sglang_loads(m, c); return;
    }
}

/* Paths that engines of other releases or settings do not have. */
static bool is_off(const struct mock_options *o, enum route route)
{
    if (route == SOURCES) return !o->tell_event_sources;
    if (route == INFO) return !o->dev_mode || o->sglang_info;
    if (route == RESET) return !o->dev_mode;
    if (route == VERSION) return o->sglang_info;
    if (route == RENDER || route == RENDER_CHAT) return !o->scale_out || o->sglang_info;
    if (route == LOAD_ADAPTER || route == UNLOAD_ADAPTER) return !o->runtime_lora || o->sglang_info;
    if (route == SGLANG_LOAD_ADAPTER || route == SGLANG_UNLOAD_ADAPTER) return !o->runtime_lora || !o->sglang_info;
    return route >= SGLANG_INFO && !o->sglang_info;
}

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    static const struct {
        const char *method, *path;
    } routes[ROUTES] = {[COMPLETIONS] = {"POST", "/v1/completions"},
                        [CHAT] = {"POST", "/v1/chat/completions"},
                        [RESPONSES] = {"POST", "/v1/responses"},
                        [MESSAGES] = {"POST", "/v1/messages"},
                        [COUNT_TOKENS] = {"POST", "/v1/messages/count_tokens"},
                        [MODELS] = {"GET", "/v1/models"},
                        [TOKENIZE] = {"POST", "/tokenize"},
                        [DETOKENIZE] = {"POST", "/detokenize"},
                        [HEALTH] = {"GET", "/health"},
                        [PING] = {"GET", "/ping"},
                        [LOAD] = {"GET", "/load"},
                        [METRICS] = {"GET", "/metrics"},
                        [RESET] = {"POST", "/reset_prefix_cache"},
                        [VERSION] = {"GET", "/version"},
                        [SOURCES] = {"GET", "/kv_event_sources"},
                        [INFO] = {"GET", "/server_info"},
                        [RENDER] = {"POST", "/v1/completions/render"},
                        [RENDER_CHAT] = {"POST", "/v1/chat/completions/render"},
                        [KV] = {"GET", "/mock/kv"},
                        [SGLANG_INFO] = {"GET", "/server_info"},
                        [SGLANG_INFO_OLD] = {"GET", "/get_server_info"},
                        [SGLANG_MODEL] = {"GET", "/model_info"},
                        [SGLANG_MODEL_OLD] = {"GET", "/get_model_info"},
                        [SGLANG_LOAD] = {"GET", "/get_load"},
                        [SGLANG_LOADS] = {"GET", "/v1/loads"},
                        [SGLANG_TOKENIZE] = {"POST", "/v1/tokenize"},
                        [SGLANG_ABORT] = {"POST", "/abort_request"},
                        [LOAD_ADAPTER] = {"POST", "/v1/load_lora_adapter"},
                        [UNLOAD_ADAPTER] = {"POST", "/v1/unload_lora_adapter"},
                        [SGLANG_LOAD_ADAPTER] = {"POST", "/load_lora_adapter"},
                        [SGLANG_UNLOAD_ADAPTER] = {"POST", "/unload_lora_adapter"}};
    struct mock *m = ctx;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    bool path_known = false;
    for (enum route i = 0; i < ROUTES; i++) {
        if (!kvr_text_is(rq->path, routes[i].path) || is_off(m->o, i)) continue;
        path_known = true;
        if (!kvr_text_is(rq->method, routes[i].method)) continue;
        serve_route(m, c, i);
        return;
    }
    static const char kept[] = "/v1/responses/";
    if (rq->path.len > sizeof kept - 1 && memcmp(rq->path.ptr, kept, sizeof kept - 1) == 0 && kvr_text_is(rq->method, "GET")) {
        mock_get_response(m, c, (struct kvr_text){rq->path.ptr + sizeof kept - 1, rq->path.len - (sizeof kept - 1)});
        return;
    }
    mock_reply_detail(c, path_known ? 405 : 404, path_known ? "Method Not Allowed" : "Not Found");
}

static void error_body(struct kvr_buf *out, int status, const char *message)
{
    kvr_openai_error(out, status, kvr_openai_error_type(status), message);
}

/* ---- start and end -------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *s, int signum)
{
    (void)signum;
    uv_stop(s->loop);
}

/* tcp port + rank. */
static bool shifted(const char *endpoint, uint32_t rank, char *out, size_t cap)
{
    const char *colon = strrchr(endpoint, ':');
    if (rank == 0) return snprintf(out, cap, "%s", endpoint) < (int)cap;
    if (!colon) return false;
    return snprintf(out, cap, "%.*s:%lu", (int)(colon - endpoint), endpoint, strtoul(colon + 1, NULL, 10) + rank) < (int)cap;
}

static int start_rank(struct mock *m, uint32_t id)
{
    const struct mock_options *o = m->o;
    struct mock_rank *r = &m->ranks[id];
    struct mock_engine_config ec = {.block_size = (uint32_t)o->block_size,
                                    .num_blocks = (uint32_t)o->num_gpu_blocks,
                                    .max_num_seqs = (uint32_t)o->max_num_seqs,
                                    .max_batched_tokens = (uint32_t)o->max_num_batched_tokens,
                                    .speedup = o->speedup_ratio,
                                    .seed = o->seed,
                                    .prefix_caching = o->prefix_caching,
                                    .host_blocks = (uint32_t)o->host_kv_blocks,
                                    .host_chunk = o->kv_offload_events == MOCK_OFFLOAD_SGLANG ? 1 : (uint32_t)o->kv_offload_chunk,
                                    .host_rests = o->kv_offload_events == MOCK_OFFLOAD_LMCACHE,
                                    .load_ratio = o->kv_load_ratio,
                                    .on_event = mock_on_event,
                                    .on_host_event = mock_on_host_event,
                                    .on_token = mock_on_token,
                                    .on_load = mock_on_load,
                                    .ctx = r};
    r->mock = m;
    r->id = id;
    uv_timer_init(&m->loop, &r->timer);
    r->timer.data = r;
    if (!(r->engine = mock_engine_create(&ec))) return 1;
    if (!o->kv_events) return 0;
    if (!shifted(o->kv_events, id, r->events_at, sizeof r->events_at) ||
        (o->kv_replay && !shifted(o->kv_replay, id, r->replay_at, sizeof r->replay_at))) {
        kvr_log_error("kvroute mock: --kv-events, --kv-replay: several ranks need tcp endpoints with a port");
        return 1;
    }
    struct mock_events_config vc = {.zmq = m->zmq,
                                    .loop = &m->loop,
                                    .events = r->events_at,
                                    .replay = o->kv_replay ? r->replay_at : NULL,
                                    .rank = id,
                                    .block_size = (uint32_t)(o->fault_block_size ? o->fault_block_size : o->block_size),
                                    .replay_buffer = o->kv_buffer_steps,
                                    .drop_every = o->drop_events,
                                    .topic_in_replay = o->replay_topic,
                                    .topic = o->kv_topic ? o->kv_topic : "",
                                    .arrays = o->kv_event_arrays,
                                    .omit_salt = o->fault_omit_salt,
                                    .offload = o->kv_offload_events};
    if (!(r->events = mock_events_create(&vc))) {
        kvr_log_error("kvroute mock: --kv-events, --kv-replay: cannot bind '%s' or its replay: %s", r->events_at,
                      zmq_strerror(zmq_errno()));
        return 1;
    }
    return 0;
}

static void close_all(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h) && (h->type == UV_TIMER || h->type == UV_SIGNAL)) uv_close(h, NULL);
}

/* Returns: 0, or 1 when it was said what is wrong. */
static int open_tokenizer(struct mock *m)
{
    char why[1200];
    if (!m->o->tokenizer_dir) return 0;
    struct kvr_given_tokens_config config = {
        .lib = m->o->tokenizer_lib, .dirs = &m->o->tokenizer_dir, .dirs_n = 1, .name_max = 255, .cache_bytes = 16 << 20};
    if (kvr_given_tokens_open(&config, &m->given, why, sizeof why) == 0) return 0;
    kvr_log_error("kvroute mock: %s", why);
    return 1;
}

static int open_tls(const struct mock_options *o, struct kvr_tls_ctx **out)
{
    char why[400];
    if (!o->tls_cert) return 0;
    *out = kvr_tls_ctx_new(&(struct kvr_tls_files){.cert = o->tls_cert, .key = o->tls_key}, why, sizeof why);
    if (*out) return 0;
    kvr_log_error("kvroute mock: --tls-cert, --tls-key: %s; allowed: PEM files that belong together", why);
    return 1;
}

int mock_main(const struct mock_options *o)
{
    struct mock *m = calloc(1, sizeof *m);
    struct kvr_tls_ctx *tls = NULL;
    int rc = 0;
    if (!m) return 1;
    m->o = o;
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&m->loop);
    m->zmq = zmq_ctx_new();
    m->json = kvr_json_parser_new();
    rc = open_tls(o, &tls);
    if (rc == 0) rc = open_tokenizer(m);
    if (rc == 0 && !mock_adapters_start(m)) {
        kvr_log_error("kvroute mock: --lora: the name is too long; allowed: at most 127 bytes");
        rc = 2;
    }
    uv_timer_init(&m->loop, &m->slow);
    uv_signal_init(&m->loop, &m->term);
    uv_signal_init(&m->loop, &m->intr);
    uv_signal_start(&m->term, on_signal, SIGTERM);
    uv_signal_start(&m->intr, on_signal, SIGINT);
    m->started_ms = uv_now(&m->loop);
    for (uint32_t i = 0; i < o->dp_size && rc == 0; i++) rc = start_rank(m, i);
    if (rc == 0) rc = mock_kv_start(m, &mock_transfer_hooks);
    struct kvr_http_server_config sc = {.host = o->host,
                                        .port = (uint16_t)o->port,
                                        .body_max = 256u << 20,
                                        .connections_max = 65536,
                                        .head_timeout_s = 30,
                                        .body_timeout_s = 60,
                                        .idle_timeout_s = 5,
                                        .write_timeout_s = 300,
                                        .tls = tls,
                                        .handler = {on_request, mock_gone, NULL, error_body, m}};
    if (rc == 0 && (rc = kvr_http_server_start(&m->loop, &sc, &m->server)))
        kvr_log_error("kvroute mock: --port: cannot listen on %s:%u: %s", o->host, (unsigned)o->port, uv_strerror(rc));
    if (rc == 0) {
        printf("kvroute mock: %s on %s:%u, %llu blocks of %llu tokens, %llu rank(s)\n", o->model, o->host, kvr_http_server_port(m->server),
               (unsigned long long)o->num_gpu_blocks, (unsigned long long)o->block_size, (unsigned long long)o->dp_size);
        fflush(stdout);
        uv_run(&m->loop, UV_RUN_DEFAULT);
    }
    kvr_http_server_close(m->server);
    mock_kv_stop(m->kv);
    for (uint64_t i = 0; i < o->dp_size; i++) mock_events_destroy(m->ranks[i].events);
    uv_walk(&m->loop, close_all, NULL);
    while (uv_run(&m->loop, UV_RUN_DEFAULT)) continue;
    mock_kv_free(m->kv);
    for (uint64_t i = 0; i < o->dp_size; i++) mock_engine_destroy(m->ranks[i].engine);
    uv_loop_close(&m->loop);
    zmq_ctx_term(m->zmq);
    kvr_json_parser_free(m->json);
    kvr_given_tokens_close(m->given);
    mock_free_responses(m);
    kvr_tls_ctx_free(tls);
    free(m);
    return rc ? 1 : 0;
}
