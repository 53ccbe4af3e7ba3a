/* SPDX-License-Identifier: Apache-2.0 */
/* What the router is asked: data/choice/question.h. */
#include "app/serve/data/choice/question.h"

#include <string.h>

#include "app/serve/data/choice/treatment.h"
#include "app/serve/data/request/admission.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/workers.h"

enum { OUTPUT_USUAL = 256 /* tokens, of a request that does not say how many it wants */ };

/* Sessions of prefill workers are apart from those of workers that answer. */
static size_t session_key(const struct request *r, bool prefills, char *out, size_t cap)
{
    return (size_t)snprintf(out, cap, "%s%s", r->session, prefills ? SESSION_OF_PREFILL : "");
}

/* A request that the rule has sent to a worker, that goes on from a response, or whose session is bound, prefers the pair that has it. */
static void prefer(const struct request *r, struct kvr_router_request *rq)
{
    struct data_plane *data = data_of(r);
    bool prefills = legs_asks_prefill(r);
    char key[SESSION_MAX + sizeof SESSION_OF_PREFILL];
    if (rq->pinned) return;
    if (r->legs && r->legs->chosen) {
        rq->preferred = true;
        rq->pin = r->legs->to;
        return;
    }
    rq->preferred = (r->response && responses_get(data, r->response, &rq->pin)) ||
                    (r->session && sessions_get(data->sessions, key, session_key(r, prefills, key, sizeof key), kvr_now_ms(), &rq->pin));
}

const enum kvr_router_mode *question_leg_mode(const struct data_plane *data, int option)
{
    static const enum kvr_router_mode modes[] = {KVR_MODE_KV, KVR_MODE_ROUND_ROBIN, KVR_MODE_RANDOM, KVR_MODE_LEAST_LOADED};
    return option && workers_mode(data->workers) != KVR_MODE_DIRECT ? &modes[option - 1] : NULL;
}

static const enum kvr_router_mode *mode_of(const struct request *r)
{
    const struct serve_options *o = data_of(r)->o;
    int leg = legs_asks_prefill(r) ? o->prefill_mode : legs_are_two(r) ? o->decode_mode : 0;
    if (!leg && model_option_is_set(&r->options, MODEL_ROUTER_MODE)) leg = (int)r->options.values[MODEL_ROUTER_MODE] + 1;
    return question_leg_mode(data_of(r), leg);
}

static void fill_in(struct request *r, const struct roster_row *row, struct kvr_router_request *rq)
{
    const struct roster_choice *from = treatment_candidates(r, row);
    const struct pin *pin = legs_asks_prefill(r) ? &r->prefill_pin : &r->pin;
    const char *policy_class = admission_class(r);
    *rq = (struct kvr_router_request){.book = true,
                                      .guarded = true,
                                      .tokens = r->tokens,
                                      .tokens_n = r->tokens_n,
                                      .isl = r->isl,
                                      .expected_output = r->expected_osl,
                                      .salt = r->salt,
                                      .salt_len = r->salt_len,
                                      .allowed = from->all ? NULL : from->ids,
                                      .allowed_n = from->n,
                                      .pinned = pin->set,
                                      .pin_any_rank = !pin->has_rank,
                                      .pin = pin->to,
                                      .do_not_queue = r->gives_way,
                                      .priority_jump = r->priority,
                                      .strict_priority = r->strict_priority,
                                      .policy_class = policy_class,
                                      .policy_class_len = strlen(policy_class),
                                      .mode = mode_of(r)};
    admission_keep_to_workers(r, rq);
    if (r->admission.key) { /* the address of what it uses is its own as long as a request of it is there, and survives reloads */
        rq->tenant = (uint64_t)(uintptr_t)r->admission.key->use;
        rq->tenant_weight = r->admission.key->weight;
        rq->tenant_output = r->admission.output_asked ? r->admission.output_asked : OUTPUT_USUAL;
    }
    rq->excluded_n = treatment_exclude(r, row, &rq->excluded);
}

const struct kvr_override *question_override(const struct request *r, struct kvr_override *out)
{
    *out = model_options_override(&r->options);
    /* With a rule, what a decode worker has counts, so that a conversation stays where it may be served whole the next time. */
    if (legs_are_two(r) && !legs_prefill_next(r)) kvr_override_decode_leg(out, data_of(r)->o->conditional_disagg);
    return out->set ? out : NULL;
}

void question_of(struct request *r, const struct roster_row *row, const struct partition *partition, struct kvr_router_request *rq)
{
    fill_in(r, row, rq);
    prefer(r, rq);
    if (r->is_lora) {
        rq->lora = r->model;
        rq->lora_len = strlen(r->model);
    }
    if (r->locals && r->hashed_for == partition->block_size) {
        rq->locals = r->locals;
        rq->locals_n = r->locals_n;
        rq->scores = r->scores;
        rq->scores_n = r->scores_n;
    }
}
