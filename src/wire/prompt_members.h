/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the members of a request body do to its prompt, and to the engine's cache: can the tokens that the engine computes be known,
 * will it look into its prefix cache, and does its answer say something of our view of that cache?
 *
 * The names are those of vLLM (0.32) and SGLang. A member that nobody here knows is taken for one that the engine passes over: the
 * prompt is predicted, but the answer is held neither for nor against a view.
 *
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_PROMPT_MEMBERS_H
#define KVR_WIRE_PROMPT_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/json.h"

enum kvr_prompt_certainty {
    KVR_PROMPT_EXACT,   /* all tokens that the engine computes can be known */
    KVR_PROMPT_LEADING, /* those that can be known are the beginning of what it computes */
    KVR_PROMPT_UNKNOWN  /* nothing is predicted; tokens, if there are any, are a hint */
};

enum kvr_prompt_form {
    KVR_FORM_COMPLETION, /* /v1/completions */
    KVR_FORM_CHAT,       /* /v1/chat/completions */
    KVR_FORM_RESPONSES,  /* /v1/responses */
    KVR_FORM_MESSAGES,   /* /v1/messages */
    KVR_FORM_GENERATE    /* /generate, of SGLang */
};

enum kvr_truncation { KVR_TRUNCATE_NOT, KVR_TRUNCATE_DEFAULT, KVR_TRUNCATE_LEFT, KVR_TRUNCATE_RIGHT };

struct kvr_prompt_members {
    enum kvr_prompt_certainty certainty;
    bool skips_cache;  /* the engine computes all of it, whatever it holds: it is asked for what it thinks of the prompt */
    bool usage_tells;  /* the answer's cached tokens are what this prompt found: there is one prompt, and one answer to it */
    bool as_evidence;  /* every member is understood, usage tells, and the prompt is the engine's own reading of the body */
    bool shows_prompt; /* the answer has the prompt's text (echo) */
    bool multimodal;   /* a part of it is not text (wire/mm_parts.h) */
    bool reports; /* the engine is asked to tell of the cached blocks that it reuses, as if they were stored (recover/consumer/copies.h) */
    /* truncate_prompt_tokens: the engine computes `keep` tokens of the prompt, the last ones unless told else (truncation_side).
     * keep < 0: as many as it has room for. */
    enum kvr_truncation truncation;
    int64_t keep;
    size_t prompts;      /* of a list, those there are; else 1 */
    bool special_tokens; /* add_special_tokens, or what the form has without it */
    bool wants_output;   /* max_tokens is not 0 */
};

/* Of the object of a body. */
void kvr_prompt_members_read(struct kvr_json body, enum kvr_prompt_form form, struct kvr_prompt_members *out);

#endif
