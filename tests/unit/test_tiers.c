/* SPDX-License-Identifier: Apache-2.0 */
/* Lower tiers of the index: against a naive model, in chunks, told in any order, shared, bounded. */
#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "base/lower.h"
#include "test.h"

static int replay(void *ctx, const struct kvr_event *ev)
{
    return kvr_index_apply(ctx, ev);
}

/* What a rank reaches of a prompt, by the two calls a router makes. */
static struct kvr_reach reach_of(struct kvr_index *ix, struct kvr_index_reader *rd, uint64_t worker, const uint64_t *q, size_t n)
{
    struct kvr_overlap found[64];
    struct kvr_reach out[64];
    uint64_t prefixes[256];
    kvr_hash_sequence(q, n, prefixes);
    long k = kvr_index_match(rd, q, n, found, 64);
    assert_true(k >= 0);
    k = kvr_index_match_tiers(rd, found, (size_t)k, prefixes, n, out, 64);
    assert_true(k >= 0 && (size_t)k <= kvr_index_ranks(ix));
    for (long i = 0; i < k; i++)
        if (out[i].worker.worker_id == worker) return out[i];
    return (struct kvr_reach){.worker = {worker, 0}};
}

/* ---- against a model --------------------------------------------------------------------------------------------- */

/* All prompts of up to DEEP blocks of three kinds: a node is a path in base 4, 0 the start; each rank has a name of its own for it. */
enum { RANKS = 3, DEEP = 6, NODES = 4096, TIERS = 3 };

struct model {
    bool device[NODES], known[NODES];
    uint32_t tier[TIERS][NODES];
    bool remembers;
};

static uint64_t name_of(uint32_t rank, uint32_t node)
{
    return (uint64_t)node * 1000 + rank;
}

static uint32_t random_node(struct kvr_rng *rng)
{
    uint32_t node = 0, deep = 1 + kvr_rng_below(rng, DEEP);
    for (uint32_t i = 0; i < deep; i++) node = node * 4 + 1 + kvr_rng_below(rng, 3);
    return node;
}

static bool has_place(const struct model *m, uint32_t node)
{
    bool any = m->device[node] || m->known[node];
    for (int t = 0; t < TIERS; t++) any |= m->tier[t][node] > 0;
    return any;
}

/* Blocks to..node, the ones behind `from`. */
static size_t chain_to(uint32_t rank, uint32_t from, uint32_t node, struct kvr_block *b)
{
    uint32_t path[DEEP];
    size_t n = 0;
    for (uint32_t at = node; at != from; at /= 4) path[n++] = at;
    for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){name_of(rank, path[n - 1 - i]), path[n - 1 - i] % 4};
    return n;
}

static void store_on_device(struct kvr_index *ix, struct model *m, uint32_t rank, uint32_t node)
{
    struct kvr_block b[DEEP];
    uint32_t from = node;
    while (from && !m->device[from]) from /= 4;
    struct kvr_event ev = {.worker = {rank, 0}, .has_parent = from != 0, .parent_hash = from ? name_of(rank, from) : 0, .blocks = b};
    ev.blocks_n = chain_to(rank, from, node, b);
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
    for (uint32_t at = node; at != from; at /= 4) m->device[at] = true;
}

