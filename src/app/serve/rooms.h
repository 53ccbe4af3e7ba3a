/* SPDX-License-Identifier: Apache-2.0 */
/* All rooms of one process, as rooms.c makes and connects them. Only serve.c and check.c see them together. */
#ifndef KVR_SERVE_ROOMS_H
#define KVR_SERVE_ROOMS_H

#include "app/serve/common/process.h"

struct admin;
struct config;
struct data_plane;
struct discovery;
struct peers;
struct tokenizers;
struct workers;

struct rooms {
    struct process process;
    struct workers *workers;
    struct config *config;
    struct tokenizers *tokenizers;
    struct peers *peers;
    struct discovery *discovery;
    struct data_plane *data;
    struct admin *admin;
};

/* No thread, no socket: what is there before anything is read. Returns: false without memory; then nothing is left. */
bool rooms_create(struct rooms *r, const struct serve_options *o);
void rooms_destroy(struct rooms *r); /* nothing of them runs any more */
/* A worker of --worker, at that place from 1. Returns: 0, or -1 with the reason in err. */
int rooms_add_worker(struct rooms *r, const struct kvr_entry *e, uint64_t place, char *err, size_t cap);

#endif
