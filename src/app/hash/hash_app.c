/* SPDX-License-Identifier: Apache-2.0 */
#include "app/hash/hash.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/hash/state.h"
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

static int given_ids(const struct hash_options *o, struct kvr_ids **out)
{
    struct kvr_ids *ids = kvr_ids_new(NULL, strlen(o->tokens) / 2 + 2);
    long n = ids ? parse_tokens(o->tokens, ids->v) : -1;
    if (n >= 0) {
        ids->n = (size_t)n;
        *out = ids;
        return 0;
    }
    kvr_log_error("kvroute hash: --tokens: bad value '%.80s'; allowed: token ids from 0 to 4294967295, separated by commas", o->tokens);
    kvr_ids_unref(ids);
    return 2;
}

static int take_ids(const struct hash_options *o, struct kvr_ids **out)
{
    if ((o->tokens != NULL) + (o->text != NULL) + (o->messages != NULL) != 1) {
        kvr_log_error("kvroute hash: allowed: one of --tokens, --text and --messages");
        return 2;
    }
    return o->tokens ? given_ids(o, out) : prompt_ids(o, out);
}

static int print(const struct hash_options *o, const struct kvr_ids *ids)
{
    uint64_t *locals = malloc((ids->n + 1) * sizeof *locals), *seqs = malloc((ids->n + 1) * sizeof *seqs);
    const char *lora = o->lora_name ? o->lora_name : "", *salt = o->cache_salt ? o->cache_salt : "";
    struct kvr_buf b = {0};
    b.failed = !locals || !seqs;
    if (!b.failed) {
        uint64_t seed = kvr_hash_seed(lora, strlen(lora), salt, strlen(salt));
        long blocks = kvr_hash_locals(ids->v, ids->n, (uint32_t)o->block_size, o->eagle, seed, NULL, 0, locals);
        kvr_hash_sequence(locals, (size_t)blocks, seqs);
        kvr_json_printf(&b, "{'block_size':%ju,'token_ids':", o->block_size);
        kvr_json_u32s(&b, ids->v, ids->n);
        kvr_json_printf(&b, "'local_hashes':");
        kvr_json_u64s(&b, locals, (size_t)blocks);
        kvr_json_printf(&b, "'sequence_hashes':");
        kvr_json_u64s(&b, seqs, (size_t)blocks);
        kvr_json_close(&b, '}');
    }
    if (!b.failed) printf("%.*s\n", (int)b.len, b.data);
    bool done = !b.failed;
    free(locals);
    free(seqs);
    kvr_buf_free(&b);
    return done ? 0 : 1;
}

int hash_main(const struct hash_options *o)
{
    struct kvr_ids *ids = NULL;
    int rc = take_ids(o, &ids);
    if (rc == 0) rc = print(o, ids);
    kvr_ids_unref(ids);
    return rc;
}
