/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the answers of a worker tell how much was cached: telling.c. Any thread; under the table's lock. */
#ifndef KVR_SERVE_TELLING_H
#define KVR_SERVE_TELLING_H

#include <stdbool.h>

#include "base/buf.h"

struct workers;
struct worker;

struct answer_telling {
    unsigned form;       /* of the answer, below 32 */
    bool told, sure_hit; /* a part of the prompt was cached for sure */
};
/* The answer of a request that has the worker. Returns: whether its cached tokens are known; those that it does not tell are 0 then. */
bool telling_note(struct workers *ws, struct worker *w, const struct answer_telling *a);
void telling_forget_locked(struct worker *w, bool restarted); /* not restarted: its cache is another */
void telling_write_locked(const struct worker *w, struct kvr_buf *b);

#endif
