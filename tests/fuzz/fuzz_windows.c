/* SPDX-License-Identifier: Apache-2.0 */
/* Cache groups with windows. First byte even: batches of an engine, decoded and converted with everything an ingest gives them; the index
 * stays sound and both ways of matching agree. Odd: a list of operations on the groups of one chain, where each match is compared with a
 * model that keeps nothing but counts. */
#include <string.h>
#include <kvroute/index.h>

#include "wire/engine_events.h"

enum { N = 10, GROUPS = 3 };
static const struct kvr_worker W = {1, 0};

static uint32_t depth_of(struct kvr_index *ix, struct kvr_index_reader *reader, const uint64_t *locals, size_t n)
{
    struct kvr_overlap o[4], o2[4];
    struct kvr_query q = {.locals = locals, .n = n, .out = o2, .cap = 4};
    const char *why;
    KVR_ASSERT(kvr_index_validate(ix, &why));
    long found = kvr_index_match(reader, locals, n, o, 4);
    kvr_index_match_batch(reader, &q, 1);
    KVR_ASSERT(q.found == found && found <= 1);
    if (found == 1) KVR_ASSERT(o[0].depth == o2[0].depth && o[0].depth <= n);
    return found == 1 ? o[0].depth : 0;
}

/* ---- batches --------------------------------------------------------------------------------------------------------- */

static void on_event(void *ctx, const struct kvr_event *ev)
{
    (void)kvr_index_apply(ctx, ev);
}

static void on_window(void *ctx, const struct kvr_window_event *ev)
{
    KVR_ASSERT(ev->take_back || ev->kind == KVR_EVENT_STORED || ev->kind == KVR_EVENT_REMOVED);
    (void)kvr_index_window(ctx, ev);
}

static bool holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    return kvr_index_holds(ctx, W, tier, name);
}

/* Each with its length before it. */
static void run_batches(struct kvr_index *ix, struct kvr_index_reader *reader, const uint8_t *data, size_t size)
{
    struct kvr_engine_batch b;
    struct kvr_engine_stream s;
    static const uint64_t locals[] = {1, 2, 3};
    kvr_engine_batch_init(&b);
    kvr_engine_stream_init(&s, W, 2);
    s.window = on_window;
    s.holds = holds;
    s.window_ctx = s.holds_ctx = ix;
    for (uint64_t seq = 1; size > 1; seq++) {
        size_t len = data[0] < size ? data[0] : size - 1;
        if (kvr_engine_decode(&b, (const char *)data + 1, len) == 0) KVR_ASSERT(kvr_engine_convert(&s, &b, seq, on_event, ix) >= 0);
        data += len + 1;
        size -= len + 1;
        (void)depth_of(ix, reader, locals, 3);
    }
    kvr_engine_batch_free(&b);
    kvr_engine_stream_free(&s);
}

/* ---- against a model --------------------------------------------------------------------------------------------------- */

struct model {
    bool held[N], known[GROUPS];
    uint32_t need[GROUPS];
    unsigned copies[GROUPS][N];
};

/* A group of which only removals are known needs one block. */
static bool serves(const struct model *m, int group, uint32_t d)
{
    uint32_t need = m->need[group] ? m->need[group] : 1;
    if (!m->known[group]) return true;
    for (uint32_t i = 1; i <= d && i <= need; i++)
        if (!m->copies[group][d - i]) return false;
    return true;
}

static uint32_t expected(const struct model *m)
{
    uint32_t d = 0;
    while (d < N && m->held[d]) d++;
    for (; d; d--) {
        bool all = true;
        for (int g = 0; g < GROUPS; g++) all &= serves(m, g, d);
        if (all) break;
    }
    return d;
}

static uint64_t name_of(int i)
{
    return 100 + (uint64_t)i;
}

/* Stores go on from the first block: one that is there already is nothing new. */
static void store_main(struct kvr_index *ix, struct model *m, int to)
{
    struct kvr_block b[N];
    for (int i = 0; i < to; i++) {
        b[i] = (struct kvr_block){name_of(i), 1 + (uint64_t)i};
        m->held[i] = true;
    }
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = (size_t)to};
    (void)kvr_index_apply(ix, &ev);
}

static void remove_main(struct kvr_index *ix, struct model *m, int i)
{
    uint64_t name = name_of(i);
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_REMOVED, .removed = &name, .removed_n = 1};
    (void)kvr_index_apply(ix, &ev);
    for (int k = i; k < N; k++) m->held[k] = false; /* and all behind it */
}

static void clear(struct kvr_index *ix, struct model *m)
{
    struct kvr_event ev = {.worker = W, .kind = KVR_EVENT_CLEARED};
    (void)kvr_index_apply(ix, &ev);
    memset(m->held, 0, sizeof m->held);
    memset(m->copies, 0, sizeof m->copies);
}

static void window(struct kvr_index *ix, struct model *m, int group, bool stored, bool counts, uint32_t need, int from, int to)
{
    uint64_t names[N];
    for (int i = from; i < to; i++) {
        unsigned *c = &m->copies[group][i];
        names[i - from] = name_of(i);
        if (stored && (counts || !*c)) ++*c;
        if (!stored && *c) --*c;
    }
    if (stored) m->need[group] = need;
    m->known[group] = true;
    struct kvr_window_event ev = {.worker = W,
                                  .kind = stored ? KVR_EVENT_STORED : KVR_EVENT_REMOVED,
                                  .group = (uint32_t)group,
                                  .need = need,
                                  .counts = counts,
                                  .names = names,
                                  .n = (size_t)(to - from)};
    KVR_ASSERT(kvr_index_window(ix, &ev) == 0);
}

static void run_model(struct kvr_index *ix, struct kvr_index_reader *reader, const uint8_t *data, size_t size)
{
    struct model m = {0};
    uint64_t locals[N];
    for (int i = 0; i < N; i++) locals[i] = 1 + (uint64_t)i;
    for (; size >= 3; data += 3, size -= 3) {
        int from = data[1] % N, to = from + 1 + data[2] % (N - from);
        uint32_t need = data[2] >> 4 == 15 ? UINT32_MAX : data[2] >> 4;
        switch (data[0] % 8) {
        case 0: store_main(ix, &m, to); break;
        case 1: remove_main(ix, &m, from); break;
        case 2: window(ix, &m, data[0] / 8 % GROUPS, false, false, 0, from, to); break;
        case 3: clear(ix, &m); break;
        default: window(ix, &m, data[0] / 8 % GROUPS, true, data[0] & 1, need, from, to); break;
        }
        KVR_ASSERT(depth_of(ix, reader, locals, N) == expected(&m));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_index *ix;
    struct kvr_index_reader *reader;
    if (size < 1 || kvr_index_create(NULL, &ix)) return 0;
    KVR_ASSERT(kvr_index_reader_create(ix, &reader) == 0);
    if (data[0] % 2) run_model(ix, reader, data + 1, size - 1);
    else run_batches(ix, reader, data + 1, size - 1);
    kvr_index_reader_destroy(reader);
    kvr_index_destroy(ix);
    return 0;
}
