/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's tokenizer: token/tokenizer.h. The states are trust.c's; here is what they are decided by.
 *
 * Profiles are variants of one loaded folder, made when the folder is loaded and kept to the end, so that `current` is an index that
 * changes while others make ids with the one before.
 */
#include "token/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/log.h"
#include "token/probes.h"

enum { PROFILES_MAX = 51, PROBES_MAX = 32, FOUND_MAX = 400 }; /* the one that is loaded, and all that add_profiles makes of it */

/* Where ids made here and an engine's part for the first time. */
struct difference {
    bool any;
    const char *question; /* a probe's name, or "a request" */
    char who[256];
    size_t at, here_n, engine_n;
    uint32_t here, engine; /* the ids there; of a shorter one 0 */
};

struct kvr_tokenizer {
    _Atomic unsigned refs;
    struct kvr_tokenizer_config config;
    char *model, *dir, *profile;
    _Atomic int state;
    _Atomic uint64_t generation;
    struct kvr_lock lock; /* of what follows, up to `reasons` */
    struct kvr_trust trust;
    struct difference last;
    struct kvr_probe_answer answers[PROBES_MAX]; /* of the engine that was asked first */
    size_t answers_n;
    uint64_t equal[KVR_JUDGES], different[KVR_JUDGES], unchecked;
    char cannot_load[FOUND_MAX];
    size_t reasons_n;
    struct {
        char name[KVR_TOKEN_REASON_MAX];
        uint64_t n;
    } reasons[KVR_TOKEN_REASONS_MAX];
    /* Set while it is LOADING, then constant but for `current`. */
    struct kvr_tok *profiles[PROFILES_MAX];
    bool sglang[PROFILES_MAX]; /* of each */
    size_t profiles_n;
    _Atomic size_t current;
};

/* ---- life -------------------------------------------------------------------------------------------- */

struct kvr_tokenizer *kvr_tokenizer_ref(struct kvr_tokenizer *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

void kvr_tokenizer_unref(struct kvr_tokenizer *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1) return;
    for (size_t i = 0; i < t->profiles_n; i++) t->config.lib->free(t->profiles[i]);
    for (size_t i = 0; i < t->answers_n; i++) kvr_ids_unref(t->answers[i].ids);
    kvr_lock_destroy(&t->lock);
    free(t->model);
    free(t->dir);
    free(t->profile);
    free(t);
}

enum kvr_trust_state kvr_tokenizer_state(const struct kvr_tokenizer *t)
{
    return (enum kvr_trust_state)atomic_load_explicit(&t->state, memory_order_acquire);
}

uint64_t kvr_tokenizer_generation(const struct kvr_tokenizer *t)
{
    return kvr_mix64((uint64_t)(uintptr_t)t ^ atomic_load(&t->generation));
}

const char *kvr_tokenizer_model(const struct kvr_tokenizer *t)
{
    return t->model;
}

/* ---- what is said ------------------------------------------------------------------------------------ */

static void put_difference(const struct difference *d, char *out, size_t cap)
{
    if (d->any)
        snprintf(out, cap, "; %s (%s): token %zu is %lu here and %lu there, of %zu and %zu", d->question, d->who, d->at,
                 (unsigned long)d->here, (unsigned long)d->engine, d->here_n, d->engine_n);
    else *out = 0;
}

/* The state may have changed: who looks at it without the lock sees it, and the log has it once. */
static void changed_locked(struct kvr_tokenizer *t, enum kvr_trust_state before)
{
    char where[FOUND_MAX];
    enum kvr_trust_state now = t->trust.state;
    atomic_store_explicit(&t->state, (int)now, memory_order_release);
    if (now == before) return;
    atomic_fetch_add(&t->generation, 1);
    put_difference(&t->last, where, sizeof where);
    if (now == KVR_TRUST_REFUSED)
        kvr_log_warning("kvroute: model '%s': tokens are asked of the engine from now on: %s%s%s", t->model, t->trust.why,
                        t->cannot_load[0] ? ": " : where, t->cannot_load);
    else if (now == KVR_TRUST_SUSPECT)
        kvr_log_warning("kvroute: model '%s': tokens are asked of the engine until it has agreed %d times: %s%s", t->model,
                        KVR_TRUST_AGAIN_AFTER, t->trust.why, where);
    else if (now == KVR_TRUST_TRUSTED) kvr_log("kvroute: model '%s': tokens are made here (%s): %s", t->model, t->dir, t->trust.why);
}

