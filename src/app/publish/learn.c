/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is not given is asked of the engine, over HTTP, before its streams are followed:
 *
 *     --engine-url, else --announce --no answer: again, every AGAIN_MS--> facts --> model, ranks, block size --> publish_open
 *
 * Without either, or when an address that was only announced (it may be for others) is silent for --restore-timeout, publish goes on with
 * one rank. The block size that counts is that of the events themselves (wire/engine_events.h); the engine's answer tells it before the
 * first one has come. What was given wins; a difference is a warning, and stands in /status. All on the main loop.
 */
#include "app/publish/state.h"

#include <string.h>

#include "net/http/engine_ask.h"
#include "wire/json.h"

enum { AGAIN_MS = 250, TELL_MS = 60000, CONNECT_S = 5 };

struct learning {
    struct publish *publish;
    const char *url;
    struct kvr_endpoint endpoint;
    struct kvr_http_client *client;
    struct kvr_json_parser *json;
    struct kvr_engine_ask *ask; /* NULL: none on the way */
    uv_timer_t timer;
    uint64_t began_ms, told_ms; /* loop time; told_ms 0: nothing was said of a silent engine yet */
};

/* ---- what it says ------------------------------------------------------------------------------------------------- */

static void note(struct publish *p, const char *text)
{
    if (p->notes_n == PUBLISH_NOTES_MAX) return;
    snprintf(p->notes[p->notes_n++], PUBLISH_NOTE_MAX, "%s", text);
    kvr_log_warning("kvroute publish: %s", text);
}

static void compare(struct publish *p, const struct kvr_engine_facts *f)
{
    const struct publish_options *o = p->o;
    char text[PUBLISH_NOTE_MAX];
    const char *no_cache = kvr_engine_facts_no_cache(f);
    if (o->block_size && kvr_engine_facts_other_size(f, (uint32_t)o->block_size, text, sizeof text)) note(p, text);
    if (kvr_engine_facts_other_ranks(f, p->dp_start, p->dp_size, text, sizeof text)) note(p, text);
    if (no_cache) note(p, no_cache);
    if (f->events == KVR_TOLD_NO) {
        snprintf(text, sizeof text, "the engine publishes no KV events: start it with %s", kvr_engine_facts_events_flag(f));
        note(p, text);
    }
}

static void take(struct publish *p, const struct kvr_engine_facts *f)
{
    const struct publish_options *o = p->o;
    struct kvr_buf b = {0};
    if (!o->model && f->model[0]) snprintf(p->model, sizeof p->model, "%s", f->model);
    if (!o->block_size) p->block_size = f->block_size;
    if (!o->total_kv_blocks) p->total_kv_blocks = kvr_engine_facts_blocks(f);
    if (f->engine == KVR_FACT_SGLANG) p->sglang = true;
    if (!o->dp_size && f->ranks_n && !f->too_many && kvr_engine_facts_contiguous(f)) {
        p->dp_start = f->ranks[0].rank;
        p->dp_size = (uint32_t)f->ranks_n;
    }
    kvr_engine_facts_describe(f, &b);
    if (b.len && !b.failed) kvr_log("kvroute publish: %s says of itself: %.*s", p->learning->url, (int)b.len, b.data);
    kvr_buf_free(&b);
}

/* ---- asking ------------------------------------------------------------------------------------------------------- */

static void on_again(uv_timer_t *t);

/* It may be starting: whoever waits longer than a moment says so, once a minute. */
static void tell_silent(struct learning *l, const char *why)
{
    uint64_t now = uv_now(&l->publish->loop);
    if (now - l->began_ms < 1000 || (l->told_ms && now - l->told_ms < TELL_MS)) return;
    l->told_ms = now;
    kvr_log_warning("kvroute publish: the engine cannot be asked what it is configured with: %s: %.100s%s", l->url, why,
                    l->publish->feeds_n ? "" : "; its events are followed when it answers");
}

static void on_facts(void *ctx, const struct kvr_engine_facts *f, const char *why)
{
    struct learning *l = ctx;
    struct publish *p = l->publish;
    l->ask = NULL;
    if (f) {
        if (!p->feeds_n) take(p, f);
        compare(p, f);
        if (!p->feeds_n) publish_open(p);
        return;
    }
    tell_silent(l, why ? why : "out of memory");
    bool late = (double)(uv_now(&p->loop) - l->began_ms) > p->o->restore_timeout * 1000;
    if (!p->feeds_n && late && !p->o->engine_url) publish_open(p);
    uv_timer_start(&l->timer, on_again, AGAIN_MS, 0);
}

static void on_again(uv_timer_t *t)
{
    struct learning *l = t->data;
    struct kvr_engine_ask_config c = {.loop = &l->publish->loop,
                                      .client = l->client,
                                      .json = l->json,
                                      .endpoint = &l->endpoint,
                                      .model = l->publish->o->model ? l->publish->o->model : "",
                                      .headers = "",
                                      .connect_timeout_s = CONNECT_S,
                                      .fn = on_facts,
                                      .ctx = l};
    l->ask = kvr_engine_ask_start(&c);
    if (!l->ask) on_facts(l, NULL, NULL);
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

static struct learning *create(struct publish *p, const char *url)
{
    struct learning *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->publish = p;
    l->url = url;
    l->json = kvr_json_parser_new();
    if (!l->json || kvr_http_client_create(&p->loop, 3, &l->client)) {
        kvr_json_parser_free(l->json);
        free(l);
        return NULL;
    }
    uv_timer_init(&p->loop, &l->timer);
    l->timer.data = l;
    l->began_ms = uv_now(&p->loop);
    return l;
}

int learning_start(struct publish *p, char *err, size_t cap)
{
    const struct publish_options *o = p->o;
    const char *url = o->engine_url ? o->engine_url : o->announce;
    struct kvr_endpoint e;
    snprintf(p->model, sizeof p->model, "%s", o->model ? o->model : "default");
    p->block_size = (uint32_t)o->block_size;
    p->dp_start = (uint32_t)o->dp_start;
    p->dp_size = o->dp_size ? (uint32_t)o->dp_size : 1;
    p->total_kv_blocks = o->total_kv_blocks;
    p->sglang = o->engine != 0;
    if (!url) return 0;
    if (kvr_endpoint_parse_any(url, strlen(url), &e))
        return kvr_refuse(err, cap, "%s: bad value '%.200s'; allowed: http:// or https://host[:port]",
                          o->engine_url ? "--engine-url" : "--announce", url);
    if (!(p->learning = create(p, url))) return kvr_refuse(err, cap, "out of memory");
    p->learning->endpoint = e;
    uv_timer_start(&p->learning->timer, on_again, 0, 0);
    return 0;
}

bool learning_waits(const struct publish *p)
{
    const struct publish_options *o = p->o;
    return p->learning && (!o->model || !o->block_size || !o->dp_size);
}

static void on_closed(uv_handle_t *h)
{
    struct learning *l = h->data;
    kvr_json_parser_free(l->json);
    free(l);
}

void learning_stop(struct publish *p)
{
    struct learning *l = p->learning;
    if (!l) return;
    p->learning = NULL;
    if (l->ask) kvr_engine_ask_cancel(l->ask);
    kvr_http_client_close(l->client);
    uv_close((uv_handle_t *)&l->timer, on_closed);
}
