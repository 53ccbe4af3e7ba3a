/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses between conversations and traces (app/replay/workload.h) and makes the bodies that are sent. */
#include "app/replay/workload.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "app/replay/texts.h"
#include "base/log.h"
#include "wire/json.h"

struct workload {
    const struct replay_options *o;
    struct kvr_json_parser *json;
    struct talks *talks; /* or */
    struct traffic *traffic;
    struct traffic_config config;
    struct traffic_request head; /* the next opening */
    bool has_head;
    struct traffic_request *turns; /* that follow answers: a heap by time */
    size_t turns_n, turns_cap;
    uint64_t open;    /* requests whose answers have not ended */
    uint64_t base_ns; /* what is added to times after a restart */
};

/* ---- a heap of turns --------------------------------------------------------------------------------- */

static void push_turn(struct workload *w, struct traffic_request rq)
{
    KVR_ASSERT(kvr_grow(&w->turns, &w->turns_cap, w->turns_n + 1, sizeof *w->turns));
    size_t at = w->turns_n++;
    for (; at > 0 && rq.arrival_ns < w->turns[(at - 1) / 2].arrival_ns; at = (at - 1) / 2) w->turns[at] = w->turns[(at - 1) / 2];
    w->turns[at] = rq;
}

static struct traffic_request pop_turn(struct workload *w)
{
    struct traffic_request top = w->turns[0], last = w->turns[--w->turns_n];
    size_t at = 0;
    for (size_t kid; (kid = 2 * at + 1) < w->turns_n; at = kid) {
        if (kid + 1 < w->turns_n && w->turns[kid + 1].arrival_ns < w->turns[kid].arrival_ns) kid++;
        if (w->turns[kid].arrival_ns >= last.arrival_ns) break;
        w->turns[at] = w->turns[kid];
    }
    if (w->turns_n) w->turns[at] = last;
    return top;
}

/* ---- traffic ----------------------------------------------------------------------------------------- */

static void take_head(struct workload *w)
{
    int rc = traffic_next(w->traffic, &w->head);
    KVR_ASSERT(rc >= 0);
    w->has_head = rc == 1;
    if (w->has_head) w->head.arrival_ns += w->base_ns;
}

static enum work_state next_of_traffic(struct workload *w, double now_s, struct traffic_request *out, uint64_t *wait_ms)
{
    bool turn = w->turns_n && (!w->has_head || w->turns[0].arrival_ns < w->head.arrival_ns);
    if (!turn && !w->has_head) return w->open ? WORK_BLOCKED : WORK_FINISHED;
    double due = (double)(turn ? w->turns[0].arrival_ns : w->head.arrival_ns) / 1e9;
    if (due > now_s) {
        *wait_ms = (uint64_t)((due - now_s) * 1000) + 1;
        return WORK_LATER;
    }
    *out = turn ? pop_turn(w) : w->head;
    if (!turn) take_head(w);
    w->open++;
    return WORK_READY;
}

static void done_of_traffic(struct workload *w, const struct traffic_request *rq, const uint32_t *answer, size_t answer_n, double now_s)
{
    struct traffic_request next;
    int rc = traffic_follow(w->traffic, rq, answer, answer_n, (uint64_t)(now_s * 1e9), &next);
    KVR_ASSERT(rc >= 0);
    if (rc == 1) push_turn(w, next);
    w->open--;
}

/* --seed and --speedup are for it too, unless it has its own. */
static int parse_workload(const struct replay_options *o, struct traffic_config *c, char *err, size_t cap)
{
    int rc = traffic_parse(o->workload, c, err, cap);
    if (rc == 0 && !strstr(o->workload, ",seed=")) c->seed = o->seed;
    if (rc == 0 && traffic_has(c->kind, TRAFFIC_SPEEDUP) && !strstr(o->workload, ",speedup=")) c->param[TRAFFIC_SPEEDUP] = o->speedup;
    return rc;
}

int workload_config(const struct replay_options *o, const struct traffic_texts *texts, struct traffic_config *c, char *err, size_t cap)
{
    bool file = strcmp(o->trace, "synthetic") != 0;
    c->file = file ? o->trace : NULL;
    c->texts = texts;
    c->vocab = o->prompts == REPLAY_TEXT ? 0 : (uint32_t)o->vocab;
    if (o->workload) return parse_workload(o, c, err, cap);
    uint32_t vocab = c->vocab;
    traffic_config_init(c, TRAFFIC_TRACE);
    c->file = o->trace;
    c->texts = texts;
    c->vocab = vocab;
    c->seed = o->seed;
    c->param[TRAFFIC_SPEEDUP] = o->speedup;
    return 0;
}

