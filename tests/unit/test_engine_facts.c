/* SPDX-License-Identifier: Apache-2.0 */
/* What engines say of themselves, as vLLM 0.32 was heard to say it, and as nobody should. */
#include "test.h"
#include "wire/engine_facts.h"

static void feed(struct kvr_engine_facts *f, const char *text)
{
    static struct kvr_prom_reader r;
    r = (struct kvr_prom_reader){.fn = kvr_engine_facts_sample, .ctx = f};
    kvr_prom_feed(&r, text, strlen(text));
    kvr_prom_end(&r);
}

static struct kvr_json parsed(void **state, const char *text)
{
    struct kvr_json root;
    assert_int_equal(kvr_json_parse(*state, text, strlen(text), &root, NULL), 0);
    return root;
}

/* all 37 labels */
#define ONE_METRICS                                                                                                                        \
    "# TYPE vllm:cache_config_info gauge\n"                                                                                                \
    "vllm:cache_config_info{_block_size_resolved=\"True\",block_size=\"32\",cache_dtype=\"auto\",cache_hi"                                 \
    "t_alignment_tokens=\"None\",effective_attention_block_size=\"32\",enable_mamba_shared_prefix_checkpo"                                 \
    "int=\"False\",enable_prefix_caching=\"True\",engine=\"0\",gpu_memory_utilization=\"0.92\",hash_block"                                 \
    "_size=\"None\",is_attention_free=\"False\",kv_cache_dtype_skip_layers=\"[]\",kv_cache_layout=\"None\""                                \
    ",kv_cache_max_concurrency=\"1.875\",kv_cache_memory_bytes=\"1073741824\",kv_cache_size_tokens=\"3840"                                 \
    "\",kv_offloading_backend=\"native\",kv_offloading_size=\"None\",kv_sharing_fast_prefill=\"False\",ma"                                 \
    "mba_block_size=\"None\",mamba_cache_dtype=\"auto\",mamba_cache_mode=\"none\",mamba_page_size_padded="                                 \
    "\"None\",mamba_ssm_cache_dtype=\"float32\",num_cpu_blocks=\"None\",num_gpu_blocks=\"120\",num_gpu_bl"                                 \
    "ocks_override=\"120\",prefix_cache_retention_interval=\"0\",prefix_caching_hash_algo=\"sha256\",pref"                                 \
    "ix_match_unit=\"None\",replayssm_buffer_len=\"16\",skip_page_size_padded=\"None\",sliding_window=\"N"                                 \
    "one\",swa_bounded_replay=\"True\",use_kda_recoverssm=\"False\",use_replayssm=\"False\",user_specifie"                                 \
    "d_block_size=\"True\"} 1.0"                                                                                                           \
    "\n"                                                                                                                                   \
    "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.0\n"
#define ONE_SOURCES                                                                                                                        \
    "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:11120\",\"replay_endpoint\":\"tcp://*:11125\","  \
    "\"buffer_steps\":10000,\"hwm\":100000,\"max_queue_size\":100000,\"topic\":\"\"}}"

static void vllm_with_one_rank(void **state)
{
    struct kvr_engine_facts f = {0};
    feed(&f, ONE_METRICS);
    assert_true(f.engine == KVR_FACT_VLLM && f.block_size == 32 && f.total_blocks == 120 && f.prefix_caching == KVR_TOLD_YES);
    assert_true(f.events == KVR_UNTOLD && f.ranks_n == 1 && f.ranks[0].rank == 0 && !f.ranks[0].events);
    assert_true(kvr_engine_facts_sources(&f, parsed(state, ONE_SOURCES)));
    assert_true(f.events == KVR_TOLD_YES && f.ranks_n == 1 && f.ranks[0].events == 11120 && f.ranks[0].replay == 11125);
    assert_true(f.ranks[0].buffer_steps == 10000 && kvr_engine_facts_contiguous(&f) && !f.unusable);
    assert_string_equal(f.block_size_from, "/metrics");
    assert_string_equal(f.events_from, "/kv_event_sources");
}

/* Its offloading connectors have series of their own; that of a store that others share may be anything's. */
static void vllm_that_offloads(void **)
{
    static const char *const told[] = {"vllm:kv_offload_cpu_cache_usage_perc{engine=\"0\"} 0.5\n",
                                       "vllm:simple_kv_offload_info{engine=\"0\",backend=\"cpu\"} 1\n"};
    static const char *const not_told[] = {ONE_METRICS, "vllm:external_prefix_cache_queries_total{engine=\"0\"} 0\n", "vllm:kv 1\n"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(told); i++) {
        struct kvr_engine_facts f = {0};
        feed(&f, told[i]);
        assert_true(f.offloads);
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(not_told); i++) {
        struct kvr_engine_facts f = {0};
        feed(&f, not_told[i]);
        assert_false(f.offloads);
    }
}

