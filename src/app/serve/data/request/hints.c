/* SPDX-License-Identifier: Apache-2.0 */
/* data/request/hints.h says what this is. */
#include "app/serve/data/request/hints.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "app/serve/data/request/pins.h"

static const char *const names[HINTS][3] = {
    [HINT_WORKER] = {"x-kvroute-worker", "x-worker-instance-id", "x-dynamo-worker-instance-id"},
    [HINT_RANK] = {"x-kvroute-dp-rank", "x-data-parallel-rank"},
    [HINT_PREFILL_WORKER] = {"x-kvroute-prefill-worker", "x-dynamo-prefill-instance-id", "x-prefill-instance-id"},
    [HINT_PREFILL_RANK] = {"x-kvroute-prefill-dp-rank", "x-dynamo-prefill-dp-rank", "x-prefill-dp-rank"},
    [HINT_PRIORITY] = {"x-request-priority", "x-dynamo-request-priority"},
    [HINT_CLASS] = {"x-kvroute-policy-class", "x-dynamo-meta-policy-class"},
    [HINT_OBJECTIVE] = {"x-gateway-inference-objective", "x-llm-d-inference-objective"},
    [HINT_FAIRNESS] = {"x-gateway-inference-fairness-id", "x-llm-d-inference-fairness-id"},
};

struct kvr_text hint_get(const struct kvr_headers *h, enum hint hint)
{
    struct kvr_text t = {0};
    for (size_t i = 0; i < 3 && names[hint][i] && !t.ptr; i++) t = kvr_headers_get(h, names[hint][i]);
    return t;
}

/* ---- what contradicts itself ------------------------------------------------------------------------- */

/* Those that say something to the router, name the request, or say how its body is to be read. */
static bool is_hint(struct kvr_text name)
{
    static const char *const beginnings[] = {"x-kvroute-",         "x-dynamo-", "x-prefill-",           "x-request-",
                                             "x-session-",         "x-worker-", "x-data-parallel-rank", "x-gateway-inference-",
                                             "x-llm-d-inference-", "x-slo-"};
    if (!kvr_text_begins_nocase(name, "x-")) return kvr_text_begins_nocase(name, "content-type");
    for (size_t i = 0; i < KVR_ARRAY_LEN(beginnings); i++)
        if (kvr_text_begins_nocase(name, beginnings[i])) return true;
    return false;
}

/* HINTS: it has one name only. */
static enum hint hint_of(struct kvr_text name)
{
    if (!kvr_text_begins_nocase(name, "x-")) return HINTS;
    for (int i = 0; i < HINTS; i++)
        for (size_t k = 0; k < 3 && names[i][k]; k++)
            if (kvr_text_is_nocase(name, names[i][k])) return (enum hint)i;
    return HINTS;
}

static bool mean_the_same(struct kvr_text a, struct kvr_text b)
{
    enum hint hint = hint_of(a);
    if (hint != HINTS) return hint == hint_of(b);
    return a.len == b.len && strncasecmp(a.ptr, b.ptr, a.len) == 0;
}

static bool contradict(const struct kvr_headers *h)
{
    for (size_t i = 0; i < h->n; i++) {
        struct kvr_text name = kvr_headers_name(h, i), value = kvr_headers_value(h, i);
        for (size_t k = 0; is_hint(name) && k < i; k++) {
            struct kvr_text other = kvr_headers_value(h, k);
            bool same = value.len == other.len && !memcmp(value.ptr, other.ptr, value.len);
            if (!same && mean_the_same(name, kvr_headers_name(h, k))) return true;
        }
    }
    return false;
}

/* ---- each of them ------------------------------------------------------------------------------------ */

/* Is it a number from `least` to 1e9? */
static bool read_number(struct kvr_text t, double least, double *out)
{
    char s[32] = {0}, *end;
    if (t.len >= sizeof s) return false;
    memcpy(s, t.ptr, t.len);
    *out = strtod(s, &end);
    return end != s && !*end && *out >= least && *out <= 1e9;
}

