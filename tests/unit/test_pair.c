/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of two legs: the choice of a pair, its bookings, transfer domains. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <kvroute/kvroute.h>

#include "base/base.h"

enum { BLOCK = 4, PROMPT = 16 };

/* Prefill workers 1 and 2, decode workers 11 and 12; the decode router knows a worker of whole requests, 21, too. */
struct fixture {
    struct kvr_index *prefill_index, *decode_index;
    struct kvr_pair pair;
    struct kvr_pair_ctx ctx;
};

static const uint32_t prompt[PROMPT] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const uint64_t decoders[] = {11, 12};

static int setup(void **s)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct kvr_router_config c;
    assert_int_equal(kvr_index_create(NULL, &f->prefill_index), 0);
    assert_int_equal(kvr_index_create(NULL, &f->decode_index), 0);
    kvr_router_config_init(&c);
    c.cost.kind = KVR_COST_LINEAR;
    c.block_size = BLOCK;
    c.seed = 7;
    c.index = f->decode_index;
    assert_int_equal(kvr_router_create(&c, &f->pair.decode, NULL), 0);
    c.index = f->prefill_index;
    c.track_active_blocks = false;
    assert_int_equal(kvr_router_create(&c, &f->pair.prefill, NULL), 0);
    for (uint64_t w = 1; w <= 2; w++) assert_int_equal(kvr_router_set_worker(f->pair.prefill, w, 0, 1), 0);
    for (uint64_t w = 11; w <= 12; w++) assert_int_equal(kvr_router_set_worker(f->pair.decode, w, 0, 1), 0);
    assert_int_equal(kvr_router_set_worker(f->pair.decode, 21, 0, 1), 0);
    assert_int_equal(kvr_pair_ctx_create(&f->pair, &f->ctx), 0);
    *s = f;
    return 0;
}

static void check_book(struct kvr_router *r)
{
    const char *why = NULL;
    if (!kvr_router_validate(r, &why)) fail_msg("%s", why);
}

static int teardown(void **s)
{
    struct fixture *f = *s;
    check_book(f->pair.prefill);
    check_book(f->pair.decode);
    kvr_pair_ctx_destroy(&f->ctx);
    kvr_router_destroy(f->pair.prefill);
    kvr_router_destroy(f->pair.decode);
    kvr_index_destroy(f->prefill_index);
    kvr_index_destroy(f->decode_index);
    free(f);
    return 0;
}

static void hold(struct kvr_index *ix, uint64_t worker, size_t tokens)
{
    uint64_t l[PROMPT / BLOCK];
    struct kvr_block b[PROMPT / BLOCK];
    long n = kvr_hash_locals(prompt, tokens, BLOCK, false, KVR_HASH_SEED, NULL, 0, l);
    for (long i = 0; i < n; i++) b[i] = (struct kvr_block){1000 + (uint64_t)i, l[i]};
    struct kvr_event ev = {.worker = {worker, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = (size_t)n};
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
}

static struct kvr_router_request request(const char *id)
{
    return (struct kvr_router_request){.id = id, .id_len = id ? strlen(id) : 0, .book = id != NULL, .tokens = prompt, .tokens_n = PROMPT};
}

/* The second leg of a request, on decode workers alone. */
static struct kvr_router_request second_leg(void)
{
    return (struct kvr_router_request){.tokens = prompt, .tokens_n = PROMPT, .allowed = decoders, .allowed_n = KVR_ARRAY_LEN(decoders)};
}

static int find(struct fixture *f, const char *id, struct kvr_pair_result *out)
{
    struct kvr_router_request rq = request(id), decode = second_leg();
    return kvr_pair_find_best_match(&f->pair, &f->ctx, &rq, &decode, out);
}

static struct kvr_rank_load load_of(struct kvr_router *r, uint64_t w)
{
    struct kvr_rank_load l[8];
    size_t n = kvr_router_loads(r, l, 8);
    for (size_t i = 0; i < n; i++)
        if (l[i].worker.worker_id == w) return l[i];
    fail();
    return l[0];
}

static void assert_idle(struct kvr_router *r)
{
    struct kvr_rank_load l[8];
    size_t n = kvr_router_loads(r, l, 8);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(l[i].active_requests, 0);
        assert_int_equal(l[i].active_prefill_tokens, 0);
        assert_int_equal(l[i].active_decode_blocks, 0);
    }
}

