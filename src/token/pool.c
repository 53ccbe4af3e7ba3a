/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool: token/pool.h.
 *
 * A job is in the table from its beginning until it is done, with a list of waiters. It runs although nobody waits for it any more: what it
 * finds is in the cache of segments then, and stopping an encoder half way would need its help. One that has not begun is taken out when
 * its last waiter leaves.
 */
#include "token/pool.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/lock.h"
#include "kvr_tokenizer.h"

enum { BUCKETS = 512 };

struct kvr_token_job {
    struct kvr_token_work work;
    struct kvr_token_pool *pool;
    struct kvr_token_question question;
    struct kvr_token_job *same_bucket;
    struct kvr_token_waiter *waiters;
    bool runs;
};

struct kvr_token_pool {
    struct kvr_lock lock;
    pthread_cond_t something;
    struct kvr_token_work *first, **last;
    size_t waiting;
    bool ends;
    struct kvr_token_job *table[BUCKETS];
    uint64_t joined, full, jobs;
    size_t threads_n;
    pthread_t threads[KVR_TOKEN_THREADS_MAX];
};

/* ---- ids --------------------------------------------------------------------------------------------- */

struct kvr_ids *kvr_ids_new(const uint32_t *v, size_t n)
{
    struct kvr_ids *i = malloc(sizeof *i + n * sizeof *i->v);
    if (!i) return NULL;
    atomic_init(&i->refs, 1);
    i->n = n;
    if (v && n) memcpy(i->v, v, n * sizeof *v);
    return i;
}

struct kvr_ids *kvr_ids_ref(struct kvr_ids *i)
{
    atomic_fetch_add_explicit(&i->refs, 1, memory_order_relaxed);
    return i;
}

void kvr_ids_unref(struct kvr_ids *i)
{
    if (i && atomic_fetch_sub(&i->refs, 1) == 1) free(i);
}

/* ---- threads ----------------------------------------------------------------------------------------- */

static struct kvr_token_work *next_work(struct kvr_token_pool *p)
{
    kvr_lock(&p->lock);
    while (!p->first && !p->ends) pthread_cond_wait(&p->something, &p->lock.mutex);
    struct kvr_token_work *w = p->ends ? NULL : p->first;
    if (w) {
        p->first = w->next;
        if (!p->first) p->last = &p->first;
        p->waiting--;
    }
    kvr_unlock(&p->lock);
    return w;
}

static void *run_thread(void *ctx)
{
    struct kvr_token_pool *p = ctx;
    (void)!nice(KVR_TOKEN_THREADS_NICE); /* on Linux of the calling thread alone */
    for (struct kvr_token_work *w; (w = next_work(p));) {
        w->run(w);
        w->drop(w);
    }
    return NULL;
}

static bool push_locked(struct kvr_token_pool *p, struct kvr_token_work *w)
{
    if (p->waiting == KVR_TOKEN_QUEUE || p->ends) {
        p->full++;
        return false;
    }
    w->next = NULL;
    *p->last = w;
    p->last = &w->next;
    p->waiting++;
    pthread_cond_signal(&p->something);
    return true;
}

/* Returns: whether it was waiting. */
static bool pull_locked(struct kvr_token_pool *p, struct kvr_token_work *w)
{
    struct kvr_token_work **at = &p->first;
    while (*at && *at != w) at = &(*at)->next;
    if (!*at) return false;
    *at = w->next;
    if (!*at) p->last = at;
    p->waiting--;
    return true;
}

int kvr_token_pool_create(size_t threads, struct kvr_token_pool **out)
{
    struct kvr_token_pool *p = calloc(1, sizeof *p);
    if (!p) return -KVR_ENOMEM;
    kvr_lock_init(&p->lock, KVR_LOCK_TOKEN_POOL);
    pthread_cond_init(&p->something, NULL);
    p->last = &p->first;
    while (p->threads_n < KVR_MIN(threads, (size_t)KVR_TOKEN_THREADS_MAX) &&
           pthread_create(&p->threads[p->threads_n], NULL, run_thread, p) == 0)
        p->threads_n++;
    if (threads && !p->threads_n) {
        kvr_token_pool_destroy(p);
        return -KVR_ENOMEM;
    }
    *out = p;
    return 0;
}

void kvr_token_pool_end(struct kvr_token_pool *p)
{
    kvr_lock(&p->lock);
    p->ends = true;
    pthread_cond_broadcast(&p->something);
    kvr_unlock(&p->lock);
    for (; p->threads_n; p->threads_n--) pthread_join(p->threads[p->threads_n - 1], NULL);
    while (p->first) {
        struct kvr_token_work *w = p->first;
        p->first = w->next;
        w->drop(w);
    }
    p->last = &p->first;
    p->waiting = 0;
}

