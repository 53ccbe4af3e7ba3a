/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The selection service: choose, book, report, release, over HTTP.
 *
 *     /select ---------- remembers what it chose, for a while, under the caller's selection_id
 *        \-> /reservations {selection_id}        books that (once)
 *     /select_and_reserve                        chooses and books in one go; may wait in the queue
 *     /reservations {worker_id, ...}             books what somebody else chose
 *     /reservations/{id}/prefill_complete, /output_block, /renew; DELETE /reservations/{id}
 *
 * Everything runs on the main loop, but on_turn: that runs under a router's lock on whatever thread made room, and only
 * puts the waiting request on a list and wakes the loop. A client that goes away gives its place or its booking back.
 */
#include "app/serve/admin/room.h"

#include <math.h>
#include <string.h>

#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "base/list.h"
#include "base/lock.h"
#include "base/lru.h"

enum { SELECTION_ID_MAX = 200 };

/* ---- what has been selected and not booked yet ------------------------------------------------------- */

struct booking {
    struct partition *partition;
    struct kvr_worker worker;
    const uint64_t *seqs;
    size_t seqs_n;
    uint64_t isl, effective;
    bool track_prefill, decodes;
};

struct pending {
    struct kvr_lru_entry lru;
    uint64_t expires_ms;
    struct booking booking; /* its hashes are those below */
    char id[SELECTION_ID_MAX + 1];
    uint64_t seqs[];
};

/* ---- what waits in a queue --------------------------------------------------------------------------- */

struct waiting {
    struct waiting *next, *prev, *ready_next;
    struct admin *admin;
    struct kvr_http_conn *conn;
    struct question q;
    struct kvr_router_request rq;
    struct kvr_ticket ticket;
    struct kvr_rejection rejection;
    struct kvr_router_result result;
    int rc;
    bool parked, protocol, named; /* protocol: answered in the shape of the request protocol; named: the id is the caller's */
    uint64_t deadline_ms;
    char id[SELECTION_ID_MAX + 3];
    struct reach reach; /* of the chosen rank */
};

/* ---- what came before there were workers --------------------------------------------------------------- */

struct held {
    struct held *next;
    struct kvr_http_conn *conn;
    uint64_t deadline_ms;
};

/* The main loop's, but `ready`. */
struct selection {
    struct held *held, **held_end; /* oldest first */
    bool had_workers;              /* --min-initial-workers have been there once */
    struct kvr_lru pending;
    size_t pending_bytes;
    struct waiting *waiting;
    uv_async_t wake;
    struct kvr_lock lock; /* ready */
    struct waiting *ready;
    bool running;
    selection_begin_fn *begin;
};

static size_t pending_size(const struct pending *p)
{
    return sizeof *p + p->booking.seqs_n * sizeof *p->seqs;
}

static bool pending_same(const struct kvr_lru_entry *e, const void *id)
{
    return strcmp(((const struct pending *)e)->id, id) == 0;
}

static uint64_t pending_hash(const char *id)
{
    return kvr_hash_bytes(id, strlen(id), kvr_secret());
}

static struct pending *pending_find(const struct selection *sel, const char *id)
{
    return (struct pending *)kvr_lru_find(&sel->pending, pending_hash(id), pending_same, id);
}

static struct pending *pending_oldest(const struct selection *sel)
{
    return (struct pending *)sel->pending.oldest;
}

static void pending_drop(struct selection *sel, struct pending *p)
{
    kvr_lru_remove(&sel->pending, &p->lru);
    sel->pending_bytes -= pending_size(p);
    free(p);
}

static void pending_add(struct selection *sel, const struct serve_options *o, struct pending *p)
{
    struct pending *before = pending_find(sel, p->id);
    if (before) pending_drop(sel, before);
    while (pending_oldest(sel) && (sel->pending.n >= o->selection_entries || sel->pending_bytes + pending_size(p) > o->selection_bytes))
        pending_drop(sel, pending_oldest(sel));
    kvr_lru_add(&sel->pending, &p->lru, pending_hash(p->id));
    sel->pending_bytes += pending_size(p);
}

