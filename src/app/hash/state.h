/* SPDX-License-Identifier: Apache-2.0 */
/* What hash_app.c and prompt.c share. */
#ifndef KVR_HASH_STATE_H
#define KVR_HASH_STATE_H

#include "app/hash/hash.h"
#include "token/pool.h"

/* The ids of --text or --messages. Returns: 0, or an exit code; what is wrong was said. */
int prompt_ids(const struct hash_options *o, struct kvr_ids **out);

#endif
