/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of other origins: data/request/cors.h. */
#include "app/serve/data/request/cors.h"

#include <string.h>
#include <strings.h>

#include "app/serve/common/options.h"
#include "app/serve/data/request/reply.h"

/* What a page may see of an answer besides what every page may; `*` would not do with credentials. */
#define EXPOSED                                                                                                                            \
    "Access-Control-Expose-Headers: Retry-After, x-request-id, x-kvroute-worker, x-kvroute-dp-rank, x-kvroute-overlap-blocks, "            \
    "x-kvroute-overlap-tiers, x-kvroute-view, x-kvroute-reason, x-kvroute-model, x-kvroute-disagg, x-kvroute-prefill-worker, "             \
    "x-kvroute-prefill-dp-rank, x-kvroute-prefill-ms, x-kvroute-decode-overlap-blocks, x-kvroute-explain, x-ratelimit-limit-requests, "    \
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, "                 \
    "x-ratelimit-reset-tokens\r\n"

/* ---- origins ----------------------------------------------------------------------------------------- */

/* The next item of a comma list, without white space around it. false: there is no more. */
static bool next_item(const char **list, struct kvr_text *out)
{
    if (!**list) return false;
    size_t n = strcspn(*list, ",");
    *out = (struct kvr_text){*list, n};
    *list += n + ((*list)[n] == ',');
    while (out->len && (*out->ptr == ' ' || *out->ptr == '\t')) out->ptr++, out->len--;
    while (out->len && (out->ptr[out->len - 1] == ' ' || out->ptr[out->len - 1] == '\t')) out->len--;
    return true;
}

static bool list_has(const char *list, struct kvr_text origin)
{
    struct kvr_text item;
    while (next_item(&list, &item))
        if (item.len == origin.len && !strncasecmp(item.ptr, origin.ptr, item.len)) return true;
    return false;
}

bool cors_has_any(const char *list)
{
    return list_has(list, (struct kvr_text){"*", 1});
}

static bool ends_with(struct kvr_text t, const char *s)
{
    size_t n = strlen(s);
    return t.len >= n && !memcmp(t.ptr + t.len - n, s, n);
}

/* scheme://host[:port], and the port is not the scheme's own: browsers leave that out. */
static bool is_origin(struct kvr_text t)
{
    if (kvr_text_is(t, "*") || kvr_text_is(t, "null")) return true;
    const char *mark = t.ptr ? memmem(t.ptr, t.len, "://", 3) : NULL;
    if (!mark || mark == t.ptr || mark + 3 == t.ptr + t.len) return false;
    for (const char *p = t.ptr; p < t.ptr + t.len; p++) {
        if ((unsigned char)*p <= ' ' || (unsigned char)*p > 0x7e || strchr("\"*?#@\\<>", *p)) return false;
        if (*p == '/' && p != mark + 1 && p != mark + 2) return false;
    }
    bool http = mark - t.ptr == 4 && !strncasecmp(t.ptr, "http", 4), https = mark - t.ptr == 5 && !strncasecmp(t.ptr, "https", 5);
    return !(http && ends_with(t, ":80")) && !(https && ends_with(t, ":443"));
}

struct kvr_text cors_bad_origin(const char *list)
{
    struct kvr_text item;
    while (next_item(&list, &item))
        if (!is_origin(item)) return item;
    return (struct kvr_text){NULL, 0};
}

/* ---- answers ----------------------------------------------------------------------------------------- */

static struct kvr_text origin_of(struct kvr_http_conn *c)
{
    const struct kvr_headers *h = kvr_http_conn_request(c)->headers;
    return h ? kvr_headers_get(h, "origin") : (struct kvr_text){NULL, 0}; /* none: its head never came to an end */
}

void cors_put_headers(const struct serve_options *o, struct kvr_http_conn *c, struct kvr_buf *head)
{
    const char *list = o->cors_allow_origin;
    if (!list) return;
    bool any = cors_has_any(list);
    struct kvr_text origin = any ? (struct kvr_text){"*", 1} : origin_of(c);
    if (!any) kvr_buf_str(head, "Vary: Origin\r\n");
    if (!origin.ptr || (!any && !list_has(list, origin))) return;
    kvr_header_put(head, (struct kvr_text){"Access-Control-Allow-Origin", 27}, origin);
    if (o->cors_allow_credentials) kvr_buf_str(head, "Access-Control-Allow-Credentials: true\r\n");
    kvr_buf_str(head, EXPOSED);
}

/* Names of headers between commas, as a browser lists them. */
static bool is_name_list(struct kvr_text t)
{
    for (size_t i = 0; i < t.len; i++)
        if ((unsigned char)t.ptr[i] <= ' ' ? t.ptr[i] != ' ' : (unsigned char)t.ptr[i] > 0x7e || strchr("\"();:/<=>?@[]\\{}", t.ptr[i]))
            return false;
    return t.len > 0;
}

static void allow(const struct serve_options *o, struct kvr_http_conn *c)
{
    struct kvr_text names = kvr_headers_get(kvr_http_conn_request(c)->headers, "access-control-request-headers");
    struct kvr_buf h = {0};
    kvr_header_put_str(&h, "Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE");
    if (is_name_list(names)) kvr_header_put(&h, (struct kvr_text){"Access-Control-Allow-Headers", 28}, names);
    kvr_header_put_u64(&h, "Access-Control-Max-Age", o->cors_max_age);
    kvr_buf_add(&h, "", 1);
    if (h.failed) reply_error(c, 503, "out of memory", NULL);
    else kvr_http_reply(c, 204, NULL, h.data, "", 0);
    kvr_buf_free(&h);
}

bool cors_preflight(const struct serve_options *o, struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_text origin = kvr_headers_get(rq->headers, "origin");
    char text[256];
    if (!o->cors_allow_origin || !kvr_text_is(rq->method, "OPTIONS") || !origin.ptr) return false;
    if (!kvr_headers_get(rq->headers, "access-control-request-method").ptr) return false;
    if (cors_has_any(o->cors_allow_origin) || list_has(o->cors_allow_origin, origin)) {
        allow(o, c);
        return true;
    }
    snprintf(text, sizeof text, "pages of the origin '%.*s' may not use this port; allowed: those of --cors-allow-origin",
             (int)KVR_MIN(origin.len, (size_t)100), origin.ptr);
    reply_error(c, 403, text, NULL);
    return true;
}

bool cors_is_ours(const struct serve_options *o, struct kvr_text name)
{
    static const char begin[] = "access-control-";
    return o->cors_allow_origin && name.len > sizeof begin - 1 && !strncasecmp(name.ptr, begin, sizeof begin - 1);
}
