/* SPDX-License-Identifier: Apache-2.0 */
/* Hash vectors. The full set is also in tests/vectors/hash.json, which the end-to-end tests read. */
#include "test.h"

#include <kvroute/hash.h>

static void iota(uint32_t *t, size_t n, uint32_t first)
{
    for (size_t i = 0; i < n; i++) t[i] = first + (uint32_t)i;
}

static uint64_t one_block(uint32_t bs, uint32_t first, const char *lora, const char *salt)
{
    uint32_t t[256];
    uint64_t out = 0;
    iota(t, bs, first);
    uint64_t seed = kvr_hash_seed(lora, lora ? strlen(lora) : 0, salt, salt ? strlen(salt) : 0);
    assert_int_equal(kvr_hash_locals(t, bs, bs, false, seed, NULL, 0, &out), 1);
    return out;
}

static void plain_xxh3(void **)
{
    assert_true(kvr_hash_bytes("", 0, 0) == 3244421341483603138ull);
    assert_true(kvr_hash_bytes("test data", 9, 1337) == 13226331709069118873ull);
    assert_true(kvr_hash_bytes("opaque-renderer-image-0", 23, 0) == 14437604544409538977ull);
}

#define SINGLE(name, bs, first, lora, salt, want)                                                                                          \
    static void name(void **s)                                                                                                             \
    {                                                                                                                                      \
        (void)s;                                                                                                                           \
        assert_true(one_block(bs, first, lora, salt) == want);                                                                             \
    }
SINGLE(va_1, 1, 0, NULL, NULL, 16451421758532862321ull)
SINGLE(va_2, 2, 0, NULL, NULL, 10918435022357402928ull)
SINGLE(va_4, 4, 0, NULL, NULL, 9143094415614847814ull)
SINGLE(va_11, 11, 0, NULL, NULL, 3478666572770996202ull)
SINGLE(va_16, 16, 0, NULL, NULL, 15310707395893867146ull)
SINGLE(va_32, 32, 0, NULL, NULL, 5756925433886871916ull)
SINGLE(va_48, 48, 0, NULL, NULL, 17528049439166767664ull)
SINGLE(va_60, 60, 0, NULL, NULL, 13886301141173099695ull)
SINGLE(va_61, 61, 0, NULL, NULL, 1924516252287165151ull)
SINGLE(va_64, 64, 0, NULL, NULL, 3480597578098033343ull)
SINGLE(va_128, 128, 0, NULL, NULL, 9509643624113304476ull)
SINGLE(vb_1, 1, 1, NULL, NULL, 14426539925402682893ull)
SINGLE(vb_4, 4, 1, NULL, NULL, 14643705804678351452ull)
SINGLE(vb_16, 16, 1, NULL, NULL, 16863443419780771464ull)
SINGLE(vb_64, 64, 1, NULL, NULL, 17732852320395450624ull)
SINGLE(vd_lora_a, 4, 0, "adapter-a", NULL, 6665157333201000639ull)
SINGLE(vd_lora_b, 4, 0, "adapter-b", NULL, 10757640529385508180ull)
SINGLE(vd_salt, 4, 0, NULL, "tenant-a", 17009624042690211646ull)
SINGLE(vd_lora_named_like_salt, 4, 0, "tenant-a", NULL, 582854293518545300ull)
SINGLE(vd_both, 4, 0, "adapter-a", "tenant-a", 8269515957840517240ull)
SINGLE(vd_16_lora, 16, 0, "adapter-a", NULL, 17429507120064042683ull)
SINGLE(vd_64_lora, 64, 0, "adapter-a", NULL, 789237278557224185ull)
SINGLE(vd_32_lora, 32, 0, "my-adapter", NULL, 7280863856833970633ull)
SINGLE(vd_empty_lora_is_none, 4, 0, "", NULL, 9143094415614847814ull)
SINGLE(vd_empty_salt_is_none, 4, 0, NULL, "", 9143094415614847814ull)

static void vd_seeds(void **)
{
    assert_true(kvr_hash_seed(NULL, 0, NULL, 0) == 1337);
    assert_true(kvr_hash_seed("adapter-a", 9, NULL, 0) == 8842669519798868182ull);
    assert_true(kvr_hash_seed("adapter-b", 9, NULL, 0) == 6456551074960804278ull);
    assert_true(kvr_hash_seed("my-adapter", 10, NULL, 0) == 2360313164392603308ull);
    assert_true(kvr_hash_seed(NULL, 0, "tenant-a", 8) == 1948188790972764086ull);
    assert_true(kvr_hash_seed("tenant-a", 8, NULL, 0) == 7159698576361520314ull);
    assert_true(kvr_hash_seed("adapter-a", 9, "tenant-a", 8) == 10790858310771630931ull);
}

