/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tokenizer library without a tokenizer, for src/token: what it gives out is counted, and marked when it is given back. The ids of every
 * question are one, the number of the reading that was asked.
 *
 * Threads: any. Tests find `counted` in it by dlsym.
 */
#ifndef KVR_COUNTED_TOKENIZER_H
#define KVR_COUNTED_TOKENIZER_H

#include <stdatomic.h>
#include <stdbool.h>

struct counted {
    _Atomic long alive;    /* readings that were not given back */
    _Atomic unsigned read; /* that were begun, with those that have failed; the next one's number */
    _Atomic bool unusable; /* readings fail */
    _Atomic bool held;     /* readings wait */
};

#endif
