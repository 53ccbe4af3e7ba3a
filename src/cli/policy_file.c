/* SPDX-License-Identifier: Apache-2.0 */
/* Reads queue classes from YAML; every key that is not known is an error that names it (docs/scheduling.md has the format). */
#include "cli/policy_file.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/base.h"

enum { FILE_MAX = 1 << 20, MODELS_MAX = 256 };

struct reader {
    yaml_document_t *doc;
    const char *name;
    char *err;
    size_t cap;
};

static int refuse(const struct reader *r, const yaml_node_t *at, const char *key, const char *allowed)
{
    snprintf(r->err, r->cap, "%s:%zu: %.80s: %s", r->name, at->start_mark.line + 1, key, allowed);
    return -1;
}

static const char *text_of(const yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE ? (const char *)n->data.scalar.value : NULL;
}

static int read_text(const struct reader *r, const yaml_node_t *n, const char *key, char *out)
{
    const char *s = text_of(n);
    if (!s || !*s || strlen(s) != n->data.scalar.length || strlen(s) >= KVR_CLASS_NAME_MAX)
        return refuse(r, n, key, "a text of 1 to 63 characters is expected");
    memcpy(out, s, strlen(s) + 1);
    return 0;
}

static int read_number(const struct reader *r, const yaml_node_t *n, const char *key, double min, double *out)
{
    const char *s = text_of(n);
    char *end = NULL;
    double v = s ? strtod(s, &end) : 0;
    char allowed[64];
    if (!s || end == s || *end || !isfinite(v) || v < min) {
        snprintf(allowed, sizeof allowed, "a number of at least %g is expected", min);
        return refuse(r, n, key, allowed);
    }
    *out = v;
    return 0;
}

/* Calls fn for each key of a mapping. Keys may not repeat. */
static int each_key(const struct reader *r, const yaml_node_t *map, const char *what,
                    int (*fn)(const struct reader *r, const char *key, const yaml_node_t *key_node, yaml_node_t *value, void *arg),
                    void *arg)
{
    if (map->type != YAML_MAPPING_NODE) return refuse(r, map, what, "a mapping is expected");
    for (yaml_node_pair_t *i = map->data.mapping.pairs.start; i < map->data.mapping.pairs.top; i++) {
        yaml_node_t *k = yaml_document_get_node(r->doc, i->key), *v = yaml_document_get_node(r->doc, i->value);
        const char *key = k ? text_of(k) : NULL;
        if (!key || !v) return refuse(r, map, what, "keys must be texts");
        for (yaml_node_pair_t *e = map->data.mapping.pairs.start; e < i; e++) {
            const char *earlier = text_of(yaml_document_get_node(r->doc, e->key));
            if (earlier && !strcmp(earlier, key)) return refuse(r, k, key, "the key occurs twice");
        }
        int rc = fn(r, key, k, v, arg);
        if (rc) return rc;
    }
    return 0;
}

static int class_key(const struct reader *r, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct kvr_class_config *c = arg;
    double secs;
    const struct {
        const char *key;
        double *out;
    } numbers[] = {
        {"quantum", &c->quantum},
        {"prefill_busy_threshold", &c->busy_tokens},
        {"prefill_busy_threshold_frac", &c->busy_frac},
        {"busy_worker_ratio", &c->busy_worker_ratio},
        {"request_queue_limit_per_worker", &c->requests_per_worker},
        {"raw_isl_token_queue_limit_per_worker", &c->raw_isl_per_worker},
        {"cached_token_queue_limit_per_worker", &c->cached_tokens_per_worker},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(numbers); i++)
        if (!strcmp(key, numbers[i].key)) return read_number(r, v, key, 0, numbers[i].out);
    if (!strcmp(key, "name")) return read_text(r, v, key, c->name);
    if (!strcmp(key, "policy_family")) return read_text(r, v, key, c->family);
    if (!strcmp(key, "cache_bucket")) return read_text(r, v, key, c->bucket);
    if (!strcmp(key, "queue_ageing_secs")) {
        int rc = read_number(r, v, key, 0, &secs);
        if (rc == 0 && secs > 1e9) return refuse(r, v, key, "at most 1000000000");
        if (rc == 0) c->ageing_ns = (uint64_t)(secs * 1e9);
        return rc;
    }
    if (!strcmp(key, "queue_policy")) {
        const char *s = text_of(v);
        static const char *const names[] = {"fcfs", "lcfs", "wspt"};
        for (int i = 0; s && i < 3; i++)
            if (!strcmp(s, names[i])) {
                c->policy = (enum kvr_queue_policy)i;
                return 0;
            }
        return refuse(r, v, key, "allowed: fcfs, lcfs, wspt");
    }
    return refuse(r, key_node, key,
                  "unknown key of a class; allowed: name, policy_family, cache_bucket, queue_policy, quantum, prefill_busy_threshold, "
                  "prefill_busy_threshold_frac, busy_worker_ratio, request_queue_limit_per_worker, raw_isl_token_queue_limit_per_worker, "
                  "cached_token_queue_limit_per_worker, queue_ageing_secs");
}

