/* SPDX-License-Identifier: Apache-2.0 */
/* A text's question is the router's own for such a request (wire/tokenize_body.h). What the library says of one may quote it: only the
 * label of a refusal is shown. */
#include "app/replay/texts.h"

#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "token/given.h"
#include "token/library.h"
#include "wire/tokenize_body.h"

enum { CACHE_BYTES = 64 << 20 };

static bool put_question(const char *members, size_t len, bool is_chat, struct kvr_buf *out)
{
    enum kvr_prompt_certainty certainty = KVR_PROMPT_EXACT;
    struct kvr_buf body = {0};
    kvr_buf_str(&body, "{");
    kvr_buf_add(&body, members, len);
    kvr_buf_str(&body, "}");
    bool made = !body.failed && kvr_tokenize_body((struct kvr_json_span){body.data, body.data + body.len},
                                                  is_chat ? KVR_FORM_CHAT : KVR_FORM_COMPLETION, out, &certainty);
    kvr_buf_free(&body);
    return made && certainty == KVR_PROMPT_EXACT;
}

static int copy(struct kvr_ids *ids, uint32_t **out, size_t *n, char *why, size_t cap)
{
    *n = ids->n;
    *out = malloc((ids->n + 1) * sizeof **out);
    if (*out) memcpy(*out, ids->v, ids->n * sizeof **out);
    if (!*out) snprintf(why, cap, "out of memory");
    else if (!ids->n) snprintf(why, cap, "the text has no tokens");
    if (*out && !ids->n) {
        free(*out);
        *out = NULL;
    }
    kvr_ids_unref(ids);
    return *out ? 0 : -1;
}

static int make_ids(void *ctx, const char *members, size_t len, bool is_chat, uint32_t **out, size_t *n, char *why, size_t cap)
{
    struct replay_texts *t = ctx;
    struct kvr_buf question = {0};
    struct kvr_ids *ids = NULL;
    char reason[400];
    if (!t->given) {
        atomic_store(&t->refused, true);
        return kvr_refuse(why, cap, "its tokens need --tokenizer-dir");
    }
    int rc = put_question(members, len, is_chat, &question) ? 0 : -1;
    if (rc) snprintf(why, cap, "its tokens are made by engines only");
    else rc = kvr_given_tokens_make(t->given, "", question.data, question.len, &ids, reason, sizeof reason);
    if (rc && question.len) snprintf(why, cap, "its tokens are made by engines only: %.*s", (int)strcspn(reason, ":"), reason);
    kvr_buf_free(&question);
    return rc ? -1 : copy(ids, out, n, why, cap);
}

int replay_texts_open(const struct replay_options *o, struct replay_texts *t)
{
    char why[1200];
    t->hook = (struct traffic_texts){.ids = make_ids, .ctx = t};
    if (!o->tokenizer_dir) return 0;
    struct kvr_given_tokens_config config = {
        .lib = o->tokenizer_lib, .dir = o->tokenizer_dir, .profile = o->tokenizer_profile, .name_max = 1, .cache_bytes = CACHE_BYTES};
    if (kvr_given_tokens_open(&config, &t->given, why, sizeof why) == 0) return 0;
    kvr_log_error("kvroute replay: %s", why);
    return 2;
}

int replay_texts_check(const struct replay_texts *t)
{
    if (!atomic_load(&t->refused)) return 0;
    kvr_log_error("kvroute replay: --trace: it has texts, whose token ids need --tokenizer-dir; allowed: a model's folder with a "
                  "tokenizer.json");
    return 2;
}

void replay_texts_close(struct replay_texts *t)
{
    kvr_given_tokens_close(t->given);
    t->given = NULL;
}
