/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the entry of a worker says of prompts that are handed over (docs/guides/disaggregation.md), and of its lower tiers
 * (docs/guides/offloading.md): one table of keys, for --worker and for objects. Pure functions on the caller's worker.
 */
#ifndef KVR_SERVE_KV_KEYS_H
#define KVR_SERVE_KV_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "wire/json.h"

enum {
    KV_LEASE_DEFAULT_S = 30,
    KV_LEASE_MAX_S = 86400,
    KV_BOOTSTRAP_PORT = 8998,
    KV_SIZE_MAX = 65535,
    KV_ENGINE_ID_MAX = 128,
    KV_OFFLOAD_CHUNK_MAX = 1 << 20
};

struct worker;

/* Where a prefill worker is met. host "": the host of its URL; port 0: not given. */
struct kv_address {
    char host[256]; /* an IPv6 address without brackets */
    uint16_t port;
};

struct kv_key {
    const char *key, *field; /* of --worker, of objects */
    const char *allowed;
    unsigned types; /* of a member */
    bool (*set)(struct worker *w, const char *value);
};

/* Returns: NULL when there is no such key. */
const struct kv_key *kv_key_find(const char *key);
/* The names of all members, NULL behind them. Main loop. */
const char *const *kv_keys_fields(void);
/* Members of an object over what is in the worker. Returns: NULL, or the key that is wrong. */
const struct kv_key *kv_keys_read(struct kvr_json o, struct worker *w);
/* Do they go together? Returns: NULL, or the key that is wrong or missing. */
const struct kv_key *kv_keys_wrong(const struct worker *w);
/* Of a key that kv_keys_wrong() has named, as it is. */
void kv_key_value(const struct worker *w, const struct kv_key *key, char *out, size_t cap);

/* Where decode workers meet it. */
struct kv_address kv_bootstrap_of(const struct worker *w);
/* The side channel of one of its ranks, from 0. */
struct kv_address kv_side_of(const struct worker *w, uint32_t rank);
/* "host:port", the host in brackets where it has colons. */
void kv_address_put(const struct kv_address *a, struct kvr_buf *out);
/* Appends the members of an object of /workers, for roles other than both. */
void kv_keys_write(const struct worker *w, struct kvr_buf *out);

#endif
