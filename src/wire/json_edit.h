/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Members of an object are changed, go or come; every other byte of its text stays.
 *
 *     {"a": 1, "b" : 2 ,"b":3}      b = 7, a goes, c = 8     ->     {"b" : 7,"c":8 }
 *
 * A member that is there several times goes, or is changed, everywhere: the first of them takes the new value, the others go. What is
 * new comes last. A name is found however it is written ("\u0062"); where only the value is new it stays as it is written.
 *
 * One pass, a time of (members x edits), no memory besides that of `out`. Threads: pure functions.
 */
#ifndef KVR_WIRE_JSON_EDIT_H
#define KVR_WIRE_JSON_EDIT_H

#include "base/buf.h"
#include "wire/json_text.h"

enum { KVR_JSON_EDITS_MAX = 64 };

struct kvr_json_edit {
    const char *name;  /* ASCII, without what a string would escape; each once */
    const char *value; /* JSON text, borrowed; NULL: the member goes */
    size_t value_len;  /* bytes */
    bool only_if_present;
};

/* Appends the body, which must be JSON, with n <= KVR_JSON_EDITS_MAX edits; none of the texts may be in `out`.
 * Returns: false, with nothing appended, when it is no object, or its members do not end at its last brace. */
bool kvr_json_edit(struct kvr_json_span body, const struct kvr_json_edit *edits, size_t n, struct kvr_buf *out);

#endif
