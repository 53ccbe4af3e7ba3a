/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cache of what an engine's tokenizer made of a question (wire/tokenize_body.h): keyed by a 128-bit hash of all of it, so nothing
 * that could change the tokens is ever left out of the key, and what cannot is not part of it. Least recently used entries go first.
 *
 * Threads: any. Its lock is a leaf: nothing is locked, hashed or copied under it. An entry's tokens do not change once it is in the table,
 * and an entry lives as long as somebody holds it: the table holds it until it is dropped, a reader while it copies the tokens.
 */
#include "app/serve/data/state/token_cache.h"

#include <stdatomic.h>
#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/data/state/room.h"
#include "base/lock.h"
#include "base/lru.h"

struct entry {
    struct kvr_lru_entry lru;
    _Atomic size_t holders;
    uint64_t key[2];
    size_t n;
    uint32_t tokens[];
};

struct token_cache {
    struct kvr_lock lock;
    struct kvr_lru entries;
    size_t bytes, bytes_max;
};

struct token_cache *token_cache_create(size_t bytes_max)
{
    struct token_cache *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->bytes_max = bytes_max;
    kvr_lock_init(&c->lock, KVR_LOCK_TOKENS);
    if (kvr_lru_init(&c->entries) == 0) return c;
    token_cache_destroy(c);
    return NULL;
}

void token_cache_key(const char *body, size_t len, uint64_t key[2])
{
    key[0] = kvr_hash_bytes(body, len, kvr_secret() + 11);
    key[1] = kvr_hash_bytes(body, len, kvr_secret() + 21);
}

static bool same(const struct kvr_lru_entry *e, const void *key)
{
    return memcmp(((const struct entry *)e)->key, key, sizeof((const struct entry *)e)->key) == 0;
}

static struct entry *find_locked(struct token_cache *c, const uint64_t key[2])
{
    return (struct entry *)kvr_lru_find(&c->entries, key[0], same, key);
}

static size_t entry_size(size_t n)
{
    return sizeof(struct entry) + n * sizeof(uint32_t);
}

static void let_go(struct entry *e)
{
    if (atomic_fetch_sub(&e->holders, 1) == 1) free(e);
}

static void drop_locked(struct token_cache *c, struct entry *e)
{
    kvr_lru_remove(&c->entries, &e->lru);
    c->bytes -= entry_size(e->n);
    let_go(e);
}

static struct entry *hold(struct token_cache *c, const uint64_t key[2])
{
    kvr_lock(&c->lock);
    struct entry *e = find_locked(c, key);
    if (e) {
        kvr_lru_touch(&c->entries, &e->lru);
        atomic_fetch_add(&e->holders, 1);
    }
    kvr_unlock(&c->lock);
    return e;
}

uint32_t *token_cache_get(struct token_cache *c, const uint64_t key[2], size_t *n)
{
    struct entry *e = hold(c, key);
    if (!e) return NULL;
    uint32_t *t = malloc((e->n + 1) * sizeof *t);
    if (t) {
        memcpy(t, e->tokens, e->n * sizeof *t);
        *n = e->n;
    }
    let_go(e);
    return t;
}

void token_cache_put(struct token_cache *c, const uint64_t key[2], const uint32_t *tokens, size_t n)
{
    size_t size = entry_size(n);
    struct entry *e = size > c->bytes_max / 8 ? NULL : malloc(size);
    if (!e) return;
    atomic_init(&e->holders, 1);
    memcpy(e->key, key, sizeof e->key);
    e->n = n;
    memcpy(e->tokens, tokens, n * sizeof *tokens);
    kvr_lock(&c->lock);
    bool news = !find_locked(c, key);
    if (news) {
        while (c->entries.oldest && c->bytes + size > c->bytes_max) drop_locked(c, (struct entry *)c->entries.oldest);
        kvr_lru_add(&c->entries, &e->lru, key[0]);
        c->bytes += size;
    }
    kvr_unlock(&c->lock);
    if (!news) free(e);
}

void token_cache_destroy(struct token_cache *c)
{
    if (!c) return;
    while (c->entries.oldest) drop_locked(c, (struct entry *)c->entries.oldest);
    kvr_lru_free(&c->entries);
    kvr_lock_destroy(&c->lock);
    free(c);
}
