/* SPDX-License-Identifier: Apache-2.0 */
/* Lanes, and the public calls that change the index. */
#include "index/internal.h"

#define DEFAULT_TTL_NS      UINT64_C(120000000000)
#define DEFAULT_PRUNE_RATIO 0.8
#define DEFAULT_RANKS_MAX   16384
#define DEFAULT_TIER_BLOCKS ((size_t)1 << 21)
#define DEFAULT_TIER_TTL_NS UINT64_C(3600000000000)
#define TRIM_BYTES          ((size_t)8 << 20)

enum { STORE_TRIES = 2048 };
enum {
    SLICE = 4096,
    SLICE_OF_AN_EVENT = 256,
    SLICE_OF_PRUNING = 256,
    SLICE_OF_EXPIRY = 65536
}; /* blocks of what leaves, given back while a lane is locked once */

/* ---- life ----------------------------------------------------------------------------------------------- */

static void lane_destroy(struct lane *ln)
{
    for (int i = 0; i < 4; i++) kvr__reclaim(ln, true); /* no reader is inside */
    for (uint32_t id = IDS_RESERVED; id < ln->ids_top; id++) {
        struct run *r = kvr__run(ln, id);
        struct cover *c = r && !kvr__is_alias(r) ? kvr__cover(r) : NULL;
        if (c) kvr__cover_free(ln, c);
    }
    kvr__leaving_destroy(ln);
    kvr__predict_destroy(ln);
    kvr__tier_set_free(&ln->tiers);
    kvr__prefix_destroy(ln);
    kvr__names_destroy(ln);
    kvr__kids_destroy(ln);
    kvr__slab_destroy(ln);
    kvr__refs_destroy(ln);
    for (uint32_t i = 0; i < SLOT_CHUNKS; i++) {
        struct slot *c = atomic_load_explicit(&ln->slots[i], RLX);
        kvr_mem_put(&ln->mem, c, c ? sizeof *c * SLOT_CHUNK : 0);
    }
    kvr_mem_put(&ln->mem, ln->rank_of, ln->rank_of_cap * sizeof *ln->rank_of);
    kvr_mem_put(&ln->mem, ln->dropped, ln->dropped_cap * sizeof *ln->dropped);
    kvr_lock_destroy(&ln->lock);
}

static int lane_init(struct kvr_index *ix, struct lane *ln)
{
    const struct kvr_index_config *c = &ix->config;
    kvr_lock_init(&ln->lock, KVR_LOCK_INDEX_LANE);
    ln->ix = ix;
    ln->simd = c->portable ? &kvr__simd_portable : kvr__simd_best();
    kvr_mem_init(&ln->mem, &ix->mem.a, 0);
    ln->arena.off = c->bytes_max != 0;
    ln->tiers.mem = &ln->mem;
    ln->stamps = c->bytes_max || c->rank_capacity || c->evictable;
    ln->seed = kvr_mix64(kvr_secret() + (uint64_t)(ln - ix->lanes));
    ln->rng = ln->seed;
    if (kvr__refs_init(ln)) return -KVR_ENOMEM;
    if (kvr__kids_init(ln)) return -KVR_ENOMEM;
    return kvr__names_init(ln);
}

/* Gives up what is over the cap; stops when nothing comes back, because readers may still look at it. */
static void keep_cap(struct lane *ln)
{
    kvr_lock(&ln->lock);
    kvr__tiers_keep_share(ln);
    for (int idle = 0; ln->mem.bytes > ln->mem.bytes_max && idle < 8;) {
        size_t before = ln->mem.bytes;
        if (!kvr__evict_for_bytes(ln, NULL)) break;
        idle = ln->mem.bytes < before ? 0 : idle + 1;
    }
    kvr_unlock(&ln->lock);
}

/* What a lane and the pools may have has changed. */
static void share_anew(struct kvr_index *ix)
{
    kvr__share_cap(ix);
    for (uint32_t i = 0; i < ix->lanes_n; i++) keep_cap(&ix->lanes[i]);
    kvr__share_cap(ix); /* the pools get what came back */
}

int kvr_index_set_bytes_max(struct kvr_index *ix, size_t bytes)
{
    kvr_lock(&ix->readers_lock);
    bool capped = ix->config.bytes_max != 0;
    if (capped) ix->config.bytes_max = KVR_MAX(bytes, (size_t)1);
    kvr_unlock(&ix->readers_lock);
    if (!capped) return -KVR_EUNSUPPORTED;
    share_anew(ix);
    return 0;
}

