/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bodies of both legs. A body is a list of edits that grows: the rules of the leg, then what a client may not say, which goes, then the
 * protocol's members, which take the place of what went; and one pass over the client's body does them all.
 */
#include "wire/handoff.h"

#include <inttypes.h>
#include <string.h>

#include "wire/chat_writer.h"
#include "wire/json_edit.h"

/* ---- edits ---------------------------------------------------------------------------------------------------------- */

enum { EDITS_MAX = 32 };

struct edits {
    struct kvr_json_edit list[EDITS_MAX];
    size_t from[EDITS_MAX]; /* where in `text` a value begins that was written there */
    bool written[EDITS_MAX];
    size_t n;
    struct kvr_buf text;
};

static size_t edit_of(struct edits *x, const char *name)
{
    size_t i = 0;
    while (i < x->n && strcmp(x->list[i].name, name) != 0) i++;
    KVR_ASSERT(i < EDITS_MAX);
    if (i == x->n) x->n++;
    x->list[i] = (struct kvr_json_edit){.name = name};
    x->written[i] = false;
    return i;
}

static void drop(struct edits *x, const char *name)
{
    (void)edit_of(x, name);
}

static void set_span(struct edits *x, const char *name, struct kvr_json_span value)
{
    x->list[edit_of(x, name)] = (struct kvr_json_edit){.name = name, .value = value.at, .value_len = (size_t)(value.end - value.at)};
}

static void set(struct edits *x, const char *name, const char *value)
{
    set_span(x, name, (struct kvr_json_span){value, value + strlen(value)});
}

static void only_if_present(struct edits *x, const char *name)
{
    x->list[x->n - 1].only_if_present = true;
    KVR_ASSERT(strcmp(x->list[x->n - 1].name, name) == 0);
}

/* A value that is written to the buffer from here to `end_value`. */
static struct kvr_buf *begin_value(struct edits *x, const char *name)
{
    size_t i = edit_of(x, name);
    x->from[i] = x->text.len;
    x->written[i] = true;
    x->text.comma = false;
    return &x->text;
}

static void end_value(struct edits *x, const char *name)
{
    size_t i = 0;
    while (strcmp(x->list[i].name, name) != 0) i++;
    x->list[i].value_len = x->text.len - x->from[i];
}

static void set_u64(struct edits *x, const char *name, uint64_t v)
{
    kvr_json_u64(begin_value(x, name), v);
    end_value(x, name);
}

/* Does them, and frees them. */
static bool finish(struct edits *x, struct kvr_json_span body, struct kvr_buf *out)
{
    for (size_t i = 0; i < x->n; i++)
        if (x->written[i] && x->text.data) x->list[i].value = x->text.data + x->from[i];
    if (x->text.failed) out->failed = true;
    bool done = out->failed || kvr_json_edit(body, x->list, x->n, out);
    kvr_buf_free(&x->text);
    return done;
}

/* ---- what a client may not say -------------------------------------------------------------------------------------- */

static const char *const refused[] = {"kv_transfer_params", "disaggregated_params", "bootstrap_host",         "bootstrap_port",
                                      "bootstrap_room",     "bootstrap_pair_key",   "disagg_prefill_dp_rank", "routed_dp_rank"};

static bool is_refused(const struct kvr_json_text_pair *m)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(refused); i++)
        if (kvr_json_text_named(m, refused[i])) return true;
    return false;
}

/* vLLM puts its own arguments among these: one of that name would be taken for the member. */
static const char xargs[] = "vllm_xargs", xarg[] = "kv_transfer_params";

static bool has_refused_xarg(struct kvr_json_span v)
{
    return kvr_span_is_object(v) && kvr_json_text_last(v, xarg).at;
}

static bool has_refused(struct kvr_json_span object)
{
    struct kvr_json_text_pair m;
    for (const char *p = object.at; kvr_json_text_next(&p, object.end, &m);)
        if (is_refused(&m) || (kvr_json_text_named(&m, xargs) && has_refused_xarg(m.value))) return true;
    return false;
}

