/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capacity on paper: what a fleet needs of shards, routers and network. usage: bench_capacity [workers blocks requests_per_s prompt_blocks]
 *
 *   inputs       measured here: bytes of a (block, holder) pair, time to read and apply an event, to match a prompt, to choose among that
 *                many ranks, to ask and answer a query; bytes of an event on the wire
 *   simulation   a twentieth of the workers, each with a fiftieth of the blocks, in virtual time, real index and router, caches that evict,
 * prompts of conversations with shared beginnings: how much of a prompt is cached, blocks stored and removed for a request, pairs held
 *   table        both together, for 1 to 64 shards
 *
 * What it leaves out: the proxy's own work (bench_serve.py), engines, failures, and headroom.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <kvroute/kvroute.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/map64.h"
#include "wire/index_question.h"
#include "wire/index_service.h"
#include "wire/plane_event.h"

enum { BS = 16, CORES = 16 };

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static struct {
    double workers, blocks, rate;
    size_t prompt;
} want = {10000, 100000, 50000, 256};

static struct {
    double pair_bytes, apply_ns, read_ns, match_ns, choose_ns, ask_ns, answer_ns; /* apply, read: a block */
    double stored_bytes, removed_bytes, event_bytes;                              /* a block, a block, what every event costs */
} in;

static struct {
    double cached, stored, removed, stored_events, removed_events; /* share of the prompt; of a request */
    double pairs, pair_bytes, choose_ns;
} sim;

/* ---- memory ----------------------------------------------------------------------------------------------------------- */

static size_t held_bytes;

static void *counted(void *, void *ptr, size_t old_size, size_t new_size)
{
    held_bytes += new_size - old_size;
    if (new_size == 0) {
        free(ptr);
        return NULL;
    }
    return realloc(ptr, new_size);
}

/* ---- inputs ----------------------------------------------------------------------------------------------------------- */

/* Chains of `prompt` blocks: a quarter shared by all workers of a group of eight, the rest their own. */
static void measure_index(void)
{
    enum { WORKERS = 64, CHAINS = 80, MATCHES = 20000 };
    struct kvr_alloc a = {counted, NULL};
    struct kvr_index_config c = {.alloc = &a};
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    struct kvr_overlap out[WORKERS];
    size_t n = want.prompt, shared = n / 4;
    struct kvr_block *b = calloc(n, sizeof *b);
    uint64_t *locals = calloc(n, sizeof *locals), pairs = 0, t0, spent = 0;
    KVR_ASSERT(b && locals && kvr_index_create(&c, &ix) == 0 && kvr_index_reader_create(ix, &rd) == 0);
    for (uint64_t w = 0; w < WORKERS; w++)
        for (uint64_t k = 0; k < CHAINS; k++) {
            for (size_t i = 0; i < n; i++) {
                uint64_t whose = i < shared ? w / 8 : 1000 + w;
                b[i] =
                    (struct kvr_block){kvr_mix64(whose << 40 ^ k << 20 ^ i) | 1, kvr_mix64(whose << 40 ^ k << 20 ^ i ^ UINT64_C(1) << 63)};
            }
            struct kvr_event ev = {.worker = {w + 1, 0}, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = n};
            t0 = now();
            KVR_ASSERT(kvr_index_apply(ix, &ev) == 0);
            spent += now() - t0;
            pairs += n;
        }
    in.pair_bytes = (double)held_bytes / (double)pairs;
    in.apply_ns = (double)spent / (double)pairs;
    spent = 0;
    for (uint64_t i = 0; i < MATCHES; i++) { /* each time another prompt, so that it is not in the caches of the processor */
        uint64_t w = kvr_mix64(i) % WORKERS, k = kvr_mix64(~i) % CHAINS;
        for (size_t j = 0; j < n; j++) locals[j] = kvr_mix64((j < shared ? w / 8 : 1000 + w) << 40 ^ k << 20 ^ j ^ UINT64_C(1) << 63);
        t0 = now();
        KVR_ASSERT(kvr_index_match(rd, locals, n, out, WORKERS) > 0);
        spent += now() - t0;
    }
    in.match_ns = (double)spent / MATCHES;
    /* removals, as stores: the other half of the events of a full cache */
    uint64_t *names = calloc(n, sizeof *names);
    for (size_t i = 0; i < n; i++) names[i] = b[i].block_hash;
    struct kvr_event gone = {.worker = {WORKERS, 0}, .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = n};
    t0 = now();
    (void)kvr_index_apply(ix, &gone);
    in.apply_ns = (in.apply_ns + (double)(now() - t0) / (double)n) / 2;
    kvr_index_reader_destroy(rd);
    kvr_index_destroy(ix);
    free(b);
    free(locals);
    free(names);
}

