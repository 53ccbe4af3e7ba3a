/* SPDX-License-Identifier: Apache-2.0 */
/* What the mock says of itself and of tokens: models, event sources, server information, metrics, as vLLM and SGLang word them. */
#include "app/mock/prompt.h"
#include "wire/prom_page.h"

#include <string.h>
#include <time.h>

static void put_token_strings(struct kvr_buf *b, const struct mock_prompt *p)
{
    kvr_json_open(b, '[');
    for (size_t i = 0; i < p->n; i++) {
        char ch = mock_char(p->tokens[i]);
        kvr_json_str(b, &ch, 1);
    }
    kvr_json_close(b, ']');
}

void mock_tokenize(struct mock *m, struct kvr_http_conn *c)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct mock_error e = {0};
    struct mock_prompt p;
    struct kvr_buf b = {0};
    bool strings = false;
    if (mock_read_tokenize(m, http->body, http->body_len, &p, &strings, &e)) {
        mock_put_error(&b, &e);
        mock_reply_json(c, e.status, &b);
        return;
    }
    kvr_json_printf(&b, "{'count':%zu,'max_model_len':%ju,'tokens':", p.n, mock_model_len(m));
    kvr_json_u32s(&b, p.tokens, p.n);
    if (!m->o->sglang_info) { /* SGLang has no such member */
        kvr_json_key(&b, "token_strs");
        if (strings) put_token_strings(&b, &p);
        else kvr_json_null(&b);
    }
    kvr_json_close(&b, '}');
    free(p.tokens);
    mock_reply_json(c, 200, &b);
}

void mock_detokenize(struct mock *m, struct kvr_http_conn *c)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct kvr_json root, tokens;
    struct kvr_buf b = {0}, text = {0};
    bool ok = kvr_json_parse(m->json, http->body ? http->body : "", http->body_len, &root, NULL) == 0 &&
              kvr_json_type_of(tokens = kvr_json_get(root, "tokens")) == KVR_JSON_ARRAY;
    size_t n = ok ? kvr_json_count(tokens) : 0;
    uint32_t *t = malloc((n + 1) * sizeof *t);
    if (!ok || !t || kvr_json_u32_array(tokens, t, n) < 0) {
        free(t);
        mock_reply_error(c, 400, "`tokens` must be an array of token ids");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        char ch = mock_char(t[i]);
        kvr_buf_add(&text, &ch, 1);
    }
    free(t);
    kvr_json_printf(&b, "{'prompt':%.*s}", (int)text.len, text.data);
    kvr_buf_free(&text);
    mock_reply_json(c, 200, &b);
}

/* lora: the adapter's name; NULL: the model itself. */
static void put_model(struct kvr_buf *b, const struct mock *m, const char *lora)
{
    char root[1024];
    if (m->o->tokenizer_dir) snprintf(root, sizeof root, "%s", m->o->tokenizer_dir);
    else snprintf(root, sizeof root, "mock/%s", lora ? lora : m->o->model);
    kvr_json_printf(b, "{'id':%s,'object':'model','created':%ju,'owned_by':%s,'root':%s,'parent':%p", lora ? lora : m->o->model,
                    (uintmax_t)time(NULL), m->o->sglang_info ? "sglang" : "vllm", root, lora ? m->o->model : NULL);
    kvr_json_key(b, "max_model_len");
    if (lora) kvr_json_null(b);
    else kvr_json_u64(b, mock_model_len(m));
    kvr_json_printf(b, "'permission':[]}");
}

