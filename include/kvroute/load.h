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
 * Weights. A block weighs 1. Generation that is near its expected end will give its blocks back soon: an output block
 * may come with a fraction, which becomes the weight of every block that only this request holds on its rank. Weights
 * are kept in units of 2^-20, so sums are exact; active_decode_blocks is the rounded sum.
 *
 * Prefill decay. A request may come with the expected duration of its prefill. Prefills of a rank run first come, first
 * served; the oldest is the anchor, since the moment it became the oldest:
 *
 *     all of the rank's prefills have a duration:  sum - floor(anchor * elapsed / anchor's duration), at least 0
 *     some have none:                              (sum - anchor) + ceil(anchor * (1 - elapsed / duration)), clamped
 *     the anchor has none:                         sum
 *
 * Threads: not thread-safe; the caller serialises (kvroute/router.h does).
 * Memory: about 10 bytes per distinct active block of the fleet plus 400 per request; accounted in kvr_load_bytes. What is
 * freed is kept for reuse, up to 1 MiB and a quarter of what is in use, so that booking does not allocate in the long run.
 * Stale requests: whoever books must free. For callers whose clients may vanish there are leases: a booking that is not
 * `guarded` is dropped by kvr_load_expire unless something was heard of it (kvr_load_touch, a first token, an output
 * block). A guarded one never expires, however long it lives.
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
 * their requests. Returns: 0, or with nothing changed -KVR_EINVAL for dp_size 0 or a range past 2^32, -KVR_ELIMIT above
 * 4096 ranks, -KVR_ENOMEM. */
KVR_API int kvr_load_set_worker(struct kvr_load *load, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size);

/* Removes a worker and drops its requests; freeing them later finds nothing. Unknown ids are no error. */
KVR_API void kvr_load_remove_worker(struct kvr_load *load, uint64_t worker_id);

/* Ranks have a slot each, 0 <= slot < kvr_load_slots(); slots of removed ranks are reused. */
KVR_API size_t kvr_load_slots(const struct kvr_load *load);
/* Returns: the slot, or -KVR_ENOTFOUND. */
KVR_API long kvr_load_slot_of(const struct kvr_load *load, struct kvr_worker worker);

struct kvr_rank_load {
    struct kvr_worker worker;
    uint64_t active_prefill_tokens; /* decayed */
    uint64_t active_decode_blocks;  /* distinct prompt blocks + private blocks + output blocks, by weight */
    uint32_t active_requests;
    uint32_t active_prefills; /* of these, before their first token, as far as prefill is tracked */
};

/* Load of one slot at `now_ns`. Returns: 0, or -KVR_ENOTFOUND for a slot that is not in use. */
KVR_API int kvr_load_get(const struct kvr_load *load, size_t slot, uint64_t now_ns, struct kvr_rank_load *out);

/* Loads of all slots at once; out[kvr_load_slots()] is written, zeroes for slots that are not in use. */
KVR_API void kvr_load_get_all(const struct kvr_load *load, uint64_t now_ns, struct kvr_rank_load *out);

struct kvr_load_request {
    const char *id; /* bytes, copied; at most 256 */
    size_t id_len;
    struct kvr_worker worker;
    const uint64_t *seqs; /* sequence hashes of the full prompt blocks; NULL with seqs_n 0 */
    size_t seqs_n;
    uint64_t private_blocks; /* blocks that are shared with nobody (no KV reuse): counted, not stored */
    uint64_t prefill_tokens; /* effective prompt tokens still to be computed */
    bool has_duration;       /* prefill_ns is known; 0 counts as finished */
    uint64_t prefill_ns;     /* expected duration of the prefill */
    uint64_t now_ns;
    uint32_t owner; /* who booked it: 0 = this process, others as the caller numbers them */
    bool guarded;   /* never expires */
};

/* Books a request. Returns: 0, -KVR_EINVAL for an empty or too long id, -KVR_EEXISTS for a duplicate id
 * (nothing changes), -KVR_ENOTFOUND for an unknown rank, -KVR_ENOMEM (nothing changes). */
KVR_API int kvr_load_add(struct kvr_load *load, const struct kvr_load_request *request);

