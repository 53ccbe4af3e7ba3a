/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An index of one rank and a ring of its last events.
 *
 * Order of the writer: first the index, then the ring (under `lock`). So whatever a reader finds as the newest id is in the
 * index already; a dump that notes that id and then walks the index misses nothing up to it, and what it shows of later events
 * the consumer will see again (include/kvroute/index.h, "A walk").
 *
 * `lock` guards the ring, the ids and the counters. The writer takes it once per event for the copy into the ring, readers for
 * PIECE bytes of copying at a time. Dumps do not wait for each other, so that a slow reader holds up nobody.
 * The bytes of the index are counted by the allocator below, because an index with a cap of its own gives blocks up by itself,
 * and what it then dumped would be a lie.
 */
#include <kvroute/local_index.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <kvroute/hash.h>
#include <kvroute/index.h>

#include "base/lock.h"
#include "recover/event_json.h"
#include "recover/event_list.h"
#include "recover/worker/ring.h"

enum { EVENTS_MAX = 1024, RING_BYTES = 16 << 20, PIECE = 64 << 10, WALK_BLOCKS = 2048 };

struct kvr_local_index {
    struct kvr_local_index_config config;
    struct kvr_alloc alloc; /* the caller's */
    _Atomic size_t index_bytes;
    _Atomic uint32_t block_size;
    struct kvr_index *index;
    struct kvr_mem own; /* this object and the writer's scratch */
    /* the writer's */
    struct kvr_block *blocks;
    uint64_t *locals;
    size_t blocks_cap, locals_cap;
    bool held;
    /* shared */
    struct kvr_lock lock;
    _Atomic bool offline;
    struct kvr_mem ring_mem;
    struct kvr_ring ring;
    bool any;              /* an event was applied */
    uint64_t last, newest; /* ids: applied, shown */
    bool any_shown, overfull;
    char incomplete[160];
    struct kvr_local_index_stats n; /* counters only */
};

/* ---- life ----------------------------------------------------------------------------------------------- */

static void *counted_resize(void *ctx, void *ptr, size_t old_size, size_t new_size)
{
    struct kvr_local_index *li = ctx;
    size_t max = li->config.index_bytes_max;
    if (new_size > old_size) {
        size_t more = new_size - old_size, now = atomic_fetch_add_explicit(&li->index_bytes, more, memory_order_relaxed) + more;
        void *p = max && now > max ? NULL : li->alloc.resize(li->alloc.ctx, ptr, old_size, new_size);
        if (!p) atomic_fetch_sub_explicit(&li->index_bytes, more, memory_order_relaxed);
        return p;
    }
    void *p = li->alloc.resize(li->alloc.ctx, ptr, old_size, new_size);
    if (p || new_size == 0) atomic_fetch_sub_explicit(&li->index_bytes, old_size - new_size, memory_order_relaxed);
    return p;
}

static uint64_t epoch_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int kvr_local_index_create(const struct kvr_local_index_config *config, struct kvr_local_index **out)
{
    struct kvr_mem mem;
    kvr_mem_init(&mem, config->alloc, 0);
    struct kvr_local_index *li = kvr_mem_zget(&mem, sizeof *li);
    if (!li) return -KVR_ENOMEM;
    li->config = *config;
    li->block_size = config->block_size;
    li->alloc = mem.a;
    li->own = mem;
    if (!li->config.epoch) li->config.epoch = epoch_now();
    if (!li->config.events_max) li->config.events_max = EVENTS_MAX;
    if (!li->config.ring_bytes_max) li->config.ring_bytes_max = RING_BYTES;
    kvr_lock_init(&li->lock, KVR_LOCK_LOCAL_INDEX);
    kvr_mem_init(&li->ring_mem, &li->alloc, 0);
    struct kvr_alloc counted = {counted_resize, li};
    struct kvr_index_config c = {.alloc = &counted, .ranks_max = 64};
    int rc = kvr__ring_init(&li->ring, &li->ring_mem, li->config.events_max, li->config.ring_bytes_max);
    if (rc == 0) rc = kvr_index_create(&c, &li->index);
    if (rc) kvr_local_index_destroy(li);
    else *out = li;
    return rc;
}