/* With everything behind it. */
static void remove_from_device(struct kvr_index *ix, struct model *m, uint32_t rank, uint32_t node)
{
    uint64_t name = name_of(rank, node);
    struct kvr_event ev = {.worker = {rank, 0}, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    assert_int_equal(kvr_index_apply(ix, &ev), m->device[node] ? 0 : -KVR_ENOTFOUND);
    for (uint32_t x = 1; m->device[node] && x < NODES; x++) {
        uint32_t at = x;
        while (at && at != node) at /= 4;
        if (at != node || !m->device[x] || x == node) continue;
        m->device[x] = false;
        m->known[x] |= m->remembers;
    }
    m->known[node] |= m->device[node] && m->remembers;
    m->device[node] = false;
}

static void store_by_name(struct kvr_index *ix, struct model *m, uint32_t rank, uint32_t tier, uint32_t node, uint32_t copies)
{
    struct kvr_block b = {name_of(rank, node), 77};
    struct kvr_event ev = {.worker = {rank, 0}, .tier = (enum kvr_tier)(tier + 1), .blocks = &b, .blocks_n = 1};
    ev.lower = (struct kvr_lower){.names_only = true, .copies = copies};
    bool known = has_place(m, node);
    assert_int_equal(kvr_index_apply(ix, &ev), known ? 0 : -KVR_ENOTFOUND);
    m->remembers = true;
    if (known) m->tier[tier][node] = m->tier[tier][node] ? m->tier[tier][node] + copies : KVR_MAX(copies, 1u);
}

static void store_with_tokens(struct kvr_index *ix, struct model *m, uint32_t rank, uint32_t tier, uint32_t from, uint32_t node)
{
    struct kvr_block b[DEEP];
    struct kvr_event ev = {.worker = {rank, 0}, .tier = (enum kvr_tier)(tier + 1), .has_parent = from != 0, .blocks = b};
    ev.parent_hash = from ? name_of(rank, from) : 0;
    ev.blocks_n = chain_to(rank, from, node, b);
    bool known = from == 0 || has_place(m, from);
    assert_int_equal(kvr_index_apply(ix, &ev), known ? 0 : -KVR_EPARENT);
    m->remembers = true;
    for (uint32_t at = node; known && at != from; at /= 4) m->tier[tier][at] = KVR_MAX(m->tier[tier][at], 1u);
}

static void remove_from_tier(struct kvr_index *ix, struct model *m, uint32_t rank, uint32_t tier, uint32_t node)
{
    uint64_t name = name_of(rank, node);
    struct kvr_event ev = {
        .worker = {rank, 0}, .tier = (enum kvr_tier)(tier + 1), .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    assert_int_equal(kvr_index_apply(ix, &ev), 0);
    m->remembers = true;
    if (m->tier[tier][node] && --m->tier[tier][node] == 0) m->known[node] = true;
}

static void compare(struct kvr_index *ix, struct kvr_index_reader *rd, const struct model *m, uint32_t rank, uint32_t node)
{
    uint64_t q[DEEP];
    uint32_t path[DEEP], n = 0, at = 0, read[KVR_TIER_COUNT] = {0};
    for (uint32_t x = node; x; x /= 4) n++;
    for (uint32_t x = node, i = n; i-- > 0; x /= 4) q[i] = x % 4, path[i] = x;
    while (at < n && m[rank].device[path[at]]) at++;
    read[0] = at;
    for (uint32_t t = 0; at < n && t < TIERS; t++)
        if (m[rank].tier[t][path[at]]) read[t + 1]++, at++, t = UINT32_MAX;
    struct kvr_reach r = reach_of(ix, rd, rank, q, n);
    for (uint32_t t = 0, sum = 0; t < KVR_TIER_COUNT; t++) assert_int_equal(r.depth[t], sum += read[t]);
}

static void tiers_equal_a_model(void **)
{
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    struct kvr_index *ix, *copy;
    struct kvr_index_reader *rd, *copy_rd;
    const char *why = "";
    uint64_t now = 0;
    struct model *m = calloc(RANKS, sizeof *m);
    struct kvr_index_config c = {.lanes = 2, .clock = &(struct kvr_clock){manual_now, &now}};
    assert_int_equal(kvr_index_create(&c, &ix), 0);
    assert_int_equal(kvr_index_reader_create(ix, &rd), 0);
    for (uint64_t op = 0; op < env_u64("KVR_OPS", 300000); op++) {
        uint32_t rank = kvr_rng_below(&rng, RANKS), tier = kvr_rng_below(&rng, TIERS), what = kvr_rng_below(&rng, 1000);
        uint32_t node = random_node(&rng), from = node;
        for (uint32_t up = 1 + kvr_rng_below(&rng, 3); from && up; up--) from /= 4;
        if (what < 200) store_on_device(ix, &m[rank], rank, node);
        else if (what < 400) remove_from_device(ix, &m[rank], rank, node);
        else if (what < 500) store_by_name(ix, &m[rank], rank, tier, node, kvr_rng_below(&rng, 2));
        else if (what < 600) store_with_tokens(ix, &m[rank], rank, tier, from, node);
        else if (what < 750) remove_from_tier(ix, &m[rank], rank, tier, node);
        else if (what == 750) {
            struct kvr_event ev = {.worker = {rank, 0}, .kind = KVR_EVENT_CLEARED};
            assert_int_equal(kvr_index_apply(ix, &ev), 0);
            bool remembers = m[rank].remembers;
            m[rank] = (struct model){.remembers = remembers};
        } else compare(ix, rd, m, rank, node);
    }
    assert_int_equal(kvr_index_create(NULL, &copy), 0); /* dumps carry the tiers, with places and copies */
    assert_int_equal(kvr_index_reader_create(copy, &copy_rd), 0);
    assert_int_equal(kvr_index_dump(ix, NULL, replay, copy), 0);
    for (int i = 0; i < 2000; i++) {
        uint32_t rank = kvr_rng_below(&rng, RANKS), tier = kvr_rng_below(&rng, TIERS);
        remove_from_tier(copy, &m[rank], rank, tier, random_node(&rng));
        compare(copy, copy_rd, m, kvr_rng_below(&rng, RANKS), random_node(&rng));
    }
    assert_true(kvr_index_validate(ix, &why));
    for (uint64_t v = 0; v < RANKS; v++) kvr_index_remove_worker(ix, v);
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    assert_int_equal(st.lower_tier_blocks + st.blocks, 0);
    kvr_index_destroy(copy);
    kvr_index_destroy(ix);
    free(m);
}

/* ---- small scenes ------------------------------------------------------------------------------------------------ */

struct scene {
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    uint64_t now;
    struct kvr_clock clock;
};

static void begin(struct scene *s, struct kvr_index_config c)
{
    s->now = 0;
    s->clock = (struct kvr_clock){manual_now, &s->now};
    c.clock = &s->clock;
    assert_int_equal(kvr_index_create(&c, &s->ix), 0);
    assert_int_equal(kvr_index_reader_create(s->ix, &s->rd), 0);
}

/* Blocks first..last of the prompt 1, 2, 3 ... by worker w; block i has the name 100 + i. */
static int tell(struct scene *s, uint64_t w, enum kvr_tier tier, enum kvr_event_kind kind, uint64_t first, uint64_t last,
                struct kvr_lower lower)
{
    struct kvr_block b[64];
    uint64_t names[64];
    size_t n = (size_t)(last - first + 1);
    for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){100 + first + i, first + i};
    for (size_t i = 0; i < n; i++) names[i] = 100 + first + i;
    struct kvr_event ev = {.worker = {w, 0}, .tier = tier, .kind = kind, .blocks = b, .blocks_n = n, .removed = names, .removed_n = n};
    ev.has_parent = first > 1;
    ev.parent_hash = 99 + first;
    ev.lower = lower;
    if (lower.names_only) ev.has_parent = false;
    return kvr_index_apply(s->ix, &ev);
}

#define STORED  KVR_EVENT_STORED
#define REMOVED KVR_EVENT_REMOVED
#define GPU     KVR_TIER_DEVICE
#define CPU     KVR_TIER_HOST_PINNED
static const struct kvr_lower PLAIN, NAMES = {.names_only = true, .apart = true, .learns = true, .copies = 1},
                                     CHUNK = {.learns = true, .copies = 1}, COPY = {.copies = 1};

static void reaches(struct scene *s, uint64_t w, size_t n, uint32_t device, uint32_t all)
{
    uint64_t q[64];
    for (size_t i = 0; i < n; i++) q[i] = i + 1;
    struct kvr_reach r = reach_of(s->ix, s->rd, w, q, n);
    assert_int_equal(r.depth[GPU], device);
    assert_int_equal(r.depth[KVR_TIER_EXTERNAL], all);
}

static void a_copy_is_told_after_its_device_block_has_gone(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 8, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 1, 1, NAMES), 0); /* from here on names that leave are remembered */
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 3, 8, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 2, 5, NAMES), 0);
    reaches(&s, 1, 8, 2, 5);
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 1, 2, PLAIN), 0);
    reaches(&s, 1, 8, 0, 5);
    s.now += UINT64_C(61000000000); /* the memory of names is short */
    (void)kvr_index_expire(s.ix);
    assert_int_equal(tell(&s, 1, CPU, STORED, 6, 6, NAMES), -KVR_ENOTFOUND);
    reaches(&s, 1, 8, 0, 5);
    struct kvr_tier_status st[KVR_TIER_COUNT];
    kvr_index_tier_status(s.ix, (struct kvr_worker){1, 0}, st);
    assert_true(st[CPU].blocks == 5 && st[CPU].unplaced == 1 && st[CPU].chunk == 1);
    kvr_index_destroy(s.ix);
}

