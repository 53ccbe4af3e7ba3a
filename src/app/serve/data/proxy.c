/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One client request:
 *
 *   arrive -> read body fields -> tokens (given | cache | engine's /tokenize | bytes) -> choose and book
 *      -> [waits: for a worker to exist (loop->parked), or for its turn in the router's queue]
 *      -> send -> head (held back) -> first byte -> relay -> end
 *
 * Rules that must hold whatever happens:
 *   - the booking is made by route() and given back by unbook(), exactly once per attempt;
 *   - nothing is sent to the client before the first body byte of the worker, so until then the request can go to
 *     another worker; afterwards it never does;
 *   - every path ends in px_end(), which frees the request.
 *
 * A streaming request that waits long gets its head early (200, SSE) and comments, so that nothing between it and us gives
 * up; from then on failures are events of the stream.
 *
 * A request belongs to one data loop. Only `px_*` callbacks of that loop touch it, except while it is in the router's queue:
 * then the router reads p->rq, and on_turn (any thread, under the router's lock) puts it on the loop's `ready` list; and while a
 * large body or prompt is read or hashed on a thread (p->working): then `run_*` fills in what it makes, which the loop does not
 * look at until `over_*`, and a request that has ended meanwhile is freed there.
 * Locks: router's, then loop's mail lock.
 */
#include "app/serve/workers/evidence.h"
#include "app/serve/state.h"

#include <string.h>
#include <strings.h>
#include <time.h>
#include <kvroute/hash.h>

#include "wire/mm_parts.h"
#include "wire/prompt_tokens.h"
#include "wire/sse.h"
#include "wire/tokenize_body.h"

enum {
    ANSWER_KEPT_MAX = 4 << 20,
    HASH_ON_LOOP = 256 << 10, /* tokens; more are hashed on a thread of the pool */
    ENDING_MS = 1000          /* for a worker to end a stream whose last event has passed */
};

enum phase { PX_READING, PX_TOKENIZING, PX_HASHING, PX_ASKING, PX_PARKED, PX_QUEUED, PX_WAITING_FIRST, PX_STREAMING };

struct px {
    struct loop *loop;
    struct kvr_http_conn *conn;
    struct px *next; /* parked list */
    enum phase phase;
    /* the request */
    char id[ID_MAX];
    char model[MODEL_MAX], lora[MODEL_MAX], session[256];
    struct kvr_body *body; /* until nobody else can be asked; who is sending it holds it too */
    size_t body_len;
    bool routed;                       /* a completion: tokens matter */
    bool is_object;                    /* the body is a JSON object */
    enum kvr_prompt_form form;         /* of what is routed */
    struct kvr_prompt_members members; /* of what is routed by its tokens; zeroes otherwise */
    struct kvr_body *ask;              /* what an engine is asked for the tokens; NULL: nothing, or nothing more */
    size_t keep;                       /* of the prompt's tokens, while an engine is asked which of them its tokenizer adds; 0: it is not */
    /* a chat with parts that are not text: see find_objects */
    bool multimodal, unplaced;
    struct kvr_body *plain; /* the body without them; NULL: their place is not looked for */
    uint32_t *whole;        /* the prompt's tokens, while those of `plain` are asked for */
    size_t whole_n;
    struct kvr_rank_member body_rank;
    const char *rank_error; /* NULL: what the body says of the rank is sound */
    bool stream, pinned, pin_any_rank, has_rank, is_lora, token_failed, is_head_request, deletes, explain, answered, has_error;
    struct kvr_worker pin;
    double priority;
    uint32_t strict_priority;
    uint64_t expected_osl; /* 0: not given */
    char policy_class[KVR_CLASS_NAME_MAX];
    char *salt;
    size_t salt_len;
    uint32_t *tokens;
    size_t tokens_n;
    uint64_t cache_key[2]; /* when an engine is asked for them */
    struct evidence_check *evidence;
    /* what a thread does for it; see the top */
    struct kvr_job job;
    bool working, ended;
    int refusal;         /* 0, or the status `refused` goes out with */
    const char *refused; /* what is wrong with the body, or refused_text */
    char refused_text[160];
    _Atomic uint64_t *refused_by; /* the counter of the limit, or NULL */
    /* with an index elsewhere */
    struct kvr_remote_query *queries[REMOTES_MAX];
    size_t unanswered;
    uint64_t asked_ns;
    uint64_t *locals; /* hashes of the prompt, for blocks of hashed_for tokens */
    size_t locals_n;
    uint32_t hashed_for;
    struct kvr_reach *scores;
    size_t scores_n;
    bool no_index, part_index; /* it did not answer; of several some did */
    uint64_t isl, generation_blocks;
    /* routing */
    struct pool *pool;
    struct worker *worker;
    bool names_rank; /* the worker is told the rank, as it counts them */
    uint32_t named_rank;
    struct kvr_router_request rq;
    uint64_t *allowed;     /* owned; NULL: every worker of the pool */
    bool queued;           /* the router has the ticket, or the loop's ready list has p */
    struct px *ready_next; /* the loop's ready list */
    int granted;           /* what the queue said */
    struct kvr_ticket ticket;
    struct kvr_rejection rejection;
    struct kvr_router_result result;
    enum kvr_view_knowledge view; /* of the rank, when it was chosen */
    uint64_t view_tick;           /* serve.view_tick when it was sent */
    uint64_t *served;             /* hashes of the prompt's blocks, for a partial view */
    struct decision_table table;
    char response[RESPONSE_ID_MAX]; /* of /v1/responses: the one that it goes on from, or is about; "": none */
    char booking[32];               /* id of the current booking; "" = none */
    uint64_t tried[TRIES_MAX];
    unsigned tries;
    const char *reason;
    /* answer */
    struct kvr_http_call *call;
    uv_timer_t timer;
    uint64_t arrived_ms, sent_ns, phase_deadline_ms, total_deadline_ms, last_byte_ms, wait_deadline_ms, itl_last_ns, first_ns, generated;
    struct kvr_buf head;
    int status;
    int64_t length;
    bool early_head, head_sent, is_sse, prefill_marked, paused, counted;
    struct kvr_sse sse;
    struct kvr_buf answer;
    struct kvr_usage usage;
    double ttft_ms, other_ms; /* other: decision.other_ms */
};

static void px_route(struct px *p);
static void px_end(struct px *p);
static void on_timer(uv_timer_t *t);

static struct serve *serve_of(const struct px *p)
{
    return p->loop->serve;
}

#define COUNT(p, name) atomic_fetch_add_explicit(&serve_of(p)->metrics.name, 1, memory_order_relaxed)

/* ---- answers of our own ------------------------------------------------------------------------------ */

void proxy_error_body(struct kvr_buf *out, int status, const char *message)
{
    kvr_openai_error(out, status, kvr_openai_error_type(status), message);
}

static void reply_error(struct kvr_http_conn *c, int status, const char *message, const char *request_id)
{
    struct kvr_buf b = {0}, h = {0};
    proxy_error_body(&b, status, message);
    if (request_id && *request_id) kvr_buf_printf(&h, "x-request-id: %s\r\n", request_id);
    if (status == 503) kvr_buf_str(&h, "Retry-After: 1\r\n");
    kvr_buf_add(&h, "", 1);
    kvr_http_reply_buf(c, status, "application/json", h.failed ? "" : h.data, &b);
    kvr_buf_free(&h);
}

/* Ends a stream with an event that says why. */
static void end_with_error_event(struct kvr_http_conn *c, int status, const char *message)
{
    struct kvr_buf b = {0};
    kvr_buf_str(&b, "data: ");
    proxy_error_body(&b, status, message);
    kvr_buf_str(&b, "\n\n");
    if (!b.failed) kvr_http_write(c, b.data, b.len);
    if (b.failed) kvr_http_abort(c);
    else kvr_http_end(c);
    kvr_buf_free(&b);
}

/* Once a request, before its client can see the status. */
static void count_request(struct px *p)
{
    struct serve *s = serve_of(p);
    if (p->counted) return;
    p->counted = true;
    kvr_lock(&s->lock);
    labels_request_locked(s, p->worker, p->model, p->status);
    kvr_unlock(&s->lock);
}

static void px_fail(struct px *p, int status, const char *message)
{
    struct kvr_http_conn *c = p->conn;
    p->status = status;
    p->conn = NULL;
    if (!p->working) count_request(p);
    if (status >= 500) COUNT(p, errors_total);
    if (c) kvr_http_conn_set_user(c, NULL);
    bool end_stream = c && p->early_head;
    if (c && !end_stream) reply_error(c, status, message, p->id);
    px_end(p);
    if (end_stream) end_with_error_event(c, status, message);
}

/* ---- timers ------------------------------------------------------------------------------------------ */

static uint64_t after(double seconds)
{
    return seconds > 0 ? now_ms() + (uint64_t)(seconds * 1000) + 1 : 0;
}

static void arm(struct px *p)
{
    uint64_t d = p->phase_deadline_ms, now = now_ms();
    if (p->total_deadline_ms && (!d || p->total_deadline_ms < d)) d = p->total_deadline_ms;
    if (d) uv_timer_start(&p->timer, on_timer, d > now ? d - now : 0, 0);
    else uv_timer_stop(&p->timer);
}

/* ---- the book ---------------------------------------------------------------------------------------- */

/* How fast the tokens after the first came: by the engine's count of them if it told, else an event is one. */
static void observe_generation(const struct px *p)
{
    if (!p->generated || !p->is_sse || p->status >= 400) return;
    uint64_t told = p->usage.present ? p->usage.completion_tokens : 0;
    double tokens = told > 1 ? (double)told - 1 : (double)p->generated;
    kvr_router_observe_generation(p->pool->router, &p->result, tokens, (double)(p->itl_last_ns - p->first_ns) / 1e6);
}

static void unbook(struct px *p)
{
    if (!p->booking[0]) return;
    observe_generation(p);
    kvr_router_free(p->pool->router, p->booking, strlen(p->booking));
    p->booking[0] = 0;
    atomic_fetch_sub(&p->loop->active, 1);
}

static void mark_prefill(struct px *p)
{
    if (p->prefill_marked || !p->booking[0]) return;
    p->prefill_marked = true;
    kvr_router_mark_prefill_completed(p->pool->router, p->booking, strlen(p->booking));
}

static void track_output(struct px *p, uint64_t tokens)
{
    if (!serve_of(p)->o->track_output_blocks || !p->booking[0]) return;
    uint64_t total = (p->isl + tokens + p->pool->block_size - 1) / p->pool->block_size;
    if (total <= p->generation_blocks) return;
    double left = p->expected_osl ? 1 - (double)tokens / (double)p->expected_osl : -1;
    kvr_router_add_output_blocks(p->pool->router, p->booking, strlen(p->booking), total - p->generation_blocks,
                                 p->expected_osl ? KVR_MAX(left, 0.0) : -1);
    p->generation_blocks = total;
}

/* ---- the end ----------------------------------------------------------------------------------------- */

static void on_px_closed(uv_handle_t *h)
{
    free(h->data);
}

/* Of so many cached tokens, those that it can reuse: an engine computes at least one, so a fully cached prompt counts one block less. */
static uint64_t reusable(const struct px *p, uint64_t cached)
{
    uint64_t prompt = p->usage.prompt_tokens ? p->usage.prompt_tokens : p->isl, bs = p->pool->block_size;
    if (p->members.skips_cache) return 0;
    return KVR_MIN(cached, prompt ? (prompt - 1) / bs * bs : 0);
}

/* Tokens that are predicted to be cached. */
static uint64_t predicted_cached(const struct px *p)
{
    return reusable(p, p->result.cached_tokens);
}

static void record_decision(struct px *p)
{
    struct serve *s = serve_of(p);
    struct timespec ts;
    if (!p->worker) return;
    clock_gettime(CLOCK_REALTIME, &ts);
    struct decision d = {.at_ms = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000,
                         .worker = p->result.worker,
                         .isl = p->isl,
                         .cached_tokens = predicted_cached(p),
                         .actual_cached = p->usage.cached_tokens,
                         .has_actual = p->usage.present && p->usage.has_cached && (p->members.usage_tells || !p->tokens_n),
                         .overlap_blocks = p->result.overlap_blocks,
                         .pending_blocks = p->result.pending_blocks,
                         .status = (uint32_t)p->status,
                         .best_blocks = p->result.best_blocks,
                         .effective_blocks = p->result.effective_blocks,
                         .cost = p->result.cost,
                         .waited_ms = (double)p->result.waited_ns / 1e6,
                         .ttft_ms = p->ttft_ms,
                         .other_ms = p->other_ms,
                         .table = p->table};
    snprintf(d.id, sizeof d.id, "%s", p->id);
    snprintf(d.model, sizeof d.model, "%.47s", p->model);
    snprintf(d.reason, sizeof d.reason, "%.31s", p->reason ? p->reason : "");
    kvr_lock(&s->lock);
    decisions_add(s, &d);
    kvr_unlock(&s->lock);
}

/* Without tokens nothing was predicted; where not all of them are known, not all that the engine can have cached. */
static void count_usage(struct px *p)
{
    struct metrics *m = &serve_of(p)->metrics;
    if (!p->usage.present || p->status >= 400) return; /* what the body says may still be being read */
    if (!p->tokens_n || p->multimodal || p->members.certainty != KVR_PROMPT_EXACT || !p->members.usage_tells) return;
    if (!p->usage.has_cached) {
        COUNT(p, usage_untold_total);
        return;
    }
    uint64_t predicted = predicted_cached(p), actual = p->usage.cached_tokens, bs = p->pool->block_size;
    atomic_fetch_add(&m->predicted_cached_tokens_total, predicted);
    atomic_fetch_add(&m->actual_cached_tokens_total, actual);
    kvr_lock(&serve_of(p)->lock);
    labels_cached_locked(serve_of(p), p->worker, p->model, predicted, actual);
    kvr_unlock(&serve_of(p)->lock);
    atomic_fetch_add(&m->prompt_tokens_total, p->usage.prompt_tokens);
    atomic_fetch_add(&m->usage_answers_total, 1);
    if (predicted / bs == actual / bs) atomic_fetch_add(&m->predicted_equals_actual_total, 1);
    struct delivery d = {.id = p->id,
                         .worker = p->result.worker,
                         .predicted = predicted,
                         .pending = reusable(p, p->result.pending_blocks * bs),
                         .actual = actual,
                         .prompt = KVR_MAX(p->usage.prompt_tokens, (uint64_t)1),
                         .block_size = (uint32_t)bs};
    quality_delivered(serve_of(p), &d);
}

/* Just before it is sent: what of the prompt turns up in the rank's view. */
static void begin_evidence(struct px *p)
{
    struct evidence_prompt a = {.pool = p->pool,
                                .worker = p->result.worker,
                                .tokens = p->tokens,
                                .tokens_n = p->tokens_n,
                                .lora = p->is_lora ? p->model : NULL,
                                .lora_len = p->is_lora ? strlen(p->model) : 0,
                                .salt = p->salt,
                                .salt_len = p->salt_len,
                                .view_blocks = p->result.view_blocks,
                                .trusted = p->result.trusted,
                                .understood = p->members.as_evidence && !p->members.skips_cache && !p->multimodal,
                                .asked = p->cache_key[0] || p->cache_key[1]};
    if (p->routed && p->tokens && p->tokens_n) p->evidence = evidence_begin(serve_of(p), &a);
}

static void end_evidence(struct px *p)
{
    struct evidence_answer a = {.status = p->status,
                                .whole = p->answered && (!p->is_sse || p->sse.done),
                                .has_error = p->has_error || p->sse.has_error,
                                .usage = p->usage};
    evidence_answered(serve_of(p), p->evidence, &a);
    p->evidence = NULL;
}

/* Everything of the prompt is known, and what was predicted of it is what the engine does. */
static bool is_predicted(const struct px *p)
{
    return p->tokens_n && p->routed && !p->multimodal && p->status == 200 && p->members.certainty == KVR_PROMPT_EXACT &&
           p->members.as_evidence && !p->members.skips_cache;
}

static void complete_usage(struct px *p)
{
    if (!p->worker || !p->answered || !p->usage.present || !p->members.usage_tells) return;
    bool hit =
        is_predicted(p) && p->view == KVR_VIEW_WHOLE && p->usage.prompt_tokens == p->tokens_n && predicted_cached(p) >= p->pool->block_size;
    struct answer_telling a = {
        .form = 2 * (unsigned)p->form + (p->is_sse ? 1 : 0), .told = p->usage.has_cached, .sure_hit = hit && !p->has_error};
    if (telling_note(serve_of(p), p->worker, &a)) p->usage.has_cached = true;
}

/* For tell_view: the tokens do not stay until the end. */
static void keep_prompt(struct px *p)
{
    uint32_t bs = p->pool->block_size;
    size_t n = p->tokens_n / bs;
    if (p->view != KVR_VIEW_PARTIAL || !p->tokens || !n || !is_predicted(p) || p->served || !(p->served = malloc(n * sizeof *p->served)))
        return;
    uint64_t seed = kvr_hash_seed(p->is_lora ? p->model : NULL, p->is_lora ? strlen(p->model) : 0, p->salt, p->salt_len);
    (void)kvr_hash_locals(p->tokens, n * bs, bs, false, seed, NULL, 0, p->served);
}

static void leave_ready_list(struct px *p)
{
    kvr_lock(&p->loop->mail_lock);
    for (struct px **q = &p->loop->ready; *q; q = &(*q)->ready_next)
        if (*q == p) {
            *q = p->ready_next;
            break;
        }
    kvr_unlock(&p->loop->mail_lock);
}

/* Gives up its place. If its turn has come meanwhile it is booked, and unbook() gives that back. */
static void leave_queue(struct px *p)
{
    if (!p->queued) return;
    p->queued = false;
    bool waited = kvr_router_cancel(p->pool->router, &p->ticket);
    if (!waited) leave_ready_list(p);
    if (waited || p->granted) p->booking[0] = 0;
    else atomic_fetch_add(&p->loop->active, 1);
}

static void forget_queries(struct px *p)
{
    for (size_t i = 0; i < REMOTES_MAX; i++) {
        if (p->queries[i]) kvr_remote_cancel(p->queries[i]);
        p->queries[i] = NULL;
    }
}

static void px_free(struct px *p)
{
    kvr_sse_free(&p->sse);
    kvr_buf_free(&p->head);
    kvr_buf_free(&p->answer);
    kvr_body_unref(p->body);
    kvr_body_unref(p->ask);
    kvr_body_unref(p->plain);
    free(p->whole);
    free(p->tokens);
    free(p->locals);
    free(p->scores);
    free(p->served);
    free(p->salt);
    free(p->allowed);
    atomic_fetch_sub(&p->loop->in_flight, 1);
    p->timer.data = p;
    uv_close((uv_handle_t *)&p->timer, on_px_closed);
}

/* Its prompt is held now, if it is what the engine has computed. */
static void tell_view(struct px *p)
{
    if (!p->served || !p->answered || !p->usage.present || p->usage.prompt_tokens != p->tokens_n) return;
    uint32_t bs = p->pool->block_size; /* what was not routed has no pool */
    struct kvr_served v = {.worker = p->result.worker,
                           .locals = p->served,
                           .n = p->tokens_n / bs,
                           .told = p->usage.has_cached,
                           .cached = p->usage.cached_tokens / bs,
                           .view = p->result.view_blocks,
                           .tick = p->view_tick};
    views_served(serve_of(p), &v);
}

/* The end of all: what is known of it is told. No job of it is at work, which might write what is read here. */
static void px_close(struct px *p)
{
    count_request(p);
    if (p->routed) {
        complete_usage(p);
        count_usage(p);
        record_decision(p);
    }
    tell_view(p);
    end_evidence(p);
    worker_unref(serve_of(p), p->worker);
    p->worker = NULL;
    px_free(p);
}

/* It holds nothing any more, and is closed when its job is over. */
static void px_end(struct px *p)
{
    if (p->call) kvr_http_call_cancel(p->call);
    forget_queries(p);
    p->call = NULL;
    leave_queue(p);
    unbook(p);
    for (struct px **q = &p->loop->parked; *q; q = &(*q)->next)
        if (*q == p) {
            *q = p->next;
            atomic_fetch_sub(&p->loop->parked_n, 1);
            break;
        }
    uv_timer_stop(&p->timer);
    p->ended = true;
    if (p->working) kvr_job_give_up(&p->job);
    else px_close(p);
}

static void px_answered(struct px *p);

/* The last event of a stream has passed: how its connections end is nobody's business. An answer with a length ends with its bytes. */
static bool is_complete(const struct px *p)
{
    return p->phase == PX_STREAMING && p->is_sse && p->sse.done;
}

void proxy_on_gone(struct kvr_http_conn *c, void *ctx)
{
    struct px *p = kvr_http_conn_user(c);
    (void)ctx;
    if (!p) return;
    if (is_complete(p) && kvr_http_all_sent(c)) { /* as clients do that stop reading at the last event */
        p->conn = NULL;
        worker_report(serve_of(p), p->worker, true);
        kvr_http_call_let_go(p->call, ENDING_MS);
        p->call = NULL;
        px_answered(p);
        return;
    }
    COUNT(p, client_gone_total);
    p->conn = NULL;
    p->status = STATUS_CLIENT_GONE;
    px_end(p);
}

void proxy_on_drained(struct kvr_http_conn *c, void *ctx)
{
    struct px *p = kvr_http_conn_user(c);
    (void)ctx;
    if (!p || !p->paused) return;
    p->paused = false;
    p->last_byte_ms = now_ms();
    if (p->call) kvr_http_call_resume(p->call);
}

/* ---- relay ------------------------------------------------------------------------------------------- */

static void put_decision_headers(struct px *p, struct kvr_buf *h)
{
    kvr_buf_printf(h, "x-request-id: %s\r\nx-kvroute-worker: %llu\r\nx-kvroute-dp-rank: %u\r\n", p->id,
                   (unsigned long long)p->result.worker.worker_id, p->result.worker.dp_rank);
    if (p->routed) kvr_buf_printf(h, "x-kvroute-overlap-blocks: %u\r\n", p->result.overlap_blocks);
    if (p->routed && serve_of(p)->ingest) kvr_buf_printf(h, "x-kvroute-view: %s\r\n", kvr_view_knowledge_name(p->view));
    kvr_buf_printf(h, "x-kvroute-reason: %s\r\n", p->reason);
    if (p->explain && p->routed) decision_table_header(&p->table, h);
}

static void keep_head(struct px *p, int status, const struct kvr_headers *headers, int64_t length)
{
    p->status = status;
    p->length = length;
    p->head.len = 0;
    struct kvr_hop_by_hop hop;
    (void)kvr_hop_by_hop_read(headers, &hop);
    for (size_t i = 0; i < headers->n; i++) {
        struct kvr_text name = kvr_headers_name(headers, i), value = kvr_headers_value(headers, i);
        if (kvr_header_is_hop_by_hop(&hop, name) || kvr_text_is_nocase(name, "content-length") ||
            kvr_text_is_nocase(name, "x-request-id") || (name.len > 10 && !strncasecmp(name.ptr, "x-kvroute-", 10)))
            continue;
        if (kvr_text_is_nocase(name, "content-type")) p->is_sse = value.len >= 17 && strncasecmp(value.ptr, "text/event-stream", 17) == 0;
        kvr_buf_printf(&p->head, "%.*s: %.*s\r\n", (int)name.len, name.ptr, (int)value.len, value.ptr);
    }
    put_decision_headers(p, &p->head);
}

static void send_head(struct px *p)
{
    if (p->head_sent) return;
    p->head_sent = true;
    count_request(p);
    if (!p->early_head) kvr_http_start(p->conn, p->status, p->head.data ? p->head.data : "", p->head.len, p->length);
    kvr_buf_free(&p->head);
    kvr_body_unref(p->body); /* from here on nobody else can be asked */
    p->body = NULL;
    keep_prompt(p);
    free(p->tokens);
    p->tokens = NULL;
}

static void note_first_token(struct px *p)
{
    struct metrics *m = &serve_of(p)->metrics;
    uint64_t now = kvr_now_ns(kvr_clock_monotonic());
    bool known = p->routed && p->tokens_n && !p->multimodal && p->status < 400; /* else its length was a guess */
    p->ttft_ms = (double)(now - p->sent_ns) / 1e6;
    if (p->is_sse && p->status < 400) histogram_add(&m->ttft, p->ttft_ms / 1000);
    if (p->is_sse && known) p->other_ms = quality_first_token(serve_of(p), p->pool, &p->result, &p->table, p->ttft_ms);
    if (known) quality_answered(serve_of(p), &p->result);
    p->itl_last_ns = p->first_ns = now;
    p->generated = 0;
    mark_prefill(p);
}

/* The worker keeps its response, by its id, for those that go on from it. */
static void bind_response(struct px *p)
{
    if (!p->routed || p->form != KVR_FORM_RESPONSES || !p->sse.response[0] || p->status >= 400) return;
    responses_bind(serve_of(p), p->sse.response, p->result.worker);
    p->sse.response[0] = 0; /* once */
}

static void look_at_stream(struct px *p, const char *data, size_t len)
{
    uint64_t events = kvr_sse_feed(&p->sse, p->loop->json, data, len);
    if (events && p->prefill_marked && p->itl_last_ns) {
        uint64_t now = kvr_now_ns(kvr_clock_monotonic());
        histogram_add(&serve_of(p)->metrics.itl, (double)(now - p->itl_last_ns) / 1e9 / (double)events);
        p->itl_last_ns = now;
        p->generated += events;
    }
    if (p->sse.events) track_output(p, p->sse.events);
    if (p->sse.usage.present) p->usage = p->sse.usage;
    bind_response(p);
}

static void on_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *headers, int64_t length)
{
    struct px *p = ctx;
    (void)call;
    keep_head(p, status, headers, length);
    if (p->head.failed) px_fail(p, 503, "out of memory");
}

static bool is_retryable(int status)
{
    return status == 502 || status == 503 || status == 504;
}

static void retry_or_fail(struct px *p, int status, const char *text);

/* The client was promised a stream, and the worker answers with something else: says so in the stream. Returns: whether that
 * ended the request. */
static bool contradicts_early_head(struct px *p)
{
    char message[96];
    if (!p->early_head || p->head_sent || (p->status == 200 && p->is_sse)) return false;
    snprintf(message, sizeof message, "the worker answered with status %d", p->status);
    px_fail(p, p->status, message);
    return true;
}

static void on_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct px *p = ctx;
    if (is_retryable(p->status)) return; /* judged when it is whole */
    if (contradicts_early_head(p)) return;
    if (p->phase == PX_WAITING_FIRST) {
        p->phase = PX_STREAMING;
        send_head(p);
        if (p->is_sse || p->length < 0) note_first_token(p);
        p->phase_deadline_ms = after(serve_of(p)->o->stall_timeout);
        arm(p);
    }
    p->last_byte_ms = now_ms();
    if (p->is_sse) look_at_stream(p, data, len);
    else if (p->routed && p->answer.len + len <= ANSWER_KEPT_MAX) kvr_buf_add(&p->answer, data, len);
    size_t queued = kvr_http_write(p->conn, data, len);
    if (queued > KVR_HTTP_HIGH_WATER && !p->paused) {
        p->paused = true;
        kvr_http_call_pause(call);
    }
}

static void read_usage(struct px *p)
{
    struct kvr_json root;
    if (p->is_sse || !p->answer.len || p->answer.failed) return;
    if (kvr_json_parse(p->loop->json, p->answer.data, p->answer.len, &root, NULL)) return;
    kvr_openai_usage(root, &p->usage);
    responses_id_of(kvr_json_get(root, "id"), p->sse.response);
    keep_prompt(p);
}

static void bind_session(struct px *p)
{
    struct serve *s = serve_of(p);
    bind_response(p);
    if (p->deletes && p->response[0] && p->status < 300) responses_forget(s, p->response);
    if (!p->session[0] || p->status >= 400) return;
    kvr_lock(&s->lock);
    if (sessions_bind(s->sessions, p->session, strlen(p->session), now_ms(), p->result.worker))
        replicas_on_session_locked(s, p->session, strlen(p->session), p->result.worker);
    kvr_unlock(&s->lock);
}

/* The answer is whole; its client may have gone with the last event. */
static void px_answered(struct px *p)
{
    struct kvr_http_conn *c = p->conn;
    read_usage(p);
    bind_session(p);
    unbook(p); /* before the client can know that it is over */
    p->conn = NULL;
    if (c) kvr_http_conn_set_user(c, NULL);
    p->answered = true;
    px_end(p);
    if (c) kvr_http_end(c);
}

static void on_done(struct kvr_http_call *call, void *ctx)
{
    struct px *p = ctx;
    (void)call;
    p->call = NULL;
    if (is_retryable(p->status) && !p->head_sent) {
        worker_report(serve_of(p), p->worker, p->status == 503);
        retry_or_fail(p, p->status, "every worker that was tried answered with an error");
        return;
    }
    worker_report(serve_of(p), p->worker, true);
    if (contradicts_early_head(p)) return;
    if (p->phase == PX_WAITING_FIRST) {
        send_head(p);
        note_first_token(p);
    } else if (!p->prefill_marked) {
        note_first_token(p);
    }
    px_answered(p);
}

/* The worker broke off, or a timeout struck, after the answer had begun. */
static void break_answer(struct px *p, const char *message)
{
    if (is_complete(p)) {
        px_answered(p);
        return;
    }
    COUNT(p, errors_total);
    struct kvr_http_conn *c = p->conn;
    p->conn = NULL;
    kvr_http_conn_set_user(c, NULL);
    if (p->is_sse && p->length < 0) {
        if (p->sse.part.len) kvr_http_write(c, "\n\n", 2); /* ends what was begun */
        p->status = 502;
        px_end(p);
        end_with_error_event(c, 502, message);
    } else {
        p->status = 502;
        px_end(p);
        kvr_http_abort(c);
    }
}

static void on_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct px *p = ctx;
    (void)call;
    p->call = NULL;
    worker_report(serve_of(p), p->worker, false);
    if (why == KVR_HTTP_CONNECT_FAILED || why == KVR_HTTP_RESET) health_check_now(serve_of(p), p->result.worker.worker_id);
    if (p->head_sent) break_answer(p, "the worker broke off the answer");
    else retry_or_fail(p, why == KVR_HTTP_CONNECT_TIMEOUT ? 504 : 502, text);
}

