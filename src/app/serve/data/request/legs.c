/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request of two legs has beside the rest of a request (legs.h): the bodies of its legs, its hand-off object and how long that may
 * be used, and whether a computed prompt is held for nobody. How a request is treated is decided by choice/treatment.c.
 */
#include "app/serve/data/request/legs.h"

#include <string.h>
#include <strings.h>

#include "app/serve/data/request/attempt.h"
#include "wire/json_edit.h"

#define FRESH_SHARE 0.7 /* of the prefill worker's lease: a hand-off object is not used when it is older */

/* ---- bodies ------------------------------------------------------------------------------------------ */

static struct kvr_body *derived(struct request *r, bool made, struct kvr_buf *bytes)
{
    struct kvr_body *b = made && !bytes->failed ? kvr_body_derive(r->body, bytes) : NULL;
    kvr_buf_free(bytes);
    return b;
}

static struct kvr_json_span body_span(const struct request *r)
{
    return (struct kvr_json_span){r->body->data, r->body->data + r->body->len};
}

bool legs_strip(struct request *r)
{
    struct kvr_buf bytes = {0};
    bool changed = false;
    if (!r->is_object || !r->body || !kvr_handoff_strip(body_span(r), &bytes, &changed) || !changed) return true;
    struct kvr_body *without = derived(r, true, &bytes);
    if (!without) return false;
    kvr_body_unref(r->body);
    r->body = without;
    r->body_len = without->len;
    r->body_changed = true;
    r->body_rank.has[1] = false; /* routed_dp_rank was one of these; the worker is told the rank that was chosen */
    return true;
}

static bool is_multipart(const struct request *r)
{
    static const char kind[] = "multipart/";
    struct kvr_text type = kvr_headers_get(kvr_http_conn_request(r->conn)->headers, "content-type");
    return type.len >= sizeof kind - 1 && strncasecmp(type.ptr, kind, sizeof kind - 1) == 0;
}

/* An engine may read as JSON what is none here: numbers that do not exist, other encodings. */
enum outcome legs_pass_on(struct request *r)
{
    if (r->body && r->body->len && !r->is_object && !is_multipart(r))
        return request_refuse(r, 400, "the body is not a JSON object, which it has to be where workers prefill for others");
    return legs_strip(r) ? OUTCOME_DONE : request_refuse(r, 503, "out of memory");
}

/* Of an identifier that another router hardly gives: the time, and 14 bits that this process has drawn. */
static int64_t new_disagg_id(struct data_plane *data)
{
    uint64_t n = atomic_fetch_add(&data->process->next_id, 1);
    return kvr_disagg_request_id(kvr_now_ms(), (uint32_t)(data->process->salt & 255), (uint32_t)(data->process->salt >> 8 & 63),
                                 (uint32_t)(n & 1023));
}

/* A rank that the client asks for is one of the worker that answers. */
static struct kvr_body *without_rank(struct request *r, struct kvr_body *body)
{
    static const struct kvr_json_edit edit = {.name = "data_parallel_rank"};
    struct kvr_buf bytes = {0};
    if (!body || !r->body_rank.has[0]) return body;
    bool made = kvr_json_edit((struct kvr_json_span){body->data, body->data + body->len}, &edit, 1, &bytes);
    kvr_body_unref(body);
    return derived(r, made, &bytes);
}

struct kvr_body *legs_prefill_body(struct request *r)
{
    struct kvr_buf bytes = {0};
    r->legs->disagg_id = new_disagg_id(data_of(r));
    struct kvr_handoff_leg leg = transfer_leg(r);
    return without_rank(r, derived(r, kvr_handoff_prefill_body(&leg, body_span(r), &bytes), &bytes));
}

struct kvr_body *legs_decode_body(struct request *r)
{
    struct kvr_buf bytes = {0};
    struct kvr_handoff_leg leg = transfer_leg(r);
    return derived(r, kvr_handoff_decode_body(&leg, body_span(r), &r->legs->handoff, &bytes), &bytes);
}

struct kvr_body *legs_release_body(struct request *r)
{
    struct kvr_buf bytes = {0};
    struct kvr_handoff_leg leg = transfer_leg(r);
    return derived(r, kvr_handoff_release_body(&leg, body_span(r), &r->legs->handoff, &bytes), &bytes);
}

/* ---- the treatment ----------------------------------------------------------------------------------- */

