/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens made here, and the checks of them: data/prompt/local_tokens.h. */
#include "app/serve/data/prompt/local_tokens.h"

#include <string.h>

#include "app/serve/data/request/admission.h"
#include "app/serve/data/request/eligible.h"
#include "app/serve/data/request/phases.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/table/worker.h"
#include "net/http/ask.h"

enum { WHOLE_ON_LOOP = 64 << 10, QUESTION_MAX = 16 << 20, CHECKS_MAX = 8, CHECK_ANSWER_MAX = 16 << 20 };

/* ---- which tokenizer ----------------------------------------------------------------------------------- */

/* A question in the form of another engine lacks members that decide. */
struct kvr_tokenizer *local_tokens_tokenizer(const struct request *r, bool *trusted)
{
    struct kvr_tokenizer *t = tokenizers_find(data_of(r)->tokenizers, r->model);
    *trusted = t && kvr_tokenizer_state(t) == KVR_TRUST_TRUSTED && kvr_tokenizer_is_sglang(t) == r->asks_sglang;
    return t;
}

/* ---- a request ----------------------------------------------------------------------------------------- */

static bool take_ids(struct request *r, struct kvr_ids *ids)
{
    bool fits = ids && ids->n <= data_of(r)->o->max_prompt_tokens;
    r->tokens = fits ? malloc((ids->n + 1) * sizeof *r->tokens) : NULL;
    r->tokens_n = r->tokens ? ids->n : 0;
    if (r->tokens) memcpy(r->tokens, ids->v, ids->n * sizeof *r->tokens);
    kvr_ids_unref(ids);
    return r->tokens != NULL;
}

/* What a thread of the pool has to do: the whole question, or what is left of one. */
struct errand {
    struct kvr_tokenizer *tokenizer;
    struct kvr_body *question;
    struct kvr_tok_job *rest; /* NULL: all of it */
};

static int run_errand(void *ctx, struct kvr_ids **out)
{
    struct errand *e = ctx;
    struct kvr_tok_job *rest = e->rest;
    e->rest = NULL;
    if (rest) return kvr_tokenizer_finish(e->tokenizer, rest, out);
    return kvr_tokenizer_make(e->tokenizer, e->question->data, e->question->len, out);
}

static void drop_errand(void *ctx)
{
    struct errand *e = ctx;
    if (e->rest) kvr_tokenizer_drop(e->tokenizer, e->rest);
    kvr_body_unref(e->question);
    kvr_tokenizer_unref(e->tokenizer);
    free(e);
}

static struct local_tokens_waiter *here_of(struct kvr_token_waiter *w)
{
    return (struct local_tokens_waiter *)w; /* its first member */
}

/* A thread of the pool, under its lock. */
static void made(struct kvr_token_waiter *w)
{
    struct loop *l = here_of(w)->request->loop;
    kvr_lock(&l->mail_lock);
    w->next = l->made;
    l->made = w;
    kvr_unlock(&l->mail_lock);
    uv_async_send(&l->wake);
}

/* The key of the token cache, of this tokenizer. */
static void key_of(const struct request *r, const struct kvr_tokenizer *t, uint64_t key[2])
{
    memcpy(key, r->now.tokenizing.cache_key, 2 * sizeof *key);
    key[0] ^= kvr_mix64((uint64_t)(uintptr_t)t);
}

static bool begin_errand(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question, struct kvr_tok_job *rest)
{
    struct local_tokens_waiter *waiter = &r->now.tokenizing.here;
    struct errand *e = malloc(sizeof *e);
    if (!e) {
        if (rest) kvr_tokenizer_drop(t, rest);
        return false;
    }
    *e = (struct errand){kvr_tokenizer_ref(t), kvr_body_ref(question), rest};
    struct kvr_token_question q = {.make = run_errand, .drop = drop_errand, .ctx = e};
    key_of(r, t, q.key);
    *waiter = (struct local_tokens_waiter){.waiter = {.done = made}, .request = r, .waits = true};
    waiter->waits = kvr_token_pool_ask(tokenizers_pool(data_of(r)->tokenizers), &q, &waiter->waiter);
    if (!waiter->waits) COUNT(r, tokenizer_full_total);
    return waiter->waits;
}

enum local_tokens local_tokens_ask(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question)
{
    struct kvr_ids *ids;
    struct kvr_tok_job *rest = NULL;
    if (question->len > QUESTION_MAX) return LOCAL_NOT;
    if (question->len > WHOLE_ON_LOOP) return begin_errand(r, t, question, NULL) ? LOCAL_WAITS : LOCAL_NOT;
    int rc = kvr_tokenizer_at_once(t, question->data, question->len, &ids, &rest);
    if (rc == 0) return take_ids(r, ids) ? LOCAL_MADE : LOCAL_NOT;
    return rc == 1 && begin_errand(r, t, question, rest) ? LOCAL_WAITS : LOCAL_NOT;
}

struct request *local_tokens_next_made(struct loop *l)
{
    kvr_lock(&l->mail_lock);
    struct kvr_token_waiter *w = l->made;
    if (w) l->made = w->next;
    kvr_unlock(&l->mail_lock);
    return w ? here_of(w)->request : NULL;
}

