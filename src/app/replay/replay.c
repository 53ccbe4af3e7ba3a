/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Load generator. Open loop: every request has an absolute time; lateness of the generator does not shift the rest.
 * Closed loop: a fixed number in flight. Synthetic turns of one conversation always wait for the turn before.
 * The clock stops when every answer has ended.
 */
#include "app/replay/replay.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "app/replay/offline.h"
#include "app/replay/report.h"
#include "app/replay/workload.h"
#include "base/log.h"
#include "net/http/http.h"
#include "net/http/access.h"
#include "net/http/ending.h"
#include "net/http/fetch.h"
#include "wire/sse.h"

enum { ENDPOINTS_MAX = 64, ADMIN_TIMEOUT_S = 60 };

struct run;

struct flight {
    struct run *run;
    struct traffic_request rq;
    struct kvr_http_call *call;
    uv_timer_t timer;
    struct kvr_sse sse;
    struct kvr_buf answer;
    int status;
    uint64_t start_ns, first_ns, last_ns;
    uint64_t worker, prefill_worker;
    char treatment[16];
    bool has_prefill, is_sse, ended;
};

struct run {
    const struct replay_options *o;
    uv_loop_t loop;
    uv_timer_t tick, progress;
    uv_signal_t intr, term;
    struct kvr_http_client *client;
    struct kvr_json_parser *json;
    struct kvr_endpoint endpoints[ENDPOINTS_MAX];
    size_t endpoints_n, turn; /* whose turn it is */
    struct workload *work;
    struct report *report;
    const char *label;
    uint64_t start_ns, in_flight, issued;
    bool exhausted, stopped;
    int tty;
};

static void pump(struct run *r);

/* ---- one request ------------------------------------------------------------------------------------- */

static void on_flight_closed(uv_handle_t *h)
{
    struct flight *f = h->data;
    kvr_sse_free(&f->sse);
    kvr_buf_free(&f->answer);
    traffic_request_free(&f->rq);
    free(f);
}

/* What an error event of a stream says: engines begin one with status 200 and tell in it what went wrong. Returns: false: there is none. */
static bool stream_error(struct flight *f, char *out, size_t cap)
{
    const char *at = f->answer.data, *end = at ? at + f->answer.len : NULL;
    for (const char *nl; at < end; at = nl + 1) {
        struct kvr_json root, error;
        const char *text = "the stream has an error event", *line = at;
        size_t n = strlen(text);
        nl = memchr(at, '\n', (size_t)(end - at));
        if (!nl) nl = end;
        if (nl - line < 6 || memcmp(line, "data:", 5) || !memmem(line, (size_t)(nl - line), "\"error\"", 7)) continue;
        if (kvr_json_parse(f->run->json, line + 5, (size_t)(nl - line) - 5, &root, NULL)) continue;
        error = kvr_json_get(root, "error");
        if (!kvr_json_is_given(error)) continue;
        if (!kvr_json_as_str(error, &text, &n)) (void)kvr_json_as_str(kvr_json_get(error, "message"), &text, &n);
        snprintf(out, cap, "%.*s", (int)KVR_MIN(n, cap - 1), text);
        return true;
    }
    return false;
}

static void end_flight(struct flight *f, const char *error)
{
    char said[100];
    struct run *r = f->run;
    struct kvr_usage usage = f->sse.usage;
    struct kvr_json root;
    if (f->ended) return;
    f->ended = true;
    if (!error && f->status != 200) error = "status";
    if (!error && f->is_sse && stream_error(f, said, sizeof said)) error = said;
    if (!error && f->is_sse && !f->sse.done) error = "the stream has no [DONE]";
    if (!error && !f->is_sse && f->answer.len && kvr_json_parse(r->json, f->answer.data, f->answer.len, &root, NULL) == 0)
        kvr_openai_usage(root, &usage);
    uint64_t end = kvr_monotonic_ns();
    struct outcome out = {.error = error,
                          .status = f->status,
                          .worker = f->worker,
                          .treatment = f->treatment,
                          .prefill_worker = f->prefill_worker,
                          .has_prefill = f->has_prefill,
                          .e2e_ms = (double)(end - f->start_ns) / 1e6,
                          .ttft_ms = f->first_ns ? (double)(f->first_ns - f->start_ns) / 1e6 : 0,
                          .usage = usage,
                          .tokens = f->sse.events};
    uint64_t tokens = usage.present ? usage.completion_tokens : f->sse.events; /* the events tell of the role and of usage, too */
    if (f->first_ns && f->is_sse && tokens > 1) out.itl_ms = (double)(f->last_ns - f->first_ns) / 1e6 / (double)(tokens - 1);
    report_add(r->report, &out);
    workload_done(r->work, &f->rq, f->answer.data ? f->answer.data : "", f->answer.len, f->is_sse, (double)(end - r->start_ns) / 1e9);
    r->in_flight--;
    uv_close((uv_handle_t *)&f->timer, on_flight_closed);
    pump(r);
}

