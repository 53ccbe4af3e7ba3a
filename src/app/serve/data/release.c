/* SPDX-License-Identifier: Apache-2.0 */
/* Computed prompts are given back: data/release.h. */
#include "app/serve/data/release.h"

#include <string.h>

#include "app/serve/data/attempt.h"
#include "app/serve/data/eligible.h"
#include "app/serve/data/legs.h"

enum { EARLY_MS = 100 /* from the sending of a request: the engine may not have it yet */ };

struct release {
    struct release *next;
    struct loop *loop;
    struct partition *partition;
    struct worker *worker;
    struct kvr_http_call *call; /* NULL: over */
    char booking[32];           /* on the decode worker */
    int status;
    uv_timer_t timer;
};

/* ---- its end ----------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void finish(struct release *e, bool ok)
{
    struct loop *l = e->loop;
    struct release **p = &l->releases;
    while (*p != e) p = &(*p)->next;
    *p = e->next;
    l->releases_n--;
    if (!ok) atomic_fetch_add(&l->serve->metrics.disagg_releases_failed_total, 1);
    if (!ok) atomic_fetch_add(&l->serve->metrics.disagg_possible_leaks_total, 1);
    kvr_router_free(e->partition->router, e->booking, strlen(e->booking));
    worker_let_go(e->worker);
    atomic_fetch_sub(&l->in_flight, 1);
    e->timer.data = e;
    uv_close((uv_handle_t *)&e->timer, on_closed);
}

static void on_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *headers, int64_t length)
{
    (void)call;
    (void)headers;
    (void)length;
    ((struct release *)ctx)->status = status;
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    (void)call;
    (void)ctx;
    (void)data;
    (void)len;
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct release *e = ctx;
    (void)call;
    e->call = NULL;
    finish(e, e->status < 400);
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct release *e = ctx;
    (void)call;
    (void)why;
    (void)text;
    e->call = NULL;
    finish(e, false);
}

static void give_up(struct release *e)
{
    kvr_http_call_cancel(e->call);
    e->call = NULL;
    finish(e, false);
}

static void on_timeout(uv_timer_t *t)
{
    give_up(t->data);
}

void releases_stop(struct loop *l)
{
    while (l->releases) give_up(l->releases);
}

/* ---- its beginning ----------------------------------------------------------------------------------- */

static bool choose(struct request *r, struct attempt *a)
{
    const struct roster_row *row = eligible_workers(r);
    const struct roster_choice *from = row ? &row->decode[r->legs->protocol] : NULL;
    struct kvr_router_ctx *ctx = from && from->partition ? ctx_get(&r->loop->ctxs, from->partition) : NULL;
    snprintf(a->booking, sizeof a->booking, "%llx", (unsigned long long)atomic_fetch_add(&serve_of(r)->next_id, 1));
    struct kvr_router_request rq = {.book = true,
                                    .guarded = true,
                                    .isl = r->isl,
                                    .id = a->booking,
                                    .id_len = strlen(a->booking),
                                    .allowed = from && !from->all ? from->ids : NULL,
                                    .allowed_n = from ? from->n : 0,
                                    .excluded = r->tried,
                                    .excluded_n = r->tried_n};
    bool found = ctx && kvr_router_find_best_match(from->partition->router, ctx, &rq, &a->result) == 0;
    if (found) a->partition = from->partition;
    else a->booking[0] = 0;
    roster_let_go(row);
    return found;
}

static struct release *release_new(struct request *r, struct attempt *a)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    struct release *e = calloc(1, sizeof *e);
    if (!e || !(e->call = attempt_call(a, &handler, e))) {
        free(e);
        return NULL;
    }
    e->loop = r->loop;
    e->partition = a->partition;
    e->worker = worker_hold(a->worker);
    memcpy(e->booking, a->booking, sizeof e->booking);
    a->booking[0] = 0;
    uv_timer_init(&r->loop->uv, &e->timer);
    e->timer.data = e;
    uv_timer_start(&e->timer, on_timeout, (uint64_t)(serve_of(r)->o->disagg_release_timeout * 1000), 0);
    e->next = r->loop->releases;
    r->loop->releases = e;
    r->loop->releases_n++;
    atomic_fetch_add(&r->loop->in_flight, 1);
    return e;
}

static bool begin(struct request *r)
{
    struct attempt *a = attempt_new(r, NULL);
    if (!a) return false;
    a->decodes = true;
    a->number = r->tries;
    bool begun = choose(r, a) && attempt_take_worker(a) && (a->body = legs_release_body(r)) && release_new(r, a);
    if (a->booking[0]) kvr_router_free(a->partition->router, a->booking, strlen(a->booking));
    a->booking[0] = 0;
    attempt_free(a);
    return begun;
}

/* A hand-off object is there that no decode worker has seen. */
static bool is_unused(const struct request *r)
{
    if (!legs_are_two(r) || !r->legs->handed || r->legs->protocol == KVR_KV_NONE) return false;
    if (r->phase == PHASE_PAIRING) return true;
    return r->phase == PHASE_SENDING && (r->attempt->unsent || r->attempt->state == ATTEMPT_CHOSEN);
}

/* A leg ends whose engine may not see that: a prefill worker whose answer is on its way keeps the prompt, and a decode worker that has not
 * read the request yet tells nobody. */
static bool may_be_left(const struct request *r)
{
    if (!legs_are_two(r) || r->legs->protocol == KVR_KV_NONE) return false;
    const struct attempt *p = r->legs->prefill;
    if (r->phase == PHASE_PREFILL) return p && (p->call || p->state == ATTEMPT_CANCELLED);
    return r->phase == PHASE_SENDING && r->attempt->call &&
           kvr_now_ns(kvr_clock_monotonic()) - r->attempt->sent_ns < (uint64_t)EARLY_MS * 1000000;
}

void release_unused(struct request *r)
{
    const struct serve *s = serve_of(r);
    if (may_be_left(r)) COUNT(r, disagg_possible_leaks_total);
    if (!is_unused(r)) return;
    bool may = s->o->disagg_release && r->conn && legs_is_fresh(r) && r->loop->releases_n < RELEASES_MAX && !atomic_load(&r->loop->stop);
    if (may && begin(r)) COUNT(r, disagg_releases_total);
    else COUNT(r, disagg_possible_leaks_total);
    legs_drop_handoff(r);
}
