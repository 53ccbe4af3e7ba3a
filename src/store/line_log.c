/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One ring of bytes for each lane, with one thread at either end, and no lock.
 *
 * Why it is right:
 *   1. `head` of a lane is written by its thread alone, `tail` by the writer alone. Both only grow; head - tail is what is in the ring,
 *      between 0 and its size.
 *   2. A line's bytes are copied before head is raised past them (release), and the writer reads head (acquire) before it reads bytes: it
 *      sees whole lines only. The lane's thread reads tail (acquire) before it writes where the writer has read.
 *   3. The writer sleeps without a limit only with `asleep` set, and looks at every lane after it has set it. A lane looks at `asleep`
 * after it has raised head. All four are sequentially consistent, so one of both sees the other: no line waits for the next one. Else the
 *      writer wakes up by itself after PAUSE_MS, and a lane costs no system call but when it is half full.
 *   4. `batch` and the file are the writer's. Bytes [0, done) of the batch are in the file. When the file is opened anew with half a line
 *      written, the whole line is written again to the new one.
 *
 * Cost of a line: one copy, two atomic stores. Memory: the rings, and a batch of as many bytes as one ring.
 */
#include "store/line_log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/log.h"

enum { PAUSE_MS = 50, RETRY_MS = 1000, LOOK_MS = 1000, WARN_MS = 60000, ENDING_MS = 2000, PIECE = 4096 };

struct lane {
    _Alignas(64) _Atomic uint64_t head; /* its thread's line of the cache */
    uint64_t lines, dropped_here;
    _Atomic uint64_t taken, dropped;
    _Alignas(64) _Atomic uint64_t tail; /* the writer's */
    char *bytes;
};

struct kvr_line_log {
    char *path;
    const char *what;
    size_t size; /* of a ring */
    size_t lanes_n;
    struct lane *lanes;
    pthread_t thread;
    int wake; /* eventfd */
    _Atomic bool asleep, stop, reopen;
    _Atomic uint64_t write_errors, reopened, left;
    /* the writer's */
    int fd; /* -1: it could not be opened anew */
    bool is_file;
    char *batch;
    size_t batch_n, done, next_lane;
    uint64_t retry_ms, look_ms, warned_ms, stop_ms; /* 0: never, or now */
};

/* ---- lanes ------------------------------------------------------------------------------------------- */

static void nudge(struct kvr_line_log *l)
{
    uint64_t one = 1;
    ssize_t n = write(l->wake, &one, sizeof one);
    (void)n; /* a full counter wakes it too */
}

static void copy_in(struct kvr_line_log *l, struct lane *lane, uint64_t at, const char *data, size_t len)
{
    size_t from = (size_t)at & (l->size - 1), first = KVR_MIN(len, l->size - from);
    memcpy(lane->bytes + from, data, first);
    memcpy(lane->bytes, data + first, len - first);
}

void kvr_line_log_missed(struct kvr_line_log *l, size_t i)
{
    struct lane *lane = &l->lanes[i];
    atomic_store_explicit(&lane->dropped, ++lane->dropped_here, memory_order_relaxed);
}

bool kvr_line_log_put(struct kvr_line_log *l, size_t i, const char *line, size_t len)
{
    struct lane *lane = &l->lanes[i];
    uint64_t head = atomic_load_explicit(&lane->head, memory_order_relaxed), tail = atomic_load_explicit(&lane->tail, memory_order_acquire);
    size_t used = (size_t)(head - tail);
    if (len > l->size - used) {
        kvr_line_log_missed(l, i);
        return false;
    }
    copy_in(l, lane, head, line, len);
    atomic_store_explicit(&lane->taken, ++lane->lines, memory_order_relaxed);
    atomic_store(&lane->head, head + len);
    bool half = used < l->size / 2 && used + len >= l->size / 2;
    if (atomic_load(&l->asleep) ? atomic_exchange(&l->asleep, false) : half) nudge(l);
    return true;
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static bool is_stdout(const struct kvr_line_log *l)
{
    return strcmp(l->path, "-") == 0;
}

/* A named pipe that nobody reads is an error rather than a wait. */
static int open_file(struct kvr_line_log *l)
{
    struct stat st;
    l->fd = is_stdout(l) ? fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3)
                         : open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0640);
    l->is_file = l->fd >= 0 && fstat(l->fd, &st) == 0 && S_ISREG(st.st_mode);
    return l->fd < 0 ? -1 : 0;
}

static void note_error(struct kvr_line_log *l, const char *doing)
{
    int code = errno;
    uint64_t now = kvr_now_ms();
    atomic_fetch_add_explicit(&l->write_errors, 1, memory_order_relaxed);
    l->retry_ms = now + RETRY_MS;
    if (l->warned_ms && now - l->warned_ms < WARN_MS) return;
    l->warned_ms = now;
    kvr_log_warning("%s: cannot %s: file=%.400s error='%s'; tried again every second, lines beyond the room for them are dropped", l->what,
                    doing, l->path, strerror(code));
}