static const struct kvr_http_call_handler relay_handler = {on_head, on_body, on_done, on_failed};

/* ---- send -------------------------------------------------------------------------------------------- */

static bool is_ours(struct kvr_text name)
{
    static const char *const names[] = {"host",
                                        "content-length",
                                        "expect",
                                        "accept-encoding",
                                        "x-request-id",
                                        "x-data-parallel-rank",
                                        "x-kvroute-worker",
                                        "x-kvroute-dp-rank",
                                        "x-worker-instance-id",
                                        "x-request-priority",
                                        "x-kvroute-explain",
                                        "x-kvroute-policy-class"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++)
        if (kvr_text_is_nocase(name, names[i])) return true;
    return false;
}

static void put_request_head(struct px *p, size_t body_len, struct kvr_buf *h)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(p->conn);
    const struct worker *w = p->worker;
    bool v6 = strchr(w->endpoint.host, ':') != NULL;
    struct kvr_text method = rq->is_head ? (struct kvr_text){"HEAD", 4} : rq->method;
    struct kvr_hop_by_hop hop;
    (void)kvr_hop_by_hop_read(rq->headers, &hop);
    kvr_buf_printf(h, "%.*s %s%.*s HTTP/1.1\r\nHost: %s%s%s:%u\r\n", (int)method.len, method.ptr, w->endpoint.base, (int)rq->target.len,
                   rq->target.ptr, v6 ? "[" : "", w->endpoint.host, v6 ? "]" : "", w->endpoint.port);
    for (size_t i = 0; i < rq->headers->n; i++) {
        struct kvr_text name = kvr_headers_name(rq->headers, i), value = kvr_headers_value(rq->headers, i);
        if (is_ours(name) || kvr_header_is_hop_by_hop(&hop, name)) continue;
        kvr_buf_printf(h, "%.*s: %.*s\r\n", (int)name.len, name.ptr, (int)value.len, value.ptr);
    }
    kvr_buf_printf(h, "x-request-id: %s\r\n", p->id);
    if (!kvr_headers_get(rq->headers, "authorization").ptr) worker_key_put(w->api_key, h);
    if (p->names_rank) kvr_buf_printf(h, "X-data-parallel-rank: %u\r\n", p->named_rank); /* the one whose load is booked */
    if (body_len || kvr_text_is(rq->method, "POST") || kvr_text_is(rq->method, "PUT"))
        kvr_buf_printf(h, "Content-Length: %zu\r\n", body_len);
    kvr_buf_str(h, "\r\n");
}

