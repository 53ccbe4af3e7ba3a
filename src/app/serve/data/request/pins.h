/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who a request asks for by itself: a worker and a rank for each of its legs, and whether it wants two legs (pins.c).
 *
 *     the worker that answers
 *        x-kvroute-worker, x-worker-instance-id, x-dynamo-worker-instance-id; nvext.decode_worker_id, nvext.backend_instance_id
 *     its rank
 *        x-kvroute-dp-rank, x-data-parallel-rank; data_parallel_rank, routed_dp_rank
 *     the worker that computes the prompt for it
 *        x-kvroute-prefill-worker, x-dynamo-prefill-instance-id, x-prefill-instance-id; nvext.prefill_worker_id
 *     its rank
 *        x-kvroute-prefill-dp-rank, x-dynamo-prefill-dp-rank, x-prefill-dp-rank; nvext.prefill_dp_rank
 *     both legs, or one worker
 *        x-kvroute-disagg: remote, local
 *
 * A header beats the body. Rank 4294967295 is none. A pinned worker is never replaced by another one.
 *
 * Threads: as the request; pins_read_body() also that of its job.
 */
#ifndef KVR_SERVE_PINS_H
#define KVR_SERVE_PINS_H

#include "app/serve/data/request/request.h"
#include "app/serve/workers/table/role.h"

/* Each returns what is wrong, or NULL. */
const char *pins_read_head(struct request *r, const struct kvr_headers *h);
void pins_read_body(struct kvr_json root, struct body_pins *out);
const char *pins_join(struct request *r, const struct body_pins *body);

/* A pinned worker as it stands. */
struct pin_seen {
    bool exists, is_up, rank_exists;
    enum worker_role role;
    enum kvr_kv_protocol protocol;
    struct partition *partition;
};
/* Of a pin that is not set nothing exists. */
struct pin_seen pins_look(const struct request *r, const struct pin *pin);
/* `what` it is, in words. Returns: DONE, or REFUSED: it is not there, or not up. */
enum outcome pins_judge(struct request *r, const struct pin_seen *seen, const char *what);

#endif
