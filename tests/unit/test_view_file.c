/* SPDX-License-Identifier: Apache-2.0 */
/* Views as files: what is written is read again, and of a file that is not as it was written nothing is believed: a snapshot as a whole, a
 * journal from the first record on that is not good. */
#include "test.h"

#include "wire/engine_memory.h"
#include "wire/view_file.h"

static bool put(void *ctx, const void *data, size_t len)
{
    kvr_buf_add(ctx, data, len);
    return true;
}

/* ---- snapshots ------------------------------------------------------------------------------------------------------ */

static const struct kvr_block blocks[] = {{11, 111}, {12, 112}, {13, 113}};
static const struct kvr_event stores[] = {
    {.worker = {7, 2}, .blocks = blocks, .blocks_n = 2},
    {.worker = {7, 3}, .has_parent = true, .parent_hash = 12, .blocks = blocks + 2, .blocks_n = 1, .tier = KVR_TIER_DISK},
    {.worker = {7, 3}, .has_start_position = true, .start_position = 9, .blocks = blocks, .blocks_n = 3},
};
static const struct kvr_saved_source source = {
    .worker = {7, 2}, .known = true, .next = 41, .last_hash = 99, .last_ts = 1.5, .generation = 6, .endpoint = "tcp://h:1"};

static void write_snapshot(struct kvr_buf *out)
{
    struct kvr_saved_writer w = {.put = put, .ctx = out};
    struct kvr_saved_partition p = {.block_size = 32, .model = "m", .group = "default"};
    kvr_saved_begin(&w, KVR_SAVED_SNAPSHOT);
    kvr_saved_put_partition(&w, &p);
    kvr_saved_put_source(&w, &source);
    char memory[] = "memory";
    kvr_saved_put_memory(&w, &(struct kvr_buf){.data = memory, .len = 6});
    for (size_t i = 0; i < KVR_ARRAY_LEN(stores); i++) assert_int_equal(kvr_saved_keep_event(&w, &stores[i]), 0);
    kvr_saved_flush(&w);
    kvr_saved_end(&w);
    assert_true(!w.failed && w.blocks == 6 && w.bytes == out->len);
    kvr_saved_writer_free(&w);
}

struct seen {
    size_t partitions, sources, memories, events, batches, breaks;
    uint64_t sum;
};

static bool see_partition(void *ctx, const struct kvr_saved_partition *p)
{
    ((struct seen *)ctx)->partitions++;
    return p->block_size == 32 && !strcmp(p->model, "m") && !strcmp(p->group, "default");
}

static bool see_source(void *ctx, const struct kvr_saved_source *s)
{
    ((struct seen *)ctx)->sources++;
    return kvr_worker_cmp(s->worker, source.worker) == 0 && s->known && !s->whole && s->next == 41 && s->last_hash == 99 &&
           s->last_ts == 1.5 && s->generation == 6 && !strcmp(s->endpoint, source.endpoint);
}

static bool see_memory(void *ctx, const char *data, size_t len)
{
    ((struct seen *)ctx)->memories++;
    return len == 6 && !memcmp(data, "memory", 6);
}

static bool see_events(void *ctx, const struct kvr_event *ev, size_t n)
{
    struct seen *seen = ctx;
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        const struct kvr_event *want = &stores[seen->events++];
        same &= kvr_worker_cmp(ev[i].worker, want->worker) == 0 && ev[i].tier == want->tier && ev[i].has_parent == want->has_parent &&
                ev[i].parent_hash == want->parent_hash && ev[i].has_start_position == want->has_start_position &&
                ev[i].start_position == want->start_position && ev[i].blocks_n == want->blocks_n &&
                !memcmp(ev[i].blocks, want->blocks, want->blocks_n * sizeof *blocks);
    }
    return same;
}

static bool see_batch(void *ctx, uint64_t seq, const char *data, size_t len)
{
    struct seen *seen = ctx;
    seen->batches++;
    return seq == 40 + seen->batches && len == 5 && data[0] == 'b';
}

static void see_break(void *ctx)
{
    ((struct seen *)ctx)->breaks++;
}

static struct kvr_saved_reader reader(struct seen *s)
{
    return (struct kvr_saved_reader){see_partition, see_source, see_memory, see_events, see_batch, see_break, s};
}

static void what_is_written_is_read(void **)
{
    struct kvr_buf b = {0};
    struct kvr_saved_file f;
    struct seen seen = {0};
    struct kvr_saved_reader r = reader(&seen);
    uint64_t n;
    write_snapshot(&b);
    assert_null(kvr_saved_check(b.data, b.len, &f, &n));
    assert_int_equal(n, 6);
    assert_true(kvr_saved_read(&f, &r));
    assert_true(seen.partitions == 1 && seen.sources == 1 && seen.memories == 1 && seen.events == 3);
    kvr_buf_free(&b);
}

/* Copied, so that the sanitizer sees a read behind the end. */
static const char *check_copy(const char *data, size_t len)
{
    struct kvr_saved_file f;
    uint64_t n;
    char *copy = malloc(len ? len : 1);
    memcpy(copy, data, len);
    const char *wrong = kvr_saved_check(copy, len, &f, &n);
    free(copy);
    return wrong;
}

