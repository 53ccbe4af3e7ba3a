/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two books. The router's: a booking is made by CHOOSING, moves on with the first token and with output blocks, and is given back once.
 * Ours: what was predicted of a request against what its answer tells - counters, histograms, decisions, quality, evidence for and against
 * views, sessions, and the prompt for a partial view.
 *
 * The second is closed by account_close(), when no job of the request is at work, which might write what is read here.
 */
#include "app/serve/data/answer/account.h"

#include <string.h>
#include <time.h>
#include <kvroute/hash.h>

#include "app/serve/data/answer/model_gauges.h"
#include "app/serve/data/prompt/local_tokens.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/peers/replicas.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/engines/usage_reporting.h"
#include "app/serve/workers/views/views.h"

void account_request(struct request *r)
{
    if (r->counted) return;
    r->counted = true;
    if (request_wants_tokens(r)) atomic_fetch_add_explicit(&data_of(r)->counters.tokens_from[r->tokens_from], 1, memory_order_relaxed);
    const struct attempt *a = r->attempt;
    labels_request(data_of(r)->workers, a ? a->worker : NULL, a ? a->label : r->model, r->status);
}

/* ---- the booking ------------------------------------------------------------------------------------- */

/* How fast the tokens after the first came: by the engine's count of them if it told, else an event is one. */
static void observe_generation(const struct attempt *a)
{
    if (!a->generated || !a->is_sse || a->request->status >= 400) return;
    uint64_t told = a->usage.present ? a->usage.completion_tokens : 0;
    double tokens = told > 1 ? (double)told - 1 : (double)a->generated;
    kvr_router_observe_generation(a->partition->router, &a->result, tokens, (double)(a->itl_last_ns - a->first_ns) / 1e6);
}

void account_unbook(struct attempt *a)
{
    if (!a->booking[0]) return;
    observe_generation(a);
    kvr_router_free(a->partition->router, a->booking, strlen(a->booking));
    a->booking[0] = 0;
    atomic_fetch_sub(&a->request->loop->active, 1);
}

void account_moved(struct attempt *a, const struct kvr_worker *to)
{
    struct request *r = a->request;
    struct kvr_router_ctx *ctx = ctx_get(&r->loop->ctxs, a->partition);
    struct kvr_router_request rq = {
        .id = a->booking, .id_len = strlen(a->booking), .guarded = true, .isl = r->isl, .expected_output = r->expected_osl};
    request_prompt_is_hint(r);
    r->members.usage_tells = false;
    free(a->served);
    a->served = NULL;
    if (!rq.id_len) return;
    kvr_router_free(a->partition->router, rq.id, rq.id_len);
    if (to && ctx && kvr_router_add_request(a->partition->router, ctx, &rq, *to, 0) == 0) return;
    a->booking[0] = 0;
    atomic_fetch_sub(&r->loop->active, 1);
}

static void mark_prefill(struct attempt *a)
{
    if (a->prefill_marked || !a->booking[0]) return;
    a->prefill_marked = true;
    kvr_router_mark_prefill_completed(a->partition->router, a->booking, strlen(a->booking));
}

static void track_output(struct attempt *a, uint64_t tokens)
{
    const struct request *r = a->request;
    uint64_t bs = a->partition->block_size, total = (r->isl + tokens + bs - 1) / bs;
    if (!data_of(r)->o->track_output_blocks || !a->booking[0] || total <= a->generation_blocks) return;
    double left = r->expected_osl ? 1 - (double)tokens / (double)r->expected_osl : -1;
    kvr_router_add_output_blocks(a->partition->router, a->booking, strlen(a->booking), total - a->generation_blocks,
                                 r->expected_osl ? KVR_MAX(left, 0.0) : -1);
    a->generation_blocks = total;
}

/* ---- what was predicted ------------------------------------------------------------------------------ */

/* Of so many cached tokens, those that it can reuse: an engine computes at least one, so a fully cached prompt counts one block less. */
static uint64_t reusable(const struct attempt *a, uint64_t cached)
{
    uint64_t prompt = a->usage.prompt_tokens ? a->usage.prompt_tokens : a->request->isl, bs = a->partition->block_size;
    if (a->request->members.skips_cache) return 0;
    return KVR_MIN(cached, prompt ? (prompt - 1) / bs * bs : 0);
}

