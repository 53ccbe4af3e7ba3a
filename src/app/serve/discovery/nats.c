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

#include "app/serve/discovery/found_workers.h"
#include "app/serve/peers/replicas.h"
#include "base/log.h"
#include "net/nats/registry.h"
#include "wire/json.h"

struct discovery_nats {
    struct discovery *discovery;
    struct kvr_registry *registry;
    char own[KVR_REGISTRY_KEY_MAX];
    struct kvr_json_parser *json; /* the registry's thread */
    struct peer {
        struct peer *next;
        char key[KVR_REGISTRY_KEY_MAX], endpoint[128];
        bool added; /* its endpoint is followed for this key; else for another one, as it was given, or not at all */
    } * peers;
};

static struct peer **peer_place(struct discovery_nats *n, const char *key)
{
    struct peer **at = &n->peers;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

/* The endpoint goes on for another key that names it. Returns: whether there is one. */
static bool hand_on(struct discovery_nats *n, const char *endpoint)
{
    struct peer *p = n->peers;
    while (p && strcmp(p->endpoint, endpoint) != 0) p = p->next;
    if (p) p->added = true;
    return p;
}

static void follow(struct discovery_nats *n, struct peer *p)
{
    int rc = replicas_add_router(n->discovery->peers, p->endpoint);
    p->added = rc == 0;
    if (rc == 0 || rc == -KVR_EEXISTS) return;
    kvr_log_warning_of(kvr_log_key(kvr_hash_bytes(p->key, strlen(p->key), 0), 0, "peer"),
                       "kvroute: discovery: %s: router %s is not followed: %s", p->key, p->endpoint,
                       rc == -KVR_ELIMIT ? "there are too many" : kvr_strerror(rc));
}

static void drop_peer(struct discovery_nats *n, const char *key)
{
    struct peer **at = peer_place(n, key), *p = *at;
    if (!p) return;
    *at = p->next;
    if (p->added && !hand_on(n, p->endpoint)) {
        (void)replicas_remove_router(n->discovery->peers, p->endpoint);
        for (struct peer *o = n->peers; o; o = o->next) /* there is room now */
            if (!o->added) follow(n, o);
    }
    free(p);
}

static void take_router(struct discovery_nats *n, const char *key, const char *value, size_t len)
{
    struct kvr_json o;
    const char *text;
    size_t text_len;
    if (strcmp(key, n->own) == 0 || !replicas_run(n->discovery->peers) || kvr_json_parse(n->json, value, len, &o, NULL)) return;
    if (!kvr_json_as_name(kvr_json_get(o, "replica_sync"), &text, &text_len)) return;
    if (text_len == 0 || text_len >= sizeof n->peers->endpoint) return;
    drop_peer(n, key);
    struct peer *p = calloc(1, sizeof *p);
    if (!p) return;
    snprintf(p->key, sizeof p->key, "%s", key);
    snprintf(p->endpoint, sizeof p->endpoint, "%.*s", (int)text_len, text);
    follow(n, p);
    p->next = n->peers;
    n->peers = p;
}

static void on_entry(void *ctx, const char *key, const char *value, size_t len)
{
    struct discovery_nats *n = ctx;
    if (strncmp(key, "worker.", 7) == 0) found_workers_post(n->discovery, key, value, len);
    else if (strncmp(key, "router.", 7) == 0) take_router(n, key, value, len);
}

static void on_gone(void *ctx, const char *key)
{
    struct discovery_nats *n = ctx;
    if (strncmp(key, "worker.", 7) == 0) found_workers_post_gone(n->discovery, key);
    else drop_peer(n, key);
}

static void on_known(void *ctx)
{
    const struct discovery_nats *n = ctx;
    found_workers_post_settled(n->discovery);
}

/* What is told of this router to others. */
static void put_own_entry(const struct discovery *room, uint16_t admin_port, char *out, size_t cap)
{
    const struct serve_options *o = room->o;
    char host[64] = "";
    (void)gethostname(host, sizeof host - 1);
    const char *address = o->advertise_host ? o->advertise_host : host;
    int n = snprintf(out, cap, "{\"admin\":\"http://%.100s:%llu\"", address, (unsigned long long)admin_port);
    if (o->replica_sync_port)
        n += snprintf(out + n, cap - (size_t)n, ",\"replica_sync\":\"tcp://%.100s:%llu\"", address,
                      (unsigned long long)o->replica_sync_port);
    snprintf(out + n, cap - (size_t)n, "}");
}

int discovery_nats_start(struct discovery *room, char *err, size_t cap)
{
    char scope[96], watch[KVR_REGISTRY_KEY_MAX];
    struct discovery_nats *n = calloc(1, sizeof *n);
    kvr_registry_token(room->process->scope, scope, sizeof scope);
    snprintf(watch, sizeof watch, "*.%s.>", scope);
    struct kvr_registry_config rc = {.link = room->process->nats,
                                     .bucket = KVR_REGISTRY_BUCKET,
                                     .ttl_s = KVR_REGISTRY_TTL_S,
                                     .replicas = (int)room->o->plane.nats_replicas,
                                     .watch = watch,
                                     .on_entry = on_entry,
                                     .on_gone = on_gone,
                                     .on_known = on_known,
                                     .ctx = n};
    if (n) {
        n->discovery = room;
        snprintf(n->own, sizeof n->own, "router.%.90s.%llu", scope, (unsigned long long)(room->process->salt >> 11));
        n->json = kvr_json_parser_new();
        if (n->json && kvr_registry_open(&rc, &n->registry) == 0) {
            room->nats = n;
            return 0;
        }
    }
    snprintf(err, cap, "--discovery nats: out of memory, or built without NATS");
    discovery_nats_stop(n);
    return -1;
}

int discovery_nats_announce(struct discovery_nats *n, uint16_t admin_port)
{
    char value[400];
    put_own_entry(n->discovery, admin_port, value, sizeof value);
    return kvr_registry_keep(n->registry, n->own, value, false);
}

void discovery_nats_stop(struct discovery_nats *n)
{
    if (!n) return;
    kvr_registry_close(n->registry);
    while (n->peers) {
        struct peer *p = n->peers;
        n->peers = p->next;
        free(p);
    }
    if (n->json) kvr_json_parser_free(n->json);
    free(n);
}
