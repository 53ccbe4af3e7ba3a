/* SPDX-License-Identifier: Apache-2.0 */
/* Reads queue classes from YAML; every key that is not known is an error that names it (docs/how/choice.md has the format). */
#include "app/serve/config/policy_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "wire/yaml_map.h"

enum { PROFILES_MAX = 256 };

static int read_name(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, char *out)
{
    return kvr_yaml_get_text(y, n, key, out, KVR_CLASS_NAME_MAX);
}

static int class_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
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
        {"request_busy_threshold", &c->busy_requests},
        {"busy_worker_ratio", &c->busy_worker_ratio},
        {"request_queue_limit_per_worker", &c->requests_per_worker},
        {"raw_isl_token_queue_limit_per_worker", &c->raw_isl_per_worker},
        {"cached_token_queue_limit_per_worker", &c->cached_tokens_per_worker},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(numbers); i++)
        if (!strcmp(key, numbers[i].key)) return kvr_yaml_get_number(y, v, key, 0, numbers[i].out);
    if (!strcmp(key, "name")) return read_name(y, v, key, c->name);
    if (!strcmp(key, "policy_family")) return read_name(y, v, key, c->family);
    if (!strcmp(key, "cache_bucket")) return read_name(y, v, key, c->bucket);
    if (!strcmp(key, "queue_ageing_secs")) {
        int rc = kvr_yaml_get_number(y, v, key, 0, &secs);
        if (rc == 0 && secs > 1e9) return kvr_yaml_refuse(y, v, key, "at most 1000000000");
        if (rc == 0) c->ageing_ns = (uint64_t)(secs * 1e9);
        return rc;
    }
    if (!strcmp(key, "queue_policy")) {
        const char *s = kvr_yaml_text(v);
        static const char *const names[] = {"fcfs", "lcfs", "wspt"};
        for (int i = 0; s && i < 3; i++)
            if (!strcmp(s, names[i])) {
                c->policy = (enum kvr_queue_policy)i;
                return 0;
            }
        return kvr_yaml_refuse(y, v, key, "allowed: fcfs, lcfs, wspt");
    }
    return kvr_yaml_refuse(
        y, key_node, key,
        "unknown key of a class; allowed: name, policy_family, cache_bucket, queue_policy, quantum, prefill_busy_threshold, "
        "prefill_busy_threshold_frac, request_busy_threshold, busy_worker_ratio, request_queue_limit_per_worker, "
        "raw_isl_token_queue_limit_per_worker, "
        "cached_token_queue_limit_per_worker, queue_ageing_secs");
}

struct bucket {
    double min_tokens;
    char name[KVR_CLASS_NAME_MAX];
};

static int bucket_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct bucket *b = arg;
    if (!strcmp(key, "min_tokens")) return kvr_yaml_get_number(y, v, key, 0, &b->min_tokens);
    if (!strcmp(key, "bucket")) return read_name(y, v, key, b->name);
    return kvr_yaml_refuse(y, key_node, key, "unknown key of a bucket; allowed: min_tokens, bucket");
}

static int bucket_item(const struct kvr_yaml *y, yaml_node_t *n, void *arg)
{
    struct kvr_policy *p = arg;
    struct bucket b = {-1, ""};
    if (p->buckets_n == KVR_BUCKETS_MAX) return kvr_yaml_refuse(y, n, "uncached_isl_buckets", "at most 16 buckets");
    if (kvr_yaml_each_key(y, n, "uncached_isl_buckets", bucket_key, &b)) return -1;
    if (b.min_tokens < 0 || b.min_tokens > 9e15 || !b.name[0])
        return kvr_yaml_refuse(y, n, "uncached_isl_buckets", "each bucket needs min_tokens and bucket");
    p->buckets[p->buckets_n].min_tokens = (uint64_t)b.min_tokens;
    memcpy(p->buckets[p->buckets_n++].name, b.name, sizeof b.name);
    return 0;
}

static int class_item(const struct kvr_yaml *y, yaml_node_t *n, void *arg)
{
    struct kvr_policy *p = arg;
    if (p->classes_n == KVR_CLASSES_MAX) return kvr_yaml_refuse(y, n, "policy_classes", "at most 64 classes");
    struct kvr_class_config *c = &p->classes[p->classes_n++];
    kvr_class_config_init(c);
    return kvr_yaml_each_key(y, n, "policy_classes", class_key, c);
}

