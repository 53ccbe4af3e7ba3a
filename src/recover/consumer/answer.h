/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker's recover endpoint answers, once it is read (wire/recover_answer.h reads it, recover/consumer/view.h makes use of it). */
#ifndef KVR_RECOVER_ANSWER_H
#define KVR_RECOVER_ANSWER_H

#include "recover/event_list.h"

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
    char message[200];
    struct kvr_event_list events; /* TreeDump: stored events only */
};

#endif
