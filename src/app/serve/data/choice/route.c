/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CHOOSING: who may serve the request, and the router's choice of one of them, which is booked in the same moment. The router may keep a
 * request in its queue; its turn comes on any thread (on_turn), and is taken by the loop (route_next_ready, route_granted). A request that
 * was sent before, and failed, does not wait in the queue.
 * PARKED: no worker exists that could take it, or none that is up. It waits for one, among others by urgency.
 *
 * Both have one limit of time together, --queue-timeout, and comments in a stream meanwhile.
 */
#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/data/answer/account.h"
#include "app/serve/data/choice/conditional.h"
#include "app/serve/data/choice/domains.h"
#include "app/serve/data/choice/question.h"
#include "app/serve/data/choice/subset.h"
#include "app/serve/data/choice/treatment.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/carrier.h"
#include "app/serve/data/request/eligible.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/named_model.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/request/pins.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"

/* ---- waiting ----------------------------------------------------------------------------------------- */

/* The next moment a waiting request needs the timer: a comment for its client, or the end of its patience. */
static enum outcome wait_on(struct request *r)
{
    const struct serve_options *o = data_of(r)->o;
    uint64_t until;
    if (!r->wait_deadline_ms) r->wait_deadline_ms = request_after(r, model_option(&r->options, MODEL_QUEUE_TIMEOUT, o->queue_timeout));
    if (!r->wait_deadline_ms) r->wait_deadline_ms = kvr_now_ms() + 1;
    until = r->wait_deadline_ms;
    if (r->carrier) r->carrier->waits(r->carrier_ctx, until);
    else if (r->stream && o->queue_keepalive > 0) until = KVR_MIN(until, request_after(r, o->queue_keepalive));
    request_wait_until(r, until);
    return OUTCOME_WAITS;
}

enum outcome route_on_time(struct request *r, bool total)
{
    if (total || kvr_now_ms() >= r->wait_deadline_ms) {
        COUNT(r, queue_timeouts_total);
        return request_refuse(r, 503, "no worker became available in time");
    }
    reply_comment(r);
    return wait_on(r);
}

/* A priority of n counts as n seconds of seniority. */
static double seniority(const struct request *r)
{
    return (double)r->arrived_ms - r->priority * 1000;
}

enum outcome route_park(struct request *r)
{
    struct request **q = &r->loop->parked;
    while (*q && seniority(*q) <= seniority(r)) q = &(*q)->now->parked.next;
    r->now->parked = (struct parked){.next = *q, .listed = true};
    *q = r;
    atomic_fetch_add(&r->loop->parked_n, 1);
    if (r->gated) atomic_fetch_add(&r->loop->gated_n, 1);
    return wait_on(r);
}

void route_unpark(struct request *r)
{
    struct request **q = &r->loop->parked;
    atomic_fetch_sub(&r->loop->parked_n, 1);
    if (r->gated) atomic_fetch_sub(&r->loop->gated_n, 1);
    if (!r->now->parked.listed) return;
    while (*q != r) q = &(*q)->now->parked.next;
    *q = r->now->parked.next;
}

/* ---- the router's queue ------------------------------------------------------------------------------ */

/* Under the router's lock, from any thread: see request.h. */
static void on_turn(struct kvr_ticket *t, int rc, const struct kvr_router_result *result, const struct kvr_router_ctx *ctx)
{
    struct request *r = t->user;
    struct choosing *c = &r->now->choosing;
    struct loop *l = r->loop;
    c->granted = rc;
    if (rc == 0) {
        c->attempt->result = *result;
        c->attempt->table = decision_table_take(ctx, result);
    }
    kvr_lock(&l->mail_lock);
    c->ready_next = l->ready;
    l->ready = r;
    kvr_unlock(&l->mail_lock);
    uv_async_send(&l->wake);
}

struct request *route_next_ready(struct loop *l)
{
    kvr_lock(&l->mail_lock);
    struct request *r = l->ready;
    if (r) l->ready = r->now->choosing.ready_next;
    kvr_unlock(&l->mail_lock);
    return r;
}

