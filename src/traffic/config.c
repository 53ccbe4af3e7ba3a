/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of traffic and their parameters are rows of two tables; names, help, errors and defaults come of them. */
#include "traffic/internal.h"

#include <math.h>
#include <string.h>

static const struct param_row {
    const char *name, *meaning;
    double min, max;
    bool whole;
} params[TRAFFIC_PARAMS] = {
    [TRAFFIC_GROUPS] = {"groups", "different system prompts or prefixes", 1, 1e6, true},
    [TRAFFIC_SYSTEM_TOKENS] = {"system-tokens", "tokens of each of them", 0, 1e6, true},
    [TRAFFIC_FIRST_TOKENS] = {"first-tokens", "tokens that the first turn adds to it", 1, 1e6, true},
    [TRAFFIC_OWN_TOKENS] = {"own-tokens", "mean tokens of a request's or a turn's own", 1, 1e6, true},
    [TRAFFIC_OWN_SPREAD] = {"own-spread", "lengths are uniform in mean * (1 +- this)", 0, 1, false},
    [TRAFFIC_TURNS] = {"turns", "requests of a conversation", 1, 1e5, true},
    [TRAFFIC_THINK_S] = {"think", "mean seconds between an answer and the next turn", 0, 1e6, false},
    [TRAFFIC_THINK_SPREAD] = {"think-spread", "uniform in mean * (1 +- this)", 0, 1, false},
    [TRAFFIC_HOT_TOKENS] = {"hot-tokens", "tokens of the hot prefix", 1, 1e6, true},
    [TRAFFIC_HOT_SHARE] = {"hot-share", "share of the requests that have it", 0, 1, false},
    [TRAFFIC_BURST] = {"burst", "requests of a burst", 1, 1e5, true},
    [TRAFFIC_MEDIAN] = {"median", "median tokens of a prompt", 1, 1e6, true},
    [TRAFFIC_SIGMA] = {"sigma", "standard deviation of the length's logarithm", 0, 10, false},
    [TRAFFIC_EXPONENT] = {"exponent", "of Pareto's distribution", 0.1, 100, false},
    [TRAFFIC_SHORTEST] = {"shortest", "tokens of the shortest prompt", 1, 1e6, true},
    [TRAFFIC_LONGEST] = {"longest", "tokens of the longest prompt", 1, 1e6, true},
    [TRAFFIC_OUTPUT] = {"output", "mean tokens of an answer", 1, 1e6, true},
    [TRAFFIC_OUTPUT_SPREAD] = {"output-spread", "uniform in mean * (1 +- this)", 0, 1, false},
    [TRAFFIC_OUTPUT_MAX] = {"output-max", "most tokens of an answer, 0: as the trace says", 0, 1e6, true},
    [TRAFFIC_SPEEDUP] = {"speedup", "divides the trace's times", 1e-6, 1e9, false},
    [TRAFFIC_PART_CONVERSATIONS] = {"part-conversations", "share of the rate", 0, 1e6, false},
    [TRAFFIC_PART_UNIFORM] = {"part-uniform", "share of the rate", 0, 1e6, false},
    [TRAFFIC_PART_SIBLINGS] = {"part-siblings", "share of the rate", 0, 1e6, false},
    [TRAFFIC_PART_TAIL] = {"part-tail", "share of the rate", 0, 1e6, false},
};

enum { DEFAULTS_MAX = 10 };

