/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POST /adapters/load, /adapters/unload: a LoRA adapter at every worker of a model.
 *
 *     body --> one call for each address, ADAPTER_CALLS_MAX at a time --> what each said is kept, up to ADAPTER_SAID_MAX bytes
 *                 | a worker has done it
 *                 v
 *              its /v1/models is read again (health.c), so that requests find the adapter when the answer has come
 *
 * Workers that are ranks of one address have one engine: it is told once. Every worker of the model counts, whatever its role and also
 * when it is down: one that lacks an adapter would be asked for it. Who asked may go away; what was begun goes on.
 *
 * Threads: the main loop's.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/workers/engines/health.h"
#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "net/http/ask.h"

enum { ADAPTER_JOBS_MAX = 4, ADAPTER_CALLS_MAX = 32, ADAPTER_SAID_MAX = 1024, ADAPTER_PATH_MAX = 4096 };

struct adapter_call {
    struct adapter_job *job;
    uint64_t worker_id;
    size_t same; /* the first call of its address; its own place: it is made */
    struct kvr_ask *asking;
    int status;      /* 0: no answer */
    char error[128]; /* then why */
    struct kvr_buf said;
    bool cut;
};

struct adapter_job {
    struct adapter_job *next;
    struct admin *admin;
    struct kvr_http_conn *conn; /* NULL: nobody waits */
    bool loads, in_place, pinned;
    double timeout_s;
    char model[MODEL_MAX], lora[MODEL_MAX], path[ADAPTER_PATH_MAX];
    struct adapter_call *calls;
    size_t n, begun, under_way, models_asked;
};

/* ---- what is told ------------------------------------------------------------------------------------ */

static bool is_done(const struct adapter_call *c)
{
    return c->status >= 200 && c->status < 300;
}

static size_t count_done(const struct adapter_job *j)
{
    size_t n = 0;
    for (size_t i = 0; i < j->n; i++) n += is_done(&j->calls[j->calls[i].same]);
    return n;
}

static void write_call(const struct adapter_call *c, uint64_t worker_id, struct kvr_buf *b)
{
    kvr_json_printf(b, "{'worker_id':%ju,'status':", worker_id);
    if (c->status) kvr_json_u64(b, (uint64_t)c->status);
    else kvr_json_null(b);
    kvr_json_printf(b, "'body':%.*s,'cut':%i", (int)c->said.len, c->said.data, c->cut);
    if (!c->status) kvr_json_put_str(b, "error", c->error);
    kvr_json_close(b, '}');
}

static void answer(struct adapter_job *j)
{
    struct kvr_buf b = {0};
    size_t done = count_done(j);
    kvr_log("kvroute serve: adapter '%s' of model '%s': %s at %zu of %zu workers", j->lora, j->model, j->loads ? "loaded" : "unloaded",
            done, j->n);
    if (!j->conn) return;
    kvr_json_printf(&b, "{'model_name':%s,'lora_name':%s,'done':%ju,'failed':%ju,'workers':[", j->model, j->lora, done, j->n - done);
    for (size_t i = 0; i < j->n; i++) write_call(&j->calls[j->calls[i].same], j->calls[i].worker_id, &b);
    kvr_json_printf(&b, "]}");
    kvr_http_conn_set_user(j->conn, NULL);
    admin_reply(j->conn, done == j->n ? 200 : 502, &b);
}

/* ---- the job ----------------------------------------------------------------------------------------- */

static void end_job(struct adapter_job *j)
{
    KVR_UNLINK(j->admin->adapter_jobs, j);
    for (size_t i = 0; i < j->n; i++) kvr_buf_free(&j->calls[i].said);
    free(j->calls);
    free(j);
}

static void go_on(struct adapter_job *j);

static void on_models(void *ctx)
{
    struct adapter_job *j = ctx;
    j->models_asked--;
    go_on(j);
}