static void leave_ready_list(struct request *r)
{
    struct loop *l = r->loop;
    kvr_lock(&l->mail_lock);
    for (struct request **q = &l->ready; *q; q = &(*q)->now->choosing.ready_next)
        if (*q == r) {
            *q = r->now->choosing.ready_next;
            break;
        }
    kvr_unlock(&l->mail_lock);
}

/* Those that wait for some of the workers are looked at again when others may be chosen (route_look_again). */
static void join_bound(struct request *r)
{
    struct choosing *c = &r->now->choosing;
    struct loop *l = r->loop;
    c->next = l->bound;
    c->at = &l->bound;
    if (c->next) c->next->now->choosing.at = &c->next;
    l->bound = r;
    atomic_fetch_add(&l->bound_n, 1);
}

static void leave_bound(struct request *r)
{
    struct choosing *c = &r->now->choosing;
    if (!c->at) return;
    *c->at = c->next;
    if (c->next) c->next->now->choosing.at = c->at;
    c->at = NULL;
    atomic_fetch_sub(&r->loop->bound_n, 1);
}

static bool are_others(const struct roster_choice *now, const struct kvr_router_request *rq)
{
    if (now->all || !rq->allowed) return now->all != !rq->allowed;
    return now->n != rq->allowed_n || memcmp(now->ids, rq->allowed, now->n * sizeof *now->ids) != 0;
}

static void look_again(struct request *r)
{
    struct choosing *c = &r->now->choosing;
    const struct roster_row *row = eligible_workers(r);
    const struct roster_choice *from = row ? treatment_candidates(r, row) : NULL;
    bool others = from && from->n && from->partition == c->attempt->partition && are_others(from, &c->rq);
    if (others && kvr_router_allow(from->partition->router, &c->ticket, &c->rq, from->all ? NULL : from->ids, from->n)) {
        const struct roster_row *before = c->workers;
        c->workers = row; /* the list is the row's */
        row = before;
    }
    roster_let_go(row);
}

void route_look_again(struct loop *l)
{
    uint64_t version = workers_version(l->data->workers);
    if (version == l->bound_seen) return;
    l->bound_seen = version;
    for (struct request *r = l->bound; r; r = r->now->choosing.next) look_again(r);
}

/* Gives up its place. If its turn has come meanwhile it is booked, and that is given back. */
static void leave_queue(struct request *r)
{
    struct choosing *c = &r->now->choosing;
    leave_bound(r);
    if (!c->queued) return;
    bool waited = kvr_router_cancel(c->attempt->partition->router, &c->ticket);
    if (!waited) leave_ready_list(r);
    if (waited || c->granted) {
        c->attempt->booking[0] = 0;
    } else {
        atomic_fetch_add(&r->loop->active, 1);
        account_unbook(c->attempt);
    }
}

void route_leave(struct request *r)
{
    struct choosing *c = &r->now->choosing;
    leave_queue(r);
    attempt_free(c->attempt);
    free(c->allowed);
    roster_let_go(c->workers);
}

/* ---- what the router has said ------------------------------------------------------------------------ */

/* An index elsewhere that predicts must hear of every decision. */
static void record_remotely(const struct attempt *a)
{
    const struct request *r = a->request;
    struct kvr_remote_index *index = r->loop->remotes_n ? r->loop->remotes[0] : NULL; /* a predicted index has one owner */
    if (!index || data_of(r)->o->kv_events || !r->locals || r->hashed_for != a->partition->block_size) return;
    uint64_t *seqs = malloc((r->locals_n + 1) * sizeof *seqs);
    if (!seqs) return;
    kvr_hash_sequence(r->locals, r->locals_n, seqs);
    kvr_remote_record(index, r->model, a->result.worker, r->locals, seqs, r->locals_n);
    free(seqs);
}

/* It is the request's attempt from now on, or its prefill leg, in the place of one that has failed. */
static void keep(struct request *r, struct attempt *a)
{
    struct attempt **place = a->prefills ? &r->legs->prefill : &r->attempt;
    attempt_free(*place);
    *place = a;
    r->now->choosing.attempt = NULL;
}