bool selection_asks(struct admin *admin, const struct partition *p)
{
    const struct selection *sel = admin->selection;
    bool asks = false;
    for (const struct waiting *w = sel ? sel->waiting : NULL; w && !asks; w = w->next)
        asks = w->q.partition == p || w->q.decode.partition == p || w->q.whole.partition == p;
    for (const struct kvr_lru_entry *e = sel ? sel->pending.oldest : NULL; e && !asks; e = e->newer)
        asks = ((const struct pending *)e)->booking.partition == p;
    return asks;
}

static bool have_workers(struct admin *admin)
{
    struct selection *sel = admin->selection;
    if (!sel->had_workers) {
        workers_lock(admin->workers);
        sel->had_workers = workers_count(admin->workers) >= admin->o->min_initial_workers;
        workers_unlock(admin->workers);
    }
    return sel->had_workers;
}

bool selection_hold(struct admin *admin, struct kvr_http_conn *c)
{
    struct selection *sel = admin->selection;
    if (have_workers(admin) || admin->o->queue_timeout <= 0) return false;
    struct held *h = calloc(1, sizeof *h);
    if (!h) return false;
    *h = (struct held){NULL, c, kvr_now_ms() + (uint64_t)(admin->o->queue_timeout * 1000)};
    *sel->held_end = h;
    sel->held_end = &h->next;
    kvr_http_conn_set_user(c, h); /* so that its end is told */
    return true;
}

static struct kvr_http_conn *held_take(struct selection *sel, struct held **at)
{
    struct held *h = *at;
    struct kvr_http_conn *c = h->conn;
    *at = h->next;
    if (!h->next) sel->held_end = at;
    kvr_http_conn_set_user(c, NULL);
    free(h);
    return c;
}

/* Returns: whether the connection's request was held. */
static bool held_drop(struct selection *sel, const struct kvr_http_conn *c)
{
    for (struct held **at = &sel->held; *at; at = &(*at)->next) {
        if ((*at)->conn != c) continue;
        (void)held_take(sel, at);
        return true;
    }
    return false;
}

void selection_release(struct admin *admin)
{
    struct selection *sel = admin->selection;
    static const char body[] = "{\"error\":\"fewer workers than --min-initial-workers have come within --queue-timeout\"}";
    while (sel->held && sel->held->deadline_ms <= kvr_now_ms())
        kvr_http_reply(held_take(sel, &sel->held), 503, "application/json", "Retry-After: 1\r\n", body, sizeof body - 1);
    while (sel->held && have_workers(admin)) sel->begin(admin, held_take(sel, &sel->held));
}

/* Any thread. */
static void make_ready(struct waiting *w)
{
    struct selection *sel = w->admin->selection;
    kvr_lock(&sel->lock);
    w->ready_next = sel->ready;
    sel->ready = w;
    kvr_unlock(&sel->lock);
    uv_async_send(&sel->wake);
}

void selection_tick(struct admin *admin)
{
    struct selection *sel = admin->selection;
    uint64_t now = kvr_now_ms();
    selection_release(admin);
    while (pending_oldest(sel) && pending_oldest(sel)->expires_ms <= now) pending_drop(sel, pending_oldest(sel));
    for (struct waiting *w = sel->waiting, *next; w; w = next) {
        next = w->next;
        if (!w->parked || now < w->deadline_ms || !kvr_router_cancel(w->q.partition->router, &w->ticket)) continue;
        w->parked = false;
        w->rc = -KVR_EBUSY;
        make_ready(w);
    }
}

/* ---- ids --------------------------------------------------------------------------------------------- */

