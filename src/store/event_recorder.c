/* SPDX-License-Identifier: Apache-2.0 */
/* Callers append to a bounded buffer and one thread writes it out; store/event_recorder.h says what is dropped when the disk is slow. */
#include "store/event_recorder.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/buf.h"
#include "base/lock.h"
#include "base/log.h"
#include "store/data_dir.h"
#include "wire/prom_page.h"
#include "wire/record.h"

enum { WAITING_MAX = 8 << 20, WRITE_EVERY_MS = 200, WRITE_ABOVE = 32768 };

struct kvr_recorder {
    struct kvr_recorder_config config;
    char *path;
    uint64_t began_ns;
    pthread_t thread;
    struct kvr_lock lock;
    pthread_cond_t cond;
    struct kvr_buf waiting; /* whole lines */
    bool stop;
    struct kvr_recorder_stats stats;
    /* the thread's */
    FILE *file;
    uint64_t lines; /* in this file */
};

void kvr_recorder_event(struct kvr_recorder *r, const struct kvr_event *ev)
{
    if (!r) return;
    uint64_t ms = (kvr_monotonic_ns() - r->began_ns) / 1000000;
    kvr_lock(&r->lock);
    struct kvr_recorder_stats *s = &r->stats;
    bool late = r->config.seconds_max > 0 && (double)ms > r->config.seconds_max * 1000;
    if (late || (r->config.count_max && s->events >= r->config.count_max)) s->over = true;
    if (!s->over && r->waiting.len > WAITING_MAX) {
        s->dropped++;
    } else if (!s->over) {
        size_t was = r->waiting.len;
        kvr_record_write(&r->waiting, ms, ev);
        if (r->waiting.failed) { /* no half lines */
            r->waiting.len = was;
            r->waiting.failed = false;
            s->dropped++;
        } else {
            s->events++;
        }
        if (r->waiting.len > WRITE_ABOVE) pthread_cond_signal(&r->cond);
    }
    kvr_unlock(&r->lock);
}

/* Goes on in the next file. */
static void rotate(struct kvr_recorder *r)
{
    char path[4200];
    if (r->file) fclose(r->file);
    snprintf(path, sizeof path, "%s.%llu", r->path, (unsigned long long)r->stats.files);
    r->file = kvr_owners_file(path);
    r->lines = 0;
    kvr_lock(&r->lock);
    r->stats.files++;
    kvr_unlock(&r->lock);
}

static bool write_lines(struct kvr_recorder *r, const struct kvr_buf *b)
{
    const char *at = b->data, *end = b->data + b->len;
    while (at < end) {
        const char *to = end;
        if (r->config.lines_max) {
            if (r->lines == r->config.lines_max) rotate(r);
            to = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1;
            r->lines++;
        }
        if (!r->file || fwrite(at, 1, (size_t)(to - at), r->file) != (size_t)(to - at)) return false;
        at = to;
    }
    return fflush(r->file) == 0;
}

static void *recorder_main(void *arg)
{
    struct kvr_recorder *r = arg;
    struct kvr_buf mine = {0};
    for (bool stop = false; !stop;) {
        kvr_lock(&r->lock);
        if (!r->stop && r->waiting.len < WRITE_ABOVE) kvr_cond_wait_ms(&r->cond, &r->lock, WRITE_EVERY_MS);
        struct kvr_buf swap = r->waiting;
        r->waiting = mine;
        mine = swap;
        stop = r->stop;
        kvr_unlock(&r->lock);
        if (mine.len && !write_lines(r, &mine)) {
            kvr_log_error("kvroute: cannot write the recording '%s': %s; it ends here", r->path, strerror(errno));
            kvr_lock(&r->lock);
            r->stats.write_errors++;
            r->stats.over = true;
            kvr_unlock(&r->lock);
        }
        mine.len = 0;
    }
    kvr_buf_free(&mine);
    return NULL;
}

int kvr_recorder_create(const struct kvr_recorder_config *config, struct kvr_recorder **out, char *err, size_t cap)
{
    struct kvr_recorder *r = calloc(1, sizeof *r);
    if (!r) return -KVR_ENOMEM;
    r->config = *config;
    r->path = strdup(config->path);
    r->file = kvr_owners_file(config->path);
    r->began_ns = kvr_monotonic_ns();
    r->stats.files = 1;
    kvr_lock_init(&r->lock, KVR_LOCK_RECORDER);
    kvr_cond_init(&r->cond);
    if (r->path && r->file && pthread_create(&r->thread, NULL, recorder_main, r) == 0) {
        *out = r;
        return 0;
    }
    snprintf(err, cap, "cannot write '%s': %s", config->path, strerror(errno));
    if (r->file) fclose(r->file);
    kvr_lock_destroy(&r->lock);
    pthread_cond_destroy(&r->cond);
    free(r->path);
    free(r);
    return -KVR_EINVAL;
}

void kvr_recorder_destroy(struct kvr_recorder *r)
{
    if (!r) return;
    kvr_lock(&r->lock);
    r->stop = true;
    pthread_cond_signal(&r->cond);
    kvr_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    if (r->file) fclose(r->file);
    kvr_buf_free(&r->waiting);
    kvr_lock_destroy(&r->lock);
    pthread_cond_destroy(&r->cond);
    free(r->path);
    free(r);
}

void kvr_recorder_stats(struct kvr_recorder *r, struct kvr_recorder_stats *out)
{
    kvr_lock(&r->lock);
    *out = r->stats;
    kvr_unlock(&r->lock);
}

void kvr_recorder_metrics(struct kvr_recorder *r, struct kvr_prom_page *b)
{
    struct kvr_recorder_stats s = {0};
    if (r) kvr_recorder_stats(r, &s);
    const struct kvr_prom_row rows[] = {
        {"recorded_events_total", "counter", "KV events written to the recording", s.events},
        {"recorder_dropped_events_total", "counter", "KV events left out: the disk is too slow", s.dropped},
        {"recorder_files_total", "counter", "Files of the recording", s.files},
        {"recorder_write_errors_total", "counter", "Failed writes, which end the recording", s.write_errors}};
    kvr_prom_rows(b, r != NULL, "kvroute_", rows, KVR_ARRAY_LEN(rows));
}