static void ask_models(struct adapter_job *j, size_t first)
{
    for (size_t i = first; i < j->n; i++)
        if (j->calls[i].same == first && health_ask_models(j->admin->workers, j->calls[i].worker_id, on_models, j)) j->models_asked++;
}

static void on_said(void *ctx, const struct kvr_asked *said)
{
    struct adapter_call *c = ctx;
    struct adapter_job *j = c->job;
    c->asking = NULL;
    c->status = said->status;
    c->cut = said->cut;
    kvr_buf_add(&c->said, said->data, said->len);
    snprintf(c->error, sizeof c->error, "%s", said->why ? said->why : "");
    j->under_way--;
    if (is_done(c)) ask_models(j, (size_t)(c - j->calls));
    go_on(j);
}

/* What an engine of this kind reads. */
static void write_order(const struct adapter_job *j, bool sglang, struct kvr_buf *b)
{
    kvr_json_printf(b, "{'lora_name':%s", j->lora);
    if (j->loads) kvr_json_put_str(b, "lora_path", j->path);
    if (j->loads && (sglang ? j->pinned : j->in_place)) {
        kvr_json_key(b, sglang ? "pinned" : "load_inplace");
        kvr_json_bool(b, true);
    }
    kvr_json_close(b, '}');
}

/* Returns: NULL, or why there is none. */
static const char *start(struct adapter_call *c, const struct worker *w)
{
    const struct adapter_job *j = c->job;
    struct kvr_buf text = {0}, headers = {0};
    char path[40];
    bool sglang = w->engine == ENGINE_SGLANG || w->learnt.facts.engine == KVR_FACT_SGLANG;
    write_order(j, sglang, &text);
    snprintf(path, sizeof path, "%s/%sload_lora_adapter", sglang ? "" : "/v1", j->loads ? "" : "un");
    worker_key_put(w->api_key, &headers);
    struct kvr_ask_config config = {.loop = &j->admin->process->main_loop,
                                    .client = j->admin->process->client,
                                    .endpoint = &w->endpoint,
                                    .path = path,
                                    .json = &text,
                                    .headers = &headers,
                                    .max = ADAPTER_SAID_MAX,
                                    .connect_timeout_s = j->admin->o->connect_timeout,
                                    .timeout_s = j->timeout_s,
                                    .fn = on_said,
                                    .ctx = c};
    c->asking = kvr_ask_start(&config);
    return c->asking ? NULL : "out of memory";
}

/* NULL: it was removed. Only this loop removes workers, and changes what they have. */
static const struct worker *worker_of(struct admin *admin, uint64_t id)
{
    workers_lock(admin->workers);
    const struct worker *w = worker_find_locked(admin->workers, id);
    workers_unlock(admin->workers);
    return w;
}

/* Begins with as many as may be under way, and ends the job when none is left. */
static void go_on(struct adapter_job *j)
{
    while (j->begun < j->n && j->under_way < ADAPTER_CALLS_MAX) {
        struct adapter_call *c = &j->calls[j->begun++];
        if (c->same != j->begun - 1) continue;
        const struct worker *w = worker_of(j->admin, c->worker_id);
        const char *why = w ? start(c, w) : "the worker was removed";
        if (why) snprintf(c->error, sizeof c->error, "%s", why);
        else j->under_way++;
    }
    if (j->under_way || j->models_asked) return;
    answer(j);
    end_job(j);
}

/* ---- the beginning ----------------------------------------------------------------------------------- */

/* One whose models nobody knows yet is not taken for one of this model. */
static bool serves(const struct admin *admin, const struct worker *w, const char *model)
{
    const char *named = w->model[0] ? w->model : admin->o->model;
    for (size_t i = 0; i < w->models_n; i++)
        if (strcmp(w->models[i].id, model) == 0) return !w->models[i].is_lora;
    return named && strcmp(named, model) == 0;
}

static bool is_same_address(const struct worker *a, const struct worker *b)
{
    return a->endpoint.key == b->endpoint.key && strcmp(a->endpoint.base, b->endpoint.base) == 0;
}

