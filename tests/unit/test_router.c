/* SPDX-License-Identifier: Apache-2.0 */
/* The facade: choosing, booking, pins, trust, modes, errors. */
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <kvroute/kvroute.h>

#include "base/base.h"

struct fixture {
    struct kvr_index *ix;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
};

static int setup_with(void **s, struct kvr_router_config c, bool index)
{
    struct fixture *f = calloc(1, sizeof *f);
    if (index) assert_int_equal(kvr_index_create(NULL, &f->ix), 0);
    c.index = f->ix;
    c.block_size = 4;
    assert_int_equal(kvr_router_create(&c, &f->r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(f->r, &f->ctx), 0);
    for (uint64_t w = 1; w <= 3; w++) assert_int_equal(kvr_router_set_worker(f->r, w, 0, 1), 0);
    *s = f;
    return 0;
}

static int setup(void **s)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.cost.kind = KVR_COST_LINEAR;
    c.seed = 5;
    return setup_with(s, c, true);
}

static int teardown(void **s)
{
    struct fixture *f = *s;
    const char *why = NULL;
    if (!kvr_router_validate(f->r, &why)) fail_msg("%s", why);
    kvr_router_ctx_destroy(f->ctx);
    kvr_router_destroy(f->r);
    kvr_index_destroy(f->ix);
    free(f);
    return 0;
}

static const uint32_t prompt[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static void hold(struct fixture *f, struct kvr_worker w, size_t tokens)
{
    uint64_t l[4];
    struct kvr_block b[4];
    long n = kvr_hash_locals(prompt, tokens, 4, false, 1337, NULL, 0, l);
    for (long i = 0; i < n; i++) b[i] = (struct kvr_block){1000 + (uint64_t)i, l[i]};
    struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = (size_t)n};
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
}

static struct kvr_router_request request(const char *id)
{
    return (struct kvr_router_request){.id = id, .id_len = id ? strlen(id) : 0, .book = id != NULL, .tokens = prompt, .tokens_n = 16};
}

static struct kvr_rank_load load_of(struct fixture *f, uint64_t w)
{
    struct kvr_rank_load l[16];
    size_t n = kvr_router_loads(f->r, l, 16);
    for (size_t i = 0; i < n; i++)
        if (l[i].worker.worker_id == w) return l[i];
    fail();
    return l[0];
}

static void best_overlap_wins(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){2, 0}, 12);
    hold(f, (struct kvr_worker){3, 0}, 4);
    struct kvr_router_request rq = request("a");
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 2);
    assert_int_equal(res.overlap_blocks, 3);
    assert_int_equal(res.cached_tokens, 12);
    assert_int_equal(res.prefill_tokens, 4);
    assert_int_equal(res.required_blocks, 4);
    assert_true(res.scored && res.trusted && res.best_blocks == 3);
    assert_int_equal(load_of(f, 2).active_prefill_tokens, 4);
    assert_int_equal(load_of(f, 2).active_decode_blocks, 4);
}

static void a_result_says_who_else_holds_the_prompt(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){1, 0}, 16);
    hold(f, (struct kvr_worker){2, 0}, 12);
    hold(f, (struct kvr_worker){3, 0}, 4);
    struct kvr_router_request rq = request(NULL);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 1);
    assert_true(res.held_blocks == 4 && res.most_blocks == 4 && res.longest_blocks == 4);
    kvr_router_set_schedulable(f->r, 1, false); /* holds as before, and is no candidate */
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 2);
    assert_true(res.held_blocks == 3 && res.most_blocks == 3 && res.longest_blocks == 4);
    kvr_router_set_trusted(f->r, (struct kvr_worker){1, 0}, false); /* nobody knows */
    rq.pinned = true;
    rq.pin = (struct kvr_worker){3, 0};
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_true(res.held_blocks == 1 && res.most_blocks == 1 && res.longest_blocks == 3);
}

static void hold_on(struct kvr_index *ix, enum kvr_tier tier, size_t from, size_t to)
{
    uint64_t l[4];
    struct kvr_block b[4];
    (void)kvr_hash_locals(prompt, 16, 4, false, 1337, NULL, 0, l);
    for (size_t i = from; i < to; i++) b[i] = (struct kvr_block){1000 + i, l[i]};
    struct kvr_event ev = {.worker = {2, 0}, .tier = tier, .kind = KVR_EVENT_STORED, .blocks = b + from, .blocks_n = to - from};
    ev.has_parent = from > 0;
    ev.parent_hash = 1000 + from - 1;
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
}

static void a_result_says_each_tier_apart(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    kvr_router_use_lower_tiers(f->r);
    hold_on(f->ix, KVR_TIER_DEVICE, 0, 1);
    hold_on(f->ix, KVR_TIER_HOST_PINNED, 1, 2);
    hold_on(f->ix, KVR_TIER_EXTERNAL, 2, 3);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    const uint32_t *n = res.tier_blocks;
    assert_true(n[KVR_TIER_DEVICE] == 1 && n[KVR_TIER_HOST_PINNED] == 1 && n[KVR_TIER_DISK] == 0 && n[KVR_TIER_EXTERNAL] == 1);
    assert_true(res.held_blocks == 3 && res.held_tokens == 12 && res.effective_blocks == 2); /* 1 + 0.75 + 0.25 */
}

/* What was sent there a moment ago will be on the device: it is not also to be read from the tier that has it. */
static void what_is_predicted_on_the_device_is_not_read_too(void **)
{
    struct kvr_router_config c;
    struct kvr_index *predicted;
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    kvr_router_config_init(&c);
    c.cost.kind = KVR_COST_LINEAR;
    assert_int_equal(kvr_index_create(NULL, &predicted), 0);
    c.predicted = predicted;
    struct fixture *f;
    setup_with((void **)&f, c, true);
    kvr_router_use_lower_tiers(f->r);
    hold_on(f->ix, KVR_TIER_DEVICE, 0, 1);
    hold_on(f->ix, KVR_TIER_HOST_PINNED, 1, 2);
    hold_on(f->ix, KVR_TIER_EXTERNAL, 2, 4);
    hold_on(predicted, KVR_TIER_DEVICE, 0, 3);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    const uint32_t *n = res.tier_blocks;
    assert_true(n[KVR_TIER_DEVICE] == 3 && n[KVR_TIER_HOST_PINNED] == 0 && n[KVR_TIER_EXTERNAL] == 1 && res.held_blocks == 4);
    teardown((void **)&f);
    kvr_index_destroy(predicted);
}

