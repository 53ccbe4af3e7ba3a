/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The local index: what one (worker, rank) holds, kept inside the engine's process or beside it, so that a router that has
 * lost events can be told everything.
 *
 *     engine --apply_stored / _removed / _cleared--> [ ring of the last events ]  <-- which events since id n?
 *        \                                           [ index of all blocks     ]  <-- or everything
 *         `--> its ZMQ stream, as before
 *
 * A consumer that has noticed a gap asks for the ids it lacks. While they are in the ring it gets them (Events); when they
 * have fallen out, or it has nothing yet, it gets the whole content as stored events (TreeDump). It replaces what it had by
 * that, and goes on behind `last_event_id`. So every loss can be repaired, however old.
 *
 * IDS. The caller gives each event an id that never falls. When the engine publishes batches the id is the batch's
 * sequence, and its events share it: wrap them in kvr_local_index_hold and _release, so that nobody is told half a batch.
 *
 * ANSWERS to (start, end), both inclusive, in this order (after NVIDIA Dynamo's LocalKvIndexer):
 *     end < start                InvalidRange
 *     no start                   TreeDump
 *     no event yet               TreeDump, last_event_id 0
 *     start > newest             TooNew; start = newest + 1, "nothing since", is TooNew too
 *     start no longer in ring    TreeDump
 *     otherwise                  Events from start to min(end, newest)
 *
 * JSON, externally tagged:
 *     {"Events":   {"epoch": e, "events": [RouterEvent...], "last_event_id": n}}
 *     {"TreeDump": {"epoch": e, "block_size": b, "events": [RouterEvent...], "last_event_id": n, "end_event_id": m}}
 *     {"TooNew":   {"requested_start": n, "requested_end": n or null, "newest_available": n, "epoch": e}}
 *     {"InvalidRange": {"start_id": n, "end_id": n}}
 *     {"TreeDumpFailed": {"last_event_id": n, "message": "..."}}   or, to who has not asked for it, {"Error": "..."}
 * `epoch`, `block_size` (when configured) and `end_event_id` are our additions: the epoch differs between lives of this object, so
 * that a restart is seen even when ids overlap; up to `end_event_id` the dump may already contain what later events bring. With `old_shape`
 * Events is the bare array and there are no additions.
 *
 * A DUMP IN PROGRESS stops nobody: the index is walked in pieces of some thousand blocks, `last_event_id` is that of the
 * beginning, and replaying what follows gives exactly the content (the argument is at kvr_index_walk_begin). Memory: one
 * piece for each; the caller decides how many there may be at once. Nobody waits for a slow reader.
 *
 * THREADS. One writer: apply_*, hold, release. Any number of readers: kvr_local_index_answer, _stats. shutdown: any.
 *
 * COST (docs/performance.md). An event costs well under a microsecond and its blocks some 50 ns each; a reader holds the lock
 * that the writer takes for a few microseconds at a time.
 */
#ifndef KVROUTE_LOCAL_INDEX_H
#define KVROUTE_LOCAL_INDEX_H

#include <kvroute/alloc.h>
#include <kvroute/event.h>
#include <kvroute/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_local_index;

struct kvr_local_index_config {
    const struct kvr_alloc *alloc; /* NULL: libc. Called by the writer and by readers, also at once */
    struct kvr_worker worker;      /* whose content this is; the events carry it */
    uint32_t block_size;           /* tokens, for kvr_local_index_store; 0: only kvr_local_index_apply is used */
    uint64_t epoch;                /* of this life; 0: taken from the clock, microseconds since 1970 */
    size_t events_max;             /* events in the ring; 0: 1,024 */
    size_t ring_bytes_max;         /* bytes of the ring's events; 0: 16 MiB. An event larger than that empties the ring */
    size_t index_bytes_max;        /* bytes of the index; 0: no limit. Past it dumps fail, and say so, until the next clear */
};

/* `config` is copied. Owns: the caller gives *out to kvr_local_index_destroy. Returns: 0, -KVR_EINVAL, -KVR_ENOMEM. */
KVR_API int kvr_local_index_create(const struct kvr_local_index_config *config, struct kvr_local_index **out);
/* NULL is fine. Threads: no other call may be running. */
KVR_API void kvr_local_index_destroy(struct kvr_local_index *li);
/* From now on events are refused and dumps fail ("Indexer is offline"). Twice is fine. */
KVR_API void kvr_local_index_shutdown(struct kvr_local_index *li);

/* Applies one event with the id event->event_id; its worker is replaced by the configured one. The event goes into the ring
 * also when the index refuses it, as the engine has sent it.
 * Returns: 0, what kvr_index_apply returned, -KVR_ESHUTDOWN, -KVR_EINVAL for an id below the last one. Threads: the writer. */
KVR_API int kvr_local_index_apply(struct kvr_local_index *li, const struct kvr_event *event);

/* What an engine knows of blocks it has stored. All borrowed. */
struct kvr_local_store {
    const uint32_t *tokens; /* of all blocks, in order */
    size_t tokens_n;
    const uint64_t *block_hashes; /* the engine's names, one for each block that the tokens fill; tokens past the last full block */
    size_t blocks_n;              /* are allowed and mean nothing */
    bool has_parent;
    uint64_t parent_hash;
    const char *lora; /* name, NULL: none */
    size_t lora_len;
    const char *salt; /* cache salt, NULL: none */
    size_t salt_len;
    bool eagle; /* bigram windows, see kvroute/hash.h */
    enum kvr_tier tier;
    const struct kvr_mm_block *mm; /* the multimodal objects that block i touches (kvroute/hash.h); blocks past mm_n are plain */
    size_t mm_n;
};
/* The three calls of an engine's event tee. Returns: as kvr_local_index_apply; store also -KVR_EINVAL without a block size;
 * -KVR_ELENGTH when the tokens fill more or fewer blocks than there are hashes, -KVR_ELIMIT when a block has more than
 * KVR_MM_OBJECTS_MAX objects (nothing is applied then, and the id is not taken);
 * -KVR_ENOMEM; the event is then lost, and ranges that would need it become dumps, which fail until the next clear.
 * Threads: the writer. */
KVR_API int kvr_local_index_store(struct kvr_local_index *li, uint64_t event_id, const struct kvr_local_store *blocks);
KVR_API int kvr_local_index_remove(struct kvr_local_index *li, uint64_t event_id, enum kvr_tier tier, const uint64_t *hashes, size_t n);
KVR_API int kvr_local_index_clear(struct kvr_local_index *li, uint64_t event_id);

/* Between the two calls readers are told of none of the new events; afterwards of all. Threads: the writer. */
KVR_API void kvr_local_index_hold(struct kvr_local_index *li);
KVR_API void kvr_local_index_release(struct kvr_local_index *li);

/* Another block size than the configured one from now on: its engine has said so. Threads: any. */
KVR_API void kvr_local_index_set_block_size(struct kvr_local_index *li, uint32_t block_size);

/* Says that what was applied is not all the engine holds (`why`, copied, at most 159 bytes), so that dumps fail instead of
 * lying; NULL: it is. */
KVR_API void kvr_local_index_set_incomplete(struct kvr_local_index *li, const char *why);

struct kvr_local_query {
    bool has_start, has_end;
    uint64_t start, end;
    bool old_shape;                 /* see "JSON" */
    bool supports_tree_dump_failed; /* else Error */
};
/* Takes a piece of the answer; borrowed. Non-zero breaks the answer off. */
typedef int kvr_local_sink(void *ctx, const char *data, size_t len);
/* Writes the JSON answer to a query.
 * Returns: 0, what `sink` returned, or -KVR_ENOMEM with the answer broken off. Threads: any. */
KVR_API int kvr_local_index_answer(struct kvr_local_index *li, const struct kvr_local_query *query, kvr_local_sink *sink, void *ctx);

/* Emits the content as stored events with synthetic ids, in pieces, as in a TreeDump.
 * Returns: 0, what `emit` returned, -KVR_ENOMEM, -KVR_ESEQUENCE (see kvr_index_walk_next), -KVR_EUNSUPPORTED when there can
 * be no dump now. Threads: any. */
KVR_API int kvr_local_index_dump(struct kvr_local_index *li, int (*emit)(void *ctx, const struct kvr_event *event), void *ctx);

/* Has the index a block of this name in the tier? Threads: any; the answer is of the moment unless the writer asks. */
KVR_API bool kvr_local_index_holds(struct kvr_local_index *li, enum kvr_tier tier, uint64_t block_hash);

struct kvr_local_index_stats {
    uint64_t epoch, newest_id, oldest_id; /* oldest_id: first one whose events are all in the ring; 0, 0: no event yet */
    uint64_t events, evicted;             /* applied; fallen out of the ring */
    uint64_t refused;                     /* events that the index refused */
    uint64_t dumps, dump_failures, ranges, too_new;
    size_t ring_events, ring_bytes, index_bytes, blocks;
    bool complete;
};
KVR_API void kvr_local_index_stats(struct kvr_local_index *li, struct kvr_local_index_stats *out);

#ifdef __cplusplus
}
#endif
#endif