/* A kind has the parameters for which it has a default, no others. */
static const struct kind_row {
    const char *name, *meaning;
    double rate; /* 0: the trace's */
    double seconds;
    struct {
        enum traffic_param p;
        double value;
    } defaults[DEFAULTS_MAX];
    size_t defaults_n;
} kinds[TRAFFIC_KINDS] = {
    [TRAFFIC_CONVERSATIONS] = {"conversations",
                               "turns that repeat what was said, behind some system prompts",
                               60,
                               16,
                               {{TRAFFIC_GROUPS, 24},
                                {TRAFFIC_SYSTEM_TOKENS, 2048},
                                {TRAFFIC_OWN_TOKENS, 256},
                                {TRAFFIC_OWN_SPREAD, 0.5},
                                {TRAFFIC_TURNS, 5},
                                {TRAFFIC_THINK_S, 0.5},
                                {TRAFFIC_OUTPUT, 24},
                                {TRAFFIC_OUTPUT_SPREAD, 0}},
                               8},
    [TRAFFIC_AGENTS] = {"agents",
                        "many turns that repeat what was said, behind one system prompt",
                        68,
                        16,
                        {{TRAFFIC_GROUPS, 1},
                         {TRAFFIC_SYSTEM_TOKENS, 800},
                         {TRAFFIC_FIRST_TOKENS, 1500},
                         {TRAFFIC_OWN_TOKENS, 1000},
                         {TRAFFIC_OWN_SPREAD, 0.6},
                         {TRAFFIC_TURNS, 12},
                         {TRAFFIC_THINK_S, 1.75},
                         {TRAFFIC_THINK_SPREAD, 0.7},
                         {TRAFFIC_OUTPUT, 125},
                         {TRAFFIC_OUTPUT_SPREAD, 0.6}},
                        10},
    [TRAFFIC_SHARED] = {"shared",
                        "prefixes, popular ones more often, and something of one's own",
                        83,
                        16,
                        {{TRAFFIC_GROUPS, 64},
                         {TRAFFIC_SYSTEM_TOKENS, 4096},
                         {TRAFFIC_OWN_TOKENS, 256},
                         {TRAFFIC_OWN_SPREAD, 0},
                         {TRAFFIC_OUTPUT, 100},
                         {TRAFFIC_OUTPUT_SPREAD, 0.5}},
                        6},
    [TRAFFIC_HOT] = {"hot",
                     "one prefix that most requests have",
                     55,
                     16,
                     {{TRAFFIC_HOT_TOKENS, 6144},
                      {TRAFFIC_HOT_SHARE, 0.8},
                      {TRAFFIC_GROUPS, 64},
                      {TRAFFIC_SYSTEM_TOKENS, 2048},
                      {TRAFFIC_OWN_TOKENS, 320},
                      {TRAFFIC_OWN_SPREAD, 0.6},
                      {TRAFFIC_OUTPUT, 24},
                      {TRAFFIC_OUTPUT_SPREAD, 0}},
                     8},
    [TRAFFIC_SIBLINGS] = {"siblings",
                          "bursts at one moment that share a new prefix",
                          48,
                          16,
                          {{TRAFFIC_BURST, 16},
                           {TRAFFIC_SYSTEM_TOKENS, 4096},
                           {TRAFFIC_OWN_TOKENS, 128},
                           {TRAFFIC_OWN_SPREAD, 0},
                           {TRAFFIC_OUTPUT, 24},
                           {TRAFFIC_OUTPUT_SPREAD, 0}},
                          6},
    [TRAFFIC_UNIFORM] = {"uniform",
                         "prompts that share nothing",
                         30,
                         16,
                         {{TRAFFIC_OWN_TOKENS, 2304}, {TRAFFIC_OWN_SPREAD, 0.78}, {TRAFFIC_OUTPUT, 24}, {TRAFFIC_OUTPUT_SPREAD, 0}},
                         4},
    [TRAFFIC_TAIL] = {"tail",
                      "lognormal lengths, nothing shared",
                      50,
                      16,
                      {{TRAFFIC_MEDIAN, 403},
                       {TRAFFIC_SIGMA, 1.2},
                       {TRAFFIC_SHORTEST, 32},
                       {TRAFFIC_LONGEST, 24000},
                       {TRAFFIC_OUTPUT, 24},
                       {TRAFFIC_OUTPUT_SPREAD, 0}},
                      6},
    [TRAFFIC_LONG_TAIL] =
        {"long-tail",
         "Pareto lengths, nothing shared",
         91,
         16,
         {{TRAFFIC_SHORTEST, 200}, {TRAFFIC_EXPONENT, 1.1}, {TRAFFIC_LONGEST, 32000}, {TRAFFIC_OUTPUT, 100}, {TRAFFIC_OUTPUT_SPREAD, 0.5}},
         5},
    [TRAFFIC_MIXED] =
        {"mixed",
         "conversations, uniform, siblings and tail beside each other",
         60,
         16,
         {{TRAFFIC_PART_CONVERSATIONS, 0.5}, {TRAFFIC_PART_UNIFORM, 0.2}, {TRAFFIC_PART_SIBLINGS, 0.2}, {TRAFFIC_PART_TAIL, 0.1}},
         4},
    [TRAFFIC_TRACE] = {"trace", "a file of rows: Mooncake's, texts, chats", 0, 0, {{TRAFFIC_SPEEDUP, 1}, {TRAFFIC_OUTPUT_MAX, 0}}, 2},
    [TRAFFIC_MOONCAKE] = {"mooncake",
                          "made up, with the statistics of Mooncake's conversation trace",
                          0,
                          60,
                          {{TRAFFIC_SPEEDUP, 1}, {TRAFFIC_OUTPUT_MAX, 0}},
                          2},
};

