/* SPDX-License-Identifier: Apache-2.0 */
/* How requests of fleets with prefill and decode workers are treated: data/legs.h. */
#include "app/serve/data/legs.h"

#include <string.h>
#include <strings.h>

#include "app/serve/common/clock.h"
#include "app/serve/data/admission.h"
#include "app/serve/data/attempt.h"
#include "app/serve/data/domains.h"
#include "app/serve/data/pins.h"
#include "app/serve/workers/roster.h"
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
    return kvr_disagg_request_id(now_ms(), (uint32_t)(data->process->salt & 255), (uint32_t)(data->process->salt >> 8 & 63),
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

/* Of the protocols, one with a prefill worker that is up; of those the first. */
static bool find_prefill(const struct roster_row *row, enum kvr_kv_protocol *out)
{
    for (enum kvr_kv_protocol p = 0; p < KVR_KV_PROTOCOLS; p++)
        if (roster_any_up(row, &row->prefill[p])) {
            *out = p;
            return true;
        }
    return false;
}

/* One with workers of both roles that may meet. */
static bool find_pair(const struct request *r, const struct roster_row *row, enum kvr_kv_protocol *out)
{
    for (enum kvr_kv_protocol p = 0; p < KVR_KV_PROTOCOLS; p++)
        if (domains_any_pair(r, row, p)) {
            *out = p;
            return true;
        }
    return false;
}

/* Its form has a hand-off, and one body. */
static bool has_legs(const struct request *r)
{
    return r->form <= KVR_FORM_CHAT && r->is_object && r->body && r->split.prompts;
}

/* A prefill worker whose own answer is one, without another worker. */
static bool answers_alone(enum kvr_kv_protocol p)
{
    return p != KVR_KV_TRTLLM && p != KVR_KV_SGLANG && p != KVR_KV_VLLM_P2P;
}

static bool wants_one_token(const struct request *r)
{
    const struct kvr_handoff_members *m = &r->split;
    return m->one_token && m->n <= 1 && m->best_of <= 1 && m->prompts <= 1;
}

/* A router that chooses nobody (mode direct) cannot choose a prefill worker. */
static bool may_pair(const struct request *r)
{
    bool direct = workers_mode(data_of(r)->workers) == KVR_MODE_DIRECT;
    return has_legs(r) && r->wish != WISH_LOCAL && (!direct || r->prefill_pin.set) &&
           (!r->pin.set || pins_look(r, &r->pin).role == ROLE_DECODE);
}

bool legs_wants_two(const struct request *r)
{
    return r->wish == WISH_REMOTE || r->prefill_pin.set;
}

static enum outcome treat_as(struct request *r, enum treatment t, enum kvr_kv_protocol protocol)
{
    if (!(r->legs = calloc(1, sizeof *r->legs))) return request_refuse(r, 503, "out of memory");
    r->legs->treatment = t;
    r->legs->protocol = protocol;
    return OUTCOME_DONE;
}

static enum outcome treat_whole(struct request *r, const struct roster_row *row)
{
    if (!roster_any_up(row, &row->whole)) return OUTCOME_NOBODY;
    if (!legs_strip(r)) return request_refuse(r, 503, "out of memory");
    return treat_as(r, TREAT_WHOLE, KVR_KV_NONE);
}

static enum outcome treat_prefill_only(struct request *r, enum kvr_kv_protocol p)
{
    return legs_strip(r) ? treat_as(r, TREAT_PREFILL_ONLY, p) : request_refuse(r, 503, "out of memory");
}

bool legs_go_whole(struct request *r, struct kvr_worker to)
{
    r->legs->treatment = TREAT_WHOLE;
    r->legs->chosen = true;
    r->legs->to = to;
    return legs_strip(r);
}

/* What is wrong with what the request asks for by itself, whoever is up; NULL: nothing. */
static const char *wrong_wish(const struct request *r, const struct roster_row *row)
{
    bool local = r->wish == WISH_LOCAL, direct = workers_mode(data_of(r)->workers) == KVR_MODE_DIRECT;
    enum worker_role role = pins_look(r, &r->pin).role;
    enum kvr_kv_protocol p;
    if (r->pin.set && role == ROLE_PREFILL) return "the pinned worker only prefills for others; pin one that answers";
    if (local && r->prefill_pin.set) return "x-kvroute-disagg: local and a pinned prefill worker exclude each other";
    if (local && !row->whole.n) return "x-kvroute-disagg: local is not possible: no worker of this model takes whole requests";
    if (legs_wants_two(r) && !has_legs(r))
        return "two legs (x-kvroute-disagg: remote, or a pinned prefill worker) are not possible: only completions and chats have them";
    if (legs_wants_two(r) && r->pin.set && role != ROLE_DECODE)
        return "two legs (x-kvroute-disagg: remote, or a pinned prefill worker) are not possible: the pinned worker is no decode worker";
    if (direct && role == ROLE_DECODE && !local && !r->prefill_pin.set && has_legs(r) && find_pair(r, row, &p) &&
        !kvr_handoff_obstacle(&r->split, p))
        return "router mode direct: a pinned decode worker needs a pinned prefill worker too (x-kvroute-prefill-worker)";
    return NULL;
}

/* May there be a pair for it when more of its workers are up? */
static bool may_come(const struct request *r, const struct roster_row *row)
{
    struct pin_seen prefill = pins_look(r, &r->prefill_pin), decode = pins_look(r, &r->pin);
    for (enum kvr_kv_protocol p = 0; p < KVR_KV_PROTOCOLS; p++)
        if (row->prefill[p].n && row->decode[p].n && (!prefill.exists || prefill.protocol == p) && (!decode.exists || decode.protocol == p))
            return !prefill.exists || !decode.exists; /* these two are up, and may not meet */
    return false;
}

static enum outcome no_pair(struct request *r, const struct roster_row *row)
{
    if (may_come(r, row)) return OUTCOME_NOBODY;
    return request_refuse(r, 400,
                          "two legs (x-kvroute-disagg: remote, or a pinned prefill worker) are not possible: no prefill worker and decode "
                          "worker may serve this together");
}

enum outcome legs_treat(struct request *r, const struct roster_row *row)
{
    enum kvr_kv_protocol p = KVR_KV_NONE, one = KVR_KV_NONE;
    const char *wrong = wrong_wish(r, row);
    if (wrong) return request_refuse(r, 400, wrong);
    bool pair = may_pair(r) && find_pair(r, row, &p), free_choice = r->wish == WISH_NONE && !r->pin.set && !r->prefill_pin.set;
    const char *why = pair ? kvr_handoff_obstacle(&r->split, p) : NULL;
    if (has_legs(r) && free_choice && wants_one_token(r) && find_prefill(row, &one) && answers_alone(one))
        return treat_prefill_only(r, one);
    if (pair && !why) return treat_as(r, TREAT_REMOTE, p);
    if (pair && (legs_wants_two(r) || !row->whole.n))
        return request_refusef(r, 400, "`%s`: not possible where one worker prefills and another one decodes%s", why,
                               legs_wants_two(r) ? "" : ", and no worker does both");
    return legs_wants_two(r) ? no_pair(r, row) : treat_whole(r, row);
}

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
    return legs_are_two(r) && kvr_kv_protocol_at_once(r->legs->protocol);
}

