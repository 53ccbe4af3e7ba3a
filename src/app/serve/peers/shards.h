/* SPDX-License-Identifier: Apache-2.0 */
/* Several indexers: which of them follows which worker (shards.c). Threads: the main loop. */
#ifndef KVR_SERVE_SHARDS_H
#define KVR_SERVE_SHARDS_H

#include "base/buf.h"

struct peers;
struct kvr_prom_page;

int shards_start(struct peers *peers); /* Returns: 0 or -KVR_ENOMEM */
void shards_tick(struct peers *peers); /* main loop */
void shards_stop(struct peers *peers);
void shards_metrics(struct peers *peers, struct kvr_prom_page *out);

#endif