static void a_prefix_that_ends_inside_a_chunk_is_not_read(void **)
{
    struct scene s;
    for (int names = 0; names < 2; names++) {
        begin(&s, (struct kvr_index_config){0});
        assert_int_equal(tell(&s, 1, GPU, STORED, 1, 32, PLAIN), 0);
        for (uint64_t end = 4; end <= 24; end += 4) /* chunks of 4 */
            assert_int_equal(tell(&s, 1, CPU, STORED, names ? end : end - 3, end, names ? NAMES : CHUNK), 0);
        assert_int_equal(tell(&s, 1, GPU, REMOVED, 7, 32, PLAIN), 0);
        reaches(&s, 1, 32, 6, 24); /* from the middle of the second chunk on */
        reaches(&s, 1, 11, 6, 6);  /* two blocks more are less than a chunk */
        reaches(&s, 1, 15, 6, 12);
        assert_int_equal(tell(&s, 1, CPU, REMOVED, names ? 16 : 13, 16, PLAIN), 0);
        reaches(&s, 1, 32, 6, 12);
        kvr_index_destroy(s.ix);
    }
}

/* How long chunks are is not believed before it was seen some times: one end alone would make a chunk of whatever came first. */
static void a_chunk_is_believed_when_it_was_seen_some_times(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 32, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 8, 8, NAMES), 0);
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 1, 32, PLAIN), 0);
    reaches(&s, 1, 32, 0, 0);
    for (uint64_t end = 4; end <= 16; end += 4) assert_int_equal(tell(&s, 1, CPU, STORED, end, end, NAMES), 0);
    reaches(&s, 1, 32, 0, 16);
    kvr_index_destroy(s.ix);
}

