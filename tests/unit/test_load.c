/* SPDX-License-Identifier: Apache-2.0 */
/* Active sequences: the upstream assertions, and a random run against a naive recount. */
#include "test.h"

#include <math.h>
#include <kvroute/load.h>

struct fixture {
    struct kvr_load *ld;
    struct failing_alloc fa;
    uint64_t now;
};

static int setup(void **s)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->fa.fail_at = -1;
    struct kvr_alloc a = {failing_resize, &f->fa};
    assert_int_equal(kvr_load_create(&a, &f->ld), 0);
    for (uint64_t w = 1; w <= 3; w++) assert_int_equal(kvr_load_set_worker(f->ld, w, 0, 1), 0);
    *s = f;
    return 0;
}

static int teardown(void **s)
{
    struct fixture *f = *s;
    const char *why = NULL;
    if (!kvr_load_validate(f->ld, &why)) fail_msg("%s", why);
    assert_int_equal(kvr_load_bytes(f->ld), f->fa.live);
    kvr_load_destroy(f->ld);
    assert_int_equal(f->fa.live, 0);
    free(f);
    return 0;
}

static int add(struct fixture *f, const char *id, uint64_t w, const uint64_t *seqs, size_t n, uint64_t prefill)
{
    struct kvr_load_request r = {.id = id, .id_len = strlen(id), .worker = {w, 0}, .seqs = seqs, .seqs_n = n, .prefill_tokens = prefill};
    return kvr_load_add(f->ld, &r);
}

static struct kvr_rank_load get(struct fixture *f, uint64_t w)
{
    struct kvr_rank_load l;
    assert_int_equal(kvr_load_get(f->ld, (size_t)kvr_load_slot_of(f->ld, (struct kvr_worker){w, 0}), f->now, &l), 0);
    return l;
}

#define S(...)      (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / 8
#define FREE(f, id) kvr_load_free((f)->ld, id, strlen(id), (f)->now)

static void shared_blocks_count_once(void **s)
{
    struct fixture *f = *s;
    add(f, "a", 1, S(1, 2, 3), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 3);
    add(f, "b", 1, S(4), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 4);
    add(f, "c", 1, S(1, 2, 3, 5), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 5);
    FREE(f, "a");
    assert_int_equal(get(f, 1).active_decode_blocks, 5);
    FREE(f, "c");
    assert_int_equal(get(f, 1).active_decode_blocks, 1);
    FREE(f, "b");
    assert_int_equal(get(f, 1).active_decode_blocks, 0);
    assert_int_equal(get(f, 1).active_requests, 0);
}

static void projection_is_a_prefix_not_a_set(void **s)
{
    struct fixture *f = *s;
    uint32_t depth[3];
    add(f, "a", 1, S(1, 2, 4, 5), 0);
    kvr_load_project(f->ld, S(1, 2, 3, 5), depth);
    assert_int_equal(depth[0], 2);
    assert_int_equal(get(f, 1).active_decode_blocks + 4 - depth[0], 6);
    kvr_load_project(f->ld, S(2, 4), depth);
    assert_int_equal(depth[0], 0);
}

static void ranks_do_not_share(void **s)
{
    struct fixture *f = *s;
    uint32_t depth[3];
    add(f, "a", 1, S(1, 2, 3), 0);
    add(f, "b", 2, S(1, 2, 9), 0);
    kvr_load_project(f->ld, S(1, 2, 3, 4), depth);
    assert_int_equal(depth[0], 3);
    assert_int_equal(depth[1], 2);
    assert_int_equal(depth[2], 0);
    FREE(f, "a");
    kvr_load_project(f->ld, S(1, 2, 3, 4), depth);
    assert_int_equal(depth[0], 0);
    assert_int_equal(depth[1], 2);
}

static void prefill_goes_with_the_first_token(void **s)
{
    struct fixture *f = *s;
    add(f, "a", 1, S(1), 100);
    add(f, "b", 1, S(2), 50);
    assert_int_equal(get(f, 1).active_prefill_tokens, 150);
    assert_int_equal(kvr_load_prefill_done(f->ld, "a", 1, f->now), 0);
    assert_int_equal(kvr_load_prefill_done(f->ld, "a", 1, f->now), 0);
    assert_int_equal(get(f, 1).active_prefill_tokens, 50);
    FREE(f, "b");
    assert_int_equal(get(f, 1).active_prefill_tokens, 0);
    assert_int_equal(kvr_load_prefill_done(f->ld, "zz", 2, f->now), -KVR_ENOTFOUND);
}