static void px_send(struct px *p)
{
    const struct serve_options *o = serve_of(p)->o;
    struct kvr_buf h = {0};
    struct kvr_body *body = rank_body(p->worker, p->body, p->is_object ? &p->body_rank : NULL, p->result.worker.dp_rank);
    if (body || !p->body) put_request_head(p, body ? body->len : 0, &h);
    uint64_t tick = atomic_load(&serve_of(p)->view_tick); /* of what came before the worker has it */
    struct kvr_http_call_config cc = {.endpoint = &p->worker->endpoint,
                                      .head = h.data,
                                      .head_len = h.len,
                                      .body = body,
                                      .is_head = p->is_head_request,
                                      .connect_timeout_s = o->connect_timeout,
                                      .handler = &relay_handler,
                                      .ctx = p};
    if (p->members.reports) views_expect_reports(serve_of(p), p->worker);
    p->call = h.failed || !h.len ? NULL : kvr_http_call_start(p->loop->client, &cc);
    kvr_buf_free(&h);
    kvr_body_unref(body);
    if (!p->call) {
        px_fail(p, 503, "out of memory");
        return;
    }
    p->phase = PX_WAITING_FIRST;
    p->view_tick = tick;
    p->sent_ns = kvr_now_ns(kvr_clock_monotonic());
    p->phase_deadline_ms = after(o->first_token_timeout);
    arm(p);
}