/* Engines do not read what is quickly computed: where that is known, and in what is handed on, few blocks are nothing. */
static void few_blocks_behind_the_device_are_nothing(void **)
{
    struct scene s, copy;
    struct kvr_lower told = {.least = 3, .chunk = 1, .copies = 1}, read = {0};
    uint64_t words[KVR_LOWER_WORDS];
    kvr_lower_pack(&told, words);
    assert_true(kvr_lower_unpack(words, &read) && read.least == 3 && read.chunk == 1);
    begin(&s, (struct kvr_index_config){0});
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 16, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 1, 8, read), 0);
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 5, 16, PLAIN), 0);
    reaches(&s, 1, 16, 4, 8);
    reaches(&s, 1, 7, 4, 7);
    reaches(&s, 1, 6, 4, 4);
    begin(&copy, (struct kvr_index_config){0});
    assert_int_equal(kvr_index_dump(s.ix, NULL, replay, copy.ix), 0);
    reaches(&copy, 1, 7, 4, 7);
    reaches(&copy, 1, 6, 4, 4);
    kvr_index_destroy(copy.ix);
    assert_int_equal(tell(&s, 1, CPU, REMOVED, 7, 7, PLAIN), 0);
    reaches(&s, 1, 16, 4, 4);
    kvr_index_destroy(s.ix);
}

/* Blocks that two chunks share are announced with each, and removed with each. */
static void shared_blocks_of_chunks_are_counted(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    for (uint64_t end = 4; end <= 16; end += 4) assert_int_equal(tell(&s, 1, CPU, STORED, end - 3, end, CHUNK), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 1, 4, CHUNK), 0);
    assert_int_equal(tell(&s, 1, CPU, REMOVED, 1, 4, PLAIN), 0);
    reaches(&s, 1, 16, 0, 16);
    assert_int_equal(tell(&s, 1, CPU, REMOVED, 1, 4, PLAIN), 0);
    reaches(&s, 1, 16, 0, 0);
    kvr_index_destroy(s.ix);
}

/* Worker 1's host has blocks first..last of the prompt 1, 2, 3 ... as one chunk, whose name is its own: 9000 + last. */
static void tell_chunk(struct scene *s, uint64_t first, uint64_t last)
{
    struct kvr_block b[8];
    size_t n = (size_t)(last - first + 1);
    for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){i + 1 == n ? 9000 + last : 0, first + i};
    struct kvr_event ev = {.worker = {1, 0}, .tier = CPU, .blocks = b, .blocks_n = n, .has_parent = first > 1, .parent_hash = 8999 + first};
    ev.lower = (struct kvr_lower){.span = (uint32_t)n, .learns = true};
    assert_int_equal(kvr_index_apply(s->ix, &ev), 0);
}

/* One name for several blocks, by hashes of its own: found by what it is. */
static void foreign_names_are_matched_by_tokens(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 5, PLAIN), 0);
    for (uint64_t end = 8; end <= 32; end += 8) tell_chunk(&s, end - 7, end);
    reaches(&s, 1, 40, 5, 32);
    reaches(&s, 1, 30, 5, 24);
    reaches(&s, 1, 8, 5, 8); /* who has names of its own reads the rest of a chunk, too */
    struct kvr_tier_status st[KVR_TIER_COUNT];
    kvr_index_tier_status(s.ix, (struct kvr_worker){1, 0}, st);
    assert_true(st[CPU].chunk == 8 && st[CPU].blocks == 4 && !st[CPU].removes);
    kvr_index_destroy(s.ix);
}

/* The end of a prompt, kept as a chunk of fewer blocks: another prompt that goes on is not served from it, and chunks stay as long as they
 * are. */
static void the_end_of_a_prompt_is_no_chunk_for_others(void **)
{
    static const uint64_t chunks[][2] = {{1, 2}, {1, 8}, {9, 16}, {17, 18}, {17, 17}, {17, 24}}; /* first, last */
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 16, PLAIN), 0);
    for (size_t e = 0; e < KVR_ARRAY_LEN(chunks); e++) {
        tell_chunk(&s, chunks[e][0], chunks[e][1]);
        if (e == 4) reaches(&s, 1, 20, 16, 16);
    }
    reaches(&s, 1, 40, 16, 24);
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 1, 16, PLAIN), 0);
    reaches(&s, 1, 7, 0, 0);
    reaches(&s, 1, 40, 0, 24);
    kvr_index_destroy(s.ix);
}

