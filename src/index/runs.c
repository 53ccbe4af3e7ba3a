/* SPDX-License-Identifier: Apache-2.0 */
/* Runs: their ids, their memory, how they are published and trimmed. */
#include "index/internal.h"

/* ---- ids ----------------------------------------------------------------------------------------------- */

static struct ref_dir *refs_w(const struct lane *ln)
{
    return atomic_load_explicit(&ln->refs, RLX);
}

static size_t ref_dir_bytes(uint32_t cap)
{
    return sizeof(struct ref_dir) + sizeof(_Atomic(struct run_ref *)) * cap;
}

static int ref_dir_grow(struct lane *ln)
{
    struct ref_dir *old = refs_w(ln);
    uint32_t cap = old ? old->cap * 2 : 4;
    struct ref_dir *d = kvr_mem_zget(&ln->mem, ref_dir_bytes(cap));
    if (!d) return -KVR_ENOMEM;
    d->cap = cap;
    for (uint32_t i = 0; old && i < old->cap; i++) atomic_init(&d->chunk[i], atomic_load_explicit(&old->chunk[i], RLX));
    atomic_store_explicit(&ln->refs, d, REL);
    if (old) kvr__retire_ref_dir(ln, old);
    return 0;
}

static int ref_chunk_new(struct lane *ln)
{
    if ((!refs_w(ln) || ln->refs_n == refs_w(ln)->cap) && ref_dir_grow(ln)) return -KVR_ENOMEM;
    struct run_ref *c = kvr_mem_zget(&ln->mem, sizeof *c * REF_CHUNK);
    if (!c) return -KVR_ENOMEM;
    atomic_store_explicit(&refs_w(ln)->chunk[ln->refs_n++], c, REL);
    return 0;
}

int kvr__refs_init(struct lane *ln)
{
    ln->ids_top = IDS_RESERVED;
    return ref_chunk_new(ln);
}

void kvr__refs_destroy(struct lane *ln)
{
    struct ref_dir *d = refs_w(ln);
    if (!d) return;
    for (size_t i = 0; i < ln->refs_n; i++)
        kvr_mem_put(&ln->mem, atomic_load_explicit(&d->chunk[i], RLX), sizeof(struct run_ref) * REF_CHUNK);
    kvr_mem_put(&ln->mem, d, ref_dir_bytes(d->cap));
}

int kvr__id_get(struct lane *ln, uint32_t *id)
{
    if (ln->ids_free) {
        *id = ln->ids_free;
        ln->ids_free = kvr__ref(ln, *id)->next_free;
        ln->ids_live++;
        return 0;
    }
    if (ln->ids_top >> ID_BITS) return -KVR_ECAPACITY;
    if (ln->ids_top >> REF_BITS == ln->refs_n && ref_chunk_new(ln)) return -KVR_ENOMEM;
    *id = ln->ids_top++;
    ln->ids_live++;
    return 0;
}

/* Gives the highest chunks back when nothing below ids_top is in use. */
static void forget_all_ids(struct lane *ln)
{
    struct ref_dir *d = refs_w(ln);
    ln->ids_free = 0;
    ln->ids_top = IDS_RESERVED;
    while (ln->refs_n > 1) {
        ln->refs_n--;
        kvr_mem_put(&ln->mem, atomic_load_explicit(&d->chunk[ln->refs_n], RLX), sizeof(struct run_ref) * REF_CHUNK);
        atomic_store_explicit(&d->chunk[ln->refs_n], NULL, RLX);
    }
}

void kvr__id_put(struct lane *ln, uint32_t id)
{
    struct run_ref *ref = kvr__ref(ln, id);
    if (ln->way.steps_n) kvr__prefix_forget(ln, id);
    atomic_store_explicit(&ref->run, NULL, RLX);
    ref->next_free = ln->ids_free;
    ln->ids_free = id;
    if (--ln->ids_live == 0) forget_all_ids(ln);
}

/* ---- memory -------------------------------------------------------------------------------------------- */

