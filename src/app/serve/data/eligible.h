/* SPDX-License-Identifier: Apache-2.0 */
/* What a request has to know of the workers that serve its model. Any thread. */
#ifndef KVR_SERVE_ELIGIBLE_H
#define KVR_SERVE_ELIGIBLE_H

#include "app/serve/data/request.h"

/* Workers that serve the model, in the pool most of them are in. *all: that is every worker of the pool. Sets r->is_lora. */
struct eligible {
    struct pool *pool; /* NULL: nobody serves it */
    uint64_t *ids;     /* room for cap of them; the caller's */
    size_t n, cap;
    bool all;
};
void eligible_workers_locked(struct request *r, struct eligible *e);
/* The pool the prompt would go to now, or NULL. */
struct pool *eligible_pool(struct request *r);
/* Some healthy worker that serves the model, with a reference; NULL: none. *exists: there is any worker at all. */
struct worker *eligible_tokenizer(const struct request *r, bool *exists);
/* What the prompt's workers have room for, in tokens (0: not known). Returns: whether they truncate prompts as vLLM does. */
bool eligible_truncates(const struct request *r, uint64_t *room);

#endif
