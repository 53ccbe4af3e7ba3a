/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an SGLang tells of itself, with --sglang-info: its server's arguments, its model, its load. Generation, events and metrics stay
 * those of vLLM; routers that know SGLang only find in this what they need to take the mock for an engine.
 *
 *     /server_info, /get_server_info    page_size, dp_size, max_total_num_tokens, ...
 *     /model_info, /get_model_info      model_path, is_generation
 *     /get_load                         a list: requests and tokens of each rank
 *     /v1/loads                         the same of newer releases, with ratios and sums
 *     /abort_request                    ends the requests of a `rid`
 *     /v1/tokenize                      beside /tokenize; both answer without `token_strs`, and nothing renders
 */
#include "app/mock/state.h"

#include <time.h>

#define MOCK_SGLANG_VERSION "0.5.23"

static void put_bool(struct kvr_buf *b, const char *key, bool v)
{
    kvr_json_key(b, key);
    kvr_json_bool(b, v);
}

static void put_null(struct kvr_buf *b, const char *key)
{
    kvr_json_key(b, key);
    kvr_json_null(b);
}

/* SGLang has this configuration as a text of JSON. */
static void put_events_config(struct kvr_buf *b, const struct mock *m)
{
    struct kvr_buf text = {0};
    kvr_json_key(b, "kv_events_config");
    if (!m->o->kv_events) {
        kvr_json_null(b);
        return;
    }
    kvr_json_open(&text, '{');
    kvr_json_put_str(&text, "publisher", "zmq");
    kvr_json_put_str(&text, "endpoint", m->ranks[0].events_at);
    if (m->o->kv_replay) kvr_json_put_str(&text, "replay_endpoint", m->ranks[0].replay_at);
    kvr_json_put_str(&text, "topic", m->o->kv_topic ? m->o->kv_topic : "");
    kvr_json_close(&text, '}');
    kvr_json_str(b, text.data ? text.data : "", text.len);
    kvr_buf_free(&text);
}

static void put_disaggregation(struct kvr_buf *b, const struct mock *m)
{
    static const char *const modes[] = {"null", "prefill", "decode"};
    kvr_json_put_str(b, "disaggregation_mode", m->o->kv_protocol == MOCK_KV_SGLANG ? modes[m->o->role] : "null");
    kvr_json_put_u64(b, "disaggregation_bootstrap_port", m->o->bootstrap_port);
}

void mock_sglang_server_info(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    uint64_t tokens = m->o->num_gpu_blocks * m->o->block_size;
    kvr_json_open(&b, '{');
    kvr_json_put_str(&b, "model_path", m->o->model);
    kvr_json_put_str(&b, "tokenizer_path", m->o->model);
    kvr_json_put_str(&b, "served_model_name", m->o->model);
    kvr_json_put_u64(&b, "context_length", mock_model_len(m));
    kvr_json_put_u64(&b, "page_size", m->o->block_size);
    kvr_json_put_u64(&b, "tp_size", 1);
    kvr_json_put_u64(&b, "pp_size", 1);
    kvr_json_put_u64(&b, "dp_size", m->o->dp_size);
    kvr_json_put_u64(&b, "max_running_requests", m->o->max_num_seqs);
    kvr_json_put_u64(&b, "max_total_num_tokens", tokens);
    kvr_json_put_u64(&b, "chunked_prefill_size", m->o->max_num_batched_tokens);
    put_bool(&b, "disable_radix_cache", !m->o->prefix_caching);
    put_bool(&b, "enable_cache_report", m->o->prompt_tokens_details);
    put_bool(&b, "is_embedding", false);
    put_disaggregation(&b, m);
    put_events_config(&b, m);
    kvr_json_put_str(&b, "version", MOCK_SGLANG_VERSION);
    kvr_json_close(&b, '}');
    mock_reply_json(c, 200, &b);
}