/* ---- choose ------------------------------------------------------------------------------------------ */

/* Workers that serve the model, in the pool most of them are in (*in; NULL: there are none). *all: that is every worker of the pool. */
static size_t allowed_workers(struct px *p, struct pool **in, uint64_t *ids, size_t cap, bool *all)
{
    struct serve *s = serve_of(p);
    size_t n = 0, best = 0;
    bool lora;
    *all = true;
    *in = NULL;
    for (struct pool *pool = s->pools; pool; pool = pool->next) {
        size_t k = 0;
        for (const struct worker *w = s->workers; w; w = w->next)
            k += w->pool == pool && worker_serves_locked(s, w, p->model[0] ? p->model : NULL, strlen(p->model), &lora);
        if (k > best) {
            best = k;
            *in = pool;
        }
    }
    for (struct worker *w = s->workers; w && *in; w = w->next) {
        if (w->pool != *in) continue;
        if (!worker_serves_locked(s, w, p->model[0] ? p->model : NULL, strlen(p->model), &lora)) {
            *all = false;
            continue;
        }
        if (lora) p->is_lora = true;
        if (w->schedulable != worker_is_schedulable(w, now_ms())) worker_sync_locked(s, w); /* a breaker's pause is over */
        if (n < cap) ids[n++] = w->id;
    }
    return n;
}

static const char *reason_of(const struct px *p)
{
    static const char *const modes[] = {"kv", "round-robin", "random", "least-loaded", "direct"};
    struct serve *s = serve_of(p);
    int mode = atomic_load(&s->mode);
    if (p->pinned) return "pinned";
    if (p->result.preferred) return "session";
    if (p->token_failed) return "load-tokenize-failed";
    if (mode != KVR_MODE_KV) return modes[mode];
    if (p->no_index) return p->part_index ? "index-partial" : "index-unavailable";
    if (!p->result.trusted && s->ingest) return "untrusted";
    if (p->unplaced) return "load-multimodal";
    if (p->result.overlap_blocks) return "kv";
    return p->result.pending_blocks && s->o->cost == KVR_COST_DELAY ? "pending" : "load";
}

/* A request whose session is bound prefers the pair it is bound to. */
static void look_up_session_locked(struct px *p, struct kvr_router_request *rq)
{
    struct serve *s = serve_of(p);
    if (p->response[0] && !p->pinned && responses_get_locked(s, p->response, &rq->pin)) {
        rq->preferred = true;
        return;
    }
    if (!p->session[0] || p->pinned) return;
    if (!sessions_get(s->sessions, p->session, strlen(p->session), now_ms(), &rq->pin)) return;
    rq->preferred = true;
}

/* The next moment a waiting request needs the timer: a comment for its client, or the end of its patience. */
static void arm_waiting(struct px *p)
{
    const struct serve_options *o = serve_of(p)->o;
    if (!p->wait_deadline_ms) p->wait_deadline_ms = after(o->queue_timeout);
    if (!p->wait_deadline_ms) p->wait_deadline_ms = now_ms() + 1;
    p->phase_deadline_ms = p->wait_deadline_ms;
    if (p->stream && o->queue_keepalive > 0) p->phase_deadline_ms = KVR_MIN(p->wait_deadline_ms, after(o->queue_keepalive));
    arm(p);
}

static void keep_alive(struct px *p)
{
    if (!p->early_head) {
        char h[ID_MAX + 128];
        p->early_head = true;
        int n = snprintf(h, sizeof h,
                         "Content-Type: text/event-stream\r\nCache-Control: no-cache\r\nx-request-id: %s\r\nx-kvroute-reason: queued\r\n",
                         p->id);
        kvr_http_start(p->conn, 200, h, (size_t)n, -1);
    }
    kvr_http_write(p->conn, ": waiting for a worker\n\n", 24);
}

/* Waits for a worker to exist. */
static void park(struct px *p)
{
    struct px **q = &p->loop->parked;
    p->phase = PX_PARKED;
    /* A priority of n counts as n seconds of seniority. */
    while (*q && (double)(*q)->arrived_ms - (*q)->priority * 1000 <= (double)p->arrived_ms - p->priority * 1000) q = &(*q)->next;
    p->next = *q;
    *q = p;
    atomic_fetch_add(&p->loop->parked_n, 1);
    arm_waiting(p);
}

static void observe_times(struct px *p)
{
    struct metrics *m = &serve_of(p)->metrics;
    const struct kvr_router_times *t = &p->result.times;
    histogram_add(&m->block_hashing, (double)t->block_hashing / 1e6);
    histogram_add(&m->find_matches, (double)t->find_matches / 1e6);
    histogram_add(&m->seq_hashing, (double)t->seq_hashing / 1e6);
    histogram_add(&m->scheduling, (double)t->scheduling / 1e6);
    histogram_add(&m->total, (double)t->total / 1e6);
    if (!p->routed || !p->tokens_n) return;
    histogram_add(&m->isl, (double)p->isl);
    histogram_add(&m->hit_rate, p->result.required_blocks ? p->result.effective_blocks / (double)p->result.required_blocks : 0);
    quality_decided(serve_of(p), &p->result);
}

enum outcome { SENT, QUEUED, WAIT, FAILED };

static enum outcome refuse(struct px *p, int status, const char *message)
{
    px_fail(p, status, message);
    return FAILED;
}

/* Room for every worker's id. */
static bool reserve_allowed(struct loop *l, size_t n)
{
    if (n <= l->allowed_cap) return true;
    uint64_t *ids = realloc(l->allowed, 2 * n * sizeof *ids);
    if (!ids) return false;
    l->allowed = ids;
    l->allowed_cap = 2 * n;
    return true;
}

/* Under the router's lock, from any thread: see the top. */
static void on_turn(struct kvr_ticket *t, int rc, const struct kvr_router_result *result, const struct kvr_router_ctx *ctx)
{
    struct px *p = t->user;
    struct loop *l = p->loop;
    p->granted = rc;
    if (rc == 0) {
        p->result = *result;
        decision_table_take(&p->table, ctx, p->result.worker);
    }
    kvr_lock(&l->mail_lock);
    p->ready_next = l->ready;
    l->ready = p;
    kvr_unlock(&l->mail_lock);
    uv_async_send(&l->wake);
}

/* An index elsewhere that predicts must hear of every decision. */
static void record_remotely(struct px *p)
{
    struct kvr_remote_index *r = p->loop->remotes_n ? p->loop->remotes[0] : NULL; /* a predicted index has one owner */
    if (!r || serve_of(p)->o->kv_events || !p->locals || p->hashed_for != p->pool->block_size) return;
    uint64_t *seqs = malloc((p->locals_n + 1) * sizeof *seqs);
    if (!seqs) return;
    kvr_hash_sequence(p->locals, p->locals_n, seqs);
    kvr_remote_record(r, p->model, p->result.worker, p->locals, seqs, p->locals_n);
    free(seqs);
}

/* Booked: finds the worker and sends. WAIT: it was removed in this very moment. */
static enum outcome px_booked(struct px *p)
{
    struct serve *s = serve_of(p);
    atomic_fetch_add(&p->loop->active, 1);
    p->prefill_marked = false;
    p->generation_blocks = (p->isl + p->pool->block_size - 1) / p->pool->block_size;
    kvr_lock(&s->lock);
    struct worker *w = worker_find_locked(s, p->result.worker.worker_id);
    struct worker *before = p->worker;
    p->worker = w;
    if (w) {
        w->refs++;
        w->requests++;
        p->names_rank = rank_is_named_locked(s, w);
        p->view = views_knowledge(w, p->result.worker.dp_rank);
        p->named_rank = p->result.worker.dp_rank - w->rank_base;
    }
    kvr_unlock(&s->lock);
    worker_unref(s, before);
    if (!w) {
        unbook(p);
        return WAIT;
    }
    if (p->form == KVR_FORM_RESPONSES && w->engine == ENGINE_VLLM && w->dp_size > 1) { /* it picks the rank by itself there */
        p->members.certainty = KVR_PROMPT_UNKNOWN;
        p->members.as_evidence = p->members.usage_tells = false;
    }
    p->reason = reason_of(p);
    record_remotely(p);
    observe_times(p);
    begin_evidence(p);
    px_send(p);
    return SENT;
}

static enum outcome refuse_by_router(struct px *p, int rc)
{
    char text[256];
    p->booking[0] = 0;
    switch (rc) {
    case -KVR_ENOTALLOWED: return refuse(p, 400, "the pinned worker does not serve this model");
    case -KVR_EQUEUEFULL:
        snprintf(text, sizeof text, "the queue of class %s is full: %s %llu of %llu", p->rejection.policy_class,
                 kvr_queue_limit_name(p->rejection.kind), (unsigned long long)p->rejection.current, (unsigned long long)p->rejection.limit);
        return refuse(p, 529, text);
    case -KVR_EOVERLOADED:
        COUNT(p, overload_rejections_total);
        return refuse(p, 503, "every worker that may serve this request is overloaded");
    case -KVR_ESHUTDOWN: return refuse(p, 503, "the router is shutting down");
    case -KVR_ENOMEM:
    case -KVR_ELIMIT: return refuse(p, 503, kvr_strerror(rc));
    default: return WAIT;
    }
}

