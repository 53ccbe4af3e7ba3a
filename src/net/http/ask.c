/* SPDX-License-Identifier: Apache-2.0 */
/* A call, a limit of time and the answer's bytes; net/http/ask.h. */
#include "net/http/ask.h"

struct kvr_ask {
    kvr_ask_fn *fn;
    void *ctx;
    struct kvr_http_call *call; /* NULL: over */
    uv_timer_t timer;
    struct kvr_buf body;
    size_t max;
    bool cut;
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
static void end(struct kvr_ask *a, int status, const char *why)
{
    struct kvr_asked answer = {status, why, a->body.data ? a->body.data : "", a->body.len, a->cut || a->body.failed};
    kvr_ask_cancel(a);
    a->fn(a->ctx, &answer);
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct kvr_ask *a = ctx;
    size_t fits = KVR_MIN(len, a->max - a->body.len);
    (void)call;
    kvr_buf_add(&a->body, data, fits);
    a->cut |= fits < len;
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct kvr_ask *a = ctx;
    a->call = NULL;
    end(a, kvr_http_call_status(call), NULL);
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct kvr_ask *a = ctx;
    (void)call;
    (void)why;
    a->call = NULL;
    end(a, 0, text);
}

static void on_time(uv_timer_t *t)
{
    end(t->data, 0, "no answer in time");
}

struct kvr_ask *kvr_ask_start(const struct kvr_ask_config *config)
{
    static const struct kvr_http_call_handler handler = {NULL, on_body, on_done, on_failed};
    bool whole = !config->head->failed && (config->body || !config->post);
    struct kvr_ask *a = whole ? calloc(1, sizeof *a) : NULL;
    struct kvr_http_call_config call = {.endpoint = config->endpoint,
                                        .head = config->head->data,
                                        .head_len = config->head->len,
                                        .body = config->body,
                                        .connect_timeout_s = config->connect_timeout_s,
                                        .handler = &handler,
                                        .ctx = a};
    if (a) a->call = kvr_http_call_start(config->client, &call);
    kvr_buf_free(config->head);
    if (!a || !a->call) {
        free(a);
        return NULL;
    }
    a->fn = config->fn;
    a->ctx = config->ctx;
    a->max = config->max;
    uv_timer_init(config->loop, &a->timer);
    a->timer.data = a;
    uv_timer_start(&a->timer, on_time, (uint64_t)(config->timeout_s * 1000) + 1, 0);
    return a;
}
