/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which model has which tokenizer, and whom to ask about it: tokenizers.h.
 *
 * Entries lie in an array that only grows. The main loop fills an entry before it raises `n`, so whoever has read `n` may read the model
 * and the tokenizer of the entries before it without a lock.
 */
#include "app/serve/tokenizers/internal.h"

#include <string.h>

#include "base/log.h"
#include "token/folders.h"
#include "token/given.h"
#include "token/profile_option.h"
#include "wire/prom_page.h"

enum { CHECK_MS = 1000 };

struct tokenizers {
    struct kvr_token_library library;
    struct kvr_token_pool *pool;
    bool open, failed; /* the library and its threads: opened when a model is found that has a folder, or never */
    bool full_said;
    uint64_t seen;  /* the version of the worker table whose models have been looked at */
    uint64_t looks; /* how often they were */
    _Atomic size_t n;
    struct tokenizer_entry entries[TOKENIZERS_MAX];
};

/* ---- look-up ---------------------------------------------------------------------------------------------------------- */

static struct tokenizer_entry *find(const struct serve *s, const char *model)
{
    struct tokenizers *t = s->tokenizers;
    size_t n = t ? atomic_load_explicit(&t->n, memory_order_acquire) : 0;
    for (size_t i = 0; i < n; i++)
        if (!strcmp(t->entries[i].model, model)) return &t->entries[i];
    return NULL;
}

/* What engines take a request for that names no model: their own, when there is one that is no adapter. */
static struct tokenizer_entry *find_only(const struct serve *s)
{
    struct tokenizers *t = s->tokenizers;
    size_t n = t ? atomic_load_explicit(&t->n, memory_order_acquire) : 0;
    struct tokenizer_entry *found = NULL;
    for (size_t i = 0; i < n; i++) {
        if (t->entries[i].is_adapter) continue;
        if (found) return NULL;
        found = &t->entries[i];
    }
    return found;
}

struct kvr_tokenizer *tokenizers_find(const struct serve *s, const char *model)
{
    const struct tokenizer_entry *e = *model ? find(s, model) : find_only(s);
    return e ? e->tokenizer : NULL;
}

struct kvr_token_pool *tokenizers_pool(const struct serve *s)
{
    return s->tokenizers ? s->tokenizers->pool : NULL;
}

bool tokenizers_check_due(const struct serve *s, const struct kvr_tokenizer *t)
{
    struct tokenizer_entry *e = find(s, kvr_tokenizer_model(t));
    uint64_t every = s->o->tokenizer_check, now = now_ms();
    if (!e || !every) return false;
    uint64_t due = atomic_load(&e->check_due_ms);
    if ((atomic_fetch_add(&e->requests, 1) + 1) % every || now < due) return false;
    return atomic_compare_exchange_strong(&e->check_due_ms, &due, now + CHECK_MS);
}

/* ---- folders ---------------------------------------------------------------------------------------------------------- */

static const char *given_folder(const struct serve *s, const char *model)
{
    return kvr_given_dir(s->o->tokenizer_dirs, s->o->tokenizer_dirs_n, model);
}

/* An adapter has the base model's, unless its own folder has one. */
static bool find_folder(const struct serve *s, const struct model_entry *m, const char *base_root, char out[KVR_FOLDER_MAX])
{
    const char *given = given_folder(s, m->id);
    if (!given && m->is_lora && kvr_folder_of_root(m->root, out)) return true;
    if (!given && m->is_lora) given = given_folder(s, m->parent);
    if (!given) given = given_folder(s, NULL);
    if (given) return snprintf(out, KVR_FOLDER_MAX, "%s", given) < KVR_FOLDER_MAX;
    return kvr_folder_of_root(m->is_lora ? base_root : m->root, out);
}

/* ---- the library -------------------------------------------------------------------------------------------------------- */

static bool open_library(struct serve *s, char *why, size_t cap)
{
    struct tokenizers *t = s->tokenizers;
    if (t->open || t->failed) return t->open;
    t->failed = true;
    if (kvr_token_library_open(s->o->tokenizer_lib, &t->library, why, cap)) return false;
    if (kvr_token_pool_create(s->o->tokenizer_threads, &t->pool)) {
        snprintf(why, cap, "no threads for --tokenizer-threads");
        return false;
    }
    t->failed = false;
    t->open = true;
    if (!s->o->tokenizer_check)
        kvr_log_warning(
            "kvroute: --tokenizer-check 0: tokens that are made here are not compared with an engine's after the first requests");
    return true;
}