static void drop_refused(struct edits *x, struct kvr_json_span body)
{
    static const struct kvr_json_edit gone = {.name = xarg};
    for (size_t i = 0; i < KVR_ARRAY_LEN(refused); i++) drop(x, refused[i]);
    body.at = kvr_json_text_space(body.at, body.end);
    struct kvr_json_span args = kvr_json_text_last(body, xargs);
    if (!has_refused_xarg(args)) return;
    (void)kvr_json_edit(args, &gone, 1, begin_value(x, xargs)); /* it is an object */
    end_value(x, xargs);
}

bool kvr_handoff_strip(struct kvr_json_span body, struct kvr_buf *out, bool *changed)
{
    struct edits x = {0};
    body.at = kvr_json_text_space(body.at, body.end);
    if (!kvr_span_is_object(body)) return false;
    *changed = has_refused(body);
    if (!*changed) return true;
    drop_refused(&x, body);
    return finish(&x, body, out);
}

/* ---- members of the protocols --------------------------------------------------------------------------------------- */

static void put_bool(struct kvr_buf *b, const char *key, bool v)
{
    kvr_json_key(b, key);
    kvr_json_bool(b, v);
}

/* P computes for another, or D takes over. */
static void put_roles(struct kvr_buf *b, bool prefill)
{
    put_bool(b, "do_remote_decode", prefill);
    put_bool(b, "do_remote_prefill", !prefill);
}

static void put_transfer_id(struct kvr_buf *b, const struct kvr_handoff_leg *leg)
{
    struct kvr_buf made = {0};
    if (!leg->transfer_id) kvr_buf_printf(&made, "xfer-%s", leg->id ? leg->id : "");
    b->failed |= made.failed;
    if (!made.failed) {
        kvr_json_key(b, "transfer_id");
        if (leg->transfer_id) kvr_json_str(b, leg->transfer_id, strlen(leg->transfer_id));
        else kvr_json_str(b, made.data, made.len);
    }
    kvr_buf_free(&made);
}

static void nixl_prefill(struct edits *x, const struct kvr_handoff_leg *leg)
{
    static const char *const unknown[] = {"remote_engine_id", "remote_block_ids", "remote_host", "remote_port"};
    struct kvr_buf *b = begin_value(x, "kv_transfer_params");
    kvr_json_open(b, '{');
    put_roles(b, true);
    for (size_t i = 0; i < KVR_ARRAY_LEN(unknown); i++) {
        kvr_json_key(b, unknown[i]);
        kvr_json_null(b);
    }
    if (leg->protocol == KVR_KV_VLLM_NIXL_PUSH) put_transfer_id(b, leg);
    kvr_json_close(b, '}');
    end_value(x, "kv_transfer_params");
}

static void push_decode(struct edits *x, const struct kvr_handoff_leg *leg)
{
    struct kvr_buf *b = begin_value(x, "kv_transfer_params");
    kvr_json_open(b, '{');
    put_bool(b, "do_remote_prefill", true);
    put_bool(b, "do_remote_decode", false);
    kvr_json_put_str(b, "remote_engine_id", leg->engine_id);
    kvr_json_put_str(b, "remote_host", leg->host);
    kvr_json_put_u64(b, "remote_port", leg->port);
    if (leg->id) kvr_json_put_str(b, "remote_request_id", leg->id); /* without it the engine's process ends */
    kvr_json_put_u64(b, "tp_size", KVR_MAX(leg->tp, 1u));
    kvr_json_put_u64(b, "pp_size", KVR_MAX(leg->pp, 1u));
    put_transfer_id(b, leg);
    kvr_json_close(b, '}');
    end_value(x, "kv_transfer_params");
}

static void put_bootstrap_addr(struct kvr_buf *b, const struct kvr_handoff_leg *leg)
{
    struct kvr_buf url = {0};
    bool brackets = strchr(leg->host, ':') != NULL;
    kvr_buf_printf(&url, "http://%s%s%s:%u", brackets ? "[" : "", leg->host, brackets ? "]" : "", leg->port);
    b->failed |= url.failed;
    if (!url.failed) {
        kvr_json_key(b, "remote_bootstrap_addr");
        kvr_json_str(b, url.data, url.len);
    }
    kvr_buf_free(&url);
}

