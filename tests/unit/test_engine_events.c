/* SPDX-License-Identifier: Apache-2.0 */
/* Engine batches: the W vectors, every shape, filters, salts, hostile input. */
#include "test.h"

#include <msgpuck.h>
#include <stdio.h>

#include "wire/engine_events.h"

struct got {
    int n;
    struct kvr_event ev[16];
    struct kvr_block blocks[16][16];
    uint64_t removed[16][16];
};

struct fixture {
    struct kvr_engine_batch b;
    struct kvr_engine_stream s;
    struct got got;
};

static int setup_bs(void **state, uint32_t bs)
{
    struct fixture *f = calloc(1, sizeof *f);
    kvr_engine_batch_init(&f->b);
    kvr_engine_stream_init(&f->s, (struct kvr_worker){7, 0}, bs);
    *state = f;
    return 0;
}

static int setup(void **state)
{
    return setup_bs(state, 2);
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    kvr_engine_batch_free(&f->b);
    kvr_engine_stream_free(&f->s);
    free(f);
    return 0;
}

static void collect(void *ctx, const struct kvr_event *ev)
{
    struct got *g = ctx;
    g->ev[g->n] = *ev;
    for (size_t i = 0; i < ev->blocks_n && i < 16; i++) g->blocks[g->n][i] = ev->blocks[i];
    for (size_t i = 0; i < ev->removed_n && i < 16; i++) g->removed[g->n][i] = ev->removed[i];
    g->n++;
}

static size_t unhex(const char *hex, char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned v;
        sscanf(hex + 2 * i, "%2x", &v);
        out[i] = (char)v;
    }
    return n;
}

static int feed(struct fixture *f, const char *data, size_t len)
{
    f->got.n = 0;
    int rc = kvr_engine_decode(&f->b, data, len);
    if (rc) return rc;
    return (int)kvr_engine_convert(&f->s, &f->b, 1, collect, &f->got);
}

static int feed_hex(struct fixture *f, const char *hex)
{
    char buf[512];
    return feed(f, buf, unhex(hex, buf));
}

static void w1_array(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(feed_hex(f, "93cb3ff80000000000009198ab426c6f636b53746f726564910bc0920a0b02c0a3475055c000"), 1);
    assert_true(f->b.has_rank && f->b.rank == 0 && f->b.ts == 1.5);
    assert_false(f->got.ev[0].has_parent);
    assert_int_equal(f->got.ev[0].blocks_n, 1);
    assert_true(f->got.blocks[0][0].block_hash == 11 && f->got.blocks[0][0].tokens_hash == 7369860969341005925ull);
}

static void w2_map_negative_hash(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(
        feed_hex(f, "93cb3ff80000000000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391ff"
                    "b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473920a0baa626c6f636b5f73697a6502a76c6f72615f6964c003"),
        1);
    assert_int_equal(f->b.rank, 3);
    assert_true(f->got.blocks[0][0].block_hash == UINT64_MAX && f->got.blocks[0][0].tokens_hash == 7369860969341005925ull);
}

static void w3_removed_then_cleared(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(feed_hex(f, "93cb40000000000000009293ac426c6f636b52656d6f766564910ba347505591b0416c6c426c6f636b73436c656172656400"),
                     2);
    assert_int_equal(f->got.ev[0].kind, KVR_EVENT_REMOVED);
    assert_true(f->got.removed[0][0] == 11);
    assert_int_equal(f->got.ev[1].kind, KVR_EVENT_CLEARED);
}

static void w4_bigram(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(feed_hex(f, "93cb3ff00000000000009196ab426c6f636b53746f726564920b0cc094920a0b920b0c920c0d920d0e02c000"), 1);
    assert_int_equal(f->b.tokens_n, 5);
    assert_true(f->b.events[0].eagle);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(f->b.tokens[i], 10 + i);
    assert_true(f->got.blocks[0][0].tokens_hash == 5959138341449004422ull);
    assert_true(f->got.blocks[0][1].tokens_hash == 13917772031453556700ull);
}

/* ---- a small builder --------------------------------------------------------------------------------- */

struct build {
    char buf[8192], *p;
};