static void duplicate_ids_change_nothing(void **s)
{
    struct fixture *f = *s;
    add(f, "a", 1, S(1, 2), 10);
    assert_int_equal(add(f, "a", 2, S(7, 8, 9), 99), -KVR_EEXISTS);
    assert_int_equal(get(f, 1).active_decode_blocks, 2);
    assert_int_equal(get(f, 2).active_decode_blocks, 0);
}

static void bad_requests_are_refused(void **s)
{
    struct fixture *f = *s;
    char longid[300];
    memset(longid, 'x', 299);
    longid[299] = 0;
    assert_int_equal(add(f, "", 1, S(1), 0), -KVR_EINVAL);
    assert_int_equal(add(f, longid, 1, S(1), 0), -KVR_EINVAL);
    assert_int_equal(add(f, "a", 99, S(1), 0), -KVR_ENOTFOUND);
    assert_int_equal(FREE(f, "nobody"), -KVR_ENOTFOUND);
    assert_int_equal(kvr_load_set_worker(f->ld, 5, 0, 0), -KVR_EINVAL);
    assert_int_equal(kvr_load_set_worker(f->ld, 5, UINT32_MAX, 2), -KVR_EINVAL);
    assert_int_equal(kvr_load_set_worker(f->ld, 5, 0, 5000), -KVR_ELIMIT);
}

static void double_free_is_harmless(void **s)
{
    struct fixture *f = *s;
    add(f, "a", 1, S(1, 2), 10);
    assert_int_equal(FREE(f, "a"), 0);
    assert_int_equal(FREE(f, "a"), -KVR_ENOTFOUND);
    assert_int_equal(get(f, 1).active_decode_blocks, 0);
}

static void output_blocks_are_unique(void **s)
{
    struct fixture *f = *s;
    add(f, "a", 1, S(1, 2), 0);
    assert_int_equal(kvr_load_output_blocks(f->ld, "a", 1, 1, -1, f->now), 0);
    assert_int_equal(kvr_load_output_blocks(f->ld, "a", 1, 1, -1, f->now), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 4);
    assert_int_equal(kvr_load_output_blocks(f->ld, "q", 1, 1, -1, f->now), -KVR_ENOTFOUND);
    FREE(f, "a");
    assert_int_equal(get(f, 1).active_decode_blocks, 0);
}

static void private_blocks_cost_no_hashes(void **s)
{
    struct fixture *f = *s;
    size_t before = kvr_load_bytes(f->ld);
    struct kvr_load_request r = {.id = "a", .id_len = 1, .worker = {1, 0}, .private_blocks = 1000000};
    assert_int_equal(kvr_load_add(f->ld, &r), 0);
    r.id = "b";
    assert_int_equal(kvr_load_add(f->ld, &r), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 2000000);
    assert_true(kvr_load_bytes(f->ld) < before + 4096);
}

static void removing_a_worker_drops_its_requests(void **s)
{
    struct fixture *f = *s;
    add(f, "a", 1, S(1, 2), 10);
    add(f, "b", 2, S(1, 2), 10);
    kvr_load_remove_worker(f->ld, 1);
    assert_int_equal(kvr_load_slot_of(f->ld, (struct kvr_worker){1, 0}), -KVR_ENOTFOUND);
    assert_int_equal(FREE(f, "a"), -KVR_ENOTFOUND);
    kvr_load_set_worker(f->ld, 1, 0, 1);
    assert_int_equal(get(f, 1).active_decode_blocks, 0);
    assert_int_equal(get(f, 2).active_decode_blocks, 2);
}

static void rank_range_can_change(void **s)
{
    struct fixture *f = *s;
    assert_int_equal(kvr_load_set_worker(f->ld, 1, 0, 4), 0);
    assert_true(kvr_load_slot_of(f->ld, (struct kvr_worker){1, 3}) >= 0);
    assert_int_equal(kvr_load_set_worker(f->ld, 1, 2, 2), 0);
    assert_int_equal(kvr_load_slot_of(f->ld, (struct kvr_worker){1, 0}), -KVR_ENOTFOUND);
    assert_true(kvr_load_slot_of(f->ld, (struct kvr_worker){1, 2}) >= 0);
}

