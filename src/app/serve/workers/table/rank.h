/* SPDX-License-Identifier: Apache-2.0 */
/* The data-parallel rank that a request is sent to: rank.c. Any thread; functions with _locked want the table's lock. */
#ifndef KVR_SERVE_RANK_H
#define KVR_SERVE_RANK_H

#include "app/serve/workers/table/worker.h"
#include "wire/rank_member.h"

bool engine_kind_parse(const char *name, enum engine_kind *out);
const char *engine_kind_name(enum engine_kind kind);
/* Whether its requests name the rank: there are several at its address. One alone is not named, as an engine takes any number but its own
 * place for a mistake: vLLM with --data-parallel-rank 1 refuses rank 1, and one whose ranks nobody mentioned would put all on rank 0. */
bool rank_is_named_locked(const struct worker *w);
/* What the worker is sent of a body for that rank. `has`: what the body says; NULL: it is no JSON object. Returns: `body`, or another
 * one; the caller gives it back; NULL: no memory, or the budget for bodies is used up. */
struct kvr_body *rank_body(const struct worker *w, struct kvr_body *body, const struct kvr_rank_member *has, uint32_t rank);

#endif
