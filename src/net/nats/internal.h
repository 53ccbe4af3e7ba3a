/* SPDX-License-Identifier: Apache-2.0 */
/* For the files that speak to JetStream themselves. */
#ifndef KVR_NET_NATS_INTERNAL_H
#define KVR_NET_NATS_INTERNAL_H

#include <nats/nats.h>

#include "net/nats/link.h"

natsConnection *kvr__nats_connection(struct kvr_nats *n);

/* Says that `what` could not be done, and why as the client library tells it; once a minute. */
void kvr__nats_failed(const char *what, natsStatus s);

/* Unsubscribes, and frees when that is safe. libnats (3.4) looks a subscription up for a message and then uses it without holding
 * it; so it may go only when the reader has come past what it had when the subscription could still be found. */
void kvr__nats_retire(struct kvr_nats *n, natsSubscription *sub);
/* The reader has come past all that it had before the call. Returns: false when the server does not answer. */
bool kvr__nats_settle(struct kvr_nats *n);

/* Calls wait for so long. */
natsStatus kvr__nats_jetstream(struct kvr_nats *n, int64_t wait_ms, jsCtx **out);
/* "namespace.a.component.b" -> "namespace-a-component-b-kv-events"; as a slug, _ becomes -. */
void kvr__stream_name(const char *scope, char *out, size_t cap);
/* Makes the stream of a scope's events unless it is there. */
natsStatus kvr__stream_ensure(jsCtx *js, const char *scope, const char *name, int replicas);

#endif
