/* SPDX-License-Identifier: Apache-2.0 */
#include "test.h"
#include "wire/engine_load.h"

static struct kvr_engine_loads read_text(const char *text)
{
    static struct kvr_prom_reader r;
    struct kvr_engine_loads l = {0};
    r = (struct kvr_prom_reader){.fn = kvr_engine_loads_sample, .ctx = &l};
    kvr_prom_feed(&r, text, strlen(text));
    kvr_prom_end(&r);
    return l;
}

/* As vLLM 0.6 (no engine label, gpu_cache_usage_perc), 0.9 and later tell it. */
static void the_names_of_several_vllm_releases(void **)
{
    static const char *const texts[] = {
        "vllm:num_requests_running{model_name=\"m\"} 3.0\nvllm:num_requests_waiting{model_name=\"m\"} 2.0\n"
        "vllm:num_requests_swapped{model_name=\"m\"} 9.0\nvllm:gpu_cache_usage_perc{model_name=\"m\"} 0.25\n"
        "vllm:cpu_cache_usage_perc{model_name=\"m\"} 0.9\n"
        "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",num_cpu_blocks=\"1024\",num_gpu_blocks=\"400\"} 1.0\n",
        "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 2.0\n"
        "vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\nvllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.25\n"
        "vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"400\",num_gpu_blocks_override=\"None\"} 1.0\n",
        "vllm_num_requests_running{engine=\"0\"} 3\nvllm_num_requests_waiting{engine=\"0\"} 2\n"
        "vllm_num_requests_waiting_by_reason{engine=\"0\",reason=\"capacity\"} 100\nvllm_kv_cache_usage_perc{engine=\"0\"} 0.25\n"
        "vllm_cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"200\"} 1\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct kvr_engine_loads l = read_text(texts[i]);
        struct kvr_engine_load r;
        assert_true(kvr_engine_loads_of(&l, 0, 1, 0, 16, 0, &r));
        assert_true(r.has_running && r.running == 3 && r.has_waiting && r.waiting == 2 && r.has_usage && r.usage == 0.25);
        assert_true(r.total_blocks == 400 && r.has_used && r.used_blocks == 100);
        assert_true(kvr_engine_loads_of(&l, 0, 1, 0, 16, 80, &r) && r.total_blocks == 80 && r.used_blocks == 20);
    }
}

static void the_names_of_sglang(void **)
{
    struct kvr_engine_load r;
    /* tensor-parallel parts tell the same; each priority has a series beside that of all */
    struct kvr_engine_loads l = read_text("sglang:num_running_reqs{dp_rank=\"1\",priority=\"\",tp_rank=\"0\"} 4.0\n"
                                          "sglang:num_running_reqs{dp_rank=\"1\",priority=\"\",tp_rank=\"1\"} 4.0\n"
                                          "sglang:num_running_reqs{dp_rank=\"1\",priority=\"5\",tp_rank=\"0\"} 77.0\n"
                                          "sglang:num_queue_reqs{dp_rank=\"1\",priority=\"\"} 7.0\n"
                                          "sglang:token_usage{dp_rank=\"1\"} 0.5\nsglang:num_running_reqs{dp_rank=\"0\"} 1.0\n"
                                          "sglang:max_total_num_tokens{dp_rank=\"1\"} 1600\n");
    assert_true(kvr_engine_loads_of(&l, 0, 2, 1, 16, 0, &r));
    assert_true(r.running == 4 && r.waiting == 7 && r.usage == 0.5 && r.total_blocks == 100 && r.used_blocks == 50);
    assert_true(kvr_engine_loads_of(&l, 0, 2, 0, 16, 0, &r) && r.running == 1 && !r.has_waiting && !r.has_used);
    assert_false(kvr_engine_loads_of(&l, 0, 3, 2, 16, 0, &r));
}

static void ranks_by_number_or_by_place(void **)
{
    struct kvr_engine_load r;
    struct kvr_engine_loads global = read_text("vllm:num_requests_running{engine=\"4\"} 4\nvllm:num_requests_running{engine=\"5\"} 5\n");
    struct kvr_engine_loads local = read_text("vllm:num_requests_running{engine=\"0\"} 4\nvllm:num_requests_running{engine=\"1\"} 5\n");
    struct kvr_engine_loads alone = read_text("vllm:num_requests_running{engine=\"7\"} 4\n");
    struct kvr_engine_loads plain = read_text("vllm:num_requests_running 4\n");
    assert_true(kvr_engine_loads_of(&global, 4, 2, 5, 16, 0, &r) && r.running == 5);
    assert_true(kvr_engine_loads_of(&local, 4, 2, 5, 16, 0, &r) && r.running == 5);
    assert_true(kvr_engine_loads_of(&local, 1, 2, 1, 16, 0, &r) && r.running == 4);
    assert_true(kvr_engine_loads_of(&alone, 0, 1, 0, 16, 0, &r) && r.running == 4);
    assert_true(kvr_engine_loads_of(&plain, 3, 1, 3, 16, 0, &r) && r.running == 4);
    assert_false(kvr_engine_loads_of(&plain, 0, 2, 0, 16, 0, &r)); /* of which rank? */
}

