/* SPDX-License-Identifier: Apache-2.0 */
/* What every route answers with: JSON, errors as {"error": text}, and a word of it while the indexer still recovers. */
#include "app/indexer/state.h"

#include <stdarg.h>

#define NO_MEMORY "{\"error\":\"out of memory\"}" /* when there is none for a text either */

static void answer_with(struct request *rq, int status, const char *type, const char *extra, const char *body, size_t len)
{
    char head[256];
    bool ready = atomic_load(&rq->loop->indexer->ready);
    snprintf(head, sizeof head, "%s%s", ready ? "" : "x-kvroute-recovering: 1\r\n", extra ? extra : "");
    telemetry_record(rq, status);
    kvr_http_reply(rq->conn, status, type, head, body, len);
}

void answer_body(struct request *rq, int status, const char *body, size_t len)
{
    answer_with(rq, status, JSON_TYPE, NULL, body, len);
}

void answer_empty(struct request *rq, int status)
{
    answer_with(rq, status, NULL, NULL, "", 0);
}

static void answer_made(struct request *rq, int status, const char *type, const char *extra, struct kvr_buf *b)
{
    if (b->failed) answer_with(rq, 503, JSON_TYPE, NULL, NO_MEMORY, sizeof NO_MEMORY - 1);
    else answer_with(rq, status, type, extra, b->data ? b->data : "", b->len);
    kvr_buf_free(b);
}

void answer_buf(struct request *rq, int status, const char *type, struct kvr_buf *b)
{
    answer_made(rq, status, type, NULL, b);
}

void answer_ok(struct request *rq, int status)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'status':'ok'");
    if (rq->ignored.n) {
        kvr_json_printf(&b, "'ignored':[");
        for (size_t i = 0; i < rq->ignored.n; i++) kvr_json_printf(&b, "%s", rq->ignored.names[i]);
        kvr_json_close(&b, ']');
    }
    kvr_json_close(&b, '}');
    answer_buf(rq, status, JSON_TYPE, &b);
}

void answer_error_body(struct kvr_buf *b, int, const char *message)
{
    kvr_json_printf(b, "{'error':%s}", message);
}

void answer_error_with(struct request *rq, int status, const char *extra, const char *text)
{
    struct kvr_buf b = {0};
    answer_error_body(&b, status, text);
    answer_made(rq, status, JSON_TYPE, extra, &b);
}

void answer_error(struct request *rq, int status, const char *fmt, ...)
{
    char text[1200];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    answer_error_with(rq, status, NULL, text);
}

int body_text(struct request *rq, struct kvr_json o, const char *key, bool required, char *out, size_t cap)
{
    struct kvr_json v = kvr_json_get(o, key);
    out[0] = 0;
    if (!kvr_json_is_given(v)) {
        if (!required) return 0;
        answer_error(rq, 422, "missing field `%s`", key);
        return -1;
    }
    if (kvr_json_copy_name(v, out, cap)) return 1;
    answer_error(rq, 422, "field `%s` must be a string of at most %zu bytes", key, cap - 1);
    return -1;
}

int body_group(struct request *rq, struct kvr_json o, char *out, size_t cap)
{
    int has = body_text(rq, o, "routing_group", false, out, cap);
    if (has == 0 && rq->loop->indexer->o->tenant_as_group) has = body_text(rq, o, "tenant_id", false, out, cap);
    if (has == 0) snprintf(out, cap, "default");
    return has;
}