static int read_event(void *, const struct kvr_plane_place *place)
{
    static struct kvr_block *blocks;
    static size_t cap;
    struct kvr_event ev;
    return kvr_plane_event_read(place->data, place->len, &ev, &blocks, &cap);
}

static double envelope_bytes(const struct kvr_event *ev, double *ns)
{
    struct kvr_buf payload = {0}, out = {0}, scratch = {0};
    kvr_plane_event_write(&payload, ev);
    struct kvr_envelope e = {UINT64_C(1) << 52,     1u << 30, 1800000000000, KVR_PLANE_EVENTS, 9, payload.data,
                             (uint32_t)payload.len, false,    true},
                        got;
    kvr_envelope_write(&out, &e);
    uint64_t t0 = now();
    for (int i = 0; i < 20000; i++)
        KVR_ASSERT(kvr_envelope_read(out.data, out.len, &scratch, &got) == 0 &&
                   kvr_plane_events_each(got.payload, got.payload_len, read_event, NULL) == 0);
    *ns = (double)(now() - t0) / 20000;
    double n = (double)out.len;
    kvr_buf_free(&payload);
    kvr_buf_free(&out);
    kvr_buf_free(&scratch);
    return n;
}

static void measure_wire(void)
{
    struct kvr_block b[64];
    uint64_t names[64];
    double ns1, ns64, gone1, gone64;
    for (size_t i = 0; i < 64; i++) {
        names[i] = kvr_mix64(i) | UINT64_C(1) << 63;
        b[i] = (struct kvr_block){names[i], ~names[i] | UINT64_C(1) << 62};
    }
    struct kvr_event stored = {.event_id = 1u << 30,
                               .worker = {1 << 20, 0},
                               .kind = KVR_EVENT_STORED,
                               .has_parent = true,
                               .parent_hash = names[9],
                               .blocks = b,
                               .blocks_n = 1};
    struct kvr_event removed = {.event_id = 1u << 30, .worker = {1 << 20, 0}, .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = 1};
    double one = envelope_bytes(&stored, &ns1);
    stored.blocks_n = 64;
    in.stored_bytes = (envelope_bytes(&stored, &ns64) - one) / 63;
    in.event_bytes = one - in.stored_bytes;
    double removed_one = envelope_bytes(&removed, &gone1);
    removed.removed_n = 64;
    in.removed_bytes = (envelope_bytes(&removed, &gone64) - removed_one) / 63;
    in.read_ns = (ns64 + gone64) / 128;
}

static void measure_choice(void)
{
    struct kvr_router_config c;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_router_result res;
    uint64_t *locals = calloc(want.prompt, sizeof *locals);
    struct kvr_reach scores[64];
    kvr_router_config_init(&c);
    c.remote_index = true;
    c.seed = 1;
    KVR_ASSERT(locals && kvr_router_create(&c, &r, NULL) == 0 && kvr_router_ctx_create(r, &ctx) == 0);
    for (uint64_t w = 1; w <= (uint64_t)want.workers; w++) KVR_ASSERT(kvr_router_set_worker(r, w, 0, 1) == 0);
    for (size_t i = 0; i < want.prompt; i++) locals[i] = kvr_mix64(i);
    for (uint64_t i = 0; i < 64; i++) scores[i] = (struct kvr_reach){{1 + i * 100, 0}, {64, 64, 64, 64}};
    uint64_t t0 = now();
    enum { RUNS = 400 };
    for (int i = 0; i < RUNS; i++) {
        struct kvr_router_request rq = {
            .locals = locals, .locals_n = want.prompt, .isl = want.prompt * BS, .scores = scores, .scores_n = 64};
        KVR_ASSERT(kvr_router_find_best_match(r, ctx, &rq, &res) == 0);
    }
    in.choose_ns = (double)(now() - t0) / RUNS;
    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(r);
    free(locals);
}

