/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which phase of a request follows which: the drawing of request.h, in code. step() takes the outcome that a phase has returned, begins
 * what follows, and goes on with the outcome of that, until a phase waits for a callback or the request has ended.
 *
 * end() is the only way out. It leaves the phase, tells what is known of the request and frees it; while a thread works for the request
 * all of that waits until the job is over, as the job reads and writes what the phase holds.
 */
#include "app/serve/data/port/flow.h"

#include <string.h>

#include "app/serve/data/answer/account.h"
#include "app/serve/data/answer/answer.h"
#include "app/serve/data/answer/model_gauges.h"
#include "app/serve/data/choice/treatment.h"
#include "app/serve/data/prompt/local_tokens.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/carrier.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/named_model.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/data/request/telemetry.h"
#include "app/serve/data/two_legs/bootstrap.h"
#include "app/serve/data/two_legs/release.h"
#include "app/serve/data/two_legs/rendezvous.h"

static void step(struct request *r, enum outcome o);

/* An attempt tells of an outcome. */
static void hear(struct attempt *a, enum outcome o)
{
    step(a->request, o);
}

static enum outcome begin_prefill(struct request *r)
{
    if (legs_pair_first(r) && !transfer_draw(r)) return request_refuse(r, 503, "out of memory");
    return prefill_begin(r, hear);
}

static enum outcome begin_rendezvous(struct request *r)
{
    return rendezvous_begin(r, hear);
}

/* Of two legs at once both are sent already. */
static enum outcome begin_sending(struct request *r)
{
    if (legs_at_once(r)) return rendezvous_commit(r);
    if (r->attempt->decodes && !r->carrier && !(r->attempt->body = legs_decode_body(r))) return request_refuse(r, 503, "out of memory");
    return attempt_send(r->attempt, hear);
}

static enum outcome sending_on_time(struct request *r, bool total)
{
    if (legs_at_once(r) && !total) rendezvous_missed(r);
    return attempt_on_time(r->attempt, total);
}

static const struct {
    enum outcome (*begin)(struct request *r);
    void (*leave)(struct request *r);                       /* NULL: it holds nothing */
    enum outcome (*on_time)(struct request *r, bool total); /* NULL: it has only --total-timeout, and is refused then */
    enum request_phase next;                                /* when it is done */
    size_t holds;                                           /* bytes of request.now */
} phases[PHASES_N] = {
    [PHASE_READING] = {body_begin, NULL, NULL, PHASE_TOKENS, sizeof(struct reading)},
    [PHASE_TOKENS] = {tokens_begin, tokens_leave, tokens_on_time, PHASE_LOOKUP, sizeof(struct tokenizing)},
    [PHASE_LOOKUP] = {lookup_begin, lookup_leave, NULL, PHASE_CHOOSING, sizeof(struct lookup)},
    [PHASE_CHOOSING] = {route_choose, route_leave, route_on_time, PHASE_SENDING, sizeof(struct choosing)},
    [PHASE_PARKED] = {route_park, route_unpark, route_on_time, PHASE_CHOOSING, sizeof(struct parked)},
    [PHASE_PREFILL] = {begin_prefill, NULL, prefill_on_time, PHASE_PAIRING},
    [PHASE_PAIRING] = {route_pair, route_leave, route_pair_on_time, PHASE_SENDING, sizeof(struct choosing)},
    [PHASE_RENDEZVOUS] = {begin_rendezvous, NULL, rendezvous_on_time, PHASE_SENDING},
    [PHASE_SENDING] = {begin_sending, NULL, sending_on_time, PHASE_RELAYING},
    [PHASE_RELAYING] = {answer_begin, NULL, answer_on_time, PHASE_RELAYING},
};

static void leave(struct request *r)
{
    if (phases[r->phase].leave) phases[r->phase].leave(r);
}

/* An answer may take long: what is held for it is the attempt. Returns: false without memory. */
static bool hold(struct request *r, enum request_phase phase)
{
    size_t n = phases[phase].holds;
    if (phase == PHASE_SENDING) {
        free(r->now);
        r->now = NULL;
    }
    if (n && !r->now && !(r->now = malloc(sizeof *r->now))) return false;
    if (n) memset(r->now, 0, n);
    return true;
}

static enum outcome enter(struct request *r, enum request_phase phase)
{
    if (!hold(r, phase)) return request_refuse(r, 503, "out of memory");
    r->phase = phase;
    r->phase_deadline_ms = 0;
    model_gauges_enter(r);
    return phases[phase].begin(r);
}

