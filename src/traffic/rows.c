/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of a trace: read from a file, or made up.
 *
 *     read | make --> group of one moment --> spread until the next moment --> out
 *
 * A trace whose clock ticks every three seconds would come in lumps of ten; what has one time stamp is spread evenly at random over the
 * time until the next one. A trace with exact times stays as it is.
 *
 * Made up: Mooncake's public conversation trace (12,031 rows in 59 minutes, FAST'25) in round figures. 2 conversations open each second.
 * Every prompt begins with one block that all share; the first of a conversation has a lognormal length (median 4,960 tokens, sigma 1.26,
 * 891 to 126,000), each later one adds a lognormal piece (441, 1.81), one in seven after going back to an earlier place. The chance of
 * another turn rises with those that were: 1 - 0.65 / (1 + 0.2 * turn). Turns are a lognormal time apart (130 s, 0.985). Answers are normal
 * (343, 230), 1 to 2,000 tokens. Times are multiples of three seconds.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/order.h"
#include "traffic/internal.h"

enum { LINE_MAX_BYTES = 4 << 20, GROUP_MAX = 1 << 16, STEP_MS = 3000, LONGEST = 126000, SHORTEST = 891 };

static const double OPENINGS_PER_S = 2;

/* A conversation that will go on. */
struct talk {
    double at_s;
    uint64_t length, turn;
    uint64_t *ids; /* of its whole blocks */
    size_t ids_n;
};

struct traffic_rows {
    /* a file */
    FILE *file;
    struct kvr_json_parser *json;
    char *line;
    size_t line_cap;
    uint64_t skipped;
    char why[160]; /* of the first */
    /* made up */
    struct kvr_rng rng;
    double open_s;
    uint64_t next_id;
    struct talk *talks; /* a heap by time */
    size_t talks_n, talks_cap;
    /* the group that is being given */
    struct kvr_trace_row *group, ahead;
    double *at_s;
    size_t group_n, group_cap, given;
    bool has_ahead;
    uint64_t first_ms, gap_ms;
    struct kvr_rng spread;
};

/* ---- a file ------------------------------------------------------------------------------------------ */

void traffic_rows_skip(struct traffic_rows *r, const char *why)
{
    if (!r->skipped++) snprintf(r->why, sizeof r->why, "%s", why);
}

static int read_row(struct traffic_rows *r, struct kvr_trace_row *out)
{
    const char *why;
    ssize_t n;
    while ((n = getline(&r->line, &r->line_cap, r->file)) > 0) {
        while (n > 0 && (r->line[n - 1] == '\n' || r->line[n - 1] == '\r')) n--;
        if (n == 0) continue;
        why = "the line is longer than 4 MiB";
        int rc = n > LINE_MAX_BYTES ? -KVR_EFORMAT : kvr_trace_parse(r->json, r->line, (size_t)n, out, &why);
        if (rc == 0) return 1;
        if (rc == -KVR_ENOMEM) return rc;
        traffic_rows_skip(r, why);
    }
    return 0;
}

/* ---- made up ----------------------------------------------------------------------------------------- */

static double clip(double v, double min, double max)
{
    return v < min ? min : v > max ? max : v;
}

static double lognormal(struct kvr_rng *r, double median, double sigma)
{
    return median * exp(sigma * traffic_gauss(r));
}

static int push_talk(struct traffic_rows *r, struct talk t)
{
    if (r->talks_n == r->talks_cap) {
        size_t cap = r->talks_cap ? 2 * r->talks_cap : 64;
        struct talk *grown = realloc(r->talks, cap * sizeof *grown);
        if (!grown) return -KVR_ENOMEM;
        r->talks = grown;
        r->talks_cap = cap;
    }
    size_t at = r->talks_n++;
    for (; at > 0 && t.at_s < r->talks[(at - 1) / 2].at_s; at = (at - 1) / 2) r->talks[at] = r->talks[(at - 1) / 2];
    r->talks[at] = t;
    return 0;
}

static struct talk pop_talk(struct traffic_rows *r)
{
    struct talk top = r->talks[0], last = r->talks[--r->talks_n];
    size_t at = 0;
    for (size_t kid; (kid = 2 * at + 1) < r->talks_n; at = kid) {
        if (kid + 1 < r->talks_n && r->talks[kid + 1].at_s < r->talks[kid].at_s) kid++;
        if (r->talks[kid].at_s >= last.at_s) break;
        r->talks[at] = r->talks[kid];
    }
    if (r->talks_n) r->talks[at] = last;
    return top;
}