static void str(struct build *m, const char *s)
{
    m->p = mp_encode_str(m->p, s, (uint32_t)strlen(s));
}

static void num(struct build *m, uint64_t v)
{
    m->p = mp_encode_uint(m->p, v);
}

static void arr(struct build *m, uint32_t n)
{
    m->p = mp_encode_array(m->p, n);
}

static void nil(struct build *m)
{
    m->p = mp_encode_nil(m->p);
}

static void begin(struct build *m, uint32_t batch, uint32_t events)
{
    m->p = m->buf;
    arr(m, batch);
    m->p = mp_encode_double(m->p, 1);
    arr(m, events);
}

/* BlockStored up to block_size: n blocks of 2 tokens, names from `name`. */
static void stored_head(struct build *m, uint32_t elements, uint64_t name, uint32_t n, int64_t parent)
{
    arr(m, elements);
    str(m, "BlockStored");
    arr(m, n);
    for (uint32_t i = 0; i < n; i++) num(m, name + i);
    if (parent < 0) nil(m);
    else num(m, (uint64_t)parent);
    arr(m, 2 * n);
    for (uint32_t i = 0; i < 2 * n; i++) num(m, 10 + i);
    num(m, 2);
}

static int feed_built(struct fixture *f, const struct build *m)
{
    return feed(f, m->buf, (size_t)(m->p - m->buf));
}

static void two_element_batch(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1);
    stored_head(&m, 5, 11, 1, -1);
    assert_int_equal(feed_built(f, &m), 1);
    assert_false(f->b.has_rank);
}

static void longer_batch_is_accepted(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 5, 1);
    stored_head(&m, 5, 11, 1, -1);
    nil(&m);
    str(&m, "more");
    num(&m, 9);
    assert_int_equal(feed_built(f, &m), 1);
}

static void map_batch(void **state, const char *rank_key)
{
    struct fixture *f = *state;
    struct build m;
    m.p = m.buf;
    m.p = mp_encode_map(m.p, 4);
    str(&m, rank_key);
    num(&m, 0);
    str(&m, "unknown");
    arr(&m, 0);
    str(&m, "events");
    arr(&m, 1);
    stored_head(&m, 5, 11, 1, -1);
    str(&m, "ts");
    m.p = mp_encode_double(m.p, 2.5);
    assert_int_equal(feed_built(f, &m), 1);
    assert_true(f->b.has_rank && f->b.ts == 2.5);
}

static void map_batch_data_parallel_rank(void **state)
{
    map_batch(state, "data_parallel_rank");
}
static void map_batch_dp_rank(void **state)
{
    map_batch(state, "dp_rank");
}
static void map_batch_attn_dp_rank(void **state)
{
    map_batch(state, "attn_dp_rank");
}

static void byte_string_hashes(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1);
    arr(&m, 5);
    str(&m, "BlockStored");
    arr(&m, 2);
    m.p = mp_encode_bin(m.p, "\xff\xff\xff\xff\x01\x02\x03\x04\x05\x06\x07\x08", 12); /* the last 8 bytes count */
    m.p = mp_encode_bin(m.p, "\x09", 1);
    m.p = mp_encode_bin(m.p, "\x0a\x0b", 2);
    arr(&m, 4);
    for (uint64_t i = 0; i < 4; i++) num(&m, i);
    num(&m, 2);
    assert_int_equal(feed_built(f, &m), 1);
    assert_true(f->got.blocks[0][0].block_hash == 0x0102030405060708ull);
    assert_true(f->got.blocks[0][1].block_hash == 9);
    assert_true(f->got.ev[0].parent_hash == 0x0a0b);
}

static void chained_blocks_and_truncation(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1);
    arr(&m, 5);
    str(&m, "BlockStored");
    arr(&m, 3);
    for (uint64_t i = 0; i < 3; i++) num(&m, 100 + i);
    num(&m, 99);
    arr(&m, 5); /* two and a half blocks */
    for (uint64_t i = 0; i < 5; i++) num(&m, i);
    num(&m, 2);
    assert_int_equal(feed_built(f, &m), 1);
    assert_int_equal(f->got.ev[0].blocks_n, 2);
    assert_true(f->got.ev[0].has_parent && f->got.ev[0].parent_hash == 99);
    assert_int_equal(f->s.counters.truncated_tokens, 1);
}

