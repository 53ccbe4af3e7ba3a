/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks with ranks. A thread takes locks in rising rank only, so no two threads can wait for each other.
 *
 * KVR_LOCK_RANKS is the one list of them, outermost first: whoever holds a lock may take those of rows below it. Of one row a thread holds
 * one at a time. A build with KVR_LOCK_CHECKS (the presets asan and tsan) keeps what each thread holds and aborts, naming both locks, when
 * one is taken out of turn, also when no other thread is near; other builds pay nothing.
 *
 * Most are held for about a microsecond: who finds one taken looks again some times before it sleeps, where the system has such locks. To
 * sleep and to be woken costs several times as much.
 *
 * The condition variables of pthread wait with `&lock.mutex`; the thread counts as holding the lock while it waits.
 */
#ifndef KVR_LOCK_H
#define KVR_LOCK_H

#include <pthread.h>
#include <stdint.h>

#define KVR_LOCK_RANKS(X)                                                                                                                  \
    X(INDEXER_CHANGES, "changes of an indexer's catalogue")                                                                                \
    X(INDEXER, "an indexer's catalogue")                                                                                                   \
    X(INDEXER_KEEPER, "an indexer's keeper")                                                                                               \
    X(SERVE, "the worker table")                                                                                                           \
    X(MODELS, "the file of models")                                                                                                        \
    X(ROSTER, "the roster of workers")                                                                                                     \
    X(LABELS, "labelled counters")                                                                                                         \
    X(MODEL_COUNTS, "counts by model")                                                                                                     \
    X(EVIDENCE, "evidence for views")                                                                                                      \
    X(SESSIONS, "a table of sessions")                                                                                                     \
    X(DECISIONS, "the last decisions")                                                                                                     \
    X(QUALITY, "the quality of predictions")                                                                                               \
    X(CLAIM, "the claim on an index")                                                                                                      \
    X(VIEW_STORE, "the store of views")                                                                                                    \
    X(LOCAL_INDEX, "a local index")                                                                                                        \
    X(ROUTER, "a router")                                                                                                                  \
    X(INDEX_RANKS, "the ranks of an index")                                                                                                \
    X(INDEX_WINDOWS, "the windows of an index")                                                                                            \
    X(INDEX_LANE, "a lane of an index")                                                                                                    \
    X(INDEX_POOLS, "the pools of an index")                                                                                                \
    X(INDEX_USAGE, "the usage of an index")                                                                                                \
    X(INDEX_READERS, "the readers of an index")                                                                                            \
    X(WATCHES, "watches of answers")                                                                                                       \
    X(HEALTH, "health checks")                                                                                                             \
    X(TOKENS, "the token cache")                                                                                                           \
    X(TOKENIZER_JUDGE, "judging engines' answers for a tokenizer")                                                                         \
    X(TOKENIZER, "what a tokenizer is worth")                                                                                              \
    X(TOKEN_POOL, "prompts for the tokenizer's threads")                                                                                   \
    X(SELECTION, "selections whose turn has come")                                                                                         \
    X(OBSERVED, "responses that gateways observe")                                                                                         \
    X(MAIL, "a data loop's mail")                                                                                                          \
    X(REMOTE_MAIL, "mail of a remote index")                                                                                               \
    X(REGISTRY, "a registry in NATS")                                                                                                      \
    X(FINDINGS, "findings on their way")                                                                                                   \
    X(PLANE, "what goes out over the event plane")                                                                                         \
    X(SYNC, "a replica's peers")                                                                                                           \
    X(SYNC_OUT, "a replica's outbox")                                                                                                      \
    X(NATS_SUBSCRIPTION, "a NATS subscription")                                                                                            \
    X(NATS, "a NATS connection")                                                                                                           \
    X(INGEST, "the ingest thread's commands")                                                                                              \
    X(INGEST_PLANE, "messages of the event plane")                                                                                         \
    X(RECOVERY, "recoveries that are asked for")                                                                                           \
    X(RECORDER, "recorded events")                                                                                                         \
    X(PRODUCE, "an answer that is produced")                                                                                               \
    X(FALLBACKS, "counts of fallbacks")                                                                                                    \
    X(KEYRING, "API keys in force")                                                                                                        \
    X(KEY_USE, "what an API key uses")                                                                                                     \
    X(ADDRESSES, "connections by address")                                                                                                 \
    X(ACCESS, "keys of a port")                                                                                                            \
    X(TLS_TRUST, "trusted certificates")                                                                                                   \
    X(TLS, "a TLS connection")                                                                                                             \
    X(SPANS, "spans that wait to be sent")                                                                                                 \
    X(SIM_CREW, "runs of a simulation")

