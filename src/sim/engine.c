/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated engine's cache, scheduler and timing; sim/engine.h has the model and its sources. */
#include "sim/engine.h"

#include <string.h>
#include <kvroute/hash.h>

#include "base/map64.h"
#include "sim/host_tier.h"

enum { NIL = UINT32_MAX, EVENT_BLOCKS_MAX = 512 };

struct block {
    uint64_t hash; /* 0: not in the prefix cache */
    uint32_t refs;
    uint32_t next, prev;           /* free list, least recently used first */
    uint32_t next_copy, last_copy; /* of this hash, oldest first; last_copy of the oldest one: the youngest */
    bool listed;
};

enum state { WAITING, LOADING, RUNNING };

struct mock_request {
    struct mock_request *next, *prev;
    enum state state;
    void *user;
    uint32_t *tokens; /* prompt, then what was generated */
    size_t prompt, tokens_n, tokens_cap;
    uint64_t max_tokens, generated, salt, cached;
    size_t computed; /* tokens whose KV is in blocks */
    uint32_t *blocks;
    size_t blocks_n, blocks_cap;
    uint64_t *chain; /* hash of each full block */
    size_t chain_n, chain_cap;
    size_t published;          /* full blocks that are in the cache */
    size_t looked_at, offered; /* blocks of the prompt: those from here on the host has been asked for, those before were offered to it */
    bool admitted;             /* was running before */
    bool ready;                /* yields a token at the end of this pass */
    bool skip_cache, reports;
    bool remote; /* its KV is still to come from another engine */
    bool loaded; /* it has come */
    bool spoilt; /* and was another prompt's */
};

struct mock_hold {
    uint32_t *tokens, *blocks;
    size_t prompt, tokens_cap, blocks_n, blocks_cap;
};

struct queue {
    struct mock_request *head, *tail;
    size_t n;
};

struct mock_engine {
    struct mock_engine_config config;
    struct kvr_mem mem;
    struct block *blocks;
    uint32_t free_head, free_tail;
    size_t free_n;
    struct kvr_map64 cache; /* chain hash -> oldest block */
    struct queue running, waiting, loading;
    struct mock_engine_stats stats;
    struct host_tier *host; /* NULL: none */
    size_t loading_tokens;  /* read in this pass */
    bool in_pass;
};

/* ---- lists ------------------------------------------------------------------------------------------- */

/* NULL: at the end. */
static void queue_insert_before(struct queue *q, struct mock_request *next, struct mock_request *r)
{
    r->next = next;
    r->prev = next ? next->prev : q->tail;
    *(r->prev ? &r->prev->next : &q->head) = r;
    *(next ? &next->prev : &q->tail) = r;
    q->n++;
}

static void queue_push(struct queue *q, struct mock_request *r)
{
    queue_insert_before(q, NULL, r);
}

static void queue_remove(struct queue *q, struct mock_request *r)
{
    *(r->prev ? &r->prev->next : &q->head) = r->next;
    *(r->next ? &r->next->prev : &q->tail) = r->prev;
    q->n--;
}

/* What caches nothing is reused first. */
static void free_push_front(struct mock_engine *e, uint32_t b)
{
    struct block *k = &e->blocks[b];
    k->listed = true;
    k->prev = NIL;
    k->next = e->free_head;
    *(e->free_head == NIL ? &e->free_tail : &e->blocks[e->free_head].prev) = b;
    e->free_head = b;
    e->free_n++;
}

static void free_push(struct mock_engine *e, uint32_t b)
{
    struct block *k = &e->blocks[b];
    k->listed = true;
    k->next = NIL;
    k->prev = e->free_tail;
    *(e->free_tail == NIL ? &e->free_head : &e->blocks[e->free_tail].next) = b;
    e->free_tail = b;
    e->free_n++;
}

static void free_remove(struct mock_engine *e, uint32_t b)
{
    struct block *k = &e->blocks[b];
    *(k->prev == NIL ? &e->free_head : &e->blocks[k->prev].next) = k->next;
    *(k->next == NIL ? &e->free_tail : &e->blocks[k->next].prev) = k->prev;
    k->listed = false;
    e->free_n--;
}

