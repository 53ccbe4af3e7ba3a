/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the answers of a worker tell how much was cached: usage_reporting.c. Any thread; written under the table's lock. */
#ifndef KVR_SERVE_USAGE_REPORTING_H
#define KVR_SERVE_USAGE_REPORTING_H

#include <stdbool.h>

#include "base/buf.h"

struct workers;
struct worker;

struct answer_report {
    unsigned form;       /* of the answer, below 32 */
    bool told, sure_hit; /* a part of the prompt was cached for sure */
};
/* The answer of a request that has the worker. Returns: whether its cached tokens are known; those that it does not tell are 0 then. */
bool usage_reporting_note(struct workers *ws, struct worker *w, const struct answer_report *a);
void usage_reporting_forget_locked(struct worker *w, bool restarted); /* not restarted: its cache is another */
void usage_reporting_write_locked(const struct worker *w, struct kvr_buf *b);

#endif
