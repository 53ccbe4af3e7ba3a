/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Are the token ids that a model's folder makes the engine's? Both get the built-in questions (token/probes.h), as a router asks them
 * before it makes ids itself. Of a difference is said which question, where, and both ids.
 *
 *     folder    --tokenizer-dir MODEL=DIR, else DIR, else the `root` that the engine tells
 *     profile   --tokenizer-profile, else the usual one, else the first that agrees
 */
#include "app/doctor/state.h"

#include <string.h>
#include <time.h>

#include "base/log.h"
#include "token/dates.h"
#include "token/folders.h"
#include "token/given.h"
#include "token/probes.h"
#include "token/profile_option.h"
#include "wire/engine_tokens.h"

enum { MODEL_BYTES_MAX = 127 };

int tokens_open(struct doctor *d)
{
    const struct doctor_options *o = d->o;
    char why[1200];
    if (kvr_given_dirs_check(o->tokenizer_dirs, o->tokenizer_dirs_n, MODEL_BYTES_MAX, why, sizeof why) ||
        kvr_profile_option_check(o->tokenizer_profile, why, sizeof why)) {
        kvr_log_error("kvroute doctor: %s", why);
        return -1;
    }
    d->has_tokenizer = kvr_token_library_open(o->tokenizer_lib, &d->tokenizer, why, sizeof why) == 0;
    if (d->has_tokenizer || (!o->tokenizer_lib && !o->tokenizer_dirs_n)) return 0;
    kvr_log_error("kvroute doctor: %s: %s", o->tokenizer_lib ? "--tokenizer-lib" : "--tokenizer-dir", why);
    return -1;
}

static void forget_folder(struct doctor *d)
{
    if (d->folder) kvr_profiles_free(&d->profiles);
    free(d->folder);
    d->folder = NULL;
}

void tokens_close(struct doctor *d)
{
    forget_folder(d);
}

/* ---- folders ---------------------------------------------------------------------------------------------------------- */

static bool find_folder(const struct doctor *d, const char *model, const char *root, char out[KVR_FOLDER_MAX], bool *given)
{
    const struct doctor_options *o = d->o;
    const char *dir = kvr_given_dir(o->tokenizer_dirs, o->tokenizer_dirs_n, model);
    if (!dir) dir = kvr_given_dir(o->tokenizer_dirs, o->tokenizer_dirs_n, NULL);
    *given = dir != NULL;
    return dir ? snprintf(out, KVR_FOLDER_MAX, "%s", dir) < KVR_FOLDER_MAX : kvr_folder_of_root(root, out);
}

/* The workers of a router mostly have one model: a folder that was read is kept until another one is asked for. */
static bool read_folder(struct doctor *d, const char *dir, char *why, size_t cap)
{
    if (d->folder && !strcmp(d->folder, dir)) return true;
    forget_folder(d);
    if (kvr_profiles_load(&d->tokenizer, dir, d->o->tokenizer_profile, 0, &d->profiles, why, cap)) return false;
    d->folder = strdup(dir);
    if (d->folder) return true;
    kvr_profiles_free(&d->profiles);
    snprintf(why, cap, "out of memory");
    return false;
}

/* ---- the engine's ids ------------------------------------------------------------------------------------------------- */

struct asked {
    struct kvr_probe_answer answers[KVR_PROBES_MAX];
    enum kvr_engine_tokens_way way;
    struct kvr_fetched got;
};

static void asked_free(struct asked *a)
{
    for (size_t i = 0; i < KVR_PROBES_MAX; i++) kvr_ids_unref(a->answers[i].ids);
    kvr_fetched_free(&a->got);
}

static struct kvr_ids *read_ids(struct doctor *d, const struct asked *a)
{
    struct kvr_json list;
    if (!kvr_engine_tokens_read(d->json, a->got.body.data ? a->got.body.data : "", a->got.body.len, a->way, &list)) return NULL;
    size_t n = kvr_json_count(list);
    struct kvr_ids *ids = kvr_ids_new(NULL, n);
    if (ids && kvr_json_u32_array(list, ids->v, n) >= 0) return ids;
    kvr_ids_unref(ids);
    return NULL;
}

static enum kvr_engine_tokens_answer ask_one(struct doctor *d, const struct engine_target *t, const char *model,
                                             const struct kvr_token_probe *probe, struct asked *a)
{
    struct kvr_buf body = {0};
    char url[400];
    kvr_engine_tokens_question(a->way, model, probe->members, &body);
    kvr_buf_add(&body, "", 1);
    snprintf(url, sizeof url, "%s%s", t->url, kvr_engine_tokens_path(a->way, probe->is_chat));
    a->got.status = 0;
    if (!body.failed) fetch(d, url, body.data, "", engine_key(d, t), &a->got);
    kvr_buf_free(&body);
    return a->got.status ? kvr_engine_tokens_judge(a->way, a->got.status) : KVR_TOKENS_LATER;
}