/* Fills p->rq for the workers there are now. Returns: SENT to go on, or WAIT or FAILED. */
static enum outcome px_prepare(struct px *p)
{
    struct serve *s = serve_of(p);
    struct loop *l = p->loop;
    struct kvr_router_request *rq = &p->rq;
    *rq = (struct kvr_router_request){.book = true,
                                      .guarded = true,
                                      .tokens = p->tokens,
                                      .tokens_n = p->tokens_n,
                                      .isl = p->isl,
                                      .expected_output = p->expected_osl,
                                      .salt = p->salt,
                                      .salt_len = p->salt_len,
                                      .excluded = p->tried,
                                      .excluded_n = p->tries,
                                      .pinned = p->pinned,
                                      .pin_any_rank = p->pin_any_rank,
                                      .pin = p->pin,
                                      .priority_jump = p->priority,
                                      .strict_priority = p->strict_priority,
                                      .policy_class = p->policy_class,
                                      .policy_class_len = strlen(p->policy_class)};
    kvr_lock(&s->lock);
    bool any = s->workers_n > 0, short_of_memory = !reserve_allowed(l, s->workers_n);
    const struct worker *pinned = p->pinned ? worker_find_locked(s, p->pin.worker_id) : NULL;
    bool all = true;
    struct pool *pool = NULL;
    rq->allowed_n = short_of_memory ? 0 : allowed_workers(p, &pool, l->allowed, l->allowed_cap, &all);
    if (pinned) pool = pinned->pool;
    look_up_session_locked(p, rq);
    bool pinned_down = pinned && !worker_is_schedulable(pinned, now_ms());
    bool rank_exists =
        pinned && (p->pin_any_rank || (p->pin.dp_rank >= pinned->dp_start && p->pin.dp_rank - pinned->dp_start < pinned->dp_size));
    kvr_unlock(&s->lock);
    if (!all) { /* a list of its own: it may wait */
        free(p->allowed);
        p->allowed = malloc((rq->allowed_n + 1) * sizeof *p->allowed);
        if (p->allowed) memcpy(p->allowed, l->allowed, rq->allowed_n * sizeof *p->allowed);
        else short_of_memory = true;
        rq->allowed = p->allowed;
    }
    if (p->pinned && any && !pinned) return refuse(p, 404, "the pinned worker is not known");
    if (pinned && !rank_exists) return refuse(p, 400, "the pinned data-parallel rank is out of range");
    if (pinned_down) return refuse(p, 503, "the pinned worker is not available");
    if (atomic_load(&s->mode) == KVR_MODE_DIRECT && !p->pinned)
        return refuse(p, 400, "router mode direct serves only requests that pin a worker (x-kvroute-worker)");
    if (short_of_memory) return refuse(p, 503, "out of memory");
    if (!any) return WAIT;
    if (!pool) {
        char text[MODEL_MAX + 64];
        snprintf(text, sizeof text, "no worker serves the model '%s'", p->model);
        return refuse(p, 404, text);
    }
    p->pool = pool; /* only now: what is told of an earlier worker's answer is told by its own pool */
    if (p->is_lora) {
        rq->lora = p->model;
        rq->lora_len = strlen(p->model);
    }
    if (p->locals && p->hashed_for == p->pool->block_size) {
        rq->locals = p->locals;
        rq->locals_n = p->locals_n;
        rq->scores = p->scores;
        rq->scores_n = p->scores_n;
    }
    snprintf(p->booking, sizeof p->booking, "%llx", (unsigned long long)atomic_fetch_add(&s->next_id, 1));
    rq->id = p->booking;
    rq->id_len = strlen(p->booking);
    return SENT;
}

/* Chooses, books and sends. WAIT: nobody can take it now, and nothing was changed. */
static enum outcome try_route(struct px *p, bool may_queue)
{
    enum outcome prepared = px_prepare(p);
    if (prepared != SENT) return prepared;
    struct kvr_router_ctx *ctx = ctx_get(&p->loop->ctxs, p->pool);
    int rc = -KVR_ENOMEM;
    p->queued = may_queue; /* before on_turn can run */
    p->phase = PX_QUEUED;
    if (ctx && may_queue) rc = kvr_router_submit(p->pool->router, ctx, &p->rq, &p->ticket, on_turn, p, &p->result, &p->rejection);
    else if (ctx) rc = kvr_router_find_best_match(p->pool->router, ctx, &p->rq, &p->result);
    if (rc == KVR_PARKED) {
        arm_waiting(p);
        return QUEUED;
    }
    p->queued = false;
    if (rc) return refuse_by_router(p, rc);
    decision_table_take(&p->table, ctx, p->result.worker);
    return px_booked(p);
}

static void px_route(struct px *p)
{
    if (try_route(p, true) != WAIT) return;
    if (p->tries) px_fail(p, 502, "no other worker is available");
    else park(p);
}

/* The queue has spoken. */
static void px_granted(struct px *p)
{
    p->queued = false;
    enum outcome o = p->granted ? refuse_by_router(p, p->granted) : px_booked(p);
    if (o == WAIT) park(p);
}

void proxy_take_ready(struct loop *l)
{
    for (;;) {
        kvr_lock(&l->mail_lock);
        struct px *p = l->ready;
        if (p) l->ready = p->ready_next;
        kvr_unlock(&l->mail_lock);
        if (!p) return;
        px_granted(p);
    }
}

static void retry_or_fail(struct px *p, int status, const char *text)
{
    const struct serve_options *o = serve_of(p)->o;
    char message[256];
    unbook(p);
    end_evidence(p);
    if (p->tries < TRIES_MAX) p->tried[p->tries++] = p->result.worker.worker_id;
    if (!p->pinned && p->tries <= o->max_retries && p->tries < TRIES_MAX) {
        COUNT(p, retries_total);
        p->head.len = 0;
        p->is_sse = false;
        if (try_route(p, false) != WAIT) return;
    }
    snprintf(message, sizeof message, "the request failed on %u worker(s): %s", p->tries, text);
    px_fail(p, status, message);
}

/* The list is taken as a whole: who has to wait on comes after those that arrived at the same moment, so it would be met again. */
void proxy_try_parked(struct loop *l)
{
    struct px *rest = l->parked;
    l->parked = NULL;
    while (rest) {
        struct px *p = rest;
        rest = p->next;
        p->next = NULL;
        atomic_fetch_sub(&l->parked_n, 1);
        if (try_route(p, true) == WAIT) park(p);
    }
}

void proxy_cancel_all(struct loop *l)
{
    while (l->parked) px_fail(l->parked, 503, "the router is shutting down");
}

/* ---- on a thread of the pool ------------------------------------------------------------------------- */

static struct px *px_of_job(struct kvr_job *j)
{
    return (struct px *)((char *)j - offsetof(struct px, job));
}

/* The loop goes on with the request in `over`. Until then it has no other deadline than --total-timeout. */
static void work(struct px *p, enum phase phase, void (*run)(struct kvr_job *j), void (*over)(struct kvr_job *j, bool given_up))
{
    p->phase = phase;
    p->phase_deadline_ms = 0;
    arm(p);
    p->working = true;
    p->job.run = run;
    p->job.over = over;
    kvr_job_start(&p->loop->jobs, &p->loop->uv, &p->job);
}

/* Returns: the request to go on with; NULL: it had ended before, and is closed now. */
static struct px *job_is_over(struct kvr_job *j, bool given_up)
{
    struct px *p = px_of_job(j);
    KVR_ASSERT(given_up == p->ended);
    p->working = false;
    if (!given_up) return p;
    px_close(p);
    return NULL;
}

static bool wants_tokens(const struct px *p)
{
    struct serve *s = serve_of(p);
    return p->routed && atomic_load(&s->mode) == KVR_MODE_KV && s->o->overlap_credit > 0;
}

/* ---- an index elsewhere ------------------------------------------------------------------------------ */

/* Adds what one index knows. Workers are divided among several, so the lists do not overlap. */
static bool keep_scores(struct px *p, const struct kvr_reach *scores, size_t n)
{
    if (n == 0) return true;
    struct kvr_reach *more = realloc(p->scores, (p->scores_n + n) * sizeof *more);
    if (!more) return false;
    memcpy(more + p->scores_n, scores, n * sizeof *more);
    p->scores = more;
    p->scores_n += n;
    return true;
}

static void one_answered(struct px *p)
{
    if (--p->unanswered) return;
    if (p->no_index && p->part_index) atomic_fetch_add_explicit(&serve_of(p)->metrics.remote_partial, 1, memory_order_relaxed);
    px_route(p);
}

static void on_scores(void *ctx, const struct kvr_remote_query *q, const struct kvr_reach *scores, long n)
{
    struct px *p = ctx;
    for (size_t i = 0; i < REMOTES_MAX; i++)
        if (p->queries[i] == q) p->queries[i] = NULL;
    if (n >= 0) histogram_add(&serve_of(p)->metrics.remote_query, (double)(kvr_now_ns(kvr_clock_monotonic()) - p->asked_ns) / 1e6);
    if (n < 0 || !keep_scores(p, scores, (size_t)n)) p->no_index = true;
    else p->part_index = true;
    one_answered(p);
}

/* The pool the prompt would go to now, for whose blocks it is hashed ahead. */
static bool find_pool(struct px *p)
{
    struct serve *s = serve_of(p);
    bool all;
    kvr_lock(&s->lock);
    (void)allowed_workers(p, &p->pool, NULL, 0, &all);
    kvr_unlock(&s->lock);
    return p->pool != NULL;
}

/* The prompt's hashes, for p->pool. Without memory there are none. */
static void hash_prompt(struct px *p)
{
    uint32_t bs = p->pool->block_size;
    size_t n = kvr_hash_block_count(p->tokens_n, bs, false);
    p->locals = malloc((n + 1) * sizeof *p->locals);
    if (!p->locals) return;
    uint64_t seed = kvr_hash_seed(p->is_lora ? p->model : NULL, p->is_lora ? strlen(p->model) : 0, p->salt, p->salt_len);
    (void)kvr_hash_locals(p->tokens, p->tokens_n, bs, false, seed, NULL, 0, p->locals);
    p->locals_n = n;
    p->hashed_for = bs;
}

/* What several indexers call the model: they know the fleet's workers by what was registered. */
static const char *asked_model(const struct px *p, char *out, size_t cap)
{
    if (serve_of(p)->remote_n <= 1) return p->model;
    remote_model(serve_of(p), p->hashed_for, out, cap);
    return out;
}

/* Its hashes are there, or will be made when it is routed: what of it is cached elsewhere? */
static void px_ask_remotes(struct px *p)
{
    struct loop *l = p->loop;
    char model[MODEL_MAX + 16];
    if (!l->remotes_n || !p->locals_n) {
        px_route(p);
        return;
    }
    p->asked_ns = kvr_now_ns(kvr_clock_monotonic());
    for (size_t i = 0; i < l->remotes_n; i++) {
        p->queries[i] = kvr_remote_ask(l->remotes[i], asked_model(p, model, sizeof model), p->locals, p->locals_n, on_scores, p);
        if (p->queries[i]) p->unanswered++;
        else p->no_index = true;
    }
    p->phase = PX_ASKING;
    p->phase_deadline_ms = 0; /* the questions have their own */
    if (p->unanswered) arm(p);
    else px_route(p);
}

static void run_hashing(struct kvr_job *j)
{
    hash_prompt(px_of_job(j));
}