struct bucket {
    double min_tokens;
    char name[KVR_CLASS_NAME_MAX];
};

static int bucket_key(const struct reader *r, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct bucket *b = arg;
    if (!strcmp(key, "min_tokens")) return read_number(r, v, key, 0, &b->min_tokens);
    if (!strcmp(key, "bucket")) return read_text(r, v, key, b->name);
    return refuse(r, key_node, key, "unknown key of a bucket; allowed: min_tokens, bucket");
}

static int read_buckets(const struct reader *r, const yaml_node_t *list, struct kvr_policy *p)
{
    if (list->type != YAML_SEQUENCE_NODE) return refuse(r, list, "uncached_isl_buckets", "a list is expected");
    for (yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        struct bucket b = {-1, ""};
        const yaml_node_t *n = yaml_document_get_node(r->doc, *i);
        if (p->buckets_n == KVR_BUCKETS_MAX) return refuse(r, n, "uncached_isl_buckets", "at most 16 buckets");
        if (each_key(r, n, "uncached_isl_buckets", bucket_key, &b)) return -1;
        if (b.min_tokens < 0 || b.min_tokens > 9e15 || !b.name[0])
            return refuse(r, n, "uncached_isl_buckets", "each bucket needs min_tokens and bucket");
        p->buckets[p->buckets_n].min_tokens = (uint64_t)b.min_tokens;
        memcpy(p->buckets[p->buckets_n++].name, b.name, sizeof b.name);
    }
    return 0;
}

static int read_classes(const struct reader *r, const yaml_node_t *list, struct kvr_policy *p)
{
    if (list->type != YAML_SEQUENCE_NODE) return refuse(r, list, "policy_classes", "a list is expected");
    for (yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        const yaml_node_t *n = yaml_document_get_node(r->doc, *i);
        if (p->classes_n == KVR_CLASSES_MAX) return refuse(r, n, "policy_classes", "at most 64 classes");
        struct kvr_class_config *c = &p->classes[p->classes_n++];
        kvr_class_config_init(c);
        if (each_key(r, n, "policy_classes", class_key, c)) return -1;
    }
    return 0;
}

struct profile_arg {
    struct policy_file *out;
    size_t at;
    bool root;
};

static int model_key(const struct reader *r, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg);

static int profile_key(const struct reader *r, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    const struct profile_arg *a = arg;
    struct kvr_policy *p = &a->out->profiles[a->at].policy;
    if (!strcmp(key, "default_policy_family")) return read_text(r, v, key, p->default_family);
    if (!strcmp(key, "uncached_isl_buckets")) return read_buckets(r, v, p);
    if (!strcmp(key, "policy_classes")) return read_classes(r, v, p);
    if (a->root && !strcmp(key, "models")) return each_key(r, v, key, model_key, a->out);
    return refuse(r, key_node, key,
                  a->root ? "unknown key; allowed: default_policy_family, uncached_isl_buckets, policy_classes, models"
                          : "unknown key of a model; allowed: default_policy_family, uncached_isl_buckets, policy_classes");
}

