/* SPDX-License-Identifier: Apache-2.0 */
/* /metrics: each room writes its own. Counters and histograms are atomics that any thread may touch; gauges are read at the scrape. */
#include "app/serve/admin/room.h"

#include <stdlib.h>

#include "app/serve/common/page.h"
#include "app/serve/config/config.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/peers/peers.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/table/role.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "net/http/access.h"
#include "net/http/process_metrics.h"

/* Of a worker that has gone meanwhile: that of any other. */
static const char *role_of(struct admin *admin, uint64_t id)
{
    workers_lock(admin->workers);
    const struct worker *w = worker_find_locked(admin->workers, id);
    enum worker_role role = w ? w->role : ROLE_BOTH;
    workers_unlock(admin->workers);
    return role_name(role);
}

static void put_loads(struct admin *admin, struct kvr_prom_page *b)
{
    size_t n;
    struct kvr_rank_load *l = admin_all_loads(admin, b->out, &n);
    const char **roles = malloc((n + 1) * sizeof *roles);
    if (!roles) b->out->failed = true;
    for (size_t i = 0; roles && i < n; i++) roles[i] = role_of(admin, l[i].worker.worker_id);
    if (!roles) n = 0;
#define PUT(name, field, help)                                                                                                             \
    put_family(b, name, "gauge", help);                                                                                                    \
    for (size_t i = 0; i < n; i++)                                                                                                         \
        kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_RANK(l[i].worker.worker_id, l[i].worker.dp_rank), KVR_PROM_TEXT("role", roles[i])),    \
                         l[i].field);
    PUT("worker_active_prefill_tokens", active_prefill_tokens, "Prompt tokens still to be computed")
    PUT("worker_active_decode_blocks", active_decode_blocks, "KV blocks in use by running requests")
    PUT("worker_active_requests", active_requests, "Running requests")
#undef PUT
    free(roles);
    free(l);
}

void metrics_write(struct admin *admin, struct kvr_buf *out)
{
    struct kvr_prom_page page = {.out = out}, *b = &page;
    kvr_process_metrics(serve_command(admin->o), b);
    put_gauge(b, "draining", "1 while the process ends", process_is_ending(admin->process));
    data_plane_metrics(admin->data, b);
    workers_metrics(admin->workers, b);
    put_loads(admin, b);
    if (!admin->o->select_only) {
        compat_metrics(admin, b);
        tokenizers_metrics(admin->tokenizers, b);
    }
    config_metrics(admin->config, b);
    peers_metrics(admin->peers, b);
    discovery_metrics(admin->discovery, b);
    kvr_http_shared_metrics((struct kvr_http_port[]){{"admin", &admin->http}, {"data", data_plane_http(admin->data)}},
                            admin->o->select_only ? 1 : 2, b);
    kvr_access_metrics(admin->access, b);
    put_gauge(b, "status_listeners", "Who is sent /status/stream", (double)admin->listeners.n);
    kvr_prom_one_u64(b, "kvroute_", "status_listeners_dropped_total", "counter", "Listeners cut off: they took nothing",
                     admin->listeners.dropped);
}