static void stale_requests_expire_oldest_first(void **s)
{
    struct fixture *f = *s;
    for (uint64_t i = 0; i < 5; i++) {
        char id[2] = {(char)('a' + i), 0};
        struct kvr_load_request r = {.id = id, .id_len = 1, .worker = {1, 0}, .private_blocks = 1, .now_ns = i * 10};
        kvr_load_add(f->ld, &r);
    }
    assert_int_equal(kvr_load_expire(f->ld, 20, f->now, NULL, NULL), 2);
    assert_int_equal(get(f, 1).active_requests, 3);
    assert_int_equal(kvr_load_expire(f->ld, 1000, f->now, NULL, NULL), 3);
}

static void every_allocation_may_fail(void **)
{
    for (long at = 0; at < 60; at++) {
        struct fixture f = {.fa.fail_at = at};
        struct kvr_alloc a = {failing_resize, &f.fa};
        const char *why;
        if (kvr_load_create(&a, &f.ld)) continue;
        for (uint64_t w = 1; w <= 3; w++) kvr_load_set_worker(f.ld, w, 0, 2);
        add(&f, "a", 1, S(1, 2, 3, 4), 5);
        add(&f, "b", 1, S(1, 2, 9), 5);
        add(&f, "c", 2, S(1, 7), 5);
        FREE(&f, "a");
        assert_true(kvr_load_validate(f.ld, &why));
        kvr_load_destroy(f.ld);
        assert_int_equal(f.fa.live, 0);
    }
}

/* Chains over a small alphabet, compared with a recount from scratch. */
static void random_operations_equal_a_recount(void **s)
{
    struct fixture *f = *s;
    enum { LIVE = 40, LEN = 8 };
    struct {
        bool used;
        bool generating;
        uint64_t w, seq[LEN];
        size_t n;
    } live[LIVE] = {0};
    struct kvr_rng rng = {7};
    for (int op = 0; op < 30000; op++) {
        uint32_t i = kvr_rng_below(&rng, LIVE);
        char id[8];
        snprintf(id, sizeof id, "r%u", i);
        if (live[i].used && kvr_rng_below(&rng, 2)) { /* twice is fine */
            assert_int_equal(kvr_load_prefill_done(f->ld, id, strlen(id), f->now), 0);
            live[i].generating = true;
        } else if (live[i].used) {
            assert_int_equal(FREE(f, id), 0);
            live[i].used = false;
        } else {
            live[i].generating = false;
            live[i].used = true;
            live[i].w = 1 + kvr_rng_below(&rng, 3);
            live[i].n = kvr_rng_below(&rng, LEN + 1);
            uint64_t h = 0;
            for (size_t k = 0; k < live[i].n; k++) live[i].seq[k] = h = kvr_mix64(h * 3 + kvr_rng_below(&rng, 2) + 1);
            assert_int_equal(add(f, id, live[i].w, live[i].seq, live[i].n, 1), 0);
        }
        uint64_t q[LEN], h = 0;
        for (size_t k = 0; k < LEN; k++) q[k] = h = kvr_mix64(h * 3 + kvr_rng_below(&rng, 2) + 1);
        uint32_t depth[3];
        kvr_load_project(f->ld, q, LEN, depth);
        for (uint64_t w = 1; w <= 3; w++) {
            uint64_t seen[LIVE * LEN];
            size_t n = 0, best = 0, requests = 0;
            for (int r = 0; r < LIVE; r++) {
                if (!live[r].used || live[r].w != w) continue;
                requests++;
                size_t same = 0;
                while (same < live[r].n && live[r].seq[same] == q[same]) same++;
                if (same > best) best = same;
                for (size_t k = 0; k < live[r].n; k++) {
                    size_t j = 0;
                    while (j < n && seen[j] != live[r].seq[k]) j++;
                    if (j == n) seen[n++] = live[r].seq[k];
                }
            }
            assert_int_equal(get(f, w).active_decode_blocks, n);
            assert_int_equal(get(f, w).active_requests, requests);
            assert_int_equal(depth[kvr_load_slot_of(f->ld, (struct kvr_worker){w, 0})], best);
        }
        struct kvr_load_stretch s_of[LEN];
        size_t stretches = kvr_load_stretches(f->ld, q, LEN, s_of, LEN), at_s = 0;
        for (size_t k = 0; k < LEN; k++) { /* block by block: who generates and shares the prompt up to it */
            uint32_t sharing = 0, all = 0;
            for (int r = 0; r < LIVE; r++) {
                bool shares = live[r].used && live[r].n > k && memcmp(live[r].seq, q, (k + 1) * sizeof *q) == 0;
                sharing += shares && live[r].generating;
                all += shares;
            }
            while (at_s < stretches && s_of[at_s].end <= k) at_s++;
            assert_int_equal(at_s < stretches ? s_of[at_s].generating : 0, sharing);
            assert_int_equal(at_s < stretches ? s_of[at_s].waiting : 0, all - sharing);
        }
    }
}