bool legs_pair_first(const struct request *r)
{
    return legs_at_once(r) || (legs_are_two(r) && r->legs->protocol == KVR_KV_VLLM_P2P);
}

bool legs_asks_prefill(const struct request *r)
{
    return legs_prefill_next(r) || (r->legs && r->legs->treatment == TREAT_PREFILL_ONLY);
}

const struct roster_choice *legs_choice(const struct request *r, const struct roster_row *row)
{
    if (!r->routed) return &row->main;
    if (!r->legs) return &row->whole; /* without roles that is the same */
    switch (r->legs->treatment) {
    case TREAT_REMOTE: return legs_prefill_next(r) ? &row->prefill[r->legs->protocol] : &row->decode[r->legs->protocol];
    case TREAT_PREFILL_ONLY: return &row->prefill[r->legs->protocol];
    default: return &row->whole;
    }
}

static const char *const fallbacks[] = {
#define WHY(name, text) text,
    FALLBACKS(WHY)
#undef WHY
};

bool legs_fall_back(struct request *r, enum fallback why)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    bool can = row && !data_of(r)->o->enforce_disagg && !legs_wants_two(r) && roster_any_up(row, &row->whole);
    roster_let_go(row);
    if (!can) return false;
    legs_drop_handoff(r);
    r->legs->treatment = TREAT_FALLBACK;
    r->legs->why = fallbacks[why];
    COUNT(r, legs.fallbacks[why]);
    return legs_strip(r);
}

