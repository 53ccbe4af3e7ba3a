/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of requests and answers that speak of transfers.
 *
 * vllm-nixl, one after the other:
 *     to the one who keeps      {"do_remote_decode":true,"do_remote_prefill":false,...}
 *     its answer                {"do_remote_prefill":true,"remote_request_id":...,"remote_host":...,"remote_block_ids":[[...]],...}
 *     to the one who fetches    the same object
 *
 * At once, to the one who keeps and to the one who fetches:
 *     vllm-nixl-push            {"do_remote_decode":true,"transfer_id":T} {"do_remote_prefill":true,"transfer_id":T,"remote_engine_id":E,
 *                                                                             "remote_host":...,"remote_port":...}
 *     vllm-mooncake             {"do_remote_decode":true,"transfer_id":T} {"do_remote_prefill":true,"transfer_id":T,"remote_engine_id":E,
 *                                                                             "remote_bootstrap_addr":"http://..."}
 *     sglang                    "bootstrap_host", "bootstrap_port", "bootstrap_room" in the body of both, a list of each for a batch
 */
#include "app/mock/kv.h"

#include <string.h>

#include "app/mock/generate.h"

static bool read_text(struct kvr_json object, const char *name, char *out, size_t cap)
{
    return kvr_json_copy_name(kvr_json_get(object, name), out, cap) && out[0];
}

/* [1,2,3] of older releases, or [[1,2,3]]: one list for each group of layers, of which the mock has one. Returns: 0, -KVR_EFORMAT or
 * -KVR_ENOMEM. */
static int read_blocks(struct kvr_json list, struct mock_kv_ask *out)
{
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY) return -KVR_EFORMAT;
    if (kvr_json_type_of(kvr_json_at(list, 0)) == KVR_JSON_ARRAY) list = kvr_json_at(list, 0);
    size_t n = kvr_json_count(list);
    out->blocks = malloc((n + 1) * sizeof *out->blocks);
    if (!out->blocks) return -KVR_ENOMEM;
    if (kvr_json_u32_array(list, out->blocks, n) < 0) return -KVR_EFORMAT;
    out->blocks_n = n;
    return 0;
}

static bool read_port(struct kvr_json params, struct mock_kv_ask *out)
{
    uint64_t port = 0;
    bool fine = kvr_json_as_u64(kvr_json_get(params, "remote_port"), &port) && port > 0 && port <= 65535;
    out->port = fine ? (uint16_t)port : 0;
    return fine;
}

/* What the one who fetches must be told, in the order in which it is looked for. Returns: the member that is missing, or NULL. */
static const char *read_nixl(struct kvr_json params, struct mock_kv_ask *out)
{
    if (!read_text(params, "remote_engine_id", out->engine, sizeof out->engine)) return "remote_engine_id";
    if (!read_text(params, "remote_request_id", out->key, sizeof out->key)) return "remote_request_id";
    if (!read_text(params, "remote_host", out->host, sizeof out->host)) return "remote_host";
    return read_port(params, out) ? NULL : "remote_port";
}

static const char *read_push(struct kvr_json params, struct mock_kv_ask *out)
{
    if (!read_text(params, "transfer_id", out->key, sizeof out->key)) return "transfer_id";
    if (out->leg == MOCK_KV_KEEPS) return NULL;
    if (!read_text(params, "remote_engine_id", out->engine, sizeof out->engine)) return "remote_engine_id";
    if (!read_text(params, "remote_host", out->host, sizeof out->host)) return "remote_host";
    return read_port(params, out) ? NULL : "remote_port";
}

static const char *read_mooncake(struct kvr_json params, struct mock_kv_ask *out)
{
    if (!read_text(params, "transfer_id", out->key, sizeof out->key)) return "transfer_id";
    if (out->leg == MOCK_KV_KEEPS) return NULL;
    if (!read_text(params, "remote_engine_id", out->engine, sizeof out->engine)) return "remote_engine_id";
    return read_text(params, "remote_bootstrap_addr", out->boot, sizeof out->boot) ? NULL : "remote_bootstrap_addr";
}

static int read_params(const struct mock *m, struct kvr_json params, struct mock_kv_ask *out)
{
    if (kvr_json_type_of(params) != KVR_JSON_OBJECT) return 0;
    if (kvr_json_is_true(kvr_json_get(params, "do_remote_prefill"))) out->leg = MOCK_KV_FETCHES;
    else if (kvr_json_is_true(kvr_json_get(params, "do_remote_decode"))) out->leg = MOCK_KV_KEEPS;
    if (out->leg == MOCK_KV_ALONE) return 0;
    if (m->o->kv_protocol == MOCK_KV_PUSH) out->lacks = read_push(params, out);
    else if (m->o->kv_protocol == MOCK_KV_MOONCAKE) out->lacks = read_mooncake(params, out);
    else if (out->leg == MOCK_KV_FETCHES) {
        int rc = read_blocks(kvr_json_get(params, "remote_block_ids"), out);
        if (rc == -KVR_ENOMEM) return rc;
        out->lacks = rc ? "remote_block_ids" : read_nixl(params, out);
    }
    return 0;
}

