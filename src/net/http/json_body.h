/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON body of a request; when it is large it is read on a thread (net/http/jobs.h). Then the body is taken out of the connection,
 * whose user is the reading until it is over. A body that is small may be read there, too, for the sake of what comes after.
 *
 * Threads: the loop's.
 */
#ifndef KVR_NET_JSON_BODY_H
#define KVR_NET_JSON_BODY_H

#include "net/http/http.h"
#include "net/http/jobs.h"
#include "wire/json.h"

/* What came of reading one. */
struct kvr_json_read {
    int rc;               /* as of kvr_json_parse; of an empty body -KVR_EFORMAT */
    const char *why;      /* likewise */
    struct kvr_json root; /* borrows the parser */
    int members;          /* of an object: as of kvr_json_check_members */
    char member[64];      /* likewise */
};

/* The data stay while ids are read of what was wanted in brief. */
void kvr_json_read(struct kvr_json_read *out, struct kvr_json_parser *parser, enum kvr_json_wanted wanted, const char *data, size_t len);

/* Zero-initialize; the first member of memory from malloc, which is freed when it is over. */
struct kvr_json_body {
    struct kvr_job job;
    struct kvr_http_conn *conn;
    struct kvr_body *body;
    enum kvr_json_wanted wanted;
    struct kvr_json_parser *json; /* its own; goes with it */
    struct kvr_json_read read;
    void (*on_thread)(struct kvr_json_body *body); /* NULL, or what else the thread has to do: `body` and `read` are there */
    void (*on_read)(struct kvr_json_body *body);   /* unless the client has gone; answers, at once or later */
    void (*on_over)(struct kvr_json_body *body);   /* NULL, or gives back what on_thread has made; on the loop, in any case */
};

/* Whether the connection's request is one for this. */
bool kvr_json_body_is_large(struct kvr_http_conn *conn);
void kvr_json_body_start(struct kvr_json_body *b, struct kvr_jobs *jobs, uv_loop_t *loop, struct kvr_http_conn *conn);
/* Of the server's handlers, which hear of every connection. Returns: whether it was one whose body is being read. */
bool kvr_json_body_on_gone(const struct kvr_jobs *jobs, struct kvr_http_conn *conn);
bool kvr_json_body_is_read(const struct kvr_jobs *jobs, struct kvr_http_conn *conn);

#endif