/* What would not be itself in JSON, or on a terminal, is a question mark. Returns: whether there is such a header. */
static bool copy_header(const struct kvr_headers *h, const char *name, char *out, size_t cap)
{
    struct kvr_text v = kvr_headers_get(h, name);
    out[0] = 0;
    if (v.ptr) snprintf(out, cap, "%.*s", (int)KVR_MIN(v.len, cap - 1), v.ptr);
    for (char *c = out; *c; c++) *c = *c < ' ' || *c > '~' || *c == '"' || *c == '\\' ? '?' : *c;
    return v.ptr != NULL;
}

static void on_head(struct kvr_http_call *, void *ctx, int status, const struct kvr_headers *h, int64_t)
{
    struct flight *f = ctx;
    struct kvr_text type = kvr_headers_get(h, "content-type");
    char id[24];
    f->status = status;
    f->is_sse = type.len >= 17 && !memcmp(type.ptr, "text/event-stream", 17);
    if (copy_header(h, "x-kvroute-worker", id, sizeof id)) f->worker = strtoull(id, NULL, 10);
    f->has_prefill = copy_header(h, "x-kvroute-prefill-worker", id, sizeof id);
    if (f->has_prefill) f->prefill_worker = strtoull(id, NULL, 10);
    (void)copy_header(h, "x-kvroute-disagg", f->treatment, sizeof f->treatment);
}

static void on_body(struct kvr_http_call *, void *ctx, const char *data, size_t len)
{
    struct flight *f = ctx;
    uint64_t before = f->sse.events;
    if (f->is_sse) kvr_sse_feed(&f->sse, f->run->json, data, len);
    if (f->answer.len + len < (8u << 20)) kvr_buf_add(&f->answer, data, len);
    if (f->sse.events == before && f->is_sse) return;
    f->last_ns = kvr_monotonic_ns();
    if (!f->first_ns) f->first_ns = f->last_ns;
}

static void on_done(struct kvr_http_call *, void *ctx)
{
    struct flight *f = ctx;
    f->call = NULL;
    end_flight(f, NULL);
}

static void on_failed(struct kvr_http_call *, void *ctx, enum kvr_http_failure, const char *text)
{
    struct flight *f = ctx;
    f->call = NULL;
    end_flight(f, text);
}

static void on_timeout(uv_timer_t *t)
{
    struct flight *f = t->data;
    if (f->call) kvr_http_call_cancel(f->call);
    f->call = NULL;
    end_flight(f, "timeout");
}

static const struct kvr_http_call_handler handler = {on_head, on_body, on_done, on_failed};

static void launch(struct run *r, const struct traffic_request *rq)
{
    const struct kvr_endpoint *to = &r->endpoints[r->turn++ % r->endpoints_n];
    struct flight *f = calloc(1, sizeof *f);
    struct kvr_buf head = {0}, body = {0};
    KVR_ASSERT(f != NULL);
    f->run = r;
    f->rq = *rq;
    workload_body(r->o, rq, &body);
    kvr_request_put(&head, to, workload_path(rq), (int64_t)body.len);
    kvr_buf_str(&head, "\r\n");
    KVR_ASSERT(!body.failed && !head.failed);
    struct kvr_http_call_config cc = {.endpoint = to,
                                      .head = head.data,
                                      .head_len = head.len,
                                      .body = kvr_body_take(&body),
                                      .connect_timeout_s = 5,
                                      .handler = &handler,
                                      .ctx = f};
    uv_timer_init(&r->loop, &f->timer);
    f->timer.data = f;
    r->in_flight++;
    r->issued++;
    f->start_ns = kvr_monotonic_ns();
    f->call = kvr_http_call_start(r->client, &cc);
    KVR_ASSERT(f->call != NULL);
    kvr_body_unref(cc.body);
    kvr_buf_free(&head);
    uv_timer_start(&f->timer, on_timeout, (uint64_t)(r->o->timeout * 1000), 0);
}

/* ---- pacing ------------------------------------------------------------------------------------------ */

static void on_tick(uv_timer_t *t)
{
    pump(t->data);
}

static void finish(struct run *r)
{
    if (r->in_flight || !r->exhausted) return;
    uv_stop(&r->loop);
}

