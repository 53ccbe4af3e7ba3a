/* SPDX-License-Identifier: Apache-2.0 */
/* What all phases of a request use: its birth and its memory, its timer, its refusal, its work on a thread. */
#include "app/serve/data/request/request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/workers/workers.h"

struct request *request_new(struct loop *l, struct kvr_http_conn *c)
{
    struct request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->loop = l;
    r->conn = c;
    r->gauges.arrived_ns = kvr_monotonic_ns();
    r->arrived_ms = r->gauges.arrived_ns / 1000000;
    atomic_fetch_add(&l->in_flight, 1);
    uv_timer_init(&l->uv, &r->timer);
    r->timer.data = r;
    return r;
}

void request_forget_tokens(struct request *r)
{
    free(r->tokens);
    free(r->locals);
    free(r->scores);
    r->tokens = NULL;
    r->locals = NULL;
    r->scores = NULL;
}

/* What is owned. */
static void let_reading_go(struct request *r)
{
    kvr_body_unref(r->ask);
    kvr_body_unref(r->plain);
    request_forget_tokens(r);
    free(r->salt);
}

void request_forget_body(struct request *r)
{
    let_reading_go(r);
    r->ask = r->plain = NULL;
    r->salt = NULL;
    memset(r->model, 0, sizeof r->model);
    r->options = (struct model_options){0};
    r->members = (struct kvr_prompt_members){0};
    r->split = (struct kvr_handoff_members){0};
    r->salt_len = r->tokens_n = r->locals_n = r->scores_n = 0;
    r->isl = 0;
    r->hashed_for = 0;
    r->tokens_from = TOKENS_NONE;
    r->is_lora = r->multimodal = r->unplaced = r->token_failed = r->forwarded_ids = r->asks_sglang = r->no_index = r->part_index =
        r->gated = false;
}

void request_free(struct request *r)
{
    kvr_body_unref(r->body);
    let_reading_go(r);
    refusal_free(&r->refusal);
    free(r->now);
    free(r->session);
    free(r->policy_class);
    free(r->response);
    free(r->asked_model);
    atomic_fetch_sub(&r->loop->in_flight, 1);
    uv_close((uv_handle_t *)&r->timer, kvr_free_closed);
}

bool request_keep_text(char **place, const char *text, size_t len)
{
    char *copy = len ? strndup(text, len) : NULL;
    if (len && !copy) return false;
    free(*place);
    *place = copy;
    return true;
}

struct kvr_http_conn *request_detach(struct request *r)
{
    struct kvr_http_conn *c = r->conn;
    r->conn = NULL;
    if (c) kvr_http_conn_set_user(c, NULL);
    if (c) kvr_http_conn_tell(c, NULL);
    return c;
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

void refusal_free(struct refusal *why)
{
    free(why->made);
    kvr_buf_free(&why->head);
    kvr_buf_free(&why->body);
}

enum outcome request_refuse(struct request *r, int status, const char *text)
{
    refusal_free(&r->refusal);
    r->refusal = (struct refusal){.status = status, .text = text};
    return OUTCOME_REFUSED;
}

enum outcome request_refusef(struct request *r, int status, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *made = strdup(text);
    (void)request_refuse(r, status, made ? made : "out of memory");
    r->refusal.made = made;
    return OUTCOME_REFUSED;
}

/* ---- time -------------------------------------------------------------------------------------------- */

uint64_t request_after(const struct request *r, double seconds)
{
    return seconds > 0 ? request_now_ms(r) + (uint64_t)(seconds * 1000) + 1 : 0;
}

static void on_timer(uv_timer_t *t)
{
    request_step(t->data, OUTCOME_TIME);
}

void request_arm(struct request *r)
{
    uint64_t d = r->phase_deadline_ms, now = request_now_ms(r);
    if (r->total_deadline_ms && (!d || r->total_deadline_ms < d)) d = r->total_deadline_ms;
    if (d) uv_timer_start(&r->timer, on_timer, d > now ? d - now : 0, 0);
    else uv_timer_stop(&r->timer);
}

void request_wait_until(struct request *r, uint64_t deadline_ms)
{
    r->phase_deadline_ms = deadline_ms;
    request_arm(r);
}

/* ---- on a thread of the pool ---------------------------------------------------------------------------- */

static struct request_job *request_job_of(struct kvr_job *j)
{
    return (struct request_job *)((char *)j - offsetof(struct request_job, job));
}

static void on_thread(struct kvr_job *j)
{
    struct request_job *job = request_job_of(j);
    job->run(job->request);
}

static void over(struct kvr_job *j, bool given_up)
{
    struct request_job *job = request_job_of(j);
    struct request *r = job->request;
    KVR_ASSERT(given_up == r->ended);
    r->working = NULL;
    request_step(r, given_up ? OUTCOME_GIVEN_UP : job->over(r));
}

enum outcome request_work(struct request *r, struct request_job *job, void (*run)(struct request *r),
                          enum outcome (*go_on)(struct request *r))
{
    request_wait_until(r, 0);
    *job = (struct request_job){.job = {.run = on_thread, .over = over}, .request = r, .run = run, .over = go_on};
    r->working = job;
    kvr_job_start(&r->loop->jobs, &r->loop->uv, &job->job);
    return OUTCOME_WAITS;
}

/* ---- what it is -------------------------------------------------------------------------------------- */

enum kvr_router_mode request_mode(const struct request *r)
{
    int mode = workers_mode(data_of(r)->workers); /* direct is an operator's word about all requests */
    return (enum kvr_router_mode)(mode == KVR_MODE_DIRECT ? mode : (int)model_option(&r->options, MODEL_ROUTER_MODE, mode));
}

bool request_wants_tokens(const struct request *r)
{
    return r->routed && request_mode(r) == KVR_MODE_KV && data_of(r)->o->overlap_credit > 0;
}

void request_prompt_is_hint(struct request *r)
{
    r->members.certainty = KVR_PROMPT_UNKNOWN;
    r->members.as_evidence = false;
}

uint64_t request_hash_seed(const struct request *r)
{
    return kvr_hash_seed(r->is_lora ? r->model : NULL, r->is_lora ? strlen(r->model) : 0, r->salt, r->salt_len);
}