static void wrong_block_size_is_counted_and_left_out(void **state)
{
    struct fixture *f = *state;
    struct build m;
    f->s.block_size = 4;
    begin(&m, 2, 1);
    stored_head(&m, 5, 11, 2, -1);
    assert_int_equal(feed_built(f, &m), 0);
    assert_int_equal(f->s.counters.block_size_mismatch, 1);
}

static void self_reference_is_no_event(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1);
    stored_head(&m, 5, 11, 2, 12);
    assert_int_equal(feed_built(f, &m), 0);
    assert_int_equal(f->s.counters.self_reference, 1);
}

/* n blocks named from 1 on, but for the last, which has that name. */
static int feed_names(struct fixture *f, uint32_t n, uint64_t last)
{
    struct build m;
    begin(&m, 2, 1);
    arr(&m, 5);
    str(&m, "BlockStored");
    arr(&m, n);
    for (uint32_t i = 1; i < n; i++) num(&m, i);
    num(&m, last);
    nil(&m);
    arr(&m, 2 * n);
    for (uint32_t i = 0; i < 2 * n; i++) num(&m, i);
    num(&m, 2);
    return feed_built(f, &m);
}

static void a_long_store_that_names_a_block_twice_is_no_event(void **state)
{
    struct fixture *f = *state;
    for (uint32_t n = 2; n <= 300; n += 7) {
        uint64_t repeats = f->s.counters.self_reference;
        assert_int_equal(feed_names(f, n, n), 1);
        assert_int_equal(f->got.ev[0].blocks_n, n);
        assert_int_equal(f->s.counters.self_reference, repeats);
        assert_int_equal(feed_names(f, n, n / 2), n / 2 == 0);
        assert_int_equal(feed_names(f, n, 1), 0);
        assert_int_equal(f->s.counters.self_reference, repeats + 1 + (n / 2 > 0));
    }
}

/* Also at the end of the payload, where less than the longest form is left. */
static void tokens_are_read_in_every_form(void **state)
{
    static const char forms[] =
        "\x7f\xcc\x07\xcc\xff\xcd\x00\x07\xcd\xff\xff\xce\x00\x00\x00\x07\xce\xff\xff\xff\xfe\xcf\x00\x00\x00\x00\xff\xff\xff\xfd\x00";
    static const uint32_t want[] = {127, 7, 255, 7, 65535, 7, 4294967294, 4294967293, 0};
    static const char beyond[] = "\xcf\x00\x00\x00\x01\x00\x00\x00\x00";
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1);
    m.p = mp_encode_map(m.p, 4);
    str(&m, "type"), str(&m, "BlockStored");
    str(&m, "block_hashes"), arr(&m, 0);
    str(&m, "block_size"), num(&m, 2);
    str(&m, "token_ids"), arr(&m, KVR_ARRAY_LEN(want));
    char *tokens = m.p;
    memcpy(m.p, forms, sizeof forms - 1);
    m.p += sizeof forms - 1;
    assert_int_equal(feed_built(f, &m), 0);
    assert_int_equal(f->b.tokens_n, KVR_ARRAY_LEN(want));
    assert_memory_equal(f->b.tokens, want, sizeof want);
    memcpy(tokens + sizeof forms - 1 - 10, beyond, 9); /* the eighth one */
    assert_int_equal(feed_built(f, &m), -KVR_EFORMAT);
}

static void tail_decides(struct fixture *f, uint64_t group, const char *kind, bool want)
{
    struct build m;
    begin(&m, 2, 1);
    stored_head(&m, 14, 11, 1, -1);
    nil(&m);
    str(&m, "GPU");
    nil(&m);
    nil(&m);
    num(&m, group);
    if (kind) str(&m, kind);
    else nil(&m);
    nil(&m);
    str(&m, "LOCAL");
    nil(&m);
    assert_int_equal(feed_built(f, &m), want);
}

