/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who serves a model that has a rule: one of its targets, drawn by the session, or a fallback when no worker of that one can be chosen now,
 * or, where the rule says so, when all are overloaded. The session is x-session-id, else `user` or `prompt_cache_key` of the body; a
 * request without any is drawn by its id.
 *
 * A request is looked at when it arrives, and, where overload matters, once more when the router refuses it for that: its turn may come
 * much later. Then its body is read again, as one for the fallback. One that waits, or whose worker fails, stays with its model.
 */
#include "app/serve/data/request/named_model.h"

#include <string.h>

#include "app/serve/config/models_config.h"
#include "app/serve/config/models_file.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/request.h"
#include "app/serve/data/state/room.h"
#include "app/serve/workers/table/roster.h"
#include "wire/json_edit.h"

static struct kvr_text session_of(const struct request *r, const struct named_ask *ask)
{
    struct kvr_text head = {r->session, r->session ? strlen(r->session) : 0}, id = {r->id, strlen(r->id)};
    return head.len ? head : ask->session.len ? ask->session : id;
}

enum standing { NOBODY_UP, ALL_OVERLOADED, SERVES };

/* Would the router refuse it for overload? Of workers with roles those that answer count. */
static bool is_overloaded(const struct request *r, const struct named_ask *ask, const struct roster_choice *from)
{
    const char *name = admission_class(r);
    struct kvr_router_request rq = {.isl = ask->tokens_n ? ask->tokens_n : KVR_MAX(r->body_len / 4, (size_t)1),
                                    .allowed = from->all ? NULL : from->ids,
                                    .allowed_n = from->n,
                                    .policy_class = name,
                                    .policy_class_len = strlen(name)};
    admission_keep_to_workers(r, &rq);
    int rc = kvr_router_overload(from->partition->router, &rq);
    return rc == -KVR_EOVERLOADED || rc == -KVR_EQUEUEFULL;
}

/* `loads`: overload matters. A request that names its worker goes there, whatever there is. */
static enum standing standing_of(struct request *r, const struct named_ask *ask, const char *model, bool loads)
{
    const struct roster_row *row = roster_hold(data_of(r)->workers, model);
    enum standing is = row && roster_any_up(row, &row->main) ? SERVES : NOBODY_UP;
    if (is == SERVES && loads && !r->pin.set && is_overloaded(r, ask, &row->main)) is = ALL_OVERLOADED;
    roster_let_go(row);
    return is;
}

/* Who says what takes the target's place: what was asked for, else the target. NULL: nobody does. */
static const struct model_rule *rule_of(const struct request *r, const struct models_file *f, const char *target)
{
    const struct model_rule *from = models_file_find(f, r->asked_model);
    if (!from || !from->fallbacks_n) from = models_file_find(f, target);
    return from && from->fallbacks_n ? from : NULL;
}

/* Of the fallbacks the first that leads to a model that serves; where none does and nobody is there for the target, the first that only is
 * overloaded. NULL: none does, or none is needed. */
static const char *fallback_of(struct request *r, const struct named_ask *ask, const struct models_file *f, const char *target,
                               struct kvr_text session)
{
    const struct model_rule *from = rule_of(r, f, target);
    const char *overloaded = NULL;
    if (!from) return NULL;
    enum standing is = r->again ? ALL_OVERLOADED : standing_of(r, ask, target, from->on_overloaded);
    if (is == SERVES || (is == NOBODY_UP && from->not_on_unavailable)) return NULL;
    enum fallback_reason why = is == NOBODY_UP ? FALLBACK_UNAVAILABLE : FALLBACK_OVERLOADED;
    const char *best = NULL;
    for (size_t i = 0; i < from->fallbacks_n && !best; i++) {
        const char *to = models_file_resolve(f, from->fallbacks[i], session.ptr, session.len);
        enum standing other = strcmp(to, target) != 0 ? standing_of(r, ask, to, from->on_overloaded) : NOBODY_UP;
        if (other == SERVES) best = to;
        if (other == ALL_OVERLOADED && is == NOBODY_UP && !overloaded) overloaded = to;
    }
    if (!best) best = overloaded;
    if (best) fallback_counts_add(&data_of(r)->fallback_counts, target, best, why);
    return best;
}