static size_t index_bytes(uint32_t lanes)
{
    return sizeof(struct kvr_index) + lanes * sizeof(struct lane) + 64; /* room to align */
}

static bool config_is_valid(const struct kvr_index_config *c)
{
    return c->prune_target_ratio >= 0 && c->prune_target_ratio <= 1 && c->lanes <= LANES_MAX && c->ranks_max <= SLOT_MAX / 2;
}

int kvr_index_create(const struct kvr_index_config *config, struct kvr_index **out)
{
    struct kvr_index_config c = config ? *config : (struct kvr_index_config){0};
    if (!config_is_valid(&c)) return -KVR_EINVAL;
    if (!c.ttl_ns) c.ttl_ns = DEFAULT_TTL_NS;
    if (c.prune_target_ratio == 0) c.prune_target_ratio = DEFAULT_PRUNE_RATIO;
    if (!c.ranks_max) c.ranks_max = DEFAULT_RANKS_MAX;
    if (!c.tier_blocks_max) c.tier_blocks_max = DEFAULT_TIER_BLOCKS;
    if (!c.tier_ttl_ns) c.tier_ttl_ns = DEFAULT_TIER_TTL_NS;
    if (!c.lanes) c.lanes = 1;
    struct kvr_mem mem;
    kvr_mem_init(&mem, c.alloc, c.bytes_max);
    char *raw = kvr_mem_zget(&mem, index_bytes(c.lanes));
    if (!raw) return -KVR_ENOMEM;
    struct kvr_index *ix = (struct kvr_index *)(void *)(raw + (64 - (uintptr_t)raw % 64) % 64);
    ix->raw = raw;
    ix->config = c;
    ix->clock = c.clock ? *c.clock : *kvr_clock_monotonic();
    ix->mem = mem;
    ix->lanes_n = c.lanes;
    ix->slots_max = c.ranks_max + c.ranks_max / 4 + 64; /* cleared slots wait for readers */
    atomic_init(&ix->epoch, 1);
    kvr_lock_init(&ix->readers_lock, KVR_LOCK_INDEX_READERS);
    kvr_rwlock_init(&ix->ranks_lock, KVR_LOCK_INDEX_RANKS); /* threads that apply events hold it most of the time, shared */
    kvr_lock_init(&ix->windows_lock, KVR_LOCK_INDEX_WINDOWS);
    kvr_lock_init(&ix->pools_lock, KVR_LOCK_INDEX_POOLS);
    kvr_mem_init(&ix->pools_mem, &ix->mem.a, c.bytes_max);
    ix->pooled.mem = &ix->pools_mem;
    int rc = 0;
    for (uint32_t i = 0; i < c.lanes && rc == 0; i++) rc = lane_init(ix, &ix->lanes[i]);
    if (rc == 0 && c.frequency_window_ns) rc = kvr__usage_create(ix);
    kvr__share_cap(ix);
    if (rc) {
        kvr_index_destroy(ix);
        return rc;
    }
    *out = ix;
    return 0;
}

void kvr_index_destroy(struct kvr_index *ix)
{
    if (!ix) return;
    while (ix->readers) kvr_index_reader_destroy(ix->readers);
    kvr__usage_destroy(ix);
    kvr__ranks_destroy(ix);
    for (uint32_t i = 0; i < ix->lanes_n; i++)
        if (ix->lanes[i].ix) lane_destroy(&ix->lanes[i]);
    kvr__pools_destroy(ix);
    kvr_lock_destroy(&ix->pools_lock);
    kvr_lock_destroy(&ix->readers_lock);
    kvr__windows_destroy(ix);
    kvr_rwlock_destroy(&ix->ranks_lock);
    struct kvr_mem mem = ix->mem;
    kvr_mem_put(&mem, ix->raw, index_bytes(ix->lanes_n));
}

static size_t reader_bytes(const struct kvr_index *ix)
{
    return sizeof(struct kvr_index_reader) + 64 + ix->slots_max * sizeof(uint32_t) + sizeof(struct visit[MATCH_GROUP][MATCH_VISITS]);
}

