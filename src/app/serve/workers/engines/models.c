/* SPDX-License-Identifier: Apache-2.0 */
/* GET /v1/models: the union over workers of what they list and of model=. Of a model that several list the first worker's entry is shown.
 */
#include "app/serve/workers/engines/models.h"

#include <string.h>

#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"

static void put_text(struct kvr_buf *out, const char *key, const char *text)
{
    kvr_json_key(out, key);
    if (*text) kvr_json_str(out, text, strlen(text));
    else kvr_json_null(out);
}

static void write_entry(const struct model_entry *m, struct kvr_buf *out)
{
    kvr_json_printf(out, "{'id':%s,'object':'model','created':%ju,'owned_by':%s", m->id, m->created,
                    m->owned_by[0] ? m->owned_by : "kvroute");
    put_text(out, "root", m->root);
    put_text(out, "parent", m->parent);
    kvr_json_key(out, "max_model_len");
    if (m->max_model_len) kvr_json_u64(out, m->max_model_len);
    else kvr_json_null(out);
    kvr_json_close(out, '}');
}

static size_t add_models_locked(const struct workers *ws, const struct worker *w, struct model_entry *seen, size_t n)
{
    const char *named = w->model[0] ? w->model : ws->o->model;
    for (size_t i = 0; i < w->models_n + (named ? 1 : 0); i++) {
        const char *id = i < w->models_n ? w->models[i].id : named;
        bool known = false;
        for (size_t k = 0; k < n; k++) known |= strcmp(seen[k].id, id) == 0;
        if (known || n == MODELS_MAX) continue;
        if (i < w->models_n) seen[n] = w->models[i];
        else snprintf(seen[n].id, MODEL_MAX, "%s", id);
        n++;
    }
    return n;
}

/* All there are, copied: at most MODELS_MAX. Any thread: the roster holds the workers, and the lock is taken for one of them at a time.
 * NULL without memory. */
static struct model_entry *collect(struct workers *ws, size_t *count)
{
    struct model_entry *seen = calloc(MODELS_MAX, sizeof *seen);
    const struct roster_row *row = roster_hold(ws, "");
    *count = 0;
    for (size_t i = 0; row && seen && i < row->servers_n; i++) {
        if (row->servers[i].worker->role == ROLE_PREFILL) continue; /* its answers are for other workers */
        kvr_lock(&ws->lock);
        *count = add_models_locked(ws, row->servers[i].worker, seen, *count);
        kvr_unlock(&ws->lock);
    }
    if (!row) {
        free(seen);
        seen = NULL;
    }
    roster_let_go(row);
    return seen;
}

static const struct model_entry *find_entry(const struct model_entry *list, size_t n, const char *id)
{
    for (size_t k = 0; k < n; k++)
        if (strcmp(list[k].id, id) == 0) return &list[k];
    return NULL;
}

/* Its `parent` is that of what it stands for: a name with one of its own would be taken for an adapter.
 * false: workers list that name themselves, or nobody lists what it stands for. */
static bool alias_entry(const struct model_alias *a, const struct model_entry *list, size_t n, struct model_entry *out)
{
    const struct model_entry *of = find_entry(list, n, a->of);
    if (!of || find_entry(list, n, a->name)) return false;
    *out = *of;
    snprintf(out->id, sizeof out->id, "%s", a->name);
    snprintf(out->root, sizeof out->root, "%s", a->of);
    return true;
}

void models_write(struct workers *ws, struct kvr_buf *out, struct models_seen seen, const struct model_alias *aliases, size_t aliases_n)
{
    size_t n;
    struct model_entry *list = collect(ws, &n), entry;
    if (!list) out->failed = true;
    kvr_json_printf(out, "{'object':'list','data':[");
    for (size_t k = 0; k < n; k++)
        if (seen.shows(seen.ctx, list[k].id)) write_entry(&list[k], out);
    for (size_t i = 0; i < aliases_n; i++)
        if (seen.shows(seen.ctx, aliases[i].name) && alias_entry(&aliases[i], list, n, &entry)) write_entry(&entry, out);
    kvr_json_printf(out, "]}");
    free(list);
}

bool models_write_one(struct workers *ws, struct kvr_buf *out, const char *id, const struct model_alias *aliases, size_t aliases_n)
{
    size_t n;
    struct model_entry *list = collect(ws, &n), entry;
    const struct model_entry *found = list ? find_entry(list, n, id) : NULL;
    for (size_t i = 0; i < aliases_n && list && !found; i++)
        if (strcmp(aliases[i].name, id) == 0 && alias_entry(&aliases[i], list, n, &entry)) found = &entry;
    if (found) write_entry(found, out);
    free(list);
    return found != NULL;
}
