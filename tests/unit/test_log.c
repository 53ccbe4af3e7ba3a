/* SPDX-License-Identifier: Apache-2.0 */
/* Text of others in the log: what is printed has no control characters, whatever came in. */
#include "test.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"

static void test_what_is_printable(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"plain text, 100 %", "plain text, 100 %"},
        {"a\nkvroute: b", "a\\x0akvroute: b"},
        {"a\r\n\tb", "a\\x0d\\x0a\\x09b"},
        {"\x1b[2J\x7f", "\\x1b[2J\\x7f"},
        {"gr\xc3\xbc\xc3\x9f \xe4\xbd\xa0 \xf0\x9f\x98\x80", "gr\xc3\xbc\xc3\x9f \xe4\xbd\xa0 \xf0\x9f\x98\x80"},
        {"\xc2\x9b", "\\xc2\\x9b"},            /* C1: some terminals take it for ESC [ */
        {"\xe2\x80\xa8|", "\\xe2\\x80\\xa8|"}, /* a line separator */
        {"\xe2\x80\xae|", "\\xe2\\x80\\xae|"}, /* turns the direction */
        {"\xff\xc3", "\\xff\\xc3"},
        {"\xc3(", "\\xc3("},
        {"", ""},
    };
    char out[256];
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        size_t n = kvr_printable(rows[i].in, strlen(rows[i].in), out, sizeof out);
        assert_string_equal(out, rows[i].out);
        assert_int_equal(n, strlen(out));
    }
    assert_int_equal(kvr_printable("a\0b", 3, out, sizeof out), 6);
    assert_string_equal(out, "a\\x00b");
    for (size_t cap = 1; cap < 12; cap++) { /* cut, never in the middle of an escape */
        size_t n = kvr_printable("ab\n\xc3\xbc", 5, out, cap);
        assert_true(n < cap && strlen(out) == n);
        assert_true(n == 0 || n == 1 || n == 2 || n == 6 || n == 8);
    }
}

static void test_a_log_line_is_one_line(void **state)
{
    (void)state;
    int saved = dup(2), fds[2];
    char got[16384], big[9000];
    assert_int_equal(pipe(fds), 0);
    fflush(stderr);
    dup2(fds[1], 2);
    kvr_log("kvroute: model '%s' is %d", "x\nkvroute: the admin key is hunter2\x1b[8m", 7);
    memset(big, '\n', sizeof big - 1);
    big[sizeof big - 1] = 0;
    kvr_log("%s", big);
    dup2(saved, 2);
    close(saved);
    close(fds[1]);
    ssize_t n = read(fds[0], got, sizeof got - 1);
    close(fds[0]);
    assert_true(n > 0);
    got[n] = 0;
    char *second = strchr(got, '\n');
    assert_non_null(second);
    *second++ = 0;
    assert_string_equal(got, "kvroute: model 'x\\x0akvroute: the admin key is hunter2\\x1b[8m' is 7");
    assert_ptr_equal(strchr(second, '\n'), got + n - 1);
    assert_true(got + n - second <= 8192 && strncmp(second, "\\x0a\\x0a", 8) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_printable), cmocka_unit_test(test_a_log_line_is_one_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