/* ---- cache ------------------------------------------------------------------------------------------- */

static uint32_t cached_block(const struct mock_engine *e, uint64_t hash)
{
    const uint64_t *b = kvr_map64_get(&e->cache, hash);
    return b ? (uint32_t)*b : NIL;
}

/* Returns: whether there was a copy before, or -KVR_ENOMEM. */
static int add_copy(struct mock_engine *e, uint32_t b, uint64_t hash)
{
    struct block *k = &e->blocks[b];
    uint32_t oldest = cached_block(e, hash);
    if (oldest == NIL && kvr_map64_put(&e->cache, hash, b)) return -KVR_ENOMEM;
    k->hash = hash;
    k->next_copy = NIL;
    k->last_copy = b;
    e->stats.cached_copies++;
    if (oldest == NIL) return 0;
    e->blocks[e->blocks[oldest].last_copy].next_copy = b;
    e->blocks[oldest].last_copy = b;
    return 1;
}

/* Returns: whether that was the last copy. */
static bool remove_copy(struct mock_engine *e, uint32_t b)
{
    struct block *k = &e->blocks[b];
    uint32_t at = cached_block(e, k->hash), before = NIL;
    uint64_t hash = k->hash;
    KVR_ASSERT(at != NIL);
    struct block *oldest = &e->blocks[at];
    for (; at != b; at = e->blocks[at].next_copy) before = at;
    k->hash = 0;
    e->stats.cached_copies--;
    if (before != NIL) {
        e->blocks[before].next_copy = k->next_copy;
        if (oldest->last_copy == b) oldest->last_copy = before;
        return false;
    }
    if (k->next_copy == NIL) {
        kvr_map64_del(&e->cache, hash);
        return true;
    }
    uint64_t *first = kvr_map64_get(&e->cache, hash);
    KVR_ASSERT(first);
    e->blocks[k->next_copy].last_copy = k->last_copy;
    *first = k->next_copy;
    return false;
}

/* Takes the free block that is to be reused next; what it cached is evicted. */
static uint32_t take_block(struct mock_engine *e)
{
    uint32_t b = e->free_head;
    struct block *k = &e->blocks[b];
    free_remove(e, b);
    if (k->hash) {
        uint64_t hash = k->hash;
        struct kvr_event ev = {.kind = KVR_EVENT_REMOVED, .removed = &hash, .removed_n = 1};
        if (remove_copy(e, b) || !e->config.first_and_last) e->config.on_event(e->config.ctx, &ev, NULL, 0, NULL);
    }
    k->refs = 1;
    return b;
}

static void drop_block(struct mock_engine *e, uint32_t b)
{
    if (--e->blocks[b].refs > 0) return;
    if (e->blocks[b].hash) free_push(e, b);
    else free_push_front(e, b);
}

/* Tails first, so that a chain is evicted from its end. */
static void drop_list(struct mock_engine *e, const uint32_t *blocks, size_t n)
{
    while (n) drop_block(e, blocks[--n]);
}

static void drop_blocks(struct mock_engine *e, struct mock_request *r)
{
    drop_list(e, r->blocks, r->blocks_n);
    r->blocks_n = 0;
    r->computed = 0;
    r->published = 0;
}

/* The engine's own block hash: nobody else can derive it from the tokens' router hash. Never 0. */
static uint64_t chain_hash(const struct mock_request *r, size_t at, uint32_t block_size)
{
    uint64_t parent = at ? r->chain[at - 1] : r->salt ^ 0x6d6f636bull;
    uint64_t h = kvr_hash_bytes(r->tokens + at * block_size, block_size * sizeof(uint32_t), parent);
    return h ? h : 1;
}