static void measure_service(void)
{
    enum { RUNS = 5000 };
    struct kvr_buf q = {0}, a = {0};
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_json o;
    struct kvr_reach scores[64], *got;
    struct kvr_service_question asked = {0};
    uint64_t *locals = calloc(want.prompt, sizeof *locals), instance, t0 = now();
    char why[64];
    for (size_t i = 0; i < want.prompt; i++) locals[i] = kvr_mix64(i) | UINT64_C(1) << 63;
    for (uint64_t i = 0; i < 64; i++) scores[i] = (struct kvr_reach){{1 + i, 0}, {64, 64, 64, 64}};
    kvr_service_scores_write(&a, scores, 64, 7);
    for (int i = 0; i < RUNS; i++) { /* the asking side: write, read */
        q.len = 0;
        q.comma = false;
        kvr_service_query_write(&q, true, "model", locals, want.prompt, 0, false);
        KVR_ASSERT(kvr_json_parse(p, a.data, a.len, &o, NULL) == 0 &&
                   kvr_service_scores_read(o, 1 << 20, &got, &instance, why, sizeof why) == 64);
        free(got);
    }
    in.ask_ns = (double)(now() - t0) / RUNS;
    t0 = now();
    for (int i = 0; i < RUNS; i++) { /* the answering side: read, write */
        KVR_ASSERT(kvr_service_question_packed(&asked, q.data, q.len) == 0 && asked.blocks.given);
        a.len = 0;
        a.comma = false;
        kvr_service_scores_write(&a, scores, 64, 7);
    }
    in.answer_ns = (double)(now() - t0) / RUNS;
    kvr_json_parser_free(p);
    kvr_service_question_free(&asked);
    kvr_buf_free(&q);
    kvr_buf_free(&a);
    free(locals);
}

/* ---- simulation ------------------------------------------------------------------------------------------------------- */

/* What one request has added to a cache: its blocks go together, and only when nothing hangs behind them. */
struct unit {
    struct unit *older, *newer, *parent;
    uint32_t kids, n;
    uint64_t content; /* its key in the cache; block i is called name_of(content, i), by every engine */
};

static uint64_t name_of(uint64_t content, uint32_t i)
{
    return kvr_mix64(content + i) | 1;
}

struct cache {
    struct kvr_worker id;
    struct unit *oldest, *newest;
    struct kvr_map64 at; /* last block of a unit's content -> unit */
    uint64_t held;
};

static void touch(struct cache *c, struct unit *u)
{
    if (c->newest == u) return;
    if (u->newer) {
        u->newer->older = u->older;
        *(u->older ? &u->older->newer : &c->oldest) = u->newer;
    }
    u->older = c->newest;
    u->newer = NULL;
    *(c->newest ? &c->newest->newer : &c->oldest) = u;
    c->newest = u;
}

static void evict(struct kvr_index *ix, struct cache *c, uint64_t capacity)
{
    static uint64_t names[4096];
    for (struct unit *u = c->oldest, *newer; u && c->held > capacity; u = newer) {
        newer = u->newer;
        if (u->kids) continue;
        for (uint32_t i = 0; i < u->n; i++) names[i] = name_of(u->content, i);
        struct kvr_event ev = {.worker = c->id, .kind = KVR_EVENT_REMOVED, .removed = names, .removed_n = u->n};
        (void)kvr_index_apply(ix, &ev);
        sim.removed += u->n;
        sim.removed_events++;
        *(u->older ? &u->older->newer : &c->oldest) = u->newer;
        *(u->newer ? &u->newer->older : &c->newest) = u->older;
        if (u->parent) u->parent->kids--;
        kvr_map64_del(&c->at, u->content);
        c->held -= u->n;
        free(u);
    }
}

