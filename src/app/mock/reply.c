/* SPDX-License-Identifier: Apache-2.0 */
/* How the mock answers: JSON, and errors in the engine's words. */
#include "app/mock/generate.h"

#include <stdarg.h>
#include <string.h>

void mock_fail(struct mock_error *e, int status, const char *type, const char *param, const char *format, ...)
{
    va_list args;
    e->status = status;
    e->type = type;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
}

void mock_put_error(struct kvr_buf *b, const struct mock_error *e)
{
    kvr_json_open(b, '{');
    kvr_json_key(b, "error");
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "message", e->message);
    kvr_json_put_str(b, "type", e->type);
    kvr_json_key(b, "param");
    if (e->param[0]) kvr_json_str(b, e->param, strlen(e->param));
    else kvr_json_null(b);
    kvr_json_put_u64(b, "code", (uint64_t)e->status);
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
}

void mock_reply_json(struct kvr_http_conn *c, int status, struct kvr_buf *body)
{
    kvr_http_reply(c, status, "application/json", NULL, body->data ? body->data : "", body->len);
    kvr_buf_free(body);
}

void mock_reply_error(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    kvr_openai_error(&b, status, kvr_openai_error_type(status), message);
    mock_reply_json(c, status, &b);
}

void mock_reply_detail(struct kvr_http_conn *c, int status, const char *detail)
{
    struct kvr_buf b = {0};
    kvr_json_open(&b, '{');
    kvr_json_put_str(&b, "detail", detail);
    kvr_json_close(&b, '}');
    mock_reply_json(c, status, &b);
}

uint64_t mock_model_len(const struct mock *m)
{
    return m->o->max_model_len ? m->o->max_model_len : m->o->num_gpu_blocks * m->o->block_size;
}
