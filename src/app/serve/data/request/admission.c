/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/data/request/admission.h says what this is. */
#include "app/serve/data/request/admission.h"

#include <math.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "app/serve/config/keyring.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/table/worker.h"

/* ---- who asks ---------------------------------------------------------------------------------------- */

/* Headers that carry a key: OpenAI's clients, Anthropic's, Azure's. */
static const char *const key_headers[] = {"authorization", "x-api-key", "api-key"};

/* The key of a header that carries one; "" when it carries none. */
static struct kvr_text key_in(struct kvr_text name, struct kvr_text v)
{
    static const char scheme[] = "bearer ";
    size_t skip = sizeof scheme - 1;
    if (!kvr_text_is_nocase(name, key_headers[0])) return v;
    bool bearer = v.len > skip && strncasecmp(v.ptr, scheme, skip) == 0;
    return bearer ? (struct kvr_text){v.ptr + skip, v.len - skip} : (struct kvr_text){"", 0};
}

static bool carries_key(struct kvr_text name)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(key_headers); i++)
        if (kvr_text_is_nocase(name, key_headers[i])) return true;
    return false;
}

/* The key; "" for none. *several: there are two that differ, and nobody can say which one is meant. */
static struct kvr_text presented(const struct kvr_headers *h, bool *several)
{
    struct kvr_text key = {"", 0};
    *several = false;
    for (size_t i = 0; i < h->n; i++) {
        struct kvr_text name = kvr_headers_name(h, i), v = carries_key(name) ? key_in(name, kvr_headers_value(h, i)) : key;
        if (v.len && key.len && (v.len != key.len || memcmp(v.ptr, key.ptr, v.len) != 0)) *several = true;
        if (v.len) key = v;
    }
    return key;
}

static bool has_expired(const struct api_key *k)
{
    return (int64_t)time(NULL) >= k->expires;
}

static const struct api_key *key_of(const struct keyring *ring, struct kvr_text secret)
{
    if (secret.ptr && secret.len) return keyring_find(ring, secret);
    return ring->file.has_anonymous ? &ring->file.anonymous : NULL;
}

/* The key of who sends this head, which has not expired. NULL: there is none, for that reason. *k: the one that has, too. */
static const struct api_key *judge_key(const struct keyring *ring, const struct kvr_headers *h, const struct api_key **k,
                                       enum key_refusal *why)
{
    bool several;
    struct kvr_text secret = presented(h, &several);
    *k = several ? NULL : key_of(ring, secret);
    *why = several ? KEY_REFUSED_UNLIKE : *k ? KEY_REFUSED_EXPIRED : secret.len ? KEY_REFUSED_UNKNOWN : KEY_REFUSED_MISSING;
    return *k && !has_expired(*k) ? *k : NULL;
}

static struct refusal refusal_of(enum key_refusal why)
{
    static const char *const texts[KEY_REFUSALS] = {
        [KEY_REFUSED_MISSING] = "an API key is required: Authorization: Bearer KEY, x-api-key or api-key",
        [KEY_REFUSED_UNKNOWN] = "the API key is not known here",
        [KEY_REFUSED_UNLIKE] = "Authorization, x-api-key and api-key carry unlike keys",
    };
    if (why == KEY_REFUSED_EXPIRED) return (struct refusal){.status = 403, .code = "expired_api_key", .text = "the API key has expired"};
    return (struct refusal){.status = why == KEY_REFUSED_UNLIKE ? 400 : 401, .code = "invalid_api_key", .text = texts[why]};
}

void admission_body_room(struct data_plane *data, const struct kvr_headers *h, struct kvr_http_room *room)
{
    struct keyring *ring = keyring_hold(data->config);
    const struct api_key *k;
    enum key_refusal why;
    if (!ring) return;
    if (!judge_key(ring, h, &k, &why)) {
        room->bytes = 0;
        room->why = (int)why;
    } else {
        if (k->limits.max_body_size) room->bytes = KVR_MIN(room->bytes, k->limits.max_body_size);
        if (k != &ring->file.anonymous) room->payer = (uint64_t)(uintptr_t)k->use; /* no address of a client is as small */
        room->why = KEY_REFUSED_BODY;
    }
    keyring_let_go(ring);
}

