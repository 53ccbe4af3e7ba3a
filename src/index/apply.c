/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stored and removed, for one rank. The lane is locked.
 *
 * A store walks down from its parent: blocks that the tree knows are taken over by raising the rank's cut, the rest
 * is appended to the run it ends in or becomes a child. Memory is reserved stretch by stretch before anything
 * changes, so what runs out of memory ends after some leading blocks that are true.
 */
#include "index/internal.h"

enum { STRETCH = 256, APPEND_HOLDERS = 8, DROPPED_MAX = 4096, CLIMB_MAX = 1 << 18 };

/* ---- fetching ------------------------------------------------------------------------------------------- */

void kvr__fetch_buckets(const struct lane *ln, const struct kvr_event *ev)
{
    if (ev->kind == KVR_EVENT_STORED) {
        size_t n = KVR_MIN(ev->blocks_n, (size_t)NAMES_AHEAD);
        if (n) kvr__names_prefetch(ln, &ev->blocks->block_hash, sizeof *ev->blocks / sizeof(uint64_t), n);
        if (ev->has_parent) kvr__names_prefetch(ln, &ev->parent_hash, 1, 1);
        else if (ev->blocks_n) kvr__kid_prefetch(ln, kvr__kid_hash(ln, ROOT_RUN, 0, ev->blocks[0].tokens_hash));
    } else if (ev->kind == KVR_EVENT_REMOVED) {
        kvr__names_prefetch(ln, ev->removed, 1, KVR_MIN(ev->removed_n, (size_t)NAMES_AHEAD));
    }
}

/* ---- giving up ------------------------------------------------------------------------------------------ */

static void note_drop(struct lane *ln, uint64_t name)
{
    if (ln->dropped_n >= DROPPED_MAX) return;
    if (kvr_mem_grow(&ln->mem, (void **)&ln->dropped, &ln->dropped_cap, ln->dropped_n + 1, sizeof name)) return;
    ln->dropped[ln->dropped_n++] = name;
}

static void note_drops(struct lane *ln, struct run *r, struct grip g, uint32_t from)
{
    uint32_t head = kvr__grip_alias(r, g);
    for (uint32_t i = from; i < g.cut && !head; i++) note_drop(ln, kvr__names_of(r)[i]);
    for (; head; head = kvr__run(ln, head)->next) {
        struct run *a = kvr__run(ln, head);
        for (uint32_t i = 0; i < kvr__len(a); i++)
            if (a->poff + i >= from) note_drop(ln, a->a[i]);
    }
}

/* The rank, which holds nothing behind `cut` in other runs, gives up this run from `cut` on. May free the run. */
static void lower(struct lane *ln, struct rank *rk, struct run *r, uint32_t cut)
{
    struct grip g = kvr__grip(r, rk->slot);
    if (ln->note_drops) note_drops(ln, r, g, cut);
    if (ln->note_leavers) kvr__tiers_leave(ln, rk, r, cut, g.cut);
    if (kvr__grip_alias(r, g)) {
        ln->aliased_blocks -= g.cut - cut;
        kvr__alias_cut(ln, r, g, cut);
    }
    if (ln->predict.pairs_n) kvr__predict_cut(ln, rk->slot, r->id, cut);
    rk->blocks -= g.cut - cut;
    ln->blocks_n -= g.cut - cut;
    YIELD_POINT();
    if (cut) {
        kvr__cover_set(r, rk->slot, g, cut);
    } else {
        uint32_t pos = kvr__cover_pos_of(r, g);
        kvr__cover_remove(ln, r, g);
        kvr__rank_drop(ln, rk, pos);
    }
    if (g.cut == kvr__len(r)) kvr__run_trim(ln, r);
}