/* ---- whom it may not go to --------------------------------------------------------------------------- */

static bool has(const uint64_t *ids, size_t n, uint64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* No decode worker is left for that prefill worker. */
static bool is_alone(struct request *r, const struct roster_choice *decode, uint64_t prefill)
{
    uint64_t missed[MISSED_MAX];
    size_t n = missed_by(data_of(r)->workers, prefill, missed);
    if (r->pin.set) return has(missed, n, r->pin.to.worker_id);
    for (size_t i = 0; n && i < decode->n; i++)
        if (!has(missed, n, decode->ids[i])) return false;
    return n > 0;
}

/* Copies to the list. Returns: how many there are. */
static size_t start_list(struct legs *l, const uint64_t *tried, unsigned n)
{
    memcpy(l->excluded, tried, n * sizeof *tried);
    return n;
}

size_t legs_exclude(struct request *r, const struct roster_row *row, const uint64_t **out)
{
    struct legs *l = r->legs;
    *out = l ? l->excluded : r->tried;
    if (!l) return r->tried_n;
    bool prefills = legs_prefill_next(r);
    size_t n = prefills ? start_list(l, l->tried, l->tried_n) : start_list(l, r->tried, r->tried_n);
    if (!legs_at_once(r) || (!prefills && r->pin.set)) return n;
    if (!prefills) return n + missed_by(data_of(r)->workers, l->prefill->result.worker.worker_id, l->excluded + n);
    const struct roster_choice *from = &row->prefill[l->protocol];
    for (size_t i = 0; i < from->n && n < LEGS_EXCLUDED_MAX; i++)
        if (is_alone(r, &row->decode[l->protocol], from->ids[i])) l->excluded[n++] = from->ids[i];
    return n;
}

bool legs_has_other_decode(const struct request *r)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    bool found = false;
    for (size_t i = 0; row && !found && i < row->servers_n; i++) {
        const struct worker *w = row->servers[i].worker;
        found = w->role == ROLE_DECODE && w->kv_protocol == r->legs->protocol && w->partition == row->decode[r->legs->protocol].partition &&
                worker_is_schedulable(w, now_ms()) && !has(r->tried, r->tried_n, w->id) &&
                domains_meet(data_of(r), r->legs->prefill->worker, w);
    }
    roster_let_go(row);
    return found;
}

bool legs_can_pair(struct request *r, const struct roster_row *row)
{
    const struct roster_choice *from = &row->decode[r->legs->protocol];
    struct kvr_router_request rq = {.isl = 1,
                                    .allowed = from->all ? NULL : from->ids,
                                    .allowed_n = from->n,
                                    .excluded = r->tried,
                                    .excluded_n = r->tried_n,
                                    .pinned = r->pin.set,
                                    .pin_any_rank = !r->pin.has_rank,
                                    .pin = r->pin.to};
    admission_keep_to_workers(r, &rq);
    struct kvr_router_ctx *ctx = from->partition ? ctx_get(&r->loop->ctxs, from->partition) : NULL;
    return ctx && kvr_router_any_calm(from->partition->router, ctx, &rq);
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

bool legs_is_fresh(const struct request *r)
{
    const struct legs *l = r->legs;
    return l->handed && now_ms() - l->handed_ms < (uint64_t)(FRESH_SHARE * 1000 * l->prefill->worker->kv_lease);
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
    return r->legs->handed && (r->legs->protocol == KVR_KV_NONE || (legs_is_fresh(r) && is_kept(r->legs)));
}

void legs_hand_over(struct request *r)
{
    struct legs *l = r->legs;
    l->handed = true;
    l->handed_ms = now_ms();
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
