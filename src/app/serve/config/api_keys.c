/* SPDX-License-Identifier: Apache-2.0 */
/* Reads --api-key-file; every key that is not known is an error that names it, and no error tells a secret. */
#include "app/serve/config/api_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"
#include "wire/yaml_map.h"

#define KNOWN_MAXIMUM(name, read, of_models) ", " #name
#define KNOWN_LIMITS                         "requests_per_second, burst_requests, tokens_per_second, burst_tokens" KEY_MAXIMA(KNOWN_MAXIMUM)

/* ---- values ------------------------------------------------------------------------------------------ */

static int read_rate(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, double *out)
{
    double n;
    if (kvr_yaml_get_number(y, v, key, 0, &n)) return -1;
    if (n <= 0 || n > 1e12) return kvr_yaml_refuse(y, v, key, "a number above 0, and at most 1e12, is expected");
    *out = n;
    return 0;
}

static int read_count(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, uint64_t *out)
{
    double n;
    if (kvr_yaml_get_number(y, v, key, 1, &n)) return -1;
    if (n > 9e15 || n != (double)(uint64_t)n) return kvr_yaml_refuse(y, v, key, "a whole number of at least 1 is expected");
    *out = (uint64_t)n;
    return 0;
}

static int read_size(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, uint64_t *out)
{
    static const struct {
        const char *unit;
        unsigned shift;
    } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    const char *s = kvr_yaml_text(v);
    size_t digits = s ? strspn(s, "0123456789") : 0;
    uint64_t n;
    for (size_t i = 0; s && i < KVR_ARRAY_LEN(units); i++) {
        if (strcmp(s + digits, units[i].unit) != 0 || !kvr_parse_u64(s, digits, (uint64_t)1 << 32, &n) || n == 0) continue;
        *out = n << units[i].shift;
        return 0;
    }
    return kvr_yaml_refuse(y, v, key, "a size in bytes, or with KiB, MiB or GiB, is expected");
}

/* Two digits of what may be `lo` to `hi`. */
static bool two(const char **p, int lo, int hi, int *out)
{
    const char *s = *p;
    if (s[0] < '0' || s[0] > '9' || s[1] < '0' || s[1] > '9') return false;
    *out = (s[0] - '0') * 10 + s[1] - '0';
    *p = s + 2;
    return *out >= lo && *out <= hi;
}

static bool skip(const char **p, char c)
{
    if (**p != c) return false;
    ++*p;
    return true;
}

static bool read_day(const char **p, struct tm *t)
{
    static const int days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int century, year, month, day;
    if (!two(p, 19, 99, &century) || !two(p, 0, 99, &year) || !skip(p, '-') || !two(p, 1, 12, &month) || !skip(p, '-') ||
        !two(p, 1, 31, &day))
        return false;
    year += century * 100;
    bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    t->tm_year = year - 1900;
    t->tm_mon = month - 1;
    t->tm_mday = day;
    return day <= days[month - 1] + (month == 2 && leap);
}

static bool read_zone(const char **p, int *seconds)
{
    int hours, minutes;
    *seconds = 0;
    if (skip(p, 'Z') || skip(p, 'z')) return true;
    int sign = **p == '-' ? -1 : 1;
    if (!skip(p, '+') && !skip(p, '-')) return false;
    if (!two(p, 0, 23, &hours) || !skip(p, ':') || !two(p, 0, 59, &minutes)) return false;
    *seconds = sign * (hours * 3600 + minutes * 60);
    return true;
}

/* RFC 3339, or a day alone: its beginning, in UTC. */
static bool read_moment(const char *s, int64_t *out)
{
    struct tm t = {0};
    int zone = 0;
    const char *p = s;
    if (!read_day(&p, &t)) return false;
    if (*p) {
        if (!skip(&p, 'T') && !skip(&p, 't') && !skip(&p, ' ')) return false;
        if (!two(&p, 0, 23, &t.tm_hour) || !skip(&p, ':') || !two(&p, 0, 59, &t.tm_min) || !skip(&p, ':') || !two(&p, 0, 59, &t.tm_sec))
            return false;
        if (skip(&p, '.')) {
            size_t n = strspn(p, "0123456789");
            if (!n) return false;
            p += n;
        }
        if (!read_zone(&p, &zone) || *p) return false;
    }
    *out = (int64_t)timegm(&t) - zone;
    return true;
}