/* However it was cleared: its engine may have started anew, with shorter chunks. */
static void a_cleared_tier_learns_its_chunks_anew(void **)
{
    struct scene s;
    for (int how = 0; how < 3; how++) {
        begin(&s, (struct kvr_index_config){0});
        for (uint64_t end = 8; end <= 16; end += 8) tell_chunk(&s, end - 7, end);
        reaches(&s, 1, 16, 0, 16);
        struct kvr_event ev = {.worker = {1, 0}, .tier = how == 0 ? GPU : CPU, .kind = KVR_EVENT_CLEARED};
        if (how < 2) assert_int_equal(kvr_index_apply(s.ix, &ev), 0);
        else kvr_index_remove_rank(s.ix, (struct kvr_worker){1, 0});
        reaches(&s, 1, 16, 0, 0);
        for (uint64_t end = 4; end <= 16; end += 4) tell_chunk(&s, end - 3, end);
        reaches(&s, 1, 16, 0, 16);
        reaches(&s, 1, 15, 0, 12);
        kvr_index_destroy(s.ix);
    }
}

static void what_no_removal_is_told_of_goes_with_time_and_number(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){.tier_blocks_max = 10, .tier_ttl_ns = UINT64_C(60000000000)});
    assert_int_equal(tell(&s, 1, KVR_TIER_DISK, STORED, 1, 16, PLAIN), 0);
    struct kvr_tier_status st[KVR_TIER_COUNT];
    kvr_index_tier_status(s.ix, (struct kvr_worker){1, 0}, st);
    assert_true(st[KVR_TIER_DISK].blocks == 10 && st[KVR_TIER_DISK].given_up == 6);
    assert_int_equal(tell(&s, 1, CPU, STORED, 1, 4, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, REMOVED, 4, 4, PLAIN), 0);
    s.now += UINT64_C(62000000000);
    (void)kvr_index_expire(s.ix);
    kvr_index_tier_status(s.ix, (struct kvr_worker){1, 0}, st);
    assert_true(st[KVR_TIER_DISK].blocks == 0 && st[CPU].blocks == 3); /* who tells of removals is believed for ever */
    kvr_index_destroy(s.ix);
}

static void what_one_stores_in_a_pool_all_can_read(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){.lanes = 2});
    for (uint64_t w = 1; w <= 3; w++) assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){w, 0}, w < 3 ? 7 : 0), 0);
    assert_int_equal(tell(&s, 2, GPU, STORED, 1, 2, PLAIN), 0);
    assert_int_equal(tell(&s, 3, GPU, STORED, 1, 2, PLAIN), 0);
    assert_int_equal(tell(&s, 1, KVR_TIER_EXTERNAL, STORED, 1, 6, PLAIN), 0);
    reaches(&s, 1, 8, 0, 6);
    reaches(&s, 2, 8, 2, 6);
    reaches(&s, 3, 8, 2, 2);
    kvr_index_remove_rank(s.ix, (struct kvr_worker){1, 0}); /* the pool outlives who filled it */
    reaches(&s, 2, 8, 2, 6);
    reaches(&s, 1, 8, 0, 6); /* who starts again with nothing can read it, */
    kvr_index_drop_rank(s.ix, (struct kvr_worker){2, 0});
    reaches(&s, 2, 8, 0, 6);
    assert_int_equal(tell(&s, 2, GPU, STORED, 1, 2, PLAIN), 0);
    reaches(&s, 2, 8, 2, 6);
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 1, PLAIN), 0); /* and who comes back is in it still */
    reaches(&s, 1, 8, 1, 6);
    kvr_index_remove_worker(s.ix, 1); /* who is another one is not */
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 1, PLAIN), 0);
    reaches(&s, 1, 8, 1, 1);
    assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){2, 0}, 0), 0);
    reaches(&s, 2, 8, 2, 2);
    kvr_index_destroy(s.ix);
}

/* What a member tells again after its view was dropped (its engine's replay) is no second copy. */
static void a_replay_is_no_second_copy_in_a_pool(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    for (uint64_t w = 1; w <= 2; w++) assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){w, 0}, 7), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tell(&s, 1, KVR_TIER_EXTERNAL, STORED, 1, 4, COPY), 0);
        reaches(&s, 2, 4, 0, 4);
        kvr_index_drop_rank(s.ix, (struct kvr_worker){1, 0});
    }
    assert_int_equal(tell(&s, 1, KVR_TIER_EXTERNAL, REMOVED, 1, 4, PLAIN), 0); /* by who has no rank at the moment */
    reaches(&s, 2, 4, 0, 0);
    kvr_index_destroy(s.ix);
}

