/* SPDX-License-Identifier: Apache-2.0 */
#include "tok_fuzz.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

struct run {
    void (*f)(void *);
    void *arg;
};

static void *run(void *arg)
{
    struct run *r = arg;
    r->f(r->arg);
    return NULL;
}

void tok_fuzz_on_small_stack(void (*f)(void *), void *arg)
{
    struct run r = {f, arg};
    pthread_t thread;
    pthread_attr_t attr;
    TOK_CHECK(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 512 << 10) == 0);
    TOK_CHECK(pthread_create(&thread, &attr, run, &r) == 0);
    TOK_CHECK(pthread_join(thread, NULL) == 0);
    (void)pthread_attr_destroy(&attr);
}

const char *tok_fuzz_path(const char *name)
{
    static char path[PATH_MAX];
    const char *dir = getenv("KVR_TOK_FUZZ");
    TOK_CHECK(dir != NULL); /* scripts/fuzz_tokenizer.sh sets it */
    TOK_CHECK(snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path);
    return path;
}

/* Of whatever question: an answer or a reason. */
static void check_code(const struct tok_answer *a)
{
    TOK_CHECK(a->code == 0 || a->code == KVR_TOK_EBAD || a->code == KVR_TOK_EUNSUPPORTED || a->code == KVR_TOK_ETEMPLATE);
    TOK_CHECK(a->code == 0 || a->buf.len > 0);
}

struct tok_answer tok_fuzz_ask(const struct kvr_tok *t, const char *question, size_t len, size_t inline_max)
{
    struct tok_answer a = {0};
    struct kvr_tok_job *job = NULL;
    a.code = kvr_tok_ask(t, question, len, inline_max, &job, &a.buf);
    if (a.code == 1) {
        TOK_CHECK(job != NULL);
        kvr_tok_buf_free(&a.buf);
        a.code = kvr_tok_finish(job, &a.buf);
    }
    check_code(&a);
    TOK_CHECK(a.code || a.buf.len % sizeof(uint32_t) == 0);
    return a;
}

struct tok_answer tok_fuzz_plain(const struct kvr_tok *t, const char *question, size_t len)
{
    struct tok_answer a = {0};
    a.code = kvr_tok_plain(t, question, len, &a.buf);
    check_code(&a);
    return a;
}

struct tok_answer tok_fuzz_render(const struct kvr_tok *t, const char *question, size_t len)
{
    struct tok_answer a = {0};
    a.code = kvr_tok_render(t, question, len, &a.buf);
    check_code(&a);
    return a;
}

void tok_fuzz_free(struct tok_answer *a)
{
    kvr_tok_buf_free(&a->buf);
    kvr_tok_buf_free(&a->buf); /* twice is once */
}

static bool are_equal(const struct tok_answer *a, const struct tok_answer *b)
{
    return a->code == b->code && a->buf.len == b->buf.len && (a->buf.len == 0 || memcmp(a->buf.data, b->buf.data, a->buf.len) == 0);
}

void tok_fuzz_compare(const struct kvr_tok *t, const char *question, size_t len, size_t inline_max)
{
    struct tok_answer first = tok_fuzz_ask(t, question, len, inline_max), again = tok_fuzz_ask(t, question, len, inline_max);
    struct tok_answer plain = tok_fuzz_plain(t, question, len), text = tok_fuzz_render(t, question, len);
    TOK_CHECK(are_equal(&first, &again));
    TOK_CHECK(are_equal(&first, &plain));
    TOK_CHECK(first.code != 0 || text.code == 0); /* no ids without a text */
    tok_fuzz_free(&first);
    tok_fuzz_free(&again);
    tok_fuzz_free(&plain);
    tok_fuzz_free(&text);
}
