/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which worker has which response of /v1/responses: an engine keeps them to itself, so what goes on from one (previous_response_id), asks
 * for one or ends one goes where it is. A table as that of sessions, with the same limit; other routers are told of it as of sessions,
 * under names that no session has.
 */
#include "app/serve/data/state/room.h"

#include <string.h>

#include "app/serve/data/state/sessions.h"
#include "app/serve/peers/replicas.h"

static const char mark[] = "\x1fresponse:"; /* a control character: not in a header, so no session's */

enum { KEY_MAX = RESPONSE_ID_MAX + sizeof mark };

struct session_table *responses_create(void)
{
    return sessions_create(24 * 3600);
}

static bool is_one(const char *id, size_t len)
{
    return len > sizeof mark - 1 && memcmp(id, mark, sizeof mark - 1) == 0;
}

static size_t key_of(const char *response, char key[KEY_MAX])
{
    return (size_t)snprintf(key, KEY_MAX, "%s%s", mark, response);
}

bool responses_get(struct data_plane *data, const char *response, struct kvr_worker *out)
{
    char key[KEY_MAX];
    size_t n = key_of(response, key);
    return sessions_get(data->responses, key, n, kvr_now_ms(), out);
}

void responses_bind(struct data_plane *data, const char *response, struct kvr_worker w)
{
    char key[KEY_MAX];
    size_t n = key_of(response, key);
    if (sessions_bind(data->responses, key, n, kvr_now_ms(), w)) replicas_on_session(data->peers, key, n, w);
}

void responses_forget(struct data_plane *data, const char *response)
{
    char key[KEY_MAX];
    size_t n = key_of(response, key);
    sessions_forget(data->responses, key, n);
}

void responses_id_of(struct kvr_json v, char id[RESPONSE_ID_MAX])
{
    const char *s;
    size_t len;
    if (!kvr_json_as_name(v, &s, &len) || len == 0 || len >= RESPONSE_ID_MAX) return;
    memcpy(id, s, len);
    id[len] = 0;
}

struct kvr_text responses_id_in(struct kvr_text path)
{
    static const char begin[] = "/v1/responses/";
    if (path.len <= sizeof begin - 1 || memcmp(path.ptr, begin, sizeof begin - 1) != 0) return (struct kvr_text){0};
    const char *s = path.ptr + sizeof begin - 1, *end = path.ptr + path.len;
    const char *slash = memchr(s, '/', (size_t)(end - s));
    size_t len = (size_t)((slash ? slash : end) - s);
    return (struct kvr_text){s, len < RESPONSE_ID_MAX ? len : 0};
}

void bindings_heard(struct data_plane *data, const char *id, size_t len, struct kvr_worker w)
{
    sessions_adopt(is_one(id, len) ? data->responses : data->sessions, id, len, kvr_now_ms(), w);
}
