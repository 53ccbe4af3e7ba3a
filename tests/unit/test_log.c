/* SPDX-License-Identifier: Apache-2.0 */
/* The log: one line is one line, in both forms, whatever came in; what is beyond the limit of a place is counted. */
#include "test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/log.h"

static void test_what_is_printable(void **)
{
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
        {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},                      /* longer than need be */
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"},                      /* a surrogate */
        {"\xf0\x80\x80\xaf", "\\xf0\\x80\\x80\\xaf"},             /* longer than need be */
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},             /* above U+10FFFF */
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},                 /* the last one */
        {"\xef\xbf\xbd\xee\x80\x80", "\xef\xbf\xbd\xee\x80\x80"}, /* above the surrogates */
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

/* Everything that is written to stderr from a call of `begin` on, until `end` reads it. */
struct ear {
    int saved, at;
    char path[32];
};

static void begin(struct ear *e)
{
    snprintf(e->path, sizeof e->path, "/tmp/kvr-log-XXXXXX");
    e->at = mkstemp(e->path);
    assert_true(e->at >= 0);
    unlink(e->path);
    e->saved = dup(2);
    fflush(stderr);
    dup2(e->at, 2);
}

static size_t end(struct ear *e, char *out, size_t cap)
{
    dup2(e->saved, 2);
    close(e->saved);
    ssize_t n = pread(e->at, out, cap - 1, 0);
    close(e->at);
    assert_true(n >= 0);
    out[n] = 0;
    return (size_t)n;
}

/* The text behind "2026-11-24T01:02:03.456Z info " of a line, whose time is checked for its form. */
static const char *message_of(const char *line, const char *level)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd.dddZ ";
    for (size_t i = 0; i < sizeof form - 1; i++) assert_true(form[i] == 'd' ? line[i] >= '0' && line[i] <= '9' : line[i] == form[i]);
    line += sizeof form - 1;
    assert_memory_equal(line, level, strlen(level));
    assert_true(line[strlen(level)] == ' ');
    return line + strlen(level) + 1;
}

static void test_a_log_line_is_one_line(void **)
{
    struct ear ear;
    char got[16384], big[9000];
    begin(&ear);
    kvr_log("kvroute: model '%s' is %d", "x\nkvroute: the admin key is hunter2\x1b[8m", 7);
    memset(big, '\n', sizeof big - 1);
    big[sizeof big - 1] = 0;
    kvr_log_warning("%s", big);
    size_t n = end(&ear, got, sizeof got);
    char *second = strchr(got, '\n');
    assert_non_null(second);
    *second++ = 0;
    assert_string_equal(message_of(got, "info"), "kvroute: model 'x\\x0akvroute: the admin key is hunter2\\x1b[8m' is 7");
    assert_ptr_equal(strchr(second, '\n'), got + n - 1);
    assert_true(got + n - second <= 4096 && strncmp(message_of(second, "warning"), "\\x0a\\x0a", 8) == 0);
}

static void test_a_json_line_is_whole_however_long(void **)
{
    struct ear ear;
    char got[16384], big[9000];
    begin(&ear);
    kvr_log_set_format(KVR_LOG_JSON);
    kvr_log_error("kvroute: \"%s\" in C:\\", "gr\xc3\xbc\xc3\x9f\n");
    memset(big, '"', sizeof big - 1);
    big[sizeof big - 1] = 0;
    kvr_log("%s", big);
    kvr_log_set_format(KVR_LOG_TEXT);
    size_t n = end(&ear, got, sizeof got);
    char *second = strchr(got, '\n');
    assert_non_null(second);
    *second++ = 0;
    assert_memory_equal(got, "{\"time\":\"", 9);
    assert_string_equal(got + 9 + 24, "\",\"level\":\"error\",\"message\":\"kvroute: \\\"gr\xc3\xbc\xc3\x9f\\\\x0a\\\" in C:\\\\\"}");
    assert_true(got + n - second <= 4096 && got + n - second > 4000);
    assert_string_equal(got + n - 5, "\\\"\"}\n"); /* cut between two escapes, and closed */
}

