/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Active sequences as a compressed tree of chains.
 *
 *     root -- [S1 S2 S3 S4 | A:3 B:1] -- [S5 S6 | A:2]         edge = array of sequence hashes
 *                                     \- [S7 .. S90 | A:1]     A:3 = three requests on slot A pass all of it
 *
 * A request points at the node where its chain ends, and every node is passed whole or not at all: a chain that
 * ends or branches inside an edge splits it. So a slot's distinct blocks are the lengths of the nodes it has a
 * reference on, and a request is freed by walking from its end to the root. A split edge is not joined again
 * while it is in use; there are never more nodes than twice the running requests plus the splits of live edges,
 * and never more than distinct blocks.
 *
 * Children are found through one table keyed by (parent, first hash of the edge).
 */
#include "load/columns.h"

#include <math.h>
#include <string.h>
#include <kvroute/hash.h>
#include <kvroute/load.h>

enum { ID_MAX = 256, RANKS_MAX_PER_WORKER = 4096, SPARE_MIN_SHIFT = 5, SPARE_CLASSES = 4 * 12, SPARE_KEPT = 1 << 20 };

/* Weight of a whole block; sums are exact. */
#define ONE ((uint64_t)1 << 20)

struct ref {
    uint32_t slot, count, weight; /* of each of the edge's blocks, in units of ONE */
};

struct edge {
    struct edge *parent, *bucket_next;
    uint64_t *hashes;
    struct ref *refs;
    size_t len, hashes_cap;
    size_t refs_n, refs_cap;
    size_t kids;
    uint32_t generating, waiting; /* requests that pass all of it: after and before their first token */
    uint64_t since_ns;            /* some have waited since then */
};

/* Of a request: before and after its first token. */
enum phase { NOWHERE, WAITING, GENERATING };

struct request {
    struct request *bucket_next;
    struct request *older, *newer;               /* leases, by the last sign of life */
    struct request *slot_next, *slot_prev;       /* of one rank */
    struct request *prefill_next, *prefill_prev; /* prefills of one rank, oldest first; while prefill_tokens > 0 */
    struct edge *end;                            /* NULL: no prompt blocks */
    struct kvr_load_course course;
    uint64_t private_blocks; /* a number, as course.blocks */
    uint64_t own_weight;     /* of both */
    uint64_t prefill_tokens, prefill_ns, heard_ns, id_hash;
    uint32_t slot, owner, id_len;
    bool has_duration, guarded;
    enum phase phase; /* as its edges count it */
    char id[];
};

struct slot {
    struct kvr_worker worker;
    bool used;
    uint32_t undated;                /* prefills without a duration */
    uint64_t anchor_ns;              /* when prefill_front became the front */
    uint64_t front_ns, front_tokens; /* its prefill_ns and prefill_tokens, so that a walk of all slots visits no requests */
    struct request *requests, *prefill_front, *prefill_back;
};

/* Of each slot, what every decision reads, field by field: 25 bytes in a row of each instead of a line or two. Zeroes where none is used.
 */
struct tallies {
    uint64_t *weight;         /* of all active blocks */
    uint64_t *prefill_tokens; /* sum, not decayed */
    uint32_t *requests, *prefills;
    bool *decays; /* prefill_front has a duration */
};

/* The key is beside the slot: who looks up every holder of a prompt touches one line for each. */
struct place {
    struct kvr_worker worker;
    uint32_t slot; /* + 1; 0: free */
};

/* A freed piece; its memory begins with this. */
struct spare {
    struct spare *next;
};

struct kvr_load {
    struct kvr_mem mem;
    struct edge root;
    struct edge **edges;
    size_t edges_cap, edges_n;
    struct request **requests;
    size_t requests_cap, requests_n;
    struct request *oldest, *newest;
    struct slot *slots;
    struct tallies of; /* room for as many */
    size_t slots_cap, slots_n;
    struct spare *spares[SPARE_CLASSES]; /* freed memory that is kept, by size class */
    size_t spare_bytes;
    struct place *slot_table; /* (worker, rank) -> slot, open addressing; made anew when ranks change */
    size_t slot_table_cap;
};

/* ---- memory that comes and goes ---------------------------------------------------------------------- */

/* Sizes are rounded up to 32 * 2^k * (1, 1.25, 1.5, 1.75): at most a quarter is wasted. Larger ones go to the allocator.
 * Returns: the class, or -1; *rounded is what is really taken. */
static int spare_class(size_t size, size_t *rounded)
{
    size_t base = (size_t)1 << SPARE_MIN_SHIFT;
    int c = 0;
    *rounded = base;
    if (size > base) {
        int k = 63 - __builtin_clzll(size - 1) - SPARE_MIN_SHIFT; /* base < size <= 2 * base */
        base <<= k;
        int quarters = (int)((size - base + base / 4 - 1) / (base / 4));
        c = 4 * k + quarters;
        *rounded = base + base / 4 * (size_t)quarters;
    }
    if (c < SPARE_CLASSES) return c;
    *rounded = size;
    return -1;
}

static void *piece_get(struct kvr_load *ld, size_t size)
{
    size_t rounded;
    int c = spare_class(size, &rounded);
    if (c < 0 || !ld->spares[c]) return kvr_mem_get(&ld->mem, rounded);
    struct spare *s = ld->spares[c];
    ld->spares[c] = s->next;
    ld->spare_bytes -= rounded;
    return s;
}

