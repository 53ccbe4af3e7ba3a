/* SPDX-License-Identifier: Apache-2.0 */
/* The loads of all slots, field by field: for who looks at every rank for each request. */
#ifndef KVR_LOAD_COLUMNS_H
#define KVR_LOAD_COLUMNS_H

#include <kvroute/load.h>

#include "base/base.h"

/* As in struct kvr_rank_load; each has kvr_load_slots() places. */
struct kvr__load_columns {
    uint64_t *prefill_tokens, *blocks;
    uint32_t *requests, *prefills;
};

/* What kvr_load_get_all says, without the workers. */
void kvr__load_columns(const struct kvr_load *load, uint64_t now_ns, const struct kvr__load_columns *out);

/* Makes room for what kvr_load_set_worker will add, which then cannot fail. Returns: as that. */
int kvr__load_reserve(struct kvr_load *load, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size);

#endif