/* Bytes of the batch up to which whole lines are written. */
static size_t line_start(const struct kvr_line_log *l)
{
    size_t at = l->done;
    while (at && l->batch[at - 1] != '\n') at--;
    return at;
}

static void open_anew(struct kvr_line_log *l)
{
    if (is_stdout(l)) return;
    if (l->fd >= 0) close(l->fd);
    l->done = line_start(l);
    l->retry_ms = 0;
    atomic_fetch_add_explicit(&l->reopened, 1, memory_order_relaxed);
    if (open_file(l)) note_error(l, "open");
}

/* Has another file its name now, or none? */
static bool was_moved(const struct kvr_line_log *l)
{
    struct stat named, ours;
    if (l->fd < 0) return true;
    if (is_stdout(l) || fstat(l->fd, &ours)) return false;
    if (stat(l->path, &named)) return errno == ENOENT;
    return named.st_dev != ours.st_dev || named.st_ino != ours.st_ino;
}

/* ---- the writer -------------------------------------------------------------------------------------- */

/* Returns: 1: some of it is written; 0: it takes nothing now; -1: it cannot be written. */
static int write_some(struct kvr_line_log *l)
{
    size_t n = l->batch_n - l->done;
    if (!l->is_file) {
        struct pollfd p = {.fd = l->fd, .events = POLLOUT};
        if (poll(&p, 1, PAUSE_MS) <= 0) return 0;
        n = KVR_MIN(n, (size_t)PIECE);
    }
    ssize_t k = write(l->fd, l->batch + l->done, n);
    if (k > 0) {
        l->done += (size_t)k;
        return 1;
    }
    return k < 0 && (errno == EINTR || errno == EAGAIN) ? 0 : -1;
}

/* Returns: false: something is left. */
static bool write_batch(struct kvr_line_log *l)
{
    if (l->done < l->batch_n && l->retry_ms && kvr_now_ms() < l->retry_ms) return false;
    if (l->fd < 0 && l->done < l->batch_n) open_anew(l);
    while (l->done < l->batch_n) {
        int rc = l->fd < 0 ? 0 : write_some(l);
        if (rc < 0) note_error(l, "write");
        if (rc <= 0) return false;
        l->retry_ms = 0;
    }
    l->done = l->batch_n = 0;
    return true;
}

/* Whole lines of one lane, as many as there are; the batch is empty. Returns: whether there were any. */
static bool take_lane(struct kvr_line_log *l, struct lane *lane)
{
    uint64_t tail = atomic_load_explicit(&lane->tail, memory_order_relaxed), head = atomic_load(&lane->head);
    size_t n = (size_t)(head - tail), from = (size_t)tail & (l->size - 1), first = KVR_MIN(n, l->size - from);
    if (!n) return false;
    memcpy(l->batch, lane->bytes + from, first);
    memcpy(l->batch + first, lane->bytes, n - first);
    l->batch_n = n;
    atomic_store_explicit(&lane->tail, head, memory_order_release);
    return true;
}

static bool take_next(struct kvr_line_log *l)
{
    for (size_t i = 0; i < l->lanes_n; i++) {
        struct lane *lane = &l->lanes[l->next_lane++ % l->lanes_n];
        if (take_lane(l, lane)) return true;
    }
    return false;
}

static bool any_waits(struct kvr_line_log *l)
{
    for (size_t i = 0; i < l->lanes_n; i++)
        if (atomic_load(&l->lanes[i].head) != atomic_load_explicit(&l->lanes[i].tail, memory_order_relaxed)) return true;
    return false;
}

static void sleep_for(struct kvr_line_log *l, int ms)
{
    struct pollfd p = {.fd = l->wake, .events = POLLIN};
    uint64_t n;
    if (poll(&p, 1, ms) > 0 && read(l->wake, &n, sizeof n) < 0 && errno != EAGAIN) p.revents = 0;
}

/* Until there is something to do. `wrote`: there was something just now. */
static void rest(struct kvr_line_log *l, bool wrote)
{
    if (wrote || l->done < l->batch_n) {
        sleep_for(l, PAUSE_MS);
        return;
    }
    atomic_store(&l->asleep, true);
    if (!any_waits(l) && !atomic_load(&l->stop) && !atomic_load(&l->reopen)) sleep_for(l, LOOK_MS);
    atomic_store(&l->asleep, false);
}

static void look_at_name(struct kvr_line_log *l)
{
    uint64_t now = kvr_now_ms();
    bool told = atomic_exchange(&l->reopen, false);
    bool due = l->fd >= 0 && now >= l->look_ms;
    if (due) l->look_ms = now + LOOK_MS;
    if (told || (due && was_moved(l))) open_anew(l);
}

static uint64_t count_lines(const char *data, size_t len)
{
    uint64_t n = 0;
    for (const char *p = data, *end = data + len; p < end && (p = memchr(p, '\n', (size_t)(end - p))); p++) n++;
    return n;
}