/* selection_id, or a new one. `out` gets the book's id: the given one behind "r:". Returns: NULL or the bad member. */
static const char *read_id(struct admin *admin, struct kvr_json o, const char *key, char *out, bool *given)
{
    const char *bad = NULL;
    memcpy(out, "r:", 3);
    if (!member_text(o, key, out + 2, SELECTION_ID_MAX + 1, &bad)) return bad;
    *given = out[2] != 0;
    if (!*given)
        snprintf(out + 2, SELECTION_ID_MAX, "sel-%016llx",
                 (unsigned long long)kvr_mix64(admin->process->salt ^ atomic_fetch_add(&admin->process->next_id, 1)));
    return NULL;
}

/* ---- answers ----------------------------------------------------------------------------------------- */

/* Sequence hashes of the question, made if need be. Returns: a malloc'd array. */
static uint64_t *sequence_of(const struct question *q, size_t *n)
{
    if (!q->seqs) {
        uint64_t *made = question_locals(q, n);
        if (made) kvr_hash_sequence(made, *n, made);
        return made;
    }
    *n = q->seqs_n;
    uint64_t *out = malloc((*n + 1) * sizeof *out);
    if (out) memcpy(out, q->seqs, *n * sizeof *out);
    return out;
}

static bool tracks_prefill(const struct admin *admin, const struct question *q)
{
    return q->override.set & KVR_OVERRIDE_TRACK_PREFILL_TOKENS ? q->override.track_prefill_tokens : admin->o->track_prefill_tokens;
}

/* The worker of a question that waited, or did not. */
static struct place place_of(const struct waiting *w)
{
    return (struct place){w->q.partition, w->result, w->reach};
}

static void put_scope(struct admin *admin, struct kvr_buf *b, const struct waiting *w)
{
    char model[MODEL_MAX], group[MODEL_MAX];
    workers_lock(admin->workers);
    const struct worker *worker = worker_find_locked(admin->workers, w->result.worker.worker_id);
    snprintf(model, sizeof model, "%s", worker ? worker_model(admin->workers, worker) : w->q.model);
    snprintf(group, sizeof group, "%s", worker ? worker->group : w->q.group);
    workers_unlock(admin->workers);
    kvr_json_printf(b, "'model_name':%s,'routing_group':%s", model, group);
}

/* What reserving adds. */
static void put_reserved(struct admin *admin, struct kvr_buf *b, const struct waiting *w)
{
    const struct question *q = &w->q;
    size_t n = 0;
    uint64_t *seqs = sequence_of(q, &n);
    if (!seqs) b->failed = true;
    kvr_json_printf(b, "'sequence_hashes':[");
    for (size_t i = 0; seqs && i < n; i++) kvr_json_i64(b, (int64_t)seqs[i]);
    kvr_json_close(b, ']');
    free(seqs);
    kvr_json_printf(b, "'isl_tokens':%ju,'track_prefill_tokens':%i,'queued_ms':%g", q->isl, tracks_prefill(admin, q),
                    (double)w->result.waited_ns / 1e6);
}

/* second: of two legs; NULL: there is one. */
static void put_selection(struct admin *admin, struct kvr_buf *b, const struct waiting *w, const struct place *second, bool with_id,
                          bool reserved)
{
    struct place first = place_of(w);
    kvr_json_open(b, '{');
    if (with_id) kvr_json_put_str(b, "selection_id", w->id + 2);
    put_scope(admin, b, w);
    if (w->q.two) pairing_write(admin, b, &w->q, &first, second);
    else place_write(admin, b, &first);
    if (reserved) put_reserved(admin, b, w);
    kvr_json_close(b, '}');
}

static void answer_queue_full(struct kvr_http_conn *c, const struct kvr_rejection *r)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'error':'the queue of the policy class is full','policy_class':%s,'limit_kind':%s,'current':%ju,'limit':%ju}",
                    r->policy_class, kvr_queue_limit_name(r->kind), r->current, r->limit);
    admin_reply(c, 529, &b);
}

