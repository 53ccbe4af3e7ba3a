/* SPDX-License-Identifier: Apache-2.0 */
/* Delimiters first, then the head of each part, then its name: wire/form.h. */
#include "wire/form.h"

#include <string.h>
#include <strings.h>

#include "base/base.h"

struct span {
    const char *at, *end;
};

static bool span_is(struct span s, const char *text) /* any case */
{
    size_t n = strlen(text);
    return (size_t)(s.end - s.at) == n && !strncasecmp(s.at, text, n);
}

static bool begins_with(struct span s, const char *text, size_t n)
{
    return (size_t)(s.end - s.at) >= n && !memcmp(s.at, text, n);
}

static const char *find(struct span s, const char *text, size_t n)
{
    return memmem(s.at, (size_t)(s.end - s.at), text, n);
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t';
}

static const char *past_space(const char *p, const char *end)
{
    while (p < end && is_space(*p)) p++;
    return p;
}

static struct span trim(struct span s)
{
    s.at = past_space(s.at, s.end);
    while (s.end > s.at && is_space(s.end[-1])) s.end--;
    return s;
}

/* ---- parameters: type; name=value; name="value" ------------------------------------------------------- */

struct parameter {
    struct span name, value; /* the latter without its quotes, its escapes as they are */
    bool quoted;
};

/* What is between quotes; *p behind the first. false: there is no second. */
static bool read_quoted(const char **p, const char *end, struct span *out)
{
    const char *q = *p;
    while (q < end && *q != '"') q += *q == '\\' && q + 1 < end ? 2 : 1;
    if (q >= end) return false;
    *out = (struct span){*p, q};
    *p = q + 1;
    return true;
}

/* The next one, or an empty one between two semicolons; *p at a semicolon, or at the end. Returns: 1, 0 there is no more, -1 malformed. */
static int next_parameter(const char **p, const char *end, struct parameter *out)
{
    *p = past_space(*p, end);
    if (*p == end) return 0;
    if (**p != ';') return -1;
    const char *q = past_space(*p + 1, end), *name = q;
    *out = (struct parameter){0};
    while (q < end && *q != '=' && *q != ';') q++;
    out->name = out->value = trim((struct span){name, q});
    if (q < end && *q == '=') {
        q = past_space(q + 1, end);
        out->quoted = q < end && *q == '"';
        const char *from = q;
        if (out->quoted) q++;
        if (out->quoted && !read_quoted(&q, end, &out->value)) return -1;
        while (!out->quoted && q < end && *q != ';') q++;
        if (!out->quoted) out->value = trim((struct span){from, q});
    } else if (out->name.at != out->name.end) {
        return -1;
    }
    *p = q;
    return 1;
}

/* Past the type, "multipart/form-data" or "form-data". NULL: it is another one. */
static const char *past_type(struct span s, const char *type)
{
    size_t n = strlen(type);
    s.at = past_space(s.at, s.end);
    if ((size_t)(s.end - s.at) < n || strncasecmp(s.at, type, n) != 0) return NULL;
    const char *p = past_space(s.at + n, s.end);
    return p == s.end || *p == ';' ? p : NULL;
}

/* The one parameter of that name. Returns: 1, 0 there is none, -1: malformed, there are two, or one that RFC 2231 splits or encodes. */
static int one_parameter(const char *p, const char *end, const char *name, struct parameter *out)
{
    size_t n = strlen(name);
    struct parameter a;
    int found = 0, rc;
    while ((rc = next_parameter(&p, end, &a)) > 0) {
        size_t len = (size_t)(a.name.end - a.name.at);
        if (len < n || strncasecmp(a.name.at, name, n) != 0) continue;
        if (len > n && a.name.at[n] == '*') return -1;
        if (len > n) continue;
        if (found++) return -1;
        *out = a;
    }
    return rc < 0 ? -1 : found;
}

bool kvr_form_is(const char *type, size_t len)
{
    return past_type((struct span){type, type + len}, "multipart/form-data") != NULL;
}

static bool is_of_boundary(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c && strchr("'()+_,-./:=? ", c));
}

const char *kvr_form_boundary(const char *type, size_t len, char out[KVR_FORM_BOUNDARY_MAX + 1])
{
    struct span s = {type, type + len};
    struct parameter b;
    size_t n = 0;
    const char *p = past_type(s, "multipart/form-data");
    if (!p || one_parameter(p, s.end, "boundary", &b) != 1) return "the Content-Type of a form must have one boundary";
    for (const char *q = b.value.at; q < b.value.end; q++) {
        if (b.quoted && *q == '\\' && q + 1 < b.value.end) q++;
        if (!is_of_boundary(*q)) return "the boundary of the form has a character that is none of a boundary";
        if (n == KVR_FORM_BOUNDARY_MAX) return "the boundary of the form is longer than 70 characters";
        out[n++] = *q;
    }
    out[n] = 0;
    return !n ? "the boundary of the form is empty" : out[n - 1] == ' ' ? "the boundary of the form ends with a space" : NULL;
}

/* ---- the head of a part ------------------------------------------------------------------------------ */

struct head {
    struct parameter name;
    bool encoded; /* the value is not what is there */
};

/* Two readings of a backslash: an escape, as RFC 822 has it, or itself, as browsers write it. The field has the name if it has it in
 * either: then the other reader cannot have another field of that name. */