static void what_others_would_have_taken_is_told_by_what_is_known_now(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_ttft_question q[3] = {{1, 1000, 0, 0, -7}, {3, 1000, 500, 0, -7}, {99, 1000, 0, 0, -7}};
    struct kvr_router_request rq = request(NULL);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    res.worker.worker_id = 2;
    for (unsigned i = 0; i < KVR_TTFT_WARM - 1; i++) {
        res.prefill_tokens = 100 + 50 * i;
        assert_false(kvr_router_observe_ttft_beside(f->r, &res, 10 + 0.1 * (double)res.prefill_tokens, q, 3));
        assert_true(q[0].ms == -7 && q[1].ms == -7 && q[2].ms == -7);
    }
    for (unsigned i = 0; i < 300; i++) {
        res.prefill_tokens = 100 + 50 * (i % 19);
        assert_true(kvr_router_observe_ttft_beside(f->r, &res, 10 + 0.1 * (double)res.prefill_tokens, q, 3));
    }
    assert_true(q[0].ms > 105 && q[0].ms < 115); /* 10 + 0.1 * 1000 */
    assert_true(q[1].ms > q[0].ms + 20 && q[1].ms < q[0].ms + 55);
    assert_true(q[2].ms < 0);
}

static void load_beats_a_small_overlap(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){2, 0}, 4);
    struct kvr_router_request rq = request("a");
    rq.pinned = true;
    rq.pin = (struct kvr_worker){2, 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    uint32_t other[16] = {0};
    struct kvr_router_request rq2 = request("b");
    rq2.tokens = other;
    rq2.pinned = true;
    rq2.pin = (struct kvr_worker){2, 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq2, &res);
    struct kvr_router_request rq3 = request("c");
    kvr_router_find_best_match(f->r, f->ctx, &rq3, &res);
    assert_int_not_equal(res.worker.worker_id, 2);
}

static void life_of_a_booking(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request("a");
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    uint64_t w = res.worker.worker_id;
    assert_int_equal(load_of(f, w).active_prefill_tokens, 16);
    assert_int_equal(kvr_router_mark_prefill_completed(f->r, "a", 1), 0);
    assert_int_equal(load_of(f, w).active_prefill_tokens, 0);
    assert_int_equal(kvr_router_add_output_blocks(f->r, "a", 1, 1, -1), 0);
    assert_int_equal(load_of(f, w).active_decode_blocks, 5);
    assert_int_equal(kvr_router_free(f->r, "a", 1), 0);
    assert_int_equal(kvr_router_free(f->r, "a", 1), -KVR_ENOTFOUND);
    assert_int_equal(load_of(f, w).active_decode_blocks, 0);
}

static void query_only_books_nothing(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    for (uint64_t w = 1; w <= 3; w++) assert_int_equal(load_of(f, w).active_requests, 0);
}

static void booking_needs_an_id_and_a_new_one(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    rq.book = true;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOID);
    rq = request("a");
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_EEXISTS);
}

static void pins_have_exact_errors(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    uint64_t allowed[] = {1};
    rq.pinned = true;
    rq.pin = (struct kvr_worker){2, 0};
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_true(res.pinned && res.worker.worker_id == 2);
    rq.pin.dp_rank = 1;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ERANK);
    rq.pin = (struct kvr_worker){9, 0};
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOTFOUND);
    rq.pin = (struct kvr_worker){2, 0};
    rq.allowed = allowed;
    rq.allowed_n = 1;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOTALLOWED);
    rq.allowed = NULL;
    kvr_router_set_schedulable(f->r, 2, false);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOENDPOINTS);
}

static void pin_without_rank_chooses_among_the_ranks(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    kvr_router_set_worker(f->r, 7, 2, 3);
    hold(f, (struct kvr_worker){7, 4}, 16);
    hold(f, (struct kvr_worker){1, 0}, 16);
    struct kvr_router_request rq = request(NULL);
    rq.pinned = rq.pin_any_rank = true;
    rq.pin.worker_id = 7;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 7);
    assert_int_equal(res.worker.dp_rank, 4);
}

static void preferred_falls_back_to_scoring(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){3, 0}, 16);
    struct kvr_router_request rq = request(NULL);
    rq.preferred = true;
    rq.pin = (struct kvr_worker){1, 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_true(res.preferred && res.worker.worker_id == 1);
    kvr_router_set_schedulable(f->r, 1, false);
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_true(!res.preferred && res.worker.worker_id == 3);
}

static void excluded_and_allowed_narrow(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    uint64_t ids[] = {1, 2}, all[] = {1, 2, 3};
    struct kvr_router_request rq = request(NULL);
    rq.excluded = ids;
    rq.excluded_n = 2;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 3);
    rq.excluded = all;
    rq.excluded_n = 3;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOENDPOINTS);
    rq.excluded_n = 0;
    rq.allowed = ids;
    rq.allowed_n = 1;
    for (int i = 0; i < 10; i++) {
        kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
        assert_int_equal(res.worker.worker_id, 1);
    }
}