/* A new profile. Returns: its place, or -1 with the reason in err. */
static long profile_add(const struct reader *r, const yaml_node_t *at, struct policy_file *out, const char *model)
{
    if (out->n == MODELS_MAX) return refuse(r, at, "models", "at most 255 models");
    if (strlen(model) >= sizeof out->profiles->model) return refuse(r, at, model, "a model name has at most 127 characters");
    void *grown = realloc(out->profiles, (out->n + 1) * sizeof *out->profiles);
    if (!grown) return refuse(r, at, model, "out of memory");
    out->profiles = grown;
    memset(&out->profiles[out->n], 0, sizeof *out->profiles);
    memcpy(out->profiles[out->n].model, model, strlen(model) + 1);
    return (long)out->n++;
}

static int check_profile(const struct reader *r, const yaml_node_t *at, struct policy_profile *p)
{
    char why[256];
    if (!p->policy.default_family[0] && p->policy.classes_n == 1)
        memcpy(p->policy.default_family, p->policy.classes[0].family[0] ? p->policy.classes[0].family : p->policy.classes[0].name,
               KVR_CLASS_NAME_MAX);
    if (kvr_policy_check(&p->policy, why, sizeof why) == 0) return 0;
    return refuse(r, at, p->model[0] ? p->model : "policy", why);
}

static int model_key(const struct reader *r, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct policy_file *out = arg;
    long at = *key ? profile_add(r, key_node, out, key) : refuse(r, key_node, "models", "a model needs a name");
    if (at < 0) return -1;
    struct profile_arg a = {out, (size_t)at, false};
    int rc = each_key(r, v, key, profile_key, &a);
    return rc ? rc : check_profile(r, v, &out->profiles[at]);
}

static int read_document(const struct reader *r, struct policy_file *out)
{
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);
    if (!root) {
        snprintf(r->err, r->cap, "%s: the file is empty; policy_classes is expected", r->name);
        return -1;
    }
    if (profile_add(r, root, out, "") < 0) return -1;
    struct profile_arg a = {out, 0, true};
    if (each_key(r, root, "policy", profile_key, &a)) return -1;
    bool empty = out->profiles[0].policy.classes_n == 0 && out->profiles[0].policy.buckets_n == 0;
    if (!empty || out->n == 1) return check_profile(r, root, &out->profiles[0]);
    memmove(out->profiles, out->profiles + 1, --out->n * sizeof *out->profiles); /* models only */
    return 0;
}

int policy_file_parse(const char *name, const void *text, size_t len, struct policy_file *out, char *err, size_t cap)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    int rc = -1;
    memset(out, 0, sizeof *out);
    snprintf(err, cap, "%s: out of memory", name);
    if (!yaml_parser_initialize(&parser)) return -1;
    yaml_parser_set_input_string(&parser, text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        snprintf(err, cap, "%s:%zu: %s", name, parser.problem_mark.line + 1, parser.problem ? parser.problem : "not YAML");
    } else {
        struct reader r = {&doc, name, err, cap};
        rc = read_document(&r, out);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    if (rc) policy_file_free(out);
    return rc;
}

int policy_file_read(const char *path, struct policy_file *out, char *err, size_t cap)
{
    FILE *f = fopen(path, "rb");
    char *text = malloc(FILE_MAX + 1);
    size_t n = f && text ? fread(text, 1, FILE_MAX + 1, f) : 0;
    int rc = -1;
    memset(out, 0, sizeof *out);
    if (!f) snprintf(err, cap, "router-policy-config: cannot read '%s': %s", path, strerror(errno));
    else if (!text) snprintf(err, cap, "router-policy-config: out of memory");
    else if (n > FILE_MAX) snprintf(err, cap, "router-policy-config: '%s' is larger than 1 MiB", path);
    else rc = policy_file_parse(path, text, n, out, err, cap);
    free(text);
    if (f) fclose(f);
    return rc;
}

void policy_file_free(struct policy_file *f)
{
    free(f->profiles);
    *f = (struct policy_file){0};
}