static int create_traffic(struct workload *w, char *err, size_t cap)
{
    static const struct traffic_texts as_they_are = {.ids = NULL};
    int rc = workload_config(w->o, &as_they_are, &w->config, err, cap);
    if (rc == 0) rc = traffic_create(&w->config, &w->traffic, err, cap);
    if (rc == 0) take_head(w);
    return rc;
}

/* ---- answers ----------------------------------------------------------------------------------------- */

struct heard {
    uint32_t *tokens;
    size_t n, most;
    const struct replay_options *o;
};

/* A byte of an answer as a token of the next prompt. Prompts that are texts have only what stands for itself in JSON. */
static uint32_t heard_token(const struct replay_options *o, unsigned char c)
{
    if (o->prompts != REPLAY_TEXT) return c % (uint32_t)o->vocab;
    return c >= ' ' && c < 127 && c != '"' && c != '\\' ? c : '?';
}

/* The answer's text becomes part of the conversation: tokens of a mock engine are bytes. Those of other engines stand for several (a row of
 * spaces may be one), so no more are taken than were asked for: the conversation grows as it was ordered. */
static void hear_choices(struct kvr_json answer, struct heard *h)
{
    const char *s;
    size_t len;
    for (struct kvr_json_iter c = kvr_json_iter(kvr_json_get(answer, "choices")); kvr_json_next(&c);)
        if (kvr_json_as_str(kvr_json_get(c.value, "text"), &s, &len))
            for (size_t i = 0; i < len && h->n < h->most; i++) h->tokens[h->n++] = heard_token(h->o, (unsigned char)s[i]);
}

static void hear(struct workload *w, const char *answer, size_t len, bool is_sse, struct heard *h)
{
    struct kvr_json root;
    if (!is_sse) {
        if (len && kvr_json_parse(w->json, answer, len, &root, NULL) == 0) hear_choices(root, h);
        return;
    }
    while (len) {
        const char *nl = memchr(answer, '\n', len);
        size_t n = nl ? (size_t)(nl - answer) : len;
        if (n > 6 && !memcmp(answer, "data: {", 7) && kvr_json_parse(w->json, answer + 6, n - 6, &root, NULL) == 0) hear_choices(root, h);
        len -= n + (nl ? 1 : 0);
        answer += n + (nl ? 1 : 0);
    }
}

static bool goes_on(const struct workload *w)
{
    enum traffic_kind k = w->config.kind;
    return w->talks || k == TRAFFIC_CONVERSATIONS || k == TRAFFIC_AGENTS || k == TRAFFIC_MIXED;
}

void workload_done(struct workload *w, const struct traffic_request *rq, const char *answer, size_t len, bool is_sse, double now_s)
{
    struct heard h = {.most = (size_t)rq->output, .o = w->o};
    if (goes_on(w)) {
        h.tokens = malloc((h.most + 1) * sizeof *h.tokens);
        KVR_ASSERT(h.tokens != NULL);
        hear(w, answer, len, is_sse, &h);
    }
    if (w->talks) talks_done(w->talks, rq, h.tokens, h.n);
    else done_of_traffic(w, rq, h.tokens, h.n, now_s);
    free(h.tokens);
}

/* ---- both -------------------------------------------------------------------------------------------- */

struct workload *workload_create(const struct replay_options *o, char *err, size_t cap)
{
    struct workload *w = calloc(1, sizeof *w);
    KVR_ASSERT(w != NULL);
    w->o = o;
    w->json = kvr_json_parser_new();
    KVR_ASSERT(w->json != NULL);
    if (!o->workload && strcmp(o->trace, "synthetic") == 0) {
        w->talks = talks_create(o);
        return w;
    }
    int n = snprintf(err, cap, "%s: ", o->workload ? "--workload" : "--trace");
    if (create_traffic(w, err + n, cap - (size_t)n) == 0) return w;
    workload_destroy(w);
    return NULL;
}

void workload_destroy(struct workload *w)
{
    const char *why;
    if (!w) return;
    talks_destroy(w->talks);
    if (w->traffic && traffic_skipped(w->traffic, &why))
        kvr_log_warning("kvroute replay: --trace: %llu line(s) were skipped; the first: %s",
                        (unsigned long long)traffic_skipped(w->traffic, &why), why);
    if (w->has_head) traffic_request_free(&w->head);
    for (size_t i = 0; i < w->turns_n; i++) traffic_request_free(&w->turns[i]);
    free(w->turns);
    traffic_destroy(w->traffic);
    kvr_json_parser_free(w->json);
    free(w);
}

enum work_state workload_next(struct workload *w, double now_s, struct traffic_request *out, uint64_t *wait_ms)
{
    enum work_state st = w->talks ? talks_next(w->talks, now_s, out, wait_ms) : next_of_traffic(w, now_s, out, wait_ms);
    if (st == WORK_READY && w->o->max_output) out->output = KVR_MIN(out->output, w->o->max_output);
    return st;
}

