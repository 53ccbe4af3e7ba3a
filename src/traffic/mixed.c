/* SPDX-License-Identifier: Apache-2.0 */
/* Several kinds beside each other: a generator for each, whose next requests are given in order of time. */
#include "traffic/internal.h"

static const enum traffic_kind kinds[TRAFFIC_PARTS] = {TRAFFIC_CONVERSATIONS, TRAFFIC_UNIFORM, TRAFFIC_SIBLINGS, TRAFFIC_TAIL};

static int refill(struct traffic *t, size_t i)
{
    int rc = t->parts[i] ? traffic_next(t->parts[i], &t->heads[i]) : 0;
    t->has_head[i] = rc == 1;
    return rc < 0 ? rc : 0;
}

int traffic_mixed_create(struct traffic *t, char *err, size_t cap)
{
    const double *share = &t->cfg.param[TRAFFIC_PART_CONVERSATIONS];
    double sum = share[0] + share[1] + share[2] + share[3];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < TRAFFIC_PARTS; i++) {
        struct traffic_config c;
        if (share[i] <= 0) continue;
        traffic_config_init(&c, kinds[i]);
        c.rate = t->cfg.rate * share[i] / sum;
        c.seconds = t->cfg.seconds;
        c.requests = t->cfg.requests;
        c.vocab = t->cfg.vocab;
        c.seed = kvr_mix64(t->cfg.seed * TRAFFIC_PARTS + i + 1);
        rc = traffic_create(&c, &t->parts[i], err, cap);
        if (rc == 0) rc = refill(t, i);
    }
    return rc;
}

int traffic_mixed_next(struct traffic *t, struct traffic_request *out)
{
    size_t first = TRAFFIC_PARTS;
    for (size_t i = 0; i < TRAFFIC_PARTS; i++)
        if (t->has_head[i] && (first == TRAFFIC_PARTS || t->heads[i].arrival_ns < t->heads[first].arrival_ns)) first = i;
    if (first == TRAFFIC_PARTS || (t->cfg.requests && t->promised >= t->cfg.requests)) return 0;
    struct traffic_request r = t->heads[first];
    t->has_head[first] = false;
    int rc = refill(t, first);
    if (rc) {
        traffic_request_free(&r);
        return rc;
    }
    r.part = (uint32_t)first;
    t->promised += kinds[first] == TRAFFIC_CONVERSATIONS ? (uint64_t)t->parts[first]->cfg.param[TRAFFIC_TURNS] : 1;
    *out = r;
    return 1;
}