static int extend_chain(struct mock_engine *e, struct mock_request *r)
{
    size_t full = r->tokens_n / e->config.block_size;
    if (kvr_mem_grow(&e->mem, (void **)&r->chain, &r->chain_cap, full, sizeof *r->chain)) return -KVR_ENOMEM;
    for (; r->chain_n < full; r->chain_n++) r->chain[r->chain_n] = chain_hash(r, r->chain_n, e->config.block_size);
    return 0;
}

/* How many leading full blocks are cached; at least one prompt token must be computed. */
static size_t cached_prefix(const struct mock_engine *e, const struct mock_request *r)
{
    size_t limit = (r->tokens_n - 1) / e->config.block_size, n = 0;
    if (!e->config.prefix_caching || r->skip_cache) return 0;
    while (n < limit && n < r->chain_n && kvr_map64_get(&e->cache, r->chain[n])) n++;
    return n;
}

static void use_cached(struct mock_engine *e, uint32_t b)
{
    if (e->blocks[b].refs++ == 0) free_remove(e, b);
}

static void tell_stored(struct mock_engine *e, struct mock_request *r, size_t start, const struct kvr_block *blocks, size_t n)
{
    uint32_t bs = e->config.block_size;
    struct kvr_event ev = {
        .kind = KVR_EVENT_STORED, .has_parent = start > 0, .parent_hash = start ? r->chain[start - 1] : 0, .blocks = blocks, .blocks_n = n};
    if (n) e->config.on_event(e->config.ctx, &ev, r->tokens + start * bs, n * bs, r->user);
}

/* The prompt's blocks, also those that were cached, unless it has read some; not what is generated (vLLM's offload_prompt_only). */
static void offer_host(struct mock_engine *e, struct mock_request *r, size_t full)
{
    size_t to = KVR_MIN(full, r->prompt / e->config.block_size);
    if (!e->host || to <= r->offered || r->spoilt) return;
    host_tier_offer(e->host, r->chain, r->offered, to, r->tokens);
    r->offered = to;
}

/* Puts the blocks that have become full into the cache and says so. */
static void publish_blocks(struct mock_engine *e, struct mock_request *r)
{
    size_t full = KVR_MIN(r->computed / e->config.block_size, r->chain_n), start = r->published, n = 0;
    offer_host(e, r, full);
    struct kvr_block out[EVENT_BLOCKS_MAX];
    for (; e->config.prefix_caching && r->published < full; r->published++) {
        uint64_t h = r->chain[r->published];
        int copies = add_copy(e, r->blocks[r->published], h);
        if (copies < 0) break;
        if (n == EVENT_BLOCKS_MAX || (copies && e->config.first_and_last)) {
            tell_stored(e, r, start, out, n);
            start = r->published + (copies && e->config.first_and_last);
            n = 0;
        }
        if (copies && e->config.first_and_last) continue;
        out[n++].block_hash = h;
    }
    tell_stored(e, r, start, out, n);
}

/* ---- scheduling -------------------------------------------------------------------------------------- */

static int reserve_blocks(struct mock_engine *e, struct mock_request *r, size_t tokens)
{
    size_t need = (tokens + e->config.block_size - 1) / e->config.block_size;
    if (need <= r->blocks_n) return 0;
    if (need - r->blocks_n > e->free_n) return -KVR_ECAPACITY;
    if (kvr_mem_grow(&e->mem, (void **)&r->blocks, &r->blocks_cap, need, sizeof *r->blocks)) return -KVR_ENOMEM;
    while (r->blocks_n < need) r->blocks[r->blocks_n++] = take_block(e);
    return 0;
}

/* Waits before all that wait for blocks, but after those that wait with theirs: only these are sure to go on. */
static void wait_first(struct mock_engine *e, struct mock_request *r)
{
    struct mock_request *next = e->waiting.head;
    while (next && next->blocks_n) next = next->next;
    r->state = WAITING;
    queue_insert_before(&e->waiting, next, r);
}

static void preempt(struct mock_engine *e, struct mock_request *r)
{
    queue_remove(&e->running, r);
    drop_blocks(e, r);
    r->ready = false;
    wait_first(e, r);
    e->stats.preemptions++;
}