void kvr_local_index_destroy(struct kvr_local_index *li)
{
    if (!li) return;
    kvr_index_destroy(li->index);
    kvr__ring_free(&li->ring);
    kvr_mem_put(&li->own, li->blocks, li->blocks_cap * sizeof *li->blocks);
    kvr_mem_put(&li->own, li->locals, li->locals_cap * sizeof *li->locals);
    kvr_lock_destroy(&li->lock);
    struct kvr_mem mem = li->own;
    kvr_mem_put(&mem, li, sizeof *li);
}

void kvr_local_index_shutdown(struct kvr_local_index *li)
{
    atomic_store_explicit(&li->offline, true, memory_order_release);
}

/* ---- the writer ------------------------------------------------------------------------------------------ */

static void show(struct kvr_local_index *li)
{
    li->ring.shown = li->ring.end;
    li->newest = li->last;
    li->any_shown = li->any;
}

/* May the next event have this id? */
static int admits(const struct kvr_local_index *li, uint64_t id)
{
    if (atomic_load_explicit(&li->offline, memory_order_acquire)) return -KVR_ESHUTDOWN;
    return li->any && id < li->last ? -KVR_EINVAL : 0;
}

/* Under `lock`. */
static void count(struct kvr_local_index *li, uint64_t id, int rc)
{
    li->any = true;
    li->last = id;
    li->n.events++;
    li->n.refused += rc != 0;
}

/* An event that there was no memory to look at: neither ranges nor dumps may pretend that it never was. */
static int lose(struct kvr_local_index *li, uint64_t id)
{
    kvr_lock(&li->lock);
    kvr__ring_skip(&li->ring, id);
    count(li, id, -KVR_ENOMEM);
    li->overfull = true;
    if (!li->held) show(li);
    kvr_unlock(&li->lock);
    return -KVR_ENOMEM;
}

int kvr_local_index_apply(struct kvr_local_index *li, const struct kvr_event *event)
{
    struct kvr_event ev = *event;
    int rc = admits(li, ev.event_id);
    if (rc) return rc;
    ev.worker = li->config.worker;
    rc = kvr_index_apply(li->index, &ev);
    kvr_lock(&li->lock);
    kvr__ring_add(&li->ring, &ev);
    count(li, ev.event_id, rc);
    bool lower_store = ev.tier != KVR_TIER_DEVICE && ev.kind == KVR_EVENT_STORED; /* missed, it is a hit less */
    if (!lower_store && (rc == -KVR_ENOMEM || rc == -KVR_ECAPACITY)) li->overfull = true;
    if (ev.kind == KVR_EVENT_CLEARED && ev.tier == KVR_TIER_DEVICE && rc == 0) li->overfull = false;
    if (!li->held) show(li);
    kvr_unlock(&li->lock);
    return rc;
}

int kvr_local_index_store(struct kvr_local_index *li, uint64_t event_id, const struct kvr_local_store *s)
{
    uint32_t bs = atomic_load_explicit(&li->block_size, memory_order_relaxed);
    int rc = bs ? admits(li, event_id) : -KVR_EINVAL;
    if (rc) return rc;
    size_t n = kvr_hash_block_count(s->tokens_n, bs, s->eagle);
    if (n != s->blocks_n) return -KVR_ELENGTH;
    if (kvr_mem_grow(&li->own, (void **)&li->locals, &li->locals_cap, n + 1, sizeof *li->locals) ||
        kvr_mem_grow(&li->own, (void **)&li->blocks, &li->blocks_cap, n + 1, sizeof *li->blocks))
        return lose(li, event_id);
    uint64_t seed = kvr_hash_seed(s->lora, s->lora_len, s->salt, s->salt_len);
    long hashed = kvr_hash_locals(s->tokens, s->tokens_n, bs, s->eagle, seed, s->mm, s->mm_n, li->locals);
    if (hashed < 0) return (int)hashed;
    for (size_t i = 0; i < n; i++) li->blocks[i] = (struct kvr_block){s->block_hashes[i], li->locals[i]};
    struct kvr_event ev = {.event_id = event_id,
                           .tier = s->tier,
                           .kind = KVR_EVENT_STORED,
                           .has_parent = s->has_parent,
                           .parent_hash = s->parent_hash,
                           .blocks = li->blocks,
                           .blocks_n = n};
    return kvr_local_index_apply(li, &ev);
}