static void vc_extreme_tokens(void **)
{
    uint32_t t[4] = {4294967295u, 2147483648u, 16909060u, 151655u};
    uint64_t h;
    assert_int_equal(kvr_hash_locals(t, 4, 4, false, 1337, NULL, 0, &h), 1);
    assert_true(h == 1002722460795704284ull);
}

static void check_chain(const uint32_t *t, size_t n, uint32_t bs, uint64_t seed, const uint64_t *local, const uint64_t *seq)
{
    uint64_t l[8], q[8];
    long blocks = kvr_hash_locals(t, n, bs, false, seed, NULL, 0, l);
    kvr_hash_sequence(l, (size_t)blocks, q);
    for (long i = 0; i < blocks; i++) {
        assert_true(l[i] == local[i]);
        assert_true(q[i] == seq[i]);
    }
    kvr_hash_sequence(l, (size_t)blocks, l); /* in place */
    assert_memory_equal(l, q, (size_t)blocks * 8);
}

static void vb_chain(void **)
{
    uint32_t t[16];
    iota(t, 16, 1);
    uint64_t l[] = {14643705804678351452ull, 16777012769546811212ull, 483935686894639516ull, 135165725823939817ull};
    uint64_t q[] = {14643705804678351452ull, 4945711292740353085ull, 12583592247330656132ull, 1921452330601040443ull};
    check_chain(t, 16, 4, 1337, l, q);
}

static void ve_chains(void **)
{
    uint32_t t[64];
    iota(t, 64, 0);
    uint64_t l4[] = {9143094415614847814ull, 12124091508212882195ull, 1088361764653601668ull, 16024980976528976948ull};
    uint64_t q4[] = {9143094415614847814ull, 9510318385840434533ull, 16998148715716822651ull, 16790386768269814709ull};
    uint64_t l16[] = {15310707395893867146ull, 15292316782987903195ull, 5532946206955930018ull, 14928757266181269122ull};
    uint64_t q16[] = {15310707395893867146ull, 13769157705258532664ull, 11879827756109914528ull, 3888788807566526800ull};
    check_chain(t, 16, 4, 1337, l4, q4);
    check_chain(t, 64, 16, 1337, l16, q16);
}

static void vf_lora_chain(void **)
{
    uint32_t t[16];
    iota(t, 16, 0);
    uint64_t l[] = {6665157333201000639ull, 11721812545976571723ull, 14488077642866817317ull, 15091969614435692781ull};
    uint64_t q[] = {6665157333201000639ull, 13351519314849170528ull, 9730552557794562145ull, 5048406500823931192ull};
    check_chain(t, 16, 4, kvr_hash_seed("adapter-a", 9, NULL, 0), l, q);
}

static void vg_raw_chains(void **)
{
    uint64_t a[] = {11, 22, 33}, b[] = {1, 2, 3, 4, 5}, c[] = {1, 2, 4}, q[5];
    kvr_hash_sequence(a, 3, q);
    assert_true(q[0] == 11 && q[1] == 750553365844651409ull && q[2] == 3257565445809651757ull);
    kvr_hash_sequence(b, 5, q);
    assert_true(q[0] == 1 && q[1] == 16740963408272063728ull && q[2] == 5417695437591212399ull && q[3] == 15413681679220706959ull &&
                q[4] == 16713516116484648481ull);
    kvr_hash_sequence(c, 3, q);
    assert_true(q[2] == 15923921302563402129ull);
}

static void vh_eagle_windows(void **)
{
    uint32_t t[6];
    uint64_t h[2];
    iota(t, 6, 0);
    assert_int_equal(kvr_hash_block_count(6, 2, true), 2);
    assert_int_equal(kvr_hash_locals(t, 6, 2, true, 1337, NULL, 0, h), 2);
    assert_true(h[0] == 11646242937812223497ull && h[1] == 9948816348502404300ull);
}