static void piece_put(struct kvr_load *ld, void *ptr, size_t size)
{
    size_t rounded;
    int c = spare_class(size, &rounded);
    if (!ptr) return;
    if (c < 0 || ld->spare_bytes + rounded > SPARE_KEPT + (ld->mem.bytes - ld->spare_bytes) / 4) {
        kvr_mem_put(&ld->mem, ptr, rounded);
        return;
    }
    struct spare *s = ptr;
    s->next = ld->spares[c];
    ld->spares[c] = s;
    ld->spare_bytes += rounded;
}

static void spares_free(struct kvr_load *ld)
{
    size_t base = (size_t)1 << SPARE_MIN_SHIFT;
    for (int c = 0; c < SPARE_CLASSES; c++) {
        if (c && c % 4 == 0) base *= 2;
        while (ld->spares[c]) {
            struct spare *s = ld->spares[c];
            ld->spares[c] = s->next;
            kvr_mem_put(&ld->mem, s, base + base / 4 * (size_t)(c % 4));
        }
    }
}

/* ---- table of edges ---------------------------------------------------------------------------------- */

static struct edge **edge_bucket(const struct kvr_load *ld, const struct edge *parent, uint64_t first)
{
    uint64_t secret = kvr_secret(), h = kvr_mix64_keyed(kvr_mix64_keyed(first, secret) + (uint64_t)(uintptr_t)parent, secret);
    return &ld->edges[h & (ld->edges_cap - 1)];
}

static struct edge *edge_find(const struct kvr_load *ld, const struct edge *parent, uint64_t first)
{
    if (!ld->edges_cap) return NULL;
    struct edge *e = *edge_bucket(ld, parent, first);
    while (e && !(e->parent == parent && e->hashes[0] == first)) e = e->bucket_next;
    return e;
}

static void edge_link(struct kvr_load *ld, struct edge *e, struct edge *parent)
{
    e->parent = parent;
    struct edge **b = edge_bucket(ld, parent, e->hashes[0]);
    e->bucket_next = *b;
    *b = e;
    parent->kids++;
    ld->edges_n++;
}

static void edge_unlink(struct kvr_load *ld, struct edge *e)
{
    struct edge **b = edge_bucket(ld, e->parent, e->hashes[0]);
    while (*b != e) b = &(*b)->bucket_next;
    *b = e->bucket_next;
    e->parent->kids--;
    ld->edges_n--;
}

static int edges_reserve(struct kvr_load *ld)
{
    if (ld->edges_n + 2 <= ld->edges_cap) return 0;
    size_t cap = ld->edges_cap ? ld->edges_cap * 2 : 64, old_cap = ld->edges_cap;
    struct edge **old = ld->edges, **fresh = kvr_mem_zget(&ld->mem, cap * sizeof *fresh);
    if (!fresh) return -KVR_ENOMEM;
    ld->edges = fresh;
    ld->edges_cap = cap;
    for (size_t i = 0; i < old_cap; i++)
        for (struct edge *e = old[i], *next; e; e = next) {
            next = e->bucket_next;
            struct edge **b = edge_bucket(ld, e->parent, e->hashes[0]);
            e->bucket_next = *b;
            *b = e;
        }
    kvr_mem_put(&ld->mem, old, old_cap * sizeof(struct edge *));
    return 0;
}

static struct edge *edge_new(struct kvr_load *ld, const uint64_t *hashes, size_t len)
{
    struct edge *e = piece_get(ld, sizeof *e);
    uint64_t *copy = piece_get(ld, len * sizeof *hashes);
    if (!e || !copy) {
        piece_put(ld, e, sizeof *e);
        piece_put(ld, copy, len * sizeof *hashes);
        return NULL;
    }
    *e = (struct edge){.hashes = copy, .len = len, .hashes_cap = len};
    memcpy(e->hashes, hashes, len * sizeof *hashes);
    return e;
}

static void edge_free(struct kvr_load *ld, struct edge *e)
{
    piece_put(ld, e->hashes, e->hashes_cap * sizeof *e->hashes);
    piece_put(ld, e->refs, e->refs_cap * sizeof *e->refs);
    piece_put(ld, e, sizeof *e);
}

/* ---- references -------------------------------------------------------------------------------------- */

static int refs_reserve(struct kvr_load *ld, struct edge *e, size_t n)
{
    if (n <= e->refs_cap) return 0;
    size_t cap = KVR_MAX(KVR_MAX(n, (size_t)2), 2 * e->refs_cap);
    struct ref *refs = piece_get(ld, cap * sizeof *refs);
    if (!refs) return -KVR_ENOMEM;
    if (e->refs_n) memcpy(refs, e->refs, e->refs_n * sizeof *refs);
    piece_put(ld, e->refs, e->refs_cap * sizeof *refs);
    e->refs = refs;
    e->refs_cap = cap;
    return 0;
}

static int ref_add(struct kvr_load *ld, struct edge *e, uint32_t slot)
{
    for (size_t i = 0; i < e->refs_n; i++)
        if (e->refs[i].slot == slot) {
            e->refs[i].count++;
            return 0;
        }
    if (refs_reserve(ld, e, e->refs_n + 1)) return -KVR_ENOMEM;
    e->refs[e->refs_n++] = (struct ref){slot, 1, ONE};
    ld->of.weight[slot] += e->len * ONE;
    return 0;
}

