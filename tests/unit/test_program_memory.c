/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory fails once, at every allocation in turn, while a whole program answers a request: it lives on, answers with what was asked
 * for or an error that is its own, books nothing that nobody gives back, and afterwards everything works.
 */
#include "failing_memory.h"
#include "in_process.h"

#include <endian.h>
#include <zmq.h>

#include "cli/commands.h"
#include "wire/engine_encode.h"

enum { ANSWER_MAX = 1 << 20, LARGE = 300 << 10, FAILURES_MAX = 600 };

static char text[ANSWER_MAX], large_tokens[LARGE + 64], large_text[LARGE + 64], large_question[LARGE + 64];
static char port[16], admin[16], mock_port[16], indexer_port[16];

struct exchange {
    const char *port, *method, *path, *body;
    const char *undo; /* a path to DELETE when it went well */
    int good;         /* its status when nothing fails */
};

static void make_large_bodies(void)
{
    memset(large_tokens, ' ', LARGE);
    memcpy(large_tokens, "{\"prompt\":[1,2,3,4,5,6,7,8],\"max_tokens\":1", 42);
    memcpy(large_tokens + LARGE, "}", 2);
    memset(large_text, 'a', LARGE);
    memcpy(large_text, "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"", 54);
    memcpy(large_text + LARGE, "\"}]}", 5);
    memset(large_question, ' ', LARGE);
    memcpy(large_question, "{\"model_name\":\"m\",\"token_ids\":[1,2,3,4,5,6,7,8]", 47);
    memcpy(large_question + LARGE, "}", 2);
}

/* An error of ours says so in JSON. */
static bool is_an_error(int status)
{
    return status >= 500 && status < 600 && strstr(text, "rror\"");
}

static bool all_is_given_back(const char *admin_port)
{
    return !admin_port || nothing_is_booked(admin_port);
}

/* Every allocation of one exchange fails once. */
static void fail_each_of(const struct exchange *e, const char *admin_port)
{
    unsigned cut = 0;
    long more = (long)env_u64("KVR_MORE", 0); /* by hand: so many fail in a row */
    for (long n = 0; n < FAILURES_MAX; n++) {
        int s = dial(e->port);
        send_request(s, "GET", "/health", "");
        assert_int_equal(read_answer(s, text, sizeof text), 200);
        memory_fails_at(n, more);
        send_request(s, e->method, e->path, e->body);
        int status = read_answer(s, text, sizeof text);
        memory_recovers();
        close(s);
        bool failed = memory_has_failed();
        if (getenv("KVR_TRACE")) fprintf(stderr, "%s %s allocation %ld%s: %d\n", e->method, e->path, n, failed ? "" : " (none)", status);
        if (!failed && status != e->good) fail_msg("%s %s: %d where nothing failed: %.300s", e->method, e->path, status, text);
        if (status <= 0) cut++;
        else if (status != e->good && !is_an_error(status))
            fail_msg("%s %s: allocation %ld failed, and the answer is %d: %.300s", e->method, e->path, n, status, text);
        if (e->undo && (status == e->good || status <= 0)) { /* who hears nothing has to ask */
            int undone = ask(e->port, "DELETE", e->undo, "", text, sizeof text);
            assert_true(undone == 200 || (status <= 0 && undone == 404));
        }
        WAIT_FOR(all_is_given_back(admin_port), 20);
        if (!failed) break;
    }
    bool in_pieces = e->port == indexer_port && !strcmp(e->path, "/dump"); /* torn when memory fails after its head */
    if (!more && !in_pieces) assert_true(cut <= 4);                        /* for want of memory for the answer itself */
    assert_int_equal(ask(e->port, e->method, e->path, e->body, text, sizeof text), e->good);
    if (e->undo) assert_int_equal(ask(e->port, "DELETE", e->undo, "", text, sizeof text), 200);
}

/* Its health is not asked for again: what fails later is not taken for an answer of it. */
static bool worker_is_up(void)
{
    return ask(admin, "GET", "/workers", "", text, sizeof text) == 200 && strstr(text, "\"status\":\"up\"");
}

static void a_router_answers_and_lives_on(void **)
{
    static struct program mock, serve;
    char worker[64];
    const char *tokenizer = getenv("KVR_TOKENIZER") ? getenv("KVR_TOKENIZER") : "bytes";
    free_port(port);
    free_port(admin);
    free_port(mock_port);
    snprintf(worker, sizeof worker, "http://127.0.0.1:%s,id=1", mock_port);
    mock.exempt = true;
    program_start(&mock, &command_mock,
                  (const char *const[]){"mock", "--port", mock_port, "--speedup-ratio", "1000", "--num-gpu-blocks", "65536", NULL});
    WAIT_FOR(is_up(mock_port), 30);
    program_start(&serve, &command_serve,
                  (const char *const[]){"serve", "--host", "127.0.0.1", "--port", port, "--admin-port", admin, "--worker", worker,
                                        "--no-router-kv-events", "--health-interval", "3600", "--tokenizer", tokenizer,
                                        "--cors-allow-origin", "*", NULL});
    WAIT_FOR(is_up(port), 30);
    WAIT_FOR(ask(port, "GET", "/ready", "", text, sizeof text) == 200, 30);
    WAIT_FOR(worker_is_up(), 30);
    const struct exchange list[] = {
        {port, "POST", "/v1/completions", "{\"prompt\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17],\"max_tokens\":2}", NULL, 200},
        {port, "POST", "/v1/chat/completions",
         "{\"messages\":[{\"role\":\"user\",\"content\":\"hello\"}],\"max_tokens\":2,\"cache_salt\":\"s\"}", NULL, 200},
        {port, "POST", "/v1/chat/completions", "{\"messages\":[{\"content\":\"hello\"}],\"max_tokens\":2,\"stream\":true}", NULL, 200},
        {port, "POST", "/v1/completions", large_tokens, NULL, 200},
        {port, "POST", "/v1/chat/completions", large_text, NULL, 200},
        {port, "GET", "/v1/models", "", NULL, 200},
        {admin, "GET", "/metrics", "", NULL, 200},
        {admin, "GET", "/workers", "", NULL, 200},
        {admin, "GET", "/loads", "", NULL, 200},
        {admin, "GET", "/status", "", NULL, 200},
        {admin, "GET", "/dump", "", NULL, 200},
        {admin, "GET", "/decisions", "", NULL, 200},
        {admin, "POST", "/overlap_scores", "{\"token_ids\":[1,2,3,4,5,6,7,8]}", NULL, 200},
        {admin, "POST", "/potential_loads", "{\"token_ids\":[1,2,3,4,5,6,7,8]}", NULL, 200},
        {admin, "POST", "/query", "{\"token_ids\":[1,2,3,4,5,6,7,8]}", NULL, 200},
        {admin, "POST", "/select", "{\"token_ids\":[1,2,3,4,5,6,7,8],\"selection_id\":\"a\"}", NULL, 200},
        {admin, "POST", "/select_and_reserve", "{\"token_ids\":[1,2,3,4,5,6,7,8],\"selection_id\":\"a\",\"allowed_worker_ids\":[1]}",
         "/reservations/a", 200},
        {admin, "POST", "/request", "{\"method\":\"new\",\"request_id\":\"b\",\"tokens\":[1,2,3,4,5,6,7,8]}", "/reservations/b", 200},
        {admin, "POST", "/workers", "{\"worker_id\":7,\"endpoint\":\"http://127.0.0.1:1\",\"block_size\":16}", "/workers/7", 201},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(list); i++) fail_each_of(&list[i], admin);
    program_stop(&serve);
    assert_int_equal(serve.rc, 0);
    pthread_join(mock.thread, NULL);
}

/* The n-th batch of an engine: one block of four tokens that no other batch has. */
static void publish(void *pub, uint64_t n)
{
    uint32_t tokens[] = {(uint32_t)n + 1, 2, 3, 4};
    struct kvr_block block = {n + 1, 0};
    struct kvr_event ev = {.worker = {1, 0}, .kind = KVR_EVENT_STORED, .blocks = &block, .blocks_n = 1};
    struct kvr_engine_words words = {.tokens = tokens, .tokens_n = 4, .block_size = 4};
    struct kvr_buf e = {0}, batch = {0};
    uint64_t sequence = htobe64(n);
    kvr_engine_encode(&e, &ev, &words);
    kvr_engine_encode_batch(&batch, 1.5, &e, 1, 0);
    zmq_send(pub, "", 0, ZMQ_SNDMORE);
    zmq_send(pub, &sequence, sizeof sequence, ZMQ_SNDMORE);
    assert_true(zmq_send(pub, batch.data, batch.len, 0) >= 0);
    kvr_buf_free(&e);
    kvr_buf_free(&batch);
}

static bool is_held(uint64_t n)
{
    char body[128];
    snprintf(body, sizeof body, "{\"model_name\":\"m\",\"token_ids\":[%llu,2,3,4]}", (unsigned long long)n + 1);
    return ask(indexer_port, "POST", "/query", body, text, sizeof text) == 200 && strstr(text, "\"scores\":{\"1\":{\"0\":4}}");
}

/* A batch that memory fails for may be lost, and then the view says so; the next one is followed again. */
static void fail_each_of_a_batch(void *pub)
{
    uint64_t batch = 0;
    WAIT_FOR((publish(pub, batch), is_held(batch)) || !++batch, 30); /* subscribed */
    for (long n = 0; n < 24; n++) {
        memory_fails_at(n, 0);
        publish(pub, ++batch);
        WAIT_FOR(memory_has_failed() || is_held(batch) || memory_has_failed(), 30);
        memory_recovers();
        publish(pub, ++batch);
        WAIT_FOR(is_held(batch), 30);
    }
}

static void an_indexer_answers_and_lives_on(void **)
{
    static struct program indexer;
    char engine[16], body[256], endpoint[64];
    void *zmq = zmq_ctx_new(), *pub = zmq_socket(zmq, ZMQ_PUB);
    free_port(indexer_port);
    free_port(engine);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%s", engine);
    assert_int_equal(zmq_bind(pub, endpoint), 0);
    program_start(&indexer, &command_indexer, (const char *const[]){"indexer", "--port", indexer_port, "--threads", "1", NULL});
    WAIT_FOR(is_up(indexer_port), 30);
    WAIT_FOR(ask(indexer_port, "GET", "/ready", "", text, sizeof text) == 200, 30);
    snprintf(body, sizeof body, "{\"instance_id\":1,\"endpoint\":\"tcp://127.0.0.1:%s\",\"model_name\":\"m\",\"block_size\":4}", engine);
    assert_int_equal(ask(indexer_port, "POST", "/register", body, text, sizeof text), 201);
    fail_each_of_a_batch(pub);
    const struct exchange list[] = {
        {indexer_port, "POST", "/query", "{\"model_name\":\"m\",\"token_ids\":[1,2,3,4,5,6,7,8]}", NULL, 200},
        {indexer_port, "POST", "/query?detail=1", large_question, NULL, 200},
        {indexer_port, "POST", "/query_by_hash", "{\"model_name\":\"m\",\"block_hashes\":[1,2]}", NULL, 200},
        {indexer_port, "POST", "/kv_indexer_query", "{\"model_name\":\"m\",\"block_hashes\":[1,2]}", NULL, 200},
        {indexer_port, "GET", "/workers", "", NULL, 200},
        {indexer_port, "GET", "/metrics", "", NULL, 200},
        {indexer_port, "GET", "/dump", "", NULL, 200},
        {indexer_port, "POST", "/register_peer", "{\"url\":\"http://127.0.0.1:1\"}", NULL, 201},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(list); i++) fail_each_of(&list[i], NULL);
    assert_int_equal(program_stop(&indexer), 0);
    zmq_close(pub);
    zmq_ctx_term(zmq);
}

int main(void)
{
    memory_exempts_this_thread();
    make_large_bodies();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_router_answers_and_lives_on),
        cmocka_unit_test(an_indexer_answers_and_lives_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
