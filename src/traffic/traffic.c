/* SPDX-License-Identifier: Apache-2.0 */
/* One traffic from its beginning to its end; which requests it has is told by its kind (shapes.c, rows.c, mixed.c). */
#include "traffic/internal.h"

int traffic_create(const struct traffic_config *c, struct traffic **out, char *err, size_t cap)
{
    int rc = traffic_check(c, err, cap);
    if (rc) return rc;
    struct traffic *t = calloc(1, sizeof *t);
    if (!t) return snprintf(err, cap, "out of memory"), -KVR_ENOMEM;
    t->cfg = *c;
    t->rng.state = kvr_mix64(c->seed + 0x7261666669635fULL);
    if (traffic_has_rows(c->kind)) rc = traffic_rows_create(c, &t->rows, err, cap);
    if (c->kind == TRAFFIC_MIXED) rc = traffic_mixed_create(t, err, cap);
    t->cfg.file = NULL;
    if (rc) traffic_destroy(t);
    else *out = t;
    return rc;
}

void traffic_destroy(struct traffic *t)
{
    if (!t) return;
    for (size_t i = 0; i < TRAFFIC_PARTS; i++) {
        traffic_destroy(t->parts[i]);
        if (t->has_head[i]) traffic_request_free(&t->heads[i]);
    }
    traffic_rows_destroy(t->rows);
    free(t);
}

static int cap_output(const struct traffic *t, struct traffic_request *r, int rc)
{
    if (rc == 1 && t->cfg.output_cap) r->output = KVR_MIN(r->output, t->cfg.output_cap);
    return rc;
}

int traffic_next(struct traffic *t, struct traffic_request *out)
{
    return cap_output(t, out, t->cfg.kind == TRAFFIC_MIXED ? traffic_mixed_next(t, out) : traffic_shape_next(t, out));
}

int traffic_follow(struct traffic *t, const struct traffic_request *done, const uint32_t *answer, size_t answer_n, uint64_t now_ns,
                   struct traffic_request *out)
{
    if (t->cfg.kind != TRAFFIC_MIXED) return cap_output(t, out, traffic_shape_follow(t, done, answer, answer_n, now_ns, out));
    int rc = traffic_shape_follow(t->parts[done->part], done, answer, answer_n, now_ns, out);
    if (rc == 1) out->part = done->part;
    return cap_output(t, out, rc);
}

uint64_t traffic_skipped(const struct traffic *t, const char **why)
{
    *why = NULL;
    return t->rows ? traffic_rows_skipped(t->rows, why) : 0;
}

void traffic_request_free(struct traffic_request *r)
{
    free(r->tokens);
    free(r->text);
    r->tokens = NULL;
    r->text = NULL;
}
