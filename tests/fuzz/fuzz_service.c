/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of a served index: what is taken of them never exceeds the prompt, grows from tier to tier, and survives being written
 * and read again. Questions, as JSON and packed: what was read of one, and written either way, is read again. */
#include <stdlib.h>
#include <string.h>

#include "wire/index_question.h"
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

static void read_either(struct kvr_json_parser *p, struct kvr_service_question *q, const struct kvr_buf *b)
{
    struct kvr_json o;
    KVR_ASSERT(!b->failed);
    if (kvr_service_is_packed(b->data, b->len)) {
        KVR_ASSERT(kvr_service_question_packed(q, b->data, b->len) == 0);
    } else {
        KVR_ASSERT(kvr_json_parse(p, b->data, b->len, &o, NULL) == 0 && kvr_service_question_json(q, o) == 0);
    }
}

static bool same(const struct kvr_service_hashes *a, const struct kvr_service_hashes *b, size_t n)
{
    return a->given && b->given && b->n == n && memcmp(a->h, b->h, n * 8) == 0;
}

static void ask_again(struct kvr_json_parser *p, const struct kvr_service_question *q)
{
    for (int packed = 0; packed < 2; packed++) {
        struct kvr_service_question got = {0};
        struct kvr_buf query = {0}, record = {0};
        size_t n = KVR_MIN(q->locals.n, q->seqs.n);
        if (q->blocks.given) {
            kvr_service_query_write(&query, packed, "m", q->blocks.h, q->blocks.n, q->isl, q->device_only);
            read_either(p, &got, &query);
            KVR_ASSERT(same(&q->blocks, &got.blocks, q->blocks.n) && got.device_only == q->device_only && got.isl == q->isl &&
                       !got.has_worker);
            KVR_ASSERT(got.model_len == 1 && got.model[0] == 'm' && !got.locals.given && !got.seqs.given);
        }
        if (q->has_worker && q->locals.given && q->seqs.given) {
            kvr_service_record_write(&record, packed, "", q->worker, q->locals.h, q->seqs.h, n);
            read_either(p, &got, &record);
            KVR_ASSERT(got.has_worker && kvr_worker_cmp(got.worker, q->worker) == 0 && got.model && got.model_len == 0);
            KVR_ASSERT(same(&q->locals, &got.locals, n) && same(&q->seqs, &got.seqs, n) && !got.blocks.given);
        }
        kvr_buf_free(&query);
        kvr_buf_free(&record);
        kvr_service_question_free(&got);
    }
}

static void questions(struct kvr_json_parser *p, const char *data, size_t size)
{
    struct kvr_service_question q = {0};
    struct kvr_json_parser *other = kvr_json_parser_new();
    struct kvr_json o;
    if (kvr_service_question_packed(&q, data, size) == 0) ask_again(other, &q);
    if (kvr_json_parse(p, data, size, &o, NULL) == 0 && kvr_service_question_json(&q, o) == 0) ask_again(other, &q);
    kvr_service_question_free(&q);
    kvr_json_parser_free(other);
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
    questions(p, (const char *)data, size);
    kvr_json_parser_free(p);
    return 0;
}