/* ---- names ------------------------------------------------------------------------------------------- */

enum traffic_kind traffic_find(const char *name, size_t len)
{
    enum traffic_kind k = 0;
    while (k < TRAFFIC_KINDS && (strlen(kinds[k].name) != len || memcmp(kinds[k].name, name, len) != 0)) k++;
    return k;
}

const char *traffic_name(enum traffic_kind kind)
{
    return kinds[kind].name;
}

const char *traffic_meaning(enum traffic_kind kind)
{
    return kinds[kind].meaning;
}

const char *traffic_param_name(enum traffic_param p)
{
    return params[p].name;
}

const char *traffic_param_meaning(enum traffic_param p)
{
    return params[p].meaning;
}

bool traffic_has(enum traffic_kind kind, enum traffic_param p)
{
    for (size_t i = 0; i < kinds[kind].defaults_n; i++)
        if (kinds[kind].defaults[i].p == p) return true;
    return false;
}

bool traffic_has_rows(enum traffic_kind kind)
{
    return kind == TRAFFIC_TRACE || kind == TRAFFIC_MOONCAKE;
}

/* ---- configuration ----------------------------------------------------------------------------------- */

void traffic_config_init(struct traffic_config *c, enum traffic_kind kind)
{
    const struct kind_row *k = &kinds[kind];
    *c = (struct traffic_config){.kind = kind, .rate = k->rate, .seconds = k->seconds, .seed = 1};
    for (size_t i = 0; i < k->defaults_n; i++) c->param[k->defaults[i].p] = k->defaults[i].value;
}

static int refuse(char *err, size_t cap, const char *key, double value, double min, double max, bool whole)
{
    snprintf(err, cap, "%s: bad value %g; allowed: %s %g to %g", key, value, whole ? "whole numbers," : "numbers,", min, max);
    return -KVR_EINVAL;
}

static int check_number(const char *key, double value, double min, double max, bool whole, char *err, size_t cap)
{
    bool fine = isfinite(value) && value >= min && value <= max && (!whole || floor(value) == value);
    return fine ? 0 : refuse(err, cap, key, value, min, max, whole);
}

int traffic_check(const struct traffic_config *c, char *err, size_t cap)
{
    int rc = 0;
    double parts = 0;
    for (enum traffic_param p = 0; rc == 0 && p < TRAFFIC_PARAMS; p++) {
        if (!traffic_has(c->kind, p)) continue;
        rc = check_number(params[p].name, c->param[p], params[p].min, params[p].max, params[p].whole, err, cap);
        if (p >= TRAFFIC_PART_CONVERSATIONS && p <= TRAFFIC_PART_TAIL) parts += c->param[p];
    }
    if (rc == 0 && kinds[c->kind].rate > 0) rc = check_number("rate", c->rate, 1e-6, 1e7, false, err, cap);
    if (rc == 0) rc = check_number("seconds", c->seconds, 0, 1e7, false, err, cap);
    if (rc) return rc;
    if (c->kind != TRAFFIC_TRACE && c->seconds <= 0 && c->requests == 0)
        return snprintf(err, cap, "seconds, requests: one of them must be above 0 for '%s', which has no end", kinds[c->kind].name),
               -KVR_EINVAL;
    if (c->kind == TRAFFIC_MIXED && parts <= 0)
        return snprintf(err, cap, "part-conversations, part-uniform, part-siblings, part-tail: one of them must be above 0"), -KVR_EINVAL;
    if (traffic_has(c->kind, TRAFFIC_LONGEST) && c->param[TRAFFIC_LONGEST] < c->param[TRAFFIC_SHORTEST])
        return snprintf(err, cap, "longest: must not be below shortest"), -KVR_EINVAL;
    if (c->kind == TRAFFIC_TRACE && !c->file) return snprintf(err, cap, "trace: needs a file of Mooncake rows"), -KVR_EINVAL;
    return 0;
}

