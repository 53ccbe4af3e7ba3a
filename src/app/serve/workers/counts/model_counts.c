/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times and counts by model.
 *
 *     table --> model --> model --> ... at most MODEL_COUNTS_MAX          other: what is in no list, or has no memory
 *
 * A name gets an entry when a worker is known to serve it, as with the labels of labels.c: clients and engines add no more than the limit.
 * Entries are only ever added, at the list's head, and freed with the process, so a request may keep a pointer to its own, and whoever has
 * read the head may walk from there. An entry is complete before it is made the head, so nobody needs the lock but those who add.
 */
#include "app/serve/workers/counts/model_counts.h"

#include <stdlib.h>
#include <string.h>

#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "wire/prom_page.h"

struct model_table {
    struct kvr_lock lock; /* a leaf: the roster is asked before */
    _Atomic(struct model_counts *) first;
    _Atomic size_t n;
    struct model_counts other;
};

static void init(struct model_counts *m, const char *model)
{
    snprintf(m->model, sizeof m->model, "%s", model);
#define INIT(field, name, start, factor, n, help) kvr_histogram_init(&m->field, start, factor, n);
    MODEL_TIMES(INIT)
#undef INIT
    for (int i = 0; i < MADE_BY_N; i++) kvr_histogram_init(&m->tokenize[i], 0.00002, 2, 18);
}

struct model_table *model_counts_create(void)
{
    struct model_table *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    kvr_lock_init(&t->lock, KVR_LOCK_MODEL_COUNTS);
    init(&t->other, "other");
    return t;
}

void model_counts_destroy(struct model_table *t)
{
    if (!t) return;
    for (struct model_counts *m = atomic_load(&t->first), *next; m; m = next) {
        next = m->next;
        free(m);
    }
    kvr_lock_destroy(&t->lock);
    free(t);
}

static struct model_counts *first_of(struct model_table *t, bool *full)
{
    struct model_counts *first = atomic_load(&t->first);
    *full = atomic_load(&t->n) >= MODEL_COUNTS_MAX;
    return first;
}

static struct model_counts *find(struct model_counts *list, const char *model)
{
    while (list && strcmp(list->model, model) != 0) list = list->next;
    return list;
}

/* Somebody else may have added it, or the last that there is room for, meanwhile. NULL: no room, or no memory. */
static struct model_counts *add(struct model_table *t, const char *model)
{
    struct model_counts *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    init(made, model);
    kvr_lock(&t->lock);
    struct model_counts *found = find(t->first, model);
    if (!found && t->n < MODEL_COUNTS_MAX) {
        made->next = t->first;
        t->first = found = made;
        t->n++;
        made = NULL;
    }
    kvr_unlock(&t->lock);
    free(made);
    return found;
}

static bool is_known(struct workers *ws, const char *model)
{
    const struct roster_row *row = roster_hold(ws, model);
    bool known = row && row->knowers_n > 0;
    roster_let_go(row);
    return known;
}

struct model_counts *model_counts_of(struct workers *ws, const char *model)
{
    struct model_table *t = ws->model_counts;
    bool full;
    struct model_counts *found = find(first_of(t, &full), model);
    if (found) return found;
    if (!model[0] || strcmp(model, "other") == 0 || !is_known(ws, model)) return &t->other;
    if (!full && (found = add(t, model))) return found;
    atomic_fetch_add_explicit(&ws->counters.model_names_left_out_total, 1, memory_order_relaxed);
    return &t->other;
}

/* From then on every model that a worker says it serves has its series, also without a request. */
static void foresee(struct workers *ws)
{
    char name[MODEL_MAX], before[MODEL_MAX] = "";
    bool full;
    for (const struct worker *w = ws->workers; w; w = w->next) {
        kvr_lock(&ws->lock);
        bool named = w->model[0] || ws->o->model || w->models_n;
        snprintf(name, sizeof name, "%s", worker_model(ws, w));
        kvr_unlock(&ws->lock);
        if (!named || strcmp(name, before) == 0 || strcmp(name, "other") == 0) continue;
        memcpy(before, name, sizeof before);
        if (!find(first_of(ws->model_counts, &full), name) && !full) (void)add(ws->model_counts, name);
    }
}