/* ---- entries ---------------------------------------------------------------------------------------------------------- */

/* Returns: false when it is to be tried again. */
static bool add_entry(struct serve *s, const struct model_entry *m, const char *base_root, const char *dir)
{
    struct tokenizers *t = s->tokenizers;
    const char *model = m->id;
    size_t n = atomic_load(&t->n);
    if (n == TOKENIZERS_MAX) {
        if (!t->full_said)
            kvr_log_warning("kvroute: model '%s' and later ones ask engines for tokens: %d models have a tokenizer here", model,
                            TOKENIZERS_MAX);
        t->full_said = true;
        return true;
    }
    struct tokenizer_entry *e = &t->entries[n];
    char why[600] = "";
    if (!open_library(s, why, sizeof why)) {
        if (*why) kvr_log("kvroute: model '%s': tokens are asked of engines, although %s has its tokenizer: %s", model, dir, why);
        return true;
    }
    struct kvr_tokenizer_config config = {.lib = &t->library,
                                          .pool = t->pool,
                                          .model = model,
                                          .dir = dir,
                                          .profile = s->o->tokenizer_profile,
                                          .cache_bytes = s->o->tokenizer_cache,
                                          .probes = (unsigned)s->o->tokenizer_probes,
                                          .given = s->o->tokenizer == TOKENIZER_LOCAL};
    if (kvr_tokenizer_open(&config, &e->tokenizer)) return false; /* the pool is full */
    snprintf(e->model, sizeof e->model, "%s", model);
    e->is_adapter = m->is_lora;
    e->from = *m;
    snprintf(e->base_root, sizeof e->base_root, "%s", base_root);
    e->from_seen = t->looks;
    atomic_store_explicit(&t->n, n + 1, memory_order_release);
    return true;
}

/* The models of one worker. */
struct served_models {
    size_t n;
    struct model_entry models[MODELS_MAX + 1]; /* those it lists, and the one that it was configured with */
    char base_root[256];
};

static void take_models_locked(const struct serve *s, const struct worker *w, struct served_models *out)
{
    const char *named = w->model[0] ? w->model : s->o->model;
    out->n = 0;
    out->base_root[0] = 0;
    bool listed = false;
    for (size_t i = 0; i < w->models_n && out->n < MODELS_MAX; i++) {
        if (!w->models[i].is_lora && !out->base_root[0]) snprintf(out->base_root, sizeof out->base_root, "%s", w->models[i].root);
        if (w->models[i].id[0]) out->models[out->n++] = w->models[i];
        listed |= named && !strcmp(w->models[i].id, named);
    }
    if (!named || listed) return;
    struct model_entry *m = &out->models[out->n++];
    *m = (struct model_entry){0};
    snprintf(m->id, sizeof m->id, "%s", named);
}

/* Does the worker tell of the model what the entry's folder was found by? */
static bool tells_the_same(const struct tokenizer_entry *e, const struct model_entry *m, const char *base_root)
{
    return !strcmp(e->from.root, m->root) && !strcmp(e->from.parent, m->parent) && (!m->is_lora || !strcmp(e->base_root, base_root));
}

/* Returns: false when it is to be tried again. */
static bool look_at_model(struct serve *s, const struct model_entry *m, const char *base_root)
{
    char dir[KVR_FOLDER_MAX];
    struct tokenizer_entry *e = find(s, m->id);
    if (!e) return !find_folder(s, m, base_root, dir) || add_entry(s, m, base_root, dir);
    if (tells_the_same(e, m, base_root)) {
        e->from_seen = s->tokenizers->looks;
    } else {
        e->has_other = true;
        e->other = *m;
        snprintf(e->other_base_root, sizeof e->other_base_root, "%s", base_root);
    }
    return true;
}

/* No worker tells any more what the folder was found by, and one tells otherwise: the folder is found anew. */
static void follow_others(struct serve *s)
{
    struct tokenizers *t = s->tokenizers;
    for (size_t i = 0; i < atomic_load(&t->n); i++) {
        struct tokenizer_entry *e = &t->entries[i];
        if (e->has_other && e->from_seen != t->looks) {
            e->from = e->other;
            memcpy(e->base_root, e->other_base_root, sizeof e->base_root);
            char dir[KVR_FOLDER_MAX];
            e->read_it |= find_folder(s, &e->from, e->base_root, dir) && !kvr_tokenizer_is_of(e->tokenizer, dir);
        }
        e->has_other = false;
    }
}