/* ---- limits ------------------------------------------------------------------------------------------ */

/* Returns: 1: the key is none of a limit. */
static int limit_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *v, struct key_limits *l)
{
    const struct {
        const char *key;
        double *out;
    } rates[] = {{"requests_per_second", &l->requests_per_second},
                 {"burst_requests", &l->burst_requests},
                 {"tokens_per_second", &l->tokens_per_second},
                 {"burst_tokens", &l->burst_tokens}};
    for (size_t i = 0; i < KVR_ARRAY_LEN(rates); i++)
        if (!strcmp(key, rates[i].key)) return read_rate(y, v, key, rates[i].out);
#define READ(name, read, of_models)                                                                                                        \
    if (!strcmp(key, #name)) return read(y, v, key, &l->name);
    KEY_MAXIMA(READ)
#undef READ
    return 1;
}

static int check_limits(const struct kvr_yaml *y, const yaml_node_t *at, struct key_limits *l)
{
    if (l->burst_requests > 0 && l->burst_requests < 1)
        return kvr_yaml_refuse(y, at, "burst_requests", "at least 1, else no request ever passes");
    if (l->burst_requests > 0 && l->requests_per_second <= 0) return kvr_yaml_refuse(y, at, "burst_requests", "needs requests_per_second");
    if (l->burst_tokens > 0 && l->tokens_per_second <= 0) return kvr_yaml_refuse(y, at, "burst_tokens", "needs tokens_per_second");
    if (l->requests_per_second > 0 && l->burst_requests <= 0) l->burst_requests = KVR_MAX(l->requests_per_second, 1.0);
    if (l->tokens_per_second > 0 && l->burst_tokens <= 0) l->burst_tokens = KVR_MAX(l->tokens_per_second * 10, 1.0);
    return 0;
}

/* What a key does not say of itself. */
static void inherit(struct key_limits *l, const struct key_limits *from)
{
    if (l->requests_per_second <= 0) {
        l->requests_per_second = from->requests_per_second;
        l->burst_requests = from->burst_requests;
    }
    if (l->tokens_per_second <= 0) {
        l->tokens_per_second = from->tokens_per_second;
        l->burst_tokens = from->burst_tokens;
    }
#define INHERIT(name, read, of_models)                                                                                                     \
    if (!l->name) l->name = from->name;
    KEY_MAXIMA(INHERIT)
#undef INHERIT
}

static int only_limit_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    int rc = limit_key(y, key, v, arg);
    return rc == 1 ? kvr_yaml_refuse(y, key_node, key, "unknown key of `default`; allowed: " KNOWN_LIMITS) : rc;
}

/* ---- one key ----------------------------------------------------------------------------------------- */

struct reading_key {
    struct api_key *key;
    bool has_secret, is_anonymous;
};

static int read_name(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, struct api_key *k)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@/-";
    if (kvr_yaml_get_text(y, v, key, k->name, sizeof k->name)) return -1;
    if (k->name[strspn(k->name, allowed)] || k->name[0] == '_' || !strcmp(k->name, "anonymous"))
        return kvr_yaml_refuse(y, v, key,
                               "letters, digits and _ . : @ / - are allowed, not _ at the beginning, and not the name 'anonymous'");
    return 0;
}

static int read_secret(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, struct reading_key *a)
{
    const char *s = kvr_yaml_text(v);
    size_t n = s ? v->data.scalar.length : 0;
    bool ok = n >= KEY_SECRET_MIN && n <= KEY_SECRET_MAX;
    for (size_t i = 0; ok && i < n; i++) ok = (unsigned char)s[i] > 0x20 && (unsigned char)s[i] < 0x7f;
    if (!ok) return kvr_yaml_refuse(y, v, key, "8 to 255 visible ASCII characters are expected");
    if (a->has_secret) return kvr_yaml_refuse(y, v, key, "either key or key_sha256, not both");
    a->has_secret = true;
    return kvr_digest(s, n, a->key->digest) ? 0 : kvr_yaml_refuse(y, v, key, "out of memory");
}

