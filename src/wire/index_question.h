/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a served index is asked, as a JSON object with the words of NVIDIA Dynamo's request plane (wire/index_service.h has the
 * answers):
 *
 *     kv_indexer_query                     {"model_name", "block_hashes": [local hashes], "isl_tokens", "device_only"}
 *     kv_indexer_record_routing_decision   {"model_name", "worker": {"worker_id", "dp_rank"}, "local_hashes", "sequence_hashes"}
 *
 * or packed, which is ours: the same map in msgpack, where a list of hashes is one bin, 8 bytes each, little-endian. It is for
 * servers whose kv_indexer_info says so: of 4,096 hashes it is 33 kB instead of 84, and neither side turns digits.
 */
#ifndef KVR_WIRE_INDEX_QUESTION_H
#define KVR_WIRE_INDEX_QUESTION_H

#include <kvroute/index.h>

#include "base/buf.h"
#include "wire/json.h"

enum { KVR_SERVICE_BLOCKS_MAX = 1 << 20 };

#define KVR_PACKED_TYPE "application/msgpack"

/* locals[n], seqs[n]: borrowed, n at most KVR_SERVICE_BLOCKS_MAX. isl: tokens of the whole prompt. Without memory out->failed is set. */
void kvr_service_query_write(struct kvr_buf *out, bool packed, const char *model, const uint64_t *locals, size_t n, uint64_t isl,
                             bool device_only);
void kvr_service_record_write(struct kvr_buf *out, bool packed, const char *model, struct kvr_worker w, const uint64_t *locals,
                              const uint64_t *seqs, size_t n);

/* `given`: it was there, and a list of at most KVR_SERVICE_BLOCKS_MAX hashes. */
struct kvr_service_hashes {
    uint64_t *h;
    size_t n, cap;
    bool given;
};

/* What is allowed for a member that was wrong, for its error's text. */
const char *kvr_service_allowed(const char *member);

/* Zero-initialize; one thread. The lists are the question's own, and their room is kept from one to the next. */
struct kvr_service_question {
    const char *model; /* NULL: not given; borrowed from what was read */
    size_t model_len;
    uint64_t isl; /* 0: not told */
    bool has_worker, device_only;
    struct kvr_worker worker;
    struct kvr_service_hashes blocks, locals, seqs;
    const char *wrong_query, *wrong_record; /* a member of that question that is there and not as it should be; NULL: none */
};

/* Members that are not known are passed over. One that has another type than it should, or a number out of range, is named in
 * q->wrong_query or q->wrong_record, and counts as not given.
 * Returns: 0, -KVR_EFORMAT when it is no map, -KVR_ENOMEM. */
int kvr_service_question_json(struct kvr_service_question *q, struct kvr_json object);
int kvr_service_question_packed(struct kvr_service_question *q, const char *data, size_t len);
void kvr_service_question_free(struct kvr_service_question *q);
/* Gives the lists' room back where it is more than 256 KiB: after the answer. */
void kvr_service_question_trim(struct kvr_service_question *q);
/* Where both may come: JSON objects begin with a brace or space, packed maps with neither. */
bool kvr_service_is_packed(const char *data, size_t len);

#endif