static struct ref *ref_of(const struct edge *e, uint32_t slot)
{
    size_t i = 0;
    while (e->refs[i].slot != slot) i++;
    return &e->refs[i];
}

static void ref_drop(struct kvr_load *ld, struct edge *e, uint32_t slot)
{
    struct ref *r = ref_of(e, slot);
    if (--r->count) return;
    ld->of.weight[slot] -= e->len * r->weight;
    *r = e->refs[--e->refs_n];
}

/* Gives every block that only this request holds on its rank one weight. */
static void chain_weigh(struct kvr_load *ld, const struct request *rq, uint32_t weight)
{
    for (struct edge *e = rq->end; e && e != &ld->root; e = e->parent) {
        struct ref *r = ref_of(e, rq->slot);
        if (r->count > 1) return; /* those above it are shared too */
        ld->of.weight[rq->slot] += e->len * weight - e->len * r->weight;
        r->weight = weight;
    }
}

/* Gives back one request's references from `e` to the root, and the edges nobody passes any more. */
static void chain_release(struct kvr_load *ld, struct edge *e, uint32_t slot)
{
    while (e && e != &ld->root) {
        struct edge *parent = e->parent;
        ref_drop(ld, e, slot);
        if (e->refs_n == 0) {
            KVR_ASSERT(e->kids == 0);
            edge_unlink(ld, e);
            edge_free(ld, e);
        }
        e = parent;
    }
}

static size_t common_prefix(const uint64_t *a, const uint64_t *b, size_t n)
{
    if (memcmp(a, b, n * sizeof *a) == 0) return n;
    size_t i = 0;
    while (a[i] == b[i]) i++;
    return i;
}

/* Splits `e` so that its first `at` hashes become a parent of their own. The identity of `e` stays with the
 * lower part, because requests end there. Returns the upper part or NULL. */
static struct edge *edge_split(struct kvr_load *ld, struct edge *e, size_t at)
{
    if (edges_reserve(ld)) return NULL;
    struct edge *top = edge_new(ld, e->hashes, at);
    if (!top) return NULL;
    if (refs_reserve(ld, top, e->refs_n)) {
        edge_free(ld, top);
        return NULL;
    }
    if (e->refs_n) memcpy(top->refs, e->refs, e->refs_n * sizeof *e->refs);
    top->refs_n = e->refs_n;
    top->generating = e->generating;
    top->waiting = e->waiting;
    top->since_ns = e->since_ns;
    struct edge *parent = e->parent;
    edge_unlink(ld, e);
    e->len -= at;
    uint64_t *smaller = piece_get(ld, e->len * sizeof *smaller);
    if (smaller) {
        memcpy(smaller, e->hashes + at, e->len * sizeof *smaller);
        piece_put(ld, e->hashes, e->hashes_cap * sizeof *smaller);
        e->hashes = smaller;
        e->hashes_cap = e->len;
    } else {
        memmove(e->hashes, e->hashes + at, e->len * sizeof *e->hashes);
    }
    edge_link(ld, top, parent);
    edge_link(ld, e, top);
    return top;
}

static int chain_acquire(struct kvr_load *ld, const uint64_t *seqs, size_t n, uint32_t slot, struct edge **end)
{
    struct edge *cur = &ld->root;
    size_t at = 0;
    while (at < n) {
        struct edge *next = edge_find(ld, cur, seqs[at]);
        if (!next) {
            if (edges_reserve(ld) || !(next = edge_new(ld, seqs + at, n - at))) goto fail;
            edge_link(ld, next, cur);
        } else {
            size_t same = common_prefix(next->hashes, seqs + at, KVR_MIN(next->len, n - at));
            if (same < next->len && !(next = edge_split(ld, next, same))) goto fail;
        }
        if (ref_add(ld, next, slot)) {
            if (next->refs_n == 0) {
                edge_unlink(ld, next);
                edge_free(ld, next);
            }
            goto fail;
        }
        at += next->len;
        cur = next;
    }
    *end = n ? cur : NULL;
    return 0;
fail:
    chain_release(ld, cur, slot);
    return -KVR_ENOMEM;
}

void kvr_load_project(const struct kvr_load *ld, const uint64_t *seqs, size_t n, uint32_t *depth)
{
    memset(depth, 0, ld->slots_n * sizeof *depth);
    const struct edge *cur = &ld->root;
    for (size_t at = 0; at < n;) {
        const struct edge *next = edge_find(ld, cur, seqs[at]);
        if (!next) return;
        size_t same = common_prefix(next->hashes, seqs + at, KVR_MIN(next->len, n - at));
        for (size_t i = 0; i < next->refs_n; i++) depth[next->refs[i].slot] += (uint32_t)same;
        if (same < next->len) return;
        at += same;
        cur = next;
    }
}

