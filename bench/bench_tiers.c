/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lower tiers cost the index: memory of a block that is in the host too, a placeholder (a store by name), a removal, and a look-up
 * that goes on through the host, beside the same look-up without. WORKERS workers hold PROMPTS prompts of BLOCKS blocks each, of which the
 * first quarter is common; of some the second half has left the device.
 */
#include <stdio.h>
#include <kvroute/kvroute.h>

#include "base/base.h"

enum { WORKERS = 32, PROMPTS = 128, BLOCKS = 128, LOOKS = 20000 };

static uint64_t now(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static size_t bytes(struct kvr_index *ix)
{
    struct kvr_index_stats st;
    kvr_index_stats(ix, &st);
    return st.bytes;
}

static void prompt(uint64_t id, uint64_t locals[BLOCKS], uint64_t names[BLOCKS])
{
    for (uint64_t i = 0; i < BLOCKS; i++) locals[i] = kvr_mix64(i < BLOCKS / 4 ? i : id * 1000003 + i);
    kvr_hash_sequence(locals, BLOCKS, names);
}

typedef void step(struct kvr_index *ix, struct kvr_worker w, const uint64_t *locals, const uint64_t *names);

static void store_device(struct kvr_index *ix, struct kvr_worker w, const uint64_t *locals, const uint64_t *names)
{
    struct kvr_block b[BLOCKS];
    for (size_t i = 0; i < BLOCKS; i++) b[i] = (struct kvr_block){names[i], locals[i]};
    struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_STORED, .blocks = b, .blocks_n = BLOCKS};
    KVR_ASSERT(kvr_index_apply(ix, &ev) == 0);
}

/* One event a block, as vLLM tells them. */
static void store_host(struct kvr_index *ix, struct kvr_worker w, const uint64_t *, const uint64_t *names)
{
    for (size_t i = 0; i < BLOCKS; i++) {
        struct kvr_block b = {names[i], 0};
        struct kvr_event ev = {.worker = w,
                               .kind = KVR_EVENT_STORED,
                               .tier = KVR_TIER_HOST_PINNED,
                               .lower = {.names_only = true, .apart = true, .copies = true, .chunk = 1},
                               .blocks = &b,
                               .blocks_n = 1};
        (void)kvr_index_apply(ix, &ev);
    }
}

static void remove_half(struct kvr_index *ix, struct kvr_worker w, const uint64_t *, const uint64_t *names)
{
    for (size_t i = BLOCKS; i-- > BLOCKS / 2;) {
        struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_REMOVED, .removed = names + i, .removed_n = 1};
        (void)kvr_index_apply(ix, &ev);
    }
}

static void remove_host(struct kvr_index *ix, struct kvr_worker w, const uint64_t *, const uint64_t *names)
{
    for (size_t i = BLOCKS; i-- > 0;) {
        struct kvr_event ev = {.worker = w, .kind = KVR_EVENT_REMOVED, .tier = KVR_TIER_HOST_PINNED, .removed = names + i, .removed_n = 1};
        (void)kvr_index_apply(ix, &ev);
    }
}

/* ns in all; each worker has an eighth of the prompts. */
static double all(struct kvr_index *ix, step *s)
{
    uint64_t locals[BLOCKS], names[BLOCKS], took = 0;
    for (uint64_t w = 0; w < WORKERS; w++)
        for (uint64_t p = w % 8; p < PROMPTS; p += 8) {
            prompt(p, locals, names);
            uint64_t t = now();
            s(ix, (struct kvr_worker){w, 0}, locals, names);
            took += now() - t;
        }
    return (double)took;
}

static double look(struct kvr_index_reader *rd, bool tiers, double *depth)
{
    uint64_t locals[BLOCKS], names[BLOCKS], took = 0, sum = 0, found = 0;
    static struct kvr_overlap o[WORKERS + 1];
    static struct kvr_reach reach[WORKERS + 1];
    for (uint64_t i = 0; i < LOOKS; i++) {
        prompt(i % PROMPTS, locals, names);
        uint64_t t = now();
        long n = kvr_index_match(rd, locals, BLOCKS, o, WORKERS);
        if (tiers) n = kvr_index_match_tiers(rd, o, (size_t)n, names, BLOCKS, reach, WORKERS);
        took += now() - t;
        for (long k = 0; k < n; k++, found++) sum += tiers ? reach[k].depth[KVR_TIER_COUNT - 1] : o[k].depth;
    }
    *depth = (double)sum / (double)found;
    return (double)took / LOOKS;
}

int main(void)
{
    const double n = WORKERS * (PROMPTS / 8.0) * BLOCKS;
    struct kvr_index *ix;
    struct kvr_index_reader *rd;
    double depth[5];
    KVR_ASSERT(kvr_index_create(NULL, &ix) == 0 && kvr_index_reader_create(ix, &rd) == 0);
    size_t empty = bytes(ix);
    double device = all(ix, store_device) / n;
    size_t without = bytes(ix);
    double bare = look(rd, false, &depth[0]), idle = look(rd, true, &depth[1]);
    double place = all(ix, store_host) / n;
    size_t with = bytes(ix);
    double whole = look(rd, true, &depth[2]);
    double gone = all(ix, remove_half) / (n / 2);
    double short_of = look(rd, false, &depth[3]), through = look(rd, true, &depth[4]);
    printf("lower tiers, %d workers, %.0f blocks: device store %.1f ns a block (chains of %d), placeholder %.1f ns, removal from the "
           "device %.1f ns",
           WORKERS, n, device, BLOCKS, place, gone);
    double removal = all(ix, remove_host) / n;
    printf(", from the host %.1f ns; memory a block: device %.1f, in the host too %.1f bytes\n", removal, (double)(without - empty) / n,
           (double)(with - without) / n);
    printf("look-up of %d blocks, ns (mean depth): device only %.0f (%.1f); asked for tiers: none there %.0f (%.1f), all on the device too "
           "%.0f "
           "(%.1f); half only in the host: device %.0f (%.1f), with the host %.0f (%.1f)\n",
           BLOCKS, bare, depth[0], idle, depth[1], whole, depth[2], short_of, depth[3], through, depth[4]);
    kvr_index_reader_destroy(rd);
    kvr_index_destroy(ix);
    return 0;
}
