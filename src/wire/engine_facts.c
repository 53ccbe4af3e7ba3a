/* SPDX-License-Identifier: Apache-2.0 */
/* Each source is read on its own and fills only what it says; wire/engine_facts.h lists the sources. */
#include "wire/engine_facts.h"

#include <stdio.h>
#include <string.h>

/* ---- ranks -------------------------------------------------------------------------------------------------------- */

const struct kvr_engine_rank *kvr_engine_facts_rank(const struct kvr_engine_facts *f, uint32_t rank)
{
    for (size_t i = 0; i < f->ranks_n; i++)
        if (f->ranks[i].rank == rank) return &f->ranks[i];
    return NULL;
}

bool kvr_engine_facts_contiguous(const struct kvr_engine_facts *f)
{
    return f->ranks_n == 0 || f->ranks[f->ranks_n - 1].rank - f->ranks[0].rank == f->ranks_n - 1;
}

bool kvr_engine_facts_takes_ranks(const struct kvr_engine_facts *f, uint32_t *base)
{
    uint32_t first = f->ranks[0].rank, n = (uint32_t)f->ranks_n;
    bool by_number = f->rank_range >= first + n;
    *base = by_number ? 0 : first; /* vLLM behind a balancer of its own (hybrid) counts its own ranks from 0 */
    return f->engine == KVR_FACT_SGLANG || by_number || f->rank_range == n;
}

void kvr_engine_facts_describe_ranks(const struct kvr_engine_facts *f, char *out, size_t cap)
{
    uint32_t first = f->ranks[0].rank, last = f->ranks[f->ranks_n - 1].rank;
    if (f->ranks_n == 1) snprintf(out, cap, "1 data-parallel rank, number %u", first);
    else snprintf(out, cap, "%zu data-parallel ranks, %u to %u", f->ranks_n, first, last);
}

bool kvr_engine_facts_other_size(const struct kvr_engine_facts *f, uint32_t given, char *out, size_t cap)
{
    if (!f->block_size || f->block_size == given) return false;
    snprintf(out, cap, "block-size %u was given, but the engine uses %u (%s): give block-size=%u, or leave it out", given, f->block_size,
             f->block_size_from, f->block_size);
    return true;
}

bool kvr_engine_facts_other_ranks(const struct kvr_engine_facts *f, uint32_t dp_start, uint32_t dp_size, char *out, size_t cap)
{
    char text[80];
    if (f->ranks_n == 0 || f->too_many || !kvr_engine_facts_contiguous(f)) return false;
    if (f->ranks_n == dp_size && f->ranks[0].rank == dp_start) return false;
    kvr_engine_facts_describe_ranks(f, text, sizeof text);
    snprintf(out, cap, "dp-start=%u,dp-size=%u was given, but the engine has %s (%s): leave them out, or give dp-start=%u,dp-size=%zu",
             dp_start, dp_size, text, f->ranks_from, f->ranks[0].rank, f->ranks_n);
    return true;
}

const char *kvr_engine_facts_no_cache(const struct kvr_engine_facts *f)
{
    if (f->prefix_caching != KVR_TOLD_NO) return NULL;
    return f->engine == KVR_FACT_SGLANG
               ? "prefix caching is off in the engine, so no cached block can be reused: start the engine without --disable-radix-cache"
               : "prefix caching is off in the engine, so no cached block can be reused: start the engine without "
                 "--no-enable-prefix-caching";
}

/* Its entry, made in order; NULL: there is no room. */
static struct kvr_engine_rank *rank_entry(struct kvr_engine_facts *f, uint64_t rank, kvr_fact_source from)
{
    size_t at = 0;
    while (at < f->ranks_n && f->ranks[at].rank < rank) at++;
    if (at < f->ranks_n && f->ranks[at].rank == rank) return &f->ranks[at];
    if (f->ranks_n == KVR_FACT_RANKS_MAX || rank > 1u << 20) {
        f->too_many = true;
        return NULL;
    }
    memmove(&f->ranks[at + 1], &f->ranks[at], (f->ranks_n++ - at) * sizeof f->ranks[0]);
    f->ranks[at] = (struct kvr_engine_rank){.rank = (uint32_t)rank};
    if (!f->ranks_from) f->ranks_from = from;
    return &f->ranks[at];
}

static void take_block_size(struct kvr_engine_facts *f, uint64_t size, kvr_fact_source from)
{
    if (f->block_size || size == 0 || size > KVR_ENGINE_BLOCK_SIZE_MAX) return;
    f->block_size = (uint32_t)size;
    f->block_size_from = from;
}

