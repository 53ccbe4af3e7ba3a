/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request served by two engines: a prefill worker P computes the prompt's KV, a decode worker D takes it over and generates. This is
 * what the engines want to read in the bodies of the two legs, and what P says in its answer.
 *
 *     protocol          in P's body               in D's body                       legs
 *     vllm-nixl         kv_transfer_params        P's kv_transfer_params            P, then D
 *     vllm-nixl-push    the same, a transfer id   where P is, the transfer id       at once
 *     vllm-mooncake     a transfer id             where P is, the transfer id       at once
 *     vllm-p2p          - (the addresses are in x-request-id)                       P, then D
 *     sglang            where P is, and a room    the same                          at once
 *     trtllm            disaggregated_params      P's, with the prompt's ids        P, then D
 *     none              -                         -                                 P, then D
 *
 * Only top-level members are changed (wire/json_edit.h); P's object goes to D byte for byte. What a client says of a transfer is removed
 * from every body made here: with it, it could read the cache of others.
 *
 * Bodies and answers are borrowed. Bodies must be JSON that was parsed before; answers need not be. Functions that write append to `out`
 * and return false, with nothing appended, when the body is no object; without memory out->failed is set. Threads: pure functions.
 */
#ifndef KVR_WIRE_HANDOFF_H
#define KVR_WIRE_HANDOFF_H

#include "base/buf.h"
#include "wire/handoff_members.h"
#include "wire/handoff_protocol.h"
#include "wire/json.h"
#include "wire/json_text.h"

/* What both bodies of one attempt are made from; texts are borrowed. Which protocol reads a field is said in brackets. */
struct kvr_handoff_leg {
    enum kvr_kv_protocol protocol;
    const char *id;          /* x-request-id of this attempt [sglang: rid, push: remote_request_id, unless NULL] */
    const char *transfer_id; /* NULL: "xfer-<id>" [push, mooncake] */
    const char *host;        /* P's: of its side channel [push], its bootstrap server [mooncake, sglang]; IPv6 without brackets */
    uint16_t port;
    const char *engine_id;     /* P's; mooncake: that of P's rank [push, mooncake] */
    uint32_t tp, pp;           /* P's sizes; 0 is 1 [push] */
    const uint64_t *rooms;     /* one, or one for each answer; below 2^63 [sglang] */
    size_t rooms_n;            /* at least 1 */
    bool room_list;            /* in a list, also when there is one: kvr_handoff_members.room_list */
    bool has_rank;             /* the body says the ranks [sglang] */
    uint32_t prefill_rank;     /* P's */
    uint32_t decode_rank;      /* D's */
    int64_t disagg_request_id; /* kvr_disagg_request_id [trtllm] */
    bool chat;                 /* /v1/chat/completions, else /v1/completions: where D's ids of the prompt go [trtllm] */
};

/* What P's answer said. Spans borrow from it. */
struct kvr_handoff {
    struct kvr_json_span object;           /* for D, opaque */
    struct kvr_json_span prompt_token_ids; /* a list, or none */
    struct kvr_json_span usage;            /* an object, or none */
    bool ended;                            /* trtllm: nothing is left to generate, P's answer is the answer; no D */
    bool has_cached;                       /* usage tells cached_tokens */
    uint64_t cached_tokens, prompt_tokens; /* of usage; 0: not told */
};

enum kvr_handoff_read {
    KVR_HANDOFF_OK,
    KVR_HANDOFF_NONE,      /* the object is absent, or null */
    KVR_HANDOFF_PARTIAL,   /* it lacks what D needs: an engine may wait for ever for it */
    KVR_HANDOFF_UNREADABLE /* the answer is no JSON object, or of another shape; also: no memory */
};

/* What a client may not send is removed. *changed: something was; else `out` is left as it is, and the body is to be used. */
bool kvr_handoff_strip(struct kvr_json_span body, struct kvr_buf *out, bool *changed);

/* P's body: one token, not streamed (sglang: as many as the client wants, since P stops by itself), and the protocol's members. */
bool kvr_handoff_prefill_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, struct kvr_buf *out);

/* D's body: the client's, and the protocol's members. h: what P said, KVR_HANDOFF_OK and not `ended`, for vllm-nixl and trtllm; the
 * others do not look at it. */
bool kvr_handoff_decode_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, const struct kvr_handoff *h,
                             struct kvr_buf *out);

/* The same, but of one token and not streamed: for a D that takes the KV over only so that P lets go of it. */
bool kvr_handoff_release_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, const struct kvr_handoff *h,
                              struct kvr_buf *out);

/* Reads P's answer, of status 2xx. Protocols without an object (all but vllm-nixl and trtllm) have read an answer well when it is JSON.
 * An answer that `ended` needs no object. *out is set whatever is returned. */
enum kvr_handoff_read kvr_handoff_read(enum kvr_kv_protocol p, struct kvr_json_span answer, struct kvr_handoff *out);

/* The name of the engine of P's rank `rank`, in what Mooncake's bootstrap server answers to GET /query. Returns: false: it is not there. */
bool kvr_handoff_engine_of(struct kvr_json query, uint32_t rank, char *out, size_t cap);

/* An answer of P that `ended`, for the client: without disaggregated_params; or for one that streams as events, from the first chunk to
 * [DONE], with a chunk for usage if it asked for that. */
bool kvr_handoff_ended_answer(struct kvr_json_span answer, struct kvr_buf *out);
bool kvr_handoff_ended_stream(struct kvr_json_span answer, bool chat, bool usage, struct kvr_buf *out);

/* Appends the x-request-id of both legs of vllm-p2p, which the engines take the addresses from ("host:port"); random[2]: 128 bits. */
void kvr_handoff_p2p_id(const char *prefill_addr, const char *decode_addr, const uint64_t random[2], struct kvr_buf *out);

/* A room of SGLang that leads to rank `rank` of `ranks` (room % ranks, 0 is 1): uniform in those below 2^63, from random bits. */
uint64_t kvr_handoff_room(uint64_t random, uint32_t rank, uint32_t ranks);

/* An id for trtllm: time (39 bits) . node (8) . process (6) . counter (10), of each its lowest bits; at least 2^40. */
int64_t kvr_disagg_request_id(uint64_t time_ms, uint32_t node, uint32_t process, uint32_t counter);

#endif
