/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /models_config: the names of models that are in force, and others in their place. What is put is read as the file is, and checked as a
 * whole; so two who change it at the same time cannot mix what they put, and with If-Match the second one is told.
 */
#include "app/serve/admin/room.h"

#include "app/serve/config/models_config.h"
#include "base/log.h"
#include "net/http/json_body.h"
#include "wire/yaml_map.h"

static void answer(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    char tag[MODELS_TAG], header[MODELS_TAG + 16];
    models_config_tag(admin->config, tag);
    snprintf(header, sizeof header, "ETag: %s\r\n", tag);
    models_config_write(admin->config, &b);
    kvr_http_reply_buf(c, 200, "application/json", header, &b);
}

static bool has_models(const struct admin *admin, struct kvr_http_conn *c)
{
    if (admin->o->select_only) admin_error(c, 404, "only kvroute serve has names of models");
    return !admin->o->select_only;
}

void models_get(struct admin *admin, struct kvr_http_conn *c)
{
    if (has_models(admin, c)) answer(admin, c);
}

/* A list of tags has this one, or is *. Weak ones match nothing (RFC 9110, 13.1.1). */
static bool has_tag(struct kvr_text list, const char *tag)
{
    const char *p = list.ptr, *end = p + list.len;
    size_t n = strlen(tag);
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *to = comma ? comma : end;
        while (p < to && (*p == ' ' || *p == '\t')) p++;
        while (to > p && (to[-1] == ' ' || to[-1] == '\t')) to--;
        if ((to - p == 1 && *p == '*') || ((size_t)(to - p) == n && !memcmp(p, tag, n))) return true;
        p = comma ? comma + 1 : end;
    }
    return false;
}

/* Answers who has seen something else than what is in force. */
static bool is_expected(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_text match = kvr_headers_get(kvr_http_conn_request(c)->headers, "if-match");
    char tag[MODELS_TAG], text[120];
    models_config_tag(admin->config, tag);
    if (!match.ptr || has_tag(match, tag)) return true;
    snprintf(text, sizeof text, "If-Match is not what is in force, which is %s; get it, and put what you want of it", tag);
    admin_error(c, 412, text);
    return false;
}

/* The reader takes YAML, of which JSON is a part; what is no JSON is no mistake of the names, and told apart. */
static bool is_json(struct admin *admin, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_json_read r;
    if (rq->body_len > KVR_YAML_FILE_MAX) {
        admin_error(c, 413, "the body is larger than 1 MiB");
        return false;
    }
    kvr_json_read(&r, admin->process->json, KVR_JSON_ALL, rq->body, rq->body_len);
    return admin_is_object(c, &r);
}

void models_put(struct admin *admin, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    char err[512];
    if (!has_models(admin, c) || !is_json(admin, c) || !is_expected(admin, c)) return;
    if (models_config_put(admin->config, rq->body, rq->body_len, err, sizeof err)) {
        kvr_log_warning("kvroute serve: PUT /models_config: %s; what was in force stays", err);
        admin_error(c, 422, err);
        return;
    }
    kvr_log("kvroute serve: PUT /models_config: taken");
    answer(admin, c);
}
