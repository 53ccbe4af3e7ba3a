/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LOOKUP: hashes of the prompt where they are made before the router needs them, and what an index elsewhere (--use-remote-indexer; of
 * several each has a part of the workers) knows of them. A prompt of more than HASH_ON_LOOP tokens is hashed on a thread. Always DONE:
 * when an index does not answer, the request is routed without it, and its reason says so.
 */
#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/data/request/eligible.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/peers/remote.h"

enum { HASH_ON_LOOP = 256 << 10 /* tokens */ };

/* Adds what one index knows. Workers are divided among several, so the lists do not overlap. */
static bool keep_scores(struct request *r, const struct kvr_reach *scores, size_t n)
{
    if (n == 0) return true;
    struct kvr_reach *more = realloc(r->scores, (r->scores_n + n) * sizeof *more);
    if (!more) return false;
    memcpy(more + r->scores_n, scores, n * sizeof *more);
    r->scores = more;
    r->scores_n += n;
    return true;
}

static void on_scores(void *ctx, const struct kvr_remote_query *q, const struct kvr_reach *scores, long n)
{
    struct request *r = ctx;
    struct lookup *k = &r->now->lookup;
    struct remote_counters *m = remote_counters(data_of(r)->peers);
    for (size_t i = 0; i < REMOTES_MAX; i++)
        if (k->queries[i] == q) k->queries[i] = NULL;
    if (n >= 0) kvr_histogram_add(&m->query_ms, (double)(kvr_monotonic_ns() - k->asked_ns) / 1e6);
    if (n < 0 || !keep_scores(r, scores, (size_t)n)) r->no_index = true;
    else r->part_index = true;
    bool last = --k->unanswered == 0;
    if (last && r->no_index && r->part_index) atomic_fetch_add_explicit(&m->partial, 1, memory_order_relaxed);
    request_step(r, last ? OUTCOME_DONE : OUTCOME_WAITS);
}

/* What several indexers call the model: they know the fleet's workers by what was registered. */
static const char *asked_model(const struct request *r, char *out, size_t cap)
{
    if (!remote_model(data_of(r)->peers, r->hashed_for, out, cap)) return r->model;
    return out;
}

/* The hashes are there, or will be made when the request is routed: what of them is cached elsewhere? */
static enum outcome ask_remotes(struct request *r)
{
    struct lookup *k = &r->now->lookup;
    struct loop *l = r->loop;
    char model[MODEL_MAX + 16];
    if (!l->remotes_n || !r->locals_n) return OUTCOME_DONE;
    k->asked_ns = kvr_monotonic_ns();
    for (size_t i = 0; i < l->remotes_n; i++) {
        k->queries[i] =
            kvr_remote_ask(l->remotes[i], asked_model(r, model, sizeof model), r->locals, r->locals_n, r->tokens_n, on_scores, r);
        if (k->queries[i]) k->unanswered++;
        else r->no_index = true;
    }
    if (!k->unanswered) return OUTCOME_DONE;
    request_wait_until(r, 0); /* the questions have their own time */
    return OUTCOME_WAITS;
}

/* The prompt's hashes, for blocks of hashed_for tokens. Without memory there are none. */
static void hash_prompt(struct request *r)
{
    size_t n = kvr_hash_block_count(r->tokens_n, r->hashed_for, false);
    r->locals = malloc((n + 1) * sizeof *r->locals);
    if (!r->locals) return;
    (void)kvr_hash_locals(r->tokens, r->tokens_n, r->hashed_for, false, request_hash_seed(r), NULL, 0, r->locals);
    r->locals_n = n;
}

enum outcome lookup_begin(struct request *r)
{
    bool large = r->tokens_n > HASH_ON_LOOP;
    if (!request_wants_tokens(r) || !r->tokens || (!large && !r->loop->remotes_n)) return OUTCOME_DONE;
    struct partition *partition = eligible_partition(r);
    if (!partition) return OUTCOME_DONE;
    r->hashed_for = partition->block_size;
    if (large) return request_work(r, &r->now->lookup.job, hash_prompt, ask_remotes);
    hash_prompt(r);
    return ask_remotes(r);
}

void lookup_leave(struct request *r)
{
    struct lookup *k = &r->now->lookup;
    for (size_t i = 0; i < REMOTES_MAX; i++)
        if (k->queries[i]) kvr_remote_cancel(k->queries[i]);
}
