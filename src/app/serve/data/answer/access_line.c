/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A line of the access log: one walk through what is known of a request, and two ways to write a member: of a JSON object, or as key=value
 * behind Apache's combined format. A member without a value is left out.
 *
 * Text of the wire (path, id, model, reasons of workers are ours) has control characters and what is no UTF-8 as \xNN in both, and cannot
 * end a member: JSON's rules, or quotes and backslashes escaped.
 */
#include <string.h>
#include <time.h>
#include <kvroute/hash.h>

#include "app/serve/data/answer/account.h"
#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"
#include "app/serve/data/request/telemetry.h"
#include "base/log.h"
#include "store/line_log.h"

enum { ACCESS_JSON, ACCESS_COMBINED }; /* --access-log-format */
enum { ESCAPED_MAX = 8 * TELEMETRY_PATH_MAX };

struct line {
    struct kvr_buf out;
    bool json;
};

/* ---- members ----------------------------------------------------------------------------------------- */

/* Within quotes: \" and \\, and everything that is not plain as \xNN. */
static void put_quoted(struct kvr_buf *out, const char *text, size_t len)
{
    char escaped[2 * TELEMETRY_PATH_MAX], plain[ESCAPED_MAX];
    size_t n = 0;
    for (size_t i = 0; i < len && n + 2 <= sizeof escaped; i++) {
        if (text[i] == '"' || text[i] == '\\') escaped[n++] = '\\';
        escaped[n++] = text[i];
    }
    kvr_buf_add(out, plain, kvr_printable(escaped, n, plain, sizeof plain));
}

/* Also what could be mistaken for the next member is within quotes. */
static bool needs_quotes(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] <= ' ' || text[i] > '~' || text[i] == '"' || text[i] == '\\' || text[i] == '=') return true;
    return false;
}

static void put_key(struct line *l, const char *key)
{
    if (l->json) {
        kvr_json_key(&l->out, key);
        return;
    }
    kvr_buf_str(&l->out, " ");
    kvr_buf_str(&l->out, key);
    kvr_buf_str(&l->out, "=");
}

static void put_text(struct line *l, const char *key, const char *text, size_t len)
{
    char plain[4 * TELEMETRY_PATH_MAX + 1];
    if (!text || !len) return;
    put_key(l, key);
    if (l->json && kvr_json_plain(text, len) == len) {
        kvr_json_str(&l->out, text, len);
    } else if (l->json) {
        kvr_json_str(&l->out, plain, kvr_printable(text, len, plain, sizeof plain));
    } else if (!needs_quotes(text, len)) {
        kvr_buf_add(&l->out, text, len);
    } else {
        kvr_buf_str(&l->out, "\"");
        put_quoted(&l->out, text, len);
        kvr_buf_str(&l->out, "\"");
    }
}

static void put_str(struct line *l, const char *key, const char *text)
{
    if (text) put_text(l, key, text, strlen(text));
}

static void put_u64(struct line *l, const char *key, uint64_t v)
{
    put_key(l, key);
    if (l->json) kvr_json_u64(&l->out, v);
    else kvr_buf_u64(&l->out, v);
}

static void put_bool(struct line *l, const char *key, bool v)
{
    put_key(l, key);
    if (l->json) kvr_json_bool(&l->out, v);
    else kvr_buf_str(&l->out, v ? "true" : "false");
}

/* With three digits behind the point. */
static void put_scaled(struct line *l, const char *key, uint64_t thousandths)
{
    unsigned part = (unsigned)(thousandths % 1000);
    put_key(l, key);
    kvr_buf_u64(&l->out, thousandths / 1000);
    kvr_buf_add(&l->out, (const char[]){'.', (char)('0' + part / 100), (char)('0' + part / 10 % 10), (char)('0' + part % 10)}, 4);
    l->out.comma = true;
}

static void put_ms(struct line *l, const char *key, uint64_t ns)
{
    put_scaled(l, key, ns / 1000);
}

/* ---- what is told ------------------------------------------------------------------------------------ */