static void refuse(struct kvr_http_conn *c, int rc)
{
    switch (rc) {
    case -KVR_EEXISTS: admin_error(c, 409, "selection_id is in use"); return;
    case -KVR_ENOTALLOWED:
    case -KVR_ERANK:
    case -KVR_EINVAL:
    case -KVR_ELENGTH: admin_error(c, 400, kvr_strerror(rc)); return;
    case -KVR_ENOTFOUND: admin_error(c, 404, "the pinned worker is not registered"); return;
    case -KVR_EBUSY: admin_error(c, 503, "no worker became available in time"); return;
    default: admin_error(c, 503, kvr_strerror(rc)); return;
    }
}

static void put_protocol_answer(struct kvr_buf *b, const struct waiting *w)
{
    kvr_json_printf(b, "{'method':'new'");
    if (!w->named) kvr_json_put_str(b, "request_id", w->id + 2); /* how else would the caller know */
    kvr_json_printf(b, "'worker_id':%ju,'dp_rank':%u,'overlap_blocks':%u}", w->result.worker.worker_id, w->result.worker.dp_rank,
                    w->result.overlap_blocks);
}

static void put_protocol_rejection(struct kvr_buf *b, const struct kvr_rejection *r)
{
    kvr_json_printf(b, "{'method':'queue_rejected','rejection':{'policy_class':%s,'limit_kind':%s,'current':%ju,'limit':%ju}}",
                    r->policy_class, kvr_queue_limit_name(r->kind), r->current, r->limit);
}

/* ---- select_and_reserve ------------------------------------------------------------------------------ */

static void waiting_free(struct waiting *w)
{
    struct selection *sel = w->admin->selection;
    KVR_LIST_TAKE(sel->waiting, w);
    question_free(&w->q);
    free(w);
}

static void on_turn(struct kvr_ticket *t, int rc, const struct kvr_router_result *result, const struct kvr_router_ctx *ctx)
{
    struct waiting *w = t->user;
    w->rc = rc;
    if (rc == 0) {
        w->result = *result;
        w->reach = reach_of(ctx, result->worker, w->q.partition->block_size);
    }
    make_ready(w);
}

/* The caller hears of an error, so the booking is nobody's. */
static void answer_booked(struct admin *admin, struct kvr_http_conn *c, const char *id, int status, struct kvr_buf *b)
{
    if (b->failed) {
        struct bookings k = bookings_of(admin, id);
        bookings_free(&k, id);
    }
    admin_reply(c, status, b);
}

static void answer_chosen(struct waiting *w)
{
    struct kvr_buf b = {0};
    struct place first = place_of(w), second;
    int rc = w->q.has_pair ? pairing_find_decode(w->admin, &w->q, &first, w->id, &second) : 0;
    if (rc) { /* both or none */
        kvr_router_free(w->q.partition->router, w->id, strlen(w->id));
        refuse(w->conn, rc);
        return;
    }
    if (w->protocol) put_protocol_answer(&b, w);
    else put_selection(w->admin, &b, w, w->q.has_pair ? &second : NULL, true, true);
    answer_booked(w->admin, w->conn, w->id, 200, &b);
}

static void answer(struct waiting *w)
{
    struct kvr_http_conn *c = w->conn;
    struct kvr_buf b = {0};
    kvr_http_conn_set_user(c, NULL);
    if (w->rc == -KVR_EQUEUEFULL && w->protocol) {
        put_protocol_rejection(&b, &w->rejection);
        admin_reply(c, 529, &b);
    } else if (w->rc == -KVR_EQUEUEFULL) {
        answer_queue_full(c, &w->rejection);
    } else if (w->rc) {
        refuse(c, w->rc);
    } else {
        answer_chosen(w);
    }
    waiting_free(w);
}

static void take_ready(uv_async_t *a)
{
    struct selection *sel = a->data;
    for (;;) {
        kvr_lock(&sel->lock);
        struct waiting *w = sel->ready;
        if (w) sel->ready = w->ready_next;
        kvr_unlock(&sel->lock);
        if (!w) return;
        answer(w);
    }
}

static void leave_ready_list(struct waiting *w)
{
    struct selection *sel = w->admin->selection;
    kvr_lock(&sel->lock);
    struct waiting **p = &sel->ready;
    while (*p && *p != w) p = &(*p)->ready_next;
    if (*p) *p = w->ready_next;
    kvr_unlock(&sel->lock);
}