/* --data-parallel-size 2: the ports are each rank's own, and the order is any. */
static void vllm_with_two_ranks(void **state)
{
    struct kvr_engine_facts f = {0};
    feed(&f, "vllm:cache_config_info{block_size=\"32\",engine=\"1\",num_gpu_blocks=\"64\"} 1\n"
             "vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"64\"} 1\n");
    assert_true(kvr_engine_facts_sources(
        &f,
        parsed(state, "{\"1\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:11801\","
                      "\"replay_endpoint\":\"tcp://*:11806\"},\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":"
                      "\"tcp://*:11800\",\"replay_endpoint\":null}}")));
    assert_true(kvr_engine_facts_blocks(&f) == 32); /* num_gpu_blocks is that of both */
    assert_true(f.ranks_n == 2 && f.ranks[0].rank == 0 && f.ranks[0].events == 11800 && f.ranks[0].replay == 0);
    assert_true(f.ranks[1].rank == 1 && f.ranks[1].events == 11801 && f.ranks[1].replay == 11806 && kvr_engine_facts_contiguous(&f));
    static const char refused[] =
        "{\"error\":{\"message\":\"data_parallel_rank 1073741824 is out of range [0, 2).\",\"type\":\"BadRequestError\"}}";
    assert_true(kvr_engine_facts_rank_range(&f, refused, sizeof refused - 1) && f.rank_range == 2);
    for (size_t n = 0; n < sizeof refused - 1; n++) { /* at every cut */
        char *copy = malloc(n + 1);
        memcpy(copy, refused, n);
        (void)kvr_engine_facts_rank_range(&f, copy, n);
        free(copy);
    }
    assert_false(kvr_engine_facts_rank_range(&f, "n is out of range [0, 2)", 24));
    assert_false(kvr_engine_facts_rank_range(&f, "data_parallel_rank 1 is out of range [0, 0)", 43));
    assert_false(kvr_engine_facts_rank_range(&f, "data_parallel_rank 1 is out of range [0, 99999999999)", 53));
    assert_false(kvr_engine_facts_rank_range(&f, NULL, 0));
}

/* One of several engines behind a balancer of the user's: its number is its place among them. */
static void vllm_with_a_rank_of_its_own(void **state)
{
    struct kvr_engine_facts f = {0};
    feed(&f, "vllm:cache_config_info{block_size=\"16\",engine=\"3\",num_gpu_blocks=\"None\",enable_prefix_caching=\"False\"} 1\n");
    assert_true(f.ranks_n == 1 && f.ranks[0].rank == 3 && f.total_blocks == 0 && f.prefix_caching == KVR_TOLD_NO);
    f = (struct kvr_engine_facts){0};
    assert_true(kvr_engine_facts_server_info(
        &f, *state,
        parsed(state, "{\"vllm_config\":{\"cache_config\":{\"block_size\":32,\"num_gpu_blocks\":7,\"enable_prefix_caching\":true},"
                      "\"parallel_config\":{\"data_parallel_size\":4,\"data_parallel_size_local\":1,\"data_parallel_rank\":3,"
                      "\"data_parallel_external_lb\":true,\"data_parallel_hybrid_lb\":false},\"kv_events_config\":{"
                      "\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\"}}}")));
    assert_true(f.block_size == 32 && f.total_blocks == 7 && f.ranks_n == 1 && f.ranks[0].rank == 3 && f.ranks[0].events == 5560);
}

static void vllm_without_events(void **state)
{
    struct kvr_engine_facts f = {0};
    assert_true(kvr_engine_facts_sources(&f, parsed(state, "{}")) && f.events == KVR_TOLD_NO && f.ranks_n == 0);
    f = (struct kvr_engine_facts){0};
    assert_true(kvr_engine_facts_sources(&f, parsed(state, "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"null\"}}")));
    assert_true(f.events == KVR_TOLD_NO);
    f = (struct kvr_engine_facts){0};
    assert_true(kvr_engine_facts_server_info(&f, *state,
                                             parsed(state, "{\"vllm_config\":{\"cache_config\":{\"block_size\":16},"
                                                           "\"parallel_config\":{\"data_parallel_size\":2},\"kv_events_config\":null}}")));
    assert_true(f.events == KVR_TOLD_NO && f.ranks_n == 2 && f.block_size == 16);
    f = (struct kvr_engine_facts){0}; /* its configuration as a text, which is what it says unless asked for JSON */
    assert_false(kvr_engine_facts_server_info(&f, *state, parsed(state, "{\"vllm_config\":\"model='x', dtype=y\",\"page_size\":4}")));
}

