/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache groups with a window. A model with sliding-window or recurrent layers keeps its blocks in several groups: of a prefix of n blocks
 * the engine reuses what the full-attention group has, as far as each window group has the last `need` blocks before the end (or all of
 * them, near the start); of recurrent layers that is one, the state at the end. The tree is the full-attention group's; of the others the
 * names are kept here, per pair and group, and what a match found is cut:
 *
 *     full attention   A B C D E F      found: 6
 *     window, need 2       C D   F      the last two before 6 are not both there, before 4 they are: 4
 *
 * A pair without such groups pays one look at a number that is 0. For the others a match takes the lane's lock while it asks for the
 * names along the path, and after it `windows_lock`. kvr_index_match_tiers takes it first and the lanes' locks while it has it: nobody
 * takes it with a lane locked.
 */
#include "index/internal.h"

#include "base/lock.h"
#include "base/map64.h"
#include "base/tally.h"

enum { GROUPS_MAX = 16, NAMES_MAX = 1 << 22 };

struct group {
    uint32_t id, need;
    struct kvr_map64 names; /* -> struct kvr_tally of the blocks of that name */
};

struct windowed {
    struct windowed *next;
    struct kvr_worker worker;
    bool overfull; /* more groups than there is room for: nothing can be said */
    size_t n;
    struct group groups[GROUPS_MAX];
};

static struct windowed *find(const struct kvr_index *ix, struct kvr_worker w)
{
    struct windowed *x = ix->windowed;
    while (x && (x->worker.worker_id != w.worker_id || x->worker.dp_rank != w.dp_rank)) x = x->next;
    return x;
}

bool kvr__windows_has(const struct kvr_index *ix, struct kvr_worker w)
{
    return find(ix, w) != NULL;
}

static void forget_names(struct windowed *x)
{
    for (size_t i = 0; i < x->n; i++) kvr_map64_clear(&x->groups[i].names);
}

/* ---- what events say ------------------------------------------------------------------------------------------ */

static struct group *group_of(struct windowed *x, uint32_t id)
{
    for (size_t i = 0; i < x->n; i++)
        if (x->groups[i].id == id) return &x->groups[i];
    if (x->n == GROUPS_MAX) {
        x->overfull = true;
        return NULL;
    }
    x->groups[x->n] = (struct group){.id = id};
    return &x->groups[x->n++];
}

static void store_name(struct group *g, uint64_t name, bool counts, bool proven)
{
    uint64_t *n = kvr_map64_get(&g->names, name);
    struct kvr_tally t = n ? kvr_tally_of(*n) : (struct kvr_tally){0};
    t.certain += proven;
    t.unproven += !proven;
    if (n && counts) *n = kvr_tally_value(t);
    else if (!n && g->names.n < NAMES_MAX) (void)kvr_map64_put(&g->names, name, kvr_tally_value(t)); /* no room: it is missed */
}

static void remove_name(struct group *g, uint64_t name)
{
    uint64_t *n = kvr_map64_get(&g->names, name);
    if (!n) return;
    struct kvr_tally t = kvr_tally_of(*n);
    t.certain--;
    if (kvr_tally_sum(t) <= 0) kvr_map64_del(&g->names, name);
    else *n = kvr_tally_value(t);
}

static void take_back(struct group *g)
{
    struct kvr_map64 certain = {0};
    for (size_t i = 0; i < g->names.cap; i++) {
        struct kvr_tally t = kvr_tally_of(g->names.slots[i].value);
        t.unproven = 0;
        if (g->names.slots[i].used && t.certain > 0) (void)kvr_map64_put(&certain, g->names.slots[i].key, kvr_tally_value(t));
    }
    kvr_map64_clear(&g->names);
    g->names = certain;
}

static void store_names(struct group *g, const struct kvr_window_event *ev)
{
    bool told = ev->may_repeat && ev->n && kvr_map64_get(&g->names, ev->names[ev->n - 1]);
    size_t from = 0;
    if (ev->may_repeat && ev->repeats) from = told || ev->need == UINT32_MAX ? ev->n : ev->n - KVR_MIN((size_t)ev->need, ev->n);
    for (size_t i = from; i < ev->n; i++) store_name(g, ev->names[i], ev->counts, !told);
}

int kvr_index_window(struct kvr_index *ix, const struct kvr_window_event *ev)
{
    int rc = 0;
    kvr_lock(&ix->windows_lock);
    struct windowed *x = find(ix, ev->worker);
    if (!x && !ev->take_back && (x = calloc(1, sizeof *x))) {
        x->worker = ev->worker;
        x->next = ix->windowed;
        ix->windowed = x;
        atomic_fetch_add_explicit(&ix->windowed_n, 1, REL);
    }
    struct group *g = x && !ev->take_back ? group_of(x, ev->group) : NULL;
    if (!ev->take_back && !g) rc = x ? -KVR_ELIMIT : -KVR_ENOMEM;
    if (g && ev->kind == KVR_EVENT_STORED) {
        g->need = ev->need;
        store_names(g, ev);
    }
    for (size_t i = 0; g && ev->kind == KVR_EVENT_REMOVED && i < ev->n; i++) remove_name(g, ev->names[i]);
    for (size_t i = 0; x && ev->take_back && i < x->n; i++) take_back(&x->groups[i]);
    kvr_unlock(&ix->windows_lock);
    return rc;
}