static void untrusted_views_compete_on_load_alone(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_reach out[8];
    size_t blocks;
    hold(f, (struct kvr_worker){2, 0}, 16);
    kvr_router_set_trusted(f->r, (struct kvr_worker){2, 0}, false);
    struct kvr_router_request rq = request(NULL);
    rq.pinned = true;
    rq.pin = (struct kvr_worker){2, 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_true(!res.trusted && res.overlap_blocks == 0);
    assert_int_equal(kvr_router_overlap(f->r, f->ctx, &rq, out, 8, &blocks), 1); /* still visible */
    assert_int_equal(out[0].depth[0], 4);
    assert_int_equal(blocks, 4);
    kvr_router_set_trusted(f->r, (struct kvr_worker){2, 0}, true);
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.overlap_blocks, 4);
}

static void lora_and_salt_separate(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){2, 0}, 16);
    struct kvr_router_request rq = request(NULL);
    rq.lora = "a";
    rq.lora_len = 1;
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.best_blocks, 0);
    rq.lora_len = 0;
    rq.salt = "a";
    rq.salt_len = 1;
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.best_blocks, 0);
}

static void overrides_flip_the_choice(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_override o = {.set = KVR_OVERRIDE_OVERLAP_CREDIT, .overlap_credit = 1};
    hold(f, (struct kvr_worker){2, 0}, 8);
    struct kvr_router_request rq = request("busy");
    rq.pinned = true;
    rq.pin = (struct kvr_worker){2, 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    kvr_router_mark_prefill_completed(f->r, "busy", 4);
    rq = request(NULL);
    rq.override = &o;
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.worker.worker_id, 2);
    o.overlap_credit = 0;
    o.set |= KVR_OVERRIDE_ASSUME_KV_REUSE; /* or its blocks would count as shared with the running request */
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_not_equal(res.worker.worker_id, 2);
    o.overlap_credit = -1;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_EINVAL);
}

static void hashes_instead_of_tokens(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    uint64_t l[4], q[4];
    hold(f, (struct kvr_worker){3, 0}, 16);
    kvr_hash_locals(prompt, 16, 4, false, 1337, NULL, 0, l);
    kvr_hash_sequence(l, 4, q);
    struct kvr_router_request rq = {.locals = l, .locals_n = 4, .seqs = q, .seqs_n = 4, .isl = 16};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.worker.worker_id, 3);
    assert_int_equal(res.cached_tokens, 16);
    rq.isl = 0; /* the last block is their end */
    rq.id = "a";
    rq.id_len = 1;
    rq.book = true;
    rq.excluded = (uint64_t[]){3};
    rq.excluded_n = 1;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.required_blocks, 4);
    assert_int_equal(res.prefill_tokens, 16);
    assert_int_equal(load_of(f, res.worker.worker_id).active_prefill_tokens, 16);
    rq.seqs_n = 3;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ELENGTH);
}

static void potential_loads_count_new_blocks(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_potential_load p[8];
    hold(f, (struct kvr_worker){1, 0}, 8);
    struct kvr_router_request rq = request("a");
    rq.pinned = true;
    rq.pin = (struct kvr_worker){1, 0};
    rq.tokens_n = 8;
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    rq = request(NULL);
    assert_int_equal(kvr_router_potential_loads(f->r, f->ctx, &rq, p, 8), 3);
    for (int i = 0; i < 3; i++) {
        bool first = p[i].worker.worker_id == 1;
        assert_int_equal(p[i].potential_prefill_tokens, first ? 8 : 16);
        assert_int_equal(p[i].potential_decode_blocks, 4);
        assert_int_equal(p[i].active_requests, first ? 1 : 0);
    }
}

static void no_reuse_makes_blocks_private(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    const char *ids[] = {"a", "b"};
    for (int i = 0; i < 2; i++) {
        struct kvr_router_request rq = request(ids[i]);
        rq.pinned = true;
        rq.pin = (struct kvr_worker){1, 0};
        rq.override = &(struct kvr_override){.set = KVR_OVERRIDE_ASSUME_KV_REUSE};
        kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    }
    assert_int_equal(load_of(f, 1).active_decode_blocks, 8);
    struct kvr_router_request rq = request("c");
    rq.pinned = true;
    rq.pin = (struct kvr_worker){2, 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    rq.id = "d";
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(load_of(f, 2).active_decode_blocks, 4);
}

static void round_robin_visits_all(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    int seen[4] = {0};
    kvr_router_set_mode(f->r, KVR_MODE_ROUND_ROBIN);
    struct kvr_router_request rq = request(NULL);
    for (int i = 0; i < 30; i++) {
        kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
        seen[res.worker.worker_id]++;
    }
    for (int w = 1; w <= 3; w++) assert_int_equal(seen[w], 10);
    assert_false(res.scored);
}

static void random_and_least_loaded(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    int seen[4] = {0};
    kvr_router_set_mode(f->r, KVR_MODE_RANDOM);
    struct kvr_router_request rq = request(NULL);
    for (int i = 0; i < 300; i++) {
        kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
        seen[res.worker.worker_id]++;
    }
    for (int w = 1; w <= 3; w++) assert_in_range(seen[w], 60, 140);
    kvr_router_set_mode(f->r, KVR_MODE_LEAST_LOADED);
    const char *ids[] = {"a", "b", "c", "d", "e", "f"};
    for (int i = 0; i < 6; i++) {
        rq = request(ids[i]);
        kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    }
    for (uint64_t w = 1; w <= 3; w++) assert_int_equal(load_of(f, w).active_requests, 2);
}

static void direct_serves_only_pins(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    kvr_router_set_mode(f->r, KVR_MODE_DIRECT);
    struct kvr_router_request rq = request(NULL);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOENDPOINTS);
    rq.pinned = true;
    rq.pin.worker_id = 3;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
}

static size_t last_one(void *, const struct kvr_candidate *, const struct kvr_cost *, size_t n)
{
    return n - 1;
}

static int setup_custom(void **s)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.select = last_one;
    return setup_with(s, c, true);
}

static void selection_can_be_replaced(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){1, 0}, 16);
    struct kvr_router_request rq = request(NULL);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 3);
}