#define TRUST(t, call)                                                                                                                     \
    do {                                                                                                                                   \
        kvr_lock(&(t)->lock);                                                                                                              \
        enum kvr_trust_state before_ = (t)->trust.state;                                                                                   \
        call;                                                                                                                              \
        changed_locked((t), before_);                                                                                                      \
        kvr_unlock(&(t)->lock);                                                                                                            \
    } while (0)

static void count_reason(struct kvr_tokenizer *t, const struct kvr_tok_buf *why)
{
    char name[KVR_TOKEN_REASON_MAX];
    size_t n = 0;
    const char *text = why->data;
    while (n < why->len && n < sizeof name - 1 && text[n] != ':') n++;
    memcpy(name, text, n);
    name[n] = 0;
    kvr_lock(&t->lock);
    size_t i = 0;
    while (i < t->reasons_n && strcmp(t->reasons[i].name, name) != 0) i++;
    if (i == t->reasons_n && i < KVR_TOKEN_REASONS_MAX) {
        memcpy(t->reasons[i].name, name, n + 1);
        t->reasons_n++;
    }
    if (i < t->reasons_n) t->reasons[i].n++;
    kvr_unlock(&t->lock);
}

/* ---- ids --------------------------------------------------------------------------------------------- */

static struct kvr_tok *current(const struct kvr_tokenizer *t)
{
    return t->profiles[atomic_load(&t->current)];
}

/* Takes what the library has given. */
static int take(struct kvr_tokenizer *t, int rc, struct kvr_tok_buf *out, struct kvr_ids **ids)
{
    if (rc == 0) {
        *ids = kvr_ids_new(out->data, out->len / sizeof(uint32_t));
        if (!*ids) rc = KVR_TOK_EUNSUPPORTED;
    } else if (rc < 0) {
        count_reason(t, out);
    }
    t->config.lib->buf_free(out);
    return rc;
}

int kvr_tokenizer_at_once(struct kvr_tokenizer *t, const char *question, size_t len, struct kvr_ids **ids, struct kvr_tok_job **job)
{
    struct kvr_tok_buf out = {0};
    return take(t, t->config.lib->ask(current(t), question, len, KVR_TOKENIZER_INLINE, job, &out), &out, ids);
}

int kvr_tokenizer_finish(struct kvr_tokenizer *t, struct kvr_tok_job *job, struct kvr_ids **ids)
{
    struct kvr_tok_buf out = {0};
    return take(t, t->config.lib->finish(job, &out), &out, ids);
}

void kvr_tokenizer_drop(struct kvr_tokenizer *t, struct kvr_tok_job *job)
{
    t->config.lib->drop(job);
}

static int make_with(struct kvr_tokenizer *t, const struct kvr_tok *profile, const char *question, size_t len, struct kvr_ids **ids)
{
    struct kvr_tok_buf out = {0};
    struct kvr_tok_job *job;
    int rc = t->config.lib->ask(profile, question, len, SIZE_MAX, &job, &out);
    *ids = rc == 0 ? kvr_ids_new(out.data, out.len / sizeof(uint32_t)) : NULL;
    t->config.lib->buf_free(&out);
    return rc || *ids ? rc : KVR_TOK_EUNSUPPORTED;
}

int kvr_tokenizer_make(struct kvr_tokenizer *t, const char *question, size_t len, struct kvr_ids **ids)
{
    struct kvr_tok_buf out = {0};
    struct kvr_tok_job *job;
    return take(t, t->config.lib->ask(current(t), question, len, SIZE_MAX, &job, &out), &out, ids);
}

bool kvr_tokenizer_is_sglang(const struct kvr_tokenizer *t)
{
    return t->sglang[atomic_load(&t->current)];
}

/* ---- comparisons ------------------------------------------------------------------------------------- */

/* Returns: whether both are the same; else *at is the first place where they are not. */
static bool same_ids(const uint32_t *a, size_t a_n, const uint32_t *b, size_t b_n, size_t *at)
{
    size_t n = KVR_MIN(a_n, b_n), i = 0;
    while (i < n && a[i] == b[i]) i++;
    *at = i;
    return i == a_n && i == b_n;
}