const char hints_no_memory[] = "out of memory";

/* Each returns what is wrong with what it reads, or NULL. */
static const char *read_priority(struct request *r, const struct kvr_headers *h)
{
    struct kvr_text priority = hint_get(h, HINT_PRIORITY), slo = kvr_headers_get(h, "x-slo-ttft-ms");
    if (priority.ptr && !read_number(priority, -1e9, &r->priority)) return "x-request-priority must be a number";
    if (slo.ptr && !read_number(slo, 1e-3, &r->slo_ttft_ms)) return "x-slo-ttft-ms must be a number of milliseconds above 0";
    if (r->priority < 0) r->priority = 0;
    return NULL;
}

static const char *read_class(struct request *r, const struct kvr_headers *h)
{
    struct kvr_text strict = kvr_headers_get(h, "x-dynamo-request-strict-priority");
    struct kvr_text policy = hint_get(h, HINT_CLASS), fairness = hint_get(h, HINT_FAIRNESS);
    uint64_t v;
    if (strict.ptr) {
        if (!kvr_parse_u64(strict.ptr, strict.len, UINT32_MAX, &v)) return "x-dynamo-request-strict-priority must be a whole number";
        r->strict_priority = (uint32_t)v;
    }
    if (policy.len >= KVR_CLASS_NAME_MAX) return "the policy class header has more than 63 characters";
    if (!policy.len && fairness.len < KVR_CLASS_NAME_MAX) policy = fairness; /* of a gateway, which the router's own header beats */
    return request_keep_text(&r->policy_class, policy.ptr, policy.len) ? NULL : hints_no_memory;
}

/* The priority of an objective (--objective); one that is not there has 0. */
static long priority_of(const char *objectives, struct kvr_text name)
{
    for (const char *at = objectives; at;) {
        size_t n = strcspn(at, "="), all = strcspn(at, ",");
        if (n < all && n == name.len && !memcmp(at, name.ptr, n)) return strtol(at + n + 1, NULL, 10);
        at = at[all] ? at + all + 1 : NULL;
    }
    return 0;
}

bool hints_check_objectives(const char *text)
{
    for (const char *at = text; at;) {
        size_t n = strcspn(at, "="), all = strcspn(at, ",");
        char *end = NULL;
        if (n == 0 || n >= all) return false;
        long v = strtol(at + n + 1, &end, 10);
        if (end != at + all || all == n + 1 || v < INT32_MIN || v > INT32_MAX) return false;
        at = at[all] ? at + all + 1 : NULL;
    }
    return true;
}

/* What gateways of Kubernetes say; the router's own headers beat it. A class that is not there is that of all. */
static void read_gateways(struct request *r, const struct kvr_headers *h)
{
    struct kvr_text objective = hint_get(h, HINT_OBJECTIVE);
    long priority = objective.ptr ? priority_of(data_of(r)->o->objectives, objective) : 0;
    r->gives_way = priority < 0;
    if (priority > 0 && !r->strict_priority) r->strict_priority = (uint32_t)KVR_MIN(priority, (long)UINT32_MAX);
}

const char *hints_read(struct request *r, const struct kvr_headers *h)
{
    struct kvr_text session = kvr_headers_get(h, "x-session-id");
    const char *why;
    if (contradict(h)) return "a header that the router reads is there twice, or by two of its names, with two values";
    if ((why = pins_read_head(r, h)) || (why = read_priority(r, h))) return why;
    if (session.len >= SESSION_MAX) return "x-session-id has more than 255 characters";
    if (!request_keep_text(&r->session, session.ptr, session.len)) return hints_no_memory;
    r->explain = kvr_text_is(kvr_headers_get(h, "x-kvroute-explain"), "1");
    if ((why = read_class(r, h))) return why;
    read_gateways(r, h);
    return NULL;
}