/* One request's share of the pass: a decode token or a chunk of prompt. Returns: tokens computed, or an error. */
static long compute(struct mock_engine *e, struct mock_request *r, size_t budget)
{
    size_t chunk = KVR_MIN(r->tokens_n - r->computed, budget);
    int rc = reserve_blocks(e, r, r->computed + chunk);
    if (rc) return rc;
    r->computed += chunk;
    r->ready = r->computed == r->tokens_n;
    if (extend_chain(e, r)) return -KVR_ENOMEM;
    publish_blocks(e, r);
    return (long)chunk;
}

static void report(struct mock_engine *e, struct mock_request *r, size_t hits)
{
    struct kvr_block *out = hits ? malloc(hits * sizeof *out) : NULL;
    for (size_t i = 0; out && i < hits; i++) out[i] = (struct kvr_block){.block_hash = r->chain[i]};
    if (out) tell_stored(e, r, 0, out, hits);
    free(out);
}

/* What the host has behind the device's blocks; at least one token must be computed. */
static size_t host_prefix(const struct mock_engine *e, const struct mock_request *r, size_t hits)
{
    size_t limit = KVR_MIN((r->tokens_n - 1) / e->config.block_size, r->chain_n);
    return e->host && e->config.prefix_caching && !r->skip_cache && !r->remote ? host_tier_reach(e->host, r->chain, limit, hits) : hits;
}

/* A preempted request reads its own work again, which is no hit. */
static void read_host(struct mock_engine *e, struct mock_request *r, size_t hits, size_t reach)
{
    if (!e->host) return;
    if (reach > hits) r->looked_at = hits, r->offered = reach;
    e->loading_tokens += (reach - hits) * e->config.block_size;
    if (r->admitted) return;
    e->stats.host_queries += r->tokens_n - hits * e->config.block_size;
    e->stats.loaded_tokens += (reach - hits) * e->config.block_size;
}

/* Takes cached blocks for a waiting request, unless too few blocks are free for the rest. */
static bool admit(struct mock_engine *e, struct mock_request *r, size_t budget)
{
    if (r->blocks_n) return true; /* another engine has filled them */
    if (extend_chain(e, r)) return false;
    size_t hits = cached_prefix(e, r), idle_hits = 0, bs = e->config.block_size;
    if (r->reports) report(e, r, hits);
    size_t reach = host_prefix(e, r, hits), first = KVR_MIN(r->tokens_n, reach * bs + budget), need = (first + bs - 1) / bs - hits;
    size_t whole = (r->tokens_n + bs - 1) / bs - hits; /* all of it must have room, though a part of it is computed now */
    for (size_t i = 0; i < hits; i++) idle_hits += e->blocks[cached_block(e, r->chain[i])].refs == 0;
    if (whole + idle_hits > e->free_n) return false;
    if (kvr_mem_grow(&e->mem, (void **)&r->blocks, &r->blocks_cap, hits + need, sizeof *r->blocks)) return false;
    for (size_t i = 0; i < hits; i++) {
        uint32_t b = cached_block(e, r->chain[i]);
        use_cached(e, b);
        r->blocks[r->blocks_n++] = b;
    }
    r->computed = reach * bs;
    r->published = hits;
    read_host(e, r, hits, reach);
    if (!r->admitted) { /* what a preempted request finds again is its own work, not a hit */
        r->admitted = true;
        r->cached = r->computed;
        e->stats.cached_tokens += hits * bs;
        e->stats.prompt_tokens += r->prompt;
    }
    return true;
}

/* The blocks of the whole prompt are taken now: they are filled in one go. */
static bool begin_load(struct mock_engine *e, struct mock_request *r)
{
    if (reserve_blocks(e, r, r->tokens_n)) {
        drop_blocks(e, r);
        return false;
    }
    queue_remove(&e->waiting, r);
    r->state = LOADING;
    queue_push(&e->loading, r);
    e->config.on_load(e->config.ctx, r, r->computed);
    return true;
}

static double prefill_ms(double tokens)
{
    return tokens > 0 ? 4.209989e-07 * tokens * tokens + 1.518344e-02 * tokens + 16.50142 : 0;
}

