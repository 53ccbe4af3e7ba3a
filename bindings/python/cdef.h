/* SPDX-License-Identifier: Apache-2.0 */
/* cffi reads it: one declaration after the other. */
/* clang-format off */
const char *kvr_strerror(int code);
const char *kvr_version(void);
void free(void *p);

uint64_t kvr_hash_seed(const char *lora, size_t lora_len, const char *salt, size_t salt_len);
size_t kvr_hash_block_count(size_t n_tokens, uint32_t block_size, bool eagle);
void kvr_hash_sequence(const uint64_t *locals, size_t n, uint64_t *seqs);
long py_hash_locals(const uint32_t *tokens, size_t n, uint32_t block_size, bool eagle, uint64_t seed, const uint64_t *mm, const size_t *mm_counts,
    size_t mm_n, uint64_t *out);

typedef struct kvr_index kvr_index;
typedef struct kvr_index_reader kvr_index_reader;
typedef struct { uint64_t worker_id; uint32_t dp_rank; uint32_t depth; } py_overlap;
kvr_index *py_index_new(double ttl_s, uint64_t predicted_max, double prune_ratio, double frequency_window_s, uint64_t bytes_max);
void kvr_index_destroy(kvr_index *index);
kvr_index_reader *py_reader_new(kvr_index *index);
void kvr_index_reader_destroy(kvr_index_reader *reader);
int py_store(kvr_index *index, uint64_t worker_id, uint32_t rank, int tier, int has_parent, uint64_t parent, int has_start, uint32_t start, const
    uint64_t *names, const uint64_t *locals, size_t n);
int py_remove(kvr_index *index, uint64_t worker_id, uint32_t rank, int tier, const uint64_t *names, size_t n);
int py_clear(kvr_index *index, uint64_t worker_id, uint32_t rank, int tier);
int kvr_index_record_py(kvr_index *index, uint64_t worker_id, uint32_t rank, const uint64_t *locals, size_t n);
size_t kvr_index_expire(kvr_index *index);
void kvr_index_remove_worker(kvr_index *index, uint64_t worker_id);
void py_remove_rank(kvr_index *index, uint64_t worker_id, uint32_t rank);
size_t kvr_index_ranks(const kvr_index *index);
long py_match(kvr_index_reader *reader, const uint64_t *locals, size_t n, py_overlap *out, size_t cap);
int kvr_index_use(kvr_index *index, const uint64_t *locals, size_t n, uint32_t *frequencies);
uint64_t py_index_blocks(kvr_index *index);
uint64_t py_rank_blocks(kvr_index *index, uint64_t worker_id, uint32_t rank);

typedef struct { uint64_t event_id, worker_id; uint32_t dp_rank; int tier, has_parent, has_start; uint64_t parent; uint32_t start; size_t blocks_n;
    const uint64_t *blocks; } py_stored;
extern "Python" int py_on_stored(void *ctx, const py_stored *event);
int py_dump(kvr_index *index, void *ctx);

typedef struct kvr_local_index kvr_local_index;
typedef struct { uint64_t epoch, newest_id, oldest_id, events, evicted, refused, dumps, dump_failures, ranges, too_new, ring_events, ring_bytes,
    index_bytes, blocks; int complete; } py_local_stats;
kvr_local_index *py_local_new(uint64_t worker_id, uint32_t rank, uint32_t block_size, uint64_t epoch, size_t events_max, size_t ring_bytes, size_t
    index_bytes);
void kvr_local_index_destroy(kvr_local_index *li);
void kvr_local_index_shutdown(kvr_local_index *li);
int py_local_store(kvr_local_index *li, uint64_t id, int tier, const uint32_t *tokens, size_t tokens_n, const uint64_t *names, size_t n, int
    has_parent, uint64_t parent, const char *lora, size_t lora_len, const char *salt, size_t salt_len, int eagle);
int py_local_remove(kvr_local_index *li, uint64_t id, int tier, const uint64_t *names, size_t n);
int kvr_local_index_clear(kvr_local_index *li, uint64_t event_id);
void kvr_local_index_hold(kvr_local_index *li);
void kvr_local_index_release(kvr_local_index *li);
void kvr_local_index_set_incomplete(kvr_local_index *li, const char *why);
int py_local_answer(kvr_local_index *li, int has_start, uint64_t start, int has_end, uint64_t end, int old_shape, int tree_dump_failed, char **out,
    size_t *len);
extern "Python" int py_on_piece(void *ctx, const char *data, size_t len);
int py_local_write(kvr_local_index *li, int has_start, uint64_t start, int has_end, uint64_t end, int old_shape, int tree_dump_failed, void *ctx);
void py_local_stats_get(kvr_local_index *li, py_local_stats *out);

typedef struct kvr_router kvr_router;
typedef struct kvr_router_ctx kvr_router_ctx;
typedef struct { double overlap_credit, credit_decay, prefill_load_scale, host_weight, disk_weight, shared_multiplier, temperature; int cost,
    track_active_blocks, assume_kv_reuse, track_prefill_tokens, record_decisions; uint64_t seed; } py_router_config;
typedef struct { const char *id; size_t id_len; const uint32_t *tokens; size_t tokens_n; const char *lora; size_t lora_len; const char *salt; size_t
    salt_len; int eagle, book; const uint64_t *allowed; size_t allowed_n; int pinned, pin_any_rank; uint64_t pin_worker; uint32_t pin_rank; unsigned
    set; double credit, scale, temperature, shared; } py_request;
typedef struct { uint64_t worker_id; uint32_t dp_rank, overlap_blocks; double effective_blocks, cost; uint64_t cached_tokens, prefill_tokens; }
    py_result;
typedef struct { uint64_t worker_id; uint32_t dp_rank; uint64_t potential_prefill_tokens, potential_decode_blocks; uint32_t active_requests; }
    py_potential;
typedef struct { uint64_t worker_id; uint32_t dp_rank; uint32_t device, host, disk; } py_reach;
kvr_router *py_router_new(kvr_index *index, uint32_t block_size, const py_router_config *config, const char **field, int *rc);
void kvr_router_destroy(kvr_router *router);
kvr_router_ctx *py_ctx_new(kvr_router *router);
void kvr_router_ctx_destroy(kvr_router_ctx *ctx);
int kvr_router_set_worker(kvr_router *router, uint64_t worker_id, uint32_t dp_start, uint32_t dp_size);
void kvr_router_remove_worker(kvr_router *router, uint64_t worker_id);
int py_best(kvr_router *router, kvr_router_ctx *ctx, const py_request *rq, py_result *out);
long py_potential_loads(kvr_router *router, kvr_router_ctx *ctx, const py_request *rq, py_potential *out, size_t cap);
long py_overlaps(kvr_router *router, kvr_router_ctx *ctx, const py_request *rq, py_reach *out, size_t cap, size_t *blocks);
int kvr_router_mark_prefill_completed(kvr_router *router, const char *id, size_t id_len);
int kvr_router_add_output_blocks(kvr_router *router, const char *id, size_t id_len, uint64_t n, double fraction);
int kvr_router_free(kvr_router *router, const char *id, size_t id_len);
