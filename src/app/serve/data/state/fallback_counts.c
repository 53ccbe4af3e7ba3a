/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/data/state/fallback_counts.h says what this is. */
#include "app/serve/data/state/fallback_counts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/prom_page.h"

static const char *const reasons[FALLBACK_REASONS] = {"unavailable", "overloaded"};

void fallback_counts_init(struct fallback_counts *c)
{
    kvr_lock_init(&c->lock, KVR_LOCK_FALLBACKS);
}

void fallback_counts_destroy(struct fallback_counts *c)
{
    free(c->list);
    kvr_lock_destroy(&c->lock);
}

/* NULL: it has no room of its own. */
static struct fallback_series *series_of(struct fallback_counts *c, const char *model, const char *fallback, enum fallback_reason reason)
{
    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].reason == reason && !strcmp(c->list[i].model, model) && !strcmp(c->list[i].fallback, fallback)) return &c->list[i];
    if (c->n == FALLBACK_SERIES_MAX) return NULL;
    struct fallback_series *grown = realloc(c->list, (c->n + 1) * sizeof *grown);
    if (!grown) return NULL;
    c->list = grown;
    struct fallback_series *s = &grown[c->n++];
    *s = (struct fallback_series){.reason = reason};
    snprintf(s->model, sizeof s->model, "%s", model);
    snprintf(s->fallback, sizeof s->fallback, "%s", fallback);
    return s;
}

void fallback_counts_add(struct fallback_counts *c, const char *model, const char *fallback, enum fallback_reason reason)
{
    kvr_lock(&c->lock);
    struct fallback_series *s = series_of(c, model, fallback, reason);
    ++*(s ? &s->n : &c->others[reason]);
    kvr_unlock(&c->lock);
}

static void put(struct kvr_prom_page *out, const char *model, const char *fallback, enum fallback_reason reason, uint64_t n)
{
    kvr_prom_put_u64(
        out, KVR_PROM_PAIRS(KVR_PROM_TEXT("model", model), KVR_PROM_TEXT("fallback", fallback), KVR_PROM_TEXT("reason", reasons[reason])),
        n);
}

void fallback_counts_metrics(struct fallback_counts *c, struct kvr_prom_page *out)
{
    kvr_prom_family(out, "kvroute_", "model_fallbacks_total", "counter", "Requests that went to a fallback of their model");
    kvr_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++) put(out, c->list[i].model, c->list[i].fallback, c->list[i].reason, c->list[i].n);
    for (int i = 0; i < FALLBACK_REASONS; i++)
        if (c->others[i]) put(out, "other", "other", (enum fallback_reason)i, c->others[i]);
    kvr_unlock(&c->lock);
}
