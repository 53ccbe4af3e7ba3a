/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of moments. */
#include "sim/state.h"

bool sim_grow(struct sim *s, void **ptr, size_t *cap, size_t need, size_t elem)
{
    if (need <= *cap) return true;
    size_t fresh = KVR_MAX(2 * *cap, (size_t)64);
    void *p = realloc(*ptr, fresh * elem);
    if (!p) {
        s->status = -KVR_ENOMEM;
        return false;
    }
    *ptr = p;
    *cap = fresh;
    return true;
}

static bool sooner(const struct moment *a, const struct moment *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

bool sim_push(struct sim *s, struct moment m)
{
    if (!sim_grow(s, (void **)&s->heap, &s->heap_cap, s->heap_n + 1, sizeof *s->heap)) return false;
    m.order = s->order++;
    size_t at = s->heap_n++;
    for (; at > 0 && sooner(&m, &s->heap[(at - 1) / 2]); at = (at - 1) / 2) s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = m;
    return true;
}

struct moment sim_pop(struct sim *s)
{
    struct moment top = s->heap[0], last = s->heap[--s->heap_n];
    size_t at = 0;
    for (;;) {
        size_t kid = 2 * at + 1;
        if (kid >= s->heap_n) break;
        if (kid + 1 < s->heap_n && sooner(&s->heap[kid + 1], &s->heap[kid])) kid++;
        if (!sooner(&s->heap[kid], &last)) break;
        s->heap[at] = s->heap[kid];
        at = kid;
    }
    if (s->heap_n) s->heap[at] = last;
    return top;
}
