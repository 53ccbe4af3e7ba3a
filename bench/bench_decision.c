/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One decision (hash, match, project, select, book, free) with 64 workers that hold conversations, for prompts of 2k and 128k tokens, and
 * the parts of it. Workers hold 4,096 blocks each of 16 tokens; the measured prompt is held to 90 % by some of them; 64 requests are
 * active.
 */
#include <stdio.h>
#include <string.h>
#include <kvroute/kvroute.h>

#include "base/base.h"

enum { WORKERS = 64, BS = 16, RUNS = 400 };

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void hold(struct kvr_index *ix, struct kvr_worker w, const uint64_t *l, const uint64_t *q, size_t n)
{
    struct kvr_block b[256];
    for (size_t at = 0; at < n; at += 256) {
        size_t m = KVR_MIN((size_t)256, n - at);
        for (size_t i = 0; i < m; i++) b[i] = (struct kvr_block){q[at + i], l[at + i]};
        struct kvr_event ev = {
            .worker = w, .kind = KVR_EVENT_STORED, .has_parent = at > 0, .parent_hash = at ? q[at - 1] : 0, .blocks = b, .blocks_n = m};
        KVR_ASSERT(kvr_index_apply(ix, &ev) == 0);
    }
}

static void prompt(uint32_t *t, size_t n, size_t shared, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) t[i] = (uint32_t)kvr_mix64(i < shared ? i : i + seed * 1000003);
}

static void run(size_t tokens)
{
    struct kvr_index *ix;
    struct kvr_router *r;
    struct kvr_router_ctx *ctx;
    struct kvr_router_config cfg;
    uint32_t *t = malloc(tokens * sizeof *t);
    size_t blocks = tokens / BS;
    uint64_t *l = malloc(blocks * 8), *q = malloc(blocks * 8);
    static double total[RUNS], parts[4];
    KVR_ASSERT(t && l && q && kvr_index_create(NULL, &ix) == 0);
    kvr_router_config_init(&cfg);
    cfg.index = ix;
    cfg.block_size = BS;
    cfg.seed = 1;
    KVR_ASSERT(kvr_router_create(&cfg, &r, NULL) == 0 && kvr_router_ctx_create(r, &ctx) == 0);
    for (uint64_t w = 0; w < WORKERS; w++) {
        kvr_router_set_worker(r, w, 0, 1);
        size_t held = w % 8 == 0 ? blocks * 9 / 10 : blocks * (w % 8) / 10;
        for (size_t k = 0; k * blocks < 4096; k++) {
            prompt(t, tokens, tokens / 4, k ? w * 100 + k : 0);
            kvr_hash_locals(t, tokens, BS, false, KVR_HASH_SEED, NULL, 0, l);
            kvr_hash_sequence(l, blocks, q);
            hold(ix, (struct kvr_worker){w, 0}, l, q, k ? blocks : held);
        }
    }
    struct kvr_router_result res;
    for (int i = 0; i < WORKERS; i++) {
        char id[16];
        snprintf(id, sizeof id, "bg%d", i);
        prompt(t, tokens, tokens / 4, (uint64_t)i + 7);
        struct kvr_router_request rq = {.id = id, .id_len = strlen(id), .book = true, .tokens = t, .tokens_n = tokens};
        KVR_ASSERT(kvr_router_find_best_match(r, ctx, &rq, &res) == 0);
    }
    prompt(t, tokens, tokens / 4, 0);
    memset(parts, 0, sizeof parts);
    for (int i = 0; i < RUNS; i++) {
        struct kvr_router_request rq = {.id = "x", .id_len = 1, .book = true, .tokens = t, .tokens_n = tokens};
        uint64_t a = now();
        KVR_ASSERT(kvr_router_find_best_match(r, ctx, &rq, &res) == 0);
        total[i] = (double)(now() - a) / 1e3;
        parts[0] += (double)res.times.block_hashing / 1e3 / RUNS;
        parts[1] += (double)res.times.find_matches / 1e3 / RUNS;
        parts[2] += (double)res.times.seq_hashing / 1e3 / RUNS;
        parts[3] += (double)res.times.scheduling / 1e3 / RUNS;
        kvr_router_free(r, "x", 1);
    }
    qsort(total, RUNS, sizeof *total, ascending);
    printf("decision %6zu tokens, %d workers: p50 %.1f us, p99 %.1f us; means: block hashing %.1f (%.1f GB/s), match %.1f, sequence "
           "hashing %.1f, "
           "schedule %.1f us; overlap %u of %zu blocks\n",
           tokens, WORKERS, total[RUNS / 2], total[RUNS * 99 / 100], parts[0], (double)tokens * 4 / parts[0] / 1e3, parts[1], parts[2],
           parts[3], res.overlap_blocks, blocks);
    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(r);
    kvr_index_destroy(ix);
    free(t);
    free(l);
    free(q);
}

int main(void)
{
    run(2048);
    run(131072);
    return 0;
}
