/* SPDX-License-Identifier: Apache-2.0 */
/* A growable byte buffer, with printf and JSON output. A failed allocation is remembered in `failed` and makes
 * the following calls do nothing, so a caller checks once at the end. Single-threaded. */
#ifndef KVR_BUF_H
#define KVR_BUF_H

#include <string.h>

#include "base/base.h"

struct kvr_buf {
    char *data;
    size_t len, cap;
    bool failed;
    bool comma; /* JSON: the next value or key needs a comma first */
};

int kvr_buf_reserve(struct kvr_buf *b, size_t more);
/* Inline, as heads are made of many short pieces whose lengths the compiler knows. */
static inline void kvr_buf_add(struct kvr_buf *b, const void *data, size_t len)
{
    if (len == 0 || ((b->failed || len > b->cap - b->len) && kvr_buf_reserve(b, len))) return;
    memcpy(b->data + b->len, data, len);
    b->len += len;
}
static inline void kvr_buf_str(struct kvr_buf *b, const char *s)
{
    kvr_buf_add(b, s, strlen(s));
}
void kvr_buf_u64(struct kvr_buf *b, uint64_t v); /* in decimal */
void kvr_buf_printf(struct kvr_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void kvr_buf_reset(struct kvr_buf *b); /* empty, and keeps its memory */
void kvr_buf_free(struct kvr_buf *b);

/* JSON. Containers take care of commas; keys are written by the caller's own literals. */
void kvr_json_open(struct kvr_buf *b, char bracket);
void kvr_json_close(struct kvr_buf *b, char bracket);
void kvr_json_key(struct kvr_buf *b, const char *key);
void kvr_json_key_u64(struct kvr_buf *b, uint64_t key); /* "123" */
void kvr_json_u64(struct kvr_buf *b, uint64_t v);
void kvr_json_i64(struct kvr_buf *b, int64_t v);
void kvr_json_double(struct kvr_buf *b, double v);
void kvr_json_bool(struct kvr_buf *b, bool v);
void kvr_json_null(struct kvr_buf *b);
void kvr_json_u32s(struct kvr_buf *b, const uint32_t *v, size_t n); /* [1,2,3] */
void kvr_json_u64s(struct kvr_buf *b, const uint64_t *v, size_t n);
/* Members of an object: key and value. */
void kvr_json_put_u64(struct kvr_buf *b, const char *key, uint64_t v);
void kvr_json_put_double(struct kvr_buf *b, const char *key, double v); /* null when it is not finite */
void kvr_json_put_str(struct kvr_buf *b, const char *key, const char *v);
/* How many bytes at the beginning of s stand for themselves within a JSON string: ASCII but control characters, quotes and backslashes. */
size_t kvr_json_plain(const char *s, size_t len);
void kvr_json_put_moment(struct kvr_buf *b, const char *key, int64_t seconds); /* since 1970, as RFC 3339 has it */
/* Invalid UTF-8 is replaced by U+FFFD, so the output is always valid JSON. */
void kvr_json_str(struct kvr_buf *b, const char *s, size_t len);
/* JSON as the format shows it, in which ' stands for ". Values: %s a text, quoted and escaped, %.*s of so many bytes, %p one that may be
 * NULL, which is null; %i true or false; %u, %zu, %ju, %jx whole numbers, within quotes too; %g a number (null when it is not finite). A
 * piece goes on where the one before has ended, behind a comma where one is due, and may leave brackets open. */
void kvr_json_printf(struct kvr_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
