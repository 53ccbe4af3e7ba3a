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
#include "recover/consumer/answer.h"
#include "wire/json.h"

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
