/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recover/consumer/supposed.h against a model engine: a cache with the free order of vLLM, copies, preemption, aborted requests and
 * requests of others, whose events reach the view late and whose answers may come before them. What the view holds must be held by the
 * engine now, or its removal still be on its way. KVR_SEED sets the first seed, KVR_OPS the number of steps.
 */
#include "test.h"

#include <string.h>
#include <kvroute/index.h>

#include "base/base.h"
#include "base/map64.h"
#include "recover/consumer/supposed.h"

enum { BLOCKS = 300, LEN_MAX = 40, RUNNING = 8, EVENTS_MAX = 1 << 16, FAMILIES = 24 };

struct event {
    bool removed;
    uint64_t sent_ms;
    uint64_t parent, names[LEN_MAX + 4], locals[LEN_MAX + 4];
    size_t n;
};

struct physical {
    uint64_t name;
    int ref, prev, next;
    bool cached;
};

struct running {
    bool on, ours, silent;
    uint64_t locals[LEN_MAX], tick;
    size_t n, cached, view, held_n;
    int held[LEN_MAX + 4];
};

struct world {
    struct kvr_rng rng;
    struct physical blocks[BLOCKS + 1];         /* the last is the queue's head */
    struct kvr_map64 count;                     /* name -> copies held now */
    struct kvr_map64 gone;                      /* name -> number of the event after which none was left */
    struct running run[RUNNING], done[RUNNING]; /* done: answers on their way */
    struct event *events;
    size_t sent, seen;
    uint64_t families[FAMILIES][LEN_MAX], tick, made;
    size_t family_n[FAMILIES];
    struct kvr_index *index;
    struct kvr_index_reader *reader;
    struct kvr_supposed *supposed;
    uint64_t reused, predicted, now_ms;
    bool told, slow, offloads; /* offloads: it reads blocks back from a tier behind the device, which it counts as cached */
};

static const struct kvr_worker W = {1, 0};

static uint64_t name_of(uint64_t parent, uint64_t local)
{
    return kvr_mix64(parent * 3 + 1) ^ kvr_mix64(local);
}

/* ---- the engine -------------------------------------------------------------------------------------------- */

static void queue_take(struct world *w, int b)
{
    w->blocks[w->blocks[b].prev].next = w->blocks[b].next;
    w->blocks[w->blocks[b].next].prev = w->blocks[b].prev;
}

static void queue_put(struct world *w, int b, bool first)
{
    int at = first ? w->blocks[BLOCKS].next : BLOCKS;
    w->blocks[b].next = at;
    w->blocks[b].prev = w->blocks[at].prev;
    w->blocks[w->blocks[at].prev].next = b;
    w->blocks[at].prev = b;
}

static uint64_t copies(const struct world *w, uint64_t name)
{
    const uint64_t *n = kvr_map64_get(&w->count, name);
    return n ? *n : 0;
}

static struct event *new_event(struct world *w, bool removed)
{
    assert_true(w->sent < EVENTS_MAX);
    struct event *e = &w->events[w->sent++];
    *e = (struct event){.removed = removed, .sent_ms = w->now_ms};
    return e;
}

static int pop(struct world *w)
{
    int b = w->blocks[BLOCKS].next;
    if (b == BLOCKS) return -1;
    queue_take(w, b);
    if (w->blocks[b].cached) {
        struct event *e = new_event(w, true);
        e->names[0] = w->blocks[b].name;
        e->n = 1;
        uint64_t left = copies(w, e->names[0]) - 1;
        kvr_map64_put(&w->count, e->names[0], left);
        if (!left) kvr_map64_put(&w->gone, e->names[0], w->sent);
    }
    w->blocks[b].cached = false;
    w->blocks[b].ref = 1;
    return b;
}

static void release(struct world *w, struct running *r)
{
    for (size_t i = r->held_n; i-- > 0;) {
        int b = r->held[i];
        if (--w->blocks[b].ref == 0) queue_put(w, b, !w->blocks[b].cached);
    }
    r->held_n = 0;
}

