/* SPDX-License-Identifier: Apache-2.0 */
/* wire/lax.h says what this is. */
#include "wire/lax.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"

bool kvr_lax_bool(struct kvr_json v, bool otherwise)
{
    static const char *const words[2][6] = {{"false", "0", "off", "f", "n", "no"}, {"true", "1", "on", "t", "y", "yes"}};
    const char *s;
    size_t len;
    double number;
    bool flag;
    if (kvr_json_as_bool(v, &flag)) return flag;
    if (kvr_json_as_double(v, &number)) return number == 0 ? false : number == 1 ? true : otherwise;
    if (!kvr_json_as_str(v, &s, &len)) return otherwise;
    for (int w = 0; w < 2; w++)
        for (size_t i = 0; i < KVR_ARRAY_LEN(words[w]); i++)
            if (strlen(words[w][i]) == len && strncasecmp(words[w][i], s, len) == 0) return w;
    return otherwise;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Without the zeros of a fraction: "5.00" is "5". */
static size_t before_fraction(const char *s, size_t len)
{
    size_t n = len;
    while (n && s[n - 1] == '0') n--;
    return n > 1 && n < len && s[n - 1] == '.' ? n - 1 : len;
}

/* A sign, and digits with single underscores between them. */
bool kvr_lax_text_i64(const char *s, size_t len, int64_t *out)
{
    enum { DIGITS = 20 /* of those that matter; strtoll stops at the ends of 64 bits */ };
    char number[1 + DIGITS + 1] = "+";
    size_t n = 1;
    while (len && is_space(*s)) s++, len--;
    while (len && is_space(s[len - 1])) len--;
    len = before_fraction(s, len);
    if (len && (*s == '-' || *s == '+')) number[0] = *s++, len--;
    if (len == 0) return false;
    for (size_t i = 0; i < len; i++) {
        bool between = i > 0 && i + 1 < len && is_digit(s[i - 1]) && is_digit(s[i + 1]);
        if (s[i] == '_' && between) continue;
        if (!is_digit(s[i])) return false;
        if (n <= DIGITS && (s[i] != '0' || n > 1)) number[n++] = s[i];
    }
    *out = strtoll(number, NULL, 10);
    return true;
}

static int64_t whole(double d)
{
    return d >= 0x1p63 ? INT64_MAX : d <= -0x1p63 ? INT64_MIN : (int64_t)d;
}

bool kvr_lax_i64(struct kvr_json v, int64_t *out)
{
    const char *s;
    size_t len;
    uint64_t bits;
    double d;
    bool flag;
    if (kvr_json_as_bool(v, &flag)) *out = flag;
    else if (kvr_json_as_str(v, &s, &len)) return kvr_lax_text_i64(s, len, out);
    else if (kvr_json_type_of(v) == KVR_JSON_RANGE || (kvr_json_as_u64(v, &bits) && bits > INT64_MAX)) *out = INT64_MAX;
    else if (kvr_json_as_i64_bits(v, &bits)) memcpy(out, &bits, sizeof bits);
    else if (kvr_json_as_double(v, &d) && d == floor(d)) *out = whole(d);
    else return false;
    return true;
}

bool kvr_lax_u64(struct kvr_json v, uint64_t *out)
{
    int64_t n;
    if (!kvr_lax_i64(v, &n) || n < 0) return false;
    *out = (uint64_t)n;
    return true;
}
