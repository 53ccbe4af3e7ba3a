/* SPDX-License-Identifier: Apache-2.0 */
/* net/http/addresses.h says what this is. */
#include "net/http/addresses.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

void kvr_addresses_init(struct kvr_addresses *a, uint64_t max)
{
    a->max = max;
    kvr_lock_init(&a->lock, KVR_LOCK_ADDRESSES);
}

void kvr_addresses_destroy(struct kvr_addresses *a)
{
    kvr_map64_clear(&a->had);
    kvr_lock_destroy(&a->lock);
}

/* An IPv4 address is where it would be mapped in a prefix that no IPv6 client has (::/8 is reserved). */
static uint64_t v4(uint32_t address)
{
    return UINT64_C(0xffff) << 32 | address;
}

uint64_t kvr_address_of(const struct sockaddr *from)
{
    const unsigned char *p;
    if (from->sa_family == AF_INET) return v4(ntohl(((const struct sockaddr_in *)(const void *)from)->sin_addr.s_addr));
    if (from->sa_family != AF_INET6) return 0;
    const struct in6_addr *a = &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
    p = a->s6_addr;
    if (IN6_IS_ADDR_V4MAPPED(a)) return v4((uint32_t)p[12] << 24 | (uint32_t)p[13] << 16 | (uint32_t)p[14] << 8 | p[15]);
    return kvr_load_be64(p);
}

int kvr_addresses_enter(struct kvr_addresses *a, uint64_t address, uint64_t n)
{
    int rc = 0;
    if (!a->max) return 0;
    kvr_lock(&a->lock);
    uint64_t *has = kvr_map64_get(&a->had, address);
    if (n > a->max - (has ? *has : 0)) rc = -KVR_ELIMIT;
    else if (has) *has += n;
    else if (kvr_map64_put(&a->had, address, n)) rc = -KVR_ENOMEM;
    kvr_unlock(&a->lock);
    return rc;
}

void kvr_addresses_leave(struct kvr_addresses *a, uint64_t address, uint64_t n)
{
    if (!a->max) return;
    kvr_lock(&a->lock);
    uint64_t *has = kvr_map64_get(&a->had, address);
    if (has && (*has -= n) == 0) kvr_map64_del(&a->had, address);
    kvr_unlock(&a->lock);
}
