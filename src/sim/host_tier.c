/* SPDX-License-Identifier: Apache-2.0 */
/* A table of chunks by name, their list by use, and two lists of what was offered: in this pass, and before it. */
#include "sim/host_tier.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/map64.h"

struct chunk {
    uint32_t next, prev; /* 0: the list's ends */
};
struct offers {
    uint64_t *names; /* of each: the name before it, then its blocks' */
    uint32_t *tokens;
    size_t n, names_cap, tokens_cap;
};
struct host_tier {
    uint32_t chunk, least, block_size, most, used;
    struct kvr_mem mem;
    struct chunk *chunks; /* [0]: the list; then `most` */
    uint64_t *names;      /* `chunk` of each */
    struct kvr_map64 at;  /* last name -> place */
    struct offers now, before;
};

struct host_tier *host_tier_create(uint32_t blocks, uint32_t chunk, uint32_t least, uint32_t block_size)
{
    struct host_tier *h = calloc(1, sizeof *h);
    if (!h) return NULL;
    h->chunk = chunk;
    h->least = least;
    h->block_size = block_size;
    h->most = KVR_MAX(blocks / chunk, 1u);
    kvr_mem_init(&h->mem, NULL, 0);
    h->chunks = calloc(h->most + 1, sizeof *h->chunks);
    h->names = calloc((size_t)(h->most + 1) * chunk, sizeof *h->names);
    if (h->chunks && h->names) return h;
    host_tier_destroy(h);
    return NULL;
}

static void forget_offers(struct host_tier *h, struct offers *o)
{
    kvr_mem_put(&h->mem, o->names, o->names_cap * sizeof *o->names);
    kvr_mem_put(&h->mem, o->tokens, o->tokens_cap * sizeof *o->tokens);
    *o = (struct offers){0};
}

void host_tier_destroy(struct host_tier *h)
{
    if (!h) return;
    forget_offers(h, &h->now);
    forget_offers(h, &h->before);
    kvr_map64_clear(&h->at);
    free(h->chunks);
    free(h->names);
    free(h);
}

static void unlink_chunk(struct host_tier *h, uint32_t c)
{
    h->chunks[h->chunks[c].prev].next = h->chunks[c].next;
    h->chunks[h->chunks[c].next].prev = h->chunks[c].prev;
}

static void link_last(struct host_tier *h, uint32_t c)
{
    h->chunks[c] = (struct chunk){.next = 0, .prev = h->chunks[0].prev};
    h->chunks[h->chunks[0].prev].next = c;
    h->chunks[0].prev = c;
}

size_t host_tier_reach(const struct host_tier *h, const uint64_t *names, size_t n, size_t device)
{
    size_t c = device / h->chunk;
    while ((c + 1) * h->chunk <= n && kvr_map64_get(&h->at, names[(c + 1) * h->chunk - 1])) c++;
    return c * h->chunk >= device + h->least ? c * h->chunk : device;
}

/* Returns: whether it is there. */
static bool use_chunk(struct host_tier *h, uint64_t last_name)
{
    const uint64_t *at = kvr_map64_get(&h->at, last_name);
    if (!at) return false;
    unlink_chunk(h, (uint32_t)*at);
    link_last(h, (uint32_t)*at);
    return true;
}

/* The last of a prompt first, so that it is the first to go. */
void host_tier_touch(struct host_tier *h, const uint64_t *names, size_t from, size_t to)
{
    for (size_t c = to / h->chunk; c > from / h->chunk; c--) (void)use_chunk(h, names[c * h->chunk - 1]);
}

void host_tier_offer(struct host_tier *h, const uint64_t *names, size_t from, size_t to, const uint32_t *tokens)
{
    struct offers *o = &h->now;
    size_t k = h->chunk, each = k * h->block_size;
    for (size_t c = from / k; (c + 1) * k <= to; c++) {
        if (use_chunk(h, names[(c + 1) * k - 1])) continue;
        if (kvr_mem_grow(&h->mem, (void **)&o->names, &o->names_cap, (o->n + 1) * (k + 1), sizeof *o->names) ||
            kvr_mem_grow(&h->mem, (void **)&o->tokens, &o->tokens_cap, (o->n + 1) * each, sizeof *o->tokens))
            return; /* not copied */
        uint64_t *to_names = o->names + o->n * (k + 1);
        to_names[0] = c ? names[c * k - 1] : 0;
        memcpy(to_names + 1, names + c * k, k * sizeof *names);
        memcpy(o->tokens + o->n * each, tokens + c * each, each * sizeof *tokens);
        o->n++;
    }
}

static uint32_t make_room(struct host_tier *h, host_tier_tell *tell, void *ctx)
{
    if (h->used < h->most) return ++h->used;
    uint32_t c = h->chunks[0].next;
    const uint64_t *names = h->names + (size_t)c * h->chunk;
    unlink_chunk(h, c);
    kvr_map64_del(&h->at, names[h->chunk - 1]);
    tell(ctx, &(struct host_chunk){.names = names});
    return c;
}

void host_tier_copy(struct host_tier *h, host_tier_tell *tell, void *ctx)
{
    struct offers o = h->before;
    size_t k = h->chunk;
    for (size_t i = 0; i < o.n; i++) {
        const uint64_t *names = o.names + i * (k + 1) + 1;
        if (kvr_map64_get(&h->at, names[k - 1])) continue;
        uint32_t c = make_room(h, tell, ctx);
        if (kvr_map64_put(&h->at, names[k - 1], c)) KVR_ASSERT(!"memory for a simulated engine");
        memcpy(h->names + (size_t)c * k, names, k * sizeof *names);
        link_last(h, c);
        tell(ctx, &(struct host_chunk){true, names, names[-1], o.tokens + i * k * h->block_size});
    }
    for (size_t i = o.n; i-- > 0;) (void)use_chunk(h, o.names[i * (k + 1) + k]); /* their request may have ended before */
    o.n = 0;
    h->before = h->now;
    h->now = o;
}

void host_tier_clear(struct host_tier *h)
{
    kvr_map64_clear(&h->at);
    h->used = 0;
    h->chunks[0] = (struct chunk){0};
    h->now.n = h->before.n = 0;
}

size_t host_tier_blocks(const struct host_tier *h)
{
    return h->at.n * h->chunk;
}
