/* SPDX-License-Identifier: Apache-2.0 */
/* States of models with prefill workers: data/state/disagg_state.h. */
#include "app/serve/data/state/disagg_state.h"

#include <string.h>

#include "app/serve/data/state/room.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "wire/prom_page.h"

enum state { STATE_PENDING, STATE_ACTIVE, STATE_UNAVAILABLE };

struct model_state {
    char model[MODEL_MAX];
    enum state state;
    bool seen; /* by the look that goes on */
};

struct disagg_states {
    struct model_state *models;
    size_t n, cap;
    size_t next; /* where the next row's model is, if rows come as they did */
};

struct disagg_states *disagg_states_create(void)
{
    return calloc(1, sizeof(struct disagg_states));
}

void disagg_states_destroy(struct disagg_states *d)
{
    if (d) free(d->models);
    free(d);
}

static struct model_state *find(struct disagg_states *d, const char *model)
{
    for (size_t i = 0; i < d->n; i++) {
        size_t at = (d->next + i) % d->n;
        if (strcmp(d->models[at].model, model)) continue;
        d->next = at + 1;
        return &d->models[at];
    }
    return NULL;
}

/* NULL: no memory, or there are too many. */
static struct model_state *add(struct disagg_states *d, const char *model)
{
    if (d->n == ROSTER_ROWS_MAX) return NULL;
    if (d->n == d->cap) {
        size_t cap = KVR_MAX(d->cap * 2, (size_t)4);
        struct model_state *more = realloc(d->models, cap * sizeof *more);
        if (!more) return NULL;
        d->models = more;
        d->cap = cap;
    }
    struct model_state *m = &d->models[d->n++];
    *m = (struct model_state){.state = STATE_PENDING};
    snprintf(m->model, sizeof m->model, "%s", model);
    return m;
}

static bool any_prefill_up(const struct roster_row *row)
{
    for (size_t p = 0; p < KVR_KV_PROTOCOLS; p++)
        if (roster_any_up(row, &row->prefill[p])) return true;
    return false;
}

static void tell(const struct model_state *m)
{
    if (m->state == STATE_ACTIVE) kvr_log("kvroute: model %.127s: prefill workers are up; requests may have two legs", m->model);
    else kvr_log_warning("kvroute: model %.127s: no prefill worker is up any more", m->model);
}

static void look(void *ctx, const struct roster_row *row)
{
    struct disagg_states *d = ctx;
    struct model_state *m = find(d, row->model);
    if (!m && row->has_roles) m = add(d, row->model);
    if (!m) return;
    m->seen = true;
    enum state now = any_prefill_up(row) ? STATE_ACTIVE : m->state == STATE_PENDING ? STATE_PENDING : STATE_UNAVAILABLE;
    if (now == m->state) return;
    m->state = now;
    tell(m);
}

/* Models that nobody serves any more have none. */
static void drop_unseen(struct disagg_states *d)
{
    size_t n = 0;
    for (size_t i = 0; i < d->n; i++) {
        if (!d->models[i].seen) continue;
        d->models[n] = d->models[i];
        d->models[n++].seen = false;
    }
    d->n = n;
    d->next = 0;
}

void disagg_states_look(struct data_plane *data)
{
    if (!workers_have_roles(data->workers)) return;
    roster_each_model(data->workers, look, data->disagg_states);
    drop_unseen(data->disagg_states);
}

void disagg_states_metrics(struct data_plane *data, struct kvr_prom_page *b)
{
    const struct disagg_states *d = data->disagg_states;
    disagg_states_look(data);
    kvr_prom_family(b, "kvroute_", "disagg_state", "gauge", "Prefill workers of a model: 0 none yet, 1 some up, 2 none up");
    for (size_t i = 0; i < d->n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("model", d->models[i].model)), d->models[i].state);
}
