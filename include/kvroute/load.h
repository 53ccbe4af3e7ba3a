/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Active sequences: what every (worker, rank) is busy with right now, by the router's own book.
 *
 * Each running request occupies its prompt blocks (each distinct block of a rank counts once, however many
 * requests share it) and, until its first token, its prefill tokens. Prompts are chains of sequence hashes
 * (kvroute/hash.h); they are kept as a compressed tree, so booking a prompt of n blocks costs one copy of n
 * hashes, not n table operations, and projecting a new prompt costs the branches it passes.
 *
 *     active on rank A: 1 2 4 5        new prompt 1 2 3 5:  2 leading blocks are active, 2 are new
 *                                      potential blocks = 4 + 2
 *
 * Threads: not thread-safe; the caller serialises (kvroute/router.h does).
 * Memory: about 8 bytes per distinct active block plus 200 per request; accounted in kvr_load_bytes.
 * Stale requests: whoever books must free. kvr_load_expire is for callers whose clients may vanish.
 */
#ifndef KVROUTE_LOAD_H
#define KVROUTE_LOAD_H

#include <kvroute/alloc.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_load;

/* Owns: the caller gives *out to kvr_load_destroy. Returns: 0 or -KVR_ENOMEM. */
KVR_API int kvr_load_create(const struct kvr_alloc *alloc, struct kvr_load **out);
KVR_API void kvr_load_destroy(struct kvr_load *load);
KVR_API size_t kvr_load_bytes(const struct kvr_load *load);

/* Registers the ranks [dp_start, dp_start + dp_size) of a worker; ranks it had outside of that range go, with
 * their requests. Returns: 0, -KVR_EINVAL for dp_size 0 or a range past 2^32, -KVR_ELIMIT above 4096 ranks,
 * -KVR_ENOMEM. */
KVR_API int kvr_load_set_worker(struct kvr_load *load, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size);

/* Removes a worker and drops its requests; freeing them later is no error. Unknown ids are no error. */
KVR_API void kvr_load_remove_worker(struct kvr_load *load, uint64_t worker_id);

/* Ranks have a slot each, 0 <= slot < kvr_load_slots(); slots of removed ranks are reused. */
KVR_API size_t kvr_load_slots(const struct kvr_load *load);
/* Returns: the slot, or -KVR_ENOTFOUND. */
KVR_API long kvr_load_slot_of(const struct kvr_load *load, struct kvr_worker worker);

struct kvr_rank_load {
    struct kvr_worker worker;
    uint64_t active_prefill_tokens;
    uint64_t active_decode_blocks; /* distinct prompt blocks + private blocks + output blocks */
    uint32_t active_requests;
};

/* Load of one slot. Returns: 0, or -KVR_ENOTFOUND for a slot that is not in use. */
KVR_API int kvr_load_get(const struct kvr_load *load, size_t slot, struct kvr_rank_load *out);

struct kvr_load_request {
    const char *id; /* bytes, copied; at most 256 */
    size_t id_len;
    struct kvr_worker worker;
    const uint64_t *seqs; /* sequence hashes of the full prompt blocks; NULL with seqs_n 0 */
    size_t seqs_n;
    uint64_t private_blocks; /* blocks that are shared with nobody (no KV reuse): counted, not stored */
    uint64_t prefill_tokens; /* effective prompt tokens still to be computed */
    uint64_t now_ns;         /* for kvr_load_expire */
};

/* Books a request. Returns: 0, -KVR_EINVAL for an empty or too long id, -KVR_EEXISTS for a duplicate id
 * (nothing changes), -KVR_ENOTFOUND for an unknown rank, -KVR_ENOMEM (nothing changes). */
KVR_API int kvr_load_add(struct kvr_load *load, const struct kvr_load_request *request);

/* The first token has come: prefill tokens of the request go to 0. Repeating it is fine.
 * Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_load_prefill_done(struct kvr_load *load, const char *id, size_t id_len);

/* Generation has filled another block. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_load_output_block(struct kvr_load *load, const char *id, size_t id_len);

/* Ends a request. Returns: 0, or -KVR_ENOTFOUND for an unknown id (harmless). */
KVR_API int kvr_load_free(struct kvr_load *load, const char *id, size_t id_len);

/* Frees requests booked before `before_ns`. Returns: how many. */
KVR_API size_t kvr_load_expire(struct kvr_load *load, uint64_t before_ns);

/* For every slot, how many leading hashes of seqs[n] are active there. depth[kvr_load_slots()] is written. */
KVR_API void kvr_load_project(const struct kvr_load *load, const uint64_t *seqs, size_t n, uint32_t *depth);

/* Checks internal invariants. Returns: true, or false and a static text. */
KVR_API bool kvr_load_validate(const struct kvr_load *load, const char **reason);

#ifdef __cplusplus
}
#endif
#endif
