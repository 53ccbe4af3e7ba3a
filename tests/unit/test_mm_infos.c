/* SPDX-License-Identifier: Apache-2.0 */
/* block_mm_infos of a body: what is read, and that every other shape is refused with the member's name. */
#include "test.h"

#include <string.h>
#include <kvroute/error.h>

#include "wire/mm_infos.h"

static int setup(void **s)
{
    *s = kvr_json_parser_new();
    return *s ? 0 : -1;
}

static int teardown(void **s)
{
    kvr_json_parser_free(*s);
    return 0;
}

static int read(void **s, const char *text, size_t blocks_max, struct kvr_mm_infos *out, char why[160])
{
    struct kvr_json root;
    why[0] = 0;
    assert_int_equal(kvr_json_parse(*s, text, strlen(text), &root, NULL), 0);
    return kvr_mm_infos_read(root, blocks_max, out, why, 160);
}

static void objects_are_read_by_block(void **s)
{
    struct kvr_mm_infos m;
    char why[160];
    assert_int_equal(read(s,
                          "{\"block_mm_infos\":[null,{\"mm_objects\":[{\"mm_hash\":18446744073709551615,\"offsets\":[[0,4]]},"
                          "{\"mm_hash\":7}]},{\"mm_objects\":[]}]}",
                          3, &m, why),
                     0);
    assert_int_equal(m.n, 3);
    assert_int_equal(m.blocks[0].count, 0);
    assert_int_equal(m.blocks[1].count, 2);
    assert_true(m.blocks[1].mm_hashes[0] == UINT64_MAX && m.blocks[1].mm_hashes[1] == 7);
    assert_int_equal(m.blocks[2].count, 0);
    kvr_mm_infos_free(&m);
}

static void none_is_no_list(void **s)
{
    static const char *const bodies[] = {"{}", "{\"block_mm_infos\":null}", "{\"block_mm_infos\":[]}", "{\"block_mm_infos\":[null,null]}"};
    struct kvr_mm_infos m;
    char why[160];
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(read(s, bodies[i], 2, &m, why), 0);
        assert_int_equal(m.n, 0);
        assert_null(m.blocks);
        kvr_mm_infos_free(&m);
    }
    assert_int_equal(read(s, "{\"block_mm_infos\":[]}", 0, &m, why), -KVR_EFORMAT);
    assert_non_null(strstr(why, "block hashes must already include"));
    kvr_mm_infos_free(&m);
}

static void odd_shapes_are_refused_by_name(void **s)
{
    static const char *const values[] = {"5",
                                         "\"x\"",
                                         "{}",
                                         "[1]",
                                         "[{}]",
                                         "[{\"mm_objects\":null}]",
                                         "[{\"mm_objects\":{}}]",
                                         "[{\"mm_objects\":[1]}]",
                                         "[{\"mm_objects\":[{}]}]",
                                         "[{\"mm_objects\":[{\"mm_hash\":-1}]}]",
                                         "[{\"mm_objects\":[{\"mm_hash\":1.0}]}]",
                                         "[{\"mm_objects\":[{\"mm_hash\":\"9\"}]}]",
                                         "[{\"mm_objects\":[{\"mm_hash\":null}]}]",
                                         "[null,{\"mm_objects\":[{\"mm_hash\":1,\"offsets\":3}]}]",
                                         "[[[]]]",
                                         "[null,null,null]"};
    struct kvr_mm_infos m;
    char why[160], text[256];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        snprintf(text, sizeof text, "{\"block_mm_infos\":%s}", values[i]);
        assert_int_equal(read(s, text, 2, &m, why), -KVR_EFORMAT);
        assert_int_equal(strncmp(why, "block_mm_infos", 14), 0);
        kvr_mm_infos_free(&m);
    }
}

static void a_block_has_64_objects_at_most(void **s)
{
    struct kvr_mm_infos m;
    char why[160], text[64 + 20 * 66] = "{\"block_mm_infos\":[{\"mm_objects\":[{\"mm_hash\":1}";
    size_t at = strlen(text);
    for (int i = 1; i < 64; i++) at += (size_t)snprintf(text + at, sizeof text - at, ",{\"mm_hash\":1}");
    snprintf(text + at, sizeof text - at, "]}]}");
    assert_int_equal(read(s, text, 1, &m, why), 0);
    assert_int_equal(m.blocks[0].count, 64);
    kvr_mm_infos_free(&m);
    snprintf(text + at, sizeof text - at, ",{\"mm_hash\":1}]}]}");
    assert_int_equal(read(s, text, 1, &m, why), -KVR_EFORMAT);
    assert_non_null(strstr(why, "64"));
    kvr_mm_infos_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(objects_are_read_by_block, setup, teardown),
        cmocka_unit_test_setup_teardown(none_is_no_list, setup, teardown),
        cmocka_unit_test_setup_teardown(odd_shapes_are_refused_by_name, setup, teardown),
        cmocka_unit_test_setup_teardown(a_block_has_64_objects_at_most, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