static void mooncake(struct edits *x, const struct kvr_handoff_leg *leg, bool prefill)
{
    struct kvr_buf *b = begin_value(x, "kv_transfer_params");
    kvr_json_open(b, '{');
    put_roles(b, prefill);
    if (!prefill) {
        put_bootstrap_addr(b, leg);
        kvr_json_put_str(b, "remote_engine_id", leg->engine_id);
    }
    put_transfer_id(b, leg);
    kvr_json_close(b, '}');
    end_value(x, "kv_transfer_params");
    if (prefill) set(x, "ignore_eos", "true"); /* one that ends by itself hands nothing over */
}

static void put_host(struct kvr_buf *b, const struct kvr_handoff_leg *leg, size_t)
{
    kvr_json_str(b, leg->host, strlen(leg->host));
}

static void put_port(struct kvr_buf *b, const struct kvr_handoff_leg *leg, size_t)
{
    kvr_json_u64(b, leg->port);
}

static void put_room(struct kvr_buf *b, const struct kvr_handoff_leg *leg, size_t i)
{
    kvr_json_u64(b, leg->rooms[i]);
}

/* One value, or one for each room. */
static void set_for_rooms(struct edits *x, const struct kvr_handoff_leg *leg, const char *name,
                          void (*put)(struct kvr_buf *b, const struct kvr_handoff_leg *leg, size_t i))
{
    bool list = leg->room_list || leg->rooms_n > 1;
    struct kvr_buf *b = begin_value(x, name);
    if (list) kvr_json_open(b, '[');
    for (size_t i = 0; i < leg->rooms_n; i++) put(b, leg, i);
    if (list) kvr_json_close(b, ']');
    end_value(x, name);
}

/* A rank that the client gave under the older name would be another's. */
static void set_ranks(struct edits *x, const struct kvr_handoff_leg *leg, bool prefill)
{
    uint32_t rank = prefill ? leg->prefill_rank : leg->decode_rank;
    set_u64(x, "data_parallel_rank", rank);
    only_if_present(x, "data_parallel_rank");
    set_u64(x, "routed_dp_rank", rank);
    if (!prefill) set_u64(x, "disagg_prefill_dp_rank", leg->prefill_rank);
}

static void sglang(struct edits *x, const struct kvr_handoff_leg *leg, bool prefill)
{
    KVR_ASSERT(leg->rooms_n > 0);
    set_for_rooms(x, leg, "bootstrap_host", put_host);
    set_for_rooms(x, leg, "bootstrap_port", put_port);
    set_for_rooms(x, leg, "bootstrap_room", put_room);
    if (leg->has_rank) set_ranks(x, leg, prefill);
    drop(x, "rid"); /* a client's could be another client's */
    if (!leg->id) return;
    kvr_json_str(begin_value(x, "rid"), leg->id, strlen(leg->id));
    end_value(x, "rid");
}

static void trtllm_prefill(struct edits *x, const struct kvr_handoff_leg *leg)
{
    struct kvr_buf *b = begin_value(x, "disaggregated_params");
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "request_type", "context_only");
    kvr_json_key(b, "disagg_request_id");
    kvr_json_i64(b, leg->disagg_request_id);
    kvr_json_put_u64(b, "schedule_style", 0);
    kvr_json_close(b, '}');
    end_value(x, "disaggregated_params");
}

static void trtllm_decode(struct edits *x, const struct kvr_handoff_leg *leg, const struct kvr_handoff *h)
{
    struct edits inner = {0};
    set(&inner, "request_type", "\"generation_only\"");
    set(&inner, "schedule_style", "0");
    if (h->usage.at) set_span(&inner, "ctx_usage", h->usage);
    struct kvr_buf *b = begin_value(x, "disaggregated_params");
    bool is_object = finish(&inner, h->object, b);
    KVR_ASSERT(is_object); /* kvr_handoff_read has seen it */
    end_value(x, "disaggregated_params");
    if (h->prompt_token_ids.at) set_span(x, leg->chat ? "prompt_token_ids" : "prompt", h->prompt_token_ids);
}