/* Not all members tell of removals: time and answers count, too. */
static void one_removal_does_not_keep_a_pool_for_ever(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){.tier_ttl_ns = UINT64_C(60000000000)});
    uint64_t q[4] = {1, 2, 3, 4}, prefixes[4];
    kvr_hash_sequence(q, 4, prefixes);
    assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){1, 0}, 7), 0);
    assert_int_equal(tell(&s, 1, KVR_TIER_EXTERNAL, STORED, 1, 4, COPY), 0);
    assert_int_equal(tell(&s, 1, KVR_TIER_EXTERNAL, REMOVED, 4, 4, PLAIN), 0);
    assert_int_equal(kvr_index_fell_short(s.ix, (struct kvr_worker){1, 0}, prefixes, 2, 3), 1);
    reaches(&s, 1, 4, 0, 2);
    s.now += UINT64_C(62000000000);
    (void)kvr_index_expire(s.ix);
    reaches(&s, 1, 4, 0, 0);
    kvr_index_destroy(s.ix);
}

static struct kvr_index_stats stats_of(const struct scene *s)
{
    struct kvr_index_stats st;
    kvr_index_stats(s->ix, &st);
    return st;
}

/* More names than there are places, one after the other; then more at once. */
static void places_of_pools_are_given_back(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){0});
    for (uint64_t pool = 1; pool <= 200; pool++) {
        assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){1, 0}, pool), 0);
        reaches(&s, 1, 4, 0, 0); /* nothing of who had the place before */
        assert_int_equal(tell(&s, 1, KVR_TIER_EXTERNAL, STORED, 1, 4, COPY), 0);
        reaches(&s, 1, 4, 0, 4);
        kvr_index_remove_worker(s.ix, 1);
    }
    assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){1, 0}, 1), 0); /* an abandoned name is a new one */
    reaches(&s, 1, 4, 0, 0);
    (void)kvr_index_expire(s.ix);
    assert_int_equal(stats_of(&s).lower_tier_blocks, 0);
    uint64_t w = 2;
    while (kvr_index_set_pool(s.ix, (struct kvr_worker){w, 0}, w) == 0) w++;
    assert_int_equal(w, 65);
    assert_int_equal(stats_of(&s).ranks, 64); /* who is refused leaves nothing */
    kvr_index_destroy(s.ix);
}

static void tell_many_of(struct scene *s, uint64_t worker, enum kvr_tier tier, uint64_t n)
{
    for (uint64_t i = 1; i <= n; i++) {
        struct kvr_block b = {i, i};
        struct kvr_event ev = {.worker = {worker, 0}, .tier = tier, .blocks = &b, .blocks_n = 1};
        assert_int_equal(kvr_index_apply(s->ix, &ev), 0);
    }
}

static void tell_many(struct scene *s, enum kvr_tier tier, uint64_t n)
{
    tell_many_of(s, 1, tier, n);
}

/* Whatever is full first; of the pools the newest blocks stay, when the cap is lowered, too. */
static void pools_keep_to_the_byte_cap(void **)
{
    enum { MANY = 100000, CAP = 8 << 20 };
    for (int device = 0; device < 3; device++) {
        struct scene s;
        begin(&s, (struct kvr_index_config){.bytes_max = CAP});
        if (device == 1) tell_many(&s, GPU, MANY);
        assert_int_equal(kvr_index_set_pool(s.ix, (struct kvr_worker){1, 0}, 7), 0);
        tell_many(&s, KVR_TIER_EXTERNAL, MANY);
        if (device == 2) tell_many(&s, GPU, MANY);
        assert_true(stats_of(&s).bytes <= CAP + CAP / 64);
        assert_int_equal(kvr_index_holds(s.ix, (struct kvr_worker){1, 0}, KVR_TIER_EXTERNAL, MANY), 1);
        assert_int_equal(kvr_index_holds(s.ix, (struct kvr_worker){1, 0}, KVR_TIER_EXTERNAL, 1), 0);
        size_t before = stats_of(&s).lower_tier_blocks;
        assert_int_equal(kvr_index_set_bytes_max(s.ix, CAP / 2), 0);
        if (!device) {
            assert_true(stats_of(&s).bytes <= CAP / 2 && stats_of(&s).lower_tier_blocks >= before / 4);
            assert_int_equal(kvr_index_holds(s.ix, (struct kvr_worker){1, 0}, KVR_TIER_EXTERNAL, MANY), 1);
        }
        kvr_index_destroy(s.ix);
    }
}

static void at_the_byte_cap_the_oldest_of_a_tier_go(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){.bytes_max = 4 << 20});
    tell_many(&s, CPU, 100000);
    assert_int_equal(kvr_index_holds(s.ix, (struct kvr_worker){1, 0}, CPU, 100000), 1);
    assert_int_equal(kvr_index_holds(s.ix, (struct kvr_worker){1, 0}, CPU, 1), 0);
    assert_true(stats_of(&s).bytes <= 4 << 20);
    kvr_index_destroy(s.ix);
}

