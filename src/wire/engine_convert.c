/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct kvr_engine_batch -> struct kvr_event: filter, salt, hash.
 *
 * Salts. A store with a salt tags its blocks with the salt's term of the hash seed; a store without one inherits
 * its parent's. A block seen under two salts is ambiguous: stores below it are dropped, because hashing them
 * would be a guess. A store that is dropped tags nothing. Streams without salts pay one empty-map test per event.
 *
 * Copies (recover/consumer/copies.h). With `holds`, a store of what the view holds already is counted and not emitted, and so is the
 * removal of a copy that is not the last. Streams without copies pay one look at the view per store.
 *
 * Reports. A request that asks for them and finds k blocks in the cache makes its engine tell, in one batch and with nothing between but
 * removals and other cache groups:
 *
 *     stored [n1 .. nk] under nothing      the report: all are held
 *     removed ...                          what has to go for the request's own blocks
 *     stored [nk+1 nk+2 ..] under nk       these; nk+1 was not held, or it had been found as well
 *
 * A copy that begins a chain may be followed in its batch too, as passes overlap: by the next chunk of its prompt, which is held as well,
 * or by a block that its answer has filled, one at a time. So two blocks more show a report; one more, or blocks that only unproven copies
 * hold, are hints, and REPORT_HINTS in a row show one. It takes a chunk that ends where the cache does, or two requests in one batch of
 * which one computes what is cached and the other goes on exactly behind it, for this to show one that is none, and then the view only
 * becomes a lower bound. A report that nothing follows is counted, until another one shows what it was.
 *
 * Beside a tier behind the device all that is ordinary: two requests that read the same blocks tell them twice, and each goes on behind
 * them in its pass. So a store that ends where such a tier has a block shows nothing, neither way, and reports of such an engine are known
 * by the requests that ask for them and by answers (kvr_engine_stream_take_back).
 */
#include "wire/engine_events.h"

#include <string.h>

#include "wire/lmcache_names.h"

/* Marks a block hash that was seen under two salts; no seed term is this value in practice, and if one were, its
 * blocks would only be missed. */
#define AMBIGUOUS UINT64_MAX

enum { REPORT_HINTS = 3 };

void kvr_engine_stream_init(struct kvr_engine_stream *s, struct kvr_worker worker, uint32_t block_size)
{
    memset(s, 0, sizeof *s);
    s->worker = worker;
    s->block_size = block_size;
    s->learns_size = block_size == 0;
    kvr_mem_init(&s->mem, NULL, 0);
}

void kvr_engine_stream_free(struct kvr_engine_stream *s)
{
    kvr_map64_clear(&s->salts);
    kvr__copies_forget(&s->copies);
    kvr_mem_put(&s->mem, s->last, s->last_cap * sizeof *s->last);
    kvr_mem_put(&s->mem, s->seen, s->seen_cap * sizeof *s->seen);
    kvr_mem_put(&s->mem, s->blocks, s->blocks_cap * sizeof *s->blocks);
    kvr_mem_put(&s->mem, s->locals, s->locals_cap * sizeof *s->locals);
    kvr_mem_put(&s->mem, s->mm, s->mm_cap * sizeof *s->mm);
    memset(s, 0, sizeof *s);
}

void kvr_engine_stream_reset(struct kvr_engine_stream *s)
{
    kvr_map64_clear(&s->salts);
    kvr__copies_forget(&s->copies);
    memset(s->group_main, 0, sizeof s->group_main);
    memset(s->group_need, 0, sizeof s->group_need);
    s->group_bound = 0;
}

void kvr_engine_stream_restart(struct kvr_engine_stream *s)
{
    kvr_engine_stream_reset(s);
    s->copies.reports = s->coloured = false;
    if (s->learns_size) s->block_size = 0;
}

static bool bytes_are(struct kvr_bytes b, const char *text)
{
    return b.ptr && kvr_span_is(b.ptr, b.len, text);
}

