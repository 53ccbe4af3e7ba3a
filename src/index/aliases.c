/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of ranks whose engine calls a block otherwise than the run does (I5). Per (run, rank) a chain of alias
 * objects, each naming a stretch of blocks; overlapping stretches are several names for one block. Only writers
 * come here, so an object's memory is reused at once.
 *
 * Bounds. A block has at most ALIASES_MAX names of a rank, and a chain at most ALIAS_OBJECTS_MAX objects (and one or two more, see
 * kvr__alias_add), so that every walk here is short whatever an engine sends. A further name of a block that is held is left out
 * (counted: aliases_refused). No hit becomes false by it: a block is held as long as one of the names that are known stands, and
 * each of those was stored by the engine and not removed. What may be lost is a hit: when all known names are removed, the block
 * goes although the engine may have it under a name that was left out. A removal that would need one object too many takes
 * the block and what is behind it, as one without memory does.
 */
#include "index/internal.h"

static struct run *at(const struct lane *ln, uint32_t id)
{
    return kvr__run(ln, id);
}

static void free_object(struct lane *ln, struct run *a)
{
    uint32_t id = a->id;
    kvr__run_release(ln, a);
    kvr__id_put(ln, id);
}

static void set_len(struct run *a, uint32_t len)
{
    atomic_store_explicit(&a->len, (uint16_t)len, RLX);
}

/* A new object naming [base, base + n). */
static int object_new(struct lane *ln, struct rank *rk, struct run *r, uint32_t base, const uint64_t *names, uint32_t n, uint32_t *out)
{
    uint32_t id;
    if (kvr__names_reserve(ln, n)) return -KVR_ENOMEM;
    int rc = kvr__id_get(ln, &id);
    if (rc) return rc;
    struct run *a = kvr__run_alloc(ln, n, true, true);
    if (!a) {
        kvr__id_put(ln, id);
        return -KVR_ENOMEM;
    }
    a->id = id;
    a->poff = (uint16_t)base;
    a->parent = r->id;
    a->position = rk->slot;
    memcpy(a->a, names, n * 8ul);
    atomic_store_explicit(&kvr__ref(ln, id)->run, a, REL);
    for (uint32_t i = 0; i < n; i++) {
        if (kvr__names_put(ln, names[i], id) == 0) continue;
        kvr__names_del(ln, names, i, id);
        free_object(ln, a);
        return -KVR_ENOMEM;
    }
    set_len(a, n);
    *out = id;
    return 0;
}

int kvr__alias_convert(struct lane *ln, struct rank *rk, struct run *r)
{
    if (kvr__cover_reserve(ln, r, true)) return -KVR_ENOMEM;
    struct grip g = kvr__grip(r, rk->slot);
    struct cover *c = kvr__cover(r);
    if (g.cut == 0 || kvr__holder(c, g.at)->alias) return 0;
    uint32_t id;
    int rc = object_new(ln, rk, r, 0, kvr__names_of(r), g.cut, &id);
    if (rc) return rc;
    kvr__holder(c, g.at)->alias = id;
    c->aliased++;
    ln->aliases_n += g.cut;
    ln->aliased_blocks += g.cut;
    return 0;
}

/* The object that ends where `off` begins and has room, or 0. */
static uint32_t extendable(const struct lane *ln, uint32_t head, uint32_t off)
{
    for (uint32_t id = head; id; id = at(ln, id)->next) {
        struct run *a = at(ln, id);
        if (a->poff + kvr__len(a) == off && kvr__len(a) < RUN_MAX - 1) return id;
    }
    return 0;
}

static int object_extend(struct lane *ln, struct run *a, uint64_t name)
{
    uint32_t len = kvr__len(a);
    if (kvr__names_reserve(ln, 1)) return -KVR_ENOMEM;
    if (len == a->cap && kvr__run_resize(ln, &a, len + 1, true)) return -KVR_ENOMEM;
    a->a[len] = name;
    int rc = kvr__names_put(ln, name, a->id);
    if (rc == 0) set_len(a, len + 1);
    return rc;
}

/* Names block `off`, which the rank holds under other names or is about to hold. The run has a cover; when the rank
 * does not hold anything of the run yet, the entry is made, with a cut of 1. */
