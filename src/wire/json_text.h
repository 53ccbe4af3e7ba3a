/* SPDX-License-Identifier: Apache-2.0 */
/* Where in a JSON text a value is, for texts that are changed in one place and stay byte for byte elsewhere. The text has been parsed
 * before (wire/json.h): it is known to be JSON. Threads: pure functions. */
#ifndef KVR_WIRE_JSON_TEXT_H
#define KVR_WIRE_JSON_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Past white space, and the byte order mark that the text may begin with: inside of it there is none between values. */
const char *kvr_json_text_space(const char *p, const char *end);
/* Past the value that begins at p. */
const char *kvr_json_text_end(const char *p, const char *end);
/* Where the value of the object's one member of that name begins; `p` is at its brace. NULL: it has none that is written so, or
 * two. */
const char *kvr_json_text_member(const char *p, const char *end, const char *name);

/* A value of the text, or none: {NULL, NULL}. */
struct kvr_json_span {
    const char *at, *end;
};

struct kvr_json_text_pair {
    const char *key; /* as it is written, without its quotes */
    size_t key_len;
    struct kvr_json_span value;
};

/* The next member of an object, the next element of an array; *p is at its bracket at first. false: there are no more, or it is neither. */
bool kvr_json_text_next(const char **p, const char *end, struct kvr_json_text_pair *out);
bool kvr_json_text_item(const char **p, const char *end, struct kvr_json_span *out);

/* out[i]: the object's member names[i]; none when it is absent or null. Returns: false when that cannot be told: one of them is there
 * twice, or a key is written with escapes. */
bool kvr_json_text_pick(struct kvr_json_span object, const char *const *names, size_t n, struct kvr_json_span *out);

/* Whether the member has that name (of ASCII characters), which may be written with escapes. */
bool kvr_json_text_named(const struct kvr_json_text_pair *m, const char *name);
/* The last member of that name, which is the one that the parser and the engines take, or none; object.at is at its brace. */
struct kvr_json_span kvr_json_text_last(struct kvr_json_span object, const char *name);

bool kvr_json_span_is(struct kvr_json_span v, const char *text); /* byte for byte */

#endif
