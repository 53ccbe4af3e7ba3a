/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers beside each other. Each has its own book, its own models and, if it is one of those, its own tree. One index serves all: what
 * follows events holds the same everywhere at every moment, as events reach all at once. Decisions that are remembered are a
 * router's own.
 *
 *     router a: book --hook--> line, tell_ns long --> kvr_router_apply_remote of all others
 *
 * The line keeps order, as one publisher's socket does.
 */
#include <string.h>

#include "sim/internal.h"

/* A change of a book on its way. */
struct told {
    struct told *next;
    uint64_t at_ns;
    uint32_t from;
    struct kvr_load_event ev;
    char id[48];
    uint64_t seqs[];
};

struct one {
    struct sim_routers *all;
    uint32_t number; /* from 0 */
    struct kvr_router *router;
    struct kvr_router_ctx *ctx;
    struct kvr_index *predicted;
    struct sticky *sticky;
    struct without *without;
};

struct sim_routers {
    struct sim_routers_config cfg;
    struct kvr_index *index;
    struct one list[SIM_ROUTERS_MAX];
    uint32_t turn;
    bool *present;
    struct told *first, **last;
    uint64_t polled_ns;
    int status;
};

static size_t write_id(char out[24], uint64_t number)
{
    return (size_t)snprintf(out, 24, "%llu", (unsigned long long)number);
}

/* ---- what is told ------------------------------------------------------------------------------------ */

static void on_change(void *ctx, const struct kvr_load_event *ev)
{
    struct one *o = ctx;
    struct sim_routers *r = o->all;
    if (r->cfg.routers == 1) return;
    struct told *t = malloc(sizeof *t + ev->request.seqs_n * sizeof *t->seqs);
    if (!t) {
        r->status = -KVR_ENOMEM;
        return;
    }
    *t = (struct told){.at_ns = kvr_now_ns(r->cfg.clock) + r->cfg.tell_ns, .from = o->number, .ev = *ev};
    if (ev->request.seqs_n) memcpy(t->seqs, ev->request.seqs, ev->request.seqs_n * sizeof *t->seqs);
    t->ev.request.id_len = (size_t)snprintf(t->id, sizeof t->id, "p%u/%.*s", o->number + 1, (int)ev->request.id_len, ev->request.id);
    t->ev.request.owner = o->number + 1;
    *r->last = t;
    r->last = &t->next;
}

uint64_t sim_routers_tell(struct sim_routers *r)
{
    uint64_t now = kvr_now_ns(r->cfg.clock);
    while (r->first && r->first->at_ns <= now) {
        struct told *t = r->first;
        r->first = t->next;
        if (!r->first) r->last = &r->first;
        t->ev.request.id = t->id;
        t->ev.request.seqs = t->ev.request.seqs_n ? t->seqs : NULL;
        for (uint32_t i = 0; i < r->cfg.routers; i++)
            if (i != t->from && kvr_router_apply_remote(r->list[i].router, &t->ev) == -KVR_ENOMEM) r->status = -KVR_ENOMEM;
        free(t);
    }
    return r->first ? r->first->at_ns : UINT64_MAX;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static int create_one(struct sim_routers *r, uint32_t number)
{
    struct one *o = &r->list[number];
    const struct sim_policy *p = r->cfg.policy;
    struct kvr_router_config c;
    struct kvr_policy queue;
    *o = (struct one){.all = r, .number = number};
    kvr_router_config_init(&c);
    if (p->predicted_s > 0) {
        struct kvr_index_config pc = {.clock = r->cfg.clock, .ttl_ns = (uint64_t)(p->predicted_s * 1e9)};
        if (kvr_index_create(&pc, &o->predicted)) return -KVR_ENOMEM;
    }
    c.clock = r->cfg.clock;
    c.index = r->index;
    c.predicted = o->predicted;
    c.block_size = r->cfg.block_size;
    c.seed = kvr_mix64(r->cfg.seed + number + 1);
    c.mode = p->mode;
    c.cost.kind = p->cost;
    if (r->cfg.prefill_load_scale > 0) c.cost.prefill_load_scale = r->cfg.prefill_load_scale;
    c.track_active_blocks = !r->cfg.prefills;
    if (r->cfg.queue_tokens >= 0) {
        kvr_policy_init(&queue);
        queue.classes[0].busy_tokens = r->cfg.queue_tokens;
        c.policy = &queue;
    }
    c.hook = on_change;
    c.hook_ctx = o;
    if (p->without != SIM_WHOLE) {
        o->without = without_create(p->without, r->cfg.block_size, r->cfg.workers);
        if (!o->without) return -KVR_ENOMEM;
        c.select = without_select;
        c.select_ctx = o->without;
    }
    if (kvr_router_create(&c, &o->router, NULL) || kvr_router_ctx_create(o->router, &o->ctx)) return -KVR_ENOMEM;
    if (!p->sticky) return 0;
    o->sticky = sticky_create(p->sticky, r->cfg.workers);
    return o->sticky ? 0 : -KVR_ENOMEM;
}

int sim_routers_create(const struct sim_routers_config *config, struct sim_routers **out)
{
    struct sim_routers *r = calloc(1, sizeof *r);
    if (!r) return -KVR_ENOMEM;
    r->cfg = *config;
    r->last = &r->first;
    r->present = calloc(config->workers, sizeof *r->present);
    int rc = r->present && kvr_index_create(NULL, &r->index) == 0 ? 0 : -KVR_ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < config->routers; i++) rc = create_one(r, i);
    if (rc) sim_routers_destroy(r);
    else *out = r;
    return rc;
}

