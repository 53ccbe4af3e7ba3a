/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What other threads hand to the ingest thread: commands and workers' answers, in lists under `lock`, and a byte on an inproc PAIR socket
 * that wakes it. A ZMQ socket has one user at a time, so it is written under the lock. Who waits for a command waits on `cond`.
 */
#include "net/ingest/internal.h"

#include <zmq.h>

static void wake_locked(struct kvr_ingest *in)
{
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT);
}

void kvr__inbox_wake(struct kvr_ingest *in)
{
    kvr_lock(&in->lock);
    wake_locked(in);
    kvr_unlock(&in->lock);
}

void kvr__inbox_on_reply(void *ctx, struct kvr_recover_reply *reply)
{
    struct kvr_ingest *in = ctx;
    kvr_lock(&in->lock);
    reply->next = in->replies;
    in->replies = reply;
    wake_locked(in);
    kvr_unlock(&in->lock);
}

void kvr__inbox_send(struct kvr_ingest *in, struct command *c)
{
    kvr_lock(&in->lock);
    struct command **p = &in->commands;
    while (*p) p = &(*p)->next;
    *p = c;
    if (c->kind == EXPECT_REPORTS) atomic_store(&in->reports_announced, true);
    wake_locked(in);
    kvr_unlock(&in->lock);
}

/* Takes a command back that the thread has not begun with. */
static bool withdraw_locked(struct kvr_ingest *in, const struct command *c)
{
    struct command **p = &in->commands;
    while (*p && *p != c) p = &(*p)->next;
    if (!*p) return false;
    *p = c->next;
    return true;
}

int kvr__inbox_run(struct kvr_ingest *in, struct command *c)
{
    bool done = false;
    int rc = -KVR_ENOMEM;
    c->done = &done;
    c->rc = &rc;
    kvr__inbox_send(in, c);
    kvr_lock(&in->lock);
    while (!done && !(in->stop && withdraw_locked(in, c))) pthread_cond_wait(&in->cond, &in->lock.mutex);
    kvr_unlock(&in->lock);
    return rc;
}

/* What must not be lost when memory is short. */
static struct command *take_spare(struct kvr_ingest *in)
{
    struct command *c = NULL;
    kvr_lock(&in->lock);
    for (size_t i = 0; i < SPARE_COMMANDS && !c; i++)
        if (!in->spares[i].spare) c = &in->spares[i];
    if (c) *c = (struct command){.spare = true};
    kvr_unlock(&in->lock);
    return c;
}

struct command *kvr__inbox_command(struct kvr_ingest *in, enum command_kind kind, struct kvr_worker worker)
{
    struct command *c = calloc(1, sizeof *c);
    if (!c) c = take_spare(in);
    if (!c) return NULL;
    c->kind = kind;
    c->worker = worker;
    return c;
}

int kvr__inbox_send_served(struct kvr_ingest *in, const struct kvr_served *prompt)
{
    struct command *c = malloc(sizeof *c + prompt->n * sizeof *prompt->locals);
    if (!c) return -KVR_ENOMEM;
    *c = (struct command){.kind = SERVED, .worker = prompt->worker, .served = *prompt};
    c->served.locals = memcpy(c + 1, prompt->locals, prompt->n * sizeof *prompt->locals);
    kvr_lock(&in->lock);
    bool room = in->served_n < SERVED_MAX && in->served_blocks + prompt->n <= SERVED_BLOCKS_MAX;
    in->served_n += room;
    in->served_blocks += room ? prompt->n : 0;
    kvr_unlock(&in->lock);
    if (room) kvr__inbox_send(in, c);
    else free(c);
    return room ? 0 : -KVR_ELIMIT;
}

struct command *kvr__inbox_take_announced(struct kvr_ingest *in)
{
    if (!atomic_load(&in->reports_announced)) return NULL;
    struct command *taken = NULL, **end = &taken, **p = &in->commands;
    kvr_lock(&in->lock);
    atomic_store(&in->reports_announced, false);
    while (*p && (*p)->kind != ADD && (*p)->kind != REMOVE_WORKER && (*p)->kind != REMOVE_RANK) {
        struct command *c = *p;
        if (c->kind != EXPECT_REPORTS) {
            p = &c->next;
            continue;
        }
        *p = c->next;
        *end = c;
        end = &c->next;
    }
    *end = NULL;
    kvr_unlock(&in->lock);
    return taken;
}

void kvr__inbox_free_command(struct kvr_ingest *in, struct command *c)
{
    if (c->kind == SERVED) {
        kvr_lock(&in->lock);
        in->served_n--;
        in->served_blocks -= c->served.n;
        kvr_unlock(&in->lock);
    }
    if (!c->spare) {
        free(c);
        return;
    }
    kvr_lock(&in->lock);
    c->spare = false;
    kvr_unlock(&in->lock);
}