/* Returns: what ended it: KVR_TOKENS_ANSWERED when all questions were asked and a chat was answered. */
static enum kvr_engine_tokens_answer ask_all(struct doctor *d, const struct engine_target *t, const char *model, struct asked *a)
{
    for (size_t i = 0; i < kvr_token_probes_n; i++) {
        enum kvr_engine_tokens_answer said = ask_one(d, t, model, &kvr_token_probes[i], a);
        if (said == KVR_TOKENS_OTHER_WAY) {
            a->way = KVR_TOKENS_TOKENIZE;
            said = ask_one(d, t, model, &kvr_token_probes[i], a);
        }
        if (said == KVR_TOKENS_NO_WAY || said == KVR_TOKENS_LATER) return said;
        a->answers[i].ids = said == KVR_TOKENS_ANSWERED ? read_ids(d, a) : NULL;
        a->answers[i].answered = a->answers[i].ids != NULL;
    }
    return kvr_probe_answers_have_chat(a->answers, kvr_token_probes_n) ? KVR_TOKENS_ANSWERED : KVR_TOKENS_NO_WAY;
}

/* ---- what is said ----------------------------------------------------------------------------------------------------- */

#define SAY(v, advice, ...) found(d, v, t->subject, "tokenizer", advice, __VA_ARGS__)

static const char *way_name(enum kvr_engine_tokens_way way)
{
    return way == KVR_TOKENS_RENDER ? "/v1/chat/completions/render" : "/tokenize";
}

static void tell_agreement(struct doctor *d, const struct engine_target *t, const struct asked *a, const struct kvr_verdict *v,
                           size_t profile)
{
    char text[KVR_PROFILE_TEXT_MAX], advice[sizeof((struct finding *)0)->advice] = "";
    if (!d->o->tokenizer_profile && profile != KVR_PROFILE_USUAL) {
        kvr_profile_text(profile, text);
        snprintf(advice, sizeof advice, "serve finds that itself; programs without an engine need --tokenizer-profile '%s'", text);
    }
    SAY(OK, advice, "%zu of %zu questions have the engine's ids (%s) with %.120s", v->equal, v->equal, way_name(a->way), d->folder);
}

/* The folder's template writes the date, and that turns about now: an engine's prompt may be of another day. */
static bool date_turns(const struct doctor *d)
{
    struct kvr_tok_buf info = {0};
    struct tm local;
    time_t now = time(NULL);
    bool dates = d->tokenizer.info(d->profiles.all[0], &info) == 0 && kvr_info_has_dates(info.data, info.len);
    d->tokenizer.buf_free(&info);
    return dates && localtime_r(&now, &local) && kvr_date_turns(&local);
}

static void tell_difference(struct doctor *d, const struct engine_target *t, const struct asked *a, const struct kvr_verdict *v, bool given)
{
    const struct kvr_token_difference *f = &v->first;
    if (!v->different) {
        SAY(UNKNOWN, "serve asks the engine for this model's tokens", "%.120s makes no ids of the questions, or the engine none (%s)",
            d->folder, way_name(a->way));
        return;
    }
    if (date_turns(d)) {
        SAY(UNKNOWN, "ask again in two minutes", "the folder's template writes the date, which turns now");
        return;
    }
    SAY(given ? PROBLEM : UNKNOWN, "is it the folder that the engine serves, with its chat template? Until then serve asks the engine",
        "%zu of %zu questions have the engine's ids (%s); %s: token %zu is %lu here and %lu there, of %zu and %zu", v->equal,
        v->equal + v->different, way_name(a->way), f->question, f->at, (unsigned long)f->here, (unsigned long)f->engine, f->here_n,
        f->engine_n);
}

/* Without --tokenizer-profile the usual one is tried before the others: where it agrees nobody has to give one. */
static void compare(struct doctor *d, const struct engine_target *t, const struct asked *a, bool given)
{
    struct kvr_verdict v = {0}, closest;
    size_t n = kvr_token_probes_n, found = KVR_PROFILE_USUAL;
    if (!d->o->tokenizer_profile) kvr_profile_judge(&d->tokenizer, d->profiles.all[found], t->subject, a->answers, n, &v);
    if (!kvr_verdict_agrees(&v)) {
        found = kvr_profiles_find(&d->profiles, 0, t->subject, a->answers, n, NULL, &closest);
        if (found < d->profiles.n) kvr_profile_judge(&d->tokenizer, d->profiles.all[found], t->subject, a->answers, n, &v);
        else v = closest;
    }
    if (kvr_verdict_agrees(&v)) tell_agreement(d, t, a, &v, found);
    else tell_difference(d, t, a, &v, given);
}