enum kvr_lock_rank {
#define KVR_LOCK_ENUM(name, text) KVR_LOCK_##name,
    KVR_LOCK_RANKS(KVR_LOCK_ENUM)
#undef KVR_LOCK_ENUM
};

struct kvr_lock {
    pthread_mutex_t mutex;
#ifdef KVR_LOCK_CHECKS
    enum kvr_lock_rank rank;
#endif
};

struct kvr_rwlock {
    pthread_rwlock_t rwlock;
#ifdef KVR_LOCK_CHECKS
    enum kvr_lock_rank rank;
#endif
};

/* Of memory that is zeroed or not. */
void kvr_lock_init(struct kvr_lock *l, enum kvr_lock_rank rank);
/* Writers go before readers that come after them. */
void kvr_rwlock_init(struct kvr_rwlock *l, enum kvr_lock_rank rank);

#ifdef KVR_LOCK_CHECKS
#define KVR_LOCK_STATIC(of_rank)                                                                                                           \
    {                                                                                                                                      \
        PTHREAD_MUTEX_INITIALIZER, of_rank                                                                                                 \
    }
void kvr__lock_taking(const void *lock, enum kvr_lock_rank rank);
void kvr__lock_given(const void *lock);
#define KVR_LOCK_TAKING(l) kvr__lock_taking((l), (l)->rank)
#define KVR_LOCK_GIVEN(l)  kvr__lock_given(l)
#else
#define KVR_LOCK_STATIC(of_rank)                                                                                                           \
    {                                                                                                                                      \
        PTHREAD_MUTEX_INITIALIZER                                                                                                          \
    }
#define KVR_LOCK_TAKING(l) (void)(l)
#define KVR_LOCK_GIVEN(l)  (void)(l)
#endif

static inline void kvr_lock(struct kvr_lock *l)
{
    KVR_LOCK_TAKING(l);
    pthread_mutex_lock(&l->mutex);
}

static inline void kvr_unlock(struct kvr_lock *l)
{
    KVR_LOCK_GIVEN(l);
    pthread_mutex_unlock(&l->mutex);
}

static inline void kvr_lock_destroy(struct kvr_lock *l)
{
    pthread_mutex_destroy(&l->mutex);
}

static inline void kvr_read_lock(struct kvr_rwlock *l)
{
    KVR_LOCK_TAKING(l);
    pthread_rwlock_rdlock(&l->rwlock);
}

static inline void kvr_write_lock(struct kvr_rwlock *l)
{
    KVR_LOCK_TAKING(l);
    pthread_rwlock_wrlock(&l->rwlock);
}

static inline void kvr_rw_unlock(struct kvr_rwlock *l)
{
    KVR_LOCK_GIVEN(l);
    pthread_rwlock_unlock(&l->rwlock);
}

static inline void kvr_rwlock_destroy(struct kvr_rwlock *l)
{
    pthread_rwlock_destroy(&l->rwlock);
}

/* A condition to be waited for with kvr_cond_wait_ms, which goes by the monotonic clock. */
void kvr_cond_init(pthread_cond_t *cond);
/* For so long at most. Under the lock. */
void kvr_cond_wait_ms(pthread_cond_t *cond, struct kvr_lock *lock, uint64_t ms);

#endif