static int add_timed(struct fixture *f, const char *id, uint64_t tokens, bool has, uint64_t seconds)
{
    struct kvr_load_request r = {.id = id,
                                 .id_len = strlen(id),
                                 .worker = {1, 0},
                                 .prefill_tokens = tokens,
                                 .has_duration = has,
                                 .prefill_ns = seconds * 1000000000,
                                 .now_ns = f->now};
    return kvr_load_add(f->ld, &r);
}

static void at(struct fixture *f, double seconds)
{
    f->now = (uint64_t)(seconds * 1e9);
}

static void prefill_decays_over_its_duration(void **s)
{
    struct fixture *f = *s;
    add_timed(f, "a", 100, true, 10);
    assert_int_equal(get(f, 1).active_prefill_tokens, 100);
    at(f, 5);
    assert_int_equal(get(f, 1).active_prefill_tokens, 50);
    at(f, 50);
    assert_int_equal(get(f, 1).active_prefill_tokens, 0);
}

static void decay_runs_on_into_later_prefills(void **s)
{
    struct fixture *f = *s;
    add_timed(f, "a", 100, true, 10);
    add_timed(f, "b", 100, true, 10);
    at(f, 15);
    assert_int_equal(get(f, 1).active_prefill_tokens, 50);
    kvr_load_prefill_done(f->ld, "a", 1, f->now); /* b is anchored now */
    assert_int_equal(get(f, 1).active_prefill_tokens, 100);
    at(f, 20);
    assert_int_equal(get(f, 1).active_prefill_tokens, 50);
}

static void only_the_anchor_decays_beside_unknown_durations(void **s)
{
    struct fixture *f = *s;
    add_timed(f, "a", 100, true, 10);
    add_timed(f, "b", 70, false, 0);
    at(f, 5);
    assert_int_equal(get(f, 1).active_prefill_tokens, 120);
    at(f, 500);
    assert_int_equal(get(f, 1).active_prefill_tokens, 70);
    kvr_load_prefill_done(f->ld, "a", 1, f->now); /* the anchor has no duration: static */
    at(f, 5000);
    assert_int_equal(get(f, 1).active_prefill_tokens, 70);
}

static void a_duration_of_zero_counts_as_finished(void **s)
{
    struct fixture *f = *s;
    add_timed(f, "a", 100, true, 0);
    assert_int_equal(get(f, 1).active_prefill_tokens, 0);
    add_timed(f, "b", 70, false, 0);
    assert_int_equal(get(f, 1).active_prefill_tokens, 70);
}

static void the_new_oldest_is_anchored_afresh(void **s)
{
    struct fixture *f = *s;
    add_timed(f, "a", 10, true, 100);
    add_timed(f, "b", 30, true, 100);
    at(f, 50);
    FREE(f, "a");
    at(f, 70);
    assert_int_equal(get(f, 1).active_prefill_tokens, 24); /* 30 tokens over 100 s, 20 s on */
}