static void fixed_tail_kinds(void **state)
{
    struct fixture *f = *state;
    tail_decides(f, 0, "full_attention", true);
    tail_decides(f, 1, "mla_attention", true);
    tail_decides(f, 2, "sink_full_attention", true);
    tail_decides(f, 3, "sliding_window", false);
    tail_decides(f, 4, "mamba", false);
    tail_decides(f, 5, "never_heard_of", false);
    assert_int_equal(f->s.counters.non_main_attention_kind, 2);
    assert_int_equal(f->s.counters.unknown_kind, 1);
    tail_decides(f, 1, NULL, true); /* learned above */
    tail_decides(f, 3, NULL, false);
    tail_decides(f, 9, NULL, false); /* never learned */
    assert_int_equal(f->s.counters.unlearned_group_idx, 1);
    assert_int_equal(f->s.counters.non_main_attention_group, 1);
}

static void legacy_tail_by_type(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1);
    stored_head(&m, 11, 11, 1, -1);
    nil(&m);
    str(&m, "GPU");
    nil(&m);
    nil(&m);
    str(&m, "sliding_window");
    num(&m, 2);
    assert_int_equal(feed_built(f, &m), 0);
    assert_true(f->b.events[0].has_group && f->b.events[0].group_idx == 2);
    assert_int_equal(f->s.counters.non_main_attention_kind, 1);
}

static void media_and_tiers(void **state)
{
    struct fixture *f = *state;
    static const char *const media[] = {"GPU", "CPU", "CPU_TIER2", "SHARED", "floppy"};
    const int want[] = {1, 0, 0, 0, 0};
    for (int i = 0; i < 5; i++) {
        struct build m;
        begin(&m, 2, 1);
        stored_head(&m, 7, 11, 1, -1);
        nil(&m);
        str(&m, media[i]);
        assert_int_equal(feed_built(f, &m), want[i]);
    }
    assert_int_equal(f->s.counters.lower_tier, 3);
    assert_int_equal(f->s.counters.unknown_medium, 1);
}

static bool is_known(void *ctx, enum kvr_tier tier, uint64_t name)
{
    return tier == KVR_TIER_HOST_PINNED && name == *(const uint64_t *)ctx;
}

/* LMCache tells 0 before a chunk that begins what a pass stores; hash((before, (0, 1, ... 7), ())) of Python is such a chunk's name. It
 * tells a token more than the chunk has. */
static void a_chunk_is_behind_the_one_that_its_name_is_made_of(void **state)
{
    static const int64_t named[][2] = {{5, 7623458208962408731},
                                       {-7, -5319657036399779550},
                                       {4611686018427387913, -1654052542347960377},
                                       {-9223372036854763463, -9210962759076441845}}; /* before, name */
    struct fixture *f = *state;
    uint32_t tokens[] = {0, 1, 2, 3, 4, 5, 6, 7, 99};
    struct kvr_engine_event ev = {.hashes_n = 1, .tokens_n = 9, .block_size = 8, .has_parent = true, .is_map = true, .medium = {"cpu", 3}};
    static uint64_t name, known;
    struct kvr_engine_batch b = {.events = &ev, .events_n = 1, .hashes = &name, .hashes_n = 1, .tokens = tokens, .tokens_n = 9};
    f->s.tiers = true;
    f->s.holds = is_known;
    f->s.holds_ctx = &known;
    for (size_t i = 0; i < KVR_ARRAY_LEN(named) * 3; i++) {
        bool changed = i % 3 == 1;
        known = (uint64_t)named[i / 3][0] + (i % 3 == 2); /* the last: who is before it is not known */
        name = (uint64_t)named[i / 3][1];
        tokens[3] = changed ? 4 : 3;
        f->got.n = 0;
        assert_int_equal(kvr_engine_convert(&f->s, &b, 1, collect, &f->got), 1);
        assert_true(f->got.ev[0].has_parent && f->got.ev[0].parent_hash == (i % 3 ? 0 : known));
    }
}

