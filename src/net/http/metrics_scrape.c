/* SPDX-License-Identifier: Apache-2.0 */
/* One GET of an engine's /metrics whose body is parsed in passing; net/http/metrics_scrape.h. */
#include "net/http/metrics_scrape.h"

#include <string.h>

struct kvr_scrape {
    struct kvr_scrape_config config;
    struct kvr_http_call *call;
    uv_timer_t timer;
    size_t bytes;
    struct kvr_prom_reader reader;
    struct kvr_engine_loads loads;
};

static void on_closed(uv_handle_t *h)
{
    free(h->data);
}

static void release(struct kvr_scrape *s)
{
    if (s->call) kvr_http_call_cancel(s->call);
    s->call = NULL;
    uv_close((uv_handle_t *)&s->timer, on_closed);
}

static void end(struct kvr_scrape *s, const char *error)
{
    release(s);
    s->config.fn(s->config.ctx, error ? NULL : &s->loads, error);
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct kvr_scrape *s = ctx;
    s->bytes += len;
    if (s->bytes > KVR_SCRAPE_BODY_MAX) end(s, "the answer is longer than 4 MiB");
    else if (kvr_http_call_status(call) == 200) kvr_prom_feed(&s->reader, data, len);
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct kvr_scrape *s = ctx;
    s->call = NULL;
    kvr_prom_end(&s->reader);
    s->loads.bad_lines = s->reader.malformed;
    if (kvr_http_call_status(call) != 200) end(s, "the answer is not 200");
    else end(s, s->loads.n ? NULL : "the answer has no figure that is known here");
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct kvr_scrape *s = ctx;
    (void)call;
    (void)text;
    s->call = NULL;
    end(s, why == KVR_HTTP_BAD_ANSWER ? "the answer is no HTTP" : why == KVR_HTTP_TRUNCATED ? "the answer broke off" : "no connection");
}

static void on_timeout(uv_timer_t *t)
{
    end(t->data, "no whole answer in time");
}

static const struct kvr_http_call_handler handler = {NULL, on_body, on_done, on_failed};

int kvr_scrape_start(const struct kvr_scrape_config *config, struct kvr_scrape **out)
{
    struct kvr_endpoint e;
    char head[800];
    if (kvr_endpoint_parse_any(config->url, strlen(config->url), &e)) return -KVR_EINVAL;
    kvr_endpoint_trust(&e, config->tls_peer);
    struct kvr_scrape *s = calloc(1, sizeof *s);
    if (!s) return -KVR_ENOMEM;
    int n = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: %s\r\nAccept: text/plain\r\n\r\n", e.base[0] ? e.base : "/metrics",
                     e.authority);
    s->config = *config;
    s->config.url = NULL;
    s->reader.fn = kvr_engine_loads_sample;
    s->reader.ctx = &s->loads;
    struct kvr_http_call_config cc = {
        .endpoint = &e, .head = head, .head_len = (size_t)n, .connect_timeout_s = config->timeout_s, .handler = &handler, .ctx = s};
    s->call = kvr_http_call_start(config->client, &cc);
    if (!s->call) {
        free(s);
        return -KVR_ENOMEM;
    }
    uv_timer_init(config->loop, &s->timer);
    s->timer.data = s;
    uv_timer_start(&s->timer, on_timeout, (uint64_t)(config->timeout_s * 1000) + 1, 0);
    *out = s;
    return 0;
}

void kvr_scrape_cancel(struct kvr_scrape *s)
{
    release(s);
}
