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
#include "base/base.h"

#include <string.h>
#include <kvroute/hash.h>
#include <kvroute/load.h>

enum { ID_MAX = 256, RANKS_MAX_PER_WORKER = 4096, SLOT_FREE = 0 };

struct ref {
    uint32_t slot, count;
};

struct edge {
    struct edge *parent, *bucket_next;
    uint64_t *hashes;
    struct ref *refs;
    size_t len, hashes_cap;
    size_t refs_n, refs_cap;
    size_t kids;
};

struct request {
    struct request *bucket_next;
    struct request *older, *newer;         /* by time of booking */
    struct request *slot_next, *slot_prev; /* of one rank */
    struct edge *end;                      /* NULL: no prompt blocks */
    uint64_t private_blocks, prefill_tokens, output_blocks, booked_ns, id_hash;
    uint32_t slot;
    uint32_t id_len;
    char id[];
};

struct slot {
    struct kvr_rank_load load;
    struct request *requests;
    bool used;
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
    size_t slots_cap, slots_n;
    uint32_t *slot_table; /* (worker, rank) -> slot + 1, open addressing; made anew when ranks change */
    size_t slot_table_cap;
};

/* ---- table of edges ---------------------------------------------------------------------------------- */

static struct edge **edge_bucket(const struct kvr_load *ld, const struct edge *parent, uint64_t first)
{
    uint64_t h = kvr_mix64(first ^ ((uint64_t)(uintptr_t)parent * 0x9e3779b97f4a7c15ULL));
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
    struct edge *e = kvr_mem_zget(&ld->mem, sizeof *e);
    if (!e) return NULL;
    e->hashes = kvr_mem_get(&ld->mem, len * sizeof *hashes);
    if (!e->hashes) {
        kvr_mem_put(&ld->mem, e, sizeof *e);
        return NULL;
    }
    memcpy(e->hashes, hashes, len * sizeof *hashes);
    e->len = e->hashes_cap = len;
    return e;
}

static void edge_free(struct kvr_load *ld, struct edge *e)
{
    kvr_mem_put(&ld->mem, e->hashes, e->hashes_cap * sizeof *e->hashes);
    kvr_mem_put(&ld->mem, e->refs, e->refs_cap * sizeof *e->refs);
    kvr_mem_put(&ld->mem, e, sizeof *e);
}

/* ---- references -------------------------------------------------------------------------------------- */

static int ref_add(struct kvr_load *ld, struct edge *e, uint32_t slot)
{
    for (size_t i = 0; i < e->refs_n; i++)
        if (e->refs[i].slot == slot) {
            e->refs[i].count++;
            return 0;
        }
    if (kvr_mem_grow(&ld->mem, (void **)&e->refs, &e->refs_cap, e->refs_n + 1, sizeof *e->refs)) return -KVR_ENOMEM;
    e->refs[e->refs_n++] = (struct ref){slot, 1};
    ld->slots[slot].load.active_decode_blocks += e->len;
    return 0;
}

