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

static void load(struct mock *, struct kvr_http_conn *c)
{
    kvr_http_reply(c, 200, "application/json", NULL, "{\"server_load\":0}", 17);
}

/* What an engine must be, or be started with, to have a path. */
enum { VLLM = 1, SGLANG = 2, DEV_MODE = 4, SCALE_OUT = 8, RUNTIME_LORA = 16, EVENT_SOURCES = 32 };

static const struct route {
    const char *method, *path;
    unsigned needs;
    void (*serve)(struct mock *m, struct kvr_http_conn *c);
    void (*serve_api)(struct mock *m, struct kvr_http_conn *c, enum mock_api api); /* in its place */
    enum mock_api api;
} routes[] = {{"POST", "/v1/completions", 0, .serve_api = mock_generate, .api = MOCK_COMPLETIONS},
              {"POST", "/v1/chat/completions", 0, .serve_api = mock_generate, .api = MOCK_CHAT},
              {"POST", "/v1/responses", 0, .serve_api = mock_generate, .api = MOCK_RESPONSES},
              {"POST", "/v1/messages", 0, .serve_api = mock_generate, .api = MOCK_MESSAGES},
              {"POST", "/v1/messages/count_tokens", 0, .serve = mock_count_tokens},
              {"GET", "/v1/models", 0, .serve = mock_models},
              {"POST", "/tokenize", 0, .serve = mock_tokenize},
              {"POST", "/detokenize", 0, .serve = mock_detokenize},
              {"GET", "/health", 0, .serve = health},
              {"GET", "/ping", 0, .serve = health},
              {"GET", "/load", 0, .serve = load},
              {"GET", "/metrics", 0, .serve = mock_metrics},
              {"POST", "/reset_prefix_cache", DEV_MODE, .serve = reset_cache},
              {"GET", "/version", VLLM, .serve = mock_version},
              {"GET", "/kv_event_sources", EVENT_SOURCES, .serve = mock_event_sources},
              {"GET", "/server_info", VLLM | DEV_MODE, .serve = mock_server_info},
              {"POST", "/v1/completions/render", VLLM | SCALE_OUT, .serve_api = mock_render, .api = MOCK_COMPLETIONS},
              {"POST", "/v1/chat/completions/render", VLLM | SCALE_OUT, .serve_api = mock_render, .api = MOCK_CHAT},
              {"GET", "/mock/kv", 0, .serve = mock_kv_tell},
              {"POST", "/v1/load_lora_adapter", VLLM | RUNTIME_LORA, .serve = mock_load_adapter},
              {"POST", "/v1/unload_lora_adapter", VLLM | RUNTIME_LORA, .serve = mock_unload_adapter},
              {"GET", "/server_info", SGLANG, .serve = mock_sglang_server_info},
              {"GET", "/get_server_info", SGLANG, .serve = mock_sglang_server_info},
              {"GET", "/model_info", SGLANG, .serve = mock_sglang_model_info},
              {"GET", "/get_model_info", SGLANG, .serve = mock_sglang_model_info},
              {"GET", "/get_load", SGLANG, .serve = mock_sglang_load},
              {"GET", "/v1/loads", SGLANG, .serve = mock_sglang_loads},
              {"POST", "/v1/tokenize", SGLANG, .serve = mock_tokenize},
              {"POST", "/abort_request", SGLANG, .serve = mock_abort_request},
              {"POST", "/load_lora_adapter", SGLANG | RUNTIME_LORA, .serve = mock_load_adapter},
              {"POST", "/unload_lora_adapter", SGLANG | RUNTIME_LORA, .serve = mock_unload_adapter}};

static void on_request(struct kvr_http_conn *c, void *ctx)
{
    struct mock *m = ctx;
    const struct mock_options *o = m->o;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    unsigned has = (o->sglang_info ? SGLANG : VLLM) | (o->dev_mode ? DEV_MODE : 0) | (o->scale_out ? SCALE_OUT : 0) |
                   (o->runtime_lora ? RUNTIME_LORA : 0) | (o->tell_event_sources ? EVENT_SOURCES : 0);
    bool path_known = false;
    for (const struct route *r = routes; r < routes + KVR_ARRAY_LEN(routes); r++) {
        if (!kvr_text_is(rq->path, r->path) || r->needs & ~has) continue;
        path_known = true;
        if (!kvr_text_is(rq->method, r->method)) continue;
        if (r->serve) r->serve(m, c);
        else r->serve_api(m, c, r->api);
        return;
    }
    static const char kept[] = "/v1/responses/";
    if (rq->path.len > sizeof kept - 1 && memcmp(rq->path.ptr, kept, sizeof kept - 1) == 0 && kvr_text_is(rq->method, "GET")) {
        mock_get_response(m, c, (struct kvr_text){rq->path.ptr + sizeof kept - 1, rq->path.len - (sizeof kept - 1)});
        return;
    }
    mock_reply_detail(c, path_known ? 405 : 404, path_known ? "Method Not Allowed" : "Not Found");
}

/* ---- start and end -------------------------------------------------------------------------------------------- */

static void on_signal(uv_signal_t *s, int)
{
    uv_stop(s->loop);
}

/* tcp port + rank. */
static bool shifted(const char *endpoint, uint32_t rank, char *out, size_t cap)
{
    const char *colon = strrchr(endpoint, ':');
    unsigned long port = colon ? strtoul(colon + 1, NULL, 10) : 0;
    if (port > 65535 || port + rank > 65535) return false; /* libzmq takes what is left of it */
    if (rank == 0) return snprintf(out, cap, "%s", endpoint) < (int)cap;
    return colon && snprintf(out, cap, "%.*s:%lu", (int)(colon - endpoint), endpoint, port + rank) < (int)cap;
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
        kvr_log_error("kvroute mock: --events, --replay: no port for rank %u; allowed: tcp endpoints whose ports leave room for every rank",
                      id);
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
        kvr_log_error("kvroute mock: --events, --replay: cannot bind '%s' or its replay: %s", r->events_at, zmq_strerror(zmq_errno()));
        return 1;
    }
    return 0;
}

static void close_all(uv_handle_t *h, void *)
{
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
        kvr_log_error("kvroute mock: --lora-name: the name is too long; allowed: at most 127 bytes");
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
                                        .handler = {on_request, mock_gone, NULL, mock_error_body, m}};
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
