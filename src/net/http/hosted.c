/* SPDX-License-Identifier: Apache-2.0 */
/* Requests inside another protocol: net/http/hosted.h. */
#include "net/http/hosted.h"

#include <string.h>
#include <strings.h>

#include "net/http/server_internal.h"

struct kvr_http_conn *kvr_http_hosted_new(struct kvr_http_server *s, const struct kvr_http_outer *outer, void *ctx, const char *peer)
{
    struct kvr_http_conn *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->server = s;
    c->tcp.loop = s->loop;
    c->outer = outer;
    c->outer_ctx = ctx;
    c->parser.method = HTTP_GET;
    snprintf(c->peer, sizeof c->peer, "%s", peer);
    kvr__request_begin(c);
    c->request.minor = 1;
    return c;
}

void kvr_http_hosted_free(struct kvr_http_conn *c)
{
    const struct kvr_http_handler *h = &c->server->config.handler;
    c->closing = true;
    if (c->answering && c->user && h->on_gone) h->on_gone(c, h->ctx);
    kvr__request_free(c);
    kvr_headers_free(&c->headers);
    kvr_buf_free(&c->target);
    free(c);
}

/* ---- the request ------------------------------------------------------------------------------------- */

static bool refuse(struct kvr_http_conn *c, int status, const char *text)
{
    kvr__answer_refuse(c, status, text);
    return false;
}

/* A part of it has failed. */
static bool stop(struct kvr_http_conn *c)
{
    if (c->request.body_unread) kvr__request_dispatch(c);
    else kvr__answer_refuse(c, c->fail_status, c->fail_text);
    return false;
}

/* Returns: false: it is none that is known. */
static bool read_method(struct kvr_http_conn *c, struct kvr_text t)
{
    static const struct {
        const char *name;
        uint8_t method;
    } known[] = {
#define KNOWN(number, name, text) {#text, (uint8_t)(number)},
        HTTP_METHOD_MAP(KNOWN)
#undef KNOWN
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(known); i++)
        if (kvr_text_is(t, known[i].name)) {
            c->parser.method = known[i].method;
            return true;
        }
    return false;
}

static bool is_clean(struct kvr_text t, unsigned char from)
{
    for (size_t i = 0; i < t.len; i++) {
        unsigned char b = (unsigned char)t.ptr[i];
        if ((b < from && b != '\t') || b == 127) return false;
    }
    return true;
}

bool kvr_http_hosted_header(struct kvr_http_conn *c, struct kvr_text name, struct kvr_text value)
{
    static const struct kvr_text host = {"host", 4};
    if (!name.len || !is_clean(name, '!') || !is_clean(value, ' ')) return refuse(c, 400, "malformed HTTP request");
    if (name.ptr[0] == ':') {
        if (kvr_text_is(name, ":method")) return read_method(c, value) || refuse(c, 501, "this method is not known here");
        if (kvr_text_is(name, ":path")) {
            c->target.len = 0;
            kvr_buf_add(&c->target, value.ptr, value.len);
            return !c->target.failed || refuse(c, 503, "out of memory");
        }
        if (!kvr_text_is(name, ":authority")) return true;
        name = host;
    }
    if (kvr_headers_add(&c->headers, name, value) == 0) return true;
    return c->headers.text.failed ? refuse(c, 503, "out of memory") : refuse(c, 431, "the header section is too large");
}

/* false: it has none that can be understood; *has: it has one. */
static bool read_length(const struct kvr_http_conn *c, bool *has, uint64_t *length)
{
    struct kvr_text t = kvr_headers_get(&c->headers, "content-length");
    *has = t.ptr != NULL;
    return !*has || (kvr__headers_count(&c->headers, "content-length") == 1 && kvr_parse_u64(t.ptr, t.len, UINT64_MAX, length));
}

bool kvr_http_hosted_head_over(struct kvr_http_conn *c)
{
    struct kvr_hop_by_hop hop;
    uint64_t length = 0;
    bool told;
    c->request.headers = &c->headers;
    if (kvr__headers_count(&c->headers, "authorization") > 1) return refuse(c, 400, "more than one Authorization header");
    if (!read_length(c, &told, &length)) return refuse(c, 400, "malformed Content-Length or Transfer-Encoding");
    if (!kvr_hop_by_hop_read(&c->headers, &hop)) return refuse(c, 400, "too many names in Connection");
    const char *why = kvr__request_target(c, c->parser.method == HTTP_OPTIONS);
    return !why || refuse(c, 400, why);
}

void kvr_http_hosted_skip_prefix(struct kvr_http_conn *c, size_t bytes)
{
    struct kvr_http_request *rq = &c->request;
    KVR_ASSERT(bytes <= rq->path.len);
    rq->target = (struct kvr_text){rq->target.ptr + bytes, rq->target.len - bytes};
    rq->path = (struct kvr_text){rq->path.ptr + bytes, rq->path.len - bytes};
}

bool kvr_http_hosted_body_follows(struct kvr_http_conn *c)
{
    uint64_t length = 0;
    bool told;
    (void)read_length(c, &told, &length);
    if (length > c->server->config.body_max) return refuse(c, 413, c->server->too_large);
    return kvr__request_room(c, length) ? stop(c) : true;
}

bool kvr_http_hosted_body(struct kvr_http_conn *c, const char *data, size_t len)
{
    uint64_t length = 0;
    bool told;
    (void)read_length(c, &told, &length);
    uint64_t come = c->arriving.len + len;
    return len && kvr__request_body(c, data, len, length > come ? length - come : 0) ? stop(c) : true;
}

void kvr_http_hosted_over(struct kvr_http_conn *c)
{
    if (kvr__request_body_over(c)) (void)stop(c);
    else kvr__request_dispatch(c);
}