int kvr_local_index_remove(struct kvr_local_index *li, uint64_t event_id, enum kvr_tier tier, const uint64_t *hashes, size_t n)
{
    struct kvr_event ev = {.event_id = event_id, .tier = tier, .kind = KVR_EVENT_REMOVED, .removed = hashes, .removed_n = n};
    return kvr_local_index_apply(li, &ev);
}

int kvr_local_index_clear(struct kvr_local_index *li, uint64_t event_id)
{
    struct kvr_event ev = {.event_id = event_id, .kind = KVR_EVENT_CLEARED};
    return kvr_local_index_apply(li, &ev);
}

void kvr_local_index_hold(struct kvr_local_index *li)
{
    li->held = true;
}

void kvr_local_index_release(struct kvr_local_index *li)
{
    li->held = false;
    kvr_lock(&li->lock);
    show(li);
    kvr_unlock(&li->lock);
}

void kvr_local_index_set_block_size(struct kvr_local_index *li, uint32_t block_size)
{
    atomic_store_explicit(&li->block_size, block_size, memory_order_relaxed);
}

void kvr_local_index_set_incomplete(struct kvr_local_index *li, const char *why)
{
    kvr_lock(&li->lock);
    snprintf(li->incomplete, sizeof li->incomplete, "%s", why ? why : "");
    kvr_unlock(&li->lock);
}

/* ---- answers --------------------------------------------------------------------------------------------- */

struct answer {
    struct kvr_local_index *li;
    const struct kvr_local_query *q;
    struct kvr_buf b;
    kvr_local_sink *sink;
    void *ctx;
};

static int flush(struct answer *a, size_t above)
{
    if (a->b.failed) return -KVR_ENOMEM;
    if (a->b.len <= above) return 0;
    int rc = a->sink(a->ctx, a->b.data, a->b.len);
    a->b.len = 0;
    return rc;
}

static int put_event(void *ctx, const struct kvr_event *ev)
{
    struct answer *a = ctx;
    kvr__event_json(&a->b, ev, ev->event_id);
    return flush(a, PIECE);
}

/* {"Variant":{ */
static void open_variant(struct answer *a, const char *name)
{
    kvr_json_open(&a->b, '{');
    kvr_json_key(&a->b, name);
    kvr_json_open(&a->b, '{');
}

static int close_variant(struct answer *a)
{
    kvr_json_close(&a->b, '}');
    kvr_json_close(&a->b, '}');
    return flush(a, 0);
}

static void put_epoch(struct answer *a)
{
    if (!a->q->old_shape) kvr_json_put_u64(&a->b, "epoch", a->li->config.epoch);
}

static int answer_failed(struct answer *a, uint64_t last, const char *message)
{
    if (a->q->supports_tree_dump_failed) {
        open_variant(a, "TreeDumpFailed");
        kvr_json_put_u64(&a->b, "last_event_id", last);
        kvr_json_put_str(&a->b, "message", message);
        return close_variant(a);
    }
    char text[192];
    snprintf(text, sizeof text, "worker tree dump failed: %s", message);
    kvr_json_open(&a->b, '{');
    kvr_json_put_str(&a->b, "Error", text);
    kvr_json_close(&a->b, '}');
    return flush(a, 0);
}

