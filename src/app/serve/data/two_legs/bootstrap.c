/* SPDX-License-Identifier: Apache-2.0 */
/* Names of engines: data/two_legs/bootstrap.h. */
#include "app/serve/data/two_legs/bootstrap.h"

#include <stdlib.h>
#include <string.h>

#include "app/serve/data/state/room.h"
#include "app/serve/data/two_legs/side_call.h"
#include "app/serve/workers/table/worker.h"
#include "wire/handoff.h"

enum { REFUSED_MS = 1000, KEPT_MS = 60000 };

#define ANSWER_S 5.0

struct bootstrap {
    struct bootstrap *next;
    uint64_t worker, ups; /* ups: how often it had come up when it was asked */
    bool asking;
    uint64_t told_ms, refused_ms, used_ms; /* 0: never */
    struct kvr_buf answer;
};

/* ---- the answers that are kept ----------------------------------------------------------------------- */

static struct bootstrap **find(struct loop *l, uint64_t worker)
{
    struct bootstrap **p = &l->bootstraps;
    while (*p && (*p)->worker != worker) p = &(*p)->next;
    return p;
}

static void drop(struct loop *l, struct bootstrap **p)
{
    struct bootstrap *b = *p;
    *p = b->next;
    l->bootstraps_n--;
    kvr_buf_free(&b->answer);
    free(b);
}

static void make_room(struct loop *l)
{
    struct bootstrap **oldest = &l->bootstraps;
    if (l->bootstraps_n < BOOTSTRAPS_MAX) return;
    for (struct bootstrap **p = &l->bootstraps; *p; p = &(*p)->next)
        if ((*p)->used_ms < (*oldest)->used_ms) oldest = p;
    drop(l, oldest);
}

static struct bootstrap *get(struct loop *l, uint64_t worker)
{
    struct bootstrap *b = *find(l, worker);
    if (b) return b;
    make_room(l);
    if (!(b = calloc(1, sizeof *b))) return NULL;
    b->worker = worker;
    b->next = l->bootstraps;
    l->bootstraps = b;
    l->bootstraps_n++;
    return b;
}

static void forget(struct bootstrap *b)
{
    kvr_buf_free(&b->answer);
    b->told_ms = b->refused_ms = 0;
}

void bootstrap_forget(struct loop *l, uint64_t worker)
{
    struct bootstrap *b = *find(l, worker);
    if (b) forget(b);
}

void bootstraps_free(struct loop *l)
{
    while (l->bootstraps) drop(l, &l->bootstraps);
}

/* ---- the question ------------------------------------------------------------------------------------ */

struct query {
    struct side_call side;
    uint64_t worker;
};

/* Its place may have been taken meanwhile. What is known stays when it cannot be asked. */
static void on_answer(struct side_call *c, bool ok)
{
    struct bootstrap *b = *find(c->loop, ((struct query *)c)->worker);
    if (!b) return;
    b->asking = false;
    if (!ok || c->status != 200) {
        b->refused_ms = kvr_now_ms();
        return;
    }
    kvr_buf_free(&b->answer);
    b->answer = c->answer;
    c->answer = (struct kvr_buf){0};
    b->told_ms = kvr_now_ms();
    b->refused_ms = 0;
}

static struct kvr_http_call *call(struct loop *l, const struct worker *w, struct query *q)
{
    struct kv_address at = kv_bootstrap_of(w);
    struct kvr_endpoint to;
    struct kvr_buf url = {0}, head = {0};
    kvr_buf_str(&url, "http://");
    kv_address_put(&at, &url);
    bool fine = !url.failed && kvr_endpoint_parse(url.data, url.len, &to) == 0;
    if (fine) kvr_request_put(&head, &to, "/query", -1);
    kvr_buf_str(&head, "Accept: application/json\r\n\r\n");
    struct kvr_http_call_config config = {.endpoint = &to,
                                          .head = head.data,
                                          .head_len = head.len,
                                          .connect_timeout_s = l->data->o->connect_timeout,
                                          .handler = &side_call_handler,
                                          .ctx = q};
    struct kvr_http_call *made = fine && !head.failed ? kvr_http_call_start(l->client, &config) : NULL;
    kvr_buf_free(&url);
    kvr_buf_free(&head);
    return made;
}

static void ask(struct loop *l, const struct worker *w, struct bootstrap *b)
{
    struct query *q = side_calls_have_room(l, SIDE_QUERY) ? calloc(1, sizeof *q) : NULL;
    if (q) q->side.call = call(l, w, q);
    if (!q || !q->side.call) {
        free(q);
        b->refused_ms = kvr_now_ms();
        return;
    }
    q->worker = w->id;
    q->side.kind = SIDE_QUERY;
    q->side.done = on_answer;
    q->side.keep = BOOTSTRAP_ANSWER_MAX;
    b->asking = true;
    b->ups = atomic_load(&w->ups);
    side_call_begin(&q->side, l, ANSWER_S);
}

enum bootstrap_state bootstrap_engine(struct loop *l, const struct worker *w, uint32_t rank, char *out, size_t cap)
{
    struct bootstrap *b = get(l, w->id);
    uint64_t now = kvr_now_ms();
    if (!b) return BOOTSTRAP_REFUSED;
    b->used_ms = now;
    if (b->told_ms && b->ups != atomic_load(&w->ups)) forget(b);
    bool refused = b->refused_ms && now - b->refused_ms < REFUSED_MS;
    if (!b->asking && !refused && (!b->told_ms || now - b->told_ms > KEPT_MS)) ask(l, w, b);
    if (!b->told_ms) return b->asking ? BOOTSTRAP_ASKED : BOOTSTRAP_REFUSED;
    struct kvr_json root;
    bool known = kvr_json_parse(l->json, b->answer.data ? b->answer.data : "", b->answer.len, &root, NULL) == 0 &&
                 kvr_handoff_engine_of(root, rank, out, cap);
    return known ? BOOTSTRAP_KNOWN : BOOTSTRAP_REFUSED;
}
