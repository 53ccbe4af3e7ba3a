/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshot files: whatever is in one, it is used whole or not at all, and what it brings is a valid index. To get past the
 * checksums, they are made right first when the first byte says so. */
#include <string.h>
#include <unistd.h>

#include "app/indexer/snapshot.h"

static void mend(unsigned char *p, size_t n)
{
    uint64_t records = 0;
    for (size_t at = 16; at + 24 <= n;) {
        uint64_t len;
        memcpy(&len, p + at + 8, 8);
        if (len > n - at - 24) return;
        uint64_t sum = kvr_hash_bytes(p + at + 16, len, records++);
        memcpy(p + at + 16 + len, &sum, 8);
        at += len + 24;
    }
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
        pthread_mutex_init(&x.lock, NULL);
        pthread_mutex_init(&x.change_lock, NULL);
    }
    if (size < 17) return 0;
    unsigned char *copy = malloc(size - 1);
    memcpy(copy, data + 1, size - 1);
    memcpy(copy, "KVRSNAP\0\1\0\0\0\0\0\0\0", 16);
    if (data[0] & 1) mend(copy, size - 1);
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