static int answer_invalid(struct answer *a)
{
    open_variant(a, "InvalidRange");
    kvr_json_put_u64(&a->b, "start_id", a->q->start);
    kvr_json_put_u64(&a->b, "end_id", a->q->end);
    return close_variant(a);
}

static int answer_too_new(struct answer *a, uint64_t newest)
{
    open_variant(a, "TooNew");
    kvr_json_put_u64(&a->b, "requested_start", a->q->start);
    kvr_json_key(&a->b, "requested_end");
    if (a->q->has_end) kvr_json_u64(&a->b, a->q->end);
    else kvr_json_null(&a->b);
    kvr_json_put_u64(&a->b, "newest_available", newest);
    put_epoch(a);
    return close_variant(a);
}

/* The last event that a walk just ended may have seen something of, shown or held. */
static uint64_t last_applied(struct kvr_local_index *li)
{
    kvr_lock(&li->lock);
    uint64_t id = li->any ? li->last : 0;
    kvr_unlock(&li->lock);
    return id;
}

/* Why there can be no dump; "" when there can. */
static uint64_t dump_state(struct kvr_local_index *li, char *why, size_t cap)
{
    kvr_lock(&li->lock);
    uint64_t id = li->any_shown ? li->newest : 0;
    const char *text = li->incomplete;
    if (li->overfull) text = "the index has run out of memory";
    bool offline = atomic_load_explicit(&li->offline, memory_order_acquire);
    if (offline) text = "Indexer is offline";
    snprintf(why, cap, "%s", text);
    if (*text) li->n.dump_failures++;
    else li->n.dumps++;
    kvr_unlock(&li->lock);
    return offline ? 0 : id;
}

/* Emits the whole index. */
static int walk(struct kvr_local_index *li, kvr_index_emit *emit, void *ctx)
{
    struct kvr_index_walk *w;
    bool more = true;
    int rc = kvr_index_walk_begin(li->index, li->config.worker, &w);
    if (rc) return rc;
    while (more && rc == 0) rc = kvr_index_walk_next(w, WALK_BLOCKS, emit, ctx, &more);
    kvr_index_walk_end(w);
    return rc;
}

int kvr_local_index_dump(struct kvr_local_index *li, int (*emit)(void *ctx, const struct kvr_event *event), void *ctx)
{
    char why[160];
    (void)dump_state(li, why, sizeof why);
    return why[0] ? -KVR_EUNSUPPORTED : walk(li, emit, ctx);
}

static int answer_dump(struct answer *a)
{
    struct kvr_local_index *li = a->li;
    char why[160];
    uint64_t last = dump_state(li, why, sizeof why);
    if (why[0]) return answer_failed(a, last, why);
    open_variant(a, "TreeDump");
    put_epoch(a);
    uint32_t block_size = atomic_load_explicit(&li->block_size, memory_order_relaxed);
    if (block_size && !a->q->old_shape) kvr_json_put_u64(&a->b, "block_size", block_size);
    kvr_json_key(&a->b, "events");
    kvr_json_open(&a->b, '[');
    int rc = walk(li, put_event, a);
    if (rc) return rc;
    kvr_json_close(&a->b, ']');
    kvr_json_put_u64(&a->b, "last_event_id", last);
    if (!a->q->old_shape) kvr_json_put_u64(&a->b, "end_event_id", last_applied(li));
    return close_variant(a);
}

/* Copies places [at, end), PIECE bytes at a time. Returns: 0, 1 when the ring went past us, -KVR_ENOMEM. */
static int copy_range(struct kvr_local_index *li, struct kvr_event_list *c, uint64_t at, uint64_t end)
{
    int rc = 0;
    while (at < end && rc == 0) {
        kvr_lock(&li->lock);
        if (at < li->ring.first) rc = 1;
        for (size_t goal = c->data_n + PIECE, n = 0; rc == 0 && at < end && c->data_n < goal && n < 256; at++, n++)
            rc = kvr__event_list_add(c, kvr__ring_at(&li->ring, at));
        kvr_unlock(&li->lock);
    }
    return rc;
}

