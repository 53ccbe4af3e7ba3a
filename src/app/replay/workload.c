/* SPDX-License-Identifier: Apache-2.0 */
#include "app/replay/workload.h"

#include <errno.h>
#include <string.h>

#include "wire/trace.h"

enum { LINE_MAX_BYTES = 4 << 20, ARRIVAL_MS = 20 };

struct session {
    uint32_t *tokens;
    size_t n, cap;
    uint64_t turns_left;
    bool waiting, busy;
};

struct workload {
    const struct replay_options *o;
    struct kvr_json_parser *json;
    /* trace */
    FILE *file;
    char *line;
    size_t line_cap;
    struct kvr_trace_row row;
    bool have_row;
    double base_s; /* added to the trace's times after a restart */
    double last_s;
    /* synthetic */
    struct session *sessions;
    size_t next_session, finished;
    uint64_t generation;
    struct kvr_rng rng;
};

/* ---- trace ------------------------------------------------------------------------------------------- */

static bool read_row(struct workload *w)
{
    const char *why;
    ssize_t n;
    while ((n = getline(&w->line, &w->line_cap, w->file)) > 0) {
        if (n > LINE_MAX_BYTES) continue;
        if (kvr_trace_parse(w->json, w->line, (size_t)n, &w->row, &why) == 0) return w->have_row = true;
        if (n > 1) kvr_log("kvroute replay: --trace: a line is skipped: %s", why);
    }
    return false;
}

static enum work_state next_of_trace(struct workload *w, double now_s, struct work_item *out, uint64_t *wait_ms)
{
    if (!w->have_row && !read_row(w)) return WORK_FINISHED;
    double due = w->base_s + (double)w->row.timestamp_ms / 1000 / w->o->speedup;
    if (due > now_s) {
        *wait_ms = (uint64_t)((due - now_s) * 1000) + 1;
        return WORK_LATER;
    }
    w->last_s = due;
    w->have_row = false;
    *out = (struct work_item){.tokens = malloc(w->row.input_length * sizeof(uint32_t)),
                              .tokens_n = w->row.input_length,
                              .max_tokens = KVR_MAX(w->row.output_length, (uint64_t)1)};
    KVR_ASSERT(out->tokens != NULL);
    if (w->o->max_output) out->max_tokens = KVR_MIN(out->max_tokens, w->o->max_output);
    kvr_trace_expand(&w->row, (uint32_t)w->o->vocab, out->tokens);
    kvr_trace_row_free(&w->row);
    return WORK_READY;
}

/* ---- synthetic conversations ------------------------------------------------------------------------- */

static void append(struct session *s, uint32_t token)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 1024;
        s->tokens = realloc(s->tokens, s->cap * sizeof *s->tokens);
        KVR_ASSERT(s->tokens != NULL);
    }
    s->tokens[s->n++] = token;
}

static uint32_t random_token(struct workload *w)
{
    return kvr_trace_token(kvr_rng_next(&w->rng), (uint32_t)w->o->vocab);
}

static void begin_session(struct workload *w, size_t i)
{
    struct session *s = &w->sessions[i];
    uint64_t group = (i + w->generation) % w->o->groups;
    s->n = 0;
    s->turns_left = w->o->turns;
    for (uint64_t k = 0; k < w->o->system_tokens; k++)
        append(s, kvr_trace_token(kvr_mix64(group * 1000003 + k + w->o->seed), (uint32_t)w->o->vocab));
}

static enum work_state next_of_synthetic(struct workload *w, double now_s, struct work_item *out, uint64_t *wait_ms)
{
    if (w->finished == w->o->sessions) return WORK_FINISHED;
    for (size_t k = 0; k < w->o->sessions; k++) {
        size_t i = (w->next_session + k) % w->o->sessions;
        struct session *s = &w->sessions[i];
        double due = w->base_s + (double)i * ARRIVAL_MS / 1000 / w->o->speedup;
        if (s->busy || !s->turns_left) continue;
        if (s->turns_left == w->o->turns && due > now_s) {
            *wait_ms = (uint64_t)((due - now_s) * 1000) + 1;
            return WORK_LATER;
        }
        uint64_t turn = w->o->turn_tokens / 2 + kvr_rng_below(&w->rng, (uint32_t)w->o->turn_tokens + 1);
        for (uint64_t t = 0; t < KVR_MAX(turn, (uint64_t)1); t++) append(s, random_token(w));
        *out = (struct work_item){
            .tokens = malloc(s->n * sizeof(uint32_t)), .tokens_n = s->n, .max_tokens = w->o->output_tokens, .session = (uint32_t)i};
        KVR_ASSERT(out->tokens != NULL);
        memcpy(out->tokens, s->tokens, s->n * sizeof(uint32_t));
        s->busy = true;
        s->turns_left--;
        w->next_session = (i + 1) % w->o->sessions;
        w->last_s = KVR_MAX(w->last_s, due);
        return WORK_READY;
    }
    return WORK_BLOCKED;
}

