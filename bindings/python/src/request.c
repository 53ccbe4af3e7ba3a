/* SPDX-License-Identifier: Apache-2.0 */
/* What a router is asked, from one tuple; kvroute/router.py makes it. */
#include <string.h>

#include "binding.h"

/* (bits, credit, scale, temperature, shared, reuse, track), or None */
static int take_override(PyObject *o, struct py_request *out)
{
    int reuse, track;
    struct kvr_override *v = &out->override;
    if (o == Py_None) return 0;
    if (!PyArg_ParseTuple(o, "Iddddpp", &v->set, &v->overlap_credit, &v->prefill_load_scale, &v->temperature, &v->shared_multiplier, &reuse,
                          &track))
        return -1;
    v->assume_kv_reuse = reuse;
    v->track_prefill_tokens = track;
    if (v->set) out->rq.override = v;
    return 0;
}

/* (worker_id, rank or None), or None */
static int take_pin(PyObject *o, struct kvr_router_request *rq)
{
    unsigned long long id;
    PyObject *rank;
    if (o == Py_None) return 0;
    if (!PyArg_ParseTuple(o, "KO", &id, &rank)) return -1;
    rq->pinned = true;
    rq->pin.worker_id = id;
    rq->pin_any_rank = rank == Py_None;
    return rq->pin_any_rank ? 0 : py_u32(rank, "dp_rank", &rq->pin.dp_rank);
}

/* ([required names], [(preferred name, weight)]), or None */
static int take_taints(PyObject *o, struct py_request *out)
{
    PyObject *required, *preferred;
    if (o == Py_None) return 0;
    if (!PyArg_ParseTuple(o, "O!O!", &PyList_Type, &required, &PyList_Type, &preferred)) return -1;
    size_t r = (size_t)PyList_Size(required), p = (size_t)PyList_Size(preferred);
    out->taints = calloc(r + p + 1, sizeof *out->taints);
    out->required = calloc(r + 1, sizeof *out->required);
    out->preferred = calloc(p + 1, sizeof *out->preferred);
    if (!out->taints || !out->required || !out->preferred) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < r; i++) {
        struct py_text *t = &out->taints[out->taints_n++];
        if (py_text(PyList_GetItem(required, (Py_ssize_t)i), "required_taints", t)) return -1;
        out->required[i] = t->at ? t->at : "";
    }
    for (size_t i = 0; i < p; i++) {
        struct py_text *t = &out->taints[out->taints_n++];
        PyObject *name;
        if (!PyArg_ParseTuple(PyList_GetItem(preferred, (Py_ssize_t)i), "Od", &name, &out->preferred[i].weight) ||
            py_text(name, "preferred_taints", t))
            return -1;
        out->preferred[i].name = t->at ? t->at : "";
    }
    out->rq.required_taints = out->required;
    out->rq.required_n = r;
    out->rq.preferred_taints = out->preferred;
    out->rq.preferred_n = p;
    return 0;
}

/* (excluded ids or None, pin is only preferred, do_not_queue, overloads, guarded, expected_output, (tenant, weight, output), mode or
 * negative, tokens of a prompt that is not given) */
static int take_more(PyObject *o, struct py_request *out)
{
    struct kvr_router_request *rq = &out->rq;
    PyObject *excluded;
    int preferred, stays, overloads, guarded, mode;
    unsigned long long expected, tenant, output, isl;
    if (!PyArg_ParseTuple(o, "OppppK(KdK)iK", &excluded, &preferred, &stays, &overloads, &guarded, &expected, &tenant, &rq->tenant_weight,
                          &output, &mode, &isl))
        return -1;
    if (excluded != Py_None && py_u64s(excluded, "excluded_worker_ids", &out->excluded, &rq->excluded_n)) return -1;
    rq->excluded = out->excluded;
    if (preferred && rq->pinned) {
        rq->pinned = false;
        rq->preferred = true;
    }
    rq->do_not_queue = stays;
    rq->overloads = overloads;
    rq->guarded = guarded;
    rq->expected_output = expected;
    rq->tenant = tenant;
    rq->tenant_output = output;
    rq->isl = isl;
    out->mode = (enum kvr_router_mode)mode;
    if (mode >= 0) rq->mode = &out->mode;
    return 0;
}

int py_request(PyObject *tuple, struct py_request *out)
{
    PyObject *prompt, *id, *override, *allowed, *pin, *taints, *klass, *more;
    int book;
    unsigned strict;
    struct kvr_router_request *rq = &out->rq;
    if (!PyArg_ParseTuple(tuple, "OOpOOOOdIOO", &prompt, &id, &book, &override, &allowed, &pin, &taints, &rq->priority_jump, &strict,
                          &klass, &more))
        return -1;
    if (py_prompt(prompt, &out->prompt) || py_text(id, "request_id", &out->id) || py_text(klass, "policy_class", &out->policy_class) ||
        take_override(override, out) || take_pin(pin, rq) || take_taints(taints, out) || take_more(more, out) ||
        (allowed != Py_None && py_u64s(allowed, "allowed_worker_ids", &out->allowed, &rq->allowed_n)))
        return -1;
    rq->id = out->id.at;
    rq->id_len = out->id.n;
    rq->book = book;
    rq->tokens = out->prompt.tokens.at;
    rq->tokens_n = out->prompt.tokens.n;
    rq->lora = out->prompt.lora.at;
    rq->lora_len = out->prompt.lora.n;
    rq->salt = out->prompt.salt.at;
    rq->salt_len = out->prompt.salt.n;
    rq->eagle = out->prompt.eagle;
    rq->mm = out->prompt.mm.blocks;
    rq->mm_n = out->prompt.mm.n;
    rq->allowed = out->allowed;
    rq->strict_priority = strict;
    rq->policy_class = out->policy_class.at;
    rq->policy_class_len = out->policy_class.n;
    return 0;
}

void py_request_free(struct py_request *r)
{
    for (size_t i = 0; i < r->taints_n; i++) py_text_free(&r->taints[i]);
    free(r->taints);
    free(r->required);
    free(r->preferred);
    free(r->allowed);
    free(r->excluded);
    py_prompt_free(&r->prompt);
    py_text_free(&r->id);
    py_text_free(&r->policy_class);
    memset(r, 0, sizeof *r);
}