/* 1 main attention, 2 another known kind, 3 unknown. */
static uint8_t attention_kind(struct kvr_bytes kind)
{
    static const char *const main_kinds[] = {"full_attention", "mla_attention", "sink_full_attention"};
    static const char *const others[] = {"sliding_window",          "sliding_window_mla",     "mamba",
                                         "chunked_local_attention", "encoder_only_attention", "cross_attention"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(main_kinds); i++)
        if (bytes_are(kind, main_kinds[i])) return 1;
    for (size_t i = 0; i < KVR_ARRAY_LEN(others); i++)
        if (bytes_are(kind, others[i])) return 2;
    return 3;
}

/* Does the event speak of the main attention cache? Learns which group is which on the way. */
static bool passes_group_filter(struct kvr_engine_stream *s, const struct kvr_engine_event *ev)
{
    uint8_t kind = ev->spec_kind.ptr ? attention_kind(ev->spec_kind) : 3;
    if (kind != 3 || (ev->spec_kind.ptr && ev->kind == KVR_ENGINE_STORED)) { /* an unknown word in a removal may be an owner's */
        if (ev->kind == KVR_ENGINE_STORED && ev->has_group && ev->group_idx < KVR_ENGINE_GROUPS)
            s->group_main[ev->group_idx] = kind == 1 ? 1 : 2;
        if (kind == 2) s->counters.non_main_attention_kind++;
        if (kind == 3) s->counters.unknown_kind++;
        return kind == 1;
    }
    if (!ev->has_group) return true;
    uint8_t learned = ev->group_idx < KVR_ENGINE_GROUPS ? s->group_main[ev->group_idx] : 0;
    if (learned == 2) s->counters.non_main_attention_group++;
    if (learned == 0 && ev->group_idx != 0) s->counters.unlearned_group_idx++;
    return learned ? learned == 1 : ev->group_idx == 0;
}

/* The salt term of a store's seed. false: its salt cannot be known. */
static bool find_salt(const struct kvr_engine_stream *s, const struct kvr_engine_event *ev, uint64_t *term)
{
    *term = 0;
    if (ev->salt.ptr && ev->salt.len) {
        *term = kvr_hash_bytes(ev->salt.ptr, ev->salt.len, 1);
    } else if (ev->has_parent && s->salts.n) {
        const uint64_t *tag = kvr_map64_get(&s->salts, ev->parent);
        if (tag) *term = *tag;
    }
    return *term != AMBIGUOUS;
}

