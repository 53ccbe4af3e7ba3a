/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of the parts of a chat that are not text; wire/mm_parts.h says when two are the same. */
#include "wire/mm_parts.h"

#include <string.h>
#include <strings.h>
#include <kvroute/hash.h>

#include "wire/json_text.h"

/* ---- what a part is ---------------------------------------------------------------------------------- */

static bool is_one_of(const char *s, size_t len, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kvr_span_is(s, len, list[i])) return true;
    return false;
}

bool kvr_part_text(struct kvr_json part, const char **text, size_t *len)
{
    static const char *const types[] = {"text", "input_text", "output_text", "refusal", "thinking"};
    static const char *const members[] = {"text", "refusal", "thinking"};
    const char *type;
    size_t type_len;
    if (kvr_json_as_str(part, text, len)) return true;
    if (kvr_json_type_of(part) != KVR_JSON_OBJECT) return false;
    if (!kvr_json_as_str(kvr_json_get(part, "type"), &type, &type_len)) /* engines then go by what there is */
        return kvr_json_count(part) == 1 && kvr_json_as_str(kvr_json_get(part, "text"), text, len);
    if (!is_one_of(type, type_len, types, KVR_ARRAY_LEN(types))) return false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(members); i++)
        if (kvr_json_as_str(kvr_json_get(part, members[i]), text, len)) return true;
    return false;
}

/* ---- digest ------------------------------------------------------------------------------------------ */

struct digest {
    uint64_t h[2];
};

static void take(struct digest *d, uint64_t what, const void *bytes, size_t len)
{
    for (int i = 0; i < 2; i++) d->h[i] = kvr_hash_bytes(bytes, len, d->h[i] ^ kvr_mix64(what * 2 + (uint64_t)i) ^ kvr_mix64(len));
}

static int sextet(unsigned char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    if (c == '/' || c == '_') return 63;
    return -1;
}

/* The bytes behind base64, a piece at a time. false: it is something else, and nothing is taken. */
static bool take_base64(struct digest *d, const char *s, size_t len)
{
    unsigned char piece[3072];
    struct digest sum = *d;
    size_t n = 0;
    uint32_t bits = 0;
    int have = 0;
    while (len && s[len - 1] == '=') len--;
    for (size_t i = 0; i < len; i++) {
        int v = sextet((unsigned char)s[i]);
        if (v < 0) return false;
        bits = bits << 6 | (uint32_t)v;
        have += 6;
        if (have < 8) continue;
        have -= 8;
        piece[n++] = (unsigned char)(bits >> have);
        if (n < sizeof piece) continue;
        take(&sum, 'b', piece, n);
        n = 0;
    }
    take(&sum, 'b', piece, n);
    *d = sum;
    return true;
}

static void take_text(struct digest *d, const char *s, size_t len)
{
    static const char base64[] = ";base64";
    const char *comma = len > 5 && strncasecmp(s, "data:", 5) == 0 ? memchr(s, ',', len) : NULL;
    size_t head = comma ? (size_t)(comma - s) : 0;
    bool encoded = head >= sizeof base64 - 1 && strncasecmp(comma - (sizeof base64 - 1), base64, sizeof base64 - 1) == 0;
    if (encoded && take_base64(d, comma + 1, len - head - 1)) return;
    take(d, 's', s, len);
}

static void take_value(struct digest *d, struct kvr_json v)
{
    const char *s;
    size_t len;
    uint64_t whole = 0;
    double number = 0;
    bool flag = false;
    enum kvr_json_type type = kvr_json_type_of(v);
    if (kvr_json_as_str(v, &s, &len)) {
        take_text(d, s, len);
        return;
    }
    if (!kvr_json_as_i64_bits(v, &whole) && kvr_json_as_double(v, &number)) memcpy(&whole, &number, sizeof whole);
    else if (kvr_json_as_bool(v, &flag)) whole = flag;
    take(d, (uint64_t)type, &whole, sizeof whole);
    if (type != KVR_JSON_ARRAY && type != KVR_JSON_OBJECT) return;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i);) {
        if (i.key) take(d, 'k', i.key, i.key_len);
        take_value(d, i.value);
    }
    take(d, 'e', "", 0);
}