/* Plans the turn after a row, if there is one: it begins with the row's whole blocks, or one in seven times with some of them. */
static int plan_turn(struct traffic_rows *r, const struct kvr_trace_row *row, double at_s, uint64_t turn)
{
    struct talk t = {.turn = turn + 1, .ids_n = row->input_length / KVR_TRACE_BLOCK};
    if (kvr_rng_unit(&r->rng) < 0.65 / (1 + 0.2 * (double)turn)) return 0;
    t.at_s = at_s + lognormal(&r->rng, 130, 0.985);
    t.length = row->input_length + (uint64_t)clip(lognormal(&r->rng, 441, 1.81), 1, LONGEST);
    if (t.length > LONGEST) return 0;
    if (kvr_rng_unit(&r->rng) < 0.15) t.ids_n = kvr_rng_below(&r->rng, (uint32_t)t.ids_n + 1);
    t.ids = malloc((t.ids_n + 1) * sizeof *t.ids);
    if (!t.ids) return -KVR_ENOMEM;
    memcpy(t.ids, row->ids, t.ids_n * sizeof *t.ids);
    int rc = push_talk(r, t);
    if (rc) free(t.ids);
    return rc;
}

static int make_row(struct traffic_rows *r, struct kvr_trace_row *out)
{
    struct talk t = {0};
    struct kvr_trace_row row = {0};
    if (r->talks_n && r->talks[0].at_s < r->open_s) {
        t = pop_talk(r);
    } else {
        t.at_s = r->open_s;
        t.length = (uint64_t)clip(lognormal(&r->rng, 4960, 1.26), SHORTEST, LONGEST);
        r->open_s += traffic_exponential(&r->rng, 1 / OPENINGS_PER_S);
    }
    row.timestamp_ms = (uint64_t)(t.at_s * 1000) / STEP_MS * STEP_MS;
    row.input_length = t.length;
    row.output_length = (uint64_t)clip(343 + 230 * traffic_gauss(&r->rng), 1, 2000);
    row.ids_n = (t.length + KVR_TRACE_BLOCK - 1) / KVR_TRACE_BLOCK;
    row.ids = malloc(row.ids_n * sizeof *row.ids);
    if (row.ids && t.ids) memcpy(row.ids, t.ids, t.ids_n * sizeof *row.ids);
    free(t.ids);
    if (!row.ids) return -KVR_ENOMEM;
    if (t.ids_n == 0) row.ids[t.ids_n++] = 0;
    while (t.ids_n < row.ids_n) row.ids[t.ids_n++] = ++r->next_id;
    int rc = plan_turn(r, &row, t.at_s, t.turn);
    if (rc) kvr_trace_row_free(&row);
    else *out = row;
    return rc ? rc : 1;
}

/* ---- groups of one moment ---------------------------------------------------------------------------- */

static int take_row(struct traffic_rows *r)
{
    int rc = r->file ? read_row(r, &r->ahead) : make_row(r, &r->ahead);
    r->has_ahead = rc == 1;
    return rc < 0 ? rc : 0;
}

static int add_to_group(struct traffic_rows *r)
{
    if (r->group_n == r->group_cap) {
        size_t cap = r->group_cap ? 2 * r->group_cap : 16;
        struct kvr_trace_row *rows = realloc(r->group, cap * sizeof *rows);
        if (rows) r->group = rows;
        double *at_s = realloc(r->at_s, cap * sizeof *at_s);
        if (at_s) r->at_s = at_s;
        if (!rows || !at_s) return -KVR_ENOMEM;
        r->group_cap = cap;
    }
    r->group[r->group_n++] = r->ahead;
    r->has_ahead = false;
    return take_row(r);
}

/* Rows that go back in time belong to the moment that was. */
static int fill_group(struct traffic_rows *r)
{
    int rc = 0;
    r->group_n = r->given = 0;
    uint64_t at = r->ahead.timestamp_ms;
    while (rc == 0 && r->has_ahead && r->ahead.timestamp_ms <= at && r->group_n < GROUP_MAX) rc = add_to_group(r);
    if (rc) return rc;
    if (r->has_ahead && r->ahead.timestamp_ms > at) r->gap_ms = r->ahead.timestamp_ms - at;
    for (size_t i = 0; i < r->group_n; i++) {
        double part = r->group_n > 1 ? kvr_rng_unit(&r->spread) : 0;
        r->at_s[i] = ((double)(at - r->first_ms) + part * (double)r->gap_ms) / 1000;
    }
    qsort(r->at_s, r->group_n, sizeof *r->at_s, kvr_rising_double);
    return 0;
}

int traffic_rows_next(struct traffic_rows *r, struct kvr_trace_row *out, double *at_s)
{
    if (r->given == r->group_n) {
        if (!r->has_ahead) return 0;
        int rc = fill_group(r);
        if (rc) return rc;
    }
    *at_s = r->at_s[r->given];
    *out = r->group[r->given++];
    return 1;
}