uint64_t kvr_engine_facts_blocks(const struct kvr_engine_facts *f)
{
    return f->total_is_sum && f->ranks_n ? f->total_blocks / f->ranks_n : f->total_blocks;
}

static void take_total(struct kvr_engine_facts *f, uint64_t blocks, bool is_sum, kvr_fact_source from)
{
    if (f->total_blocks || blocks == 0 || blocks > UINT64_C(1) << 40) return;
    f->total_blocks = blocks;
    f->total_is_sum = is_sum;
    f->total_blocks_from = from;
}

static void tell(enum kvr_told *what, bool yes)
{
    if (*what == KVR_UNTOLD) *what = yes ? KVR_TOLD_YES : KVR_TOLD_NO;
}

/* ---- /metrics ----------------------------------------------------------------------------------------------------- */

static bool begins(struct kvr_prom_text t, const char *with)
{
    return t.len >= strlen(with) && memcmp(t.ptr, with, strlen(with)) == 0;
}

static bool is_cache_config(struct kvr_prom_text name)
{
    return kvr_prom_is(name, "vllm:cache_config_info") || kvr_prom_is(name, "vllm_cache_config_info");
}

/* Series that vLLM has only with such a connector. */
static bool is_offload(struct kvr_prom_text name)
{
    struct kvr_prom_text rest = {name.ptr + 5, name.len - KVR_MIN(name.len, (size_t)5)}; /* behind vllm: */
    return begins(rest, "kv_offload_") || begins(rest, "simple_kv_offload_");
}

void kvr_engine_facts_sample(void *ctx, const struct kvr_prom_sample *s)
{
    static const char from[] = "/metrics";
    struct kvr_engine_facts *f = ctx;
    bool vllm = begins(s->name, "vllm:") || begins(s->name, "vllm_"), sglang = begins(s->name, "sglang:") || begins(s->name, "sglang_");
    uint64_t n;
    if (!vllm && !sglang) return;
    f->engine = vllm ? KVR_FACT_VLLM : KVR_FACT_SGLANG;
    if (kvr_prom_u64(kvr_prom_label(s, vllm ? "engine" : "dp_rank"), &n)) (void)rank_entry(f, n, from);
    f->offloads |= is_offload(s->name);
    if (!is_cache_config(s->name)) return;
    if (kvr_prom_u64(kvr_prom_label(s, "block_size"), &n)) take_block_size(f, n, from);
    if (f->block_size && kvr_prom_u64(kvr_prom_label(s, "kv_cache_size_tokens"), &n)) take_total(f, n / f->block_size, false, from);
    if (kvr_prom_u64(kvr_prom_label(s, "num_gpu_blocks"), &n)) take_total(f, n, true, from);
    struct kvr_prom_text caching = kvr_prom_label(s, "enable_prefix_caching");
    if (kvr_prom_is(caching, "True") || kvr_prom_is(caching, "False")) tell(&f->prefix_caching, kvr_prom_is(caching, "True"));
}

/* ---- endpoints ---------------------------------------------------------------------------------------------------- */

/* The port of tcp://anything:port. Returns: 0 when it has none that we would connect to. */
static uint16_t port_of(struct kvr_json endpoint)
{
    const char *s, *colon;
    size_t len;
    uint64_t port;
    if (!kvr_json_as_str(endpoint, &s, &len) || len < 8 || memcmp(s, "tcp://", 6) != 0) return 0;
    colon = memrchr(s, ':', len);
    if (!kvr_parse_u64(colon + 1, (size_t)(s + len - colon - 1), 65535, &port) || port < KVR_FACT_PORT_MIN) return 0;
    return (uint16_t)port;
}

/* An engine's KVEventsConfig. enabled: what is meant when it does not say. Returns: whether events come over ZMQ. */
static bool events_enabled(struct kvr_json config, bool enabled)
{
    (void)kvr_json_as_bool(kvr_json_get(config, "enable_kv_cache_events"), &enabled);
    return enabled && kvr_json_is_str(kvr_json_get(config, "publisher"), "zmq");
}

/* shift: added to the ports, when they are the first rank's. */
static void take_endpoints(struct kvr_engine_facts *f, struct kvr_engine_rank *r, struct kvr_json config, uint32_t shift,
                           kvr_fact_source from)
{
    uint32_t events = port_of(kvr_json_get(config, "endpoint")), replay = port_of(kvr_json_get(config, "replay_endpoint"));
    if (r->events) return;
    if (!events || events + shift > 65535) {
        f->unusable = true;
        return;
    }
    r->events = (uint16_t)(events + shift);
    if (replay && replay + shift <= 65535) r->replay = (uint16_t)(replay + shift);
    if (!kvr_json_as_u64(kvr_json_get(config, "buffer_steps"), &r->buffer_steps)) r->buffer_steps = 0;
    if (!f->events_from) f->events_from = from;
}

