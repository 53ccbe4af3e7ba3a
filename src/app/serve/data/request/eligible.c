/* SPDX-License-Identifier: Apache-2.0 */
/* The worker table, as one request sees it: data/request/eligible.h. */
#include "app/serve/data/request/eligible.h"

#include "app/serve/config/api_keys.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"

const struct roster_row *eligible_workers(struct request *r)
{
    workers_sync_due(data_of(r)->workers);
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    if (row && row->is_lora) r->is_lora = true;
    return row;
}

struct partition *eligible_partition(struct request *r)
{
    const struct roster_row *row = eligible_workers(r);
    struct partition *partition = row ? row->main.partition : NULL;
    for (size_t p = 0; row && row->has_roles && p < KVR_KV_PROTOCOLS; p++)
        if (row->prefill[p].partition) partition = row->prefill[p].partition;
    roster_let_go(row);
    return partition;
}

struct worker *eligible_tokenizer(const struct request *r, bool *exists)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    const struct key_taints *t = r->admission.key ? r->admission.key->required_taints : NULL;
    struct worker *found = row ? roster_pick(data_of(r)->workers, row, t ? t->names : NULL, t ? t->n : 0) : NULL;
    *exists = !row || roster_workers_n(row) > 0;
    roster_let_go(row);
    return found;
}

bool eligible_truncates(const struct request *r, uint64_t *room)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    bool does = row && !row->has_sglang;
    *room = row ? row->room : 0;
    roster_let_go(row);
    return does;
}

bool eligible_has_sglang(const struct request *r)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    bool has = row && row->has_sglang;
    roster_let_go(row);
    return has;
}
