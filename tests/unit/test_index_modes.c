/* SPDX-License-Identifier: Apache-2.0 */
/* Modes of the index side by side: capacities, the byte cap, predictions and events together, vector and portable
 * paths, running out of memory at every moment, growth and giving memory back. KVR_SEED, KVR_OPS as in
 * test_index_random.c. */
#include "test.h"

#include <kvroute/hash.h>
#include <kvroute/index.h>
#include "index/internal.h"

static void check(struct kvr_index *ix)
{
    const char *why = NULL;
    if (!kvr_index_validate(ix, &why)) fail_msg("%s", why);
}

static void vector_and_portable_paths_agree(void **)
{
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    const struct simd *best = kvr__simd_best(), *plain = &kvr__simd_portable;
    uint64_t a[100], b[100];
    for (int round = 0; round < 200000; round++) {
        size_t n = kvr_rng_below(&rng, 100), off = kvr_rng_below(&rng, 4);
        n = n > off ? n - off : 0;
        for (size_t i = 0; i < 100; i++) a[i] = b[i] = kvr_rng_below(&rng, 50) * UINT64_C(0x100000001);
        if (kvr_rng_below(&rng, 4)) b[kvr_rng_below(&rng, 100)] ^= UINT64_C(1) << kvr_rng_below(&rng, 64);
        assert_int_equal(best->common(a + off, b + off, n), plain->common(a + off, b + off, n));
        uint64_t v = kvr_rng_below(&rng, 60) * UINT64_C(0x100000001);
        assert_int_equal(best->find_last(a + off, n, v), plain->find_last(a + off, n, v));
    }
}

/* ---- a world of chains ---------------------------------------------------------------------------------------- */

enum { DEEP = 40, HEADS = 6 };

/* Chain h branches from chain h - 1 at depth 10: local hashes and names of its blocks. */
static uint64_t local_at(uint32_t h, uint32_t i)
{
    while (h && i < 10) h--;
    return kvr_mix64(h * 1000 + i + 1);
}

static uint64_t name_at(uint64_t worker, uint32_t h, uint32_t i, bool own)
{
    return kvr_mix64(local_at(h, i) ^ (own ? worker << 50 : 0) ^ (h && i >= 10 ? 0 : 7));
}

static int store_chain(struct kvr_index *ix, struct kvr_worker w, uint32_t h, uint32_t from, uint32_t to, bool own)
{
    struct kvr_block b[DEEP];
    for (uint32_t i = from; i < to; i++) b[i - from] = (struct kvr_block){name_at(w.worker_id, h, i, own), local_at(h, i)};
    struct kvr_event ev = {.worker = w,
                           .kind = KVR_EVENT_STORED,
                           .has_parent = from > 0,
                           .parent_hash = from ? name_at(w.worker_id, h, from - 1, own) : 0,
                           .blocks = b,
                           .blocks_n = to - from};
    return kvr_index_apply(ix, &ev);
}

static int remove_at(struct kvr_index *ix, struct kvr_worker w, uint32_t h, uint32_t i, bool own)
{
    uint64_t name = name_at(w.worker_id, h, i, own);
    struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    return kvr_index_apply(ix, &ev);
}

static uint32_t depth_of(struct kvr_index_reader *rd, struct kvr_worker w, uint32_t h)
{
    uint64_t q[DEEP];
    struct kvr_overlap out[64];
    for (uint32_t i = 0; i < DEEP; i++) q[i] = local_at(h, i);
    long n = kvr_index_match(rd, q, DEEP, out, 64);
    assert_true(n >= 0);
    for (long i = 0; i < n; i++)
        if (kvr_worker_cmp(out[i].worker, w) == 0) return out[i].depth;
    return 0;
}

/* ---- capacities ------------------------------------------------------------------------------------------------ */