static size_t run_bytes(uint32_t blocks, bool alias)
{
    return kvr__slab_round(sizeof(struct run) + (size_t)blocks * (alias ? 8 : 16));
}

struct run *kvr__run_alloc(struct lane *ln, uint32_t blocks, bool alias, bool grows)
{
    if (grows) blocks = KVR_MIN(blocks + 1, (uint32_t)RUN_MAX); /* the size class adds 6 % on average */
    size_t bytes = run_bytes(blocks, alias);
    uint32_t page;
    struct run *r = kvr__slab_get(ln, bytes, &page);
    if (!r) return NULL;
    memset(r, 0, sizeof *r);
    r->page = page;
    r->cap = (uint16_t)KVR_MIN((bytes - sizeof *r) / (alias ? 8 : 16), (size_t)RUN_MAX);
    r->high = alias ? ALIAS_MARK : 0;
    return r;
}

void kvr__run_release(struct lane *ln, struct run *r)
{
    kvr__slab_put(ln, r, r->page);
}

/* Moves a run to memory for `blocks` blocks. Readers in the old memory see the run as it was. */
int kvr__run_resize(struct lane *ln, struct run **run, uint32_t blocks, bool grows)
{
    struct run *r = *run;
    bool alias = kvr__is_alias(r);
    struct run *n = kvr__run_alloc(ln, blocks, alias, grows);
    if (!n) return -KVR_ENOMEM;
    uint32_t len = kvr__len(r);
    uint32_t page = n->page;
    uint16_t cap = n->cap;
    *n = *r;
    n->page = page;
    n->cap = cap;
    memcpy(n->a, r->a, len * 8);
    if (!alias) memcpy(n->a + cap, r->a + r->cap, len * 8);
    atomic_store_explicit(&kvr__ref(ln, r->id)->run, n, REL);
    if (alias) kvr__run_release(ln, r);
    else kvr__retire_run(ln, r, false);
    *run = n;
    return 0;
}

/* ---- in the tree --------------------------------------------------------------------------------------- */

uint32_t kvr__run_hash(const struct lane *ln, const struct run *r)
{
    return kvr__kid_hash(ln, r->parent, r->parent == FLOAT_RUN ? r->position : r->poff, r->a[0]);
}

void kvr__run_link(struct lane *ln, struct run *r)
{
    if (r->parent >= IDS_RESERVED) kvr__run(ln, r->parent)->nkids++;
    atomic_store_explicit(&kvr__ref(ln, r->id)->run, r, REL);
    kvr__kid_put(ln, kvr__run_hash(ln, r), r->id);
    ln->runs_n++;
}

static void unlink_run(struct lane *ln, struct run *r)
{
    kvr__kid_del(ln, kvr__run_hash(ln, r), r->id);
    if (r->parent >= IDS_RESERVED) kvr__run(ln, r->parent)->nkids--;
    ln->runs_n--;
    kvr__retire_run(ln, r, true);
}

void kvr__run_trim(struct lane *ln, struct run *r)
{
    uint32_t len = kvr__len(r), top = kvr__cover_max(r);
    if (top == len) return;
    kvr__names_del(ln, r->a + r->cap + top, len - top, r->id);
    ln->nodes_n -= len - top;
    atomic_store_explicit(&r->len, (uint16_t)top, REL);
    if (top == 0) unlink_run(ln, r);
    else if (r->cap > 16 && top * 2 < r->cap) (void)kvr__run_resize(ln, &r, top, false);
}

void kvr__run_touch(struct lane *ln, uint32_t id)
{
    uint32_t now = atomic_load_explicit(&ln->tick, RLX);
    for (; ln->stamps && id >= IDS_RESERVED; id = kvr__run(ln, id)->parent) {
        struct run_ref *ref = kvr__ref(ln, id);
        if (atomic_load_explicit(&ref->stamp, RLX) == now) return; /* so is everything above */
        atomic_store_explicit(&ref->stamp, now, RLX);
    }
}
