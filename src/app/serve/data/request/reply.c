/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, early heads and comments: data/request/reply.h. */
#include "app/serve/data/request/reply.h"

#include "app/serve/data/request/admission.h"

void reply_error_body(struct kvr_buf *out, int status, const char *message)
{
    kvr_openai_error(out, status, kvr_openai_error_type(status), message);
}

static void put_retry(struct kvr_buf *h, uint64_t seconds)
{
    if (seconds) kvr_buf_printf(h, "Retry-After: %llu\r\n", (unsigned long long)seconds);
}

/* Empties both. */
static void reply(struct kvr_http_conn *c, int status, const char *type, struct kvr_buf *h, struct kvr_buf *body)
{
    kvr_buf_add(h, "", 1);
    kvr_http_reply_buf(c, status, type, h->failed ? "" : h->data, body);
    kvr_buf_free(h);
}

static void error_with(struct kvr_http_conn *c, int status, const char *message, const char *id, uint64_t retry_s)
{
    struct kvr_buf b = {0}, h = {0};
    reply_error_body(&b, status, message);
    if (id && *id) kvr_buf_printf(&h, "x-request-id: %s\r\n", id);
    put_retry(&h, retry_s || status != 503 ? retry_s : 1);
    reply(c, status, "application/json", &h, &b);
}

void reply_error(struct kvr_http_conn *c, int status, const char *message, const char *id)
{
    error_with(c, status, message, id, 0);
}

/* As what is passed on of a worker's answer. */
static void reply_workers_words(struct kvr_http_conn *c, struct refusal *why, const struct request *r)
{
    kvr_header_put_str(&why->head, "x-request-id", r->id);
    put_retry(&why->head, r->retry_after_s || why->status != 503 ? r->retry_after_s : 1);
    reply(c, why->status, NULL, &why->head, &why->body);
}

static const char *type_of(const struct refusal *why)
{
    switch (why->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    default: return kvr_openai_error_type(why->status);
    }
}

void reply_refusal(struct kvr_http_conn *c, struct refusal *why, const struct request *r)
{
    struct kvr_buf b = {0}, h = {0};
    if (r && why->body.len) {
        reply_workers_words(c, why, r);
        return;
    }
    if (!why->code) {
        error_with(c, why->status, why->text, r ? r->id : NULL, r ? r->retry_after_s : 0);
        return;
    }
    kvr_openai_error_coded(&b, type_of(why), why->text, why->code);
    if (r && r->id[0]) kvr_buf_printf(&h, "x-request-id: %s\r\n", r->id);
    if (why->status == 401) kvr_buf_str(&h, "WWW-Authenticate: Bearer\r\n");
    put_retry(&h, why->retry_s);
    if (r) admission_put_headers(r, &h);
    reply(c, why->status, "application/json", &h, &b);
}

bool reply_error_event(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    kvr_buf_str(&b, "data: ");
    reply_error_body(&b, status, message);
    kvr_buf_str(&b, "\n\n");
    bool made = !b.failed;
    if (made) kvr_http_write(c, b.data, b.len);
    kvr_buf_free(&b);
    return made;
}

static void send_early_head(struct request *r)
{
    char h[ID_MAX + 128];
    int n =
        snprintf(h, sizeof h,
                 "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nx-request-id: %s\r\nx-kvroute-reason: queued\r\n", r->id);
    r->early_head = true;
    kvr_http_start(r->conn, 200, h, (size_t)n, -1);
}

void reply_comment(struct request *r)
{
    if (!r->early_head) send_early_head(r);
    kvr_http_write(r->conn, ": waiting for a worker\n\n", 24);
}