/* The worked example of the reference. */
static void fractions_weigh_what_only_one_request_holds(void **s)
{
    struct fixture *f = *s;
    add(f, "r1", 1, S(1, 2, 3), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 3);
    assert_int_equal(kvr_load_output_blocks(f->ld, "r1", 2, 1, 0.5, 0), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 2);
    add(f, "r2", 1, S(1, 2), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 2);
    assert_int_equal(kvr_load_output_blocks(f->ld, "r1", 2, 1, 0, 0), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 1);
    FREE(f, "r1");
    FREE(f, "r2");
    assert_int_equal(get(f, 1).active_decode_blocks, 0);
    add(f, "r3", 1, S(9), 0);
    assert_int_equal(kvr_load_output_blocks(f->ld, "r3", 2, 1, 1.5, 0), -KVR_EINVAL);
    assert_int_equal(kvr_load_output_blocks(f->ld, "r3", 2, 1, NAN, 0), -KVR_EINVAL);
    assert_int_equal(kvr_load_output_blocks(f->ld, "r3", 2, 3, -1, 0), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 4);
}

static void a_life_sign_renews_the_lease_and_guarded_ones_need_none(void **s)
{
    struct fixture *f = *s;
    struct kvr_load_request r = {.id = "g", .id_len = 1, .worker = {1, 0}, .guarded = true};
    kvr_load_add(f->ld, &r);
    for (uint64_t i = 0; i < 3; i++) {
        char id[2] = {(char)('a' + i), 0};
        r = (struct kvr_load_request){.id = id, .id_len = 1, .worker = {1, 0}, .now_ns = 10};
        kvr_load_add(f->ld, &r);
    }
    assert_int_equal(kvr_load_touch(f->ld, "a", 1, 500), 0);
    assert_int_equal(kvr_load_output_blocks(f->ld, "b", 1, 1, -1, 600), 0);
    assert_int_equal(kvr_load_expire(f->ld, 400, 600, NULL, NULL), 1); /* c */
    assert_int_equal(kvr_load_touch(f->ld, "c", 1, 700), -KVR_ENOTFOUND);
    assert_int_equal(kvr_load_expire(f->ld, 550, 600, NULL, NULL), 1); /* a */
    assert_int_equal(kvr_load_expire(f->ld, UINT64_MAX, 600, NULL, NULL), 1);
    assert_int_equal(get(f, 1).active_requests, 1);
    r = (struct kvr_load_request){.id = "a", .id_len = 1, .worker = {1, 0}}; /* expire, then add again */
    assert_int_equal(kvr_load_add(f->ld, &r), 0);
}

static int count_entry(void *ctx, const struct kvr_load_entry *e)
{
    uint64_t seqs[8], *sum = ctx;
    kvr_load_seqs(e, seqs);
    for (size_t i = 0; i < e->request.seqs_n; i++) sum[0] += seqs[i] * (i + 1);
    sum[1] += e->request.prefill_tokens;
    sum[2] += e->output_blocks;
    return 0;
}

static void owners_are_told_apart(void **s)
{
    struct fixture *f = *s;
    uint64_t sum[3] = {0};
    add(f, "mine", 1, S(1, 2, 3), 7);
    add(f, "also", 2, S(1, 2, 9, 5), 0);
    kvr_load_output_blocks(f->ld, "also", 4, 2, -1, 0);
    struct kvr_load_request r = {
        .id = "theirs", .id_len = 6, .worker = {1, 0}, .seqs = (uint64_t[]){1, 8}, .seqs_n = 2, .owner = 5, .guarded = true};
    assert_int_equal(kvr_load_add(f->ld, &r), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 4);
    assert_int_equal(kvr_load_each(f->ld, 0, count_entry, sum), 0);
    assert_int_equal(sum[0], 1 + 4 + 9 + 1 + 4 + 27 + 20);
    assert_int_equal(sum[1], 7);
    assert_int_equal(sum[2], 2);
    assert_int_equal(kvr_load_free_owner(f->ld, 5, 0), 1);
    assert_int_equal(kvr_load_free_owner(f->ld, 5, 0), 0);
    assert_int_equal(get(f, 1).active_decode_blocks, 3);
}

