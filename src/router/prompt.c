/* SPDX-License-Identifier: Apache-2.0 */
/* Before the lock: tokens to hashes, hashes to overlaps. */
#include <string.h>

#include "router/internal.h"

static int hash_prompt(struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    p->isl = rq->isl ? rq->isl : rq->tokens_n;
    if (c->router->config.remote_index) {
        p->reaches = rq->scores;
        p->reaches_n = rq->scores ? rq->scores_n : 0;
    }
    if (rq->locals) {
        if (rq->seqs && rq->seqs_n != rq->locals_n) return -KVR_ELENGTH;
        p->locals = rq->locals;
        p->locals_n = rq->locals_n;
        if (!p->isl) p->isl = (uint64_t)rq->locals_n * c->router->config.block_size;
        return 0;
    }
    if (rq->seqs) { /* for booking only */
        p->locals_n = rq->seqs_n;
        return 0;
    }
    uint32_t bs = c->router->config.block_size;
    size_t n = kvr_hash_block_count(rq->tokens_n, bs, rq->eagle);
    if (kvr_mem_grow(&c->mem, (void **)&c->locals, &c->locals_cap, n, sizeof *c->locals)) return -KVR_ENOMEM;
    uint64_t seed = kvr_hash_seed(rq->lora, rq->lora_len, rq->salt, rq->salt_len);
    long rc = kvr_hash_locals(rq->tokens, rq->tokens_n, bs, rq->eagle, seed, rq->mm, rq->mm_n, c->locals);
    if (rc < 0) return (int)rc;
    p->locals = c->locals;
    p->locals_n = n;
    return 0;
}

static int match_device(struct kvr_router_ctx *c, struct kvr_index *index, struct kvr_index_reader *reader, const struct prompt *p,
                        struct kvr_overlap **out, size_t *cap, size_t *n_out)
{
    for (;;) {
        size_t ranks = kvr_index_ranks(index);
        if (kvr_mem_grow(&c->mem, (void **)out, cap, ranks + 1, sizeof **out)) return -KVR_ENOMEM;
        long n = kvr_index_match(reader, p->locals, p->locals_n, *out, *cap);
        if (n == -KVR_ELIMIT) continue; /* ranks were added in between */
        bool ends_with_a_block = p->isl <= p->locals_n * (uint64_t)c->router->config.block_size;
        *n_out = ends_with_a_block ? kvr_index_limit(index, p->locals, p->locals_n - 1, *out, (size_t)n) : (size_t)n;
        return 0;
    }
}

/* Sequence hashes of the whole prompt. */
static int chain(struct kvr_router_ctx *c, const struct prompt *p)
{
    if (kvr_mem_grow(&c->mem, (void **)&c->seqs, &c->seqs_cap, p->locals_n, sizeof *c->seqs)) return -KVR_ENOMEM;
    kvr_hash_sequence(p->locals, p->locals_n, c->seqs);
    return 0;
}

/* Goes on from the overlaps through the lower tiers. -KVR_ELIMIT: ranks were added in between. */
static int match_tiers(struct kvr_router_ctx *c, struct prompt *p)
{
    size_t cap = kvr_index_ranks(c->router->config.index) + 16;
    if (kvr_mem_grow(&c->mem, (void **)&c->reaches, &c->reaches_cap, cap, sizeof *c->reaches)) return -KVR_ENOMEM;
    if (!p->prefixes && !(p->seqs && p->seqs_n == p->locals_n)) {
        if (chain(c, p)) return -KVR_ENOMEM;
        p->prefixes = c->seqs;
    }
    const uint64_t *prefixes = p->prefixes ? p->prefixes : p->seqs;
    long n = kvr_index_match_tiers(c->reader, p->overlaps, p->overlaps_n, prefixes, p->locals_n, c->reaches, c->reaches_cap);
    if (n < 0) return (int)n;
    p->reaches = c->reaches;
    p->reaches_n = (size_t)n;
    p->overlaps_n = 0;
    return 0;
}

