/* SPDX-License-Identifier: Apache-2.0 */
/* Cache of what engines' tokenizers have answered: token_cache.c. Any thread. */
#ifndef KVR_SERVE_TOKEN_CACHE_H
#define KVR_SERVE_TOKEN_CACHE_H

#include <stddef.h>
#include <stdint.h>

struct token_cache;
struct token_cache *token_cache_create(size_t bytes_max);
void token_cache_destroy(struct token_cache *c);
void token_cache_key(const char *body, size_t len, uint64_t key[2]);
uint32_t *token_cache_get(struct token_cache *c, const uint64_t key[2], size_t *n); /* malloc'd copy */
void token_cache_put(struct token_cache *c, const uint64_t key[2], const uint32_t *tokens, size_t n);

#endif
