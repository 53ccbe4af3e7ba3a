/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of requests and answers that speak of transfers, as vLLM's NixlConnector has them.
 *
 *     to the one who keeps      {"do_remote_decode":true,"do_remote_prefill":false,...}
 *     its answer                {"do_remote_prefill":true,"remote_request_id":...,"remote_host":...,"remote_block_ids":[[...]],...}
 *     to the one who fetches    the same object
 */
#include "app/mock/kv.h"

#include <string.h>

#include "app/mock/generate.h"

static bool is_on(struct kvr_json object, const char *name)
{
    bool on = false;
    kvr_json_as_bool(kvr_json_get(object, name), &on);
    return on;
}

static bool read_text(struct kvr_json object, const char *name, char *out, size_t cap)
{
    const char *s;
    size_t len;
    if (!kvr_json_as_str(kvr_json_get(object, name), &s, &len) || len == 0 || len >= cap || memchr(s, 0, len)) return false;
    memcpy(out, s, len);
    out[len] = 0;
    return true;
}

/* [1,2,3] of older releases, or [[1,2,3]]: one list for each group of layers, of which the mock has one. Returns: 0; -1: no such list. */
static int read_blocks(struct kvr_json list, struct mock_kv_ask *out)
{
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY) return -1;
    if (kvr_json_type_of(kvr_json_at(list, 0)) == KVR_JSON_ARRAY) list = kvr_json_at(list, 0);
    size_t n = kvr_json_count(list);
    out->blocks = malloc((n + 1) * sizeof *out->blocks);
    if (!out->blocks) return -KVR_ENOMEM;
    if (kvr_json_u32_array(list, out->blocks, n) < 0) return -1;
    out->blocks_n = n;
    return 0;
}

static int read_reference(struct kvr_json params, struct mock_kv_ask *out)
{
    uint64_t port = 0;
    int rc = read_blocks(kvr_json_get(params, "remote_block_ids"), out);
    if (rc == -KVR_ENOMEM) return rc;
    if (rc) out->lacks = "remote_block_ids";
    else if (!read_text(params, "remote_engine_id", out->engine, sizeof out->engine)) out->lacks = "remote_engine_id";
    else if (!read_text(params, "remote_request_id", out->key, sizeof out->key)) out->lacks = "remote_request_id";
    else if (!read_text(params, "remote_host", out->host, sizeof out->host)) out->lacks = "remote_host";
    else if (!kvr_json_as_u64(kvr_json_get(params, "remote_port"), &port) || port == 0 || port > 65535) out->lacks = "remote_port";
    out->port = (uint16_t)port;
    return 0;
}

int mock_kv_read(const struct mock *m, struct kvr_json body, struct mock_kv_ask *out)
{
    struct kvr_json params = kvr_json_get(body, "kv_transfer_params");
    if (m->o->kv_protocol == MOCK_KV_NONE || kvr_json_type_of(params) != KVR_JSON_OBJECT) return 0;
    if (is_on(params, "do_remote_prefill")) out->leg = MOCK_KV_FETCHES;
    else if (is_on(params, "do_remote_decode")) out->leg = MOCK_KV_KEEPS;
    return out->leg == MOCK_KV_FETCHES ? read_reference(params, out) : 0;
}

void mock_kv_ask_free(struct mock_kv_ask *a)
{
    free(a->blocks);
    a->blocks = NULL;
    a->blocks_n = 0;
}

static void put_bool(struct kvr_buf *b, const char *name, bool v)
{
    kvr_json_key(b, name);
    kvr_json_bool(b, v);
}

static void put_block_ids(struct kvr_buf *b, const struct mock_hold *h)
{
    size_t n;
    const uint32_t *blocks = mock_hold_blocks(h, &n);
    kvr_json_key(b, "remote_block_ids");
    kvr_json_open(b, '[');
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, blocks[i]);
    kvr_json_close(b, ']');
    kvr_json_close(b, ']');
}

/* Where others reach this process: it listens on every address, they are on this machine. */
static const char *own_host(const struct mock *m)
{
    const char *host = m->o->host;
    return strcmp(host, "0.0.0.0") && strcmp(host, "::") ? host : "127.0.0.1";
}

/* All that leads to the blocks. */
static void put_reference(struct kvr_buf *b, const struct mock_exchange *x)
{
    const struct mock *m = x->rank->mock;
    const struct mock_hold *h = mock_kept_hold(x->kept);
    size_t n;
    mock_hold_tokens(h, &n);
    put_block_ids(b, h);
    kvr_json_put_str(b, "remote_engine_id", m->kv->ports[x->rank->id].engine);
    kvr_json_put_str(b, "remote_request_id", mock_kept_key(x->kept));
    kvr_json_put_str(b, "remote_host", own_host(m));
    kvr_json_put_u64(b, "remote_port", m->kv->ports[x->rank->id].number);
    kvr_json_put_u64(b, "remote_num_tokens", n);
}

void mock_kv_put_params(struct kvr_buf *b, const struct mock_exchange *x)
{
    kvr_json_open(b, '{');
    put_bool(b, "do_remote_prefill", true);
    put_bool(b, "do_remote_decode", false);
    if (x->kept) put_reference(b, x);
    kvr_json_put_u64(b, "tp_size", 1);
    kvr_json_put_u64(b, "dcp_size", 1);
    kvr_json_put_u64(b, "pp_size", 1);
    kvr_json_key(b, "remote_blocks_expiry_time");
    kvr_json_null(b);
    kvr_json_put_str(b, "transfer_mode", "pull");
    kvr_json_close(b, '}');
}
