/* SPDX-License-Identifier: Apache-2.0 */
/* The default cost behind the router: what is pending, copies of what is hot, what is learnt, and what happens with nothing learnt. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <kvroute/kvroute.h>

#include "base/base.h"

enum { WORKERS = 4, BLOCK = 16, PREFIX = 2048, OWN = 64, PROMPT = PREFIX + OWN };

struct fixture {
    struct kvr_index *ix;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    uint64_t now, decisions;
    uint32_t tokens[PROMPT];
};

static uint64_t clock_of(void *ctx)
{
    return *(uint64_t *)ctx;
}

static int setup_with(void **s, bool learns_from_reports)
{
    struct fixture *f = calloc(1, sizeof *f);
    struct kvr_router_config c;
    struct kvr_clock clock = {clock_of, &f->now};
    kvr_router_config_init(&c);
    assert_int_equal(c.cost.kind, KVR_COST_DELAY);
    assert_int_equal(kvr_index_create(NULL, &f->ix), 0);
    c.clock = &clock;
    c.index = f->ix;
    c.block_size = BLOCK;
    c.seed = 3;
    c.learn_from_reports = learns_from_reports;
    assert_int_equal(kvr_router_create(&c, &f->r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(f->r, &f->ctx), 0);
    for (uint64_t w = 1; w <= WORKERS; w++) assert_int_equal(kvr_router_set_worker(f->r, w, 0, 1), 0);
    *s = f;
    return 0;
}

static int setup(void **s)
{
    return setup_with(s, false);
}

static int setup_reports(void **s)
{
    return setup_with(s, true);
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

/* The prefix `shared`, then tokens that only request `own` has. */
static struct kvr_router_request request(struct fixture *f, char id[16], uint32_t shared, uint32_t own)
{
    for (uint32_t i = 0; i < PREFIX; i++) f->tokens[i] = shared * 100000 + i;
    for (uint32_t i = PREFIX; i < PROMPT; i++) f->tokens[i] = 50000000 + own * OWN + i;
    int n = snprintf(id, 16, "r%u", own);
    return (struct kvr_router_request){
        .id = id, .id_len = (size_t)n, .book = true, .guarded = true, .tokens = f->tokens, .tokens_n = PROMPT};
}

static struct kvr_router_result ask(struct fixture *f, uint32_t shared, uint32_t own)
{
    struct kvr_router_result res;
    char id[16];
    struct kvr_router_request rq = request(f, id, shared, own);
    assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
    assert_true(isfinite(res.cost) && res.cost >= 0);
    return res;
}

static void first_token(struct fixture *f, uint32_t own)
{
    char id[16];
    int n = snprintf(id, sizeof id, "r%u", own);
    assert_int_equal(kvr_router_mark_prefill_completed(f->r, id, (size_t)n), 0);
}

static void end(struct fixture *f, uint32_t own)
{
    char id[16];
    int n = snprintf(id, sizeof id, "r%u", own);
    assert_int_equal(kvr_router_free(f->r, id, (size_t)n), 0);
}