static void take_source(struct kvr_engine_facts *f, const struct kvr_json_iter *source)
{
    static const char from[] = "/kv_event_sources";
    uint64_t rank;
    if (!kvr_parse_u64(source->key, source->key_len, UINT32_MAX, &rank) || kvr_json_type_of(source->value) != KVR_JSON_OBJECT) return;
    struct kvr_engine_rank *r = rank_entry(f, rank, from);
    bool on = events_enabled(source->value, false);
    if (r) tell(&f->events, on);
    if (r && on) take_endpoints(f, r, source->value, 0, from);
}

bool kvr_engine_facts_sources(struct kvr_engine_facts *f, struct kvr_json root)
{
    if (kvr_json_type_of(root) != KVR_JSON_OBJECT) return false;
    f->engine = KVR_FACT_VLLM;
    for (struct kvr_json_iter i = kvr_json_iter(root); kvr_json_next(&i);) take_source(f, &i);
    tell(&f->events, false); /* it names none */
    return true;
}

/* ---- /v1/models --------------------------------------------------------------------------------------------------- */

/* The first one; a name that is too long is none. */
bool kvr_engine_facts_models(struct kvr_engine_facts *f, struct kvr_json root)
{
    const char *id;
    size_t len;
    if (!kvr_json_as_str(kvr_json_get(kvr_json_at(kvr_json_get(root, "data"), 0), "id"), &id, &len)) return false;
    if (len < sizeof f->model && !memchr(id, 0, len)) snprintf(f->model, sizeof f->model, "%.*s", (int)len, id);
    return true;
}

/* ---- /server_info ------------------------------------------------------------------------------------------------- */

static bool true_of(struct kvr_json o, const char *key)
{
    bool v = false;
    return kvr_json_as_bool(kvr_json_get(o, key), &v) && v;
}

static uint64_t number_of(struct kvr_json o, const char *key)
{
    uint64_t v = 0;
    return kvr_json_as_u64(kvr_json_get(o, key), &v) ? v : 0;
}

/* Ranks [first, first + n), their events where those of rank 0 are, further by the rank. */
static void take_ranks(struct kvr_engine_facts *f, uint64_t first, uint64_t n, struct kvr_json events, bool on, kvr_fact_source from)
{
    bool ports_told = f->events_from != NULL;
    for (uint64_t i = 0; i < n && i <= KVR_FACT_RANKS_MAX; i++) {
        struct kvr_engine_rank *r = rank_entry(f, first + i, from);
        if (r && on && !ports_told) take_endpoints(f, r, events, (uint32_t)(first + i), from);
    }
}

static bool vllm_info(struct kvr_engine_facts *f, struct kvr_json config, kvr_fact_source from)
{
    struct kvr_json cache = kvr_json_get(config, "cache_config"), parallel = kvr_json_get(config, "parallel_config"),
                    events = kvr_json_get(config, "kv_events_config");
    bool caching, known = kvr_json_type_of(parallel) == KVR_JSON_OBJECT, on = events_enabled(events, false);
    bool external = true_of(parallel, "data_parallel_external_lb"), hybrid = true_of(parallel, "data_parallel_hybrid_lb");
    uint64_t n = number_of(parallel, external || hybrid ? "data_parallel_size_local" : "data_parallel_size");
    f->engine = KVR_FACT_VLLM;
    take_block_size(f, number_of(cache, "block_size"), from);
    if (f->block_size) take_total(f, number_of(cache, "kv_cache_size_tokens") / f->block_size, false, from);
    take_total(f, number_of(cache, "num_gpu_blocks"), true, from);
    if (kvr_json_as_bool(kvr_json_get(cache, "enable_prefix_caching"), &caching)) tell(&f->prefix_caching, caching);
    if (!known) return false;
    tell(&f->events, on);
    take_ranks(f, external || hybrid ? number_of(parallel, "data_parallel_rank") : 0, KVR_MAX(n, (uint64_t)1), events, on, from);
    return true;
}