static int find_copy(struct world *w, uint64_t name)
{
    int from = (int)kvr_rng_below(&w->rng, BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        int b = (from + i) % BLOCKS;
        if (w->blocks[b].cached && w->blocks[b].name == name) return b;
    }
    return -1;
}

static void tell_stored(struct world *w, struct event *stored, uint64_t *parent, uint64_t name)
{
    if (!stored->n) return;
    struct event *e = new_event(w, false);
    *e = *stored;
    e->parent = *parent;
    e->sent_ms = w->now_ms;
    stored->n = 0;
    *parent = name;
}

/* Takes what is cached, reads some more back and computes the rest. Returns: how many blocks were cached, or -1: no room. */
static int schedule(struct world *w, struct running *r, bool reads, size_t decode)
{
    uint64_t name = 0, parent;
    size_t i = 0;
    for (; reads && i < r->n; i++) {
        int b = copies(w, name_of(name, r->locals[i])) ? find_copy(w, name_of(name, r->locals[i])) : -1;
        if (b < 0) break;
        name = name_of(name, r->locals[i]);
        if (w->blocks[b].ref++ == 0) queue_take(w, b);
        r->held[r->held_n++] = b;
    }
    size_t left = r->n - i, cached = i + (w->offloads && reads && left && w->made ? kvr_rng_below(&w->rng, (uint32_t)left) : 0);
    struct event stored = {.n = 0};
    parent = name;
    for (; i < r->n + decode + 1; i++) {
        if (i == cached) tell_stored(w, &stored, &parent, name);
        int b = pop(w);
        if (b < 0) break;
        r->held[r->held_n++] = b;
        if (i == r->n + decode) break; /* the last is never full */
        uint64_t local = i < r->n ? r->locals[i] : 7000000 + ++w->made;
        name = name_of(name, local);
        w->blocks[b].name = name;
        w->blocks[b].cached = true;
        kvr_map64_put(&w->count, name, copies(w, name) + 1);
        stored.names[stored.n] = name;
        stored.locals[stored.n++] = local;
    }
    tell_stored(w, &stored, &parent, name);
    if (i < r->n + decode) {
        release(w, r);
        return -1;
    }
    return (int)cached;
}

/* ---- the view ------------------------------------------------------------------------------------------------ */

static int apply(void *ctx, const struct kvr_event *ev)
{
    struct world *w = ctx;
    return kvr_index_apply(w->index, ev);
}

static void see_one(struct world *w)
{
    const struct event *e = &w->events[w->seen++];
    w->tick++;
    if (e->removed) {
        struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_REMOVED, .removed = e->names, .removed_n = 1};
        kvr_supposed_removed(w->supposed, e->names[0], kvr_index_apply(w->index, &ev), w->tick);
        return;
    }
    struct kvr_block blocks[LEN_MAX + 4];
    for (size_t i = 0; i < e->n; i++) blocks[i] = (struct kvr_block){e->names[i], e->locals[i]};
    struct kvr_event ev = {
        .worker = W, .kind = KVR_EVENT_STORED, .has_parent = e->parent != 0, .parent_hash = e->parent, .blocks = blocks, .blocks_n = e->n};
    kvr_supposed_stored(w->supposed, &ev, kvr_index_apply(w->index, &ev), w->tick);
}

static size_t depth_of(struct world *w, const uint64_t *locals, size_t n)
{
    struct kvr_overlap o;
    return kvr_index_match(w->reader, locals, n, &o, 1) == 1 ? o.depth : 0;
}

struct check {
    struct world *w;
    struct kvr_map64 true_names; /* name in the view -> the engine's */
};

