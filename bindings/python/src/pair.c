/* SPDX-License-Identifier: Apache-2.0 */
/* Two routers, one request (kvroute/pair.h): a worker that computes its prompt, another one that goes on from it. */
#include "binding.h"

struct two {
    struct py_router *prefill, *decode;
};

static bool may_call(const struct two *t)
{
    return py_router_may_call(t->prefill) && py_router_may_call(t->decode);
}

/* (prefix of a transfer domain's taint or None, required, weight, keeps_overlap) */
static int take_options(PyObject *o, struct kvr_pair *pair, struct py_text *prefix)
{
    PyObject *name;
    int required, keeps;
    if (!PyArg_ParseTuple(o, "Opdp", &name, &required, &pair->domain_weight, &keeps) || py_text(name, "domain_prefix", prefix)) return -1;
    pair->domain_prefix = prefix->at;
    pair->domain_required = required;
    pair->keeps_overlap = keeps;
    return 0;
}

/* Both results; or, of a failure that no callback raised, (error, leg). */
static PyObject *answer(const struct two *t, const struct kvr_pair_result *res, int rc)
{
    if (rc && py_raised.type) return py_router_fail(rc);
    if (rc) return Py_BuildValue("(ii)", rc, (int)res->failed);
    PyObject *prefill = py_router_result(t->prefill, &res->prefill), *decode = prefill ? py_router_result(t->decode, &res->decode) : NULL;
    PyObject *out = decode ? PyTuple_Pack(2, prefill, decode) : NULL;
    Py_XDECREF(prefill);
    Py_XDECREF(decode);
    return out;
}

PyObject *py_pair_best(PyObject *module, PyObject *args)
{
    struct two t;
    struct kvr_pair pair = {0};
    struct kvr_pair_ctx ctx = {0};
    struct kvr_pair_result res = {0};
    struct py_request prefill = {0}, decode = {0};
    struct py_text prefix = {0};
    PyObject *options, *first, *second, *out = NULL;
    int rc;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!OOO", py_router_type, &t.prefill, py_router_type, &t.decode, &options, &first, &second)) return NULL;
    if (!may_call(&t) || take_options(options, &pair, &prefix)) goto end;
    pair.prefill = t.prefill->r;
    pair.decode = t.decode->r;
    if (py_request(first, &prefill) || py_request(second, &decode)) goto end;
    if (!(ctx.prefill = py_router_take(t.prefill)) || !(ctx.decode = py_router_take(t.decode))) goto end;
    Py_BEGIN_ALLOW_THREADS py_router_tick(t.prefill);
    py_router_tick(t.decode);
    rc = kvr_pair_find_best_match(&pair, &ctx, &prefill.rq, &decode.rq, &res);
    Py_END_ALLOW_THREADS out = answer(&t, &res, rc);
end:
    if (ctx.prefill) py_router_give(t.prefill, ctx.prefill);
    if (ctx.decode) py_router_give(t.decode, ctx.decode);
    py_request_free(&prefill);
    py_request_free(&decode);
    py_text_free(&prefix);
    return out;
}

static PyObject *on_booking(PyObject *args, int (*what)(const struct kvr_pair *pair, const char *id, size_t id_len))
{
    struct two t;
    struct py_text id = {0};
    PyObject *o;
    int rc = 1;
    if (!PyArg_ParseTuple(args, "O!O!O", py_router_type, &t.prefill, py_router_type, &t.decode, &o) || !may_call(&t)) return NULL;
    if (py_text(o, "request_id", &id) == 0) {
        struct kvr_pair pair = {.prefill = t.prefill->r, .decode = t.decode->r};
        Py_BEGIN_ALLOW_THREADS rc = what(&pair, id.at, id.n);
        Py_END_ALLOW_THREADS
    }
    py_text_free(&id);
    return rc == 1 ? NULL : PyLong_FromLong(rc);
}

PyObject *py_pair_prefill_done(PyObject *module, PyObject *args)
{
    (void)module;
    return on_booking(args, kvr_pair_prefill_completed);
}

PyObject *py_pair_free(PyObject *module, PyObject *args)
{
    (void)module;
    return on_booking(args, kvr_pair_free);
}