/* Over capacity, the oldest go: nobody exceeds it, nothing is held that was not stored, what was used last stays. */
static void capacities_are_kept_and_recent_blocks_stay(void **)
{
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    struct kvr_index_config c = {.rank_capacity = 60, .lanes = 2};
    uint32_t stored[4][HEADS] = {{0}};
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
    assert_int_equal(kvr_index_set_capacity(ix, (struct kvr_worker){3, 0}, 25), 0);
    for (uint64_t op = 0; op < env_u64("KVR_OPS", 300000) / 10; op++) {
        struct kvr_worker w = {kvr_rng_below(&rng, 4), 0};
        uint32_t h = kvr_rng_below(&rng, HEADS), to = 1 + kvr_rng_below(&rng, w.worker_id == 3 ? 20 : DEEP);
        assert_int_equal(store_chain(ix, w, h, 0, to, w.worker_id == 2), 0);
        assert_int_equal(depth_of(rd, w, h) >= to, 1);
        for (uint32_t x = 0; x < HEADS; x++) { /* blocks below 10 are those of the chains before */
            uint32_t shared = x > h ? KVR_MIN(to, 10u) : x == h ? to : KVR_MIN(to, 10u);
            stored[w.worker_id][x] = KVR_MAX(stored[w.worker_id][x], shared);
            assert_true(depth_of(rd, w, x) <= stored[w.worker_id][x]);
        }
        assert_true(kvr_index_rank_blocks(ix, w) <= (w.worker_id == 3 ? 25 : 60));
        if (op % 1000 == 0) check(ix);
    }
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    assert_true(st.evicted_capacity > 0);
    check(ix);
    kvr_index_destroy(ix);
}

static void capacity_needs_stamps(void **)
{
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    assert_int_equal(kvr_index_set_capacity(ix, (struct kvr_worker){1, 0}, 5), -KVR_EUNSUPPORTED);
    kvr_index_destroy(ix);
}

static void the_byte_cap_can_be_lowered(void **)
{
    struct kvr_index *ix;
    struct kvr_index_stats st;
    struct kvr_index_config c = {.bytes_max = 8 << 20, .lanes = 2};
    struct kvr_index_reader *rd;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    assert_int_equal(kvr_index_set_bytes_max(ix, 1 << 20), -KVR_EUNSUPPORTED);
    kvr_index_destroy(ix);
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    for (size_t cap = 8 << 20; cap >= 256 << 10; cap /= 2) {
        assert_int_equal(kvr_index_set_bytes_max(ix, cap), 0);
        for (uint32_t w = 0; w < 40; w++)
            for (uint32_t h = 0; h < HEADS; h++) (void)store_chain(ix, (struct kvr_worker){w, 0}, h, 0, DEEP, true);
        kvr_index_stats(ix, &st);
        assert_true(st.bytes <= cap);
        check(ix);
    }
    assert_true(st.evicted_bytes > 0);
    kvr_index_set_bytes_max(ix, 64 << 10);
    assert_int_equal(kvr_index_reader_create(ix, &rd), 0); /* larger than the cap, and not refused */
    check(ix);
    kvr_index_destroy(ix);
}

