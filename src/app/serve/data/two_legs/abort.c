/* SPDX-License-Identifier: Apache-2.0 */
/* Legs are ended at the engine: data/two_legs/abort.h. */
#include "app/serve/data/two_legs/abort.h"

#include <string.h>

#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/two_legs/side_call.h"
#include "app/serve/workers/table/worker.h"

#define ANSWER_S 5.0

static void on_over(struct side_call *c, bool ok)
{
    if (!ok) atomic_fetch_add(&c->loop->data->counters.disagg_aborts_failed_total, 1);
}

static struct kvr_http_call *call(const struct request *r, const struct worker *w, void *ctx)
{
    struct kvr_buf text = {0}, head = {0};
    kvr_json_printf(&text, "{'rid':%s}", r->legs->transfer.id);
    struct kvr_body *body = text.failed ? NULL : kvr_body_copy(text.data, text.len);
    admission_put_post(r, w, "/abort_request", text.len, &head);
    struct kvr_http_call_config config = {.endpoint = &w->endpoint,
                                          .head = head.data,
                                          .head_len = head.len,
                                          .body = body,
                                          .connect_timeout_s = data_of(r)->o->connect_timeout,
                                          .handler = &side_call_handler,
                                          .ctx = ctx};
    struct kvr_http_call *made = body && !head.failed ? kvr_http_call_start(r->loop->client, &config) : NULL;
    kvr_buf_free(&text);
    kvr_buf_free(&head);
    kvr_body_unref(body);
    return made;
}

void abort_leg(const struct request *r, struct attempt *a)
{
    if (!a || a->aborted || r->legs->protocol != KVR_KV_SGLANG || !transfer_has_rid(r)) return;
    if (!a->call && a->state != ATTEMPT_CANCELLED) return;
    a->aborted = true;
    struct side_call *c = side_calls_have_room(r->loop, SIDE_ABORT) ? calloc(1, sizeof *c) : NULL;
    if (c) c->call = call(r, a->worker, c);
    if (!c || !c->call) {
        free(c);
        COUNT(r, disagg_aborts_failed_total);
        return;
    }
    c->kind = SIDE_ABORT;
    c->done = on_over;
    side_call_begin(c, r->loop, ANSWER_S);
    COUNT(r, disagg_aborts_total);
}