size_t kvr_load_stretches(const struct kvr_load *ld, const uint64_t *seqs, size_t n, struct kvr_load_stretch *out, size_t cap)
{
    const struct edge *cur = &ld->root;
    size_t found = 0;
    for (size_t at = 0; at < n && found < cap;) {
        const struct edge *next = edge_find(ld, cur, seqs[at]);
        if (!next) break;
        size_t same = common_prefix(next->hashes, seqs + at, KVR_MIN(next->len, n - at));
        at += same;
        if (same) out[found++] = (struct kvr_load_stretch){(uint32_t)at, next->generating, next->waiting, next->since_ns};
        if (same < next->len) break;
        cur = next;
    }
    return found;
}

/* ---- ranks ------------------------------------------------------------------------------------------- */

size_t kvr_load_slots(const struct kvr_load *ld)
{
    return ld->slots_n;
}

static size_t slot_place(const struct kvr_load *ld, struct kvr_worker w)
{
    size_t mask = ld->slot_table_cap - 1;
    uint64_t secret = kvr_secret();
    size_t i = kvr_mix64_keyed(kvr_mix64_keyed(w.worker_id, secret) + w.dp_rank, secret) & mask;
    for (const struct place *p; (p = &ld->slot_table[i])->slot; i = (i + 1) & mask)
        if (p->worker.worker_id == w.worker_id && p->worker.dp_rank == w.dp_rank) break;
    return i;
}

long kvr_load_slot_of(const struct kvr_load *ld, struct kvr_worker w)
{
    if (!ld->slot_table_cap) return -KVR_ENOTFOUND;
    uint32_t slot = ld->slot_table[slot_place(ld, w)].slot;
    return slot ? (long)slot - 1 : -KVR_ENOTFOUND;
}

static void place_slot(struct kvr_load *ld, size_t slot)
{
    struct kvr_worker w = ld->slots[slot].worker;
    ld->slot_table[slot_place(ld, w)] = (struct place){w, (uint32_t)slot + 1};
}

/* Room is made before a rank is added, so this cannot fail. */
static void slot_table_fill(struct kvr_load *ld)
{
    memset(ld->slot_table, 0, ld->slot_table_cap * sizeof *ld->slot_table);
    for (size_t i = 0; i < ld->slots_n; i++)
        if (ld->slots[i].used) place_slot(ld, i);
}

static int slot_table_reserve(struct kvr_load *ld, size_t n)
{
    size_t cap = ld->slot_table_cap ? ld->slot_table_cap : 16;
    while (cap < n * 2) cap *= 2;
    if (cap == ld->slot_table_cap) return 0;
    struct place *t = kvr_mem_get(&ld->mem, cap * sizeof *t);
    if (!t) return -KVR_ENOMEM;
    kvr_mem_put(&ld->mem, ld->slot_table, ld->slot_table_cap * sizeof *t);
    ld->slot_table = t;
    ld->slot_table_cap = cap;
    slot_table_fill(ld);
    return 0;
}

/* See "Prefill decay" in the header. Of a slot whose front has a duration; floor and ceil would be calls. */
static uint64_t decayed_prefill(const struct slot *s, uint64_t sum, uint64_t now)
{
    uint64_t elapsed = now > s->anchor_ns ? now - s->anchor_ns : 0;
    double share = s->front_ns ? (double)elapsed / (double)s->front_ns : 1, tokens = (double)s->front_tokens;
    if (s->undated) {
        double left = tokens * (1 - KVR_MIN(share, 1.0));
        uint64_t whole = (uint64_t)left;
        return sum - s->front_tokens + whole + ((double)whole < left);
    }
    double gone = tokens * share;
    return gone >= (double)sum ? 0 : sum - (uint64_t)gone;
}

static uint64_t prefill_of(const struct kvr_load *ld, size_t i, uint64_t now)
{
    return ld->of.decays[i] ? decayed_prefill(&ld->slots[i], ld->of.prefill_tokens[i], now) : ld->of.prefill_tokens[i];
}

static inline uint64_t whole_blocks(uint64_t weight)
{
    return (weight + ONE / 2) / ONE;
}

int kvr_load_get(const struct kvr_load *ld, size_t slot, uint64_t now_ns, struct kvr_rank_load *out)
{
    if (slot >= ld->slots_n || !ld->slots[slot].used) return -KVR_ENOTFOUND;
    *out = (struct kvr_rank_load){ld->slots[slot].worker, prefill_of(ld, slot, now_ns), whole_blocks(ld->of.weight[slot]),
                                  ld->of.requests[slot], ld->of.prefills[slot]};
    return 0;
}

void kvr_load_get_all(const struct kvr_load *ld, uint64_t now_ns, struct kvr_rank_load *out)
{
    for (size_t i = 0; i < ld->slots_n; i++)
        if (kvr_load_get(ld, i, now_ns, &out[i])) out[i] = (struct kvr_rank_load){0};
}

void kvr__load_columns(const struct kvr_load *ld, uint64_t now_ns, const struct kvr__load_columns *out)
{
    size_t n = ld->slots_n;
    if (!n) return;
    for (size_t i = 0; i < n; i++) out->blocks[i] = whole_blocks(ld->of.weight[i]);
    memcpy(out->requests, ld->of.requests, n * sizeof *out->requests);
    memcpy(out->prefills, ld->of.prefills, n * sizeof *out->prefills);
    memcpy(out->prefill_tokens, ld->of.prefill_tokens, n * sizeof *out->prefill_tokens);
    for (size_t i = 0; i < n; i++)
        if (ld->of.decays[i]) out->prefill_tokens[i] = decayed_prefill(&ld->slots[i], out->prefill_tokens[i], now_ns);
}

