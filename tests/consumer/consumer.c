/* SPDX-License-Identifier: Apache-2.0 */
/* A stranger's program: two workers, one of which holds the prompt. Also the example of the README. */
#include <kvroute/kvroute.h>
#include <stdio.h>

int main(void)
{
    struct kvr_index *index;
    struct kvr_router *router;
    struct kvr_router_ctx *ctx;
    struct kvr_router_config config;
    if (kvr_index_create(NULL, &index)) return 1;
    kvr_router_config_init(&config);
    config.index = index;
    config.block_size = 4;
    if (kvr_router_create(&config, &router, NULL) || kvr_router_ctx_create(router, &ctx)) return 1;
    kvr_router_set_worker(router, 1, 0, 1);
    kvr_router_set_worker(router, 2, 0, 1);

    /* Worker 2 says that it stored the two blocks of this prompt. */
    uint32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint64_t locals[2];
    kvr_hash_locals(prompt, 8, 4, false, KVR_HASH_SEED, NULL, 0, locals);
    struct kvr_block blocks[2] = {{1001, locals[0]}, {1002, locals[1]}};
    struct kvr_event stored = {.worker = {2, 0}, .kind = KVR_EVENT_STORED, .blocks = blocks, .blocks_n = 2};
    if (kvr_index_apply(index, &stored)) return 1;

    struct kvr_router_request request = {.id = "r1", .id_len = 2, .book = true, .tokens = prompt, .tokens_n = 8};
    struct kvr_router_result result;
    int rc = kvr_router_find_best_match(router, ctx, &request, &result);
    printf("%s: worker %llu, %u blocks cached\n", kvr_strerror(rc), (unsigned long long)result.worker.worker_id, result.overlap_blocks);
    kvr_router_mark_prefill_completed(router, "r1", 2);
    kvr_router_free(router, "r1", 2);

    kvr_router_ctx_destroy(ctx);
    kvr_router_destroy(router);
    kvr_index_destroy(index);
    return rc || result.worker.worker_id != 2;
}
