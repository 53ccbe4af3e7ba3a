/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of inference routes: those of vLLM 0.32 (`entrypoints`), vLLM-Omni, SGLang 0.5.23 (`srt/entrypoints/http_server.py`,
 * `multimodal_gen`) and TensorRT-LLM's trtllm-serve. A path is compared as it is written, byte by byte: engines decode escapes before
 * they choose, so one that has an escape is in no list.
 */
#include "app/serve/data/port/client_routes.h"

#include <string.h>

#include "base/base.h"

const enum kvr_prompt_form *client_route_form(struct kvr_text path)
{
    static const struct {
        const char *path;
        enum kvr_prompt_form form;
    } forms[] = {{"/v1/completions", KVR_FORM_COMPLETION},
                 {"/v1/chat/completions", KVR_FORM_CHAT},
                 {"/v1/responses", KVR_FORM_RESPONSES},
                 {"/v1/messages", KVR_FORM_MESSAGES},
                 {"/generate", KVR_FORM_GENERATE}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(forms); i++)
        if (kvr_text_is(path, forms[i].path)) return &forms[i].form;
    return NULL;
}

enum { POSTS = 1, GETS = 2, DELETES = 4, METHODS = 8 };

/* Beside those that are routed by their prompt. A star stands for an id. What lists things of all clients (GET /v1/videos) is not there. */
static const struct {
    const char *path;
    unsigned methods;
} passed[] = {
    {"/v1/chat/completions/batch", POSTS},
    {"/v1/chat/completions/render", POSTS},
    {"/v1/chat/completions/derender", POSTS},
    {"/v1/completions/render", POSTS},
    {"/v1/completions/derender", POSTS},
    {"/v1/responses/render", POSTS},
    {"/v1/responses/*", GETS | DELETES},
    {"/v1/responses/*/cancel", POSTS},
    {"/v1/responses/*/input_items", GETS},
    {"/v1/messages/render", POSTS},
    {"/v1/messages/count_tokens", POSTS},
    {"/v1/embeddings", POSTS},
    {"/v1/rerank", POSTS},
    {"/v1/score", POSTS},
    {"/v1/classify", POSTS},
    {"/v1/pooling", POSTS},
    {"/v1/tokenize", POSTS},
    {"/v1/detokenize", POSTS},
    {"/v1/moderations", POSTS},
    {"/v1/decisions", POSTS},
    {"/v1/audio/transcriptions", POSTS},
    {"/v1/audio/translations", POSTS},
    {"/v1/audio/speech", POSTS},
    {"/v1/images/generations", POSTS},
    {"/v1/images/edits", POSTS},
    {"/v1/images/variations", POSTS},
    {"/v1/images/*/content", GETS},
    {"/v1/videos", POSTS},
    {"/v1/videos/sync", POSTS},
    {"/v1/videos/generations", POSTS},
    {"/v1/videos/*", GETS | DELETES},
    {"/v1/videos/*/content", GETS},
    {"/tokenize", POSTS},
    {"/detokenize", POSTS},
    {"/score", POSTS},
    {"/rerank", POSTS},
    {"/v2/rerank", POSTS},
    {"/pooling", POSTS},
    {"/classify", POSTS},
    {"/encode", POSTS},
};

static bool is_alphanumeric(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Does everybody read this path alike? Not where it hides a character that needs no hiding, a control character or a slash (RFC
 * 3986, 6.2.2.2: engines decode before they choose), nor with segments that are empty, "." or "..", which a proxy before an engine may take
 * out. */
static bool is_plain(struct kvr_text path)
{
    for (size_t i = 0; i < path.len; i++) {
        if (path.ptr[i] == '/') {
            size_t n = 0;
            while (i + 1 + n < path.len && path.ptr[i + 1 + n] == '.') n++;
            bool ends = i + 1 + n == path.len || path.ptr[i + 1 + n] == '/';
            if (ends && n <= 2) return false;
        }
        if (path.ptr[i] == '\\') return false;
        if (path.ptr[i] != '%') continue;
        int high = i + 2 < path.len ? kvr_hex_digit(path.ptr[i + 1]) : -1, low = i + 2 < path.len ? kvr_hex_digit(path.ptr[i + 2]) : -1;
        if (high < 0 || low < 0) return false;
        int c = high * 16 + low;
        if (c < ' ' || c == 127 || is_alphanumeric((char)c) || strchr("-._~/\\", c)) return false;
    }
    return true;
}

static bool is_of_an_id(char c)
{
    return is_alphanumeric(c) || (c && strchr("-._~:=@", c));
}

static bool fits(struct kvr_text path, const char *route)
{
    size_t i = 0;
    for (; *route && i < path.len; route++) {
        if (*route != '*') {
            if (path.ptr[i++] != *route) return false;
            continue;
        }
        size_t from = i;
        while (i < path.len && is_of_an_id(path.ptr[i])) i++;
        if (i == from) return false;
    }
    return !*route && i == path.len;
}

/* One of --pass-routes; what ends with a star stands for all below. */
static bool fits_more(struct kvr_text path, const char *route, size_t n)
{
    bool below = n && route[n - 1] == '*';
    size_t head = n - below;
    return (below ? path.len > head : path.len == head) && memcmp(path.ptr, route, head) == 0;
}

/* With a bit for each method that it takes; 0: it is not passed. */
static unsigned methods_of(struct kvr_text path, const char *more)
{
    if (client_route_form(path)) return POSTS;
    if (!is_plain(path)) return 0;
    for (const char *at = more; at;) {
        size_t n = strcspn(at, ",");
        if (fits_more(path, at, n)) return METHODS - 1;
        at = at[n] ? at + n + 1 : NULL;
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(passed); i++)
        if (fits(path, passed[i].path)) return passed[i].methods;
    return 0;
}

bool client_route_is_passed(struct kvr_text path, const char *more)
{
    return methods_of(path, more) != 0;
}

const char *client_route_allows(struct kvr_text path, struct kvr_text method, const char *more)
{
    static const char *const allow[METHODS - 1] = {[POSTS] = "POST", [GETS] = "GET, HEAD", [GETS | DELETES] = "GET, HEAD, DELETE"};
    unsigned methods = methods_of(path, more);
    if (methods == METHODS - 1) return NULL; /* an operator's, who knows */
    bool taken = ((methods & POSTS) && kvr_text_is(method, "POST")) || ((methods & DELETES) && kvr_text_is(method, "DELETE")) ||
                 ((methods & GETS) && (kvr_text_is(method, "GET") || kvr_text_is(method, "HEAD")));
    return taken ? NULL : allow[methods];
}

bool client_routes_check(const char *more)
{
    for (const char *at = more; at;) {
        size_t n = strcspn(at, ","), head = n && at[n - 1] == '*' ? n - 1 : n;
        struct kvr_text path = {at, head > 1 && at[head - 1] == '/' && head < n ? head - 1 : head};
        if (!n || at[0] != '/' || memchr(at, '*', head) || !(path.len == 0 || is_plain(path))) return false;
        at = at[n] ? at + n + 1 : NULL;
    }
    return true;
}
