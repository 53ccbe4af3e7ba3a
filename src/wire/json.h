/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON: simdjson's DOM behind a C face. Values borrow the parser and are valid until its next parse.
 * 64-bit integers stay exact. A number that is JSON but fits no 64-bit integer and no double is kept as one that is out
 * of range: every reader here refuses it, so it is never taken for absent, for 0 or for a neighbour, and a body with one in
 * a field that nobody reads goes on to the engine. A byte order mark before the text is passed over, as the engines' readers do
 * (RFC 8259, 8.1, leaves that open). Everything else that is not JSON is refused, NaN and Infinity too.
 * Threads: one thread per parser. */
#ifndef KVR_WIRE_JSON_H
#define KVR_WIRE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_json_parser;
struct kvr_json {
    const void *doc;
    size_t at;
};

enum kvr_json_type {
    KVR_JSON_NONE, /* an absent value: every reader below answers false, 0 or NONE */
    KVR_JSON_NULL,
    KVR_JSON_BOOL,
    KVR_JSON_INT,
    KVR_JSON_DOUBLE,
    KVR_JSON_RANGE, /* an integer beyond 64 bits, or a number beyond a double */
    KVR_JSON_STRING,
    KVR_JSON_ARRAY,
    KVR_JSON_OBJECT
};

struct kvr_json_parser *kvr_json_parser_new(void);
void kvr_json_parser_free(struct kvr_json_parser *p);

/* Takes up to 15 bytes of memory for each byte of the text, and keeps them for the next one when the text is shorter than 256 KiB;
 * of a longer one they are given back by the next shorter one, or with the parser.
 * Returns: 0; or with a static text in *why (may be NULL) -KVR_EFORMAT, or -KVR_ENOMEM: that says nothing about the text, and the
 * parser can be used again. The buffer may go afterwards. */
int kvr_json_parse(struct kvr_json_parser *p, const char *buf, size_t len, struct kvr_json *root, const char **why);

/* What is wanted of a client's body. */
enum kvr_json_wanted {
    KVR_JSON_ALL,
    KVR_JSON_NO_ELEMENTS, /* of long lists of token ids in the members that hold prompts: that they are lists of whole numbers, how many
                           * (kvr_json_count) and which (kvr_json_u32_array); not the elements one by one */
    KVR_JSON_NO_PROMPT    /* nor long texts and other lists there: those texts are "" */
};
/* The same, at less cost: what is not wanted is looked at, but not read (wire/json_brief.h). The text stays while ids are read. */
int kvr_json_parse_brief(struct kvr_json_parser *p, const char *buf, size_t len, enum kvr_json_wanted wanted, struct kvr_json *root,
                         const char **why);

enum kvr_json_type kvr_json_type_of(struct kvr_json v);
/* It is there, and not null. */
static inline bool kvr_json_is_given(struct kvr_json v)
{
    return kvr_json_type_of(v) > KVR_JSON_NULL;
}
/* Member of an object, or an absent value. Of members of one name the last, which is what the engines' readers take. */
struct kvr_json kvr_json_get(struct kvr_json object, const char *key);
static inline bool kvr_json_has(struct kvr_json object, const char *key)
{
    return kvr_json_is_given(kvr_json_get(object, key));
}
/* out[i]: the member keys[i], or an absent value, for n keys in one pass over the object.
 * Returns: -1, or which of the keys the object has more than once. */
int kvr_json_pick(struct kvr_json object, const char *const *keys, size_t n, struct kvr_json *out);

/* Whether every object of the parsed text has each member once. For bodies of our own APIs, where a second reader (a proxy,
 * a log) may take the other one. Objects of more than KVR_JSON_MEMBERS_MAX members are refused, to bound the work.
 * Returns: 0; -KVR_EEXISTS with the start of the member's name in `name` (cut to cap, NUL behind); -KVR_ELIMIT; -KVR_ENOMEM. */
enum { KVR_JSON_MEMBERS_MAX = 4096 };
int kvr_json_check_members(const struct kvr_json_parser *p, char *name, size_t cap);
struct kvr_json kvr_json_at(struct kvr_json array, size_t i); /* linear */
size_t kvr_json_count(struct kvr_json array_or_object);
bool kvr_json_as_str(struct kvr_json v, const char **s, size_t *len);
/* The same of a text that may become a C string: one without a NUL, behind which two readers would see two names. */
static inline bool kvr_json_as_name(struct kvr_json v, const char **s, size_t *len)
{
    return kvr_json_as_str(v, s, len) && !memchr(*s, 0, *len);
}
/* A name of less than cap bytes, as a C string. Returns: false for anything else: out is "" then. */
static inline bool kvr_json_copy_name(struct kvr_json v, char *out, size_t cap)
{
    const char *s;
    size_t len;
    bool fits = kvr_json_as_name(v, &s, &len) && len < cap;
    if (fits) memcpy(out, s, len);
    out[fits ? len : 0] = 0;
    return fits;
}
static inline bool kvr_json_is_str(struct kvr_json v, const char *text)
{
    const char *s;
    size_t len;
    return kvr_json_as_str(v, &s, &len) && len == strlen(text) && memcmp(s, text, len) == 0;
}
bool kvr_json_as_u64(struct kvr_json v, uint64_t *out);
bool kvr_json_as_i64_bits(struct kvr_json v, uint64_t *out); /* signed or unsigned, by bits */
bool kvr_json_as_double(struct kvr_json v, double *out);
bool kvr_json_as_bool(struct kvr_json v, bool *out);
static inline bool kvr_json_is_true(struct kvr_json v)
{
    bool b = false;
    return kvr_json_as_bool(v, &b) && b;
}
bool kvr_json_are_u32(struct kvr_json v); /* a list of them */
/* All elements as u32 / as 64-bit words by bits. Returns: the count, or -KVR_EFORMAT, -KVR_ELIMIT when more than cap. */
long kvr_json_u32_array(struct kvr_json array, uint32_t *out, size_t cap);
long kvr_json_u64_array(struct kvr_json array, uint64_t *out, size_t cap);

/* The elements of a list, the members of an object; of anything else none:
 *     for (struct kvr_json_iter i = kvr_json_iter(list); kvr_json_next(&i);) use(i.value); */
struct kvr_json_iter {
    const char *key; /* of a member; an element has none: NULL */
    size_t key_len;
    struct kvr_json value;
    bool members;     /* it goes over an object */
    size_t next, end; /* the iterator's own */
};
struct kvr_json_iter kvr_json_iter(struct kvr_json container);
bool kvr_json_next(struct kvr_json_iter *i);

#ifdef __cplusplus
}
#endif
#endif
