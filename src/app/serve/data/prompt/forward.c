/* SPDX-License-Identifier: Apache-2.0 */
/* Token ids in the place of a completion's text, in the body for the worker (--forward-token-ids): data/prompt/forward.h. */
#include "app/serve/data/prompt/forward.h"

#include "wire/prompt_ids.h"

enum { IDS_ON_LOOP = 8192 }; /* writing them takes less than 0.1 ms */

/* Are its tokens those that the engine would make of the text, all of them, and does the answer not tell the text? */
static bool may_forward(const struct request *r)
{
    return data_of(r)->o->forward_token_ids && !r->carrier && r->form == KVR_FORM_COMPLETION && r->tokens && r->tokens_n && r->body &&
           r->tokens_from != TOKENS_BODY && r->tokens_from != TOKENS_BYTES && r->members.certainty == KVR_PROMPT_EXACT &&
           r->members.prompts == 1 && r->members.truncation == KVR_TRUNCATE_NOT && !r->members.shows_prompt && !r->members.skips_cache;
}

/* May run on a thread: nobody else reads the body or the tokens meanwhile. */
static void swap(struct request *r)
{
    struct kvr_buf bytes = {0};
    struct kvr_json_span body = {r->body->data, r->body->data + r->body->len};
    bool made = kvr_prompt_ids_splice(body, r->tokens, r->tokens_n, &bytes) && !bytes.failed;
    struct kvr_body *with_ids = made ? kvr_body_derive(r->body, &bytes) : NULL;
    kvr_buf_free(&bytes);
    if (!with_ids) return; /* the text will do */
    kvr_body_unref(r->body);
    r->body = with_ids;
    r->body_len = with_ids->len;
    r->forwarded_ids = true;
    COUNT(r, token_ids_forwarded_total);
}

static enum outcome swapped(struct request *)
{
    return OUTCOME_DONE;
}

enum outcome forward_tokens(struct request *r, struct request_job *job)
{
    if (!may_forward(r)) return OUTCOME_DONE;
    if (r->tokens_n > IDS_ON_LOOP) return request_work(r, job, swap, swapped);
    swap(r);
    return OUTCOME_DONE;
}
