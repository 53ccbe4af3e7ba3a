/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as questions to tokenizers of fixed folders, for each engine, over a cache so small that it always forgets. The first byte says
 * which tokenizer and whether a job makes the ids. Ids are the same new, seen and plain; the cache keeps its bound. */
#include <string.h>

#include "tok_fuzz.h"

enum { TOKENIZERS = 8, CACHE_BYTES = 65536 };

static struct kvr_tok *tokenizers[TOKENIZERS];

static struct kvr_tok *load(const char *name, const char *options)
{
    struct kvr_tok *t = NULL;
    struct kvr_tok_buf why = {0};
    int rc = kvr_tok_load(tok_fuzz_path(name), options, &t, &why);
    if (rc) (void)fprintf(stderr, "%.*s\n", (int)why.len, (const char *)why.data);
    TOK_CHECK(rc == 0);
    kvr_tok_buf_free(&why);
    return t;
}

/* Else a target would compare the engines' own encoder with itself, and use no cache. */
static void check_kind(const struct kvr_tok *t)
{
    struct kvr_tok_buf info = {0};
    TOK_CHECK(kvr_tok_info(t, &info) == 0);
    TOK_CHECK(memmem(info.data, info.len, "\"encoder\":\"fast\"", 16) && memmem(info.data, info.len, "\"segments\":\"yes\"", 16));
    kvr_tok_buf_free(&info);
}

static struct kvr_tok *variant(const struct kvr_tok *t, const char *options)
{
    struct kvr_tok *v = NULL;
    struct kvr_tok_buf why = {0};
    TOK_CHECK(kvr_tok_variant(t, options, &v, &why) == 0);
    kvr_tok_buf_free(&why);
    return v;
}

/* Folders that the script has made, and their variants, which share a cache. */
static void load_all(void)
{
    static const char *const folders[TOKENIZERS / 4] = {"bytes", "pieces"};
    size_t n = 0;
    for (size_t i = 0; i < TOKENIZERS / 4; i++) {
        struct kvr_tok *t = load(folders[i], "{\"cache_bytes\":65536}");
        check_kind(t);
        tokenizers[n++] = t;
        tokenizers[n++] = variant(t, "{\"engine\":\"sglang\"}");
        tokenizers[n++] = variant(t, "{\"raw\":true}");
        tokenizers[n++] = variant(t, "{\"content_format\":\"openai\",\"drop_none\":false,\"typed\":false,\"developer_to_system\":false}");
    }
}

struct question {
    const struct kvr_tok *t;
    const char *text;
    size_t len, inline_max;
};

static void ask(void *arg)
{
    struct question *q = arg;
    struct kvr_tok_figures f;
    tok_fuzz_compare(q->t, q->text, q->len, q->inline_max);
    kvr_tok_figures(q->t, &f);
    TOK_CHECK(f.bytes <= CACHE_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizers[0]) load_all();
    if (size == 0) return 0;
    struct question q = {tokenizers[data[0] % TOKENIZERS], (const char *)data + 1, size - 1, data[0] & 0x80 ? 0 : SIZE_MAX};
    tok_fuzz_on_small_stack(ask, &q);
    return 0;
}
