/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of several threads come to the file whole, in their order, and each once; what is not written is counted. */
#include "test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "store/event_recorder.h"
#include "store/line_log.h"

enum { LANES = 4, LINES = 20000 };

static char folder[64], path[128], moved[128];

static int make_folder(void **)
{
    snprintf(folder, sizeof folder, "/tmp/kvr_line_log_XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/log", folder);
    snprintf(moved, sizeof moved, "%s/log.1", folder);
    return 0;
}

static int drop_folder(void **)
{
    unlink(path);
    unlink(moved);
    return rmdir(folder);
}

static struct kvr_line_log *open_log(const char *to, size_t bytes)
{
    struct kvr_line_log_config c = {to, "test", LANES, bytes};
    struct kvr_line_log *l = NULL;
    char err[600];
    assert_int_equal(kvr_line_log_create(&c, &l, err, sizeof err), 0);
    return l;
}

struct writer {
    struct kvr_line_log *log;
    size_t lane;
    unsigned taken;
    pthread_t thread;
};

/* Each line says its lane and its number; one that was dropped is tried again, so that none may be missing. */
static void *write_lines(void *arg)
{
    struct writer *w = arg;
    char line[64];
    for (unsigned i = 0; i < LINES;) {
        int n = snprintf(line, sizeof line, "%zu %u %.*s\n", w->lane, i, (int)(i % 30), "012345678901234567890123456789");
        if (kvr_line_log_put(w->log, w->lane, line, (size_t)n)) i++;
    }
    return NULL;
}

/* Counts on in next[] the lines of a file. */
static void read_lines(const char *from, unsigned next[LANES])
{
    char line[128];
    FILE *f = fopen(from, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        size_t lane;
        unsigned n;
        char rest[64] = "";
        assert_non_null(strchr(line, '\n'));
        assert_true(sscanf(line, "%zu %u %63s", &lane, &n, rest) >= 2);
        assert_true(lane < LANES);
        assert_int_equal(n, next[lane]);
        assert_int_equal(strlen(rest), n % 30);
        next[lane]++;
    }
    fclose(f);
}

static void write_from_all(struct kvr_line_log *l)
{
    struct writer w[LANES];
    for (size_t i = 0; i < LANES; i++) {
        w[i] = (struct writer){.log = l, .lane = i};
        assert_int_equal(pthread_create(&w[i].thread, NULL, write_lines, &w[i]), 0);
    }
    for (size_t i = 0; i < LANES; i++) pthread_join(w[i].thread, NULL);
}

static void lines_of_all_lanes_come_whole_in_order_and_once(void **)
{
    unsigned next[LANES] = {0};
    struct kvr_line_log_stats st;
    struct kvr_line_log *l = open_log(path, 4096); /* wraps often */
    write_from_all(l);
    kvr_line_log_stats(l, &st);
    kvr_line_log_destroy(l);
    read_lines(path, next);
    for (size_t i = 0; i < LANES; i++) assert_int_equal(next[i], LINES);
    assert_int_equal(st.lines, LANES * LINES);
}

static void a_file_opened_anew_gets_what_follows(void **)
{
    unsigned next[LANES] = {0};
    struct stat st;
    struct kvr_line_log *l = open_log(path, 4096);
    write_from_all(l);
    assert_int_equal(rename(path, moved), 0);
    kvr_line_log_reopen(l);
    while (stat(path, &st)) usleep(1000); /* the test's limit of time ends it */
    assert_true(kvr_line_log_put(l, 0, "0 20000 01234567890123456789\n", 29));
    kvr_line_log_destroy(l);
    read_lines(moved, next);
    read_lines(path, next);
    assert_int_equal(next[0], LINES + 1);
}

static void what_cannot_be_written_is_counted_as_dropped(void **)
{
    struct kvr_line_log_stats st = {0};
    char line[100];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    struct kvr_line_log *l = open_log("/dev/full", 1024);
    unsigned refused = 0;
    for (unsigned i = 0; i < 100 || !st.write_errors; i++) {
        refused += !kvr_line_log_put(l, 1, line, sizeof line);
        kvr_line_log_stats(l, &st);
    }
    kvr_line_log_stats(l, &st);
    assert_true(refused > 0 && st.dropped == refused && st.write_errors > 0);
    kvr_line_log_destroy(l);
}

static void a_line_longer_than_the_lane_is_dropped(void **)
{
    char line[2048];
    struct kvr_line_log_stats st;
    memset(line, 'x', sizeof line);
    struct kvr_line_log *l = open_log(path, 1024);
    assert_false(kvr_line_log_put(l, 0, line, sizeof line));
    kvr_line_log_missed(l, 0);
    kvr_line_log_stats(l, &st);
    assert_int_equal(st.dropped, 2);
    kvr_line_log_destroy(l);
}

static void a_pipe_that_nobody_empties_does_not_hold_up_the_end(void **)
{
    char line[1000];
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '\n';
    assert_int_equal(mkfifo(path, 0600), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    struct kvr_line_log *l = open_log(path, 1 << 20);
    for (unsigned i = 0; i < 900; i++) (void)kvr_line_log_put(l, 0, line, sizeof line);
    kvr_line_log_destroy(l);
    close(reader);
}

/* The time of day is about to be set back by an hour: who waits until a time of day waits as long. */
int clock_gettime(clockid_t clock, struct timespec *out)
{
    long rc = syscall(SYS_clock_gettime, clock, out);
    if (clock == CLOCK_REALTIME) out->tv_sec += 3600;
    return (int)rc;
}

static void a_recording_waits_until_the_clock_has_caught_up(void **)
{
    struct kvr_recorder_config c = {.path = path};
    struct kvr_recorder *r = NULL;
    struct stat st = {0};
    char err[600];
    assert_int_equal(kvr_recorder_create(&c, &r, err, sizeof err), 0);
    kvr_recorder_event(r, &(struct kvr_event){.kind = KVR_EVENT_CLEARED});
    WAIT_FOR(stat(path, &st) == 0 && st.st_size > 0, 10);
    kvr_recorder_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_of_all_lanes_come_whole_in_order_and_once, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_file_opened_anew_gets_what_follows, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(what_cannot_be_written_is_counted_as_dropped, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_line_longer_than_the_lane_is_dropped, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_recording_waits_until_the_clock_has_caught_up, make_folder, drop_folder),
        cmocka_unit_test_setup_teardown(a_pipe_that_nobody_empties_does_not_hold_up_the_end, make_folder, drop_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
