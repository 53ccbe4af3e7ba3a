/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the room of other routers: peers.h. Main loop. */
#include "app/serve/peers/room.h"

#include "app/serve/peers/index_server.h"
#include "app/serve/peers/replicas.h"
#include "app/serve/peers/shards.h"
#include "net/http/access.h"
#include "wire/prom_page.h"

struct peers *peers_create(struct process *process, struct workers *workers, const struct peers_hooks *hooks)
{
    struct peers *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    *p = (struct peers){.o = process->o, .process = process, .workers = workers, .hooks = *hooks};
    kvr_histogram_init(&p->remote_counters.query_ms, 0.02, 1.5, 22);
    return p;
}

int peers_start(struct peers *p, char *err, size_t cap)
{
    if (index_server_start(p, err, cap) || replicas_start(p, err, cap)) return -1;
    if (shards_start(p) == 0) return 0;
    return kvr_refuse(err, cap, "out of memory");
}

void peers_tick(struct peers *p)
{
    index_server_tick(p);
    shards_tick(p);
}

void peers_metrics(struct peers *p, struct kvr_prom_page *out)
{
    replicas_metrics(p, out);
    index_server_metrics(p, out);
    remote_metrics(p, out);
    shards_metrics(p, out);
}

void peers_stop(struct peers *p)
{
    shards_stop(p);
    index_server_stop(p);
}

void peers_destroy(struct peers *p)
{
    if (!p) return;
    kvr_keys_free(p->remote_keys);
    free(p);
}
