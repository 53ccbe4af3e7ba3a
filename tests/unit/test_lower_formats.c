/* SPDX-License-Identifier: Apache-2.0 */
/* How a block of a lower tier was told - by name, in chunks, twice, where it is - is the same behind every format that carries events:
 * JSON, the event plane, its snapshots, files of views. */
#include "test.h"

#include "recover/event_json.h"
#include "wire/json.h"
#include "wire/plane_event.h"
#include "wire/plane_snapshot.h"
#include "wire/router_event.h"
#include "wire/view_file.h"

static bool same(const struct kvr_event *a, const struct kvr_event *b)
{
    const struct kvr_lower *x = &a->lower, *y = &b->lower;
    return kvr_worker_cmp(a->worker, b->worker) == 0 && a->kind == b->kind && a->tier == b->tier && a->has_parent == b->has_parent &&
           a->parent_hash == b->parent_hash && a->blocks_n == b->blocks_n &&
           !memcmp(a->blocks, b->blocks, b->blocks_n * sizeof *a->blocks) && x->names_only == y->names_only &&
           x->names_first == y->names_first && x->learns == y->learns && x->placed == y->placed && x->apart == y->apart &&
           x->span == y->span && x->copies == y->copies && x->chunk == y->chunk && x->position == y->position &&
           x->prefix_hash == y->prefix_hash;
}

static bool by_json(const struct kvr_event *ev)
{
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_buf b = {0};
    struct kvr_json root;
    struct kvr_block *blocks = NULL;
    struct kvr_event out;
    size_t cap = 0;
    kvr__event_json(&b, ev, 7);
    bool ok = kvr_json_parse(p, b.data, b.len, &root, NULL) == 0 && kvr_router_event_read(root, &out, &blocks, &cap) == 0 && same(&out, ev);
    free(blocks);
    kvr_buf_free(&b);
    kvr_json_parser_free(p);
    return ok;
}

static bool by_plane(const struct kvr_event *ev)
{
    struct kvr_buf b = {0};
    struct kvr_block *blocks = NULL;
    struct kvr_event out;
    size_t cap = 0;
    kvr_plane_event_write(&b, ev);
    bool ok = kvr_plane_event_read(b.data, b.len, &out, &blocks, &cap) == 0 && same(&out, ev);
    free(blocks);
    kvr_buf_free(&b);
    return ok;
}

static int compare(void *ctx, const struct kvr_event *ev)
{
    return same(ev, ctx) ? 0 : -1;
}

static bool by_snapshot(const struct kvr_event *ev)
{
    struct kvr_event want = *ev;
    struct kvr_snapshot_reader r = {.on_event = compare, .ctx = &want};
    struct kvr_buf b = {0};
    kvr_snapshot_event_write(&b, ev);
    bool ok = kvr_snapshot_record_len(b.data, b.len) == b.len && kvr_snapshot_read(&r, b.data, b.len) == 0 && r.cap > 0;
    free(r.blocks);
    kvr_buf_free(&b);
    return ok;
}

static bool put(void *ctx, const void *data, size_t len)
{
    kvr_buf_add(ctx, data, len);
    return true;
}

static bool compare_saved(void *ctx, const struct kvr_event *ev, size_t n)
{
    return n == 1 && same(ev, ctx);
}

static bool by_file(const struct kvr_event *ev)
{
    struct kvr_event want = *ev;
    struct kvr_buf b = {0};
    struct kvr_saved_writer w = {.put = put, .ctx = &b};
    struct kvr_saved_reader r = {.events = compare_saved, .ctx = &want};
    struct kvr_saved_file f;
    uint64_t n;
    kvr_saved_begin(&w, KVR_SAVED_SNAPSHOT);
    kvr_saved_put_partition(&w, &(struct kvr_saved_partition){.block_size = 16, .model = "m", .group = "g"});
    kvr_saved_put_source(&w, &(struct kvr_saved_source){.worker = ev->worker, .known = true, .endpoint = "tcp://h:1"});
    assert_int_equal(kvr_saved_keep_event(&w, ev), 0);
    kvr_saved_flush(&w);
    kvr_saved_end(&w);
    bool ok = kvr_saved_check(b.data, b.len, &f, &n) == NULL && n == ev->blocks_n && kvr_saved_read(&f, &r);
    kvr_saved_writer_free(&w);
    kvr_buf_free(&b);
    return ok;
}

static void every_format_carries_how_a_block_was_told(void **)
{
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    for (int i = 0; i < 2000; i++) {
        uint64_t bits = kvr_rng_next(&rng), large = i % 3 ? 1 : UINT32_MAX - 1;
        struct kvr_block blocks[4];
        for (size_t k = 0; k < KVR_ARRAY_LEN(blocks); k++) blocks[k] = (struct kvr_block){kvr_rng_next(&rng), kvr_rng_next(&rng)};
        struct kvr_event ev = {.worker = {7, 2},
                               .kind = KVR_EVENT_STORED,
                               .tier = (enum kvr_tier)(1 + i % 3),
                               .has_parent = bits & 1,
                               .parent_hash = bits & 1 ? kvr_rng_next(&rng) : 0,
                               .blocks = blocks,
                               .blocks_n = 1 + bits % KVR_ARRAY_LEN(blocks),
                               .lower = {.names_only = bits & 2,
                                         .names_first = bits & 4,
                                         .learns = bits & 8,
                                         .placed = bits & 16,
                                         .apart = bits & 32,
                                         .span = i % 2 ? UINT16_MAX : (uint32_t)(bits >> 8 & 15),
                                         .copies = (uint32_t)((bits >> 16 & 255) * large),
                                         .chunk = (uint32_t)((bits >> 24 & 255) * large),
                                         .position = (uint32_t)((bits >> 32 & 1) * large),
                                         .prefix_hash = bits & 64 ? kvr_rng_next(&rng) : 0}};
        assert_true(by_json(&ev));
        assert_true(by_plane(&ev));
        assert_true(by_snapshot(&ev));
        assert_true(by_file(&ev));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_format_carries_how_a_block_was_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
