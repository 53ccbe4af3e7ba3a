/* SPDX-License-Identifier: Apache-2.0 */
/* A call, a limit of time and the answer's bytes; net/http/ask.h. */
#include "net/http/ask.h"

struct kvr_ask {
    kvr_ask_fn *fn;
    void *ctx;
    struct kvr_http_call *call; /* NULL: over */
    uv_timer_t timer;
    struct kvr_buf body;
    size_t bytes, max;
    bool cut, whole;
    void (*take)(void *ctx, const char *data, size_t len);
};

static void on_closed(uv_handle_t *h)
{
    struct kvr_ask *a = h->data;
    kvr_buf_free(&a->body);
    free(a);
}

void kvr_ask_cancel(struct kvr_ask *a)
{
    if (!a) return;
    if (a->call) kvr_http_call_cancel(a->call);
    a->call = NULL;
    uv_close((uv_handle_t *)&a->timer, on_closed);
}

/* Its memory lives until the loop goes on. */
static void end(struct kvr_ask *a, struct kvr_asked answer)
{
    answer.data = a->body.data ? a->body.data : "";
    answer.len = a->body.len;
    answer.cut = a->cut || a->body.failed;
    kvr_ask_cancel(a);
    a->fn(a->ctx, &answer);
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct kvr_ask *a = ctx;
    size_t fits = KVR_MIN(len, a->max - a->bytes);
    int status = kvr_http_call_status(call);
    a->bytes += fits;
    a->cut |= fits < len;
    if (!a->take) kvr_buf_add(&a->body, data, fits);
    else if (status == 200) a->take(a->ctx, data, fits);
    if (a->cut && a->whole) end(a, (struct kvr_asked){.status = status});
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct kvr_ask *a = ctx;
    a->call = NULL;
    end(a, (struct kvr_asked){.status = kvr_http_call_status(call)});
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct kvr_ask *a = ctx;
    a->call = NULL;
    end(a, (struct kvr_asked){.why = text, .failure = why});
}

static void on_time(uv_timer_t *t)
{
    end(t->data, (struct kvr_asked){.why = "no answer in time", .late = true});
}

struct kvr_ask *kvr_ask_start(const struct kvr_ask_config *config)
{
    static const struct kvr_http_call_handler handler = {NULL, on_body, on_done, on_failed};
    struct kvr_buf head = {0}, none = {0}, *more = config->headers ? config->headers : &none;
    kvr_request_put(&head, config->endpoint, config->path, config->json ? (int64_t)config->json->len : -1);
    kvr_buf_add(&head, more->data, more->len);
    kvr_buf_str(&head, "\r\n");
    struct kvr_body *body = config->json ? kvr_body_take(config->json) : NULL;
    struct kvr_ask *a = calloc(1, sizeof *a);
    struct kvr_http_call_config call = {.endpoint = config->endpoint,
                                        .head = head.data,
                                        .head_len = head.len,
                                        .body = body,
                                        .connect_timeout_s = config->connect_timeout_s,
                                        .handler = &handler,
                                        .ctx = a};
    if (a && (body || !config->json) && !head.failed && !more->failed) a->call = kvr_http_call_start(config->client, &call);
    if (config->json) kvr_buf_free(config->json);
    kvr_buf_free(more);
    kvr_buf_free(&head);
    kvr_body_unref(body);
    if (!a || !a->call) {
        free(a);
        return NULL;
    }
    a->fn = config->fn;
    a->ctx = config->ctx;
    a->max = config->max;
    a->whole = config->whole;
    a->take = config->take;
    uv_timer_init(config->loop, &a->timer);
    a->timer.data = a;
    uv_timer_start(&a->timer, on_time, (uint64_t)(config->timeout_s * 1000) + 1, 0);
    return a;
}