static int list_kinds(const char *name, size_t len, char *err, size_t cap)
{
    int n = snprintf(err, cap, "unknown workload '%.*s'; allowed:", (int)KVR_MIN(len, (size_t)60), name);
    for (enum traffic_kind k = 0; k < TRAFFIC_KINDS && n > 0 && (size_t)n < cap; k++)
        n += snprintf(err + n, cap - (size_t)n, "%s %s", k ? "," : "", kinds[k].name);
    return -KVR_EINVAL;
}

static int list_keys(enum traffic_kind kind, const char *key, size_t len, char *err, size_t cap)
{
    int n = snprintf(err, cap, "workload '%s' has no '%.*s'; allowed: %sseconds, requests, seed", kinds[kind].name,
                     (int)KVR_MIN(len, (size_t)60), key, kinds[kind].rate > 0 ? "rate, " : "");
    for (size_t i = 0; i < kinds[kind].defaults_n && n > 0 && (size_t)n < cap; i++)
        n += snprintf(err + n, cap - (size_t)n, ", %s", params[kinds[kind].defaults[i].p].name);
    return -KVR_EINVAL;
}

static int parse_pair(const char *pair, size_t len, struct traffic_config *c, char *err, size_t cap)
{
    const char *eq = memchr(pair, '=', len);
    size_t key = eq ? (size_t)(eq - pair) : len, n = eq ? len - key - 1 : 0;
    double value = 0;
    char text[48], *end = text;
    if (n > 0 && n < sizeof text) {
        memcpy(text, eq + 1, n);
        text[n] = 0;
        value = strtod(text, &end);
    }
    if (end == text || *end)
        return snprintf(err, cap, "bad pair '%.*s'; allowed: key=number", (int)KVR_MIN(len, (size_t)60), pair), -KVR_EINVAL;
#define IS(name) (key == strlen(name) && !memcmp(pair, name, key))
    if (IS("rate") && kinds[c->kind].rate > 0) return c->rate = value, 0;
    if (IS("seconds")) return c->seconds = value, 0;
    if (IS("requests") || IS("seed")) {
        int rc = check_number(IS("seed") ? "seed" : "requests", value, 0, 1e15, true, err, cap);
        if (rc == 0) *(IS("seed") ? &c->seed : &c->requests) = (uint64_t)value;
        return rc;
    }
    for (size_t i = 0; i < kinds[c->kind].defaults_n; i++) {
        enum traffic_param p = kinds[c->kind].defaults[i].p;
        if (IS(params[p].name)) return c->param[p] = value, 0;
    }
#undef IS
    return list_keys(c->kind, pair, key, err, cap);
}

int traffic_parse(const char *spec, struct traffic_config *out, char *err, size_t cap)
{
    struct traffic_config c;
    size_t len = strcspn(spec, ",");
    enum traffic_kind kind = traffic_find(spec, len);
    if (kind == TRAFFIC_KINDS) return list_kinds(spec, len, err, cap);
    traffic_config_init(&c, kind);
    c.file = out->file;
    c.texts = out->texts;
    c.vocab = out->vocab;
    for (const char *at = spec + len; *at; at += len) {
        at++;
        len = strcspn(at, ",");
        int rc = parse_pair(at, len, &c, err, cap);
        if (rc) return rc;
    }
    int rc = traffic_check(&c, err, cap);
    if (rc == 0) *out = c;
    return rc;
}
