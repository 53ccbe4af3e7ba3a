/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What routers of one fleet tell each other, as msgpack arrays (net/replication/sync.h carries them). `partition` is the sender's number
 * of a partition; an ADD says which one that is.
 *
 *     [0, partition, model, group, block_size, id, worker, rank, hashes, private, prefill, duration_ns | nil, outputs]
 *     [1, partition, id]                        prefill done
 *     [2, partition, id, blocks, weight | nil]  output
 *     [3, partition, id]                        free
 *     [4, partition, number]                    snapshot: of this partition, what comes next includes events up to `number`
 *
 *     [5, 0, session, worker, rank]        a session is bound; of no partition
 *
 * hashes: sequence hashes as 8-byte little-endian words in one bin.
 */
#ifndef KVR_WIRE_SYNC_EVENT_H
#define KVR_WIRE_SYNC_EVENT_H

#include <kvroute/router.h>

#include "base/buf.h"

enum kvr_sync_kind { KVR_SYNC_ADD, KVR_SYNC_PREFILL_DONE, KVR_SYNC_OUTPUT, KVR_SYNC_FREE, KVR_SYNC_MARK, KVR_SYNC_SESSION };

/* Texts are borrowed and not terminated. */
struct kvr_sync_event {
    enum kvr_sync_kind kind;
    uint64_t partition;
    const char *model, *group;
    uint32_t model_len, group_len, block_size;
    struct kvr_load_event load; /* request.seqs is not set: see `hashes` */
    const char *hashes;         /* request.seqs_n of them */
    uint64_t number;            /* MARK */
    const char *session;        /* SESSION; its worker is load.request.worker */
    uint32_t session_len;
};

/* Appends one event. load->kind says which; ADD needs the partition's names. */
void kvr_sync_event_write(struct kvr_buf *out, uint64_t partition, const char *model, const char *group, uint32_t block_size,
                          const struct kvr_load_event *load);
void kvr_sync_mark_write(struct kvr_buf *out, uint64_t partition, uint64_t number);

void kvr_sync_session_write(struct kvr_buf *out, const char *session, size_t len, struct kvr_worker w);

/* Whether the bytes are a run of flat msgpack arrays of at most 64 scalars each, nothing cut off. Only then may the reader
 * below, or mp_next, walk them. */
bool kvr_sync_run_is_whole(const char *data, size_t len);

/* `data` is one such array. Returns: 0 or -KVR_EFORMAT. */
int kvr_sync_event_read(const char *data, size_t len, struct kvr_sync_event *out);
/* Writes the hashes of an ADD: load.request.seqs_n of them. */
void kvr_sync_event_hashes(const struct kvr_sync_event *event, uint64_t *out);

#endif