static enum outcome booked(struct request *r)
{
    struct attempt *a = r->now->choosing.attempt;
    uint32_t bs = a->partition->block_size;
    atomic_fetch_add(&r->loop->active, 1);
    a->generation_blocks = (r->isl + bs - 1) / bs;
    if (!attempt_take_worker(a)) {
        account_unbook(a);
        return OUTCOME_NOBODY;
    }
    a->label = labels_name(r->now->choosing.workers, a->worker->id, r->model);
    keep(r, a);
    if (r->form == KVR_FORM_RESPONSES && a->worker->engine == ENGINE_VLLM && a->worker->dp_size > 1) {
        request_prompt_is_hint(r); /* the engine picks the rank by itself there */
        r->members.usage_tells = false;
    }
    if (!a->decodes) record_remotely(a);
    account_booked(a);
    return OUTCOME_DONE;
}

static enum outcome refuse_full(struct request *r)
{
    const struct kvr_rejection *why = &r->now->choosing.rejection;
    return request_refusef(r, 529, "the queue of class %s is full: %s %llu of %llu", why->policy_class, kvr_queue_limit_name(why->kind),
                           (unsigned long long)why->current, (unsigned long long)why->limit);
}

static enum outcome refuse_to_wait(struct request *r)
{
    return request_refuse(r, 429, "every worker is busy, and requests of this objective do not wait");
}

static enum outcome refused(struct request *r, int rc)
{
    r->now->choosing.attempt->booking[0] = 0;
    switch (rc) {
    case -KVR_ENOTALLOWED: return request_refuse(r, 400, "the pinned worker does not serve this model");
    case -KVR_EQUEUEFULL: r->now->choosing.overloaded = true; return refuse_full(r);
    case -KVR_EOVERLOADED:
        if (r->gives_way) return refuse_to_wait(r);
        r->now->choosing.overloaded = true;
        if (!named_model_may_fall_back(r)) COUNT(r, overload_rejections_total);
        return request_refuse(r, 503, "every worker that may serve this request is overloaded");
    case -KVR_EBUSY: return refuse_to_wait(r);
    case -KVR_ESHUTDOWN: return request_refuse(r, 503, "the router is shutting down");
    case -KVR_ENOMEM:
    case -KVR_ELIMIT: return request_refuse(r, 503, kvr_strerror(rc));
    default: return OUTCOME_NOBODY;
    }
}

/* Who came, or changed, while it waited: the router knows of no models and roles, and of a new worker not yet how it stands. */
static bool may_serve(struct request *r, uint64_t id)
{
    const struct roster_row *row = eligible_workers(r);
    bool may = false, prefills = legs_asks_prefill(r);
    for (size_t i = 0; row && i < row->servers_n && !may; i++) {
        const struct roster_server *s = &row->servers[i];
        bool fits = prefills ? s->role == ROLE_PREFILL : r->routed ? s->takes_whole : s->role != ROLE_PREFILL;
        may = s->id == id && fits && worker_is_schedulable(s->worker, kvr_now_ms());
    }
    roster_let_go(row);
    return may;
}

enum outcome route_granted(struct request *r)
{
    struct choosing *c = &r->now->choosing;
    c->queued = false;
    leave_bound(r);
    if (c->granted) return refused(r, c->granted);
    if (may_serve(r, c->attempt->result.worker.worker_id)) return booked(r);
    atomic_fetch_add(&r->loop->active, 1);
    account_unbook(c->attempt);
    return OUTCOME_NOBODY;
}

/* ---- who may serve it -------------------------------------------------------------------------------- */

/* What there is of workers at one moment. */
struct fleet {
    struct partition *partition; /* where the model is served; NULL: nowhere */
    bool any;
    struct pin_seen pin, prefill_pin;
};

/* Returns: false without memory. */
static bool look_at_fleet(struct request *r, struct fleet *f)
{
    struct choosing *c = &r->now->choosing;
    if (!(c->workers = eligible_workers(r))) return false;
    f->any = roster_workers_n(c->workers) > 0;
    f->partition = c->workers->main.partition;
    f->pin = pins_look(r, &r->pin);
    f->prefill_pin = pins_look(r, &r->prefill_pin);
    if (f->pin.exists) f->partition = f->pin.partition;
    return true;
}