static bool time_is_up(const struct run *r)
{
    return r->o->duration > 0 && (double)(kvr_monotonic_ns() - r->start_ns) / 1e9 >= r->o->duration;
}

static void pump(struct run *r)
{
    struct traffic_request rq;
    uint64_t wait_ms = 0;
    while (!r->exhausted) {
        if (r->stopped || time_is_up(r) || (r->o->limit && r->issued >= r->o->limit)) {
            r->exhausted = true;
            break;
        }
        if (r->o->concurrency && r->in_flight >= r->o->concurrency) return;
        double now_s = (double)(kvr_monotonic_ns() - r->start_ns) / 1e9;
        enum work_state st = workload_next(r->work, r->o->concurrency ? HUGE_VAL : now_s, &rq, &wait_ms);
        if (st == WORK_READY) {
            launch(r, &rq);
            continue;
        }
        if (st == WORK_FINISHED) {
            r->exhausted = !(r->o->duration > 0 && workload_restart(r->work, now_s));
            if (!r->exhausted) continue;
            break;
        }
        if (st == WORK_LATER) uv_timer_start(&r->tick, on_tick, wait_ms, 0);
        return; /* WORK_BLOCKED: an answer that comes wakes us */
    }
    finish(r);
}

static void on_progress(uv_timer_t *t)
{
    struct run *r = t->data;
    char line[160];
    report_progress(r->report, (double)(kvr_monotonic_ns() - r->start_ns) / 1e9, line, sizeof line);
    fprintf(stderr, "%s%-12s %s, %llu in flight%s", r->tty ? "\r" : "", r->label, line, (unsigned long long)r->in_flight,
            r->tty ? "   " : "\n");
    fflush(stderr);
}

static void on_signal(uv_signal_t *s, int)
{
    struct run *r = s->data;
    r->stopped = true;
    pump(r);
}

static int parse_endpoints(struct run *r)
{
    for (const char *at = r->o->url, *end; at; at = *end ? end + 1 : NULL) {
        end = strchrnul(at, ',');
        if (r->endpoints_n < ENDPOINTS_MAX && kvr_endpoint_parse_any(at, (size_t)(end - at), &r->endpoints[r->endpoints_n]) == 0) {
            r->endpoints_n++;
            continue;
        }
        kvr_log_error("kvroute replay: --url: bad value '%.*s'; allowed: http://host[:port] or https://..., %d at most",
                      (int)KVR_MIN(end - at, (ptrdiff_t)300), at, ENDPOINTS_MAX);
        return -1;
    }
    return 0;
}

static int run_once(const struct replay_options *o, const char *label, struct report *report)
{
    struct run r = {.o = o, .report = report, .label = label, .tty = isatty(2)};
    char err[512];
    if (parse_endpoints(&r)) return 2;
    r.work = workload_create(o, err, sizeof err);
    if (!r.work) {
        kvr_log_error("kvroute replay: %s", err);
        return 2;
    }
    uv_loop_init(&r.loop);
    r.json = kvr_json_parser_new();
    kvr_http_client_create(&r.loop, 3, &r.client);
    uv_timer_init(&r.loop, &r.tick);
    uv_timer_init(&r.loop, &r.progress);
    uv_signal_init(&r.loop, &r.intr);
    uv_signal_init(&r.loop, &r.term);
    r.tick.data = r.progress.data = r.intr.data = r.term.data = &r;
    uv_signal_start(&r.intr, on_signal, SIGINT);
    uv_signal_start(&r.term, on_signal, SIGTERM);
    if (o->progress) uv_timer_start(&r.progress, on_progress, 1000, r.tty ? 500 : 5000);
    r.start_ns = kvr_monotonic_ns();
    pump(&r);
    if (!r.exhausted || r.in_flight) uv_run(&r.loop, UV_RUN_DEFAULT);
    report_finish(report, (double)(kvr_monotonic_ns() - r.start_ns) / 1e9);
    if (o->progress && r.tty) fprintf(stderr, "\r%79s\r", "");
    kvr_http_client_close(r.client);
    kvr_loop_end(&r.loop);
    workload_destroy(r.work);
    kvr_json_parser_free(r.json);
    return r.stopped ? 1 : 0;
}

/* ---- compare ----------------------------------------------------------------------------------------- */