void selection_gone(struct admin *admin, struct kvr_http_conn *c)
{
    struct waiting *w = held_drop(admin->selection, c) ? NULL : kvr_http_conn_user(c);
    if (!w) return;
    if (!w->parked || !kvr_router_cancel(w->q.partition->router, &w->ticket)) {
        leave_ready_list(w);
        if (w->rc == 0) kvr_router_free(w->q.partition->router, w->id, strlen(w->id)); /* nobody will hear of it */
    }
    waiting_free(w);
}

static void reserve_now_or_later(struct admin *admin, struct kvr_http_conn *c, struct waiting *w)
{
    struct selection *sel = admin->selection;
    struct kvr_router_ctx *ctx = admin_ctx(admin, w->q.partition);
    struct bookings known = bookings_of(admin, w->id);
    w->admin = admin;
    w->conn = c;
    KVR_LIST_PUSH(sel->waiting, w);
    w->rq = question_request(&w->q);
    w->rq.book = true;
    w->rq.id = w->id;
    w->rq.id_len = strlen(w->id);
    w->deadline_ms = kvr_now_ms() + (uint64_t)(admin->o->queue_timeout * 1000);
    w->parked = true; /* before on_turn can run: from a KVR_PARKED on, what it writes is its own */
    int rc = bookings_any(&known) ? -KVR_EEXISTS : w->q.has_pair ? pairing_look(admin, &w->q) : 0;
    if (rc == 0)
        rc = ctx ? kvr_router_submit(w->q.partition->router, ctx, &w->rq, &w->ticket, on_turn, w, &w->result, &w->rejection) : -KVR_ENOMEM;
    if (rc == KVR_PARKED) {
        kvr_http_conn_set_user(c, w);
        return;
    }
    w->rc = rc;
    w->parked = false;
    if (w->rc == 0) w->reach = reach_of(ctx, w->result.worker, w->q.partition->block_size);
    answer(w);
}

/* Returns: false without memory. */
static bool remember(struct admin *admin, const struct waiting *w)
{
    size_t n = 0;
    uint64_t *seqs = sequence_of(&w->q, &n);
    struct pending *p = seqs ? calloc(1, sizeof *p + n * sizeof *p->seqs) : NULL;
    if (p) {
        *p = (struct pending){.expires_ms = kvr_now_ms() + (uint64_t)(admin->o->selection_ttl * 1000),
                              .booking = {.partition = w->q.partition,
                                          .worker = w->result.worker,
                                          .seqs = p->seqs,
                                          .seqs_n = n,
                                          .isl = w->q.isl,
                                          .effective = w->result.prefill_tokens,
                                          .track_prefill = tracks_prefill(admin, &w->q),
                                          .decodes = w->q.phase == ASKS_DECODE}};
        snprintf(p->id, sizeof p->id, "%s", w->id + 2);
        memcpy(p->seqs, seqs, n * sizeof *seqs);
        pending_add(admin->selection, admin->o, p);
    }
    free(seqs);
    return p != NULL;
}

static void select_only(struct admin *admin, struct kvr_http_conn *c, struct waiting *w, bool given)
{
    struct kvr_router_ctx *ctx = admin_ctx(admin, w->q.partition);
    struct kvr_buf b = {0};
    struct place second;
    w->rq = question_request(&w->q);
    int rc = ctx ? kvr_router_find_best_match(w->q.partition->router, ctx, &w->rq, &w->result) : -KVR_ENOMEM;
    if (rc == 0) w->reach = reach_of(ctx, w->result.worker, w->q.partition->block_size);
    struct place first = place_of(w);
    if (rc == 0 && w->q.has_pair) rc = pairing_find_decode(admin, &w->q, &first, NULL, &second);
    if (rc == 0 && given && !remember(admin, w)) rc = -KVR_ENOMEM;
    if (rc) {
        refuse(c, rc);
        return;
    }
    put_selection(admin, &b, w, w->q.has_pair ? &second : NULL, given, false);
    admin_reply(c, 200, &b);
}