static void lora_name_enters_the_hash(void **state)
{
    struct fixture *f = *state;
    struct build m;
    uint64_t want;
    uint32_t t[2] = {10, 11};
    begin(&m, 2, 1);
    stored_head(&m, 8, 11, 1, -1);
    num(&m, 5); /* lora_id: the name counts */
    nil(&m);
    str(&m, "adapter-a");
    assert_int_equal(feed_built(f, &m), 1);
    kvr_hash_locals(t, 2, 2, false, kvr_hash_seed("adapter-a", 9, NULL, 0), NULL, 0, &want);
    assert_true(f->got.blocks[0][0].tokens_hash == want);
}

static void salted(struct fixture *f, uint64_t name, int64_t parent, const char *salt, int form, int want)
{
    struct build m;
    begin(&m, 2, 1);
    stored_head(&m, form == 2 ? 9 : 8, name, 1, parent);
    nil(&m);
    nil(&m);
    if (form == 0) { /* metadata map at position 7 */
        m.p = mp_encode_map(m.p, 1);
        str(&m, "cache_salt");
        str(&m, salt);
    } else if (form == 2) { /* prefixed string in extra_keys */
        char s[64];
        nil(&m);
        arr(&m, 1);
        arr(&m, 1);
        snprintf(s, sizeof s, "dynamo-cache-salt:%s", salt);
        str(&m, s);
    } else {
        nil(&m);
    }
    assert_int_equal(feed_built(f, &m), want);
}

static void salt_propagates_to_children(void **state)
{
    struct fixture *f = *state;
    uint32_t t[2] = {10, 11};
    uint64_t want;
    kvr_hash_locals(t, 2, 2, false, kvr_hash_seed(NULL, 0, "tenant-a", 8), NULL, 0, &want);
    salted(f, 1, -1, "tenant-a", 0, 1);
    assert_true(f->got.blocks[0][0].tokens_hash == want);
    salted(f, 2, 1, NULL, 1, 1); /* inherits */
    assert_true(f->got.blocks[0][0].tokens_hash == want);
    salted(f, 3, -1, "tenant-a", 2, 1);
    assert_true(f->got.blocks[0][0].tokens_hash == want);
    salted(f, 4, -1, NULL, 1, 1); /* unsalted stays unsalted */
    assert_true(f->got.blocks[0][0].tokens_hash == 7369860969341005925ull);
}

static void ambiguous_salts_are_dropped(void **state)
{
    struct fixture *f = *state;
    salted(f, 1, -1, "a", 0, 1);
    salted(f, 1, -1, "b", 0, 0);
    salted(f, 2, 1, NULL, 1, 0);
    assert_int_equal(f->s.counters.ambiguous_cache_namespace, 2);
}

static void clear_forgets_salts(void **state)
{
    struct fixture *f = *state;
    struct build m;
    salted(f, 1, -1, "a", 0, 1);
    begin(&m, 2, 1);
    arr(&m, 2);
    str(&m, "AllBlocksCleared");
    nil(&m);
    assert_int_equal(feed_built(f, &m), 1);
    salted(f, 1, -1, "b", 0, 1);
}

/* ---- what the texts in extra_keys mean, release by release ------------------------------------------------ */

static uint64_t local_hash(const char *lora, const char *salt, const uint64_t *mm, size_t mm_n)
{
    uint32_t t[2] = {10, 11};
    uint64_t out;
    struct kvr_mm_block info = {mm, mm_n};
    uint64_t seed = kvr_hash_seed(lora, lora ? strlen(lora) : 0, salt, salt ? strlen(salt) : 0);
    kvr_hash_locals(t, 2, 2, false, seed, mm_n ? &info : NULL, mm_n > 0, &out);
    return out;
}