enum { TALLY = 2 * sizeof(uint64_t) + 2 * sizeof(uint32_t) + sizeof(bool) }; /* bytes of a slot */

/* Each array behind the one before, widest first; in memory for `cap` of each. */
static struct tallies tallies_in(char *memory, size_t cap)
{
    struct tallies t = {.weight = (void *)memory};
    t.prefill_tokens = t.weight + cap;
    t.requests = (void *)(t.prefill_tokens + cap);
    t.prefills = t.requests + cap;
    t.decays = (void *)(t.prefills + cap);
    return t;
}

static int slots_reserve(struct kvr_load *ld, size_t n)
{
    size_t cap = ld->slots_cap, old = cap;
    struct slot *slots = ld->slots;
    if (n <= old) return 0;
    while (cap < n) cap = cap ? 2 * cap : 16;
    char *memory = kvr_mem_zget(&ld->mem, cap * TALLY);
    if (!memory) return -KVR_ENOMEM;
    if (!(slots = kvr_mem_resize(&ld->mem, slots, old * sizeof *slots, cap * sizeof *slots))) {
        kvr_mem_put(&ld->mem, memory, cap * TALLY);
        return -KVR_ENOMEM;
    }
    struct tallies t = tallies_in(memory, cap);
    if (old) {
        memcpy(t.weight, ld->of.weight, old * sizeof *t.weight);
        memcpy(t.prefill_tokens, ld->of.prefill_tokens, old * sizeof *t.prefill_tokens);
        memcpy(t.requests, ld->of.requests, old * sizeof *t.requests);
        memcpy(t.prefills, ld->of.prefills, old * sizeof *t.prefills);
        memcpy(t.decays, ld->of.decays, old * sizeof *t.decays);
    }
    kvr_mem_put(&ld->mem, ld->of.weight, old * TALLY);
    ld->of = t;
    ld->slots = slots;
    ld->slots_cap = cap;
    return 0;
}

static void slot_add(struct kvr_load *ld, struct kvr_worker w)
{
    size_t i = 0;
    while (i < ld->slots_n && ld->slots[i].used) i++;
    ld->slots[i] = (struct slot){.used = true, .worker = w};
    if (i == ld->slots_n) ld->slots_n++;
    place_slot(ld, i);
}

static void enter_phase(struct kvr_load *ld, struct request *rq, enum phase phase, uint64_t now_ns)
{
    if (rq->phase == phase) return;
    for (struct edge *e = rq->end; e && e != &ld->root; e = e->parent) {
        if (phase == WAITING && e->waiting == 0) e->since_ns = now_ns;
        e->waiting = e->waiting + (phase == WAITING) - (rq->phase == WAITING);
        e->generating = e->generating + (phase == GENERATING) - (rq->phase == GENERATING);
    }
    rq->phase = phase;
}

static void request_end(struct kvr_load *ld, struct request *rq, uint64_t now_ns);

static void slot_remove(struct kvr_load *ld, size_t i)
{
    while (ld->slots[i].requests) request_end(ld, ld->slots[i].requests, 0);
    ld->slots[i].used = false;
    slot_table_fill(ld);
}

int kvr__load_reserve(struct kvr_load *ld, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size)
{
    size_t n = ld->slots_n;
    if (dp_size == 0 || dp_start > UINT32_MAX - (dp_size - 1)) return -KVR_EINVAL;
    if (dp_size > RANKS_MAX_PER_WORKER) return -KVR_ELIMIT;
    for (uint32_t i = 0; i < dp_size; i++) n += kvr_load_slot_of(ld, (struct kvr_worker){worker_id, dp_start + i}) < 0;
    return slots_reserve(ld, n) || slot_table_reserve(ld, n) ? -KVR_ENOMEM : 0;
}

int kvr_load_set_worker(struct kvr_load *ld, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size)
{
    int rc = kvr__load_reserve(ld, worker_id, dp_start, dp_size);
    if (rc) return rc;
    for (uint32_t i = 0; i < dp_size; i++) {
        struct kvr_worker w = {worker_id, dp_start + i};
        if (kvr_load_slot_of(ld, w) < 0) slot_add(ld, w);
    }
    for (size_t i = 0; i < ld->slots_n; i++) {
        struct kvr_worker w = ld->slots[i].worker;
        if (ld->slots[i].used && w.worker_id == worker_id && (w.dp_rank < dp_start || w.dp_rank - dp_start >= dp_size)) slot_remove(ld, i);
    }
    return 0;
}

void kvr_load_remove_worker(struct kvr_load *ld, uint64_t worker_id)
{
    for (size_t i = 0; i < ld->slots_n; i++)
        if (ld->slots[i].used && ld->slots[i].worker.worker_id == worker_id) slot_remove(ld, i);
}

/* ---- requests ---------------------------------------------------------------------------------------- */

static struct request **request_place(const struct kvr_load *ld, uint64_t hash, const char *id, size_t len)
{
    struct request **p = &ld->requests[hash & (ld->requests_cap - 1)];
    while (*p && !((*p)->id_hash == hash && (*p)->id_len == len && memcmp((*p)->id, id, len) == 0)) p = &(*p)->bucket_next;
    return p;
}

