/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a prefill worker of vllm-mooncake says at its bootstrap address: the name of each rank's engine, which changes with each start of
 * it.
 *
 *     none --a request needs it--> asked (5 s) --> known --60 s old: asked again meanwhile--> known
 *       ^                            |              |
 *       '--- refused, for a second --'              '-- the worker has come up again, or a transfer was refused: none
 *
 * Each loop asks for itself, and keeps at most BOOTSTRAPS_MAX answers of at most BOOTSTRAP_ANSWER_MAX bytes; one more takes the place of
 * the one that has not been used for longest. Threads: the loop's.
 */
#ifndef KVR_SERVE_BOOTSTRAP_H
#define KVR_SERVE_BOOTSTRAP_H

#include <stddef.h>
#include <stdint.h>

enum { BOOTSTRAPS_MAX = 1024, BOOTSTRAP_ANSWER_MAX = 256 << 10 };

enum bootstrap_state { BOOTSTRAP_KNOWN, BOOTSTRAP_ASKED, BOOTSTRAP_REFUSED };

struct loop;
struct worker;

/* The name of the engine of a rank, as the worker counts them. ASKED: look again in a moment. `w` is held. */
enum bootstrap_state bootstrap_engine(struct loop *l, const struct worker *w, uint32_t rank, char *out, size_t cap);
/* What is known of it may be of an engine that is gone. */
void bootstrap_forget(struct loop *l, uint64_t worker);
void bootstraps_free(struct loop *l);

#endif
