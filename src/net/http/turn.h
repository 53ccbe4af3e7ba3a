/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a turn of the loop has to send leaves together, before the loop waits for more: pieces for one connection in one system call, and
 * those for several right behind each other, so that a process that receives them is woken once and not for each. Nothing waits for
 * more than what the loop has at hand, nor for more than KVR__TURN_MAX others.
 *
 * Threads: the loop's. Owns: nothing; who waits takes itself out before it goes.
 */
#ifndef KVR_NET_HTTP_TURN_H
#define KVR_NET_HTTP_TURN_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

enum { KVR__TURN_MAX = 32 };

struct kvr__turn;

/* In who waits, zeroed. */
struct kvr__turn_place {
    struct kvr__turn *in; /* NULL: it does not wait */
    size_t at;
};

struct kvr__turn {
    uv_prepare_t before_wait; /* the owner closes it */
    void (*send)(struct kvr__turn_place *p);
    struct kvr__turn_place *waiting[KVR__TURN_MAX];
    size_t n, next; /* that is to be sent */
};

void kvr__turn_init(struct kvr__turn *t, uv_loop_t *loop, void (*send)(struct kvr__turn_place *p));
/* It waits, if it did not. Those that have waited are sent first where there are too many. */
void kvr__turn_join(struct kvr__turn *t, struct kvr__turn_place *p);
void kvr__turn_leave(struct kvr__turn_place *p);
void kvr__turn_send(struct kvr__turn *t);

#endif