void kvr__windows_clear(struct kvr_index *ix, struct kvr_worker w, bool groups_too)
{
    if (!atomic_load_explicit(&ix->windowed_n, ACQ)) return;
    kvr_lock(&ix->windows_lock);
    struct windowed *x = find(ix, w);
    if (x) forget_names(x);
    if (x && groups_too) {
        KVR_UNLINK(ix->windowed, x);
        free(x);
        atomic_fetch_sub_explicit(&ix->windowed_n, 1, REL);
    }
    kvr_unlock(&ix->windows_lock);
}

void kvr__windows_clear_worker(struct kvr_index *ix, uint64_t worker_id)
{
    kvr_lock(&ix->windows_lock);
    for (struct windowed *x = ix->windowed; x; x = x->next)
        if (x->worker.worker_id == worker_id) forget_names(x);
    kvr_unlock(&ix->windows_lock);
}

void kvr__windows_destroy(struct kvr_index *ix)
{
    while (ix->windowed) kvr__windows_clear(ix, ix->windowed->worker, true);
    kvr_lock_destroy(&ix->windows_lock);
}

/* ---- what a match may say ------------------------------------------------------------------------------------- */

/* The names of the pair's blocks along the query. Returns: how many there are. */
static uint32_t names_along(const struct rank *rk, const uint64_t *q, uint32_t n, uint64_t *names)
{
    struct lane *ln = rk->lane;
    uint32_t pos = 0, run = ROOT_RUN, off = 0, m = 1;
    while (pos < n && m) {
        struct run *r;
        uint32_t id = kvr__kid_find(ln, kvr__kid_hash(ln, run, off, q[pos]), run, off, q[pos], &r);
        if (!id) break;
        m = (uint32_t)ln->simd->common(r->a, q + pos, KVR_MIN(kvr__len(r), n - pos));
        m = KVR_MIN(m, kvr__grip(r, rk->slot).cut);
        for (uint32_t i = 0; i < m; i++) names[pos + i] = kvr__block_name(ln, rk, r, i);
        pos += m;
        run = id;
        off = m;
    }
    return pos;
}

/* The longest prefix, at most n, whose last `need` blocks the group has, or all of them. */
static uint32_t fits(const struct group *g, const uint64_t *names, uint32_t n)
{
    uint32_t there = 0;
    for (uint32_t i = n; i-- > 0;) {
        if (!kvr_map64_get(&g->names, names[i])) {
            n = i;
            there = 0;
        } else if (++there >= g->need) {
            return n;
        }
    }
    return there;
}

/* All groups must agree; a group that shortens makes the others look again. */
static uint32_t agree(struct kvr_index *ix, struct kvr_worker w, const uint64_t *names, uint32_t n)
{
    uint32_t before = n + 1;
    kvr_lock(&ix->windows_lock);
    const struct windowed *x = find(ix, w);
    if (x && x->overfull) n = 0;
    while (x && n < before) {
        before = n;
        for (size_t i = 0; i < x->n; i++) n = fits(&x->groups[i], names, n);
    }
    kvr_unlock(&ix->windows_lock);
    return n;
}

size_t kvr_index_names(struct kvr_index *ix, struct kvr_worker w, const uint64_t *q, size_t n, uint64_t *names)
{
    uint32_t found = 0;
    kvr_read_lock(&ix->ranks_lock);
    struct rank *rk = kvr__rank_find(ix, w);
    if (rk) {
        kvr_lock(&rk->lane->lock);
        found = names_along(rk, q, (uint32_t)KVR_MIN(n, (size_t)UINT32_MAX), names);
        kvr_unlock(&rk->lane->lock);
    }
    kvr_rw_unlock(&ix->ranks_lock);
    return found;
}

static bool is_windowed(struct kvr_index *ix, struct kvr_worker w)
{
    kvr_lock(&ix->windows_lock);
    bool yes = find(ix, w) != NULL;
    kvr_unlock(&ix->windows_lock);
    return yes;
}

/* What cannot be looked at is not promised. */
static uint32_t cut(struct kvr_index *ix, struct kvr_worker w, const uint64_t *q, uint32_t depth)
{
    uint64_t *names = malloc(depth * sizeof *names);
    if (!names) return 0;
    uint32_t n = (uint32_t)kvr_index_names(ix, w, q, depth, names);
    n = agree(ix, w, names, n);
    free(names);
    return n;
}

size_t kvr__windows_cut(struct kvr_index *ix, const uint64_t *q, struct kvr_overlap *found, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        struct kvr_overlap o = found[i];
        if (o.depth && is_windowed(ix, o.worker)) o.depth = cut(ix, o.worker, q, o.depth);
        if (o.depth) found[kept++] = o;
    }
    return kept;
}

size_t kvr_index_limit(struct kvr_index *ix, const uint64_t *q, size_t most, struct kvr_overlap *found, size_t n)
{
    size_t kept = 0;
    if (!atomic_load_explicit(&ix->windowed_n, ACQ)) return n;
    for (size_t i = 0; i < n; i++) {
        struct kvr_overlap o = found[i];
        if (o.depth > most && is_windowed(ix, o.worker)) o.depth = most ? cut(ix, o.worker, q, (uint32_t)most) : 0;
        if (o.depth) found[kept++] = o;
    }
    return kept;
}