bool local_tokens_take(struct request *r)
{
    struct local_tokens_waiter *h = &r->now.tokenizing.here;
    struct kvr_ids *ids = h->waiter.ids;
    h->waits = false;
    h->waiter.ids = NULL;
    return take_ids(r, ids);
}

void local_tokens_leave(struct request *r)
{
    struct local_tokens_waiter *h = &r->now.tokenizing.here;
    struct loop *l = r->loop;
    if (!h->waits) return;
    h->waits = false;
    if (kvr_token_pool_leave(tokenizers_pool(data_of(r)->tokenizers), &h->waiter)) return;
    kvr_lock(&l->mail_lock);
    struct kvr_token_waiter **at = &l->made;
    while (*at && *at != &h->waiter) at = &(*at)->next;
    if (*at) *at = h->waiter.next;
    kvr_unlock(&l->mail_lock);
    kvr_ids_unref(h->waiter.ids);
    h->waiter.ids = NULL;
}

/* ---- comparisons --------------------------------------------------------------------------------------- */

static void let_go_of_body(void *held)
{
    kvr_body_unref(held);
}

static void compare(struct kvr_tokenizer *t, const struct worker *w, struct kvr_body *question, const uint32_t *ids, size_t n)
{
    char who[256];
    struct kvr_token_text text = {question->data, question->len, kvr_body_ref(question), let_go_of_body};
    snprintf(who, sizeof who, "worker %llu, %.200s", (unsigned long long)w->id, w->url);
    kvr_tokenizer_compare(t, who, &text, ids, n);
}

void local_tokens_compare(const struct request *r, const struct worker *w, struct kvr_body *question)
{
    bool trusted;
    struct kvr_tokenizer *t = local_tokens_tokenizer(r, &trusted);
    enum kvr_trust_state state = t ? kvr_tokenizer_state(t) : KVR_TRUST_LOADING;
    if (state == KVR_TRUST_LOADING || state == KVR_TRUST_REFUSED || question->len > QUESTION_MAX) return;
    compare(t, w, question, r->tokens, r->tokens_n);
}

/* ---- checks -------------------------------------------------------------------------------------------- */

/* An engine is asked for what was made here. */
struct token_check {
    struct token_check *next;
    struct loop *loop;
    struct kvr_tokenizer *tokenizer;
    struct worker *worker;
    struct kvr_body *question;
    struct kvr_ask *asking;
};

static void end_check(struct token_check *k)
{
    KVR_UNLINK(k->loop->token_checks, k);
    k->loop->token_checks_n--;
    kvr_ask_cancel(k->asking);
    kvr_body_unref(k->question);
    kvr_tokenizer_unref(k->tokenizer);
    worker_let_go(k->worker);
    free(k);
}

void local_tokens_stop_checks(struct loop *l)
{
    while (l->token_checks) end_check(l->token_checks);
}

static void judge(const struct token_check *k, const struct kvr_asked *said)
{
    struct kvr_json root, list;
    if (said->status != 200 || said->cut || kvr_json_parse(k->loop->json, said->data, said->len, &root, NULL)) return;
    list = kvr_json_get(root, "tokens");
    size_t n = kvr_json_count(list);
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > k->loop->data->o->max_prompt_tokens) return;
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    if (ids && kvr_json_u32_array(list, ids, n) >= 0) compare(k->tokenizer, k->worker, k->question, ids, n);
    free(ids);
}

static void on_check_over(void *ctx, const struct kvr_asked *said)
{
    struct token_check *k = ctx;
    k->asking = NULL;
    judge(k, said);
    end_check(k);
}

static bool start_check(struct token_check *k, const struct request *r)
{
    struct kvr_buf question = {0}, headers = {0};
    kvr_buf_add(&question, k->question->data, k->question->len);
    admission_put_key(r, k->worker, &headers);
    struct kvr_ask_config config = {.loop = &k->loop->uv,
                                    .client = k->loop->client,
                                    .endpoint = &k->worker->endpoint,
                                    .path = "/tokenize",
                                    .json = &question,
                                    .headers = &headers,
                                    .max = CHECK_ANSWER_MAX,
                                    .connect_timeout_s = data_of(r)->o->connect_timeout,
                                    .timeout_s = data_of(r)->o->tokenize_timeout,
                                    .fn = on_check_over,
                                    .ctx = k};
    k->asking = kvr_ask_start(&config);
    return k->asking != NULL;
}

void local_tokens_check(struct request *r, struct kvr_tokenizer *t, struct kvr_body *question)
{
    struct loop *l = r->loop;
    bool exists;
    if (l->draining || l->token_checks_n == CHECKS_MAX || !tokenizers_check_due(data_of(r)->tokenizers, t)) return;
    struct worker *w = eligible_tokenizer(r, &exists);
    struct token_check *k = w ? calloc(1, sizeof *k) : NULL;
    if (!k) {
        worker_let_go(w);
        return;
    }
    *k = (struct token_check){
        .next = l->token_checks, .loop = l, .tokenizer = kvr_tokenizer_ref(t), .worker = w, .question = kvr_body_ref(question)};
    l->token_checks = k;
    l->token_checks_n++;
    if (!start_check(k, r)) end_check(k);
}
