/* SPDX-License-Identifier: Apache-2.0 */
#include "app/doctor/state.h"

#include <string.h>

enum { BODY_MAX = 64 << 20 };

struct request {
    struct fetched *out;
    bool over;
};

static void on_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *headers, int64_t length)
{
    struct request *r = ctx;
    (void)call;
    (void)length;
    r->out->status = status;
    for (size_t i = 0; i < headers->n; i++) {
        struct kvr_text name = kvr_headers_name(headers, i), value = kvr_headers_value(headers, i);
        struct kvr_headers *h = &r->out->headers;
        if (h->n == h->cap) {
            size_t cap = h->cap ? h->cap * 2 : 16;
            struct kvr_header *p = realloc(h->list, cap * sizeof *p);
            if (!p) return;
            h->list = p;
            h->cap = cap;
        }
        struct kvr_header *to = &h->list[h->n++];
        *to = (struct kvr_header){(uint32_t)h->text.len, (uint32_t)name.len, (uint32_t)(h->text.len + name.len), (uint32_t)value.len};
        kvr_buf_add(&h->text, name.ptr, name.len);
        kvr_buf_add(&h->text, value.ptr, value.len);
    }
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct request *r = ctx;
    (void)call;
    if (r->out->body.len + len <= BODY_MAX) kvr_buf_add(&r->out->body, data, len);
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    (void)call;
    ((struct request *)ctx)->over = true;
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct request *r = ctx;
    (void)call;
    (void)why;
    r->out->status = 0;
    snprintf(r->out->error, sizeof r->out->error, "%s", text);
    r->over = true;
}

void fetched_free(struct fetched *f)
{
    kvr_headers_free(&f->headers);
    kvr_buf_free(&f->body);
    *f = (struct fetched){0};
}

static void on_time(uv_timer_t *t)
{
    *(bool *)t->data = true;
}

static void on_timer_closed(uv_handle_t *h)
{
    h->data = NULL;
}

void fetch(struct doctor *d, const char *url, const char *body, const char *headers, struct fetched *out)
{
    static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};
    struct request r = {.out = out};
    struct kvr_endpoint e;
    struct kvr_buf head = {0};
    uv_timer_t timer;
    bool late = false;
    fetched_free(out);
    if (kvr_endpoint_parse(url, strlen(url), &e)) {
        snprintf(out->error, sizeof out->error, "'%.80s' is no http URL", url);
        return;
    }
    kvr_buf_printf(&head, "%s %s HTTP/1.1\r\nHost: %s\r\n%s", body ? "POST" : "GET", e.base[0] ? e.base : "/", e.host, headers);
    if (d->o->key) kvr_buf_printf(&head, "Authorization: Bearer %s\r\n", d->o->key);
    if (body) kvr_buf_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    kvr_buf_str(&head, "\r\n");
    struct kvr_http_call_config c = {.endpoint = &e,
                                     .head = head.data,
                                     .head_len = head.len,
                                     .body = body,
                                     .body_len = body ? strlen(body) : 0,
                                     .connect_timeout_s = 3,
                                     .handler = &handler,
                                     .ctx = &r};
    struct kvr_http_call *call = head.failed ? NULL : kvr_http_call_start(d->http, &c);
    uv_timer_init(&d->loop, &timer);
    timer.data = &late;
    uv_timer_start(&timer, on_time, (uint64_t)(d->o->timeout * 1000), 0);
    while (call && !r.over && !late) uv_run(&d->loop, UV_RUN_ONCE);
    if (call && !r.over) {
        kvr_http_call_cancel(call);
        out->status = 0;
        snprintf(out->error, sizeof out->error, "no answer within %g s", d->o->timeout);
    } else if (!call) {
        snprintf(out->error, sizeof out->error, "out of memory");
    }
    uv_close((uv_handle_t *)&timer, on_timer_closed);
    while (timer.data) uv_run(&d->loop, UV_RUN_NOWAIT);
    kvr_buf_free(&head);
}

bool fetched_json(struct doctor *d, const struct fetched *f, struct kvr_json *out)
{
    return f->status == 200 && f->body.len && kvr_json_parse(d->json, f->body.data, f->body.len, out, NULL) == 0;
}