/* A pinned prefill worker counts until the prompt is computed. */
static enum outcome judge_pins(struct request *r, const struct fleet *f)
{
    bool prefills = r->prefill_pin.set && r->routed && (!r->legs || legs_asks_prefill(r));
    enum outcome o = r->pin.set ? pins_judge(r, &f->pin, "worker") : OUTCOME_DONE;
    if (o == OUTCOME_DONE && prefills) o = pins_judge(r, &f->prefill_pin, "prefill worker");
    if (o == OUTCOME_DONE && prefills && f->prefill_pin.role != ROLE_PREFILL)
        o = request_refusef(r, 400, "the pinned prefill worker has role %s; pin one of role prefill", role_name(f->prefill_pin.role));
    return o;
}

/* Returns: DONE: the router can be asked. */
static enum outcome judge_fleet(struct request *r, const struct fleet *f)
{
    enum outcome o = f->any ? judge_pins(r, f) : OUTCOME_DONE;
    if (o != OUTCOME_DONE) return o;
    if (workers_mode(data_of(r)->workers) == KVR_MODE_DIRECT && !r->pin.set)
        return request_refuse(r, 400, "router mode direct serves only requests that pin a worker (x-kvroute-worker)");
    if (!f->any || (!f->partition && r->now->choosing.workers->has_roles)) return OUTCOME_NOBODY;
    if (!f->partition) return request_refusef(r, 404, "no worker serves the model '%s'", r->model);
    return OUTCOME_DONE;
}

/* ---- the question to the router ---------------------------------------------------------------------- */

/* Between the two legs: who may be chosen, or should be, for where computed prompts move. Returns: false without memory. */
static bool keep_to_domains(struct request *r, struct choosing *c)
{
    if (c->attempt->decodes) domains_ask(data_of(r), r->legs->prefill->worker, &c->domain, &c->rq);
    if (!c->attempt->prefills) return true;
    if (!domains_prefill_ids(r, c->workers, r->legs->protocol, &c->allowed, &c->rq.allowed_n)) return false;
    if (c->allowed) c->rq.allowed = c->allowed;
    else c->rq.allowed_n = treatment_candidates(r, c->workers)->n;
    return true;
}

static void name_booking(struct attempt *a, struct kvr_router_request *rq)
{
    rq->id = a->booking;
    rq->id_len = kvr_put_hex(a->booking, atomic_fetch_add(&data_of(a->request)->process->next_id, 1), 1);
}

static int ask_router(struct request *r, struct kvr_router_ctx *ctx)
{
    struct choosing *c = &r->now->choosing;
    struct attempt *a = c->attempt;
    bool may_queue = !r->tries && !a->decodes;
    c->queued = may_queue; /* before on_turn can run */
    int rc = may_queue ? kvr_router_submit(a->partition->router, ctx, &c->rq, &c->ticket, on_turn, r, &a->result, &c->rejection)
                       : kvr_router_find_best_match(a->partition->router, ctx, &c->rq, &a->result);
    if (rc != KVR_PARKED) c->queued = false;
    else if (c->rq.allowed && !c->allowed) join_bound(r);
    return rc;
}

/* Of a model whose workers have roles: what becomes of the request, once. */
static enum outcome treat(struct request *r)
{
    const struct roster_row *row = r->now->choosing.workers;
    if (r->legs) return OUTCOME_DONE;
    if (row->has_roles && !r->routed) return legs_pass_on(r);
    if (row->has_roles) {
        enum outcome o = treatment_decide(r, row);
        return o == OUTCOME_DONE ? conditional_judge(r, row) : o;
    }
    return treatment_wants_two(r) ? request_refuse(r, 400, "two legs are not possible: this model has no prefill and decode workers")
                                  : OUTCOME_DONE;
}

/* No prompt is computed that nobody could go on from. */
static bool is_gated(struct request *r)
{
    return r->gated = legs_prefill_next(r) && !treatment_can_pair(r, r->now->choosing.workers);
}