/* At the end: lines that could not be written in time. */
static void count_left(struct kvr_line_log *l)
{
    uint64_t left = 0;
    do {
        left += count_lines(l->batch + l->done, l->batch_n - l->done);
        l->done = l->batch_n = 0;
    } while (take_next(l));
    atomic_store(&l->left, left);
    if (left) kvr_log_warning("%s: lines=%llu are lost at the end: file=%.400s", l->what, (unsigned long long)left, l->path);
}

static bool is_over(struct kvr_line_log *l)
{
    if (!atomic_load(&l->stop)) return false;
    if (!l->stop_ms) l->stop_ms = kvr_now_ms() + ENDING_MS;
    return (l->done == l->batch_n && !any_waits(l)) || kvr_now_ms() >= l->stop_ms;
}

static void *writer_main(void *arg)
{
    struct kvr_line_log *l = arg;
    while (!is_over(l)) {
        look_at_name(l);
        bool wrote = false, whole = write_batch(l);
        while (whole && take_next(l)) {
            whole = write_batch(l);
            wrote = true;
        }
        if (!atomic_load(&l->stop) || !whole) rest(l, wrote);
    }
    count_left(l);
    return NULL;
}

/* ---- birth and death --------------------------------------------------------------------------------- */

static void line_log_free(struct kvr_line_log *l)
{
    for (size_t i = 0; l->lanes && i < l->lanes_n; i++) free(l->lanes[i].bytes);
    free(l->lanes);
    free(l->batch);
    free(l->path);
    if (l->fd >= 0) close(l->fd);
    if (l->wake >= 0) close(l->wake);
    free(l);
}

static bool have_memory(struct kvr_line_log *l, const struct kvr_line_log_config *c)
{
    l->path = strdup(c->path);
    l->batch = malloc(c->lane_bytes);
    l->lanes = aligned_alloc(_Alignof(struct lane), c->lanes * sizeof *l->lanes);
    if (!l->path || !l->batch || !l->lanes) return false;
    memset(l->lanes, 0, c->lanes * sizeof *l->lanes);
    l->lanes_n = c->lanes;
    for (size_t i = 0; i < c->lanes; i++)
        if (!(l->lanes[i].bytes = malloc(c->lane_bytes))) return false;
    return true;
}

int kvr_line_log_create(const struct kvr_line_log_config *c, struct kvr_line_log **out, char *err, size_t cap)
{
    KVR_ASSERT(c->lanes && c->lane_bytes && !(c->lane_bytes & (c->lane_bytes - 1)));
    struct kvr_line_log *l = calloc(1, sizeof *l);
    if (!l) {
        snprintf(err, cap, "out of memory");
        return -KVR_ENOMEM;
    }
    l->fd = l->wake = -1;
    l->what = c->what;
    l->size = c->lane_bytes;
    errno = ENOMEM;
    if (have_memory(l, c) && (l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) >= 0 && open_file(l) == 0 &&
        !(errno = pthread_create(&l->thread, NULL, writer_main, l))) {
        *out = l;
        return 0;
    }
    snprintf(err, cap, "cannot write '%.400s': %s; allowed: a file that can be written, or - for standard output", c->path,
             strerror(errno));
    line_log_free(l);
    return -KVR_EINVAL;
}

void kvr_line_log_destroy(struct kvr_line_log *l)
{
    if (!l) return;
    atomic_store(&l->stop, true);
    nudge(l);
    pthread_join(l->thread, NULL);
    line_log_free(l);
}

void kvr_line_log_reopen(struct kvr_line_log *l)
{
    if (!l) return;
    atomic_store(&l->reopen, true);
    nudge(l);
}

void kvr_line_log_stats(const struct kvr_line_log *l, struct kvr_line_log_stats *out)
{
    *out = (struct kvr_line_log_stats){0};
    if (!l) return;
    out->dropped = atomic_load(&l->left);
    for (size_t i = 0; i < l->lanes_n; i++) {
        out->lines += atomic_load_explicit(&l->lanes[i].taken, memory_order_relaxed);
        out->dropped += atomic_load_explicit(&l->lanes[i].dropped, memory_order_relaxed);
    }
    out->write_errors = atomic_load(&l->write_errors);
    out->reopened = atomic_load(&l->reopened);
}

void kvr_access_log_metrics(const struct kvr_line_log *l, struct kvr_prom_page *b)
{
    struct kvr_line_log_stats st;
    kvr_line_log_stats(l, &st);
    const struct kvr_prom_row rows[] = {
        {"access_log_lines_total", "counter", "Lines of the access log", st.lines},
        {"access_log_dropped_lines_total", "counter", "Lines dropped: the file is too slow or cannot be written", st.dropped},
        {"access_log_write_errors_total", "counter", "Failed writes of the access log, tried again", st.write_errors},
        {"access_log_reopened_total", "counter", "Times that the access log was opened anew", st.reopened}};
    kvr_prom_rows(b, l != NULL, "kvroute_", rows, KVR_ARRAY_LEN(rows));
}