static int read_digest(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, struct reading_key *a)
{
    const char *s = kvr_yaml_text(v);
    bool ok = s && strlen(s) == 2 * KVR_DIGEST;
    if (a->has_secret) return kvr_yaml_refuse(y, v, key, "either key or key_sha256, not both");
    for (size_t i = 0; ok && i < KVR_DIGEST; i++) {
        int hi = kvr_hex_digit(s[2 * i]), lo = kvr_hex_digit(s[2 * i + 1]);
        ok = hi >= 0 && lo >= 0;
        if (ok) a->key->digest[i] = (unsigned char)(hi * 16 + lo);
    }
    a->has_secret = true;
    return ok ? 0 : kvr_yaml_refuse(y, v, key, "64 hexadecimal digits are expected: the SHA-256 of the key");
}

static int model_item(const struct kvr_yaml *y, yaml_node_t *v, void *arg)
{
    struct api_key *k = arg;
    if (k->models_n == KEY_MODELS_MAX) return kvr_yaml_refuse(y, v, "models", "at most 256 models");
    if (kvr_yaml_get_text(y, v, "models", k->models[k->models_n], MODEL_MAX)) return -1;
    const char *star = strchr(k->models[k->models_n], '*');
    if (star && star[1]) return kvr_yaml_refuse(y, v, "models", "a * is allowed at the end only");
    k->models_n++;
    return 0;
}

static int read_models(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, struct api_key *k)
{
    k->models = calloc(KEY_MODELS_MAX, sizeof *k->models);
    if (!k->models) return kvr_yaml_refuse(y, v, key, "out of memory");
    if (kvr_yaml_each_item(y, v, key, model_item, k)) return -1;
    if (!k->models_n) return kvr_yaml_refuse(y, v, key, "at least one model is expected; without the key all are allowed");
    void *smaller = realloc(k->models, k->models_n * sizeof *k->models);
    if (smaller) k->models = smaller;
    return 0;
}

static int taint_item(const struct kvr_yaml *y, yaml_node_t *v, void *arg)
{
    struct key_taints *t = arg;
    if (t->n == KEY_TAINTS_MAX) return kvr_yaml_refuse(y, v, "required_taints", "at most 8 taints");
    if (kvr_yaml_get_text(y, v, "required_taints", t->text[t->n], sizeof t->text[t->n])) return -1;
    t->names[t->n] = t->text[t->n];
    t->n++;
    return 0;
}

static int read_taints(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, struct api_key *k)
{
    k->required_taints = calloc(1, sizeof *k->required_taints);
    if (!k->required_taints) return kvr_yaml_refuse(y, v, key, "out of memory");
    if (kvr_yaml_each_item(y, v, key, taint_item, k->required_taints)) return -1;
    return k->required_taints->n ? 0
                                 : kvr_yaml_refuse(y, v, key, "at least one taint is expected; without the key all workers are allowed");
}

static int read_expiry(const struct kvr_yaml *y, const yaml_node_t *v, const char *key, struct api_key *k)
{
    const char *s = kvr_yaml_text(v);
    if (s && read_moment(s, &k->expires)) return 0;
    return kvr_yaml_refuse(y, v, key, "a date as RFC 3339 has them is expected: 2027-01-31 or 2027-01-31T12:00:00Z");
}