static void every_cut_and_every_flipped_bit_is_noticed(void **)
{
    struct kvr_buf b = {0};
    write_snapshot(&b);
    for (size_t len = 0; len < b.len; len++) assert_non_null(check_copy(b.data, len));
    for (size_t bit = 0; bit < b.len * 8; bit++) {
        b.data[bit / 8] ^= (char)(1 << bit % 8);
        bool reserved = bit / 8 >= 12 && bit / 8 < 16;
        assert_true(reserved || check_copy(b.data, b.len));
        b.data[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_null(check_copy(b.data, b.len));
    kvr_buf_free(&b);
}

/* Records whose checksums are right, in an order that nobody writes. */
static void records_out_of_order_are_refused(void **)
{
    struct kvr_saved_partition p = {.block_size = 32};
    for (int shape = 0; shape < 5; shape++) {
        struct kvr_buf b = {0};
        struct kvr_saved_writer w = {.put = put, .ctx = &b};
        kvr_saved_begin(&w, KVR_SAVED_SNAPSHOT);
        if (shape == 1) p.block_size = 0;
        if (shape > 0) kvr_saved_put_partition(&w, &p);
        if (shape == 2) kvr_saved_put_memory(&w, &(struct kvr_buf){0});
        if (shape != 4) kvr_saved_put_source(&w, &source);
        if (shape == 3) kvr_saved_put_batch(&w, 1, "b", 1);
        if (shape == 4) kvr_saved_keep_event(&w, &stores[0]);
        kvr_saved_flush(&w);
        kvr_saved_end(&w);
        assert_string_equal(check_copy(b.data, b.len), "a record is not as it should be");
        p.block_size = 32;
        kvr_saved_writer_free(&w);
        kvr_buf_free(&b);
    }
}

/* ---- journals ------------------------------------------------------------------------------------------------------- */

static size_t write_journal(struct kvr_buf *out, size_t ends[3])
{
    struct kvr_saved_writer w = {.put = put, .ctx = out};
    kvr_saved_begin(&w, KVR_SAVED_JOURNAL);
    kvr_saved_put_source(&w, &source);
    for (size_t i = 0; i < 3; i++) {
        kvr_saved_put_batch(&w, 41 + i, "batch", 5);
        ends[i] = out->len;
    }
    kvr_saved_put_break(&w);
    return out->len;
}

static const char *read_copy(const char *data, size_t len, struct seen *seen)
{
    struct kvr_saved_reader r = reader(seen);
    char *copy = malloc(len ? len : 1);
    memcpy(copy, data, len);
    const char *wrong = kvr_saved_read_journal(copy, len, &r);
    free(copy);
    return wrong;
}

static void a_torn_journal_is_good_up_to_there(void **)
{
    struct kvr_buf b = {0};
    size_t ends[3], len = write_journal(&b, ends);
    for (size_t cut = 0; cut <= len; cut++) {
        struct seen seen = {0};
        const char *wrong = read_copy(b.data, cut, &seen);
        assert_true(cut < 16 ? wrong != NULL : wrong == NULL);
        assert_int_equal(seen.batches, (size_t)(cut >= ends[0]) + (cut >= ends[1]) + (cut >= ends[2]));
        assert_int_equal(seen.breaks, cut == len);
    }
    for (size_t at = 16; at < len; at++) { /* what is behind a flipped bit is not believed either */
        struct seen seen = {0};
        b.data[at] ^= 4;
        assert_null(read_copy(b.data, len, &seen));
        assert_true(seen.breaks == 0 && seen.batches == (size_t)(at >= ends[0]) + (at >= ends[1]) + (at >= ends[2]));
        b.data[at] ^= 4;
    }
    kvr_buf_free(&b);
}

/* ---- what a stream remembers ----------------------------------------------------------------------------------------- */

static struct kvr_engine_stream *only_rank_2(void *ctx, uint32_t rank)
{
    return rank == 2 ? ctx : NULL;
}

static void a_stream_remembers_what_it_did(void **)
{
    struct kvr_engine_stream a, other, b;
    struct kvr_buf out = {0};
    kvr_engine_stream_init(&a, (struct kvr_worker){7, 2}, 4);
    kvr_engine_stream_init(&other, (struct kvr_worker){7, 3}, 4);
    kvr_engine_stream_init(&b, (struct kvr_worker){7, 2}, 4);
    for (uint64_t i = 0; i < 100; i++) assert_int_equal(kvr_map64_put(&a.salts, i * 77, ~i), 0);
    a.group_main[1] = 1;
    kvr_engine_memory_write(&other, &out);
    kvr_engine_memory_write(&a, &out);
    assert_int_equal(kvr_engine_memory_read(out.data, out.len, only_rank_2, &b), 0);
    assert_true(b.salts.n == 100 && b.group_main[0] == 0 && b.group_main[1] == 1);
    for (uint64_t i = 0; i < 100; i++) assert_true(*kvr_map64_get(&b.salts, i * 77) == ~i);
    for (size_t len = 0; len < out.len; len++) { /* of a part nothing, or a whole rank's */
        char *copy = malloc(len ? len : 1);
        memcpy(copy, out.data, len);
        int rc = kvr_engine_memory_read(copy, len, only_rank_2, &b);
        assert_true(rc == 0 || rc == -KVR_EFORMAT);
        free(copy);
    }
    kvr_buf_free(&out);
    a.group_main[3] = 2; /* what a window group has is not kept, so there is no going on without asking */
    kvr_engine_memory_write(&a, &out);
    assert_int_equal(kvr_engine_memory_read(out.data, out.len, only_rank_2, &b), -KVR_EUNSUPPORTED);
    kvr_engine_stream_free(&a);
    kvr_engine_stream_free(&other);
    kvr_engine_stream_free(&b);
    kvr_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),          cmocka_unit_test(every_cut_and_every_flipped_bit_is_noticed),
        cmocka_unit_test(records_out_of_order_are_refused), cmocka_unit_test(a_torn_journal_is_good_up_to_there),
        cmocka_unit_test(a_stream_remembers_what_it_did),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
