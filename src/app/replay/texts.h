/* SPDX-License-Identifier: Apache-2.0 */
/* Token ids of a trace's texts and chats, of --tokenizer-dir: for what needs tokens here, --offline and --write-trace. */
#ifndef KVR_REPLAY_TEXTS_H
#define KVR_REPLAY_TEXTS_H

#include <stdatomic.h>

#include "app/replay/replay.h"
#include "traffic/traffic.h"

struct kvr_given_tokens;

struct replay_texts {
    struct traffic_texts hook; /* for a traffic's configuration; it lives here */
    struct kvr_given_tokens *given;
    _Atomic bool refused; /* a text has come, and there is no folder */
};

/* Zeroes before. Returns: 0, or an exit code; what is wrong was said. */
int replay_texts_open(const struct replay_options *o, struct replay_texts *t);
/* After rows were read. Returns: 0, or an exit code, when there were texts and no folder; that was said. */
int replay_texts_check(const struct replay_texts *t);
void replay_texts_close(struct replay_texts *t);

#endif