/* A reader counts, but it is not refused for the cap: blocks make room for it, for who holds much must be asked too. */
int kvr_index_reader_create(struct kvr_index *ix, struct kvr_index_reader **out)
{
    kvr_lock(&ix->readers_lock);
    size_t max = ix->mem.bytes_max;
    ix->mem.bytes_max = 0;
    char *raw = kvr_mem_zget(&ix->mem, reader_bytes(ix));
    ix->mem.bytes_max = max;
    if (raw) {
        struct kvr_index_reader *rd = (struct kvr_index_reader *)(void *)(raw + (64 - (uintptr_t)raw % 64) % 64);
        rd->raw = raw;
        rd->index = ix;
        rd->log = (struct visit(*)[MATCH_VISITS])(void *)(rd + 1);
        rd->written = (uint32_t *)(void *)(rd->log + MATCH_GROUP);
        rd->slots = ix->slots_max;
        rd->next = ix->readers;
        if (rd->next) rd->next->prev = rd;
        ix->readers = rd;
        *out = rd;
    }
    kvr_unlock(&ix->readers_lock);
    kvr__share_cap(ix);
    return raw ? 0 : -KVR_ENOMEM;
}

void kvr_index_reader_destroy(struct kvr_index_reader *rd)
{
    if (!rd) return;
    struct kvr_index *ix = rd->index;
    kvr_lock(&ix->readers_lock);
    if (rd->prev) rd->prev->next = rd->next;
    else ix->readers = rd->next;
    if (rd->next) rd->next->prev = rd->prev;
    kvr_mem_put(&ix->mem, rd->raw, reader_bytes(ix));
    kvr_unlock(&ix->readers_lock);
    kvr__share_cap(ix);
}

/* ---- events --------------------------------------------------------------------------------------------- */

static void count_result(struct lane *ln, int rc)
{
    switch (rc) {
    case -KVR_EPARENT: ln->counters.parent_not_found++; break;
    case -KVR_ENOTFOUND: ln->counters.block_not_found++; break;
    case -KVR_ESEQUENCE: ln->counters.invalid_sequence++; break;
    case -KVR_ENOMEM: ln->counters.no_memory++; break;
    case -KVR_ECAPACITY: ln->counters.no_room++; break;
    default: break;
    }
}

/* When memory is short, old blocks go, and the store is to be tried once more: a repeated store changes nothing it has done. Each time
 * a 64th goes: STORE_TRIES is more than empties any lane. */
static bool make_room(struct lane *ln, const struct rank *rk, int rc, unsigned *tries)
{
    return rc == -KVR_ENOMEM && (*tries)++ < STORE_TRIES && kvr__evict_for_bytes(ln, rk);
}

static int store(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    int rc;
    unsigned tries = 0;
    size_t before = rk->blocks;
    do rc = kvr__store(ln, rk, ev);
    while (make_room(ln, rk, rc, &tries));
    size_t more = rk->blocks > before ? rk->blocks - before : 0;
    rk->turnover.stored += more;
    ln->counters.stored_blocks += more;
    if (rk->capacity) kvr__evict_for_capacity(ln, rk);
    return rc;
}

static int remove_blocks(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    size_t before = rk ? rk->blocks : 0;
    int rc = kvr__remove(ln, rk, ev->removed, ev->removed_n);
    size_t fewer = rk ? before - rk->blocks : 0;
    if (rk) rk->turnover.removed += fewer;
    ln->counters.removed_blocks += fewer;
    return rc;
}

/* Everything, in all tiers. */
static void clear_rank(struct lane *ln, struct rank *rk)
{
    kvr__rank_clear(ln, rk);
    for (enum kvr_tier t = KVR_TIER_DEVICE; t < KVR_TIER_COUNT; t++) kvr__tiers_clear(ln, rk, t);
}

/* More than was stored goes, or a worker that restarts again and again would leave more behind than is ever given back. */
static void give_back_after(struct lane *ln, size_t stored)
{
    if (ln->leaving) (void)kvr__drain(ln, SLICE_OF_AN_EVENT + stored);
}

/* One event of a rank of this lane. The lane is locked. rk NULL: the pair is not known. */
int kvr__apply_one(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    int rc = -KVR_EINVAL;
    if (ln->stamps) kvr__evict_tick(ln);
    if (ev->tier != KVR_TIER_DEVICE) {
        ln->counters.tier_events++;
        rc = kvr__tiers_apply(ln, rk, ev);
        count_result(ln, rc);
        give_back_after(ln, ev->blocks_n);
        return rc;
    }
    switch (ev->kind) {
    case KVR_EVENT_STORED:
        ln->counters.stored_events++;
        rc = store(ln, rk, ev);
        if (rc && ln->walks) kvr__walks_disturbed(ln, rk);
        break;
    case KVR_EVENT_REMOVED:
        ln->counters.removed_events++;
        rc = remove_blocks(ln, rk, ev);
        break;
    case KVR_EVENT_CLEARED:
        ln->counters.cleared_events++;
        clear_rank(ln, rk);
        rc = 0;
        break;
    }
    count_result(ln, rc);
    give_back_after(ln, ev->blocks_n);
    kvr__reclaim(ln, false);
    return rc;
}

