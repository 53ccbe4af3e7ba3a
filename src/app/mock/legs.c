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

/* An SGLang of either side does nothing without a room for each sequence. */
static void check_rooms(const struct mock_rank *rank, const struct mock_ask *a, struct mock_error *e)
{
    const struct mock *m = rank->mock;
    const char *lacks = a->kv.lacks;
    if (lacks) mock_fail(e, 400, "BadRequestError", NULL, "Invalid request: disaggregated request received without %s", lacks);
    else if (a->kv.rooms_n != a->prompts_n * a->n)
        mock_fail(e, 400, "BadRequestError", NULL, "bootstrap_room: %zu rooms for %zu sequences", a->kv.rooms_n, a->prompts_n * a->n);
    for (size_t i = 0; i < a->kv.rooms_n && a->kv.leg == MOCK_KV_KEEPS && !e->status; i++)
        if (a->kv.rooms[i] % m->o->dp_size != rank->id)
            mock_fail(e, 400, "BadRequestError", NULL, "bootstrap_room %llu is not of rank %u", (unsigned long long)a->kv.rooms[i],
                      rank->id);
    if (e->status || !(a->kv.leg == MOCK_KV_KEEPS ? mock_kv_in_use(m, &a->kv) : mock_kv_is_fetched(m, &a->kv))) return;
    kvr_log_error("kvroute mock: a bootstrap room is in use already");
    _exit(1);
}

/* Exactly one prompt and one answer, and all that leads to the other side. */
static void check_context(const struct mock_ask *a, struct mock_error *e)
{
    if (a->kv.leg == MOCK_KV_ALONE) return;
    if (a->kv.lacks) mock_fail(e, 400, "BadRequestError", NULL, "disaggregated_params: %s is missing or not what it was", a->kv.lacks);
    else if (a->prompts_n * a->n > 1) mock_fail(e, 400, "BadRequestError", NULL, "disaggregated_params: one prompt and one answer");
}

/* The blocks of several sequences cannot be handed on as one; without the list of blocks the engine's core breaks. */
static void check_transfer(const struct mock_rank *rank, const struct mock_ask *a, struct mock_error *e)
{
    const struct mock_options *o = rank->mock->o;
    bool wrong = o->kv_protocol == MOCK_KV_MOONCAKE && a->kv.leg != MOCK_KV_ALONE &&
                 o->role == (a->kv.leg == MOCK_KV_KEEPS ? MOCK_DECODE : MOCK_PREFILL); /* each side asserts its role */
    bool lists = a->kv.lacks && strcmp(a->kv.lacks, "remote_block_ids") == 0;
    if (a->kv.leg != MOCK_KV_ALONE && (a->prompts_n * a->n > 1 || lists || wrong)) fail_inside(e);
}

/* Who fetches has no hidden states of the prompt, and breaks. */
static bool breaks_connection(const struct mock_ask *a)
{
    return a->kv.leg == MOCK_KV_FETCHES && a->prompt_logprobs && !a->kv.rooms_n && !a->kv.disagg_id;
}

int mock_leg_check(struct mock_rank *rank, struct kvr_http_conn *c, struct mock_ask *a, struct mock_error *e)
{
    if (rank->mock->o->kv_protocol == MOCK_KV_SGLANG) check_rooms(rank, a, e);
    else if (rank->mock->o->kv_protocol == MOCK_KV_TRTLLM) check_context(a, e);
    else check_transfer(rank, a, e);
    if (!e->status) check_faults(rank->mock, a, e);
    if (e->status || !breaks_connection(a)) return 0;
    kvr_http_abort(c);
    return -1;
}

void mock_leg_refused(struct mock *m, const struct mock_ask *a)
{
    if (a->kv.leg == MOCK_KV_FETCHES && !a->kv.lacks) mock_kv_release(m, &a->kv);
}

/* ---- slow ones ----------------------------------------------------------------------------------------- */

static void on_slow(uv_timer_t *t);

/* For the first of them. */
static void wake_slow(struct mock *m)
{
    uint64_t now = uv_now(&m->loop);
    if (m->slow_first) uv_timer_start(&m->slow, on_slow, KVR_MAX(m->slow_first->due_ms, now) - now, 0);
}