/* Weights, durations, completions: against a recount from scratch, to the block and the token. */
static void weighted_operations_equal_a_recount(void **s)
{
    struct fixture *f = *s;
    enum { LIVE = 24, LEN = 6 };
    struct live {
        bool used;
        uint64_t seq[LEN], out, prefill;
        size_t n;
    } live[LIVE] = {0};
    struct {
        uint64_t hash;
        double weight;
    } blocks[4096]; /* every block active now, with its weight; outputs are per request */
    double out_weight[LIVE] = {0};
    size_t blocks_n = 0;
    struct kvr_rng rng = {env_u64("KVR_SEED", 3)};
    for (uint64_t op = 0, ops = env_u64("KVR_OPS", 40000); op < ops; op++) {
        uint32_t i = kvr_rng_below(&rng, LIVE), what = kvr_rng_below(&rng, 4);
        struct live *l = &live[i];
        char id[8];
        snprintf(id, sizeof id, "r%u", i);
        if (!l->used) {
            *l = (struct live){.used = true, .n = kvr_rng_below(&rng, LEN + 1), .prefill = kvr_rng_below(&rng, 100)};
            uint64_t h = 0;
            for (size_t k = 0; k < l->n; k++) {
                l->seq[k] = h = kvr_mix64(h * 3 + kvr_rng_below(&rng, 2) + 1);
                size_t b = 0;
                while (b < blocks_n && blocks[b].hash != h) b++;
                if (b == blocks_n) blocks[blocks_n].hash = h, blocks[blocks_n++].weight = 1;
            }
            out_weight[i] = 0;
            assert_int_equal(add(f, id, 1, l->seq, l->n, l->prefill), 0);
        } else if (what == 0) {
            l->used = false;
            assert_int_equal(FREE(f, id), 0);
            for (size_t b = 0; b < blocks_n;) {
                bool held = false;
                for (int r = 0; r < LIVE; r++)
                    for (size_t k = 0; live[r].used && k < live[r].n; k++) held |= live[r].seq[k] == blocks[b].hash;
                if (held) b++;
                else blocks[b] = blocks[--blocks_n];
            }
        } else if (what == 1) {
            l->prefill = 0;
            assert_int_equal(kvr_load_prefill_done(f->ld, id, strlen(id), 0), 0);
        } else {
            double fraction = what == 2 ? -1 : (double)kvr_rng_below(&rng, 5) / 4; /* exact in binary */
            l->out++;
            assert_int_equal(kvr_load_output_blocks(f->ld, id, strlen(id), 1, fraction, 0), 0);
            if (fraction < 0) {
                out_weight[i] += 1;
            } else {
                out_weight[i] = (double)l->out * fraction;
                for (size_t b = 0; b < blocks_n; b++) {
                    int holders = 0;
                    bool mine = false;
                    for (int r = 0; r < LIVE; r++)
                        for (size_t k = 0; live[r].used && k < live[r].n; k++)
                            if (live[r].seq[k] == blocks[b].hash) holders++, mine |= r == (int)i;
                    if (mine && holders == 1) blocks[b].weight = fraction;
                }
            }
        }
        double sum = 0;
        uint64_t prefill = 0;
        for (size_t b = 0; b < blocks_n; b++) sum += blocks[b].weight;
        for (int r = 0; r < LIVE; r++)
            if (live[r].used) sum += out_weight[r], prefill += live[r].prefill;
        assert_int_equal(get(f, 1).active_decode_blocks, (uint64_t)floor(sum + 0.5));
        assert_int_equal(get(f, 1).active_prefill_tokens, prefill);
    }
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(shared_blocks_count_once),
        T(projection_is_a_prefix_not_a_set),
        T(ranks_do_not_share),
        T(prefill_goes_with_the_first_token),
        T(duplicate_ids_change_nothing),
        T(bad_requests_are_refused),
        T(double_free_is_harmless),
        T(output_blocks_are_unique),
        T(private_blocks_cost_no_hashes),
        T(removing_a_worker_drops_its_requests),
        T(rank_range_can_change),
        T(stale_requests_expire_oldest_first),
        cmocka_unit_test(every_allocation_may_fail),
        T(random_operations_equal_a_recount),
        T(prefill_decays_over_its_duration),
        T(decay_runs_on_into_later_prefills),
        T(only_the_anchor_decays_beside_unknown_durations),
        T(a_duration_of_zero_counts_as_finished),
        T(the_new_oldest_is_anchored_afresh),
        T(fractions_weigh_what_only_one_request_holds),
        T(a_life_sign_renews_the_lease_and_guarded_ones_need_none),
        T(owners_are_told_apart),
        T(weighted_operations_equal_a_recount),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