int kvr__match(struct kvr_router_ctx *c, struct prompt *p)
{
    struct kvr_router *r = c->router;
    bool tiers = c->reader && atomic_load_explicit(&r->lower_tiers, memory_order_relaxed);
    int rc = 0;
    if (!p->locals || p->locals_n == 0) return 0;
    do {
        if (!c->reader) break;
        rc = match_device(c, r->config.index, c->reader, p, &c->overlaps, &c->overlaps_cap, &p->overlaps_n);
        p->overlaps = c->overlaps;
        if (rc == 0 && tiers) rc = match_tiers(c, p);
    } while (rc == -KVR_ELIMIT);
    if (rc == 0 && c->predicted_reader) {
        rc = match_device(c, r->config.predicted, c->predicted_reader, p, &c->predicted, &c->predicted_cap, &p->predicted_n);
        p->predicted = c->predicted;
    }
    return rc;
}

/* Blocks that a request shares with nobody. What is transferred to a decode worker fills the last block, too, and takes room whether its
 * tokens are known or not. */
static uint64_t own_blocks(const struct kvr_router_config *cfg, const struct prompt *p)
{
    uint64_t bs = cfg->block_size;
    return p->cost.decode_role ? KVR_MIN(p->isl / bs + (p->isl % bs != 0), (uint64_t)UINT32_MAX) : p->locals_n;
}

static int chain_prompt(struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    const struct kvr_router_config *cfg = &c->router->config;
    const struct kvr_override *o = rq->override;
    bool reuse = o && (o->set & KVR_OVERRIDE_ASSUME_KV_REUSE) ? o->assume_kv_reuse : cfg->assume_kv_reuse;
    size_t n = p->locals_n;
    if (cfg->track_active_blocks && !reuse) p->private_blocks = own_blocks(cfg, p);
    bool needed = (cfg->track_active_blocks && reuse) || cfg->record_decisions || cfg->predicted;
    if (!needed) return 0;
    if (rq->seqs) {
        p->seqs = rq->seqs;
    } else {
        if (!p->prefixes && chain(c, p)) return -KVR_ENOMEM;
        p->seqs = c->seqs;
    }
    p->seqs_n = n;
    return 0;
}

static int resolve_cost(const struct kvr_router *r, const struct kvr_router_request *rq, struct prompt *p)
{
    const char *field;
    p->cost = r->config.cost;
    p->expected_output = rq->expected_output ? (double)rq->expected_output : -1;
    return rq->override ? kvr_override_apply(rq->override, &p->cost, &field) : 0;
}

int kvr__hash_and_chain(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    memset(p, 0, sizeof *p);
    p->start_ns = kvr_now_ns(&r->clock);
    int rc = resolve_cost(r, rq, p);
    if (rc == 0) rc = hash_prompt(c, rq, p);
    return rc ? rc : chain_prompt(c, rq, p);
}

int kvr__prepare(struct kvr_router *r, struct kvr_router_ctx *c, const struct kvr_router_request *rq, struct prompt *p)
{
    memset(p, 0, sizeof *p);
    uint64_t t0 = p->start_ns = kvr_now_ns(&r->clock);
    int rc = resolve_cost(r, rq, p);
    if (rc == 0) rc = hash_prompt(c, rq, p);
    if (rc) return rc;
    p->ready_ns = t0;
    if (!p->locals_n) return chain_prompt(c, rq, p); /* nothing that takes time */
    uint64_t t1 = kvr_now_ns(&r->clock);
    rc = kvr__match(c, p);
    if (rc) return rc;
    uint64_t t2 = kvr_now_ns(&r->clock);
    rc = chain_prompt(c, rq, p);
    uint64_t t3 = p->ready_ns = kvr_now_ns(&r->clock);
    p->times.block_hashing = t1 - t0;
    p->times.find_matches = t2 - t1;
    p->times.seq_hashing = t3 - t2;
    return rc;
}

size_t kvr__booked_seqs(const struct prompt *p, const struct kvr_router_config *cfg)
{
    return cfg->track_active_blocks && p->private_blocks == 0 ? p->seqs_n : 0;
}