void admission_count_unfinished(struct data_plane *data, const struct kvr_http_request *head)
{
    struct keyring *ring = keyring_hold(data->config);
    const struct api_key *k = NULL;
    enum key_refusal why;
    if (ring && judge_key(ring, head->headers, &k, &why)) key_use_refused(k->use, KEY_REFUSED_UNFINISHED);
    keyring_let_go(ring);
}

/* Returns: the key of a request, which has not expired; or NULL with the refusal. */
static const struct api_key *find_key(struct data_plane *data, const struct keyring *ring, const struct kvr_headers *h, struct refusal *no)
{
    const struct api_key *k;
    enum key_refusal why;
    if (judge_key(ring, h, &k, &why)) return k;
    *no = refusal_of(why);
    if (k) key_use_refused(k->use, why);
    else keyrings_count_nobodys(data->config, why);
    return NULL;
}

bool admission_look(struct data_plane *data, struct kvr_http_conn *c, struct admission_look *out)
{
    struct refusal no;
    *out = (struct admission_look){.ring = keyring_hold(data->config)};
    if (!out->ring || (out->key = find_key(data, out->ring, kvr_http_conn_request(c)->headers, &no))) return true;
    admission_look_end(out);
    reply_refusal(c, &no, NULL);
    return false;
}

void admission_look_end(struct admission_look *look)
{
    keyring_let_go(look->ring);
    look->ring = NULL;
}

bool admission_shows(const void *look, const char *model)
{
    const struct admission_look *l = look;
    return !l->key || api_key_allows(l->key, model);
}

/* ---- what it may do ---------------------------------------------------------------------------------- */

static const char *client_of(const struct request *r)
{
    return request_client(r);
}

static enum outcome refuse(struct request *r, enum key_refusal why, const char *code)
{
    key_use_refused(r->admission.key->use, why);
    r->refusal.code = code;
    return OUTCOME_REFUSED;
}

static enum outcome refuse_size(struct request *r, enum key_refusal why, const char *what, uint64_t has, uint64_t limit, const char *name)
{
    (void)request_refusef(r, 413, "%s of %llu exceeds the limit of key '%s': %s is %llu", what, (unsigned long long)has, client_of(r), name,
                          (unsigned long long)limit);
    return refuse(r, why, "request_too_large");
}

/* `whose`: "key" or "model". */
static enum outcome refuse_rate(struct request *r, enum key_refusal why, const char *whose, const char *limit, double value, double wait_s)
{
    const char *name = *whose == 'k' ? client_of(r) : r->model;
    (void)request_refusef(r, 429, "rate limit of %s '%s' reached: %s is %g; try again in %.3g s", whose, name, limit, value, wait_s);
    r->refusal.retry_s = (uint64_t)KVR_MAX(ceil(wait_s), 1.0);
    return refuse(r, why, "rate_limit_exceeded");
}

static enum outcome enter(struct request *r, struct key_use *u, const struct key_limits *l, const char *whose, bool *entered)
{
    *entered = key_use_enter(u, l);
    if (*entered) return OUTCOME_DONE;
    return refuse_rate(r, KEY_REFUSED_CONCURRENT, whose, "max_concurrent", (double)l->max_concurrent, 1);
}

static enum outcome take_request(struct request *r, struct key_use *u, const struct key_limits *l, const char *whose)
{
    double wait = key_use_take(u, l, KEY_BUCKET_REQUESTS, 1);
    if (wait <= 0) return OUTCOME_DONE;
    return refuse_rate(r, KEY_REFUSED_REQUESTS, whose, "requests_per_second", l->requests_per_second, wait);
}