static void test_lines_below_the_level_are_not_written(void **)
{
    static const char *const all[] = {"error", "warning", "info", "debug"};
    for (int level = KVR_LOG_ERROR; level <= KVR_LOG_DEBUG; level++) {
        struct ear ear;
        char got[4096], *line = got;
        begin(&ear);
        kvr_log_set_level((enum kvr_log_level)level);
        kvr_log_error("it");
        kvr_log_warning("it");
        kvr_log("it");
        kvr_log_debug("it");
        kvr_log_set_level(KVR_LOG_INFO);
        end(&ear, got, sizeof got);
        for (int k = 0; k <= level; k++) {
            const char *text = message_of(line, all[k]);
            assert_memory_equal(text, "it\n", 3);
            line = got + (text + 3 - got);
        }
        assert_true(*line == 0);
    }
}

enum { TALKERS = 4, SAYINGS = 5000 };

static void *talk(void *arg)
{
    for (int i = 0; i < SAYINGS; i++) kvr_log("talker %d", *(int *)arg);
    return NULL;
}

/* Lines that were written and lines that are said to be left out are together all of them, whichever thread said so. */
static void test_lines_beyond_the_limit_are_counted(void **)
{
    static char got[1 << 20];
    struct ear ear;
    pthread_t threads[TALKERS];
    int names[TALKERS];
    unsigned long long written = 0, left_out = 0, n;
    begin(&ear);
    for (int i = 0; i < TALKERS; i++) {
        names[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, talk, &names[i]), 0);
    }
    for (int i = 0; i < TALKERS; i++) pthread_join(threads[i], NULL);
    kvr_log("somebody else");
    kvr_log_finish();
    kvr_log_finish(); /* nothing is left to say */
    end(&ear, got, sizeof got);
    bool other = false;
    for (char *line = got, *next; *line; line = next) {
        next = strchr(line, '\n');
        assert_non_null(next);
        *next++ = 0;
        const char *text = message_of(line, "info");
        if (sscanf(text, "kvroute: log: %llu more lines were left out", &n) == 1) left_out += n;
        else if (strcmp(text, "somebody else") == 0) other = true;
        else written++;
        assert_true(!strstr(text, "left out") || strstr(text, "talker %d"));
    }
    assert_true(other); /* a limit is that of one place */
    assert_true(written >= KVR_LOG_LINES_MAX && left_out > 0);
    assert_int_equal(written + left_out, TALKERS * SAYINGS);
}

static void test_of_one_cause_a_line_a_minute_is_written(void **)
{
    uint64_t held = 9, one = kvr_log_key(1, 0, "batches of rank 3"), other = kvr_log_key(2, 0, "batches of rank 3");
    assert_true(one == kvr_log_key(1, 0, "batches of rank 17"));
    assert_true(one != other && one != kvr_log_key(1, 1, "batches of rank 3") && one != kvr_log_key(1, 0, "paused"));
    assert_true(kvr__log_due(one, 1000, &held) && held == 0);
    for (uint64_t t = 1000; t < 1060; t++) assert_false(kvr__log_due(one, t, &held));
    assert_true(kvr__log_due(other, 1001, &held) && held == 0);
    assert_true(kvr__log_due(one, 1060, &held) && held == 60);
    assert_true(kvr__log_due(one, 1120, &held) && held == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_is_printable),
                                       cmocka_unit_test(test_of_one_cause_a_line_a_minute_is_written),
                                       cmocka_unit_test(test_a_log_line_is_one_line),
                                       cmocka_unit_test(test_a_json_line_is_whole_however_long),
                                       cmocka_unit_test(test_lines_below_the_level_are_not_written),
                                       cmocka_unit_test(test_lines_beyond_the_limit_are_counted)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
