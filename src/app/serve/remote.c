/* SPDX-License-Identifier: Apache-2.0 */
/* --use-remote-indexer: where it is, one client of it for each loop, its metrics. What a request does with it is in proxy.c. */
#include <string.h>

#include "app/serve/state.h"

int remote_parse(struct serve *s, char *err, size_t cap)
{
    const char *url = s->o->use_remote_indexer;
    if (!url) return 0;
    if (strncmp(url, "nats://", 7) == 0) {
        char copy[160], *dot;
        snprintf(copy, sizeof copy, "%s", url + 7);
        struct kvr_plane_options o = s->o->plane;
        if (copy[0] && (dot = strchr(copy, '.'))) {
            *dot = 0;
            o.name_space = copy;
            o.component = dot + 1;
        }
        if ((!copy[0] || o.name_space == copy) && kvr_plane_scope(&o, s->remote_scope, err, cap) == 0) return 0;
    } else if (kvr_endpoint_parse(url, strlen(url), &s->remote_endpoint) == 0) {
        return 0;
    }
    snprintf(err, cap,
             "--use-remote-indexer: bad value '%.200s'; allowed: http://host:port (an admin port), nats:// or nats://namespace.component",
             url);
    return -1;
}

bool remote_needs_nats(const struct serve *s)
{
    return s->remote_scope[0] != 0;
}

int remote_open(struct serve *s, struct loop *l)
{
    struct kvr_remote_config c = {.loop = &l->uv,
                                  .client = l->client,
                                  .endpoint = s->remote_endpoint.port ? &s->remote_endpoint : NULL,
                                  .nats = s->remote_scope[0] ? s->nats : NULL,
                                  .scope = s->remote_scope,
                                  .predicted = !s->o->kv_events,
                                  .timeout_s = s->o->remote_timeout,
                                  .stats = &s->remote_stats};
    return s->o->use_remote_indexer ? kvr_remote_create(&c, &l->remote) : 0;
}

void remote_metrics(struct serve *s, struct kvr_buf *b)
{
    struct kvr_remote_stats *st = &s->remote_stats;
    if (!s->o->use_remote_indexer) return;
    const struct {
        const char *name, *type, *help;
        uint64_t v;
    } rows[] = {
        {"up", "gauge", "1 when every loop may ask the remote index", (size_t)atomic_load(&st->good) == s->loops_n},
        {"queries_total", "counter", "Overlap queries sent to the remote index", atomic_load(&st->queries)},
        {"query_failures_total", "counter", "Of these, without an answer; the requests counted as having no overlap",
         atomic_load(&st->query_failures)},
        {"short_circuits_total", "counter", "Requests that did not ask, because the remote index is known to be away",
         atomic_load(&st->short_circuits)},
        {"writes_total", "counter", "Routing decisions to be recorded by the remote index", atomic_load(&st->writes)},
        {"write_failures_total", "counter", "Of these, not recorded", atomic_load(&st->write_failures)},
        {"validations_total", "counter", "Times the remote index said what it is", atomic_load(&st->validations)},
        {"rejected_validations_total", "counter", "Of these, unfit: not ready, of another mode, or several owners",
         atomic_load(&st->rejected_validations)},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        kvr_buf_printf(b, "# HELP kvroute_remote_indexer_%s %s\n# TYPE kvroute_remote_indexer_%s %s\nkvroute_remote_indexer_%s %llu\n",
                       rows[i].name, rows[i].help, rows[i].name, rows[i].type, rows[i].name, (unsigned long long)rows[i].v);
}
