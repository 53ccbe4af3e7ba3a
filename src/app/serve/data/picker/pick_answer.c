/* SPDX-License-Identifier: Apache-2.0 */
/* What a pick says to its gateway: data/picker/pick.h. */
#include <string.h>
#include <strings.h>

#include "app/serve/data/picker/pick.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/table/worker.h"

/* The Endpoint Picker Protocol's; the others are llm-d's and Dynamo's, which none but a picker may set. */
#define DESTINATION "x-gateway-destination-endpoint"

static const char *const strangers[] = {"x-gateway-destination-endpoint-subset",
                                        "x-gateway-destination-endpoint-served",
                                        "x-prefiller-host-port",
                                        "x-data-parallel-rank",
                                        "x-data-parallel-host-port",
                                        "x-encoder-hosts-ports"};

/* That may carry a client's key. */
static const char *const keys[] = {"authorization", "x-api-key", "api-key"};

void pick_say(struct pick *p, struct kvr_buf *message)
{
    if (p->call.stream && message->failed) kvr_grpc_reset(p->call.stream);
    else if (p->call.stream) kvr_grpc_send(p->call.stream, message->data, message->len);
    kvr_buf_free(message);
}

void pick_go_on(struct pick *p, enum kvr_ext_proc_kind kind)
{
    struct kvr_buf b = {0};
    kvr_ext_proc_put_answer(&b, kind, NULL);
    pick_say(p, &b);
}

void pick_say_modes(struct pick *p, enum kvr_ext_proc_kind kind, struct kvr_ext_proc_modes modes)
{
    struct kvr_ext_proc_mutation m = {.modes = &modes};
    struct kvr_buf b = {0};
    kvr_ext_proc_put_answer(&b, kind, &m);
    pick_say(p, &b);
}

void pick_say_body(struct pick *p, enum kvr_ext_proc_kind kind, const char *data, size_t len, struct kvr_body *of, bool end)
{
    uint8_t head[KVR_EXT_PROC_PIECE_HEAD_MAX];
    if (!p->call.stream) return;
    do {
        size_t n = KVR_MIN(len, (size_t)KVR_EXT_PROC_PIECE_MAX);
        kvr_grpc_send_bytes(p->call.stream, head, kvr_ext_proc_piece_head(head, kind, n, end && n == len), data, n, of);
        data = n ? data + n : data;
        len -= n;
    } while (len);
}

void pick_say_trailers(struct pick *p, enum kvr_ext_proc_kind kind)
{
    struct kvr_buf b = {0};
    kvr_ext_proc_put_answer(&b, kind, NULL);
    pick_say(p, &b);
}

void pick_say_wait(struct pick *p, uint64_t ms)
{
    struct kvr_buf b = {0};
    kvr_ext_proc_put_timeout(&b, ms);
    pick_say(p, &b);
}

/* ---- headers ----------------------------------------------------------------------------------------- */

struct headers {
    struct kvr_ext_proc_header list[KVR_EXT_PROC_SET_MAX];
    size_t n;
};

static void add(struct headers *h, struct kvr_ext_proc_text name, struct kvr_ext_proc_text value)
{
    if (h->n < KVR_EXT_PROC_SET_MAX) h->list[h->n++] = (struct kvr_ext_proc_header){name, value};
}

static bool has(const struct headers *h, const char *name)
{
    for (size_t i = 0; i < h->n; i++)
        if (kvr_span_is(h->list[i].name.ptr, h->list[i].name.len, name)) return true;
    return false;
}

static struct kvr_ext_proc_text text_of(const char *s)
{
    return (struct kvr_ext_proc_text){s, strlen(s)};
}

/* Lines, as heads of HTTP/1 have them; their names in lower case, which is how HTTP/2 has them. */
static void add_lines(struct headers *h, struct kvr_buf *lines, const char *but)
{
    char *at = lines->data, *end = lines->data + lines->len;
    while (at && at < end) {
        char *stop = memchr(at, '\r', (size_t)(end - at)), *colon = stop ? memchr(at, ':', (size_t)(stop - at)) : NULL;
        if (!colon) return;
        for (char *c = at; c < colon; c++)
            if (*c >= 'A' && *c <= 'Z') *c = (char)(*c + ('a' - 'A'));
        struct kvr_ext_proc_text name = {at, (size_t)(colon - at)};
        const char *value = colon + 1;
        while (value < stop && *value == ' ') value++;
        if (!but || name.len != strlen(but) || memcmp(name.ptr, but, name.len))
            add(h, name, (struct kvr_ext_proc_text){value, (size_t)(stop - value)});
        at = stop + 2;
    }
}

/* ---- the decision ------------------------------------------------------------------------------------ */

enum { LEFT_OUT_MAX = KVR_ARRAY_LEN(strangers) + KVR_ARRAY_LEN(keys) };

/* What no client may say, and the key with which it came here; but what is said here. */
static size_t left_out(const struct request *r, const struct headers *set, const char *out[LEFT_OUT_MAX])
{
    size_t n = 0;
    for (size_t i = 0; i < KVR_ARRAY_LEN(strangers); i++)
        if (!has(set, strangers[i])) out[n++] = strangers[i];
    for (size_t i = 0; i < KVR_ARRAY_LEN(keys); i++)
        if (!has(set, keys[i]) && admission_keeps(r, (struct kvr_text){keys[i], strlen(keys[i])})) out[n++] = keys[i];
    return n;
}