struct heard {
    struct session *session;
    uint32_t vocab;
    uint64_t left; /* tokens that the answer can have */
};

/* The answer's text becomes part of the conversation: tokens of a mock engine are bytes. Those of other engines stand for several (a row of
 * spaces may be one), so no more are taken than were asked for: the conversation grows as it was ordered. */
static int append_text(void *ctx, const char *key, size_t key_len, struct kvr_json choice)
{
    struct heard *h = ctx;
    const char *s;
    size_t len;
    (void)key;
    (void)key_len;
    if (kvr_json_as_str(kvr_json_get(choice, "text"), &s, &len))
        for (size_t i = 0; i < len && h->left; i++, h->left--) append(h->session, (unsigned char)s[i] % h->vocab);
    return 0;
}

void workload_done(struct workload *w, const struct work_item *item, const char *answer, size_t len, bool is_sse)
{
    struct kvr_json root;
    if (!w->sessions) return;
    struct session *s = &w->sessions[item->session];
    struct heard h = {s, (uint32_t)w->o->vocab, item->max_tokens};
    s->busy = false;
    if (s->turns_left == 0) w->finished++;
    if (!is_sse) {
        if (len && kvr_json_parse(w->json, answer, len, &root, NULL) == 0) kvr_json_each(kvr_json_get(root, "choices"), append_text, &h);
        return;
    }
    while (len) {
        const char *nl = memchr(answer, '\n', len);
        size_t n = nl ? (size_t)(nl - answer) : len;
        if (n > 6 && !memcmp(answer, "data: {", 7) && kvr_json_parse(w->json, answer + 6, n - 6, &root, NULL) == 0)
            kvr_json_each(kvr_json_get(root, "choices"), append_text, &h);
        len -= n + (nl ? 1 : 0);
        answer += n + (nl ? 1 : 0);
    }
}

/* ---- both -------------------------------------------------------------------------------------------- */

struct workload *workload_create(const struct replay_options *o, char *err, size_t cap)
{
    struct workload *w = calloc(1, sizeof *w);
    KVR_ASSERT(w != NULL);
    w->o = o;
    w->rng.state = o->seed;
    w->json = kvr_json_parser_new();
    if (strcmp(o->trace, "synthetic") != 0) {
        w->file = fopen(o->trace, "r");
        if (w->file && !read_row(w)) {
            snprintf(err, cap, "'%s' holds no trace line", o->trace);
            workload_destroy(w);
            return NULL;
        }
        if (w->file) return w;
        snprintf(err, cap, "cannot read '%s': %s", o->trace, strerror(errno));
        workload_destroy(w);
        return NULL;
    }
    w->sessions = calloc(o->sessions, sizeof *w->sessions);
    KVR_ASSERT(w->sessions != NULL);
    for (size_t i = 0; i < o->sessions; i++) begin_session(w, i);
    return w;
}

void workload_destroy(struct workload *w)
{
    if (w->file) fclose(w->file);
    if (w->have_row) kvr_trace_row_free(&w->row);
    for (size_t i = 0; w->sessions && i < w->o->sessions; i++) free(w->sessions[i].tokens);
    free(w->sessions);
    free(w->line);
    kvr_json_parser_free(w->json);
    free(w);
}

enum work_state workload_next(struct workload *w, double now_s, struct work_item *out, uint64_t *wait_ms)
{
    return w->file ? next_of_trace(w, now_s, out, wait_ms) : next_of_synthetic(w, now_s, out, wait_ms);
}

bool workload_restart(struct workload *w)
{
    w->base_s = w->last_s;
    if (w->file) {
        rewind(w->file);
        return read_row(w);
    }
    w->generation++;
    w->finished = 0;
    for (size_t i = 0; i < w->o->sessions; i++) begin_session(w, i);
    return true;
}

void work_item_free(struct work_item *i)
{
    free(i->tokens);
    i->tokens = NULL;
}

void work_item_body(const struct work_item *i, const char *model, bool stream, struct kvr_buf *b)
{
    kvr_json_open(b, '{');
    if (model) {
        kvr_json_key(b, "model");
        kvr_json_str(b, model, strlen(model));
    }
    kvr_json_key(b, "max_tokens");
    kvr_json_u64(b, i->max_tokens);
    kvr_json_key(b, "ignore_eos");
    kvr_json_bool(b, true);
    if (stream) {
        kvr_json_key(b, "stream");
        kvr_json_bool(b, true);
        kvr_json_key(b, "stream_options");
        kvr_buf_str(b, "{\"include_usage\":true}");
        b->comma = true;
    }
    kvr_json_key(b, "prompt");
    kvr_json_open(b, '[');
    for (size_t k = 0; k < i->tokens_n; k++) kvr_json_u64(b, i->tokens[k]);
    kvr_json_close(b, ']');
    kvr_json_close(b, '}');
}
