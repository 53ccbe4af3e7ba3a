/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's events on their way from the ingest to the local index and the outlet; the path and its threads are drawn in
 * app/publish/feed.h.
 */
#include "app/publish/feed.h"

#include <string.h>
#include <kvroute/hash.h>

#include "base/log.h"
#include "wire/plane_event.h"

enum { SALTS_MAX = 1 << 16, SALTED_MAX = 1 << 26 };

/* ---- salts ---------------------------------------------------------------------------------------------------- */

/* A free place, + 1; 0: there is none. */
static size_t free_place(struct feed *f)
{
    size_t at = f->salts_free;
    if (at) {
        f->salts_free = f->salts[at - 1].next_free;
        return at;
    }
    if (f->salts_n == SALTS_MAX || !kvr_grow(&f->salts, &f->salts_cap, f->salts_n + 1, sizeof *f->salts)) return 0;
    return ++f->salts_n;
}

/* Place of a salt, + 1; 0: no room for it. */
static size_t salt_place(struct feed *f, struct kvr_bytes salt)
{
    uint64_t hash = kvr_hash_bytes(salt.ptr, salt.len, kvr_secret()), *known = kvr_map64_get(&f->salt_at, hash);
    if (known) {
        const struct feed_salt *s = &f->salts[*known - 1];
        return s->len == salt.len && memcmp(s->text, salt.ptr, salt.len) == 0 ? *known : 0;
    }
    char *copy = malloc(salt.len);
    size_t at = copy ? free_place(f) : 0;
    if (!at || kvr_map64_put(&f->salt_at, hash, at)) {
        if (at) f->salts[at - 1] = (struct feed_salt){.next_free = f->salts_free};
        if (at) f->salts_free = at;
        free(copy);
        return 0;
    }
    memcpy(copy, salt.ptr, salt.len);
    f->salts[at - 1] = (struct feed_salt){.text = copy, .len = salt.len, .hash = hash};
    return at;
}

/* A salt that no block carries is forgotten. */
static void release_salt(struct feed *f, size_t at)
{
    struct feed_salt *s = &f->salts[at - 1];
    if (s->blocks) return;
    free(s->text);
    kvr_map64_del(&f->salt_at, s->hash);
    *s = (struct feed_salt){.next_free = f->salts_free};
    f->salts_free = at;
}

static void unmark(struct feed *f, uint64_t block)
{
    const uint64_t *at = kvr_map64_get(&f->salted, block);
    if (!at) return;
    size_t place = *at;
    kvr_map64_del(&f->salted, block);
    f->salts[place - 1].blocks--;
    release_salt(f, place);
}

static void mark(struct feed *f, uint64_t block, size_t at)
{
    const uint64_t *old = kvr_map64_get(&f->salted, block);
    if (old && *old == at) return;
    if (old) unmark(f, block);
    if (f->salted.n < SALTED_MAX && kvr_map64_put(&f->salted, block, at) == 0) f->salts[at - 1].blocks++;
}

static void forget_salts(struct feed *f)
{
    for (size_t i = 0; i < f->salts_n; i++) free(f->salts[i].text);
    free(f->salts);
    f->salts = NULL;
    f->salts_n = f->salts_cap = f->salts_free = 0;
    kvr_map64_clear(&f->salted);
    kvr_map64_clear(&f->salt_at);
}

/* The salt of a store: its own, or its parent's. Its blocks are marked with it. *keep: what to release when it is written. */
static struct kvr_bytes salt_of(struct feed *f, const struct kvr_event *ev, const struct kvr_engine_event *words, size_t *keep)
{
    const uint64_t *of_parent = ev->has_parent ? kvr_map64_get(&f->salted, ev->parent_hash) : NULL;
    *keep = words->salt.len ? salt_place(f, words->salt) : of_parent ? *of_parent : 0;
    if (!*keep) {
        for (size_t i = 0; f->salted.n && i < ev->blocks_n; i++) unmark(f, ev->blocks[i].block_hash);
        if (words->salt.len) atomic_fetch_add_explicit(&f->forgotten_salts, 1, memory_order_relaxed);
        return words->salt;
    }
    f->salts[*keep - 1].blocks++; /* until it is written */
    for (size_t i = 0; i < ev->blocks_n; i++) mark(f, ev->blocks[i].block_hash, *keep);
    return (struct kvr_bytes){f->salts[*keep - 1].text, f->salts[*keep - 1].len};
}

/* ---- publishing ----------------------------------------------------------------------------------------------- */

/* Local index first, then the wire: who asks after a loss finds what was published. */
static int publish(struct feed *f, struct kvr_event *ev, const struct kvr_engine_words *words)
{
    ev->event_id = f->next_id++;
    int rc = kvr_local_index_apply(f->index, ev);
    ev->worker = f->worker;
    bool sent = f->outlet->publish(f->outlet, ev, words) == 0;
    f->told = ev->kind != KVR_EVENT_CLEARED;
    f->overfull = ev->kind != KVR_EVENT_CLEARED && (f->overfull || rc == -KVR_ENOMEM || rc == -KVR_ECAPACITY);
    if (!sent)
        kvr_log_warning_of(kvr_log_key(f->worker.worker_id, f->worker.dp_rank, "send"),
                           "kvroute publish: rank %u: an event is lost to whoever listens on %s", f->worker.dp_rank, f->outlet->where);
    atomic_fetch_add_explicit(sent ? &f->published : &f->send_failures, 1, memory_order_relaxed);
    return rc;
}

