/* SPDX-License-Identifier: Apache-2.0 */
/* What to send and when: a Mooncake trace, or synthetic conversations. */
#ifndef KVR_REPLAY_WORKLOAD_H
#define KVR_REPLAY_WORKLOAD_H

#include "app/replay/replay.h"
#include "base/buf.h"

struct workload;

struct work_item {
    uint32_t *tokens; /* owned */
    size_t tokens_n;
    uint64_t max_tokens;
    uint32_t session; /* synthetic */
};

enum work_state { WORK_READY, WORK_LATER, WORK_BLOCKED, WORK_FINISHED };

struct workload *workload_create(const struct replay_options *o, char *err, size_t cap);
void workload_destroy(struct workload *w);
/* The next request that is due at now_s (seconds since the start). WORK_LATER: *wait_ms says how long. */
enum work_state workload_next(struct workload *w, double now_s, struct work_item *out, uint64_t *wait_ms);
/* The answer of an item has ended; a synthetic conversation goes on with it. */
void workload_done(struct workload *w, const struct work_item *item, const char *answer, size_t len, bool is_sse);
/* Starts over, with other conversations (synthetic) or the same rows (trace). false when it cannot. */
bool workload_restart(struct workload *w);
void work_item_free(struct work_item *i);
void work_item_body(const struct work_item *i, const char *model, bool stream, struct kvr_buf *out);

#endif