/* A prompt is three pieces: a group's beginning, a conversation so far, and what is new. Each is a unit when it is stored. */
struct piece {
    uint64_t content; /* of all up to here */
    uint32_t n;
};

static void serve(struct kvr_index *ix, struct cache *c, const struct piece *p, size_t pieces, uint64_t capacity, double *cached)
{
    static struct kvr_block blocks[4096];
    struct unit *parent = NULL;
    bool hit = true;
    for (size_t k = 0; k < pieces; k++) {
        const uint64_t *at = kvr_map64_get(&c->at, p[k].content);
        struct unit *u = at ? (struct unit *)(uintptr_t)*at : NULL;
        if (u && hit) {
            *cached += p[k].n;
            touch(c, u);
            parent = u;
            continue;
        }
        hit = false;
        u = calloc(1, sizeof *u);
        *u = (struct unit){.parent = parent, .n = p[k].n, .content = p[k].content};
        for (uint32_t i = 0; i < u->n; i++) blocks[i] = (struct kvr_block){name_of(u->content, i), kvr_mix64(p[k].content + i)};
        struct kvr_event ev = {.worker = c->id,
                               .kind = KVR_EVENT_STORED,
                               .has_parent = parent != NULL,
                               .parent_hash = parent ? name_of(parent->content, parent->n - 1) : 0,
                               .blocks = blocks,
                               .blocks_n = u->n};
        KVR_ASSERT(kvr_index_apply(ix, &ev) == 0);
        sim.stored += u->n;
        sim.stored_events++;
        if (parent) parent->kids++;
        u->older = c->newest;
        *(c->newest ? &c->newest->newer : &c->oldest) = u;
        c->newest = u;
        (void)kvr_map64_put(&c->at, p[k].content, (uint64_t)(uintptr_t)u);
        c->held += u->n;
        parent = u;
    }
    evict(ix, c, capacity);
}

