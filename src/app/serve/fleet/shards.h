/* SPDX-License-Identifier: Apache-2.0 */
/* Several indexers: which of them follows which worker (shards.c). Threads: the main loop. */
#ifndef KVR_SERVE_SHARDS_H
#define KVR_SERVE_SHARDS_H

#include "base/buf.h"

struct serve;
struct kvr_prom_page;

int shards_start(struct serve *s); /* Returns: 0 or -KVR_ENOMEM */
void shards_tick(struct serve *s); /* main loop */
void shards_stop(struct serve *s);
void shards_metrics(struct serve *s, struct kvr_prom_page *out);

#endif