void model_counts_each(struct workers *ws, void (*fn)(void *ctx, const struct model_counts *m), void *ctx)
{
    bool full;
    fn(ctx, &ws->model_counts->other);
    for (const struct model_counts *m = first_of(ws->model_counts, &full); m; m = m->next) fn(ctx, m);
}

/* ---- writing ------------------------------------------------------------------------------------------------ */

struct row {
    struct kvr_prom_page *page;
    size_t at; /* of the figure, in the entry */
};

#define MODEL_OF(m) KVR_PROM_TEXT("model", (m)->model)

static void put_time(void *ctx, const struct model_counts *m)
{
    const struct row *r = ctx;
    kvr_prom_put_histogram(r->page, KVR_PROM_PAIRS(MODEL_OF(m)), (const struct kvr_histogram *)(const void *)((const char *)m + r->at));
}

static void put_running(void *ctx, const struct model_counts *m)
{
    const struct row *r = ctx;
    int64_t v = atomic_load_explicit((const _Atomic int64_t *)(const void *)((const char *)m + r->at), memory_order_relaxed);
    kvr_prom_put_u64(r->page, KVR_PROM_PAIRS(MODEL_OF(m)), v > 0 ? (uint64_t)v : 0); /* two that change at once may be seen apart */
}

static void put_tokenize(void *ctx, const struct model_counts *m)
{
    static const char *const by[MADE_BY_N] = {"router", "engine"};
    for (int i = 0; i < MADE_BY_N; i++)
        kvr_prom_put_histogram(ctx, KVR_PROM_PAIRS(MODEL_OF(m), KVR_PROM_TEXT("by", by[i])), &m->tokenize[i]);
}

const char *request_end_name(int end)
{
    static const char *const names[ENDS_N] = {
#define END_NAME(name, text) text,
        KVR_FINISHES(END_NAME) REQUEST_ENDS(END_NAME)
#undef END_NAME
    };
    return names[end];
}

static void put_ends(void *ctx, const struct model_counts *m)
{
    for (int i = 0; i < ENDS_N; i++)
        kvr_prom_put_u64(ctx, KVR_PROM_PAIRS(MODEL_OF(m), KVR_PROM_TEXT("reason", request_end_name(i))),
                         atomic_load_explicit(&m->ends[i], memory_order_relaxed));
}

static void put_slo(void *ctx, const struct model_counts *m)
{
    kvr_prom_put_u64(ctx, KVR_PROM_PAIRS(MODEL_OF(m), KVR_PROM_TEXT("outcome", "kept")),
                     atomic_load_explicit(&m->slo_kept, memory_order_relaxed));
    kvr_prom_put_u64(ctx, KVR_PROM_PAIRS(MODEL_OF(m), KVR_PROM_TEXT("outcome", "missed")),
                     atomic_load_explicit(&m->slo_missed, memory_order_relaxed));
}

void model_counts_metrics(struct workers *ws, struct kvr_prom_page *b)
{
    foresee(ws);
#define PUT(field, name, start, factor, n, help)                                                                                           \
    kvr_prom_family(b, "kvroute_", name, "histogram", help);                                                                               \
    model_counts_each(ws, put_time, &(struct row){b, offsetof(struct model_counts, field)});
    MODEL_TIMES(PUT)
#undef PUT
    kvr_prom_family(b, "kvroute_", "tokenize_seconds", "histogram", "Time to make a prompt's tokens, by who makes them; without the cache");
    model_counts_each(ws, put_tokenize, b);
    kvr_prom_family(b, "kvroute_", "requests_running", "gauge", "Requests that a worker computes or answers");
    model_counts_each(ws, put_running, &(struct row){b, offsetof(struct model_counts, running)});
    kvr_prom_family(b, "kvroute_", "requests_waiting", "gauge", "Requests that wait for tokens or in the queue");
    model_counts_each(ws, put_running, &(struct row){b, offsetof(struct model_counts, waiting)});
    kvr_prom_family(b, "kvroute_", "request_ends_total", "counter",
                    "Requests by how they ended: finish_reason of whole answers (untold: none), a worker's error, broken off, workers "
                    "failed before a byte, refused here, client left");
    model_counts_each(ws, put_ends, b);
    kvr_prom_family(b, "kvroute_", "slo_ttft_total", "counter", "Streams with x-slo-ttft-ms, by whether the first event came within it");
    model_counts_each(ws, put_slo, b);
}
