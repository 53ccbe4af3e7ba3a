/* SPDX-License-Identifier: Apache-2.0 */
/* data/choice/subset.h says what this is. */
#include "app/serve/data/choice/subset.h"

#include <stdlib.h>

#include "app/serve/data/request/carrier.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"

static bool is_allowed(const struct kvr_router_request *rq, uint64_t id)
{
    if (!rq->allowed) return true;
    for (size_t i = 0; i < rq->allowed_n; i++)
        if (rq->allowed[i] == id) return true;
    return false;
}

enum outcome subset_keep(struct request *r, const struct roster_row *row, struct kvr_router_request *rq, uint64_t **ids)
{
    const struct carrier *by = r->carrier;
    size_t n = 0;
    if (!by || !by->may_use) return OUTCOME_DONE;
    uint64_t *kept = malloc((row->servers_n + 1) * sizeof *kept);
    if (!kept) return request_refuse(r, 503, "out of memory");
    for (size_t i = 0; i < row->servers_n; i++)
        if (is_allowed(rq, row->servers[i].id) && by->may_use(r->carrier_ctx, &row->servers[i].worker->endpoint))
            kept[n++] = row->servers[i].id;
    free(*ids);
    *ids = kept;
    rq->allowed = kept;
    rq->allowed_n = n;
    return n ? OUTCOME_DONE : request_refuse(r, 503, "no worker is among the endpoints that the gateway allows");
}