void sim_routers_destroy(struct sim_routers *r)
{
    if (!r) return;
    for (uint32_t i = 0; i < r->cfg.routers; i++) {
        kvr_router_ctx_destroy(r->list[i].ctx);
        kvr_router_destroy(r->list[i].router);
        kvr_index_destroy(r->list[i].predicted);
        sticky_destroy(r->list[i].sticky);
        without_destroy(r->list[i].without);
    }
    for (struct told *t = r->first, *next; t; t = next) {
        next = t->next;
        free(t);
    }
    kvr_index_destroy(r->index);
    free(r->present);
    free(r);
}

int sim_routers_status(const struct sim_routers *r)
{
    return r->status;
}

/* ---- workers ----------------------------------------------------------------------------------------- */

static const char *const bulk = "bulk";

int sim_routers_add_worker(struct sim_routers *r, uint32_t worker)
{
    r->present[worker] = true;
    bool tainted = r->cfg.policy->crowd == SIM_APART && worker < r->cfg.workers / 2;
    for (uint32_t i = 0; i < r->cfg.routers; i++) {
        struct kvr_router *one = r->list[i].router;
        if (kvr_router_set_worker(one, worker + 1, 0, 1) || (tainted && kvr_router_set_taints(one, worker + 1, &bulk, 1)))
            return -KVR_ENOMEM;
    }
    return 0;
}

void sim_routers_remove_worker(struct sim_routers *r, uint32_t worker)
{
    r->present[worker] = false;
    for (uint32_t i = 0; i < r->cfg.routers; i++) {
        kvr_router_remove_worker(r->list[i].router, worker + 1);
        if (r->list[i].predicted) kvr_index_remove_worker(r->list[i].predicted, worker + 1);
        if (r->list[i].sticky) sticky_left(r->list[i].sticky, worker);
    }
}

void sim_routers_event(struct sim_routers *r, const struct kvr_event *ev)
{
    for (uint32_t i = 0; ev->tier != KVR_TIER_DEVICE && i < r->cfg.routers; i++) kvr_router_use_lower_tiers(r->list[i].router);
    if (kvr_index_apply(r->index, ev) == -KVR_ENOMEM) r->status = -KVR_ENOMEM;
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static void poll_now_and_then(struct sim_routers *r)
{
    enum { EVERY_NS = 100000000 };
    uint64_t now = kvr_now_ns(r->cfg.clock);
    if (now < r->polled_ns + EVERY_NS) return;
    r->polled_ns = now;
    for (uint32_t i = 0; i < r->cfg.routers; i++) kvr_router_poll(r->list[i].router);
}

static void on_turn(struct kvr_ticket *t, int rc, const struct kvr_router_result *result, const struct kvr_router_ctx *)
{
    struct sim_wait *w = t->user;
    w->rc = rc;
    if (rc == 0) w->result = *result;
    w->granted(w->ctx, w);
}

/* What the queue keeps is in `w`. */
static int wait_in(const struct one *o, const struct kvr_router_request *rq, struct sim_wait *w, struct kvr_router_result *out)
{
    memcpy(w->id, rq->id, sizeof w->id);
    w->rq = *rq;
    w->rq.id = w->id;
    return kvr_router_submit(o->router, o->ctx, &w->rq, &w->ticket, on_turn, w, out, NULL);
}

int sim_routers_choose(struct sim_routers *r, const struct sim_ask *ask, struct sim_choice *out)
{
    struct one *o = &r->list[r->turn];
    char id[24];
    struct kvr_router_request rq = {.id = id,
                                    .id_len = write_id(id, ask->number),
                                    .book = !ask->look,
                                    .locals = ask->locals,
                                    .locals_n = ask->blocks_n,
                                    .seqs = ask->seqs,
                                    .seqs_n = ask->blocks_n,
                                    .isl = ask->tokens_n,
                                    .pinned = ask->pin != NULL,
                                    .tenant = ask->tenant,
                                    .tenant_weight = ask->weight,
                                    .required_taints = &bulk,
                                    .required_n = ask->apart,
                                    .override = ask->override};
    if (ask->pin) rq.pin = *ask->pin;
    poll_now_and_then(r);
    out->router = r->turn;
    if (!ask->look) r->turn = (r->turn + 1) % r->cfg.routers;
    if (o->predicted) kvr_index_expire(o->predicted);
    if (o->sticky) {
        long at = sticky_choose(o->sticky, ask->tokens, ask->tokens_n, r->present, kvr_now_ns(r->cfg.clock));
        if (at < 0) return (int)at;
        rq.pinned = true;
        rq.pin = (struct kvr_worker){(uint64_t)at + 1, 0};
    }
    if (o->without) without_prompt(o->without, ask->tokens_n);
    int rc = ask->wait ? wait_in(o, &rq, ask->wait, &out->decision) : kvr_router_find_best_match(o->router, o->ctx, &rq, &out->decision);
    if (rc == 0) out->worker = (uint32_t)out->decision.worker.worker_id - 1;
    return rc;
}

void sim_routers_first_token(struct sim_routers *r, const struct sim_choice *c, uint64_t number, double ttft_ms)
{
    char id[24];
    size_t len = write_id(id, number);
    kvr_router_mark_prefill_completed(r->list[c->router].router, id, len);
    if (ttft_ms >= 0) kvr_router_observe_ttft(r->list[c->router].router, &c->decision, ttft_ms);
}

void sim_routers_ended(struct sim_routers *r, const struct sim_choice *c, uint64_t number, double tokens, double generating_ms)
{
    char id[24];
    if (tokens > 1) kvr_router_observe_generation(r->list[c->router].router, &c->decision, tokens - 1, generating_ms);
    kvr_router_free(r->list[c->router].router, id, write_id(id, number));
    if (r->list[c->router].sticky) sticky_ended(r->list[c->router].sticky, c->worker);
}