/* Everything the rank holds at and below the run at this place of its list, deepest first (R2). */
static void drop_tree(struct lane *ln, struct rank *rk, uint32_t top)
{
    for (uint32_t id = rk->held[top].run, at = top;;) {
        while (rk->held[at].kid != NO_PLACE) at = rk->held[at].kid;
        uint32_t gone = rk->held[at].run;
        uint32_t up = gone == id ? 0 : rk->held[rk->held[at].prev & ~FIRST_KID].run; /* we came down first children */
        lower(ln, rk, kvr__run(ln, gone), 0);
        if (gone == id) return;
        struct run *r = kvr__run(ln, up); /* places have changed */
        at = kvr__cover_pos_of(r, kvr__grip(r, rk->slot));
    }
}

/* The same for runs that hang behind more than `cut` blocks of r. */
static void drop_behind(struct lane *ln, struct rank *rk, struct run *r, uint32_t cut)
{
    for (uint32_t at = kvr__rank_kid(rk, r); at != NO_PLACE;) {
        uint32_t next = rk->held[at].next, id = next == NO_PLACE ? 0 : rk->held[next].run;
        if (kvr__run(ln, rk->held[at].run)->poff <= cut) {
            at = next;
            continue;
        }
        drop_tree(ln, rk, at);
        if (!id) return;
        struct run *kid = kvr__run(ln, id); /* places have changed */
        at = kvr__cover_pos_of(kid, kvr__grip(kid, rk->slot));
    }
}

void kvr__give_up_run(struct lane *ln, struct rank *rk, struct run *r)
{
    lower(ln, rk, r, 0);
}

void kvr__drop_run(struct lane *ln, struct rank *rk, uint32_t id)
{
    while (id >= IDS_RESERVED) {
        struct run *r = kvr__run(ln, id);
        if (kvr__rank_kid(rk, r) != NO_PLACE) return;
        id = r->parent;
        lower(ln, rk, r, 0);
    }
}

void kvr__shrink(struct lane *ln, struct rank *rk, uint32_t run, uint32_t cut)
{
    struct run *r = kvr__run(ln, run);
    struct grip g = kvr__grip(r, rk->slot);
    if (cut >= g.cut) return;
    drop_behind(ln, rk, r, cut);
    lower(ln, rk, r, cut);
}

/* Gives up one name of a block that stays. Returns: false, and nothing has changed, when it cannot stay. */
static bool remove_name_alone(struct lane *ln, struct rank *rk, struct place p, uint64_t name)
{
    struct run *r = kvr__run(ln, p.run);
    if (!p.alias || !kvr__alias_remove(ln, r, kvr__grip(r, rk->slot), p.alias, name)) return false;
    if (ln->note_drops) note_drop(ln, name);
    if (ln->walks) kvr__walks_disturbed(ln, rk);
    return true;
}

/* Gives up one name; with the last name of a block, the block and all behind it. */
static void remove_name(struct lane *ln, struct rank *rk, struct place p, uint64_t name)
{
    if (!remove_name_alone(ln, rk, p, name)) kvr__shrink(ln, rk, p.run, p.off);
}

/* How many of names[0..n) are the names of neighbouring blocks of the rank, from the place of names[0] up or down;
 * *low is the lowest block among them. */
static size_t extent(struct run *r, struct grip g, uint32_t off, const uint64_t *names, size_t n, uint32_t *low)
{
    const uint64_t *x = kvr__names_of(r);
    uint32_t lo = off, hi = off + 1;
    size_t i = 1;
    for (; i < n; i++) {
        if (lo > 0 && x[lo - 1] == names[i]) lo--;
        else if (hi < g.cut && x[hi] == names[i]) hi++;
        else break;
    }
    *low = lo;
    return i;
}

static bool dropped_before(const struct lane *ln, uint64_t name)
{
    return ln->simd->find_last(ln->dropped, ln->dropped_n, name) != SIZE_MAX;
}

/* The common removal, in short: the end of a run, tail first, that only this rank holds and behind which it holds nothing. Does nothing
 * when it returns false. */
