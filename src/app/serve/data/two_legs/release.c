/* SPDX-License-Identifier: Apache-2.0 */
/* Computed prompts are given back: data/two_legs/release.h. */
#include "app/serve/data/two_legs/release.h"

#include <string.h>

#include "app/serve/data/choice/domains.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/eligible.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/two_legs/side_call.h"
#include "app/serve/workers/table/roster.h"

enum { EARLY_MS = 100 /* from the sending of a request: the engine may not have it yet */ };

struct release {
    struct side_call side;
    struct partition *partition;
    struct worker *worker;
    char booking[32]; /* on the decode worker */
};

static void on_over(struct side_call *c, bool ok)
{
    struct release *e = (struct release *)c;
    struct data_counters *m = &c->loop->data->counters;
    if (!ok) atomic_fetch_add(&m->legs.releases[RELEASE_FAILED], 1);
    if (!ok) atomic_fetch_add(&m->legs.leaks[LEAK_RELEASE_FAILED], 1);
    kvr_router_free(e->partition->router, e->booking, strlen(e->booking));
    worker_let_go(e->worker);
}

static bool choose(struct request *r, struct attempt *a)
{
    const struct roster_row *row = eligible_workers(r);
    const struct roster_choice *from = row ? &row->decode[r->legs->protocol] : NULL;
    struct kvr_router_ctx *ctx = from && from->partition ? ctx_get(&r->loop->ctxs, from->partition) : NULL;
    snprintf(a->booking, sizeof a->booking, "%llx", (unsigned long long)atomic_fetch_add(&data_of(r)->process->next_id, 1));
    struct kvr_router_request rq = {.book = true,
                                    .guarded = true,
                                    .overloads = true, /* it frees more than it takes */
                                    .isl = r->isl,
                                    .id = a->booking,
                                    .id_len = strlen(a->booking),
                                    .allowed = from && !from->all ? from->ids : NULL,
                                    .allowed_n = from ? from->n : 0,
                                    .excluded = r->tried,
                                    .excluded_n = r->tried_n};
    struct domain_wish wish;
    admission_keep_to_workers(r, &rq);
    domains_ask(data_of(r), r->legs->prefill->worker, &wish, &rq);
    bool found = ctx && kvr_router_find_best_match(from->partition->router, ctx, &rq, &a->result) == 0;
    if (found) a->partition = from->partition;
    else a->booking[0] = 0;
    roster_let_go(row);
    return found;
}

static struct release *release_new(struct request *r, struct attempt *a)
{
    struct release *e = calloc(1, sizeof *e);
    if (!e || !(e->side.call = attempt_call(a, &side_call_handler, e))) {
        free(e);
        return NULL;
    }
    e->side.kind = SIDE_RELEASE;
    e->side.done = on_over;
    e->partition = a->partition;
    e->worker = worker_hold(a->worker);
    memcpy(e->booking, a->booking, sizeof e->booking);
    a->booking[0] = 0;
    side_call_begin(&e->side, r->loop, data_of(r)->o->disagg_release_timeout);
    return e;
}

static bool begin(struct request *r)
{
    struct attempt *a = attempt_new(r, NULL);
    if (!a) return false;
    a->decodes = a->once = true;
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
    if (legs_pair_first(r)) return false; /* nobody else could take it */
    if (r->phase == PHASE_PAIRING) return true;
    return r->phase == PHASE_SENDING && (r->attempt->unsent || r->attempt->state == ATTEMPT_CHOSEN);
}

/* A leg ends whose engine may not see that: a prefill worker whose answer is on its way keeps the prompt, and a decode worker that has not
 * read the request yet tells nobody. */
static bool may_be_left(const struct request *r)
{
    if (!legs_are_two(r) || r->legs->protocol == KVR_KV_NONE) return false;
    const struct attempt *p = r->legs->prefill;
    if (r->legs->protocol == KVR_KV_SGLANG) return false; /* its legs are ended by a call: abort.h */
    if (r->phase == PHASE_PREFILL || r->phase == PHASE_RENDEZVOUS) return p && (p->call || p->state == ATTEMPT_CANCELLED);
    return r->phase == PHASE_SENDING && r->attempt->call && kvr_monotonic_ns() - r->attempt->sent_ns < (uint64_t)EARLY_MS * 1000000;
}

static enum leak why_left(const struct request *r)
{
    if (r->phase == PHASE_SENDING) return LEAK_EARLY_ABORT;
    return r->legs->prefill->state == ATTEMPT_CANCELLED ? LEAK_PREFILL_TIMEOUT : LEAK_ABORT_RACE;
}

void release_unused(struct request *r)
{
    const struct data_plane *data = data_of(r);
    if (may_be_left(r)) legs_leak(r, why_left(r));
    if (!is_unused(r)) return;
    bool may = data->o->disagg_release && r->conn && legs_is_usable(r) && side_calls_have_room(r->loop, SIDE_RELEASE);
    if (may && begin(r)) {
        r->legs->fate = FATE_RELEASED;
        COUNT(r, legs.releases[RELEASE_DISPATCHED]);
    } else {
        legs_leak(r, LEAK_NOT_RELEASED);
    }
    legs_drop_handoff(r);
}