static bool is_named(const struct parameter *p, const char *name)
{
    size_t len = (size_t)(p->value.end - p->value.at), n = strlen(name), k = 0;
    if (len == n && !memcmp(p->value.at, name, n)) return true;
    if (!p->quoted) return false;
    for (const char *q = p->value.at; q < p->value.end; q++, k++) {
        if (*q == '\\' && q + 1 < p->value.end) q++;
        if (k == n || *q != name[k]) return false;
    }
    return k == n;
}

static bool is_plain_encoding(struct span v)
{
    return span_is(v, "binary") || span_is(v, "8bit") || span_is(v, "7bit");
}

/* The name and the value of a header line. false: it is none, or it is folded. */
static bool split_line(struct span line, struct span *name, struct span *value)
{
    const char *colon = memchr(line.at, ':', (size_t)(line.end - line.at));
    if (!colon || colon == line.at) return false;
    for (const char *p = line.at; p < line.end; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f || (p < colon && is_space(*p))) return false;
    *name = (struct span){line.at, colon};
    *value = trim((struct span){colon + 1, line.end});
    return true;
}

static const char *read_name(struct span disposition, struct head *out)
{
    const char *p = past_type(disposition, "form-data");
    if (!p || one_parameter(p, disposition.end, "name", &out->name) != 1) return "a part of the form must have one name";
    return NULL;
}

/* `part`: its lines, each with its end. Returns: what is wrong, or NULL. */
static const char *read_head(struct span part, struct head *out)
{
    struct span name, value;
    const char *why = NULL;
    size_t names = 0;
    *out = (struct head){0};
    while (!why && part.at < part.end) {
        const char *end = find(part, "\r\n", 2);
        if (!split_line((struct span){part.at, end}, &name, &value)) return "a part of the form has a malformed header";
        if (span_is(name, "content-disposition") && names++ == 0) why = read_name(value, out);
        if (span_is(name, "content-transfer-encoding")) out->encoded |= !is_plain_encoding(value);
        part.at = end + 2;
    }
    return !why && names != 1 ? "a part of the form must have one Content-Disposition" : why;
}

/* ---- the form ---------------------------------------------------------------------------------------- */

struct scan {
    struct span rest; /* behind the last delimiter, and the end of its line */
    char delimiter[4 + KVR_FORM_BOUNDARY_MAX];
    size_t delimiter_len;
    bool closed;
};

/* Goes past the delimiter whose boundary ends at p. */
static const char *pass_delimiter(struct scan *s, const char *p)
{
    struct span rest = {p, s->rest.end};
    if ((s->closed = begins_with(rest, "--", 2))) rest.at += 2;
    rest.at = past_space(rest.at, rest.end);
    bool ends = begins_with(rest, "\r\n", 2);
    if (ends) s->rest.at = rest.at + 2;
    if (ends || (s->closed && rest.at == rest.end)) return NULL;
    return rest.at == rest.end ? "the form has no end" : "a line of the form begins with its boundary and goes on";
}

static const char *find_first(struct scan *s)
{
    const char *mark = s->delimiter + 2;
    size_t n = s->delimiter_len - 2;
    if (begins_with(s->rest, mark, n)) return pass_delimiter(s, s->rest.at + n);
    const char *p = find(s->rest, s->delimiter, s->delimiter_len);
    return p ? pass_delimiter(s, p + s->delimiter_len) : "the form does not have the boundary that its Content-Type names";
}

/* The head and the value of the part at hand; goes past the delimiter behind it. */
static const char *next_part(struct scan *s, struct span *head, struct span *value)
{
    struct span line_end = {s->rest.at - 2, s->rest.end}; /* a delimiter may follow the last one at once */
    const char *next = find(line_end, s->delimiter, s->delimiter_len);
    if (!next) return "the form has no end";
    struct span part = {s->rest.at, next};
    const char *blank = part.at < next ? find(part, "\r\n\r\n", 4) : NULL;
    if (!blank) return "a part of the form has no header, or no blank line behind it";
    *head = (struct span){part.at, blank + 2};
    *value = (struct span){blank + 4, next};
    return pass_delimiter(s, next + s->delimiter_len);
}

static const char *take_part(const struct head *head, struct span value, const char *const *names, size_t n, struct kvr_form_field *out)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_named(&head->name, names[i])) continue;
        if (head->encoded) return "a field of the form has a Content-Transfer-Encoding";
        if (out[i].times++ == 0) out[i].ptr = value.at, out[i].len = (size_t)(value.end - value.at);
    }
    return NULL;
}

const char *kvr_form_pick(const char *body, size_t len, const char *boundary, const char *const *names, size_t n,
                          struct kvr_form_field *out)
{
    struct scan s = {.rest = {body, body + len}, .delimiter_len = 4 + strlen(boundary)};
    struct span head_text, value;
    struct head head;
    KVR_ASSERT(s.delimiter_len <= sizeof s.delimiter);
    memcpy(s.delimiter, "\r\n--", 4);
    memcpy(s.delimiter + 4, boundary, s.delimiter_len - 4);
    for (size_t i = 0; i < n; i++) out[i] = (struct kvr_form_field){0};
    const char *why = find_first(&s);
    for (size_t parts = 0; !why && !s.closed; parts++) {
        if (parts == KVR_FORM_PARTS_MAX) return "the form has more than 2048 parts";
        if (!(why = next_part(&s, &head_text, &value)) && !(why = read_head(head_text, &head)))
            why = take_part(&head, value, names, n, out);
    }
    return why;
}
