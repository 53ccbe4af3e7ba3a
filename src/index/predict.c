/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks known from routing decisions live for a time. A decision covers a prefix and restarts the time of all its
 * blocks, so within one run the blocks of a rank expire from the end: what is to be remembered per (run, rank) is a
 * staircase of steps (cut, expiry) with falling cuts and rising expiries, which is the sliding-window maximum of
 * the decisions. A new decision removes the steps it covers; there are one or two as a rule.
 *
 * The time to live is constant, so the list of all steps in order of making is also in order of expiry. Steps of
 * one decision are put in front of each other, so that the deepest run goes first.
 *
 * What events hold is permanent: `perm` of a pair. A (run, rank) without a pair is all permanent.
 */
#include "index/internal.h"

static size_t place(const struct predict *p, uint32_t run, uint32_t slot)
{
    size_t mask = p->pairs_cap - 1, i = kvr_mix64((uint64_t)run << 32 | slot) & mask;
    while (p->pairs[i].run && (p->pairs[i].run != run || p->pairs[i].slot != slot)) i = (i + 1) & mask;
    return i;
}

static struct pair *find(const struct predict *p, uint32_t run, uint32_t slot)
{
    if (!p->pairs_n) return NULL;
    struct pair *x = &p->pairs[place(p, run, slot)];
    return x->run ? x : NULL;
}

static void pair_del(struct predict *p, struct pair *x)
{
    size_t mask = p->pairs_cap - 1, i = (size_t)(x - p->pairs);
    for (size_t j = (i + 1) & mask; p->pairs[j].run; j = (j + 1) & mask) {
        size_t home = kvr_mix64((uint64_t)p->pairs[j].run << 32 | p->pairs[j].slot) & mask;
        if (((j - home) & mask) < ((j - i) & mask)) continue;
        p->pairs[i] = p->pairs[j];
        i = j;
    }
    p->pairs[i] = (struct pair){0};
    p->pairs_n--;
}

static int pairs_grow(struct lane *ln)
{
    struct predict *p = &ln->predict, old = *p;
    size_t cap = p->pairs_cap ? p->pairs_cap * 2 : 64;
    struct pair *bigger = kvr_mem_zget(&ln->mem, cap * sizeof *bigger);
    if (!bigger) return -KVR_ENOMEM;
    p->pairs = bigger;
    p->pairs_cap = cap;
    for (size_t i = 0; i < old.pairs_cap; i++)
        if (old.pairs[i].run) p->pairs[place(p, old.pairs[i].run, old.pairs[i].slot)] = old.pairs[i];
    kvr_mem_put(&ln->mem, old.pairs, old.pairs_cap * sizeof *old.pairs);
    return 0;
}

int kvr__predict_reserve(struct lane *ln, size_t runs)
{
    struct predict *p = &ln->predict;
    if ((p->pairs_n + runs) * 3 > p->pairs_cap * 2 && pairs_grow(ln)) return -KVR_ENOMEM;
    if (p->steps_free) return 0;
    return kvr_mem_grow(&ln->mem, (void **)&p->steps, &p->steps_cap, (size_t)p->steps_top + runs + 1, sizeof *p->steps);
}

