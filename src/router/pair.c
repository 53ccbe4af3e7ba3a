/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two routers, one request: kvroute/pair.h.
 *
 * Threads. There is no state but the routers' own: each call takes their locks one after the other, so a pair's two bookings come and go
 * one at a time. Between them another thread may see the first alone, which is what a request that waits for its second leg looks like.
 */
#include <kvroute/pair.h>
#include <string.h>

#include "router/internal.h"

int kvr_pair_ctx_create(const struct kvr_pair *pair, struct kvr_pair_ctx *out)
{
    *out = (struct kvr_pair_ctx){0};
    if (pair->prefill == pair->decode) return -KVR_EINVAL;
    int rc = kvr_router_ctx_create(pair->prefill, &out->prefill);
    if (rc == 0) rc = kvr_router_ctx_create(pair->decode, &out->decode);
    if (rc) kvr_pair_ctx_destroy(out);
    return rc;
}

void kvr_pair_ctx_destroy(struct kvr_pair_ctx *ctx)
{
    if (ctx->prefill) kvr_router_ctx_destroy(ctx->prefill);
    if (ctx->decode) kvr_router_ctx_destroy(ctx->decode);
    *ctx = (struct kvr_pair_ctx){0};
}

/* ---- the decode leg ---------------------------------------------------------------------------------- */

/* A request's taints, with that of the prefill worker's domain. */
struct domain_taints {
    char name[TAINT_NAME_MAX];
    const char *required[KVR_TAINTS_MAX];
    struct kvr_preferred_taint preferred[KVR_TAINTS_MAX];
};

/* Returns: 0, -KVR_ELIMIT when the request asks for more taints than a router has. */
static int ask_for_domain(const struct kvr_pair *pair, struct kvr_worker prefill, struct domain_taints *t, struct kvr_router_request *rq)
{
    if (!pair->domain_prefix || !kvr_router_find_taint(pair->prefill, prefill.worker_id, pair->domain_prefix, t->name, sizeof t->name))
        return 0;
    if ((pair->domain_required ? rq->required_n : rq->preferred_n) >= KVR_TAINTS_MAX) return -KVR_ELIMIT;
    if (pair->domain_required) {
        if (rq->required_n) memcpy(t->required, rq->required_taints, rq->required_n * sizeof *t->required);
        t->required[rq->required_n++] = t->name;
        rq->required_taints = t->required;
    } else {
        if (rq->preferred_n) memcpy(t->preferred, rq->preferred_taints, rq->preferred_n * sizeof *t->preferred);
        t->preferred[rq->preferred_n++] = (struct kvr_preferred_taint){t->name, pair->domain_weight};
        rq->preferred_taints = t->preferred;
    }
    return 0;
}

int kvr_pair_find_decode(const struct kvr_pair *pair, struct kvr_pair_ctx *ctx, const struct kvr_router_request *request,
                         struct kvr_worker prefill, struct kvr_router_result *out)
{
    struct domain_taints taints;
    struct kvr_router_request rq = *request;
    struct kvr_override override = rq.override ? *rq.override : (struct kvr_override){0};
    kvr_override_decode_leg(&override, pair->keeps_overlap);
    rq.override = &override;
    int rc = ask_for_domain(pair, prefill, &taints, &rq);
    return rc ? rc : kvr_router_find_best_match(pair->decode, ctx->decode, &rq, out);
}

/* ---- both -------------------------------------------------------------------------------------------- */

/* The prompt of a request, and nothing of who may serve it. */
static struct kvr_router_request prompt_of(const struct kvr_router_request *rq)
{
    return (struct kvr_router_request){.tokens = rq->tokens,
                                       .tokens_n = rq->tokens_n,
                                       .locals = rq->locals,
                                       .locals_n = rq->locals_n,
                                       .seqs = rq->seqs,
                                       .seqs_n = rq->seqs_n,
                                       .isl = rq->isl,
                                       .expected_output = rq->expected_output,
                                       .lora = rq->lora,
                                       .lora_len = rq->lora_len,
                                       .salt = rq->salt,
                                       .salt_len = rq->salt_len,
                                       .eagle = rq->eagle,
                                       .mm = rq->mm,
                                       .mm_n = rq->mm_n,
                                       .guarded = rq->guarded,
                                       .override = rq->override,
                                       .mode = rq->mode};
}

static struct kvr_router_request decode_of(const struct kvr_router_request *prefill, const struct kvr_router_request *decode)
{
    struct kvr_router_request rq = decode ? *decode : prompt_of(prefill);
    rq.id = prefill->id;
    rq.id_len = prefill->id_len;
    rq.book = prefill->book;
    return rq;
}