static void over_hashing(struct kvr_job *j, bool given_up)
{
    struct px *p = job_is_over(j, given_up);
    if (p) px_ask_remotes(p);
}

/* The tokens are there: what of them is cached where? */
static void px_overlap(struct px *p)
{
    bool large = p->tokens_n > HASH_ON_LOOP;
    if (!wants_tokens(p) || !p->tokens || (!large && !p->loop->remotes_n) || !find_pool(p)) {
        px_route(p);
    } else if (large) {
        work(p, PX_HASHING, run_hashing, over_hashing);
    } else {
        hash_prompt(p);
        px_ask_remotes(p);
    }
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

/* Nothing is known of the tokens but how many there are. */
static void place_unknown(struct px *p)
{
    p->unplaced = true;
    p->tokens_n = 0;
    COUNT(p, multimodal_unplaced_total);
    px_overlap(p);
}

/* The tokens of `plain` are there, or none. What both have in common comes before the first part that is not text, wherever
 * the engine's template puts that. When nothing differs, such a part has left no trace: its place is not known. */
static void place_objects(struct px *p)
{
    size_t n = 0, most = p->tokens ? KVR_MIN(p->tokens_n, p->whole_n) : 0;
    while (n < most && p->tokens[n] == p->whole[n]) n++;
    bool known = p->tokens && n < p->whole_n;
    free(p->tokens);
    p->tokens = p->whole;
    p->tokens_n = n;
    p->whole = NULL;
    kvr_body_unref(p->plain);
    p->plain = NULL;
    if (known) px_overlap(p);
    else place_unknown(p);
}

static void ask_tokens(struct px *p, struct kvr_body *body);
static void got_tokens(struct px *p);

static void tokens_failed(struct px *p)
{
    COUNT(p, tokenize_failures_total);
    if (p->keep) {
        got_tokens(p);
        return;
    }
    if (p->whole) {
        place_objects(p);
        return;
    }
    p->token_failed = true;
    px_route(p);
}

/* What the prompt's workers have room for, in tokens (0: not known), and whether they truncate prompts as vLLM does. */
static bool truncates(struct px *p, uint64_t *room)
{
    struct serve *s = serve_of(p);
    bool does = true, lora;
    *room = 0;
    kvr_lock(&s->lock);
    for (const struct worker *w = s->workers; w; w = w->next) {
        if (!worker_serves_locked(s, w, p->model[0] ? p->model : NULL, strlen(p->model), &lora)) continue;
        if (w->engine == ENGINE_SGLANG) does = false;
        if (!*room) *room = worker_room_locked(w, p->model);
    }
    kvr_unlock(&s->lock);
    return does;
}

/* The engine's tokenizer truncates between the special tokens that it adds: asks for the tokens without them. */
static bool ask_bare(struct px *p, size_t keep)
{
    struct kvr_buf bytes = {0};
    kvr_tokenize_body_bare((struct kvr_json_span){p->ask->data, p->ask->data + p->ask->len}, &bytes);
    struct kvr_body *bare = bytes.failed ? NULL : kvr_body_derive(p->ask, &bytes);
    kvr_buf_free(&bytes);
    if (!bare) return false;
    p->keep = keep;
    p->whole = p->tokens;
    p->whole_n = p->tokens_n;
    p->tokens = NULL;
    p->tokens_n = 0; /* also when nobody is there to be asked */
    ask_tokens(p, bare);
    kvr_body_unref(bare);
    return true;
}

static void truncated(struct px *p, bool known)
{
    if (!known) p->members.certainty = KVR_PROMPT_UNKNOWN;
    if (!known) p->members.as_evidence = false;
}

/* The tokens without the special ones are there, or none. */
static void truncate_between(struct px *p)
{
    bool known = p->tokens && kvr_truncate_between(p->whole, p->whole_n, p->tokens, p->tokens_n, p->keep);
    free(p->tokens);
    p->tokens = p->whole;
    p->tokens_n = known ? p->keep : p->whole_n;
    p->whole = NULL;
    p->keep = 0;
    truncated(p, known);
}

/* Leaves of the tokens what the engine will. Returns: false when an engine is asked once more for that. */
static bool truncate_prompt(struct px *p)
{
    uint64_t room;
    size_t keep;
    if (p->members.truncation == KVR_TRUNCATE_NOT || !truncates(p, &room)) return true;
    bool known = kvr_truncated_length(&p->members, p->tokens_n, room, &keep), between = p->members.special_tokens && p->ask;
    truncated(p, known);
    if (!known || keep == p->tokens_n) return true;
    if (between && p->members.truncation == KVR_TRUNCATE_DEFAULT && keep) {
        if (ask_bare(p, keep)) return false;
        truncated(p, false);
        return true;
    }
    kvr_truncate(p->tokens, p->tokens_n, keep, p->members.truncation);
    p->tokens_n = keep;
    return true;
}

static void got_tokens(struct px *p)
{
    if (p->keep) {
        truncate_between(p);
    } else if (p->whole) {
        place_objects(p);
        return;
    } else if (!truncate_prompt(p)) {
        return;
    }
    kvr_body_unref(p->ask);
    p->ask = NULL;
    if (p->members.prompts == 1) p->isl = KVR_MAX(p->tokens_n, (size_t)1); /* of several the sum is known, or guessed */
    if (p->plain) {
        p->whole = p->tokens;
        p->whole_n = p->tokens_n;
        p->tokens = NULL;
        p->tokens_n = 0;
        ask_tokens(p, p->plain);
    } else if (p->unplaced) {
        place_unknown(p);
    } else {
        px_overlap(p);
    }
}

static void tokenize_head(struct kvr_http_call *call, void *ctx, int status, const struct kvr_headers *h, int64_t length)
{
    struct px *p = ctx;
    (void)call;
    (void)h;
    (void)length;
    p->status = status;
}

static void tokenize_body(struct kvr_http_call *call, void *ctx, const char *data, size_t len)
{
    struct px *p = ctx;
    (void)call;
    if (p->answer.len + len > serve_of(p)->o->max_body_size) p->answer.failed = true;
    kvr_buf_add(&p->answer, data, len);
}

/* p->tokens of what /tokenize answered; none: it is not an answer, or a longer one than prompts may have. */
static void read_tokens(struct px *p, struct kvr_json_parser *json)
{
    struct kvr_json root, list;
    if (!json || kvr_json_parse(json, p->answer.data, p->answer.len, &root, NULL)) return;
    list = kvr_json_get(root, "tokens");
    size_t n = kvr_json_count(list);
    if (kvr_json_type_of(list) != KVR_JSON_ARRAY || n > serve_of(p)->o->max_prompt_tokens) return;
    p->tokens = malloc((n + 1) * sizeof *p->tokens);
    p->tokens_n = n;
    if (!p->tokens || kvr_json_u32_array(list, p->tokens, n) >= 0) return;
    free(p->tokens);
    p->tokens = NULL;
}

static void tokens_are_read(struct px *p)
{
    struct serve *s = serve_of(p);
    kvr_buf_free(&p->answer);
    p->status = 0;
    if (!p->tokens) {
        p->tokens_n = 0;
        tokens_failed(p);
        return;
    }
    token_cache_put(s->tokens, p->cache_key, p->tokens, p->tokens_n);
    got_tokens(p);
}

static void run_token_reading(struct kvr_job *j)
{
    struct kvr_json_parser *json = kvr_json_parser_new();
    read_tokens(px_of_job(j), json);
    kvr_json_parser_free(json);
}

static void over_token_reading(struct kvr_job *j, bool given_up)
{
    struct px *p = job_is_over(j, given_up);
    if (p) tokens_are_read(p);
}

static void tokenize_done(struct kvr_http_call *call, void *ctx)
{
    struct px *p = ctx;
    (void)call;
    p->call = NULL;
    bool ok = p->status == 200 && !p->answer.failed && p->answer.len;
    if (ok && p->answer.len > KVR_JOB_BYTES) {
        work(p, PX_READING, run_token_reading, over_token_reading);
        return;
    }
    if (ok) read_tokens(p, p->loop->json);
    tokens_are_read(p);
}

static void tokenize_failed(struct kvr_http_call *call, void *ctx, enum kvr_http_failure why, const char *text)
{
    struct px *p = ctx;
    (void)call;
    (void)why;
    (void)text;
    p->call = NULL;
    kvr_buf_free(&p->answer);
    tokens_failed(p);
}

static const struct kvr_http_call_handler tokenize_handler = {tokenize_head, tokenize_body, tokenize_done, tokenize_failed};

/* Some healthy worker that serves the model. */
static struct worker *tokenizer_worker(struct px *p)
{
    struct serve *s = serve_of(p);
    struct worker *found = NULL;
    size_t seen = 0;
    bool lora;
    kvr_lock(&s->lock);
    for (struct worker *w = s->workers; w; w = w->next) {
        if (!worker_is_schedulable(w, now_ms()) || !worker_serves_locked(s, w, p->model[0] ? p->model : NULL, strlen(p->model), &lora))
            continue;
        if (atomic_fetch_add(&s->next_id, 1) % ++seen == 0) found = w; /* spread over them */
    }
    if (found) found->refs++;
    kvr_unlock(&s->lock);
    return found;
}

static void ask_engine(struct px *p, struct kvr_body *body)
{
    struct serve *s = serve_of(p);
    struct kvr_buf h = {0};
    struct worker *w = tokenizer_worker(p);
    if (!w) {
        bool none;
        kvr_lock(&s->lock);
        none = s->workers_n == 0;
        kvr_unlock(&s->lock);
        if (none) px_route(p);
        else tokens_failed(p);
        return;
    }
    struct kvr_text auth = kvr_headers_get(kvr_http_conn_request(p->conn)->headers, "authorization");
    COUNT(p, tokenize_requests_total);
    kvr_buf_printf(&h, "POST %s/tokenize HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n",
                   w->endpoint.base, w->endpoint.host, w->endpoint.port, body ? body->len : 0);
    if (auth.ptr) kvr_buf_printf(&h, "Authorization: %.*s\r\n", (int)auth.len, auth.ptr);
    else worker_key_put(w->api_key, &h);
    kvr_buf_str(&h, "\r\n");
    struct kvr_http_call_config cc = {.endpoint = &w->endpoint,
                                      .head = h.data,
                                      .head_len = h.len,
                                      .body = body,
                                      .connect_timeout_s = s->o->connect_timeout,
                                      .handler = &tokenize_handler,
                                      .ctx = p};
    p->call = kvr_http_call_start(p->loop->client, &cc);
    kvr_buf_free(&h);
    worker_unref(s, w);
    if (!p->call) {
        tokens_failed(p);
        return;
    }
    p->phase = PX_TOKENIZING;
    p->phase_deadline_ms = after(s->o->tokenize_timeout);
    arm(p);
}

static void refuse_body(struct px *p, int status, const char *why)
{
    p->refusal = status;
    p->refused = why;
}

static void out_of_memory(struct px *p)
{
    refuse_body(p, 503, "out of memory");
}

/* `what` has more of `unit` than the option allows. */
static void too_large(struct px *p, _Atomic uint64_t *counter, const char *what, uint64_t limit, const char *unit, const char *option)
{
    snprintf(p->refused_text, sizeof p->refused_text, "%s has more than %llu %s, which is --%s", what, (unsigned long long)limit, unit,
             option);
    refuse_body(p, 413, p->refused_text);
    p->refused_by = counter;
}

static enum serve_tokenizer tokenizer_of(const struct serve *s)
{
    if (s->o->tokenizer != TOKENIZER_AUTO) return (enum serve_tokenizer)s->o->tokenizer;
    return s->o->kv_events ? TOKENIZER_ENGINE : TOKENIZER_BYTES;
}

/* Token ids that the body gives. */
static void given_tokens(struct px *p, const struct kvr_openai_request *rq)
{
    uint32_t *t = malloc((rq->tokens_n + 1) * sizeof *t);
    if (!t) out_of_memory(p);
    if (!t || kvr_json_u32_array(rq->tokens, t, rq->tokens_n) < 0) {
        free(t);
        return;
    }
    p->tokens = t;
    p->tokens_n = rq->tokens_n;
    p->isl = rq->tokens_sum;
}

/* Bytes of the text as tokens. */
static void byte_tokens(struct px *p, const struct kvr_openai_request *rq)
{
    struct kvr_buf text = {0};
    if (!kvr_openai_prompt_text(rq, &text)) return;
    if (text.len > rq->text_max) {
        too_large(p, &serve_of(p)->metrics.prompt_texts_refused_total, "the text of the prompt", rq->text_max, "bytes", "max-prompt-text");
    } else {
        p->tokens = text.failed ? NULL : malloc((text.len + 1) * sizeof *p->tokens);
        if (!p->tokens) out_of_memory(p);
        for (size_t i = 0; p->tokens && i < text.len; i++) p->tokens[i] = (unsigned char)text.data[i];
        p->tokens_n = p->tokens ? text.len : 0;
    }
    kvr_buf_free(&text);
    if (p->members.truncation != KVR_TRUNCATE_NOT) truncated(p, false);
    p->members.truncation = KVR_TRUNCATE_NOT; /* counts the engine's tokens */
}

/* What an engine will be asked for the tokens. None: the body does not say what the prompt is. */
static void make_question(struct px *p)
{
    struct kvr_buf bytes = {0};
    struct kvr_json_span body = {p->body->data, p->body->data + p->body->len};
    bool made = kvr_tokenize_body(body, p->form, &bytes, &p->members.certainty);
    if (made) p->ask = kvr_body_derive(p->body, &bytes);
    p->token_failed = bytes.failed || (made && !p->ask);
    kvr_buf_free(&bytes);
    if (p->members.certainty != KVR_PROMPT_EXACT) p->members.as_evidence = false;
}

/* Where the tokens come from: the body itself, its bytes, or an engine that is asked. */
static void body_tokens(struct px *p, struct kvr_openai_request *rq, struct kvr_json_parser *json)
{
    const char *why;
    bool bytes = tokenizer_of(serve_of(p)) == TOKENIZER_BYTES;
    struct kvr_openai_request question;
    if (p->form == KVR_FORM_GENERATE) kvr_openai_take_prompt(rq, kvr_json_get(rq->root, "input_ids"));
    if (rq->tokens.doc) given_tokens(p, rq);
    if (p->tokens || p->refusal) return;
    if (bytes && p->form <= KVR_FORM_CHAT) {
        byte_tokens(p, rq);
        return;
    }
    make_question(p);
    if (!bytes || !p->ask) return;
    if (kvr_openai_parse(json, p->ask->data, p->ask->len, &question, &why) == 0) { /* the body's values are gone now */
        question.text_max = rq->text_max;
        byte_tokens(p, &question);
    }
    kvr_body_unref(p->ask);
    p->ask = NULL;
}

/* A chat with images and the like. In byte tokens they are where they belong. An engine's tokens have places kept free for them, which
 * are equal for any two images, so the prompt is predicted up to the first of them at most: the tokens of the same chat without them
 * tell where that is. Tokens that came with the request: nobody knows. */
static void find_objects(struct px *p, const struct kvr_openai_request *rq)
{
    struct kvr_buf plain = {0};
    if (p->form > KVR_FORM_CHAT || !kvr_mm_parts_any(rq->root)) return;
    p->multimodal = true;
    COUNT(p, multimodal_prompts_total);
    if (p->tokens && !rq->tokens.doc) return;
    bool placed = p->ask && p->members.truncation == KVR_TRUNCATE_NOT;
    if (placed && kvr_mm_parts_remove(p->ask->data, p->ask->len, rq->root, &plain)) p->plain = kvr_body_derive(p->ask, &plain);
    p->unplaced = !p->plain;
    kvr_buf_free(&plain);
}

static void px_tokens(struct px *p)
{
    if (p->tokens) got_tokens(p);
    else if (p->ask) ask_tokens(p, p->ask);
    else if (p->token_failed) tokens_failed(p);
    else px_overlap(p);
}

/* The tokens of a body, from the cache or an engine. */
static void ask_tokens(struct px *p, struct kvr_body *body)
{
    struct serve *s = serve_of(p);
    token_cache_key(body->data, body->len, p->cache_key);
    p->tokens = token_cache_get(s->tokens, p->cache_key, &p->tokens_n);
    if (p->tokens) {
        COUNT(p, tokenize_cache_hits_total);
        got_tokens(p);
    } else {
        ask_engine(p, body);
    }
}

/* ---- timeouts ---------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *t)
{
    struct px *p = t->data;
    const struct serve_options *o = serve_of(p)->o;
    uint64_t now = now_ms();
    bool total = p->total_deadline_ms && now >= p->total_deadline_ms;
    if ((p->phase == PX_PARKED || p->phase == PX_QUEUED) && !total && now < p->wait_deadline_ms) {
        if (now >= p->phase_deadline_ms) keep_alive(p);
        arm_waiting(p);
        return;
    }
    if (p->phase == PX_STREAMING && !total) { /* stall: armed lazily, judged by the last byte */
        uint64_t limit = (uint64_t)(o->stall_timeout * 1000);
        if (p->paused) p->last_byte_ms = now; /* it is the client that is slow */
        if (o->stall_timeout <= 0 || now - p->last_byte_ms < limit) {
            p->phase_deadline_ms = o->stall_timeout > 0 ? p->last_byte_ms + limit : 0;
            arm(p);
            return;
        }
    } else if (!total && now < p->phase_deadline_ms) {
        arm(p);
        return;
    }
    if (p->call) kvr_http_call_cancel(p->call);
    p->call = NULL;
    switch (p->phase) {
    case PX_TOKENIZING:
        kvr_buf_free(&p->answer);
        if (total) px_fail(p, 504, "the request took longer than --total-timeout");
        else tokens_failed(p);
        return;
    case PX_READING:
    case PX_HASHING:
    case PX_ASKING: px_fail(p, 504, "the request took longer than --total-timeout"); return;
    case PX_PARKED:
    case PX_QUEUED:
        COUNT(p, queue_timeouts_total);
        px_fail(p, 503, "no worker became available in time");
        return;
    case PX_WAITING_FIRST:
        worker_report(serve_of(p), p->worker, false);
        px_fail(p, 504, total ? "the request took longer than --total-timeout" : "the worker did not answer in time");
        return;
    case PX_STREAMING: break_answer(p, total ? "the request took longer than --total-timeout" : "the worker stalled"); return;
    }
}