static bool has_in_host(const struct scene *s, uint64_t worker, uint64_t name)
{
    bool named = kvr_index_holds(s->ix, (struct kvr_worker){worker, 0}, CPU, name);
    assert_int_equal(reach_of(s->ix, s->rd, worker, &name, 1).depth[CPU], named);
    return named;
}

/* One engine's large host took the memory that the device blocks of all others, and their hosts, would have needed. */
static void a_large_host_leaves_room_for_others(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){.bytes_max = 4 << 20});
    tell_many_of(&s, 1, CPU, 100000);
    size_t alone = stats_of(&s).lower_tier_blocks;
    tell_many_of(&s, 2, GPU, 10000);
    assert_int_equal(stats_of(&s).blocks, 10000);
    assert_int_equal(stats_of(&s).lower_tier_blocks, alone);
    tell_many_of(&s, 3, CPU, 2000);
    for (uint64_t i = 1; i <= 2000; i++) assert_true(has_in_host(&s, 3, i));
    assert_int_equal(stats_of(&s).lower_tier_blocks, alone);
    assert_true(has_in_host(&s, 1, 100000));
    kvr_index_destroy(s.ix);
}

/* Hosts are as full as they may be: as before, a block that has just left the device finds its place in the host. */
static void a_full_host_takes_what_leaves_the_device(void **)
{
    struct scene s;
    begin(&s, (struct kvr_index_config){.bytes_max = 4 << 20});
    tell_many_of(&s, 1, CPU, 100000);
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 60, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 1, 1, NAMES), 0); /* from here on names that leave are remembered */
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 1, 60, PLAIN), 0);
    for (uint64_t i = 60; i > 1; i--) assert_int_equal(tell(&s, 1, CPU, STORED, i, i, NAMES), 0);
    reaches(&s, 1, 60, 0, 60);
    kvr_index_destroy(s.ix);
}

/* Memory of hosts comes back, what stays is the newest of each, and a walk that is under way misses none of it. */
static void a_lower_cap_takes_the_older_half_of_hosts(void **)
{
    enum { MANY = 20000, CAP = 12 << 20 };
    struct scene s, copy;
    struct kvr_index_walk *walk;
    bool more = true;
    uint64_t from[3] = {0, 1, 1};
    begin(&s, (struct kvr_index_config){.bytes_max = CAP});
    begin(&copy, (struct kvr_index_config){0});
    for (uint64_t w = 1; w <= 2; w++) tell_many_of(&s, w, CPU, MANY);
    assert_true(has_in_host(&s, 1, 1) && has_in_host(&s, 2, 1));
    assert_int_equal(kvr_index_walk_begin(s.ix, (struct kvr_worker){1, 0}, &walk), 0);
    assert_int_equal(kvr_index_walk_next(walk, 1000, replay, copy.ix, &more), 0);
    assert_int_equal(kvr_index_set_bytes_max(s.ix, CAP / 2), 0);
    assert_true(stats_of(&s).bytes <= CAP / 2);
    while (more) assert_int_equal(kvr_index_walk_next(walk, 1000, replay, copy.ix, &more), 0);
    kvr_index_walk_end(walk);
    for (uint64_t w = 1; w <= 2; w++) {
        while (!has_in_host(&s, w, from[w])) from[w]++;
        assert_true(from[w] > 1 && from[w] <= MANY - MANY / 8);
        for (uint64_t i = from[w]; i <= MANY; i++) assert_true(has_in_host(&s, w, i));
        assert_int_equal(tell(&s, w, CPU, REMOVED, MANY - 100, MANY - 100, PLAIN), 0);
        assert_false(has_in_host(&s, w, MANY));
        tell_many_of(&s, w, CPU, MANY); /* they grow again, as far as they may */
        assert_true(has_in_host(&s, w, MANY) && stats_of(&s).bytes <= CAP / 2);
    }
    for (uint64_t i = from[1]; i <= MANY; i++) assert_true(has_in_host(&copy, 1, i));
    kvr_index_destroy(s.ix);
    kvr_index_destroy(copy.ix);
}

/* A chunk length that was not seen often enough is not believed where a dump brings it either. */
static void a_dump_believes_no_more_than_the_original(void **)
{
    struct scene s, copy;
    begin(&s, (struct kvr_index_config){0});
    begin(&copy, (struct kvr_index_config){0});
    assert_int_equal(tell(&s, 1, GPU, STORED, 1, 12, PLAIN), 0);
    assert_int_equal(tell(&s, 1, CPU, STORED, 12, 12, NAMES), 0);
    assert_int_equal(tell(&s, 1, GPU, REMOVED, 1, 12, PLAIN), 0);
    reaches(&s, 1, 12, 0, 0);
    assert_int_equal(kvr_index_dump(s.ix, NULL, replay, copy.ix), 0);
    reaches(&copy, 1, 12, 0, 0);
    kvr_index_destroy(s.ix);
    kvr_index_destroy(copy.ix);
}