static bool remove_tail(struct lane *ln, struct rank *rk, const uint64_t *names, size_t n)
{
    if (!n || ln->predict.pairs_n || ln->walks || rk->remembers) return false;
    uint32_t id = kvr__names_first(ln, names[0]);
    if (!id) return false;
    struct run *r = kvr__run(ln, id);
    uint32_t len = kvr__len(r), pos = kvr__own_place(r, rk->slot, len);
    if (pos == NO_PLACE || n >= len || rk->held[pos].kid != NO_PLACE) return false;
    const uint64_t *last = kvr__names_of(r) + len - 1;
    for (size_t i = 0; i < n; i++)
        if (*(last - i) != names[i]) return false;
    YIELD_POINT();
    atomic_store_explicit(&r->hold, kvr__hold_word(rk->slot, len - (uint32_t)n, pos), REL);
    rk->blocks -= n;
    ln->blocks_n -= n;
    kvr__run_trim(ln, r);
    return true;
}

int kvr__remove(struct lane *ln, struct rank *rk, const uint64_t *names, size_t n)
{
    int rc = 0;
    ln->dropped_n = 0;
    if (rk && remove_tail(ln, rk, names, n)) return 0;
    ln->note_leavers = rk && rk->remembers;
    for (size_t i = 0, took; i < n; i += took) {
        struct place p;
        took = 1;
        if (!kvr__resolve(ln, rk, names[i], &p)) {
            if (!dropped_before(ln, names[i])) rc = -KVR_ENOTFOUND;
            continue;
        }
        struct run *r = kvr__run(ln, p.run);
        uint32_t low = p.off;
        if (!p.alias) took = extent(r, kvr__grip(r, rk->slot), p.off, names + i, n - i, &low);
        ln->note_drops = i + took < n;
        if (p.alias) remove_name(ln, rk, p, names[i]);
        else kvr__shrink(ln, rk, p.run, low);
        ln->note_drops = false;
    }
    ln->note_leavers = false;
    if (ln->dropped_cap > DROPPED_MAX) {
        kvr_mem_put(&ln->mem, ln->dropped, ln->dropped_cap * sizeof *ln->dropped);
        ln->dropped = NULL;
        ln->dropped_cap = 0;
    }
    return rc;
}

/* ---- storing -------------------------------------------------------------------------------------------- */

struct store {
    struct lane *ln;
    struct rank *rk;
    uint32_t run, off; /* the next block goes behind `off` blocks of `run`; FLOAT_RUN: off is the position */
    uint64_t expiry;   /* 0: an event */
    size_t climbed;    /* runs that were passed in looking for what is above */
    bool changed, moved;
};

/* Is the block at p the one at (run, off - 1) or above it? When one store has climbed CLIMB_MAX runs, yes: the store ends there,
 * which is a hit less and never one too many. */
static bool is_above(struct store *st, struct place p, uint32_t run, uint32_t off)
{
    while (run >= IDS_RESERVED) {
        if (run == p.run) return p.off < off;
        if (st->climbed++ >= CLIMB_MAX) return true;
        const struct run *r = kvr__run(st->ln, run);
        off = r->poff;
        run = r->parent;
    }
    return false;
}

/* Before `name` is given to a block behind (run, off): a place where the rank has it already is given up.
 * 0, or 1 when the block is there already (`own`) and has that name, or -KVR_ESEQUENCE when the place is above. */
static int settle(struct store *st, uint64_t name, uint32_t run, uint32_t off, bool own)
{
    struct lane *ln = st->ln;
    struct place p;
    struct lookup k = {ln, st->rk, name, &p, false};
    bool known = kvr__names_each(ln, name, kvr__lookup_visit, &k);
    if (k.elsewhere) ln->dup_names = true;
    if (!known) return 0;
    if (own && p.run == run && p.off == off) return 1;
    if (!remove_name_alone(ln, st->rk, p, name)) {
        if (is_above(st, p, run, off)) return -KVR_ESEQUENCE;
        kvr__shrink(ln, st->rk, p.run, p.off);
    }
    if (ln->walks) kvr__walks_disturbed(ln, st->rk);
    st->moved = true;
    return 0;
}

