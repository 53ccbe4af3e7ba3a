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

/* SGLang has this configuration as a text of JSON. */
static void put_events_config(struct kvr_buf *b, const struct mock *m)
{
    struct kvr_buf text = {0};
    if (!m->o->kv_events) {
        kvr_json_printf(b, "'kv_events_config':null");
        return;
    }
    kvr_json_printf(&text, "{'publisher':'zmq','endpoint':%s", m->ranks[0].events_at);
    if (m->o->kv_replay) kvr_json_printf(&text, "'replay_endpoint':%s", m->ranks[0].replay_at);
    kvr_json_printf(&text, "'topic':%s}", m->o->kv_topic ? m->o->kv_topic : "");
    kvr_json_printf(b, "'kv_events_config':%.*s", (int)text.len, text.data);
    kvr_buf_free(&text);
}

void mock_sglang_server_info(struct mock *m, struct kvr_http_conn *c)
{
    static const char *const modes[] = {"null", "prefill", "decode"};
    const struct mock_options *o = m->o;
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'model_path':%s,'tokenizer_path':%s,'served_model_name':%s,'context_length':%ju,'page_size':%ju", o->model,
                    o->model, o->model, mock_model_len(m), o->block_size);
    kvr_json_printf(&b, "'tp_size':1,'pp_size':1,'dp_size':%ju,'max_running_requests':%ju,'max_total_num_tokens':%ju", o->dp_size,
                    o->max_num_seqs, o->num_gpu_blocks * o->block_size);
    kvr_json_printf(&b, "'chunked_prefill_size':%ju,'disable_radix_cache':%i,'enable_cache_report':%i,'is_embedding':false",
                    o->max_num_batched_tokens, !o->prefix_caching, o->prompt_tokens_details);
    kvr_json_printf(&b, "'disaggregation_mode':%s,'disaggregation_bootstrap_port':%ju",
                    o->kv_protocol == MOCK_KV_SGLANG ? modes[o->role] : "null", o->bootstrap_port);
    put_events_config(&b, m);
    kvr_json_printf(&b, "'version':'" MOCK_SGLANG_VERSION "'}");
    mock_reply_json(c, 200, &b);
}

void mock_sglang_model_info(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b,
                    "{'model_path':%s,'tokenizer_path':%s,'is_generation':true,'preferred_sampling_params':null,"
                    "'weight_version':'default'}",
                    m->o->model, m->o->model);
    mock_reply_json(c, 200, &b);
}

void mock_sglang_load(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '[');
    for (uint32_t r = 0; r < m->o->dp_size; r++) {
        struct mock_engine_stats st;
        mock_engine_stats(m->ranks[r].engine, &st);
        kvr_json_printf(&b, "{'dp_rank':%u,'num_reqs':%ju,'num_waiting_reqs':%ju,'num_tokens':%ju}", r, st.running + st.waiting, st.waiting,
                        st.used_blocks * m->o->block_size);
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
    kvr_json_printf(b, "{'dp_rank':%u,'num_running_reqs':%ju,'num_waiting_reqs':%ju,'num_total_reqs':%ju,'num_used_tokens':%ju", r,
                    st.running, st.waiting, st.running + st.waiting, st.used_blocks * m->o->block_size);
    kvr_json_printf(b, "'max_total_num_tokens':%ju,'token_usage':%g,'gen_throughput':0,'cache_hit_rate':%g,'utilization':%g",
                    st.total_blocks * m->o->block_size, ratio(st.used_blocks, st.total_blocks), ratio(st.cached_tokens, st.prompt_tokens),
                    ratio(st.running, m->o->max_num_seqs));
    kvr_json_printf(b, "'max_running_requests':%ju}", m->o->max_num_seqs);
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
    kvr_json_printf(&b, "{'timestamp':%s,'version':'" MOCK_SGLANG_VERSION "','dp_rank_count':%ju,'loads':[", now, m->o->dp_size);
    for (uint32_t r = 0; r < m->o->dp_size; r++) put_rank_load(&b, m, r, &sum);
    kvr_json_printf(&b, "],'aggregate':{'total_running_reqs':%ju,'total_waiting_reqs':%ju,'total_reqs':%ju,'avg_token_usage':%g}}",
                    sum.running, sum.waiting, sum.running + sum.waiting, ratio(sum.used_blocks, sum.total_blocks));
    mock_reply_json(c, 200, &b);
}
