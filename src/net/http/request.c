/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: bytes are looked at by the framing (http/framing.c), then parsed by llhttp, then judged here. One request is
 * handed over at a time; what comes while it is being answered, or while more than KVR_HTTP_HIGH_WATER is queued for the
 * client, waits in `ahead`.
 */
#include "net/http/addresses.h"
#include "net/http/server_internal.h"

#include <string.h>
#include <strings.h>

enum { BODY_FIRST = 4096, SLACK_MAX = 64 * 1024, STRAIGHT_MIN = 16 * 1024, PROMISED_MAX = 16 /* times what has come */ };

/* ---- memory ------------------------------------------------------------------------------------------ */

/* The body is whole, or given up. */
static void leave_share(struct kvr_http_conn *c)
{
    if (c->unfinished) kvr_addresses_leave(c->server->shared->unfinished, c->payer, c->unfinished);
    c->unfinished = 0;
}

/* The body so far. */
static void free_arriving(struct kvr_http_conn *c)
{
    leave_share(c);
    kvr__bodies_release(c->server->shared, c->arriving.cap);
    kvr__spare_or_free(c->server->shared, c->arriving.data, c->arriving.cap);
    c->arriving = (struct kvr_buf){0};
}

void kvr__request_free(struct kvr_http_conn *c)
{
    free_arriving(c);
    kvr_http_conn_drop_body(c);
    kvr_buf_free(&c->ahead);
}

void kvr__request_begin(struct kvr_http_conn *c)
{
    kvr__headers_reset(&c->headers);
    if (c->headers.text.cap > 4096) kvr_headers_free(&c->headers);
    free_arriving(c);
    kvr_http_conn_drop_body(c);
    kvr_buf_free(&c->target);
    c->request = (struct kvr_http_request){0};
    kvr__framing_begin(&c->framing, KVR__REQUESTS);
    c->started_message = c->took_all = false;
    c->message_ms = kvr_now_ms();
    c->fail_status = 0;
}

/* All that was promised, in memory that is there already. Returns: false: there is none. */
static bool take_spare(struct kvr_http_conn *c, size_t need, uint64_t promised)
{
    struct kvr_buf *b = &c->arriving;
    size_t cap;
    if (b->cap || promised < KVR__SPARE_MIN || promised / PROMISED_MAX > need) return false;
    char *p = kvr__spare_take((size_t)promised, (size_t)promised + SLACK_MAX, &cap);
    if (!p) return false;
    if (!kvr__bodies_try(c->server->shared, cap, cap)) {
        kvr__spare_or_free(c->server->shared, p, cap);
        return false;
    }
    b->data = p;
    b->cap = cap;
    return true;
}

/* Room for `more` bytes of body, which grows with what has come, not with what was promised. Returns: 0, or -1: over budget, or
 * -2: no memory. */
static int reserve(struct kvr_http_conn *c, size_t more, uint64_t promised)
{
    struct kvr_buf *b = &c->arriving;
    struct kvr_http_shared *shared = c->server->shared;
    size_t need = b->len + more, cap = KVR_MAX(need, KVR_MAX(2 * b->cap, (size_t)BODY_FIRST));
    if (need <= b->cap || take_spare(c, need, promised ? promised : need)) return 0;
    if (promised && promised < cap) cap = KVR_MAX(need, (size_t)promised);
    if (!kvr__bodies_reserve(shared, cap - b->cap, cap)) return -1;
    char *p = realloc(b->data, cap);
    if (!p) {
        kvr__bodies_release(shared, cap - b->cap);
        return -2;
    }
    b->data = p;
    b->cap = cap;
    return 0;
}

static uint64_t payer_of(struct kvr_http_conn *c)
{
    struct sockaddr_storage from = {0};
    int len = sizeof from;
    if (c->request.room.payer) return c->request.room.payer;
    if (!c->address && uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&from, &len) == 0)
        c->address = kvr_address_of((struct sockaddr *)&from);
    return c->address;
}

