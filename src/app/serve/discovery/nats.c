/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers, and other routers, from a registry in NATS: bucket kvroute-registry, keys
 *
 *     worker.{scope}.{id}          a worker object as POST /workers takes it; written by `kvroute publish --announce`
 *     router.{scope}.{instance}    {"admin": url, "replica_sync": endpoint}: each router that uses this; with a replica-sync-port they
 *                                  follow each other
 */
#include <string.h>
#include <unistd.h>

#include "app/serve/discovery/discovery.h"
#include "net/nats/registry.h"
#include "net/replication/sync.h"

static struct {
    struct kvr_registry *registry;
    char own[KVR_REGISTRY_KEY_MAX];
    struct kvr_json_parser *json; /* the registry's thread */
    bool settled;
    struct peer {
        struct peer *next;
        char key[KVR_REGISTRY_KEY_MAX], endpoint[128];
    } * peers;
} reg;

static struct peer **peer_place(const char *key)
{
    struct peer **at = &reg.peers;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static void drop_peer(struct serve *s, const char *key)
{
    struct peer **at = peer_place(key), *p = *at;
    if (!p) return;
    *at = p->next;
    if (s->sync) (void)kvr_sync_remove_peer(s->sync, p->endpoint);
    free(p);
}

static void take_router(struct serve *s, const char *key, const char *value, size_t len)
{
    struct kvr_json o;
    const char *text;
    size_t n;
    if (strcmp(key, reg.own) == 0 || !s->sync || kvr_json_parse(reg.json, value, len, &o, NULL)) return;
    if (!kvr_json_as_str(kvr_json_get(o, "replica_sync"), &text, &n) || n == 0 || n >= sizeof reg.peers->endpoint) return;
    drop_peer(s, key);
    struct peer *p = calloc(1, sizeof *p);
    if (!p) return;
    snprintf(p->key, sizeof p->key, "%s", key);
    snprintf(p->endpoint, sizeof p->endpoint, "%.*s", (int)n, text);
    if (kvr_sync_add_peer(s->sync, p->endpoint)) {
        free(p);
        return;
    }
    p->next = reg.peers;
    reg.peers = p;
}

static void on_entry(void *ctx, const char *key, const char *value, size_t len)
{
    if (strncmp(key, "worker.", 7) == 0) discovery_post_found(ctx, key, value, len);
    else if (strncmp(key, "router.", 7) == 0) take_router(ctx, key, value, len);
}

static void on_gone(void *ctx, const char *key)
{
    if (strncmp(key, "worker.", 7) == 0) discovery_post_gone(ctx, key);
    else drop_peer(ctx, key);
}

static void on_known(void *ctx)
{
    discovery_post_settled(ctx);
}

int discovery_nats_start(struct serve *s, char *err, size_t cap)
{
    const struct serve_options *o = s->o;
    char scope[96], watch[KVR_REGISTRY_KEY_MAX], host[64] = "", value[400];
    (void)gethostname(host, sizeof host - 1);
    kvr_registry_token(s->scope, scope, sizeof scope);
    snprintf(watch, sizeof watch, "*.%s.>", scope);
    snprintf(reg.own, sizeof reg.own, "router.%.90s.%llu", scope, (unsigned long long)(s->salt >> 11));
    const char *address = o->advertise_host ? o->advertise_host : host;
    int n = snprintf(value, sizeof value, "{\"admin\":\"http://%.100s:%llu\"", address, (unsigned long long)o->admin_port);
    if (o->replica_sync_port)
        n += snprintf(value + n, sizeof value - (size_t)n, ",\"replica_sync\":\"tcp://%.100s:%llu\"", address,
                      (unsigned long long)o->replica_sync_port);
    snprintf(value + n, sizeof value - (size_t)n, "}");
    struct kvr_registry_config rc = {.link = s->nats,
                                     .bucket = KVR_REGISTRY_BUCKET,
                                     .ttl_s = KVR_REGISTRY_TTL_S,
                                     .replicas = (int)o->plane.nats_replicas,
                                     .watch = watch,
                                     .on_entry = on_entry,
                                     .on_gone = on_gone,
                                     .on_known = on_known,
                                     .ctx = s};
    reg.json = kvr_json_parser_new();
    if (reg.json && kvr_registry_open(&rc, &reg.registry) == 0 && kvr_registry_keep(reg.registry, reg.own, value, false) == 0) return 0;
    snprintf(err, cap, "--discovery nats: out of memory, or built without NATS");
    return -1;
}

void discovery_nats_stop(void)
{
    kvr_registry_close(reg.registry);
    while (reg.peers) {
        struct peer *p = reg.peers;
        reg.peers = p->next;
        free(p);
    }
    if (reg.json) kvr_json_parser_free(reg.json);
}
