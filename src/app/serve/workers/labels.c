/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters by model, worker and status class.
 *
 *     worker --> series of one model --> series of another ...        serve --> series of requests that no worker had
 *
 * A worker's series are its own: they go when it is removed, and move along when it is replaced. A model has a series of its own
 * when a worker is known to serve it, up to SERIES_MAX for each worker; everything else is "other". So clients and engines can
 * add no more than that.
 *
 * All under serve.lock.
 */
#include "app/serve/state.h"

#include <string.h>

#include "wire/prom_page.h"

enum { SERIES_MAX = 64 };

enum status_class { CLASS_1XX, CLASS_2XX, CLASS_3XX, CLASS_4XX, CLASS_5XX, CLASS_GONE, CLASSES };

static const char *const class_names[CLASSES] = {"1xx", "2xx", "3xx", "4xx", "5xx", "client_gone"};

struct series {
    struct series *next;
    char model[MODEL_MAX];
    uint64_t requests[CLASSES], predicted, actual;
};

void labels_free(struct series *list)
{
    while (list) {
        struct series *next = list->next;
        free(list);
        list = next;
    }
}

static enum status_class class_of(int status)
{
    if (status == STATUS_CLIENT_GONE) return CLASS_GONE;
    return status >= 100 && status < 500 ? (enum status_class)(status / 100 - 1) : CLASS_5XX;
}

/* Configured, or in the engine's list: not what a client says. */
static bool knows(const struct serve *s, const struct worker *w, const char *model)
{
    for (size_t i = 0; i < w->models_n; i++)
        if (strcmp(w->models[i].id, model) == 0) return true;
    return strcmp(w->model, model) == 0 || (s->o->model && strcmp(s->o->model, model) == 0);
}

static const char *label_of(const struct serve *s, const struct worker *w, const char *model)
{
    if (w && !model[0]) return worker_model(s, w);
    for (const struct worker *k = w ? w : s->workers; model[0] && k; k = w ? NULL : k->next)
        if (knows(s, k, model)) return model;
    return "other";
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

static struct series *find(struct serve *s, struct worker *w, const char *model)
{
    if (w && w->removed) w = worker_find_locked(s, w->id); /* replaced meanwhile, or gone */
    struct series *found = series_of(w ? &w->series : &s->series, label_of(s, w, model));
    if (!found) atomic_fetch_add_explicit(&s->metrics.uncounted_total, 1, memory_order_relaxed);
    return found;
}

void labels_request_locked(struct serve *s, struct worker *w, const char *model, int status)
{
    struct series *k = find(s, w, model);
    if (k) k->requests[class_of(status)]++;
}

void labels_cached_locked(struct serve *s, struct worker *w, const char *model, uint64_t predicted, uint64_t actual)
{
    struct series *k = find(s, w, model);
    if (!k) return;
    k->predicted += predicted;
    k->actual += actual;
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

void labels_metrics(struct serve *s, struct kvr_prom_page *b)
{
    static const struct {
        const char *name, *help;
        size_t at; /* 0: requests */
    } rows[] = {
        {"requests_total", "Client requests, by the answer they got", 0},
        {"predicted_cached_tokens_total", "Prompt tokens predicted to be cached, of answers with usage",
         offsetof(struct series, predicted)},
        {"actual_cached_tokens_total", "Prompt tokens the engine reported as cached", offsetof(struct series, actual)},
    };
    kvr_lock(&s->lock);
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        kvr_prom_family(b, "kvroute_", rows[i].name, "counter", rows[i].help);
        put_row(b, s->series, NULL, rows[i].at);
        for (const struct worker *w = s->workers; w; w = w->next) put_row(b, w->series, w, rows[i].at);
    }
    kvr_unlock(&s->lock);
}