/* When the table has changed. */
static void find_models(struct serve *s)
{
    uint64_t version = atomic_load(&s->workers_version);
    if (version == s->tokenizers->seen) return;
    struct served_models *served = malloc(sizeof *served);
    bool all = served != NULL;
    s->tokenizers->looks++;
    for (struct worker *w = s->workers; w && served; w = w->next) {
        kvr_lock(&s->lock);
        take_models_locked(s, w, served);
        kvr_unlock(&s->lock);
        for (size_t i = 0; i < served->n; i++) all &= look_at_model(s, &served->models[i], served->base_root);
    }
    free(served);
    if (!all) return;
    follow_others(s);
    s->tokenizers->seen = version;
}

/* ---- folders that are read again ------------------------------------------------------------------------------------------ */

static void read_again(struct serve *s, struct tokenizer_entry *e)
{
    char dir[KVR_FOLDER_MAX];
    bool found = find_folder(s, &e->from, e->base_root, dir);
    if (!found) {
        e->read_it = false;
        kvr_log_warning("kvroute: model '%s': its folder is not found any more; what was read of it stays in use", e->model);
        return;
    }
    if (kvr_tokenizer_reload(e->tokenizer, dir)) return; /* one is being read, or the pool is full: later */
    e->read_it = false;
    if (e->prober) prober_stop(e->prober);
    kvr_map64_clear(&e->probed); /* every worker is asked again */
    kvr_log("kvroute: model '%s': its folder is read again (%s)", e->model, dir);
}

void tokenizers_reload(struct serve *s, const char *dir)
{
    struct tokenizers *t = s->tokenizers;
    for (size_t i = 0; t && i < atomic_load(&t->n); i++)
        if (!dir || kvr_tokenizer_is_of(t->entries[i].tokenizer, dir)) t->entries[i].read_it = true;
}

/* ---- probes ----------------------------------------------------------------------------------------------------------- */

static bool is_probed(const struct tokenizer_entry *e, const struct worker *w)
{
    const uint64_t *ups = kvr_map64_get(&e->probed, w->id);
    return ups && *ups == atomic_load(&w->ups);
}

/* A worker that serves the model and has come up since it was asked. */
static void probe_next(struct serve *s, struct tokenizer_entry *e)
{
    enum kvr_trust_state state = kvr_tokenizer_state(e->tokenizer);
    if (e->prober || state == KVR_TRUST_LOADING || state == KVR_TRUST_REFUSED || now_ms() < e->probe_again_ms) return;
    const struct roster_row *row = roster_hold(s, e->model);
    for (size_t i = 0; row && i < row->servers_n && !e->prober; i++) {
        const struct worker *w = row->servers[i].worker;
        if (atomic_load(&w->health) == HEALTH_UP && !is_probed(e, w)) (void)prober_start(s, e, w);
    }
    roster_let_go(row);
}

void tokenizers_tick(struct serve *s)
{
    struct tokenizers *t = s->tokenizers;
    if (!t || serve_is_ending(s)) return;
    find_models(s);
    for (size_t i = 0; i < atomic_load(&t->n); i++) {
        if (t->entries[i].read_it) read_again(s, &t->entries[i]);
        probe_next(s, &t->entries[i]);
    }
}