static void vi_multimodal(void **)
{
    uint32_t t[4] = {0, 1, 2, 3};
    uint64_t one[] = {42}, two[] = {42, 42}, up[] = {0xAA, 0xBB}, down[] = {0xBB, 0xAA}, h[2];
    struct kvr_mm_block first = {one, 1};
    assert_int_equal(kvr_hash_locals(t, 4, 2, false, 1337, &first, 1, h), 2);
    assert_true(h[0] == 6100948656312251355ull && h[1] == 10731123482949079648ull);
    struct kvr_mm_block cases[] = {{one, 1}, {two, 2}, {up, 2}, {down, 2}, {NULL, 0}};
    uint64_t want[] = {18280081842874931122ull, 16307453469006278928ull, 7711592033367832611ull, 7711592033367832611ull,
                       9143094415614847814ull};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(kvr_hash_locals(t, 4, 4, false, 1337, &cases[i], 1, h), 1);
        assert_true(h[0] == want[i]);
    }
    uint64_t many[KVR_MM_OBJECTS_MAX + 1] = {0};
    struct kvr_mm_block too_many = {many, KVR_MM_OBJECTS_MAX + 1};
    assert_int_equal(kvr_hash_locals(t, 4, 4, false, 1337, &too_many, 1, h), -KVR_ELIMIT);
}

static void vk_pad_value_scheme_hashes_plain(void **)
{
    uint32_t t[4] = {10, 20, 49115154u, 49115154u};
    uint64_t h;
    kvr_hash_locals(t, 4, 4, false, 1337, NULL, 0, &h);
    assert_true(h == 71881790567603244ull);
}

static void negative_controls(void **)
{
    uint32_t t[4] = {0, 1, 2, 3};
    uint64_t h;
    kvr_hash_locals(t, 4, 4, false, 1337, NULL, 0, &h);
    assert_true(h != 4815145187033743805ull && h != 11660027832386793900ull);
}

static void block_counts(void **)
{
    uint32_t sizes[] = {11, 32, 64};
    for (int i = 0; i < 3; i++) {
        uint32_t bs = sizes[i];
        assert_int_equal(kvr_hash_block_count(bs - 1, bs, false), 0);
        assert_int_equal(kvr_hash_block_count(bs, bs, false), 1);
        assert_int_equal(kvr_hash_block_count(bs + 1, bs, false), 1);
        assert_int_equal(kvr_hash_block_count(2 * bs + 1, bs, false), 2);
    }
    assert_int_equal(kvr_hash_block_count(100, 0, false), 0);
    assert_int_equal(kvr_hash_block_count(0, 4, true), 0);
    assert_int_equal(kvr_hash_block_count(4, 4, true), 0);
    assert_int_equal(kvr_hash_block_count(5, 4, true), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_xxh3),
        cmocka_unit_test(va_1),
        cmocka_unit_test(va_2),
        cmocka_unit_test(va_4),
        cmocka_unit_test(va_11),
        cmocka_unit_test(va_16),
        cmocka_unit_test(va_32),
        cmocka_unit_test(va_48),
        cmocka_unit_test(va_60),
        cmocka_unit_test(va_61),
        cmocka_unit_test(va_64),
        cmocka_unit_test(va_128),
        cmocka_unit_test(vb_1),
        cmocka_unit_test(vb_4),
        cmocka_unit_test(vb_16),
        cmocka_unit_test(vb_64),
        cmocka_unit_test(vd_lora_a),
        cmocka_unit_test(vd_lora_b),
        cmocka_unit_test(vd_salt),
        cmocka_unit_test(vd_lora_named_like_salt),
        cmocka_unit_test(vd_both),
        cmocka_unit_test(vd_16_lora),
        cmocka_unit_test(vd_64_lora),
        cmocka_unit_test(vd_32_lora),
        cmocka_unit_test(vd_empty_lora_is_none),
        cmocka_unit_test(vd_empty_salt_is_none),
        cmocka_unit_test(vd_seeds),
        cmocka_unit_test(vc_extreme_tokens),
        cmocka_unit_test(vb_chain),
        cmocka_unit_test(ve_chains),
        cmocka_unit_test(vf_lora_chain),
        cmocka_unit_test(vg_raw_chains),
        cmocka_unit_test(vh_eagle_windows),
        cmocka_unit_test(vi_multimodal),
        cmocka_unit_test(vk_pad_value_scheme_hashes_plain),
        cmocka_unit_test(negative_controls),
        cmocka_unit_test(block_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
