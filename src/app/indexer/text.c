/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prompts as text (`text` or `messages` in place of `token_ids`): their tokens are made with the folders of --tokenizer-dir. There is no
 * engine to compare with, so the operator answers for the folders. They are read again on SIGHUP, on a thread of their own.
 *
 * A short one is made on the data loop; a body of more than KVR_TOKENIZER_INLINE bytes is read, and its tokens are made, on a thread.
 */
#include "app/indexer/state.h"

#include "token/given.h"
#include "token/library.h"
#include "wire/prompt_question.h"

int text_start(struct indexer *x)
{
    const struct indexer_options *o = x->o;
    char why[1200];
    if (!o->tokenizer_dirs_n) return 0;
    struct kvr_given_tokens_config config = {.program = "kvroute indexer",
                                             .lib = o->tokenizer_lib,
                                             .dirs = o->tokenizer_dirs,
                                             .dirs_n = o->tokenizer_dirs_n,
                                             .name_max = NAME_MAX_LEN,
                                             .profile = o->tokenizer_profile,
                                             .cache_bytes = o->tokenizer_cache};
    if (kvr_given_tokens_open(&config, &x->tokenizers, why, sizeof why) == 0) return 0;
    kvr_log_error("kvroute indexer: %s", why);
    return 1;
}

static void refuse(struct indexer *x, struct text_tokens *t, int status, const char *why, const char *detail)
{
    atomic_fetch_add_explicit(&x->telemetry.texts[1], 1, memory_order_relaxed);
    t->status = status;
    snprintf(t->why, sizeof t->why, "%s%s%s", why, *detail ? ": " : "", detail);
}

static void make(struct indexer *x, const char *model, const struct kvr_buf *question, struct text_tokens *t)
{
    char why[sizeof t->why - 64];
    switch (kvr_given_tokens_make(x->tokenizers, model, question->data, question->len, &t->ids, why, sizeof why)) {
    case 0: atomic_fetch_add_explicit(&x->telemetry.texts[0], 1, memory_order_relaxed); break;
    case KVR_TOK_EPANIC: refuse(x, t, 500, "the tokenizer failed", why); break;
    default: refuse(x, t, 422, "the prompt's tokens cannot be made here", why); break;
    }
}

void text_make(struct indexer *x, struct kvr_json o, const char *body, size_t len, struct text_tokens *t)
{
    struct kvr_buf question = {0};
    const char *why, *name = "";
    char model[NAME_MAX_LEN + 1];
    size_t n = 0;
    *t = (struct text_tokens){0};
    struct kvr_json named = kvr_json_get(o, "model_name");
    bool is_name = kvr_json_as_name(named, &name, &n) || !kvr_json_is_given(named);
    snprintf(model, sizeof model, "%.*s", (int)KVR_MIN(n, sizeof model - 1), name);
    if (!is_name || n >= sizeof model) refuse(x, t, 422, "field `model_name` is no name", "");
    else if (!kvr_given_tokens_has(x->tokenizers, model)) refuse(x, t, 422, "there is no tokenizer for the model (--tokenizer-dir)", "");
    else if (!kvr_prompt_question(o, body, len, &question, &why)) refuse(x, t, question.failed ? 503 : 422, why, "");
    else make(x, model, &question, t);
    kvr_buf_free(&question);
}
