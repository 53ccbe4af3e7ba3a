/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of the admin port, {"error": text} among them, and the reading of its bodies. */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/common/fields.h"
#include "net/http/json_body.h"

void admin_reply(struct kvr_http_conn *c, int status, struct kvr_buf *b)
{
    if (b->failed) kvr_http_reply(c, 503, "application/json", NULL, "{\"error\":\"out of memory\"}", 25);
    else kvr_http_reply(c, status, "application/json", NULL, b->data ? b->data : "", b->len);
    kvr_buf_free(b);
}

void admin_error_body(struct kvr_buf *b, int, const char *text)
{
    kvr_json_printf(b, "{'error':%s}", text);
}

void admin_error(struct kvr_http_conn *c, int status, const char *text)
{
    struct kvr_buf b = {0};
    admin_error_body(&b, status, text);
    admin_reply(c, status, &b);
}

void admin_not_allowed(struct kvr_http_conn *c, const char *allowed)
{
    char text[64], head[64];
    struct kvr_buf b = {0};
    snprintf(text, sizeof text, "method not allowed; use %s", allowed);
    snprintf(head, sizeof head, "Allow: %s\r\n", allowed);
    admin_error_body(&b, 405, text);
    kvr_http_reply_buf(c, 405, "application/json", head, &b);
}

void admin_ok(struct kvr_http_conn *c, int status)
{
    kvr_http_reply(c, status, "application/json", NULL, "{\"status\":\"ok\"}", 15);
}

void admin_bad_field(struct kvr_http_conn *c, const char *field)
{
    char text[320];
    if (!*field) {
        admin_error(c, 503, "out of memory");
        return;
    }
    field_refusal(field, text, sizeof text);
    admin_error(c, 400, text);
}

void admin_not_added(struct kvr_http_conn *c, const char *why)
{
    admin_error(c, strcmp(why, kvr_strerror(-KVR_ENOMEM)) ? 409 : 503, why);
}

bool admin_is_object(struct kvr_http_conn *c, const struct kvr_json_read *r)
{
    char text[160];
    if (r->rc == -KVR_ENOMEM || r->members == -KVR_ENOMEM) {
        admin_error(c, 503, "out of memory");
    } else if (r->rc) {
        admin_error(c, 400, "the body is not valid JSON");
    } else if (kvr_json_type_of(r->root) != KVR_JSON_OBJECT) {
        admin_error(c, 400, "the body must be a JSON object");
    } else if (r->members) {
        if (r->members == -KVR_EEXISTS) snprintf(text, sizeof text, "field '%s' is given more than once; allowed: each once", r->member);
        else snprintf(text, sizeof text, "an object has more than %d fields", KVR_JSON_MEMBERS_MAX);
        admin_error(c, 400, text);
    } else {
        return true;
    }
    return false;
}

bool admin_parse_object(struct admin *admin, struct kvr_http_conn *c, struct kvr_json *o)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    if (rq->body_len > KVR_JOB_BYTES) {
        admin_error(c, 413, "the body is larger than 262144 bytes");
        return false;
    }
    struct kvr_json_read r;
    kvr_json_read(&r, admin->process->json, KVR_JSON_ALL, rq->body, rq->body_len);
    *o = r.root;
    return admin_is_object(c, &r);
}
