/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters by model, worker and status class.
 *
 *     worker --> series of one model --> series of another ...        none --> series of requests that no worker had
 *
 * A worker's series are its id's: they go when it is removed, and stay when it is replaced. A model has a series of its own
 * when a worker is known to serve it, up to SERIES_MAX for each worker; everything else is "other". So clients and engines can
 * add no more than that.
 *
 * Threads: any. A lock of its own, a leaf; the roster says which model is known, before it is taken.
 */
#include "app/serve/workers/counts/labels.h"

#include <string.h>

#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "wire/prom_page.h"

enum { SERIES_MAX = 64 };

enum status_class { CLASS_1XX, CLASS_2XX, CLASS_3XX, CLASS_4XX, CLASS_5XX, CLASS_GONE, CLASSES };

static const char *const class_names[CLASSES] = {"1xx", "2xx", "3xx", "4xx", "5xx", "client_gone"};

struct series {
    struct series *next;
    char model[MODEL_MAX];
    uint64_t requests[CLASSES];
    struct label_tokens tokens;
};

struct list {
    struct series *first;
};

struct labels {
    struct kvr_lock lock;
    struct kvr_map64 of_worker; /* id -> struct list, of the workers in the table */
    struct series *none;
};

/* ---- life ------------------------------------------------------------------------------------------------------ */

static struct list *list_find(const struct labels *l, uint64_t id)
{
    const uint64_t *at = kvr_map64_get(&l->of_worker, id);
    return at ? (struct list *)(uintptr_t)*at : NULL;
}

static void series_free(struct series *first)
{
    while (first) {
        struct series *next = first->next;
        free(first);
        first = next;
    }
}

struct labels *labels_create(void)
{
    struct labels *l = calloc(1, sizeof *l);
    if (l) kvr_lock_init(&l->lock, KVR_LOCK_LABELS);
    return l;
}

bool labels_register(struct labels *l, uint64_t worker_id)
{
    struct list *k = calloc(1, sizeof *k);
    kvr_lock(&l->lock);
    bool ok = list_find(l, worker_id) != NULL;
    if (!ok && k && kvr_map64_put(&l->of_worker, worker_id, (uint64_t)(uintptr_t)k) == 0) {
        ok = true;
        k = NULL;
    }
    kvr_unlock(&l->lock);
    free(k);
    return ok;
}

void labels_forget(struct labels *l, uint64_t worker_id)
{
    kvr_lock(&l->lock);
    struct list *k = list_find(l, worker_id);
    if (k) kvr_map64_del(&l->of_worker, worker_id);
    kvr_unlock(&l->lock);
    if (k) series_free(k->first);
    free(k);
}

void labels_destroy(struct labels *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->of_worker.cap; i++) {
        struct list *k = l->of_worker.slots[i].used ? (struct list *)(uintptr_t)l->of_worker.slots[i].value : NULL;
        if (k) series_free(k->first);
        free(k);
    }
    series_free(l->none);
    kvr_map64_clear(&l->of_worker);
    kvr_lock_destroy(&l->lock);
    free(l);
}

/* ---- counting -------------------------------------------------------------------------------------------------- */

static enum status_class class_of(int status)
{
    if (status == STATUS_CLIENT_GONE) return CLASS_GONE;
    return status >= 100 && status < 500 ? (enum status_class)(status / 100 - 1) : CLASS_5XX;
}

/* Of requests that name no model: what the worker serves. */
static void name_of(struct workers *ws, uint64_t id, char name[MODEL_MAX])
{
    kvr_lock(&ws->lock);
    const struct worker *w = worker_find_locked(ws, id);
    snprintf(name, MODEL_MAX, "%s", w ? worker_model(ws, w) : "other");
    kvr_unlock(&ws->lock);
}

const char *labels_name(const struct roster_row *row, uint64_t worker_id, const char *model)
{
    return !model[0] || roster_knows(row, worker_id) ? model : "other";
}

/* `name`: room. */
static const char *label_of(struct workers *ws, const uint64_t *id, const char *model, char name[MODEL_MAX])
{
    if (id && model[0]) return model;
    if (id) name_of(ws, *id, name);
    if (!model[0]) return id ? name : "other";
    const struct roster_row *row = roster_hold(ws, model);
    bool known = row && row->knowers_n > 0;
    roster_let_go(row);
    return known ? model : "other";
}

/* NULL: out of memory. */
static struct series *series_of(struct series **list, const char *model)
{
    struct series **at = list;
    size_t n = 0;
    for (; *at; at = &(*at)->next, n++)
        if (strcmp((*at)->model, model) == 0) return *at;
    if (n >= SERIES_MAX && strcmp(model, "other") != 0) return series_of(list, "other");
    struct series *new = calloc(1, sizeof *new);
    if (!new) return NULL;
    snprintf(new->model, sizeof new->model, "%s", model);
    return *at = new;
}

/* Where the series of a worker begin; those of no worker when it is gone. */
static struct series **list_of(struct labels *l, const uint64_t *id)
{
    struct list *k = id ? list_find(l, *id) : NULL;
    return k ? &k->first : &l->none;
}