static void held_more(struct store *st, struct run *r, uint32_t was, uint32_t cut)
{
    st->changed |= cut > was;
    if (st->expiry) kvr__predict_add(st->ln, st->rk, r->id, was, cut, st->expiry);
    else if (st->ln->predict.pairs_n) kvr__predict_perm(st->ln, st->rk, r->id, cut);
    kvr__run_touch(st->ln, r->id);
    st->rk->last_run = r->id;
    st->rk->last_off = cut;
}

/* The rank, plain here, holds [0, cut) now. */
static int raise(struct store *st, struct run *r, uint32_t cut)
{
    struct lane *ln = st->ln;
    struct rank *rk = st->rk;
    struct grip g = kvr__grip(r, rk->slot);
    if (cut > g.cut) {
        if (g.cut) {
            kvr__cover_set(r, rk->slot, g, cut);
        } else {
            if (kvr__rank_reserve(ln, rk) || kvr__cover_reserve(ln, r, false)) return -KVR_ENOMEM;
            kvr__cover_add(r, rk->slot, cut, kvr__rank_add(ln, rk, r));
        }
        rk->blocks += cut - g.cut;
        ln->blocks_n += cut - g.cut;
    }
    held_more(st, r, g.cut, cut);
    YIELD_POINT();
    return 0;
}

/* One block of a run under a name that is not the run's. */
static int hold_named(struct store *st, struct run *r, uint32_t off, uint64_t name)
{
    struct lane *ln = st->ln;
    struct grip g = kvr__grip(r, st->rk->slot);
    bool held = off < g.cut;
    if (held && st->expiry) return 0; /* a prediction gives no second name */
    if (held && kvr__alias_names(ln, kvr__grip_alias(r, g), off, name)) return 0;
    if (held && !kvr__alias_has_room(ln, kvr__grip_alias(r, g), off)) {
        ln->counters.aliases_refused++;
        return 0;
    }
    int rc = kvr__alias_convert(ln, st->rk, r);
    if (rc == 0) rc = kvr__alias_add(ln, st->rk, r, off, name);
    if (rc) return rc;
    st->changed = true;
    if (held && ln->walks) kvr__walks_disturbed(ln, st->rk);
    if (held) return 0;
    if (g.cut) {
        kvr__cover_set(r, st->rk->slot, kvr__grip(r, st->rk->slot), off + 1);
        st->rk->blocks++;
        ln->blocks_n++;
        ln->aliased_blocks++;
    }
    return 0;
}

/* hold() when names are the run's own. */
static int hold_plain(struct store *st, struct run *r, uint32_t off, const uint64_t *names, size_t n, size_t *took)
{
    uint32_t end = off + (uint32_t)n, from = KVR_MAX(off, kvr__grip(r, st->rk->slot).cut);
    int rc = 0;
    for (uint32_t i = from; st->ln->dup_names && i < end; i++) {
        rc = settle(st, names[i - off], r->id, i, true);
        if (st->moved) return 0; /* the tree may have changed: look again */
        if (rc < 0) end = i;
    }
    if (rc > 0) rc = 0;
    if (end == off) return rc;
    int short_of = raise(st, r, end);
    if (short_of) return short_of;
    *took = end - off;
    return rc;
}