/* A store as vLLM 0.32 sends it: a map. keys: of the only block, "*" before a text makes it a pair with an offset. */
static uint64_t vllm_map(struct fixture *f, uint64_t name, int64_t parent, const char *lora, const char *const *keys, uint32_t keys_n)
{
    struct build m;
    m.p = m.buf;
    arr(&m, 2);
    m.p = mp_encode_double(m.p, 1);
    arr(&m, 1);
    m.p = mp_encode_map(m.p, 10);
    str(&m, "type");
    str(&m, "BlockStored");
    str(&m, "block_hashes");
    arr(&m, 1);
    num(&m, name);
    str(&m, "parent_block_hash");
    if (parent < 0) nil(&m);
    else num(&m, (uint64_t)parent);
    str(&m, "token_ids");
    arr(&m, 2);
    num(&m, 10);
    num(&m, 11);
    str(&m, "block_size");
    num(&m, 2);
    str(&m, "lora_id");
    if (lora) num(&m, 1);
    else nil(&m);
    str(&m, "medium");
    str(&m, "GPU");
    str(&m, "lora_name");
    if (lora) str(&m, lora);
    else nil(&m);
    str(&m, "extra_keys");
    arr(&m, 1);
    arr(&m, keys_n);
    for (uint32_t i = 0; i < keys_n; i++) {
        if (keys[i][0] == '*') arr(&m, 2);
        str(&m, keys[i] + (keys[i][0] == '*'));
        if (keys[i][0] == '*') num(&m, 3);
    }
    str(&m, "group_idx");
    num(&m, 0);
    assert_int_equal(feed_built(f, &m), 1);
    return f->got.blocks[0][0].tokens_hash;
}

static void a_bare_salt_of_vllm_is_a_salt(void **state)
{
    struct fixture *f = *state;
    uint64_t image = kvr_engine_mm_hash("cat", 3);
    const char *salt[] = {"tenant-a"}, *lora[] = {"ad1"}, *both[] = {"ad1", "tenant-a"}, *same[] = {"ad1", "ad1"},
               *all[] = {"ad1", "*cat", "tenant-a"}, *picture[] = {"*cat"};
    assert_true(vllm_map(f, 1, -1, NULL, salt, 1) == local_hash(NULL, "tenant-a", NULL, 0));
    assert_true(vllm_map(f, 2, 1, NULL, salt, 0) == local_hash(NULL, "tenant-a", NULL, 0)); /* the chain goes on */
    assert_true(vllm_map(f, 3, -1, "ad1", lora, 1) == local_hash("ad1", NULL, NULL, 0));
    assert_true(vllm_map(f, 4, -1, "ad1", both, 2) == local_hash("ad1", "tenant-a", NULL, 0));
    assert_true(vllm_map(f, 5, -1, "ad1", same, 2) == local_hash("ad1", "ad1", NULL, 0)); /* a salt that is called like the adapter */
    assert_true(vllm_map(f, 6, -1, "ad1", all, 3) == local_hash("ad1", "tenant-a", &image, 1));
    assert_true(vllm_map(f, 7, -1, NULL, picture, 1) == local_hash(NULL, NULL, &image, 1));
    assert_int_equal(f->s.counters.salt_or_object, 0);
}

static void a_text_behind_the_first_block_is_an_image(void **state)
{
    struct fixture *f = *state;
    uint64_t image = kvr_engine_mm_hash("tenant-a", 8);
    const char *text[] = {"tenant-a"};
    assert_true(vllm_map(f, 1, 99, NULL, text, 1) == local_hash(NULL, NULL, &image, 1));
}

/* vLLM 0.17: an array without a group, images as bare texts. */
static uint64_t vllm_array(struct fixture *f, uint64_t name, const char *key, bool group)
{
    struct build m;
    begin(&m, 2, 1);
    stored_head(&m, group ? 10 : 9, name, 1, -1);
    nil(&m);
    str(&m, "GPU");
    nil(&m);
    arr(&m, 1);
    arr(&m, 1);
    str(&m, key);
    if (group) num(&m, 0);
    assert_int_equal(feed_built(f, &m), 1);
    return f->got.blocks[0][0].tokens_hash;
}

