/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TOKENS: the prompt's tokens. The body has given them, or the cache has what was found before, or they are made here (local_tokens.c), or
 * an engine is asked for them.
 *
 *    ask(r->ask) ----> arrange() ----> [truncated between special tokens: ask without these ----> truncate_between()]
 *                          |
 *                          '---> [a chat with images: ask(r->plain) ----> place_objects()] ----> DONE
 *
 * When an engine does not tell them, the request goes on without tokens, and its reason says so. The phase has no other outcomes than
 * DONE, but for --total-timeout. A large answer of an engine is read on a thread.
 */
#include "app/serve/data/prompt/forward.h"
#include "app/serve/data/prompt/local_tokens.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/eligible.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/data/state/token_cache.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/counts/model_counts.h"
#include "app/serve/workers/table/worker.h"
#include "base/log.h"
#include "token/dates.h"
#include "wire/prompt_tokens.h"
#include "wire/tokenize_body.h"

static enum outcome ask(struct request *r, struct kvr_body *body);
static enum outcome ask_plain(struct request *r);

/* ---- parts that are not text ------------------------------------------------------------------------- */

/* Nothing is known of the tokens but how many there are. */
static enum outcome place_unknown(struct request *r)
{
    r->unplaced = true;
    r->tokens_n = 0;
    COUNT(r, multimodal_unplaced_total);
    return OUTCOME_DONE;
}

/* The prompt's tokens are kept while others are asked for. There are none until these are told, also when nobody can be asked. */
static void set_aside(struct request *r)
{
    r->now->tokenizing.whole = r->tokens;
    r->now->tokenizing.whole_n = r->tokens_n;
    r->tokens = NULL;
    r->tokens_n = 0;
}

/* The prompt's tokens are those that were kept, up to n of them. */
static void take_back(struct request *r, size_t n)
{
    free(r->tokens);
    r->tokens = r->now->tokenizing.whole;
    r->tokens_n = n;
    r->now->tokenizing.whole = NULL;
}

/* The tokens of `plain` are there, or none. What both have in common comes before the first part that is not text, wherever
 * the engine's template puts that. When nothing differs, such a part has left no trace: its place is not known. */
static enum outcome place_objects(struct request *r)
{
    const struct tokenizing *t = &r->now->tokenizing;
    size_t n = 0, most = r->tokens ? KVR_MIN(r->tokens_n, t->whole_n) : 0;
    while (n < most && r->tokens[n] == t->whole[n]) n++;
    bool known = r->tokens && n < t->whole_n;
    take_back(r, n);
    return known ? OUTCOME_DONE : place_unknown(r);
}

/* ---- truncation -------------------------------------------------------------------------------------- */

/* The tokens without the special ones are there, or none. */
static void truncate_between(struct request *r)
{
    const struct tokenizing *t = &r->now->tokenizing;
    bool known = r->tokens && kvr_truncate_between(t->whole, t->whole_n, r->tokens, r->tokens_n, t->keep);
    take_back(r, known ? t->keep : t->whole_n);
    if (!known) request_prompt_is_hint(r);
    r->now->tokenizing.keep = 0;
}

/* The question for the tokens without those that the engine's tokenizer adds. NULL: out of memory. */
static struct kvr_body *bare_question(const struct request *r)
{
    struct kvr_buf bytes = {0};
    kvr_tokenize_body_bare((struct kvr_json_span){r->ask->data, r->ask->data + r->ask->len}, &bytes);
    struct kvr_body *bare = bytes.failed ? NULL : kvr_body_derive(r->ask, &bytes);
    kvr_buf_free(&bytes);
    return bare;
}

/* The engine's tokenizer truncates between the special tokens that it adds: asks for the tokens without them. */
static enum outcome ask_bare(struct request *r, size_t keep)
{
    struct kvr_body *bare = bare_question(r);
    if (!bare) {
        request_prompt_is_hint(r);
        return ask_plain(r);
    }
    r->now->tokenizing.keep = keep;
    set_aside(r);
    enum outcome o = ask(r, bare);
    kvr_body_unref(bare);
    return o;
}

/* Leaves of the tokens what the engine will. */
static enum outcome truncate_prompt(struct request *r)
{
    uint64_t room;
    size_t keep;
    if (r->members.truncation == KVR_TRUNCATE_NOT || !eligible_truncates(r, &room)) return ask_plain(r);
    bool known = kvr_truncated_length(&r->members, r->tokens_n, room, &keep), between = r->members.special_tokens && r->ask;
    if (!known) request_prompt_is_hint(r);
    if (!known || keep == r->tokens_n) return ask_plain(r);
    if (between && r->members.truncation == KVR_TRUNCATE_DEFAULT && keep) return ask_bare(r, keep);
    kvr_truncate(r->tokens, r->tokens_n, keep, r->members.truncation);
    r->tokens_n = keep;
    return ask_plain(r);
}