/* An event of a pair that holds nothing and was never seen. */
static int apply_unknown(struct kvr_index *ix, const struct kvr_event *ev)
{
    struct lane *ln = &ix->lanes[0];
    int rc = ev->kind == KVR_EVENT_REMOVED && ev->removed_n && ev->tier == KVR_TIER_DEVICE ? -KVR_ENOTFOUND : 0;
    kvr_lock(&ln->lock);
    ln->counters.removed_events += ev->kind == KVR_EVENT_REMOVED;
    ln->counters.cleared_events += ev->kind == KVR_EVENT_CLEARED;
    count_result(ln, rc);
    kvr_unlock(&ln->lock);
    return rc;
}

static void clear_worker(struct kvr_index *ix, uint64_t worker_id)
{
    for (size_t i = 0; i < ix->ranks_cap; i++) {
        struct rank *rk = ix->ranks[i];
        if (!rk || rk->worker.worker_id != worker_id) continue;
        kvr_lock(&rk->lane->lock);
        clear_rank(rk->lane, rk);
        kvr_unlock(&rk->lane->lock);
    }
}

/* The rank an event is for; stores make it. ranks_lock is held shared. */
static int rank_of_event(struct kvr_index *ix, const struct kvr_event *ev, struct rank **out)
{
    if (ev->kind == KVR_EVENT_STORED) return kvr__rank_get(ix, ev->worker, out);
    *out = kvr__rank_find(ix, ev->worker);
    if (!*out && ev->kind == KVR_EVENT_REMOVED && ev->tier == KVR_TIER_EXTERNAL && kvr__pool_has(ix, ev->worker))
        return kvr__rank_get(ix, ev->worker, out); /* its pool is there though it has nothing itself */
    return 0;
}

/* One event; ranks_lock is held shared. */
int kvr__apply_alone(struct kvr_index *ix, const struct kvr_event *ev)
{
    struct rank *rk;
    if (ev->kind == KVR_EVENT_CLEARED && ix->config.clear_worker_wide) clear_worker(ix, ev->worker.worker_id);
    int rc = rank_of_event(ix, ev, &rk);
    if (rc) {
        kvr_lock(&ix->lanes[0].lock);
        count_result(&ix->lanes[0], rc);
        kvr_unlock(&ix->lanes[0].lock);
        return rc;
    }
    if (!rk) return apply_unknown(ix, ev);
    kvr_lock(&rk->lane->lock);
    kvr__fetch_buckets(rk->lane, ev);
    rc = kvr__apply_one(rk->lane, rk, ev);
    kvr_unlock(&rk->lane->lock);
    return rc;
}

int kvr_index_apply(struct kvr_index *ix, const struct kvr_event *ev)
{
    if (ev->tier < 0 || ev->tier >= KVR_TIER_COUNT) return -KVR_EINVAL;
    if (ev->kind == KVR_EVENT_CLEARED && ev->tier == KVR_TIER_DEVICE) kvr__windows_clear(ix, ev->worker, false);
    if (ev->kind == KVR_EVENT_CLEARED && ix->config.clear_worker_wide) kvr__windows_clear_worker(ix, ev->worker.worker_id);
    kvr_read_lock(&ix->ranks_lock);
    int rc = kvr__apply_alone(ix, ev);
    kvr_rw_unlock(&ix->ranks_lock);
    return rc;
}

