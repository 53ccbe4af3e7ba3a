/* SPDX-License-Identifier: Apache-2.0 */
/* Where computed prompts move: data/choice/domains.h. */
#include "app/serve/data/choice/domains.h"

#include <string.h>

#include "app/serve/data/request/request.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"

static bool limits(const struct data_plane *data)
{
    return data->o->kv_transfer_domain == DOMAIN_REQUIRED;
}

bool domains_meet(const struct data_plane *data, const struct worker *prefill, const struct worker *decode)
{
    return !limits(data) || !prefill->kv_domain[0] || strcmp(prefill->kv_domain, decode->kv_domain) == 0;
}

static bool may_be(const struct pin *pin, const struct worker *w)
{
    return !pin->set || pin->to.worker_id == w->id;
}

static bool has_partner(const struct request *r, const struct roster_row *row, enum kvr_kv_protocol p, const struct worker *prefill)
{
    struct roster_walk walk = {0};
    const struct worker *d;
    while ((d = roster_next_up(row, &row->decode[p], &walk)))
        if (may_be(&r->pin, d) && domains_meet(data_of(r), prefill, d)) return true;
    return false;
}

bool domains_any_pair(const struct request *r, const struct roster_row *row, enum kvr_kv_protocol p)
{
    struct roster_walk walk = {0};
    const struct worker *w;
    while ((w = roster_next_up(row, &row->prefill[p], &walk)))
        if (may_be(&r->prefill_pin, w) && has_partner(r, row, p, w)) return true;
    return false;
}

bool domains_prefill_ids(const struct request *r, const struct roster_row *row, enum kvr_kv_protocol p, uint64_t **ids, size_t *n)
{
    struct roster_walk walk = {0};
    const struct worker *w;
    *ids = NULL;
    *n = 0;
    if (!limits(data_of(r))) return true;
    if (!(*ids = malloc((row->prefill[p].n + 1) * sizeof **ids))) return false;
    while ((w = roster_next_up(row, &row->prefill[p], &walk)))
        if (has_partner(r, row, p, w)) (*ids)[(*n)++] = w->id;
    return true;
}

void domains_ask(const struct data_plane *data, const struct worker *prefill, struct domain_wish *wish, struct kvr_router_request *rq)
{
    if (data->o->kv_transfer_domain == DOMAIN_OFF || !prefill->kv_domain[0]) return;
    snprintf(wish->taint, sizeof wish->taint, KV_DOMAIN_TAINT "%s", prefill->kv_domain);
    if (limits(data)) {
        for (size_t i = 0; i < rq->required_n; i++) wish->required[i] = rq->required_taints[i];
        wish->required[rq->required_n++] = wish->taint;
        rq->required_taints = wish->required;
    } else {
        wish->preferred = (struct kvr_preferred_taint){wish->taint, data->o->kv_transfer_weight};
        rq->preferred_taints = &wish->preferred;
        rq->preferred_n = 1;
    }
}
