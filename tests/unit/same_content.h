/* SPDX-License-Identifier: Apache-2.0 */
/* Do two indexes say the same of a rank? Blocks with their parents and local hashes, in any order. */
#ifndef KVR_TESTS_SAME_CONTENT_H
#define KVR_TESTS_SAME_CONTENT_H

#include <stdlib.h>

#include "kvroute/index.h"
#include "test.h"

struct content {
    struct content_row {
        uint64_t name, parent, local;
    } * rows;
    size_t n, cap;
};

static inline int content_add(void *ctx, const struct kvr_event *ev)
{
    struct content *l = ctx;
    uint64_t parent = ev->has_parent ? ev->parent_hash : 0;
    if (l->n + ev->blocks_n > l->cap) {
        l->cap = (l->n + ev->blocks_n) * 2;
        l->rows = realloc(l->rows, l->cap * sizeof *l->rows);
        assert_non_null(l->rows);
    }
    for (size_t i = 0; i < ev->blocks_n; i++) {
        l->rows[l->n++] = (struct content_row){ev->blocks[i].block_hash, parent, ev->blocks[i].tokens_hash};
        parent = ev->blocks[i].block_hash;
    }
    return 0;
}

static inline int content_by_name(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static inline struct content content_of(struct kvr_index *x, const struct kvr_worker *w)
{
    struct content l = {0};
    assert_int_equal(kvr_index_dump(x, w, content_add, &l), 0);
    if (l.n) qsort(l.rows, l.n, sizeof *l.rows, content_by_name);
    return l;
}

static inline void assert_same_content(struct kvr_index *a, struct kvr_index *b, const struct kvr_worker *w)
{
    struct content x = content_of(a, w), y = content_of(b, w);
    assert_int_equal(x.n, y.n);
    if (x.n) assert_memory_equal(x.rows, y.rows, x.n * sizeof *x.rows);
    free(x.rows);
    free(y.rows);
}

#endif
