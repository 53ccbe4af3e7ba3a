/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may serve an index in a scope, told through a registry in NATS (net/nats/registry.h), bucket kvroute-indexers:
 *
 *     owner.{scope}               a lease: the one server of a predicted index
 *     server.{scope}.{instance}   each server that follows KV events
 *
 * A predicted index has one owner, because each knows only what it was told; servers that follow events may be many. The two do
 * not mix. A conflicting process exits and names the owner. An owner that loses its lease stops answering.
 */
#include "app/serve/peers/index_claim.h"

#include <string.h>
#include <unistd.h>

#include "base/lock.h"
#include "base/log.h"

enum { TTL_S = 3, CONNECT_S = 5 };

struct index_claim {
    struct kvr_registry *registry;
    bool predicted;
    char own[KVR_REGISTRY_KEY_MAX], owner_key[KVR_REGISTRY_KEY_MAX], server_prefix[KVR_REGISTRY_KEY_MAX];
    struct kvr_lock lock; /* rival */
    char rival[512];      /* somebody whose kind excludes ours, as it describes itself; "" */
    char rival_key[KVR_REGISTRY_KEY_MAX];
};

static bool is_rival(const struct index_claim *c, const char *key)
{
    if (strcmp(key, c->own) == 0) return false;
    return c->predicted ? strncmp(key, c->server_prefix, strlen(c->server_prefix)) == 0 : strcmp(key, c->owner_key) == 0;
}

static void on_entry(void *ctx, const char *key, const char *value, size_t len)
{
    struct index_claim *c = ctx;
    if (!is_rival(c, key)) return;
    kvr_lock(&c->lock);
    snprintf(c->rival, sizeof c->rival, "%.*s", (int)KVR_MIN(len, (size_t)400), value);
    snprintf(c->rival_key, sizeof c->rival_key, "%s", key);
    kvr_unlock(&c->lock);
}

static void on_gone(void *ctx, const char *key)
{
    struct index_claim *c = ctx;
    kvr_lock(&c->lock);
    if (strcmp(key, c->rival_key) == 0) c->rival[0] = c->rival_key[0] = 0;
    kvr_unlock(&c->lock);
}

static bool has_rival(struct index_claim *c, char *who, size_t cap)
{
    kvr_lock(&c->lock);
    snprintf(who, cap, "%s", c->rival);
    kvr_unlock(&c->lock);
    return who[0] != 0;
}

bool index_claim_holds(struct index_claim *c)
{
    char who[512];
    if (has_rival(c, who, sizeof who)) return false;
    return !c->predicted || kvr_registry_holds(c->registry, c->own, NULL, 0);
}

/* Somebody may have died within its time to live: what stands in the way must stand there longer than that. */
static int wait_for_it(struct index_claim *c, const struct index_claim_config *cc, char *err, size_t cap)
{
    char who[512];
    uint64_t step_ns = 20000000, patience = (CONNECT_S * UINT64_C(1000000000)) / step_ns,
             lease = ((TTL_S + 1) * UINT64_C(1000000000)) / step_ns;
    for (uint64_t i = 0; i < patience && !kvr_registry_settled(c->registry); i++) uv_sleep((unsigned)(step_ns / 1000000));
    if (!kvr_registry_settled(c->registry)) {
        kvr_log_warning("kvroute: serve-indexer: NATS does not answer yet; nothing is served until it does");
        return 0;
    }
    for (uint64_t i = 0; i < lease && !index_claim_holds(c); i++) uv_sleep((unsigned)(step_ns / 1000000));
    if (index_claim_holds(c)) return 0;
    if (!has_rival(c, who, sizeof who)) (void)kvr_registry_holds(c->registry, c->own, who, sizeof who);
    return kvr_refuse(err, cap, "--serve-indexer: the index of %s is %s already: %s; %s", cc->scope,
                      c->predicted ? "owned or served" : "owned by one that predicts", who[0] ? who : "somebody",
                      c->predicted ? "in predicted mode there is one owner, and no other server"
                                   : "a predicted index and one that follows KV events exclude each other");
}

int index_claim_open(const struct index_claim_config *cc, struct index_claim **out, char *err, size_t cap)
{
    struct index_claim *c = calloc(1, sizeof *c);
    char scope[96], host[64] = "", text[300], watch[KVR_REGISTRY_KEY_MAX];
    if (!c) return kvr_refuse(err, cap, "out of memory");
    kvr_registry_token(cc->scope, scope, sizeof scope);
    (void)gethostname(host, sizeof host - 1);
    c->predicted = cc->predicted;
    kvr_lock_init(&c->lock, KVR_LOCK_CLAIM);
    snprintf(c->owner_key, sizeof c->owner_key, "owner.%s", scope);
    snprintf(c->server_prefix, sizeof c->server_prefix, "server.%s.", scope);
    if (cc->predicted) snprintf(c->own, sizeof c->own, "%s", c->owner_key);
    else snprintf(c->own, sizeof c->own, "%.100s%llu", c->server_prefix, (unsigned long long)cc->instance);
    snprintf(watch, sizeof watch, "*.%s.>", scope);
    int said = snprintf(text, sizeof text, "process %ld on %.63s", (long)getpid(), host);
    if (cc->admin_port) snprintf(text + said, sizeof text - (size_t)said, ", admin port %llu", (unsigned long long)cc->admin_port);
    struct kvr_registry_config rc = {.link = cc->link,
                                     .bucket = "kvroute-indexers",
                                     .ttl_s = TTL_S,
                                     .replicas = cc->replicas,
                                     .watch = cc->predicted ? watch : c->owner_key,
                                     .on_entry = on_entry,
                                     .on_gone = on_gone,
                                     .ctx = c};
    int rc2 = kvr_registry_open(&rc, &c->registry) || kvr_registry_keep(c->registry, c->own, text, cc->predicted) ? -1 : 0;
    if (rc2) snprintf(err, cap, "out of memory");
    else rc2 = wait_for_it(c, cc, err, cap);
    if (rc2) index_claim_close(c);
    else *out = c;
    return rc2;
}

void index_claim_close(struct index_claim *c)
{
    if (!c) return;
    kvr_registry_close(c->registry);
    kvr_lock_destroy(&c->lock);
    free(c);
}