static enum outcome choose_from(struct request *r, struct partition *partition)
{
    struct choosing *c = &r->now->choosing;
    struct kvr_router_ctx *ctx = ctx_get(&r->loop->ctxs, partition);
    c->attempt = attempt_new(r, partition);
    if (!ctx || !c->attempt) return request_refuse(r, 503, kvr_strerror(-KVR_ENOMEM));
    c->attempt->prefills = legs_prefill_next(r);
    c->attempt->decodes = legs_are_two(r) && !c->attempt->prefills;
    c->attempt->once = c->attempt->decodes || (c->attempt->prefills && legs_at_once(r));
    c->attempt->retries_500 = c->attempt->prefills || (c->attempt->decodes && !r->legs->paired_again);
    c->attempt->number = r->tries;
    question_of(r, c->workers, partition, &c->rq);
    if (!keep_to_domains(r, c)) return request_refuse(r, 503, kvr_strerror(-KVR_ENOMEM));
    enum outcome o = subset_keep(r, c->workers, partition, &c->rq, &c->allowed);
    if (o != OUTCOME_DONE) return o;
    name_booking(c->attempt, &c->rq);
    c->rq.override = question_override(r, &c->override);
    c->attempt->mode = c->rq.mode ? *c->rq.mode : (enum kvr_router_mode)workers_mode(data_of(r)->workers);
    int rc = ask_router(r, ctx);
    if (rc == KVR_PARKED) return wait_on(r);
    if (rc) return refused(r, rc);
    c->attempt->table = decision_table_take(ctx, &c->attempt->result);
    return booked(r);
}

enum outcome route_choose(struct request *r)
{
    struct fleet fleet = {0};
    if (!look_at_fleet(r, &fleet)) return request_refuse(r, 503, "out of memory");
    enum outcome o = judge_fleet(r, &fleet);
    if (o == OUTCOME_DONE) o = treat(r);
    if (o != OUTCOME_DONE) return o;
    if (is_gated(r)) return OUTCOME_NOBODY;
    const struct roster_choice *from = treatment_candidates(r, r->now->choosing.workers);
    const struct pin_seen *pin = legs_asks_prefill(r) ? &fleet.prefill_pin : &fleet.pin;
    struct partition *partition = pin->exists ? pin->partition : subset_partition(r, r->now->choosing.workers, from);
    return partition ? choose_from(r, partition) : OUTCOME_NOBODY;
}

/* ---- the second leg ---------------------------------------------------------------------------------- */

enum { LOOK_AGAIN_MS = 20 /* for a decode worker that can take it */ };

/* What was computed is of no use any more. It is computed again as soon as somebody could go on from it. */
static enum outcome compute_again(struct request *r)
{
    const struct roster_row *row = r->now->choosing.workers = eligible_workers(r);
    if (!row || !treatment_can_pair(r, row)) return OUTCOME_NOBODY;
    (void)request_refuse(r, 503, "the prompt was computed, and kept too long for a worker to go on from it, or lost");
    return OUTCOME_FAILED;
}

enum outcome route_pair(struct request *r)
{
    struct legs *l = r->legs;
    if (legs_pair_first(r)) l->paired = true;
    if (!l->comment_ms) l->comment_ms = request_after(r, data_of(r)->o->queue_keepalive);
    if (!l->pair_deadline_ms) l->pair_deadline_ms = request_after(r, data_of(r)->o->handoff_timeout);
    enum outcome o = !l->handed || legs_is_usable(r) ? route_choose(r) : compute_again(r);
    if (o != OUTCOME_NOBODY && !(o == OUTCOME_REFUSED && r->refusal.status == 503)) return o;
    request_wait_until(r, KVR_MIN(l->pair_deadline_ms, kvr_now_ms() + LOOK_AGAIN_MS));
    return OUTCOME_WAITS;
}

enum outcome route_pair_on_time(struct request *r, bool total)
{
    if (total) return request_refuse(r, 504, TOOK_TOO_LONG);
    if (kvr_now_ms() >= r->legs->pair_deadline_ms)
        return request_refuse(r, 503,
                              r->legs->handed ? "the prompt is computed, but no worker became available in time to go on from it"
                                              : "no worker became available in time to go on from the prompt once it is computed");
    if (r->stream && r->legs->comment_ms && kvr_now_ms() >= r->legs->comment_ms) {
        reply_comment(r);
        r->legs->comment_ms = 0;
    }
    route_leave(r);
    memset(r->now, 0, sizeof *r->now);
    return route_pair(r);
}
