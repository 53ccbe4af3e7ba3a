/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that no client waits for: data/two_legs/side_call.h. */
#include "app/serve/data/two_legs/side_call.h"

#include "net/http/ending.h"

static void finish(struct side_call *c, bool ok)
{
    struct loop *l = c->loop;
    KVR_UNLINK(l->side_calls, c);
    l->side_calls_n[c->kind]--;
    c->call = NULL;
    c->done(c, ok);
    kvr_buf_free(&c->answer);
    atomic_fetch_sub(&l->in_flight, 1);
    uv_close((uv_handle_t *)&c->timer, kvr_free_closed);
}

static void give_up(struct side_call *c)
{
    kvr_http_call_cancel(c->call);
    finish(c, false);
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct side_call *c = ctx;
    if (!c->keep) return;
    if (c->answer.len + len > c->keep) give_up(c);
    else kvr_buf_add(&c->answer, data, len);
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct side_call *c = ctx;
    c->status = kvr_http_call_status(call);
    finish(c, c->status < 400 && !c->answer.failed);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *)
{
    finish(ctx, false);
}

static void on_timeout(uv_timer_t *t)
{
    give_up(t->data);
}

const struct kvr_http_call_handler side_call_handler = {NULL, on_body, on_done, on_failed};

bool side_calls_have_room(const struct loop *l, enum side_kind kind)
{
    return l->side_calls_n[kind] < SIDE_CALLS_MAX && !atomic_load(&l->stop);
}

void side_call_begin(struct side_call *c, struct loop *l, double timeout_s)
{
    c->loop = l;
    uv_timer_init(&l->uv, &c->timer);
    c->timer.data = c;
    uv_timer_start(&c->timer, on_timeout, (uint64_t)(timeout_s * 1000), 0);
    c->next = l->side_calls;
    l->side_calls = c;
    l->side_calls_n[c->kind]++;
    atomic_fetch_add(&l->in_flight, 1);
}

void side_calls_stop(struct loop *l)
{
    while (l->side_calls) give_up(l->side_calls);
}
