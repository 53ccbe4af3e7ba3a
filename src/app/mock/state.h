/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mock engine's parts: who calls whom.
 *
 *     mock.c       start and end, the routes, one engine and one event stream (events.c) per data-parallel rank
 *       generate.c   a request that generates: body (prompt.c) -> tokens -> engine.submit; passes; tokens -> answer (answers.c)
 *       reply.c      JSON answers and errors in the engine's words
 *       responses.c  answers that are kept for previous_response_id
 *       legs.c       a request of which another engine does a part
 *       kv.c         KV transfers between mocks; app/mock/kv.h has their parts
 *       render.c     the tokens of a request, without computing it
 *       info.c       what an engine tells of itself: models, metrics, tokenize, event sources, configuration
 *       sglang.c     what an SGLang tells of itself
 *
 * Threads: one.
 */
#ifndef KVR_APP_MOCK_STATE_H
#define KVR_APP_MOCK_STATE_H

#include <uv.h>

#include "app/mock/events.h"
#include "app/mock/kv.h"
#include "app/mock/mock.h"
#include "sim/engine.h"
#include "net/http/http.h"
#include "wire/openai.h"

#define MOCK_VLLM_VERSION "0.32.0" /* whose behaviour this is: docs/guides/mock.md */

enum { MOCK_DP_MAX = 64, MOCK_TOKENS_MAX = 1 << 22 };

struct mock;
struct mock_exchange;

struct mock_rank {
    struct mock *mock;
    uint32_t id;
    struct mock_engine *engine;
    struct mock_events *events; /* NULL: it publishes none */
    char events_at[256], replay_at[256];
    uv_timer_t timer;
    bool in_pass;
    bool walking;                 /* the engine hands out tokens right now */
    struct mock_exchange *ending; /* broken off in this pass */
};

enum { MOCK_ADAPTERS_MAX = 16, MOCK_ADAPTER_NAME_MAX = 128 };

struct mock {
    const struct mock_options *o;
    char adapters[MOCK_ADAPTERS_MAX][MOCK_ADAPTER_NAME_MAX];
    size_t adapters_n;
    uv_loop_t loop;
    uv_signal_t term, intr;
    struct kvr_http_server *server;
    struct kvr_json_parser *json;
    struct kvr_given_tokens *given; /* NULL: tokens are bytes */
    void *zmq;
    struct mock_rank ranks[MOCK_DP_MAX];
    uint64_t started_ms, next_id;
    struct mock_response *responses; /* NULL: none kept */
    struct mock_kv *kv;
    uv_timer_t slow; /* of the first of those that begin late (legs.c) */
    struct mock_exchange *slow_first, *exchanges;
    uint64_t faults; /* statuses that --fault-prefill-status and --fault-decode-status have given */
};

/* ---- adapters.c ------------------------------------------------------------------------------ */

bool mock_adapters_start(struct mock *m); /* false: that of --lora-name is too long */
/* The name of the adapter that is loaded under it, or NULL. Borrowed, until one is unloaded. */
const char *mock_adapter(const struct mock *m, const char *name, size_t len);
void mock_load_adapter(struct mock *m, struct kvr_http_conn *c);
void mock_unload_adapter(struct mock *m, struct kvr_http_conn *c);

/* ---- reply.c --------------------------------------------------------------------------------- */

/* Frees the buffer. */
void mock_reply_json(struct kvr_http_conn *c, int status, struct kvr_buf *body);
void mock_error_body(struct kvr_buf *out, int status, const char *message);
void mock_reply_error(struct kvr_http_conn *c, int status, const char *message);
/* What the engine's web framework says of a path it does not know: {"detail": ...}. */
void mock_reply_detail(struct kvr_http_conn *c, int status, const char *detail);
/* Tokens that a prompt and its answer may have together. */
uint64_t mock_model_len(const struct mock *m);

/* ---- responses.c: what --responses-store keeps ---------------------------------------------------------- */

struct mock_response;
void mock_store_response(struct mock *m, uint64_t id, const struct kvr_buf *prompt, const struct kvr_buf *answer);
/* The conversation up to and with that answer, or NULL. Borrowed until the next store. */
const struct kvr_buf *mock_response_text(const struct mock *m, const char *id, size_t len);
void mock_free_responses(struct mock *m);

/* ---- info.c ------------------------------------------------------------------------------------------- */

void mock_models(struct mock *m, struct kvr_http_conn *c);
void mock_metrics(struct mock *m, struct kvr_http_conn *c);
void mock_tokenize(struct mock *m, struct kvr_http_conn *c);
void mock_detokenize(struct mock *m, struct kvr_http_conn *c);
void mock_event_sources(struct mock *m, struct kvr_http_conn *c);
void mock_server_info(struct mock *m, struct kvr_http_conn *c);
void mock_version(struct mock *m, struct kvr_http_conn *c);

/* ---- sglang.c ----------------------------------------------------------------------------------------- */

void mock_sglang_server_info(struct mock *m, struct kvr_http_conn *c);
void mock_sglang_model_info(struct mock *m, struct kvr_http_conn *c);
void mock_sglang_load(struct mock *m, struct kvr_http_conn *c);
void mock_sglang_loads(struct mock *m, struct kvr_http_conn *c);

#endif