bool legs_are_two(const struct request *r)
{
    return r->legs && r->legs->treatment == TREAT_REMOTE;
}

bool legs_prefill_next(const struct request *r)
{
    return legs_are_two(r) && !r->legs->handed && !r->legs->paired;
}

bool legs_at_once(const struct request *r)
{
    return legs_are_two(r) && !r->carrier && kvr_kv_protocol_at_once(r->legs->protocol);
}

bool legs_pair_first(const struct request *r)
{
    return legs_at_once(r) || (legs_are_two(r) && (r->carrier || r->legs->protocol == KVR_KV_VLLM_P2P));
}

bool legs_asks_prefill(const struct request *r)
{
    return legs_prefill_next(r) || (r->legs && r->legs->treatment == TREAT_PREFILL_ONLY);
}

bool legs_told(const struct request *r, enum told_treatment *out)
{
    if (!r->legs) return false;
    switch (r->legs->treatment) {
    case TREAT_REMOTE: *out = TOLD_REMOTE; break;
    case TREAT_FALLBACK: *out = TOLD_FALLBACK; break;
    case TREAT_PREFILL_ONLY: *out = TOLD_PREFILL_ONLY; break;
    default: *out = r->attempt && r->attempt->worker && r->attempt->worker->role == ROLE_DECODE ? TOLD_LOCAL : TOLD_AGGREGATED;
    }
    return true;
}

struct attempt *legs_computed(const struct request *r)
{
    return legs_are_two(r) && r->legs->prefill ? r->legs->prefill : r->attempt;
}

/* ---- the hand-off object ----------------------------------------------------------------------------- */

static bool is_fresh(const struct request *r)
{
    const struct legs *l = r->legs;
    return l->handed && kvr_now_ms() - l->handed_ms < (uint64_t)(FRESH_SHARE * 1000 * l->prefill->worker->kv_lease);
}

/* An SGLang that has computed a prompt answers when it is handed over. */
bool legs_may_leak(const struct request *r)
{
    return r->legs->protocol != KVR_KV_NONE && r->legs->protocol != KVR_KV_SGLANG;
}

/* Its prefill worker was not seen down since, and is no other process now. */
static bool is_kept(const struct legs *l)
{
    const struct worker *w = l->prefill->worker;
    return w->health != HEALTH_DOWN && (w->ups == l->keeper_ups || !l->keeper_ups);
}

bool legs_is_usable(const struct request *r)
{
    return r->legs->handed && (r->legs->protocol == KVR_KV_NONE || (is_fresh(r) && is_kept(r->legs)));
}

void legs_hand_over(struct request *r)
{
    struct legs *l = r->legs;
    l->handed = true;
    l->handed_ms = kvr_now_ms();
    l->keeper_ups = l->prefill->worker->ups;
    l->fate = FATE_OPEN;
    l->staged = true;
    atomic_fetch_add(&l->prefill->worker->staged, 1);
}

static void unstage(struct legs *l)
{
    if (l->staged) atomic_fetch_sub(&l->prefill->worker->staged, 1);
    l->staged = false;
}

void legs_leak(struct request *r, enum leak why)
{
    r->legs->fate = FATE_LEASE;
    COUNT(r, legs.leaks[why]);
}

void legs_drop_handoff(struct request *r)
{
    unstage(r->legs);
    r->legs->handed = false;
    r->legs->pair_deadline_ms = 0;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

void legs_answered(struct request *r)
{
    if (!legs_are_two(r) || !r->legs->prefill) return;
    bool refused = r->attempt->decodes && r->attempt->status >= 400; /* whoever refuses a request does not pull its prompt */
    bool held = r->legs->handed && legs_may_leak(r);
    if (refused) attempt_count_error(r->attempt);
    if (refused && held) legs_leak(r, LEAK_DECODE_4XX);
    else if (held && r->attempt->decodes) r->legs->fate = FATE_PULLED;
    legs_drop_handoff(r);
    kvr_buf_free(&r->legs->prefill->answer); /* which it was a part of */
}

void legs_cancel(struct request *r)
{
    if (r->legs && r->legs->prefill) attempt_cancel(r->legs->prefill);
}

void legs_free(struct request *r)
{
    if (!r->legs) return;
    unstage(r->legs);
    attempt_free(r->legs->prefill);
    transfer_forget(&r->legs->transfer);
    free(r->legs);
    r->legs = NULL;
}