/* body NULL: GET. key: a bearer token, or NULL. Returns: the status; 0: no answer. */
static int request(const char *url, const char *path, const char *body, const char *key, struct kvr_buf *answer)
{
    char whole[700];
    uv_loop_t loop;
    struct kvr_http_client *client;
    struct kvr_fetched got = {0};
    size_t n = strlen(url);
    while (n && url[n - 1] == '/') n--;
    snprintf(whole, sizeof whole, "%.*s%s", (int)KVR_MIN(n, (size_t)600), url, path);
    uv_loop_init(&loop);
    if (kvr_http_client_create(&loop, 1, &client) == 0) {
        kvr_http_fetch(&(struct kvr_fetch){&loop, client, whole, body, NULL, key, ADMIN_TIMEOUT_S}, &got);
        kvr_http_client_close(client);
    }
    kvr_loop_end(&loop);
    int status = got.status;
    if (answer) kvr_buf_add(answer, got.body.data, got.body.len);
    kvr_fetched_free(&got);
    return status;
}

static void reset_worker(struct kvr_json w)
{
    char url[512];
    bool has = kvr_json_copy_name(kvr_json_get(w, "endpoint"), url, sizeof url);
    for (int i = 0; has && i < 50 && request(url, "/reset_prefix_cache", "", NULL, NULL) == 503; i++)
        usleep(100000); /* requests that the last run broke off are still running */
}

/* Same start for each mode: router mode set, the engines' caches empty. */
static int prepare_mode(const struct replay_options *o, const char *key, const char *mode)
{
    char body[128];
    struct kvr_buf workers = {0};
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_json root;
    snprintf(body, sizeof body, "{\"router_mode\":\"%s\"}", mode);
    int status = request(o->admin_url, "/router_mode", body, key, NULL);
    if (status != 200) {
        if (status == 0) kvr_log_error("kvroute replay: --admin-url: '%s' does not answer", o->admin_url);
        else if (status == 401 || status == 403)
            kvr_log_error("kvroute replay: --admin-url: '%s' refuses with status %d; does it need --admin-key-file?", o->admin_url, status);
        else kvr_log_error("kvroute replay: --compare: '%s' is not a router mode; allowed: kv, round-robin, random, least-loaded", mode);
        kvr_json_parser_free(p);
        return 2;
    }
    if (request(o->admin_url, "/workers", NULL, key, &workers) == 200 && p &&
        kvr_json_parse(p, workers.data, workers.len, &root, NULL) == 0)
        for (struct kvr_json_iter i = kvr_json_iter(root); kvr_json_next(&i);) reset_worker(i.value);
    kvr_buf_free(&workers);
    kvr_json_parser_free(p);
    return 0;
}

enum { MODES_MAX = 8 };

static size_t count_modes(const char *modes)
{
    size_t n = 1;
    for (const char *c = modes; *c; c++) n += *c == ',';
    return n;
}

int replay_main(const struct replay_options *o)
{
    struct report *reports[MODES_MAX] = {0};
    char *modes = strdup(o->compare ? o->compare : "run"), *rest = modes, *mode;
    size_t n = 0;
    char **keys = NULL, err[320];
    int rc = modes ? 0 : 1;
    signal(SIGPIPE, SIG_IGN);
    if (o->offline || o->write_trace) {
        free(modes);
        return o->write_trace ? workload_write(o) : offline_main(o);
    }
    if (o->compare && count_modes(o->compare) > MODES_MAX) {
        kvr_log_error("kvroute replay: --compare: more than %d modes", MODES_MAX);
        rc = 2;
    }
    if (o->admin_key_file && !(keys = kvr_keys_read(o->admin_key_file, err, sizeof err))) {
        kvr_log_error("kvroute replay: --admin-key-file: %s", err);
        rc = 2;
    }
    if (o->tls_ca && kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = o->tls_ca}, err, sizeof err)) {
        kvr_log_error("kvroute replay: --tls-ca: %s; allowed: a PEM file of certificates", err);
        rc = 2;
    }
    while (rc == 0 && n < MODES_MAX && (mode = strsep(&rest, ","))) {
        if (o->compare) rc = prepare_mode(o, keys ? keys[0] : NULL, mode);
        if (rc == 0) {
            reports[n] = report_create(mode);
            rc = run_once(o, mode, reports[n]);
            if (rc == 2) report_destroy(reports[n]);
            else n++;
        }
    }
    if (n) { /* also those before a mode that there is not */
        report_print(reports, n);
        if (o->json && report_write_json(reports, n, o->json)) {
            kvr_log_error("kvroute replay: --report: cannot write '%s': %s", o->json, strerror(errno));
            rc = 1;
        }
        for (size_t i = 0; i < n; i++)
            if (rc == 0 && report_failures(reports[i])) rc = 1;
    }
    for (size_t i = 0; i < n; i++) report_destroy(reports[i]);
    kvr_keys_free(keys);
    free(modes);
    return rc;
}