/* ---- what follows what ------------------------------------------------------------------------------- */

/* The prompt's tokens are there. Of a chat with parts that are not text those of the same chat without them are asked for. */
static enum outcome ask_plain(struct request *r)
{
    kvr_body_unref(r->ask);
    r->ask = NULL;
    if (r->members.prompts == 1) r->isl = KVR_MAX(r->tokens_n, (size_t)1); /* of several the sum is known, or guessed */
    if (r->unplaced) return place_unknown(r);
    if (!r->plain) return forward_tokens(r, &r->now->tokenizing.job);
    struct kvr_body *plain = r->plain;
    r->plain = NULL;
    set_aside(r);
    enum outcome o = ask(r, plain);
    kvr_body_unref(plain);
    return o;
}

/* The tokens of the last question are there, or r->tokens is NULL and one was asked beside the prompt's own. */
static enum outcome arrange(struct request *r)
{
    if (r->now->tokenizing.keep) {
        truncate_between(r);
        return ask_plain(r);
    }
    return r->now->tokenizing.whole ? place_objects(r) : truncate_prompt(r);
}

static enum outcome failed(struct request *r)
{
    COUNT(r, tokenize_failures_total);
    if (r->now->tokenizing.whole) return arrange(r);
    r->token_failed = true;
    return OUTCOME_DONE;
}

/* ---- an engine's answer ------------------------------------------------------------------------------ */

/* r->tokens of what /tokenize answered; none: it is not an answer, or a longer one than prompts may have. */
static void read_tokens(struct request *r, struct kvr_json_parser *json)
{
    const struct kvr_buf *answer = &r->now->tokenizing.answer;
    struct kvr_json root, list;
    if (!json || kvr_json_parse(json, answer->data, answer->len, &root, NULL)) return;
    list = kvr_json_get(root, "tokens");
    size_t n = kvr_json_count(list);
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > data_of(r)->o->max_prompt_tokens) return;
    r->tokens = malloc((n + 1) * sizeof *r->tokens);
    r->tokens_n = n;
    if (!r->tokens || kvr_json_u32_array(list, r->tokens, n) >= 0) return;
    free(r->tokens);
    r->tokens = NULL;
}

static void end_question(struct request *r)
{
    struct tokenizing *t = &r->now->tokenizing;
    kvr_buf_free(&t->answer);
    kvr_body_unref(t->question);
    worker_let_go(t->asked);
    t->question = NULL;
    t->asked = NULL;
}

/* The engine that was asked has not told them: ends the question. status: of its answer; 0: there is none. */
static enum outcome not_told(struct request *r, const char *why)
{
    const struct worker *w = r->now->tokenizing.asked;
    int status = r->now->tokenizing.status;
    char text[40] = "";
    if (status && status != 200) snprintf(text, sizeof text, "status %d", status);
    kvr_log_warning_of(kvr_log_key(w->id, (uint64_t)status, why),
                       "kvroute: worker %llu (%.200s): POST /tokenize: %s; without tokens prompts are routed by load",
                       (unsigned long long)w->id, w->url, text[0] ? text : why);
    end_question(r);
    return failed(r);
}

/* The tokens of a question are there. */
static enum outcome found(struct request *r, enum tokens_from from)
{
    r->tokens_from = from;
    token_cache_put(data_of(r)->tokens, r->now->tokenizing.cache_key, r->tokens, r->tokens_n);
    end_question(r);
    return arrange(r);
}

static void observe(const struct request *r, enum tokens_made_by by)
{
    uint64_t took = kvr_monotonic_ns() - r->now->tokenizing.asked_ns;
    if (r->gauges.of) kvr_histogram_add(&r->gauges.of->tokenize[by], (double)took / 1e9);
}

static enum outcome tokens_are_read(struct request *r)
{
    const struct tokenizing *t = &r->now->tokenizing;
    if (!r->tokens) {
        r->tokens_n = 0;
        return not_told(r, "no list of tokens that can be taken");
    }
    local_tokens_compare(r, t->asked, t->question);
    observe(r, MADE_BY_ENGINE);
    return found(r, TOKENS_ENGINE);
}

static void run_reading(struct request *r)
{
    struct kvr_json_parser *json = kvr_json_parser_new(); /* its memory goes with it */
    read_tokens(r, json);
    kvr_json_parser_free(json);
}