/* Stores that the cap has no room for, by little or by much: told so, and what went in is found. Decisions among them. */
static void a_store_that_the_cap_has_no_room_for_ends(void **)
{
    enum { LONG = 3000 };
    static uint64_t locals[LONG], seq[LONG];
    static struct kvr_block b[LONG];
    for (int decisions = 0; decisions <= 2; decisions++)
        for (size_t cap = 50000, fitted = 0; fitted < 4; cap += 3000) {
            struct failing_alloc fa = {.fail_at = -1};
            struct kvr_index_config c = {
                .alloc = &(struct kvr_alloc){failing_resize, &fa}, .ttl_ns = 1000000000, .bytes_max = cap, .lanes = 1};
            struct kvr_index *ix;
            struct kvr_index_reader *rd;
            struct kvr_overlap out[4];
            int rc = 0;
            assert_int_equal(kvr_index_create(&c, &ix), 0);
            assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
            for (uint64_t e = 0; e < 12; e++) {
                size_t n = e % 3 == 2 ? LONG : 200;
                struct kvr_worker w = {e % 2, 0};
                for (size_t i = 0; i < n; i++) locals[i] = kvr_mix64(e << 32 | i);
                kvr_hash_sequence(locals, n, seq);
                for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){seq[i], locals[i]};
                struct kvr_event ev = {.worker = w, .blocks = b, .blocks_n = n};
                bool decision = decisions == 2 || (decisions && e % 4 == 1);
                rc = decision ? kvr_index_record(ix, w, locals, n, seq, n) : kvr_index_apply(ix, &ev);
                assert_true(rc == 0 || rc == -KVR_ENOMEM);
                long found = kvr_index_match(rd, locals, n, out, 4);
                assert_true(rc ? found <= 1 : found == 1 && out[0].depth == n);
                check(ix);
            }
            fitted += rc == 0;
            kvr_index_destroy(ix);
            assert_int_equal(fa.live, 0);
        }
}

/* ---- everything at once ------------------------------------------------------------------------------------------ */

/* Events, decisions, expiry, capacities and a byte cap in one index; names shared and own. What is checked: nothing
 * is held that nobody stored, and every invariant. */
static void all_modes_together(void **)
{
    for (uint32_t lanes = 1; lanes <= 3; lanes += 2) {
        struct kvr_rng rng = {env_u64("KVR_SEED", 1) + lanes};
        struct kvr_index *ix;
        struct kvr_index_reader *rd;
        struct failing_alloc fa = {.fail_at = -1};
        uint64_t now = 0, q[DEEP], seq[DEEP];
        struct kvr_index_config c = {.alloc = &(struct kvr_alloc){failing_resize, &fa},
                                     .clock = &(struct kvr_clock){manual_now, &now},
                                     .ttl_ns = 500,
                                     .predicted_max = 60,
                                     .bytes_max = 700000 * lanes,
                                     .rank_capacity = 2000,
                                     .lanes = lanes};
        assert_int_equal(kvr_index_create(&c, &ix), 0);
        assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
        uint64_t ops = env_u64("KVR_OPS", 300000) / 4;
        for (uint64_t op = 0; op < ops; op++) {
            struct kvr_worker w = {kvr_rng_below(&rng, 6), 0};
            uint32_t what = kvr_rng_below(&rng, 100), h = kvr_rng_below(&rng, HEADS), to = 1 + kvr_rng_below(&rng, DEEP);
            bool own = w.worker_id >= 4;
            now += kvr_rng_below(&rng, 10);
            if (what < 35) {
                (void)store_chain(ix, w, h, 0, to, own);
            } else if (what < 45) {
                uint32_t from = kvr_rng_below(&rng, to);
                (void)store_chain(ix, w, h, from, to, own);
            } else if (what < 65) {
                (void)remove_at(ix, w, h, to - 1, own);
            } else if (what < 85) {
                for (uint32_t i = 0; i < to; i++) q[i] = local_at(h, i);
                kvr_hash_sequence(q, to, seq);
                (void)kvr_index_record(ix, w, q, to, seq, to);
            } else if (what < 95) {
                uint64_t junk = kvr_rng_next(&rng);
                struct kvr_block b = {junk, junk ^ 5};
                struct kvr_event ev = {.worker = {10 + junk % 3, 0}, .kind = KVR_EVENT_STORED, .blocks = &b, .blocks_n = 1};
                (void)kvr_index_apply(ix, &ev);
            } else if (what < 98) {
                (void)kvr_index_expire(ix);
            } else if (what < 99) {
                struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_CLEARED};
                assert_int_equal(kvr_index_apply(ix, &ev), 0);
                for (uint32_t x = 0; x < HEADS; x++) assert_int_equal(depth_of(rd, w, x), 0);
            } else {
                kvr_index_remove_worker(ix, w.worker_id);
            }
            assert_true(fa.live <= 700000 * lanes);
            if (op % 2000 == 0) check(ix);
        }
        check(ix);
        struct kvr_index_stats st;
        kvr_index_stats(ix, &st);
        assert_int_equal(st.bytes, fa.live);
        assert_true(st.expired > 0 && st.pruned > 0);
        kvr_index_destroy(ix);
        assert_int_equal(fa.live, 0);
    }
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