static void figures_that_cannot_be_are_left_out(void **)
{
    struct kvr_engine_load r;
    char text[20000] = "", line[80];
    struct kvr_engine_loads l = read_text("vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc 80\n"
                                          "vllm:num_requests_running +Inf\nvllm:num_requests_running 1e300\n"
                                          "vllm:num_requests_running{engine=\"x\"} 3\n"
                                          "vllm:cache_config_info{block_size=\"9999999999\",num_gpu_blocks=\"9999999999\"} 1\n");
    assert_false(kvr_engine_loads_of(&l, 0, 1, 0, 16, 0, &r));
    l = read_text("vllm:kv_cache_usage_perc 1.01\n");
    assert_true(kvr_engine_loads_of(&l, 0, 1, 0, 16, 10, &r) && r.usage == 1 && r.used_blocks == 10);
    for (int i = 0; i < 200; i++) {
        snprintf(line, sizeof line, "vllm:num_requests_running{engine=\"%d\"} 1\n", i);
        strncat(text, line, sizeof text - strlen(text) - 1);
    }
    l = read_text(text);
    assert_true(l.n == KVR_ENGINE_RANKS_MAX && l.too_many);
    assert_true(kvr_engine_loads_of(&l, 0, 64, 63, 16, 0, &r) && r.running == 1);
}

static void an_active_load_comes_back_as_it_was_written(void **)
{
    struct kvr_engine_load in = {
        .has_running = true, .running = 7, .has_usage = true, .usage = 0.375, .has_used = true, .used_blocks = 30, .total_blocks = 80};
    struct kvr_engine_load out;
    struct kvr_worker w;
    struct kvr_buf b = {0};
    kvr_active_load_write(&b, (struct kvr_worker){UINT64_MAX, 3}, &in);
    assert_int_equal(kvr_active_load_read(b.data, b.len, &w, &out), 0);
    assert_true(w.worker_id == UINT64_MAX && w.dp_rank == 3 && out.running == 7 && out.usage == 0.375 && out.used_blocks == 30);
    assert_true(out.total_blocks == 80 && out.has_running && out.has_usage && out.has_used && !out.has_waiting);
    for (size_t n = 0; n < b.len; n++) assert_int_equal(kvr_active_load_read(b.data, n, &w, &out), -KVR_EFORMAT);
    kvr_buf_free(&b);
}

static int read_bytes(const char *bytes, size_t len, struct kvr_engine_load *out)
{
    struct kvr_worker w;
    return kvr_active_load_read(bytes, len, &w, out);
}
#define READ(text, out) read_bytes(text, sizeof text - 1, out)

static void loads_of_others_are_understood_and_nonsense_is_refused(void **)
{
    struct kvr_engine_load l;
    /* a scheduler's: {"worker_id": 1, "active_decode_blocks": 5, "kv_used_blocks": nil} */
    assert_int_equal(READ("\x83\xa9worker_id\x01\xb4"
                          "active_decode_blocks\x05\xae"
                          "kv_used_blocks\xc0",
                          &l),
                     0);
    assert_false(l.has_used);
    assert_int_equal(READ("\x82\xa9worker_id\x01\xae"
                          "kv_used_blocks\x06",
                          &l),
                     0);
    assert_true(l.has_used && l.used_blocks == 6);
    assert_int_equal(READ("\x81\xae"
                          "kv_used_blocks\x06",
                          &l),
                     -KVR_EFORMAT); /* whose? */
    assert_int_equal(READ("\x82\xa9worker_id\x01\xae"
                          "kv_used_blocks\xff",
                          &l),
                     -KVR_EFORMAT);                                                                        /* -1 */
    assert_int_equal(READ("\x82\xa9worker_id\x01\xa8kv_usage\xcb\x7f\xf8\0\0\0\0\0\0", &l), -KVR_EFORMAT); /* NaN */
    assert_int_equal(READ("\x82\xa9worker_id\x01\xa8kv_usage\x02", &l), -KVR_EFORMAT);                     /* 200 % */
    assert_int_equal(READ("\x82\xa9worker_id\x01\xa7"
                          "dp_rank\xcf\0\0\0\1\0\0\0\0",
                          &l),
                     -KVR_EFORMAT); /* beyond 32 bits */
    assert_int_equal(READ("\x01", &l), -KVR_EFORMAT);
    assert_int_equal(READ("", &l), -KVR_EFORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_names_of_several_vllm_releases),
        cmocka_unit_test(the_names_of_sglang),
        cmocka_unit_test(ranks_by_number_or_by_place),
        cmocka_unit_test(figures_that_cannot_be_are_left_out),
        cmocka_unit_test(an_active_load_comes_back_as_it_was_written),
        cmocka_unit_test(loads_of_others_are_understood_and_nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
