/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a request's API key lets it do (--api-key-file), asked where each answer is first known:
 *
 *     its head arrives    the key itself and the size of the body (before the body is read), requests under way, requests per second
 *     READING is done     the model, and its own limits
 *     TOKENS is done      the length of the prompt, tokens per second: prompt and requested output are taken
 *     the end             what was really used is put in the place of that, and the request counts as under way no more
 *
 * A refusal is one of request.h, with a code. Without --api-key-file each of these does nothing.
 *
 * A client's key is for this router: it goes to no worker, unless --forward-client-key.
 *
 * Threads: the request's loop.
 */
#ifndef KVR_SERVE_ADMISSION_H
#define KVR_SERVE_ADMISSION_H

#include "app/serve/data/request/request.h"

/* How much of its body is wanted of who sends this head: nothing of a stranger's; and why no more is, for admission_refuse_unread. Counts
 * nothing: whoever sends more is refused by what follows. */
void admission_body_room(struct data_plane *data, const struct kvr_headers *h, struct kvr_http_room *room);
/* One whose body was not read, and that its key would allow by now: what was judged by its head holds. */
void admission_refuse_unread(struct request *r, const struct kvr_http_request *head);
/* One whose key had its share of unfinished bodies. */
void admission_count_unfinished(struct data_plane *data, const struct kvr_http_request *head);
/* Returns: DONE, or REFUSED. */
enum outcome admission_begin(struct request *r, const struct kvr_http_request *head);
/* The request's phase is done. Returns: DONE, or REFUSED. */
enum outcome admission_next(struct request *r);
/* It is read again, as one of another model: what it took of the model before, and its tokens, are given back. */
void admission_again(struct request *r);
void admission_close(struct request *r);
/* x-ratelimit-...; nothing where there is no limit. */
void admission_put_headers(const struct request *r, struct kvr_buf *h);

/* Who asks for what the router answers itself: the lists of models. */
struct admission_look {
    struct keyring *ring;      /* held; NULL: everybody may */
    const struct api_key *key; /* NULL: the same */
};
/* Returns: true, and the look is to be ended; false: it is answered. */
bool admission_look(struct data_plane *data, struct kvr_http_conn *c, struct admission_look *out);
void admission_look_end(struct admission_look *look);
bool admission_shows(const void *look, const char *model);

/* The workers that its key may use, of the question to the router, which borrows them while the request has its key. */
void admission_keep_to_workers(const struct request *r, struct kvr_router_request *rq);

/* Does a header with a key of the client stay here? */
bool admission_keeps(const struct request *r, struct kvr_text name);
/* The client's Authorization for a worker; NULL: it has none that goes there. */
struct kvr_text admission_authorization(const struct request *r);
/* A line with that, or with the worker's own key. */
void admission_put_key(const struct request *r, const struct worker *w, struct kvr_buf *head);
/* The head of a question to an engine for a request, as JSON of so many bytes, with it. */
void admission_put_post(const struct request *r, const struct worker *w, const char *path, size_t len, struct kvr_buf *head);

#endif
