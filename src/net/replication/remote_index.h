/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks an index that another process serves (wire/index_service.h), over HTTP or NATS, from one event loop.
 *
 *     unknown --info fits--> good --connection lost, or FAILURES_MAX failures in a row--> bad --info fits--> good
 *
 * Only while good are questions sent; else kvr_remote_ask says so at once, so that a dead index costs nothing. Info is asked
 * for at the start, every PROBE_MS while not good, every REVALIDATE_MS while good, and when an answer comes from another
 * instance than before. It fits when the server is ready and its mode (events or predicted) is ours; of a predicted index there
 * must be exactly one.
 *
 * Over NATS at most the first 40,000 blocks of a prompt are asked for, and 20,000 recorded. Every call has a deadline. HTTP calls share the
 * loop's connection pool; NATS requests one inbox.
 *
 * Threads: the loop's, but for the statistics.
 */
#ifndef KVR_NET_REMOTE_INDEX_H
#define KVR_NET_REMOTE_INDEX_H

#include <stdatomic.h>
#include <kvroute/index.h>

#include "net/http/http.h"
#include "net/nats/link.h"
#include "wire/index_service.h"

struct kvr_remote_index;
struct kvr_remote_query;

/* Shared by the loops of a process. */
struct kvr_remote_stats {
    _Atomic uint64_t queries, query_failures, short_circuits, writes, write_failures, validations, rejected_validations;
    _Atomic int good; /* loops whose index is good */
};

struct kvr_remote_config {
    uv_loop_t *loop;
    struct kvr_http_client *client;      /* HTTP: */
    const struct kvr_endpoint *endpoint; /* copied; NULL: NATS */
    const char *key;                     /* HTTP: bearer token, borrowed; NULL: none */
    struct kvr_nats *nats;
    const char *scope; /* NATS: copied */
    bool predicted;
    /* What the asker has, so that an index of other block sizes is refused; NULL: nothing is looked at. Called on the loop. */
    size_t (*block_sizes)(void *ctx, struct kvr_remote_model *out, size_t cap);
    void *ctx;
    double timeout_s;
    struct kvr_remote_stats *stats;
};

/* q: which question; it must not be cancelled any more. scores: of ranks the index knows, borrowed for the call; n < 0: the read failed
 * (counted). */
typedef void kvr_remote_done(void *ctx, const struct kvr_remote_query *q, const struct kvr_reach *scores, long n);

/* Returns: 0, -KVR_ENOMEM. */
int kvr_remote_create(const struct kvr_remote_config *config, struct kvr_remote_index **out);
/* Forgets open questions without a word; memory goes with the loop's close callbacks. NULL is fine. */
void kvr_remote_close(struct kvr_remote_index *r);

/* locals[n] is copied; isl: tokens of the whole prompt. Never calls back before it returns. Returns: the question, or NULL: none was
 * sent. */
struct kvr_remote_query *kvr_remote_ask(struct kvr_remote_index *r, const char *model, const uint64_t *locals, size_t n, uint64_t isl,
                                        kvr_remote_done *done, void *ctx);
/* `done` will not be called. */
void kvr_remote_cancel(struct kvr_remote_query *q);
/* Records a decision; nobody waits for it. */
void kvr_remote_record(struct kvr_remote_index *r, const char *model, struct kvr_worker w, const uint64_t *locals, const uint64_t *seqs,
                       size_t n);
/* Why it is not good; "" when it is. */
const char *kvr_remote_why(const struct kvr_remote_index *r);

#endif
