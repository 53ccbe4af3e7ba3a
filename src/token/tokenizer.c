/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's tokenizer: token/tokenizer.h. The states are trust.c's; here is what they are decided by.
 *
 * What was made of a folder (struct loaded) has holders: the tokenizer, and whoever makes ids with it at the moment. When the folder is
 * read again, the tokenizer takes the new one, and the old one goes with its last user. A comparison that was made with the old one decides
 * nothing of the new one. Profiles are variants of one folder, so that `current` is an index that changes while others make ids with the
 * one before.
 */
#include "token/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "base/lock.h"
#include "base/log.h"
#include "token/dates.h"
#include "token/probes.h"

enum { FOUND_MAX = 400 };

/* A folder that was read. Constant but for `current`. */
struct loaded {
    _Atomic unsigned refs;
    struct kvr_profiles profiles;
    _Atomic size_t current;
};

struct kvr_tokenizer {
    _Atomic unsigned refs;
    struct kvr_tokenizer_config config;
    char *model, *profile;
    _Atomic int state;
    _Atomic uint64_t generation;
    _Atomic bool has_dates; /* its template writes the date */
    _Atomic bool is_sglang; /* of the profile that is used */
    struct kvr_lock judge;  /* held while answers decide on the profile: each engine's meet those before them */
    struct kvr_lock lock;   /* of what follows */
    char *dir;
    bool loading;          /* a thread reads the folder, or will */
    struct loaded *loaded; /* NULL: none yet, or it cannot be used */
    struct kvr_trust trust;
    struct kvr_token_difference last;
    struct kvr_probe_answer answers[KVR_PROBES_MAX]; /* of the engines that were asked: the profile agrees with all of them */
    size_t answers_n;
    char first[256];    /* who was asked first */
    bool others_agreed; /* and then others */
    uint64_t answers_day;
    uint64_t equal[KVR_JUDGES], different[KVR_JUDGES], unchecked;
    struct kvr_tok_figures given_up; /* what was counted of folders before this one */
    char cannot_load[FOUND_MAX];
    size_t reasons_n;
    struct {
        char name[KVR_TOKEN_REASON_MAX];
        uint64_t n;
    } reasons[KVR_TOKEN_REASONS_MAX];
};

/* ---- life -------------------------------------------------------------------------------------------- */

struct kvr_tokenizer *kvr_tokenizer_ref(struct kvr_tokenizer *t)
{
    atomic_fetch_add(&t->refs, 1);
    return t;
}

static void let_go(struct loaded *l)
{
    if (!l || atomic_fetch_sub(&l->refs, 1) != 1) return;
    kvr_profiles_free(&l->profiles);
    free(l);
}

/* The folder as it is used now; let_go. NULL: there is none. */
static struct loaded *hold(struct kvr_tokenizer *t)
{
    kvr_lock(&t->lock);
    struct loaded *l = t->loaded;
    if (l) atomic_fetch_add(&l->refs, 1);
    kvr_unlock(&t->lock);
    return l;
}

void kvr_tokenizer_unref(struct kvr_tokenizer *t)
{
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1) return;
    let_go(t->loaded);
    for (size_t i = 0; i < t->answers_n; i++) kvr_ids_unref(t->answers[i].ids);
    kvr_lock_destroy(&t->lock);
    kvr_lock_destroy(&t->judge);
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

static void put_difference(const struct kvr_token_difference *d, char *out, size_t cap)
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

