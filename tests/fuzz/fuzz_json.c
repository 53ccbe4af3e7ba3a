/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of any spelling between two others: what is no number makes the text no JSON; what fits is read to the bit; what does not
 * is out of range; the others are what they are. The oracle reads digits by itself, and fractions with strtod. And: a text that is read in
 * brief says what the whole text says. */
#include <math.h>
#include <string.h>

#include "../json_agree.h"
#include "base/buf.h"
#include "wire/json.h"

enum { TOKEN_MAX = 2000 };

/* Digits from *s on. Returns: how many. */
static size_t digits(const char **s)
{
    const char *from = *s;
    while (**s >= '0' && **s <= '9') (*s)++;
    return (size_t)(*s - from);
}

/* Returns: whether it is a JSON number; *whole: without fraction and exponent. */
static bool is_number(const char *s, bool *whole)
{
    *whole = true;
    if (*s == '-') s++;
    bool zero = *s == '0';
    size_t n = digits(&s);
    if (n == 0 || (zero && n > 1)) return false;
    if (*s == '.') {
        s++;
        *whole = false;
        if (digits(&s) == 0) return false;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        *whole = false;
        if (*s == '+' || *s == '-') s++;
        if (digits(&s) == 0) return false;
    }
    return *s == 0;
}

static void check_whole(struct kvr_json v, const char *s)
{
    bool negative = *s == '-';
    unsigned __int128 n = 0, most = negative ? (unsigned __int128)1 << 63 : (unsigned __int128)UINT64_MAX;
    uint64_t bits, u;
    for (s += negative; *s && n <= most; s++) n = n * 10 + (unsigned)(*s - '0');
    if (n > most) {
        KVR_ASSERT(kvr_json_type_of(v) == KVR_JSON_RANGE);
        return;
    }
    uint64_t want = negative ? 0 - (uint64_t)n : (uint64_t)n;
    KVR_ASSERT(kvr_json_type_of(v) == KVR_JSON_INT && kvr_json_as_i64_bits(v, &bits) && bits == want);
    KVR_ASSERT(kvr_json_as_u64(v, &u) == (!negative || n == 0));
}

static void check_fraction(struct kvr_json v, const char *s)
{
    double want = strtod(s, NULL), d;
    uint64_t u;
    if (isinf(want)) KVR_ASSERT(kvr_json_type_of(v) == KVR_JSON_RANGE && !kvr_json_as_double(v, &d));
    else KVR_ASSERT(kvr_json_type_of(v) == KVR_JSON_DOUBLE && kvr_json_as_double(v, &d) && memcmp(&d, &want, sizeof d) == 0);
    KVR_ASSERT(!kvr_json_as_u64(v, &u) && !kvr_json_as_i64_bits(v, &u));
}

/* Bytes as characters of numbers; the first says how often the run behind it is repeated, so that long ones come. */
static size_t spell(const uint8_t *data, size_t size, char *out)
{
    static const char of[16] = "0123456789.eE+-0";
    size_t n = 0;
    for (size_t i = 0; i + 1 < size && n < TOKEN_MAX; i += 2) {
        unsigned times = data[i] < 200 ? 1 : data[i] - 199u;
        for (unsigned k = 0; k < times && n < TOKEN_MAX; k++) out[n++] = of[data[i + 1] % 16];
    }
    out[n] = 0;
    return n;
}

enum { BODIES = 3 };

/* The input as a body, as the rest of one behind a text that is cut, and of a list in one. */
static const struct kvr_buf *heads(void)
{
    static struct kvr_buf made[BODIES];
    if (made[1].len) return made;
    kvr_buf_str(&made[1], "{\"messages\":[\"");
    for (unsigned n = 0; n < 4096; n++) kvr_buf_str(&made[1], "x");
    kvr_buf_str(&made[2], "{\"prompt\":[");
    for (unsigned n = 0; n < 1000; n++) kvr_buf_printf(&made[2], "%u,", n * n);
    return made;
}

static void check_brief(struct kvr_json_parser *p, const uint8_t *data, size_t size)
{
    static const char *const tails[BODIES] = {"", "", "]}"};
    static struct kvr_json_parser *q;
    if (!q) q = kvr_json_parser_new();
    for (size_t i = 0; i < BODIES; i++) {
        struct kvr_buf b = {0};
        kvr_buf_add(&b, heads()[i].data, heads()[i].len);
        kvr_buf_add(&b, data, size);
        kvr_buf_str(&b, tails[i]);
        KVR_ASSERT(!b.failed);
        (void)agree(p, q, b.data ? b.data : "", b.len, KVR_JSON_NO_PROMPT);
        (void)agree(p, q, b.data ? b.data : "", b.len, KVR_JSON_NO_ELEMENTS);
        kvr_buf_free(&b);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct kvr_json_parser *p;
    char token[TOKEN_MAX + 1], name[8];
    struct kvr_json root;
    struct kvr_buf b = {0};
    bool whole;
    uint64_t u;
    double d;
    if (!p) p = kvr_json_parser_new();
    if (kvr_json_parse(p, (const char *)data, size, &root, NULL) == 0) (void)kvr_json_check_members(p, name, sizeof name);
    check_brief(p, data, size);
    if (spell(data, size, token) == 0) return 0;
    kvr_buf_printf(&b, "{\"a\\\"1e400\":[9007199254740993,%s,-0.5],\"b\":18446744073709551615}", token);
    KVR_ASSERT(!b.failed);
    int rc = kvr_json_parse(p, b.data, b.len, &root, NULL);
    kvr_buf_free(&b);
    KVR_ASSERT((rc == 0) == is_number(token, &whole));
    if (rc) return 0;
    struct kvr_json list = kvr_json_get(root, "a\"1e400"), v = kvr_json_at(list, 1);
    KVR_ASSERT(kvr_json_as_u64(kvr_json_at(list, 0), &u) && u == 9007199254740993u);
    KVR_ASSERT(kvr_json_as_double(kvr_json_at(list, 2), &d) && d == -0.5);
    KVR_ASSERT(kvr_json_as_u64(kvr_json_get(root, "b"), &u) && u == UINT64_MAX);
    if (whole) check_whole(v, token);
    else check_fraction(v, token);
    KVR_ASSERT(kvr_json_check_members(p, name, sizeof name) == 0);
    return 0;
}