static int setup_recording(void **s)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.record_decisions = true;
    return setup_with(s, c, true);
}

static void approximate_mode_learns_from_decisions(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result first, second;
    struct kvr_router_request rq = request("a");
    kvr_router_find_best_match(f->r, f->ctx, &rq, &first);
    kvr_router_free(f->r, "a", 1);
    rq = request("b");
    kvr_router_find_best_match(f->r, f->ctx, &rq, &second);
    assert_int_equal(second.worker.worker_id, first.worker.worker_id);
    assert_int_equal(second.overlap_blocks, 4);
}

/* The prompt with one object in its second block. */
static struct kvr_router_result asked_with(struct fixture *f, const char *id, const uint64_t *image)
{
    struct kvr_mm_block mm[2] = {{NULL, 0}, {image, 1}};
    struct kvr_router_request rq = request(id);
    struct kvr_router_result res;
    rq.mm = image ? mm : NULL;
    rq.mm_n = image ? 2 : 0;
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    return res;
}

static void two_images_are_two_prompts(void **s)
{
    struct fixture *f = *s;
    uint64_t cat = 1, dog = 2;
    struct kvr_router_result first = asked_with(f, "a", &cat);
    kvr_router_free(f->r, "a", 1);
    assert_int_equal(asked_with(f, NULL, &dog).overlap_blocks, 1);
    assert_int_equal(asked_with(f, NULL, NULL).overlap_blocks, 1);
    assert_int_equal(asked_with(f, NULL, &cat).overlap_blocks, 4);
    assert_int_equal(asked_with(f, NULL, &cat).worker.worker_id, first.worker.worker_id);
}

static int setup_without_index(void **s)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.cost.overlap_credit = 0;
    return setup_with(s, c, false);
}

static void credit_zero_works_without_an_index(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_reach out[4];
    struct kvr_router_request rq = request("a");
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(kvr_router_overlap(f->r, f->ctx, &rq, out, 4, NULL), -KVR_ENOINDEX);
    assert_int_equal(kvr_router_dump(f->r, NULL, NULL, NULL), -KVR_ENOINDEX);
    kvr_router_remove_worker(f->r, 1);
}

static void bad_configurations_are_named(void **)
{
    struct kvr_router *r;
    struct kvr_router_config c;
    const char *field = NULL;
    kvr_router_config_init(&c);
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "index");
    c.block_size = 0;
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "block_size");
    kvr_router_config_init(&c);
    c.cost.temperature = -1;
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "temperature");
}

static void serving_and_asking_exclude_each_other(void **)
{
    struct kvr_router *r;
    struct kvr_router_config c;
    struct kvr_index *ix;
    const char *field = NULL;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    kvr_router_config_init(&c);
    c.index = ix;
    c.remote_index = true;
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "remote_index");
    c.index = NULL;
    c.serve_index = true;
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "remote_index");
    c.remote_index = false;
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "serve_index");
    c.index = ix;
    c.cost.overlap_credit = 0;
    assert_int_equal(kvr_router_create(&c, &r, &field), -KVR_EINVAL);
    assert_string_equal(field, "serve_index");
    c.cost.overlap_credit = 1;
    assert_int_equal(kvr_router_create(&c, &r, &field), 0);
    kvr_router_destroy(r);
    kvr_index_destroy(ix);
}

static void overlaps_from_elsewhere_count(void **)
{
    struct fixture f = {0};
    struct kvr_router_config c;
    struct kvr_router_result res;
    kvr_router_config_init(&c);
    c.remote_index = true;
    c.block_size = 4;
    assert_int_equal(kvr_router_create(&c, &f.r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(f.r, &f.ctx), 0);
    for (uint64_t w = 1; w <= 3; w++) assert_int_equal(kvr_router_set_worker(f.r, w, 0, 1), 0);
    struct kvr_reach scores[] = {{{2, 0}, {3, 4, 4, 4}}, {{3, 0}, {1, 1, 1, 1}}, {{9, 0}, {4, 4, 4, 4}}}; /* 9 is not known here */
    struct kvr_router_request rq = request("a");
    rq.scores = scores;
    rq.scores_n = 3;
    assert_int_equal(kvr_router_find_best_match(f.r, f.ctx, &rq, &res), 0);
    assert_true(res.worker.worker_id == 2 && res.view_blocks == 3 && res.effective_blocks == 3.75 && res.cached_tokens == 15);
    rq = request("b"); /* of another prompt nothing is known */
    rq.tokens = (uint32_t[]){31, 32, 33, 34, 35, 36, 37, 38};
    rq.tokens_n = 8;
    assert_int_equal(kvr_router_find_best_match(f.r, f.ctx, &rq, &res), 0);
    assert_true(res.worker.worker_id != 2 && res.effective_blocks == 0);
    kvr_router_set_trusted(f.r, (struct kvr_worker){3, 0}, false);
    assert_int_equal(kvr_router_keep_trusted(f.r, scores, 3), 1);
    assert_int_equal(scores[0].worker.worker_id, 2);
    assert_int_equal(kvr_router_overlap(f.r, f.ctx, &rq, scores, 3, NULL), -KVR_ENOINDEX);
    kvr_router_ctx_destroy(f.ctx);
    kvr_router_destroy(f.r);
}

static void add_request_books_without_choosing(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_request rq = request("x");
    assert_int_equal(kvr_router_add_request(f->r, f->ctx, &rq, (struct kvr_worker){2, 0}, 8), 0);
    assert_int_equal(load_of(f, 2).active_prefill_tokens, 8);
    assert_int_equal(kvr_router_add_request(f->r, f->ctx, &rq, (struct kvr_worker){2, 0}, 8), -KVR_EEXISTS);
    rq.id_len = 0;
    assert_int_equal(kvr_router_add_request(f->r, f->ctx, &rq, (struct kvr_worker){2, 0}, 8), -KVR_ENOID);
}

static void removed_workers_are_forgotten(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    hold(f, (struct kvr_worker){2, 0}, 16);
    kvr_router_remove_worker(f->r, 2);
    struct kvr_router_request rq = request("a");
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_not_equal(res.worker.worker_id, 2);
    kvr_router_set_worker(f->r, 2, 0, 1);
    assert_int_equal(kvr_index_rank_blocks(f->ix, (struct kvr_worker){2, 0}), 0);
}

static void without_workers_there_is_no_endpoint(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    for (uint64_t w = 1; w <= 3; w++) kvr_router_remove_worker(f->r, w);
    struct kvr_router_request rq = request("a");
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), -KVR_ENOENDPOINTS);
}