/* What is asked for: two legs are booked in one go or not at all. */
enum selection_kind { SELECTS_ONE, SELECTS_PAIR, SELECTS_RESERVED };

static void begin_selection(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, enum selection_kind wish)
{
    struct waiting *w = calloc(1, sizeof *w);
    bool given = false;
    if (!w) {
        admin_error(c, 503, "out of memory");
        return;
    }
    const char *bad = wish == SELECTS_PAIR ? NULL : read_id(admin, o, "selection_id", w->id, &given);
    if (bad) admin_bad_field(c, bad);
    if (bad || !(wish == SELECTS_PAIR ? question_read_pair : question_read)(admin, c, o, &w->q)) {
        free(w);
        return;
    }
    if (!w->q.tokens && !w->q.locals) {
        admin_bad_field(c, "token_ids"); /* sequence hashes alone say nothing about overlap */
    } else if (!w->q.isl) {
        admin_bad_field(c, "isl_tokens");
    } else if (wish == SELECTS_ONE && w->q.two) {
        admin_error(c, 400, "field 'legs': a pair is chosen by /select_pair, or booked by /select_and_reserve");
    } else {
        if (w->q.has_pair) pairing_judge(admin, &w->q);
        if (wish == SELECTS_RESERVED) {
            reserve_now_or_later(admin, c, w);
            return;
        }
        select_only(admin, c, w, given);
    }
    question_free(&w->q);
    free(w);
}

void selection_select(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    begin_selection(admin, c, o, SELECTS_ONE);
}

void selection_select_and_reserve(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    begin_selection(admin, c, o, SELECTS_RESERVED);
}

void selection_pair(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    begin_selection(admin, c, o, SELECTS_PAIR);
}

/* ---- reservations ------------------------------------------------------------------------------------ */

/* Returns: whether it can be tried again: there was no memory. */
static bool book(struct admin *admin, struct kvr_http_conn *c, const char *id, const struct booking *k)
{
    struct kvr_override tracked = {.set = KVR_OVERRIDE_TRACK_PREFILL_TOKENS, .track_prefill_tokens = k->track_prefill};
    struct kvr_router_request rq = {
        .id = id, .id_len = strlen(id), .seqs = k->seqs, .seqs_n = k->seqs_n, .isl = k->isl, .override = &tracked};
    struct kvr_router_ctx *ctx = admin_ctx(admin, k->partition);
    struct bookings known = bookings_of(admin, id);
    struct kvr_buf b = {0};
    bool again = false;
    int rc = bookings_any(&known) ? -KVR_EEXISTS : -KVR_ENOMEM;
    if (k->decodes) kvr_override_decode_leg(&tracked, false);
    if (rc == -KVR_ENOMEM && ctx) rc = kvr_router_add_request(k->partition->router, ctx, &rq, k->worker, k->isl - k->effective);
    if (rc == -KVR_ENOTFOUND) {
        admin_error(c, 404, "worker or rank not found");
    } else if (rc) {
        again = rc == -KVR_ENOMEM;
        refuse(c, rc);
    } else {
        kvr_json_printf(&b, "{'selection_id':%s,'worker_id':%ju,'dp_rank':%u,'effective_prefill_tokens':%ju}", id + 2, k->worker.worker_id,
                        k->worker.dp_rank, k->track_prefill ? k->effective : 0);
        again = b.failed;
        answer_booked(admin, c, id, 201, &b);
    }
    return again;
}

static void reserve_pending(struct admin *admin, struct kvr_http_conn *c, const char *id)
{
    struct pending *p = pending_find(admin->selection, id + 2);
    if (!p || p->expires_ms <= kvr_now_ms()) {
        admin_error(c, 404, "no pending selection");
        return;
    }
    if (!book(admin, c, id, &p->booking)) pending_drop(admin->selection, p);
}