struct profile_arg {
    struct policy_file *out;
    size_t at;
    bool root;
};

static int model_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg);

static int profile_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    const struct profile_arg *a = arg;
    struct kvr_policy *p = &a->out->profiles[a->at].policy;
    if (!strcmp(key, "default_policy_family")) return read_name(y, v, key, p->default_family);
    if (!strcmp(key, "uncached_isl_buckets")) return kvr_yaml_each_item(y, v, key, bucket_item, p);
    if (!strcmp(key, "policy_classes")) return kvr_yaml_each_item(y, v, key, class_item, p);
    if (a->root && !strcmp(key, "models")) return kvr_yaml_each_key(y, v, key, model_key, a->out);
    return kvr_yaml_refuse(y, key_node, key,
                           a->root ? "unknown key; allowed: default_policy_family, uncached_isl_buckets, policy_classes, models"
                                   : "unknown key of a model; allowed: default_policy_family, uncached_isl_buckets, policy_classes");
}

/* A new profile. Returns: its place, or -1 with the reason in err. */
static long profile_add(const struct kvr_yaml *y, const yaml_node_t *at, struct policy_file *out, const char *model)
{
    if (out->n == PROFILES_MAX) return kvr_yaml_refuse(y, at, "models", "at most 255 models");
    if (strlen(model) >= sizeof out->profiles->model) return kvr_yaml_refuse(y, at, model, "a model name has at most 127 characters");
    void *grown = realloc(out->profiles, (out->n + 1) * sizeof *out->profiles);
    if (!grown) return kvr_yaml_refuse(y, at, model, "out of memory");
    out->profiles = grown;
    memset(&out->profiles[out->n], 0, sizeof *out->profiles);
    memcpy(out->profiles[out->n].model, model, strlen(model) + 1);
    return (long)out->n++;
}

static int check_profile(const struct kvr_yaml *y, const yaml_node_t *at, struct policy_profile *p)
{
    char why[256];
    if (!p->policy.default_family[0] && p->policy.classes_n == 1)
        memcpy(p->policy.default_family, p->policy.classes[0].family[0] ? p->policy.classes[0].family : p->policy.classes[0].name,
               KVR_CLASS_NAME_MAX);
    if (kvr_policy_check(&p->policy, why, sizeof why) == 0) return 0;
    return kvr_yaml_refuse(y, at, p->model[0] ? p->model : "policy", why);
}

static int model_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct policy_file *out = arg;
    long at = *key ? profile_add(y, key_node, out, key) : kvr_yaml_refuse(y, key_node, "models", "a model needs a name");
    if (at < 0) return -1;
    struct profile_arg a = {out, (size_t)at, false};
    int rc = kvr_yaml_each_key(y, v, key, profile_key, &a);
    return rc ? rc : check_profile(y, v, &out->profiles[at]);
}

static int read_document(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    struct policy_file *out = arg;
    if (!root) return kvr_yaml_refuse_line(y, 1, "policy_classes", "the file is empty; the key is expected");
    if (profile_add(y, root, out, "") < 0) return -1;
    struct profile_arg a = {out, 0, true};
    if (kvr_yaml_each_key(y, root, "policy", profile_key, &a)) return -1;
    bool empty = out->profiles[0].policy.classes_n == 0 && out->profiles[0].policy.buckets_n == 0;
    if (!empty || out->n == 1) return check_profile(y, root, &out->profiles[0]);
    memmove(out->profiles, out->profiles + 1, --out->n * sizeof *out->profiles); /* models only */
    return 0;
}

int policy_file_read(const struct kvr_yaml_source *from, struct policy_file *out, char *err, size_t cap)
{
    memset(out, 0, sizeof *out);
    int rc = kvr_yaml_read(from, read_document, out, err, cap);
    if (rc) policy_file_free(out);
    return rc;
}

void policy_file_free(struct policy_file *f)
{
    free(f->profiles);
    *f = (struct policy_file){0};
}
