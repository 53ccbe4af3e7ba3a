/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank has a session (sessions.c), and which worker has which response of /v1/responses (responses.c). Any thread. */
#ifndef KVR_SERVE_SESSIONS_H
#define KVR_SERVE_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <kvroute/types.h>

#include "net/http/http.h"
#include "wire/json.h"
#include "wire/openai.h"

struct data_plane;

struct session_table;

#define SESSION_OF_PREFILL "\001prefill" /* after the id of a session: its prefill worker */

/* sessions.c */
struct session_table *sessions_create(double ttl_s);
void sessions_destroy(struct session_table *t);
bool sessions_get(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker *out);
/* Returns: whether other routers should hear of it: it is new, another, or was told long ago. */
bool sessions_bind(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker w);
/* Binds what is not bound. */
void sessions_adopt(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker w);
void sessions_forget(struct session_table *t, const char *id, size_t len);
struct session_counts {
    size_t bound;
    uint64_t given_up; /* before their time, as there were too many */
};
struct session_counts sessions_counts(struct session_table *t);

/* responses.c */
enum { RESPONSE_ID_MAX = KVR_RESPONSE_ID_MAX };
struct session_table *responses_create(void);
/* Another router has bound a session, or a response. The first binding that lives wins; others are left out. */
void bindings_heard(struct data_plane *data, const char *id, size_t len, struct kvr_worker w);
bool responses_get(struct data_plane *data, const char *response, struct kvr_worker *out);
void responses_bind(struct data_plane *data, const char *response, struct kvr_worker w);
void responses_forget(struct data_plane *data, const char *response); /* its worker has deleted it */
/* Leaves `id` as it is when there is none. */
void responses_id_of(struct kvr_json v, char id[RESPONSE_ID_MAX]);
/* Empty: there is none. */
struct kvr_text responses_id_in(struct kvr_text path);

#endif
