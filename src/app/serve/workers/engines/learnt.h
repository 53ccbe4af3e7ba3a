/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a worker is used with before and after its engine is asked: whether it is asked at all, what stands until then, what is shown of it.
 * Threads: the main loop, under the table's lock where the worker is in the table.
 */
#ifndef KVR_SERVE_LEARNT_H
#define KVR_SERVE_LEARNT_H

#include "app/serve/workers/table/worker.h"

bool learns(const struct workers *ws, const struct worker *w); /* is its engine asked? */
bool learns_events(const struct workers *ws);                  /* and for its events? */
/* Before it is added: what is not given is to be learnt. */
void learn_begin(const struct workers *ws, struct worker *w);
void learnt_write(struct kvr_buf *b, const struct worker *w); /* members of the worker object */
/* The block size to begin with, when nobody has said one. */
uint32_t worker_block_size(const struct workers *ws, const struct worker *w);

#endif