bool workload_restart(struct workload *w, double now_s)
{
    char err[256];
    if (w->talks) {
        talks_restart(w->talks, now_s);
        return true;
    }
    traffic_destroy(w->traffic);
    w->traffic = NULL;
    w->config.file = w->o->trace;
    if (w->config.kind != TRAFFIC_TRACE) w->config.seed++;
    w->base_ns = (uint64_t)(now_s * 1e9);
    if (traffic_create(&w->config, &w->traffic, err, sizeof err)) return false;
    take_head(w);
    return w->has_head;
}

static void put_text(struct kvr_buf *b, const struct traffic_request *rq)
{
    struct kvr_buf text = {0};
    if (kvr_buf_reserve(&text, rq->tokens_n) == 0)
        for (size_t k = 0; k < rq->tokens_n; k++) text.data[text.len++] = (char)rq->tokens[k];
    kvr_json_str(b, text.data ? text.data : "", text.len);
    b->failed |= text.failed;
    kvr_buf_free(&text);
}

const char *workload_path(const struct traffic_request *rq)
{
    return rq->is_chat ? "/v1/chat/completions" : "/v1/completions";
}

void workload_body(const struct replay_options *o, const struct traffic_request *rq, struct kvr_buf *b)
{
    kvr_json_open(b, '{');
    if (o->model) kvr_json_put_str(b, "model", o->model);
    kvr_json_put_u64(b, "max_tokens", rq->output);
    kvr_json_printf(b, "'ignore_eos':true");
    if (o->stream) kvr_json_printf(b, "'stream':true,'stream_options':{'include_usage':true}");
    if (!rq->text) kvr_json_key(b, "prompt");
    if (rq->text) {
        kvr_buf_str(b, ",");
        kvr_buf_add(b, rq->text, rq->text_len);
    } else if (o->prompts == REPLAY_TEXT) {
        put_text(b, rq);
    } else {
        kvr_json_u32s(b, rq->tokens, rq->tokens_n);
    }
    kvr_json_close(b, '}');
}

/* Opening the file that is to be written empties it: what is to be read must be there, and another one. */
static int check_source(const struct replay_options *o, const struct traffic_config *c)
{
    struct stat from, to;
    struct traffic *t = NULL;
    char err[400];
    if (traffic_create(c, &t, err, sizeof err)) {
        kvr_log_error("kvroute replay: --write-trace: %s", err);
        return 2;
    }
    traffic_destroy(t);
    if (c->kind != TRAFFIC_TRACE || stat(c->file, &from) || stat(o->write_trace, &to)) return 0;
    if (!S_ISREG(to.st_mode) || from.st_dev != to.st_dev || from.st_ino != to.st_ino) return 0;
    kvr_log_error("kvroute replay: --write-trace: '%s' is the file of --trace; allowed: another file", o->write_trace);
    return 2;
}

static int write_rows(const struct replay_options *o, const struct traffic_config *c, const struct replay_texts *texts)
{
    char err[400];
    if (check_source(o, c)) return 2;
    FILE *out = fopen(o->write_trace, "w");
    if (!out) {
        kvr_log_error("kvroute replay: --write-trace: cannot write '%s': %s", o->write_trace, strerror(errno));
        return 2;
    }
    long n = traffic_write_rows(c, out, err, sizeof err);
    if (fclose(out) && n >= 0) {
        kvr_log_error("kvroute replay: --write-trace: cannot write '%s': %s", o->write_trace, strerror(errno));
        return 1;
    }
    if (n < 0) kvr_log_error("kvroute replay: --write-trace: %s", err);
    if (n < 0 || replay_texts_check(texts)) return 2;
    printf("%ld rows\n", n);
    return 0;
}

int workload_write(const struct replay_options *o)
{
    struct traffic_config c = {0};
    struct replay_texts texts = {0};
    char err[400];
    if (replay_texts_open(o, &texts)) return 2;
    int rc = workload_config(o, &texts.hook, &c, err, sizeof err);
    if (o->limit) c.requests = o->limit;
    if (o->duration > 0) c.seconds = o->duration;
    if (rc == 0 && !traffic_has_rows(c.kind)) {
        snprintf(err, sizeof err, "'%s' has no rows to write; allowed: mooncake, trace", traffic_name(c.kind));
        rc = -KVR_EINVAL;
    }
    int code = rc == 0 ? write_rows(o, &c, &texts) : 2;
    if (rc) kvr_log_error("kvroute replay: --write-trace: %s", err);
    replay_texts_close(&texts);
    return code;
}