static uint64_t between(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

/* Of the one that has computed the prompt, and of the one that has answered; mostly it is the same. */
static void put_tokens(struct line *l, const struct request *r, const struct attempt *p, const struct attempt *a)
{
    const struct kvr_usage *u = &p->usage;
    if (!r->routed) return;
    if (u->present || r->isl) put_u64(l, "prompt_tokens", u->present && u->prompt_tokens ? u->prompt_tokens : r->isl);
    put_u64(l, "predicted_cached_tokens", account_predicted_cached(p));
    if (account_tells_cached(p)) put_u64(l, "cached_tokens", u->cached_tokens);
    if (a && a->usage.present) put_u64(l, "completion_tokens", a->usage.completion_tokens);
}

static void put_worker(struct line *l, const struct request *r, const struct attempt *p, const struct attempt *a)
{
    const struct attempt *answers = a ? a : p;
    char tiers[ACCOUNT_TIERS_MAX];
    put_u64(l, "worker_id", answers->result.worker.worker_id);
    put_u64(l, "dp_rank", answers->result.worker.dp_rank);
    if (r->legs && r->legs->prefill && p == r->legs->prefill) {
        put_u64(l, "prefill_worker_id", p->result.worker.worker_id);
        put_u64(l, "prefill_dp_rank", p->result.worker.dp_rank);
    }
    if (r->routed) put_u64(l, "overlap_blocks", p->result.overlap_blocks);
    if (r->routed) put_text(l, "overlap_tiers", tiers, account_tiers(p, tiers));
    put_str(l, "reason", p->reason);
}

static void put_times(struct line *l, const struct telemetry *n, const struct request *r, const struct attempt *p, const struct attempt *a)
{
    uint64_t first = a && a->first_ns ? a->first_ns : 0;
    put_ms(l, "tokenize_ms", n->phase_ns[PHASE_TOKENS]);
    put_ms(l, "queue_ms", n->phase_ns[PHASE_PARKED] + (p ? p->result.waited_ns : 0));
    if (p) put_scaled(l, "choose_us", p->result.times.total);
    if (a && a->connect_ns) put_ms(l, "connect_ms", a->connect_ns);
    if (r->slo_ttft_ms > 0) put_ms(l, "slo_ttft_ms", (uint64_t)(r->slo_ttft_ms * 1e6));
    if (first) put_ms(l, "ttft_ms", between(n->began_ns, first));
    if (first) put_ms(l, "worker_ttft_ms", between(a->sent_ns, first));
    if (!first || !a->generated) return;
    put_ms(l, "itl_mean_ms", between(a->first_ns, a->itl_last_ns) / a->generated);
    put_ms(l, "itl_max_ms", a->itl_max_ns);
}

static void put_request(struct line *l, const struct telemetry *n, const struct request *r)
{
    const struct attempt *a = r->attempt, *p = legs_computed(r);
    put_str(l, "model", request_asked_model(r));
    if (p && p->worker) put_str(l, "served_model", request_model(r));
    put_bool(l, "stream", r->stream);
    if (p) put_tokens(l, r, p, a);
    if (p) put_worker(l, r, p, a);
    put_u64(l, "attempts", r->tries + (a && a->state != ATTEMPT_FAILED));
    put_times(l, n, r, p, a);
}

/* The same session has the same hash for the life of the process, and nobody can find the id to it. */
static void put_session(struct line *l, const char *session)
{
    char text[17];
    kvr_span_hex(kvr_hash_bytes(session, strlen(session), kvr_secret()), text);
    put_str(l, "session", text);
}

static void put_trace(struct line *l, const struct telemetry *n)
{
    char text[33];
    if (!n->has_trace) return;
    kvr_trace_hex(n->trace.trace, 16, text);
    put_str(l, "trace_id", text);
}

/* ---- the beginning of a line ------------------------------------------------------------------------- */

static void begin_json(struct line *l, const struct telemetry *n, const struct request *r, int status)
{
    char time[KVR_LOG_TIME_MAX];
    kvr_log_time(time);
    kvr_json_open(&l->out, '{');
    put_str(l, "time", time);
    if (r) put_str(l, "id", r->id);
    put_str(l, "client", n->client);
    put_str(l, "key", r ? request_client(r) : "");
    put_str(l, "method", n->method);
    put_text(l, "path", n->path, n->path_len);
    put_str(l, "protocol", n->minor ? "HTTP/1.1" : "HTTP/1.0");
    put_u64(l, "status", (uint64_t)status);
    put_str(l, "ending", n->ending);
}

/* host ident user [time] "request" status bytes "referer" "user agent": the last two are never told. */
static void begin_combined(struct line *l, const struct telemetry *n, const struct request *r, int status)
{
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    const char *key = r ? request_client(r) : "";
    char t[KVR_LOG_TIME_MAX];
    kvr_log_time(t); /* 2026-11-25T21:10:21.123Z */
    unsigned month = (unsigned)((t[5] - '0') * 10 + (t[6] - '0') - 1);
    kvr_buf_printf(&l->out, "%s - ", *n->client ? n->client : "-");
    if (*key && !needs_quotes(key, strlen(key))) kvr_buf_str(&l->out, key);
    else kvr_buf_str(&l->out, "-");
    kvr_buf_printf(&l->out, " [%.2s/%.3s/%.4s:%.8s +0000] \"", t + 8, months + 3 * (month % 12), t, t + 11);
    put_quoted(&l->out, n->method, strlen(n->method));
    kvr_buf_str(&l->out, *n->method ? " " : "-");
    put_quoted(&l->out, n->path, n->path_len);
    if (n->path_len) kvr_buf_printf(&l->out, " HTTP/1.%u", n->minor);
    kvr_buf_printf(&l->out, "\" %d %llu \"-\" \"-\"", status, (unsigned long long)n->told.bytes);
    put_str(l, "time", t);
    if (r) put_str(l, "id", r->id);
    put_str(l, "ending", n->ending);
}

/* ---- the line ---------------------------------------------------------------------------------------- */

bool access_wanted(const struct loop *l, const struct telemetry *n, int status)
{
    const struct data_plane *data = l->data;
    if (!data->access_log) return false;
    bool fine = status < 400 && n->ending && strcmp(n->ending, ENDING_OK) == 0;
    double share = data->o->access_log_sample;
    if (!fine || share >= 1) return true;
    return (double)(kvr_mix64_keyed(n->began_ns, kvr_secret()) >> 11) * 0x1.0p-53 < share;
}

void access_write(struct loop *l, const struct telemetry *n, const struct request *r, int status)
{
    const struct data_plane *data = l->data;
    struct line line = {l->line, data->o->access_log_format == ACCESS_JSON};
    line.out.len = 0;
    line.out.comma = line.out.failed = false;
    if (line.json) begin_json(&line, n, r, status);
    else begin_combined(&line, n, r, status);
    if (r) put_request(&line, n, r);
    put_ms(&line, "total_ms", between(n->began_ns, kvr_monotonic_ns()));
    put_u64(&line, "bytes_in", r ? r->body_len : n->bytes_in);
    put_u64(&line, "bytes_out", n->told.bytes);
    if (r && r->session) put_session(&line, r->session);
    put_trace(&line, n);
    if (line.json) kvr_json_close(&line.out, '}');
    kvr_buf_str(&line.out, "\n");
    if (line.out.failed) kvr_line_log_missed(data->access_log, l->place);
    else (void)kvr_line_log_put(data->access_log, l->place, line.out.data, line.out.len);
    l->line = line.out;
}
