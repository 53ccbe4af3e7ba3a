/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answer to a recovery question (Dynamo's WorkerKvQueryResponse, see kvroute/local_index.h) as it arrives. Its events are
 * taken out of the text one by one and collected; what is left is small and is read as a whole at the end. Both shapes of
 * Events, with and without last_event_id, are accepted. Unknown variants are told as such.
 * Threads: one per object.
 */
#ifndef KVR_WIRE_RECOVER_ANSWER_H
#define KVR_WIRE_RECOVER_ANSWER_H

#include "base/buf.h"
#include "recover/event_list.h"
#include "wire/json.h"

enum kvr_recover_kind {
    KVR_RECOVER_EVENTS,
    KVR_RECOVER_TREE_DUMP,
    KVR_RECOVER_TOO_NEW,
    KVR_RECOVER_INVALID_RANGE,
    KVR_RECOVER_FAILED, /* TreeDumpFailed, Error; message */
    KVR_RECOVER_UNKNOWN
};

struct kvr_recover_answer {
    enum kvr_recover_kind kind;
    uint64_t last_event_id;    /* TreeDump, Events; of the bare array: its last event's id */
    uint64_t newest_available; /* TooNew */
    bool has_last, has_epoch, has_end, has_block_size;
    uint64_t epoch, end_event_id, block_size; /* kvroute's additions */
    char message[128];
    struct kvr_event_list events; /* TreeDump: stored events only */
};

struct kvr_recover_reader {
    struct kvr_json_parser *json;
    struct kvr_buf text, rest; /* the element being read; the answer without its events */
    struct kvr_block *blocks;
    size_t blocks_cap, taken; /* bytes of events so far */
    int depth, list_depth, element_depth;
    bool in_string, escaped, had_list;
    struct kvr_recover_answer answer;
    const char *why; /* what is wrong, after an error */
};

enum { KVR_RECOVER_BYTES_MAX = 1 << 30 }; /* of collected events, 16 a block */

int kvr_recover_reader_init(struct kvr_recover_reader *r);
void kvr_recover_reader_free(struct kvr_recover_reader *r);
/* Returns: 0, -KVR_EFORMAT (see why), -KVR_ELIMIT, -KVR_ENOMEM. */
int kvr_recover_reader_feed(struct kvr_recover_reader *r, const char *data, size_t len);
/* The answer is over: reads what is left. Returns: 0 with r->answer filled in, or as feed. */
int kvr_recover_reader_end(struct kvr_recover_reader *r);

#endif