static struct request *request_find(const struct kvr_load *ld, const char *id, size_t len)
{
    return ld->requests_cap ? *request_place(ld, kvr_hash_bytes(id, len, kvr_secret()), id, len) : NULL;
}

static int requests_reserve(struct kvr_load *ld)
{
    if (ld->requests_n + 1 <= ld->requests_cap) return 0;
    size_t cap = ld->requests_cap ? ld->requests_cap * 2 : 64, old_cap = ld->requests_cap;
    struct request **old = ld->requests, **fresh = kvr_mem_zget(&ld->mem, cap * sizeof *fresh);
    if (!fresh) return -KVR_ENOMEM;
    for (size_t i = 0; i < old_cap; i++)
        for (struct request *r = old[i], *next; r; r = next) {
            next = r->bucket_next;
            r->bucket_next = fresh[r->id_hash & (cap - 1)];
            fresh[r->id_hash & (cap - 1)] = r;
        }
    kvr_mem_put(&ld->mem, old, old_cap * sizeof(struct request *));
    ld->requests = fresh;
    ld->requests_cap = cap;
    return 0;
}

static void lease_link(struct kvr_load *ld, struct request *rq)
{
    if (rq->guarded) return;
    rq->newer = NULL;
    rq->older = ld->newest;
    if (ld->newest) ld->newest->newer = rq;
    else ld->oldest = rq;
    ld->newest = rq;
}

static void lease_unlink(struct kvr_load *ld, struct request *rq)
{
    if (rq->guarded) return;
    *(rq->older ? &rq->older->newer : &ld->oldest) = rq->newer;
    *(rq->newer ? &rq->newer->older : &ld->newest) = rq->older;
}

static void heard_of(struct kvr_load *ld, struct request *rq, uint64_t now_ns)
{
    lease_unlink(ld, rq);
    rq->heard_ns = now_ns;
    lease_link(ld, rq);
}

static void set_front(struct kvr_load *ld, uint32_t slot, struct request *rq, uint64_t now_ns)
{
    struct slot *s = &ld->slots[slot];
    s->prefill_front = rq;
    s->anchor_ns = now_ns;
    ld->of.decays[slot] = rq && rq->has_duration;
    s->front_ns = rq ? rq->prefill_ns : 0;
    s->front_tokens = rq ? rq->prefill_tokens : 0;
}

static void prefill_link(struct kvr_load *ld, struct request *rq, uint64_t now_ns)
{
    struct slot *s = &ld->slots[rq->slot];
    if (!rq->prefill_tokens) return;
    rq->prefill_prev = s->prefill_back;
    if (s->prefill_back) s->prefill_back->prefill_next = rq;
    else set_front(ld, rq->slot, rq, now_ns);
    s->prefill_back = rq;
    ld->of.prefill_tokens[rq->slot] += rq->prefill_tokens;
    ld->of.prefills[rq->slot]++;
    s->undated += !rq->has_duration;
}

static void prefill_unlink(struct kvr_load *ld, struct request *rq, uint64_t now_ns)
{
    struct slot *s = &ld->slots[rq->slot];
    if (!rq->prefill_tokens) return;
    if (s->prefill_front == rq) set_front(ld, rq->slot, rq->prefill_next, now_ns);
    else rq->prefill_prev->prefill_next = rq->prefill_next;
    *(rq->prefill_next ? &rq->prefill_next->prefill_prev : &s->prefill_back) = rq->prefill_prev;
    ld->of.prefill_tokens[rq->slot] -= rq->prefill_tokens;
    ld->of.prefills[rq->slot]--;
    s->undated -= !rq->has_duration;
    rq->prefill_tokens = 0;
    rq->prefill_next = rq->prefill_prev = NULL;
}

static void request_link(struct kvr_load *ld, struct request *rq)
{
    struct request **p = &ld->requests[rq->id_hash & (ld->requests_cap - 1)];
    rq->bucket_next = *p;
    *p = rq;
    lease_link(ld, rq);
    struct slot *s = &ld->slots[rq->slot];
    rq->slot_next = s->requests;
    if (s->requests) s->requests->slot_prev = rq;
    s->requests = rq;
    ld->of.requests[rq->slot]++;
    ld->requests_n++;
}

static void request_unlink(struct kvr_load *ld, struct request *rq)
{
    *request_place(ld, rq->id_hash, rq->id, rq->id_len) = rq->bucket_next;
    lease_unlink(ld, rq);
    if (rq->slot_next) rq->slot_next->slot_prev = rq->slot_prev;
    *(rq->slot_prev ? &rq->slot_prev->slot_next : &ld->slots[rq->slot].requests) = rq->slot_next;
    ld->of.requests[rq->slot]--;
    ld->requests_n--;
}

static void request_end(struct kvr_load *ld, struct request *rq, uint64_t now_ns)
{
    enter_phase(ld, rq, NOWHERE, now_ns);
    chain_release(ld, rq->end, rq->slot);
    ld->of.weight[rq->slot] -= rq->own_weight;
    prefill_unlink(ld, rq, now_ns);
    request_unlink(ld, rq);
    piece_put(ld, rq, sizeof *rq + rq->id_len);
}