static enum kvr_told_mode mode_of(struct kvr_json v)
{
    static const char *const names[] = {[KVR_MODE_OFF] = "null", [KVR_MODE_PREFILL] = "prefill", [KVR_MODE_DECODE] = "decode"};
    const char *s;
    size_t len;
    if (!kvr_json_as_str(v, &s, &len)) return KVR_MODE_UNTOLD;
    for (size_t i = KVR_MODE_OFF; i < KVR_ARRAY_LEN(names); i++)
        if (kvr_span_is(s, len, names[i])) return (enum kvr_told_mode)i;
    return KVR_MODE_UNTOLD;
}

static bool sglang_info(struct kvr_engine_facts *f, struct kvr_json_parser *p, struct kvr_json root, kvr_fact_source from)
{
    struct kvr_json events = {0};
    const char *text = NULL;
    size_t len = 0;
    uint64_t page = number_of(root, "page_size"), ranks = KVR_MAX(number_of(root, "dp_size"), (uint64_t)1);
    uint64_t tokens = number_of(root, "max_total_num_tokens");
    bool flag;
    if (page == 0) return false;
    f->engine = KVR_FACT_SGLANG;
    take_block_size(f, page, from);
    take_total(f, tokens / page, false, from);
    if (kvr_json_as_bool(kvr_json_get(root, "disable_radix_cache"), &flag)) tell(&f->prefix_caching, !flag);
    if (kvr_json_as_bool(kvr_json_get(root, "enable_cache_report"), &flag)) tell(&f->cached_tokens, flag);
    uint64_t port = number_of(root, "disaggregation_bootstrap_port");
    f->mode = mode_of(kvr_json_get(root, "disaggregation_mode"));
    if (port >= KVR_FACT_PORT_MIN && port <= UINT16_MAX) f->bootstrap_port = (uint16_t)port;
    bool on = kvr_json_as_str(kvr_json_get(root, "kv_events_config"), &text, &len) && len &&
              kvr_json_parse(p, text, len, &events, NULL) == 0 && events_enabled(events, true);
    tell(&f->events, on);
    take_ranks(f, 0, ranks, events, on, from);
    return true;
}

bool kvr_engine_facts_server_info(struct kvr_engine_facts *f, struct kvr_json_parser *p, struct kvr_json root)
{
    static const char from[] = "/server_info";
    struct kvr_json config = kvr_json_get(root, "vllm_config");
    if (kvr_json_type_of(config) == KVR_JSON_OBJECT) return vllm_info(f, config, from);
    return kvr_json_type_of(config) == KVR_JSON_NONE && sglang_info(f, p, root, from);
}

/* ---- what is told to people ---------------------------------------------------------------------------------------- */

void kvr_engine_facts_describe(const struct kvr_engine_facts *f, struct kvr_buf *b)
{
    static const char *const names[] = {"an engine", "vLLM", "SGLang"};
    kvr_buf_str(b, names[f->engine]);
    if (f->block_size) kvr_buf_printf(b, ", block size %u (%s)", f->block_size, f->block_size_from);
    if (f->total_blocks) kvr_buf_printf(b, ", %llu blocks (%s)", (unsigned long long)kvr_engine_facts_blocks(f), f->total_blocks_from);
    if (f->ranks_n > 1 || (f->ranks_n && f->ranks[0].rank)) {
        char text[80];
        kvr_engine_facts_describe_ranks(f, text, sizeof text);
        kvr_buf_printf(b, ", %s (%s)", text, f->ranks_from);
    }
}

const char *kvr_engine_facts_events_flag(const struct kvr_engine_facts *f)
{
    return f->engine == KVR_FACT_SGLANG
               ? "--kv-events-config '{\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"topic\":\"kv-events\"}'"
               : "--kv-events-config "
                 "'{\"enable_kv_cache_events\":true,\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:5557\",\"replay_endpoint\":\"tcp://"
                 "*:5558\"}'";
}

/* ---- the rest ----------------------------------------------------------------------------------------------------- */

bool kvr_engine_facts_rank_range(struct kvr_engine_facts *f, const char *text, size_t len)
{
    static const char words[] = "out of range [0, ";
    const char *at = len ? memmem(text, len, words, sizeof words - 1) : NULL;
    uint64_t n;
    size_t digits = 0;
    if (!at || !memmem(text, len, "data_parallel_rank", 18)) return false;
    at += sizeof words - 1;
    while (at + digits < text + len && at[digits] >= '0' && at[digits] <= '9') digits++;
    if (!kvr_parse_u64(at, digits, 1u << 20, &n) || n == 0) return false;
    f->rank_range = (uint32_t)n;
    return true;
}
