/* SPDX-License-Identifier: Apache-2.0 */
/* For the files that speak to JetStream themselves. */
#ifndef KVR_NET_NATS_INTERNAL_H
#define KVR_NET_NATS_INTERNAL_H

#include <nats/nats.h>

#include "net/nats_link.h"

natsConnection *kvr__nats_connection(struct kvr_nats *n);

static inline uint64_t kvr_nats_now_ms(void)
{
    return kvr_now_ns(kvr_clock_monotonic()) / 1000000;
}

#endif
