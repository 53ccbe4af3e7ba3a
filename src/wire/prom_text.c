/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of Prometheus' text in pieces, with one bounded line of memory (wire/prom_text.h). */
#include "wire/prom_text.h"

#include <string.h>

struct cursor {
    const char *p, *end;
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static void skip_blanks(struct cursor *c)
{
    while (c->p < c->end && is_blank(*c->p)) c->p++;
}

static bool take(struct cursor *c, char wanted)
{
    if (c->p == c->end || *c->p != wanted) return false;
    c->p++;
    return true;
}

static bool is_name_char(char c, bool first, bool colons)
{
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c == ':' && colons)) return true;
    return !first && c >= '0' && c <= '9';
}

static bool take_name(struct cursor *c, bool colons, struct kvr_prom_text *out)
{
    const char *start = c->p;
    while (c->p < c->end && is_name_char(*c->p, c->p == start, colons)) c->p++;
    *out = (struct kvr_prom_text){start, (size_t)(c->p - start)};
    return out->len > 0;
}

static bool take_quoted(struct cursor *c, struct kvr_prom_text *out)
{
    if (!take(c, '"')) return false;
    const char *start = c->p;
    while (c->p < c->end && *c->p != '"') c->p += *c->p == '\\' && c->p + 1 < c->end ? 2 : 1;
    *out = (struct kvr_prom_text){start, (size_t)(c->p - start)};
    return take(c, '"');
}

static bool take_labels(struct cursor *c, struct kvr_prom_sample *s)
{
    if (!take(c, '{')) return true;
    for (;;) {
        skip_blanks(c);
        if (take(c, '}')) return true; /* also behind a last comma */
        struct kvr_prom_label l;
        if (s->labels_n == KVR_PROM_LABELS_MAX || !take_name(c, false, &l.name)) return false;
        skip_blanks(c);
        if (!take(c, '=')) return false;
        skip_blanks(c);
        if (!take_quoted(c, &l.value)) return false;
        s->labels[s->labels_n++] = l;
        skip_blanks(c);
        if (take(c, ',')) continue;
        return take(c, '}');
    }
}

static bool take_word(struct cursor *c, struct kvr_prom_text *out)
{
    const char *start = c->p;
    while (c->p < c->end && !is_blank(*c->p)) c->p++;
    *out = (struct kvr_prom_text){start, (size_t)(c->p - start)};
    return out->len > 0;
}

static bool number(struct kvr_prom_text t, double *out)
{
    static const char *const words[] = {"NaN", "Inf", "+Inf", "-Inf"};
    char copy[64], *end;
    bool word = false;
    if (t.len == 0 || t.len >= sizeof copy) return false;
    memcpy(copy, t.ptr, t.len);
    copy[t.len] = 0;
    for (size_t i = 0; i < KVR_ARRAY_LEN(words); i++) word |= strcmp(copy, words[i]) == 0;
    if (!word && strspn(copy, "0123456789+-.eE") != t.len) return false;
    *out = strtod(copy, &end);
    return *end == 0;
}

int kvr_prom_line(const char *line, size_t len, struct kvr_prom_sample *out)
{
    struct cursor c = {line, line + len};
    struct kvr_prom_text value, stamp;
    double ignored;
    if (len && line[len - 1] == '\r') c.end--;
    skip_blanks(&c);
    if (c.p == c.end || *c.p == '#') return 0;
    out->labels_n = 0;
    if (!take_name(&c, true, &out->name)) return -KVR_EFORMAT;
    skip_blanks(&c);
    if (!take_labels(&c, out)) return -KVR_EFORMAT;
    skip_blanks(&c);
    if (!take_word(&c, &value) || !number(value, &out->value)) return -KVR_EFORMAT;
    skip_blanks(&c);
    if (c.p == c.end || *c.p == '#') return 1;
    if (!take_word(&c, &stamp) || !number(stamp, &ignored)) return -KVR_EFORMAT;
    skip_blanks(&c);
    return c.p == c.end || *c.p == '#' ? 1 : -KVR_EFORMAT;
}

/* ---- in pieces ---------------------------------------------------------------------------------------------- */

static void see_line(struct kvr_prom_reader *r, const char *line, size_t len)
{
    struct kvr_prom_sample s;
    int rc = kvr_prom_line(line, len, &s);
    if (rc < 0) r->malformed++;
    if (rc != 1) return;
    r->samples++;
    r->fn(r->ctx, &s);
}

/* A piece of a line. */
static void keep(struct kvr_prom_reader *r, const char *data, size_t len)
{
    if (r->too_long) return;
    if (len > sizeof r->part - r->part_len) {
        r->too_long = true;
        r->malformed++;
        return;
    }
    memcpy(r->part + r->part_len, data, len);
    r->part_len += len;
}

static void end_line(struct kvr_prom_reader *r)
{
    if (!r->too_long) see_line(r, r->part, r->part_len);
    r->too_long = false;
    r->part_len = 0;
}

void kvr_prom_feed(struct kvr_prom_reader *r, const char *data, size_t len)
{
    while (len) {
        const char *newline = memchr(data, '\n', len);
        size_t n = newline ? (size_t)(newline - data) : len;
        keep(r, data, n);
        if (!newline) return;
        end_line(r);
        data += n + 1;
        len -= n + 1;
    }
}

void kvr_prom_end(struct kvr_prom_reader *r)
{
    end_line(r);
}

/* ---- texts -------------------------------------------------------------------------------------------------- */

bool kvr_prom_is(struct kvr_prom_text t, const char *s)
{
    return t.ptr && kvr_span_is(t.ptr, t.len, s);
}

struct kvr_prom_text kvr_prom_label(const struct kvr_prom_sample *s, const char *name)
{
    for (size_t i = 0; i < s->labels_n; i++)
        if (kvr_prom_is(s->labels[i].name, name)) return s->labels[i].value;
    return (struct kvr_prom_text){NULL, 0};
}

bool kvr_prom_u64(struct kvr_prom_text t, uint64_t *out)
{
    return t.ptr && kvr_parse_u64(t.ptr, t.len, UINT64_MAX, out);
}

long kvr_prom_unescape(struct kvr_prom_text value, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < value.len; i++) {
        char c = value.ptr[i];
        if (c == '\\' && i + 1 < value.len) {
            char next = value.ptr[i + 1];
            if (next == 'n' || next == '\\' || next == '"') {
                c = next == 'n' ? '\n' : next;
                i++;
            }
        }
        if (n == cap) return -KVR_ELIMIT;
        out[n++] = c;
    }
    return (long)n;
}
