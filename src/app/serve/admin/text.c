/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions whose prompt is text (`text` or `messages` in place of `token_ids`). Of `kvroute select` the tokens are made with the folders
 * of --tokenizer-dir, for which the operator answers, and which are read again on SIGHUP, on a thread of their own; of `kvroute serve` with
 * the model's tokenizer, as long as it is trusted.
 *
 * A short one is made on the main loop; a body of more than KVR_TOKENIZER_INLINE bytes is read, and its tokens are made, on a thread.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/tokenizers/tokenizers.h"
#include "token/given.h"
#include "wire/prompt_question.h"

int admin_text_open(struct admin *admin, char *err, size_t cap)
{
    const struct serve_options *o = admin->o;
    if (!o->select_only || !o->tokenizer_dirs_n) return 0;
    struct kvr_given_tokens_config config = {.program = "kvroute select",
                                             .lib = o->tokenizer_lib,
                                             .dirs = o->tokenizer_dirs,
                                             .dirs_n = o->tokenizer_dirs_n,
                                             .name_max = MODEL_MAX - 1,
                                             .profile = o->tokenizer_profile,
                                             .cache_bytes = o->tokenizer_cache};
    return kvr_given_tokens_open(&config, &admin->given_tokens, err, cap);
}

static void refuse(struct admin_text *t, int status, const char *why, const char *detail)
{
    t->status = status;
    snprintf(t->why, sizeof t->why, "%s%s%s", why, *detail ? ": " : "", detail);
}

static void with_folder(const struct admin *admin, const char *model, const struct kvr_buf *question, struct admin_text *t)
{
    char why[sizeof t->why - 64];
    int rc = kvr_given_tokens_make(admin->given_tokens, model, question->data, question->len, &t->ids, why, sizeof why);
    if (rc == KVR_TOK_EPANIC) refuse(t, 500, "the tokenizer failed", why);
    else if (rc) refuse(t, 400, "the prompt's tokens cannot be made here", why);
}

static void with_trusted(struct kvr_tokenizer *tokenizer, const struct kvr_buf *question, struct admin_text *t)
{
    if (kvr_tokenizer_state(tokenizer) != KVR_TRUST_TRUSTED) {
        refuse(t, 503, "the model's tokens are not made here now (GET /tokenizers)", kvr_trust_name(kvr_tokenizer_state(tokenizer)));
    } else if (kvr_tokenizer_make(tokenizer, question->data, question->len, &t->ids)) {
        refuse(t, 400, "the prompt's tokens are made by engines only (docs/guides/tokens.md says of which prompts)", "");
    }
}

void admin_text_make(const struct admin *admin, struct kvr_json o, const char *body, size_t len, struct admin_text *t)
{
    struct kvr_buf question = {0};
    const char *why, *bad = NULL;
    char model[MODEL_MAX] = "";
    *t = (struct admin_text){0};
    (void)member_text(o, "model_name", model, sizeof model, &bad); /* question_read looks at what it may be */
    if (!model[0] && admin->o->model) snprintf(model, sizeof model, "%s", admin->o->model);
    /* once: the only model there is may be the only one no more */
    struct kvr_tokenizer *tokenizer = admin->o->select_only ? NULL : tokenizers_find(admin->tokenizers, model);
    if (!tokenizer && !kvr_given_tokens_has(admin->given_tokens, model))
        refuse(t, 400, "there is no tokenizer for the model (--tokenizer-dir)", "");
    else if (!kvr_prompt_question(o, body, len, &question, &why)) refuse(t, question.failed ? 503 : 400, why, "");
    else if (admin->o->select_only) with_folder(admin, model, &question, t);
    else with_trusted(tokenizer, &question, t);
    kvr_buf_free(&question);
}