static enum outcome move(struct request *r, enum request_phase phase)
{
    telemetry_phase(r);
    leave(r);
    return enter(r, phase);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void close_request(struct request *r)
{
    leave(r);
    account_close(r);
    telemetry_tell(r);
    admission_close(r);
    attempt_free(r->attempt);
    legs_free(r);
    telemetry_end(r);
    request_free(r);
}

static void end(struct request *r)
{
    if (r->attempt) attempt_cancel(r->attempt);
    legs_cancel(r);
    uv_timer_stop(&r->timer);
    r->ended = true;
    if (r->working) kvr_job_give_up(&r->working->job);
    else close_request(r);
}

static void end_stream(struct kvr_http_conn *c, bool whole)
{
    if (whole) kvr_http_end(c);
    else kvr_http_abort(c);
}

static void end_refused(struct request *r)
{
    if (r->carrier) r->carrier->refused(r->carrier_ctx, r);
    struct refusal why = r->refusal;
    bool in_stream = r->conn && r->early_head, said = in_stream && reply_error_event(r->conn, why.status, why.text);
    struct kvr_http_conn *c = request_detach(r);
    r->refusal = (struct refusal){0};
    r->status = why.status;
    model_gauges_end(r, r->tries ? END_FAILED : END_REFUSED);
    if (!r->working) account_request(r);
    if (why.status >= 500) COUNT(r, errors_total);
    telemetry_ending(r, r->tries ? ENDING_FAILED : ENDING_REFUSED);
    if (c && !in_stream && r->telemetry) kvr_http_conn_tell(c, &r->telemetry->told);
    if (c && !in_stream) reply_refusal(c, &why, r);
    end(r);
    if (in_stream) end_stream(c, said);
    refusal_free(&why);
}

/* The client may have gone with the last event. */
static void end_whole(struct request *r)
{
    account_answered(r); /* of an answer whose bytes do not say that they are the last */
    model_gauges_end_whole(r);
    bool whole = !r->conn || answer_flush(r);
    telemetry_ending(r, ENDING_OK);
    struct kvr_http_conn *c = request_detach(r);
    end(r);
    if (c) end_stream(c, whole);
}

/* The worker broke off, or a timeout struck, after the answer had begun. */
static void end_broken(struct request *r)
{
    if (answer_is_complete(r)) {
        end_whole(r);
        return;
    }
    COUNT(r, errors_total);
    telemetry_ending(r, ENDING_BROKEN);
    model_gauges_end(r, END_BROKEN);
    bool said = answer_takes_events(r) && answer_add_error(r, 502, r->refusal.text);
    struct kvr_http_conn *c = request_detach(r);
    r->status = r->refusal.status;
    end(r);
    end_stream(c, said);
}

/* A client that reads to the last event and leaves then has its answer. */
static void end_gone(struct request *r)
{
    if (answer_is_complete(r) && kvr_http_all_sent(r->conn)) {
        r->conn = NULL;
        attempt_let_go(r->attempt);
        end_whole(r);
        return;
    }
    COUNT(r, client_gone_total);
    telemetry_ending(r, ENDING_CLIENT_GONE);
    model_gauges_end(r, END_GONE);
    r->conn = NULL;
    r->status = STATUS_CLIENT_GONE;
    end(r);
}

/* The router has refused it for overload. A fallback of its model gets it as if it had come now; where there is none the refusal stands. */
static enum outcome begin_again(struct request *r)
{
    telemetry_phase(r);
    leave(r);
    legs_free(r);
    admission_again(r);
    model_gauges_again(r);
    request_forget_body(r);
    r->again = true;
    return enter(r, PHASE_READING);
}

/* ---- what follows an outcome ------------------------------------------------------------------------- */

/* No worker can take it. One that has failed on others does not wait: its refusal stands. */
static enum outcome wait_or_refuse(struct request *r)
{
    if (!r->tries) {
        legs_free(r); /* how it is treated is decided by the workers that are there when it is looked at again */
        return move(r, PHASE_PARKED);
    }
    return legs_asks_prefill(r) && treatment_fall_back(r, FALLBACK_NO_PREFILL) ? move(r, PHASE_CHOOSING) : OUTCOME_REFUSED;
}

static bool may_try_again(const struct request *r)
{
    return !r->carrier && r->tries <= (unsigned)model_option(&r->options, MODEL_MAX_RETRIES, (double)data_of(r)->o->max_retries) &&
           r->tries < TRIES_MAX;
}

/* A prefill worker has failed: another one, else the whole request goes to one worker. */
static enum outcome prefill_again(struct request *r)
{
    account_attempt_over(r->legs->prefill);
    rendezvous_part(r, r->legs->prefill);
    if (r->legs->protocol == KVR_KV_VLLM_MOONCAKE) bootstrap_forget(r->loop, r->legs->prefill->result.worker.worker_id);
    if (!may_try_again(r) || r->prefill_pin.set)
        return treatment_fall_back(r, FALLBACK_PREFILL_FAILED) ? move(r, PHASE_CHOOSING) : OUTCOME_REFUSED;
    COUNT(r, legs.retries[LEG_PREFILL]);
    return move(r, PHASE_CHOOSING);
}

/* A decode worker's first 500 may mean that it does not know the prefill worker's engine, which was started anew. */
static bool forgets_engine(const struct request *r)
{
    return r->legs->protocol == KVR_KV_VLLM_MOONCAKE && r->attempt->status == 500 && !r->legs->paired_again;
}

/* That engine's name is asked for again, and the decode worker is not to blame. */
static void forget_engine(struct request *r)
{
    bootstrap_forget(r->loop, r->legs->prefill->result.worker.worker_id);
    if (r->tried_n && r->tried[r->tried_n - 1] == r->attempt->result.worker.worker_id) r->tried_n--;
}

/* A decode worker has failed. One that cannot have seen the hand-off object leaves it to another one; else the prompt is computed again,
 * which costs little where it is cached. */
static enum outcome decode_again(struct request *r)
{
    bool pair_first = legs_pair_first(r), same = r->attempt->unsent && legs_is_usable(r) && !pair_first;
    if (forgets_engine(r)) forget_engine(r);
    r->legs->paired_again |= r->attempt->status == 500;
    account_attempt_over(r->attempt);
    if (pair_first) rendezvous_part(r, NULL);
    if (!same && legs_may_leak(r)) legs_leak(r, LEAK_DECODE_FAILED); /* it may not have pulled it */
    if (!same) legs_drop_handoff(r);
    if (!may_try_again(r) || r->pin.set || !treatment_has_other_decode(r)) return OUTCOME_REFUSED;
    COUNT(r, legs.retries[LEG_DECODE]);
    if (same) return move(r, PHASE_PAIRING);
    account_attempt_over(r->legs->prefill);
    return move(r, PHASE_CHOOSING);
}

/* No decode worker was found before the computed prompt was of no use any more. */
static enum outcome compute_again(struct request *r)
{
    account_attempt_over(r->legs->prefill);
    legs_leak(r, LEAK_STALE);
    legs_drop_handoff(r);
    r->tries++;
    if (!may_try_again(r)) return OUTCOME_REFUSED;
    COUNT(r, legs.retries[LEG_PREFILL]);
    return move(r, PHASE_CHOOSING);
}

static bool prefill_has_failed(const struct request *r)
{
    return r->phase == PHASE_PREFILL || (r->phase == PHASE_RENDEZVOUS && r->legs->prefill->state == ATTEMPT_FAILED);
}

static enum outcome ask_another(struct request *r)
{
    if (r->phase == PHASE_PAIRING) return compute_again(r);
    if (prefill_has_failed(r)) return prefill_again(r);
    if (legs_are_two(r)) return decode_again(r);
    account_attempt_over(r->attempt);
    if (!may_try_again(r))
        return legs_asks_prefill(r) && treatment_fall_back(r, FALLBACK_PREFILL_FAILED) ? move(r, PHASE_CHOOSING) : OUTCOME_REFUSED;
    if (r->pin.set) return OUTCOME_REFUSED;
    COUNT(r, retries_total);
    return move(r, PHASE_CHOOSING);
}

static enum outcome relay(struct request *r)
{
    enum outcome o = r->phase == PHASE_SENDING ? move(r, PHASE_RELAYING) : OUTCOME_WAITS;
    return o == OUTCOME_WAITS ? answer_relay(r) : o;
}

/* An answer may be whole without a byte. */
static enum outcome finish(struct request *r)
{
    enum outcome o = r->phase == PHASE_SENDING ? move(r, PHASE_RELAYING) : OUTCOME_WAITS;
    if (o == OUTCOME_WAITS) end_whole(r);
    return o;
}

static enum outcome look_at_time(struct request *r)
{
    uint64_t now = kvr_now_ms();
    bool total = r->total_deadline_ms && now >= r->total_deadline_ms;
    if (!total && (!r->phase_deadline_ms || now < r->phase_deadline_ms)) {
        request_arm(r);
        return OUTCOME_WAITS;
    }
    enum request_phase phase = r->phase;
    enum outcome o = phases[phase].on_time ? phases[phase].on_time(r, total) : request_refuse(r, 504, TOOK_TOO_LONG);
    if (o == OUTCOME_REFUSED || o == OUTCOME_BROKEN) telemetry_timeout(r, total);
    return o;
}

/* A prefill worker was chosen, or one that takes the request as a whole. */
static enum request_phase next_phase(const struct request *r)
{
    bool first = legs_pair_first(r);
    if (r->phase == PHASE_CHOOSING && legs_prefill_next(r)) return first ? PHASE_PAIRING : PHASE_PREFILL;
    if ((r->phase == PHASE_PREFILL || r->phase == PHASE_RENDEZVOUS) && !legs_are_two(r)) return PHASE_CHOOSING;
    if (r->phase == PHASE_PAIRING && r->carrier) return PHASE_SENDING;
    if (r->phase == PHASE_PAIRING && first) return legs_at_once(r) ? PHASE_RENDEZVOUS : PHASE_PREFILL;
    return r->phase == PHASE_PREFILL && first ? PHASE_SENDING : phases[r->phase].next;
}

static enum outcome follow(struct request *r, enum outcome o)
{
    if (o == OUTCOME_REFUSED && r->phase == PHASE_CHOOSING && r->now->choosing.overloaded && named_model_may_fall_back(r))
        return begin_again(r);
    if (o == OUTCOME_REFUSED || o == OUTCOME_GONE) release_unused(r);
    if (o == OUTCOME_REFUSED || o == OUTCOME_BROKEN || (o == OUTCOME_GONE && !answer_is_complete(r))) rendezvous_abort(r);
    switch (o) {
    case OUTCOME_WAITS: break;
    case OUTCOME_DONE: return (o = admission_next(r)) == OUTCOME_DONE ? move(r, next_phase(r)) : o;
    case OUTCOME_NOBODY: return wait_or_refuse(r);
    case OUTCOME_FAILED: return ask_another(r);
    case OUTCOME_BYTES: return relay(r);
    case OUTCOME_WHOLE: return finish(r);
    case OUTCOME_TIME: return look_at_time(r);
    case OUTCOME_BROKEN: end_broken(r); break;
    case OUTCOME_REFUSED: end_refused(r); break;
    case OUTCOME_GONE: end_gone(r); break;
    case OUTCOME_GIVEN_UP: close_request(r); break;
    }
    return OUTCOME_WAITS;
}

static void step(struct request *r, enum outcome o)
{
    while (o != OUTCOME_WAITS) o = follow(r, o);
}

/* ---- from outside ------------------------------------------------------------------------------------ */

void flow_begin(struct request *r)
{
    r->step = step;
    step(r, enter(r, PHASE_READING));
}

void flow_refuse(struct request *r, int status, const char *why)
{
    (void)request_refuse(r, status, why);
    flow_end_refused(r);
}

void flow_end_refused(struct request *r)
{
    r->step = step;
    step(r, OUTCOME_REFUSED);
}

void flow_take_ready(struct loop *l)
{
    struct request *r;
    while ((r = route_next_ready(l))) step(r, route_granted(r));
    while ((r = local_tokens_next_made(l))) step(r, tokens_made(r));
}

/* The list is taken as a whole: a request that has to wait on comes after those that arrived at the same moment, so it would be met
 * again. */
void flow_try_parked(struct loop *l)
{
    struct request *rest = l->parked;
    route_look_again(l);
    l->parked = NULL;
    for (struct request *r = rest; r; r = r->now->parked.next) r->now->parked.listed = false;
    while (rest) {
        struct request *r = rest;
        rest = r->now->parked.next;
        step(r, OUTCOME_DONE);
    }
}

void flow_refuse_parked(struct loop *l)
{
    while (l->parked) step(l->parked, request_refuse(l->parked, 503, "the router is shutting down"));
}