void tokens_check(struct doctor *d, const struct engine_target *t, const char *model, const char *root)
{
    char dir[KVR_FOLDER_MAX], why[240];
    bool given;
    struct asked *a = d->has_tokenizer ? calloc(1, sizeof *a) : NULL;
    if (!a) return;
    if (!find_folder(d, model, root, dir, &given)) {
        if (d->o->tokenizer_dirs_n) SAY(UNKNOWN, "give it with --tokenizer-dir", "there is no folder of model '%s'", model);
    } else if (!read_folder(d, dir, why, sizeof why)) {
        SAY(given ? PROBLEM : UNKNOWN, "serve asks the engine for this model's tokens", "%.100s cannot be used: %.140s", dir, why);
    } else {
        switch (ask_all(d, t, model, a)) {
        case KVR_TOKENS_ANSWERED: compare(d, t, a, given); break;
        case KVR_TOKENS_NO_WAY:
            SAY(UNKNOWN, "",
                "the engine has neither /v1/chat/completions/render nor a /tokenize that takes chats, so ids cannot be compared");
            break;
        default: SAY(UNKNOWN, "", "the engine did not answer %s: %s (status %d)", way_name(a->way), a->got.error, a->got.status); break;
        }
    }
    asked_free(a);
    free(a);
}

/* ---- two engines ------------------------------------------------------------------------------------------------------ */

#define UNLIKE_ADVICE "both must serve one model, with one tokenizer and one chat template: what one has computed is another prompt's there"

/* Questions that both have answered. */
static size_t answered_by_both(const struct asked *a, const struct asked *b)
{
    size_t n = 0;
    for (size_t i = 0; i < kvr_token_probes_n; i++) n += a->answers[i].answered && b->answers[i].answered;
    return n;
}

static size_t unlike(const struct asked *a, const struct asked *b)
{
    size_t n = 0, place;
    for (size_t i = 0; i < kvr_token_probes_n; i++) n += kvr_probe_answers_part(a->answers + i, b->answers + i, 1, &place) == 0;
    return n;
}

static unsigned long id_at(const struct kvr_ids *ids, size_t at)
{
    return at < ids->n ? ids->v[at] : 0;
}

static void tell_pair(struct doctor *d, const struct engine_target *prefill, const struct engine_target *decode, const struct asked *a,
                      const struct asked *b)
{
    char subject[sizeof((struct finding *)0)->subject];
    size_t at = 0, first = kvr_probe_answers_part(a->answers, b->answers, kvr_token_probes_n, &at), n = answered_by_both(a, b);
    snprintf(subject, sizeof subject, "workers %llu and %llu", (unsigned long long)prefill->worker_id,
             (unsigned long long)decode->worker_id);
    if (first == kvr_token_probes_n) {
        found(d, n ? OK : UNKNOWN, subject, "tokens of a pair", "", "%zu questions have the same ids at both (%s and %s)", n,
              way_name(a->way), way_name(b->way));
        return;
    }
    const struct kvr_ids *p = a->answers[first].ids, *q = b->answers[first].ids;
    found(d, PROBLEM, subject, "tokens of a pair", UNLIKE_ADVICE,
          "%zu of %zu questions have other ids (%s and %s); %s: token %zu is %lu at worker %llu and %lu at worker %llu, of %zu and %zu",
          unlike(a, b), n, way_name(a->way), way_name(b->way), kvr_token_probes[first].name, at, id_at(p, at),
          (unsigned long long)prefill->worker_id, id_at(q, at), (unsigned long long)decode->worker_id, p->n, q->n);
}

/* Texts alone may be all that a way knows. */
static bool is_answered(enum kvr_engine_tokens_answer said, const struct asked *a)
{
    return said == KVR_TOKENS_ANSWERED || answered_by_both(a, a) > 0;
}

void tokens_compare(struct doctor *d, const struct engine_target *prefill, const struct engine_target *decode)
{
    const struct engine_target *const workers[] = {prefill, decode};
    struct asked *a = calloc(2, sizeof *a);
    size_t n = 0;
    while (a && n < 2 && is_answered(ask_all(d, workers[n], workers[n]->served, &a[n]), &a[n])) n++;
    if (a && n == 2) tell_pair(d, prefill, decode, &a[0], &a[1]);
    else if (a)
        found(d, UNKNOWN, workers[n]->subject, "tokens of a pair", "",
              "the engine tells no ids (%s), so they are not compared with worker %llu's", way_name(a[n].way),
              (unsigned long long)workers[1 - n]->worker_id);
    for (size_t i = 0; a && i < 2; i++) asked_free(&a[i]);
    free(a);
}