/* Returns: false without memory. */
static bool list_workers(struct adapter_job *j)
{
    struct admin *admin = j->admin;
    const struct worker **of = calloc(workers_count(admin->workers) + 1, sizeof *of);
    j->calls = calloc(workers_count(admin->workers) + 1, sizeof *j->calls);
    bool ok = j->calls && of;
    for (const struct worker *w = workers_first(admin->workers); ok && w; w = w->next) {
        if (!serves(admin, w, j->model)) continue;
        size_t same = 0;
        while (same < j->n && !is_same_address(of[same], w)) same++;
        of[j->n] = w;
        j->calls[j->n] = (struct adapter_call){.job = j, .worker_id = w->id, .same = same};
        j->n++;
    }
    free(of);
    return ok;
}

/* Returns: NULL, or the member that is wrong. */
static const char *read_order(struct adapter_job *j, struct kvr_json o)
{
    const char *bad = NULL;
    j->timeout_s = 60;
    bool ok = member_text(o, "model_name", j->model, sizeof j->model, &bad) && member_text(o, "lora_name", j->lora, sizeof j->lora, &bad) &&
              member_text(o, "lora_path", j->path, sizeof j->path, &bad) && member_bool(o, "load_inplace", &j->in_place, &bad) &&
              member_bool(o, "pinned", &j->pinned, &bad) && member_double(o, "timeout_secs", 0.1, 3600, &j->timeout_s, &bad);
    if (!ok) return bad;
    if (!j->model[0]) return "model_name";
    if (!j->lora[0]) return "lora_name";
    return j->loads && !j->path[0] ? "lora_path" : NULL;
}

/* Returns: false after having answered. */
static bool prepare(struct adapter_job *j, struct kvr_http_conn *c, struct kvr_json o)
{
    const char *bad = read_order(j, o);
    if (bad) admin_bad_field(c, bad);
    else if (!list_workers(j)) admin_error(c, 503, "out of memory");
    else if (!j->n) admin_error(c, 404, "no worker is known to serve that model");
    else return true;
    return false;
}

static void begin(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, bool loads)
{
    size_t jobs = 0;
    for (const struct adapter_job *j = admin->adapter_jobs; j; j = j->next) jobs++;
    if (admin->o->select_only) {
        admin_error(c, 404, "only kvroute serve speaks to engines");
        return;
    }
    struct adapter_job *j = jobs < ADAPTER_JOBS_MAX ? calloc(1, sizeof *j) : NULL;
    if (!j) {
        admin_error(c, 503, jobs < ADAPTER_JOBS_MAX ? "out of memory" : "adapters are being loaded or unloaded; try again later");
        return;
    }
    j->admin = admin;
    j->loads = loads;
    if (!prepare(j, c, o)) {
        free(j->calls);
        free(j);
        return;
    }
    j->conn = c;
    kvr_http_conn_set_user(c, j); /* or nobody says that it has gone */
    j->next = admin->adapter_jobs;
    admin->adapter_jobs = j;
    go_on(j);
}

void adapters_load(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    begin(admin, c, o, true);
}

void adapters_unload(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    begin(admin, c, o, false);
}

bool adapters_gone(struct admin *admin, const struct kvr_http_conn *c)
{
    struct adapter_job *j = admin->adapter_jobs;
    while (j && j->conn != c) j = j->next;
    if (j) j->conn = NULL;
    return j != NULL;
}

void adapters_stop(struct admin *admin)
{
    for (struct adapter_job *j = admin->adapter_jobs, *next; j; j = next) {
        next = j->next;
        j->conn = NULL;
        j->begun = j->n;
        for (size_t i = 0; i < j->n; i++) kvr_ask_cancel(j->calls[i].asking);
        j->under_way = 0;
        if (!j->models_asked) end_job(j); /* else with the last of those questions, which health_stop() ends */
    }
}
