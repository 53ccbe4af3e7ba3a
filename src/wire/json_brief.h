/* SPDX-License-Identifier: Apache-2.0 */
/* A brief text for a long one: what prompts consist of is cut out of a body before it is parsed, for who does not want to read it.
 *
 *     {"model":"m","prompt":[11,12,13, ... ,99],"n":1}       {"model":"m","prompt":[0],"n":1}
 *     {"messages":[{"role":"user","content":"long ..."}]}    {"messages":[{"role":"user","content":""}]}
 *
 * What is cut was looked at, and is JSON: a list of whole numbers of up to nine digits, a string in UTF-8. All else is copied as it is. So
 * the brief text is JSON when the long one is, and has the same members, in the same order. What is in doubt is copied: who parses
 * the brief text is the judge of it.
 *
 * Threads: pure functions. Used by wire/json.cc alone. */
#ifndef KVR_WIRE_JSON_BRIEF_H
#define KVR_WIRE_JSON_BRIEF_H

#include "base/buf.h"
#include "wire/json.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVR_JSON_CUTS_MAX = 64, /* lists that are cut; more are copied */
    KVR_JSON_CUT_IDS_MAX = (1 << 24) - 2
};

struct kvr_json_cut {
    size_t list;    /* which list of the brief text it is, counted from 0 in the order of their brackets */
    const char *at; /* its first element, in the long text */
    size_t n;       /* elements */
};

struct kvr_json_brief {
    struct kvr_buf text;
    struct kvr_json_cut cuts[KVR_JSON_CUTS_MAX]; /* rising */
    size_t cuts_n;
};

/* Returns: false: it would not be much shorter, or there is no memory for it. The text has at least one byte. */
bool kvr_json_brief(const char *text, size_t len, enum kvr_json_wanted wanted, struct kvr_json_brief *out);

void kvr_json_brief_free(struct kvr_json_brief *b);

/* The ids of a list that was cut, before which there are eight bytes at least. */
void kvr_json_brief_ids(const char *at, size_t n, uint32_t *out);

/* In json.cc: simdjson has the fastest way. */
bool kvr__json_is_utf8(const char *text, size_t len);

/* ---- for tests: all ways give the same ------------------------------------------------------------------ */

/* Past a list that may be cut, whose first element is at p, and its elements in *n. NULL: it is none. */
typedef const char *kvr__json_ids_fn(const char *p, const char *end, size_t *n);
/* The first byte of a string's inside that does not stand for itself: a quote, a backslash, a control character; or end. *ascii
 * becomes false where one before it is beyond ASCII. */
typedef const char *kvr__json_plain_fn(const char *p, const char *end, bool *ascii);

struct kvr__json_ways {
    kvr__json_ids_fn *ids;
    void (*read)(const char *at, size_t n, uint32_t *out); /* the ids of such a list */
    kvr__json_plain_fn *plain;
};
/* From the one that every machine has to the fastest; NULL: this machine has no more. */
const struct kvr__json_ways *kvr__json_way(size_t i);

#ifdef __cplusplus
}
#endif
#endif
