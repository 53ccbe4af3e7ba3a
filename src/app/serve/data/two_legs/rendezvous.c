/* SPDX-License-Identifier: Apache-2.0 */
/* Both legs at once: data/two_legs/rendezvous.h. */
#include "app/serve/data/two_legs/rendezvous.h"

#include "app/serve/data/answer/account.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/two_legs/abort.h"
#include "app/serve/data/two_legs/bootstrap.h"
#include "app/serve/workers/table/missed_rendezvous.h"

enum { LOOK_AGAIN_MS = 10 /* for the name of an engine */ };

/* ---- the decode leg ---------------------------------------------------------------------------------- */

static void hold(struct attempt *a)
{
    account_prompt_is_computed(a->request->legs->prefill);
    kvr_buf_add(&a->held, a->bytes, a->bytes_n);
    if (a->held.len >= RENDEZVOUS_HELD_MAX) attempt_pause(a);
}

/* An error that is the client's own needs no prompt. */
static void pass_on(struct attempt *a, enum outcome o)
{
    struct request *r = a->request;
    struct legs *l = r->legs;
    rendezvous_part(r, a);
    a->holds = false;
    a->tell = l->hear;
    r->phase = PHASE_SENDING;
    request_step(r, o);
}

/* What the decode leg tells before the commit point. */
static void hear(struct attempt *a, enum outcome o)
{
    struct request *r = a->request;
    bool answers = o == OUTCOME_BYTES || o == OUTCOME_WHOLE;
    if (answers && a->status >= 400) {
        pass_on(a, o);
    } else if (o == OUTCOME_BYTES) {
        hold(a);
        if (a->held.failed) request_step(r, request_refuse(r, 503, "out of memory"));
    } else if (o != OUTCOME_WHOLE) {
        request_step(r, o);
    }
}

static enum outcome send_decode(struct request *r)
{
    struct attempt *d = r->attempt;
    if (!(d->body = legs_decode_body(r))) return request_refuse(r, 503, "out of memory");
    d->holds = true;
    return attempt_send(d, hear);
}

/* ---- both -------------------------------------------------------------------------------------------- */

/* Returns: DONE: it is known, or not needed. */
static enum outcome learn_engine(struct request *r)
{
    struct attempt *p = r->legs->prefill;
    struct transfer *t = &r->legs->transfer;
    if (r->legs->protocol != KVR_KV_VLLM_MOONCAKE) return OUTCOME_DONE;
    switch (bootstrap_engine(r->loop, p->worker, p->named_rank, t->engine, sizeof t->engine)) {
    case BOOTSTRAP_KNOWN: return OUTCOME_DONE;
    case BOOTSTRAP_ASKED: request_wait_until(r, kvr_now_ms() + LOOK_AGAIN_MS); return OUTCOME_WAITS;
    default: return attempt_fail(p, 502, "the prefill worker's bootstrap address does not tell its engine's name");
    }
}

static enum outcome send_both(struct request *r)
{
    struct legs *l = r->legs;
    enum outcome o = learn_engine(r);
    if (o != OUTCOME_DONE) return o;
    o = prefill_begin(r, l->hear);
    if (o == OUTCOME_WAITS) o = send_decode(r);
    if (o != OUTCOME_WAITS) return o;
    l->decode_deadline_ms = request_after(r, model_option(&r->options, MODEL_FIRST_TOKEN_TIMEOUT, data_of(r)->o->first_token_timeout));
    prefill_wait(r);
    return OUTCOME_WAITS;
}

enum outcome rendezvous_begin(struct request *r, void (*then)(struct attempt *a, enum outcome o))
{
    r->legs->hear = then;
    if (!transfer_draw(r)) return request_refuse(r, 503, "out of memory");
    return send_both(r);
}

/* An SGLang that computes does not end before it has been met. */
enum outcome rendezvous_on_time(struct request *r, bool total)
{
    struct legs *l = r->legs;
    if (l->prefill->state == ATTEMPT_CHOSEN) return total ? request_refuse(r, 504, TOOK_TOO_LONG) : send_both(r);
    bool silent = !r->attempt->held.len && r->attempt->call;
    bool late = l->prefill_deadline_ms && kvr_now_ms() >= l->prefill_deadline_ms;
    if (silent && l->decode_deadline_ms && kvr_now_ms() >= l->decode_deadline_ms && !late && !total)
        return attempt_on_time(r->attempt, false);
    if (!silent) l->decode_deadline_ms = 0;
    if (late && silent && l->protocol == KVR_KV_SGLANG) rendezvous_missed(r);
    return prefill_on_time(r, total);
}

enum outcome rendezvous_commit(struct request *r)
{
    struct attempt *d = r->attempt;
    d->holds = false;
    d->tell = r->legs->hear;
    d->bytes = d->held.data;
    d->bytes_n = d->held.len;
    attempt_resume(d);
    if (d->held.len) return OUTCOME_BYTES;
    if (d->state == ATTEMPT_WHOLE) return OUTCOME_WHOLE;
    request_wait_until(r, attempt_first_byte_until(d));
    return OUTCOME_WAITS;
}

void rendezvous_missed(struct request *r)
{
    missed_rendezvous_note(data_of(r)->workers, r->legs->prefill->result.worker.worker_id, r->attempt->result.worker.worker_id);
}

/* ---- its end ----------------------------------------------------------------------------------------- */

void rendezvous_abort(struct request *r)
{
    if (!r->legs || !r->legs->paired) return;
    abort_leg(r, r->legs->prefill);
    abort_leg(r, r->attempt);
}

static void drop(struct request *r, struct attempt *a)
{
    abort_leg(r, a);
    attempt_cancel(a);
    account_attempt_over(a);
}

void rendezvous_part(struct request *r, const struct attempt *but)
{
    struct legs *l = r->legs;
    if (!l->paired) return;
    l->paired = false;
    l->decode_deadline_ms = 0;
    if (l->prefill && l->prefill != but) drop(r, l->prefill);
    if (r->attempt && r->attempt != but) drop(r, r->attempt);
}
