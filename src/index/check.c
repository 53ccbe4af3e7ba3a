/* SPDX-License-Identifier: Apache-2.0 */
/* Every invariant of internal.h, checked in time proportional to the content. */
#include "index/internal.h"

struct sums {
    size_t runs, nodes, names, aliases, aliased;
    size_t kids, nkids; /* runs behind others, and what those others count */
};

static bool no(const char **why, const char *text)
{
    *why = text;
    return false;
}

/* The place of a held run is linked to the place of the run above it, and once. */
static bool check_links(const struct lane *ln, const struct rank *rk, uint32_t pos)
{
    const struct holding *h = &rk->held[pos];
    const struct run *r = kvr__run(ln, h->run);
    if (h->next != NO_PLACE && rk->held[h->next].prev != pos) return false;
    if (h->kid != NO_PLACE && rk->held[h->kid].prev != (pos | FIRST_KID)) return false;
    if (r->parent < IDS_RESERVED && h->prev == NO_PLACE) return rk->root == pos;
    if (r->parent < IDS_RESERVED) return rk->held[h->prev].next == pos && kvr__run(ln, rk->held[h->prev].run)->parent < IDS_RESERVED;
    if (h->prev & FIRST_KID)
        return h->prev != NO_PLACE && rk->held[h->prev & ~FIRST_KID].kid == pos && rk->held[h->prev & ~FIRST_KID].run == r->parent;
    return rk->held[h->prev].next == pos && kvr__run(ln, rk->held[h->prev].run)->parent == r->parent;
}

static bool check_alias_chain(const struct lane *ln, const struct run *r, uint32_t slot, struct grip g, struct sums *s, const char **why)
{
    uint32_t head = kvr__grip_alias(r, g);
    for (uint32_t id = head; id; id = kvr__run(ln, id)->next) {
        const struct run *a = kvr__run(ln, id);
        if (!kvr__is_alias(a) || a->parent != r->id || a->position != slot || a->id != id)
            return no(why, "I5: alias object of another place");
        if (a->poff + kvr__len(a) > g.cut || kvr__len(a) == 0) return no(why, "I5: alias object exceeds the share");
        for (uint32_t i = 0; i < kvr__len(a); i++)
            if (!kvr__names_has(ln, a->a[i], id)) return no(why, "I6: alias name is not in the table");
        s->aliases += kvr__len(a);
        s->names += kvr__len(a);
    }
    for (uint32_t i = 0; head && i < g.cut; i++)
        if (!kvr__alias_count(ln, head, i)) return no(why, "I5: aliased block without a name");
    s->aliased += head ? g.cut : 0;
    return true;
}

static bool check_holder(const struct lane *ln, const struct run *r, uint32_t slot, struct sums *s, const char **why)
{
    struct grip g = kvr__grip(r, slot);
    const struct rank *rk = slot < ln->rank_of_cap ? ln->rank_of[slot] : NULL;
    if (!rk) return no(why, "holder without a rank");
    uint32_t pos = kvr__cover_pos_of(r, g);
    if (pos >= rk->held_n || rk->held[pos].run != r->id) return no(why, "I7: run is not in the rank's list");
    if (r->parent >= IDS_RESERVED && kvr__grip(kvr__run(ln, r->parent), slot).cut < r->poff) return no(why, "I1: parent is not held");
    return check_alias_chain(ln, r, slot, g, s, why);
}

static bool check_holders(const struct lane *ln, const struct run *r, struct sums *s, const char **why)
{
    const struct cover *c = kvr__cover(r);
    if (!c) return check_holder(ln, r, (uint32_t)(atomic_load_explicit(&r->hold, RLX) >> 32) >> CUT_BITS, s, why);
    uint32_t live = 0, used = 0, aliased = 0;
    for (uint32_t i = 0; i < c->cap; i++) {
        uint32_t e = atomic_load_explicit(&c->e[i], RLX);
        used += e != 0;
        if (!(e & CUT_MASK)) continue;
        live++;
        if (!check_holder(ln, r, e >> CUT_BITS, s, why)) return false;
        aliased += kvr__grip_alias(r, kvr__grip(r, e >> CUT_BITS)) != 0;
    }
    if (live != c->live || used != c->used || aliased != c->aliased) return no(why, "cover is miscounted");
    return true;
}

static bool check_run(const struct lane *ln, struct run *r, uint32_t id, struct sums *s, const char **why)
{
    uint32_t len = kvr__len(r);
    struct run *found;
    if (r->id != id || len > r->cap || r->high < len) return no(why, "run header is inconsistent");
    if (kvr__cover_max(r) != len) return no(why, "I3: length is not the largest cut");
    uint32_t off = r->parent == FLOAT_RUN ? r->position : r->poff;
    if (kvr__kid_find(ln, kvr__run_hash(ln, r), r->parent, off, r->a[0], &found) != id) return no(why, "run is not reachable, or I4");
    if (r->parent >= IDS_RESERVED) {
        const struct run *p = kvr__run(ln, r->parent);
        if (!p || r->poff > kvr__len(p) || r->poff == 0) return no(why, "run hangs past its parent");
        if (r->poff < kvr__len(p) && p->a[r->poff] == r->a[0]) return no(why, "I4: child repeats its parent's block");
    }
    if (r->parent >= IDS_RESERVED) s->kids++;
    s->nkids += r->nkids;
    for (uint32_t i = 0; i < len; i++)
        if (!kvr__names_has(ln, kvr__names_of(r)[i], id)) return no(why, "I6: name is not in the table");
    s->runs++;
    s->nodes += len;
    s->names += len;
    return check_holders(ln, r, s, why);
}

bool kvr__lane_check(struct lane *ln, const char **why)
{
    struct sums s = {0};
    for (uint32_t id = IDS_RESERVED; id < ln->ids_top; id++) {
        struct run *r = kvr__run(ln, id);
        if (!r || kvr__len(r) == 0 || kvr__is_alias(r)) continue;
        if (!check_run(ln, r, id, &s, why)) return false;
    }
    if (s.runs != ln->runs_n || s.nodes != ln->nodes_n) return no(why, "runs or blocks are miscounted");
    if (s.kids != s.nkids) return no(why, "children are miscounted");
    if (s.names != ln->names.used) return no(why, "I6: the name table has other entries than names");
    if (s.aliases != ln->aliases_n || s.aliased != ln->aliased_blocks) return no(why, "aliases are miscounted");
    size_t blocks = 0, listed;
    for (uint32_t i = 1; i < atomic_load_explicit(&ln->slots_top, RLX); i++) {
        const struct rank *rk = ln->rank_of[i];
        if (!rk) continue;
        listed = 0;
        for (size_t j = 0; j < rk->held_n; j++) {
            listed += kvr__grip(kvr__run(ln, rk->held[j].run), rk->slot).cut;
            if (!check_links(ln, rk, (uint32_t)j)) return no(why, "I7: a rank's links do not follow the tree");
        }
        if (listed != rk->blocks || rk->slot != i) return no(why, "I7: a rank's blocks are miscounted");
        blocks += listed;
    }
    if (blocks != ln->blocks_n) return no(why, "blocks held are miscounted");
    return kvr__predict_check(ln, why);
}