void mock_models(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'object':'list','data':[");
    put_model(&b, m, NULL);
    for (size_t i = 0; i < m->adapters_n; i++) put_model(&b, m, m->adapters[i]);
    kvr_json_printf(&b, "]}");
    mock_reply_json(c, 200, &b);
}

/* How a rank publishes, as /kv_event_sources and the configuration tell it. */
static void put_publisher(struct kvr_buf *b, const struct mock *m, const struct mock_rank *r)
{
    kvr_json_printf(b,
                    "{'enable_kv_cache_events':true,'publisher':'zmq','endpoint':%s,'replay_endpoint':%p,'buffer_steps':%ju,'hwm':100000,"
                    "'max_queue_size':100000,'topic':%s}",
                    r->events_at, m->o->kv_replay ? r->replay_at : NULL, m->o->kv_buffer_steps, m->o->kv_topic ? m->o->kv_topic : "");
}

void mock_event_sources(struct mock *m, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '{');
    for (uint64_t r = 0; r < m->o->dp_size && m->o->kv_events; r++) {
        kvr_json_key_u64(&b, r);
        put_publisher(&b, m, &m->ranks[r]);
    }
    kvr_json_close(&b, '}');
    mock_reply_json(c, 200, &b);
}

void mock_server_info(struct mock *m, struct kvr_http_conn *c)
{
    char format[16];
    struct kvr_buf b = {0};
    bool json =
        kvr_query_parameter(kvr_http_conn_request(c)->query, "config_format", format, sizeof format) == 1 && !strcmp(format, "json");
    if (!json) {
        struct kvr_buf text = {0};
        kvr_buf_printf(&text, "model='%s', max_seq_len=%ju, data_parallel_size=%ju", m->o->model, mock_model_len(m), m->o->dp_size);
        kvr_json_printf(&b, "{'vllm_config':%.*s}", (int)text.len, text.data);
        kvr_buf_free(&text);
    } else {
        kvr_json_printf(&b, "{'vllm_config':{'model_config':{'served_model_name':%s,'max_model_len':%ju}", m->o->model, mock_model_len(m));
        kvr_json_printf(&b, "'cache_config':{'block_size':%ju,'num_gpu_blocks':%ju,'enable_prefix_caching':%i}", m->o->block_size,
                        m->o->num_gpu_blocks, m->o->prefix_caching);
        kvr_json_printf(&b, "'parallel_config':{'data_parallel_size':%ju,'data_parallel_rank':0},'kv_events_config':", m->o->dp_size);
        if (m->o->kv_events) put_publisher(&b, m, &m->ranks[0]);
        else kvr_json_null(&b);
        kvr_json_printf(&b, "}}");
    }
    mock_reply_json(c, 200, &b);
}

void mock_version(struct mock *, struct kvr_http_conn *c)
{
    static const char text[] = "{\"version\":\"" MOCK_VLLM_VERSION "\"}";
    kvr_http_reply(c, 200, "application/json", NULL, text, sizeof text - 1);
}

static void put_cache_config(struct kvr_prom_page *b, const struct mock *m)
{
    uint64_t size = m->o->block_size, n = m->o->num_gpu_blocks;
    kvr_prom_family(b, "vllm:", "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig");
    for (uint64_t r = 0; r < m->o->dp_size; r++)
        kvr_prom_put_double(b,
                            KVR_PROM_PAIRS(KVR_PROM_NUMBER("block_size", size), KVR_PROM_TEXT("cache_dtype", "auto"),
                                           KVR_PROM_NUMBER("effective_attention_block_size", size),
                                           KVR_PROM_TEXT("enable_prefix_caching", m->o->prefix_caching ? "True" : "False"),
                                           KVR_PROM_NUMBER("engine", r), KVR_PROM_TEXT("hash_block_size", "None"),
                                           KVR_PROM_NUMBER("kv_cache_size_tokens", size * n), KVR_PROM_NUMBER("num_gpu_blocks", n),
                                           KVR_PROM_TEXT("prefix_caching_hash_algo", "sha256"), KVR_PROM_TEXT("sliding_window", "None")),
                            1);
}

#define ENGINE_OF(m, r) KVR_PROM_TEXT("model_name", (m)->o->model), KVR_PROM_NUMBER("engine", r)

static void put_usage(struct kvr_prom_page *b, const struct mock *m)
{
    kvr_prom_family(b, "vllm:", "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.");
    for (uint64_t r = 0; r < m->o->dp_size; r++) {
        struct mock_engine_stats st;
        mock_engine_stats(m->ranks[r].engine, &st);
        kvr_prom_put_double(b, KVR_PROM_PAIRS(ENGINE_OF(m, r)), (double)st.used_blocks / (double)st.total_blocks);
    }
}

