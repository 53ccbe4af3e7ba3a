/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/finish.h"

#include <string.h>
#include <kvroute/types.h>

#include "base/base.h"

static const char *const names[] = {
#define FINISH_NAME(name, text) text,
    KVR_FINISHES(FINISH_NAME)
#undef FINISH_NAME
};

static enum kvr_finish named(const char *s, size_t len)
{
    for (size_t i = KVR_FINISH_STOP; i < KVR_FINISH_OTHER; i++)
        if (kvr_span_is(s, len, names[i])) return (enum kvr_finish)i;
    return KVR_FINISH_OTHER;
}

enum kvr_finish kvr_finish_behind(const char *s, const char *end)
{
    while (s < end && (*s == ' ' || *s == ':' || *s == '\t' || *s == '\n' || *s == '\r')) s++;
    if (s == end || *s != '"') return KVR_FINISH_UNTOLD;
    s++;
    const char *quote = memchr(s, '"', (size_t)(end - s));
    return quote ? named(s, (size_t)(quote - s)) : KVR_FINISH_UNTOLD;
}

/* From the end, where engines say it: long answers are not looked through. */
enum kvr_finish kvr_finish_in(const char *data, size_t len)
{
    static const char member[] = "\"finish_reason\"";
    enum { MEMBER = sizeof member - 1 };
    const char *end = data + len;
    for (const char *f = end; (f = memrchr(data, 'f', (size_t)(f - data)));) {
        const char *at = f - 1;
        if (f == data || end - at < MEMBER || memcmp(at, member, MEMBER) != 0) continue;
        enum kvr_finish found = kvr_finish_behind(at + MEMBER, end);
        if (found != KVR_FINISH_UNTOLD) return found;
    }
    return KVR_FINISH_UNTOLD;
}