/* What the worker is sent. Who stands between two legs sends both the same, so it has no rank. NULL: nothing is known of it here. */
static struct kvr_body *body_for(const struct pick *p, const struct attempt *a)
{
    struct kvr_body *is = a->request->body, *with_rank = NULL;
    if (!p->has_body || !p->body_is_whole || !is) return NULL;
    if (!a->decodes) with_rank = attempt_body(a);
    return with_rank ? with_rank : kvr_body_ref(is); /* a header says the rank, too */
}

/* The same of headers: it would be the prefill worker's, too. SGLang's has that of the room. */
static bool may_name_rank(const struct attempt *a)
{
    const struct legs *l = a->request->legs;
    if (!a->names_rank || !a->decodes) return a->names_rank;
    return l->protocol != KVR_KV_SGLANG && l->prefill->names_rank && a->named_rank < l->prefill->worker->dp_size;
}

static bool is_another(const struct request *r, const struct kvr_body *body)
{
    return body && (r->body_changed || body != r->body);
}

static void say(struct pick *p, const struct request *r, const struct headers *set, const struct kvr_body *body)
{
    bool other = p->decides == KVR_EXT_PROC_REQUEST_BODY && is_another(r, body);
    const char *out[LEFT_OUT_MAX];
    size_t n = left_out(r, set, out);
    struct kvr_ext_proc_mutation m = {.set = set->list,
                                      .set_n = set->n,
                                      .remove = out,
                                      .remove_n = n,
                                      .body = {other ? body->data : NULL, other ? body->len : 0},
                                      .clear_route_cache = true,
                                      .destination = {p->destination.data, p->destination.len}};
    struct kvr_buf b = {0};
    kvr_ext_proc_put_answer(&b, p->decides, &m);
    pick_say(p, &b);
}

void pick_say_decision(struct pick *p, const struct attempt *a)
{
    const struct request *r = a->request;
    struct headers set = {0};
    struct kvr_buf key = {0};
    struct kvr_body *body = body_for(p, a);
    char rank[16], length[24];
    add(&set, text_of(DESTINATION), (struct kvr_ext_proc_text){p->destination.data, p->destination.len});
    if (a->decodes) add(&set, text_of("x-prefiller-host-port"), text_of(r->legs->prefill->worker->endpoint.authority));
    if (may_name_rank(a)) {
        snprintf(rank, sizeof rank, "%u", a->named_rank);
        add(&set, text_of("x-data-parallel-rank"), text_of(rank));
    }
    if (is_another(r, body) && kvr_headers_get(kvr_http_conn_request(p->conn)->headers, "content-length").ptr) {
        snprintf(length, sizeof length, "%zu", body->len);
        add(&set, text_of("content-length"), text_of(length)); /* Envoy leaves the client's as it is, or refuses the body */
    }
    if (!admission_authorization(r).ptr) worker_key_put(a->worker->api_key, &key);
    add_lines(&set, &key, NULL);
    add_lines(&set, &p->told, NULL);
    say(p, r, &set, body);
    kvr_buf_free(&key);
    if (p->decides == KVR_EXT_PROC_REQUEST_HEADERS && p->has_body && p->body_is_whole &&
        p->modes.request_body == KVR_EXT_PROC_FULL_DUPLEX_STREAMED)
        pick_say_body(p, KVR_EXT_PROC_REQUEST_BODY, body ? body->data : "", body ? body->len : 0, body, !p->trailers);
    kvr_body_unref(body);
    if (p->early.len || p->early_end) pick_say_body(p, KVR_EXT_PROC_REQUEST_BODY, p->early.data, p->early.len, NULL, p->early_end);
    kvr_buf_free(&p->early);
    if (p->trailers) pick_say_trailers(p, KVR_EXT_PROC_REQUEST_TRAILERS);
}

void pick_say_response(struct pick *p)
{
    struct headers set = {0};
    add_lines(&set, &p->told, "x-request-id");
    struct kvr_ext_proc_mutation m = {.set = set.list, .set_n = set.n};
    struct kvr_buf b = {0};
    kvr_ext_proc_put_answer(&b, KVR_EXT_PROC_RESPONSE_HEADERS, set.n ? &m : NULL);
    pick_say(p, &b);
}

/* ---- a refusal --------------------------------------------------------------------------------------- */

void pick_say_refusal(struct pick *p)
{
    struct headers set = {0};
    char details[32];
    snprintf(details, sizeof details, "kvroute_%d", p->status);
    add_lines(&set, &p->head, NULL);
    if (p->dropped && !has(&set, "retry-after")) add(&set, text_of("retry-after"), text_of("1"));
    if (p->dropped) add(&set, text_of("x-llm-d-request-dropped-reason"), text_of(p->dropped));
    struct kvr_ext_proc_immediate m = {.status = p->status,
                                       .headers = set.list,
                                       .headers_n = set.n,
                                       .body = {p->body.data ? p->body.data : "", p->body.len},
                                       .details = details};
    struct kvr_buf b = {0};
    kvr_ext_proc_put_immediate(&b, &m);
    pick_say(p, &b);
}
