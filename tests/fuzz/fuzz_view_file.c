/* SPDX-License-Identifier: Apache-2.0 */
/* Views as files: what was written is read back as it was. The first bytes say where the file is cut and which byte is flipped: a snapshot
 * is then refused whole, and of a journal the batches before that place are read and none that was not written. */
#include <string.h>

#include "wire/view_file.h"

enum { BATCHES_MAX = 64 };

struct written {
    struct kvr_buf file;
    uint64_t blocks, events, sum;
    struct {
        uint64_t seq;
        size_t end; /* of its record */
        const uint8_t *data;
        size_t len;
    } batches[BATCHES_MAX];
    size_t batches_n;
};

static bool put(void *ctx, const void *data, size_t len)
{
    kvr_buf_add(ctx, data, len);
    return true;
}

static uint64_t sum_of(const struct kvr_event *ev)
{
    uint64_t sum = ev->worker.worker_id + ev->worker.dp_rank * 7 + ev->tier * 31 + (ev->has_parent ? ev->parent_hash : 3);
    for (size_t i = 0; i < ev->blocks_n; i++) sum = kvr_mix64(sum + ev->blocks[i].block_hash) + ev->blocks[i].tokens_hash;
    return kvr_mix64(sum);
}

/* ---- snapshots --------------------------------------------------------------------------------------------------------- */

static void put_event(struct kvr_saved_writer *w, struct written *x, const struct kvr_saved_source *s, const uint8_t *op)
{
    struct kvr_block b[8];
    size_t n = 1 + op[0] % 8;
    for (size_t i = 0; i < n; i++) b[i] = (struct kvr_block){kvr_mix64(op[1] + i), kvr_mix64(op[2] ^ i)};
    struct kvr_event ev = {.worker = s->worker,
                           .kind = KVR_EVENT_STORED,
                           .tier = (enum kvr_tier)(op[0] / 8 % 4),
                           .has_parent = op[1] & 1,
                           .parent_hash = op[2],
                           .blocks = b,
                           .blocks_n = n};
    KVR_ASSERT(kvr_saved_keep_event(w, &ev) == 0);
    x->blocks += n;
    x->events++;
    x->sum += sum_of(&ev);
}

static bool on_events(void *ctx, const struct kvr_event *events, size_t n)
{
    struct written *x = ctx;
    for (size_t i = 0; i < n; i++) x->sum -= sum_of(&events[i]);
    x->events -= n;
    return true;
}

static void write_snapshot(struct written *x, const uint8_t *data, size_t size)
{
    struct kvr_saved_writer w = {.put = put, .ctx = &x->file};
    struct kvr_saved_partition p = {4, "m", "g"};
    struct kvr_saved_source s = {{1, 0}, true, true, 7, 8, 1.5, 2, "tcp://h:1"};
    kvr_saved_begin(&w, KVR_SAVED_SNAPSHOT);
    kvr_saved_put_partition(&w, &p);
    for (; size >= 4; data += 4, size -= 4) {
        if (data[0] % 4 == 0) {
            kvr_saved_flush(&w);
            s.worker = (struct kvr_worker){1 + data[1] % 3, data[2] % 2};
            kvr_saved_put_source(&w, &s);
        } else if (s.worker.worker_id && w.records > 1) {
            put_event(&w, x, &s, data + 1);
        }
    }
    kvr_saved_flush(&w);
    kvr_saved_end(&w);
    KVR_ASSERT(!w.failed && w.blocks == x->blocks);
    kvr_saved_writer_free(&w);
}

static void try_snapshot(struct written *x, size_t cut, size_t flip)
{
    struct kvr_saved_file f;
    struct kvr_saved_reader r = {.events = on_events, .ctx = x};
    uint64_t blocks;
    KVR_ASSERT(kvr_saved_check(x->file.data, x->file.len, &f, &blocks) == NULL && blocks == x->blocks);
    KVR_ASSERT(kvr_saved_read(&f, &r) && x->events == 0 && x->sum == 0);
    if (cut < x->file.len) KVR_ASSERT(kvr_saved_check(x->file.data, cut, &f, &blocks) != NULL);
    x->file.data[flip] ^= 1;
    bool reserved = (flip >= 12 && flip < 16); /* the u32 0 of the head */
    if (!reserved && kvr_saved_check(x->file.data, x->file.len, &f, &blocks) == NULL) {
        x->file.data[flip] ^= 1; /* a byte of no meaning: then everything is read all the same */
        KVR_ASSERT(blocks == x->blocks);
    }
}

/* ---- journals ---------------------------------------------------------------------------------------------------------- */

static bool on_batch(void *ctx, uint64_t seq, const char *data, size_t len)
{
    struct written *x = ctx;
    size_t i = (size_t)x->events++;
    KVR_ASSERT(i < x->batches_n && x->batches[i].seq == seq && x->batches[i].len == len);
    KVR_ASSERT(len == 0 || memcmp(x->batches[i].data, data, len) == 0);
    return true;
}

static void write_journal(struct written *x, const uint8_t *data, size_t size)
{
    struct kvr_saved_writer w = {.put = put, .ctx = &x->file};
    struct kvr_saved_source s = {{1, 0}, true, false, 7, 8, 1.5, 2, "tcp://h:1"};
    kvr_saved_begin(&w, KVR_SAVED_JOURNAL);
    kvr_saved_put_source(&w, &s);
    while (size >= 2 && x->batches_n < BATCHES_MAX) {
        size_t len = data[0] < size - 1 ? data[0] : size - 1;
        uint64_t seq = x->batches_n * 256u + data[1];
        kvr_saved_put_batch(&w, seq, (const char *)data + 1, len);
        x->batches[x->batches_n].seq = seq;
        x->batches[x->batches_n].data = data + 1;
        x->batches[x->batches_n].len = len;
        x->batches[x->batches_n++].end = x->file.len;
        data += len + 1;
        size -= len + 1;
    }
    KVR_ASSERT(!w.failed);
    kvr_saved_writer_free(&w);
}

static size_t whole_before(const struct written *x, size_t place)
{
    size_t n = 0;
    while (n < x->batches_n && x->batches[n].end <= place) n++;
    return n;
}

static void try_journal(struct written *x, size_t cut, size_t flip)
{
    struct kvr_saved_reader r = {.batch = on_batch, .ctx = x};
    KVR_ASSERT(kvr_saved_read_journal(x->file.data, x->file.len, &r) == NULL && x->events == x->batches_n);
    x->events = 0;
    if (kvr_saved_read_journal(x->file.data, cut, &r) == NULL) KVR_ASSERT(x->events == whole_before(x, cut));
    else KVR_ASSERT(x->events == 0 && cut < 16);
    x->events = 0;
    if (flip < 16) return;
    x->file.data[flip] ^= 0x40;
    KVR_ASSERT(kvr_saved_read_journal(x->file.data, x->file.len, &r) == NULL && x->events >= whole_before(x, flip));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct written x;
    uint16_t cut, flip;
    if (size < 6) return 0;
    x = (struct written){0};
    memcpy(&cut, data + 1, 2);
    memcpy(&flip, data + 3, 2);
    if (data[0] % 2) write_journal(&x, data + 5, size - 5);
    else write_snapshot(&x, data + 5, size - 5);
    if (data[0] % 2) try_journal(&x, cut % (x.file.len + 1), flip % x.file.len);
    else try_snapshot(&x, cut % x.file.len, flip % x.file.len);
    kvr_buf_free(&x.file);
    return 0;
}