/* After a piece of input, so that a body that has come in one is never counted. */
static void count_unfinished(struct kvr_http_conn *c)
{
    struct kvr_http_shared *shared = c->server->shared;
    size_t more = c->arriving.cap - c->unfinished;
    if (!shared->unfinished || !more || c->closing) return;
    if (!c->unfinished) c->payer = payer_of(c);
    int rc = kvr_addresses_enter(shared->unfinished, c->payer, more);
    if (rc == 0) {
        c->unfinished += more;
        return;
    }
    if (rc == -KVR_ENOMEM) {
        kvr__answer_refuse(c, 503, "out of memory");
        return;
    }
    atomic_fetch_add(&shared->bodies_over_share, 1);
    kvr__answer_refuse(c, 429, "too many unfinished request bodies of this client are held at once; try again later");
}

/* The body is whole: what it does not need goes back. */
static void trim(struct kvr_http_conn *c)
{
    struct kvr_buf *b = &c->arriving;
    char *p = b->cap - b->len > SLACK_MAX ? realloc(b->data, b->len) : NULL;
    if (!p) return;
    kvr__bodies_release(c->server->shared, b->cap - b->len);
    b->data = p;
    b->cap = b->len;
}

/* ---- parsing ----------------------------------------------------------------------------------------- */

static struct kvr_http_conn *conn_of(llhttp_t *p)
{
    return (struct kvr_http_conn *)((char *)p - offsetof(struct kvr_http_conn, parser));
}

static int fail(struct kvr_http_conn *c, int status, const char *text)
{
    c->fail_status = status;
    c->fail_text = text;
    return HPE_USER;
}

static int no_memory(struct kvr_http_conn *c)
{
    return fail(c, 503, "out of memory");
}

static int on_url(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    kvr_buf_add(&c->target, at, len);
    return c->target.failed ? no_memory(c) : 0;
}

static int headers_failed(struct kvr_http_conn *c)
{
    return c->headers.text.failed ? no_memory(c) : fail(c, 431, "the header section is too large");
}

/* Trailers are dropped: nobody has looked at them when the head is judged, so they may not say who asks or what for. */
static bool is_trailer(const struct kvr_http_conn *c)
{
    return c->framing.trailer;
}

static int on_field(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    return !is_trailer(c) && kvr__headers_name(&c->headers, at, len) ? headers_failed(c) : 0;
}

static int on_value(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    return !is_trailer(c) && kvr__headers_value(&c->headers, at, len) ? headers_failed(c) : 0;
}

/* An absolute target ("GET http://host/path") is turned into its origin form; its host may not differ from Host, or somebody
 * before or behind us might understand another one. */
const char *kvr__request_target(struct kvr_http_conn *c, bool is_options)
{
    struct kvr_text t = {c->target.data, c->target.len}, host = kvr_headers_get(&c->headers, "host");
    size_t scheme = t.len > 7 && !strncasecmp(t.ptr, "http://", 7) ? 7 : t.len > 8 && !strncasecmp(t.ptr, "https://", 8) ? 8 : 0;
    if (scheme) {
        size_t end = scheme;
        while (end < t.len && t.ptr[end] != '/' && t.ptr[end] != '?') end++;
        struct kvr_text authority = {t.ptr + scheme, end - scheme};
        if (!authority.len || memchr(authority.ptr, '@', authority.len)) return "the request target names no host";
        if (host.ptr && (host.len != authority.len || strncasecmp(host.ptr, authority.ptr, host.len) != 0))
            return "the request target and Host name different hosts";
        if (end == t.len || t.ptr[end] == '?') c->target.data[--end] = '/'; /* over the authority's last character */
        t = (struct kvr_text){t.ptr + end, t.len - end};
    }
    if (!t.len || (t.ptr[0] != '/' && !(is_options && kvr_text_is(t, "*")))) return "the request target must be a path";
    const char *q = memchr(t.ptr, '?', t.len);
    size_t path_len = q ? (size_t)(q - t.ptr) : t.len;
    c->request.target = t;
    c->request.path = (struct kvr_text){t.ptr, path_len};
    if (q) c->request.query = (struct kvr_text){q + 1, t.len - path_len - 1};
    return NULL;
}

static bool is_host(struct kvr_text t)
{
    for (size_t i = 0; i < t.len; i++)
        if ((unsigned char)t.ptr[i] <= ' ' || strchr("/?#@\\\"<>", t.ptr[i])) return false;
    return true;
}