/* Tokens that are predicted to be cached: on the device, or in lower tiers to be read from there. Engines count both as cached. */
uint64_t account_predicted_cached(const struct attempt *a)
{
    return reusable(a, a->result.held_tokens);
}

size_t account_tiers(const struct attempt *a, char out[ACCOUNT_TIERS_MAX])
{
    const uint32_t *n = a->result.tier_blocks;
    out[0] = 0;
    if (a->result.held_blocks == n[KVR_TIER_DEVICE]) return 0;
    int len = snprintf(out, ACCOUNT_TIERS_MAX, "device=%u", n[KVR_TIER_DEVICE]);
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++)
        if (n[t]) len += snprintf(out + len, ACCOUNT_TIERS_MAX - (size_t)len, ",%s=%u", kvr_tier_name((enum kvr_tier)t), n[t]);
    return (size_t)len;
}

/* Of the answer of the worker that computes the prompt. */
static int computed_status(const struct request *r)
{
    const struct attempt *a = legs_computed(r);
    return a && a->prefills ? a->status : r->status;
}

/* Everything of the prompt is known, and what was predicted of it is what the engine does. */
static bool is_predicted(const struct request *r)
{
    return r->tokens_n && r->routed && !r->multimodal && computed_status(r) == 200 && r->members.certainty == KVR_PROMPT_EXACT &&
           r->members.as_evidence && !r->members.skips_cache;
}

/* By a tokenizer that is trusted: then what is in the cache of its tokens was made here, or is the same. */
static bool made_here(const struct request *r)
{
    bool trusted = false;
    if (r->tokens_from == TOKENS_LOCAL || r->tokens_from == TOKENS_CACHE) (void)local_tokens_tokenizer(r, &trusted);
    return trusted;
}

/* Just before it is sent: what of the prompt turns up in the rank's view. */
static void begin_evidence(struct attempt *a)
{
    const struct request *r = a->request;
    struct evidence_prompt prompt = {.partition = a->partition,
                                     .worker = a->result.worker,
                                     .tokens = r->tokens,
                                     .tokens_n = r->tokens_n,
                                     .lora = r->is_lora ? r->model : NULL,
                                     .lora_len = r->is_lora ? strlen(r->model) : 0,
                                     .salt = r->salt,
                                     .salt_len = r->salt_len,
                                     .view_blocks = a->result.view_blocks,
                                     .all_blocks = a->result.held_blocks,
                                     .trusted = a->result.trusted,
                                     .understood = r->members.as_evidence && !r->members.skips_cache && !r->multimodal,
                                     .asked = r->tokens_from == TOKENS_ENGINE || (r->tokens_from == TOKENS_CACHE && !made_here(r)),
                                     .made_for = made_here(r) ? r->model : NULL};
    if (r->routed && r->tokens && r->tokens_n) a->evidence = evidence_begin(data_of(r)->workers, &prompt);
}

static bool has_answered(const struct attempt *a)
{
    return a->prefills ? a->prefilled : a->request->answered && (!a->is_sse || a->sse.done);
}

static void end_evidence(struct attempt *a, int status)
{
    struct evidence_answer answer = {.status = status, .whole = has_answered(a), .has_error = a->sse.has_error, .usage = a->usage};
    evidence_answered(data_of(a->request)->workers, a->evidence, &answer);
    a->evidence = NULL;
}

static const char *reason_of(const struct attempt *a)
{
    const struct request *r = a->request;
    const struct data_plane *data = data_of(r);
    if (a->result.pinned) return "pinned";
    if (a->result.preferred) return r->legs && r->legs->chosen ? "local" : "session";
    if (r->body_cut) return "load-body-cut";
    if (r->token_failed) return "load-tokenize-failed";
    if (a->mode != KVR_MODE_KV) return router_mode_name((int)a->mode);
    if (r->no_index) return r->part_index ? "index-partial" : "index-unavailable";
    if (!a->result.trusted && views_run(data->workers)) return "untrusted";
    if (r->unplaced) return "load-multimodal";
    if (a->result.overlap_blocks) return "kv";
    return a->result.pending_blocks && data->o->cost == KVR_COST_DELAY ? "pending" : "load";
}

