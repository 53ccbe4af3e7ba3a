/* SPDX-License-Identifier: Apache-2.0 */
/* data/picker/endpoints.h says what this is. */
#include "app/serve/data/picker/endpoints.h"

#include <string.h>

#include "app/serve/data/answer/account.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/workers.h"

static void add(struct kvr_buf *out, const struct worker *w)
{
    if (!w->endpoint.is_numeric) return;
    if (out->len) kvr_buf_str(out, ",");
    kvr_buf_str(out, w->endpoint.authority);
}

bool endpoints_list(const struct attempt *a, struct kvr_buf *out)
{
    const struct data_plane *data = data_of(a->request);
    uint64_t left = data->o->ext_proc_fallbacks, last = a->result.worker.worker_id;
    add(out, a->worker);
    if (!out->len) return false;
    workers_lock(data->workers);
    for (uint32_t i = 0; a->table && i < a->table->n && left; i++) {
        uint64_t id = a->table->rows[i].worker.worker_id; /* ranks of a worker have one address */
        const struct worker *w = id == a->result.worker.worker_id || id == last ? NULL : worker_find_locked(data->workers, id);
        if (!w) continue;
        add(out, w);
        last = id;
        left--;
    }
    workers_unlock(data->workers);
    return true;
}

static bool is_at(const struct worker *w, struct kvr_ext_proc_text from)
{
    return kvr_span_is(from.ptr, from.len, w->endpoint.authority);
}

bool endpoints_served(struct attempt *a, struct kvr_ext_proc_text from)
{
    const struct kvr_worker *to = NULL;
    struct kvr_worker found;
    if (is_at(a->worker, from)) return true;
    const struct roster_row *row = roster_hold(data_of(a->request)->workers, a->request->model);
    for (size_t i = 0; row && i < row->servers_n && !to; i++) {
        const struct roster_server *s = &row->servers[i];
        if (s->partition != a->partition || !is_at(s->worker, from)) continue;
        found = (struct kvr_worker){s->id, s->worker->dp_start};
        to = &found;
    }
    roster_let_go(row);
    account_moved(a, to);
    return false;
}