/* Prefill workers are apart from those that answer, and the caller has chosen one of them. */
static void take_partition_of(struct admin *admin, struct question *q, uint64_t worker_id)
{
    workers_lock(admin->workers);
    const struct worker *w = worker_find_locked(admin->workers, worker_id);
    if (w && w->role == ROLE_PREFILL) q->partition = w->partition;
    workers_unlock(admin->workers);
}

static void reserve_explicit(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, const char *id)
{
    struct question q;
    uint64_t worker = 0, rank = 0, effective = UINT64_MAX;
    bool track = admin->o->track_prefill_tokens;
    const char *bad = NULL;
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &worker)) bad = "worker_id";
    else if (!member_u64(o, "dp_rank", UINT32_MAX, &rank, &bad) ||
             !member_u64(o, "effective_prefill_tokens", UINT32_MAX, &effective, &bad) ||
             !member_bool(o, "track_prefill_tokens", &track, &bad))
        (void)bad;
    if (bad) {
        admin_bad_field(c, bad);
        return;
    }
    if (!question_read(admin, c, o, &q)) return;
    if (effective == UINT64_MAX) effective = q.isl;
    take_partition_of(admin, &q, worker);
    size_t n = 0;
    uint64_t *seqs = effective <= q.isl ? sequence_of(&q, &n) : NULL;
    struct booking k = {q.partition, {worker, (uint32_t)rank}, seqs, n, q.isl, effective, track, q.phase == ASKS_DECODE};
    if (effective > q.isl) admin_bad_field(c, "effective_prefill_tokens");
    else if (!seqs) admin_error(c, 503, "out of memory");
    else (void)book(admin, c, id, &k);
    free(seqs);
    question_free(&q);
}

void selection_reserve(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    char id[SELECTION_ID_MAX + 3];
    bool given = false, explicit_form = kvr_json_has(o, "worker_id");
    const char *bad = read_id(admin, o, "selection_id", id, &given);
    if (bad || (!given && !explicit_form)) admin_bad_field(c, "selection_id");
    else if (explicit_form) reserve_explicit(admin, c, o, id);
    else reserve_pending(admin, c, id);
}

static void output_block(struct admin *admin, struct kvr_http_conn *c, struct partition *partition, const char *id)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    double fraction = -1;
    struct kvr_json o;
    const char *bad = NULL;
    if (rq->body_len) {
        if (!admin_parse_object(admin, c, &o)) return;
        if (!member_double(o, "decay_fraction", 0, 1, &fraction, &bad)) {
            admin_bad_field(c, bad);
            return;
        }
    }
    int rc = kvr_router_add_output_blocks(partition->router, id, strlen(id), 1, fraction);
    if (rc == 0) admin_ok(c, 200);
    else admin_error(c, 404, "reservation not found");
}

static void end_or_mark(struct admin *admin, struct kvr_http_conn *c, const struct bookings *k, const char *id, struct kvr_text verb)
{
    if (kvr_text_is(verb, "output_block")) {
        output_block(admin, c, k->main ? k->main : k->prefill, id);
        return;
    }
    if (verb.len == 0) bookings_free(k, id);
    else if (kvr_text_is(verb, "renew")) bookings_renew(k, id);
    else bookings_prefill_complete(k, id);
    admin_ok(c, 200);
}

void selection_one(struct admin *admin, struct kvr_http_conn *c, const char *name, size_t len, struct kvr_text verb)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    char id[SELECTION_ID_MAX + 3] = "r:";
    struct bookings known = {0};
    bool post = kvr_text_is(rq->method, "POST");
    if (kvr_path_decode((struct kvr_text){name, len}, id + 2, sizeof id - 2)) known = bookings_of(admin, id);
    if (verb.len == 0 ? !kvr_text_is(rq->method, "DELETE") : !post) admin_not_allowed(c, verb.len ? "POST" : "DELETE");
    else if (verb.len && !kvr_text_is(verb, "prefill_complete") && !kvr_text_is(verb, "output_block") && !kvr_text_is(verb, "renew"))
        admin_error(c, 404, "unknown path");
    else if (!bookings_any(&known)) admin_error(c, 404, "reservation not found");
    else end_or_mark(admin, c, &known, id, verb);
}

