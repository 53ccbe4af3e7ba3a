/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What server and client share: headers kept as offsets into one buffer, which framing they ask for, endpoints, query parameters. Pure
 * functions of their arguments.
 */
#include "net/http/internal.h"

#include <string.h>
#include <strings.h>

#include <kvroute/hash.h>

struct kvr_text kvr_headers_name(const struct kvr_headers *h, size_t i)
{
    return (struct kvr_text){h->text.data + h->list[i].name_at, h->list[i].name_len};
}

struct kvr_text kvr_headers_value(const struct kvr_headers *h, size_t i)
{
    struct kvr_text t = {h->text.data + h->list[i].value_at, h->list[i].value_len};
    while (t.len && (t.ptr[t.len - 1] == ' ' || t.ptr[t.len - 1] == '\t')) t.len--;
    return t;
}

static inline bool is_named(const struct kvr_headers *h, size_t i, const char *name, size_t len)
{
    return h->list[i].name_len == len && strncasecmp(h->text.data + h->list[i].name_at, name, len) == 0;
}

struct kvr_text kvr__headers_get(const struct kvr_headers *h, const char *name, size_t len)
{
    for (size_t i = 0; i < h->n; i++)
        if (is_named(h, i, name, len)) return kvr_headers_value(h, i);
    return (struct kvr_text){0};
}

void kvr_header_put(struct kvr_buf *head, struct kvr_text name, struct kvr_text value)
{
    if (kvr_buf_reserve(head, name.len + value.len + 4)) return;
    kvr_buf_add(head, name.ptr, name.len);
    kvr_buf_add(head, ": ", 2);
    kvr_buf_add(head, value.ptr, value.len);
    kvr_buf_add(head, "\r\n", 2);
}

void kvr_header_put_str(struct kvr_buf *head, const char *name, const char *value)
{
    kvr_header_put(head, (struct kvr_text){name, strlen(name)}, (struct kvr_text){value, strlen(value)});
}

void kvr_header_put_u64(struct kvr_buf *head, const char *name, uint64_t value)
{
    kvr_buf_str(head, name);
    kvr_buf_add(head, ": ", 2);
    kvr_buf_u64(head, value);
    kvr_buf_add(head, "\r\n", 2);
}

void kvr_request_put(struct kvr_buf *head, const struct kvr_endpoint *e, const char *path, int64_t json)
{
    kvr_buf_printf(head, "%s %s%s HTTP/1.1\r\nHost: %s\r\n", json < 0 ? "GET" : "POST", e->base, path, e->authority);
    if (json >= 0) kvr_buf_printf(head, "Content-Type: application/json\r\nContent-Length: %lld\r\n", (long long)json);
}

void kvr_headers_free(struct kvr_headers *h)
{
    kvr_buf_free(&h->text);
    free(h->list);
    *h = (struct kvr_headers){0};
}

void kvr__headers_reset(struct kvr_headers *h)
{
    h->n = 0;
    h->seen = 0;
    h->in_value = false;
    kvr_buf_reset(&h->text);
}

int kvr__headers_name(struct kvr_headers *h, const char *at, size_t len)
{
    bool fresh = h->in_value || h->n == 0;
    h->in_value = false;
    if (h->text.len + len > KVR_HTTP_HEAD_MAX) return -1;
    if (fresh) {
        if (h->n == KVR_HTTP_HEADERS_MAX) return -1;
        h->text.failed |= !kvr_grow(&h->list, &h->cap, h->n + 1, sizeof *h->list);
        if (h->text.failed) return -1;
        h->list[h->n++] = (struct kvr_header){.name_at = (uint32_t)h->text.len};
    }
    kvr_buf_add(&h->text, at, len);
    if (h->text.failed) return -1;
    struct kvr_header *last = &h->list[h->n - 1];
    last->name_len += (uint32_t)len;
    if (last->name_len) h->seen |= kvr__header_bit(h->text.data + last->name_at, last->name_len);
    return 0;
}

int kvr__headers_value(struct kvr_headers *h, const char *at, size_t len)
{
    bool fresh = !h->in_value;
    h->in_value = true;
    if (h->n == 0 || h->text.len + len > KVR_HTTP_HEAD_MAX) return -1;
    struct kvr_header *last = &h->list[h->n - 1];
    if (fresh) last->value_at = (uint32_t)h->text.len;
    kvr_buf_add(&h->text, at, len);
    last->value_len += (uint32_t)len;
    return h->text.failed ? -1 : 0;
}

