/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request's members say of being served by two engines (wire/handoff.h): P's blocks are for one reader and are gone after it, D
 * has not seen the prompt, and P computes one token. The names are those of vLLM, SGLang and TensorRT-LLM, of all forms of a request.
 * Of a member that is there twice the last counts, as it does for the engines. Threads: pure functions.
 */
#ifndef KVR_WIRE_HANDOFF_MEMBERS_H
#define KVR_WIRE_HANDOFF_MEMBERS_H

#include <stdint.h>

#include "wire/handoff_protocol.h"
#include "wire/json_text.h"

enum { KVR_HANDOFF_ROOMS_MAX = 1024 }; /* of one request */

struct kvr_handoff_members {
    uint64_t n, best_of; /* 1 where it is absent, or is no number: engines refuse that */
    uint64_t prompts;    /* of a list, those there are; else 1 */
    bool prompt_list;    /* a list of texts or of token lists, also of one */
    bool beam_search;
    bool chat;            /* it has `messages` */
    bool prompt_logprobs; /* or echo with logprobs: of the prompt's tokens */
    bool echo_logprobs;   /* they are asked for by echo alone */
    bool one_token;       /* every limit of tokens that is given, and one is, is at most 1 */
    bool forced_tools;    /* tool_choice makes the engine call one */
    bool grammar;         /* the form of the answer is given */
    bool stream;
    bool stream_usage; /* stream_options.include_usage */
    bool room_list;    /* sglang: rooms are given in a list */
    uint64_t rooms;    /* sglang: how many; more than KVR_HANDOFF_ROOMS_MAX are an obstacle */
};

/* The body must be JSON; of anything but an object nothing is said. */
void kvr_handoff_members_read(struct kvr_json_span body, struct kvr_handoff_members *out);

/* The name (static) of a member because of which two engines cannot serve the request; NULL: they can. */
const char *kvr_handoff_obstacle(const struct kvr_handoff_members *m, enum kvr_kv_protocol p);

#endif