/* Returns: 0, or the failure. */
static int judge_head(struct kvr_http_conn *c, const llhttp_t *p)
{
    struct kvr_hop_by_hop hop;
    bool chunked;
    if (p->http_major != 1) return fail(c, 400, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    if (p->method == HTTP_CONNECT) return fail(c, 405, "method not allowed");
    size_t hosts = kvr__headers_count(&c->headers, "host");
    if (hosts > 1 || (hosts == 0 && p->http_minor >= 1) || (hosts && !is_host(kvr_headers_get(&c->headers, "host"))))
        return fail(c, 400, "exactly one Host header is required");
    if (kvr__headers_count(&c->headers, "authorization") > 1) return fail(c, 400, "more than one Authorization header");
    int bad = kvr__headers_framing(&c->headers, &chunked);
    if (bad == 501) return fail(c, 501, "this transfer encoding is not supported; use chunked");
    if (bad || chunked != !!(p->flags & F_CHUNKED) || (chunked && p->http_minor == 0))
        return fail(c, 400, "malformed Content-Length or Transfer-Encoding");
    if (!kvr_hop_by_hop_read(&c->headers, &hop)) return fail(c, 400, "too many names in Connection");
    const char *why = kvr__request_target(c, p->method == HTTP_OPTIONS);
    if (why) return fail(c, 400, why);
    if (p->flags & F_CONTENT_LENGTH && p->content_length > c->server->config.body_max) return fail(c, 413, c->server->too_large);
    return 0;
}

/* What the handler may ask for while the body is away. */
static void complete_request(struct kvr_http_conn *c)
{
    const char *method = llhttp_method_name((llhttp_method_t)c->parser.method);
    c->request.is_head = c->parser.method == HTTP_HEAD;
    if (c->request.is_head) method = "GET";
    c->request.method = (struct kvr_text){method, strlen(method)};
    c->request.headers = &c->headers;
}

/* It goes to the handler without its body, of which there are `size` bytes at least. Returns: what ends the parsing. */
static int leave_body(struct kvr_http_conn *c, uint64_t size)
{
    free_arriving(c);
    c->request.body_unread = true;
    c->request.body_size = size;
    c->keep_alive = false;
    return HPE_USER;
}

int kvr__request_room(struct kvr_http_conn *c, uint64_t promised)
{
    struct kvr_http_room *room = &c->request.room;
    room->bytes = c->server->config.body_max;
    if (!c->server->config.body_room) return 0;
    complete_request(c);
    c->server->config.body_room(c, c->server->config.handler.ctx, room);
    return promised > room->bytes || !room->bytes ? leave_body(c, promised) : 0;
}

/* HTTP/1.0 has no such thing. */
static int meet_expectation(struct kvr_http_conn *c, bool has_body)
{
    struct kvr_text expect = kvr_headers_get(&c->headers, "expect");
    if (!expect.ptr || c->request.minor == 0) return 0;
    if (!kvr_text_is_nocase(expect, "100-continue")) return fail(c, 417, "the only expectation that is met is 100-continue");
    if (has_body) kvr__answer_continue(c);
    return 0;
}

static int on_head_complete(llhttp_t *p)
{
    struct kvr_http_conn *c = conn_of(p);
    c->request.minor = p->http_minor;
    c->request.headers = &c->headers;
    if (judge_head(c, p)) return HPE_USER;
    p->upgrade = 0; /* an offered upgrade (h2c, say) is not taken; the request is served as it is */
    c->keep_alive = llhttp_should_keep_alive(p);
    kvr__conn_deadline(c, c->server->config.body_timeout_s);
    if (p->flags & F_CHUNKED) kvr__framing_chunks(&c->framing);
    bool has_body = p->flags & F_CHUNKED || p->content_length > 0;
    if (has_body && kvr__request_room(c, p->flags & F_CONTENT_LENGTH ? p->content_length : 0)) return HPE_USER;
    return meet_expectation(c, has_body);
}

int kvr__request_body(struct kvr_http_conn *c, const char *at, size_t len, uint64_t promised)
{
    size_t max = c->server->config.body_max;
    if (len > max || c->arriving.len > max - len) return fail(c, 413, c->server->too_large);
    if (c->arriving.len + len > c->request.room.bytes) return leave_body(c, c->arriving.len + len);
    int rc = reserve(c, len, promised);
    if (rc == -1) return fail(c, 503, "too many request bodies are held at once; try again later");
    if (rc) return no_memory(c);
    char *end = c->arriving.data + c->arriving.len;
    if (at != end) memcpy(end, at, len); /* else it was read into its place */
    c->arriving.len += len;
    kvr__conn_deadline(c, c->server->config.body_timeout_s);
    return 0;
}

bool kvr__request_straight(struct kvr_http_conn *c, uv_buf_t *place)
{
    struct kvr_buf *b = &c->arriving;
    bool in_body = b->len && !kvr__framing_in_head(&c->framing) && !kvr__framing_in_chunks(&c->framing);
    size_t room = in_body ? KVR_MIN(b->cap - b->len, (size_t)c->parser.content_length) : 0;
    if (room < STRAIGHT_MIN || c->tls || c->answering || c->lingering || c->ahead.len) return false;
    *place = uv_buf_init(b->data + b->len, (unsigned)KVR_MIN(room, (size_t)KVR_HTTP_HIGH_WATER));
    return true;
}

static int on_body(llhttp_t *p, const char *at, size_t len)
{
    struct kvr_http_conn *c = conn_of(p);
    return kvr__request_body(c, at, len, p->flags & F_CONTENT_LENGTH ? c->arriving.len + len + p->content_length : 0);
}

int kvr__request_body_over(struct kvr_http_conn *c)
{
    if (!c->arriving.len) return 0;
    leave_share(c);
    trim(c);
    size_t held = c->arriving.cap;
    c->body = kvr_body_take(&c->arriving);
    if (!c->body) return no_memory(c);
    c->body->shared = c->server->config.shared;
    c->body->held = held;
    if (!c->body->shared) kvr__bodies_release(c->server->shared, held); /* bodies may outlive the server */
    return 0;
}

static int on_complete(llhttp_t *p)
{
    int rc = kvr__request_body_over(conn_of(p));
    return rc ? rc : HPE_PAUSED;
}

void kvr__request_settings(llhttp_settings_t *s)
{
    llhttp_settings_init(s);
    s->on_url = on_url;
    s->on_header_field = on_field;
    s->on_header_value = on_value;
    s->on_headers_complete = on_head_complete;
    s->on_body = on_body;
    s->on_message_complete = on_complete;
}

/* ---- bytes ------------------------------------------------------------------------------------------- */

void kvr__request_name(struct kvr_http_conn *c)
{
    if (!c->target.len || c->target.failed) return;
    const char *method = llhttp_method_name((llhttp_method_t)c->parser.method);
    c->request.method = (struct kvr_text){method, strlen(method)};
    if (c->request.path.ptr) return;
    const char *q = memchr(c->target.data, '?', c->target.len);
    c->request.target = (struct kvr_text){c->target.data, c->target.len};
    c->request.path = (struct kvr_text){c->target.data, q ? (size_t)(q - c->target.data) : c->target.len};
}

void kvr__request_dispatch(struct kvr_http_conn *c)
{
    complete_request(c);
    c->request.body = c->body ? c->body->data : NULL;
    c->request.body_len = c->body ? c->body->len : 0;
    c->answering = true;
    c->answer_started = false;
    c->took_all = !c->request.body_unread;
    c->deadline_ms = 0;
    if (c->outer) c->outer->on_request(c, c->outer_ctx);
    else c->server->config.handler.on_request(c, c->server->config.handler.ctx);
}

/* Bytes that belong to the part of a request that is arriving, or a negative number when they belong to none. */
static long look(struct kvr_http_conn *c, const char *data, size_t len)
{
    bool started = kvr__framing_started(&c->framing);
    if (!kvr__framing_in_head(&c->framing) && !kvr__framing_in_chunks(&c->framing)) return (long)len;
    long n = kvr__framing_scan(&c->framing, data, len);
    if (started || !(kvr__framing_started(&c->framing) || n < 0)) return n;
    c->started_message = true;
    c->message_ms = kvr_now_ms();
    kvr__conn_deadline(c, c->server->config.head_timeout_s);
    return n;
}

static bool may_parse(const struct kvr_http_conn *c)
{
    return !c->answering && !c->closing && !c->close_when_sent && !c->above_high && !c->write_failed;
}

/* Returns: bytes consumed; less than len when a request is complete, the client must first read, or the connection is over. */
static size_t parse(struct kvr_http_conn *c, const char *data, size_t len)
{
    size_t used = 0;
    while (used < len && may_parse(c)) {
        long n = look(c, data + used, len - used);
        if (n <= 0) {
            if (n == KVR__FRAMING_TOO_LARGE) kvr__answer_refuse(c, 431, "the header section is too large");
            else kvr__answer_refuse(c, 400, "malformed HTTP request");
            return len;
        }
        llhttp_errno_t e = llhttp_execute(&c->parser, data + used, (size_t)n);
        if (e == HPE_PAUSED) {
            used = (size_t)(llhttp_get_error_pos(&c->parser) - data);
            kvr__request_dispatch(c);
        } else if (c->request.body_unread) {
            kvr__request_dispatch(c);
            return len;
        } else if (e != HPE_OK) {
            if (e == HPE_INVALID_METHOD) (void)fail(c, 501, "this method is not known here"); /* look() has seen that it is a token */
            kvr__answer_refuse(c, c->fail_status ? c->fail_status : 400, c->fail_status ? c->fail_text : "malformed HTTP request");
            return len;
        } else {
            used += (size_t)n;
        }
    }
    count_unfinished(c);
    return used;
}

static void parse_ahead(struct kvr_http_conn *c)
{
    struct kvr_buf ahead = c->ahead;
    bool within = c->parsing_ahead;
    c->ahead = (struct kvr_buf){0};
    c->parsing_ahead = true;
    size_t used = parse(c, ahead.data, ahead.len);
    c->parsing_ahead = within;
    if (!c->closing && !c->close_when_sent && used < ahead.len) {
        /* this function may have run again below us; what it left comes after what we leave */
        struct kvr_buf rest = {0};
        kvr_buf_add(&rest, ahead.data + used, ahead.len - used);
        kvr_buf_add(&rest, c->ahead.data, c->ahead.len);
        kvr_buf_free(&c->ahead);
        c->ahead = rest;
    }
    kvr_buf_free(&ahead);
    if (c->ahead.failed) kvr__conn_fail_soon(c);
    kvr__conn_update_reading(c);
}

/* What is left, when nothing more comes, is no request. */
static void end_half_closed(struct kvr_http_conn *c)
{
    c->close_when_sent = true;
    kvr__request_free(c);
    if (c->queued == 0) kvr__conn_linger(c);
}

void kvr__request_parse_ahead(struct kvr_http_conn *c)
{
    if (c->ahead.len && may_parse(c)) parse_ahead(c);
    if (c->half_closed && !c->parsing_ahead && may_parse(c)) end_half_closed(c);
}

void kvr__request_take(struct kvr_http_conn *c, const char *data, size_t n)
{
    size_t used = 0;
    if (c->ahead.len == 0) used = parse(c, data, n);
    if (c->closing || c->close_when_sent || used == n) return;
    kvr_buf_add(&c->ahead, data + used, n - used);
    if (c->ahead.failed) {
        kvr__conn_fail_soon(c);
        return;
    }
    kvr__request_parse_ahead(c);
    kvr__conn_update_reading(c);
}

/* ---- for the handler --------------------------------------------------------------------------------- */

const struct kvr_http_request *kvr_http_conn_request(struct kvr_http_conn *c)
{
    return &c->request;
}

struct kvr_body *kvr_http_conn_take_body(struct kvr_http_conn *c)
{
    struct kvr_body *b = c->body;
    c->body = NULL;
    c->request.body = NULL;
    c->request.body_len = 0;
    return b;
}

void kvr_http_conn_drop_body(struct kvr_http_conn *c)
{
    kvr_body_unref(kvr_http_conn_take_body(c));
}

void kvr_http_conn_drop_head(struct kvr_http_conn *c)
{
    kvr_headers_free(&c->headers);
    kvr_buf_free(&c->target);
    c->request.target = c->request.path = c->request.query = (struct kvr_text){0};
}
