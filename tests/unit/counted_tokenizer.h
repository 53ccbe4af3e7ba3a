/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tokenizer library without a tokenizer, for src/token: what it gives out is counted, and marked when it is given back. The ids of every
 * question are one, the number of the reading that was asked.
 *
 * Threads: any. Tests find `counted` in it by dlsym.
 */
#ifndef KVR_COUNTED_TOKENIZER_H
#define KVR_COUNTED_TOKENIZER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct counted {
    _Atomic long alive;    /* readings that were not given back */
    _Atomic unsigned read; /* that were begun, with those that have failed; the next one's number */
    _Atomic bool unusable; /* readings fail */
    pthread_mutex_t lock;
    pthread_cond_t let_go;
    bool held; /* under the lock: readings wait, a minute at most, which ends the program */
};

static inline void counted_hold(struct counted *c, bool held)
{
    pthread_mutex_lock(&c->lock);
    c->held = held;
    pthread_cond_broadcast(&c->let_go);
    pthread_mutex_unlock(&c->lock);
}

#endif