static void observe_times(const struct attempt *a)
{
    const struct request *r = a->request;
    const struct kvr_router_result *result = &a->result;
    struct data_counters *m = &data_of(r)->counters;
    kvr_histogram_add(&m->block_hashing, (double)result->times.block_hashing / 1e6);
    kvr_histogram_add(&m->find_matches, (double)result->times.find_matches / 1e6);
    kvr_histogram_add(&m->seq_hashing, (double)result->times.seq_hashing / 1e6);
    kvr_histogram_add(&m->scheduling, (double)result->times.scheduling / 1e6);
    kvr_histogram_add(&m->total, (double)result->times.total / 1e6);
    if (!r->routed || !r->tokens_n) return;
    kvr_histogram_add(&m->isl, (double)r->isl);
    kvr_histogram_add(&m->hit_rate, result->required_blocks ? result->effective_blocks / (double)result->required_blocks : 0);
    quality_decided(data_of(r), result);
}

void account_booked(struct attempt *a)
{
    if (a->decodes) return; /* what is predicted and told is the prefill leg's */
    a->reason = reason_of(a);
    observe_times(a);
    begin_evidence(a);
}

/* For tell_view: the tokens do not stay until the end. */
void account_keep_prompt(struct attempt *a)
{
    const struct request *r = a->request;
    uint32_t bs = a->partition->block_size;
    size_t n = r->tokens_n / bs;
    if (a->view != KVR_VIEW_PARTIAL || !r->tokens || !n || !is_predicted(r) || !(a->served = malloc(n * sizeof *a->served))) return;
    (void)kvr_hash_locals(r->tokens, n * bs, bs, false, request_hash_seed(r), NULL, 0, a->served);
}

/* ---- while it is answered ---------------------------------------------------------------------------- */

/* What it took from the prefill worker to the decode worker, and there to the first byte. */
static void observe_decode(const struct attempt *a, uint64_t now)
{
    const struct attempt *p = a->request->legs->prefill;
    struct leg_counts *c = &data_of(a->request)->counters.legs;
    uint64_t prefilled_ns = p->sent_ns + (uint64_t)(p->ttft_ms * 1e6);
    if (p->prefilled && a->sent_ns >= prefilled_ns) kvr_histogram_add(&c->handoff, (double)(a->sent_ns - prefilled_ns) / 1e9);
    kvr_histogram_add(&c->kv_wait, (double)(now - a->sent_ns) / 1e9);
}

static double temperature_of(const struct request *r)
{
    return model_option(&r->options, MODEL_TEMPERATURE, data_of(r)->o->temperature);
}

static void note_first_token(struct attempt *a)
{
    const struct request *r = a->request;
    struct data_plane *data = data_of(r);
    uint64_t now = kvr_monotonic_ns();
    bool known =
        r->routed && r->tokens_n && !r->multimodal && r->status < 400 && !a->decodes && !a->prefilled; /* else its length was a guess */
    a->ttft_ms = (double)(now - a->sent_ns) / 1e6;
    model_gauges_first_token(a, now);
    if (a->is_sse && known) a->other_ms = quality_first_token(data, a->partition, &a->result, a->table, a->ttft_ms);
    if (known) quality_answered(data, &a->result, temperature_of(r));
    if (a->decodes) observe_decode(a, now);
    a->itl_last_ns = a->first_ns = now;
    a->generated = 0;
}

void account_first_token(struct attempt *a)
{
    note_first_token(a);
    mark_prefill(a);
}

void account_events(struct attempt *a, uint64_t events)
{
    if (events && a->prefill_marked && a->itl_last_ns) {
        uint64_t now = kvr_monotonic_ns();
        kvr_histogram_add(&a->request->gauges.of->itl, (double)(now - a->itl_last_ns) / 1e9 / (double)events);
        a->itl_max_ns = KVR_MAX(a->itl_max_ns, now - a->itl_last_ns);
        a->itl_last_ns = now;
        a->generated += events;
    }
    if (a->sse.events) track_output(a, a->sse.events);
}

/* The worker keeps its response, by its id, for those that go on from it. */
void account_response(struct attempt *a)
{
    const struct request *r = a->request;
    if (!r->routed || r->form != KVR_FORM_RESPONSES || !a->sse.response[0] || r->status >= 400) return;
    responses_bind(data_of(r), a->sse.response, a->result.worker);
    a->sse.response[0] = 0; /* once */
}

