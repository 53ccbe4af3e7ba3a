/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache of what an engine's tokenizer made of a question (wire/tokenize_body.h): keyed by a 128-bit hash of all of it, so nothing
 * that could change the tokens is ever left out of the key, and what cannot is not part of it. Least recently used entries go first. Under
 * serve.lock.
 */
#include "app/serve/state.h"

#include <string.h>
#include <kvroute/hash.h>

enum { BUCKETS = 4096 };

struct entry {
    struct entry *bucket_next, *older, *newer;
    uint64_t key[2];
    size_t n;
    uint32_t tokens[];
};

struct token_cache {
    struct entry *buckets[BUCKETS];
    struct entry *oldest, *newest;
    size_t bytes, bytes_max;
};

struct token_cache *token_cache_create(size_t bytes_max)
{
    struct token_cache *c = calloc(1, sizeof *c);
    if (c) c->bytes_max = bytes_max;
    return c;
}

void token_cache_key(const char *body, size_t len, uint64_t key[2])
{
    key[0] = kvr_hash_bytes(body, len, kvr_secret() + 11);
    key[1] = kvr_hash_bytes(body, len, kvr_secret() + 21);
}

static struct entry **place(struct token_cache *c, const uint64_t key[2])
{
    struct entry **p = &c->buckets[key[0] % BUCKETS];
    while (*p && !((*p)->key[0] == key[0] && (*p)->key[1] == key[1])) p = &(*p)->bucket_next;
    return p;
}

static size_t entry_size(size_t n)
{
    return sizeof(struct entry) + n * sizeof(uint32_t);
}

static void unlink_age(struct token_cache *c, struct entry *e)
{
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
}

static void link_newest(struct token_cache *c, struct entry *e)
{
    e->older = c->newest;
    e->newer = NULL;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

static void drop(struct token_cache *c, struct entry *e)
{
    *place(c, e->key) = e->bucket_next;
    unlink_age(c, e);
    c->bytes -= entry_size(e->n);
    free(e);
}

uint32_t *token_cache_get(struct token_cache *c, const uint64_t key[2], size_t *n)
{
    struct entry *e = *place(c, key);
    if (!e) return NULL;
    unlink_age(c, e);
    link_newest(c, e);
    uint32_t *t = malloc((e->n + 1) * sizeof *t);
    if (!t) return NULL;
    memcpy(t, e->tokens, e->n * sizeof *t);
    *n = e->n;
    return t;
}

void token_cache_put(struct token_cache *c, const uint64_t key[2], const uint32_t *tokens, size_t n)
{
    size_t size = entry_size(n);
    if (size > c->bytes_max / 8 || *place(c, key)) return;
    while (c->oldest && c->bytes + size > c->bytes_max) drop(c, c->oldest);
    struct entry *e = malloc(size);
    if (!e) return;
    memcpy(e->key, key, sizeof e->key);
    e->n = n;
    memcpy(e->tokens, tokens, n * sizeof *tokens);
    struct entry **head = &c->buckets[key[0] % BUCKETS];
    e->bucket_next = *head;
    *head = e;
    link_newest(c, e);
    c->bytes += size;
}

void token_cache_destroy(struct token_cache *c)
{
    if (!c) return;
    while (c->oldest) drop(c, c->oldest);
    free(c);
}