int kvr_load_add(struct kvr_load *ld, const struct kvr_load_request *in)
{
    if (in->id_len == 0 || in->id_len > ID_MAX) return -KVR_EINVAL;
    if (request_find(ld, in->id, in->id_len)) return -KVR_EEXISTS;
    long slot = kvr_load_slot_of(ld, in->worker);
    if (slot < 0) return -KVR_ENOTFOUND;
    if (requests_reserve(ld)) return -KVR_ENOMEM;
    struct kvr_rank_load met = {0};
    (void)kvr_load_get(ld, (size_t)slot, in->now_ns, &met);
    struct request *rq = piece_get(ld, sizeof *rq + in->id_len);
    if (!rq) return -KVR_ENOMEM;
    memset(rq, 0, sizeof *rq);
    if (chain_acquire(ld, in->seqs, in->seqs_n, (uint32_t)slot, &rq->end)) {
        piece_put(ld, rq, sizeof *rq + in->id_len);
        return -KVR_ENOMEM;
    }
    rq->id_len = (uint32_t)in->id_len;
    memcpy(rq->id, in->id, in->id_len);
    rq->id_hash = kvr_hash_bytes(in->id, in->id_len, kvr_secret());
    rq->slot = (uint32_t)slot;
    rq->owner = in->owner;
    rq->guarded = in->guarded;
    rq->private_blocks = in->private_blocks;
    rq->own_weight = in->private_blocks * ONE;
    rq->prefill_tokens = in->prefill_tokens;
    rq->has_duration = in->has_duration;
    rq->prefill_ns = in->prefill_ns;
    rq->heard_ns = in->now_ns;
    rq->course = (struct kvr_load_course){.worker = in->worker,
                                          .booked_ns = in->now_ns,
                                          .prefill_tokens = in->prefill_tokens,
                                          .ahead_tokens = met.active_prefill_tokens,
                                          .active_blocks = met.active_decode_blocks + in->seqs_n + in->private_blocks,
                                          .generating = met.active_requests - met.active_prefills};
    ld->of.weight[slot] += rq->own_weight;
    enter_phase(ld, rq, WAITING, in->now_ns);
    prefill_link(ld, rq, in->now_ns);
    request_link(ld, rq);
    return 0;
}

int kvr_load_prefill_done(struct kvr_load *ld, const char *id, size_t id_len, uint64_t now_ns)
{
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    if (!rq->course.first_token_ns) rq->course.first_token_ns = now_ns;
    enter_phase(ld, rq, GENERATING, now_ns);
    prefill_unlink(ld, rq, now_ns);
    heard_of(ld, rq, now_ns);
    return 0;
}

static void note_blocks(struct kvr_load_course *c, uint64_t n, uint64_t now_ns)
{
    if (!c->blocks) {
        c->first_blocks = n;
        c->first_block_ns = now_ns;
    }
    c->blocks += n;
    c->last_block_ns = now_ns;
}

int kvr_load_course(const struct kvr_load *ld, const char *id, size_t id_len, struct kvr_load_course *out)
{
    const struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    *out = rq->course;
    return 0;
}

int kvr_load_output_blocks(struct kvr_load *ld, const char *id, size_t id_len, uint64_t n, double fraction, uint64_t now_ns)
{
    if (!(fraction <= 1)) return -KVR_EINVAL;
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    uint64_t *sum = &ld->of.weight[rq->slot];
    note_blocks(&rq->course, n, now_ns);
    *sum -= rq->own_weight;
    if (fraction < 0) {
        rq->own_weight += n * ONE;
    } else {
        uint32_t weight = (uint32_t)llround(fraction * (double)ONE);
        rq->own_weight = (rq->private_blocks + rq->course.blocks) * weight;
        chain_weigh(ld, rq, weight);
    }
    *sum += rq->own_weight;
    heard_of(ld, rq, now_ns);
    return 0;
}

uint64_t kvr_load_outputs(const struct kvr_load *ld, const char *id, size_t id_len)
{
    const struct request *rq = request_find(ld, id, id_len);
    return rq ? rq->course.blocks : 0;
}

int kvr_load_touch(struct kvr_load *ld, const char *id, size_t id_len, uint64_t now_ns)
{
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    heard_of(ld, rq, now_ns);
    return 0;
}

int kvr_load_where(const struct kvr_load *ld, const char *id, size_t id_len, struct kvr_worker *out)
{
    const struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    *out = ld->slots[rq->slot].worker;
    return 0;
}

int kvr_load_free(struct kvr_load *ld, const char *id, size_t id_len, uint64_t now_ns)
{
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    request_end(ld, rq, now_ns);
    return 0;
}

size_t kvr_load_expire(struct kvr_load *ld, uint64_t before_ns, uint64_t now_ns, void (*freed)(void *ctx, const char *id, size_t id_len),
                       void *ctx)
{
    size_t n = 0;
    for (; ld->oldest && ld->oldest->heard_ns < before_ns; n++) {
        if (freed) freed(ctx, ld->oldest->id, ld->oldest->id_len);
        request_end(ld, ld->oldest, now_ns);
    }
    return n;
}