/* The view of worker w has the prefix. */
static void hold(struct fixture *f, uint64_t w, uint32_t shared)
{
    uint64_t locals[PREFIX / BLOCK];
    struct kvr_block b[PREFIX / BLOCK];
    char id[16];
    request(f, id, shared, 0);
    long n = kvr_hash_locals(f->tokens, PREFIX, BLOCK, false, KVR_HASH_SEED, NULL, 0, locals);
    assert_int_equal(n, PREFIX / BLOCK);
    for (long i = 0; i < n; i++) b[i] = (struct kvr_block){shared * 1000 + (uint64_t)i + 1, locals[i]};
    struct kvr_event ev = {.worker = {w, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = (size_t)n};
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
}

/* An engine of 15 microseconds a prompt token and 20 a generated token and block. */
static void teach(struct fixture *f)
{
    for (uint32_t i = 0; i < 200; i++) {
        struct kvr_router_result res = ask(f, 900 + i, 100000 + i);
        res.prefill_tokens = 200 + 20 * i;
        res.active_blocks = 100 + 10 * (i % 50);
        kvr_router_observe_ttft(f->r, &res, 16 + 0.015 * (double)res.prefill_tokens);
        double blocks = ((double)res.active_blocks + PROMPT / BLOCK) / 2; /* it is alone: its own are in use at the end */
        kvr_router_observe_generation(f->r, &res, 24, 24 * (6 + 0.02 * blocks));
        end(f, 100000 + i);
    }
    struct kvr_ttft_model m;
    struct kvr_generation_model g;
    assert_int_equal(kvr_router_ttft_model(f->r, NULL, &m, NULL), 0);
    kvr_router_generation_model(f->r, &g);
    assert_true(fabs(m.token_ms - 0.015) < 0.002 && fabs(g.block_ms - 0.02) < 0.004 && fabs(g.tokens - 24) < 0.1);
}

static void terms_are_those_that_the_choice_was_made_by(void **s)
{
    struct fixture *f = *s;
    size_t at[WORKERS] = {3, 0, 2, 1};
    struct kvr_delay d[WORKERS];
    const struct kvr_candidate *c;
    const struct kvr_cost *costs;
    assert_false(kvr_router_delays(f->ctx, at, WORKERS, d)); /* nothing was decided yet */
    teach(f);
    hold(f, 2, 1);
    struct kvr_router_result res = ask(f, 1, 1);
    assert_int_equal(kvr_router_candidates(f->ctx, &c, &costs), WORKERS);
    for (size_t i = 0; i < WORKERS; i++) assert_int_equal(kvr_router_prefill_of(f->ctx, i), c[i].worker.worker_id == 2 ? OWN : PROMPT);
    assert_true(res.worker.worker_id == 2 && res.prefill_tokens == OWN);
    for (uint32_t i = 0; i < 100; i++) kvr_router_observe_ttft(f->r, &res, 10000); /* learnt since */
    for (uint32_t i = 0; i < 100; i++) kvr_router_observe_generation(f->r, &res, 5, 5000);
    assert_true(kvr_router_delays(f->ctx, at, WORKERS, d));
    for (size_t i = 0; i < WORKERS; i++) {
        assert_true(d[i].first > 0 && d[i].computing > 0 && d[i].generation > 0);
        assert_true(fabs(d[i].first + d[i].computing + d[i].generation + d[i].pass - costs[at[i]].cost) < 1e-9);
    }
    assert_true(d[3].first < d[0].first && d[3].computing < d[0].computing); /* at[3] is worker 2 */
}

static void siblings_join_the_worker_that_computes_their_prefix(void **s)
{
    struct fixture *f = *s;
    teach(f);
    struct kvr_router_result first = ask(f, 1, 1);
    assert_int_equal(first.pending_blocks, 0);
    assert_int_equal(first.prefill_tokens, PROMPT);
    for (uint32_t i = 2; i <= 8; i++) {
        struct kvr_router_result res = ask(f, 1, i);
        assert_int_equal(res.worker.worker_id, first.worker.worker_id);
        assert_int_equal(res.pending_blocks, PREFIX / BLOCK);
        assert_int_equal(res.prefill_tokens, OWN); /* booked once */
        assert_int_equal(res.cached_tokens, 0);    /* not promised */
    }
    assert_true(ask(f, 2, 20).worker.worker_id != first.worker.worker_id); /* others stay out of their way */
}

static void a_failed_first_sibling_leaves_nothing_pending(void **s)
{
    struct fixture *f = *s;
    teach(f);
    ask(f, 1, 1);
    end(f, 1); /* refused, cut off, cancelled: the booking goes */
    struct kvr_router_result res = ask(f, 1, 2);
    assert_int_equal(res.pending_blocks, 0);
    assert_int_equal(res.prefill_tokens, PROMPT);
}

/* Prompts that share prefix 1, one after the other, each computed and ended before the next. Returns: those that went where one that was
 * still generating has it. */
static unsigned follow(struct fixture *f, uint32_t own, unsigned n)
{
    unsigned followed = 0;
    struct kvr_router_result first = ask(f, 1, own);
    first_token(f, own);
    for (uint32_t i = 1; i < n; i++) {
        struct kvr_router_result res = ask(f, 1, own + i);
        followed += res.worker.worker_id == first.worker.worker_id;
        first_token(f, own + i);
        end(f, own + i);
        kvr_router_poll(f->r);
    }
    end(f, own);
    kvr_router_poll(f->r);
    return followed;
}

static void engines_that_cache_nothing_get_no_siblings(void **s)
{
    struct fixture *f = *s;
    teach(f);
    assert_true(follow(f, 1, 40) < 20); /* until it is found out they are sent where it is pending */
    assert_int_equal(ask(f, 1, 100).pending_blocks, 0);
    for (uint32_t i = 101; i < 104; i++) assert_int_equal(ask(f, 1, i).prefill_tokens, PROMPT);
    struct kvr_rank_load loads[WORKERS];
    assert_int_equal(kvr_router_loads(f->r, loads, WORKERS), WORKERS);
    for (size_t i = 0; i < WORKERS; i++) assert_int_equal(loads[i].active_requests, 1);
    for (uint32_t w = 1; w <= WORKERS; w++) hold(f, w, 2); /* they cache after all */
    kvr_router_poll(f->r);
    assert_int_equal(ask(f, 1, 104).pending_blocks, PREFIX / BLOCK);
}

/* What runs shares one prefix that one worker holds: others are given copies of it, as soon as it is more than one worker's share. */
static void a_hot_prefix_gets_more_holders(void **s)
{
    struct fixture *f = *s;
    bool used[WORKERS + 1] = {false};
    teach(f);
    hold(f, 1, 1);
    for (uint32_t i = 1; i <= 100; i++) {
        struct kvr_router_result res = ask(f, 1, i);
        used[res.worker.worker_id] = true;
        first_token(f, i);
    }
    for (int w = 1; w <= WORKERS; w++) assert_true(used[w]);
}

static void a_burst_alone_makes_no_copy(void **s)
{
    struct fixture *f = *s;
    teach(f);
    hold(f, 1, 1);
    for (uint32_t i = 1; i <= 16; i++) assert_int_equal(ask(f, 1, i).worker.worker_id, 1);
}

/* Requests keep coming while the first of them computes their prefix: copies begin before it is done. */
static void demand_that_lasts_as_long_as_computing_makes_copies(void **s)
{
    struct fixture *f = *s;
    bool used[WORKERS + 1] = {false};
    teach(f);
    uint64_t first = ask(f, 1, 1).worker.worker_id;
    for (uint32_t i = 2; i <= 5; i++) assert_int_equal(ask(f, 1, i).worker.worker_id, first); /* at once */
    for (uint32_t i = 6; i <= 20; i++) {                                                      /* nobody has had a first token */
        f->now += 4000000;
        used[ask(f, 1, i).worker.worker_id] = true;
    }
    int others = 0;
    for (uint64_t w = 1; w <= WORKERS; w++) others += w != first && used[w];
    assert_true(others > 0);
}

/* Turns of a conversation stay where its blocks are while the queue there is short, and move when it is long. */
static void affinity_yields_to_long_queues_only(void **s)
{
    struct fixture *f = *s;
    teach(f);
    hold(f, 1, 1);
    struct kvr_router_request rq;
    struct kvr_router_result res;
    char id[16];
    for (uint32_t i = 0; i < 12; i++) { /* prompts of others wait at its worker */
        rq = request(f, id, 100 + i, 300 + i);
        rq.pinned = true;
        rq.pin = (struct kvr_worker){1, 0};
        assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
        rq = request(f, id, 1, 1);
        rq.book = false;
        assert_int_equal(kvr_router_find_best_match(f->r, f->ctx, &rq, &res), 0);
        if (i == 0) assert_int_equal(res.worker.worker_id, 1);
    }
    assert_true(res.worker.worker_id != 1);
}

static void remove_blocks(struct fixture *f, uint64_t w, uint32_t shared)
{
    uint64_t names[PREFIX / BLOCK];
    for (uint32_t i = 0; i < PREFIX / BLOCK; i++) names[i] = shared * 1000 + (uint64_t)i + 1;
    struct kvr_event ev = {.worker = {w, 0}, .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = PREFIX / BLOCK};
    assert_int_equal(kvr_index_apply(f->ix, &ev), 0);
}

/* Worker 1 evicts what it stores, worker 2 has room: what neither holds is dearer on 1. */
static void a_cache_that_evicts_makes_new_blocks_dear(void **s)
{
    struct fixture *f = *s;
    struct kvr_turnover t;
    const struct kvr_candidate *k;
    const struct kvr_cost *costs;
    teach(f);
    for (uint32_t i = 1; i <= 40; i++) {
        hold(f, 1, i);
        if (i > 10) remove_blocks(f, 1, i - 10);
        if (i <= 10) hold(f, 2, i);
        kvr_router_poll(f->r);
    }
    kvr_index_rank_turnover(f->ix, (struct kvr_worker){1, 0}, &t);
    assert_true(t.stored == 40 * PREFIX / BLOCK && t.removed == 30 * PREFIX / BLOCK);
    kvr_index_rank_turnover(f->ix, (struct kvr_worker){77, 0}, &t);
    assert_true(t.stored == 0 && t.removed == 0);
    ask(f, 500, 1);
    assert_int_equal(kvr_router_candidates(f->ctx, &k, &costs), WORKERS);
    assert_true(k[0].pressure > 0.75 && k[0].pressure <= 1 && k[1].pressure == 0 && k[2].pressure == 0);
    struct kvr_cost_config c;
    kvr_cost_config_init(&c);
    struct kvr_delay full = kvr_delay_of(&c, BLOCK, PROMPT, k, WORKERS, 0), room = kvr_delay_of(&c, BLOCK, PROMPT, k, WORKERS, 1);
    assert_true(full.computing / k[0].factor > 2 * room.computing / k[1].factor);
    assert_true(fabs(full.first / k[0].factor - room.first / k[1].factor) < 1e-9);
    kvr_index_remove_worker(f->ix, 1); /* it begins anew: less than before is no news */
    hold(f, 1, 1);
    kvr_router_poll(f->r);
    end(f, 1);
    ask(f, 501, 2);
    kvr_router_candidates(f->ctx, &k, &costs);
    assert_true(k[0].pressure > 0.75 && k[0].pressure <= 1);
    for (uint32_t i = 2; i <= 100; i++) {
        hold(f, 1, i);
        kvr_router_poll(f->r);
    }
    end(f, 2);
    ask(f, 502, 3);
    kvr_router_candidates(f->ctx, &k, &costs);
    assert_true(k[0].pressure < 0.1);
}

/* No times are told, no blocks are tracked: the cost is what computing takes by the prior, and nobody is forgotten. */
static void with_nothing_learnt_it_still_chooses_well(void **s)
{
    struct fixture *f = *s;
    unsigned seen[WORKERS + 1] = {0};
    hold(f, 2, 1);
    assert_int_equal(ask(f, 1, 1).worker.worker_id, 2);
    end(f, 1);
    for (uint32_t i = 10; i < 50; i++) seen[ask(f, i, i).worker.worker_id]++;
    for (int w = 1; w <= WORKERS; w++) assert_in_range(seen[w], 8, 12);
}

static void untracked_books_fall_back_to_the_request_itself(void **s)
{
    struct fixture *f = *s, g = {.now = 1};
    struct kvr_router_config c;
    kvr_router_config_init(&c);
    c.index = f->ix;
    c.block_size = BLOCK;
    c.track_active_blocks = c.assume_kv_reuse = c.cost.track_prefill_tokens = false;
    assert_int_equal(kvr_router_create(&c, &g.r, NULL), 0);
    assert_int_equal(kvr_router_ctx_create(g.r, &g.ctx), 0);
    for (uint64_t w = 1; w <= WORKERS; w++) assert_int_equal(kvr_router_set_worker(g.r, w, 0, 1), 0);
    hold(f, 3, 1);
    for (uint32_t i = 1; i <= 5; i++) {
        struct kvr_router_result res = ask(&g, 1, i);
        assert_int_equal(res.worker.worker_id, 3);
        assert_int_equal(res.pending_blocks, 0);
        kvr_router_observe_generation(g.r, &res, 5, 0);
    }
    for (uint32_t i = 1; i <= 5; i++) end(&g, i);
    kvr_router_ctx_destroy(g.ctx);
    kvr_router_destroy(g.r);
}

/* Another router's bookings are pending here too. */
static void prompts_booked_by_another_router_are_pending(void **s)
{
    struct fixture *f = *s;
    uint64_t locals[PROMPT / BLOCK], seqs[PROMPT / BLOCK];
    char id[16];
    teach(f);
    request(f, id, 1, 1);
    kvr_hash_locals(f->tokens, PROMPT, BLOCK, false, KVR_HASH_SEED, NULL, 0, locals);
    kvr_hash_sequence(locals, PROMPT / BLOCK, seqs);
    struct kvr_load_event ev = {
        .kind = KVR_LOAD_ADD,
        .request = {
            .id = "theirs", .id_len = 6, .worker = {4, 0}, .seqs = seqs, .seqs_n = PROMPT / BLOCK, .prefill_tokens = PROMPT, .owner = 7}};
    assert_int_equal(kvr_router_apply_remote(f->r, &ev), 0);
    struct kvr_router_result res = ask(f, 1, 2);
    assert_int_equal(res.worker.worker_id, 4);
    assert_int_equal(res.prefill_tokens, OWN);
    kvr_router_forget_remote(f->r, 7);
    end(f, 2);
    assert_int_equal(ask(f, 1, 3).pending_blocks, 0);
}

#define T(name)         cmocka_unit_test_setup_teardown(name, setup, teardown)
#define T_REPORTS(name) cmocka_unit_test_setup_teardown(name, setup_reports, teardown)

static void pass(struct fixture *f, double ms)
{
    f->now += (uint64_t)(ms * 1e6);
}

static void output_blocks(struct fixture *f, uint32_t own, uint64_t n)
{
    char id[16];
    int len = snprintf(id, sizeof id, "r%u", own);
    assert_int_equal(kvr_router_add_output_blocks(f->r, id, (size_t)len, n, -1), 0);
}

/* Every prompt is another one; of `cached` blocks it is booked as held. Returns: its tokens to compute. */
static uint64_t reserve(struct fixture *f, uint64_t worker, uint32_t own, uint32_t cached)
{
    char id[16];
    struct kvr_router_request rq = request(f, id, own, own);
    assert_int_equal(kvr_router_add_request(f->r, f->ctx, &rq, (struct kvr_worker){worker, 0}, (uint64_t)cached * BLOCK), 0);
    return PROMPT - cached * BLOCK;
}

/* An engine of 12 ms and 0.03 a token, of whose times nobody tells but by reports. */
static void one_reported(struct fixture *f, uint32_t own)
{
    uint64_t tokens = reserve(f, 1 + own % WORKERS, own, own % 100);
    pass(f, 12 + 0.03 * (double)tokens);
    first_token(f, own);
}

static void reports_of_bookings_teach_the_times(void **s)
{
    struct fixture *f = *s;
    struct kvr_ttft_model m;
    struct kvr_generation_model g;
    for (uint32_t i = 0; i < 200; i++) {
        one_reported(f, i);
        pass(f, 5000);
        first_token(f, i); /* told again: nothing new */
        output_blocks(f, i, 1);
        pass(f, 16 * 4);
        output_blocks(f, i, 1);
        pass(f, 16 * 4);
        output_blocks(f, i, 1);
        pass(f, 5000);
        end(f, i);
    }
    kvr_router_ttft_model(f->r, NULL, &m, NULL);
    kvr_router_generation_model(f->r, &g);
    assert_int_equal(m.observations, 200);
    assert_true(fabs(m.base_ms - 12) < 0.5 && fabs(m.token_ms - 0.03) < 0.0005);
    assert_int_equal(g.observations, 200);
    assert_true(fabs(g.base_ms + g.block_ms * PROMPT / BLOCK - 4) < 0.2 && fabs(g.tokens - 32) < 1);
}

/* Those that wait at the rank are part of what it took. */
static void a_report_counts_what_was_ahead(void **s)
{
    struct fixture *f = *s;
    struct kvr_ttft_model m;
    for (uint32_t i = 0; i < 200; i += 2) {
        double own = 0.03 * (double)reserve(f, 1, i, i % 100), behind = 0.03 * (double)reserve(f, 1, i + 1, (i + 1) % 100);
        pass(f, 12 + own);
        first_token(f, i);
        pass(f, behind);
        first_token(f, i + 1);
        end(f, i);
        end(f, i + 1);
    }
    kvr_router_ttft_model(f->r, NULL, &m, NULL);
    assert_true(fabs(m.token_ms - 0.03) < 0.003);
    assert_true(m.ahead_ms > 0.02); /* a token ahead is a token to wait for */
}

static void reports_that_say_nothing_of_times_teach_nothing(void **s)
{
    struct fixture *f = *s;
    struct kvr_ttft_model m;
    struct kvr_generation_model g;
    struct kvr_override untracked = {.set = KVR_OVERRIDE_TRACK_PREFILL_TOKENS};
    char id[16];
    struct kvr_router_request rq = request(f, id, 1, 1);
    rq.override = &untracked;
    assert_int_equal(kvr_router_add_request(f->r, f->ctx, &rq, (struct kvr_worker){1, 0}, 0), 0);
    pass(f, 100);
    first_token(f, 1);
    output_blocks(f, 1, 5); /* one report: from when to when is not known */
    end(f, 1);
    (void)reserve(f, 1, 2, 3); /* ends without a first token */
    pass(f, 100);
    end(f, 2);
    kvr_router_ttft_model(f->r, NULL, &m, NULL);
    kvr_router_generation_model(f->r, &g);
    assert_int_equal(m.observations + g.observations, 0);
}

static void who_tells_of_times_is_not_counted_twice(void **s)
{
    struct fixture *f = *s;
    struct kvr_ttft_model m;
    one_reported(f, 1);
    kvr_router_ttft_model(f->r, NULL, &m, NULL);
    assert_int_equal(m.observations, 0);
}

/* Most of what varies is what is read: reading is 50 times faster than computing, and neither is taken for the other. */
static void a_fleet_that_mostly_reads_learns_what_reading_and_computing_take(void **s)
{
    struct fixture *f = *s;
    struct kvr_rng rng = {11};
    struct kvr_router_result res = ask(f, 1, 1);
    struct kvr_ttft_model m;
    end(f, 1);
    for (int i = 0; i < 600; i++) {
        assert_int_equal(kvr_router_ttft_model(f->r, NULL, &m, NULL), 0);
        uint32_t computed = 16 * (1 + kvr_rng_below(&rng, 20)), blocks = kvr_rng_below(&rng, 500), read = blocks * BLOCK;
        uint64_t held = read, worth = (uint64_t)((1 - m.share[KVR_TIER_HOST_PINNED]) * read);
        res.tier_blocks[KVR_TIER_HOST_PINNED] = blocks;
        res.held_tokens = held;
        res.cached_tokens = worth;
        res.prefill_tokens = computed + held - worth;
        kvr_router_observe_ttft(f->r, &res, 20 + 0.1 * computed + 0.002 * read + kvr_rng_below(&rng, 4));
    }
    assert_int_equal(kvr_router_ttft_model(f->r, NULL, &m, NULL), 0);
    if (!(fabs(m.token_ms - 0.1) < 0.02 && m.share[KVR_TIER_HOST_PINNED] < 0.04))
        fail_msg("computing a token %g ms, reading one %g of that", m.token_ms, m.share[KVR_TIER_HOST_PINNED]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(terms_are_those_that_the_choice_was_made_by),
        T(siblings_join_the_worker_that_computes_their_prefix),
        T(a_failed_first_sibling_leaves_nothing_pending),
        T(engines_that_cache_nothing_get_no_siblings),
        T(a_hot_prefix_gets_more_holders),
        T(a_burst_alone_makes_no_copy),
        T(demand_that_lasts_as_long_as_computing_makes_copies),
        T(affinity_yields_to_long_queues_only),
        T(a_cache_that_evicts_makes_new_blocks_dear),
        T(with_nothing_learnt_it_still_chooses_well),
        T(untracked_books_fall_back_to_the_request_itself),
        T(prompts_booked_by_another_router_are_pending),
        T_REPORTS(reports_of_bookings_teach_the_times),
        T_REPORTS(a_report_counts_what_was_ahead),
        T_REPORTS(reports_that_say_nothing_of_times_teach_nothing),
        T(who_tells_of_times_is_not_counted_twice),
        T(a_fleet_that_mostly_reads_learns_what_reading_and_computing_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