void kvr__predict_destroy(struct lane *ln)
{
    struct predict *p = &ln->predict;
    kvr_mem_put(&ln->mem, p->steps, p->steps_cap * sizeof *p->steps);
    kvr_mem_put(&ln->mem, p->pairs, p->pairs_cap * sizeof *p->pairs);
    *p = (struct predict){0};
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static uint32_t step_new(struct predict *p)
{
    uint32_t s = p->steps_free;
    if (s) p->steps_free = p->steps[s].next;
    else s = ++p->steps_top;
    return s;
}

static void step_free(struct predict *p, uint32_t s)
{
    struct step *x = &p->steps[s];
    if (x->prev) p->steps[x->prev].next = x->next;
    else p->head = x->next;
    if (x->next) p->steps[x->next].prev = x->prev;
    else p->tail = x->prev;
    if (p->mark == s) p->mark = x->prev;
    x->next = p->steps_free;
    p->steps_free = s;
}

/* Behind all steps of earlier decisions, in front of those of this one. */
static void list_add(struct predict *p, uint32_t s)
{
    struct step *x = &p->steps[s];
    x->prev = p->mark;
    x->next = p->mark ? p->steps[p->mark].next : p->head;
    if (x->next) p->steps[x->next].prev = s;
    else p->tail = s;
    if (x->prev) p->steps[x->prev].next = s;
    else p->head = s;
}

void kvr__predict_begin(struct lane *ln)
{
    ln->predict.mark = ln->predict.tail;
}

/* Blocks of the pair that only decisions speak of. */
static uint32_t predicted(const struct predict *p, const struct pair *x)
{
    uint32_t top = x->steps ? p->steps[x->steps].cut : 0;
    return top > x->perm ? top - x->perm : 0;
}

static void drop_steps_within(struct predict *p, struct pair *x, uint32_t cut)
{
    for (uint32_t *at = &x->steps; *at;) {
        uint32_t s = *at;
        if (p->steps[s].cut > cut) {
            at = &p->steps[s].down;
        } else {
            *at = p->steps[s].down;
            step_free(p, s);
        }
    }
}

void kvr__predict_add(struct lane *ln, struct rank *rk, uint32_t run, uint32_t held, uint32_t cut, uint64_t expiry)
{
    struct predict *p = &ln->predict;
    struct pair *x = find(p, run, rk->slot);
    if (!x && cut <= held) return;
    if (!x) {
        x = &p->pairs[place(p, run, rk->slot)];
        *x = (struct pair){.run = run, .slot = rk->slot, .perm = held};
        p->pairs_n++;
    }
    if (cut <= x->perm) return;
    p->blocks -= predicted(p, x);
    drop_steps_within(p, x, cut);
    uint32_t s = step_new(p);
    p->steps[s] =
        (struct step){.expiry = KVR_MAX(expiry, p->mark ? p->steps[p->mark].expiry : 0), .run = run, .slot = rk->slot, .cut = cut};
    uint32_t *at = &x->steps;
    while (*at) at = &p->steps[*at].down;
    *at = s;
    list_add(p, s);
    p->blocks += predicted(p, x);
}

/* Events hold [0, cut) of the run, and so everything above it. */
void kvr__predict_perm(struct lane *ln, struct rank *rk, uint32_t run, uint32_t cut)
{
    struct predict *p = &ln->predict;
    while (run >= IDS_RESERVED) {
        struct pair *x = find(p, run, rk->slot);
        if (x && x->perm < cut) {
            p->blocks -= predicted(p, x);
            x->perm = cut;
            drop_steps_within(p, x, cut);
            p->blocks += predicted(p, x);
            if (!x->steps) pair_del(p, x);
        }
        const struct run *r = kvr__run(ln, run);
        cut = r->poff;
        run = r->parent;
    }
}

/* The rank's share of the run shrank to `cut`: longer steps become one of that length, with the latest expiry. */
void kvr__predict_cut(struct lane *ln, uint32_t slot, uint32_t run, uint32_t cut)
{
    struct predict *p = &ln->predict;
    struct pair *x = find(p, run, slot);
    if (!x) return;
    p->blocks -= predicted(p, x);
    if (x->perm > cut) x->perm = cut;
    while (x->steps && p->steps[x->steps].cut > cut) {
        uint32_t s = x->steps, down = p->steps[s].down;
        if (cut > x->perm && !(down && p->steps[down].cut >= cut)) {
            p->steps[s].cut = cut;
            break;
        }
        x->steps = down;
        step_free(p, s);
    }
    p->blocks += predicted(p, x);
    if (!x->steps) pair_del(p, x);
}

/* ---- looking ------------------------------------------------------------------------------------------- */

uint32_t kvr__predict_first(const struct lane *ln, size_t most, uint32_t *slot, uint32_t *run)
{
    const struct predict *p = &ln->predict;
    struct step s = p->steps[p->head];
    const struct pair *x = find(p, s.run, s.slot);
    uint32_t below = s.down ? p->steps[s.down].cut : 0, to = KVR_MAX(below, x->perm);
    *slot = s.slot;
    *run = s.run;
    return s.cut - to > most ? s.cut - (uint32_t)most : to;
}

bool kvr__predict_is_permanent(const struct lane *ln, uint32_t slot, uint32_t run, uint32_t off)
{
    const struct pair *x = find(&ln->predict, run, slot);
    return !x || off < x->perm;
}

bool kvr__predict_is_due(const struct lane *ln, uint64_t now)
{
    const struct predict *p = &ln->predict;
    return p->head && p->steps[p->head].expiry <= now;
}

bool kvr__predict_check(const struct lane *ln, const char **why)
{
    const struct predict *p = &ln->predict;
    size_t blocks = 0, steps = 0, listed = 0;
    for (size_t i = 0; i < p->pairs_cap; i++) {
        const struct pair *x = &p->pairs[i];
        if (!x->run) continue;
        blocks += predicted(p, x);
        uint32_t cut = UINT32_MAX;
        uint64_t expiry = 0;
        for (uint32_t s = x->steps; s; s = p->steps[s].down) {
            *why = "steps of a pair are out of order";
            if (p->steps[s].cut >= cut || p->steps[s].expiry < expiry || p->steps[s].cut <= x->perm) return false;
            cut = p->steps[s].cut;
            expiry = p->steps[s].expiry;
            steps++;
        }
        const struct run *r = kvr__run(ln, x->run);
        *why = "a prediction exceeds what the rank holds";
        if (!r || !x->steps || p->steps[x->steps].cut > kvr__grip(r, x->slot).cut) return false;
    }
    uint64_t last = 0;
    for (uint32_t s = p->head; s; s = p->steps[s].next) {
        *why = "the list of steps is out of order";
        if (p->steps[s].expiry < last) return false;
        last = p->steps[s].expiry;
        listed++;
    }
    *why = "predicted blocks are miscounted";
    return blocks == p->blocks && steps == listed;
}