static void simulate(void)
{
    enum { GROUPS = 200 };
    size_t workers = (size_t)KVR_MAX(want.workers / 20, 8.0), n = want.prompt;
    uint64_t capacity = (uint64_t)(want.blocks / 50) + 4 * n, requests = workers * capacity / n * 6, warm = requests / 2;
    struct kvr_alloc a = {counted, NULL};
    struct kvr_index_config ic = {.alloc = &a};
    struct kvr_router_config c;
    struct kvr_index *ix;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_rng rng = {7};
    struct cache *caches = calloc(workers, sizeof *caches);
    uint64_t *locals = calloc(n, sizeof *locals), choosing = 0;
    size_t sessions_n = workers * capacity / n / 2;
    struct {
        uint64_t group, turn;
    } *sessions = calloc(sessions_n, sizeof *sessions);
    double cached = 0;
    held_bytes = 0;
    kvr_router_config_init(&c);
    KVR_ASSERT(caches && locals && sessions && kvr_index_create(&ic, &ix) == 0);
    c.index = ix;
    c.seed = 1;
    KVR_ASSERT(kvr_router_create(&c, &r, NULL) == 0 && kvr_router_ctx_create(r, &ctx) == 0);
    for (size_t w = 0; w < workers; w++) {
        caches[w].id = (struct kvr_worker){w + 1, 0};
        KVR_ASSERT(kvr_router_set_worker(r, w + 1, 0, 1) == 0);
    }
    for (size_t i = 0; i < sessions_n; i++) sessions[i].group = kvr_rng_below(&rng, GROUPS);
    for (uint64_t q = 0; q < requests; q++) {
        if (q == warm) {
            sim.stored = sim.removed = sim.stored_events = sim.removed_events = cached = 0;
            choosing = 0;
        }
        size_t s = kvr_rng_below(&rng, (uint32_t)sessions_n);
        if (kvr_rng_below(&rng, 6) == 0) { /* a conversation ends, another begins */
            sessions[s].group = kvr_rng_below(&rng, GROUPS);
            sessions[s].turn = (sessions[s].turn / 1000 + 1) * 1000;
        }
        uint32_t part[3] = {(uint32_t)(n / 4), (uint32_t)(n / 2), (uint32_t)(n - n / 4 - n / 2)};
        uint64_t group = kvr_mix64(sessions[s].group + 1), so_far = kvr_mix64(group ^ (s << 20) ^ (sessions[s].turn / 1000)),
                 fresh = kvr_mix64(so_far ^ (sessions[s].turn % 1000 + 7));
        struct piece pieces[3] = {{group, part[0]}, {so_far, part[1]}, {fresh, part[2]}};
        sessions[s].turn++;
        size_t at = 0;
        for (int k = 0; k < 3; k++)
            for (uint32_t i = 0; i < part[k]; i++) locals[at++] = kvr_mix64(pieces[k].content + i);
        char id[24];
        struct kvr_router_result res;
        snprintf(id, sizeof id, "%llu", (unsigned long long)q);
        struct kvr_router_request rq = {.id = id, .id_len = strlen(id), .book = true, .locals = locals, .locals_n = n, .isl = n * BS};
        uint64_t t0 = now();
        KVR_ASSERT(kvr_router_find_best_match(r, ctx, &rq, &res) == 0);
        choosing += now() - t0;
        (void)kvr_router_mark_prefill_completed(r, id, strlen(id));
        if (q >= workers * 4) { /* so many run at once */
            snprintf(id, sizeof id, "%llu", (unsigned long long)(q - workers * 4));
            (void)kvr_router_free(r, id, strlen(id));
        }
        serve(ix, &caches[res.worker.worker_id - 1], pieces, 3, capacity, &cached);
    }
    double counted_requests = (double)(requests - warm), pairs = 0;
    for (size_t w = 0; w < workers; w++) pairs += (double)caches[w].held;
    sim.cached = cached / counted_requests / (double)n;
    sim.stored /= counted_requests;
    sim.removed /= counted_requests;
    sim.stored_events /= counted_requests;
    sim.removed_events /= counted_requests;
    sim.pairs = pairs / ((double)workers * (double)capacity);
    sim.pair_bytes = (double)held_bytes / pairs;
    sim.choose_ns = (double)choosing / counted_requests;
    printf("\nSimulated: %zu workers x %llu blocks, %llu requests in virtual time (the first half warms the caches).\n", workers,
           (unsigned long long)capacity, (unsigned long long)requests);
    for (size_t w = 0; w < workers; w++) {
        while (caches[w].oldest) {
            struct unit *u = caches[w].oldest;
            caches[w].oldest = u->newer;
            free(u);
        }
        kvr_map64_clear(&caches[w].at);
    }
    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(r);
    kvr_index_destroy(ix);
    free(caches);
    free(locals);
    free(sessions);
}

/* ---- the table -------------------------------------------------------------------------------------------------------- */

static void print_inputs(void)
{
    printf("Fleet: %.0f workers x %.0f blocks, %.0f requests/s of %zu blocks (%zu tokens).\n\n", want.workers, want.blocks, want.rate,
           want.prompt, want.prompt * BS);
    printf("| measured here | |\n|---|---:|\n");
    printf("| a (block, holder) pair in the index | %.1f bytes |\n", in.pair_bytes);
    printf("| reading an event from its envelope, a block | %.0f ns |\n", in.read_ns);
    printf("| applying it, a block | %.0f ns |\n", in.apply_ns);
    printf("| matching a prompt | %.1f us |\n", in.match_ns / 1e3);
    printf("| choosing among %.0f ranks | %.0f us |\n", want.workers, in.choose_ns / 1e3);
    printf("| a query: asking, answering | %.0f us, %.0f us |\n", in.ask_ns / 1e3, in.answer_ns / 1e3);
    printf("| an event on the wire | %.0f bytes + %.0f a stored block, %.0f a removed one |\n", in.event_bytes, in.stored_bytes,
           in.removed_bytes);
}

