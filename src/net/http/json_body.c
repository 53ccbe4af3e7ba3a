/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a JSON body on the loop or, when it is large, on a thread; net/http/json_body.h has ownership. */
#include "net/http/json_body.h"

#include <kvroute/error.h>

void kvr_json_read(struct kvr_json_read *r, struct kvr_json_parser *p, enum kvr_json_wanted wanted, const char *data, size_t len)
{
    *r = (struct kvr_json_read){.rc = -KVR_EFORMAT, .why = "it is empty"};
    if (len) r->rc = kvr_json_parse_brief(p, data, len, wanted, &r->root, &r->why);
    if (r->rc == 0 && kvr_json_type_of(r->root) == KVR_JSON_OBJECT) r->members = kvr_json_check_members(p, r->member, sizeof r->member);
}

static struct kvr_json_body *body_of(struct kvr_job *j)
{
    return (struct kvr_json_body *)((char *)j - offsetof(struct kvr_json_body, job));
}

static void run(struct kvr_job *j)
{
    struct kvr_json_body *b = body_of(j);
    b->json = kvr_json_parser_new();
    if (b->json) kvr_json_read(&b->read, b->json, b->wanted, b->body->data, b->body->len);
    else b->read.rc = -KVR_ENOMEM;
    if (b->on_thread) b->on_thread(b);
}

static void over(struct kvr_job *j, bool given_up)
{
    struct kvr_json_body *b = body_of(j);
    if (!given_up) {
        kvr_http_conn_set_user(b->conn, NULL);
        b->on_read(b);
    }
    if (b->on_over) b->on_over(b);
    kvr_json_parser_free(b->json);
    kvr_body_unref(b->body);
    free(b);
}

bool kvr_json_body_is_large(struct kvr_http_conn *c)
{
    return kvr_http_conn_request(c)->body_len > KVR_JOB_BYTES;
}

void kvr_json_body_start(struct kvr_json_body *b, struct kvr_jobs *jobs, uv_loop_t *loop, struct kvr_http_conn *c)
{
    b->conn = c;
    b->body = kvr_http_conn_take_body(c);
    b->job.run = run;
    b->job.over = over;
    kvr_http_conn_set_user(c, b);
    kvr_job_start(jobs, loop, &b->job);
}

static struct kvr_job *reading_of(const struct kvr_jobs *jobs, struct kvr_http_conn *c)
{
    const void *user = kvr_http_conn_user(c);
    for (struct kvr_job *j = jobs->first; j && user; j = j->next)
        if (user == body_of(j)) return j;
    return NULL;
}

bool kvr_json_body_on_gone(const struct kvr_jobs *jobs, struct kvr_http_conn *c)
{
    struct kvr_job *j = reading_of(jobs, c);
    if (j) kvr_job_give_up(j);
    return j != NULL;
}

bool kvr_json_body_is_read(const struct kvr_jobs *jobs, struct kvr_http_conn *c)
{
    return reading_of(jobs, c) != NULL;
}
