/* SPDX-License-Identifier: Apache-2.0 */
/* data/choice/subset.h says what this is. */
#include "app/serve/data/choice/subset.h"

#include <stdlib.h>

#include "app/serve/data/request/carrier.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"

enum { PARTITIONS_LOOKED_AT = 16 /* of a model, and of workers that a gateway may use */ };

static bool may_use(const struct request *r, const struct roster_server *s)
{
    return r->carrier->may_use(r->carrier_ctx, s->worker);
}

struct partition *subset_partition(const struct request *r, const struct roster_row *row, const struct roster_choice *from)
{
    struct {
        struct partition *partition;
        size_t n;
    } seen[PARTITIONS_LOOKED_AT] = {0};
    size_t most = 0;
    if (!r->carrier || !r->carrier->may_use || !from->partition || row->has_roles) return from->partition; /* roles are apart by protocol */
    for (size_t i = 0; i < row->servers_n; i++) {
        size_t k = 0;
        if (!may_use(r, &row->servers[i])) continue;
        while (k < PARTITIONS_LOOKED_AT && seen[k].n && seen[k].partition != row->servers[i].partition) k++;
        if (k == PARTITIONS_LOOKED_AT) continue;
        seen[k].partition = row->servers[i].partition;
        if (++seen[k].n > seen[most].n) most = k;
    }
    return seen[most].n ? seen[most].partition : from->partition;
}

static bool is_allowed(const struct kvr_router_request *rq, uint64_t id)
{
    if (!rq->allowed) return true;
    for (size_t i = 0; i < rq->allowed_n; i++)
        if (rq->allowed[i] == id) return true;
    return false;
}

enum outcome subset_keep(struct request *r, const struct roster_row *row, const struct partition *partition, struct kvr_router_request *rq,
                         uint64_t **ids)
{
    size_t n = 0;
    if (!r->carrier || !r->carrier->may_use) return OUTCOME_DONE;
    uint64_t *kept = malloc((row->servers_n + 1) * sizeof *kept);
    if (!kept) return request_refuse(r, 503, "out of memory");
    bool other = partition != row->main.partition && !row->has_roles; /* what is allowed is of the main one */
    for (size_t i = 0; i < row->servers_n; i++) {
        const struct roster_server *s = &row->servers[i];
        if (s->partition == partition && (other || is_allowed(rq, s->id)) && may_use(r, s)) kept[n++] = s->id;
    }
    free(*ids);
    *ids = kept;
    rq->allowed = kept;
    rq->allowed_n = n;
    return n ? OUTCOME_DONE : request_refuse(r, r->carrier->nobody, "no worker is among those that the gateway allows");
}
