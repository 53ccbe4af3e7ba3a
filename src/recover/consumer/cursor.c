/* SPDX-License-Identifier: Apache-2.0 */
#include "recover/consumer/cursor.h"

enum kvr_cursor_verdict kvr__cursor_live(struct kvr_cursor *c, uint64_t seq, double ts)
{
    bool backwards = c->live_any && seq <= c->last_live;
    bool later = c->applied_any && c->last_ts > 0 && ts > c->last_ts;
    c->live_any = true;
    c->last_live = seq;
    if (backwards || (seq < c->next && later)) return KVR_CURSOR_RESTART;
    return kvr__cursor_replay(c, seq);
}

enum kvr_cursor_verdict kvr__cursor_replay(const struct kvr_cursor *c, uint64_t seq)
{
    if (seq < c->next) return KVR_CURSOR_STALE;
    return seq == c->next ? KVR_CURSOR_APPLY : KVR_CURSOR_GAP;
}

void kvr__cursor_advance(struct kvr_cursor *c, uint64_t seq, double ts)
{
    c->applied_any = true;
    c->next = seq + 1;
    c->last_ts = ts;
}

void kvr__cursor_reset(struct kvr_cursor *c)
{
    *c = (struct kvr_cursor){0};
}
