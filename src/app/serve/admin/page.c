/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page: files that the build has embedded (CMakeLists.txt takes all of page/; those that are served stand here). They have no data of
 * this router, so they need no key; what they ask for does. Nothing of another host is used, and no script or style that is not one of
 * these files: the headers have the browser hold to it.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#define HTML "text/html; charset=utf-8"
#define CSS  "text/css; charset=utf-8"
#define JS   "text/javascript; charset=utf-8"
#define SVG  "image/svg+xml"
#define PAGE_FILES(X)                                                                                                                      \
    X("/", index_html, HTML)                                                                                                               \
    X("/page/api.js", api_js, JS)                                                                                                          \
    X("/page/charts.js", charts_js, JS)                                                                                                    \
    X("/page/decision.js", decision_js, JS)                                                                                                \
    X("/page/dom.js", dom_js, JS)                                                                                                          \
    X("/page/fleet.js", fleet_js, JS)                                                                                                      \
    X("/page/icon.svg", icon_svg, SVG)                                                                                                     \
    X("/page/main.js", main_js, JS)                                                                                                        \
    X("/page/more.js", more_js, JS)                                                                                                        \
    X("/page/save.js", save_js, JS)                                                                                                        \
    X("/page/style.css", style_css, CSS)                                                                                                   \
    X("/page/words.js", words_js, JS)                                                                                                      \
    X("/page/workers.js", workers_js, JS)

#define DECLARE(path, name, type) extern const char page_##name[], page_##name##_tag[];
PAGE_FILES(DECLARE)
#undef DECLARE

static const struct page_file {
    const char *path, *type, *text, *tag;
} files[] = {
#define ROW(path, name, type) {path, type, page_##name, page_##name##_tag},
    PAGE_FILES(ROW)
#undef ROW
};

static const struct page_file *find(struct kvr_text path)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(files); i++)
        if (kvr_text_is(path, files[i].path)) return &files[i];
    return NULL;
}

bool page_has(struct kvr_text path)
{
    return find(path) != NULL;
}

void page_get(struct kvr_http_conn *c)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    const struct page_file *f = find(rq->path);
    struct kvr_text known = kvr_headers_get(rq->headers, "if-none-match");
    char headers[640];
    if (!kvr_text_is(rq->method, "GET")) {
        admin_not_allowed(c, "GET, HEAD");
        return;
    }
    snprintf(headers, sizeof headers,
             "ETag: \"%s\"\r\nCache-Control: no-cache\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
             "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
             f->tag);
    bool same = known.ptr && memmem(known.ptr, known.len, f->tag, strlen(f->tag)) != NULL;
    kvr_http_reply(c, same ? 304 : 200, f->type, headers, f->text, same ? 0 : strlen(f->text));
}