int kvr_index_record(struct kvr_index *ix, struct kvr_worker w, const uint64_t *locals, size_t locals_n, const uint64_t *seqs,
                     size_t seqs_n)
{
    struct rank *rk;
    if (locals_n != seqs_n) return -KVR_ELENGTH;
    if (locals_n == 0) return 0;
    kvr_read_lock(&ix->ranks_lock);
    int rc = kvr__rank_get(ix, w, &rk);
    if (rc == 0) {
        struct lane *ln = rk->lane;
        uint64_t expiry = kvr_now_ns(&ix->clock) + ix->config.ttl_ns;
        size_t max = ix->config.predicted_max / KVR_MIN((size_t)ix->lanes_n, ix->ranks_n); /* of the lanes that have a rank */
        kvr_lock(&ln->lock);
        if (ln->stamps) kvr__evict_tick(ln);
        unsigned tries = 0;
        do rc = kvr__store_predicted(ln, rk, locals, seqs, locals_n, expiry);
        while (make_room(ln, rk, rc, &tries));
        if (ix->config.predicted_max)
            ln->counters.pruned +=
                kvr__predict_keep_within(ln, max, (size_t)((double)max * ix->config.prune_target_ratio), 2 * locals_n + SLICE_OF_PRUNING);
        if (rk->capacity) kvr__evict_for_capacity(ln, rk);
        give_back_after(ln, locals_n);
        count_result(ln, rc);
        kvr__reclaim(ln, false);
        kvr_unlock(&ln->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return rc;
}

/* Has the lane given up most of a large amount of memory? The lane is locked. */
static bool wants_trim(struct lane *ln)
{
    if (ln->mem.bytes > ln->mem_high) ln->mem_high = ln->mem.bytes;
    if (ln->mem_high - ln->mem.bytes < TRIM_BYTES || ln->mem.bytes > ln->mem_high / 2) return false;
    ln->mem_high = ln->mem.bytes;
    return true;
}

/* Frees what no reader can see any more, and gives memory back to the system after a large removal. */
static void tidy(struct kvr_index *ix, struct lane *ln)
{
    kvr_lock(&ln->lock);
    kvr__reclaim(ln, true);
    bool trim = wants_trim(ln);
    kvr_unlock(&ln->lock);
    if (trim) kvr_mem_trim(&ix->mem);
}

/* The lane is locked. */
static void expire_tiers(struct lane *ln)
{
    if (!ln->tiers.n) return;
    for (uint32_t i = 1; i < atomic_load_explicit(&ln->slots_top, RLX); i++)
        if (ln->rank_of[i]) (void)kvr__tiers_expire(ln, ln->rank_of[i]);
}

size_t kvr_index_expire(struct kvr_index *ix)
{
    size_t gone = 0;
    uint64_t now = kvr_now_ns(&ix->clock);
    for (uint32_t i = 0; i < ix->lanes_n; i++) {
        struct lane *ln = &ix->lanes[i];
        bool more = true;
        while (more) { /* who records comes between */
            kvr_lock(&ln->lock);
            size_t n = kvr__predict_expire(ln, now, SLICE);
            more = kvr__predict_is_due(ln, now);
            ln->counters.expired += n;
            if (!more) expire_tiers(ln);
            gone += n;
            kvr_unlock(&ln->lock);
        }
        tidy(ix, ln);
    }
    (void)kvr__pools_expire(ix);
    (void)kvr_index_tend(ix, SLICE_OF_EXPIRY);
    return gone;
}

/* ---- removing ------------------------------------------------------------------------------------------- */

static bool holds_nothing(const struct rank *rk)
{
    return rk->held_n == 0 && kvr__tiers_none(rk);
}

/* False: the pair is not known (any more). */
static bool empty_rank(struct kvr_index *ix, struct kvr_worker w)
{
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        if (!holds_nothing(rk) && !kvr__rank_set_aside(rk->lane, rk)) clear_rank(rk->lane, rk);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return rk != NULL;
}

void kvr_index_drop_rank(struct kvr_index *ix, struct kvr_worker w)
{
    bool gone = false;
    kvr__windows_clear(ix, w, true);
    while (!gone && empty_rank(ix, w)) { /* again when a store came in between */
        kvr_write_lock(&ix->ranks_lock);
        struct rank *rk = kvr__rank_find(ix, w);
        gone = !rk || holds_nothing(rk);
        if (rk && gone) kvr__rank_forget(ix, rk);
        kvr_rw_unlock(&ix->ranks_lock);
    }
}

/* A slice of one lane. Returns: whether more is leaving. */
static bool tend_lane(struct kvr_index *ix, struct lane *ln, size_t *blocks)
{
    kvr_lock(&ln->lock);
    size_t n = kvr__drain(ln, KVR_MIN(*blocks, (size_t)SLICE));
    bool more = ln->leaving != NULL;
    kvr__reclaim(ln, false);
    kvr_unlock(&ln->lock);
    *blocks -= KVR_MIN(KVR_MAX(n, (size_t)1), *blocks);
    if (n && !more) tidy(ix, ln);
    return more;
}

bool kvr_index_tend(struct kvr_index *ix, size_t blocks)
{
    bool more = false;
    for (uint32_t i = 0; i < ix->lanes_n; i++) {
        bool here = true;
        while (here && blocks) here = tend_lane(ix, &ix->lanes[i], &blocks);
        more |= here;
    }
    return more;
}

void kvr_index_remove_rank(struct kvr_index *ix, struct kvr_worker w)
{
    kvr_index_drop_rank(ix, w);
    (void)kvr_index_tend(ix, SIZE_MAX);
    for (uint32_t i = 0; i < ix->lanes_n; i++) tidy(ix, &ix->lanes[i]);
}

static bool find_rank_of(struct kvr_index *ix, uint64_t worker_id, struct kvr_worker *out)
{
    bool found = false;
    kvr_read_lock(&ix->ranks_lock);
    for (size_t i = 0; i < ix->ranks_cap && !found; i++) {
        found = ix->ranks[i] && ix->ranks[i]->worker.worker_id == worker_id;
        if (found) *out = ix->ranks[i]->worker;
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return found;
}

void kvr_index_drop_worker(struct kvr_index *ix, uint64_t worker_id)
{
    struct kvr_worker w;
    kvr__pools_leave(ix, worker_id); /* a rank that comes between is in none */
    while (find_rank_of(ix, worker_id, &w)) kvr_index_drop_rank(ix, w);
    kvr__pools_tidy(ix);
}

void kvr_index_remove_worker(struct kvr_index *ix, uint64_t worker_id)
{
    struct kvr_worker w;
    kvr__pools_leave(ix, worker_id); /* a rank that comes between is in none */
    while (find_rank_of(ix, worker_id, &w)) kvr_index_remove_rank(ix, w);
    kvr__pools_tidy(ix);
}

int kvr_index_set_capacity(struct kvr_index *ix, struct kvr_worker w, size_t blocks)
{
    struct rank *rk;
    if (!ix->lanes[0].stamps) return -KVR_EUNSUPPORTED;
    kvr_read_lock(&ix->ranks_lock);
    int rc = kvr__rank_get(ix, w, &rk);
    if (rc == 0) {
        kvr_lock(&rk->lane->lock);
        rk->capacity = blocks;
        kvr__evict_for_capacity(rk->lane, rk);
        kvr__reclaim(rk->lane, true);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return rc;
}

/* ---- looking -------------------------------------------------------------------------------------------- */

size_t kvr_index_ranks(const struct kvr_index *ix)
{
    size_t n = atomic_load_explicit(&ix->lone_n, RLX);
    for (uint32_t i = 0; i < ix->lanes_n; i++) n += atomic_load_explicit(&ix->lanes[i].slots_top, ACQ);
    return n;
}

size_t kvr_index_rank_blocks(struct kvr_index *ix, struct kvr_worker w)
{
    size_t n = 0;
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        n = rk->blocks;
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return n;
}

void kvr_index_rank_turnover(struct kvr_index *ix, struct kvr_worker w, struct kvr_turnover *out)
{
    *out = (struct kvr_turnover){0};
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        *out = rk->turnover;
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
}

/* By events, in the device's tier. The lane is locked. */
static bool device_holds(const struct lane *ln, const struct rank *rk, uint64_t name)
{
    struct place p;
    return kvr__resolve(ln, rk, name, &p) && (!ln->predict.pairs_n || kvr__predict_is_permanent(ln, rk->slot, p.run, p.off));
}

bool kvr_index_holds(struct kvr_index *ix, struct kvr_worker w, enum kvr_tier tier, uint64_t name)
{
    bool found = false;
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        found = tier == KVR_TIER_DEVICE ? device_holds(rk->lane, rk, name) : kvr__tiers_have(rk->lane, rk, tier, name);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return found;
}

/* ---- lower tiers ---------------------------------------------------------------------------------------- */

int kvr_index_set_pool(struct kvr_index *ix, struct kvr_worker w, uint64_t pool)
{
    struct rank *rk;
    kvr_read_lock(&ix->ranks_lock);
    bool known = kvr__rank_find(ix, w) != NULL;
    int rc = kvr__rank_get(ix, w, &rk);
    if (rc == 0) {
        kvr_lock(&rk->lane->lock);
        rc = kvr__tiers_join(rk->lane, rk, pool);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    if (rc && !known) kvr_index_drop_rank(ix, w);
    if (rc == 0 && pool && ix->config.bytes_max) share_anew(ix);
    return rc;
}

size_t kvr_index_fell_short(struct kvr_index *ix, struct kvr_worker w, const uint64_t *prefixes, size_t from, size_t n)
{
    size_t gone = 0;
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        gone = kvr__tiers_fell_short(rk->lane, rk, prefixes, from, n);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return gone;
}

static void side_status(const struct tier_side *side, struct kvr_tier_status *out)
{
    *out = (struct kvr_tier_status){.blocks = side->list.n,
                                    .chunk = KVR_MAX(side->chunk, 1u),
                                    .unplaced = side->unplaced,
                                    .given_up = side->given_up,
                                    .removes = side->removes};
}

void kvr_index_tier_status(struct kvr_index *ix, struct kvr_worker w, struct kvr_tier_status out[KVR_TIER_COUNT])
{
    memset(out, 0, KVR_TIER_COUNT * sizeof *out);
    kvr_read_lock(&ix->ranks_lock);
    const struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        for (uint32_t t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) side_status(&rk->tier[t], &out[t]);
        out[KVR_TIER_DEVICE] = (struct kvr_tier_status){.blocks = rk->blocks, .chunk = 1, .removes = true};
        kvr_unlock(&rk->lane->lock);
    }
    kvr_lock(&ix->pools_lock);
    const struct pool *p = kvr__pool_find(ix, w);
    if (p) side_status(&p->side, &out[KVR_TIER_EXTERNAL]);
    kvr_unlock(&ix->pools_lock);
    kvr_rw_unlock(&ix->ranks_lock);
}

struct going_on {
    struct kvr_index_reader *rd;
    const uint64_t *prefixes;
    size_t n;
    struct kvr_reach *out;
    size_t cap, found;
};

/* The lane is locked. */
static void go_on(struct going_on *g, struct lane *ln, struct rank *rk, struct kvr_reach *reach)
{
    bool windows = atomic_load_explicit(&ln->ix->windowed_n, ACQ) && kvr__windows_has(ln->ix, rk->worker);
    g->rd->written[rk->slot] = g->rd->mark;
    if (!windows) kvr__tiers_reach(ln, rk, g->prefixes, g->n, reach);
}

static bool has_lower(const struct rank *rk)
{
    return rk && (rk->remembers || rk->pool);
}

static void put_reach(struct going_on *g, const struct kvr_reach *reach)
{
    if (!reach->depth[KVR_TIER_COUNT - 1]) return;
    if (g->found < g->cap) g->out[g->found] = *reach;
    g->found++;
}

/* What was found of ranks of this lane, in its first `known` places, and then who has nothing on the device. */
static void go_on_lane(struct going_on *g, struct lane *ln, size_t known)
{
    struct kvr_index *ix = ln->ix;
    (void)kvr__next_mark(g->rd);
    kvr_lock(&ln->lock);
    for (size_t i = 0; i < known; i++) {
        struct rank *rk = kvr__rank_find(ix, g->out[i].worker);
        if (has_lower(rk) && rk->lane == ln) go_on(g, ln, rk, &g->out[i]);
    }
    uint32_t top = atomic_load_explicit(&ln->slots_top, RLX);
    for (uint32_t s = 1; s < top; s++) {
        struct rank *rk = ln->rank_of[s];
        if (!has_lower(rk) || rk->slot != s || g->rd->written[s] == g->rd->mark) continue;
        struct kvr_reach reach = {.worker = rk->worker};
        go_on(g, ln, rk, &reach);
        put_reach(g, &reach);
    }
    kvr_unlock(&ln->lock);
}

/* Members of pools whose rank has come to nothing (a worker that is new, or starts again) have what their pool has. */
static void go_on_alone(struct going_on *g, struct kvr_index *ix, bool windows)
{
    kvr_lock(&ix->pools_lock);
    for (const struct pool_member *m = ix->members; m; m = m->next) {
        if (!m->lone || (windows && kvr__windows_has(ix, m->worker))) continue;
        struct kvr_reach reach = {.worker = m->worker};
        reach.depth[KVR_TIER_EXTERNAL] = (uint32_t)kvr__pool_reach(ix, m->pool, g->prefixes, g->n);
        put_reach(g, &reach);
    }
    kvr_unlock(&ix->pools_lock);
}

long kvr_index_match_tiers(struct kvr_index_reader *rd, const struct kvr_overlap *found, size_t found_n, const uint64_t *prefixes, size_t n,
                           struct kvr_reach *out, size_t cap)
{
    struct kvr_index *ix = rd->index;
    struct going_on g = {rd, prefixes, n, out, cap, found_n};
    if (found_n > cap) return -KVR_ELIMIT;
    for (size_t i = 0; i < found_n; i++) {
        out[i].worker = found[i].worker;
        for (int t = 0; t < KVR_TIER_COUNT; t++) out[i].depth[t] = found[i].depth;
    }
    bool windows = atomic_load_explicit(&ix->windowed_n, ACQ) > 0;
    kvr_read_lock(&ix->ranks_lock);
    if (windows) kvr_lock(&ix->windows_lock);
    for (uint32_t i = 0; i < ix->lanes_n; i++) go_on_lane(&g, &ix->lanes[i], found_n);
    if (atomic_load_explicit(&ix->lone_n, RLX)) go_on_alone(&g, ix, windows);
    if (windows) kvr_unlock(&ix->windows_lock);
    kvr_rw_unlock(&ix->ranks_lock);
    return g.found > cap ? -KVR_ELIMIT : (long)g.found;
}

uint32_t kvr_index_lane(struct kvr_index *ix, struct kvr_worker w)
{
    struct rank *rk;
    uint32_t lane = 0;
    kvr_read_lock(&ix->ranks_lock);
    if (kvr__rank_get(ix, w, &rk) == 0) lane = (uint32_t)(rk->lane - ix->lanes);
    kvr_rw_unlock(&ix->ranks_lock);
    return lane;
}

static void add_counters(struct kvr_index_stats *to, const struct kvr_index_stats *c)
{
    to->stored_events += c->stored_events;
    to->removed_events += c->removed_events;
    to->cleared_events += c->cleared_events;
    to->stored_blocks += c->stored_blocks;
    to->removed_blocks += c->removed_blocks;
    to->duplicate_stores += c->duplicate_stores;
    to->parent_not_found += c->parent_not_found;
    to->block_not_found += c->block_not_found;
    to->invalid_sequence += c->invalid_sequence;
    to->no_memory += c->no_memory;
    to->no_room += c->no_room;
    to->aliases_refused += c->aliases_refused;
    to->expired += c->expired;
    to->pruned += c->pruned;
    to->evicted_capacity += c->evicted_capacity;
    to->evicted_bytes += c->evicted_bytes;
    to->tier_events += c->tier_events;
}

/* Without names that are only remembered. The lane is locked. */
static size_t tier_blocks(const struct lane *ln)
{
    size_t n = ln->tiers.n;
    for (uint32_t i = 1; n && i < atomic_load_explicit(&ln->slots_top, RLX); i++)
        if (ln->rank_of[i]) n -= ln->rank_of[i]->tier[0].list.n;
    return n;
}

void kvr_index_stats(struct kvr_index *ix, struct kvr_index_stats *out)
{
    *out = (struct kvr_index_stats){.uses_dropped = kvr__usage_dropped(ix)};
    kvr_read_lock(&ix->ranks_lock);
    kvr_lock(&ix->readers_lock);
    out->bytes = ix->mem.bytes;
    out->ranks = ix->ranks_n;
    kvr_unlock(&ix->readers_lock);
    kvr_rw_unlock(&ix->ranks_lock);
    kvr_lock(&ix->pools_lock);
    out->bytes += ix->pools_mem.bytes;
    out->lower_tier_blocks += ix->pooled.n;
    kvr_unlock(&ix->pools_lock);
    for (uint32_t i = 0; i < ix->lanes_n; i++) {
        struct lane *ln = &ix->lanes[i];
        kvr_lock(&ln->lock);
        add_counters(out, &ln->counters);
        out->bytes += ln->mem.bytes;
        out->nodes += ln->nodes_n;
        out->runs += ln->runs_n;
        out->blocks += ln->blocks_n;
        out->predicted += ln->predict.blocks;
        out->aliases += ln->aliases_n - ln->aliased_blocks;
        out->lower_tier_blocks += tier_blocks(ln);
        kvr_unlock(&ln->lock);
    }
}

bool kvr_index_validate(struct kvr_index *ix, const char **reason)
{
    bool ok = true;
    for (uint32_t i = 0; i < ix->lanes_n && ok; i++) {
        kvr_lock(&ix->lanes[i].lock);
        ok = kvr__lane_check(&ix->lanes[i], reason);
        kvr_unlock(&ix->lanes[i].lock);
    }
    return ok;
}
