/* SPDX-License-Identifier: Apache-2.0 */
/* Where in a JSON text a value is, for texts that are changed in one place and stay byte for byte elsewhere. The text has been parsed
 * before (wire/json.h): it is known to be JSON. Threads: pure functions. */
#ifndef KVR_WIRE_JSON_TEXT_H
#define KVR_WIRE_JSON_TEXT_H

/* Past white space. */
const char *kvr_json_text_space(const char *p, const char *end);
/* Past the value that begins at p. */
const char *kvr_json_text_end(const char *p, const char *end);
/* Where the value of the object's one member of that name begins; `p` is at its brace. NULL: it has none that is written so, or
 * two. */
const char *kvr_json_text_member(const char *p, const char *end, const char *name);

#endif