static void the_prompt_goes_where_it_is_cached_and_decoding_where_it_is_idle(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    hold(f->prefill_index, 2, 12);
    hold(f->decode_index, 11, 12);
    struct kvr_router_request busy = request("busy");
    assert_int_equal(kvr_router_add_request(f->pair.decode, f->ctx.decode, &busy, (struct kvr_worker){11, 0}, PROMPT), 0);
    assert_int_equal(find(f, NULL, &r), 0);
    assert_int_equal(r.prefill.worker.worker_id, 2);
    assert_int_equal(r.prefill.overlap_blocks, 3);
    assert_int_equal(r.prefill.prefill_tokens, PROMPT - 12);
    assert_int_equal(r.decode.worker.worker_id, 12); /* 11 has the prompt, and a request */
    assert_int_equal(r.decode.prefill_tokens, 0);
}

static void asking_books_nothing(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    assert_int_equal(find(f, NULL, &r), 0);
    assert_idle(f->pair.prefill);
    assert_idle(f->pair.decode);
}

static void each_leg_books_what_it_costs(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    assert_int_equal(find(f, "a", &r), 0);
    struct kvr_rank_load p = load_of(f->pair.prefill, r.prefill.worker.worker_id), d = load_of(f->pair.decode, r.decode.worker.worker_id);
    assert_int_equal(p.active_prefill_tokens, PROMPT);
    assert_int_equal(p.active_decode_blocks, 0);
    assert_int_equal(d.active_prefill_tokens, 0);
    assert_int_equal(d.active_decode_blocks, PROMPT / BLOCK);
    assert_int_equal(kvr_pair_prefill_completed(&f->pair, "a", 1), 0);
    assert_idle(f->pair.prefill);
    assert_int_equal(load_of(f->pair.decode, r.decode.worker.worker_id).active_decode_blocks, PROMPT / BLOCK);
    assert_int_equal(kvr_pair_prefill_completed(&f->pair, "a", 1), 0); /* said twice */
    assert_int_equal(kvr_pair_output_blocks(&f->pair, "a", 1, 2, -1), 0);
    assert_int_equal(load_of(f->pair.decode, r.decode.worker.worker_id).active_decode_blocks, PROMPT / BLOCK + 2);
    assert_int_equal(kvr_pair_free(&f->pair, "a", 1), 0);
    assert_idle(f->pair.decode);
    assert_int_equal(kvr_pair_free(&f->pair, "a", 1), -KVR_ENOTFOUND);
    assert_int_equal(kvr_pair_prefill_completed(&f->pair, "a", 1), -KVR_ENOTFOUND);
}

static void equal_prompts_share_no_blocks_where_they_decode(void **s)
{
    struct fixture *f = *s;
    static const uint64_t one[] = {11};
    struct kvr_pair_result r;
    struct kvr_router_request decode = second_leg(), a = request("a"), b = request("b");
    decode.allowed = one;
    decode.allowed_n = 1;
    assert_int_equal(kvr_pair_find_best_match(&f->pair, &f->ctx, &a, &decode, &r), 0);
    assert_int_equal(kvr_pair_find_best_match(&f->pair, &f->ctx, &b, &decode, &r), 0);
    assert_int_equal(load_of(f->pair.decode, 11).active_decode_blocks, 2 * PROMPT / BLOCK);
    /* A whole request of the same router shares them, and has its prompt computed: the cost is the request's. */
    struct kvr_router_request whole = request(NULL);
    struct kvr_router_result alone;
    hold(f->decode_index, 21, 12);
    assert_int_equal(kvr_router_find_best_match(f->pair.decode, f->ctx.decode, &whole, &alone), 0);
    assert_int_equal(alone.worker.worker_id, 21);
    assert_int_equal(alone.prefill_tokens, PROMPT - 12);
    assert_int_equal(kvr_pair_free(&f->pair, "a", 1), 0);
    assert_int_equal(kvr_pair_free(&f->pair, "b", 1), 0);
}

static void a_decode_leg_takes_its_last_block_too_and_needs_no_tokens(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    struct kvr_router_request rq = {.id = "a", .id_len = 1, .book = true, .isl = PROMPT + 1}, decode = second_leg();
    decode.tokens_n = 0;
    decode.isl = rq.isl;
    assert_int_equal(kvr_pair_find_best_match(&f->pair, &f->ctx, &rq, &decode, &r), 0);
    assert_int_equal(load_of(f->pair.decode, r.decode.worker.worker_id).active_decode_blocks, PROMPT / BLOCK + 1);
    assert_int_equal(kvr_pair_free(&f->pair, "a", 1), 0);
}

