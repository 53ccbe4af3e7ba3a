/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who serves a model that has a rule: one of its targets, drawn by the session, or a fallback when no worker of that one can be chosen now.
 * The session is x-session-id, else `user` or `prompt_cache_key` of the body; a request without any is drawn by its id.
 *
 * A request is looked at once, when it arrives: one that waits for a worker, or whose worker fails, stays with its model.
 */
#include "app/serve/data/named_model.h"

#include <string.h>

#include "app/serve/config/models_config.h"
#include "app/serve/config/models_file.h"
#include "app/serve/data/request.h"
#include "app/serve/state.h"
#include "wire/json_edit.h"

static struct kvr_text session_of(const struct request *r, const struct kvr_openai_request *rq)
{
    static const char *const members[] = {"user", "prompt_cache_key"};
    struct kvr_text t = {r->session, strlen(r->session)};
    for (size_t i = 0; i < KVR_ARRAY_LEN(members) && !t.len; i++) {
        const char *s = NULL;
        size_t len = 0;
        if (kvr_json_as_str(kvr_json_get(rq->root, members[i]), &s, &len)) t = (struct kvr_text){s, len};
    }
    return t.len ? t : (struct kvr_text){r->id, strlen(r->id)};
}

static bool has_worker(struct request *r, const char *model)
{
    const struct roster_row *row = roster_hold(serve_of(r), model);
    bool up = row && roster_any_up(row, &row->main);
    roster_let_go(row);
    return up;
}

/* Of the fallbacks of what was asked for, else those of its target, the first that leads to a model with a worker. NULL: none does, or none
 * is needed. */
static const char *fallback_of(struct request *r, const struct models_file *f, const char *target, struct kvr_text session)
{
    const struct model_rule *from = models_file_find(f, r->asked_model);
    if (!from || !from->fallbacks_n) from = models_file_find(f, target);
    if (!from || !from->fallbacks_n || has_worker(r, target)) return NULL;
    for (size_t i = 0; i < from->fallbacks_n; i++) {
        const char *to = models_file_resolve(f, from->fallbacks[i], session.ptr, session.len);
        if (strcmp(to, target) != 0 && has_worker(r, to)) return to;
    }
    return NULL;
}

static bool name_in_body(struct request *r)
{
    struct kvr_buf value = {0}, bytes = {0};
    kvr_json_str(&value, r->model, strlen(r->model));
    struct kvr_json_edit edit = {.name = "model", .value = value.data, .value_len = value.len};
    struct kvr_json_span body = {r->body->data, r->body->data + r->body->len};
    struct kvr_body *changed = NULL;
    if (!value.failed && kvr_json_edit(body, &edit, 1, &bytes)) changed = kvr_body_derive(r->body, &bytes);
    kvr_buf_free(&value);
    kvr_buf_free(&bytes);
    if (!changed) return false;
    kvr_body_unref(r->body);
    r->body = changed;
    r->body_len = changed->len;
    return true;
}

/* Those of the name that was asked for go before those of the model that serves; of names between these two they do not count. */
static void take_options(struct request *r, const struct models_file *f)
{
    const struct model_rule *serves = models_file_find(f, r->model), *asked = models_file_find(f, r->asked_model);
    if (serves) r->options = serves->options;
    if (asked) model_options_add(&r->options, &asked->options);
}

enum named_model named_model_resolve(struct request *r, const struct kvr_openai_request *rq)
{
    const struct models_file *f = rq->model_len ? models_config_hold(serve_of(r)) : NULL;
    enum named_model is = NAMED_AS_IT_IS;
    if (f) memcpy(r->asked_model, rq->model, rq->model_len);
    if (f && models_file_find(f, r->asked_model)) {
        struct kvr_text session = session_of(r, rq);
        const char *target = models_file_resolve(f, r->asked_model, session.ptr, session.len);
        const char *fallback = fallback_of(r, f, target, session);
        if (fallback) COUNT(r, model_fallbacks_total);
        r->fell_back = fallback;
        snprintf(r->model, sizeof r->model, "%s", fallback ? fallback : target); /* neither is r->model */
        take_options(r, f);
        if (strcmp(r->model, r->asked_model) != 0) is = name_in_body(r) ? NAMED_ANOTHER : NAMED_OUT_OF_MEMORY;
    } else {
        r->asked_model[0] = 0;
    }
    models_config_let_go(f);
    return is;
}
