/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http.h"

#include <string.h>

static struct kvr_body *body_new(void)
{
    struct kvr_body *b = calloc(1, sizeof *b);
    if (b) atomic_init(&b->refs, 1);
    return b;
}

struct kvr_body *kvr_body_take(struct kvr_buf *bytes)
{
    struct kvr_body *b = bytes->failed ? NULL : body_new();
    if (!b) return NULL;
    b->data = bytes->data;
    b->len = bytes->len;
    *bytes = (struct kvr_buf){0};
    return b;
}

struct kvr_body *kvr_body_copy(const void *data, size_t len)
{
    struct kvr_buf bytes = {0};
    kvr_buf_add(&bytes, data, len);
    struct kvr_body *b = kvr_body_take(&bytes);
    kvr_buf_free(&bytes);
    return b;
}

struct kvr_body *kvr_body_ref(struct kvr_body *b)
{
    if (b) atomic_fetch_add_explicit(&b->refs, 1, memory_order_relaxed);
    return b;
}

void kvr_body_unref(struct kvr_body *b)
{
    if (!b || atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) != 1) return;
    free(b->data);
    free(b);
}