/* The first token has come: prefill tokens of the request go to 0. Repeating it is fine.
 * Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_load_prefill_done(struct kvr_load *load, const char *id, size_t id_len, uint64_t now_ns);

/* Generation has filled `n` more blocks. fraction 0..1: the weight, from now on, of every block that only this request
 * holds; negative: none given. Returns: 0, -KVR_EINVAL for a fraction above 1 or not a number, -KVR_ENOTFOUND. */
KVR_API int kvr_load_output_blocks(struct kvr_load *load, const char *id, size_t id_len, uint64_t n, double fraction, uint64_t now_ns);

/* Output blocks of a request; 0 for an unknown one. */
KVR_API uint64_t kvr_load_outputs(const struct kvr_load *load, const char *id, size_t id_len);

/* What a booking met at its rank, and what was reported of it since. Moments are those given to the calls; 0: not yet. */
struct kvr_load_course {
    struct kvr_worker worker;
    uint64_t booked_ns, first_token_ns;
    uint64_t prefill_tokens;       /* its own, as booked */
    uint64_t ahead_tokens;         /* waiting tokens of others when it was booked */
    uint64_t active_blocks;        /* of the rank, with its own prompt */
    uint32_t generating;           /* requests of the rank past their first token when it was booked */
    uint64_t first_blocks, blocks; /* output blocks of the first report of such, of all reports */
    uint64_t first_block_ns, last_block_ns;
};
/* Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_load_course(const struct kvr_load *load, const char *id, size_t id_len, struct kvr_load_course *out);

/* A sign of life: the lease begins anew. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_load_touch(struct kvr_load *load, const char *id, size_t id_len, uint64_t now_ns);

/* Where a request is booked. Returns: 0 or -KVR_ENOTFOUND. */
KVR_API int kvr_load_where(const struct kvr_load *load, const char *id, size_t id_len, struct kvr_worker *out);

/* Ends a request. Returns: 0, or -KVR_ENOTFOUND for an unknown id (harmless). */
KVR_API int kvr_load_free(struct kvr_load *load, const char *id, size_t id_len, uint64_t now_ns);

/* Frees unguarded requests of which nothing was heard since `before_ns`. `freed` (may be NULL) is called before each goes.
 * Returns: how many. */
KVR_API size_t kvr_load_expire(struct kvr_load *load, uint64_t before_ns, uint64_t now_ns,
                               void (*freed)(void *ctx, const char *id, size_t id_len), void *ctx);

/* Frees every request of one owner. Returns: how many. */
KVR_API size_t kvr_load_free_owner(struct kvr_load *load, uint32_t owner, uint64_t now_ns);

/* One booking, for a snapshot. Pointers are valid during the call. */
struct kvr_load_entry {
    struct kvr_load_request request; /* seqs: NULL, seqs_n of them can be written by kvr_load_seqs */
    uint64_t output_blocks;
    const void *handle;
};
/* Calls fn for every request of `owner`, oldest booking of a rank last. Stops when fn returns non-zero. */
KVR_API int kvr_load_each(const struct kvr_load *load, uint32_t owner, int (*fn)(void *ctx, const struct kvr_load_entry *entry), void *ctx);
/* Writes entry->request.seqs_n hashes. */
KVR_API void kvr_load_seqs(const struct kvr_load_entry *entry, uint64_t *seqs);

/* For every slot, how many leading hashes of seqs[n] are active there. depth[kvr_load_slots()] is written. */
KVR_API void kvr_load_project(const struct kvr_load *load, const uint64_t *seqs, size_t n, uint32_t *depth);

/* A stretch of a prompt, from the end of the one before to block `end`: so many requests of all ranks share it that have had their first
 * token, and that wait for it; some have waited since `since_ns`, without a moment when none did. */
struct kvr_load_stretch {
    uint32_t end, generating, waiting;
    uint64_t since_ns;
};
/* The leading stretches of seqs[n] that any request shares, at most cap. Returns: how many were written. */
KVR_API size_t kvr_load_stretches(const struct kvr_load *load, const uint64_t *seqs, size_t n, struct kvr_load_stretch *out, size_t cap);

/* Checks internal invariants. Returns: true, or false and a static text. */
KVR_API bool kvr_load_validate(const struct kvr_load *load, const char **reason);

#ifdef __cplusplus
}
#endif
#endif