static enum outcome answered(struct request *r)
{
    struct tokenizing *t = &r->now->tokenizing;
    bool ok = t->status == 200 && !t->answer.failed && t->answer.len;
    if (ok && t->answer.len > KVR_JOB_BYTES) return request_work(r, &t->job, run_reading, tokens_are_read);
    if (ok) read_tokens(r, r->loop->json);
    return tokens_are_read(r);
}

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *, int64_t)
{
    struct request *r = ctx;
    r->now->tokenizing.status = status;
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct request *r = ctx;
    struct kvr_buf *answer = &r->now->tokenizing.answer;
    if (answer->len + len > data_of(r)->o->max_body_size) answer->failed = true;
    kvr_buf_add(answer, data, len);
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct request *r = ctx;
    r->now->tokenizing.call = NULL;
    request_step(r, answered(r));
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct request *r = ctx;
    r->now->tokenizing.call = NULL;
    request_step(r, not_told(r, text));
}

static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};

/* ---- a question -------------------------------------------------------------------------------------- */

static enum outcome ask_engine(struct request *r)
{
    struct data_plane *data = data_of(r);
    struct tokenizing *t = &r->now->tokenizing;
    struct kvr_buf h = {0};
    bool exists;
    t->asked = eligible_tokenizer(r, &exists);
    if (!t->asked) {
        end_question(r);
        return exists ? failed(r) : OUTCOME_DONE; /* a worker that comes takes it without tokens */
    }
    COUNT(r, tokenize_requests_total);
    admission_put_post(r, t->asked, "/tokenize", t->question->len, &h);
    struct kvr_http_call_config config = {.endpoint = &t->asked->endpoint,
                                          .head = h.data,
                                          .head_len = h.len,
                                          .body = t->question,
                                          .connect_timeout_s = data->o->connect_timeout,
                                          .handler = &handler,
                                          .ctx = r};
    t->status = 0;
    t->call = kvr_http_call_start(r->loop->client, &config);
    kvr_buf_free(&h);
    if (!t->call) return not_told(r, "out of memory");
    request_wait_until(r, request_after(r, data->o->tokenize_timeout));
    return OUTCOME_WAITS;
}

static enum outcome made_here(struct request *r)
{
    bool trusted;
    struct kvr_tokenizer *t = local_tokens_tokenizer(r, &trusted);
    if (!trusted) { /* meanwhile it has lost that */
        free(r->tokens);
        r->tokens = NULL;
        return ask_engine(r);
    }
    local_tokens_check(r, t, r->now->tokenizing.question);
    observe(r, MADE_BY_ROUTER);
    return found(r, TOKENS_LOCAL);
}

/* The tokens of a body: from the cache, made here, or an engine's. */
static enum outcome ask(struct request *r, struct kvr_body *body)
{
    struct tokenizing *now = &r->now->tokenizing;
    bool trusted;
    struct kvr_tokenizer *t = local_tokens_tokenizer(r, &trusted);
    token_cache_key(body->data, body->len, now->cache_key);
    now->cache_key[0] ^= kvr_mix64(kvr_date_today());         /* a template may write the date */
    now->cache_key[1] ^= t ? kvr_tokenizer_generation(t) : 0; /* what was made here before a doubt is not found again */
    r->tokens = token_cache_get(data_of(r)->tokens, now->cache_key, &r->tokens_n);
    if (r->tokens) {
        COUNT(r, tokenize_cache_hits_total);
        r->tokens_from = TOKENS_CACHE;
        return arrange(r);
    }
    now->question = kvr_body_ref(body);
    now->asked_ns = kvr_monotonic_ns();
    switch (trusted ? local_tokens_ask(r, t, body) : LOCAL_NOT) {
    case LOCAL_MADE: return made_here(r);
    case LOCAL_WAITS: request_wait_until(r, 0); return OUTCOME_WAITS;
    default: return ask_engine(r);
    }
}

/* ---- the phase --------------------------------------------------------------------------------------- */

enum outcome tokens_begin(struct request *r)
{
    if (r->tokens) return truncate_prompt(r);
    if (r->ask) return ask(r, r->ask);
    return r->token_failed ? failed(r) : OUTCOME_DONE;
}

enum outcome tokens_on_time(struct request *r, bool total)
{
    struct tokenizing *t = &r->now->tokenizing;
    if (total) return request_refuse(r, 504, TOOK_TOO_LONG);
    if (t->call) kvr_http_call_cancel(t->call);
    t->call = NULL;
    if (t->asked) return not_told(r, "no answer in time");
    end_question(r);
    return failed(r);
}

enum outcome tokens_made(struct request *r)
{
    return local_tokens_take(r) ? made_here(r) : ask_engine(r);
}

void tokens_leave(struct request *r)
{
    struct tokenizing *t = &r->now->tokenizing;
    if (t->call) kvr_http_call_cancel(t->call);
    local_tokens_leave(r);
    end_question(r);
    free(t->whole);
    kvr_body_unref(r->ask);
    kvr_body_unref(r->plain);
    r->ask = r->plain = NULL;
}