static void print_simulated(void)
{
    printf("\n| simulated | |\n|---|---:|\n");
    printf("| cached of a prompt | %.0f %% |\n", 100 * sim.cached);
    printf("| blocks stored, removed for a request | %.0f, %.0f |\n", sim.stored, sim.removed);
    printf("| events of them | %.2f, %.2f |\n", sim.stored_events, sim.removed_events);
    printf("| choosing, with hashing of sequences, matching and booking | %.0f us |\n", sim.choose_ns / 1e3);
    printf("| pairs held, of workers x blocks | %.2f |\n", sim.pairs);
    printf("| a pair, with what this workload shares | %.1f bytes (%.2f of the input) |\n", sim.pair_bytes, sim.pair_bytes / in.pair_bytes);
}

static void print_table(void)
{
    double block_ops = want.rate * (sim.stored + sim.removed), pairs = want.workers * want.blocks * sim.pairs;
    double bytes = want.rate * (sim.stored * in.stored_bytes + sim.removed * in.removed_bytes +
                                (sim.stored_events + sim.removed_events) * in.event_bytes);
    double pair_bytes = KVR_MAX(in.pair_bytes, sim.pair_bytes), event_cores = block_ops * (in.read_ns + in.apply_ns) / 1e9;
    printf("\nEvents: %.1f million blocks a second, %.2f GB/s of envelopes; %.1f cores to read and apply them once.\n", block_ops / 1e6,
           bytes / 1e9, event_cores);
    printf("Memory: %.2f billion pairs, %.0f GB in all.\n", pairs / 1e9, pairs * pair_bytes / 1e9);
    double choose = want.rate * in.choose_ns / 1e9;
    printf("Routers: %.1f cores to choose (one lock a router: at least %.0f of them), before proxying.\n\n", choose, ceil(choose));
    printf("| shards | workers each | memory GB | event cores | query cores | cores | of %d | events in, Gbit/s "
           "|\n|---:|---:|---:|---:|---:|---:|---:|---:|\n",
           CORES);
    for (int shards = 1; shards <= 64; shards *= 2) {
        double query = want.rate * (in.match_ns + in.answer_ns) / 1e9, events = event_cores / shards, cores = query + events;
        printf("| %d | %.0f | %.1f | %.2f | %.2f | %.1f | %s | %.2f |\n", shards, want.workers / shards, pairs * pair_bytes / 1e9 / shards,
               events, query, cores, cores <= CORES ? "fits" : "no", bytes * 8 / 1e9 / shards);
    }
    printf("\nAsking: each router spends %.0f us of a request for each shard it asks (%.1f cores at this rate and one shard).\n",
           in.ask_ns / 1e3, want.rate * in.ask_ns / 1e9);
}

int main(int argc, char **argv)
{
    if (argc > 1) want.workers = strtod(argv[1], NULL);
    if (argc > 2) want.blocks = strtod(argv[2], NULL);
    if (argc > 3) want.rate = strtod(argv[3], NULL);
    if (argc > 4) want.prompt = strtoul(argv[4], NULL, 10);
    if (!(want.workers >= 1 && want.blocks >= 1 && want.rate > 0) || want.prompt < 4 || want.prompt > 4096) {
        fprintf(stderr, "usage: bench_capacity [workers blocks requests_per_s prompt_blocks]; prompt_blocks: 4 to 4096\n");
        return 2;
    }
    measure_index();
    measure_wire();
    measure_choice();
    measure_service();
    print_inputs();
    fflush(stdout);
    simulate();
    print_simulated();
    print_table();
    return 0;
}