static int check_event(void *ctx, const struct kvr_event *ev)
{
    struct check *c = ctx;
    const uint64_t *up = ev->has_parent ? kvr_map64_get(&c->true_names, ev->parent_hash) : NULL;
    assert_true(!ev->has_parent || up);
    uint64_t name = up ? *up : 0;
    for (size_t i = 0; i < ev->blocks_n; i++) {
        name = name_of(name, ev->blocks[i].tokens_hash);
        kvr_map64_put(&c->true_names, ev->blocks[i].block_hash, name);
        const uint64_t *gone = kvr_map64_get(&c->w->gone, name);
        if (!copies(c->w, name) && !(gone && *gone > c->w->seen)) fail_msg("the view has a block that the engine does not hold");
    }
    return 0;
}

static void check_view(struct world *w)
{
    struct check c = {.w = w};
    assert_int_equal(kvr_index_dump(w->index, &W, check_event, &c), 0);
    kvr_map64_clear(&c.true_names);
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

static void begin(struct world *w, struct running *r, bool ours, bool hard)
{
    size_t f = kvr_rng_below(&w->rng, FAMILIES), shared = w->family_n[f];
    *r = (struct running){.on = true, .ours = ours};
    memcpy(r->locals, w->families[f], shared * sizeof *r->locals);
    r->n = shared;
    /* its own end: of few texts, so that two prompts have the same behind different beginnings */
    for (size_t more = kvr_rng_below(&w->rng, 4); more > 0 && r->n < LEN_MAX; more--)
        r->locals[r->n++] = hard ? 500 + kvr_rng_below(&w->rng, 6) : 100000 + ++w->made;
    r->tick = w->tick;
    r->view = ours ? depth_of(w, r->locals, r->n) : 0;
    r->silent = hard && kvr_rng_below(&w->rng, 6) == 0; /* aborted, or not known */
    bool reads = !hard || kvr_rng_below(&w->rng, 8);
    r->silent |= !reads; /* nothing is made of such answers */
    int cached = schedule(w, r, reads, kvr_rng_below(&w->rng, 3));
    r->on = cached >= 0;
    r->cached = cached < 0 ? 0 : (size_t)cached;
    if (cached < 0 || !ours) return;
    w->reused += r->cached;
    w->predicted += KVR_MIN(r->cached, r->view);
}

static void deliver(struct world *w, struct running *r)
{
    struct kvr_served v = {W, r->locals, r->n, w->told, r->cached, r->view, r->tick};
    r->on = false;
    kvr_supposed_served(w->supposed, &v, w->now_ms);
}

static void end(struct world *w, struct running *r, bool late)
{
    struct running *d = &w->done[r - w->run];
    release(w, r);
    r->on = false;
    if (!r->ours || r->silent) return;
    if (d->on && w->slow) return; /* its client has gone */
    if (d->on) deliver(w, d);
    *d = *r;
    d->on = true;
    if (!late) deliver(w, d);
}

static void preempt(struct world *w, struct running *r)
{
    release(w, r);
    if (schedule(w, r, true, 0) < 0) r->on = false;
}

static void run_steps(struct world *w, size_t steps, bool hard, bool checked)
{
    for (size_t k = 0; k < steps; k++) {
        struct running *r = &w->run[kvr_rng_below(&w->rng, hard ? RUNNING : 1)];
        w->now_ms += kvr_rng_below(&w->rng, 50);
        while (w->seen < w->sent && w->events[w->seen].sent_ms + KVR_SUPPOSED_WAIT_MS < w->now_ms) see_one(w); /* late, but not later */
        kvr_supposed_tick(w->supposed, w->now_ms);
        struct running *d = &w->done[kvr_rng_below(&w->rng, RUNNING)];
        if (d->on && kvr_rng_below(&w->rng, w->slow ? 60 : 3) == 0) deliver(w, d);
        if (!r->on) begin(w, r, !hard || kvr_rng_below(&w->rng, 3) != 0, hard);
        else if (hard && kvr_rng_below(&w->rng, 12) == 0) preempt(w, r);
        else {
            if (!hard || kvr_rng_below(&w->rng, 2))
                while (w->seen < w->sent) see_one(w);
            end(w, r, hard && kvr_rng_below(&w->rng, 2));
        }
        for (size_t late = hard ? kvr_rng_below(&w->rng, 6) : 100; late > 0 && w->seen < w->sent; late--) see_one(w);
        if (checked) check_view(w);
    }
}

static void open_world(struct world *w, uint64_t seed)
{
    struct kvr_supposed_config c = {.worker = W, .apply = apply, .ctx = w};
    *w = (struct world){.rng = {seed}, .now_ms = 1000, .told = true};
    w->events = calloc(EVENTS_MAX, sizeof *w->events);
    w->blocks[BLOCKS].next = w->blocks[BLOCKS].prev = BLOCKS;
    for (int i = 0; i < BLOCKS; i++) queue_put(w, i, false);
    for (int f = 0; f < FAMILIES; f++) {
        w->family_n[f] = 4 + kvr_rng_below(&w->rng, 12);
        for (size_t i = 0; i < w->family_n[f]; i++) w->families[f][i] = i < 3 ? 10 + kvr_rng_below(&w->rng, 3) : 1000 + ++w->made;
    }
    assert_int_equal(kvr_index_create(NULL, &w->index), 0);
    assert_int_equal(kvr_index_reader_create(w->index, &w->reader), 0);
    assert_int_equal(kvr_supposed_create(&c, &w->supposed), 0);
}

/* What was before is not known. */
static void forget(struct world *w)
{
    w->seen = w->sent;
    kvr_index_drop_rank(w->index, W);
    kvr_supposed_reset(w->supposed, ++w->tick);
    w->reused = w->predicted = 0;
}

static void close_world(struct world *w)
{
    kvr_supposed_destroy(w->supposed);
    kvr_index_destroy(w->index);
    kvr_map64_clear(&w->count);
    kvr_map64_clear(&w->gone);
    free(w->events);
}

static void nothing_is_in_the_view_that_the_engine_does_not_hold(void **)
{
    uint64_t seed = env_u64("KVR_SEED", 1), seeds = env_u64("KVR_OPS", 60000) / 1000; /* a world takes 1000 steps */
    struct kvr_supposed_stats sum = {0};
    for (uint64_t i = 0; i < seeds; i++) {
        struct world w;
        struct kvr_supposed_stats st;
        open_world(&w, seed + i);
        w.told = i % 5 != 0;
        w.slow = i % 3 == 1;
        w.offloads = i % 4 == 3;
        run_steps(&w, 400, true, false);
        forget(&w);
        run_steps(&w, 600, true, true);
        while (w.seen < w.sent) see_one(&w);
        check_view(&w);
        kvr_supposed_stats(w.supposed, &st);
        sum.supposed += st.supposed;
        sum.named += st.named;
        sum.given_up += st.given_up;
        sum.ambiguous += st.ambiguous;
        sum.wrong += st.wrong;
        sum.full += st.full;
        close_world(&w);
    }
    print_message("%llu supposed, %llu named, %llu given up, %llu ambiguous, %llu wrong, %llu full\n", (unsigned long long)sum.supposed,
                  (unsigned long long)sum.named, (unsigned long long)sum.given_up, (unsigned long long)sum.ambiguous,
                  (unsigned long long)sum.wrong, (unsigned long long)sum.full);
    assert_true(sum.supposed && sum.named && sum.given_up && sum.ambiguous && !sum.full);
}

static void most_of_the_reuse_is_predicted_soon(void **)
{
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world w;
        open_world(&w, seed);
        run_steps(&w, 1000, false, false);
        forget(&w);
        run_steps(&w, 100, false, true); /* 50 requests */
        w.reused = w.predicted = 0;
        run_steps(&w, 200, false, true);
        print_message("seed %llu: %llu of %llu\n", (unsigned long long)seed, (unsigned long long)w.predicted, (unsigned long long)w.reused);
        assert_true(w.predicted * 10 >= w.reused * 9);
        close_world(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_in_the_view_that_the_engine_does_not_hold),
                                       cmocka_unit_test(most_of_the_reuse_is_predicted_soon)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