static int key_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct reading_key *a = arg;
    struct api_key *k = a->key;
    int rc = limit_key(y, key, v, &k->limits);
    if (rc != 1) return rc;
    if (!a->is_anonymous && !strcmp(key, "name")) return read_name(y, v, key, k);
    if (!a->is_anonymous && !strcmp(key, "key")) return read_secret(y, v, key, a);
    if (!a->is_anonymous && !strcmp(key, "key_sha256")) return read_digest(y, v, key, a);
    if (!a->is_anonymous && !strcmp(key, "expires")) return read_expiry(y, v, key, k);
    if (!strcmp(key, "models")) return read_models(y, v, key, k);
    if (!strcmp(key, "required_taints")) return read_taints(y, v, key, k);
    if (!strcmp(key, "policy_class")) return kvr_yaml_get_text(y, v, key, k->policy_class, sizeof k->policy_class);
    if (!strcmp(key, "priority_max")) return kvr_yaml_get_number(y, v, key, 0, &k->priority_max);
    if (!strcmp(key, "weight")) {
        rc = kvr_yaml_get_number(y, v, key, 0.001, &k->weight);
        return rc == 0 && k->weight > 1000 ? kvr_yaml_refuse(y, v, key, "a number of 0.001 to 1000 is expected") : rc;
    }
    return kvr_yaml_refuse(
        y, key_node, key,
        a->is_anonymous
            ? "unknown key of `anonymous`; allowed: models, required_taints, policy_class, weight, priority_max, " KNOWN_LIMITS
            : "unknown key of a key; allowed: name, key, key_sha256, models, required_taints, policy_class, weight, priority_max, "
              "expires, " KNOWN_LIMITS);
}

static int read_key(const struct kvr_yaml *y, yaml_node_t *n, struct reading_key *a)
{
    *a->key = (struct api_key){.weight = 1, .priority_max = -1, .expires = INT64_MAX, .line = n->start_mark.line + 1};
    if (kvr_yaml_each_key(y, n, a->is_anonymous ? "anonymous" : "keys", key_key, a)) return -1;
    return check_limits(y, n, &a->key->limits);
}

static int key_item(const struct kvr_yaml *y, yaml_node_t *n, void *arg)
{
    struct api_keys *out = arg;
    if (out->n == KEYS_MAX) return kvr_yaml_refuse(y, n, "keys", "at most 16384 keys");
    if (out->n == out->cap) {
        size_t cap = KVR_MAX(out->cap * 2, (size_t)16);
        void *grown = realloc(out->keys, cap * sizeof *out->keys);
        if (!grown) return kvr_yaml_refuse(y, n, "keys", "out of memory");
        out->keys = grown;
        out->cap = cap;
    }
    struct reading_key a = {.key = &out->keys[out->n++]};
    if (read_key(y, n, &a)) return -1;
    if (!a.key->name[0]) return kvr_yaml_refuse(y, n, "name", "each key needs one");
    if (!a.has_secret) return kvr_yaml_refuse(y, n, "key", "each key needs key or key_sha256");
    return 0;
}

/* ---- the document ------------------------------------------------------------------------------------ */

static bool may_limit_models(const char *key)
{
#define SAY(name, read, of_models)                                                                                                         \
    if (!strcmp(key, #name)) return of_models;
    KEY_MAXIMA(SAY)
#undef SAY
    return true;
}

static int model_limit_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    int rc = may_limit_models(key) ? limit_key(y, key, v, arg) : 1;
    return rc == 1 ? kvr_yaml_refuse(y, key_node, key,
                                     "unknown key of a model; allowed: requests_per_second, burst_requests, tokens_per_second, "
                                     "burst_tokens, max_concurrent")
                   : rc;
}

static int model_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct api_keys *out = arg;
    if (!*key || strlen(key) >= MODEL_MAX) return kvr_yaml_refuse(y, key_node, "models", "a model's name has 1 to 127 bytes");
    if (out->models_n == LIMITED_MODELS_MAX) return kvr_yaml_refuse(y, key_node, "models", "at most 256 models");
    if (!out->models && !(out->models = calloc(LIMITED_MODELS_MAX, sizeof *out->models)))
        return kvr_yaml_refuse(y, key_node, "models", "out of memory");
    struct limited_model *m = &out->models[out->models_n++];
    memcpy(m->model, key, strlen(key) + 1);
    return kvr_yaml_each_key(y, v, "models", model_limit_key, &m->limits) ? -1 : check_limits(y, v, &m->limits);
}

