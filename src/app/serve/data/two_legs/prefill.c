/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PREFILL: the first of two legs. A prefill worker gets the request with one token to generate and answers with a hand-off object, which
 * is kept with the whole of its answer. Nothing of that goes to the client, who may wait with comments meanwhile; but for an error that is
 * the client's own (4xx), which becomes the answer.
 */
#include "app/serve/data/answer/account.h"
#include "app/serve/data/choice/treatment.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/data/two_legs/rendezvous.h"

enum { HANDOFF_MAX = 16 << 20 /* bytes of a prefill worker's answer */ };

static uint64_t deadline(const struct request *r)
{
    const struct serve_options *o = data_of(r)->o;
    return request_after(r, o->prefill_timeout > 0 ? o->prefill_timeout
                                                   : model_option(&r->options, MODEL_FIRST_TOKEN_TIMEOUT, o->first_token_timeout));
}

/* The next moment that the timer is needed: a comment for the client, or the end of a leg's time. */
void prefill_wait(struct request *r)
{
    const struct serve_options *o = data_of(r)->o;
    uint64_t until = r->legs->prefill_deadline_ms, other = r->legs->decode_deadline_ms;
    if (other) until = until ? KVR_MIN(until, other) : other;
    if (r->stream && o->queue_keepalive > 0) {
        uint64_t comment = request_after(r, o->queue_keepalive);
        until = until ? KVR_MIN(until, comment) : comment;
    }
    request_wait_until(r, until);
}

/* The object cannot be used. held: the worker may keep the prompt all the same. */
static enum outcome no_handoff(struct request *r, const char *why, bool held)
{
    account_attempt_over(r->legs->prefill);
    rendezvous_part(r, r->legs->prefill);
    attempt_count_error(r->legs->prefill);
    if (held && r->legs->protocol != KVR_KV_NONE) legs_leak(r, LEAK_BAD_HANDOFF);
    if (treatment_fall_back(r, FALLBACK_NO_HANDOFF)) return OUTCOME_DONE;
    return request_refusef(r, 502, "the prefill worker's answer %s", why);
}

/* The answer is the prefill worker's from here on, as any other one: an error that is the client's. */
static void pass_on(struct attempt *a)
{
    struct request *r = a->request;
    if (a->status >= 400) attempt_count_error(a);
    rendezvous_part(r, a);
    attempt_free(r->attempt);
    r->attempt = a;
    r->legs->prefill = NULL;
    a->prefills = false;
    a->tell = r->legs->hear;
    r->phase = PHASE_SENDING;
}

/* Nothing is left to generate: the prefill worker's answer is the client's, in the form that it asked for. */
static enum outcome answer_ended(struct attempt *a)
{
    struct request *r = a->request;
    struct kvr_json_span answer = {a->answer.data, a->answer.data + a->answer.len};
    struct kvr_buf out = {0};
    bool made = r->stream ? kvr_handoff_ended_stream(answer, r->form == KVR_FORM_CHAT, r->split.stream_usage, &out)
                          : kvr_handoff_ended_answer(answer, &out);
    if (!made || out.failed) {
        kvr_buf_free(&out);
        return request_refuse(r, 502, "the prefill worker's answer cannot be read");
    }
    kvr_buf_free(&a->ended);
    kvr_buf_free(&a->head);
    kvr_buf_free(&a->answer); /* read, and told in another form */
    a->ended = out;
    a->is_sse = r->stream;
    a->length = r->stream ? -1 : (int64_t)out.len;
    a->bytes = a->ended.data;
    a->bytes_n = a->ended.len;
    kvr_buf_printf(&a->head, "Content-Type: %s\r\n", r->stream ? "text/event-stream" : "application/json");
    pass_on(a);
    return OUTCOME_BYTES;
}

/* Its answer is whole, and no error that is passed on or tried again. */
static enum outcome judge(struct attempt *a)
{
    struct request *r = a->request;
    struct legs *l = r->legs;
    struct kvr_json_span answer = {a->answer.data, a->answer.data + a->answer.len};
    kvr_body_unref(a->body); /* it has been sent */
    a->body = NULL;
    if (a->answer.failed) return request_refuse(r, 503, "out of memory");
    if (a->status != 200) return no_handoff(r, "has a status that is not understood", false);
    enum kvr_handoff_read read = a->answer.len ? kvr_handoff_read(l->protocol, answer, &l->handoff) : KVR_HANDOFF_UNREADABLE;
    switch (read) {
    case KVR_HANDOFF_OK: break;
    case KVR_HANDOFF_NONE:
        if (l->protocol != KVR_KV_NONE) return no_handoff(r, "has no hand-off object", false);
        break;
    case KVR_HANDOFF_PARTIAL: return no_handoff(r, "has a hand-off object that lacks members", true);
    case KVR_HANDOFF_UNREADABLE: return no_handoff(r, "cannot be read", true);
    }
    account_prefilled(a);
    if (l->handoff.ended) return answer_ended(a);
    legs_hand_over(r);
    return OUTCOME_DONE;
}

static bool is_passed_on(const struct attempt *a)
{
    return a->status >= 400 && a->status < 500;
}

/* An engine that computes one token may refuse what it would do with all of them: a call that must come, a form of the answer. */
static bool may_be_of_one_token(const struct attempt *a)
{
    const struct request *r = a->request;
    return (a->status == 400 || a->status == 500) && (r->split.forced_tools || r->split.grammar);
}

/* Returns: whether one worker is asked for all of it. */
static bool ask_one_worker(struct attempt *a)
{
    struct request *r = a->request;
    if (!may_be_of_one_token(a) || !treatment_fall_back(r, FALLBACK_ONE_TOKEN)) return false;
    attempt_cancel(a);
    account_attempt_over(a);
    rendezvous_part(r, a);
    return true;
}

static void keep(struct attempt *a)
{
    struct request *r = a->request;
    if (a->answer.len + a->bytes_n > HANDOFF_MAX) {
        attempt_cancel(a);
        request_step(r, no_handoff(r, "is larger than 16 MiB", true));
        return;
    }
    kvr_buf_add(&a->answer, a->bytes, a->bytes_n);
}

/* What the leg tells. */
static void hear(struct attempt *a, enum outcome o)
{
    struct request *r = a->request;
    bool answers = o == OUTCOME_BYTES || o == OUTCOME_WHOLE;
    if ((answers || o == OUTCOME_FAILED) && ask_one_worker(a)) {
        request_step(r, OUTCOME_DONE);
    } else if (answers && is_passed_on(a)) {
        pass_on(a);
        a->tell(a, o);
    } else if (o == OUTCOME_BYTES) {
        keep(a);
    } else {
        request_step(r, o == OUTCOME_WHOLE ? judge(a) : o);
    }
}

enum outcome prefill_begin(struct request *r, void (*then)(struct attempt *a, enum outcome o))
{
    struct attempt *a = r->legs->prefill;
    r->legs->hear = then;
    a->body = legs_prefill_body(r);
    if (!a->body) return request_refuse(r, 503, "out of memory");
    enum outcome o = attempt_send(a, hear);
    if (o != OUTCOME_WAITS) return o;
    r->legs->prefill_deadline_ms = deadline(r);
    prefill_wait(r);
    return OUTCOME_WAITS;
}

enum outcome prefill_on_time(struct request *r, bool total)
{
    uint64_t until = r->legs->prefill_deadline_ms;
    if (total || (until && kvr_now_ms() >= until)) return attempt_on_time(r->legs->prefill, total);
    reply_comment(r);
    prefill_wait(r);
    return OUTCOME_WAITS;
}
