/* SPDX-License-Identifier: Apache-2.0 */
/* Keys about hand-offs and lower tiers: workers/table/kv_keys.h. */
#include "app/serve/workers/table/kv_keys.h"

#include <stdio.h>
#include <string.h>

#include "app/serve/workers/table/worker.h"

#define TYPE(t) (1u << (t))

/* ---- values ------------------------------------------------------------------------------------------ */

static bool set_role(struct worker *w, const char *value)
{
    w->given.role = true;
    return role_parse(value, &w->role);
}

static bool set_protocol(struct worker *w, const char *value)
{
    w->given.kv_protocol = true;
    return kvr_kv_protocol_parse(value, &w->kv_protocol);
}

static bool whole_number(const char *value, uint64_t max, uint64_t *out)
{
    return kvr_parse_u64(value, strlen(value), max, out) && *out > 0;
}

static bool set_lease(struct worker *w, const char *value)
{
    uint64_t n;
    if (!whole_number(value, KV_LEASE_MAX_S, &n)) return false;
    w->kv_lease = (double)n;
    return true;
}

static bool set_size(uint32_t *to, uint64_t max, const char *value)
{
    uint64_t n;
    if (!whole_number(value, max, &n)) return false;
    *to = (uint32_t)n;
    return true;
}

static bool set_tp(struct worker *w, const char *value)
{
    return set_size(&w->tp, KV_SIZE_MAX, value);
}

static bool set_pp(struct worker *w, const char *value)
{
    return set_size(&w->pp, KV_SIZE_MAX, value);
}

static bool read_bool(const char *value, bool *out)
{
    *out = strcmp(value, "true") == 0;
    return *out || strcmp(value, "false") == 0;
}

static bool set_local_prefill(struct worker *w, const char *value)
{
    return read_bool(value, &w->local_prefill);
}

static bool set_decode_cache(struct worker *w, const char *value)
{
    bool on;
    if (!read_bool(value, &on)) return false;
    w->decode_cache = on ? KVR_TOLD_YES : KVR_TOLD_NO;
    return true;
}

static bool read_port(const char *value, struct kv_address *out)
{
    uint64_t port;
    if (!whole_number(value, UINT16_MAX, &port)) return false;
    out->port = (uint16_t)port;
    return true;
}

/* host:port */
static bool read_address(const char *value, struct kv_address *out)
{
    struct kvr_endpoint e;
    char url[300];
    const char *colon = strrchr(value, ':');
    int n = snprintf(url, sizeof url, "http://%s", value);
    if (!colon || !read_port(colon + 1, out) || n >= (int)sizeof url || kvr_endpoint_parse(url, (size_t)n, &e) || e.base[0]) return false;
    memcpy(out->host, e.host, sizeof out->host);
    return true;
}

/* "": none. */
static bool set_bootstrap(struct worker *w, const char *value)
{
    struct kv_address a = {"", 0};
    bool fine = !*value || read_port(value, &a) || read_address(value, &a);
    if (fine) w->bootstrap = a;
    w->given.bootstrap = a.port != 0;
    return fine;
}

static bool set_addr(struct worker *w, const char *value)
{
    struct kv_address a = {"", 0};
    bool fine = !*value || read_address(value, &a);
    if (fine) w->kv_addr = a;
    return fine;
}

/* "": none. */
static bool set_text(char *to, size_t cap, const char *value)
{
    size_t n = strlen(value);
    if (n < cap) memcpy(to, value, n + 1);
    return n < cap;
}

static bool set_domain(struct worker *w, const char *value)
{
    return set_text(w->kv_domain, sizeof w->kv_domain, value);
}

static bool set_pool(struct worker *w, const char *value)
{
    return set_text(w->kv_pool, sizeof w->kv_pool, value);
}

static bool set_offload_chunk(struct worker *w, const char *value)
{
    return set_size(&w->kv_offload_chunk, KV_OFFLOAD_CHUNK_MAX, value);
}

static bool set_engine_id(struct worker *w, const char *value)
{
    size_t n = strlen(value);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)value[i] < 0x21 || (unsigned char)value[i] > 0x7e) return false;
    return set_text(w->engine_id, sizeof w->engine_id, value);
}

/* ---- the table --------------------------------------------------------------------------------------- */

