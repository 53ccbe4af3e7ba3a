/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which model has which tokenizer, and whom to ask about it: tokenizers.h.
 *
 * Entries lie in an array that only grows. The main loop fills an entry before it raises `n`, so whoever has read `n` may read the model
 * and the tokenizer of the entries before it without a lock.
 */
#include "app/serve/tokenizers/room.h"

#include <string.h>

#include "app/serve/common/process.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "token/folders.h"
#include "token/given.h"
#include "token/profile_option.h"
#include "wire/prom_page.h"

enum { CHECK_MS = 1000 };

struct tokenizers *tokenizers_create(struct process *p, struct workers *workers)
{
    struct tokenizers *t = calloc(1, sizeof *t);
    if (t) *t = (struct tokenizers){.o = p->o, .process = p, .workers = workers};
    return t;
}

bool tokenizers_are_used(const struct tokenizers *t)
{
    return t->wanted;
}

/* ---- look-up ---------------------------------------------------------------------------------------------------------- */

static struct tokenizer_entry *find(struct tokenizers *t, const char *model)
{
    size_t n = atomic_load_explicit(&t->n, memory_order_acquire);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(t->entries[i].model, model)) return &t->entries[i];
    return NULL;
}

struct kvr_tokenizer *tokenizers_find(struct tokenizers *t, const char *model)
{
    const struct tokenizer_entry *e = *model ? find(t, model) : atomic_load_explicit(&t->only, memory_order_acquire);
    return e ? e->tokenizer : NULL;
}

struct kvr_token_pool *tokenizers_pool(const struct tokenizers *t)
{
    return t->pool;
}

bool tokenizers_check_due(struct tokenizers *t, const struct kvr_tokenizer *tokenizer)
{
    struct tokenizer_entry *e = find(t, kvr_tokenizer_model(tokenizer));
    uint64_t every = t->o->tokenizer_check, now = kvr_now_ms();
    if (!e || !every) return false;
    uint64_t due = atomic_load(&e->check_due_ms);
    if ((atomic_fetch_add(&e->requests, 1) + 1) % every || now < due) return false;
    return atomic_compare_exchange_strong(&e->check_due_ms, &due, now + CHECK_MS);
}

/* ---- folders ---------------------------------------------------------------------------------------------------------- */

static const char *given_folder(const struct tokenizers *t, const char *model)
{
    return kvr_given_dir(t->o->tokenizer_dirs, t->o->tokenizer_dirs_n, model);
}

/* An adapter has the base model's, unless its own folder has one. */
static bool find_folder(const struct tokenizers *t, const struct model_entry *m, const char *base_root, char out[KVR_FOLDER_MAX])
{
    const char *given = given_folder(t, m->id);
    if (!given && m->is_lora && kvr_folder_of_root(m->root, out)) return true;
    if (!given && m->is_lora) given = given_folder(t, m->parent);
    if (!given) given = given_folder(t, NULL);
    if (given) return snprintf(out, KVR_FOLDER_MAX, "%s", given) < KVR_FOLDER_MAX;
    return kvr_folder_of_root(m->is_lora ? base_root : m->root, out);
}

/* ---- the library -------------------------------------------------------------------------------------------------------- */

static bool open_library(struct tokenizers *t, char *why, size_t cap)
{
    if (t->open || t->failed) return t->open;
    t->failed = true;
    if (kvr_token_library_open(t->o->tokenizer_lib, &t->library, why, cap)) return false;
    if (kvr_token_pool_create(t->o->tokenizer_threads, &t->pool)) {
        snprintf(why, cap, "no threads for --tokenizer-threads");
        return false;
    }
    t->failed = false;
    t->open = true;
    if (!t->o->tokenizer_check)
        kvr_log_warning(
            "kvroute: --tokenizer-check 0: tokens that are made here are not compared with an engine's after the first requests");
    return true;
}

/* ---- entries ---------------------------------------------------------------------------------------------------------- */

