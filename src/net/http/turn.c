/* SPDX-License-Identifier: Apache-2.0 */
/* net/http/turn.h says what this is. */
#include "net/http/turn.h"

/* What is sent may end things, so that others join, or send all. */
void kvr__turn_send(struct kvr__turn *t)
{
    while (t->next < t->n) {
        struct kvr__turn_place *p = t->waiting[t->next++];
        if (!p) continue;
        p->in = NULL;
        t->send(p);
    }
    t->next = t->n = 0;
}

static void on_prepare(uv_prepare_t *h)
{
    kvr__turn_send((struct kvr__turn *)((char *)h - offsetof(struct kvr__turn, before_wait)));
}

void kvr__turn_init(struct kvr__turn *t, uv_loop_t *loop, void (*send)(struct kvr__turn_place *p))
{
    t->send = send;
    uv_prepare_init(loop, &t->before_wait);
    uv_prepare_start(&t->before_wait, on_prepare);
    uv_unref((uv_handle_t *)&t->before_wait);
}

void kvr__turn_join(struct kvr__turn *t, struct kvr__turn_place *p)
{
    if (p->in) return;
    if (t->n == KVR__TURN_MAX) kvr__turn_send(t);
    *p = (struct kvr__turn_place){t, t->n};
    t->waiting[t->n++] = p;
}

void kvr__turn_leave(struct kvr__turn_place *p)
{
    if (p->in) p->in->waiting[p->at] = NULL;
    p->in = NULL;
}
