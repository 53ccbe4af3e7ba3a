/* SPDX-License-Identifier: Apache-2.0 */
#include "app/hash/hash.h"

#include <string.h>
#include <kvroute/hash.h>

#include "base/buf.h"
#include "base/log.h"

/* "1,2,3" -> tokens. Returns: the count or -1. */
static long parse_tokens(const char *s, uint32_t *out)
{
    long n = 0;
    while (*s) {
        char *end;
        if (*s < '0' || *s > '9') return -1;
        unsigned long long v = strtoull(s, &end, 10);
        if (v > UINT32_MAX || (*end && *end != ',') || (*end == ',' && !end[1])) return -1;
        out[n++] = (uint32_t)v;
        s = *end ? end + 1 : end;
    }
    return n;
}

static void put_hashes(struct kvr_buf *b, const char *key, const uint64_t *h, size_t n)
{
    kvr_json_key(b, key);
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, h[i]);
    kvr_json_close(b, ']');
}

int hash_main(const struct hash_options *o)
{
    size_t cap = o->tokens ? strlen(o->tokens) / 2 + 2 : 1;
    uint32_t *tokens = malloc(cap * sizeof *tokens);
    uint64_t *locals = malloc(cap * sizeof *locals), *seqs = malloc(cap * sizeof *seqs);
    struct kvr_buf b = {0};
    int rc = 1;
    if (!tokens || !locals || !seqs) goto out;
    long n = o->tokens ? parse_tokens(o->tokens, tokens) : -1;
    if (n < 0) {
        kvr_log_error("kvroute hash: --tokens: bad value '%.80s'; allowed: token ids from 0 to 4294967295, separated by commas",
                      o->tokens ? o->tokens : "");
        rc = 2;
        goto out;
    }
    const char *lora = o->lora_name ? o->lora_name : "", *salt = o->cache_salt ? o->cache_salt : "";
    uint64_t seed = kvr_hash_seed(lora, strlen(lora), salt, strlen(salt));
    long blocks = kvr_hash_locals(tokens, (size_t)n, (uint32_t)o->block_size, o->eagle, seed, NULL, 0, locals);
    kvr_hash_sequence(locals, (size_t)blocks, seqs);
    kvr_json_open(&b, '{');
    kvr_json_key(&b, "block_size");
    kvr_json_u64(&b, o->block_size);
    put_hashes(&b, "local_hashes", locals, (size_t)blocks);
    put_hashes(&b, "sequence_hashes", seqs, (size_t)blocks);
    kvr_json_close(&b, '}');
    if (!b.failed) {
        printf("%.*s\n", (int)b.len, b.data);
        rc = 0;
    }
out:
    free(tokens);
    free(locals);
    free(seqs);
    kvr_buf_free(&b);
    return rc;
}
