/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots: whatever is in one, it is used whole or not at all, and what it brings is a valid index. Journals: batches up to the first
 * record that is not good. What streams remember: all or nothing. To get past the checksums, they are made right first when the first byte
 * says so. */
#include <string.h>
#include <unistd.h>

#include "app/indexer/snapshot.h"
#include "wire/engine_memory.h"
#include "wire/view_file.h"

static void mend(unsigned char *p, size_t n)
{
    uint64_t records = 0;
    for (size_t at = 16; at + 24 <= n;) {
        uint64_t len, seq = 0;
        memcpy(&len, p + at + 8, 8);
        if (len > n - at - 24) return;
        bool batch = p[at] == 6 && len >= 8;
        if (batch) memcpy(&seq, p + at + 16, 8);
        uint64_t sum = batch ? kvr_hash_bytes(p + at + 24, len - 8, records ^ kvr_mix64(seq)) : kvr_hash_bytes(p + at + 16, len, records);
        records++;
        memcpy(p + at + 16 + len, &sum, 8);
        at += len + 24;
    }
}

static struct kvr_engine_stream *any_rank(void *ctx, uint32_t rank)
{
    return rank % 2 ? NULL : ctx;
}

static void read_memory(const char *data, size_t len)
{
    struct kvr_engine_stream s;
    kvr_engine_stream_init(&s, (struct kvr_worker){1, 0}, 4);
    int rc = kvr_engine_memory_read(data, len, any_rank, &s);
    KVR_ASSERT(rc == 0 || rc == -KVR_EFORMAT);
    for (size_t i = 0; i < KVR_ENGINE_GROUPS; i++) KVR_ASSERT(s.group_main[i] <= 2);
    kvr_engine_stream_free(&s);
}

static bool count_batch(void *ctx, uint64_t, const char *data, size_t len)
{
    read_memory(data, len);
    *(size_t *)ctx += 24 + 8 + len;
    return true;
}

static void read_journal(const unsigned char *data, size_t size)
{
    size_t batches = 0;
    struct kvr_saved_reader r = {.batch = count_batch, .ctx = &batches};
    unsigned char *copy = malloc(size);
    memcpy(copy, data, size);
    memcpy(copy, "KVRJRNL\0\2\0\0\0\0\0\0\0", 16);
    KVR_ASSERT(kvr_saved_read_journal(copy, size, &r) == NULL && batches + 16 <= size);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct indexer x;
    static struct indexer_options o = {.max_bytes = 4 << 20};
    static char path[64];
    char err[4400];
    uint64_t blocks;
    if (!path[0]) {
        snprintf(path, sizeof path, "/tmp/kvroute-fuzz-%d", (int)getpid());
        x.o = &o;
        kvr_lock_init(&x.lock, KVR_LOCK_INDEXER);
        kvr_lock_init(&x.change_lock, KVR_LOCK_INDEXER_CHANGES);
    }
    if (size < 17) return 0;
    unsigned char *copy = malloc(size - 1);
    memcpy(copy, data + 1, size - 1);
    memcpy(copy, "KVRSNAP\0\2\0\0\0\0\0\0\0", 16);
    if (data[0] & 1) mend(copy, size - 1);
    read_journal(copy, size - 1);
    FILE *f = fopen(path, "we");
    fwrite(copy, 1, size - 1, f);
    fclose(f);
    free(copy);
    int rc = snapshot_read(&x, path, &blocks, err, sizeof err);
    KVR_ASSERT(rc <= 0 && (rc == 0 || err[0]));
    for (struct partition *p = x.partitions; p; p = p->next) {
        const char *why;
        KVR_ASSERT(kvr_index_validate(p->index, &why));
    }
    catalogue_destroy(&x);
    unlink(path);
    return 0;
}
