/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flags and whole numbers in a request's body, as vLLM and SGLang read them: with pydantic's lax rules, by which "yes", "1" and 1.0 are
 * true, and "5", " 5 ", "1_000", "5.0", 5.0 and true are whole numbers. What is neither they refuse.
 *
 * https://docs.pydantic.dev/latest/concepts/conversion_table/; the texts as pydantic 2 was seen to take them.
 */
#ifndef KVR_WIRE_LAX_H
#define KVR_WIRE_LAX_H

#include "wire/json.h"

/* Absent, null, or none: `otherwise`. */
bool kvr_lax_bool(struct kvr_json v, bool otherwise);
/* Beyond 64 bits: the largest, or of a text or a fraction the least. false: absent, null or none, and *out is as it was. */
bool kvr_lax_i64(struct kvr_json v, int64_t *out);
/* Of a text. */
bool kvr_lax_text_i64(const char *s, size_t len, int64_t *out);
/* As kvr_lax_i64, for what may not be less than 0. */
bool kvr_lax_u64(struct kvr_json v, uint64_t *out);

#endif
