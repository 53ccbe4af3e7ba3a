/* SPDX-License-Identifier: Apache-2.0 */
/* Errors, early heads and comments: data/reply.h. */
#include "app/serve/data/reply.h"

#include "app/serve/data/admission.h"

void reply_error_body(struct kvr_buf *out, int status, const char *message)
{
    kvr_openai_error(out, status, kvr_openai_error_type(status), message);
}

void reply_error(struct kvr_http_conn *c, int status, const char *message, const char *id)
{
    struct kvr_buf b = {0}, h = {0};
    reply_error_body(&b, status, message);
    if (id && *id) kvr_buf_printf(&h, "x-request-id: %s\r\n", id);
    if (status == 503) kvr_buf_str(&h, "Retry-After: 1\r\n");
    kvr_buf_add(&h, "", 1);
    kvr_http_reply_buf(c, status, "application/json", h.failed ? "" : h.data, &b);
    kvr_buf_free(&h);
}

static const char *type_of(const struct refusal *why)
{
    switch (why->status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    default: return kvr_openai_error_type(why->status);
    }
}

void reply_refusal(struct kvr_http_conn *c, const struct refusal *why, const struct request *r)
{
    struct kvr_buf b = {0}, h = {0};
    if (!why->code) {
        reply_error(c, why->status, why->text, r ? r->id : NULL);
        return;
    }
    kvr_openai_error_coded(&b, type_of(why), why->text, why->code);
    if (r && r->id[0]) kvr_buf_printf(&h, "x-request-id: %s\r\n", r->id);
    if (why->status == 401) kvr_buf_str(&h, "WWW-Authenticate: Bearer\r\n");
    if (why->retry_s) kvr_buf_printf(&h, "Retry-After: %llu\r\n", (unsigned long long)why->retry_s);
    if (r) admission_put_headers(r, &h);
    kvr_buf_add(&h, "", 1);
    kvr_http_reply_buf(c, why->status, "application/json", h.failed ? "" : h.data, &b);
    kvr_buf_free(&h);
}

void reply_error_event(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    kvr_buf_str(&b, "data: ");
    reply_error_body(&b, status, message);
    kvr_buf_str(&b, "\n\n");
    if (!b.failed) kvr_http_write(c, b.data, b.len);
    if (b.failed) kvr_http_abort(c);
    else kvr_http_end(c);
    kvr_buf_free(&b);
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
