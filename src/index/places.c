/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank calls a block, and which block it calls so. */
#include "index/internal.h"

bool kvr__lookup_visit(void *ctx, uint32_t id)
{
    struct lookup *k = ctx;
    struct run *r = kvr__run(k->ln, id);
    uint32_t len = kvr__len(r), slot = k->rk->slot;
    if (kvr__is_alias(r)) {
        if (r->position != slot && k->elsewhere) return false;
        size_t i = k->ln->simd->find_last(r->a, len, k->name);
        if (i == SIZE_MAX) return false;
        k->elsewhere = true;
        if (r->position != slot) return false;
        *k->out = (struct place){r->parent, r->poff + (uint32_t)i, id};
        return true;
    }
    size_t i = k->ln->simd->find_last(r->a + r->cap, len, k->name);
    if (i == SIZE_MAX) return false;
    k->elsewhere = true;
    struct grip g = kvr__grip(r, slot);
    if (i >= g.cut || kvr__grip_alias(r, g)) return false;
    *k->out = (struct place){id, (uint32_t)i, 0};
    return true;
}

uint64_t kvr__block_name(const struct lane *ln, const struct rank *rk, struct run *r, uint32_t off)
{
    uint32_t head = kvr__grip_alias(r, kvr__grip(r, rk->slot));
    return head ? kvr__alias_first(ln, head, off) : kvr__names_of(r)[off];
}
