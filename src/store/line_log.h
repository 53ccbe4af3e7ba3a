/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of many threads, written to one file by a thread of its own, so that no disk holds up who has something to say.
 *
 *    lane 0  ring of bytes --.
 *    lane 1  ring of bytes --+--> the writer's batch --> file
 *    ...                    -'
 *
 * A lane has one thread that adds whole lines to it and never waits: a line for which there is no room is dropped and counted. The writer
 * empties the lanes in turn, so lines of one lane keep their order and those of two lanes roughly do. When the file cannot be written (a
 * full disk) the batch is kept and tried again every second, and lanes fill up meanwhile: what is lost is counted, and what is written
 * afterwards begins with a whole line.
 *
 * The file is opened anew by kvr_line_log_reopen, and by itself within a second after another file, or none, has its name; lines are
 * neither lost nor split by that. What is no regular file (a pipe, a terminal) is written in pieces that it takes at once.
 *
 * Threads: kvr_line_log_put from the lane's thread; create and destroy from the owner, while no lane is used; the others from any.
 */
#ifndef KVR_STORE_LINE_LOG_H
#define KVR_STORE_LINE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/prom_page.h"

struct kvr_line_log;

struct kvr_line_log_config {
    const char *path; /* "-": standard output */
    const char *what; /* in warnings: "kvroute: access log" */
    size_t lanes;
    size_t lane_bytes; /* of each; a power of two */
};

struct kvr_line_log_stats {
    uint64_t lines;   /* that were taken */
    uint64_t dropped; /* for which there was no room, or that were left at the end */
    uint64_t write_errors, reopened;
};

/* Returns: 0, or a negative code with the reason in err. */
int kvr_line_log_create(const struct kvr_line_log_config *config, struct kvr_line_log **out, char *err, size_t cap);
/* Writes what waits, for up to two seconds, and closes. NULL is fine. */
void kvr_line_log_destroy(struct kvr_line_log *l);
/* `line` ends with its only newline. Returns: false: it was dropped. */
bool kvr_line_log_put(struct kvr_line_log *l, size_t lane, const char *line, size_t len);
/* A line that could not be put together, for want of memory: counted as dropped. The lane's thread. */
void kvr_line_log_missed(struct kvr_line_log *l, size_t lane);
/* Soon, by the writer. NULL is fine. */
void kvr_line_log_reopen(struct kvr_line_log *l);
/* NULL is fine: zeroes. */
void kvr_line_log_stats(const struct kvr_line_log *l, struct kvr_line_log_stats *out);
/* What is counted, of a program's access log. NULL: no samples. */
void kvr_access_log_metrics(const struct kvr_line_log *l, struct kvr_prom_page *b);

#endif