/* One, or a list of them: of a batch the first. */
static struct kvr_json first(struct kvr_json v)
{
    return kvr_json_type_of(v) == KVR_JSON_ARRAY ? kvr_json_at(v, 0) : v;
}

static int read_rooms(struct kvr_json rooms, struct mock_kv_ask *out)
{
    bool list = kvr_json_type_of(rooms) == KVR_JSON_ARRAY;
    size_t n = list ? kvr_json_count(rooms) : 1;
    out->rooms = calloc(n + 1, sizeof *out->rooms);
    if (!out->rooms) return -KVR_ENOMEM;
    bool fine = list ? kvr_json_u64_array(rooms, out->rooms, n) == (long)n : kvr_json_as_u64(rooms, out->rooms);
    for (size_t i = 0; i < n; i++) fine &= out->rooms[i] <= INT64_MAX;
    if (!fine || n == 0) out->lacks = "bootstrap_room";
    else out->rooms_n = n;
    return 0;
}

static int64_t rank_of(struct kvr_json v)
{
    uint64_t rank;
    return kvr_json_as_u64(first(v), &rank) && rank < MOCK_DP_MAX ? (int64_t)rank : -1;
}

/* Which side it is the role says. */
static int read_sglang(const struct mock *m, struct kvr_json body, struct mock_kv_ask *out)
{
    const char *host;
    size_t len;
    uint64_t port;
    out->leg = m->o->role == MOCK_PREFILL ? MOCK_KV_KEEPS : MOCK_KV_FETCHES;
    out->routed = rank_of(kvr_json_get(body, "routed_dp_rank"));
    out->kept_rank = rank_of(kvr_json_get(body, "disagg_prefill_dp_rank"));
    read_text(body, "rid", out->rid, sizeof out->rid);
    int rc = read_rooms(kvr_json_get(body, "bootstrap_room"), out);
    if (rc || out->lacks || out->leg == MOCK_KV_KEEPS) return rc;
    if (!kvr_json_as_str(first(kvr_json_get(body, "bootstrap_host")), &host, &len) || len == 0 || len >= MOCK_KV_HOST_MAX)
        out->lacks = "bootstrap_host";
    else if (!kvr_json_as_u64(first(kvr_json_get(body, "bootstrap_port")), &port) || port == 0 || port > 65535)
        out->lacks = "bootstrap_port";
    else snprintf(out->boot, sizeof out->boot, "http://%.*s:%u", (int)len, host, (unsigned)port);
    return 0;
}

int mock_kv_read(const struct mock *m, struct kvr_json body, struct mock_kv_ask *out)
{
    out->routed = out->kept_rank = -1;
    if (m->o->kv_protocol == MOCK_KV_NONE) return 0;
    if (m->o->kv_protocol == MOCK_KV_SGLANG) return read_sglang(m, body, out);
    if (m->o->kv_protocol == MOCK_KV_TRTLLM) {
        mock_kv_read_trtllm(body, out);
        return 0;
    }
    return read_params(m, kvr_json_get(body, "kv_transfer_params"), out);
}

void mock_kv_key(const struct mock_kv_ask *a, uint32_t sequence, char out[MOCK_KV_KEY_MAX])
{
    if (sequence < a->rooms_n) snprintf(out, MOCK_KV_KEY_MAX, "room-%llu", (unsigned long long)a->rooms[sequence]);
    else memcpy(out, a->key, MOCK_KV_KEY_MAX);
}

bool mock_kv_meets(const struct mock *m)
{
    return m->o->kv_protocol == MOCK_KV_PUSH || m->o->kv_protocol == MOCK_KV_MOONCAKE || m->o->kv_protocol == MOCK_KV_SGLANG;
}

void mock_kv_ask_free(struct mock_kv_ask *a)
{
    free(a->blocks);
    free(a->rooms);
    a->blocks = NULL;
    a->rooms = NULL;
    a->blocks_n = a->rooms_n = 0;
}

/* All that leads to the blocks. */
static void put_reference(struct kvr_buf *b, const struct mock_exchange *x)
{
    const struct mock *m = x->rank->mock;
    const struct mock_hold *h = mock_kept_hold(x->sequences[0].kept);
    size_t blocks_n, tokens_n;
    const uint32_t *blocks = mock_hold_blocks(h, &blocks_n);
    mock_hold_tokens(h, &tokens_n);
    kvr_json_printf(b, "'remote_block_ids':[");
    kvr_json_u32s(b, blocks, blocks_n);
    kvr_json_printf(b, "],'remote_engine_id':%s,'remote_request_id':%s,'remote_host':%s,'remote_port':%u,'remote_num_tokens':%zu",
                    m->kv->ports[x->rank->id].engine, mock_kept_key(x->sequences[0].kept), mock_kv_own_host(m),
                    (unsigned)m->kv->ports[x->rank->id].number, tokens_n);
}

void mock_kv_put_params(struct kvr_buf *b, const struct mock_exchange *x)
{
    kvr_json_printf(b, "{'do_remote_prefill':true,'do_remote_decode':false");
    if (x->sequences[0].kept) put_reference(b, x);
    kvr_json_printf(b, "'tp_size':1,'dcp_size':1,'pp_size':1,'remote_blocks_expiry_time':null,'transfer_mode':'pull'}");
}