static struct series *find_locked(struct workers *ws, const uint64_t *id, const char *label)
{
    struct series *found = series_of(list_of(ws->labels, id), label);
    if (!found) atomic_fetch_add_explicit(&ws->counters.uncounted_total, 1, memory_order_relaxed);
    return found;
}

static void add_tokens(struct label_tokens *to, const struct label_tokens *more)
{
    to->predicted += more->predicted;
    to->actual += more->actual;
    to->prompt += more->prompt;
    to->computed += more->computed;
    to->input += more->input;
    to->output += more->output;
}

/* Adds to the series of a request; w NULL: no worker had it. A worker that was replaced meanwhile has its successor's. */
static void count(struct workers *ws, const struct worker *w, const char *model, const struct series *more)
{
    char name[MODEL_MAX];
    const uint64_t *id = w ? &w->id : NULL;
    const char *label = label_of(ws, id, model, name);
    kvr_lock(&ws->labels->lock);
    if (id && !list_find(ws->labels, *id)) { /* removed: counted as of no worker */
        kvr_unlock(&ws->labels->lock);
        count(ws, NULL, model, more);
        return;
    }
    struct series *k = find_locked(ws, id, label);
    for (int c = 0; c < CLASSES && k; c++) k->requests[c] += more->requests[c];
    if (k) add_tokens(&k->tokens, &more->tokens);
    kvr_unlock(&ws->labels->lock);
}

void labels_request(struct workers *ws, const struct worker *w, const char *model, int status)
{
    struct series one = {0};
    one.requests[class_of(status)] = 1;
    count(ws, w, model, &one);
}

void labels_tokens(struct workers *ws, const struct worker *w, const char *model, const struct label_tokens *more)
{
    count(ws, w, model, &(struct series){.tokens = *more});
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

static struct kvr_prom_pair worker_pair(const struct worker *w)
{
    return (struct kvr_prom_pair){"worker_id", w ? NULL : "none", w ? w->id : 0};
}

static void put_requests(struct kvr_prom_page *b, const struct series *list, const struct worker *w)
{
    for (; list; list = list->next)
        for (int c = 0; c < CLASSES; c++)
            if (list->requests[c])
                kvr_prom_put_u64(
                    b, KVR_PROM_PAIRS(KVR_PROM_TEXT("model", list->model), worker_pair(w), KVR_PROM_TEXT("status", class_names[c])),
                    list->requests[c]);
}

static void put_tokens(struct kvr_prom_page *b, const struct series *list, const struct worker *w, size_t at)
{
    for (; list; list = list->next) {
        uint64_t v = *(const uint64_t *)(const void *)((const char *)list + at);
        if (w || v) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("model", list->model), worker_pair(w)), v);
    }
}

/* at: 0, the requests. */
static void put_row(struct kvr_prom_page *b, const struct series *list, const struct worker *w, size_t at)
{
    if (at) put_tokens(b, list, w, at);
    else put_requests(b, list, w);
}

/* One worker's series at a time under the lock, which every request takes: they are SERIES_MAX at most. w NULL: those of no worker. */
static void put_list(struct labels *l, struct kvr_prom_page *b, const struct worker *w, size_t at)
{
    kvr_lock(&l->lock);
    const struct list *of = w ? list_find(l, w->id) : NULL;
    if (!w) put_row(b, l->none, NULL, at);
    else if (of) put_row(b, of->first, w, at);
    kvr_unlock(&l->lock);
}

void labels_metrics(struct workers *ws, struct kvr_prom_page *b)
{
    static const struct {
        const char *name, *help;
        size_t at; /* 0: requests */
    } rows[] = {
        {"requests_total", "Client requests, by the answer they got", 0},
        {"predicted_cached_tokens_total", "Prompt tokens predicted to be cached, of answers with usage",
         offsetof(struct series, tokens.predicted)},
        {"actual_cached_tokens_total", "Prompt tokens the engine reported as cached", offsetof(struct series, tokens.actual)},
        {"prompt_tokens_total", "Prompt tokens of answers whose usage told how much was cached", offsetof(struct series, tokens.prompt)},
        {"computed_blocks_total", "Whole blocks of prompts that were computed", offsetof(struct series, tokens.computed)},
        {"input_tokens_total", "Prompt tokens of answers: by usage, else as hashed", offsetof(struct series, tokens.input)},
        {"output_tokens_total", "Tokens of answers: by usage, else one for each stream event", offsetof(struct series, tokens.output)},
    };
    const struct roster_row *all = roster_hold(ws, "");
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        kvr_prom_family(b, "kvroute_", rows[i].name, "counter", rows[i].help);
        put_list(ws->labels, b, NULL, rows[i].at);
        for (size_t k = 0; all && k < all->servers_n; k++) put_list(ws->labels, b, all->servers[k].worker, rows[i].at);
    }
    roster_let_go(all);
    if (!all) b->out->failed = true;
}