/* First blocks of prompts, at random, most stores first and most removals then: tables grow and move meanwhile. */
static void what_is_held_while_tables_grow_is_what_was_told(void **state)
{
    enum { STEPS = 60000, SPACE = 40000 };
    struct scene s;
    struct kvr_rng rng = {17};
    bool *held = calloc(SPACE, sizeof *held);
    size_t n = 0;
    (void)state;
    begin(&s, (struct kvr_index_config){0});
    for (int i = 0; i < STEPS; i++) {
        uint32_t k = kvr_rng_below(&rng, SPACE);
        uint64_t name = kvr_mix64(k) | 1;
        struct kvr_block b = {name, k + 1};
        struct kvr_event ev = {.worker = {1, 0}, .tier = CPU, .blocks = &b, .blocks_n = 1, .lower = {.chunk = 1, .span = 1}};
        bool stores = kvr_rng_below(&rng, 10) < (i < STEPS / 2 ? 9u : 2u);
        if (!stores) ev = (struct kvr_event){.worker = {1, 0}, .tier = CPU, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
        assert_int_equal(kvr_index_apply(s.ix, &ev), 0);
        n += stores - held[k];
        held[k] = stores;
        uint32_t look = kvr_rng_below(&rng, SPACE);
        uint64_t q = look + 1;
        assert_int_equal(reach_of(s.ix, s.rd, 1, &q, 1).depth[CPU], held[look]);
    }
    struct kvr_tier_status st[KVR_TIER_COUNT];
    kvr_index_tier_status(s.ix, (struct kvr_worker){1, 0}, st);
    assert_int_equal(st[CPU].blocks, n);
    free(held);
    kvr_index_destroy(s.ix);
}

/* Rounds of a cache that turns over leave nothing behind. */
static void memory_is_given_back(void **)
{
    struct scene s;
    struct kvr_index_stats before, after;
    begin(&s, (struct kvr_index_config){0});
    kvr_index_stats(s.ix, &before);
    for (int round = 0; round < 50; round++) {
        assert_int_equal(tell(&s, 1, GPU, STORED, 1, 60, PLAIN), 0);
        assert_int_equal(tell(&s, 1, CPU, STORED, 1, 60, NAMES), 0);
        assert_int_equal(tell(&s, 1, GPU, REMOVED, 1, 60, PLAIN), 0);
        assert_int_equal(tell(&s, 1, CPU, REMOVED, 1, 60, PLAIN), 0);
    }
    kvr_index_remove_worker(s.ix, 1);
    (void)kvr_index_expire(s.ix);
    kvr_index_stats(s.ix, &after);
    assert_true(after.bytes <= before.bytes + 65536);
    kvr_index_destroy(s.ix);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_equal_a_model),
        cmocka_unit_test(a_copy_is_told_after_its_device_block_has_gone),
        cmocka_unit_test(a_prefix_that_ends_inside_a_chunk_is_not_read),
        cmocka_unit_test(a_chunk_is_believed_when_it_was_seen_some_times),
        cmocka_unit_test(few_blocks_behind_the_device_are_nothing),
        cmocka_unit_test(shared_blocks_of_chunks_are_counted),
        cmocka_unit_test(foreign_names_are_matched_by_tokens),
        cmocka_unit_test(the_end_of_a_prompt_is_no_chunk_for_others),
        cmocka_unit_test(a_cleared_tier_learns_its_chunks_anew),
        cmocka_unit_test(what_no_removal_is_told_of_goes_with_time_and_number),
        cmocka_unit_test(what_one_stores_in_a_pool_all_can_read),
        cmocka_unit_test(a_replay_is_no_second_copy_in_a_pool),
        cmocka_unit_test(one_removal_does_not_keep_a_pool_for_ever),
        cmocka_unit_test(places_of_pools_are_given_back),
        cmocka_unit_test(pools_keep_to_the_byte_cap),
        cmocka_unit_test(at_the_byte_cap_the_oldest_of_a_tier_go),
        cmocka_unit_test(a_large_host_leaves_room_for_others),
        cmocka_unit_test(a_full_host_takes_what_leaves_the_device),
        cmocka_unit_test(a_lower_cap_takes_the_older_half_of_hosts),
        cmocka_unit_test(a_dump_believes_no_more_than_the_original),
        cmocka_unit_test(what_is_held_while_tables_grow_is_what_was_told),
        cmocka_unit_test(memory_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
