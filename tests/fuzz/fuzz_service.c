/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a served index: what is taken of them never exceeds the prompt, grows from tier to tier, and survives being written
 * and read again. */
#include <string.h>

#include "wire/index_service.h"

enum { DEPTH = 1000 };

static void check(const struct kvr_reach *r, long n)
{
    for (long i = 0; i < n; i++)
        for (int t = 0; t < KVR_TIER_COUNT; t++) KVR_ASSERT(r[i].depth[t] <= DEPTH && (t == 0 || r[i].depth[t] >= r[i].depth[t - 1]));
}

static void again(struct kvr_json_parser *p, const struct kvr_reach *r, long n)
{
    struct kvr_buf b = {0};
    struct kvr_json o;
    struct kvr_reach *got = NULL;
    uint64_t instance;
    char why[64];
    kvr_service_scores_write(&b, r, (size_t)n, 7);
    KVR_ASSERT(!b.failed && kvr_json_parse(p, b.data, b.len, &o, NULL) == 0);
    long m = kvr_service_scores_read(o, DEPTH, &got, &instance, why, sizeof why);
    KVR_ASSERT(m >= 0 && m <= n && instance == 7);
    check(got, m);
    free(got);
    kvr_buf_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_json o;
    struct kvr_reach *r = NULL;
    struct kvr_service_info info;
    uint64_t instance;
    char why[64];
    if (kvr_json_parse(p, (const char *)data, size, &o, NULL) == 0) {
        (void)kvr_service_info_read(o, &info, why, sizeof why);
        (void)kvr_service_recorded_read(o, why, sizeof why);
        long n = kvr_service_scores_read(o, DEPTH, &r, &instance, why, sizeof why);
        if (n >= 0) {
            check(r, n);
            again(p, r, n);
            free(r);
        }
    }
    kvr_json_parser_free(p);
    return 0;
}