struct thread_arg {
    struct fixture *f;
    int id;
};

static void *book_and_free(void *arg)
{
    struct thread_arg *a = arg;
    struct kvr_router_ctx *ctx;
    struct kvr_router_result res;
    if (kvr_router_ctx_create(a->f->r, &ctx)) abort();
    for (int i = 0; i < 2000; i++) {
        char id[32];
        uint32_t t[16];
        snprintf(id, sizeof id, "%d-%d", a->id, i);
        for (int k = 0; k < 16; k++) t[k] = (uint32_t)(k < 8 ? k : i + k);
        struct kvr_router_request rq = {.id = id, .id_len = strlen(id), .book = true, .tokens = t, .tokens_n = 16};
        KVR_ASSERT(kvr_router_find_best_match(a->f->r, ctx, &rq, &res) == 0);
        KVR_ASSERT(kvr_router_mark_prefill_completed(a->f->r, id, rq.id_len) == 0);
        KVR_ASSERT(kvr_router_free(a->f->r, id, rq.id_len) == 0);
    }
    kvr_router_ctx_destroy(ctx);
    return NULL;
}

static void many_threads_leave_nothing_booked(void **s)
{
    struct fixture *f = *s;
    pthread_t th[3];
    struct thread_arg a[3];
    for (int i = 0; i < 3; i++) {
        a[i] = (struct thread_arg){f, i};
        pthread_create(&th[i], NULL, book_and_free, &a[i]);
    }
    for (int i = 0; i < 200; i++) hold(f, (struct kvr_worker){1 + (uint64_t)i % 3, 0}, 16);
    for (int i = 0; i < 3; i++) pthread_join(th[i], NULL);
    for (uint64_t w = 1; w <= 3; w++) {
        assert_int_equal(load_of(f, w).active_requests, 0);
        assert_int_equal(load_of(f, w).active_decode_blocks, 0);
        assert_int_equal(load_of(f, w).active_prefill_tokens, 0);
    }
}

static void stages_are_timed(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_true(res.times.total >= res.times.block_hashing + res.times.find_matches + res.times.seq_hashing);
    assert_true(res.times.scheduling > 0);
}

static void stale_bookings_expire_on_request(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_router_request rq = request("a");
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(kvr_router_expire_requests(f->r, 3600ull * 1000000000), 0);
    assert_int_equal(kvr_router_expire_requests(f->r, 0), 1);
}

/* Equal fleets, registered in another order, choose alike: ties and softmax draw over (worker, rank), not over places. */
static void picks_do_not_depend_on_the_order_of_registration(void **)
{
    for (int hot = 0; hot < 2; hot++) {
        struct kvr_router *r[2];
        struct kvr_router_ctx *ctx[2];
        struct kvr_router_config c;
        kvr_router_config_init(&c);
        c.cost.overlap_credit = 0;
        c.cost.temperature = hot ? 0.7 : 0;
        c.seed = 11;
        for (int k = 0; k < 2; k++) {
            assert_int_equal(kvr_router_create(&c, &r[k], NULL), 0);
            assert_int_equal(kvr_router_ctx_create(r[k], &ctx[k]), 0);
            for (uint64_t i = 0; i < 6; i++) assert_int_equal(kvr_router_set_worker(r[k], k ? 6 - i : i + 1, 0, 2), 0);
        }
        unsigned seen = 0;
        for (int i = 0; i < 200; i++) {
            struct kvr_router_result a, b;
            struct kvr_router_request rq = {.isl = 16 + (uint64_t)i};
            char id[8];
            if (i % 3 == 0) {
                rq.id = id;
                rq.id_len = (size_t)snprintf(id, sizeof id, "r%d", i);
                rq.book = true;
            }
            assert_int_equal(kvr_router_find_best_match(r[0], ctx[0], &rq, &a), 0);
            assert_int_equal(kvr_router_find_best_match(r[1], ctx[1], &rq, &b), 0);
            assert_int_equal(kvr_worker_cmp(a.worker, b.worker), 0);
            seen |= 1u << (a.worker.worker_id * 2 + a.worker.dp_rank);
        }
        assert_int_equal(__builtin_popcount(seen), 12); /* and they spread */
        for (int k = 0; k < 2; k++) {
            kvr_router_ctx_destroy(ctx[k]);
            kvr_router_destroy(r[k]);
        }
    }
}

static void each_override_can_flip_the_choice(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_result res;
    struct kvr_override o = {0};
    kvr_router_set_schedulable(f->r, 3, false);
    hold(f, (struct kvr_worker){1, 0}, 8);
    struct kvr_router_request rq = request("decoding"); /* worker 1: warm, 1 block of decode more; worker 2: idle */
    rq.tokens = (uint32_t[]){91, 92, 93, 94};
    rq.tokens_n = 4;
    rq.pinned = true;
    rq.pin = (struct kvr_worker){1, 0};
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    kvr_router_mark_prefill_completed(f->r, "decoding", 8);
    struct kvr_shared_range all = {0, 4};
    rq = request(NULL);
    rq.shared = &all;
    rq.shared_n = 1;
    rq.override = &o;
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.worker.worker_id, 1);
    o = (struct kvr_override){.set = KVR_OVERRIDE_OVERLAP_CREDIT, .overlap_credit = 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.worker.worker_id, 2);
    o = (struct kvr_override){.set = KVR_OVERRIDE_PREFILL_LOAD_SCALE, .prefill_load_scale = 0};
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.worker.worker_id, 2);
    o = (struct kvr_override){.set = KVR_OVERRIDE_SHARED_MULTIPLIER, .shared_multiplier = 1}; /* everybody can fetch all of it */
    kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    assert_int_equal(res.worker.worker_id, 2);
    o = (struct kvr_override){.set = KVR_OVERRIDE_TEMPERATURE, .temperature = 100};
    int second = 0;
    for (int i = 0; i < 200; i++) {
        kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
        second += res.worker.worker_id == 2;
    }
    assert_in_range(second, 60, 140);
}

