/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids of a prompt, as the engine makes them, from a model's folder. The library is built apart (Rust) and loaded at run time.
 *
 * A question is the body of an engine's /tokenize: a chat ({"messages": ..., "tools": ..., "chat_template_kwargs": ...}, by default without
 * special tokens around it) or a text ({"prompt": "..."}, by default with them).
 *
 * Threads: a tokenizer may be used by any number of threads at once, a job by one at a time; load, variant and free are for one thread.
 * Errors:  0, or a code below; the buffer then holds "label" or "label: detail". A label is one of a small fixed set and never a prompt's
 *          text; a detail may quote it and is not for logs. Whatever the code, give the buffer back.
 * Owns:    the caller owns every buffer (kvr_tok_buf_free), tokenizer (kvr_tok_free) and job (kvr_tok_finish or kvr_tok_drop).
 */
#ifndef KVR_TOKENIZER_H
#define KVR_TOKENIZER_H
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVR_TOK_ABI 1 /* kvr_tok_abi() must say the same */

enum {
    KVR_TOK_EBAD = -1,         /* the question is malformed: the engine will say so to the client */
    KVR_TOK_EUNSUPPORTED = -2, /* only the engine knows: an unknown construct, a part that is no text, a template of its own ... */
    KVR_TOK_ETEMPLATE = -3,    /* the template has raised */
    KVR_TOK_EPANIC = -4,       /* a defect of the library */
};

struct kvr_tok;
struct kvr_tok_job;
struct kvr_tok_buf {
    void *data;
    size_t len; /* bytes */
    size_t cap;
};

uint32_t kvr_tok_abi(void);

/*
 * Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json and chat_template.jinja of a folder; takes up to a second and never
 * asks the network. `options` is JSON or NULL:
 *     chat_template          text, in place of the folder's
 *     cache_bytes            of the segments' ids; 0: none (64 MiB)
 *     fast                   whether the faster encoder may be used (true)
 *     engine                 "vllm" or "sglang": whose prompts ("vllm"). Of "sglang": those of its chats and completions; what its
 *                            /tokenize answers otherwise is refused; of what follows it has content_format, alias_reasoning
 *     content_format         "auto", "string", "openai": what --chat-template-content-format of the engine says
 *     drop_none, alias_reasoning, developer_to_system, typed    what its releases do with messages and tools (true)
 *     raw                    messages and tools as they come: transformers alone (false)
 */
int kvr_tok_load(const char *dir, const char *options, struct kvr_tok **out, struct kvr_tok_buf *err);
/* The same tokenizer and cache with other members of engine to raw. */
int kvr_tok_variant(const struct kvr_tok *t, const char *options, struct kvr_tok **out, struct kvr_tok_buf *err);
void kvr_tok_free(struct kvr_tok *t);

/* `out`: uint32_t ids, len / 4 of them. 1: more than inline_max bytes of text are still to be encoded, and *job does it. */
int kvr_tok_ask(const struct kvr_tok *t, const char *question, size_t len, size_t inline_max, struct kvr_tok_job **job,
                struct kvr_tok_buf *out);
/* Any thread. The job is gone afterwards. */
int kvr_tok_finish(struct kvr_tok_job *job, struct kvr_tok_buf *out);
void kvr_tok_drop(struct kvr_tok_job *job);

/* For tests, which compare everything else with it: ids of a question without the cache, by the engines' own encoder. */
int kvr_tok_plain(const struct kvr_tok *t, const char *question, size_t len, struct kvr_tok_buf *out);
/* Likewise. `out`: the prompt's text. */
int kvr_tok_render(const struct kvr_tok *t, const char *question, size_t len, struct kvr_tok_buf *out);
/* Of the cache that a tokenizer shares with its variants. */
struct kvr_tok_figures {
    uint64_t hits, misses, too_large; /* segments; too_large: not kept */
    uint64_t bytes, entries;
};
void kvr_tok_figures(const struct kvr_tok *t, struct kvr_tok_figures *out);
/* JSON: encoder, segments, template ("yes", or why not), dates (whether it may write the date), engine, content_format. */
int kvr_tok_info(const struct kvr_tok *t, struct kvr_tok_buf *out);

void kvr_tok_buf_free(struct kvr_tok_buf *b);

#ifdef __cplusplus
}
#endif
#endif
