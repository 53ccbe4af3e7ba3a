/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of inference routes: those of vLLM 0.32 (`entrypoints`), vLLM-Omni, SGLang 0.5.23 (`srt/entrypoints/http_server.py`,
 * `multimodal_gen`) and TensorRT-LLM's trtllm-serve. A path is compared as it is written, byte by byte: engines decode escapes before
 * they choose, so one that has an escape is in no list.
 */
#include "app/serve/data/client_routes.h"

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

/* Beside those that are routed by their prompt. A star stands for one segment. */
static const char *const passed[] = {
    "/v1/chat/completions/batch",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/responses/render",
    "/v1/responses/*",
    "/v1/responses/*/cancel",
    "/v1/responses/*/input_items",
    "/v1/messages/render",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/v1/pooling",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/moderations",
    "/v1/decisions",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/audio/speech",
    "/v1/images/generations",
    "/v1/images/edits",
    "/v1/images/variations",
    "/v1/images/*/content",
    "/v1/videos",
    "/v1/videos/*",
    "/v1/videos/*/content",
    "/tokenize",
    "/detokenize",
    "/score",
    "/rerank",
    "/v2/rerank",
    "/pooling",
    "/classify",
    "/encode",
};

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Does everybody read this path alike? Not where it hides a character that needs no hiding, or a slash (RFC 3986, 6.2.2.2: engines decode
 * before they choose), nor with segments that are empty, "." or "..", which a proxy before an engine may take out. */
static bool is_plain(struct kvr_text path)
{
    for (size_t i = 0; i < path.len; i++) {
        if (path.ptr[i] == '/') {
            size_t n = 0;
            while (i + 1 + n < path.len && path.ptr[i + 1 + n] == '.') n++;
            bool ends = i + 1 + n == path.len || path.ptr[i + 1 + n] == '/';
            if (ends && n <= 2) return false;
        }
        if (path.ptr[i] != '%') continue;
        int high = i + 2 < path.len ? hex_value(path.ptr[i + 1]) : -1, low = i + 2 < path.len ? hex_value(path.ptr[i + 2]) : -1;
        if (high < 0 || low < 0) return false;
        char c = (char)(high * 16 + low);
        if (hex_value(c) >= 0 || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("-._~/\\", c))) return false;
    }
    return true;
}

/* A star stands for one segment, which is not empty. */
static bool fits(struct kvr_text path, const char *route)
{
    size_t i = 0;
    for (; *route && i < path.len; route++) {
        if (*route != '*') {
            if (path.ptr[i++] != *route) return false;
            continue;
        }
        size_t from = i;
        while (i < path.len && path.ptr[i] != '/') i++;
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

bool client_route_is_passed(struct kvr_text path, const char *more)
{
    if (!is_plain(path)) return false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(passed); i++)
        if (fits(path, passed[i])) return true;
    for (const char *at = more; at;) {
        size_t n = strcspn(at, ",");
        if (fits_more(path, at, n)) return true;
        at = at[n] ? at + n + 1 : NULL;
    }
    return false;
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