static void block_size_one_with_repeated_tokens(void **)
{
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_router_config c;
    struct kvr_router_result res;
    struct kvr_potential_load p[2];
    uint32_t same[10];
    for (int i = 0; i < 10; i++) same[i] = 7;
    kvr_router_config_init(&c);
    c.cost.overlap_credit = 0;
    c.block_size = 1;
    assert_int_equal(kvr_router_create(&c, &r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(r, &ctx), 0);
    assert_int_equal(kvr_router_set_worker(r, 1, 0, 1), 0);
    struct kvr_router_request rq = {.id = "a", .id_len = 1, .book = true, .tokens = same, .tokens_n = 6};
    assert_int_equal(kvr_router_find_best_match(r, ctx, &rq, &res), 0);
    rq.tokens_n = 10;
    assert_int_equal(kvr_router_potential_loads(r, ctx, &rq, p, 2), 1);
    assert_int_equal(p[0].potential_decode_blocks, 10); /* a prefix, not a set */
    rq.tokens_n = 3;
    assert_int_equal(kvr_router_potential_loads(r, ctx, &rq, p, 2), 1);
    assert_int_equal(p[0].potential_decode_blocks, 6);
    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(r);
}

static void remote_bookings_count_and_can_be_forgotten(void **s)
{
    struct fixture *f = *s;
    struct kvr_load_event add = {
        .kind = KVR_LOAD_ADD,
        .request = {.id = "p1/x", .id_len = 4, .worker = {1, 0}, .seqs = (uint64_t[]){1, 2}, .seqs_n = 2, .prefill_tokens = 9, .owner = 1}};
    struct kvr_load_event end = {.kind = KVR_LOAD_FREE, .request = {.id = "p1/x", .id_len = 4}};
    assert_int_equal(kvr_router_apply_remote(f->r, &add), 0);
    assert_int_equal(kvr_router_apply_remote(f->r, &add), 0); /* once more: replaced */
    assert_int_equal(load_of(f, 1).active_requests, 1);
    add.request.owner = 0; /* nobody else's: what is booked stays */
    assert_int_equal(kvr_router_apply_remote(f->r, &add), -KVR_EINVAL);
    add.request.owner = 1;
    assert_int_equal(load_of(f, 1).active_decode_blocks, 2);
    assert_int_equal(kvr_router_apply_remote(f->r, &end), 0);
    assert_int_equal(kvr_router_apply_remote(f->r, &end), -KVR_ENOTFOUND);
    add.request.worker.worker_id = 99;
    assert_int_equal(kvr_router_apply_remote(f->r, &add), -KVR_ENOTFOUND); /* unknown workers are not made */
    add.request.worker.worker_id = 2;
    add.request.owner = 0;
    assert_int_equal(kvr_router_apply_remote(f->r, &add), -KVR_EINVAL);
    add.request.owner = 7;
    assert_int_equal(kvr_router_apply_remote(f->r, &add), 0);
    assert_int_equal(kvr_router_forget_remote(f->r, 6), 0);
    assert_int_equal(kvr_router_forget_remote(f->r, 7), 1);
    assert_int_equal(load_of(f, 2).active_requests, 0);
}

static int setup_delay(void **s)
{
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.seed = 5;
    return setup_with(s, c, true);
}

/* Idle and alike, ranks take turns, whichever router gave them their last one. */
static void what_others_book_is_a_turn(void **s)
{
    struct fixture *f = *s;
    struct kvr_load_event end = {.kind = KVR_LOAD_FREE, .request = {.id = "p1/x", .id_len = 4}};
    for (uint64_t i = 0; i < 12; i++) {
        struct kvr_router_result res;
        struct kvr_router_request rq = request("mine");
        uint64_t theirs[2] = {1 + i % 3, 1 + (i + 1) % 3}, left = 6 - theirs[0] - theirs[1];
        for (int k = 0; k < 2; k++) {
            struct kvr_load_event add = {.kind = KVR_LOAD_ADD,
                                         .request = {.id = "p1/x", .id_len = 4, .worker = {theirs[k], 0}, .prefill_tokens = 9, .owner = 1}};
            assert_int_equal(kvr_router_apply_remote(f->r, &add), 0);
            assert_int_equal(kvr_router_apply_remote(f->r, &end), 0);
        }
        assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
        assert_int_equal(res.worker.worker_id, left);
        assert_int_equal(kvr_router_free(f->r, "mine", 4), 0);
    }
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
/* Thousands of workers that came at once, with ids in no order, once held the router up for minutes: each one sorted all. */
static void workers_in_no_order_are_ordered_and_cheap_to_add(void **state)
{
    enum { WORKERS = 4096, LEFT = WORKERS - WORKERS / 3 - 1 };
    static struct kvr_rank_load l[2 * WORKERS + 3];
    static uint64_t ids[WORKERS];
    struct fixture *f = *state;
    struct kvr_rng rng = {7};
    for (int i = 0; i < WORKERS; i++) {
        ids[i] = (kvr_rng_next(&rng) >> 11) + 4;
        assert_int_equal(kvr_router_set_worker(f->r, ids[i], 0, 2), 0);
    }
    for (int i = 0; i < WORKERS; i += 3) kvr_router_remove_worker(f->r, ids[i]);
    size_t n = kvr_router_loads(f->r, l, KVR_ARRAY_LEN(l));
    assert_int_equal(n, 3 + 2 * LEFT);
    for (size_t i = 1; i < n; i++) {
        struct kvr_worker a = l[i - 1].worker, b = l[i].worker;
        assert_true(a.worker_id < b.worker_id || (a.worker_id == b.worker_id && a.dp_rank < b.dp_rank));
    }
}

static int setup_queue(void **s)
{
    static struct kvr_policy policy;
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    kvr_policy_init(&policy);
    policy.classes[0].busy_tokens = 10;
    c.cost.kind = KVR_COST_LINEAR;
    c.policy = &policy;
    return setup_with(s, c, true);
}

static void note_turn(struct kvr_ticket *t, int rc, const struct kvr_router_result *result, const struct kvr_router_ctx *)
{
    *(uint64_t *)t->user = rc ? 0 : result->worker.worker_id;
}

/* Worker 1 has the prompt, so it costs least there, but is busy: without tenants it is sent there all the same. */
static void a_tenant_that_has_waited_is_sent_to_no_rank_that_is_busy(void **s)
{
    struct fixture *f = *s;
    static const char *const ids[] = {"one", "two", "three"};
    hold(f, (struct kvr_worker){1, 0}, 16);
    for (uint64_t tenant = 0; tenant < 2; tenant++) {
        uint64_t went = 99;
        struct kvr_router_result res;
        struct kvr_ticket t;
        for (uint64_t w = 1; w <= 3; w++) {
            struct kvr_router_request rq = {
                .id = ids[w - 1], .id_len = strlen(ids[w - 1]), .book = true, .isl = 12, .pinned = true, .pin = {w, 0}};
            assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
        }
        struct kvr_router_request rq = request("late");
        rq.tenant = tenant;
        assert_int_equal(kvr_router_submit(f->r, f->ctx, &rq, &t, note_turn, &went, &res, NULL), KVR_PARKED);
        kvr_router_mark_prefill_completed(f->r, "two", 3);
        assert_int_equal(went, tenant ? 2 : 1);
        for (size_t i = 0; i < 3; i++) kvr_router_free(f->r, ids[i], strlen(ids[i]));
        kvr_router_free(f->r, "late", 4);
    }
}

static void a_router_for_other_workers_starts_over(void **s)
{
    struct fixture *f = *s;
    struct kvr_router_request rq = request("a");
    struct kvr_router_result res;
    struct kvr_ttft_model m;
    struct kvr_busy_thresholds some = {0.5, 100, 0.5}, none = {-1, -1, -1}, now;
    struct kvr_policy policy;
    kvr_policy_init(&policy);
    kvr_router_set_busy(f->r, &some);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    kvr_router_observe_ttft(f->r, &res, 20);
    assert_int_equal(kvr_router_ttft_model(f->r, NULL, &m, NULL), 0);
    assert_int_equal(m.observations, 1);
    for (uint64_t w = 1; w <= 3; w++) kvr_router_remove_worker(f->r, w);
    assert_int_equal(kvr_router_start_over(f->r, &policy, &none), 0);
    assert_int_equal(kvr_router_ttft_model(f->r, NULL, &m, NULL), 0);
    assert_int_equal(m.observations, 0);
    kvr_router_busy(f->r, &now);
    assert_true(now.decode_blocks_frac < 0 && now.prefill_tokens < 0 && now.prefill_tokens_frac < 0);
    assert_int_equal(kvr_router_set_worker(f->r, 9, 0, 1), 0);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_int_equal(res.worker.worker_id, 9);
}

/* ---- taints ------------------------------------------------------------------------------------------ */

static int set_taint(struct fixture *f, uint64_t w, const char *name)
{
    return kvr_router_set_taints(f->r, w, &name, 1);
}

static int requires(struct fixture *f, const char *name, uint64_t *worker)
{
    struct kvr_router_result res;
    struct kvr_router_request rq = request(NULL);
    rq.required_taints = &name;
    rq.required_n = 1;
    int rc = kvr_router_find_best_match(f->r, f->ctx, &rq, &res);
    if (rc == 0) *worker = res.worker.worker_id;
    return rc;
}

static void taint_names_that_no_worker_has_are_given_back(void **s)
{
    struct fixture *f = *s;
    char name[32];
    uint64_t w = 0;
    assert_int_equal(set_taint(f, 2, "kept"), 0);
    for (int i = 0; i < 3 * KVR_TAINTS_MAX; i++) {
        snprintf(name, sizeof name, "canary-%d", i);
        if (i % 7 == 0) kvr_router_remove_worker(f->r, 1); /* gone with its names, and here again */
        assert_int_equal(kvr_router_set_worker(f->r, 1, 0, 1), 0);
        assert_int_equal(set_taint(f, 1, name), 0);
        assert_int_equal(requires(f, name, &w), 0);
        assert_int_equal(w, 1);
        assert_int_equal(requires(f, "kept", &w), 0);
        assert_int_equal(w, 2);
    }
    assert_int_equal(requires(f, "canary-0", &w), -KVR_ENOENDPOINTS);
    assert_int_equal(set_taint(f, 3, "canary-0"), 0);
    assert_int_equal(requires(f, "canary-0", &w), 0);
    assert_int_equal(w, 3);
    assert_int_equal(requires(f, name, &w), 0);
    assert_int_equal(w, 1);
}

static void taints_that_do_not_fit_change_nothing(void **s)
{
    struct fixture *f = *s;
    static char text[KVR_TAINTS_MAX][16];
    const char *names[KVR_TAINTS_MAX], *two[] = {"b", "c"}, *once[] = {"b", "b"};
    char found[16];
    for (size_t i = 0; i < KVR_TAINTS_MAX; i++) {
        snprintf(text[i], sizeof text[i], "n%zu", i);
        names[i] = text[i];
    }
    assert_int_equal(kvr_router_set_taints(f->r, 2, names, KVR_TAINTS_MAX - 1), 0);
    assert_int_equal(set_taint(f, 1, "a"), 0);
    assert_int_equal(kvr_router_set_taints(f->r, 1, two, 2), -KVR_ELIMIT);
    assert_int_equal(set_taint(f, 3, "d"), -KVR_ELIMIT);
    assert_true(kvr_router_find_taint(f->r, 1, "", found, sizeof found));
    assert_string_equal(found, "a");
    assert_false(kvr_router_find_taint(f->r, 3, "", found, sizeof found));
    assert_int_equal(kvr_router_set_taints(f->r, 1, once, 2), 0); /* in the place of its own */
    assert_true(kvr_router_find_taint(f->r, 1, "", found, sizeof found));
    assert_string_equal(found, "b");
}

static void count_freed(void *ctx, const struct kvr_load_event *ev)
{
    *(int *)ctx += ev->kind == KVR_LOAD_FREE;
}

static void ranks_that_are_refused_end_no_booking(void **)
{
    struct failing_alloc fa = {.fail_at = -1};
    struct kvr_alloc alloc = {failing_resize, &fa};
    struct kvr_router_config c;
    struct kvr_worker where;
    int freed = 0, rc = -KVR_ENOMEM;
    kvr_router_config_init(&c);
    c.alloc = &alloc;
    c.mode = KVR_MODE_LEAST_LOADED;
    c.cost.overlap_credit = 0;
    c.hook = count_freed;
    c.hook_ctx = &freed;
    struct fixture f = {0};
    assert_int_equal(kvr_router_create(&c, &f.r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(f.r, &f.ctx), 0);
    assert_int_equal(kvr_router_set_worker(f.r, 1, 0, 1), 0);
    struct kvr_router_request rq = request("a"), after = request(NULL);
    struct kvr_router_result res;
    assert_int_equal(kvr_router_find_best_match(f.r, f.ctx, &rq, &res), 0);
    assert_int_equal(kvr_router_set_worker(f.r, 1, 1, 0), -KVR_EINVAL);
    assert_int_equal(kvr_router_set_worker(f.r, 1, UINT32_MAX, 2), -KVR_EINVAL);
    assert_int_equal(kvr_router_set_worker(f.r, 1, 1, 4097), -KVR_ELIMIT);
    assert_int_equal(freed, 0);
    for (long n = 0; rc; n++) { /* each refusal for want of memory, too, leaves everything as it is */
        fa.calls = 0;
        fa.fail_at = n;
        rc = kvr_router_set_worker(f.r, 1, 1, 64);
        fa.fail_at = -1;
        assert_int_equal(freed, rc == 0);
        assert_int_equal(kvr_router_loads(f.r, NULL, 0), rc ? 1 : 64);
        assert_int_equal(kvr_router_where(f.r, "a", 1, &where), rc ? 0 : -KVR_ENOTFOUND);
        assert_int_equal(kvr_router_find_best_match(f.r, f.ctx, &after, &res), 0);
    }
    kvr_router_ctx_destroy(f.ctx);
    kvr_router_destroy(f.r);
    assert_int_equal(fa.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_are_refused_end_no_booking),
        T(best_overlap_wins),
        T(workers_in_no_order_are_ordered_and_cheap_to_add),
        T(a_result_says_who_else_holds_the_prompt),
        T(a_result_says_each_tier_apart),
        cmocka_unit_test(what_is_predicted_on_the_device_is_not_read_too),
        T(what_others_would_have_taken_is_told_by_what_is_known_now),
        T(load_beats_a_small_overlap),
        T(life_of_a_booking),
        T(query_only_books_nothing),
        T(booking_needs_an_id_and_a_new_one),
        T(pins_have_exact_errors),
        T(pin_without_rank_chooses_among_the_ranks),
        T(preferred_falls_back_to_scoring),
        T(excluded_and_allowed_narrow),
        T(untrusted_views_compete_on_load_alone),
        T(lora_and_salt_separate),
        T(overrides_flip_the_choice),
        T(hashes_instead_of_tokens),
        T(potential_loads_count_new_blocks),
        T(no_reuse_makes_blocks_private),
        T(round_robin_visits_all),
        T(random_and_least_loaded),
        T(direct_serves_only_pins),
        cmocka_unit_test_setup_teardown(selection_can_be_replaced, setup_custom, teardown),
        cmocka_unit_test_setup_teardown(approximate_mode_learns_from_decisions, setup_recording, teardown),
        cmocka_unit_test_setup_teardown(two_images_are_two_prompts, setup_recording, teardown),
        cmocka_unit_test_setup_teardown(credit_zero_works_without_an_index, setup_without_index, teardown),
        cmocka_unit_test(bad_configurations_are_named),
        cmocka_unit_test(serving_and_asking_exclude_each_other),
        cmocka_unit_test(overlaps_from_elsewhere_count),
        T(add_request_books_without_choosing),
        T(removed_workers_are_forgotten),
        T(without_workers_there_is_no_endpoint),
        T(many_threads_leave_nothing_booked),
        T(stages_are_timed),
        T(stale_bookings_expire_on_request),
        cmocka_unit_test(picks_do_not_depend_on_the_order_of_registration),
        T(each_override_can_flip_the_choice),
        cmocka_unit_test(block_size_one_with_repeated_tokens),
        T(remote_bookings_count_and_can_be_forgotten),
        cmocka_unit_test_setup_teardown(what_others_book_is_a_turn, setup_delay, teardown),
        cmocka_unit_test_setup_teardown(a_tenant_that_has_waited_is_sent_to_no_rank_that_is_busy, setup_queue, teardown),
        T(a_router_for_other_workers_starts_over),
        T(taint_names_that_no_worker_has_are_given_back),
        T(taints_that_do_not_fit_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