/* vLLM has it only with an offloading connector. */
static void put_offload(struct kvr_prom_page *b, const struct mock *m)
{
    if (!m->o->host_kv_blocks) return;
    kvr_prom_family(b, "vllm:", "kv_offload_cpu_cache_usage_perc", "gauge", "Share of the host's blocks in use");
    for (uint64_t r = 0; r < m->o->dp_size; r++) {
        struct mock_engine_stats st;
        mock_engine_stats(m->ranks[r].engine, &st);
        kvr_prom_put_double(b, KVR_PROM_PAIRS(ENGINE_OF(m, r)), (double)st.host_blocks / (double)m->o->host_kv_blocks);
    }
}

/* So that who listens can know that all was heard. */
static void put_batches(struct kvr_prom_page *b, const struct mock *m)
{
    kvr_prom_family(b, "", "kvroute_mock_event_batches_total", "counter", "Batches of KV events that were published");
    for (uint64_t r = 0; r < m->o->dp_size; r++)
        if (m->ranks[r].events) kvr_prom_put_u64(b, KVR_PROM_PAIRS(ENGINE_OF(m, r)), mock_events_published(m->ranks[r].events));
}

void mock_metrics(struct mock *m, struct kvr_http_conn *c)
{
    static const struct kvr_prom_member rows[] = {
        {"vllm:num_requests_running", "gauge", "Requests that generate", offsetof(struct mock_engine_stats, running)},
        {"vllm:num_requests_waiting", "gauge", "Requests that wait", offsetof(struct mock_engine_stats, waiting)},
        {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache",
         offsetof(struct mock_engine_stats, prompt_tokens)},
        {"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there", offsetof(struct mock_engine_stats, cached_tokens)},
        {"vllm:external_prefix_cache_queries_total", "counter", "Prompt tokens looked up in the host's memory",
         offsetof(struct mock_engine_stats, host_queries)},
        {"vllm:external_prefix_cache_hits_total", "counter", "Prompt tokens read from there",
         offsetof(struct mock_engine_stats, loaded_tokens)},
        {"vllm:prompt_tokens_total", "counter", "Prompt tokens", offsetof(struct mock_engine_stats, prompt_tokens)},
        {"vllm:generation_tokens_total", "counter", "Generated tokens", offsetof(struct mock_engine_stats, generated_tokens)},
        {"vllm:request_success_total", "counter", "Requests that ended well", offsetof(struct mock_engine_stats, ended)},
        {"vllm:num_preemptions_total", "counter", "Requests that gave their blocks up to others",
         offsetof(struct mock_engine_stats, preemptions)},
        {"kvroute_mock_host_blocks", "gauge", "Blocks that are kept in the host's memory", offsetof(struct mock_engine_stats, host_blocks)},
        {"kvroute_mock_cached_blocks", "gauge", "Blocks that are cached", offsetof(struct mock_engine_stats, cached_blocks)},
    };
    struct kvr_buf b = {0};
    struct kvr_prom_page page = {.out = &b};
    struct mock_engine_stats st;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        kvr_prom_family(&page, "", rows[i].name, rows[i].type, rows[i].help);
        for (uint64_t r = 0; r < m->o->dp_size; r++) {
            mock_engine_stats(m->ranks[r].engine, &st);
            kvr_prom_put_u64(&page, KVR_PROM_PAIRS(ENGINE_OF(m, r)), *(uint64_t *)(void *)((char *)&st + rows[i].at));
        }
    }
    put_usage(&page, m);
    put_offload(&page, m);
    put_batches(&page, m);
    mock_kv_metrics(m, &page);
    if (m->o->tell_cache_config) put_cache_config(&page, m);
    kvr_http_reply_buf(c, 200, "text/plain; version=0.0.4", NULL, &b);
}