/* The one that the timer was for may have gone. */
static void on_slow(uv_timer_t *t)
{
    struct mock *m = t->data;
    struct mock_exchange *x = m->slow_first;
    bool due = x && x->due_ms <= uv_now(&m->loop);
    if (due) m->slow_first = x->slow_next;
    wake_slow(m);
    if (due) mock_submit(x);
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
    if (m->slow_first == x) wake_slow(m);
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

/* ---- begin and end of a sequence ----------------------------------------------------------------------- */

bool mock_leg_holds_back(const struct mock_exchange *x)
{
    return x->ask.kv.leg == MOCK_KV_KEEPS && x->ask.kv.rooms_n;
}

static bool open_rooms(struct mock_exchange *x)
{
    for (uint32_t i = 0; i < x->sequences_n; i++) {
        struct mock_sequence *s = &x->sequences[i];
        bool met = false;
        s->kept = mock_kv_open_room(s, &met);
        if (!s->kept || (met && !mock_submit_sequence(s))) return false;
    }
    return true;
}

bool mock_leg_start(struct mock_exchange *x)
{
    const struct mock_kv_ask *a = &x->ask.kv;
    if (a->leg != MOCK_KV_ALONE && a->lacks) kvr_log_warning("kvroute mock: kv_transfer_params has no %s", a->lacks);
    if (mock_leg_holds_back(x)) return open_rooms(x);
    for (uint32_t i = 0; i < x->sequences_n && a->leg == MOCK_KV_FETCHES && !a->lacks; i++)
        if (!(x->sequences[i].fetch = mock_kv_fetch(&x->sequences[i]))) return false;
    return true;
}

bool mock_leg_last_token(struct mock_sequence *s, struct mock_request *r)
{
    const struct mock_exchange *x = s->exchange;
    const struct mock_options *o = x->rank->mock->o;
    if (x->ask.kv.leg != MOCK_KV_KEEPS || x->ask.kv.lacks || o->fault_no_handoff || o->fault_bad_handoff) return true;
    struct mock_kept *k = mock_kv_keep(s, r);
    if (k) s->kept = k;
    return !k || !mock_leg_holds_back(x);
}

void mock_leg_end(struct mock_sequence *s)
{
    struct mock *m = s->exchange->rank->mock;
    mock_kv_leave(s->fetch);
    if (s->kept && mock_leg_holds_back(s->exchange)) mock_kv_abandon(m, s->kept);
    s->fetch = NULL;
    s->kept = NULL;
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
    if (leg_of(m, a) != MOCK_KV_KEEPS) return;
    kvr_http_server_send(m->server);
    die(m, MOCK_DIE_AFTER_PREFILL);
}

/* ---- what transfers tell ------------------------------------------------------------------------------- */

void mock_on_load(void *, struct mock_request *r, size_t cached)
{
    const struct mock_sequence *s = mock_request_user(r);
    if (s->fetch) mock_kv_pull(s->fetch, cached); /* what lacks something waits for ever */
}

static void go_on(struct mock_sequence *s, size_t tokens, bool spoilt)
{
    struct mock_rank *rank = s->exchange->rank;
    s->fetch = NULL;
    mock_engine_loaded(rank->engine, s->request, tokens, spoilt);
    mock_wake(rank);
}

/* vLLM tells all of the prompt but its last token, SGLang what the other side has found in its cache. */
static void loaded(struct mock_sequence *s, size_t tokens, bool spoilt, uint64_t cached_there)
{
    s->fetched = s->exchange->ask.kv.rooms_n > 0;
    if (s->fetched) s->cached = cached_there;
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
    s->fetch = NULL;
    fail_inside(&e);
    mock_break(s->exchange, &e);
}

static void pulled(struct mock *m)
{
    die(m, MOCK_DIE_AFTER_PULL);
}

static void met(struct mock_sequence *s)
{
    struct mock_error e = {0};
    if (mock_submit_sequence(s)) {
        mock_wake(s->exchange->rank);
        return;
    }
    mock_fail(&e, 500, "InternalServerError", NULL, "out of memory");
    mock_break(s->exchange, &e);
}

static void handed(struct mock_sequence *s)
{
    s->kept = NULL;
    mock_sequence_over(s);
}

static void lost(struct mock_sequence *s)
{
    struct mock_error e = {0};
    s->kept = NULL;
    mock_fail(&e, 500, "InternalServerError", NULL, "The side that decodes has not come, or has gone");
    mock_break(s->exchange, &e);
}

const struct mock_kv_hooks mock_transfer_hooks = {loaded, failed, mock_wake, pulled, met, handed, lost};

/* ---- aborts -------------------------------------------------------------------------------------------- */

/* Returns: whether there was one. */
static bool abort_one(struct mock *m, const char *rid, size_t len)
{
    struct mock_error e = {0};
    struct mock_exchange *x = m->exchanges;
    while (x && !kvr_span_is(rid, len, x->ask.kv.rid)) x = x->next;
    if (!x) return false;
    if (x->ask.kv.leg == MOCK_KV_KEEPS) mock_kv_count_aborted(m);
    mock_fail(&e, 400, "BadRequestError", NULL, "The request was aborted");
    mock_break(x, &e);
    return true;
}

void mock_abort_request(struct mock *m, struct kvr_http_conn *c)
{
    const struct kvr_http_request *http = kvr_http_conn_request(c);
    struct kvr_json root;
    const char *s = NULL;
    char rid[MOCK_KV_KEY_MAX];
    size_t len = 0;
    if (kvr_json_parse(m->json, http->body ? http->body : "", http->body_len, &root, NULL) ||
        !kvr_json_as_str(kvr_json_get(root, "rid"), &s, &len) || len == 0 || len >= sizeof rid) {
        mock_reply_error(c, 400, "`rid` must be a text");
        return;
    }
    memcpy(rid, s, len);
    while (abort_one(m, rid, len)) continue;
    kvr_http_reply(c, 200, NULL, NULL, "", 0);
}
