/* SPDX-License-Identifier: Apache-2.0 */
/* Why an engine ended an answer: `finish_reason` of completions and chats, of an answer's bytes as they pass. */
#ifndef KVR_WIRE_FINISH_H
#define KVR_WIRE_FINISH_H

#include <stddef.h>

/* OTHER: a reason that is not listed here; UNTOLD: none was seen. */
#define KVR_FINISHES(X)                                                                                                                    \
    X(UNTOLD, "untold")                                                                                                                    \
    X(STOP, "stop") X(LENGTH, "length") X(TOOL_CALLS, "tool_calls") X(CONTENT_FILTER, "content_filter") X(OTHER, "other")

enum kvr_finish {
#define KVR_FINISH_ENUM(name, text) KVR_FINISH_##name,
    KVR_FINISHES(KVR_FINISH_ENUM)
#undef KVR_FINISH_ENUM
};

/* The last reason in a text of JSON, which need not be valid or whole. A quote inside a string of JSON has a backslash before it, so a
 * member's name with plain quotes is one. */
enum kvr_finish kvr_finish_in(const char *data, size_t len);
/* The reason of one member, behind whose name `s` is. UNTOLD: its value is no string, or is cut off. */
enum kvr_finish kvr_finish_behind(const char *s, const char *end);

#endif