int kvr_headers_add(struct kvr_headers *h, struct kvr_text name, struct kvr_text value)
{
    return kvr__headers_name(h, name.ptr, name.len) || kvr__headers_value(h, value.ptr, value.len) ? -1 : 0;
}

/* The next element of a comma-separated list, without space around it; empty ones are passed over. false: no more. */
static bool list_next(struct kvr_text *list, struct kvr_text *out)
{
    const char *p = list->ptr, *end = p + list->len;
    while (p < end && (*p == ' ' || *p == '\t' || *p == ',')) p++;
    const char *s = p;
    while (p < end && *p != ',') p++;
    *list = (struct kvr_text){p, (size_t)(end - p)};
    while (p > s && (p[-1] == ' ' || p[-1] == '\t')) p--;
    *out = (struct kvr_text){s, (size_t)(p - s)};
    return out->len > 0;
}

bool kvr_hop_by_hop_read(const struct kvr_headers *h, struct kvr_hop_by_hop *out)
{
    out->n = 0;
    for (size_t i = 0; i < h->n; i++) {
        if (!kvr_text_is_nocase(kvr_headers_name(h, i), "connection")) continue;
        struct kvr_text list = kvr_headers_value(h, i), name;
        while (list_next(&list, &name)) {
            if (out->n == KVR_HTTP_CONNECTION_NAMES_MAX) return false;
            out->names[out->n++] = name;
        }
    }
    return true;
}

bool kvr_header_is_hop_by_hop(const struct kvr_hop_by_hop *hop, struct kvr_text name)
{
    static const struct kvr_text names[] = {KVR_TEXT("connection"),
                                            KVR_TEXT("keep-alive"),
                                            KVR_TEXT("proxy-connection"),
                                            KVR_TEXT("proxy-authenticate"),
                                            KVR_TEXT("proxy-authorization"),
                                            KVR_TEXT("te"),
                                            KVR_TEXT("trailer"),
                                            KVR_TEXT("transfer-encoding"),
                                            KVR_TEXT("upgrade")};
    if (kvr_text_is_one_of(name, names, KVR_ARRAY_LEN(names))) return true;
    for (size_t i = 0; i < hop->n; i++)
        if (hop->names[i].len == name.len && strncasecmp(hop->names[i].ptr, name.ptr, name.len) == 0) return true;
    return false;
}

size_t kvr__headers_count(const struct kvr_headers *h, const char *name)
{
    size_t n = 0, len = strlen(name);
    for (size_t i = 0; i < h->n && h->seen & kvr__header_bit(name, len); i++) n += is_named(h, i, name, len);
    return n;
}

/* One coding, and that is chunked: others we neither decode nor pass on as they are. */
static int transfer_coding(const struct kvr_headers *h)
{
    size_t n = 0, chunked_at = 0;
    for (size_t i = 0; i < h->n; i++) {
        if (!kvr_text_is_nocase(kvr_headers_name(h, i), "transfer-encoding")) continue;
        struct kvr_text list = kvr_headers_value(h, i), coding;
        while (list_next(&list, &coding)) {
            n++;
            if (!kvr_text_is_nocase(coding, "chunked")) continue;
            if (chunked_at) return 400;
            chunked_at = n;
        }
    }
    if (n == 0 || (chunked_at && chunked_at != n)) return 400;
    return n == 1 && chunked_at ? 0 : 501;
}

int kvr__headers_framing(const struct kvr_headers *h, bool *chunked)
{
    size_t lengths = kvr__headers_count(h, "content-length");
    *chunked = kvr__headers_count(h, "transfer-encoding") > 0;
    if (lengths > 1 || (lengths && *chunked)) return 400;
    if (*chunked) return transfer_coding(h);
    struct kvr_text length = kvr_headers_get(h, "content-length");
    for (size_t i = 0; i < length.len; i++)
        if (length.ptr[i] < '0' || length.ptr[i] > '9') return 400;
    return lengths && !length.len ? 400 : 0;
}

const char *kvr_http_reason(int status)
{
    switch (status) {
    case 200: return "OK";
    case 201: return "Created";
    case 202: return "Accepted";
    case 204: return "No Content";
    case 206: return "Partial Content";
    case 304: return "Not Modified";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 412: return "Precondition Failed";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 502: return "Bad Gateway";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 529: return "Site Is Overloaded";
    default: return "Status";
    }
}

/* Connections are shared among calls with the same one. */
static uint64_t endpoint_key(const struct kvr_endpoint *e)
{
    uint64_t key = kvr_hash_bytes(e->host, strlen(e->host), e->port | (uint64_t)e->tls << 32);
    return e->tls_peer ? kvr_mix64(key ^ (uint64_t)(uintptr_t)e->tls_peer) : key;
}