/* Both at once: neither a request with that salt nor one with that image may be told that the block is there. */
static void a_text_that_may_be_salt_or_image_is_found_by_nobody(void **state)
{
    struct fixture *f = *state;
    static const char *const texts[] = {"tenant-a", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};
    for (int i = 0; i < 2; i++) {
        uint64_t mm = kvr_engine_mm_hash(texts[i], strlen(texts[i])), got = vllm_array(f, 1 + (uint64_t)i, texts[i], false);
        assert_true(got != local_hash(NULL, texts[i], NULL, 0) && got != local_hash(NULL, NULL, &mm, 1) &&
                    got != local_hash(NULL, NULL, NULL, 0));
    }
    assert_int_equal(f->s.counters.salt_or_object, 2);
    assert_true(vllm_array(f, 9, "tenant-a", true) == local_hash(NULL, "tenant-a", NULL, 0)); /* 0.19: groups, so images are pairs */
    assert_int_equal(f->s.counters.salt_or_object, 2);
}

/* vLLM up to 0.11 tells an adapter's number only. Its blocks are nobody's rather than the base model's. */
static void an_adapter_without_a_name_is_left_out(void **state)
{
    struct fixture *f = *state;
    struct build m;
    for (uint32_t n = 6; n <= 8; n++) {
        begin(&m, 2, 1);
        stored_head(&m, n, 11, 1, -1);
        num(&m, n == 8 ? 0 : 3); /* 0 is none */
        if (n > 6) str(&m, "GPU");
        if (n > 7) nil(&m);
        assert_int_equal(feed_built(f, &m), n == 8);
    }
    assert_int_equal(f->s.counters.unnamed_adapter, 2);
}

/* Before 0.17 vLLM's arrays end with the adapter: there is no place where a salt or an image would be told. */
static void salts_that_an_engine_never_tells_go_unnoticed(void **state)
{
    struct fixture *f = *state;
    struct build m;
    for (uint32_t n = 6; n <= 8; n++) {
        begin(&m, 2, 1);
        stored_head(&m, n, n, 1, -1);
        nil(&m);
        if (n > 6) str(&m, "GPU");
        if (n > 7) nil(&m);
        assert_int_equal(feed_built(f, &m), 1);
        assert_int_equal(f->s.counters.untold_keys, n - 5);
    }
    begin(&m, 2, 1);
    stored_head(&m, 9, 20, 1, -1);
    nil(&m);
    str(&m, "GPU");
    nil(&m);
    nil(&m); /* no block has any, but one might */
    assert_int_equal(feed_built(f, &m), 1);
    const char *salt[] = {"tenant-a"};
    (void)vllm_array(f, 21, "cat", true);
    (void)vllm_map(f, 22, -1, NULL, salt, 1);
    assert_int_equal(f->s.counters.untold_keys, 3);
}

static void remote_blocks_are_left_out(void **state)
{
    struct fixture *f = *state;
    struct build m;
    m.p = m.buf;
    arr(&m, 2);
    m.p = mp_encode_double(m.p, 1);
    arr(&m, 1);
    m.p = mp_encode_map(m.p, 3);
    str(&m, "type");
    str(&m, "BlockRemoved");
    str(&m, "block_hashes");
    arr(&m, 1);
    num(&m, 3);
    str(&m, "locality");
    str(&m, "REMOTE");
    assert_int_equal(feed_built(f, &m), 0);
    assert_int_equal(f->s.counters.remote_locality, 1);
}

static void unknown_and_ignored_tags(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 3);
    arr(&m, 2);
    str(&m, "BlockTeleported");
    num(&m, 3);
    arr(&m, 1);
    str(&m, "Ignored");
    arr(&m, 2);
    str(&m, "BlockRemoved");
    arr(&m, 1);
    num(&m, 4);
    assert_int_equal(feed_built(f, &m), 1);
    assert_int_equal(f->s.counters.unknown_tag, 1);
    assert_int_equal(f->s.counters.ignored_event, 1);
}

static void malformed_events_fail_the_batch(void **state)
{
    struct fixture *f = *state;
    struct build m;
    begin(&m, 2, 1); /* too short */
    arr(&m, 2);
    str(&m, "BlockStored");
    arr(&m, 0);
    assert_int_equal(feed_built(f, &m), -KVR_EFORMAT);
    begin(&m, 2, 1); /* a token above 2^32 */
    arr(&m, 5);
    str(&m, "BlockStored");
    arr(&m, 1);
    num(&m, 1);
    nil(&m);
    arr(&m, 1);
    num(&m, 1ull << 32);
    num(&m, 2);
    assert_int_equal(feed_built(f, &m), -KVR_EFORMAT);
    begin(&m, 2, 1); /* a map without block_hashes */
    m.p = mp_encode_map(m.p, 1);
    str(&m, "type");
    str(&m, "BlockRemoved");
    assert_int_equal(feed_built(f, &m), -KVR_EFORMAT);
    assert_int_equal(feed(f, "", 0), -KVR_EFORMAT);
    assert_int_equal(feed(f, "\x2a", 1), -KVR_EFORMAT);
}