static void without_a_decode_worker_nothing_is_booked(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    for (size_t i = 0; i < KVR_ARRAY_LEN(decoders); i++) kvr_router_set_schedulable(f->pair.decode, decoders[i], false);
    assert_int_equal(find(f, "a", &r), -KVR_ENOENDPOINTS);
    assert_int_equal(r.failed, KVR_LEG_DECODE);
    assert_idle(f->pair.prefill);
    assert_idle(f->pair.decode);
    kvr_router_set_schedulable(f->pair.prefill, 1, false);
    kvr_router_set_schedulable(f->pair.prefill, 2, false);
    assert_int_equal(find(f, "a", &r), -KVR_ENOENDPOINTS);
    assert_int_equal(r.failed, KVR_LEG_PREFILL);
}

static void an_id_that_one_leg_has_already_is_refused_for_both(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    assert_int_equal(find(f, "a", &r), 0);
    assert_int_equal(kvr_pair_prefill_completed(&f->pair, "a", 1), 0);
    assert_int_equal(find(f, "a", &r), -KVR_EEXISTS); /* its decode leg goes on */
    assert_idle(f->pair.prefill);
    assert_int_equal(kvr_pair_touch(&f->pair, "a", 1), 0);
    assert_int_equal(kvr_pair_free(&f->pair, "a", 1), 0);
    assert_int_equal(kvr_pair_touch(&f->pair, "a", 1), -KVR_ENOTFOUND);
}

static void set_taint(struct kvr_router *r, uint64_t worker, const char *taint)
{
    assert_int_equal(kvr_router_set_taints(r, worker, &taint, 1), 0);
}

static void use_domains(struct fixture *f, bool required)
{
    f->pair.domain_prefix = "kv-domain=";
    f->pair.domain_required = required;
    f->pair.domain_weight = 0.85;
    set_taint(f->pair.prefill, 1, "kv-domain=a");
    set_taint(f->pair.prefill, 2, "kv-domain=b");
    set_taint(f->pair.decode, 11, "kv-domain=a");
    set_taint(f->pair.decode, 12, "kv-domain=c");
}

static void a_domain_is_preferred_up_to_a_price(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    struct kvr_router_request rq = request(NULL), decode = second_leg();
    use_domains(f, false);
    rq.pinned = true;
    rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(kvr_pair_find_best_match(&f->pair, &f->ctx, &rq, &decode, &r), 0);
    assert_int_equal(r.decode.worker.worker_id, 11);
    /* 4 blocks there cost as much as 8 beside 4: with 12 beside 4 the other domain is cheaper. */
    struct kvr_router_request busy = request("busy1");
    assert_int_equal(kvr_router_add_request(f->pair.decode, f->ctx.decode, &busy, (struct kvr_worker){11, 0}, PROMPT), 0);
    assert_int_equal(kvr_router_add_output_blocks(f->pair.decode, "busy1", 5, 1, -1), 0); /* 9 : 4, 2.25 times */
    assert_int_equal(kvr_pair_find_best_match(&f->pair, &f->ctx, &rq, &decode, &r), 0);
    assert_int_equal(r.decode.worker.worker_id, 12);
}

static void a_required_domain_leaves_out_prefill_workers_without_a_partner(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    use_domains(f, true);
    hold(f->prefill_index, 2, 12); /* would be best */
    for (int i = 0; i < 8; i++) {
        char id[16];
        snprintf(id, sizeof id, "r%d", i);
        assert_int_equal(find(f, id, &r), 0);
        assert_int_equal(r.prefill.worker.worker_id, 1);
        assert_int_equal(r.decode.worker.worker_id, 11);
        assert_int_equal(load_of(f->pair.prefill, 2).active_requests, 0);
    }
    set_taint(f->pair.decode, 11, "kv-domain=d");
    assert_int_equal(find(f, "none", &r), -KVR_ENOENDPOINTS);
    assert_int_equal(r.failed, KVR_LEG_DECODE);
    assert_int_equal(load_of(f->pair.prefill, 1).active_requests, 8);
}

static void overlap_counts_at_the_decode_worker_when_it_is_kept(void **s)
{
    struct fixture *f = *s;
    struct kvr_pair_result r;
    hold(f->decode_index, 11, 12);
    f->pair.keeps_overlap = true;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(find(f, NULL, &r), 0);
        assert_int_equal(r.decode.worker.worker_id, 11);
    }
}