enum outcome admission_begin(struct request *r, const struct kvr_http_request *head)
{
    struct admission *a = &r->admission;
    struct refusal no;
    if (!(a->ring = keyring_hold(data_of(r)->config))) return OUTCOME_DONE;
    if (!(a->key = find_key(data_of(r), a->ring, head->headers, &no))) {
        r->refusal = no;
        return OUTCOME_REFUSED;
    }
    const struct key_limits *l = &a->key->limits;
    uint64_t body_len = head->body_unread ? head->body_size : head->body_len;
    if (l->max_body_size && body_len > l->max_body_size)
        return refuse_size(r, KEY_REFUSED_BODY, "the request body", body_len, l->max_body_size, "max_body_size");
    enum outcome o = enter(r, a->key->use, l, "key", &a->in_key);
    return o == OUTCOME_DONE ? take_request(r, a->key->use, l, "key") : o;
}

void admission_refuse_unread(struct request *r, const struct kvr_http_request *head)
{
    const struct kvr_http_room *room = &head->room;
    if (room->why == KEY_REFUSED_BODY) {
        (void)refuse_size(r, KEY_REFUSED_BODY, "the request body", head->body_size, room->bytes, "max_body_size");
        return;
    }
    r->refusal = refusal_of((enum key_refusal)room->why);
    key_use_refused(r->admission.key->use, (enum key_refusal)room->why);
}

const char *admission_class(const struct request *r)
{
    const char *of_key = r->admission.key ? r->admission.key->policy_class : "";
    return of_key[0] || !r->policy_class ? of_key : r->policy_class;
}

static void limit_priority(struct request *r)
{
    double most = r->admission.key->priority_max;
    if (most < 0) return;
    r->priority = KVR_MIN(r->priority, most);
    if ((double)r->strict_priority > most) r->strict_priority = (uint32_t)most;
}

static enum outcome judge_model(struct request *r)
{
    struct admission *a = &r->admission;
    limit_priority(r);
    if (a->key->models_n && r->names_adapter) {
        (void)request_refusef(r, 403, "key '%s' may use some models only, and `lora_path` may name another one", client_of(r));
        return refuse(r, KEY_REFUSED_MODEL, "model_not_allowed");
    }
    if (!api_key_allows(a->key, request_asked_model(r))) {
        if (r->model[0]) (void)request_refusef(r, 403, "key '%s' may not use the model '%s'", client_of(r), request_asked_model(r));
        else (void)request_refusef(r, 403, "key '%s' may use some models only, and the request names none", client_of(r));
        return refuse(r, KEY_REFUSED_MODEL, "model_not_allowed");
    }
    if (!r->model[0] && r->routed && keyring_wants_names(a->ring)) {
        (void)request_refusef(r, 403, "several models have limits of their own, and the request names none");
        return refuse(r, KEY_REFUSED_MODEL, "model_not_allowed");
    }
    a->model = r->model[0] || r->routed ? keyring_model(a->ring, r->model) : NULL; /* what computes no prompt need not name one */
    if (!a->model) return OUTCOME_DONE;
    enum outcome o = enter(r, a->model->use, &a->model->limits, "model", &a->in_model);
    if (o == OUTCOME_DONE) o = take_request(r, a->model->use, &a->model->limits, "model");
    if (o != OUTCOME_DONE) key_use_correct(a->key->use, &a->key->limits, KEY_BUCKET_REQUESTS, -1); /* its key has not used it */
    return o;
}

/* A request that is refused has not used what is the model's, and all its keys'. */
static void give_models_back(struct admission *a)
{
    if (a->model) key_use_correct(a->model->use, &a->model->limits, KEY_BUCKET_REQUESTS, -1);
}

static enum outcome refuse_tokens(struct request *r, double amount, double key_wait, double model_wait)
{
    struct admission *a = &r->admission;
    const struct key_limits *l = &a->key->limits;
    give_models_back(a);
    if (key_wait > 0) return refuse_rate(r, KEY_REFUSED_TOKENS, "key", "tokens_per_second", l->tokens_per_second, key_wait);
    key_use_correct(a->key->use, l, KEY_BUCKET_TOKENS, -amount);
    key_use_correct(a->key->use, l, KEY_BUCKET_REQUESTS, -1);
    return refuse_rate(r, KEY_REFUSED_TOKENS, "model", "tokens_per_second", a->model->limits.tokens_per_second, model_wait);
}

