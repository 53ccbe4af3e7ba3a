/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much each client address has, over all servers that share the count, and no more than so much: connections, or bytes of bodies that
 * are not whole. An IPv6 client has a whole /64, so that is an address here; IPv4 that comes mapped into IPv6 is IPv4. Who is not known by
 * the address has a number of its own in its place. There are at most as many entries as connections.
 *
 * Threads: any. Lock: ADDRESSES, a leaf.
 */
#ifndef KVR_NET_HTTP_ADDRESSES_H
#define KVR_NET_HTTP_ADDRESSES_H

#include <stdint.h>
#include <sys/socket.h>

#include "base/lock.h"
#include "base/map64.h"

/* Zeroed, then initialised. */
struct kvr_addresses {
    uint64_t max; /* 0: there is no limit, and nothing is counted */
    struct kvr_lock lock;
    struct kvr_map64 had;
};

void kvr_addresses_init(struct kvr_addresses *a, uint64_t max);
void kvr_addresses_destroy(struct kvr_addresses *a);
uint64_t kvr_address_of(const struct sockaddr *from);
/* n more. Returns: 0; -KVR_ELIMIT: that would be too many; -KVR_ENOMEM. */
int kvr_addresses_enter(struct kvr_addresses *a, uint64_t address, uint64_t n);
void kvr_addresses_leave(struct kvr_addresses *a, uint64_t address, uint64_t n);

#endif
