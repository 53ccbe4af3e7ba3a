/* SPDX-License-Identifier: Apache-2.0 */
/* Built without the NATS client: connecting refuses, so that nothing else here is ever called with a connection. */
#include "net/event_plane.h"

int kvr_nats_connect(const struct kvr_nats_config *c, struct kvr_nats **out, char *err, size_t cap)
{
    (void)c;
    (void)out;
    snprintf(err, cap, "--nats-url: this kvroute was built without NATS (KVR_NATS=OFF)");
    return -1;
}

void kvr_nats_close(struct kvr_nats *n)
{
    KVR_ASSERT(!n);
}

void kvr_nats_stats(struct kvr_nats *n, struct kvr_nats_stats *out)
{
    (void)n;
    *out = (struct kvr_nats_stats){0};
}

int kvr_outlet_nats(struct kvr_nats *link, const char *scope, bool durable, struct kvr_worker w, struct kvr_outlet **out, char *err,
                    size_t cap)
{
    (void)link, (void)scope, (void)durable, (void)w, (void)out;
    snprintf(err, cap, "built without NATS");
    return -1;
}

int kvr_plane_feed_nats(struct kvr_nats *link, const char *scope, struct kvr_ingest *in, struct kvr_plane_feed **out)
{
    (void)link, (void)scope, (void)in, (void)out;
    return -KVR_EUNSUPPORTED;
}

void kvr_plane_feed_close(struct kvr_plane_feed *f)
{
    KVR_ASSERT(!f);
}

uint64_t kvr_plane_feed_dropped(const struct kvr_plane_feed *f)
{
    (void)f;
    return 0;
}
