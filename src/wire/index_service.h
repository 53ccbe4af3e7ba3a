/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answers of a served index, JSON, as NVIDIA Dynamo's request plane has them (the questions: wire/index_question.h):
 *
 *     kv_indexer_query     {"model_name", "block_hashes": [local hashes], "isl_tokens", "device_only"}
 *                          -> {"TieredScores": {"device": {"scores": [[{"worker_id", "dp_rank"}, blocks], ...], "frequencies": []},
 *                                               "lower_tier": [["host_pinned", {"hits": [[{worker}, blocks], ...]}], ...]}}
 *     kv_indexer_record_routing_decision   {"model_name", "worker", "local_hashes", "sequence_hashes"} -> "Recorded"
 *     kv_indexer_info      {} -> {"instance": u64, "mode": "events" | "predicted", "ready": bool, "why": text, "registers": bool,
 *                          "packed": bool, "models": [{"model_name", "block_size"}, ...]}; ours. registers: it follows the workers that are
 * registered with it, as `kvroute indexer` does. packed: it reads packed questions any of them          -> {"Error": text}
 *
 * hits are blocks beyond the tier before. Ours adds "instance" to a TieredScores, so that a change of the server is seen, and "isl_tokens"
 * to a query: a prompt of which it is not told ends with its last block (kvr_index_limit).
 */
#ifndef KVR_WIRE_INDEX_SERVICE_H
#define KVR_WIRE_INDEX_SERVICE_H

#include <kvroute/index.h>

#include "base/buf.h"
#include "wire/json.h"

#define KVR_SERVICE_QUERY  "kv_indexer_query"
#define KVR_SERVICE_RECORD "kv_indexer_record_routing_decision"
#define KVR_SERVICE_INFO   "kv_indexer_info"

struct kvr_service_info {
    uint64_t instance;
    bool predicted, ready, registers, packed;
};

/* A model that is served, with the block size of its index. */
struct kvr_remote_model {
    char name[256]; /* "": whatever model */
    uint32_t block_size;
};

/* ---- the asking side ---- */
/* `depth_max`: no rank can hold more. *out is malloc'd, the caller frees it. Returns: how many, -KVR_EFORMAT, -KVR_ENOMEM,
 * -KVR_EUNSUPPORTED for an Error, whose text is in why. */
long kvr_service_scores_read(struct kvr_json answer, uint32_t depth_max, struct kvr_reach **out, uint64_t *instance, char *why, size_t cap);
/* Returns: 0, -KVR_EFORMAT, -KVR_EUNSUPPORTED as above. */
int kvr_service_info_read(struct kvr_json answer, struct kvr_service_info *out, char *why, size_t cap);
/* Does the index of an info have `ours` in another block size, and not in ours too? Then why says both. An info without models says
 * nothing. */
bool kvr_service_misfits(struct kvr_json info, const struct kvr_remote_model *ours, char *why, size_t cap);
int kvr_service_recorded_read(struct kvr_json answer, char *why, size_t cap);

/* ---- the answering side ---- */
void kvr_service_scores_write(struct kvr_buf *out, const struct kvr_reach *reaches, size_t n, uint64_t instance);
void kvr_service_info_write(struct kvr_buf *out, const struct kvr_service_info *info, const char *why,
                            const struct kvr_remote_model *models, size_t n);
void kvr_service_error_write(struct kvr_buf *out, const char *text);

/* {"worker_id", "dp_rank"} */
void kvr_service_worker_write(struct kvr_buf *out, struct kvr_worker w);
bool kvr_service_worker_read(struct kvr_json v, struct kvr_worker *out);

#endif
