/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks one worker what its engine makes of the built-in questions of one model (token/probes.h).
 *
 * Over which paths, and what an answer means, is told by wire/engine_tokens.h. An engine that answers no chat is one that cannot be asked.
 * A worker that breaks off, stays silent or answers 5xx is asked again from the first question on, later.
 */
#include "app/serve/tokenizers/room.h"

#include <string.h>

#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/table/worker.h"
#include "net/http/ask.h"
#include "token/probes.h"
#include "wire/engine_tokens.h"

enum { ANSWER_MAX = 1 << 20, ANSWER_S = 10, AGAIN_MS = 5000 };

struct prober {
    struct tokenizers *of;
    struct tokenizer_entry *entry;
    uint64_t worker_id, ups;
    struct kvr_endpoint endpoint;
    char key[API_KEY_MAX], who[256];
    size_t at; /* the question that is being asked */
    enum kvr_engine_tokens_way way;
    struct kvr_ask *asking;
    struct kvr_probe_answer answers[KVR_PROBES_MAX];
};

static void ask(struct prober *p);

void prober_stop(struct prober *p)
{
    p->entry->prober = NULL;
    kvr_ask_cancel(p->asking);
    for (size_t i = 0; i < KVR_PROBES_MAX; i++) kvr_ids_unref(p->answers[i].ids);
    free(p);
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static void give_up(struct prober *p)
{
    p->entry->probe_again_ms = kvr_now_ms() + AGAIN_MS;
    prober_stop(p);
}

static void finish(struct prober *p, bool could_ask)
{
    if (!worker_is_same(p->of->workers, p->worker_id, p->ups)) {
        prober_stop(p);
        return;
    }
    if (!could_ask) {
        kvr_tokenizer_cannot_ask(p->entry->tokenizer, p->who);
    } else if (kvr_tokenizer_date_turns(p->entry->tokenizer) ||
               !kvr_tokenizer_probed(p->entry->tokenizer, p->who, p->answers, kvr_token_probes_n)) {
        give_up(p);
        return;
    }
    (void)kvr_map64_put(&p->entry->probed, p->worker_id, p->ups);
    prober_stop(p);
}

/* NULL: it has none. */
static struct kvr_ids *read_ids(const struct prober *p, const struct kvr_asked *said)
{
    struct kvr_json list;
    if (said->cut || !kvr_engine_tokens_read(p->of->process->json, said->data, said->len, p->way, &list)) return NULL;
    size_t n = kvr_json_count(list);
    struct kvr_ids *ids = kvr_ids_new(NULL, n);
    if (ids && kvr_json_u32_array(list, ids->v, n) >= 0) return ids;
    kvr_ids_unref(ids);
    return NULL;
}

static void take_answer(void *ctx, const struct kvr_asked *said)
{
    struct prober *p = ctx;
    struct kvr_probe_answer *a = &p->answers[p->at];
    p->asking = NULL;
    switch (said->status ? kvr_engine_tokens_judge(p->way, said->status) : KVR_TOKENS_LATER) {
    case KVR_TOKENS_OTHER_WAY:
        p->way = KVR_TOKENS_TOKENIZE;
        ask(p);
        break;
    case KVR_TOKENS_NO_WAY: finish(p, false); break;
    case KVR_TOKENS_LATER: give_up(p); break;
    case KVR_TOKENS_ANSWERED:
    case KVR_TOKENS_REFUSED:
        a->ids = said->status == 200 ? read_ids(p, said) : NULL;
        a->answered = a->ids != NULL;
        if (++p->at < kvr_token_probes_n) ask(p);
        else finish(p, kvr_probe_answers_have_chat(p->answers, kvr_token_probes_n));
        break;
    }
}

/* ---- questions ---------------------------------------------------------------------------------------------------- */

static void ask(struct prober *p)
{
    struct kvr_buf question = {0}, headers = {0};
    kvr_engine_tokens_question(p->way, p->entry->model, kvr_token_probes[p->at].members, &question);
    worker_key_put(p->key, &headers);
    struct kvr_ask_config config = {.loop = &p->of->process->main_loop,
                                    .client = p->of->process->client,
                                    .endpoint = &p->endpoint,
                                    .path = kvr_engine_tokens_path(p->way, kvr_token_probes[p->at].is_chat),
                                    .json = &question,
                                    .headers = &headers,
                                    .max = ANSWER_MAX,
                                    .connect_timeout_s = p->of->o->connect_timeout,
                                    .timeout_s = ANSWER_S,
                                    .fn = take_answer,
                                    .ctx = p};
    p->asking = kvr_ask_start(&config);
    if (!p->asking) give_up(p);
}

void prober_start(struct tokenizers *t, struct tokenizer_entry *e, const struct worker *w)
{
    struct prober *p = calloc(1, sizeof *p);
    if (!p) return;
    p->of = t;
    p->entry = e;
    p->worker_id = w->id;
    p->ups = atomic_load(&w->ups);
    p->endpoint = w->endpoint;
    memcpy(p->key, w->api_key, sizeof p->key);
    snprintf(p->who, sizeof p->who, "worker %llu, %.200s", (unsigned long long)w->id, w->url);
    e->prober = p;
    ask(p);
}
