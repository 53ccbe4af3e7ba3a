/* SPDX-License-Identifier: Apache-2.0 */
/* Built without the NATS client: connecting refuses, so that nothing else here is ever called with a connection. */
#include "net/ingest/event_plane.h"
#include "net/nats/registry.h"
#include "wire/prom_page.h"

int kvr_nats_connect(const struct kvr_nats_config *, struct kvr_nats **, char *err, size_t cap)
{
    return kvr_refuse(err, cap, "--nats-url: this kvroute was built without NATS (KVR_NATS=OFF)");
}

void kvr_nats_close(struct kvr_nats *n)
{
    KVR_ASSERT(!n);
}

void kvr_nats_stats(struct kvr_nats *, struct kvr_nats_stats *out)
{
    *out = (struct kvr_nats_stats){0};
}

int kvr_outlet_nats(struct kvr_nats *, const char *, struct kvr_worker, struct kvr_outlet **, char *err, size_t cap)
{
    return kvr_refuse(err, cap, "built without NATS");
}

int kvr_outlet_jetstream(struct kvr_nats *link, const char *scope, int, struct kvr_worker w, struct kvr_outlet **out, char *err, size_t cap)
{
    return kvr_outlet_nats(link, scope, w, out, err, cap);
}

int kvr_durable_feed_open(const struct kvr_durable_config *, struct kvr_durable_feed **)
{
    return -KVR_EUNSUPPORTED;
}

void kvr_durable_feed_close(struct kvr_durable_feed *f)
{
    KVR_ASSERT(!f);
}

void kvr_durable_feed_metrics(const struct kvr_durable_feed *, struct kvr_prom_page *) {}

int kvr_plane_feed_nats(struct kvr_nats *, const char *, struct kvr_ingest *, struct kvr_plane_feed **)
{
    return -KVR_EUNSUPPORTED;
}

void kvr_plane_feed_close(struct kvr_plane_feed *f)
{
    KVR_ASSERT(!f);
}

uint64_t kvr_plane_feed_dropped(const struct kvr_plane_feed *)
{
    return 0;
}

bool kvr_nats_is_up(const struct kvr_nats *)
{
    return false;
}

int kvr_nats_publish(struct kvr_nats *, const char *, const char *, const void *, size_t)
{
    return -KVR_EUNSUPPORTED;
}

int kvr_nats_subscribe(struct kvr_nats *, const char *, const char *, size_t, kvr_nats_on_message *, void *, struct kvr_nats_sub **)
{
    return -KVR_EUNSUPPORTED;
}

void kvr_nats_unsubscribe(struct kvr_nats_sub *sub)
{
    KVR_ASSERT(!sub);
}

uint64_t kvr_nats_sub_dropped(const struct kvr_nats_sub *sub)
{
    KVR_ASSERT(!sub);
    return 0;
}

void kvr_nats_inbox(char *out, size_t cap)
{
    snprintf(out, cap, "_");
}

int kvr_registry_open(const struct kvr_registry_config *, struct kvr_registry **)
{
    return -KVR_EUNSUPPORTED;
}

void kvr_registry_close(struct kvr_registry *r)
{
    KVR_ASSERT(!r);
}

int kvr_registry_keep(struct kvr_registry *, const char *, const char *, bool)
{
    return -KVR_EUNSUPPORTED;
}

bool kvr_registry_holds(struct kvr_registry *, const char *, char *, size_t)
{
    return false;
}

bool kvr_registry_settled(struct kvr_registry *)
{
    return false;
}

void kvr_registry_token(const char *text, char *out, size_t cap)
{
    snprintf(out, cap, "%s", text);
}