/* What an answer tells that is no stream. */
static void read_answer(struct attempt *a)
{
    struct kvr_json root;
    if (a->is_sse || !a->answer.len || a->answer.failed) return;
    a->sse.finish = kvr_finish_in(a->answer.data, a->answer.len);
    if (kvr_json_parse(a->request->loop->json, a->answer.data, a->answer.len, &root, NULL)) return;
    kvr_openai_usage(root, &a->usage);
    if (a->request->form == KVR_FORM_RESPONSES) responses_id_of(kvr_json_get(root, "id"), a->sse.response);
}

static void bind_to(const struct request *r, struct kvr_worker w, const char *suffix)
{
    struct data_plane *data = data_of(r);
    char key[SESSION_MAX + sizeof SESSION_OF_PREFILL];
    if (!r->session) return;
    size_t len = (size_t)snprintf(key, sizeof key, "%s%s", r->session, suffix);
    if (sessions_bind(data->sessions, key, len, kvr_now_ms(), w)) replicas_on_session(data->peers, key, len, w);
}

static void bind_session(const struct request *r)
{
    const struct attempt *a = r->attempt;
    if (r->deletes && r->response && r->status < 300) responses_forget(data_of(r), r->response);
    if (r->status < 400) bind_to(r, a->result.worker, a->partition->prefills ? SESSION_OF_PREFILL : "");
}

void account_answered(struct request *r)
{
    struct attempt *a = r->attempt;
    if (r->answered) return;
    if (!a->prefill_marked) note_first_token(a); /* its booking goes at once, with what it says of the prompt */
    read_answer(a);
    account_response(a);
    bind_session(r);
    account_unbook(a);
    r->answered = true;
}

void account_prompt_is_computed(struct attempt *a)
{
    mark_prefill(a);
}

