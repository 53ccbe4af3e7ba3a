/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes router events to a file of JSON Lines (wire/record.h) while they are applied.
 *
 * The callers only append to memory; a thread writes it out. What is waiting is bounded: when the disk is too slow events are
 * dropped and counted, because a recording must not hold up routing. With lines_max the file is closed at that many lines and
 * goes on as FILE.1, FILE.2, ...; count_max and seconds_max end the recording.
 *
 * Threads: kvr_recorder_event from any; the others from the owner.
 */
#ifndef KVR_NET_EVENT_RECORDER_H
#define KVR_NET_EVENT_RECORDER_H

#include <kvroute/event.h>

struct kvr_prom_page;

struct kvr_recorder;

struct kvr_recorder_config {
    const char *path;
    uint64_t lines_max, count_max; /* 0: no limit */
    double seconds_max;
};

struct kvr_recorder_stats {
    uint64_t events, dropped, files, write_errors;
    bool over; /* a limit has ended it, or the disk */
};

/* Truncates the file. Returns: 0, or a negative code with the reason in err. */
int kvr_recorder_create(const struct kvr_recorder_config *config, struct kvr_recorder **out, char *err, size_t cap);
/* Writes what waits and closes. NULL is fine. */
void kvr_recorder_destroy(struct kvr_recorder *r);
/* NULL is fine: nothing is recorded. */
void kvr_recorder_event(struct kvr_recorder *r, const struct kvr_event *ev);
void kvr_recorder_stats(struct kvr_recorder *r, struct kvr_recorder_stats *out);
/* As Prometheus text, with a prefix of "kvroute_". NULL is fine: nothing. */
struct kvr_buf;
void kvr_recorder_metrics(struct kvr_recorder *r, struct kvr_prom_page *out);

#endif