/* ---- arrival ----------------------------------------------------------------------------------------- */

static bool is_safe_id(struct kvr_text t)
{
    for (size_t i = 0; i < t.len; i++)
        if ((unsigned char)t.ptr[i] < 0x21 || (unsigned char)t.ptr[i] > 0x7e) return false;
    return t.len > 0 && t.len < ID_MAX;
}

static void take_request_id(struct px *p, const struct kvr_http_request *rq)
{
    struct kvr_text t = kvr_headers_get(rq->headers, "x-request-id");
    struct serve *s = serve_of(p);
    if (t.ptr && is_safe_id(t)) snprintf(p->id, sizeof p->id, "%.*s", (int)t.len, t.ptr);
    else snprintf(p->id, sizeof p->id, "kvr-%016llx", (unsigned long long)kvr_mix64(s->salt + atomic_fetch_add(&s->next_id, 1)));
}

static bool text_u64(struct kvr_text t, uint64_t max, uint64_t *out)
{
    return kvr_parse_u64(t.ptr, t.len, max, out);
}

static struct kvr_text either(const struct kvr_headers *h, const char *a, const char *b)
{
    struct kvr_text t = kvr_headers_get(h, a);
    return t.ptr ? t : kvr_headers_get(h, b);
}

/* Pin, rank, priority and session headers. Returns: what is wrong, or NULL. */
static const char *read_hints(struct px *p, const struct kvr_http_request *rq)
{
    struct kvr_text pin = either(rq->headers, "x-kvroute-worker", "x-worker-instance-id");
    if (!pin.ptr) pin = kvr_headers_get(rq->headers, "x-dynamo-worker-instance-id");
    struct kvr_text rank = either(rq->headers, "x-kvroute-dp-rank", "x-data-parallel-rank");
    struct kvr_text priority = either(rq->headers, "x-request-priority", "x-dynamo-request-priority");
    struct kvr_text session = kvr_headers_get(rq->headers, "x-session-id");
    uint64_t v;
    if (rank.ptr) {
        if (!text_u64(rank, UINT32_MAX, &v)) return "the data-parallel rank header must be a whole number";
        p->pin.dp_rank = (uint32_t)v;
        p->has_rank = true;
    }
    if (pin.ptr) {
        if (!text_u64(pin, UINT64_MAX, &p->pin.worker_id)) return "the worker header must be a worker id";
        p->pinned = true;
        p->pin_any_rank = !p->has_rank;
    }
    if (priority.ptr) {
        char s[32] = {0}, *end;
        memcpy(s, priority.ptr, KVR_MIN(priority.len, sizeof s - 1));
        p->priority = strtod(s, &end);
        if (end == s || *end || !(p->priority >= -1e9 && p->priority <= 1e9)) return "x-request-priority must be a number";
        if (p->priority < 0) p->priority = 0;
    }
    if (session.ptr && session.len < sizeof p->session) memcpy(p->session, session.ptr, session.len);
    struct kvr_text strict = kvr_headers_get(rq->headers, "x-dynamo-request-strict-priority");
    if (strict.ptr) {
        if (!text_u64(strict, UINT32_MAX, &v)) return "x-dynamo-request-strict-priority must be a whole number";
        p->strict_priority = (uint32_t)v;
    }
    struct kvr_text policy = either(rq->headers, "x-kvroute-policy-class", "x-dynamo-meta-policy-class");
    if (policy.len >= sizeof p->policy_class) return "the policy class header has more than 63 characters";
    if (policy.ptr) memcpy(p->policy_class, policy.ptr, policy.len);
    p->explain = kvr_text_is(kvr_headers_get(rq->headers, "x-kvroute-explain"), "1");
    return NULL;
}