/* The first block stands for "none" in the engine's tables. */
static uint32_t usable(const struct mock_engine *e)
{
    return e->config.num_blocks - 1;
}

/* By the linear part alone: reading does not grow with the square. */
static double load_ms(struct mock_engine *e)
{
    double ms = e->config.load_ratio * 1.518344e-02 * (double)e->loading_tokens;
    e->loading_tokens = 0;
    return ms;
}

static void tell_host(void *ctx, const struct host_chunk *c)
{
    struct mock_engine *e = ctx;
    struct kvr_block blocks[256];
    size_t n = KVR_MIN(e->config.host_chunk, (uint32_t)KVR_ARRAY_LEN(blocks));
    struct kvr_event ev = {.tier = KVR_TIER_HOST_PINNED, .kind = c->stored ? KVR_EVENT_STORED : KVR_EVENT_REMOVED};
    if (!e->config.on_host_event) return;
    for (size_t i = 0; i < n; i++) blocks[i] = (struct kvr_block){.block_hash = c->names[i]};
    ev.has_parent = c->parent != 0;
    ev.parent_hash = c->parent;
    if (c->stored) ev.blocks = blocks, ev.blocks_n = n;
    else ev.removed = c->names, ev.removed_n = n;
    ev.lower = (struct kvr_lower){.copies = 1, .chunk = e->config.host_chunk};
    e->config.on_host_event(e->config.ctx, &ev, c->tokens, c->stored ? n * e->config.block_size : 0);
}

static double decode_ms(const struct mock_engine *e, size_t batch)
{
    if (batch == 0) return 0;
    double u = 1 - (double)e->free_n / usable(e), t = -25.74 * u * u + 54.01 * u + 5.74;
    return t < 1 ? 1 : t;
}

/* Costs a pass what generating does: also the last token of a prompt that another engine has computed. */
static bool takes_one_token(const struct mock_request *r)
{
    return (r->generated > 0 || r->loaded) && r->tokens_n - r->computed == 1;
}

/* When all that ran had to give way, others are admitted at once: those that wait with their blocks, or nobody would ever run again. */
uint64_t mock_engine_begin_pass(struct mock_engine *e)
{
    size_t budget = e->config.max_batched_tokens, decodes = 0, prefill = 0;
    bool preempted = false;
    KVR_ASSERT(!e->in_pass);
    for (struct mock_request *r = e->running.head, *next; r && budget; r = next) {
        next = r->next;
        bool decoding = takes_one_token(r);
        long n = compute(e, r, budget);
        while (n == -KVR_ECAPACITY && e->running.tail != r) {
            preempted = true;
            if (next == e->running.tail) next = NULL;
            preempt(e, e->running.tail);
            n = compute(e, r, budget);
        }
        if (n < 0) {
            preempted = true;
            preempt(e, r);
            continue;
        }
        budget -= (size_t)n;
        if (decoding) decodes++;
        else prefill += (size_t)n;
    }
    while ((!preempted || e->running.n == 0) && budget && e->waiting.head && e->running.n < e->config.max_num_seqs) {
        struct mock_request *r = e->waiting.head;
        if (!admit(e, r, budget)) break;
        if (r->remote) {
            if (begin_load(e, r)) continue;
            break;
        }
        queue_remove(&e->waiting, r);
        r->state = RUNNING;
        queue_push(&e->running, r);
        bool decoding = takes_one_token(r);
        long n = compute(e, r, budget);
        if (n < 0) {
            preempt(e, r);
            break;
        }
        budget -= (size_t)n;
        if (decoding) decodes++;
        else prefill += (size_t)n;
    }
    if (e->host) host_tier_copy(e->host, tell_host, e);
    if (e->running.n == 0) return 0;
    e->in_pass = true;
    double ms = (prefill_ms((double)prefill) + decode_ms(e, decodes) + load_ms(e)) / e->config.speedup;
    return (uint64_t)(ms * 1e6) + 1;
}