static void deep_nesting_is_refused(void **state)
{
    struct fixture *f = *state;
    char deep[2000];
    memset(deep, '\x91', sizeof deep - 1);
    deep[sizeof deep - 1] = '\xc0';
    assert_int_equal(feed(f, deep, sizeof deep), -KVR_EFORMAT);
}

static void huge_counts_are_refused(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(feed(f, "\x92\xcb\0\0\0\0\0\0\0\0\xdd\xff\xff\xff\xff", 15), -KVR_EFORMAT);
}

/* Every prefix and every single-byte change of the vectors: an answer, never a crash. */
static void every_cut_and_bit_flip_is_survived(void **state)
{
    struct fixture *f = *state;
    static const char *const vectors[] = {
        "93cb3ff80000000000009198ab426c6f636b53746f726564910bc0920a0b02c0a3475055c000",
        "93cb3ff80000000000009186a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391ffb1706172656e745f626c6f636b5f68617368c0a9"
        "746f6b656e5f696473920a0baa626c6f636b5f73697a6502a76c6f72615f6964c003",
        "93cb3ff00000000000009196ab426c6f636b53746f726564920b0cc094920a0b920b0c920c0d920d0e02c000",
        "93cb3ff00000000000009196ab426c6f636b53746f72656491c4020a0bc0920b0c02c000"};
    for (size_t v = 0; v < KVR_ARRAY_LEN(vectors); v++) {
        char buf[512];
        size_t n = unhex(vectors[v], buf), refused = 0;
        for (size_t cut = 0; cut < n; cut++) {
            char *exact = malloc(cut + 1);
            memcpy(exact, buf, cut);
            refused += feed(f, exact, cut) < 0;
            free(exact);
        }
        assert_int_equal(refused, n);
        for (size_t i = 0; i < n; i++)
            for (int bit = 0; bit < 8; bit++) {
                char *copy = malloc(n);
                memcpy(copy, buf, n);
                copy[i] = (char)(copy[i] ^ 1 << bit);
                (void)feed(f, copy, n);
                free(copy);
            }
    }
}

#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {
        T(w1_array),
        T(w2_map_negative_hash),
        T(w3_removed_then_cleared),
        T(w4_bigram),
        T(two_element_batch),
        T(longer_batch_is_accepted),
        T(map_batch_data_parallel_rank),
        T(map_batch_dp_rank),
        T(map_batch_attn_dp_rank),
        T(byte_string_hashes),
        T(chained_blocks_and_truncation),
        T(wrong_block_size_is_counted_and_left_out),
        T(self_reference_is_no_event),
        T(a_long_store_that_names_a_block_twice_is_no_event),
        T(tokens_are_read_in_every_form),
        T(fixed_tail_kinds),
        T(legacy_tail_by_type),
        T(media_and_tiers),
        T(a_chunk_is_behind_the_one_that_its_name_is_made_of),
        T(lora_name_enters_the_hash),
        T(salt_propagates_to_children),
        T(ambiguous_salts_are_dropped),
        T(clear_forgets_salts),
        T(a_bare_salt_of_vllm_is_a_salt),
        T(a_text_behind_the_first_block_is_an_image),
        T(a_text_that_may_be_salt_or_image_is_found_by_nobody),
        T(an_adapter_without_a_name_is_left_out),
        T(salts_that_an_engine_never_tells_go_unnoticed),
        T(remote_blocks_are_left_out),
        T(unknown_and_ignored_tags),
        T(malformed_events_fail_the_batch),
        T(deep_nesting_is_refused),
        T(huge_counts_are_refused),
        T(every_cut_and_bit_flip_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
