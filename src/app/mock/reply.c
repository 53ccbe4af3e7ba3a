/* SPDX-License-Identifier: Apache-2.0 */
/* How the mock answers: JSON, and errors in the engine's words. */
#include "app/mock/generate.h"

#include <stdarg.h>

int mock_fail(struct mock_error *e, int status, const char *type, const char *param, const char *format, ...)
{
    va_list args;
    e->status = status;
    e->type = type;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return -1;
}

void mock_put_error(struct kvr_buf *b, const struct mock_error *e)
{
    kvr_json_printf(b, "{'error':{'message':%s,'type':%s,'param':%p,'code':%u}}", e->message, e->type, e->param[0] ? e->param : NULL,
                    (unsigned)e->status);
}

void mock_reply_json(struct kvr_http_conn *c, int status, struct kvr_buf *body)
{
    kvr_http_reply_buf(c, status, "application/json", NULL, body);
}

void mock_error_body(struct kvr_buf *out, int status, const char *message)
{
    kvr_openai_error(out, status, kvr_openai_error_type(status), message);
}

void mock_reply_error(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    mock_error_body(&b, status, message);
    mock_reply_json(c, status, &b);
}

void mock_reply_detail(struct kvr_http_conn *c, int status, const char *detail)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'detail':%s}", detail);
    mock_reply_json(c, status, &b);
}

uint64_t mock_model_len(const struct mock *m)
{
    return m->o->max_model_len ? m->o->max_model_len : (m->o->num_gpu_blocks - 1) * m->o->block_size;
}
