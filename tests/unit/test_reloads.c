/* SPDX-License-Identifier: Apache-2.0 */
/* Whether files say something else than they did: app/serve/config/reloads.h. */
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "app/serve/config/reloads.h"

struct two {
    char dir[32], a[48], b[48];
};

static void put(const char *path, const char *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static int make(void **state)
{
    static struct two t;
    snprintf(t.dir, sizeof t.dir, "/tmp/kvr-reloads-XXXXXX");
    assert_non_null(mkdtemp(t.dir));
    snprintf(t.a, sizeof t.a, "%s/a", t.dir);
    snprintf(t.b, sizeof t.b, "%s/b", t.dir);
    *state = &t;
    return 0;
}

static int clean(void **state)
{
    const struct two *t = *state;
    unlink(t->a);
    unlink(t->b);
    return rmdir(t->dir);
}

static bool changed(struct reloads *r, const struct two *t)
{
    const char *const paths[] = {t->a, t->b};
    struct reload_mark now;
    reload_mark_of(paths, 2, &now);
    return reloads_mark(r, RELOAD_CERTIFICATES, &now);
}

static void a_byte_that_moves_from_one_file_to_the_next_is_a_change(void **state)
{
    const struct two *t = *state;
    static struct reloads r;
    put(t->a, "ab", 2);
    put(t->b, "c", 1);
    assert_true(changed(&r, t));
    assert_false(changed(&r, t));
    put(t->a, "a", 1);
    put(t->b, "bc", 2);
    assert_true(changed(&r, t));
    put(t->a, "bc", 2);
    put(t->b, "a", 1);
    assert_true(changed(&r, t)); /* their order counts */
    assert_false(changed(&r, t));
}

static void the_last_byte_of_a_large_file_counts(void **state)
{
    enum { LARGE = 1 << 20 };
    const struct two *t = *state;
    static struct reloads r;
    char *bytes = calloc(1, LARGE);
    assert_non_null(bytes);
    put(t->a, bytes, LARGE);
    put(t->b, "", 0);
    assert_true(changed(&r, t));
    bytes[LARGE - 1] = 1;
    put(t->a, bytes, LARGE);
    assert_true(changed(&r, t));
    assert_false(changed(&r, t));
    free(bytes);
}

static void what_cannot_be_read_is_never_the_same(void **state)
{
    const struct two *t = *state;
    static struct reloads r;
    put(t->a, "a", 1);
    assert_true(changed(&r, t));
    assert_true(changed(&r, t)); /* there is no b */
    put(t->b, "b", 1);
    assert_true(changed(&r, t));
    assert_false(changed(&r, t));
    reloads_unmark(&r, RELOAD_CERTIFICATES);
    assert_true(changed(&r, t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_byte_that_moves_from_one_file_to_the_next_is_a_change, make, clean),
        cmocka_unit_test_setup_teardown(the_last_byte_of_a_large_file_counts, make, clean),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_never_the_same, make, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
