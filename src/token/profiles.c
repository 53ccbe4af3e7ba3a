/* SPDX-License-Identifier: Apache-2.0 */
/* The profiles of a folder: token/profiles.h. */
#include "token/profiles.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "token/probes.h"
#include "token/profile_option.h"

enum { OF_VLLM = 48, MADE = 50 };

/* ---- loading ----------------------------------------------------------------------------------------- */

/* What the library says of an error. */
static int failed(const struct kvr_token_library *lib, struct kvr_tok_buf *text, char *why, size_t cap)
{
    snprintf(why, cap, "%.*s", (int)KVR_MIN(text->len, cap), text->data ? (const char *)text->data : "");
    lib->buf_free(text);
    return -1;
}

/* The k-th of those that are made: vLLM, as the template looks or as it was told, and what its releases do with members of messages, newest
 * first; SGLang, with two releases of transformers. A built-in question with the assistant's message at the end tells both engines apart.
 */
static void put_options(int k, char out[KVR_PROFILE_TEXT_MAX])
{
    static const char *const formats[] = {"auto", "string", "openai"}, *const words[] = {"false", "true"};
    static const struct {
        bool drop_none, alias;
    } releases[] = {{false, false}, {true, true}, {true, false}, {false, true}};
    bool typed = k / 24 == 0, developer = k % 2 == 0;
    int r = k / 2 % 4;
    if (k >= OF_VLLM) {
        snprintf(out, KVR_PROFILE_TEXT_MAX, "{\"engine\":\"sglang\",\"alias_reasoning\":%s}", words[k - OF_VLLM]);
        return;
    }
    snprintf(out, KVR_PROFILE_TEXT_MAX,
             "{\"content_format\":\"%s\",\"drop_none\":%s,\"alias_reasoning\":%s,\"developer_to_system\":%s,\"typed\":%s}",
             formats[k / 8 % 3], words[releases[r].drop_none], words[releases[r].alias], words[developer], words[typed]);
}

static int add_profiles(struct kvr_profiles *p, char *why, size_t cap)
{
    char options[KVR_PROFILE_TEXT_MAX];
    for (int k = 0; k < MADE; k++) {
        struct kvr_tok_buf err = {0};
        KVR_ASSERT(p->n < KVR_PROFILES_MAX);
        put_options(k, options);
        if (p->lib->variant(p->all[0], options, &p->all[p->n], &err)) return failed(p->lib, &err, why, cap);
        p->n++;
    }
    return 0;
}

int kvr_profiles_load(const struct kvr_token_library *lib, const char *dir, const char *profile, size_t cache_bytes,
                      struct kvr_profiles *out, char *why, size_t cap)
{
    char options[1024];
    struct kvr_tok_buf err = {0};
    bool fixed = kvr_profile_option_says(profile);
    *out = (struct kvr_profiles){.lib = lib};
    if (fixed) snprintf(options, sizeof options, "{\"cache_bytes\":%zu,%s", cache_bytes, profile + 1);
    else snprintf(options, sizeof options, "{\"cache_bytes\":%zu,\"drop_none\":false,\"alias_reasoning\":false}", cache_bytes);
    int rc = lib->load(dir, options, &out->all[0], &err);
    if (rc) return failed(lib, &err, why, cap);
    out->n = 1;
    if (!fixed) rc = add_profiles(out, why, cap);
    if (rc) kvr_profiles_free(out);
    return rc;
}

void kvr_profiles_free(struct kvr_profiles *p)
{
    for (size_t i = 0; i < p->n; i++) p->lib->free(p->all[i]);
    p->n = 0;
}

void kvr_profile_text(size_t i, char out[KVR_PROFILE_TEXT_MAX])
{
    put_options(i ? (int)i - 1 : 0, out); /* the one that is loaded is the first that is made */
}

int kvr_profile_ids(const struct kvr_token_library *lib, const struct kvr_tok *profile, const char *question, size_t len,
                    struct kvr_ids **ids)
{
    struct kvr_tok_buf out = {0};
    struct kvr_tok_job *job;
    int rc = lib->ask(profile, question, len, SIZE_MAX, &job, &out);
    *ids = rc == 0 ? kvr_ids_new(out.data, out.len / sizeof(uint32_t)) : NULL;
    lib->buf_free(&out);
    return rc || *ids ? rc : KVR_TOK_EUNSUPPORTED;
}