static void note_difference(struct difference *d, const char *question, const char *who, const struct kvr_ids *here, const uint32_t *engine,
                            size_t engine_n, size_t at)
{
    *d = (struct difference){.any = true,
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

struct verdict {
    size_t equal, different;
    struct difference first;
};

/* What a profile makes of the built-in questions against what an engine has made of them. What is not made here is neither. */
static struct verdict judge_profile(struct kvr_tokenizer *t, const struct kvr_tok *profile, const char *who,
                                    const struct kvr_probe_answer *answers, size_t n)
{
    struct verdict v = {0};
    struct kvr_buf question = {0};
    for (size_t i = 0; i < n; i++) {
        struct kvr_ids *ids;
        size_t at;
        if (!answers[i].answered) continue;
        put_probe(&kvr_token_probes[i], &question);
        if (question.failed || make_with(t, profile, question.data, question.len, &ids)) continue;
        if (same_ids(ids->v, ids->n, answers[i].ids->v, answers[i].ids->n, &at)) {
            v.equal++;
        } else {
            if (!v.different) note_difference(&v.first, kvr_token_probes[i].name, who, ids, answers[i].ids->v, answers[i].ids->n, at);
            v.different++;
        }
        kvr_ids_unref(ids);
    }
    kvr_buf_free(&question);
    return v;
}

static bool agrees(const struct verdict *v)
{
    return v->equal && !v->different;
}

/* The first profile from `from` on that agrees with all answers, and with a request, when one is given. Returns: its place, or profiles_n;
 * *best: where the one that came closest parts from the engine. */
static size_t find_profile(struct kvr_tokenizer *t, size_t from, const char *who, const struct kvr_probe_answer *answers, size_t n,
                           const struct kvr_token_text *request, const struct kvr_ids *engine, struct difference *best)
{
    size_t closest = 0;
    for (size_t i = from; i < t->profiles_n; i++) {
        struct verdict v = judge_profile(t, t->profiles[i], who, answers, n);
        bool found = agrees(&v);
        if (v.different && v.equal >= closest && (v.equal > closest || !best->any)) *best = v.first;
        closest = KVR_MAX(closest, v.equal);
        if (found && request) {
            struct kvr_ids *ids;
            size_t at;
            if (make_with(t, t->profiles[i], request->data, request->len, &ids)) continue;
            found = same_ids(ids->v, ids->n, engine->v, engine->n, &at);
            kvr_ids_unref(ids);
        }
        if (found) return i;
    }
    return t->profiles_n;
}

/* ---- probes ------------------------------------------------------------------------------------------ */

struct probing {
    struct kvr_token_work work;
    struct kvr_tokenizer *t;
    char who[256];
    size_t n;
    struct kvr_probe_answer answers[PROBES_MAX];
};

static struct probing *probing_of(struct kvr_token_work *w)
{
    return (struct probing *)w; /* its first member */
}

static void drop_probing(struct kvr_token_work *w)
{
    struct probing *p = probing_of(w);
    for (size_t i = 0; i < p->n; i++) kvr_ids_unref(p->answers[i].ids);
    kvr_tokenizer_unref(p->t);
    free(p);
}

/* The answers of the engine that decides on the profile are kept: later ones are judged with that profile. */
static void keep_answers_locked(struct kvr_tokenizer *t, struct probing *p)
{
    for (size_t i = 0; i < t->answers_n; i++) kvr_ids_unref(t->answers[i].ids);
    memcpy(t->answers, p->answers, p->n * sizeof *p->answers);
    t->answers_n = p->n;
    p->n = 0;
}

static void run_probing(struct kvr_token_work *w)
{
    struct probing *p = probing_of(w);
    struct kvr_tokenizer *t = p->t;
    struct difference first = {0};
    bool decides = kvr_tokenizer_state(t) == KVR_TRUST_PROBING, ok;
    if (decides) {
        size_t found = find_profile(t, 0, p->who, p->answers, p->n, NULL, NULL, &first);
        ok = found < t->profiles_n;
        if (ok) atomic_store(&t->current, found);
    } else {
        struct verdict v = judge_profile(t, current(t), p->who, p->answers, p->n);
        ok = !v.different;
        first = v.first;
    }
    kvr_lock(&t->lock);
    enum kvr_trust_state before = t->trust.state;
    if (ok) t->equal[KVR_JUDGE_PROBES]++;
    else {
        t->different[KVR_JUDGE_PROBES]++;
        t->last = first;
    }
    if (decides && ok) keep_answers_locked(t, p);
    kvr_trust_probed(&t->trust, ok);
    changed_locked(t, before);
    kvr_unlock(&t->lock);
}

void kvr_tokenizer_probed(struct kvr_tokenizer *t, const char *who, const struct kvr_probe_answer *answers, size_t n)
{
    struct probing *p = calloc(1, sizeof *p);
    if (!p) return;
    *p = (struct probing){.work = {.run = run_probing, .drop = drop_probing}, .t = kvr_tokenizer_ref(t)};
    snprintf(p->who, sizeof p->who, "%s", who);
    for (size_t i = 0; i < KVR_MIN(n, (size_t)PROBES_MAX); i++) {
        p->answers[i] = answers[i];
        if (answers[i].ids) p->answers[i].ids = kvr_ids_ref(answers[i].ids);
        p->n++;
    }
    (void)kvr_token_pool_add(t->config.pool, &p->work); /* a full pool: it is asked again */
}

void kvr_tokenizer_cannot_ask(struct kvr_tokenizer *t, const char *who)
{
    if (!t->config.given || kvr_tokenizer_state(t) != KVR_TRUST_PROBING) return;
    kvr_log_warning(
        "kvroute: model '%s': %s has no /v1/chat/completions/render or /tokenize that answers chats: its tokens are not compared", t->model,
        who);
    TRUST(t, kvr_trust_given(&t->trust));
}

/* ---- requests ---------------------------------------------------------------------------------------- */

struct comparison {
    struct kvr_token_work work;
    struct kvr_tokenizer *t;
    char who[256];
    struct kvr_token_text question;
    struct kvr_ids *engine;
};

static struct comparison *comparison_of(struct kvr_token_work *w)
{
    return (struct comparison *)w; /* its first member */
}

static void drop_comparison(struct kvr_token_work *w)
{
    struct comparison *c = comparison_of(w);
    c->question.let_go(c->question.held);
    kvr_ids_unref(c->engine);
    kvr_tokenizer_unref(c->t);
    free(c);
}

/* Another profile that agrees with this request, too. In PROBING only. */
static bool other_profile(struct kvr_tokenizer *t, const struct comparison *c)
{
    struct kvr_probe_answer answers[PROBES_MAX] = {{0}};
    struct difference ignored = {0};
    kvr_lock(&t->lock);
    size_t n = t->answers_n;
    for (size_t i = 0; i < n; i++) {
        answers[i] = t->answers[i];
        if (answers[i].ids) kvr_ids_ref(answers[i].ids);
    }
    kvr_unlock(&t->lock);
    size_t found = find_profile(t, atomic_load(&t->current) + 1, c->who, answers, n, &c->question, c->engine, &ignored);
    for (size_t i = 0; i < n; i++) kvr_ids_unref(answers[i].ids);
    if (found < t->profiles_n) atomic_store(&t->current, found);
    return found < t->profiles_n;
}

static void run_comparison(struct kvr_token_work *w)
{
    struct comparison *c = comparison_of(w);
    struct kvr_tokenizer *t = c->t;
    struct kvr_ids *ids;
    size_t at;
    bool other = false;
    if (make_with(t, current(t), c->question.data, c->question.len, &ids)) return;
    bool same = same_ids(ids->v, ids->n, c->engine->v, c->engine->n, &at);
    if (!same && kvr_tokenizer_state(t) == KVR_TRUST_PROBING) other = other_profile(t, c);
    kvr_lock(&t->lock);
    enum kvr_trust_state before = t->trust.state;
    if (same) t->equal[KVR_JUDGE_ENGINE]++;
    else {
        t->different[KVR_JUDGE_ENGINE]++;
        note_difference(&t->last, "a request", c->who, ids, c->engine->v, c->engine->n, at);
    }
    kvr_trust_compared(&t->trust, same || other, other);
    changed_locked(t, before);
    kvr_unlock(&t->lock);
    kvr_ids_unref(ids);
}

void kvr_tokenizer_compare(struct kvr_tokenizer *t, const char *who, const struct kvr_token_text *question, const uint32_t *ids, size_t n)
{
    struct kvr_ids *engine = kvr_ids_new(ids, n);
    struct comparison *c = engine ? calloc(1, sizeof *c) : NULL;
    if (!c) {
        kvr_ids_unref(engine);
        question->let_go(question->held);
        return;
    }
    *c = (struct comparison){
        .work = {.run = run_comparison, .drop = drop_comparison}, .t = kvr_tokenizer_ref(t), .question = *question, .engine = engine};
    snprintf(c->who, sizeof c->who, "%s", who);
    if (kvr_token_pool_add(t->config.pool, &c->work)) return;
    kvr_lock(&t->lock);
    t->unchecked++;
    kvr_unlock(&t->lock);
}

void kvr_tokenizer_counted(struct kvr_tokenizer *t, uint64_t here, uint64_t engine)
{
    if (kvr_tokenizer_state(t) != KVR_TRUST_TRUSTED) return;
    kvr_lock(&t->lock);
    enum kvr_trust_state before = t->trust.state;
    if (here == engine) t->equal[KVR_JUDGE_USAGE]++;
    else t->different[KVR_JUDGE_USAGE]++;
    kvr_trust_counted(&t->trust, here == engine);
    changed_locked(t, before);
    kvr_unlock(&t->lock);
}

void kvr_tokenizer_doubted(struct kvr_tokenizer *t)
{
    if (kvr_tokenizer_state(t) != KVR_TRUST_TRUSTED) return;
    TRUST(t, (t->different[KVR_JUDGE_EVENTS]++, kvr_trust_doubted(&t->trust)));
}

/* ---- loading ----------------------------------------------------------------------------------------- */

struct loading {
    struct kvr_token_work work;
    struct kvr_tokenizer *t;
};

static void drop_loading(struct kvr_token_work *w)
{
    struct loading *l = (struct loading *)w;
    kvr_tokenizer_unref(l->t);
    free(l);
}

static int failed_to(struct kvr_tokenizer *t, const struct kvr_tok_buf *why)
{
    snprintf(t->cannot_load, sizeof t->cannot_load, "%.*s", (int)KVR_MIN(why->len, (size_t)FOUND_MAX), (const char *)why->data);
    return -1;
}

/* The profile that was made last is one more. */
static void take_profile(struct kvr_tokenizer *t)
{
    static const char engine[] = "\"engine\":\"sglang\"";
    struct kvr_tok_buf info = {0};
    if (t->config.lib->info(t->profiles[t->profiles_n], &info) == 0 && info.data)
        t->sglang[t->profiles_n] = memmem(info.data, info.len, engine, sizeof engine - 1) != NULL;
    t->config.lib->buf_free(&info);
    t->profiles_n++;
}

static int add_profile(struct kvr_tokenizer *t, const char *options)
{
    struct kvr_tok_buf err = {0};
    KVR_ASSERT(t->profiles_n < PROFILES_MAX);
    int rc = t->config.lib->variant(t->profiles[0], options, &t->profiles[t->profiles_n], &err);
    if (rc == 0) take_profile(t);
    else rc = failed_to(t, &err);
    t->config.lib->buf_free(&err);
    return rc;
}

/* What engines do: vLLM, as the template looks or as it was told, and what its releases do with members of messages, newest first; SGLang,
 * with two releases of transformers. A built-in question with the assistant's message at the end tells both apart. */
static int add_profiles(struct kvr_tokenizer *t)
{
    static const char *const formats[] = {"auto", "string", "openai"}, *const words[] = {"false", "true"};
    static const struct {
        bool drop_none, alias;
    } releases[] = {{false, false}, {true, true}, {true, false}, {false, true}};
    char options[200];
    for (int i = 0; i < 48; i++) {
        bool typed = i / 24 == 0, developer = i % 2 == 0;
        int r = i / 2 % 4;
        snprintf(options, sizeof options,
                 "{\"content_format\":\"%s\",\"drop_none\":%s,\"alias_reasoning\":%s,\"developer_to_system\":%s,\"typed\":%s}",
                 formats[i / 8 % 3], words[releases[r].drop_none], words[releases[r].alias], words[developer], words[typed]);
        if (add_profile(t, options)) return -1;
    }
    return add_profile(t, "{\"engine\":\"sglang\",\"alias_reasoning\":false}") ||
                   add_profile(t, "{\"engine\":\"sglang\",\"alias_reasoning\":true}")
               ? -1
               : 0;
}

static int load(struct kvr_tokenizer *t)
{
    char options[1024];
    struct kvr_tok_buf err = {0};
    bool fixed = t->profile && strlen(t->profile) > 2;
    if (fixed) snprintf(options, sizeof options, "{\"cache_bytes\":%zu,%s", t->config.cache_bytes, t->profile + 1);
    else snprintf(options, sizeof options, "{\"cache_bytes\":%zu,\"drop_none\":false,\"alias_reasoning\":false}", t->config.cache_bytes);
    int rc = t->config.lib->load(t->dir, options, &t->profiles[0], &err);
    if (rc == 0) take_profile(t);
    else rc = failed_to(t, &err);
    t->config.lib->buf_free(&err);
    return rc || fixed ? rc : add_profiles(t);
}

static void run_loading(struct kvr_token_work *w)
{
    struct kvr_tokenizer *t = ((struct loading *)w)->t;
    bool ok = load(t) == 0;
    TRUST(t, kvr_trust_loaded(&t->trust, ok));
}

int kvr_tokenizer_open(const struct kvr_tokenizer_config *config, struct kvr_tokenizer **out)
{
    struct kvr_tokenizer *t = calloc(1, sizeof *t);
    struct loading *l = calloc(1, sizeof *l);
    if (!t || !l) {
        free(t);
        free(l);
        return -KVR_ENOMEM;
    }
    kvr_lock_init(&t->lock, KVR_LOCK_TOKENIZER);
    atomic_init(&t->refs, 1);
    t->config = *config;
    t->model = strdup(config->model);
    t->dir = strdup(config->dir);
    t->profile = config->profile ? strdup(config->profile) : NULL;
    kvr_trust_begin(&t->trust, config->probes);
    *l = (struct loading){{.run = run_loading, .drop = drop_loading}, kvr_tokenizer_ref(t)};
    if (!t->model || !t->dir || (config->profile && !t->profile) || !kvr_token_pool_add(config->pool, &l->work)) {
        kvr_tokenizer_unref(t);
        return -KVR_ENOMEM;
    }
    *out = t;
    return 0;
}

/* ---- figures ----------------------------------------------------------------------------------------- */

void kvr_tokenizer_figures(struct kvr_tokenizer *t, struct kvr_tokenizer_figures *out)
{
    kvr_lock(&t->lock);
    *out =
        (struct kvr_tokenizer_figures){.state = t->trust.state, .why = t->trust.why, .unchecked = t->unchecked, .reasons_n = t->reasons_n};
    memcpy(out->equal, t->equal, sizeof out->equal);
    memcpy(out->different, t->different, sizeof out->different);
    memcpy(out->reasons, t->reasons, sizeof out->reasons);
    kvr_unlock(&t->lock);
    if (out->state != KVR_TRUST_LOADING && t->profiles_n) t->config.lib->figures(t->profiles[0], &out->cache);
}

void kvr_tokenizer_describe(struct kvr_tokenizer *t, struct kvr_buf *out)
{
    struct kvr_tok_buf info = {0};
    kvr_lock(&t->lock);
    struct kvr_trust trust = t->trust;
    struct difference d = t->last;
    kvr_unlock(&t->lock);
    kvr_json_open(out, '{');
    kvr_json_put_str(out, "model", t->model);
    kvr_json_put_str(out, "folder", t->dir);
    kvr_json_put_str(out, "state", kvr_trust_name(trust.state));
    kvr_json_put_str(out, "why", trust.why);
    if (trust.state == KVR_TRUST_REFUSED && t->cannot_load[0]) kvr_json_put_str(out, "cannot_load", t->cannot_load);
    kvr_json_put_u64(out, "profile", atomic_load(&t->current));
    if (trust.state != KVR_TRUST_LOADING && t->profiles_n && t->config.lib->info(current(t), &info) == 0) {
        kvr_json_key(out, "library");
        kvr_buf_add(out, info.data, info.len);
        out->comma = true;
        t->config.lib->buf_free(&info);
    }
    kvr_json_key(out, "last_difference");
    if (d.any) {
        kvr_json_open(out, '{');
        kvr_json_put_str(out, "question", d.question);
        kvr_json_put_str(out, "engine", d.who);
        kvr_json_put_u64(out, "at", d.at);
        kvr_json_put_u64(out, "here", d.here);
        kvr_json_put_u64(out, "there", d.engine);
        kvr_json_put_u64(out, "tokens_here", d.here_n);
        kvr_json_put_u64(out, "tokens_there", d.engine_n);
        kvr_json_close(out, '}');
    } else {
        kvr_json_null(out);
    }
    kvr_json_close(out, '}');
}