static struct kvr_tok *current(const struct loaded *l)
{
    return l->profiles.all[atomic_load(&l->current)];
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

static int ask(struct kvr_tokenizer *t, const char *question, size_t len, size_t inline_max, struct kvr_ids **ids, struct kvr_tok_job **job)
{
    struct kvr_tok_buf out = {0};
    struct loaded *l = hold(t);
    if (!l) return KVR_TOK_EUNSUPPORTED;
    int rc = take(t, l->profiles.lib->ask(current(l), question, len, inline_max, job, &out), &out, ids);
    let_go(l);
    return rc;
}

int kvr_tokenizer_at_once(struct kvr_tokenizer *t, const char *question, size_t len, struct kvr_ids **ids, struct kvr_tok_job **job)
{
    return ask(t, question, len, KVR_TOKENIZER_INLINE, ids, job);
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

int kvr_tokenizer_make(struct kvr_tokenizer *t, const char *question, size_t len, struct kvr_ids **ids)
{
    struct kvr_tok_job *job;
    return ask(t, question, len, SIZE_MAX, ids, &job);
}

bool kvr_tokenizer_is_sglang(const struct kvr_tokenizer *t)
{
    return atomic_load(&t->is_sglang);
}

static bool is_of_sglang(const struct loaded *l, size_t i)
{
    static const char says[] = "\"engine\":\"sglang\"";
    struct kvr_tok_buf info = {0};
    bool yes = l->profiles.lib->info(l->profiles.all[i], &info) == 0 && memmem(info.data, info.len, says, sizeof says - 1);
    l->profiles.lib->buf_free(&info);
    return yes;
}

/* A folder that was given up meanwhile says nothing of the one that is used. */
static void use_profile(struct kvr_tokenizer *t, struct loaded *l, size_t i)
{
    bool sglang = is_of_sglang(l, i);
    atomic_store(&l->current, i);
    kvr_lock(&t->lock);
    if (t->loaded == l) atomic_store(&t->is_sglang, sglang);
    kvr_unlock(&t->lock);
}

/* ---- dates --------------------------------------------------------------------------------------------- */

bool kvr_tokenizer_date_turns(const struct kvr_tokenizer *t)
{
    struct tm local;
    time_t now = time(NULL);
    if (kvr_tokenizer_state(t) == KVR_TRUST_LOADING || !atomic_load(&t->has_dates)) return false;
    return localtime_r(&now, &local) && kvr_date_turns(&local);
}

/* ---- answers of engines to the built-in questions ------------------------------------------------------ */

static void drop_answers(struct kvr_probe_answer *answers, size_t n)
{
    for (size_t i = 0; i < n; i++) kvr_ids_unref(answers[i].ids);
}

static void forget_answers_locked(struct kvr_tokenizer *t)
{
    drop_answers(t->answers, t->answers_n);
    t->answers_n = 0;
    t->first[0] = 0;
    t->others_agreed = false;
}

/* What engines have answered; drop_answers. Where the template writes the date, answers of another day are worth nothing. */
static size_t hold_answers_locked(const struct kvr_tokenizer *t, struct kvr_probe_answer out[KVR_PROBES_MAX])
{
    size_t n = atomic_load(&t->has_dates) && t->answers_day != kvr_date_today() ? 0 : t->answers_n;
    for (size_t i = 0; i < n; i++) {
        out[i] = t->answers[i];
        if (out[i].ids) kvr_ids_ref(out[i].ids);
    }
    return n;
}

/* ---- probes ------------------------------------------------------------------------------------------ */

struct probing {
    struct kvr_token_work work;
    struct kvr_tokenizer *t;
    char who[256];
    size_t n;
    struct kvr_probe_answer answers[KVR_PROBES_MAX];
};

static struct probing *probing_of(struct kvr_token_work *w)
{
    return (struct probing *)w; /* its first member */
}

static void drop_probing(struct kvr_token_work *w)
{
    struct probing *p = probing_of(w);
    drop_answers(p->answers, p->n);
    kvr_tokenizer_unref(p->t);
    free(p);
}

/* To the answers of an engine those of others are added, to questions that it has not answered. */
static void add_answers(struct probing *p, const struct kvr_probe_answer *others, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (p->answers[i].answered || !others[i].answered) continue;
        p->answers[i] = (struct kvr_probe_answer){true, kvr_ids_ref(others[i].ids)};
    }
}

/* Those of other engines. An engine that was the only one may have come up as another one. */
static size_t hold_others(struct kvr_tokenizer *t, const char *who, struct kvr_probe_answer out[KVR_PROBES_MAX])
{
    kvr_lock(&t->lock);
    bool alone = !t->others_agreed && !strcmp(t->first, who);
    size_t n = alone ? 0 : hold_answers_locked(t, out);
    kvr_unlock(&t->lock);
    return n;
}

/* What a profile has agreed with. */
static void keep_answers_locked(struct kvr_tokenizer *t, struct probing *p, bool others)
{
    drop_answers(t->answers, t->answers_n);
    memcpy(t->answers, p->answers, p->n * sizeof *p->answers);
    t->answers_n = p->n;
    p->n = 0;
    t->answers_day = kvr_date_today();
    t->others_agreed = others;
    if (!others) memcpy(t->first, p->who, sizeof t->first);
}

/* What has come of answers. */
struct probed {
    bool decides; /* on the profile */
    bool others;  /* other engines have answered before */
    bool unlike;  /* and not as this one */
    bool agrees;
    struct kvr_token_difference first;
};

static void probed_locked(struct kvr_tokenizer *t, struct probing *p, const struct probed *found)
{
    enum kvr_trust_state before = t->trust.state;
    if (found->agrees) t->equal[KVR_JUDGE_PROBES]++;
    else {
        t->different[KVR_JUDGE_PROBES]++;
        t->last = found->first;
    }
    if (found->decides && found->agrees) keep_answers_locked(t, p, found->others);
    if (found->unlike) kvr_trust_unlike(&t->trust);
    else kvr_trust_probed(&t->trust, found->agrees);
    changed_locked(t, before);
}

/* Both engines are named: which of them is the odd one only the operator knows. */
static void note_unlike(struct kvr_tokenizer *t, const struct probing *p, const struct kvr_probe_answer *others, size_t i, size_t at,
                        struct kvr_token_difference *out)
{
    char who[256];
    const struct kvr_ids *ids = p->answers[i].ids;
    kvr_lock(&t->lock);
    snprintf(who, sizeof who, "%.110s, unlike %.110s", p->who, t->first);
    kvr_unlock(&t->lock);
    kvr_token_difference_note(out, kvr_token_probes[i].name, who, others[i].ids, ids->v, ids->n, at);
}

/* The first profile that agrees with all engines is taken. */
static void find_profile(struct kvr_tokenizer *t, struct loaded *l, struct probing *p, struct probed *out)
{
    struct kvr_verdict closest;
    size_t found = kvr_profiles_find(&l->profiles, 0, p->who, p->answers, p->n, NULL, &closest);
    out->agrees = found < l->profiles.n;
    out->first = closest.first;
    if (out->agrees) use_profile(t, l, found);
}

static void judge_profile(const struct loaded *l, const struct probing *p, struct probed *out)
{
    struct kvr_verdict v;
    kvr_profile_judge(l->profiles.lib, current(l), p->who, p->answers, p->n, &v);
    out->agrees = !v.different;
    out->first = v.first;
}

static struct probed look_at_answers(struct kvr_tokenizer *t, struct loaded *l, struct probing *p)
{
    struct kvr_probe_answer others[KVR_PROBES_MAX];
    struct probed out = {.decides = kvr_tokenizer_state(t) == KVR_TRUST_PROBING};
    size_t n = hold_others(t, p->who, others), at, i = kvr_probe_answers_part(others, p->answers, n, &at);
    out.others = n > 0;
    out.unlike = i < n;
    if (out.unlike) {
        note_unlike(t, p, others, i, at, &out.first);
    } else if (out.decides) {
        add_answers(p, others, n);
        find_profile(t, l, p, &out);
    } else {
        judge_profile(l, p, &out);
    }
    drop_answers(others, n);
    return out;
}

static void run_probing(struct kvr_token_work *w)
{
    struct probing *p = probing_of(w);
    struct kvr_tokenizer *t = p->t;
    struct loaded *l = hold(t);
    if (!l) return;
    kvr_lock(&t->judge);
    struct probed found = look_at_answers(t, l, p);
    kvr_lock(&t->lock);
    if (t->loaded == l) probed_locked(t, p, &found);
    kvr_unlock(&t->lock);
    kvr_unlock(&t->judge);
    let_go(l);
}

bool kvr_tokenizer_probed(struct kvr_tokenizer *t, const char *who, const struct kvr_probe_answer *answers, size_t n)
{
    struct probing *p = calloc(1, sizeof *p);
    if (!p) return false;
    *p = (struct probing){.work = {.run = run_probing, .drop = drop_probing}, .t = kvr_tokenizer_ref(t)};
    snprintf(p->who, sizeof p->who, "%s", who);
    for (size_t i = 0; i < KVR_MIN(n, (size_t)KVR_PROBES_MAX); i++) {
        p->answers[i] = answers[i];
        if (answers[i].ids) p->answers[i].ids = kvr_ids_ref(answers[i].ids);
        p->n++;
    }
    return kvr_token_pool_add(t->config.pool, &p->work);
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
static bool other_profile(struct kvr_tokenizer *t, struct loaded *l, const struct comparison *c)
{
    struct kvr_probe_answer answers[KVR_PROBES_MAX] = {{0}};
    struct kvr_profile_request request = {.question = c->question.data, .len = c->question.len, .engine = c->engine};
    struct kvr_verdict ignored;
    kvr_lock(&t->lock);
    size_t n = hold_answers_locked(t, answers);
    kvr_unlock(&t->lock);
    size_t found = kvr_profiles_find(&l->profiles, atomic_load(&l->current) + 1, c->who, answers, n, &request, &ignored);
    drop_answers(answers, n);
    if (found < l->profiles.n) use_profile(t, l, found);
    return found < l->profiles.n;
}

/* Before the built-in questions are answered a request decides nothing: which profile it is to be compared with is not known. */
static bool is_decided_by_requests(struct kvr_tokenizer *t)
{
    kvr_lock(&t->lock);
    bool yes = t->trust.state != KVR_TRUST_PROBING || t->trust.probed;
    kvr_unlock(&t->lock);
    return yes;
}

static void compared_locked(struct kvr_tokenizer *t, const struct comparison *c, const struct kvr_ids *here, bool other)
{
    size_t at;
    enum kvr_trust_state before = t->trust.state;
    bool same = kvr_ids_same(here->v, here->n, c->engine->v, c->engine->n, &at);
    if (same) t->equal[KVR_JUDGE_ENGINE]++;
    else {
        t->different[KVR_JUDGE_ENGINE]++;
        kvr_token_difference_note(&t->last, "a request", c->who, here, c->engine->v, c->engine->n, at);
    }
    kvr_trust_compared(&t->trust, same || other, other);
    changed_locked(t, before);
}

static void compare_with(struct kvr_tokenizer *t, struct loaded *l, const struct comparison *c, bool decides)
{
    struct kvr_ids *ids;
    size_t at;
    if (kvr_profile_ids(l->profiles.lib, current(l), c->question.data, c->question.len, &ids)) return;
    bool same = kvr_ids_same(ids->v, ids->n, c->engine->v, c->engine->n, &at);
    bool other = !same && decides && kvr_tokenizer_state(t) == KVR_TRUST_PROBING && other_profile(t, l, c);
    kvr_lock(&t->lock);
    if (t->loaded == l) compared_locked(t, c, ids, other);
    kvr_unlock(&t->lock);
    kvr_ids_unref(ids);
}

static void run_comparison(struct kvr_token_work *w)
{
    const struct comparison *c = comparison_of(w);
    bool looked_at = is_decided_by_requests(c->t) && !kvr_tokenizer_date_turns(c->t); /* also of what was asked just before */
    struct loaded *l = looked_at ? hold(c->t) : NULL;
    bool decides = l && kvr_tokenizer_state(c->t) == KVR_TRUST_PROBING;
    if (decides) kvr_lock(&c->t->judge);
    if (l) compare_with(c->t, l, c, decides);
    if (decides) kvr_unlock(&c->t->judge);
    let_go(l);
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
    if (kvr_tokenizer_state(t) != KVR_TRUST_TRUSTED || (here != engine && kvr_tokenizer_date_turns(t))) return;
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
    char *dir;
};

static void drop_loading(struct kvr_token_work *w)
{
    struct loading *l = (struct loading *)w;
    kvr_tokenizer_unref(l->t);
    free(l->dir);
    free(l);
}

/* NULL: it cannot be used, for that reason. */
static struct loaded *load(const struct kvr_tokenizer *t, const char *dir, char why[FOUND_MAX])
{
    struct loaded *l = calloc(1, sizeof *l);
    if (!l) {
        snprintf(why, FOUND_MAX, "out of memory");
        return NULL;
    }
    atomic_init(&l->refs, 1);
    if (kvr_profiles_load(t->config.lib, dir, t->profile, t->config.cache_bytes, &l->profiles, why, FOUND_MAX) == 0) return l;
    let_go(l);
    return NULL;
}

static bool writes_dates(const struct kvr_profiles *p)
{
    struct kvr_tok_buf info = {0};
    bool yes = p->lib->info(p->all[0], &info) == 0 && kvr_info_has_dates(info.data, info.len);
    p->lib->buf_free(&info);
    return yes;
}

/* Counts go on, whichever folder they are of; what is kept of segments is that of one. */
static void add_counts(struct kvr_tok_figures *sum, const struct kvr_tok_figures *f)
{
    sum->hits += f->hits;
    sum->misses += f->misses;
    sum->too_large += f->too_large;
}

static void give_up_locked(struct kvr_tokenizer *t, const struct loaded *old)
{
    struct kvr_tok_figures f = {0};
    if (old) old->profiles.lib->figures(old->profiles.all[0], &f);
    add_counts(&t->given_up, &f);
}

static void run_loading(struct kvr_token_work *w)
{
    const struct loading *job = (const struct loading *)w;
    struct kvr_tokenizer *t = job->t;
    char why[FOUND_MAX] = "";
    struct loaded *l = load(t, job->dir, why);
    atomic_store(&t->has_dates, l && writes_dates(&l->profiles));
    bool sglang = l && is_of_sglang(l, 0);
    kvr_lock(&t->lock);
    struct loaded *old = t->loaded;
    enum kvr_trust_state before = t->trust.state;
    give_up_locked(t, old);
    t->loaded = l;
    t->loading = false;
    forget_answers_locked(t);
    atomic_store(&t->is_sglang, sglang);
    memcpy(t->cannot_load, why, sizeof why);
    kvr_trust_loaded(&t->trust, l != NULL);
    changed_locked(t, before);
    kvr_unlock(&t->lock);
    let_go(old);
}

int kvr_tokenizer_reload(struct kvr_tokenizer *t, const char *dir)
{
    struct loading *l = calloc(1, sizeof *l);
    char *copy = strdup(dir), *old = copy;
    if (l) *l = (struct loading){{.run = run_loading, .drop = drop_loading}, kvr_tokenizer_ref(t), strdup(dir)};
    if (!l || !copy || !l->dir) {
        if (l) drop_loading(&l->work);
        free(copy);
        return -KVR_ENOMEM;
    }
    kvr_lock(&t->lock);
    bool busy = t->loading;
    if (!busy) { /* from here on ids of the folder that is given up are not used */
        old = t->dir;
        t->dir = copy;
        t->loading = true;
        t->last.any = false;
        kvr_trust_begin(&t->trust, t->config.probes);
        atomic_store_explicit(&t->state, (int)t->trust.state, memory_order_release);
        atomic_fetch_add(&t->generation, 1);
    }
    kvr_unlock(&t->lock);
    free(old);
    if (busy) {
        drop_loading(&l->work);
        return -KVR_EEXISTS;
    }
    if (kvr_token_pool_add(t->config.pool, &l->work)) return 0;
    kvr_lock(&t->lock); /* it stays LOADING: the next try reads it */
    t->loading = false;
    kvr_unlock(&t->lock);
    return -KVR_ELIMIT;
}

bool kvr_tokenizer_is_of(struct kvr_tokenizer *t, const char *dir)
{
    kvr_lock(&t->lock);
    bool same = !strcmp(t->dir, dir);
    kvr_unlock(&t->lock);
    return same;
}

int kvr_tokenizer_open(const struct kvr_tokenizer_config *config, struct kvr_tokenizer **out)
{
    struct kvr_tokenizer *t = calloc(1, sizeof *t);
    if (!t) return -KVR_ENOMEM;
    kvr_lock_init(&t->judge, KVR_LOCK_TOKENIZER_JUDGE);
    kvr_lock_init(&t->lock, KVR_LOCK_TOKENIZER);
    atomic_init(&t->refs, 1);
    t->config = *config;
    t->model = strdup(config->model);
    t->profile = config->profile ? strdup(config->profile) : NULL;
    bool whole = t->model && (!config->profile || t->profile);
    int rc = whole ? kvr_tokenizer_reload(t, config->dir) : -KVR_ENOMEM;
    if (rc) kvr_tokenizer_unref(t);
    else *out = t;
    return rc;
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
    if (t->loaded) t->loaded->profiles.lib->figures(t->loaded->profiles.all[0], &out->cache);
    add_counts(&out->cache, &t->given_up);
    kvr_unlock(&t->lock);
}

static void describe_folder(const struct loaded *l, struct kvr_buf *out)
{
    struct kvr_tok_buf info = {0};
    kvr_json_put_u64(out, "profile", atomic_load(&l->current));
    if (l->profiles.lib->info(current(l), &info) == 0) {
        kvr_json_key(out, "library");
        kvr_buf_add(out, info.data, info.len);
        out->comma = true;
    }
    l->profiles.lib->buf_free(&info);
}

void kvr_tokenizer_describe(struct kvr_tokenizer *t, struct kvr_buf *out)
{
    char dir[1024], cannot_load[FOUND_MAX];
    kvr_lock(&t->lock);
    struct kvr_trust trust = t->trust;
    struct kvr_token_difference d = t->last;
    snprintf(dir, sizeof dir, "%s", t->dir);
    memcpy(cannot_load, t->cannot_load, sizeof cannot_load);
    kvr_unlock(&t->lock);
    struct loaded *l = hold(t);
    kvr_json_open(out, '{');
    kvr_json_put_str(out, "model", t->model);
    kvr_json_put_str(out, "folder", dir);
    kvr_json_put_str(out, "state", kvr_trust_name(trust.state));
    kvr_json_put_str(out, "why", trust.why);
    if (trust.state == KVR_TRUST_REFUSED && cannot_load[0]) kvr_json_put_str(out, "cannot_load", cannot_load);
    if (l && trust.state != KVR_TRUST_LOADING) describe_folder(l, out);
    let_go(l);
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