static void request_free(struct mock_engine *e, struct mock_request *r)
{
    if (e->host) host_tier_touch(e->host, r->chain, r->looked_at, r->offered);
    drop_blocks(e, r);
    kvr_mem_put(&e->mem, r->tokens, r->tokens_cap * sizeof *r->tokens);
    kvr_mem_put(&e->mem, r->blocks, r->blocks_cap * sizeof *r->blocks);
    kvr_mem_put(&e->mem, r->chain, r->chain_cap * sizeof *r->chain);
    kvr_mem_put(&e->mem, r, sizeof *r);
}

/* The next token depends on the seed, the prompt and the place, so equal requests give equal answers. */
static uint32_t next_token(const struct mock_engine *e, const struct mock_request *r)
{
    static const char letters[] = "etaoin shrdlu cmfwyp vbgkqjxz etaoinshr ";
    if (r->spoilt) return '#';
    uint64_t h = kvr_mix64(e->config.seed + r->generated * 0x9e3779b97f4a7c15ull + r->tokens[r->prompt - 1] * 31u + r->prompt);
    return (uint32_t)(unsigned char)letters[h % (sizeof letters - 1)];
}

void mock_engine_end_pass(struct mock_engine *e)
{
    e->in_pass = false;
    for (struct mock_request *r = e->running.head, *next; r; r = next) {
        next = r->next;
        if (!r->ready) continue;
        r->ready = false;
        uint32_t token = next_token(e, r);
        uint64_t index = r->generated++;
        e->stats.generated_tokens++;
        if (kvr_mem_grow(&e->mem, (void **)&r->tokens, &r->tokens_cap, r->tokens_n + 1, sizeof *r->tokens) == 0)
            r->tokens[r->tokens_n++] = token;
        bool last = r->generated >= r->max_tokens;
        if (last) queue_remove(&e->running, r);
        e->stats.ended += last;
        e->config.on_token(e->config.ctx, r, token, index, last);
        if (last) request_free(e, r);
    }
}

/* ---- interface --------------------------------------------------------------------------------------- */

struct mock_engine *mock_engine_create(const struct mock_engine_config *config)
{
    struct mock_engine *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->config = *config;
    kvr_mem_init(&e->mem, NULL, 0);
    e->free_head = e->free_tail = NIL;
    e->blocks = calloc(config->num_blocks, sizeof *e->blocks);
    uint32_t least = config->host_rests ? 1 : config->host_chunk;
    if (config->host_blocks) e->host = host_tier_create(config->host_blocks, config->host_chunk, least, config->block_size);
    if (!e->blocks || (config->host_blocks && !e->host)) {
        free(e->blocks);
        host_tier_destroy(e->host);
        free(e);
        return NULL;
    }
    for (uint32_t i = 1; i < config->num_blocks; i++) free_push(e, i);
    return e;
}

void mock_engine_destroy(struct mock_engine *e)
{
    if (!e) return;
    while (e->running.head) mock_engine_abort(e, e->running.head);
    while (e->waiting.head) mock_engine_abort(e, e->waiting.head);
    while (e->loading.head) mock_engine_abort(e, e->loading.head);
    kvr_map64_clear(&e->cache);
    host_tier_destroy(e->host);
    free(e->blocks);
    free(e);
}

bool mock_engine_fits(const struct mock_engine *e, size_t prompt, uint64_t max_tokens)
{
    uint64_t room = (uint64_t)usable(e) * e->config.block_size;
    return prompt <= room && max_tokens <= room - prompt;
}

struct mock_request *mock_engine_submit(struct mock_engine *e, const struct mock_engine_request *request)
{
    size_t n = request->n;
    struct mock_request *r = kvr_mem_zget(&e->mem, sizeof *r);
    if (!r) return NULL;
    if (kvr_mem_grow(&e->mem, (void **)&r->tokens, &r->tokens_cap, n + 1, sizeof *r->tokens)) {
        kvr_mem_put(&e->mem, r, sizeof *r);
        return NULL;
    }
    memcpy(r->tokens, request->tokens, n * sizeof *r->tokens);
    r->prompt = r->tokens_n = n;
    r->max_tokens = request->max_tokens;
    r->salt = request->salt;
    r->skip_cache = request->skip_cache;
    r->reports = request->reports;
    r->remote = request->remote;
    r->user = request->user;
    queue_push(&e->waiting, r);
    e->stats.requests++;
    return r;
}

