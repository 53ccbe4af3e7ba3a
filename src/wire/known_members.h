/* SPDX-License-Identifier: Apache-2.0 */
/* Members that nobody reads: who writes one has made a slip, and learns which name was meant. Pure functions. */
#ifndef KVR_WIRE_KNOWN_MEMBERS_H
#define KVR_WIRE_KNOWN_MEMBERS_H

#include "wire/json.h"

enum { KVR_UNKNOWN_MAX = 8, KVR_UNKNOWN_NAME_MAX = 64 };

struct kvr_unknown_members {
    size_t n; /* that are named */
    char names[KVR_UNKNOWN_MAX][KVR_UNKNOWN_NAME_MAX];
};

/* The members of an object that are in none of the lists, each of which ends with NULL. Names are cut, and only the first are named. */
void kvr_unknown_members(struct kvr_json object, const char *const *const *lists, size_t lists_n, struct kvr_unknown_members *out);
/* "unknown member 'x'; did you mean 'y'?", or the names that there are. */
void kvr_unknown_member_say(const char *name, const char *const *const *lists, size_t lists_n, char *out, size_t cap);

#endif
