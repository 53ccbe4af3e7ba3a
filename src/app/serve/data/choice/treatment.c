/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One worker or two legs, in this order: what the client wishes and pins, what its body allows, which workers are up
 * (treatment_decide); then whom it may go to (treatment_candidates, treatment_exclude): data/choice/treatment.h.
 */
#include "app/serve/data/choice/treatment.h"

#include <string.h>

#include "app/serve/data/choice/domains.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/pins.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/workers.h"

/* ---- one worker or two ---------------------------------------------------------------------------------- */

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

bool treatment_wants_two(const struct request *r)
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

/* Of the router's own legs each is sent a body without it: a carrier takes the one that is here. */
static enum outcome treat_remote(struct request *r, enum kvr_kv_protocol p)
{
    return !r->carrier || legs_strip(r) ? treat_as(r, TREAT_REMOTE, p) : request_refuse(r, 503, "out of memory");
}

static enum outcome treat_prefill_only(struct request *r, enum kvr_kv_protocol p)
{
    return legs_strip(r) ? treat_as(r, TREAT_PREFILL_ONLY, p) : request_refuse(r, 503, "out of memory");
}

bool treatment_go_whole(struct request *r, struct kvr_worker to)
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
    if (treatment_wants_two(r) && !has_legs(r))
        return "two legs (x-kvroute-disagg: remote, or a pinned prefill worker) are not possible: only completions and chats have them";
    if (treatment_wants_two(r) && r->pin.set && role != ROLE_DECODE)
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

enum outcome treatment_decide(struct request *r, const struct roster_row *row)
{
    enum kvr_kv_protocol p = KVR_KV_NONE, one = KVR_KV_NONE;
    const char *wrong = wrong_wish(r, row);
    if (wrong) return request_refuse(r, 400, wrong);
    bool pair = may_pair(r) && find_pair(r, row, &p), free_choice = r->wish == WISH_NONE && !r->pin.set && !r->prefill_pin.set;
    const char *why = pair ? kvr_handoff_obstacle(&r->split, p) : NULL;
    if (has_legs(r) && free_choice && wants_one_token(r) && find_prefill(row, &one) && answers_alone(one))
        return treat_prefill_only(r, one);
    if (pair && !why) return treat_remote(r, p);
    if (pair && (treatment_wants_two(r) || !row->whole.n))
        return request_refusef(r, 400, "`%s`: not possible where one worker prefills and another one decodes%s", why,
                               treatment_wants_two(r) ? "" : ", and no worker does both");
    return treatment_wants_two(r) ? no_pair(r, row) : treat_whole(r, row);
}

const struct roster_choice *treatment_candidates(const struct request *r, const struct roster_row *row)
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

bool treatment_fall_back(struct request *r, enum fallback why)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    bool can = row && !data_of(r)->o->enforce_disagg && !treatment_wants_two(r) && roster_any_up(row, &row->whole);
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
    size_t n = missed_rendezvous_by(data_of(r)->workers, prefill, missed);
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

size_t treatment_exclude(struct request *r, const struct roster_row *row, const uint64_t **out)
{
    struct legs *l = r->legs;
    *out = l ? l->excluded : r->tried;
    if (!l) return r->tried_n;
    bool prefills = legs_prefill_next(r);
    size_t n = prefills ? start_list(l, l->tried, l->tried_n) : start_list(l, r->tried, r->tried_n);
    if (!legs_at_once(r) || (!prefills && r->pin.set)) return n;
    if (!prefills) return n + missed_rendezvous_by(data_of(r)->workers, l->prefill->result.worker.worker_id, l->excluded + n);
    const struct roster_choice *from = &row->prefill[l->protocol];
    for (size_t i = 0; i < from->n && n < LEGS_EXCLUDED_MAX; i++)
        if (is_alone(r, &row->decode[l->protocol], from->ids[i])) l->excluded[n++] = from->ids[i];
    return n;
}

bool treatment_has_other_decode(const struct request *r)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, r->model);
    bool found = false;
    for (size_t i = 0; row && !found && i < row->servers_n; i++) {
        const struct worker *w = row->servers[i].worker;
        found = w->role == ROLE_DECODE && w->kv_protocol == r->legs->protocol && w->partition == row->decode[r->legs->protocol].partition &&
                worker_is_schedulable(w, kvr_now_ms()) && !has(r->tried, r->tried_n, w->id) &&
                domains_meet(data_of(r), r->legs->prefill->worker, w);
    }
    roster_let_go(row);
    return found;
}

bool treatment_can_pair(struct request *r, const struct roster_row *row)
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