void mock_engine_abort(struct mock_engine *e, struct mock_request *r)
{
    queue_remove(r->state == RUNNING ? &e->running : r->state == LOADING ? &e->loading : &e->waiting, r);
    request_free(e, r);
}

void mock_engine_loaded(struct mock_engine *e, struct mock_request *r, size_t tokens, bool spoilt)
{
    KVR_ASSERT(r->state == LOADING);
    queue_remove(&e->loading, r);
    r->remote = false;
    r->loaded = tokens > 0;
    r->spoilt = spoilt;
    tokens = KVR_MIN(tokens, r->prompt - 1);
    if (tokens > r->computed) {
        e->stats.received_tokens += tokens - r->computed;
        r->cached = r->computed = tokens;
    }
    publish_blocks(e, r);
    wait_first(e, r);
}

struct mock_hold *mock_engine_hold(struct mock_engine *e, struct mock_request *r)
{
    struct mock_hold *h = kvr_mem_zget(&e->mem, sizeof *h);
    if (!h) return NULL;
    size_t keep = KVR_MIN((r->prompt + e->config.block_size - 1) / e->config.block_size, r->blocks_n);
    drop_list(e, r->blocks + keep, r->blocks_n - keep);
    *h = (struct mock_hold){r->tokens, r->blocks, r->prompt, r->tokens_cap, keep, r->blocks_cap};
    r->tokens = r->blocks = NULL;
    r->tokens_cap = r->blocks_cap = r->blocks_n = 0;
    return h;
}

void mock_engine_release(struct mock_engine *e, struct mock_hold *h)
{
    drop_list(e, h->blocks, h->blocks_n);
    kvr_mem_put(&e->mem, h->tokens, h->tokens_cap * sizeof *h->tokens);
    kvr_mem_put(&e->mem, h->blocks, h->blocks_cap * sizeof *h->blocks);
    kvr_mem_put(&e->mem, h, sizeof *h);
}

const uint32_t *mock_hold_tokens(const struct mock_hold *h, size_t *n)
{
    *n = h->prompt;
    return h->tokens;
}

const uint32_t *mock_hold_blocks(const struct mock_hold *h, size_t *n)
{
    *n = h->blocks_n;
    return h->blocks;
}

void *mock_request_user(const struct mock_request *r)
{
    return r->user;
}

uint64_t mock_request_cached(const struct mock_request *r)
{
    return r->cached;
}

size_t mock_request_prompt(const struct mock_request *r)
{
    return r->prompt;
}

bool mock_engine_idle(const struct mock_engine *e)
{
    return e->running.n == 0 && e->waiting.n == 0 && e->loading.n == 0;
}

bool mock_engine_reset_cache(struct mock_engine *e)
{
    if (e->running.n || e->free_n < usable(e)) return false;
    for (uint32_t i = 0; i < e->config.num_blocks; i++) e->blocks[i].hash = 0;
    kvr_map64_clear(&e->cache);
    if (e->host) host_tier_clear(e->host);
    e->stats.cached_copies = 0;
    struct kvr_event ev = {.kind = KVR_EVENT_CLEARED};
    e->config.on_event(e->config.ctx, &ev, NULL, 0, NULL);
    return true;
}

void mock_engine_stats(const struct mock_engine *e, struct mock_engine_stats *out)
{
    *out = e->stats;
    out->running = e->running.n;
    out->waiting = e->waiting.n + e->loading.n;
    out->total_blocks = usable(e);
    out->used_blocks = usable(e) - e->free_n;
    out->cached_blocks = e->cache.n;
    out->host_blocks = e->host ? host_tier_blocks(e->host) : 0;
}