/* Returns: false when it is to be tried again. */
static bool add_entry(struct tokenizers *t, const struct model_entry *m, const char *base_root, const char *dir)
{
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
    if (!open_library(t, why, sizeof why)) {
        if (*why) kvr_log("kvroute: model '%s': tokens are asked of engines, although %s has its tokenizer: %s", model, dir, why);
        return true;
    }
    struct kvr_tokenizer_config config = {.lib = &t->library,
                                          .pool = t->pool,
                                          .model = model,
                                          .dir = dir,
                                          .profile = t->o->tokenizer_profile,
                                          .cache_bytes = t->o->tokenizer_cache,
                                          .probes = (unsigned)t->o->tokenizer_probes,
                                          .given = t->o->tokenizer == TOKENIZER_LOCAL};
    if (kvr_tokenizer_open(&config, &e->tokenizer)) return false; /* the pool is full */
    snprintf(e->model, sizeof e->model, "%s", model);
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

static void take_models_locked(const struct tokenizers *t, const struct worker *w, struct served_models *out)
{
    const char *named = w->model[0] ? w->model : t->o->model;
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
static bool look_at_model(struct tokenizers *t, const struct model_entry *m, const char *base_root)
{
    char dir[KVR_FOLDER_MAX];
    struct tokenizer_entry *e = find(t, m->id);
    if (!e) return !find_folder(t, m, base_root, dir) || add_entry(t, m, base_root, dir);
    if (tells_the_same(e, m, base_root)) {
        e->from_seen = t->looks;
    } else {
        e->has_other = true;
        e->other = *m;
        snprintf(e->other_base_root, sizeof e->other_base_root, "%s", base_root);
    }
    return true;
}

/* No worker tells any more what the folder was found by, and one tells otherwise: the folder is found anew. */
static void follow_others(struct tokenizers *t)
{
    for (size_t i = 0; i < atomic_load(&t->n); i++) {
        struct tokenizer_entry *e = &t->entries[i];
        if (e->has_other && e->from_seen != t->looks) {
            e->from = e->other;
            memcpy(e->base_root, e->other_base_root, sizeof e->base_root);
            char dir[KVR_FOLDER_MAX];
            e->read_it |= find_folder(t, &e->from, e->base_root, dir) && !kvr_tokenizer_is_of(e->tokenizer, dir);
        }
        e->has_other = false;
    }
}

/* The model that all workers serve, adapters left out. */
struct only_model {
    char name[MODEL_MAX];
    bool several;
};

static void note_model(struct only_model *only, const struct model_entry *m)
{
    if (m->is_lora) return;
    if (!only->name[0]) snprintf(only->name, sizeof only->name, "%s", m->id);
    only->several |= strcmp(only->name, m->id) != 0;
}

/* When the table has changed. */
static void find_models(struct tokenizers *t)
{
    uint64_t version = workers_version(t->workers);
    if (version == t->seen) return;
    struct served_models *served = malloc(sizeof *served);
    struct only_model only = {0};
    bool all = served != NULL;
    t->looks++;
    for (struct worker *w = workers_first(t->workers); w && served; w = w->next) {
        workers_lock(t->workers);
        take_models_locked(t, w, served);
        workers_unlock(t->workers);
        for (size_t i = 0; i < served->n; i++) {
            all &= look_at_model(t, &served->models[i], served->base_root);
            note_model(&only, &served->models[i]);
        }
    }
    free(served);
    atomic_store_explicit(&t->only, only.several ? NULL : find(t, only.name), memory_order_release);
    if (!all) return;
    follow_others(t);
    t->seen = version;
}

/* ---- folders that are read again ------------------------------------------------------------------------------------------ */

static void read_again(struct tokenizers *t, struct tokenizer_entry *e)
{
    char dir[KVR_FOLDER_MAX];
    bool found = find_folder(t, &e->from, e->base_root, dir);
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

void tokenizers_reload(struct tokenizers *t, const char *dir)
{
    for (size_t i = 0; i < atomic_load(&t->n); i++)
        if (!dir || kvr_tokenizer_is_of(t->entries[i].tokenizer, dir)) t->entries[i].read_it = true;
}

/* ---- probes ----------------------------------------------------------------------------------------------------------- */

static bool is_probed(const struct tokenizer_entry *e, const struct worker *w)
{
    const uint64_t *ups = kvr_map64_get(&e->probed, w->id);
    return ups && *ups == atomic_load(&w->ups);
}

/* A worker that serves the model and has come up since it was asked; each in its turn, as one that tells nothing now is asked again. */
static void probe_next(struct tokenizers *t, struct tokenizer_entry *e)
{
    enum kvr_trust_state state = kvr_tokenizer_state(e->tokenizer);
    if (e->prober || state == KVR_TRUST_LOADING || state == KVR_TRUST_REFUSED || kvr_now_ms() < e->probe_again_ms) return;
    const struct roster_row *row = roster_hold(t->workers, e->model);
    for (size_t i = 0, n = row ? row->servers_n : 0; i < n && !e->prober; i++) {
        const struct worker *w = row->servers[e->turn++ % n].worker;
        if (atomic_load(&w->health) == HEALTH_UP && !is_probed(e, w)) prober_start(t, e, w);
    }
    roster_let_go(row);
}

void tokenizers_tick(struct tokenizers *t)
{
    if (!t->wanted || process_is_ending(t->process)) return;
    find_models(t);
    for (size_t i = 0; i < atomic_load(&t->n); i++) {
        if (t->entries[i].read_it) read_again(t, &t->entries[i]);
        probe_next(t, &t->entries[i]);
    }
}

void tokenizers_doubted(struct tokenizers *t, const char *model)
{
    const struct tokenizer_entry *e = find(t, model);
    if (e) kvr_tokenizer_doubted(e->tokenizer);
}

/* ---- life ------------------------------------------------------------------------------------------------------------- */

static bool are_wanted(const struct tokenizers *t)
{
    return t->o->tokenizer == TOKENIZER_LOCAL || (t->o->tokenizer == TOKENIZER_AUTO && t->o->kv_events);
}

int tokenizers_check(const struct tokenizers *t, char *err, size_t cap)
{
    if (!are_wanted(t)) return 0;
    if (kvr_given_dirs_check(t->o->tokenizer_dirs, t->o->tokenizer_dirs_n, MODEL_MAX - 1, err, cap)) return -1;
    return kvr_profile_option_check(t->o->tokenizer_profile, err, cap) ? -1 : 0;
}

int tokenizers_open(struct tokenizers *t, char *err, size_t cap)
{
    bool must = t->o->tokenizer == TOKENIZER_LOCAL;
    char why[600];
    if (!are_wanted(t)) return 0;
    if (tokenizers_check(t, err, cap)) return -1;
    t->wanted = true;
    if ((!must && !t->o->tokenizer_lib && !t->o->tokenizer_dirs_n) || open_library(t, why, sizeof why)) return 0;
    if (must || t->o->tokenizer_lib)
        return kvr_refuse(err, cap, "%s: %s", t->o->tokenizer_lib ? "--tokenizer-lib" : "--tokenizer local", why);
    kvr_log_warning("kvroute: --tokenizer-dir: tokens are asked of engines: %s", why);
    return 0;
}

void tokenizers_stop(struct tokenizers *t)
{
    for (size_t i = 0; i < atomic_load(&t->n); i++)
        if (t->entries[i].prober) prober_stop(t->entries[i].prober);
    if (t->open) kvr_token_pool_end(t->pool);
}

void tokenizers_destroy(struct tokenizers *t)
{
    if (!t) return;
    if (t->open) kvr_token_pool_destroy(t->pool);
    for (size_t i = 0; i < atomic_load(&t->n); i++) {
        kvr_tokenizer_unref(t->entries[i].tokenizer);
        kvr_map64_clear(&t->entries[i].probed);
    }
    free(t);
}

/* ---- what is shown ---------------------------------------------------------------------------------------------------- */

void tokenizers_write(struct tokenizers *t, struct kvr_buf *out)
{
    kvr_json_open(out, '[');
    for (size_t i = 0; i < atomic_load(&t->n); i++) kvr_tokenizer_describe(t->entries[i].tokenizer, out);
    kvr_json_close(out, ']');
}

#define MODEL_OF(e) KVR_PROM_TEXT("model", (e)->model)

void tokenizers_metrics(struct tokenizers *t, struct kvr_prom_page *out)
{
    static const char *const judges[KVR_JUDGES] = {"probes", "engine", "usage", "events"};
    size_t n = atomic_load(&t->n);
    struct kvr_tokenizer_figures *f = n ? calloc(n, sizeof *f) : NULL;
    struct kvr_token_pool_figures pool = {0};
    if (!f) n = 0;
    for (size_t i = 0; i < n; i++) kvr_tokenizer_figures(t->entries[i].tokenizer, &f[i]);
    kvr_prom_family(out, "kvroute_", "tokenizer_state", "gauge", "1 for the state of a model's tokenizer");
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < KVR_TRUST_STATES; k++)
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("state", kvr_trust_name((enum kvr_trust_state)k))),
                             f[i].state == (enum kvr_trust_state)k);
    kvr_prom_family(out, "kvroute_", "tokenizer_checks_total", "counter",
                    "Comparisons of tokens made here, with an engine, usage, KV events");
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < KVR_JUDGES; k++) {
            kvr_prom_put_u64(out,
                             KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("judge", judges[k]), KVR_PROM_TEXT("result", "equal")),
                             f[i].equal[k]);
            kvr_prom_put_u64(
                out, KVR_PROM_PAIRS(MODEL_OF(&t->entries[i]), KVR_PROM_TEXT("judge", judges[k]), KVR_PROM_TEXT("result", "different")),
                f[i].different[k]);
        }
    kvr_prom_family(out, "kvroute_", "tokenizer_refusals_total", "counter", "Questions that the tokenizer here left to an engine");
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
