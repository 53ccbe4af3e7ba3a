/* SPDX-License-Identifier: Apache-2.0 */
/* A request that blocks its caller: the loop runs until the answer or the time-out is there (net/http/fetch.h). */
#include "net/http/fetch.h"
#include "net/http/internal.h"

#include <string.h>

struct request {
    struct kvr_fetched *out;
    bool over;
};

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *headers, int64_t)
{
    struct request *r = ctx;
    r->out->status = status;
    for (size_t i = 0; i < headers->n; i++) {
        struct kvr_text name = kvr_headers_name(headers, i), value = kvr_headers_value(headers, i);
        (void)kvr__headers_name(&r->out->headers, name.ptr, name.len); /* a failure shows in the end */
        (void)kvr__headers_value(&r->out->headers, value.ptr, value.len);
    }
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct request *r = ctx;
    if (r->out->body.len + len <= KVR_FETCH_BODY_MAX) kvr_buf_add(&r->out->body, data, len);
    else r->out->body.failed = true;
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct request *r = ctx;
    r->over = true;
    if (!r->out->body.failed && !r->out->headers.text.failed) return;
    r->out->status = 0;
    snprintf(r->out->error, sizeof r->out->error, "the answer is longer than %d MiB or than there is memory for", KVR_FETCH_BODY_MAX >> 20);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct request *r = ctx;
    r->out->status = 0;
    snprintf(r->out->error, sizeof r->out->error, "%s", text);
    r->over = true;
}

void kvr_fetched_free(struct kvr_fetched *f)
{
    kvr_headers_free(&f->headers);
    kvr_buf_free(&f->body);
    *f = (struct kvr_fetched){0};
}

static void on_time(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

static void on_timer_closed(uv_handle_t *h)
{
    h->data = NULL;
}

static void write_head(const struct kvr_fetch *f, const struct kvr_endpoint *e, struct kvr_buf *head)
{
    kvr_request_put(head, e, e->base[0] ? "" : "/", f->body ? (int64_t)strlen(f->body) : -1);
    if (f->headers) kvr_buf_str(head, f->headers);
    if (f->key) kvr_buf_printf(head, "Authorization: Bearer %s\r\n", f->key);
    kvr_buf_str(head, "\r\n");
}

/* Runs the loop until the call is over or time is up. */
static void wait_for(const struct kvr_fetch *f, struct kvr_http_call *call, struct request *r)
{
    uv_timer_t timer;
    bool late = false;
    uv_timer_init(f->loop, &timer);
    timer.data = &late;
    uv_timer_start(&timer, on_time, (uint64_t)(f->timeout_s * 1000), 0);
    while (!r->over && !late) uv_run(f->loop, UV_RUN_ONCE);
    if (!r->over) {
        kvr_http_call_cancel(call);
        r->out->status = 0;
        snprintf(r->out->error, sizeof r->out->error, "no answer within %g s", f->timeout_s);
    }
    uv_close((uv_handle_t *)&timer, on_timer_closed);
    while (timer.data) uv_run(f->loop, UV_RUN_NOWAIT);
}

void kvr_http_fetch(const struct kvr_fetch *f, struct kvr_fetched *out)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    struct request r = {.out = out};
    struct kvr_endpoint e;
    struct kvr_buf head = {0};
    kvr_fetched_free(out);
    if (kvr_endpoint_parse_any(f->url, strlen(f->url), &e)) {
        snprintf(out->error, sizeof out->error, "'%.80s' is no http or https URL", f->url);
        return;
    }
    write_head(f, &e, &head);
    struct kvr_http_call_config c = {.endpoint = &e,
                                     .head = head.data,
                                     .head_len = head.len,
                                     .body = f->body ? kvr_body_copy(f->body, strlen(f->body)) : NULL,
                                     .connect_timeout_s = 3,
                                     .handler = &handler,
                                     .ctx = &r};
    bool short_of_memory = head.failed || (f->body && !c.body);
    struct kvr_http_call *call = short_of_memory ? NULL : kvr_http_call_start(f->client, &c);
    kvr_body_unref(c.body);
    if (call) wait_for(f, call, &r);
    else snprintf(out->error, sizeof out->error, "out of memory");
    kvr_buf_free(&head);
}
