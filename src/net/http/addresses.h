/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many connections each client address has, over all servers that share the count, and no more than so many. An IPv6 client has a
 * whole /64, so that is an address here; IPv4 that comes mapped into IPv6 is IPv4. There are at most as many entries as connections.
 *
 * Threads: any. Lock: ADDRESSES, a leaf.
 */
#ifndef KVR_NET_HTTP_ADDRESSES_H
#define KVR_NET_HTTP_ADDRESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/lock.h"
#include "base/map64.h"

/* Zeroed, then initialised. */
struct kvr_addresses {
    uint64_t max; /* 0: any number, and nothing is counted */
    struct kvr_lock lock;
    struct kvr_map64 open;
};

void kvr_addresses_init(struct kvr_addresses *a, uint64_t max);
void kvr_addresses_destroy(struct kvr_addresses *a);
uint64_t kvr_address_of(const struct sockaddr *from);
/* One more connection. Returns: false: that would be too many, or there is no memory. */
bool kvr_addresses_enter(struct kvr_addresses *a, uint64_t address);
void kvr_addresses_leave(struct kvr_addresses *a, uint64_t address);

#endif