/* A rank in the body counts as one in the header. Returns: what is wrong, or NULL. */
static const char *join_ranks(struct px *p)
{
    if (p->rank_error || !p->body_rank.given) return p->rank_error;
    if (p->has_rank && p->pin.dp_rank != p->body_rank.rank)
        return "`data_parallel_rank` (or `routed_dp_rank`) of the body and the data-parallel rank header are different ranks; give one, or "
               "the same";
    p->has_rank = true;
    p->pin.dp_rank = p->body_rank.rank;
    p->pin_any_rank = false;
    return NULL;
}

/* A rank without a worker: meaningful when one worker is there. */
static const char *pin_rank_alone(struct px *p)
{
    struct serve *s = serve_of(p);
    const char *why = NULL;
    if (!p->has_rank || p->pinned) return NULL;
    kvr_lock(&s->lock);
    const struct worker *w = s->workers;
    if (w && !w->next) {
        p->pin.worker_id = w->id;
        p->pinned = true;
    } else if (w) {
        why = "a data-parallel rank needs the worker too (x-kvroute-worker)";
    }
    kvr_unlock(&s->lock);
    return why;
}

static bool is_small_enough(struct px *p, const struct kvr_openai_request *rq)
{
    struct serve *s = serve_of(p);
    size_t messages = rq->has_messages ? kvr_json_count(kvr_json_get(rq->root, "messages")) : 0;
    if (messages > s->o->max_messages)
        too_large(p, &s->metrics.prompt_messages_refused_total, "`messages`", s->o->max_messages, "entries", "max-messages");
    else if (rq->tokens.doc && rq->tokens_n > s->o->max_prompt_tokens)
        too_large(p, &s->metrics.prompt_tokens_refused_total, "the prompt", s->o->max_prompt_tokens, "tokens", "max-prompt-tokens");
    return !p->refusal;
}

/* What routing needs of the body, or p->refused. May run on a thread: see the top. */
static void read_body(struct px *p, struct kvr_json_parser *json)
{
    struct kvr_openai_request rq;
    const char *why = "out of memory";
    int rc = json ? kvr_openai_parse(json, p->body ? p->body->data : NULL, p->body_len, &rq, &why) : -KVR_ENOMEM;
    if (rc == 0 && rq.model_len >= MODEL_MAX) {
        why = "`model` is longer than 127 bytes";
        rc = -KVR_EINVAL;
    }
    if (rc) {
        refuse_body(p, rc == -KVR_ENOMEM ? 503 : 400, why);
        return;
    }
    p->is_object = true;
    p->rank_error = kvr_rank_member_read(rq.root, &p->body_rank);
    if (rq.model) memcpy(p->model, rq.model, rq.model_len);
    if (p->routed && p->form == KVR_FORM_RESPONSES) responses_id_of(kvr_json_get(rq.root, "previous_response_id"), p->response);
    p->stream = rq.stream;
    p->expected_osl = rq.expected_osl;
    if (rq.priority > 0 && p->priority == 0) p->priority = rq.priority;
    if (rq.strict_priority && !p->strict_priority) p->strict_priority = rq.strict_priority;
    if (rq.salt && rq.salt_len) {
        p->salt = malloc(rq.salt_len);
        if (p->salt) memcpy(p->salt, rq.salt, rq.salt_len);
        else out_of_memory(p); /* without it the prompt would be another one */
        p->salt_len = p->salt ? rq.salt_len : 0;
    }
    rq.text_max = serve_of(p)->o->max_prompt_text;
    if (p->routed && is_small_enough(p, &rq) && wants_tokens(p)) {
        kvr_prompt_members_read(rq.root, p->form, &rq.members);
        p->members = rq.members;
        body_tokens(p, &rq, json);
        if (!p->refusal) find_objects(p, &rq);
    }
}

static struct px *px_new(struct loop *l, struct kvr_http_conn *c)
{
    struct px *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->loop = l;
    p->conn = c;
    p->reason = "load";
    p->length = -1;
    p->other_ms = -1;
    p->arrived_ms = now_ms();
    atomic_fetch_add(&l->in_flight, 1);
    uv_timer_init(&l->uv, &p->timer);
    p->timer.data = p;
    return p;
}

static void body_is_read(struct px *p)
{
    const char *why = NULL;
    if (p->refused_by) atomic_fetch_add_explicit(p->refused_by, 1, memory_order_relaxed);
    if (p->refusal && (p->routed || p->refusal == 503)) { /* other bodies are the engine's business */
        px_fail(p, p->refusal, p->refused);
    } else if ((why = join_ranks(p)) || (why = pin_rank_alone(p))) {
        px_fail(p, 400, why);
    } else {
        if (!p->isl) p->isl = KVR_MAX(p->body_len / 4, (size_t)1); /* until tokens are known */
        px_tokens(p);
    }
}

static void run_reading(struct kvr_job *j)
{
    struct kvr_json_parser *json = kvr_json_parser_new(); /* its memory goes with it */
    read_body(px_of_job(j), json);
    kvr_json_parser_free(json);
}

static void over_reading(struct kvr_job *j, bool given_up)
{
    struct px *p = job_is_over(j, given_up);
    if (p) body_is_read(p);
}

static void begin(struct loop *l, struct kvr_http_conn *c, const enum kvr_prompt_form *form)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct px *p = px_new(l, c);
    const char *why;
    if (!p) {
        reply_error(c, 503, "out of memory", NULL);
        return;
    }
    COUNT(p, requests_total);
    kvr_http_conn_set_user(c, p);
    take_request_id(p, rq);
    p->routed = form != NULL;
    if (form) p->form = *form;
    responses_id_of_path(rq->path, p->response);
    p->is_head_request = rq->is_head;
    p->deletes = kvr_text_is(rq->method, "DELETE");
    p->total_deadline_ms = after(serve_of(p)->o->total_timeout);
    why = read_hints(p, rq);
    if (why) {
        px_fail(p, 400, why);
        return;
    }
    p->body = kvr_http_conn_take_body(c);
    p->body_len = p->body ? p->body->len : 0;
    if (p->body_len > KVR_JOB_BYTES) {
        work(p, PX_READING, run_reading, over_reading);
        return;
    }
    if (form || p->body_len) read_body(p, l->json);
    body_is_read(p);
}

bool serve_ready(struct serve *s, const char **why)
{
    bool up = false;
    uint64_t now = now_ms();
    kvr_lock(&s->lock);
    size_t n = s->workers_n;
    for (const struct worker *w = s->workers; w; w = w->next)
        up |= (w->health == HEALTH_UP || s->o->select_only) && worker_is_schedulable(w, now);
    kvr_unlock(&s->lock);
    *why = "no worker is schedulable";
    if (!up) return false;
    *why = "fewer workers than --min-initial-workers";
    if (n < s->o->min_initial_workers) return false;
    *why = "views are being restored";
    if (!views_settled(s)) return false;
    *why = "the remote index has not been validated";
    if (!remote_settled(s)) return false;
    *why = "shutting down";
    return !atomic_load(&s->draining);
}

/* GET /v1/models/{id}; the id may have slashes of its own. */
static void model_answer(struct loop *l, struct kvr_http_conn *c, struct kvr_text id)
{
    char name[MODEL_MAX] = "", text[MODEL_MAX + 32];
    struct kvr_buf b = {0};
    if (models_id_of_path(id, name) && models_write_one(l->serve, &b, name)) {
        kvr_http_reply_buf(c, 200, "application/json", NULL, &b);
    } else {
        snprintf(text, sizeof text, "the model '%s' does not exist", name);
        reply_error(c, 404, text, NULL);
    }
    kvr_buf_free(&b);
}

static void local_answer(struct loop *l, struct kvr_http_conn *c, int what)
{
    struct kvr_buf b = {0};
    const char *why = "";
    if (what == 0) {
        models_write(l->serve, &b);
        kvr_http_reply_buf(c, 200, "application/json", NULL, &b);
    } else if (what == 1) {
        kvr_http_reply(c, 200, "application/json", NULL, "{\"status\":\"ok\"}", 15);
    } else if (serve_ready(l->serve, &why)) {
        kvr_http_reply(c, 200, "application/json", NULL, "{\"status\":\"ready\"}", 18);
    } else {
        reply_error(c, 503, why, NULL);
    }
    kvr_buf_free(&b);
}

/* What is routed by its prompt, and where it is posted. */
static const enum kvr_prompt_form *routed_form(struct kvr_text path)
{
    static const struct {
        const char *path;
        enum kvr_prompt_form form;
    } forms[] = {{"/v1/completions", KVR_FORM_COMPLETION},
                 {"/v1/chat/completions", KVR_FORM_CHAT},
                 {"/v1/responses", KVR_FORM_RESPONSES},
                 {"/v1/messages", KVR_FORM_MESSAGES},
                 {"/generate", KVR_FORM_GENERATE}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(forms); i++)
        if (kvr_text_is(path, forms[i].path)) return &forms[i].form;
    return NULL;
}

/* Paths that are passed on by load, beside all under /v1/. No other path of an engine can be reached from here: some of them stop it,
 * empty its cache or tell its configuration. */
static bool is_passed_on(struct kvr_text path)
{
    static const char *const paths[] = {"/tokenize", "/detokenize", "/score", "/rerank", "/v2/rerank", "/pooling", "/classify", "/encode"};
    if (path.len > 4 && strncmp(path.ptr, "/v1/", 4) == 0) return true;
    for (size_t i = 0; i < KVR_ARRAY_LEN(paths); i++)
        if (kvr_text_is(path, paths[i])) return true;
    return false;
}

void proxy_on_request(struct kvr_http_conn *c, void *ctx)
{
    struct loop *l = ctx;
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    bool get = kvr_text_is(rq->method, "GET");
    const enum kvr_prompt_form *form = routed_form(rq->path);
    static const char *const local[] = {"/v1/models", "/health", "/ready"};
    for (int i = 0; i < 3; i++)
        if (kvr_text_is(rq->path, local[i])) {
            if (get) local_answer(l, c, i);
            else reply_error(c, 405, "method not allowed; use GET", NULL);
            return;
        }
    static const char models[] = "/v1/models/";
    if (get && rq->path.len > sizeof models - 1 && memcmp(rq->path.ptr, models, sizeof models - 1) == 0) {
        model_answer(l, c, (struct kvr_text){rq->path.ptr + sizeof models - 1, rq->path.len - (sizeof models - 1)});
    } else if (atomic_load(&l->serve->draining)) {
        kvr_http_close_after(c);
        reply_error(c, 503, "the router is shutting down", NULL);
    } else if (form || kvr_text_is(rq->path, "/v1/embeddings")) {
        if (kvr_text_is(rq->method, "POST")) begin(l, c, form);
        else reply_error(c, 405, "method not allowed; use POST", NULL);
    } else if (is_passed_on(rq->path)) {
        begin(l, c, NULL);
    } else {
        reply_error(c, 404, "unknown path; the API is under /v1/", NULL);
    }
}
