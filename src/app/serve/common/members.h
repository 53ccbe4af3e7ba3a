/* SPDX-License-Identifier: Apache-2.0 */
/* Members of bodies. Absent or null: nothing changes. false: *bad names the member. */
#ifndef KVR_SERVE_MEMBERS_H
#define KVR_SERVE_MEMBERS_H

#include <stdbool.h>
#include <stdint.h>

#include "wire/json.h"

bool member_u64(struct kvr_json o, const char *key, uint64_t max, uint64_t *out, const char **bad);
bool member_double(struct kvr_json o, const char *key, double min, double max, double *out, const char **bad);
bool member_bool(struct kvr_json o, const char *key, bool *out, const char **bad);
bool member_text(struct kvr_json o, const char *key, char *out, size_t cap, const char **bad);

#endif