void kvr_part_digest(const char *key, size_t key_len, struct kvr_json part, unsigned char out[KVR_PART_DIGEST])
{
    struct digest d = {{0, 0}};
    if (key) take(&d, 'm', key, key_len);
    struct kvr_json uuid = kvr_json_get(part, "uuid");
    const char *s;
    size_t len;
    if (kvr_json_as_str(uuid, &s, &len) && len) {
        take_value(&d, kvr_json_get(part, "type"));
        take(&d, 'u', s, len);
    } else {
        take_value(&d, part);
    }
    memcpy(out, d.h, KVR_PART_DIGEST);
}

/* ---- where they are ---------------------------------------------------------------------------------- */

static bool is_object_part(struct kvr_json part)
{
    const char *s;
    size_t len;
    return !kvr_part_text(part, &s, &len);
}

static bool has_object_part(struct kvr_json message)
{
    struct kvr_json content = kvr_json_get(message, "content");
    if (kvr_json_type_of(content) == KVR_JSON_OBJECT) return is_object_part(content);
    if (kvr_json_type_of(content) != KVR_JSON_ARRAY) return false;
    for (struct kvr_json_iter i = kvr_json_iter(content); kvr_json_next(&i);)
        if (is_object_part(i.value)) return true;
    return false;
}

const char *const kvr_mm_members[KVR_MM_MEMBERS] = {"prompt_embeds", "multi_modal_data", "image_data", "audio_data", "video_data"};

static bool has_member(struct kvr_json body)
{
    for (size_t i = 0; i < KVR_MM_MEMBERS; i++)
        if (kvr_json_has(body, kvr_mm_members[i])) return true;
    return false;
}

bool kvr_mm_parts_any(struct kvr_json body)
{
    struct kvr_json messages = kvr_json_get(body, "messages");
    if (has_member(body)) return true;
    if (kvr_json_type_of(messages) != KVR_JSON_ARRAY) return false;
    for (struct kvr_json_iter i = kvr_json_iter(messages); kvr_json_next(&i);)
        if (has_object_part(i.value)) return true;
    return false;
}

/* ---- taking them out: a walk over the text, which is known to be JSON, beside the parsed values ------ */

struct removal {
    const char *at, *end; /* the element whose turn it is */
    const char *copied;   /* so far */
    struct kvr_buf *out;
    bool kept; /* a part was written */
};

static void next_element(struct removal *r)
{
    r->at = kvr_json_text_space(kvr_json_text_end(r->at, r->end), r->end);
    if (r->at < r->end && *r->at == ',') r->at = kvr_json_text_space(r->at + 1, r->end);
}

static void keep_text(struct removal *r, struct kvr_json part)
{
    if (!is_object_part(part)) {
        kvr_buf_str(r->out, r->kept ? "," : "[");
        kvr_buf_add(r->out, r->at, (size_t)(kvr_json_text_end(r->at, r->end) - r->at));
        r->kept = true;
    }
    next_element(r);
}

/* Writes what is left of a message's content at p. */
static void write_content(const struct removal *r, const char *p, struct kvr_json content)
{
    struct removal parts = {.at = kvr_json_text_space(p + 1, r->end), .end = r->end, .out = r->out};
    struct kvr_json_iter i = kvr_json_iter(content);
    while (kvr_json_type_of(content) == KVR_JSON_ARRAY && kvr_json_next(&i)) keep_text(&parts, i.value);
    kvr_buf_str(r->out, parts.kept ? "]" : "\"\"");
}

static bool clean_message(struct removal *r, struct kvr_json message)
{
    if (has_object_part(message)) {
        const char *p = kvr_json_text_member(r->at, r->end, "content");
        if (!p || p >= r->end || (*p != '[' && *p != '{')) return false;
        kvr_buf_add(r->out, r->copied, (size_t)(p - r->copied));
        write_content(r, p, kvr_json_get(message, "content"));
        r->copied = kvr_json_text_end(p, r->end);
    }
    next_element(r);
    return true;
}

bool kvr_mm_parts_remove(const char *text, size_t len, struct kvr_json body, struct kvr_buf *out)
{
    const char *end = text + len, *messages = kvr_json_text_member(kvr_json_text_space(text, end), end, "messages");
    if (!messages || *messages != '[' || has_member(body)) return false;
    struct removal r = {.at = kvr_json_text_space(messages + 1, end), .end = end, .copied = text, .out = out};
    for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(body, "messages")); kvr_json_next(&i);)
        if (!clean_message(&r, i.value)) return false;
    kvr_buf_add(out, r.copied, (size_t)(end - r.copied));
    return true;
}