#define TEXT   TYPE(KVR_JSON_STRING)
#define NUMBER TYPE(KVR_JSON_INT)
#define BOOL   TYPE(KVR_JSON_BOOL)

/* A worker that drains gets nothing new; what it has goes on. */
static bool set_state(struct worker *w, const char *value)
{
    w->drains = strcmp(value, "draining") == 0;
    return w->drains || strcmp(value, "active") == 0;
}

enum { ROLE, PROTOCOL, LEASE, LOCAL_PREFILL, BOOTSTRAP, ADDR, ENGINE_ID, TP, PP, DECODE_CACHE, DOMAIN, POOL, OFFLOAD_CHUNK, STATE };

static const struct kv_key keys[] = {
    [ROLE] = {"role", "role", ROLES_ALLOWED, TEXT, set_role},
    [PROTOCOL] = {"kv-protocol", "kv_protocol", KVR_KV_PROTOCOL_NAMES, TEXT, set_protocol},
    [LEASE] = {"kv-lease", "kv_lease", "1 to 86400 (seconds)", NUMBER, set_lease},
    [LOCAL_PREFILL] = {"local-prefill", "local_prefill", "true, false", BOOL, set_local_prefill},
    [BOOTSTRAP] = {"bootstrap", "bootstrap", "port or host:port, of workers of other roles than decode", TEXT | NUMBER, set_bootstrap},
    [ADDR] = {"kv-addr", "kv_address",
              "host:port of the side channel of rank 0; needed by prefill workers of vllm-nixl-push and by all of vllm-p2p", TEXT,
              set_addr},
    [ENGINE_ID] = {"engine-id", "kv_engine_id", "up to 127 characters that can be seen; needed by prefill workers of vllm-nixl-push", TEXT,
                   set_engine_id},
    [TP] = {"tp", "tp_size", "1 to 65535", NUMBER, set_tp},
    [PP] = {"pp", "pp_size", "1 to 65535", NUMBER, set_pp},
    [DECODE_CACHE] = {"decode-cache", "decode_cache", "true, false", BOOL, set_decode_cache},
    [DOMAIN] = {"kv-domain", "kv_domain", "up to 52 characters", TEXT, set_domain},
    [POOL] = {"kv-pool", "kv_pool", "up to 52 characters", TEXT, set_pool},
    [STATE] = {"state", "state", "active, draining", TEXT, set_state},
    [OFFLOAD_CHUNK] = {"kv-offload-chunk", "kv_offload_chunk", "1 to 1048576 (tokens), a multiple of the block size", NUMBER,
                       set_offload_chunk},
};

const struct kv_key *kv_key_find(const char *key)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(keys); i++)
        if (strcmp(keys[i].key, key) == 0) return &keys[i];
    return NULL;
}

/* As it would stand in --worker. null: as if it were not there, and "" takes a text away. */
static bool take_member(const struct kv_key *k, struct kvr_json v, struct worker *w)
{
    char value[300];
    const char *s;
    size_t len;
    uint64_t n;
    bool on;
    if (!(k->types & TYPE(kvr_json_type_of(v)))) return false;
    if (kvr_json_as_bool(v, &on)) return k->set(w, on ? "true" : "false");
    if (kvr_json_as_u64(v, &n)) snprintf(value, sizeof value, "%llu", (unsigned long long)n);
    else if (kvr_json_as_name(v, &s, &len) && len < sizeof value) snprintf(value, sizeof value, "%.*s", (int)len, s);
    else return false;
    return k->set(w, value);
}

const char *const *kv_keys_fields(void)
{
    static const char *fields[KVR_ARRAY_LEN(keys) + 1];
    for (size_t i = 0; i < KVR_ARRAY_LEN(keys); i++) fields[i] = keys[i].field; /* the same each time */
    return fields;
}

const struct kv_key *kv_keys_read(struct kvr_json o, struct worker *w)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(keys); i++) {
        struct kvr_json v = kvr_json_get(o, keys[i].field);
        if (kvr_json_is_given(v) && !take_member(&keys[i], v, w)) return &keys[i];
    }
    return kv_keys_wrong(w);
}

