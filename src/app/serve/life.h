/* SPDX-License-Identifier: Apache-2.0 */
/* What serve.c makes before anything runs, for it and for check.c: no thread, no loop, no socket. */
#ifndef KVR_SERVE_LIFE_H
#define KVR_SERVE_LIFE_H

#include <stddef.h>
#include <stdint.h>

struct kvr_entry;
struct serve;
struct serve_options;

struct serve *serve_new(const struct serve_options *o); /* NULL: out of memory */
void serve_free(struct serve *s);                       /* nothing of it runs any more */
/* A worker of --worker, at that place from 1. Returns: 0, or -1 with the reason in err. */
int serve_add_worker(struct serve *s, const struct kvr_entry *e, uint64_t place, char *err, size_t cap);
const char *serve_mode_name(const struct serve_options *o);

#endif