/* Allocations fail at random for a while: invariants hold, giving up always works, and all memory comes back. */
static void memory_may_fail_at_any_moment(void **)
{
    for (uint64_t seed = 1; seed <= 30; seed++) {
        struct kvr_rng rng = {seed + env_u64("KVR_SEED", 1) * 1000};
        struct failing_alloc fa = {.fail_at = -1};
        struct kvr_index_config c = {.alloc = &(struct kvr_alloc){failing_resize, &fa}, .lanes = 1 + seed % 2};
        struct kvr_index *ix;
        struct kvr_index_reader *rd;
        assert_int_equal(kvr_index_create(&c, &ix), 0);
        assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
        for (int op = 0; op < 2000; op++) {
            struct kvr_worker w = {kvr_rng_below(&rng, 6), 0};
            uint32_t h = kvr_rng_below(&rng, HEADS), to = 1 + kvr_rng_below(&rng, DEEP);
            bool own = kvr_rng_below(&rng, 2);
            fa.calls = 0;
            fa.fail_at = kvr_rng_below(&rng, 3) ? (long)kvr_rng_below(&rng, 6) : -1;
            if (kvr_rng_below(&rng, 10) < 7) {
                int rc = store_chain(ix, w, h, 0, to, own);
                assert_true(rc == 0 || rc == -KVR_ENOMEM);
                if (rc == 0) assert_true(depth_of(rd, w, h) >= to);
            } else {
                int rc = remove_at(ix, w, h, to - 1, own);
                assert_true(rc == 0 || rc == -KVR_ENOTFOUND);
            }
            if (op % 50 == 0) check(ix);
        }
        fa.fail_at = 0; /* not one allocation more */
        fa.calls = 0;
        for (uint64_t v = 0; v < 6; v++) {
            struct kvr_event ev = {.worker = {v, 0}, .kind = KVR_EVENT_CLEARED};
            assert_int_equal(kvr_index_apply(ix, &ev), 0);
            for (uint32_t h = 0; h < HEADS; h++) assert_int_equal(depth_of(rd, ev.worker, h), 0);
        }
        fa.fail_at = -1;
        check(ix);
        kvr_index_destroy(ix);
        assert_int_equal(fa.live, 0);
    }
}