/* ---- comparisons ------------------------------------------------------------------------------------- */

bool kvr_probe_answers_have_chat(const struct kvr_probe_answer *answers, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kvr_token_probes[i].is_chat && answers[i].answered) return true;
    return false;
}

bool kvr_ids_same(const uint32_t *a, size_t a_n, const uint32_t *b, size_t b_n, size_t *at)
{
    size_t n = KVR_MIN(a_n, b_n), i = 0;
    while (i < n && a[i] == b[i]) i++;
    *at = i;
    return i == a_n && i == b_n;
}

size_t kvr_probe_answers_part(const struct kvr_probe_answer *a, const struct kvr_probe_answer *b, size_t n, size_t *at)
{
    size_t i = 0;
    while (i < n && (!a[i].answered || !b[i].answered || kvr_ids_same(a[i].ids->v, a[i].ids->n, b[i].ids->v, b[i].ids->n, at))) i++;
    return i;
}

void kvr_token_difference_note(struct kvr_token_difference *d, const char *question, const char *who, const struct kvr_ids *here,
                               const uint32_t *engine, size_t engine_n, size_t at)
{
    *d = (struct kvr_token_difference){.any = true,
                                       .question = question,
                                       .at = at,
                                       .here_n = here->n,
                                       .engine_n = engine_n,
                                       .here = at < here->n ? here->v[at] : 0,
                                       .engine = at < engine_n ? engine[at] : 0};
    snprintf(d->who, sizeof d->who, "%s", who);
}

/* Writes the question of a probe. */
static void put_probe(const struct kvr_token_probe *p, struct kvr_buf *b)
{
    b->len = 0;
    kvr_buf_printf(b, "{%s}", p->members);
}

void kvr_profile_judge(const struct kvr_token_library *lib, const struct kvr_tok *profile, const char *who,
                       const struct kvr_probe_answer *answers, size_t n, struct kvr_verdict *out)
{
    struct kvr_buf question = {0};
    *out = (struct kvr_verdict){0};
    for (size_t i = 0; i < n; i++) {
        struct kvr_ids *ids;
        size_t at;
        if (!answers[i].answered) continue;
        const struct kvr_ids *engine = answers[i].ids;
        put_probe(&kvr_token_probes[i], &question);
        if (question.failed || kvr_profile_ids(lib, profile, question.data, question.len, &ids)) continue;
        if (kvr_ids_same(ids->v, ids->n, engine->v, engine->n, &at)) out->equal++;
        else if (!out->different++) kvr_token_difference_note(&out->first, kvr_token_probes[i].name, who, ids, engine->v, engine->n, at);
        kvr_ids_unref(ids);
    }
    kvr_buf_free(&question);
}

bool kvr_verdict_agrees(const struct kvr_verdict *v)
{
    return v->equal && !v->different;
}

static bool agrees_with_request(const struct kvr_profiles *p, size_t i, const struct kvr_profile_request *request)
{
    struct kvr_ids *ids;
    size_t at;
    if (kvr_profile_ids(p->lib, p->all[i], request->question, request->len, &ids)) return false;
    bool same = kvr_ids_same(ids->v, ids->n, request->engine->v, request->engine->n, &at);
    kvr_ids_unref(ids);
    return same;
}

size_t kvr_profiles_find(const struct kvr_profiles *p, size_t from, const char *who, const struct kvr_probe_answer *answers, size_t n,
                         const struct kvr_profile_request *request, struct kvr_verdict *closest)
{
    *closest = (struct kvr_verdict){0};
    for (size_t i = from; i < p->n; i++) {
        struct kvr_verdict v;
        kvr_profile_judge(p->lib, p->all[i], who, answers, n, &v);
        if (v.different && (!closest->different || v.equal > closest->equal)) *closest = v;
        if (kvr_verdict_agrees(&v) && (!request || agrees_with_request(p, i, request))) return i;
    }
    return p->n;
}