/* Tags the blocks of a store, all or none. false: one of them is known under another salt, or there is no room. */
static bool tag_blocks(struct kvr_engine_stream *s, const uint64_t *hashes, size_t n, uint64_t term)
{
    if (term == 0 && s->salts.n == 0) return true;
    for (size_t i = 0; i < n; i++) {
        uint64_t *tag = kvr_map64_get(&s->salts, hashes[i]);
        if (tag && *tag != term) {
            *tag = AMBIGUOUS;
            return false;
        }
    }
    if (term == 0) return true;
    if (s->salts.n + n > KVR_ENGINE_SALT_TAGS_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if (!kvr_map64_get(&s->salts, hashes[i]) && kvr_map64_put(&s->salts, hashes[i], term)) return false;
    return true;
}

void kvr_engine_stream_forget_copies(struct kvr_engine_stream *s)
{
    kvr__copies_forget(&s->copies);
}

/* The device holds no copy of the block any more. */
static void forget_salt(struct kvr_engine_stream *s, uint64_t block_hash)
{
    const uint64_t *tag = s->salts.n ? kvr_map64_get(&s->salts, block_hash) : NULL;
    if (tag && *tag != AMBIGUOUS) kvr_map64_del(&s->salts, block_hash);
}

/* Of many names: by a table of their places + 1, half of which is empty. Returns: as hashes_repeat. */
static int many_repeat(struct kvr_engine_stream *s, const uint64_t *h, size_t n)
{
    size_t cap = 64;
    uint64_t secret = kvr_secret();
    while (cap < 2 * n) cap *= 2;
    if (kvr_mem_grow(&s->mem, (void **)&s->seen, &s->seen_cap, cap, sizeof *s->seen)) return -KVR_ENOMEM;
    memset(s->seen, 0, cap * sizeof *s->seen);
    for (size_t i = 0; i < n; i++) {
        size_t at = kvr_mix64_keyed(h[i], secret) & (cap - 1);
        for (; s->seen[at]; at = (at + 1) & (cap - 1))
            if (h[s->seen[at] - 1] == h[i]) return 1;
        s->seen[at] = (uint32_t)(i + 1);
    }
    return 0;
}

/* Parent and blocks must be pairwise distinct. Returns: 0, 1 when they are not, -KVR_ENOMEM. */
static int hashes_repeat(struct kvr_engine_stream *s, const uint64_t *h, size_t n, bool has_parent, uint64_t parent)
{
    for (size_t i = 0; has_parent && i < n; i++)
        if (h[i] == parent) return 1;
    if (n > 32) return many_repeat(s, h, n);
    for (size_t i = 1; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (h[k] == h[i]) return 1;
    return 0;
}

static int hash_tokens(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev, uint64_t seed,
                       size_t *blocks)
{
    size_t n = kvr_hash_block_count(ev->tokens_n, s->block_size, ev->eagle), mm_n = KVR_MIN(ev->mm_n, n);
    if (kvr_mem_grow(&s->mem, (void **)&s->locals, &s->locals_cap, n, sizeof *s->locals)) return -KVR_ENOMEM;
    if (kvr_mem_grow(&s->mem, (void **)&s->mm, &s->mm_cap, mm_n, sizeof *s->mm)) return -KVR_ENOMEM;
    bool any = false;
    for (size_t i = 0; i < mm_n; i++) {
        const struct kvr_engine_mm *m = &b->mm[ev->mm_at + i];
        s->mm[i] = (struct kvr_mm_block){m->n ? b->mm_hashes + m->at : NULL, m->n};
        any |= m->n > 0;
    }
    long rc = kvr_hash_locals(b->tokens + ev->tokens_at, ev->tokens_n, s->block_size, ev->eagle, seed, any ? s->mm : NULL, any ? mm_n : 0,
                              s->locals);
    if (rc < 0) return (int)rc;
    *blocks = n;
    return 0;
}

/* Events as arrays are older than reports. */
static bool may_be_report(const struct kvr_engine_event *ev)
{
    return ev->is_map && !ev->has_parent;
}

static bool has_colour(const struct kvr_engine_batch *b, const struct kvr_engine_event *ev)
{
    bool objects = false;
    for (size_t i = 0; i < ev->mm_n && !objects; i++) objects = b->mm[ev->mm_at + i].n > 0;
    return ev->lora.len || ev->salt.len || objects;
}

/* Leaves of a store what is not a copy. Returns: is something left? */
static int skip_copies(struct kvr_engine_stream *s, const struct kvr_engine_event *ev, struct kvr_event *out)
{
    size_t n = s->holds && !s->again ? kvr__copies_stored(&s->copies, out, may_be_report(ev), s->holds, s->holds_ctx) : 0;
    s->skipped = n;
    if (n == 0) return 1;
    s->counters.copy_stored += n;
    if (n == ev->hashes_n && may_be_report(ev) && out->tier == KVR_TIER_DEVICE) s->told = ev;
    out->has_parent = true; /* also of one that began a chain */
    out->parent_hash = out->blocks[n - 1].block_hash;
    out->blocks += n;
    out->blocks_n -= n;
    return out->blocks_n > 0;
}

/* Names for as many blocks as each stands for; only the last of `span` blocks has its own. */
static int fill_blocks(struct kvr_engine_stream *s, const uint64_t *names, const uint64_t *locals, size_t n, uint32_t span)
{
    if (kvr_mem_grow(&s->mem, (void **)&s->blocks, &s->blocks_cap, n, sizeof *s->blocks)) return -KVR_ENOMEM;
    for (size_t i = 0; i < n; i++) s->blocks[i] = (struct kvr_block){(i + 1) % span ? 0 : names[i / span], locals ? locals[i] : 0};
    return 0;
}

/* SGLang's host cache, the only one of this name: it reads whole pages, and nothing where that were fewer tokens than these
 * (UnifiedRadixCache.load_back_threshold of 0.5.23; older ones as well). */
enum { SGLANG_LEAST_TOKENS = 10 };

static bool is_sglang_host(const struct kvr_engine_event *ev)
{
    return bytes_are(ev->medium, "CPU_PINNED");
}

/* LMCache inside the engine's process tells 0 where it does not say what is before a chunk; its name does. */
static uint64_t chunk_before(const struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev,
                             enum kvr_tier tier)
{
    uint64_t names[KVR_LMCACHE_PARENTS];
    size_t n = 0;
    if (ev->parent == 0 && ev->hashes_n == 1 && s->holds)
        n = kvr_lmcache_parents(b->hashes[ev->hashes_at], b->tokens + ev->tokens_at, KVR_MIN(ev->tokens_n, ev->block_size), names);
    while (n--)
        if (s->holds(s->holds_ctx, tier, names[n])) return names[n];
    return ev->parent;
}

/* A store of a lower tier: by names alone, or with tokens and the size of what a name stands for. Nothing of it concerns the device: it
 * teaches no salts, and where tokens may not tell all (vLLM's offloading tells of no salts and images) names decide. Engines that read in
 * chunks of several blocks write maps. */
static int convert_lower(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev,
                         struct kvr_event *out)
{
    const uint64_t *names = b->hashes ? b->hashes + ev->hashes_at : NULL;
    uint64_t salt_term, span = s->block_size ? ev->block_size / s->block_size : 0;
    size_t n = 0;
    int rc;
    bool colour = has_colour(b, ev), by_name = ev->tokens_n == 0 || ((s->coloured || ev->lora_id) && !colour);
    bool pages = is_sglang_host(ev) && ev->is_map && ev->tokens_n && span == 1;
    s->skipped = 0;
    out->kind = KVR_EVENT_STORED;
    out->lower = (struct kvr_lower){.learns = (ev->is_map && !pages) || ev->tokens_n == 0 || span > 1,
                                    .copies = !s->again,
                                    .chunk = s->tier_chunk ? s->tier_chunk : pages,
                                    .names_first = !colour};
    if (is_sglang_host(ev) && s->block_size && s->block_size < SGLANG_LEAST_TOKENS)
        out->lower.least = (SGLANG_LEAST_TOKENS - 1) / s->block_size + 1;
    if (by_name || !find_salt(s, ev, &salt_term)) {
        out->lower.names_only = true;
        out->lower.apart = ev->tokens_n == 0;
        out->blocks_n = ev->hashes_n;
        if (fill_blocks(s, names, NULL, ev->hashes_n, 1)) return -KVR_ENOMEM;
        out->blocks = s->blocks;
        return ev->hashes_n > 0;
    }
    if (span == 0 || span > UINT16_MAX || ev->block_size % s->block_size) {
        s->counters.lower_tier_size++;
        return 0;
    }
    rc = hash_tokens(s, b, ev, kvr_hash_seed(ev->lora.ptr, ev->lora.len, NULL, 0) + salt_term, &n);
    if (rc == -KVR_ELIMIT) n = 0;
    else if (rc) return rc;
    if (n / span < ev->hashes_n) s->counters.truncated_tokens++;
    n = KVR_MIN(n / span, ev->hashes_n) * span;
    if (n == 0) return 0;
    if (fill_blocks(s, names, s->locals, n, (uint32_t)span)) return -KVR_ENOMEM;
    out->lower.span = (uint32_t)span;
    if (span > 1) out->lower.copies = 0; /* LMCache tells a chunk once for each request of a pass that stores it, and keeps it once */
    out->has_parent = ev->has_parent;
    out->parent_hash = ev->has_parent ? chunk_before(s, b, ev, out->tier) : ev->parent;
    out->blocks = s->blocks;
    out->blocks_n = n;
    return 1;
}

/* The end of a prompt that vLLM keeps for requests that go on within the block (prefix_match_unit): a part of one block. An engine whose
 * blocks are really smaller soon stores several at once. */
static bool is_part(const struct kvr_engine_stream *s, const struct kvr_engine_event *ev)
{
    return ev->is_map && ev->has_group && ev->hashes_n == 1 && ev->tokens_n == ev->block_size && ev->block_size < s->block_size &&
           ev->block_size && s->block_size % ev->block_size == 0;
}

/* Returns: 1 when *out is to be emitted, 0 when not, or an error. */
static int convert_stored(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev,
                          struct kvr_event *out)
{
    const uint64_t *hashes = b->hashes ? b->hashes + ev->hashes_at : NULL; /* a batch may have none */
    uint64_t salt_term;
    size_t n = 0;
    if (out->tier != KVR_TIER_DEVICE) return convert_lower(s, b, ev, out);
    if (is_part(s, ev)) {
        s->counters.partial_block++;
        return 0;
    }
    s->engine_block_size = (uint32_t)KVR_MIN(ev->block_size, (uint64_t)UINT32_MAX);
    s->coloured = s->coloured || has_colour(b, ev);
    s->counters.untold_keys += ev->untold_keys;
    if (!s->block_size && ev->block_size <= KVR_ENGINE_BLOCK_SIZE_MAX) s->block_size = (uint32_t)ev->block_size;
    if (!s->block_size || ev->block_size != s->block_size) {
        s->counters.block_size_mismatch++;
        return 0;
    }
    int rc = hashes_repeat(s, hashes, ev->hashes_n, ev->has_parent, ev->parent);
    if (rc) {
        s->counters.self_reference += rc > 0;
        return KVR_MIN(rc, 0);
    }
    if (ev->lora_id && !ev->lora.len) { /* whose blocks these are is not said: not the base model's */
        s->counters.unnamed_adapter++;
        return 0;
    }
    if (ev->salt_or_object) s->counters.salt_or_object++;
    if (!find_salt(s, ev, &salt_term)) {
        s->counters.ambiguous_cache_namespace++;
        return 0;
    }
    uint64_t seed = kvr_hash_seed(ev->lora.ptr, ev->lora.len, NULL, 0) + salt_term;
    rc = hash_tokens(s, b, ev, seed, &n);
    if (rc == -KVR_ELIMIT) n = 0;
    else if (rc) return rc;
    if (n < ev->hashes_n) s->counters.truncated_tokens++;
    n = KVR_MIN(n, ev->hashes_n);
    if (n == 0) return 0;
    if (!tag_blocks(s, hashes, n, salt_term)) {
        s->counters.ambiguous_cache_namespace++;
        return 0;
    }
    if (fill_blocks(s, hashes, s->locals, n, 1)) return -KVR_ENOMEM;
    out->kind = KVR_EVENT_STORED;
    out->has_parent = ev->has_parent;
    out->parent_hash = ev->parent;
    out->blocks = s->blocks;
    out->blocks_n = n;
    return skip_copies(s, ev, out);
}

/* Returns: as convert_stored. */
static int convert_removed(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev,
                           struct kvr_event *out)
{
    const uint64_t *names = b->hashes ? b->hashes + ev->hashes_at : NULL;
    size_t n = ev->hashes_n;
    if (out->tier == KVR_TIER_DEVICE && s->copies.more[out->tier].n) { /* the index counts those of other tiers */
        if (kvr_mem_grow(&s->mem, (void **)&s->last, &s->last_cap, n, sizeof *s->last)) return -KVR_ENOMEM;
        n = kvr__copies_removed(&s->copies, out->tier, names, n, s->last);
        s->counters.copy_removed += ev->hashes_n - n;
        names = s->last;
    }
    for (size_t i = 0; out->tier == KVR_TIER_DEVICE && i < n; i++) forget_salt(s, names[i]);
    out->kind = KVR_EVENT_REMOVED;
    out->removed = names;
    out->removed_n = n;
    return n > 0;
}

/* How many blocks before the end of a prefix its group needs. What is not understood needs all. A state of a recurrent layer is named after
 * the whole prefix that it sums up, whatever the size of the group's blocks, so one name of the prefix is enough. */
static uint32_t need_of(const struct kvr_engine_stream *s, const struct kvr_engine_event *ev)
{
    bool sliding = bytes_are(ev->spec_kind, "sliding_window") || bytes_are(ev->spec_kind, "sliding_window_mla");
    if (bytes_are(ev->spec_kind, "mamba")) return 1;
    if (!sliding || !ev->window || !s->block_size || ev->block_size != s->block_size) return UINT32_MAX;
    return (uint32_t)KVR_MIN((ev->window - 1 + s->block_size - 1) / s->block_size, (uint64_t)UINT32_MAX);
}

/* Once a group has shown blocks of another size, its engine may reuse what ends between the view's blocks. */
static void learn_need(struct kvr_engine_stream *s, const struct kvr_engine_event *ev)
{
    uint32_t need = need_of(s, ev);
    s->group_need[ev->group_idx] = need;
    if (need == UINT32_MAX || ev->block_size != s->block_size) s->group_bound |= 1ull << ev->group_idx;
}

/* An event of another group than the main one. Only such as take part in hits are told of: groups that have been learned. */
static void tell_window(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev)
{
    enum kvr_tier tier;
    bool here = !ev->locality.ptr || bytes_are(ev->locality, "LOCAL"), known = ev->has_group && ev->group_idx < KVR_ENGINE_GROUPS;
    if (!s->window || !here || !known || kvr_tier_of_medium(ev->medium.ptr ? ev->medium.ptr : "", ev->medium.len, &tier)) return;
    if (tier != KVR_TIER_DEVICE || s->group_main[ev->group_idx] != 2) return;
    bool stored = ev->kind == KVR_ENGINE_STORED;
    if (stored && ev->spec_kind.ptr) learn_need(s, ev);
    struct kvr_window_event w = {.worker = s->worker,
                                 .kind = stored ? KVR_EVENT_STORED : KVR_EVENT_REMOVED,
                                 .group = (uint32_t)ev->group_idx,
                                 .need = s->group_need[ev->group_idx],
                                 .counts = !s->again,
                                 .may_repeat = may_be_report(ev),
                                 .repeats = s->copies.reports,
                                 .names = ev->hashes_n ? b->hashes + ev->hashes_at : NULL,
                                 .n = ev->hashes_n};
    s->window(s->window_ctx, &w);
}

enum kvr_engine_groups kvr_engine_stream_groups(const struct kvr_engine_stream *s)
{
    if (!memchr(s->group_main, 2, sizeof s->group_main)) return KVR_GROUPS_EXACT;
    if (!s->window) return KVR_GROUPS_LEFT_OUT;
    return s->group_bound ? KVR_GROUPS_BOUND : KVR_GROUPS_EXACT;
}

/* vLLM's worker of Mooncake's store, which all engines of a fleet may read: the only one to write this medium in small letters and to
 * name a cache group. */
static bool is_mooncake(const struct kvr_engine_event *ev)
{
    return bytes_are(ev->medium, "cpu") && ev->has_group;
}

static int convert(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev, struct kvr_event *out)
{
    if (ev->kind == KVR_ENGINE_IGNORED || ev->kind == KVR_ENGINE_UNKNOWN) {
        if (ev->kind == KVR_ENGINE_IGNORED) s->counters.ignored_event++;
        else s->counters.unknown_tag++;
        return 0;
    }
    if (ev->kind == KVR_ENGINE_CLEARED) {
        kvr_map64_clear(&s->salts);
        kvr__copies_forget(&s->copies);
        out->kind = KVR_EVENT_CLEARED;
        return 1;
    }
    if (!passes_group_filter(s, ev)) {
        tell_window(s, b, ev);
        return 0;
    }
    if (kvr_tier_of_medium(ev->medium.ptr ? ev->medium.ptr : "", ev->medium.len, &out->tier)) {
        s->counters.unknown_medium++;
        return 0;
    }
    bool remote = ev->locality.ptr && !bytes_are(ev->locality, "LOCAL");
    if (remote && out->tier == KVR_TIER_DEVICE) {
        s->counters.remote_locality++;
        return 0;
    }
    if (remote || is_mooncake(ev)) out->tier = KVR_TIER_EXTERNAL;
    return ev->kind == KVR_ENGINE_STORED ? convert_stored(s, b, ev, out) : convert_removed(s, b, ev, out);
}

/* ---- reports --------------------------------------------------------------------------------------------------- */

/* Has a hybrid model's view unproven counts where they cannot be seen from here? */
static bool has_windows(const struct kvr_engine_stream *s)
{
    return s->window && memchr(s->group_main, 2, sizeof s->group_main);
}

long kvr_engine_stream_take_back(struct kvr_engine_stream *s, uint64_t event_id, kvr_engine_emit *emit, void *ctx)
{
    size_t most = 0;
    long emitted = 0;
    for (int t = 0; t < KVR_TIER_COUNT; t++) most = KVR_MAX(most, s->copies.more[t].n);
    if (kvr_mem_grow(&s->mem, (void **)&s->last, &s->last_cap, most, sizeof *s->last)) return -KVR_ENOMEM;
    s->counters.copy_taken_back += s->copies.unproven;
    s->copies.unsure |= s->copies.unproven > 0;
    s->copies.reports = true;
    s->taking_back = true;
    for (enum kvr_tier t = 0; t < KVR_TIER_COUNT; t++) {
        struct kvr_event out = {.event_id = event_id, .worker = s->worker, .kind = KVR_EVENT_REMOVED, .tier = t, .removed = s->last};
        out.removed_n = s->copies.more[t].n ? kvr__copies_take_back(&s->copies, t, s->last) : 0;
        for (size_t i = 0; t == KVR_TIER_DEVICE && i < out.removed_n; i++) forget_salt(s, s->last[i]);
        if (!out.removed_n || (t != KVR_TIER_DEVICE && !s->tiers)) continue;
        emit(ctx, &out);
        emitted++;
    }
    s->taking_back = false;
    if (has_windows(s)) s->window(s->window_ctx, &(struct kvr_window_event){.worker = s->worker, .take_back = true});
    return emitted;
}

/* Can what ends with this block have been read from a tier behind the device? What is read ends where the tier has a name. */
static bool was_load(const struct kvr_engine_stream *s, uint64_t last)
{
    for (enum kvr_tier t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        if (s->holds(s->holds_ctx, t, last)) return true;
    return false;
}

/* Does the event show that the store before it was a report? */
static bool shows_report(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *ev)
{
    const struct kvr_engine_event *told = s->told;
    if (!told || ev->kind == KVR_ENGINE_REMOVED) return false;
    bool other_group = ev->kind == KVR_ENGINE_STORED && (ev->has_group != told->has_group || ev->group_idx != told->group_idx);
    if (other_group) return false;
    bool follows =
        ev->kind == KVR_ENGINE_STORED && ev->hashes_n && ev->has_parent && ev->parent == b->hashes[told->hashes_at + told->hashes_n - 1];
    uint64_t next = follows ? b->hashes[ev->hashes_at] : 0;
    bool fresh = follows && !s->holds(s->holds_ctx, KVR_TIER_DEVICE, next);
    bool hint = fresh || (follows && kvr__copies_doubtful(&s->copies, KVR_TIER_DEVICE, next));
    s->told = NULL;
    if (was_load(s, b->hashes[told->hashes_at + told->hashes_n - 1])) return false;
    s->hints = hint ? s->hints + 1 : 0;
    return (fresh && ev->hashes_n > 1) || s->hints >= REPORT_HINTS;
}

/* What that one counted was nothing, for certain; what others did is not known. */
static long take_report_back(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, const struct kvr_engine_event *report,
                             uint64_t event_id, kvr_engine_emit *emit, void *ctx)
{
    s->counters.copy_reported += report->hashes_n;
    kvr__copies_uncount(&s->copies, KVR_TIER_DEVICE, b->hashes + report->hashes_at, report->hashes_n);
    return kvr_engine_stream_take_back(s, event_id, emit, ctx);
}

/* ---- a batch --------------------------------------------------------------------------------------------------- */

long kvr_engine_convert(struct kvr_engine_stream *s, const struct kvr_engine_batch *b, uint64_t event_id, kvr_engine_emit *emit, void *ctx)
{
    long emitted = 0;
    s->told = NULL;
    for (size_t i = 0; i < b->events_n; i++) {
        struct kvr_event out = {.event_id = event_id, .worker = s->worker};
        const struct kvr_engine_event *told = s->told;
        s->current = &b->events[i];
        long taken = shows_report(s, b, &b->events[i]) ? take_report_back(s, b, told, event_id, emit, ctx) : 0;
        if (taken < 0) return taken;
        emitted += taken;
        int rc = convert(s, b, &b->events[i], &out);
        if (rc < 0) return rc;
        if (rc == 0) continue;
        if (out.tier != KVR_TIER_DEVICE && !s->tiers) { /* seen, not silently lost */
            s->counters.lower_tier++;
            continue;
        }
        emit(ctx, &out);
        emitted++;
    }
    if (s->told) s->hints = 0;
    s->told = NULL;
    return emitted;
}