/* The name table through all its sizes and back, with many names: found, then gone, then the memory. */
static void tables_grow_and_shrink(void **)
{
    enum { N = 400000 };
    struct kvr_index *ix;
    struct kvr_index_stats st;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    kvr_index_stats(ix, &st);
    size_t empty = st.bytes;
    for (uint64_t i = 0; i < N; i += 8) {
        struct kvr_block b[8];
        for (uint64_t j = 0; j < 8; j++) b[j] = (struct kvr_block){i + j + 1, kvr_mix64(i + j)}; /* names: small numbers */
        struct kvr_event ev = {.worker = {i / 8 % 5, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = 8};
        assert_int_equal(kvr_index_apply(ix, &ev), 0);
    }
    check(ix);
    kvr_index_stats(ix, &st);
    assert_int_equal(st.blocks, N);
    assert_true(st.bytes < N * 60);
    for (uint64_t i = 0; i < N; i++) { /* deepest first */
        uint64_t name = i / 8 * 8 + 8 - i % 8;
        struct kvr_event ev = {.worker = {(name - 1) / 8 % 5, 0}, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
        assert_int_equal(kvr_index_apply(ix, &ev), 0);
        if (i % 100000 == 0) check(ix);
    }
    (void)kvr_index_expire(ix);
    (void)kvr_index_expire(ix);
    kvr_index_stats(ix, &st);
    assert_int_equal(st.blocks, 0);
    assert_true(st.bytes < empty + 200000);
    kvr_index_destroy(ix);
}

/* Chains of many names, of which two workers hold what they like: the tables grow, shrink and grow again meanwhile, by ends of
 * chains, by pieces of them and by their heads. */
enum { CHAINS = 40000, LINKS = 12, HOLDERS = 2 };

static uint64_t link_name(uint32_t chain, uint32_t i)
{
    return kvr_mix64((uint64_t)chain << 8 | i) | 1;
}

static void set_chain(struct kvr_index *ix, struct kvr_rng *rng, uint64_t w, uint32_t chain, uint8_t *held, uint32_t to)
{
    struct kvr_block b[LINKS];
    uint64_t gone[LINKS], parent = *held ? link_name(chain, *held - 1u) : 0;
    struct kvr_event ev = {.worker = {w, 0}};
    if (to > *held) {
        for (uint32_t i = *held; i < to; i++) b[i - *held] = (struct kvr_block){link_name(chain, i), kvr_mix64(link_name(chain, i))};
        ev.kind = KVR_EVENT_STORED;
        ev.has_parent = *held > 0;
        ev.parent_hash = parent;
        ev.blocks = b;
        ev.blocks_n = to - *held;
    } else {
        bool head = kvr_rng_below(rng, 4) == 0; /* one name, and all behind it goes */
        for (uint32_t i = to; i < *held; i++) gone[i - to] = link_name(chain, head ? i : *held - 1 - (i - to));
        ev.kind = KVR_EVENT_REMOVED;
        ev.removed = gone;
        ev.removed_n = head && *held > to ? 1 : *held - to;
    }
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
    *held = (uint8_t)to;
}

static void many_names_come_and_go(void **)
{
    static const uint32_t most_kept[] = {1, 12, 6, 1, 12, 2, 0}; /* of a chain, on the whole, by phase */
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    uint8_t(*held)[HOLDERS] = calloc(CHAINS, sizeof *held);
    struct kvr_index *ix;
    struct kvr_index_stats st;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (size_t phase = 0; phase < KVR_ARRAY_LEN(most_kept); phase++) {
        for (uint32_t op = 0; op < 3 * CHAINS; op++) {
            uint32_t chain = kvr_rng_below(&rng, CHAINS), w = kvr_rng_below(&rng, 8) == 0, most = most_kept[phase];
            set_chain(ix, &rng, w, chain, &held[chain][w], most ? most - kvr_rng_below(&rng, KVR_MIN(most, 4u)) : 0);
        }
        size_t blocks = 0;
        for (uint32_t c = 0; c < CHAINS; c++)
            for (uint32_t w = 0; w < HOLDERS; w++) {
                struct kvr_worker who = {w, 0};
                uint32_t n = held[c][w];
                blocks += n;
                assert_true(n == 0 || kvr_index_holds(ix, who, KVR_TIER_DEVICE, link_name(c, n - 1)));
                assert_true(n == LINKS || !kvr_index_holds(ix, who, KVR_TIER_DEVICE, link_name(c, n)));
            }
        kvr_index_stats(ix, &st);
        assert_int_equal(st.blocks, blocks);
        check(ix);
    }
    kvr_index_destroy(ix);
    free(held);
}

/* Hundreds of workers that use one name for different blocks: right answers, whatever it costs. */
static void one_name_for_many_blocks(void **)
{
    enum { N = 600 };
    struct kvr_index *ix;
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    for (uint64_t w = 0; w < N; w++) {
        struct kvr_block b[2] = {{1, kvr_mix64(w)}, {2, 5}};
        struct kvr_event ev = {.worker = {w, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = 2};
        assert_int_equal(kvr_index_apply(ix, &ev), 0);
    }
    check(ix);
    for (uint64_t w = 0; w < N; w += 2) {
        uint64_t name = 2;
        struct kvr_event ev = {.worker = {w, 0}, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
        assert_int_equal(kvr_index_apply(ix, &ev), 0);
    }
    for (uint64_t w = 0; w < N; w++) assert_int_equal(kvr_index_rank_blocks(ix, (struct kvr_worker){w, 0}), 1 + w % 2);
    check(ix);
    kvr_index_destroy(ix);
}

static void lanes_are_sticky_and_balanced(void **)
{
    struct kvr_index *ix;
    struct kvr_index_config c = {.lanes = 4};
    uint32_t n[4] = {0}, lane[40];
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    for (uint32_t w = 0; w < 40; w++) { /* first sight by an event, a decision or a question */
        struct kvr_worker who = {w, 0};
        if (w % 3 == 0) assert_int_equal(store_chain(ix, who, 0, 0, 5, false), 0);
        else if (w % 3 == 1) assert_int_equal(kvr_index_record(ix, who, &(uint64_t){1}, 1, &(uint64_t){1}, 1), 0);
        lane[w] = kvr_index_lane(ix, who);
        n[lane[w]]++;
    }
    for (int i = 0; i < 4; i++) assert_int_equal(n[i], 10);
    for (uint32_t w = 0; w < 40; w++) assert_int_equal(kvr_index_lane(ix, (struct kvr_worker){w, 0}), lane[w]);
    kvr_index_remove_worker(ix, 3);
    assert_int_equal(kvr_index_rank_blocks(ix, (struct kvr_worker){3, 0}), 0);
    assert_int_equal(kvr_index_lane(ix, (struct kvr_worker){100, 0}), lane[3]); /* the lane with room */
    check(ix);
    kvr_index_destroy(ix);
}

static void limits_are_errors(void **)
{
    struct kvr_index *ix;
    struct kvr_index_config c = {.ranks_max = 3};
    assert_int_equal(kvr_index_create(&(struct kvr_index_config){.lanes = 65}, &ix), -KVR_EINVAL);
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    for (uint64_t w = 0; w < 3; w++) assert_int_equal(store_chain(ix, (struct kvr_worker){w, 0}, 0, 0, 3, false), 0);
    assert_int_equal(store_chain(ix, (struct kvr_worker){3, 0}, 0, 0, 3, false), -KVR_ECAPACITY);
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    assert_int_equal(st.no_room, 1);
    kvr_index_remove_worker(ix, 1);
    assert_int_equal(store_chain(ix, (struct kvr_worker){3, 0}, 0, 0, 3, false), 0);
    kvr_index_destroy(ix);
}

/* A batch is the same as its events one by one, errors included. */
static void a_batch_equals_its_events(void **)
{
    enum { N = 1500 };
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    struct kvr_event *ev = calloc(N, sizeof *ev);
    struct kvr_block *b = calloc(N * 4, sizeof *b);
    uint64_t *names = calloc(N, sizeof *names);
    int rc[N];
    for (uint32_t lanes = 1; lanes <= 3; lanes++) {
        struct kvr_index_config c = {.lanes = lanes};
        struct kvr_index *one, *all;
        assert_int_equal(kvr_index_create(&c, &one), 0);
        assert_int_equal(kvr_index_create(&c, &all), 0);
        for (int round = 0; round < 20; round++) {
            size_t bad = 0;
            for (int i = 0; i < N; i++) {
                ev[i] = (struct kvr_event){.worker = {kvr_rng_below(&rng, 7), kvr_rng_below(&rng, 2)}};
                uint32_t kind = kvr_rng_below(&rng, 100);
                names[i] = 1 + kvr_rng_below(&rng, 60);
                if (kind < 60) {
                    ev[i].kind = KVR_EVENT_STORED;
                    ev[i].has_parent = kvr_rng_below(&rng, 3) != 0;
                    ev[i].parent_hash = names[i];
                    ev[i].blocks = b + i * 4;
                    ev[i].blocks_n = 1 + kvr_rng_below(&rng, 4);
                    for (int j = 0; j < 4; j++) b[i * 4 + j] = (struct kvr_block){1 + kvr_rng_below(&rng, 60), kvr_rng_below(&rng, 5)};
                } else if (kind < 99) {
                    ev[i].kind = KVR_EVENT_REMOVED;
                    ev[i].removed = &names[i];
                    ev[i].removed_n = 1;
                } else {
                    ev[i].kind = KVR_EVENT_CLEARED;
                    ev[i].tier = kvr_rng_below(&rng, 5) ? KVR_TIER_DEVICE : KVR_TIER_DISK;
                }
            }
            size_t batch_bad = kvr_index_apply_batch(all, ev, N, rc);
            for (int i = 0; i < N; i++) {
                int want = kvr_index_apply(one, &ev[i]);
                assert_int_equal(rc[i], want);
                bad += want != 0;
            }
            assert_int_equal(batch_bad, bad);
            struct kvr_index_stats x, y;
            kvr_index_stats(one, &x);
            kvr_index_stats(all, &y);
            assert_int_equal(x.blocks, y.blocks);
            assert_int_equal(x.nodes, y.nodes);
            assert_int_equal(x.aliases, y.aliases);
            check(all);
        }
        kvr_index_destroy(one);
        kvr_index_destroy(all);
    }
    free(ev);
    free(b);
    free(names);
}

/* ---- frequencies --------------------------------------------------------------------------------------------------- */

static void frequencies_count_uses_within_the_window(void **)
{
    enum { MOST = 4000 };
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    struct kvr_index *ix;
    uint64_t now = 0, at[MOST];
    uint8_t path[MOST][3];
    size_t n = 0;
    struct kvr_index_config c = {.clock = &(struct kvr_clock){manual_now, &now}, .frequency_window_ns = 50};
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    while (n < MOST) {
        uint64_t q[3];
        uint32_t f[3], want[3] = {0};
        now += kvr_rng_below(&rng, 5);
        at[n] = now;
        for (int i = 0; i < 3; i++) q[i] = path[n][i] = (uint8_t)(1 + kvr_rng_below(&rng, 2));
        for (size_t j = 0; j < n; j++)
            for (int i = 0; i < 3; i++) want[i] += now - at[j] < 50 && memcmp(path[j], path[n], (size_t)i + 1) == 0;
        assert_int_equal(kvr_index_use(ix, q, 3, f), 0);
        for (int i = 0; i < 3; i++) assert_int_equal(f[i], want[i]);
        n++;
    }
    kvr_index_destroy(ix);
    assert_int_equal(kvr_index_create(NULL, &ix), 0);
    assert_int_equal(kvr_index_use(ix, NULL, 0, NULL), -KVR_EUNSUPPORTED);
    kvr_index_destroy(ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vector_and_portable_paths_agree),
        cmocka_unit_test(capacities_are_kept_and_recent_blocks_stay),
        cmocka_unit_test(capacity_needs_stamps),
        cmocka_unit_test(the_byte_cap_can_be_lowered),
        cmocka_unit_test(a_store_that_the_cap_has_no_room_for_ends),
        cmocka_unit_test(all_modes_together),
        cmocka_unit_test(memory_may_fail_at_any_moment),
        cmocka_unit_test(tables_grow_and_shrink),
        cmocka_unit_test(many_names_come_and_go),
        cmocka_unit_test(one_name_for_many_blocks),
        cmocka_unit_test(lanes_are_sticky_and_balanced),
        cmocka_unit_test(limits_are_errors),
        cmocka_unit_test(a_batch_equals_its_events),
        cmocka_unit_test(frequencies_count_uses_within_the_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
