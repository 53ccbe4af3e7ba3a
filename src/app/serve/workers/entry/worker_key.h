/* SPDX-License-Identifier: Apache-2.0 */
/* The key that an engine wants: worker_key.c. Any thread. */
#ifndef KVR_SERVE_WORKER_KEY_H
#define KVR_SERVE_WORKER_KEY_H

#include <stdbool.h>

#include "app/serve/workers/table/worker.h"

bool worker_key_ok(const char *key); /* 1 to 255 characters that can be seen */
/* The key of a worker's entry; option: api-key (the key itself), api-key-env (the variable it is in), api-key-file (its first line). */
bool worker_key_read(const char *option, const char *value, char key[API_KEY_MAX]);
void worker_key_put(const char *key, struct kvr_buf *head); /* the header, if there is a key */

#endif