static void ref_drop(struct kvr_load *ld, struct edge *e, uint32_t slot)
{
    size_t i = 0;
    while (e->refs[i].slot != slot) i++;
    if (--e->refs[i].count) return;
    e->refs[i] = e->refs[--e->refs_n];
    ld->slots[slot].load.active_decode_blocks -= e->len;
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
    if (kvr_mem_grow(&ld->mem, (void **)&top->refs, &top->refs_cap, e->refs_n, sizeof *top->refs)) {
        edge_free(ld, top);
        return NULL;
    }
    memcpy(top->refs, e->refs, e->refs_n * sizeof *e->refs);
    top->refs_n = e->refs_n;
    struct edge *parent = e->parent;
    edge_unlink(ld, e);
    e->len -= at;
    memmove(e->hashes, e->hashes + at, e->len * sizeof *e->hashes);
    uint64_t *smaller = kvr_mem_resize(&ld->mem, e->hashes, e->hashes_cap * sizeof *smaller, e->len * sizeof *smaller);
    if (smaller) {
        e->hashes = smaller;
        e->hashes_cap = e->len;
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

/* ---- ranks ------------------------------------------------------------------------------------------- */

size_t kvr_load_slots(const struct kvr_load *ld)
{
    return ld->slots_n;
}

static size_t slot_place(const struct kvr_load *ld, struct kvr_worker w)
{
    size_t mask = ld->slot_table_cap - 1;
    size_t i = kvr_mix64(w.worker_id * 0x9e3779b97f4a7c15ULL + w.dp_rank) & mask;
    while (ld->slot_table[i] && kvr_worker_cmp(ld->slots[ld->slot_table[i] - 1].load.worker, w) != 0) i = (i + 1) & mask;
    return i;
}

long kvr_load_slot_of(const struct kvr_load *ld, struct kvr_worker w)
{
    if (!ld->slot_table_cap) return -KVR_ENOTFOUND;
    uint32_t slot = ld->slot_table[slot_place(ld, w)];
    return slot ? (long)slot - 1 : -KVR_ENOTFOUND;
}

/* Room for one more rank is made before the rank is added, so this cannot fail. */
static void slot_table_fill(struct kvr_load *ld)
{
    memset(ld->slot_table, 0, ld->slot_table_cap * sizeof *ld->slot_table);
    for (size_t i = 0; i < ld->slots_n; i++)
        if (ld->slots[i].used) ld->slot_table[slot_place(ld, ld->slots[i].load.worker)] = (uint32_t)i + 1;
}

static int slot_table_reserve(struct kvr_load *ld)
{
    size_t cap = ld->slot_table_cap ? ld->slot_table_cap : 16;
    while (cap < (ld->slots_n + 1) * 2) cap *= 2;
    if (cap == ld->slot_table_cap) return 0;
    uint32_t *t = kvr_mem_get(&ld->mem, cap * sizeof *t);
    if (!t) return -KVR_ENOMEM;
    kvr_mem_put(&ld->mem, ld->slot_table, ld->slot_table_cap * sizeof *t);
    ld->slot_table = t;
    ld->slot_table_cap = cap;
    slot_table_fill(ld);
    return 0;
}

int kvr_load_get(const struct kvr_load *ld, size_t slot, struct kvr_rank_load *out)
{
    if (slot >= ld->slots_n || !ld->slots[slot].used) return -KVR_ENOTFOUND;
    *out = ld->slots[slot].load;
    return 0;
}

static int slot_add(struct kvr_load *ld, struct kvr_worker w)
{
    size_t i = 0;
    while (i < ld->slots_n && ld->slots[i].used) i++;
    if (kvr_mem_grow(&ld->mem, (void **)&ld->slots, &ld->slots_cap, i + 1, sizeof *ld->slots)) return -KVR_ENOMEM;
    if (slot_table_reserve(ld)) return -KVR_ENOMEM;
    ld->slots[i] = (struct slot){.used = true, .load.worker = w};
    if (i == ld->slots_n) ld->slots_n++;
    ld->slot_table[slot_place(ld, w)] = (uint32_t)i + 1;
    return 0;
}

static void request_end(struct kvr_load *ld, struct request *rq);

static void slot_remove(struct kvr_load *ld, size_t i)
{
    while (ld->slots[i].requests) request_end(ld, ld->slots[i].requests);
    ld->slots[i].used = false;
    slot_table_fill(ld);
}

int kvr_load_set_worker(struct kvr_load *ld, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size)
{
    if (dp_size == 0 || dp_start > UINT32_MAX - (dp_size - 1)) return -KVR_EINVAL;
    if (dp_size > RANKS_MAX_PER_WORKER) return -KVR_ELIMIT;
    for (uint32_t i = 0; i < dp_size; i++) {
        struct kvr_worker w = {worker_id, dp_start + i};
        if (kvr_load_slot_of(ld, w) < 0 && slot_add(ld, w)) return -KVR_ENOMEM;
    }
    for (size_t i = 0; i < ld->slots_n; i++) {
        struct kvr_worker w = ld->slots[i].load.worker;
        if (ld->slots[i].used && w.worker_id == worker_id && (w.dp_rank < dp_start || w.dp_rank - dp_start >= dp_size)) slot_remove(ld, i);
    }
    return 0;
}

void kvr_load_remove_worker(struct kvr_load *ld, uint64_t worker_id)
{
    for (size_t i = 0; i < ld->slots_n; i++)
        if (ld->slots[i].used && ld->slots[i].load.worker.worker_id == worker_id) slot_remove(ld, i);
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
    return ld->requests_cap ? *request_place(ld, kvr_hash_bytes(id, len, 0), id, len) : NULL;
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

static void request_link(struct kvr_load *ld, struct request *rq)
{
    struct request **p = &ld->requests[rq->id_hash & (ld->requests_cap - 1)];
    rq->bucket_next = *p;
    *p = rq;
    rq->older = ld->newest;
    if (ld->newest) ld->newest->newer = rq;
    else ld->oldest = rq;
    ld->newest = rq;
    struct slot *s = &ld->slots[rq->slot];
    rq->slot_next = s->requests;
    if (s->requests) s->requests->slot_prev = rq;
    s->requests = rq;
    ld->requests_n++;
}

static void request_unlink(struct kvr_load *ld, struct request *rq)
{
    *request_place(ld, rq->id_hash, rq->id, rq->id_len) = rq->bucket_next;
    *(rq->older ? &rq->older->newer : &ld->oldest) = rq->newer;
    *(rq->newer ? &rq->newer->older : &ld->newest) = rq->older;
    if (rq->slot_next) rq->slot_next->slot_prev = rq->slot_prev;
    *(rq->slot_prev ? &rq->slot_prev->slot_next : &ld->slots[rq->slot].requests) = rq->slot_next;
    ld->requests_n--;
}

static void request_end(struct kvr_load *ld, struct request *rq)
{
    struct kvr_rank_load *l = &ld->slots[rq->slot].load;
    chain_release(ld, rq->end, rq->slot);
    l->active_decode_blocks -= rq->private_blocks + rq->output_blocks;
    l->active_prefill_tokens -= rq->prefill_tokens;
    l->active_requests--;
    request_unlink(ld, rq);
    kvr_mem_put(&ld->mem, rq, sizeof *rq + rq->id_len);
}

int kvr_load_add(struct kvr_load *ld, const struct kvr_load_request *in)
{
    if (in->id_len == 0 || in->id_len > ID_MAX) return -KVR_EINVAL;
    if (request_find(ld, in->id, in->id_len)) return -KVR_EEXISTS;
    long slot = kvr_load_slot_of(ld, in->worker);
    if (slot < 0) return -KVR_ENOTFOUND;
    if (requests_reserve(ld)) return -KVR_ENOMEM;
    struct request *rq = kvr_mem_zget(&ld->mem, sizeof *rq + in->id_len);
    if (!rq) return -KVR_ENOMEM;
    if (chain_acquire(ld, in->seqs, in->seqs_n, (uint32_t)slot, &rq->end)) {
        kvr_mem_put(&ld->mem, rq, sizeof *rq + in->id_len);
        return -KVR_ENOMEM;
    }
    rq->id_len = (uint32_t)in->id_len;
    memcpy(rq->id, in->id, in->id_len);
    rq->id_hash = kvr_hash_bytes(in->id, in->id_len, 0);
    rq->slot = (uint32_t)slot;
    rq->private_blocks = in->private_blocks;
    rq->prefill_tokens = in->prefill_tokens;
    rq->booked_ns = in->now_ns;
    struct kvr_rank_load *l = &ld->slots[slot].load;
    l->active_decode_blocks += rq->private_blocks;
    l->active_prefill_tokens += rq->prefill_tokens;
    l->active_requests++;
    request_link(ld, rq);
    return 0;
}

int kvr_load_prefill_done(struct kvr_load *ld, const char *id, size_t id_len)
{
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    ld->slots[rq->slot].load.active_prefill_tokens -= rq->prefill_tokens;
    rq->prefill_tokens = 0;
    return 0;
}

int kvr_load_output_block(struct kvr_load *ld, const char *id, size_t id_len)
{
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    rq->output_blocks++;
    ld->slots[rq->slot].load.active_decode_blocks++;
    return 0;
}

int kvr_load_free(struct kvr_load *ld, const char *id, size_t id_len)
{
    struct request *rq = request_find(ld, id, id_len);
    if (!rq) return -KVR_ENOTFOUND;
    request_end(ld, rq);
    return 0;
}

size_t kvr_load_expire(struct kvr_load *ld, uint64_t before_ns)
{
    size_t n = 0;
    for (; ld->oldest && ld->oldest->booked_ns < before_ns; n++) request_end(ld, ld->oldest);
    return n;
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
    while (ld->oldest) request_end(ld, ld->oldest);
    KVR_ASSERT(ld->edges_n == 0);
    kvr_mem_put(&ld->mem, ld->edges, ld->edges_cap * sizeof(struct edge *));
    kvr_mem_put(&ld->mem, ld->requests, ld->requests_cap * sizeof(struct request *));
    kvr_mem_put(&ld->mem, ld->slots, ld->slots_cap * sizeof *ld->slots);
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
        uint64_t blocks = 0, prefill = 0, requests = 0;
        for (const struct request *r = s->requests; r; r = r->slot_next) {
            blocks += r->private_blocks + r->output_blocks;
            prefill += r->prefill_tokens;
            requests++;
        }
        for (size_t b = 0; b < ld->edges_cap; b++)
            for (const struct edge *e = ld->edges[b]; e; e = e->bucket_next)
                for (size_t k = 0; k < e->refs_n; k++)
                    if (e->refs[k].slot == i) blocks += e->len;
        if (!s->used) continue;
        if (blocks != s->load.active_decode_blocks || prefill != s->load.active_prefill_tokens || requests != s->load.active_requests) {
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
