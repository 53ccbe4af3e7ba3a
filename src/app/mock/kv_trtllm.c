/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of requests and answers of a TensorRT-LLM that speak of transfers.
 *
 *     to the one who keeps      "disaggregated_params":{"request_type":"context_only","disagg_request_id":N,...}
 *     its answer                choices[0].disaggregated_params, with first_gen_tokens, ctx_request_id and encoded_opaque_state;
 *                               prompt_token_ids
 *     to the one who fetches    that object with "generation_only"; the token ids are its prompt
 *
 * The opaque state is the mocks' own: "host port engine key", each byte as two hexadecimal digits, and 16 digits that check it together
 * with the two ids: whoever alters one of them is found out.
 */
#include "app/mock/kv.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/mock/generate.h"

enum { STATE_MAX = MOCK_KV_HOST_MAX + MOCK_KV_NAME_MAX + MOCK_KV_KEY_MAX + 16, CHECK_LEN = 16 };

static uint64_t check_of(const char *state, uint64_t ctx_id, uint64_t disagg_id)
{
    return kvr_hash_bytes(state, strlen(state), ctx_id * 31 + disagg_id);
}

/* ---- reading ------------------------------------------------------------------------------------------- */

static int digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Returns: whether it was written by a mock. */
static bool decode(const char *hex, size_t len, char *out, size_t cap)
{
    if (len % 2 || len / 2 >= cap) return false;
    for (size_t i = 0; i < len / 2; i++) {
        int high = digit(hex[2 * i]), low = digit(hex[2 * i + 1]);
        if (high < 0 || low < 0 || (high == 0 && low == 0)) return false;
        out[i] = (char)(high * 16 + low);
    }
    out[len / 2] = 0;
    return true;
}

/* "host port engine key" */
static bool read_places(char *state, struct mock_kv_ask *out)
{
    char *rest = NULL, *host = strtok_r(state, " ", &rest), *port = strtok_r(NULL, " ", &rest), *engine = strtok_r(NULL, " ", &rest);
    if (!engine || !*rest || strlen(host) >= sizeof out->host || strlen(engine) >= sizeof out->engine || strlen(rest) >= sizeof out->key)
        return false;
    memcpy(out->host, host, strlen(host) + 1);
    memcpy(out->engine, engine, strlen(engine) + 1);
    memcpy(out->key, rest, strlen(rest) + 1);
    unsigned long number = strtoul(port, NULL, 10);
    out->port = (uint16_t)number;
    return number > 0 && number <= 65535;
}

static bool read_state(struct kvr_json params, uint64_t ctx_id, struct mock_kv_ask *out)
{
    const char *hex;
    size_t len;
    char state[STATE_MAX], check[CHECK_LEN + 1];
    if (!kvr_json_as_str(kvr_json_get(params, "encoded_opaque_state"), &hex, &len) || len < CHECK_LEN) return false;
    if (!decode(hex, len - CHECK_LEN, state, sizeof state)) return false;
    snprintf(check, sizeof check, "%016llx", (unsigned long long)check_of(state, ctx_id, out->disagg_id));
    return memcmp(check, hex + len - CHECK_LEN, CHECK_LEN) == 0 && read_places(state, out);
}

void mock_kv_read_trtllm(struct kvr_json body, struct mock_kv_ask *out)
{
    struct kvr_json params = kvr_json_get(body, "disaggregated_params"), type = kvr_json_get(params, "request_type");
    uint64_t ctx_id = 0;
    if (kvr_json_is_str(type, "context_only")) out->leg = MOCK_KV_KEEPS;
    else if (kvr_json_is_str(type, "generation_only")) out->leg = MOCK_KV_FETCHES;
    if (out->leg == MOCK_KV_ALONE) return;
    if (!kvr_json_as_u64(kvr_json_get(params, "disagg_request_id"), &out->disagg_id) || out->disagg_id < 1ull << 40 ||
        out->disagg_id > INT64_MAX)
        out->lacks = "disagg_request_id";
    else if (out->leg == MOCK_KV_FETCHES && !kvr_json_as_u64(kvr_json_get(params, "ctx_request_id"), &ctx_id))
        out->lacks = "ctx_request_id";
    else if (out->leg == MOCK_KV_FETCHES && !read_state(params, ctx_id, out)) out->lacks = "encoded_opaque_state";
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put_state(struct kvr_buf *b, const struct mock_exchange *x)
{
    const struct mock *m = x->rank->mock;
    const struct mock_kv_port *port = &m->kv->ports[x->rank->id];
    char state[STATE_MAX];
    struct kvr_buf hex = {0};
    snprintf(state, sizeof state, "%s %u %s %s", mock_kv_own_host(m), (unsigned)port->number, port->engine, x->ask.kv.key);
    for (const char *c = state; *c; c++) kvr_buf_printf(&hex, "%02x", (unsigned)(unsigned char)*c);
    kvr_buf_printf(&hex, "%016llx", (unsigned long long)check_of(state, x->id, x->ask.kv.disagg_id));
    kvr_json_printf(b, "'encoded_opaque_state':%.*s", (int)hex.len, hex.data);
    kvr_buf_free(&hex);
}

void mock_kv_put_trtllm(struct kvr_buf *b, const struct mock_exchange *x)
{
    const struct mock_sequence *s = &x->sequences[0];
    kvr_json_printf(b, "{'request_type':'context_only','first_gen_tokens':[");
    if (s->text.len) kvr_json_u64(b, (unsigned char)s->text.data[0]);
    kvr_json_printf(b, "],'first_gen_log_probs':null");
    if (s->kept) {
        kvr_json_printf(b, "'ctx_request_id':%ju", x->id);
        put_state(b, x);
    }
    kvr_json_printf(b, "'draft_tokens':null,'disagg_request_id':%ju,'ctx_dp_rank':%u,'ctx_info_endpoint':null}", x->ask.kv.disagg_id,
                    x->rank->id);
}
