/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of a chat that are not text: images, sounds, videos, files, and whatever else this code does not know. Two such parts
 * are the same when their digests are. A part with a `uuid` (vLLM) is what that says, and a data: URL is its bytes; anything
 * else is all that the part says, so nothing that could tell two parts apart is left out.
 *
 * Threads: pure functions; parts borrow their parser.
 */
#ifndef KVR_WIRE_MM_PARTS_H
#define KVR_WIRE_MM_PARTS_H

#include "base/buf.h"
#include "wire/json.h"

enum { KVR_PART_DIGEST = 16 };

/* Is a part (an element of `content`) text? Then *text is what it says. */
bool kvr_part_text(struct kvr_json part, const char **text, size_t *len);

/* Of a part; or, with a key, of a member by that name. Constant memory, whatever the size. */
void kvr_part_digest(const char *key, size_t key_len, struct kvr_json part, unsigned char out[KVR_PART_DIGEST]);

/* Members of a body that are part of the prompt beside its text, whatever that is: embeddings, lists of images. */
extern const char *const kvr_mm_members[];
enum { KVR_MM_MEMBERS = 5 };

/* Has a message of `body` a part that is not text, or the body one of those members? */
bool kvr_mm_parts_any(struct kvr_json body);

/* Appends text[len], from which `body` was parsed, without those parts; all else stays byte for byte.
 * Returns: false when they could not be found there (a member's name is written with escapes, or twice), or have no place in the text. */
bool kvr_mm_parts_remove(const char *text, size_t len, struct kvr_json body, struct kvr_buf *out);

#endif
