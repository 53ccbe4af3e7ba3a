/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tokenizer library's fuzz targets share. They are built apart from the other targets (scripts/fuzz_tokenizer.sh): the library is
 * Rust, with the same instrumentation.
 *
 * Threads: the fuzzer's one, and the one that tok_fuzz_on_small_stack starts and waits for.
 * Owns:    an answer owns its bytes until tok_fuzz_free.
 * Errors:  what may never be, such as a panic, ends the process: a finding.
 */
#ifndef TOK_FUZZ_H
#define TOK_FUZZ_H
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "kvr_tokenizer.h"

#define TOK_CHECK(what)                                                                                                                    \
    do {                                                                                                                                   \
        if (!(what)) {                                                                                                                     \
            (void)fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #what);                                                \
            abort();                                                                                                                       \
        }                                                                                                                                  \
    } while (0)

struct tok_answer {
    int code;
    struct kvr_tok_buf buf;
};

/* Runs `f` on a stack of 512 KiB, which is what threads have elsewhere. */
void tok_fuzz_on_small_stack(void (*f)(void *), void *arg);

/* The folder that the script has made, from the environment: `name` behind it. Returns: static memory, until the next call. */
const char *tok_fuzz_path(const char *name);

/* Ids, at once or by a job when more than `inline_max` bytes are new; by the other encoder; the text. */
struct tok_answer tok_fuzz_ask(const struct kvr_tok *t, const char *question, size_t len, size_t inline_max);
struct tok_answer tok_fuzz_plain(const struct kvr_tok *t, const char *question, size_t len);
struct tok_answer tok_fuzz_render(const struct kvr_tok *t, const char *question, size_t len);
void tok_fuzz_free(struct tok_answer *a);

/* Asks in all three ways. Checks: each answers or says why not, without a panic; ids are the same new, seen and plain. */
void tok_fuzz_compare(const struct kvr_tok *t, const char *question, size_t len, size_t inline_max);
#endif