/* What a prefill worker tells: the time it took, what it had cached. */
void account_prefilled(struct attempt *a)
{
    struct request *r = a->request;
    a->prefilled = true;
    a->ttft_ms = (double)(kvr_monotonic_ns() - a->sent_ns) / 1e6;
    if (r->tokens_n && !r->multimodal) {
        a->other_ms = quality_first_token(data_of(r), a->partition, &a->result, a->table, a->ttft_ms);
        quality_answered(data_of(r), &a->result, temperature_of(r));
    }
    kvr_histogram_add(&data_of(r)->counters.legs.prefill, a->ttft_ms / 1000);
    mark_prefill(a);
    read_answer(a);
    bind_to(r, a->result.worker, SESSION_OF_PREFILL);
    account_unbook(a);
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void complete_usage(struct attempt *a)
{
    const struct request *r = a->request;
    if (!has_answered(a) || !a->usage.present || !r->members.usage_tells) return;
    bool hit = is_predicted(r) && a->view == KVR_VIEW_WHOLE && a->usage.prompt_tokens == r->tokens_n &&
               account_predicted_cached(a) >= a->partition->block_size;
    struct answer_report told = {.form = 2 * (unsigned)r->form + (a->is_sse ? 1 : 0), .told = a->usage.has_cached, .sure_hit = hit};
    if (usage_reporting_note(data_of(r)->workers, a->worker, &told)) a->usage.has_cached = true;
}

/* The tokenizer of its model is judged by how many tokens the engine has counted. */
static void judge_tokens(const struct attempt *a)
{
    const struct request *r = a->request;
    bool trusted;
    if (!made_here(r) || r->forwarded_ids || !a->usage.present || !a->usage.prompt_tokens || !is_predicted(r) || r->members.prompts != 1)
        return;
    struct kvr_tokenizer *t = local_tokens_tokenizer(r, &trusted);
    if (trusted) kvr_tokenizer_counted(t, r->tokens_n, a->usage.prompt_tokens);
}

static void count_cached(const struct attempt *a, uint64_t predicted)
{
    struct data_plane *data = data_of(a->request);
    struct data_counters *m = &data->counters;
    struct model_counts *of = a->request->gauges.of;
    uint64_t actual = a->usage.cached_tokens, prompt = a->usage.prompt_tokens, bs = a->partition->block_size;
    uint64_t computed = prompt / bs - KVR_MIN(actual, prompt) / bs;
    atomic_fetch_add(&m->predicted_cached_tokens_total, predicted);
    atomic_fetch_add(&m->actual_cached_tokens_total, actual);
    labels_tokens(data->workers, a->worker, a->label,
                  &(struct label_tokens){.predicted = predicted, .actual = actual, .prompt = prompt, .computed = computed});
    atomic_fetch_add(&m->prompt_tokens_total, prompt);
    if (of) atomic_fetch_add_explicit(&of->queried, prompt, memory_order_relaxed);
    if (of) atomic_fetch_add_explicit(&of->cached, actual, memory_order_relaxed);
    atomic_fetch_add(&m->usage_answers_total, 1);
    if (predicted / bs == actual / bs) atomic_fetch_add(&m->predicted_equals_actual_total, 1);
}

/* What lower tiers were said to add, and what becomes of it. */
static void count_tiers(const struct attempt *a, uint64_t predicted)
{
    struct data_counters *m = &data_of(a->request)->counters;
    const uint32_t *blocks = a->result.tier_blocks;
    uint64_t bs = a->partition->block_size, actual = a->usage.cached_tokens, device = reusable(a, blocks[KVR_TIER_DEVICE] * bs);
    uint64_t lower = predicted - KVR_MIN(device, predicted), beyond = KVR_MAX(predicted, a->result.pending_blocks * bs) + bs;
    for (uint64_t t = KVR_TIER_HOST_PINNED, end = blocks[KVR_TIER_DEVICE], from = device; lower && t < KVR_TIER_COUNT; t++) {
        uint64_t to = reusable(a, (end += blocks[t]) * bs);
        if (to > from) atomic_fetch_add(&m->tiers_predicted[t], to - from);
        from = to;
    }
    if (lower && actual + bs <= predicted) atomic_fetch_add(&m->tiers_short_tokens_total, KVR_MIN(predicted - actual, lower));
    if (a->view != KVR_VIEW_WHOLE || actual <= beyond) return;
    atomic_fetch_add(&m->untold_cached_tokens_total, actual - predicted);
    evidence_untold(data_of(a->request)->workers, a->result.worker);
}

/* Without tokens nothing was predicted; where not all of them are known, not all that the engine can have cached. */
static void count_usage(struct attempt *a)
{
    const struct request *r = a->request;
    if (!a->usage.present || computed_status(r) >= 400) return;
    if (!r->tokens_n || r->multimodal || r->members.certainty != KVR_PROMPT_EXACT || !r->members.usage_tells) return;
    if (!a->usage.has_cached) {
        COUNT(r, usage_untold_total);
        return;
    }
    struct delivery d = {.id = r->id,
                         .worker = a->result.worker,
                         .predicted = account_predicted_cached(a),
                         .pending = reusable(a, a->result.pending_blocks * (uint64_t)a->partition->block_size),
                         .actual = a->usage.cached_tokens,
                         .prompt = KVR_MAX(a->usage.prompt_tokens, (uint64_t)1),
                         .block_size = a->partition->block_size};
    count_cached(a, d.predicted);
    count_tiers(a, d.predicted);
    quality_delivered(data_of(r), &d);
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns && to_ns >= from_ns ? (double)(to_ns - from_ns) / 1e6 : -1;
}

/* Of the worker that answers; where there are two legs, what it is told of the prompt is the prefill worker's. */
static void fill_in_answering(struct decision *d, const struct request *r)
{
    const struct attempt *a = r->attempt;
    if (!legs_are_two(r) || !a || !a->decodes) return;
    double ttft = ms_between(r->legs->prefill->sent_ns, a->first_ns);
    d->worker = a->result.worker;
    d->cost = a->result.cost;
    d->table = a->table;
    d->ttft_ms = ttft >= 0 ? ttft : 0;
}

bool account_tells_cached(const struct attempt *a)
{
    const struct request *r = a->request;
    return a->usage.present && a->usage.has_cached && (r->members.usage_tells || !r->tokens_n);
}

static void fill_in_prefill(struct decision_legs *d, const struct request *r)
{
    const struct legs *l = r->legs;
    const struct attempt *p = l->prefill, *a = r->attempt && r->attempt->decodes ? r->attempt : NULL;
    static const char *const staged[] = {NULL, "pulled", "released", "lease"};
    if (!p) return;
    uint64_t prefilled_ns = p->prefilled ? p->sent_ns + (uint64_t)(p->ttft_ms * 1e6) : 0;
    d->protocol = kvr_kv_protocol_name(l->protocol);
    d->has_prefill = true;
    d->worker = p->result.worker;
    d->cached_tokens = account_predicted_cached(p);
    d->has_actual = account_tells_cached(p);
    d->actual_cached = p->usage.cached_tokens;
    d->overlap_blocks = p->result.overlap_blocks;
    d->status = (uint32_t)p->status;
    d->tries = l->tried_n + (p->state == ATTEMPT_FAILED ? 0 : 1);
    d->cost = p->result.cost;
    d->waited_ms = (double)p->result.waited_ns / 1e6;
    d->ms = p->prefilled ? p->ttft_ms : -1;
    d->table = p->table;
    d->staged = staged[l->fate];
    if (!a) return;
    d->handoff_ms = ms_between(prefilled_ns, a->sent_ns);
    d->kv_wait_ms = ms_between(a->sent_ns, a->first_ns);
}

/* Returns: false: it is of no fleet with roles. */
static bool fill_in_legs(struct decision_legs *d, const struct request *r)
{
    enum told_treatment told;
    if (!legs_told(r, &told)) return false;
    *d = (struct decision_legs){.present = true,
                                .treatment = told_treatment_name(told),
                                .why = r->legs->why,
                                .has_eff = r->legs->has_eff,
                                .eff_isl = r->legs->eff_isl,
                                .handoff_ms = -1,
                                .kv_wait_ms = -1};
    fill_in_prefill(d, r);
    return true;
}

/* As much of it as there is room for in a text of zeroes. */
static void copy_name(char *out, size_t cap, const char *name)
{
    memcpy(out, name, strnlen(name, cap - 1));
}

static void record_decision(const struct attempt *a)
{
    const struct request *r = a->request;
    struct decision_legs legs;
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    struct decision d = {.at_ms = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000,
                         .worker = a->result.worker,
                         .isl = r->isl,
                         .cached_tokens = account_predicted_cached(a),
                         .actual_cached = a->usage.cached_tokens,
                         .has_actual = account_tells_cached(a),
                         .overlap_blocks = a->result.overlap_blocks,
                         .pending_blocks = a->result.pending_blocks,
                         .held_blocks = a->result.held_blocks,
                         .status = (uint32_t)r->status,
                         .best_blocks = a->result.best_blocks,
                         .effective_blocks = a->result.effective_blocks,
                         .cost = a->result.cost,
                         .waited_ms = (double)a->result.waited_ns / 1e6,
                         .ttft_ms = a->ttft_ms,
                         .slo_ms = r->slo_ttft_ms,
                         .other_ms = a->other_ms,
                         .table = a->table};
    memcpy(d.tier_blocks, a->result.tier_blocks, sizeof d.tier_blocks);
    copy_name(d.id, sizeof d.id, r->id);
    copy_name(d.model, sizeof d.model, r->model);
    copy_name(d.asked_model, sizeof d.asked_model, request_asked_model(r));
    copy_name(d.reason, sizeof d.reason, a->reason);
    d.fallback = r->fell_back;
    fill_in_answering(&d, r);
    decisions_add(data_of(r)->decisions, &d, fill_in_legs(&legs, r) ? &legs : NULL);
}

/* Its prompt is held now, if it is what the engine has computed. */
static void tell_view(const struct attempt *a)
{
    const struct request *r = a->request;
    if (!a->served || !has_answered(a) || !a->usage.present || a->usage.prompt_tokens != r->tokens_n) return;
    uint32_t bs = a->partition->block_size;
    struct kvr_served v = {.worker = a->result.worker,
                           .locals = a->served,
                           .n = r->tokens_n / bs,
                           .told = a->usage.has_cached,
                           .cached = a->usage.cached_tokens / bs,
                           .view = a->result.view_blocks,
                           .tick = a->view_tick};
    views_served(data_of(r)->workers, &v);
}

void account_attempt_over(struct attempt *a)
{
    account_unbook(a);
    end_evidence(a, a->status);
}

/* What is known of the prompt is told by the worker that has computed it. */
void account_close(struct request *r)
{
    struct attempt *a = legs_computed(r);
    if (r->attempt) account_unbook(r->attempt);
    if (a) account_unbook(a);
    account_request(r);
    model_gauges_close(r);
    if (!a) return;
    enum told_treatment told;
    if (legs_told(r, &told)) COUNT(r, legs.treatments[told]);
    if (r->routed) {
        complete_usage(a);
        judge_tokens(a);
        count_usage(a);
        record_decision(a);
    }
    tell_view(a);
    end_evidence(a, a->prefills ? a->status : r->status);
}