void mock_sglang_model_info(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '{');
    kvr_json_put_str(&b, "model_path", m->o->model);
    kvr_json_put_str(&b, "tokenizer_path", m->o->model);
    put_bool(&b, "is_generation", true);
    put_null(&b, "preferred_sampling_params");
    kvr_json_put_str(&b, "weight_version", "default");
    kvr_json_close(&b, '}');
    mock_reply_json(c, 200, &b);
}

void mock_sglang_load(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '[');
    for (uint32_t r = 0; r < m->o->dp_size; r++) {
        struct mock_engine_stats st;
        mock_engine_stats(m->ranks[r].engine, &st);
        kvr_json_open(&b, '{');
        kvr_json_put_u64(&b, "dp_rank", r);
        kvr_json_put_u64(&b, "num_reqs", st.running + st.waiting);
        kvr_json_put_u64(&b, "num_waiting_reqs", st.waiting);
        kvr_json_put_u64(&b, "num_tokens", st.used_blocks * m->o->block_size);
        kvr_json_close(&b, '}');
    }
    kvr_json_close(&b, ']');
    mock_reply_json(c, 200, &b);
}

static double ratio(uint64_t a, uint64_t of)
{
    return of ? (double)a / (double)of : 0;
}

static void put_rank_load(struct kvr_buf *b, const struct mock *m, uint32_t r, struct mock_engine_stats *sum)
{
    struct mock_engine_stats st;
    mock_engine_stats(m->ranks[r].engine, &st);
    sum->running += st.running;
    sum->waiting += st.waiting;
    sum->used_blocks += st.used_blocks;
    sum->total_blocks += st.total_blocks;
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "dp_rank", r);
    kvr_json_put_u64(b, "num_running_reqs", st.running);
    kvr_json_put_u64(b, "num_waiting_reqs", st.waiting);
    kvr_json_put_u64(b, "num_total_reqs", st.running + st.waiting);
    kvr_json_put_u64(b, "num_used_tokens", st.used_blocks * m->o->block_size);
    kvr_json_put_u64(b, "max_total_num_tokens", st.total_blocks * m->o->block_size);
    kvr_json_put_double(b, "token_usage", ratio(st.used_blocks, st.total_blocks));
    kvr_json_put_double(b, "gen_throughput", 0);
    kvr_json_put_double(b, "cache_hit_rate", ratio(st.cached_tokens, st.prompt_tokens));
    kvr_json_put_double(b, "utilization", ratio(st.running, m->o->max_num_seqs));
    kvr_json_put_u64(b, "max_running_requests", m->o->max_num_seqs);
    kvr_json_close(b, '}');
}

void mock_sglang_loads(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    struct mock_engine_stats sum = {0};
    char now[40];
    struct tm utc;
    time_t t = time(NULL);
    gmtime_r(&t, &utc);
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%S+00:00", &utc);
    kvr_json_open(&b, '{');
    kvr_json_put_str(&b, "timestamp", now);
    kvr_json_put_str(&b, "version", MOCK_SGLANG_VERSION);
    kvr_json_put_u64(&b, "dp_rank_count", m->o->dp_size);
    kvr_json_key(&b, "loads");
    kvr_json_open(&b, '[');
    for (uint32_t r = 0; r < m->o->dp_size; r++) put_rank_load(&b, m, r, &sum);
    kvr_json_close(&b, ']');
    kvr_json_key(&b, "aggregate");
    kvr_json_open(&b, '{');
    kvr_json_put_u64(&b, "total_running_reqs", sum.running);
    kvr_json_put_u64(&b, "total_waiting_reqs", sum.waiting);
    kvr_json_put_u64(&b, "total_reqs", sum.running + sum.waiting);
    kvr_json_put_double(&b, "avg_token_usage", ratio(sum.used_blocks, sum.total_blocks));
    kvr_json_close(&b, '}');
    kvr_json_close(&b, '}');
    mock_reply_json(c, 200, &b);
}
