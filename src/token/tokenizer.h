/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tokenizer of one served model (a name that requests use; an adapter has its own): ids made here, as long as they are an engine's.
 *
 *     kvr_tokenizer_open, _reload --> its folder is read on a thread of the pool
 *     kvr_tokenizer_probed: what an engine has made of the built-in questions --> the profile that agrees with all of it
 *     kvr_tokenizer_compare: what an engine has made of a request --> compared on a thread of the pool
 *     kvr_tokenizer_at_once, _finish, _make: ids, whatever they are worth; the caller looks at kvr_tokenizer_state first
 *
 * Engines, their releases and their settings make other prompts of one chat. A profile is what differs; probing tries all of them and keeps
 * the first that agrees with everything an engine has said, or refuses the model and says where they part.
 *
 * Never logs or keeps a prompt's text: of a difference it keeps which question, where, and both ids.
 *
 * Threads: any. A lock for trust, findings and the folder that is used (KVR_LOCK_TOKENIZER), under which ids are not made; a folder that
 * was read lives as long as somebody makes ids with it. Answers of engines decide one after the other (KVR_LOCK_TOKENIZER_JUDGE), or two
 * that come at once would not be compared with each other.
 */
#ifndef KVR_TOKEN_TOKENIZER_H
#define KVR_TOKEN_TOKENIZER_H

#include "base/buf.h"
#include "token/library.h"
#include "token/pool.h"
#include "token/profiles.h"
#include "token/trust.h"

struct kvr_tokenizer;

/* Up to so many bytes of text are encoded by the caller of kvr_tokenizer_at_once: less than 0.1 ms. */
enum { KVR_TOKENIZER_INLINE = 8 << 10 };

enum kvr_token_judge { KVR_JUDGE_PROBES, KVR_JUDGE_ENGINE, KVR_JUDGE_USAGE, KVR_JUDGE_EVENTS, KVR_JUDGES };

struct kvr_tokenizer_config {
    const struct kvr_token_library *lib; /* outlives it */
    struct kvr_token_pool *pool;         /* likewise */
    const char *model, *dir;             /* copied */
    const char *profile;                 /* JSON; NULL: it is looked for */
    size_t cache_bytes;
    unsigned probes; /* real requests that are compared before it is trusted */
    bool given;      /* the operator answers for it: it is trusted when its engine cannot be asked */
};

int kvr_tokenizer_open(const struct kvr_tokenizer_config *config, struct kvr_tokenizer **out);
/* Reads a folder, the same or another one, in place of its own: from now on it is LOADING, and trust is earned anew. Returns: 0,
 * -KVR_EEXISTS while one is being read, -KVR_ELIMIT when the pool is full, -KVR_ENOMEM; it is to be called again then. */
int kvr_tokenizer_reload(struct kvr_tokenizer *t, const char *dir);
bool kvr_tokenizer_is_of(struct kvr_tokenizer *t, const char *dir); /* Is that its folder? */
struct kvr_tokenizer *kvr_tokenizer_ref(struct kvr_tokenizer *t);
void kvr_tokenizer_unref(struct kvr_tokenizer *t);

enum kvr_trust_state kvr_tokenizer_state(const struct kvr_tokenizer *t); /* one atomic load */
/* Another number for each state that it enters. */
uint64_t kvr_tokenizer_generation(const struct kvr_tokenizer *t);
/* Whether its ids are SGLang's, of questions in the form that kvr_tokenize_body_sglang writes; else they are vLLM's. Not while LOADING. */
bool kvr_tokenizer_is_sglang(const struct kvr_tokenizer *t);
const char *kvr_tokenizer_model(const struct kvr_tokenizer *t);

/* ---- ids ---- */

/* Returns: 0 with *ids, 1 with *job (a render that has long texts to encode: _finish), or enum of kvr_tokenizer.h: ask the engine; counted.
 */
int kvr_tokenizer_at_once(struct kvr_tokenizer *t, const char *question, size_t len, struct kvr_ids **ids, struct kvr_tok_job **job);
int kvr_tokenizer_finish(struct kvr_tokenizer *t, struct kvr_tok_job *job, struct kvr_ids **ids);
void kvr_tokenizer_drop(struct kvr_tokenizer *t, struct kvr_tok_job *job);
int kvr_tokenizer_make(struct kvr_tokenizer *t, const char *question, size_t len, struct kvr_ids **ids);

/* ---- judges ---- */

/* `who`: the engine, for what is said. The comparison is made on a thread of the pool. Returns: false when nothing will come of it: the
 * pool is full. */
bool kvr_tokenizer_probed(struct kvr_tokenizer *t, const char *who, const struct kvr_probe_answer *answers, size_t n);
/* An engine has no way to be asked. */
void kvr_tokenizer_cannot_ask(struct kvr_tokenizer *t, const char *who);
/* What an engine has made of a question. hold/let_go: of what the question's bytes lie in. */
struct kvr_token_text {
    const char *data;
    size_t len;
    void *held;
    void (*let_go)(void *held);
};
void kvr_tokenizer_compare(struct kvr_tokenizer *t, const char *who, const struct kvr_token_text *question, const uint32_t *ids, size_t n);
void kvr_tokenizer_counted(struct kvr_tokenizer *t, uint64_t here, uint64_t engine);
void kvr_tokenizer_doubted(struct kvr_tokenizer *t);
/* Its template writes the date, and that turns about now (token/dates.h): who would ask an engine asks later. */
bool kvr_tokenizer_date_turns(const struct kvr_tokenizer *t);

/* ---- figures ---- */

enum { KVR_TOKEN_REASONS_MAX = 32, KVR_TOKEN_REASON_MAX = 32 };
struct kvr_tokenizer_figures {
    enum kvr_trust_state state;
    const char *why; /* static */
    uint64_t equal[KVR_JUDGES], different[KVR_JUDGES];
    struct kvr_tok_figures cache; /* of segments */
    uint64_t unchecked;           /* comparisons that found the pool full */
    size_t reasons_n;
    struct {
        char name[KVR_TOKEN_REASON_MAX];
        uint64_t n;
    } reasons[KVR_TOKEN_REASONS_MAX]; /* why questions went to the engine */
};
void kvr_tokenizer_figures(struct kvr_tokenizer *t, struct kvr_tokenizer_figures *out);
/* A JSON object: state, why, folder, profile, what the library says of the folder, the last difference. */
void kvr_tokenizer_describe(struct kvr_tokenizer *t, struct kvr_buf *out);

#endif
