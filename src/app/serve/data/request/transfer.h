/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the two legs of a request are told so that they meet, where the router says it before either has begun: ids, rooms, the prefill
 * worker's address. All of it is drawn anew for each pair of legs and never used twice: engines find a transfer by it, and a room that is
 * used again ends an SGLang's scheduler. It has a random part, as ids that clients give could be those of other clients.
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_TRANSFER_H
#define KVR_SERVE_TRANSFER_H

#include <stdbool.h>

#include "app/serve/common/limits.h"
#include "app/serve/workers/table/kv_keys.h"
#include "wire/handoff.h"

struct request;

struct transfer {
    char id[ID_MAX + 32];          /* "": nothing was drawn */
    struct kvr_buf header;         /* x-request-id of both legs; empty: that of any attempt */
    struct kv_address at;          /* the prefill worker's */
    char engine[KV_ENGINE_ID_MAX]; /* its name; "": not needed, or not known yet */
    uint64_t *rooms;
    size_t rooms_n;
};

/* For the prefill worker and the decode worker that are chosen. Returns: false without memory. */
bool transfer_draw(struct request *r);
/* Is it told by `rid` in the bodies? Not in those of several rooms: a release of SGLang may want a list then. */
bool transfer_has_rid(const struct request *r);
/* What bodies of its legs are made from, whatever the protocol. It borrows from the request. */
struct kvr_handoff_leg transfer_leg(const struct request *r);
void transfer_forget(struct transfer *t);

#endif