size_t kvr_load_free_owner(struct kvr_load *ld, uint32_t owner, uint64_t now_ns)
{
    size_t n = 0;
    for (size_t i = 0; i < ld->slots_n; i++)
        for (struct request *r = ld->slots[i].requests, *next; r; r = next) {
            next = r->slot_next;
            if (r->owner != owner) continue;
            request_end(ld, r, now_ns);
            n++;
        }
    return n;
}

/* ---- snapshots --------------------------------------------------------------------------------------- */

static size_t chain_length(const struct edge *e)
{
    size_t n = 0;
    for (; e; e = e->parent) n += e->len;
    return n;
}

int kvr_load_each(const struct kvr_load *ld, uint32_t owner, int (*fn)(void *ctx, const struct kvr_load_entry *entry), void *ctx)
{
    int rc = 0;
    for (size_t i = 0; i < ld->slots_n && rc == 0; i++)
        for (const struct request *r = ld->slots[i].requests; r && rc == 0; r = r->slot_next) {
            if (r->owner != owner) continue;
            struct kvr_load_entry e = {.request = {.id = r->id,
                                                   .id_len = r->id_len,
                                                   .worker = ld->slots[i].worker,
                                                   .seqs_n = chain_length(r->end),
                                                   .private_blocks = r->private_blocks,
                                                   .prefill_tokens = r->prefill_tokens,
                                                   .has_duration = r->has_duration,
                                                   .prefill_ns = r->prefill_ns,
                                                   .now_ns = r->heard_ns,
                                                   .owner = r->owner,
                                                   .guarded = r->guarded},
                                       .output_blocks = r->course.blocks,
                                       .handle = r};
            rc = fn(ctx, &e);
        }
    return rc;
}

void kvr_load_seqs(const struct kvr_load_entry *entry, uint64_t *seqs)
{
    const struct request *r = entry->handle;
    size_t at = entry->request.seqs_n;
    for (const struct edge *e = r->end; e && at; e = e->parent) {
        at -= e->len;
        memcpy(seqs + at, e->hashes, e->len * sizeof *seqs);
    }
}

/* ---- life -------------------------------------------------------------------------------------------- */

int kvr_load_create(const struct kvr_alloc *alloc, struct kvr_load **out)
{
    struct kvr_mem mem;
    kvr_mem_init(&mem, alloc, 0);
    struct kvr_load *ld = kvr_mem_zget(&mem, sizeof *ld);
    if (!ld) return -KVR_ENOMEM;
    ld->mem = mem;
    *out = ld;
    return 0;
}

void kvr_load_destroy(struct kvr_load *ld)
{
    if (!ld) return;
    for (size_t i = 0; i < ld->slots_n; i++)
        if (ld->slots[i].used) slot_remove(ld, i);
    KVR_ASSERT(ld->edges_n == 0);
    spares_free(ld);
    kvr_mem_put(&ld->mem, ld->edges, ld->edges_cap * sizeof(struct edge *));
    kvr_mem_put(&ld->mem, ld->requests, ld->requests_cap * sizeof(struct request *));
    kvr_mem_put(&ld->mem, ld->slots, ld->slots_cap * sizeof *ld->slots);
    kvr_mem_put(&ld->mem, ld->of.weight, ld->slots_cap * TALLY);
    kvr_mem_put(&ld->mem, ld->slot_table, ld->slot_table_cap * sizeof *ld->slot_table);
    struct kvr_mem mem = ld->mem;
    kvr_mem_put(&mem, ld, sizeof *ld);
    KVR_ASSERT(mem.bytes == 0);
}

size_t kvr_load_bytes(const struct kvr_load *ld)
{
    return ld->mem.bytes;
}

bool kvr_load_validate(const struct kvr_load *ld, const char **reason)
{
    size_t edges = 0;
    for (size_t i = 0; i < ld->slots_n; i++) {
        const struct slot *s = &ld->slots[i];
        uint64_t weight = 0, prefill = 0, requests = 0, queued = 0;
        for (const struct request *r = s->requests; r; r = r->slot_next) {
            weight += r->own_weight;
            prefill += r->prefill_tokens;
            requests++;
        }
        for (const struct request *r = s->prefill_front; r; r = r->prefill_next) queued += r->prefill_tokens;
        for (size_t b = 0; b < ld->edges_cap; b++)
            for (const struct edge *e = ld->edges[b]; e; e = e->bucket_next)
                for (size_t k = 0; k < e->refs_n; k++)
                    if (e->refs[k].slot == i) weight += e->len * e->refs[k].weight;
        if (!s->used) continue;
        const struct request *front = s->prefill_front;
        bool decays = ld->of.decays[i],
             front_known = front ? s->front_tokens == front->prefill_tokens && decays == front->has_duration : !decays;
        if (weight != ld->of.weight[i] || prefill != ld->of.prefill_tokens[i] || queued != prefill || requests != ld->of.requests[i] ||
            !front_known) {
            *reason = "load: a rank's sums differ from its requests";
            return false;
        }
    }
    for (size_t b = 0; b < ld->edges_cap; b++)
        for (const struct edge *e = ld->edges[b]; e; e = e->bucket_next) {
            edges++;
            if (e->refs_n == 0 || e->len == 0) {
                *reason = "load: an edge nobody passes";
                return false;
            }
        }
    if (edges != ld->edges_n) {
        *reason = "load: edge count is wrong";
        return false;
    }
    return true;
}