/* hold() when some name differs: the rank gets names of its own here. */
static int hold_aliased(struct store *st, struct run *r, uint32_t off, const uint64_t *names, size_t n, size_t *took)
{
    uint32_t was = kvr__grip(r, st->rk->slot).cut;
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        uint32_t o = off + (uint32_t)i;
        bool held = o < kvr__grip(r, st->rk->slot).cut;
        if (!held || !st->expiry) { /* a prediction gives no second name to a block */
            /* The analyzer loses how many of names[] are filled. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
            rc = settle(st, names[i], r->id, o, true);
            if (st->moved) break;
            if (rc == 0) rc = hold_named(st, r, o, names[i]);
            else if (rc > 0) rc = 0;
        }
        if (rc == 0) *took = i + 1;
    }
    if (*took) held_more(st, r, was, off + (uint32_t)*took);
    return rc;
}

/* Blocks [off, off + n) of run r, which the tree has. *took: how many are held then. */
static int hold(struct store *st, struct run *r, uint32_t off, const uint64_t *names, size_t n, size_t *took)
{
    struct grip g = kvr__grip(r, st->rk->slot);
    size_t skip = st->expiry && g.cut > off ? KVR_MIN((size_t)(g.cut - off), n) : 0;
    const uint64_t *own = kvr__names_of(r) + off;
    *took = 0;
    if (st->expiry && kvr__predict_reserve(st->ln, 1)) return -KVR_ENOMEM;
    if (!kvr__grip_alias(r, g) && st->ln->simd->common(own + skip, names + skip, n - skip) == n - skip)
        return hold_plain(st, r, off, names, n, took);
    return hold_aliased(st, r, off, names, n, took);
}

/* A run that was longer once is not extended: its places keep their meaning for readers of the old blocks (I2). */
static bool can_append(const struct store *st, const struct run *r)
{
    struct grip g = kvr__grip(r, st->rk->slot);
    uint32_t len = kvr__len(r);
    return st->off == len && len == r->high && g.cut == len && len < RUN_MAX && !kvr__grip_alias(r, g) &&
           kvr__cover_live(r) <= APPEND_HOLDERS;
}

/* Enters names[0..n) of new blocks behind st's place for run id, and settles them. Returns how many went in; *rc and
 * st->moved say why not all. */
static size_t enter_names(struct store *st, const uint64_t *names, size_t n, uint32_t id, int *rc)
{
    struct lane *ln = st->ln;
    struct place known;
    *rc = 0;
    for (size_t i = 0; i < n; i++) {
        i += kvr__names_claim(ln, names + i, n - i, id);
        if (i == n) break;
        if (ln->simd->find_last(names, i, names[i]) != SIZE_MAX || (i && kvr__resolve(ln, st->rk, names[i], &known)))
            return i; /* in the next step, when those before it are in the run: settling it may rebuild the table, from runs */
        *rc = settle(st, names[i], st->run, st->off, false);
        if (*rc == 0 && !st->moved) *rc = kvr__names_put(ln, names[i], id);
        if (*rc || st->moved) return i;
    }
    return n;
}

/* New blocks at the end of the run that st is at the end of. */
static int append(struct store *st, struct run *r, const uint64_t *locals, const uint64_t *names, size_t n, size_t *took)
{
    struct lane *ln = st->ln;
    uint32_t len = kvr__len(r);
    int rc;
    *took = 0;
    n = KVR_MIN(n, (size_t)(RUN_MAX - len));
    if (kvr__names_reserve(ln, n) || (st->expiry && kvr__predict_reserve(ln, 1))) return -KVR_ENOMEM;
    if (len + n > r->cap && kvr__run_resize(ln, &r, len + (uint32_t)n, true)) return -KVR_ENOMEM;
    n = enter_names(st, names, n, r->id, &rc);
    if (n == 0) return rc;
    memcpy(r->a + len, locals, n * 8);
    memcpy(r->a + r->cap + len, names, n * 8);
    r->high = (uint16_t)(len + n);
    atomic_store_explicit(&r->len, r->high, REL);
    YIELD_POINT();
    ln->nodes_n += n;
    *took = n;
    return raise(st, r, r->high) ? -KVR_ENOMEM : rc;
}

/* A run for n blocks behind st's place, known by its id, not in the tree yet. */
static int run_new(struct store *st, size_t n, struct run **out)
{
    struct lane *ln = st->ln;
    uint32_t id;
    int rc = kvr__id_get(ln, &id);
    if (rc) return rc;
    struct run *r = kvr__run_alloc(ln, (uint32_t)n, false, true);
    if (!r) {
        kvr__id_put(ln, id);
        return -KVR_ENOMEM;
    }
    r->id = id;
    r->parent = st->run;
    if (st->run == FLOAT_RUN) r->position = st->off;
    else r->poff = (uint16_t)st->off;
    atomic_store_explicit(&kvr__ref(ln, id)->run, r, REL);
    *out = r;
    return 0;
}

static void run_undo(struct lane *ln, struct run *r)
{
    uint32_t id = r->id;
    kvr__run_release(ln, r);
    kvr__id_put(ln, id);
}

/* New blocks as a child of the place st is at. */
static int branch(struct store *st, uint32_t hash, const uint64_t *locals, const uint64_t *names, size_t n, size_t *took)
{
    struct lane *ln = st->ln;
    struct rank *rk = st->rk;
    struct run *r;
    *took = 0;
    n = KVR_MIN(n, (size_t)RUN_MAX);
    if (kvr__names_reserve(ln, n) || kvr__kids_reserve(ln, hash) || kvr__rank_reserve(ln, rk)) return -KVR_ENOMEM;
    if (st->expiry && kvr__predict_reserve(ln, 1)) return -KVR_ENOMEM;
    int rc = run_new(st, n, &r);
    if (rc) return rc;
    n = enter_names(st, names, n, r->id, &rc);
    if (n == 0) {
        run_undo(ln, r);
        return rc;
    }
    memcpy(r->a, locals, n * 8);
    memcpy(r->a + r->cap, names, n * 8);
    r->high = (uint16_t)n;
    atomic_store_explicit(&r->len, r->high, RLX);
    kvr__cover_add(r, rk->slot, r->high, kvr__rank_add(ln, rk, r));
    kvr__run_link(ln, r);
    rk->blocks += n;
    ln->blocks_n += n;
    ln->nodes_n += n;
    *took = n;
    held_more(st, r, 0, r->high);
    st->run = r->id;
    st->off = 0; /* the caller adds *took */
    return rc;
}

/* One step of a store from st's place: takes over, appends or branches. */
static int step(struct store *st, const uint64_t *locals, const uint64_t *names, size_t n, size_t *took)
{
    struct lane *ln = st->ln;
    struct run *r = st->run >= IDS_RESERVED ? kvr__run(ln, st->run) : NULL, *kid;
    uint32_t len = r ? kvr__len(r) : 0;
    size_t same = r && st->off < len ? ln->simd->common(r->a + st->off, locals, KVR_MIN(n, (size_t)(len - st->off))) : 0;
    if (same) return hold(st, r, st->off, names, same, took);
    uint32_t hash = kvr__kid_hash(ln, st->run, st->off, locals[0]);
    uint32_t id = r && !r->nkids ? 0 : kvr__kid_find(ln, hash, st->run, st->off, locals[0], &kid);
    if (id) {
        st->run = id;
        st->off = 0;
        *took = 0;
        return 0;
    }
    return r && can_append(st, r) ? append(st, r, locals, names, n, took) : branch(st, hash, locals, names, n, took);
}

static int store_chunk(struct store *st, const uint64_t *locals, const uint64_t *names, size_t n)
{
    struct place from = {st->run, st->off, 0};
    while (n) {
        size_t took;
        int rc = step(st, locals, names, n, &took);
        locals += took;
        names += took;
        n -= took;
        st->off += (uint32_t)took;
        if (took) from = (struct place){st->run, st->off, 0};
        if (rc) return rc;
        if (st->moved) { /* a run on the way may be gone: walk on from the last block that is held */
            st->run = from.run;
            st->off = from.off;
            st->moved = false;
        }
    }
    return 0;
}

static int find_start(struct store *st, const struct kvr_event *ev)
{
    struct place p;
    st->run = ROOT_RUN;
    st->off = 0;
    if (ev->has_parent) {
        if (ev->has_start_position) return -KVR_EINVAL;
        for (size_t i = 0; i < ev->blocks_n; i++)
            if (ev->blocks[i].block_hash == ev->parent_hash) return -KVR_ESEQUENCE;
        if (!kvr__resolve(st->ln, st->rk, ev->parent_hash, &p)) return -KVR_EPARENT;
        st->run = p.run;
        st->off = p.off + 1;
    } else if (ev->has_start_position && ev->start_position > 0) {
        st->run = FLOAT_RUN;
        st->off = ev->start_position;
    }
    return 0;
}

/* What is held up to st's place, and what the store adds, is not given up for what else it adds. */
static void begin(struct store *st)
{
    kvr__predict_begin(st->ln);
    st->rk->last_run = st->run;
    st->rk->last_off = st->off;
}

/* The common store, in short: new blocks at the end of a run that only this rank holds and that has no children. Does nothing when it
 * returns false. */
static bool append_own(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    size_t n = ev->blocks_n;
    if (!n || !ev->has_parent || ev->has_start_position || ln->predict.pairs_n || ln->stamps) return false;
    uint32_t id = kvr__names_first(ln, ev->parent_hash);
    if (!id) return false;
    struct run *r = kvr__run(ln, id);
    uint32_t len = kvr__len(r), pos = kvr__own_place(r, rk->slot, len);
    if (pos == NO_PLACE || r->high != len || r->nkids || len + n > RUN_MAX) return false;
    if (kvr__names_of(r)[len - 1] != ev->parent_hash) return false;
    if (kvr__names_reserve(ln, n)) return false;
    if (len + n > r->cap && kvr__run_resize(ln, &r, len + (uint32_t)n, true)) return false;
    uint64_t *locals = r->a + len, *names = locals + r->cap;
    for (size_t i = 0; i < n; i++) {
        locals[i] = ev->blocks[i].tokens_hash;
        names[i] = ev->blocks[i].block_hash;
    }
    size_t in = kvr__names_claim(ln, names, n, id);
    if (in < n) { /* a name that may be known, or recurs */
        kvr__names_del(ln, names, in, id);
        return false;
    }
    uint32_t cut = len + (uint32_t)n;
    r->high = (uint16_t)cut;
    atomic_store_explicit(&r->len, r->high, REL);
    YIELD_POINT();
    atomic_store_explicit(&r->hold, kvr__hold_word(rk->slot, cut, pos), REL);
    ln->nodes_n += n;
    ln->blocks_n += n;
    rk->blocks += n;
    rk->last_run = id;
    rk->last_off = cut;
    return true;
}

int kvr__store(struct lane *ln, struct rank *rk, const struct kvr_event *ev)
{
    if (append_own(ln, rk, ev)) return 0;
    struct store st = {.ln = ln, .rk = rk};
    uint64_t locals[STRETCH], names[STRETCH];
    int rc = find_start(&st, ev);
    if (rc == 0) begin(&st);
    for (size_t i = 0, n; i < ev->blocks_n && rc == 0; i += n) {
        n = KVR_MIN(ev->blocks_n - i, (size_t)STRETCH);
        for (size_t j = 0; j < n; j++) {
            locals[j] = ev->blocks[i + j].tokens_hash;
            names[j] = ev->blocks[i + j].block_hash;
        }
        rc = store_chunk(&st, locals, names, n);
    }
    if (rc == 0 && !st.changed && ev->blocks_n) ln->counters.duplicate_stores++;
    return rc;
}

int kvr__store_predicted(struct lane *ln, struct rank *rk, const uint64_t *locals, const uint64_t *names, size_t n, uint64_t expiry)
{
    struct store st = {.ln = ln, .rk = rk, .run = ROOT_RUN, .expiry = expiry};
    int rc = 0;
    begin(&st);
    for (size_t i = 0, k; i < n && rc == 0; i += k) {
        k = KVR_MIN(n - i, (size_t)STRETCH);
        rc = store_chunk(&st, locals + i, names + i, k);
    }
    return rc;
}