static int root_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct api_keys *out = arg;
    if (!strcmp(key, "keys")) return kvr_yaml_each_item(y, v, key, key_item, out);
    if (!strcmp(key, "models")) return kvr_yaml_each_key(y, v, key, model_key, out);
    if (!strcmp(key, "default"))
        return kvr_yaml_each_key(y, v, key, only_limit_key, &out->otherwise) ? -1 : check_limits(y, v, &out->otherwise);
    if (strcmp(key, "anonymous") != 0) return kvr_yaml_refuse(y, key_node, key, "unknown key; allowed: keys, models, default, anonymous");
    struct reading_key a = {.key = &out->anonymous, .is_anonymous = true};
    if (read_key(y, v, &a)) return -1;
    snprintf(out->anonymous.name, sizeof out->anonymous.name, "anonymous");
    out->has_anonymous = true;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const struct api_key *const *)a)->name, (*(const struct api_key *const *)b)->name);
}

static int by_digest(const void *a, const void *b)
{
    return memcmp((*(const struct api_key *const *)a)->digest, (*(const struct api_key *const *)b)->digest, KVR_DIGEST);
}

/* Of two keys that are equal by `order` the later one is refused. */
static int check_unique(const struct kvr_yaml *y, const struct api_keys *k, int (*order)(const void *a, const void *b), const char *what)
{
    const struct api_key **list = malloc((k->n + 1) * sizeof *list);
    int rc = 0;
    if (!list) return kvr_yaml_refuse_line(y, 1, what, "out of memory");
    for (size_t i = 0; i < k->n; i++) list[i] = &k->keys[i];
    qsort(list, k->n, sizeof *list, order);
    for (size_t i = 1; i < k->n && (rc == 0 || y->all); i++) {
        if (order(&list[i - 1], &list[i]) != 0) continue;
        size_t first = KVR_MIN(list[i - 1]->line, list[i]->line), second = KVR_MAX(list[i - 1]->line, list[i]->line);
        char text[64];
        snprintf(text, sizeof text, "the key of line %zu has the same one", first);
        rc = kvr_yaml_refuse_line(y, second, what, text);
    }
    free(list);
    return rc;
}

static int read_document(const struct kvr_yaml *plain, yaml_node_t *root, void *arg)
{
    struct api_keys *out = arg;
    struct kvr_yaml hiding = *plain;
    const struct kvr_yaml *y = &hiding;
    hiding.secret = true;
    if (!root) return kvr_yaml_refuse_line(y, 1, "keys", "the file is empty; the key is expected");
    if (kvr_yaml_each_key(y, root, "api_keys", root_key, out)) return -1;
    if (!out->n && !out->has_anonymous) return kvr_yaml_refuse(y, root, "keys", "at least one key, or `anonymous`, is expected");
    for (size_t i = 0; i < out->n; i++) inherit(&out->keys[i].limits, &out->otherwise);
    inherit(&out->anonymous.limits, &out->otherwise);
    return check_unique(y, out, by_name, "name") ? -1 : check_unique(y, out, by_digest, "key");
}

int api_keys_read(const struct kvr_yaml_source *from, struct api_keys *out, char *err, size_t cap)
{
    memset(out, 0, sizeof *out);
    int rc = kvr_yaml_read(from, read_document, out, err, cap);
    if (rc) api_keys_free(out);
    return rc;
}

static void key_clear(struct api_key *k)
{
    free(k->models);
    free(k->required_taints);
}

void api_keys_free(struct api_keys *k)
{
    for (size_t i = 0; i < k->n; i++) key_clear(&k->keys[i]);
    key_clear(&k->anonymous);
    free(k->keys);
    free(k->models);
    *k = (struct api_keys){0};
}

bool api_key_allows(const struct api_key *k, const char *model)
{
    if (!k->models) return true;
    for (size_t i = 0; i < k->models_n; i++) {
        size_t n = strlen(k->models[i]);
        bool glob = n && k->models[i][n - 1] == '*';
        if (glob ? strncmp(model, k->models[i], n - 1) == 0 : strcmp(model, k->models[i]) == 0) return true;
    }
    return false;
}