/* The size by which the stream is cut, which it may have learned from the engine just now. */
static uint32_t take_size(struct feed *f, const struct kvr_ingest_origin *origin)
{
    uint32_t size = origin->stream->block_size;
    if (atomic_exchange_explicit(&f->block_size, size, memory_order_relaxed) != size) kvr_local_index_set_block_size(f->index, size);
    return size;
}

/* As it was told: by names, or with tokens. It marks no blocks with salts, which are the device's. */
static int publish_lower(struct feed *f, struct kvr_event *ev, const struct kvr_ingest_origin *origin)
{
    const struct kvr_engine_batch *b = origin->batch;
    const struct kvr_engine_event *e = origin->event;
    struct kvr_engine_words w = {.lora = e->lora, .salt = e->salt};
    if (!ev->lower.names_only) {
        uint32_t size = take_size(f, origin);
        w.block_size = size * KVR_MAX(ev->lower.span, 1u);
        w.tokens = b->tokens + e->tokens_at;
        w.tokens_n = KVR_MIN(e->tokens_n, ev->blocks_n * size + e->eagle);
        w.eagle = e->eagle;
        if (e->mm_n) {
            w.mm = b->mm + e->mm_at;
            w.mm_n = KVR_MIN(e->mm_n, ev->blocks_n);
            w.mm_hashes = b->mm_hashes;
        }
    }
    return publish(f, ev, &w);
}

static int publish_stored(struct feed *f, struct kvr_event *ev, const struct kvr_ingest_origin *origin)
{
    const struct kvr_engine_batch *b = origin->batch;
    const struct kvr_engine_event *e = origin->event;
    uint32_t size = take_size(f, origin);
    size_t skipped = origin->stream->skipped, before = skipped * size, salt = 0; /* blocks, and their tokens */
    size_t used = ev->blocks_n * size + e->eagle;
    struct kvr_engine_words w = {.tokens = b->tokens + e->tokens_at + before,
                                 .tokens_n = KVR_MIN(e->tokens_n - before, used),
                                 .block_size = size,
                                 .lora = e->lora,
                                 .salt = salt_of(f, ev, e, &salt),
                                 .eagle = e->eagle,
                                 .untold_keys = e->untold_keys};
    if (e->mm_n > skipped) {
        w.mm = b->mm + e->mm_at + skipped;
        w.mm_n = KVR_MIN(e->mm_n - skipped, ev->blocks_n);
        w.mm_hashes = b->mm_hashes;
    }
    int rc = publish(f, ev, &w);
    if (salt) {
        f->salts[salt - 1].blocks--;
        release_salt(f, salt);
    }
    return rc;
}

static int publish_removed(struct feed *f, struct kvr_event *ev)
{
    static const struct kvr_engine_words none;
    for (size_t i = 0; ev->tier == KVR_TIER_DEVICE && i < ev->removed_n; i++) unmark(f, ev->removed[i]);
    return publish(f, ev, &none);
}

static int publish_clear(struct feed *f)
{
    static const struct kvr_engine_words none;
    struct kvr_event ev = {.worker = f->worker, .kind = KVR_EVENT_CLEARED};
    forget_salts(f);
    return publish(f, &ev, &none);
}

/* Was its parent never published? */
static bool is_parentless(const struct feed *f, const struct kvr_event *ev)
{
    bool device_store = ev->kind == KVR_EVENT_STORED && ev->tier == KVR_TIER_DEVICE;
    return device_store && ev->has_parent && !f->overfull && !kvr_local_index_holds(f->index, KVR_TIER_DEVICE, ev->parent_hash);
}

int feed_event(struct feed *f, const struct kvr_event *event, const struct kvr_ingest_origin *origin)
{
    struct kvr_event ev = *event;
    if (origin && kvr_engine_stream_groups(origin->stream) == KVR_GROUPS_LEFT_OUT) { /* its listeners would predict too much */
        feed_reset(f);
        return 0;
    }
    if (is_parentless(f, &ev)) {
        atomic_fetch_add_explicit(&f->parentless, 1, memory_order_relaxed);
        return -KVR_EPARENT;
    }
    if (ev.kind == KVR_EVENT_CLEARED) return publish_clear(f);
    if (ev.kind == KVR_EVENT_REMOVED) return publish_removed(f, &ev);
    return ev.tier == KVR_TIER_DEVICE ? publish_stored(f, &ev, origin) : publish_lower(f, &ev, origin);
}

void feed_reset(struct feed *f)
{
    if (f->told) (void)publish_clear(f);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

int feed_open(struct feed *f, const struct publish_options *o, uint32_t rank, uint32_t block_size, struct kvr_outlet *outlet, char *err,
              size_t cap)
{
    struct kvr_local_index_config c = {.worker = {o->worker_id, rank},
                                       .block_size = block_size,
                                       .events_max = o->buffer_events,
                                       .ring_bytes_max = o->buffer_bytes,
                                       .index_bytes_max = o->index_max_bytes};
    f->outlet = outlet;
    f->worker = c.worker;
    f->block_size = c.block_size;
    f->next_id = KVR_PLANE_FIRST_EVENT;
    if (kvr_local_index_create(&c, &f->index)) return kvr_refuse(err, cap, "out of memory");
    kvr_local_index_set_incomplete(f->index, "the engine's events have not been seen yet");
    (void)publish_clear(f);
    return 0;
}

void feed_close(struct feed *f)
{
    if (f->outlet) f->outlet->close(f->outlet);
    kvr_local_index_destroy(f->index);
    forget_salts(f);
}
