/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks one worker what its engine makes of the built-in questions of one model (token/probes.h).
 *
 * Over which paths, and what an answer means, is told by wire/engine_tokens.h. An engine that answers no chat is one that cannot be asked.
 * A worker that breaks off, stays silent or answers 5xx is asked again from the first question on, later.
 */
#include "app/serve/tokenizers/room.h"

#include <string.h>

#include "app/serve/common/clock.h"
#include "app/serve/workers/entry/worker_key.h"
#include "token/probes.h"
#include "wire/engine_tokens.h"

enum { ANSWER_MAX = 1 << 20, ANSWER_MS = 10000, AGAIN_MS = 5000 };

struct prober {
    struct tokenizers *of;
    struct tokenizer_entry *entry;
    uint64_t worker_id, ups;
    struct kvr_endpoint endpoint;
    char key[API_KEY_MAX], who[256];
    size_t at; /* the question that is being asked */
    enum kvr_engine_tokens_way way;
    struct kvr_http_call *call;
    uv_timer_t timeout;
    int status;
    struct kvr_buf body;
    struct kvr_probe_answer answers[KVR_PROBES_MAX];
};

static void ask(struct prober *p);

static void on_closed(uv_handle_t *h)
{
    struct prober *p = h->data;
    for (size_t i = 0; i < KVR_PROBES_MAX; i++) kvr_ids_unref(p->answers[i].ids);
    kvr_buf_free(&p->body);
    free(p);
}

void prober_stop(struct prober *p)
{
    p->entry->prober = NULL;
    if (p->call) kvr_http_call_cancel(p->call);
    p->call = NULL;
    uv_close((uv_handle_t *)&p->timeout, on_closed);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void give_up(struct prober *p)
{
    p->entry->probe_again_ms = now_ms() + AGAIN_MS;
    prober_stop(p);
}

static void finish(struct prober *p, bool could_ask)
{
    if (!could_ask) {
        kvr_tokenizer_cannot_ask(p->entry->tokenizer, p->who);
    } else if (kvr_tokenizer_date_turns(p->entry->tokenizer) ||
               !kvr_tokenizer_probed(p->entry->tokenizer, p->who, p->answers, kvr_token_probes_n)) {
        give_up(p);
        return;
    }
    (void)kvr_map64_put(&p->entry->probed, p->worker_id, p->ups);
    prober_stop(p);
}

/* NULL: it has none. */
static struct kvr_ids *read_ids(struct prober *p)
{
    struct kvr_json list;
    if (p->body.failed || !kvr_engine_tokens_read(p->of->process->json, p->body.data ? p->body.data : "", p->body.len, p->way, &list))
        return NULL;
    size_t n = kvr_json_count(list);
    struct kvr_ids *ids = kvr_ids_new(NULL, n);
    if (ids && kvr_json_u32_array(list, ids->v, n) >= 0) return ids;
    kvr_ids_unref(ids);
    return NULL;
}

static void take_answer(struct prober *p)
{
    struct kvr_probe_answer *a = &p->answers[p->at];
    switch (kvr_engine_tokens_judge(p->way, p->status)) {
    case KVR_TOKENS_OTHER_WAY:
        p->way = KVR_TOKENS_TOKENIZE;
        ask(p);
        break;
    case KVR_TOKENS_NO_WAY: finish(p, false); break;
    case KVR_TOKENS_LATER: give_up(p); break;
    case KVR_TOKENS_ANSWERED:
    case KVR_TOKENS_REFUSED:
        a->ids = p->status == 200 ? read_ids(p) : NULL;
        a->answered = a->ids != NULL;
        if (++p->at < kvr_token_probes_n) ask(p);
        else finish(p, kvr_probe_answers_have_chat(p->answers, kvr_token_probes_n));
        break;
    }
}

static void on_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *h, int64_t length)
{
    (void)call;
    (void)h;
    (void)length;
    ((struct prober *)ctx)->status = status;
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct prober *p = ctx;
    (void)call;
    if (p->body.len + len > ANSWER_MAX) p->body.failed = true;
    kvr_buf_add(&p->body, data, len);
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct prober *p = ctx;
    (void)call;
    p->call = NULL;
    take_answer(p);
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct prober *p = ctx;
    (void)call;
    (void)why;
    (void)text;
    p->call = NULL;
    give_up(p);
}

static void on_timeout(uv_timer_t *t)
{
    give_up(t->data);
}

static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};

/* ---- questions ---------------------------------------------------------------------------------------------------- */

static struct kvr_body *question(const struct prober *p)
{
    struct kvr_buf b = {0};
    kvr_engine_tokens_question(p->way, p->entry->model, kvr_token_probes[p->at].members, &b);
    struct kvr_body *body = kvr_body_take(&b);
    kvr_buf_free(&b);
    return body;
}

static void ask(struct prober *p)
{
    struct kvr_buf head = {0};
    struct kvr_body *body = question(p);
    kvr_buf_printf(&head, "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n", p->endpoint.base,
                   kvr_engine_tokens_path(p->way, kvr_token_probes[p->at].is_chat), p->endpoint.authority, body ? body->len : 0);
    worker_key_put(p->key, &head);
    kvr_buf_str(&head, "\r\n");
    struct kvr_http_call_config cc = {.endpoint = &p->endpoint,
                                      .head = head.data,
                                      .head_len = head.len,
                                      .body = body,
                                      .connect_timeout_s = p->of->o->connect_timeout,
                                      .handler = &handler,
                                      .ctx = p};
    p->status = 0;
    p->body.len = 0;
    p->body.failed = false;
    p->call = head.failed || !body ? NULL : kvr_http_call_start(p->of->process->client, &cc);
    kvr_buf_free(&head);
    kvr_body_unref(body);
    uv_timer_start(&p->timeout, on_timeout, p->call ? ANSWER_MS : 0, 0);
}

struct prober *prober_start(struct tokenizers *t, struct tokenizer_entry *e, const struct worker *w)
{
    struct prober *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->of = t;
    p->entry = e;
    p->worker_id = w->id;
    p->ups = atomic_load(&w->ups);
    p->endpoint = w->endpoint;
    memcpy(p->key, w->api_key, sizeof p->key);
    snprintf(p->who, sizeof p->who, "worker %llu, %.200s", (unsigned long long)w->id, w->url);
    uv_timer_init(&t->process->main_loop, &p->timeout);
    p->timeout.data = p;
    e->prober = p;
    ask(p);
    return p;
}