uint64_t traffic_rows_skipped(const struct traffic_rows *r, const char **why)
{
    *why = r->skipped ? r->why : NULL;
    return r->skipped;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static int begin(struct traffic_rows *r, const struct traffic_config *c, char *err, size_t cap)
{
    if (c->kind == TRAFFIC_TRACE) {
        r->json = kvr_json_parser_new();
        r->file = fopen(c->file, "r");
        if (!r->file) return snprintf(err, cap, "cannot read '%.200s': %s", c->file, strerror(errno)), -KVR_ENOTFOUND;
        if (!r->json) return snprintf(err, cap, "out of memory"), -KVR_ENOMEM;
    }
    int rc = take_row(r);
    if (rc) return snprintf(err, cap, "out of memory"), rc;
    if (!r->has_ahead) return snprintf(err, cap, "'%.200s' holds no trace line%s%s", c->file, r->skipped ? ": " : "", r->why), -KVR_EFORMAT;
    r->first_ms = r->ahead.timestamp_ms;
    return 0;
}

int traffic_rows_create(const struct traffic_config *c, struct traffic_rows **out, char *err, size_t cap)
{
    struct traffic_rows *r = calloc(1, sizeof *r);
    if (!r) return snprintf(err, cap, "out of memory"), -KVR_ENOMEM;
    r->rng.state = kvr_mix64(c->seed + 3);
    r->spread.state = kvr_mix64(c->seed + 4);
    int rc = begin(r, c, err, cap);
    if (rc) traffic_rows_destroy(r);
    else *out = r;
    return rc;
}

void traffic_rows_destroy(struct traffic_rows *r)
{
    if (!r) return;
    if (r->file) fclose(r->file);
    kvr_json_parser_free(r->json);
    for (size_t i = r->given; i < r->group_n; i++) kvr_trace_row_free(&r->group[i]);
    if (r->has_ahead) kvr_trace_row_free(&r->ahead);
    for (size_t i = 0; i < r->talks_n; i++) free(r->talks[i].ids);
    free(r->talks);
    free(r->group);
    free(r->at_s);
    free(r->line);
    free(r);
}

/* ---- texts ------------------------------------------------------------------------------------------- */

int traffic_text_ids(const struct traffic_config *c, const struct kvr_trace_row *row, uint32_t **tokens, size_t *n, char *why, size_t cap)
{
    *tokens = NULL;
    *n = 0;
    if (c->texts && !c->texts->ids) return 0;
    if (c->texts) return c->texts->ids(c->texts->ctx, row->text, row->text_len, row->is_chat, tokens, n, why, cap);
    return kvr_refuse(why, cap, "the line is a text");
}

/* Ids of 512 tokens each in place of a text: of everything up to their end, and of no more than 53 bits, as not every reader has more. */
static int number_text(struct kvr_trace_row *row, const uint32_t *tokens, size_t n)
{
    uint64_t hash = 0;
    row->input_length = n;
    row->ids_n = (n + KVR_TRACE_BLOCK - 1) / KVR_TRACE_BLOCK;
    row->ids = calloc(row->ids_n + 1, sizeof *row->ids);
    for (size_t i = 0; row->ids && i < n; i++) {
        hash = kvr_mix64(hash + tokens[i] + 1);
        row->ids[i / KVR_TRACE_BLOCK] = hash >> 11;
    }
    return row->ids ? 0 : -KVR_ENOMEM;
}

/* Returns: 0; 1: it has no ids and is left out; -KVR_ENOMEM. */
static int text_to_ids(struct traffic_rows *r, const struct traffic_config *c, struct kvr_trace_row *row)
{
    char why[160];
    uint32_t *tokens;
    size_t n;
    if (traffic_text_ids(c, row, &tokens, &n, why, sizeof why)) {
        traffic_rows_skip(r, why);
        return 1;
    }
    int rc = number_text(row, tokens, n);
    free(tokens);
    return rc || n ? rc : 1;
}

/* ---- writing ----------------------------------------------------------------------------------------- */

static void write_row(FILE *out, const struct kvr_trace_row *row)
{
    fprintf(out, "{\"timestamp\": %llu, \"input_length\": %llu, \"output_length\": %llu, \"hash_ids\": [",
            (unsigned long long)row->timestamp_ms, (unsigned long long)row->input_length, (unsigned long long)row->output_length);
    for (size_t i = 0; i < row->ids_n; i++) fprintf(out, "%s%llu", i ? ", " : "", (unsigned long long)row->ids[i]);
    fprintf(out, "]}\n");
}

long traffic_write_rows(const struct traffic_config *c, FILE *out, char *err, size_t cap)
{
    struct traffic_rows *r = NULL;
    struct kvr_trace_row row = {0};
    double at_s = 0;
    long n = 0;
    KVR_ASSERT(traffic_has_rows(c->kind));
    int rc = traffic_check(c, err, cap);
    if (rc) return rc;
    rc = traffic_rows_create(c, &r, err, cap);
    for (bool more = true; rc == 0 && more;) {
        int got = c->requests && (uint64_t)n == c->requests ? 0 : traffic_rows_next(r, &row, &at_s);
        if (got < 0) rc = got;
        more = got == 1 && !(c->seconds > 0 && at_s / c->param[TRAFFIC_SPEEDUP] >= c->seconds);
        int left_out = more && row.text ? text_to_ids(r, c, &row) : 0;
        if (left_out < 0) rc = left_out;
        if (more && left_out == 0) write_row(out, &row), n++;
        if (got == 1) kvr_trace_row_free(&row);
    }
    traffic_rows_destroy(r);
    return rc ? rc : n;
}
