/* SPDX-License-Identifier: Apache-2.0 */
/* One GET of an engine's /metrics whose body is parsed in passing; net/http/metrics_scrape.h. */
#include "net/http/metrics_scrape.h"

#include <string.h>

#include "net/http/ask.h"

struct kvr_scrape {
    struct kvr_scrape_config config;
    struct kvr_ask *asking;
    struct kvr_prom_reader reader;
    struct kvr_engine_loads loads;
};

static void take(void *ctx, const char *data, size_t len)
{
    struct kvr_scrape *s = ctx;
    kvr_prom_feed(&s->reader, data, len);
}

static const char *what_is_wrong(const struct kvr_scrape *s, const struct kvr_asked *said)
{
    if (said->late) return "no whole answer in time";
    if (said->cut) return "the answer is longer than 4 MiB";
    if (said->status == 0 && said->failure == KVR_HTTP_BAD_ANSWER) return "the answer is no HTTP";
    if (said->status == 0) return said->failure == KVR_HTTP_TRUNCATED ? "the answer broke off" : "no connection";
    if (said->status != 200) return "the answer is not 200";
    return s->loads.n ? NULL : "the answer has no figure that is known here";
}

static void on_answer(void *ctx, const struct kvr_asked *said)
{
    struct kvr_scrape *s = ctx;
    kvr_prom_end(&s->reader);
    s->loads.bad_lines = s->reader.malformed;
    const char *error = what_is_wrong(s, said);
    s->config.fn(s->config.ctx, error ? NULL : &s->loads, error);
    free(s);
}

int kvr_scrape_start(const struct kvr_scrape_config *config, struct kvr_scrape **out)
{
    struct kvr_endpoint e;
    struct kvr_buf headers = {0};
    if (kvr_endpoint_parse_any(config->url, strlen(config->url), &e)) return -KVR_EINVAL;
    kvr_endpoint_trust(&e, config->tls_peer);
    struct kvr_scrape *s = calloc(1, sizeof *s);
    if (!s) return -KVR_ENOMEM;
    kvr_buf_str(&headers, "Accept: text/plain\r\n");
    s->config = *config;
    s->config.url = NULL;
    s->reader.fn = kvr_engine_loads_sample;
    s->reader.ctx = &s->loads;
    struct kvr_ask_config c = {.loop = config->loop,
                               .client = config->client,
                               .endpoint = &e,
                               .path = e.base[0] ? "" : "/metrics",
                               .headers = &headers,
                               .max = KVR_SCRAPE_BODY_MAX,
                               .whole = true,
                               .take = take,
                               .connect_timeout_s = config->timeout_s,
                               .timeout_s = config->timeout_s,
                               .fn = on_answer,
                               .ctx = s};
    s->asking = kvr_ask_start(&c);
    if (!s->asking) {
        free(s);
        return -KVR_ENOMEM;
    }
    *out = s;
    return 0;
}

void kvr_scrape_cancel(struct kvr_scrape *s)
{
    kvr_ask_cancel(s->asking);
    free(s);
}
