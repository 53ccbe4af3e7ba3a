/* SPDX-License-Identifier: Apache-2.0 */
/* Sections with a kind and a count, each length checked against the bytes that are there (wire/engine_memory.h has the layout). */
#include "wire/engine_memory.h"

#include <string.h>

enum { HEAD = 16 /* of a rank, of a section */ };
enum section {
    GROUPS = 1,
    SALTS,
    COPIES /* and further, by tier */,
    TALLIES = COPIES + KVR_TIER_COUNT,
    REPORTS = TALLIES + KVR_TIER_COUNT,
    COLOURED
};

static void put_head(struct kvr_buf *b, uint32_t what, uint64_t n)
{
    uint32_t head[2] = {what, 0};
    kvr_buf_add(b, head, sizeof head);
    kvr_buf_add(b, &n, sizeof n);
}

static void put_map(struct kvr_buf *b, uint32_t kind, const struct kvr_map64 *m)
{
    if (!m->n) return;
    put_head(b, kind, m->n);
    for (size_t i = 0; i < m->cap; i++)
        if (m->slots[i].used) kvr_buf_add(b, &m->slots[i].key, 16); /* and the value */
}

static void put_flag(struct kvr_buf *b, uint32_t kind, bool is)
{
    if (!is) return;
    put_head(b, kind, 1);
    kvr_buf_add(b, "\1", 1);
}

void kvr_engine_memory_write(const struct kvr_engine_stream *s, struct kvr_buf *b)
{
    size_t at = b->len + 8;
    uint64_t len = 0;
    put_head(b, s->worker.dp_rank, len); /* known below */
    put_head(b, GROUPS, KVR_ENGINE_GROUPS);
    kvr_buf_add(b, s->group_main, KVR_ENGINE_GROUPS);
    put_map(b, SALTS, &s->salts);
    for (uint32_t t = 0; t < KVR_TIER_COUNT; t++) put_map(b, (s->copies.unproven ? TALLIES : COPIES) + t, &s->copies.more[t]);
    put_flag(b, REPORTS, s->copies.reports);
    put_flag(b, COLOURED, s->coloured);
    if (b->failed) return;
    len = b->len - at - sizeof len;
    memcpy(b->data + at, &len, sizeof len);
}

enum kvr_memory_worth kvr_engine_memory_worth(const struct kvr_engine_stream *s)
{
    size_t n = s->salts.n;
    for (uint32_t t = 0; t < KVR_TIER_COUNT; t++) n += s->copies.more[t].n;
    if (memchr(s->group_main, 2, sizeof s->group_main)) return KVR_MEMORY_TRUTH;
    return n ? KVR_MEMORY_MORE : KVR_MEMORY_NOTHING;
}

static int read_map(struct kvr_map64 *m, const char *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint64_t pair[2];
        memcpy(pair, p + i * sizeof pair, sizeof pair);
        if (kvr_map64_put(m, pair[0], pair[1])) return -KVR_ENOMEM;
    }
    return 0;
}

static int read_groups(struct kvr_engine_stream *s, const char *p)
{
    for (size_t i = 0; i < KVR_ENGINE_GROUPS; i++)
        if ((unsigned char)p[i] > 2) return -KVR_EFORMAT;
    if (memchr(p, 2, KVR_ENGINE_GROUPS)) return -KVR_EUNSUPPORTED; /* what window groups have is not kept: it must be asked for */
    memcpy(s->group_main, p, KVR_ENGINE_GROUPS);
    return 0;
}

static int read_copies(struct kvr_copies *c, enum kvr_tier tier, const char *p, uint64_t n)
{
    struct kvr_map64 *m = &c->more[tier];
    int rc = read_map(m, p, n);
    for (size_t i = 0; i < m->cap; i++) c->unproven += m->slots[i].used ? kvr_tally_of(m->slots[i].value).unproven : 0;
    return rc;
}

static int read_sections(struct kvr_engine_stream *s, const char *p, size_t len)
{
    while (len) {
        uint32_t head[2];
        uint64_t n;
        if (len < HEAD) return -KVR_EFORMAT;
        memcpy(head, p, sizeof head);
        memcpy(&n, p + 8, 8);
        size_t each = head[0] == GROUPS || head[0] >= REPORTS ? 1 : 16;
        if (head[1] || n > (len - HEAD) / each) return -KVR_EFORMAT;
        int rc = -KVR_EFORMAT;
        if (head[0] == GROUPS && n == KVR_ENGINE_GROUPS) rc = read_groups(s, p + HEAD);
        if (head[0] == SALTS && n <= KVR_ENGINE_SALT_TAGS_MAX) rc = read_map(&s->salts, p + HEAD, n);
        if (head[0] >= COPIES && head[0] < REPORTS && n <= KVR_COPIES_MAX)
            rc = read_copies(&s->copies, (head[0] - COPIES) % KVR_TIER_COUNT, p + HEAD, n);
        if ((head[0] == REPORTS || head[0] == COLOURED) && n == 1) {
            *(head[0] == REPORTS ? &s->copies.reports : &s->coloured) = p[HEAD] != 0;
            rc = 0;
        }
        if (rc) return rc;
        p += HEAD + n * each;
        len -= HEAD + n * each;
    }
    return 0;
}

static int read_stream(struct kvr_engine_stream *s, const char *p, size_t len)
{
    kvr_engine_stream_reset(s);
    int rc = read_sections(s, p, len);
    if (rc) kvr_engine_stream_reset(s);
    s->copies.unsure = true; /* whether there were any that were not counted is not kept */
    return rc;
}

int kvr_engine_memory_read(const char *p, size_t len, struct kvr_engine_stream *(*find)(void *ctx, uint32_t rank), void *ctx)
{
    while (len) {
        uint32_t head[2];
        uint64_t n;
        if (len < HEAD) return -KVR_EFORMAT;
        memcpy(head, p, sizeof head);
        memcpy(&n, p + 8, 8);
        if (head[1] || n > len - HEAD) return -KVR_EFORMAT;
        struct kvr_engine_stream *s = find(ctx, head[0]);
        int rc = s ? read_stream(s, p + HEAD, n) : 0;
        if (rc) return rc;
        p += HEAD + n;
        len -= HEAD + n;
    }
    return 0;
}