int kvr__alias_add(struct lane *ln, struct rank *rk, struct run *r, uint32_t off, uint64_t name)
{
    struct grip g = kvr__grip(r, rk->slot);
    uint32_t head = kvr__grip_alias(r, g), id = head ? extendable(ln, head, off) : 0;
    if (id) {
        int rc = object_extend(ln, at(ln, id), name);
        if (rc) return rc;
    } else {
        if (g.cut == 0 && kvr__rank_reserve(ln, rk)) return -KVR_ENOMEM;
        int rc = object_new(ln, rk, r, off, &name, 1, &id);
        if (rc) return rc;
        struct cover *c = kvr__cover(r);
        if (g.cut == 0) {
            kvr__cover_add(r, rk->slot, 1, kvr__rank_add(ln, rk, r));
            g = kvr__grip(r, rk->slot);
            c->aliased++;
            kvr__holder(c, g.at)->alias = id;
            rk->blocks++;
            ln->blocks_n++;
            ln->aliased_blocks++;
        } else {
            at(ln, id)->next = head;
            kvr__holder(c, g.at)->alias = id;
        }
    }
    ln->aliases_n++;
    return 0;
}

static bool covers(const struct run *a, uint32_t off)
{
    return a->poff <= off && off < a->poff + kvr__len(a);
}

bool kvr__alias_has_room(const struct lane *ln, uint32_t head, uint32_t off)
{
    uint32_t objects = 0;
    for (uint32_t id = head; id; id = at(ln, id)->next) objects++;
    return objects < ALIAS_OBJECTS_MAX && kvr__alias_count(ln, head, off) < ALIASES_MAX;
}

bool kvr__alias_names(const struct lane *ln, uint32_t head, uint32_t off, uint64_t name)
{
    for (uint32_t id = head; id; id = at(ln, id)->next) {
        const struct run *a = at(ln, id);
        if (covers(a, off) && a->a[off - a->poff] == name) return true;
    }
    return false;
}

uint64_t kvr__alias_first(const struct lane *ln, uint32_t head, uint32_t off)
{
    for (uint32_t id = head; id; id = at(ln, id)->next)
        if (covers(at(ln, id), off)) return at(ln, id)->a[off - at(ln, id)->poff];
    KVR_ASSERT(!"an aliased block has a name");
    return 0;
}

uint32_t kvr__alias_count(const struct lane *ln, uint32_t head, uint32_t off)
{
    uint32_t n = 0;
    for (uint32_t id = head; id; id = at(ln, id)->next) n += covers(at(ln, id), off);
    return n;
}

static void unchain(struct lane *ln, struct run *r, struct grip g, uint32_t id)
{
    struct holder *h = kvr__holder(kvr__cover(r), g.at);
    uint32_t next = at(ln, id)->next;
    if (h->alias == id) h->alias = next;
    for (uint32_t i = h->alias; i && i != next; i = at(ln, i)->next)
        if (at(ln, i)->next == id) at(ln, i)->next = next;
    if (!h->alias) kvr__cover(r)->aliased--;
    free_object(ln, at(ln, id));
}

bool kvr__alias_remove(struct lane *ln, struct run *r, struct grip g, uint32_t alias, uint64_t name)
{
    struct holder *h = kvr__holder(kvr__cover(r), g.at);
    struct run *a = at(ln, alias);
    uint32_t len = kvr__len(a), i = (uint32_t)ln->simd->find_last(a->a, len, name);
    if (kvr__alias_count(ln, h->alias, a->poff + i) < 2) return false;
    if (i > 0 && i + 1 < len) { /* the rest goes to an object of its own; without memory or room the block goes, and they with it */
        uint32_t id, objects = 0;
        for (id = h->alias; id; id = at(ln, id)->next) objects++;
        struct rank *rk = ln->rank_of[a->position];
        if (objects >= ALIAS_OBJECTS_MAX) ln->counters.aliases_refused++;
        if (objects >= ALIAS_OBJECTS_MAX || object_new(ln, rk, r, a->poff + i + 1, a->a + i + 1, len - i - 1, &id)) return false;
        kvr__names_del(ln, a->a + i + 1, len - i - 1, alias);
        set_len(a, i + 1);
        at(ln, id)->next = a->next;
        a->next = id;
        len = i + 1;
    }
    kvr__names_del(ln, &name, 1, alias);
    ln->aliases_n--;
    if (i == 0) {
        memmove(a->a, a->a + 1, (len - 1) * 8ul);
        a->poff++;
    }
    set_len(a, len - 1);
    if (len == 1) unchain(ln, r, g, alias);
    return true;
}

void kvr__alias_cut(struct lane *ln, struct run *r, struct grip g, uint32_t len)
{
    for (uint32_t id = kvr__grip_alias(r, g), next; id; id = next) {
        struct run *a = at(ln, id);
        next = a->next;
        uint32_t keep = a->poff >= len ? 0 : KVR_MIN(kvr__len(a), len - a->poff);
        kvr__names_del(ln, a->a + keep, kvr__len(a) - keep, id);
        ln->aliases_n -= kvr__len(a) - keep;
        set_len(a, keep);
        if (!keep) unchain(ln, r, g, id);
    }
}