void kvr_token_pool_destroy(struct kvr_token_pool *p)
{
    if (!p) return;
    kvr_token_pool_end(p);
    pthread_cond_destroy(&p->something);
    kvr_lock_destroy(&p->lock);
    free(p);
}

bool kvr_token_pool_add(struct kvr_token_pool *p, struct kvr_token_work *w)
{
    kvr_lock(&p->lock);
    bool taken = push_locked(p, w);
    kvr_unlock(&p->lock);
    if (!taken) w->drop(w);
    return taken;
}

/* ---- jobs -------------------------------------------------------------------------------------------- */

static struct kvr_token_job **bucket(struct kvr_token_pool *p, const uint64_t key[2])
{
    return &p->table[(key[0] ^ key[1]) % BUCKETS];
}

static struct kvr_token_job *find_locked(struct kvr_token_pool *p, const uint64_t key[2])
{
    struct kvr_token_job *j = *bucket(p, key);
    while (j && memcmp(j->question.key, key, sizeof j->question.key) != 0) j = j->same_bucket;
    return j;
}

static void forget_locked(struct kvr_token_pool *p, struct kvr_token_job *j)
{
    struct kvr_token_job **at = bucket(p, j->question.key);
    while (*at && *at != j) at = &(*at)->same_bucket;
    if (*at) *at = j->same_bucket;
}

static void wait_for_locked(struct kvr_token_job *j, struct kvr_token_waiter *w)
{
    w->job = j;
    w->next = j->waiters;
    j->waiters = w;
}

static struct kvr_token_job *job_of(struct kvr_token_work *w)
{
    return (struct kvr_token_job *)w; /* its first member */
}

static void drop_job(struct kvr_token_work *w)
{
    struct kvr_token_job *j = job_of(w);
    kvr_lock(&j->pool->lock);
    forget_locked(j->pool, j); /* of a pool that ends: it has not run */
    kvr_unlock(&j->pool->lock);
    j->question.drop(j->question.ctx);
    free(j);
}

static void run_job(struct kvr_token_work *w)
{
    struct kvr_token_job *j = job_of(w);
    struct kvr_token_pool *p = j->pool;
    struct kvr_ids *ids = NULL;
    kvr_lock(&p->lock);
    j->runs = true;
    kvr_unlock(&p->lock);
    int rc = j->question.make(j->question.ctx, &ids);
    kvr_lock(&p->lock);
    forget_locked(p, j);
    for (struct kvr_token_waiter *next, *at = j->waiters; at; at = next) {
        next = at->next;
        at->next = NULL;
        at->job = NULL;
        at->rc = rc;
        at->ids = ids ? kvr_ids_ref(ids) : NULL;
        at->done(at);
    }
    j->waiters = NULL;
    kvr_unlock(&p->lock);
    kvr_ids_unref(ids);
}

bool kvr_token_pool_ask(struct kvr_token_pool *p, const struct kvr_token_question *q, struct kvr_token_waiter *w)
{
    struct kvr_token_job *j = calloc(1, sizeof *j), *same = NULL;
    bool begun = false;
    if (j) *j = (struct kvr_token_job){.work = {.run = run_job, .drop = drop_job}, .pool = p, .question = *q};
    kvr_lock(&p->lock);
    if (j && (same = find_locked(p, q->key))) {
        wait_for_locked(same, w);
        p->joined++;
    } else if (j && push_locked(p, &j->work)) {
        j->same_bucket = *bucket(p, q->key);
        *bucket(p, q->key) = j;
        wait_for_locked(j, w);
        p->jobs++;
        begun = true;
    }
    kvr_unlock(&p->lock);
    if (!begun) {
        q->drop(q->ctx);
        free(j);
    }
    return begun || same;
}

bool kvr_token_pool_leave(struct kvr_token_pool *p, struct kvr_token_waiter *w)
{
    struct kvr_token_job *unwanted = NULL;
    kvr_lock(&p->lock);
    struct kvr_token_job *j = w->job;
    if (j) {
        KVR_UNLINK(j->waiters, w);
        w->job = NULL;
        w->next = NULL;
        if (!j->waiters && !j->runs && pull_locked(p, &j->work)) unwanted = j;
        if (unwanted) forget_locked(p, j);
    }
    kvr_unlock(&p->lock);
    if (unwanted) drop_job(&unwanted->work);
    return j != NULL;
}

void kvr_token_pool_figures(struct kvr_token_pool *p, struct kvr_token_pool_figures *out)
{
    kvr_lock(&p->lock);
    *out = (struct kvr_token_pool_figures){.joined = p->joined, .full = p->full, .jobs = p->jobs, .waiting = p->waiting};
    kvr_unlock(&p->lock);
}