static bool write_json_name(const struct request *r, struct kvr_buf *out)
{
    struct kvr_buf value = {0};
    kvr_json_str(&value, r->model, strlen(r->model));
    struct kvr_json_edit edit = {.name = "model", .value = value.data, .value_len = value.len};
    struct kvr_json_span body = {r->body->data, r->body->data + r->body->len};
    bool written = !value.failed && kvr_json_edit(body, &edit, 1, out);
    kvr_buf_free(&value);
    return written;
}

/* The file's names have no line ends, so none of them makes a delimiter. */
static bool write_form_name(const struct request *r, struct kvr_text place, struct kvr_buf *out)
{
    const char *behind = place.ptr + place.len, *end = r->body->data + r->body->len;
    kvr_buf_add(out, r->body->data, (size_t)(place.ptr - r->body->data));
    kvr_buf_str(out, r->model);
    kvr_buf_add(out, behind, (size_t)(end - behind));
    return true;
}

static bool name_in_body(struct request *r, struct kvr_text place)
{
    struct kvr_buf bytes = {0};
    struct kvr_body *changed = NULL;
    if (place.ptr ? write_form_name(r, place, &bytes) : write_json_name(r, &bytes)) changed = kvr_body_derive(r->body, &bytes);
    kvr_buf_free(&bytes);
    if (!changed) return false;
    kvr_body_unref(r->body);
    r->body = changed;
    r->body_len = changed->len;
    r->body_changed = true;
    return true;
}

/* Those of the name that was asked for go before those of the model that serves; of names between these two they do not count. */
static void take_options(struct request *r, const struct models_file *f)
{
    const struct model_rule *serves = models_file_find(f, r->model), *asked = models_file_find(f, r->asked_model);
    if (serves) r->options = serves->options;
    if (asked) model_options_add(&r->options, &asked->options);
}

bool named_model_may_fall_back(struct request *r)
{
    if (!r->asked_model || r->fell_back || r->again || r->pin.set || r->tries || !r->body) return false;
    const struct models_file *f = models_config_hold(data_of(r)->config);
    const struct model_rule *from = f ? rule_of(r, f, r->model) : NULL;
    bool may = from && from->on_overloaded;
    models_config_let_go(f);
    return may;
}

/* The body has the name of the model that has refused it by now. */
static enum named_model resolve_again(struct request *r, const struct named_ask *ask)
{
    const struct models_file *f = models_config_hold(data_of(r)->config);
    enum named_model is = NAMED_NOBODY;
    char target[MODEL_MAX];
    memcpy(target, r->model, sizeof target);
    const char *fallback = f ? fallback_of(r, ask, f, target, session_of(r, ask)) : NULL;
    if (fallback) {
        r->fell_back = true;
        snprintf(r->model, sizeof r->model, "%s", fallback);
        take_options(r, f);
        is = name_in_body(r, ask->place) ? NAMED_ANOTHER : NAMED_OUT_OF_MEMORY;
    }
    models_config_let_go(f);
    return is;
}

enum named_model named_model_resolve(struct request *r, const struct named_ask *ask)
{
    if (ask->model.len) memcpy(r->model, ask->model.ptr, ask->model.len);
    if (r->again) return resolve_again(r, ask);
    const struct models_file *f = ask->model.len ? models_config_hold(data_of(r)->config) : NULL;
    enum named_model is = NAMED_AS_IT_IS;
    bool has_rule = f && models_file_find(f, r->model);
    if (!request_keep_text(&r->asked_model, r->model, has_rule ? strlen(r->model) : 0)) {
        is = NAMED_OUT_OF_MEMORY;
    } else if (has_rule) {
        struct kvr_text session = session_of(r, ask);
        const char *target = models_file_resolve(f, r->asked_model, session.ptr, session.len);
        const char *fallback = fallback_of(r, ask, f, target, session);
        r->fell_back = fallback;
        snprintf(r->model, sizeof r->model, "%s", fallback ? fallback : target); /* neither is r->model */
        take_options(r, f);
        if (strcmp(r->model, r->asked_model) != 0) is = name_in_body(r, ask->place) ? NAMED_ANOTHER : NAMED_OUT_OF_MEMORY;
    }
    models_config_let_go(f);
    return is;
}
