/* SPDX-License-Identifier: Apache-2.0 */
/* What a request has to know of the workers that serve its model: rows of the roster (workers/table/roster.h). Any thread. */
#ifndef KVR_SERVE_ELIGIBLE_H
#define KVR_SERVE_ELIGIBLE_H

#include "app/serve/data/request/request.h"

/* The workers that may be chosen for it; sets r->is_lora. roster_let_go. NULL: no memory. */
const struct roster_row *eligible_workers(struct request *r);
/* The partition the prompt would go to now, or NULL. */
struct partition *eligible_partition(struct request *r);
/* Some healthy worker that serves the model, with a reference; NULL: none. *exists: there is any worker at all. */
struct worker *eligible_tokenizer(const struct request *r, bool *exists);
/* What the prompt's workers have room for, in tokens (0: not known). Returns: whether they truncate prompts as vLLM does. */
bool eligible_truncates(const struct request *r, uint64_t *room);
/* Whether one of them is an SGLang. */
bool eligible_has_sglang(const struct request *r);

#endif
