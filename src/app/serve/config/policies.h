/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --router-policy-config while the router runs. Which models have classes of their own also says which workers are kept apart (partitions),
 * so on `serve` that cannot change; everything else of the file can, while requests wait.
 *
 * Threads: the main loop, which alone makes partitions of what they say.
 */
#ifndef KVR_SERVE_POLICIES_H
#define KVR_SERVE_POLICIES_H

#include <stddef.h>

struct config;

/* Reads the file again and gives every queue its classes anew. Returns: 0, or -1 with the reason in err; then nothing is changed. */
int policies_reload(struct config *config, char *err, size_t cap);
/* Keys that name a class which is gone: no reason to refuse the classes, as the file of keys may be read next; but when all files have
 * been. */
void policies_warn_of_keys(const struct config *config);

#endif
