/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted of a request under its model (workers/counts/model_counts.h). Its loop only. */
#ifndef KVR_SERVE_MODEL_GAUGES_H
#define KVR_SERVE_MODEL_GAUGES_H

#include "app/serve/data/request/attempt.h"
#include "app/serve/workers/counts/model_counts.h"

/* It enters the phase r->phase. */
void model_gauges_enter(struct request *r);
void model_gauges_again(struct request *r); /* it is of another model now, which is not known yet */
/* The first event of its answer has come, `now_ns`; of two legs the answering one's. */
void model_gauges_first_token(const struct attempt *a, uint64_t now_ns);
/* Its end: counted once, by the first that says how. */
void model_gauges_end(struct request *r, enum request_end how);
/* The same of a whole answer, by its status and the reason that it gave. */
void model_gauges_end_whole(struct request *r);
/* What its answer tells is known; nothing follows. */
void model_gauges_close(struct request *r);

#endif