static void hashes_of_one_block_size_are_no_hashes_of_another(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_config c;
    struct kvr_router *wide;
    struct kvr_pair_ctx ctx;
    struct kvr_pair_result r;
    uint64_t locals[PROMPT / BLOCK];
    kvr_router_config_init(&c);
    c.mode = KVR_MODE_LEAST_LOADED;
    c.block_size = 2 * BLOCK;
    assert_int_equal(kvr_router_create(&c, &wide, NULL), 0);
    assert_int_equal(kvr_router_set_worker(wide, 31, 0, 1), 0);
    struct kvr_pair pair = {.prefill = f->pair.prefill, .decode = wide}, one = {.prefill = wide, .decode = wide};
    assert_int_equal(kvr_pair_ctx_create(&one, &ctx), -KVR_EINVAL);
    assert_int_equal(kvr_pair_ctx_create(&pair, &ctx), 0);
    struct kvr_router_request tokens = request("a"), hashes = {.id = "b", .id_len = 1, .book = true, .locals = locals, .isl = PROMPT};
    hashes.locals_n = (size_t)kvr_hash_locals(prompt, PROMPT, BLOCK, false, KVR_HASH_SEED, NULL, 0, locals);
    assert_int_equal(kvr_pair_find_best_match(&pair, &ctx, &tokens, NULL, &r), 0);
    assert_int_equal(load_of(wide, 31).active_decode_blocks, PROMPT / BLOCK / 2);
    assert_int_equal(kvr_pair_find_best_match(&pair, &ctx, &hashes, NULL, &r), -KVR_EINVAL);
    assert_int_equal(kvr_pair_free(&pair, "a", 1), 0);
    kvr_pair_ctx_destroy(&ctx);
    kvr_router_destroy(wide);
}

enum { THREADS = 4, EACH = 500 };

struct crowd {
    struct fixture *f;
    int at;
    _Atomic int *failures;
};

static void *use_pairs(void *arg)
{
    struct crowd *c = arg;
    struct kvr_pair_ctx ctx;
    if (kvr_pair_ctx_create(&c->f->pair, &ctx)) {
        atomic_fetch_add(c->failures, 1);
        return NULL;
    }
    for (int i = 0; i < EACH; i++) {
        char id[24];
        struct kvr_pair_result r;
        snprintf(id, sizeof id, "%d-%d", c->at, i);
        struct kvr_router_request rq = request(id);
        if (kvr_pair_find_best_match(&c->f->pair, &ctx, &rq, NULL, &r)) atomic_fetch_add(c->failures, 1);
        if (i % 3 && kvr_pair_prefill_completed(&c->f->pair, id, rq.id_len)) atomic_fetch_add(c->failures, 1);
        if (kvr_pair_free(&c->f->pair, id, rq.id_len)) atomic_fetch_add(c->failures, 1);
    }
    kvr_pair_ctx_destroy(&ctx);
    return NULL;
}

static void threads_leave_nothing_booked(void **s)
{
    struct fixture *f = *s;
    pthread_t threads[THREADS];
    struct crowd crowd[THREADS];
    _Atomic int failures = 0;
    use_domains(f, true);
    for (int i = 0; i < THREADS; i++) {
        crowd[i] = (struct crowd){f, i, &failures};
        assert_int_equal(pthread_create(&threads[i], NULL, use_pairs, &crowd[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(failures, 0);
    assert_idle(f->pair.prefill);
    assert_idle(f->pair.decode);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_prompt_goes_where_it_is_cached_and_decoding_where_it_is_idle),
        TEST(asking_books_nothing),
        TEST(each_leg_books_what_it_costs),
        TEST(equal_prompts_share_no_blocks_where_they_decode),
        TEST(a_decode_leg_takes_its_last_block_too_and_needs_no_tokens),
        TEST(without_a_decode_worker_nothing_is_booked),
        TEST(an_id_that_one_leg_has_already_is_refused_for_both),
        TEST(a_domain_is_preferred_up_to_a_price),
        TEST(a_required_domain_leaves_out_prefill_workers_without_a_partner),
        TEST(overlap_counts_at_the_decode_worker_when_it_is_kept),
        TEST(hashes_of_one_block_size_are_no_hashes_of_another),
        TEST(threads_leave_nothing_booked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
