/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make token ids, and the jobs that wait for one. A question that is asked again while it is being answered is one job.
 *
 * Own threads, not libuv's: those have name look-ups and large bodies, and 4 ms of tokens are too long to wait for either. A queue of
 * KVR_TOKEN_QUEUE jobs; beyond it the caller asks the engine. They are nicer than the rest of the program: where there are fewer cores than
 * threads that have work, an event loop that has something to do runs first (docs/performance.md has what that is worth).
 *
 * Threads: any. One lock; nothing is made, hashed or copied under it. `done` is called with it held, on a thread of the pool, and may take
 * locks of a rank below.
 * A waiter is the caller's memory. It is in one of three places: with a job (until `done`), wherever `done` has put it, nowhere.
 */
#ifndef KVR_TOKEN_POOL_H
#define KVR_TOKEN_POOL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVR_TOKEN_QUEUE = 256, KVR_TOKEN_THREADS_MAX = 64, KVR_TOKEN_THREADS_NICE = 10 };

/* Ids with holders. */
struct kvr_ids {
    _Atomic unsigned refs;
    size_t n;
    uint32_t v[];
};

struct kvr_ids *kvr_ids_new(const uint32_t *v, size_t n); /* one holder; NULL: no memory. v NULL: not filled */
struct kvr_ids *kvr_ids_ref(struct kvr_ids *i);
void kvr_ids_unref(struct kvr_ids *i); /* NULL is fine */

struct kvr_token_pool;
struct kvr_token_job;

/* What there is to do. Its memory is the pool's from kvr_token_pool_add on, which frees it with `drop`. */
struct kvr_token_work {
    struct kvr_token_work *next;
    void (*run)(struct kvr_token_work *w);  /* on a thread of the pool */
    void (*drop)(struct kvr_token_work *w); /* it has run, or will not */
};

/* Who waits for a question's ids. Zero-initialize. */
struct kvr_token_waiter {
    struct kvr_token_waiter *next;
    struct kvr_token_job *job; /* NULL: `done` was called, or nothing was asked */
    void (*done)(struct kvr_token_waiter *w);
    struct kvr_ids *ids; /* after `done`: the waiter's; NULL: rc says why */
    int rc;              /* enum of kvr_tokenizer.h */
};

/* A question to be answered. */
struct kvr_token_question {
    uint64_t key[2];                              /* of the question and the tokenizer: equal ones are joined */
    int (*make)(void *ctx, struct kvr_ids **out); /* on a thread of the pool. Returns: 0, or enum of kvr_tokenizer.h */
    void (*drop)(void *ctx);                      /* once, whatever happens */
    void *ctx;
};

int kvr_token_pool_create(size_t threads, struct kvr_token_pool **out);
/* Waits for what runs; what waits is dropped, and nothing is taken any more. Nobody may wait for a job. */
void kvr_token_pool_end(struct kvr_token_pool *p);
/* Ends it first. */
void kvr_token_pool_destroy(struct kvr_token_pool *p);

/* Returns: false when the queue is full; then `drop` was called. */
bool kvr_token_pool_add(struct kvr_token_pool *p, struct kvr_token_work *w);
/* Joins one that is under way, or begins. Returns: false when the queue is full. `drop` is called in any case, sooner or later. */
bool kvr_token_pool_ask(struct kvr_token_pool *p, const struct kvr_token_question *q, struct kvr_token_waiter *w);
/* Nobody waits any more. Returns: false when `done` was called before: the waiter is where that has put it. */
bool kvr_token_pool_leave(struct kvr_token_pool *p, struct kvr_token_waiter *w);

struct kvr_token_pool_figures {
    uint64_t joined, full, jobs;
    size_t waiting;
};
void kvr_token_pool_figures(struct kvr_token_pool *p, struct kvr_token_pool_figures *out);

#endif
