/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests of which another engine does a part: what they may ask for, what transfers tell of them, and the faults that tests provoke.
 *
 *     begin -> mock_leg_check -> (slow) -> submitted -> admitted: mock_on_load -> pull (kv_fetch.c) -> loaded -> passes, as others
 *                  |                                                                      '--------> failed -> 500, or computed
 *                  '-> refused; told to the keeper
 *
 * generate.c begins and ends them; the two are one thing.
 */
#include "app/mock/generate.h"

#include <string.h>
#include <unistd.h>

enum { DIED = 3 };

static void fail_inside(struct mock_error *e)
{
    mock_fail(e, 500, "InternalServerError", NULL, "Internal server error");
}

/* ---- what may be asked --------------------------------------------------------------------------------- */

/* The leg that a request is. Without hand-offs it is told by the role. */
static enum mock_kv_leg leg_of(const struct mock *m, const struct mock_ask *a)
{
    if (a->kv.leg != MOCK_KV_ALONE || m->o->kv_protocol != MOCK_KV_NONE) return a->kv.leg;
    return m->o->role == MOCK_PREFILL ? MOCK_KV_KEEPS : m->o->role == MOCK_DECODE ? MOCK_KV_FETCHES : MOCK_KV_ALONE;
}

/* From 500 on they stand for something in front of the engine, which hears nothing of the request then. */
static void check_faults(struct mock *m, struct mock_ask *a, struct mock_error *e)
{
    enum mock_kv_leg leg = leg_of(m, a);
    uint64_t status = leg == MOCK_KV_KEEPS ? m->o->fault_prefill_status : leg == MOCK_KV_FETCHES ? m->o->fault_decode_status : 0;
    if (!status || (m->o->fault_count && m->faults >= m->o->fault_count)) return;
    m->faults++;
    if (status >= 500) a->kv.leg = MOCK_KV_ALONE;
    mock_fail(e, (int)status, status < 500 ? "BadRequestError" : "InternalServerError", NULL, "fault %llu", (unsigned long long)status);
}

/* The blocks of several sequences cannot be handed on as one; without the list of blocks the engine's core breaks. */
static void check_transfer(const struct mock_ask *a, struct mock_error *e)
{
    bool lists = a->kv.lacks && strcmp(a->kv.lacks, "remote_block_ids") == 0;
    if (a->kv.leg != MOCK_KV_ALONE && (a->prompts_n * a->n > 1 || lists)) fail_inside(e);
}

/* Who fetches has no hidden states of the prompt, and breaks. */
static bool breaks_connection(const struct mock_ask *a)
{
    return a->kv.leg == MOCK_KV_FETCHES && a->prompt_logprobs;
}

int mock_leg_check(struct mock *m, struct kvr_http_conn *c, struct mock_ask *a, struct mock_error *e)
{
    check_transfer(a, e);
    if (!e->status) check_faults(m, a, e);
    if (e->status || !breaks_connection(a)) return 0;
    kvr_http_abort(c);
    return -1;
}

void mock_leg_refused(struct mock *m, const struct mock_ask *a)
{
    if (a->kv.leg == MOCK_KV_FETCHES && !a->kv.lacks) mock_kv_release(m, &a->kv);
}

/* ---- slow ones ----------------------------------------------------------------------------------------- */

static void on_slow(uv_timer_t *t)
{
    struct mock *m = t->data;
    struct mock_exchange *x = m->slow_first;
    if (!x) return;
    m->slow_first = x->slow_next;
    if (m->slow_first) uv_timer_start(t, on_slow, KVR_MAX(m->slow_first->due_ms, uv_now(&m->loop)) - uv_now(&m->loop), 0);
    mock_submit(x);
}

bool mock_leg_waits(struct mock_exchange *x)
{
    struct mock *m = x->rank->mock;
    uint64_t ms = (uint64_t)(m->o->fault_slow_prefill * 1000);
    struct mock_exchange **end = &m->slow_first;
    if (ms == 0 || leg_of(m, &x->ask) != MOCK_KV_KEEPS) return false;
    x->due_ms = uv_now(&m->loop) + ms;
    while (*end) end = &(*end)->slow_next;
    *end = x;
    m->slow.data = m;
    if (m->slow_first == x) uv_timer_start(&m->slow, on_slow, ms, 0);
    return true;
}

void mock_leg_gone(struct mock_exchange *x)
{
    for (struct mock_exchange **at = &x->rank->mock->slow_first; *at; at = &(*at)->slow_next)
        if (*at == x) {
            *at = x->slow_next;
            return;
        }
}

/* ---- ends ---------------------------------------------------------------------------------------------- */

bool mock_leg_ignores_abort(const struct mock_exchange *x)
{
    return x->rank->mock->o->fault_ignore_abort && leg_of(x->rank->mock, &x->ask) == MOCK_KV_KEEPS;
}

/* At once: nobody is told, as when a process is killed. */
static void die(const struct mock *m, enum mock_death when)
{
    if ((enum mock_death)m->o->fault_die_after == when) _exit(DIED);
}

void mock_leg_answered(struct mock *m, const struct mock_ask *a)
{
    if (leg_of(m, a) == MOCK_KV_KEEPS) die(m, MOCK_DIE_AFTER_PREFILL);
}

/* ---- what transfers tell ------------------------------------------------------------------------------- */

void mock_on_load(void *ctx, struct mock_request *r, size_t cached)
{
    const struct mock_sequence *s = mock_request_user(r);
    (void)ctx;
    if (s->exchange->fetch) mock_kv_pull(s->exchange->fetch, cached);
    else kvr_log_warning("kvroute mock: kv_transfer_params has no %s: this request waits for ever", s->exchange->ask.kv.lacks);
}

static void go_on(struct mock_sequence *s, size_t tokens, bool spoilt)
{
    struct mock_rank *rank = s->exchange->rank;
    s->exchange->fetch = NULL;
    mock_engine_loaded(rank->engine, s->request, tokens, spoilt);
    mock_wake(rank);
}

static void loaded(struct mock_sequence *s, size_t tokens, bool spoilt)
{
    die(s->exchange->rank->mock, MOCK_DIE_AFTER_PULL);
    go_on(s, tokens, spoilt);
}

static void failed(struct mock_sequence *s, const char *why, bool fatal)
{
    struct mock_error e = {0};
    kvr_log_warning("kvroute mock: the KV of a request has not come: %s", why);
    if (!fatal && s->exchange->rank->mock->o->kv_load_failure == MOCK_KV_RECOMPUTE) {
        go_on(s, 0, false);
        return;
    }
    s->exchange->fetch = NULL;
    fail_inside(&e);
    mock_break(s->exchange, &e);
}

static void pulled(struct mock *m)
{
    die(m, MOCK_DIE_AFTER_PULL);
}

const struct mock_kv_hooks mock_transfer_hooks = {loaded, failed, mock_wake, pulled};
