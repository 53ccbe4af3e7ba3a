/* SPDX-License-Identifier: Apache-2.0 */
/* --use-remote-indexer: where it is, one client of it for each loop, its metrics. A request's questions: data/prompt/remote_lookup.c. */
#include "app/serve/peers/room.h"

#include <string.h>

#include "app/serve/workers/table/partition.h"
#include "app/serve/workers/workers.h"
#include "net/http/access.h"
#include "wire/prom_page.h"

static int parse_nats(struct peers *peers, const char *scope, char *err, size_t cap)
{
    char copy[160], *dot;
    struct kvr_plane_options o = peers->o->plane;
    snprintf(copy, sizeof copy, "%s", scope);
    if (copy[0]) {
        dot = strchr(copy, '.');
        if (!dot) return -1;
        *dot = 0;
        o.name_space = copy;
        o.component = dot + 1;
    }
    return kvr_plane_scope(&o, peers->remote_scope, err, cap);
}

static bool parse_list(struct peers *peers, const char *urls)
{
    char copy[8192], *rest = copy, *one;
    if (strlen(urls) >= sizeof copy) return false;
    snprintf(copy, sizeof copy, "%s", urls);
    while ((one = strsep(&rest, ", "))) {
        if (!*one) continue;
        if (peers->remote_n == REMOTES_MAX || kvr_endpoint_parse_any(one, strlen(one), &peers->remote[peers->remote_n])) return false;
        peers->remote_n++;
    }
    return peers->remote_n > 0;
}

int remote_parse(struct peers *peers, char *err, size_t cap)
{
    const char *url = peers->o->use_remote_indexer;
    char why[320];
    if (!url) return 0;
    if (peers->o->remote_key_file && !(peers->remote_keys = kvr_keys_read(peers->o->remote_key_file, why, sizeof why)))
        return kvr_refuse(err, cap, "--remote-indexer-key-file: %s", why);
    if (strncmp(url, "nats://", 7) == 0 ? parse_nats(peers, url + 7, err, cap) == 0 : parse_list(peers, url)) return 0;
    return kvr_refuse(
        err, cap,
        "--use-remote-indexer: bad value '%.200s'; allowed: http:// or https://host:port (an admin port, or a proxy before it), up to "
        "16 of them (indexers), nats:// or "
        "nats://namespace.component",
        url);
}

bool remote_needs_nats(const struct peers *peers)
{
    return peers->remote_scope[0] != 0;
}

/* The workers' block sizes have to be those of the index. Asks of any thread. */
static size_t block_sizes(void *ctx, struct kvr_remote_model *out, size_t cap)
{
    struct peers *peers = ctx;
    size_t n = 0;
    workers_lock(peers->workers);
    for (const struct partition *p = partitions_first(peers->workers); p && n < cap; p = p->next) {
        snprintf(out[n].name, sizeof out[n].name, "%s", p->model);
        out[n++].block_size = p->block_size;
    }
    workers_unlock(peers->workers);
    return n;
}

int remote_open(struct peers *peers, uv_loop_t *loop, struct kvr_http_client *client, struct kvr_remote_index **out, size_t *out_n)
{
    size_t n = peers->remote_scope[0] ? 1 : peers->remote_n;
    for (size_t i = 0; i < n; i++) {
        struct kvr_remote_config c = {.loop = loop,
                                      .client = client,
                                      .endpoint = peers->remote_scope[0] ? NULL : &peers->remote[i],
                                      .key = peers->remote_keys ? peers->remote_keys[0] : NULL,
                                      .nats = peers->remote_scope[0] ? peers->process->nats : NULL,
                                      .scope = peers->remote_scope,
                                      .predicted = !peers->o->kv_events,
                                      .block_sizes = n == 1 ? block_sizes : NULL, /* of several each knows our names with their size */
                                      .ctx = peers,
                                      .timeout_s = peers->o->remote_timeout,
                                      .stats = &peers->remote_stats};
        int rc = kvr_remote_create(&c, &out[i]);
        if (rc) return rc;
        ++*out_n;
        atomic_fetch_add(&peers->remote_opened, 1);
    }
    return 0;
}

void remote_close(struct kvr_remote_index **clients, size_t *n)
{
    while (*n) kvr_remote_close(clients[--*n]);
}

struct remote_counters *remote_counters(struct peers *peers)
{
    return &peers->remote_counters;
}

static bool all_good(struct peers *peers)
{
    return atomic_load(&peers->remote_opened) && atomic_load(&peers->remote_stats.good) == atomic_load(&peers->remote_opened);
}

bool remote_settled(struct peers *peers)
{
    if (!peers->o->use_remote_indexer || atomic_load(&peers->remote_seen)) return true;
    if (!all_good(peers) && kvr_now_ms() - peers->process->started_ms < (uint64_t)(peers->o->restore_timeout * 1000)) return false;
    atomic_store(&peers->remote_seen, true);
    return true;
}

bool remote_model(const struct peers *peers, uint32_t block_size, char *out, size_t cap)
{
    if (peers->remote_n <= 1) return false;
    snprintf(out, cap, "%s@%u", peers->o->model ? peers->o->model : "default", block_size);
    return true;
}

void remote_metrics(struct peers *peers, struct kvr_prom_page *b)
{
    struct kvr_remote_stats *st = &peers->remote_stats;
    bool any = peers->o->use_remote_indexer != NULL;
    const struct kvr_prom_row rows[] = {
        {"up", "gauge", "1 when every loop may ask the remote index", any && all_good(peers)},
        {"queries_total", "counter", "Overlap queries sent to the remote index", atomic_load(&st->queries)},
        {"query_failures_total", "counter", "Queries without an answer: no overlap counted", atomic_load(&st->query_failures)},
        {"partial_total", "counter", "Requests for which some of several indexers did not answer",
         atomic_load(&peers->remote_counters.partial)},
        {"short_circuits_total", "counter", "Requests that did not ask: the remote index is known to be away",
         atomic_load(&st->short_circuits)},
        {"writes_total", "counter", "Routing decisions to be recorded by the remote index", atomic_load(&st->writes)},
        {"write_failures_total", "counter", "Routing decisions not recorded", atomic_load(&st->write_failures)},
        {"validations_total", "counter", "Times the remote index said what it is", atomic_load(&st->validations)},
        {"rejected_validations_total", "counter", "Remote indexes refused: not ready, another mode, several owners",
         atomic_load(&st->rejected_validations)},
    };
    kvr_prom_rows(b, any, "kvroute_remote_indexer_", rows, KVR_ARRAY_LEN(rows));
    kvr_prom_family(b, "kvroute_", "router_overhead_remote_index_ms", "histogram", "From asking the remote index to its answer");
    kvr_prom_put_histogram(b, KVR_PROM_NONE, &peers->remote_counters.query_ms);
}