static int write_events(struct answer *a, struct kvr_event_list *c, uint64_t last)
{
    int rc = 0;
    if (a->q->old_shape) {
        kvr_json_open(&a->b, '{');
        kvr_json_key(&a->b, "Events");
    } else {
        open_variant(a, "Events");
        put_epoch(a);
        kvr_json_key(&a->b, "events");
    }
    kvr_json_open(&a->b, '[');
    const struct kvr_event *events = kvr__event_list_events(c);
    for (size_t i = 0; i < c->n && rc == 0; i++) rc = put_event(a, &events[i]);
    kvr_json_close(&a->b, ']');
    if (rc) return rc;
    if (!a->q->old_shape) {
        kvr_json_put_u64(&a->b, "last_event_id", last);
        return close_variant(a);
    }
    kvr_json_close(&a->b, '}');
    return flush(a, 0);
}

static int answer_events(struct answer *a, uint64_t from, uint64_t to, uint64_t last)
{
    struct kvr_event_list c;
    kvr__event_list_init(&c, &a->li->alloc);
    int rc = copy_range(a->li, &c, from, to);
    if (rc == 0) rc = write_events(a, &c, last);
    else if (rc == 1) rc = answer_dump(a); /* what was asked for has just fallen out */
    kvr__event_list_free(&c);
    return rc;
}

static int answer(struct answer *a)
{
    struct kvr_local_index *li = a->li;
    const struct kvr_local_query *q = a->q;
    if (q->has_start && q->has_end && q->end < q->start) return answer_invalid(a);
    if (!q->has_start) return answer_dump(a);
    kvr_lock(&li->lock);
    bool any = li->any_shown, reaches = kvr__ring_reaches(&li->ring, q->start);
    uint64_t newest = li->newest, last = q->has_end ? KVR_MIN(q->end, newest) : newest;
    uint64_t from = kvr__ring_find(&li->ring, q->start);
    uint64_t to = last == newest ? li->ring.shown : kvr__ring_find(&li->ring, last + 1);
    li->n.too_new += any && q->start > newest;
    li->n.ranges += any && q->start <= newest && reaches;
    kvr_unlock(&li->lock);
    if (any && q->start > newest) return answer_too_new(a, newest);
    if (!any || !reaches) return answer_dump(a);
    return answer_events(a, from, to, last);
}

int kvr_local_index_answer(struct kvr_local_index *li, const struct kvr_local_query *query, kvr_local_sink *sink, void *ctx)
{
    struct answer a = {.li = li, .q = query, .sink = sink, .ctx = ctx};
    int rc = answer(&a);
    kvr_buf_free(&a.b);
    return rc;
}

bool kvr_local_index_holds(struct kvr_local_index *li, enum kvr_tier tier, uint64_t block_hash)
{
    return kvr_index_holds(li->index, li->config.worker, tier, block_hash);
}

void kvr_local_index_stats(struct kvr_local_index *li, struct kvr_local_index_stats *out)
{
    kvr_lock(&li->lock);
    *out = li->n;
    out->epoch = li->config.epoch;
    out->newest_id = li->any_shown ? li->newest : 0;
    out->oldest_id = !li->any_shown ? 0 : li->ring.evicted_any ? li->ring.evicted_id + 1 : kvr__ring_at(&li->ring, 0)->event_id;
    out->evicted = li->ring.first;
    out->ring_events = (size_t)(li->ring.end - li->ring.first);
    out->ring_bytes = li->ring.bytes + li->config.events_max * sizeof(struct kvr_ring_entry);
    out->complete = !li->overfull && !li->incomplete[0];
    kvr_unlock(&li->lock);
    out->index_bytes = atomic_load_explicit(&li->index_bytes, memory_order_relaxed);
    out->blocks = kvr_index_rank_blocks(li->index, li->config.worker);
}