static int parse_endpoint(const char *url, size_t len, bool tls, struct kvr_endpoint *out)
{
    struct kvr_endpoint e = {.port = tls ? 443 : 80, .tls = tls};
    const char *p = url, *end = url + len, *scheme = tls ? "https://" : "http://";
    if (len <= strlen(scheme) || strncasecmp(p, scheme, strlen(scheme)) != 0) return -KVR_EINVAL;
    p += strlen(scheme);
    bool v6 = p < end && *p == '[';
    const char *host = v6 ? ++p : p;
    while (p < end && (v6 ? *p != ']' : *p != ':' && *p != '/')) p++;
    size_t n = (size_t)(p - host);
    if (n == 0 || n >= sizeof e.host || (v6 && p == end)) return -KVR_EINVAL;
    memcpy(e.host, host, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)e.host[i] <= ' ' || strchr("@?#\\\"", e.host[i])) return -KVR_EINVAL;
    if (v6) p++;
    if (p < end && *p == ':') {
        unsigned long port = 0;
        const char *digits = ++p;
        while (p < end && *p >= '0' && *p <= '9' && port <= 65535) port = port * 10 + (unsigned long)(*p++ - '0');
        if (p == digits || port == 0 || port > 65535) return -KVR_EINVAL;
        e.port = (uint16_t)port;
    }
    if (p < end && *p != '/') return -KVR_EINVAL;
    while (end > p && end[-1] == '/') end--;
    n = (size_t)(end - p);
    if (n >= sizeof e.base) return -KVR_EINVAL;
    memcpy(e.base, p, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)e.base[i] <= ' ') return -KVR_EINVAL;
    e.is_numeric =
        uv_ip4_addr(e.host, e.port, (struct sockaddr_in *)&e.addr) == 0 || uv_ip6_addr(e.host, e.port, (struct sockaddr_in6 *)&e.addr) == 0;
    snprintf(e.authority, sizeof e.authority, v6 ? "[%s]:%u" : "%s:%u", e.host, e.port);
    e.key = endpoint_key(&e);
    *out = e;
    return 0;
}

int kvr_endpoint_parse(const char *url, size_t len, struct kvr_endpoint *out)
{
    return parse_endpoint(url, len, false, out);
}

int kvr_endpoint_parse_any(const char *url, size_t len, struct kvr_endpoint *out)
{
    return parse_endpoint(url, len, len > 4 && (url[4] == 's' || url[4] == 'S'), out);
}

void kvr_endpoint_trust(struct kvr_endpoint *e, const struct kvr_tls_peer *peer)
{
    e->tls_peer = e->tls ? peer : NULL;
    e->key = endpoint_key(e);
}

static bool is_escape(const char *p, const char *end)
{
    return *p == '%' && end - p > 2 && kvr_hex_digit(p[1]) >= 0 && kvr_hex_digit(p[2]) >= 0;
}

bool kvr_path_decode(struct kvr_text t, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = t.ptr, *end = t.ptr + t.len; p < end; p++) {
        bool code = is_escape(p, end);
        char c = code ? (char)(kvr_hex_digit(p[1]) * 16 + kvr_hex_digit(p[2])) : *p;
        if (n == cap - 1 || !c) return false;
        out[n++] = c;
        if (code) p += 2;
    }
    out[n] = 0;
    return n > 0;
}

int kvr_query_parameter(struct kvr_text q, const char *key, char *out, size_t cap)
{
    size_t key_len = strlen(key), n = 0;
    for (const char *p = q.ptr, *end = q.ptr ? q.ptr + q.len : NULL; p && p < end;) {
        const char *amp = memchr(p, '&', (size_t)(end - p)), *stop = amp ? amp : end;
        if ((size_t)(stop - p) > key_len && memcmp(p, key, key_len) == 0 && p[key_len] == '=') {
            for (p += key_len + 1; p < stop && n + 1 < cap; p++) {
                bool code = is_escape(p, stop);
                out[n++] = code ? (char)(kvr_hex_digit(p[1]) * 16 + kvr_hex_digit(p[2])) : *p == '+' ? ' ' : *p;
                if (code) p += 2;
            }
            bool whole = p >= stop && !memchr(out, 0, n);
            out[whole ? n : 0] = 0;
            return whole ? 1 : -1;
        }
        p = amp ? amp + 1 : end;
    }
    return 0;
}