static enum outcome judge_tokens(struct request *r)
{
    struct admission *a = &r->admission;
    const struct key_limits *l = &a->key->limits;
    uint64_t prompt = KVR_MAX(r->isl, a->prompt_least);
    if (l->max_prompt_tokens && prompt > l->max_prompt_tokens) {
        give_models_back(a);
        return refuse_size(r, KEY_REFUSED_PROMPT, "the prompt", prompt, l->max_prompt_tokens, "max_prompt_tokens");
    }
    double amount = (double)prompt + (double)a->output_asked, model_wait = 0;
    double wait = key_use_take(a->key->use, l, KEY_BUCKET_TOKENS, amount);
    if (!(wait > 0) && a->model) model_wait = key_use_take(a->model->use, &a->model->limits, KEY_BUCKET_TOKENS, amount);
    if (wait > 0 || model_wait > 0) return refuse_tokens(r, amount, wait, model_wait);
    a->taken = amount;
    return OUTCOME_DONE;
}

enum outcome admission_next(struct request *r)
{
    if (!r->admission.key) return OUTCOME_DONE;
    if (r->phase == PHASE_READING) return judge_model(r);
    return r->phase == PHASE_TOKENS ? judge_tokens(r) : OUTCOME_DONE;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

/* To an engine, be it the one that computes the prompt for another. */
static bool was_sent(const struct request *r)
{
    const struct attempt *a = r->attempt, *p = r->legs ? r->legs->prefill : NULL;
    return (a && a->sent_ns) || (p && p->sent_ns);
}

/* What the engine says it has computed; where it says nothing, what is known here: an event of a stream is a token. */
static void count_used(const struct request *r, uint64_t *in, uint64_t *out)
{
    const struct attempt *a = r->attempt;
    *in = *out = 0;
    if ((!a && !was_sent(r)) || (r->status >= 400 && r->status != STATUS_CLIENT_GONE)) return;
    *in = a && a->usage.present ? a->usage.prompt_tokens : KVR_MAX(r->isl, r->admission.prompt_least);
    *out = !a ? 0 : a->usage.present ? a->usage.completion_tokens : a->sse.events;
}

/* What it costs. Neither told nor seen, as the client has left before the answer, or that is too long to be kept: what it has asked for. */
static double charge_of(const struct request *r, uint64_t in, uint64_t out)
{
    const struct attempt *a = r->attempt;
    bool failed = r->status >= 400 && r->status != STATUS_CLIENT_GONE;
    bool unseen = !failed && was_sent(r) && !(a && (a->usage.present || a->is_sse));
    double known = (double)in + (double)out;
    return unseen ? KVR_MAX(known, r->admission.taken) : known;
}

static void settle(struct request *r)
{
    struct admission *a = &r->admission;
    struct key_use *u = a->key->use;
    uint64_t in, out;
    count_used(r, &in, &out);
    atomic_fetch_add_explicit(&u->tokens_in, in, memory_order_relaxed);
    atomic_fetch_add_explicit(&u->tokens_out, out, memory_order_relaxed);
    unsigned status = (unsigned)r->status / 100;
    atomic_fetch_add_explicit(&u->answered[status < KEY_STATUSES ? status : 0], 1, memory_order_relaxed);
    double more = charge_of(r, in, out) - a->taken;
    if (a->taken > 0) key_use_correct(u, &a->key->limits, KEY_BUCKET_TOKENS, more);
    if (a->taken > 0 && a->model) key_use_correct(a->model->use, &a->model->limits, KEY_BUCKET_TOKENS, more);
}

void admission_close(struct request *r)
{
    struct admission *a = &r->admission;
    if (a->key) settle(r);
    if (a->in_key) key_use_leave(a->key->use);
    if (a->in_model) key_use_leave(a->model->use);
    keyring_let_go(a->ring);
    *a = (struct admission){0};
}

void admission_again(struct request *r)
{
    struct admission *a = &r->admission;
    if (!a->key) return;
    if (a->taken > 0) key_use_correct(a->key->use, &a->key->limits, KEY_BUCKET_TOKENS, -a->taken);
    if (a->taken > 0 && a->model) key_use_correct(a->model->use, &a->model->limits, KEY_BUCKET_TOKENS, -a->taken);
    give_models_back(a);
    if (a->in_model) key_use_leave(a->model->use);
    a->in_model = false;
    a->model = NULL;
    a->taken = 0;
}

void admission_keep_to_workers(const struct request *r, struct kvr_router_request *rq)
{
    const struct key_taints *t = r->admission.key ? r->admission.key->required_taints : NULL;
    if (!t) return;
    rq->required_taints = t->names;
    rq->required_n = t->n;
}

/* ---- headers ----------------------------------------------------------------------------------------- */

static uint64_t whole(double v)
{
    return (uint64_t)KVR_MIN(KVR_MAX(v, 0), 1e18);
}

static void put_unit(struct kvr_buf *h, uint64_t v, const char *unit)
{
    kvr_buf_u64(h, v);
    kvr_buf_str(h, unit);
}

/* "1m30s", "2s", "1.5s", "15ms" */
static void put_duration(struct kvr_buf *h, double s)
{
    uint64_t ms = whole(ceil(s * 1000)), minutes = ms / 60000;
    if (minutes >= 60) put_unit(h, minutes / 60, "h");
    if (minutes) put_unit(h, minutes % 60, "m");
    if (ms < 1000) put_unit(h, ms, "ms\r\n");
    else if (ms % 1000 == 0) put_unit(h, ms % 60000 / 1000, "s\r\n");
    else kvr_buf_printf(h, "%gs\r\n", (double)(ms % 60000) / 1000);
}

/* Of the key and its model the one that has less left. */
static struct key_left tighter(const struct admission *a, enum key_bucket which)
{
    struct key_left key = key_use_left(a->key->use, &a->key->limits, which), model = {0};
    if (a->model) model = key_use_left(a->model->use, &a->model->limits, which);
    return !key.limited || (model.limited && model.left < key.left) ? model : key;
}

void admission_put_headers(const struct request *r, struct kvr_buf *h)
{
    static const struct {
        const char *limit, *remaining, *reset;
    } names[] = {{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests: "},
                 {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens: "}};
    if (!r->admission.key) return;
    for (int i = 0; i < 2; i++) {
        struct key_left left = tighter(&r->admission, (enum key_bucket)i);
        if (!left.limited) continue;
        kvr_header_put_u64(h, names[i].limit, whole(left.limit));
        kvr_header_put_u64(h, names[i].remaining, whole(left.left));
        kvr_buf_str(h, names[i].reset);
        put_duration(h, left.full_in_s);
    }
}

bool admission_keeps(const struct request *r, struct kvr_text name)
{
    return r->admission.ring && !data_of(r)->o->forward_client_key && carries_key(name);
}

struct kvr_text admission_authorization(const struct request *r)
{
    static const struct kvr_text none = {NULL, 0};
    if (!r->conn || (r->admission.ring && !data_of(r)->o->forward_client_key)) return none;
    return kvr_headers_get(kvr_http_conn_request(r->conn)->headers, key_headers[0]);
}

void admission_put_key(const struct request *r, const struct worker *w, struct kvr_buf *head)
{
    struct kvr_text auth = admission_authorization(r);
    if (auth.ptr) kvr_buf_printf(head, "Authorization: %.*s\r\n", (int)auth.len, auth.ptr);
    else worker_key_put(w->api_key, head);
}

void admission_put_post(const struct request *r, const struct worker *w, const char *path, size_t len, struct kvr_buf *head)
{
    kvr_request_put(head, &w->endpoint, path, (int64_t)len);
    admission_put_key(r, w, head);
    kvr_buf_str(head, "\r\n");
}