const struct kv_key *kv_keys_wrong(const struct worker *w)
{
    bool push = w->kv_protocol == KVR_KV_VLLM_NIXL_PUSH && w->role == ROLE_PREFILL;
    bool p2p = w->kv_protocol == KVR_KV_VLLM_P2P && w->role != ROLE_BOTH;
    if (w->role == ROLE_DECODE && w->given.bootstrap) return &keys[BOOTSTRAP];
    if ((push || p2p) && (!w->kv_addr.port || w->kv_addr.port + w->dp_size - 1 > UINT16_MAX)) return &keys[ADDR];
    if (w->kv_offload_chunk && w->given.block_size && w->kv_offload_chunk % w->block_size) return &keys[OFFLOAD_CHUNK];
    return push && !w->engine_id[0] ? &keys[ENGINE_ID] : NULL;
}

/* ---- what they say ----------------------------------------------------------------------------------- */

void kv_address_put(const struct kv_address *a, struct kvr_buf *out)
{
    bool brackets = strchr(a->host, ':') != NULL;
    kvr_buf_printf(out, "%s%s%s%s%u", brackets ? "[" : "", a->host, brackets ? "]" : "", a->host[0] ? ":" : "", a->port);
}

void kv_key_value(const struct worker *w, const struct kv_key *key, char *out, size_t cap)
{
    const struct kv_address *a = key == &keys[BOOTSTRAP] ? &w->bootstrap : key == &keys[ADDR] ? &w->kv_addr : NULL;
    struct kvr_buf b = {0};
    if (a && a->port) kv_address_put(a, &b);
    if (key == &keys[OFFLOAD_CHUNK]) kvr_buf_printf(&b, "%u", w->kv_offload_chunk);
    snprintf(out, cap, "%.*s", b.failed ? 0 : (int)b.len, b.data ? b.data : "");
    kvr_buf_free(&b);
}

struct kv_address kv_bootstrap_of(const struct worker *w)
{
    struct kv_address a = w->bootstrap;
    if (!a.host[0]) memcpy(a.host, w->endpoint.host, sizeof a.host);
    if (!a.port) a.port = KV_BOOTSTRAP_PORT;
    return a;
}

struct kv_address kv_side_of(const struct worker *w, uint32_t rank)
{
    struct kv_address a = w->kv_addr;
    a.port = (uint16_t)(a.port + rank);
    return a;
}

/* May blocks that it has received be reused there? */
static bool reuses_received(const struct worker *w)
{
    return w->decode_cache == KVR_UNTOLD ? w->kv_protocol != KVR_KV_SGLANG : w->decode_cache == KVR_TOLD_YES;
}

static void put_address(struct kvr_buf *b, const char *name, const struct kv_address *a)
{
    struct kvr_buf text = {0};
    kv_address_put(a, &text);
    b->failed |= text.failed;
    kvr_json_key(b, name);
    kvr_json_str(b, text.data ? text.data : "", text.len);
    kvr_buf_free(&text);
}

static void write_prefill(const struct worker *w, struct kvr_buf *b)
{
    bool meets = w->kv_protocol == KVR_KV_SGLANG || w->kv_protocol == KVR_KV_VLLM_MOONCAKE;
    struct kv_address at = kv_bootstrap_of(w);
    kvr_json_put_double(b, "kv_lease", w->kv_lease);
    if (meets) put_address(b, "bootstrap", &at);
    if (w->kv_protocol != KVR_KV_VLLM_NIXL_PUSH) return;
    kvr_json_printf(b, "'kv_engine_id':%s,'tp_size':%u,'pp_size':%u", w->engine_id, w->tp, w->pp);
}

void kv_keys_write(const struct worker *w, struct kvr_buf *b)
{
    if (w->kv_pool[0]) kvr_json_put_str(b, "kv_pool", w->kv_pool);
    if (w->kv_offload_chunk) kvr_json_put_u64(b, "kv_offload_chunk", w->kv_offload_chunk);
    if (w->role == ROLE_BOTH) return;
    kvr_json_put_str(b, "kv_protocol", kvr_kv_protocol_name(w->kv_protocol));
    if (w->role == ROLE_PREFILL) write_prefill(w, b);
    if (w->kv_addr.port) put_address(b, "kv_address", &w->kv_addr);
    if (w->kv_domain[0]) kvr_json_put_str(b, "kv_domain", w->kv_domain);
    kvr_json_printf(b, "'local_prefill':%i", worker_takes_whole(w));
    if (w->role != ROLE_DECODE) return;
    kvr_json_printf(b, "'decode_cache':%i", reuses_received(w));
}