/* ---- the request protocol ---------------------------------------------------------------------------- */

static void answer_marked(struct kvr_http_conn *c, const char *method, bool success)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'method':%s,'success':%i}", method, success);
    admin_reply(c, 200, &b);
}

static void protocol_new(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, const char *id, bool named)
{
    if (kvr_http_conn_request(c)->body && selection_hold(admin, c)) return;
    struct waiting *w = calloc(1, sizeof *w);
    if (!w) {
        admin_error(c, 503, "out of memory");
        return;
    }
    if (!question_read(admin, c, o, &w->q)) {
        free(w);
        return;
    }
    w->protocol = true;
    w->named = named;
    snprintf(w->id, sizeof w->id, "%s", id);
    if (w->q.isl && (w->q.tokens || w->q.locals) && !w->q.two) {
        reserve_now_or_later(admin, c, w);
        return;
    }
    admin_bad_field(c, w->q.two ? "legs" : "tokens");
    question_free(&w->q);
    free(w);
}

void selection_request(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    char id[SELECTION_ID_MAX + 3], method[32] = "";
    const char *bad = NULL;
    bool given = false;
    if (!member_text(o, "method", method, sizeof method, &bad)) {
        admin_bad_field(c, bad);
        return;
    }
    bad = read_id(admin, o, "request_id", id, &given);
    struct kvr_text context = kvr_headers_get(kvr_http_conn_request(c)->headers, "x-request-id");
    if (!bad && !given && context.len > SELECTION_ID_MAX) bad = "x-request-id";
    if (!bad && !given && context.ptr && context.len) { /* blank or missing: the context's id */
        snprintf(id + 2, SELECTION_ID_MAX + 1, "%.*s", (int)context.len, context.ptr);
        given = true;
    }
    bool is_new = !strcmp(method, "new"), prefill = !strcmp(method, "mark_prefill"), mark_free = !strcmp(method, "mark_free");
    if (bad) {
        admin_bad_field(c, bad);
    } else if (is_new) {
        protocol_new(admin, c, o, id, given);
    } else if (!strcmp(method, "potential_loads")) {
        admin_potential_loads_protocol(admin, c, o);
    } else if (!prefill && !mark_free) {
        admin_error(c, 400, "field 'method' must be one of new, mark_prefill, mark_free, potential_loads");
    } else if (!given) {
        admin_bad_field(c, "request_id");
    } else {
        struct bookings known = bookings_of(admin, id);
        if (prefill) bookings_prefill_complete(&known, id);
        else bookings_free(&known, id);
        answer_marked(c, prefill ? "prefill_marked" : "free_marked", bookings_any(&known));
    }
}

/* ---- life -------------------------------------------------------------------------------------------- */

int selection_start(struct admin *admin, selection_begin_fn *begin)
{
    struct selection *sel = admin->selection = calloc(1, sizeof *sel);
    if (!sel) return UV_ENOMEM;
    kvr_lock_init(&sel->lock, KVR_LOCK_SELECTION);
    sel->held_end = &sel->held;
    sel->begin = begin;
    sel->wake.data = sel;
    int rc = kvr_lru_init(&sel->pending) ? UV_ENOMEM : uv_async_init(&admin->process->main_loop, &sel->wake, take_ready);
    sel->running = rc == 0;
    return rc;
}

void selection_stop(struct admin *admin)
{
    struct selection *sel = admin->selection;
    if (!sel) return;
    while (pending_oldest(sel)) pending_drop(sel, pending_oldest(sel));
    kvr_lru_free(&sel->pending);
    if (sel->running) uv_close((uv_handle_t *)&sel->wake, NULL);
    sel->running = false;
}

void selection_destroy(struct admin *admin)
{
    if (admin->selection) kvr_lock_destroy(&admin->selection->lock);
    free(admin->selection);
}
