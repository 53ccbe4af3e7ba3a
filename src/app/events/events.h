/* SPDX-License-Identifier: Apache-2.0 */
/* `kvroute replay-events`: a recording of router events, checked or sent to an indexer. */
#ifndef KVR_EVENTS_H
#define KVR_EVENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct events_options {
    char **files;
    size_t files_n;
    char *to, *model, *group, *key; /* to NULL: check */
    uint64_t block_size, max_count;
    double max_time;
    bool timed;
};

/* Returns the process's exit status: 0, 1 a bad line, a failed event or an invalid index, 2 a file or a target is not there. */
int events_main(const struct events_options *o);

#endif
