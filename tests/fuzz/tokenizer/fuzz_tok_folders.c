/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a folder: a byte of options, tokenizer.json, tokenizer_config.json, chat_template.jinja and a question, each ended by a byte
 * that no UTF-8 has; one that is empty is the fixed folder's. It is loaded or refused with a reason, and a question has the same ids new,
 * seen and plain.
 */
#include <string.h>

#include "tok_fuzz.h"

enum { FILES = 3, END = 0xff };

static const char *const names[FILES] = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"};

struct bytes {
    char *data;
    size_t len;
};

static struct bytes usual[FILES + 1]; /* the last: a question */
static struct bytes written[FILES];   /* what the files have now */

static struct bytes copy(const void *data, size_t len)
{
    struct bytes b = {malloc(len + 1), len};
    TOK_CHECK(b.data != NULL);
    if (len) memcpy(b.data, data, len);
    return b;
}

static struct bytes read_file(const char *path)
{
    char part[4096];
    struct bytes b = {0};
    FILE *f = fopen(path, "rb");
    TOK_CHECK(f != NULL);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0; b.len += n) {
        b.data = realloc(b.data, b.len + n);
        TOK_CHECK(b.data != NULL);
        memcpy(b.data + b.len, part, n);
    }
    (void)fclose(f);
    return b;
}

/* The folder is the process's own: several may run. The script removes it. */
static const char *own_folder(void)
{
    static char dir[512];
    if (!dir[0]) {
        TOK_CHECK(snprintf(dir, sizeof dir, "%s", tok_fuzz_path("own-XXXXXX")) < (int)sizeof dir);
        TOK_CHECK(mkdtemp(dir) != NULL);
    }
    return dir;
}

static const char *own_path(size_t file)
{
    static char path[600];
    (void)snprintf(path, sizeof path, "%s/%s", own_folder(), names[file]);
    return path;
}

static void start(void)
{
    char name[64];
    for (size_t i = 0; i < FILES; i++) {
        (void)snprintf(name, sizeof name, "bytes/%s", names[i]);
        usual[i] = read_file(tok_fuzz_path(name));
        written[i].len = SIZE_MAX;
    }
    usual[FILES] = read_file(tok_fuzz_path("question.json"));
}

static void write_file(size_t i, const char *data, size_t len)
{
    if (written[i].len == len && (len == 0 || memcmp(written[i].data, data, len) == 0)) return;
    FILE *f = fopen(own_path(i), "wb");
    TOK_CHECK(f != NULL && fwrite(data, 1, len, f) == len && fclose(f) == 0);
    free(written[i].data);
    written[i] = copy(data, len);
}

/* What is before the next END, or the usual; *data moves behind it. */
static struct bytes next_part(const uint8_t **data, size_t *left, size_t i)
{
    const uint8_t *end = *left ? memchr(*data, END, *left) : NULL;
    size_t n = end ? (size_t)(end - *data) : *left, over = end ? n + 1 : n;
    struct bytes part = n ? (struct bytes){(char *)(uintptr_t)*data, n} : usual[i];
    *data += over;
    *left -= over;
    return part;
}

struct task {
    const char *options;
    struct bytes question;
    size_t inline_max;
};

static void load_and_ask(void *arg)
{
    struct task *task = arg;
    struct kvr_tok *t = NULL;
    struct kvr_tok_buf why = {0};
    int rc = kvr_tok_load(own_folder(), task->options, &t, &why);
    TOK_CHECK(rc == 0 || rc == KVR_TOK_EBAD || rc == KVR_TOK_EUNSUPPORTED);
    TOK_CHECK(rc == 0 || why.len > 0);
    kvr_tok_buf_free(&why);
    if (rc) return;
    TOK_CHECK(kvr_tok_info(t, &why) == 0 && why.len > 0);
    kvr_tok_buf_free(&why);
    tok_fuzz_compare(t, task->question.data, task->question.len, task->inline_max);
    tok_fuzz_compare(t, usual[FILES].data, usual[FILES].len, 0);
    kvr_tok_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const options[4] = {"{\"fast\":false,\"cache_bytes\":65536}", "{\"fast\":false,\"raw\":true,\"cache_bytes\":65536}",
                                           "{\"fast\":false,\"engine\":\"sglang\",\"cache_bytes\":4096}", "{\"cache_bytes\":65536}"};
    if (!usual[0].data) start();
    if (size == 0) return 0;
    struct task task = {.options = options[data[0] % 4], .inline_max = data[0] & 0x80 ? 0 : SIZE_MAX};
    data++, size--;
    for (size_t i = 0; i < FILES; i++) {
        struct bytes part = next_part(&data, &size, i);
        write_file(i, part.data, part.len);
    }
    task.question = next_part(&data, &size, FILES);
    tok_fuzz_on_small_stack(load_and_ask, &task);
    return 0;
}