static bool hashes_fit(const struct kvr_pair *pair, const struct kvr_router_request *prefill)
{
    bool same = kvr_router_block_size(pair->prefill) == kvr_router_block_size(pair->decode);
    return same || !(prefill->locals || prefill->seqs || prefill->mm);
}

static int find_both(const struct kvr_pair *pair, struct kvr_pair_ctx *ctx, const struct kvr_router_request *prefill,
                     const struct kvr_router_request *decode, struct kvr_pair_result *out)
{
    out->failed = KVR_LEG_PREFILL;
    int rc = kvr_router_find_best_match(pair->prefill, ctx->prefill, prefill, &out->prefill);
    if (rc) return rc;
    out->failed = KVR_LEG_DECODE;
    rc = kvr_pair_find_decode(pair, ctx, decode, out->prefill.worker, &out->decode);
    if (rc && prefill->book) (void)kvr_router_free(pair->prefill, prefill->id, prefill->id_len);
    return rc;
}

/* Might another prefill worker have a decode worker in its domain? */
static bool may_be_elsewhere(const struct kvr_pair *pair, const struct kvr_router_request *prefill, const struct kvr_pair_result *out,
                             int rc)
{
    return (rc == -KVR_ENOENDPOINTS || rc == -KVR_EOVERLOADED) && out->failed == KVR_LEG_DECODE && pair->domain_prefix &&
           pair->domain_required && !prefill->pinned;
}

/* Prefill workers without a partner, behind those that the request excludes itself. */
struct left_out {
    uint64_t *ids; /* NULL: none yet */
    size_t n, cap;
};

static int leave_out(struct kvr_mem *mem, struct left_out *l, struct kvr_router_request *rq, uint64_t worker_id)
{
    bool first = l->n == 0;
    size_t n = rq->excluded_n;
    if (kvr_mem_grow(mem, (void **)&l->ids, &l->cap, n + 1, sizeof *l->ids)) return -KVR_ENOMEM;
    if (first && n) memcpy(l->ids, rq->excluded, n * sizeof *l->ids);
    l->ids[n] = worker_id;
    rq->excluded = l->ids;
    rq->excluded_n = l->n = n + 1;
    return 0;
}

int kvr_pair_find_best_match(const struct kvr_pair *pair, struct kvr_pair_ctx *ctx, const struct kvr_router_request *prefill,
                             const struct kvr_router_request *decode, struct kvr_pair_result *out)
{
    struct kvr_router_request first = *prefill, second = decode_of(prefill, decode);
    struct left_out alone = {0};
    struct kvr_mem *mem = &ctx->prefill->mem;
    *out = (struct kvr_pair_result){0};
    if (!decode && !hashes_fit(pair, prefill)) return -KVR_EINVAL;
    int rc = find_both(pair, ctx, &first, &second, out);
    while (may_be_elsewhere(pair, prefill, out, rc)) {
        int more = leave_out(mem, &alone, &first, out->prefill.worker.worker_id);
        rc = more ? more : find_both(pair, ctx, &first, &second, out);
    }
    kvr_mem_put(mem, alone.ids, alone.cap * sizeof *alone.ids);
    if (rc && alone.n) out->failed = KVR_LEG_DECODE; /* it is decode workers that are missing */
    if (rc) out->prefill = (struct kvr_router_result){0};
    return rc;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static int either(int prefill, int decode)
{
    return prefill == 0 || decode == 0 ? 0 : decode;
}

int kvr_pair_prefill_completed(const struct kvr_pair *pair, const char *id, size_t id_len)
{
    (void)kvr_router_mark_prefill_completed(pair->prefill, id, id_len);
    int prefill = kvr_router_free(pair->prefill, id, id_len);
    return either(prefill, kvr_router_mark_prefill_completed(pair->decode, id, id_len));
}

int kvr_pair_output_blocks(const struct kvr_pair *pair, const char *id, size_t id_len, uint64_t n, double fraction)
{
    return kvr_router_add_output_blocks(pair->decode, id, id_len, n, fraction);
}

int kvr_pair_touch(const struct kvr_pair *pair, const char *id, size_t id_len)
{
    int prefill = kvr_router_touch(pair->prefill, id, id_len);
    return either(prefill, kvr_router_touch(pair->decode, id, id_len));
}

int kvr_pair_free(const struct kvr_pair *pair, const char *id, size_t id_len)
{
    int prefill = kvr_router_free(pair->prefill, id, id_len);
    return either(prefill, kvr_router_free(pair->decode, id, id_len));
}