static void add_prefill(struct edits *x, const struct kvr_handoff_leg *leg)
{
    switch (leg->protocol) {
    case KVR_KV_VLLM_NIXL:
    case KVR_KV_VLLM_NIXL_PUSH: nixl_prefill(x, leg); break;
    case KVR_KV_VLLM_MOONCAKE: mooncake(x, leg, true); break;
    case KVR_KV_SGLANG: sglang(x, leg, true); break;
    case KVR_KV_TRTLLM: trtllm_prefill(x, leg); break;
    case KVR_KV_VLLM_P2P:
    case KVR_KV_NONE:
    case KVR_KV_PROTOCOLS: break;
    }
}

static void add_decode(struct edits *x, const struct kvr_handoff_leg *leg, const struct kvr_handoff *h)
{
    switch (leg->protocol) {
    case KVR_KV_VLLM_NIXL: set_span(x, "kv_transfer_params", h->object); break;
    case KVR_KV_VLLM_NIXL_PUSH: push_decode(x, leg); break;
    case KVR_KV_VLLM_MOONCAKE: mooncake(x, leg, false); break;
    case KVR_KV_SGLANG: sglang(x, leg, false); break;
    case KVR_KV_TRTLLM: trtllm_decode(x, leg, h); break;
    case KVR_KV_VLLM_P2P:
    case KVR_KV_NONE:
    case KVR_KV_PROTOCOLS: break;
    }
}

/* ---- bodies --------------------------------------------------------------------------------------------------------- */

static void not_streamed(struct edits *x)
{
    set(x, "stream", "false");
    drop(x, "stream_options");
}

static void one_token(struct edits *x)
{
    set(x, "max_tokens", "1");
    set(x, "max_completion_tokens", "1");
    only_if_present(x, "max_completion_tokens");
    drop(x, "min_tokens");
    drop(x, "min_completion_tokens");
}

bool kvr_handoff_prefill_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, struct kvr_buf *out)
{
    struct edits x = {0};
    not_streamed(&x);
    if (leg->protocol != KVR_KV_SGLANG) one_token(&x);
    drop_refused(&x, body);
    add_prefill(&x, leg);
    return finish(&x, body, out);
}

static bool decode_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, const struct kvr_handoff *h, bool release,
                        struct kvr_buf *out)
{
    struct edits x = {0};
    if (release) {
        not_streamed(&x);
        one_token(&x);
    }
    drop_refused(&x, body);
    add_decode(&x, leg, h);
    return finish(&x, body, out);
}

bool kvr_handoff_decode_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, const struct kvr_handoff *h, struct kvr_buf *out)
{
    return decode_body(leg, body, h, false, out);
}

bool kvr_handoff_release_body(const struct kvr_handoff_leg *leg, struct kvr_json_span body, const struct kvr_handoff *h,
                              struct kvr_buf *out)
{
    return decode_body(leg, body, h, true, out);
}

/* ---- ids ------------------------------------------------------------------------------------------------------------ */

void kvr_handoff_p2p_id(const char *prefill_addr, const char *decode_addr, const uint64_t random[2], struct kvr_buf *out)
{
    kvr_buf_printf(out, "___prefill_addr_%s___decode_addr_%s_%016" PRIx64 "%016" PRIx64, prefill_addr, decode_addr, random[0], random[1]);
}

uint64_t kvr_handoff_room(uint64_t random, uint32_t rank, uint32_t ranks)
{
    uint64_t s = KVR_MAX(ranks, 1u), r = rank % s;
    return random % ((INT64_MAX - r) / s + 1) * s + r;
}

/* The time's lowest bits come round after 17 years; in its first minute they are too low, and the highest is set: an id of a time that
 * is 8 years away. */
int64_t kvr_disagg_request_id(uint64_t time_ms, uint32_t node, uint32_t process, uint32_t counter)
{
    uint64_t time = time_ms & ((UINT64_C(1) << 39) - 1);
    uint64_t id = time << 24 | (uint64_t)(node & 0xff) << 16 | (uint64_t)(process & 0x3f) << 10 | (counter & 0x3ff);
    return (int64_t)(id < UINT64_C(1) << 40 ? id | UINT64_C(1) << 62 : id);
}
