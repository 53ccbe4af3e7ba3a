/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of Trace Context: wire/trace_context.h. What is malformed in any place is malformed as a whole. */
#include "wire/trace_context.h"

#include <string.h>

/* ---- traceparent ------------------------------------------------------------------------------------- */

/* Lower case only, as the standard has it. */
static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_hex(const char *p, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(p[2 * i]), low = hex_digit(p[2 * i + 1]);
        if (high < 0 || low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* version "-" trace id "-" parent id "-" flags */
bool kvr_traceparent_read(const char *t, size_t len, struct kvr_trace_context *out)
{
    struct kvr_trace_context c = {0};
    uint8_t version, parent[8];
    if (len < KVR_TRACEPARENT_LEN || t[2] != '-' || t[35] != '-' || t[52] != '-') return false;
    if (!read_hex(t, &version, 1) || version == 0xff) return false;
    if (len > KVR_TRACEPARENT_LEN && (version == 0 || t[KVR_TRACEPARENT_LEN] != '-')) return false;
    if (!read_hex(t + 3, c.trace, 16) || !read_hex(t + 36, parent, 8) || !read_hex(t + 53, &c.flags, 1)) return false;
    if (all_zero(c.trace, 16) || all_zero(parent, 8)) return false;
    for (size_t i = 0; i < 8; i++) c.parent = c.parent << 8 | parent[i];
    *out = c;
    return true;
}

void kvr_trace_hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = 0;
}

void kvr_span_hex(uint64_t id, char out[17])
{
    uint8_t bytes[8];
    for (size_t i = 0; i < 8; i++) bytes[i] = (uint8_t)(id >> (56 - 8 * i));
    kvr_trace_hex(bytes, 8, out);
}

void kvr_traceparent_write(const struct kvr_trace_context *c, char out[KVR_TRACEPARENT_LEN + 1])
{
    memcpy(out, "00-", 3);
    kvr_trace_hex(c->trace, 16, out + 3);
    out[35] = '-';
    kvr_span_hex(c->parent, out + 36);
    out[52] = '-';
    kvr_trace_hex(&c->flags, 1, out + 53);
}

/* ---- tracestate -------------------------------------------------------------------------------------- */

static bool is_key_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '*' || c == '/';
}

static bool is_key_part(const char *p, size_t n, size_t max, bool digit_first)
{
    if (!n || n > max || !((*p >= 'a' && *p <= 'z') || (digit_first && *p >= '0' && *p <= '9'))) return false;
    for (size_t i = 1; i < n; i++)
        if (!is_key_char(p[i])) return false;
    return true;
}

/* simple-key, or tenant "@" system. */
static bool is_key(const char *p, size_t n)
{
    const char *at = memchr(p, '@', n);
    if (!at) return is_key_part(p, n, 256, false);
    size_t tenant = (size_t)(at - p);
    return is_key_part(p, tenant, 241, true) && is_key_part(at + 1, n - tenant - 1, 14, false);
}

static bool is_value(const char *p, size_t n)
{
    if (!n || n > 256 || p[n - 1] == ' ') return false;
    for (size_t i = 0; i < n; i++)
        if (p[i] < 0x20 || p[i] > 0x7e || p[i] == ',' || p[i] == '=') return false;
    return true;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

int kvr_tracestate_members(const char *text, size_t len)
{
    const char *p = text, *end = text + len;
    int n = 0;
    while (p < end) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *to = comma ? comma : end;
        const char *next = comma ? comma + 1 : end;
        while (p < to && is_space(*p)) p++;
        while (to > p && is_space(to[-1])) to--;
        const char *equals = memchr(p, '=', (size_t)(to - p));
        if (p < to) { /* a member may be empty */
            if (!equals || !is_key(p, (size_t)(equals - p)) || !is_value(equals + 1, (size_t)(to - equals - 1))) return -1;
            n++;
        }
        p = next;
    }
    return n;
}
