/* SPDX-License-Identifier: Apache-2.0 */
/* Queue classes: their defaults and what is allowed in them. Pure functions of the policy. */
#include "base/base.h"

#include <math.h>
#include <string.h>
#include <kvroute/queue.h>

void kvr_class_config_init(struct kvr_class_config *c)
{
    *c = (struct kvr_class_config){.quantum = 1,
                                   .busy_tokens = -1,
                                   .busy_frac = -1,
                                   .busy_worker_ratio = 1,
                                   .requests_per_worker = -1,
                                   .raw_isl_per_worker = -1,
                                   .cached_tokens_per_worker = -1};
}

void kvr_policy_init(struct kvr_policy *p)
{
    memset(p, 0, sizeof *p);
    snprintf(p->default_family, sizeof p->default_family, "default");
    kvr_class_config_init(&p->classes[0]);
    snprintf(p->classes[0].name, sizeof p->classes[0].name, "default");
    p->classes_n = 1;
}

static bool is_name(const char *s)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
    size_t n = strnlen(s, KVR_CLASS_NAME_MAX);
    return n > 0 && n < KVR_CLASS_NAME_MAX && strspn(s, allowed) == n;
}

#define REFUSE(...)                                                                                                                        \
    do {                                                                                                                                   \
        snprintf(err, cap, __VA_ARGS__);                                                                                                   \
        return -KVR_EINVAL;                                                                                                                \
    } while (0)

static int check_class(const struct kvr_class_config *c, char *err, size_t cap)
{
    if (!is_name(c->name)) REFUSE("policy_classes: name '%.63s': letters, digits, '_', '.', '-', 1 to 63 of them", c->name);
    if (!c->family[0] != !c->bucket[0]) REFUSE("class %s: policy_family and cache_bucket go together", c->name);
    if (c->family[0] && !is_name(c->family)) REFUSE("class %s: policy_family '%.63s': letters, digits, '_', '.', '-'", c->name, c->family);
    if ((unsigned)c->policy > KVR_QUEUE_WSPT) REFUSE("class %s: queue_policy must be fcfs, lcfs or wspt", c->name);
    if (!(c->quantum > 0 && isfinite(c->quantum))) REFUSE("class %s: quantum must be above 0", c->name);
    if (!(c->busy_worker_ratio > 0 && c->busy_worker_ratio <= 1)) REFUSE("class %s: busy_worker_ratio must be in (0, 1]", c->name);
    if (c->busy_worker_ratio < 1 && c->busy_tokens < 0 && c->busy_frac < 0 && c->busy_requests <= 0)
        REFUSE("class %s: busy_worker_ratio needs prefill_busy_threshold, prefill_busy_threshold_frac or request_busy_threshold", c->name);
    const double finite[] = {c->busy_tokens,  c->busy_frac, c->requests_per_worker, c->raw_isl_per_worker, c->cached_tokens_per_worker,
                             c->busy_requests};
    for (size_t i = 0; i < KVR_ARRAY_LEN(finite); i++)
        if (!isfinite(finite[i])) REFUSE("class %s: thresholds and limits must be finite numbers", c->name);
    return 0;
}

static int check_buckets(const struct kvr_policy *p, char *err, size_t cap)
{
    for (size_t i = 0; i < p->buckets_n; i++) {
        if (!is_name(p->buckets[i].name))
            REFUSE("uncached_isl_buckets: bucket '%.63s': letters, digits, '_', '.', '-'", p->buckets[i].name);
        if (i == 0 ? p->buckets[i].min_tokens != 0 : p->buckets[i].min_tokens <= p->buckets[i - 1].min_tokens)
            REFUSE("uncached_isl_buckets: min_tokens must start at 0 and rise (bucket %s)", p->buckets[i].name);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(p->buckets[i].name, p->buckets[k].name)) REFUSE("uncached_isl_buckets: bucket %s occurs twice", p->buckets[i].name);
    }
    return 0;
}

static size_t count_cell(const struct kvr_policy *p, const char *family, const char *bucket)
{
    size_t n = 0;
    for (size_t i = 0; i < p->classes_n; i++) n += !strcmp(p->classes[i].family, family) && !strcmp(p->classes[i].bucket, bucket);
    return n;
}

static bool has_bucket(const struct kvr_policy *p, const char *name)
{
    for (size_t i = 0; i < p->buckets_n; i++)
        if (!strcmp(p->buckets[i].name, name)) return true;
    return false;
}

int kvr_policy_check(const struct kvr_policy *p, char *err, size_t cap)
{
    bool default_known = false;
    if (p->classes_n == 0 || p->classes_n > KVR_CLASSES_MAX) REFUSE("policy_classes: 1 to %d classes", KVR_CLASSES_MAX);
    if (p->buckets_n > KVR_BUCKETS_MAX) REFUSE("uncached_isl_buckets: at most %d buckets", KVR_BUCKETS_MAX);
    int rc = check_buckets(p, err, cap);
    for (size_t i = 0; i < p->classes_n && rc == 0; i++) {
        const struct kvr_class_config *c = &p->classes[i];
        rc = check_class(c, err, cap);
        for (size_t k = 0; k < i && rc == 0; k++)
            if (!strcmp(c->name, p->classes[k].name)) REFUSE("policy_classes: class %s occurs twice", c->name);
        if (rc == 0 && c->family[0]) {
            if (!has_bucket(p, c->bucket)) REFUSE("class %s: cache_bucket '%.63s' is not among uncached_isl_buckets", c->name, c->bucket);
            for (size_t b = 0; b < p->buckets_n; b++)
                if (count_cell(p, c->family, p->buckets[b].name) != 1)
                    REFUSE("family %s needs exactly one class for bucket %s", c->family, p->buckets[b].name);
        }
        default_known |= !strcmp(c->family[0] ? c->family : c->name, p->default_family);
    }
    if (rc == 0 && !default_known) REFUSE("default_policy_family '%.63s' names no family and no class", p->default_family);
    return rc;
}