static void sglang(void **state)
{
    struct kvr_engine_facts f = {0};
    assert_true(kvr_engine_facts_server_info(
        &f, *state,
        parsed(state, "{\"model_path\":\"m\",\"page_size\":16,\"dp_size\":2,\"disable_radix_cache\":false,\"enable_cache_report\":false,"
                      "\"max_total_num_tokens\":1600,\"kv_events_config\":\"{\\\"publisher\\\":\\\"zmq\\\",\\\"endpoint\\\":"
                      "\\\"tcp://*:5557\\\",\\\"replay_endpoint\\\":\\\"tcp://*:5657\\\"}\",\"internal_states\":[{}]}")));
    assert_true(f.engine == KVR_FACT_SGLANG && f.block_size == 16 && f.total_blocks == 100 && f.prefix_caching == KVR_TOLD_YES);
    assert_true(f.cached_tokens == KVR_TOLD_NO && f.events == KVR_TOLD_YES && f.ranks_n == 2 && f.ranks[1].events == 5558);
    assert_true(f.ranks[1].replay == 5658);
    f = (struct kvr_engine_facts){0};
    assert_true(kvr_engine_facts_server_info(&f, *state, parsed(state, "{\"page_size\":1,\"kv_events_config\":null}")));
    assert_int_equal(f.mode, KVR_MODE_UNTOLD);
    assert_int_equal(f.bootstrap_port, 0);
    static const struct {
        const char *text;
        enum kvr_told_mode mode;
        uint16_t port;
    } modes[] = {
        {"{\"page_size\":1,\"disaggregation_mode\":\"prefill\",\"disaggregation_bootstrap_port\":8998}", KVR_MODE_PREFILL, 8998},
        {"{\"page_size\":1,\"disaggregation_mode\":\"decode\",\"disaggregation_bootstrap_port\":80}", KVR_MODE_DECODE, 0},
        {"{\"page_size\":1,\"disaggregation_mode\":\"null\",\"disaggregation_bootstrap_port\":65536}", KVR_MODE_OFF, 0},
        {"{\"page_size\":1,\"disaggregation_mode\":\"\"}", KVR_MODE_UNTOLD, 0},
        {"{\"page_size\":1,\"disaggregation_mode\":null}", KVR_MODE_UNTOLD, 0},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(modes); i++) {
        struct kvr_engine_facts told = {0};
        assert_true(kvr_engine_facts_server_info(&told, *state, parsed(state, modes[i].text)));
        assert_int_equal(told.mode, modes[i].mode);
        assert_int_equal(told.bootstrap_port, modes[i].port);
    }
    assert_true(f.block_size == 1 && f.events == KVR_TOLD_NO && f.ranks_n == 1);
}

/* An engine cannot have us connect elsewhere, nor to what is no engine's port; nor can it make us fail. */
static void hostile_answers(void **state)
{
    static const char *const sources[] = {
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"ipc:///run/secret\"}}",
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://10.0.0.1:22\"}}",
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:0\"}}",
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:65536\"}}",
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://x\"}}",
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":5557}}",
        "{\"0\":{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\"}}",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        struct kvr_engine_facts f = {0};
        assert_true(kvr_engine_facts_sources(&f, parsed(state, sources[i])));
        assert_true(f.unusable && !f.events_from && f.ranks[0].events == 0 && f.events == KVR_TOLD_YES);
    }
    struct kvr_engine_facts f = {0};
    assert_false(kvr_engine_facts_sources(&f, parsed(state, "[1]")));
    assert_true(kvr_engine_facts_sources(&f, parsed(state, "{\"x\":{},\"-1\":{},\"0\":7,\"99999999999\":{},\"4000000000\":{}}")));
    assert_true(f.ranks_n == 0 && f.too_many);
    char line[128];
    for (int i = 0; i < 200; i++) {
        snprintf(line, sizeof line, "vllm:x{engine=\"%d\"} 1\n", 199 - i);
        feed(&f, line);
    }
    assert_true(f.ranks_n == KVR_FACT_RANKS_MAX && f.too_many && f.ranks[0].rank == 199 - 63 && kvr_engine_facts_contiguous(&f));
    f = (struct kvr_engine_facts){0};
    feed(&f, "vllm:cache_config_info{block_size=\"0\",num_gpu_blocks=\"-1\",enable_prefix_caching=\"maybe\"} 1\n"
             "vllm:cache_config_info{block_size=\"65537\",num_gpu_blocks=\"18446744073709551615\"} "
             "1\nother:cache_config_info{block_size=\"4\"} 1\n");
    assert_true(f.block_size == 0 && f.total_blocks == 0 && f.prefix_caching == KVR_UNTOLD && f.ranks_n == 0);
    assert_false(kvr_engine_facts_server_info(&f, *state, parsed(state, "{\"page_size\":-4}")));
    assert_true(kvr_engine_facts_server_info(&f, *state, parsed(state, "{\"page_size\":4,\"dp_size\":1e3,\"kv_events_config\":\"{[\"}")));
    assert_true(f.events == KVR_TOLD_NO && f.ranks_n == 1);
    assert_true(kvr_engine_facts_server_info(&f, *state, parsed(state, "{\"page_size\":4,\"dp_size\":100000}")) &&
                f.ranks_n == KVR_FACT_RANKS_MAX);
}

static int setup(void **state)
{
    *state = kvr_json_parser_new();
    return *state ? 0 : -1;
}

static int teardown(void **state)
{
    kvr_json_parser_free(*state);
    return 0;
}

#define J(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        J(vllm_with_one_rank), J(vllm_that_offloads),  J(vllm_with_a_rank_of_its_own), J(vllm_without_events), J(sglang),
        J(vllm_with_one_rank), J(vllm_with_two_ranks), J(vllm_with_a_rank_of_its_own), J(vllm_without_events), J(sglang),
        J(hostile_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