void tokenizers_doubted(struct serve *s, const char *model)
{
    const struct tokenizer_entry *e = find(s, model);
    if (e) kvr_tokenizer_doubted(e->tokenizer);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static bool are_wanted(const struct serve *s)
{
    return s->o->tokenizer == TOKENIZER_LOCAL || (s->o->tokenizer == TOKENIZER_AUTO && s->o->kv_events);
}

int tokenizers_check(const struct serve *s, char *err, size_t cap)
{
    if (!are_wanted(s)) return 0;
    if (kvr_given_dirs_check(s->o->tokenizer_dirs, s->o->tokenizer_dirs_n, MODEL_MAX - 1, err, cap)) return -1;
    return kvr_profile_option_check(s->o->tokenizer_profile, err, cap) ? -1 : 0;
}

int tokenizers_open(struct serve *s, char *err, size_t cap)
{
    bool must = s->o->tokenizer == TOKENIZER_LOCAL;
    char why[600];
    if (!are_wanted(s)) return 0;
    if (tokenizers_check(s, err, cap)) return -1;
    if (!(s->tokenizers = calloc(1, sizeof *s->tokenizers))) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    if ((!must && !s->o->tokenizer_lib && !s->o->tokenizer_dirs_n) || open_library(s, why, sizeof why)) return 0;
    if (must || s->o->tokenizer_lib) {
        snprintf(err, cap, "%s: %s", s->o->tokenizer_lib ? "--tokenizer-lib" : "--tokenizer local", why);
        return -1;
    }
    kvr_log_warning("kvroute: --tokenizer-dir: tokens are asked of engines: %s", why);
    return 0;
}

void tokenizers_stop(struct serve *s)
{
    struct tokenizers *t = s->tokenizers;
    for (size_t i = 0; t && i < atomic_load(&t->n); i++)
        if (t->entries[i].prober) prober_stop(t->entries[i].prober);
}

void tokenizers_destroy(struct serve *s)
{
    struct tokenizers *t = s->tokenizers;
    if (!t) return;
    if (t->open) kvr_token_pool_destroy(t->pool);
    for (size_t i = 0; i < atomic_load(&t->n); i++) {
        kvr_tokenizer_unref(t->entries[i].tokenizer);
        kvr_map64_clear(&t->entries[i].probed);
    }
    free(t);
    s->tokenizers = NULL;
}

/* ---- what is shown ---------------------------------------------------------------------------------------------------- */

void tokenizers_write(struct serve *s, struct kvr_buf *out)
{
    struct tokenizers *t = s->tokenizers;
    kvr_json_open(out, '[');
    for (size_t i = 0; t && i < atomic_load(&t->n); i++) kvr_tokenizer_describe(t->entries[i].tokenizer, out);
    kvr_json_close(out, ']');
}

#define MODEL_OF(e) KVR_PROM_TEXT("model", (e)->model)

void tokenizers_metrics(struct serve *s, struct kvr_prom_page *out)
{
    static const char *const judges[KVR_JUDGES] = {"probes", "engine", "usage", "events"};
    struct tokenizers *t = s->tokenizers;
    size_t n = t ? atomic_load(&t->n) : 0;
    struct kvr_tokenizer_figures *f = n ? calloc(n, sizeof *f) : NULL;
    struct kvr_token_pool_figures pool = {0};
    if (!f) n = 0;
    for (size_t i = 0; i < n; i++) kvr_tokenizer_figures(t->entries[i].tokenizer, &f[i]);
    kvr_prom_family(out, "kvroute_", "tokenizer_state", "gauge", "1 for the state that a model's tokenizer is in");
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < KVR_TRUST_STATES; k++)
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("state", kvr_trust_name((enum kvr_trust_state)k))),
                             f[i].state == (enum kvr_trust_state)k);
    kvr_prom_family(out, "kvroute_", "tokenizer_checks_total", "counter",
                    "Comparisons of tokens made here: probes and requests with an engine, counts with usage, prompts with KV events");
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < KVR_JUDGES; k++) {
            kvr_prom_put_u64(out,
                             KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("judge", judges[k]), KVR_PROM_TEXT("result", "equal")),
                             f[i].equal[k]);
            kvr_prom_put_u64(
                out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("judge", judges[k]), KVR_PROM_TEXT("result", "different")),
                f[i].different[k]);
        }
    kvr_prom_family(out, "kvroute_", "tokenizer_refusals_total", "counter", "Questions that were not answered here, by reason");
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < f[i].reasons_n; k++)
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("reason", f[i].reasons[k].name)),
                             f[i].reasons[k].n);
    kvr_prom_family(out, "kvroute_", "tokenizer_segments_total", "counter", "Segments of prompts, by whether their tokens were kept");
    for (size_t i = 0; i < n; i++) {
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("result", "hit")), f[i].cache.hits);
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("result", "miss")), f[i].cache.misses);
    }
    kvr_prom_family(out, "kvroute_", "tokenizer_segment_bytes", "gauge", "Memory of the segments that are kept");
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i])), f[i].cache.bytes);
    if (n) kvr_token_pool_figures(t->pool, &pool);
    kvr_prom_family(out, "kvroute_", "tokenizer_jobs_total", "counter", "Prompts for the tokenizer's threads");
    kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("result", "begun")), pool.jobs);
    kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("result", "joined")), pool.joined);
    kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("result", "full")), pool.full);
    free(f);
}
