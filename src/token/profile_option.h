/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --tokenizer-profile: what an operator says of how engines render chats, as JSON that goes into the library's options
 * (kvr_tokenizer.h has what the members mean). It is checked here, so that every program refuses the same at its start, with or without
 * the library: the library itself passes over what it does not know.
 *
 * Threads: any. Owns nothing.
 */
#ifndef KVR_TOKEN_PROFILE_OPTION_H
#define KVR_TOKEN_PROFILE_OPTION_H

#include <stdbool.h>
#include <stddef.h>

/* NULL is fine. Returns: 0, -1 with the reason, which names the option, what is wrong, and what is allowed. */
int kvr_profile_option_check(const char *profile, char *why, size_t cap);
/* Does it say anything? Else it is NULL or an object without members. */
bool kvr_profile_option_says(const char *profile);

#endif
