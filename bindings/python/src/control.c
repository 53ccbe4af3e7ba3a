/* SPDX-License-Identifier: Apache-2.0 */
/* Type Router: what a router is told of its workers and of how to choose, and what it says of itself. */
#include <pthread.h>
#include <string.h>

#include "binding.h"

typedef unsigned long long u;

/* ---- how it chooses */

/* (default family, [(bucket, min_tokens)], [class]); a class: (name, family, bucket, order, quantum, busy_tokens, busy_frac, busy_requests,
 * busy_worker_ratio, requests, isl tokens, cached tokens, ageing in seconds) */
static int take_class(PyObject *o, struct kvr_class_config *c)
{
    struct py_text name = {0}, family = {0}, bucket = {0};
    PyObject *n, *f, *b;
    int order, rc = -1;
    double ageing;
    kvr_class_config_init(c);
    if (!PyArg_ParseTuple(o, "OOOiddddddddd", &n, &f, &b, &order, &c->quantum, &c->busy_tokens, &c->busy_frac, &c->busy_requests,
                          &c->busy_worker_ratio, &c->requests_per_worker, &c->raw_isl_per_worker, &c->cached_tokens_per_worker, &ageing))
        return -1;
    c->policy = (enum kvr_queue_policy)order;
    c->ageing_ns = (uint64_t)(ageing * 1e9);
    if (py_text(n, "name", &name) == 0 && py_text(f, "policy_family", &family) == 0 && py_text(b, "cache_bucket", &bucket) == 0)
        rc = py_copy_text(&name, "name", c->name) || py_copy_text(&family, "policy_family", c->family) ||
                     py_copy_text(&bucket, "cache_bucket", c->bucket)
                 ? -1
                 : 0;
    py_text_free(&name);
    py_text_free(&family);
    py_text_free(&bucket);
    return rc;
}

static int take_bucket(PyObject *o, struct kvr_policy *p)
{
    struct py_text name = {0};
    PyObject *n;
    unsigned long long least;
    int rc = PyArg_ParseTuple(o, "OK", &n, &least) && py_text(n, "bucket", &name) == 0 ? 0 : -1;
    if (rc == 0) rc = py_copy_text(&name, "bucket", p->buckets[p->buckets_n].name);
    if (rc == 0) p->buckets[p->buckets_n++].min_tokens = least;
    py_text_free(&name);
    return rc;
}

int py_policy(PyObject *o, struct kvr_policy *p)
{
    struct py_text family = {0};
    PyObject *name, *buckets, *classes;
    char err[200];
    kvr_policy_init(p);
    p->classes_n = 0;
    if (!PyArg_ParseTuple(o, "OO!O!", &name, &PyList_Type, &buckets, &PyList_Type, &classes)) return -1;
    Py_ssize_t buckets_n = PyList_Size(buckets), classes_n = PyList_Size(classes);
    if (buckets_n > KVR_BUCKETS_MAX || classes_n > KVR_CLASSES_MAX) {
        PyErr_Format(PyExc_ValueError, "policy: at most %d classes and %d buckets", KVR_CLASSES_MAX, KVR_BUCKETS_MAX);
        return -1;
    }
    int rc = py_text(name, "default_policy_family", &family) || py_copy_text(&family, "default_policy_family", p->default_family) ? -1 : 0;
    py_text_free(&family);
    for (Py_ssize_t i = 0; rc == 0 && i < buckets_n; i++) rc = take_bucket(PyList_GetItem(buckets, i), p);
    for (Py_ssize_t i = 0; rc == 0 && i < classes_n; i++) rc = take_class(PyList_GetItem(classes, i), &p->classes[p->classes_n++]);
    if (rc || kvr_policy_check(p, err, sizeof err) == 0) return rc;
    PyErr_Format(PyExc_ValueError, "policy: %s", err);
    return -1;
}

/* set_policy(policy) */
PyObject *py_router_set_policy(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    PyObject *o;
    int rc = -1;
    if (!PyArg_ParseTuple(args, "O", &o) || !py_router_may_call(x)) return NULL;
    struct kvr_policy *policy = malloc(sizeof *policy); /* of some 20 KB */
    if (!policy) return PyErr_NoMemory();
    bool ok = py_policy(o, policy) == 0;
    if (ok) {
        Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&x->classes);
        rc = kvr_router_set_policy(x->r, policy);
        pthread_mutex_unlock(&x->classes);
        Py_END_ALLOW_THREADS
    }
    free(policy);
    return ok ? py_done(rc) : NULL;
}

PyObject *py_router_set_mode(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    int mode;
    if (!PyArg_ParseTuple(args, "i", &mode) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_set_mode(x->r, (enum kvr_router_mode)mode);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject *py_router_mode(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    enum kvr_router_mode mode;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS mode = kvr_router_mode(x->r);
    Py_END_ALLOW_THREADS return PyLong_FromLong((long)mode);
}

/* set_busy(decode_blocks_frac, prefill_tokens, prefill_tokens_frac); negative: as it is */
PyObject *py_router_set_busy(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct kvr_busy_thresholds b;
    if (!PyArg_ParseTuple(args, "ddd", &b.decode_blocks_frac, &b.prefill_tokens, &b.prefill_tokens_frac) || !py_router_may_call(x))
        return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_set_busy(x->r, &b);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject *py_router_busy(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct kvr_busy_thresholds b;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_busy(x->r, &b);
    Py_END_ALLOW_THREADS return Py_BuildValue("(ddd)", b.decode_blocks_frac, b.prefill_tokens, b.prefill_tokens_frac);
}

/* ---- its workers */

/* set_schedulable(worker_id, yes) */
PyObject *py_router_set_schedulable(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long id;
    int yes;
    if (!PyArg_ParseTuple(args, "Kp", &id, &yes) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_set_schedulable(x->r, id, yes);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* set_trusted(worker_id, rank, yes) */
PyObject *py_router_set_trusted(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long id;
    unsigned rank;
    int yes;
    if (!PyArg_ParseTuple(args, "KIp", &id, &rank, &yes) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_set_trusted(x->r, (struct kvr_worker){id, rank}, yes);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* set_kv_used(worker_id, rank, blocks) */
PyObject *py_router_set_kv_used(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long id, blocks;
    unsigned rank;
    if (!PyArg_ParseTuple(args, "KIK", &id, &rank, &blocks) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_set_kv_used(x->r, (struct kvr_worker){id, rank}, blocks);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject *py_router_use_lower_tiers(PyObject *self, PyObject *args)
{
    (void)args;
    kvr_router_use_lower_tiers(((struct py_router *)self)->r);
    Py_RETURN_NONE;
}

/* ---- what waits */

PyObject *py_router_poll(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_poll(x->r);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

PyObject *py_router_shut_queue(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_shut_queue(x->r);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* class_stats() -> [{...}] */
PyObject *py_router_class_stats(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct row {
        char name[KVR_CLASS_NAME_MAX];
        struct kvr_class_stats s;
    } * rows;
    size_t n = 0;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    if (!(rows = calloc(KVR_CLASSES_MAX, sizeof *rows))) return PyErr_NoMemory();
    Py_BEGIN_ALLOW_THREADS pthread_mutex_lock(&x->classes);
    for (size_t of = kvr_router_classes(x->r); n < of; n++)
        memcpy(rows[n].name, kvr_router_class_stats(x->r, n, &rows[n].s), sizeof rows[n].name);
    pthread_mutex_unlock(&x->classes);
    Py_END_ALLOW_THREADS PyObject *out = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; out && i < n; i++) {
        const struct kvr_class_stats *s = &rows[i].s;
        PyObject *row = Py_BuildValue(
            "{s:s,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "name", rows[i].name, "requests", (u)s->requests, "isl_tokens", (u)s->isl_tokens,
            "cached_tokens", (u)s->cached_tokens, "tenants", (u)s->tenants, "queued_total", (u)s->queued_total, "tenants_merged_total",
            (u)s->tenants_merged_total, "rejected_requests", (u)s->rejected[KVR_LIMIT_REQUESTS], "rejected_isl_tokens",
            (u)s->rejected[KVR_LIMIT_RAW_ISL_TOKENS], "rejected_cached_tokens", (u)s->rejected[KVR_LIMIT_CACHED_TOKENS]);
        if (!row || PyList_SetItem(out, (Py_ssize_t)i, row)) Py_CLEAR(out);
    }
    free(rows);
    return out;
}

/* ---- what it says */

/* where(request_id) -> (worker_id, rank), or None */
PyObject *py_router_where(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_text id = {0};
    struct kvr_worker w = {0};
    PyObject *o, *out = NULL;
    int rc = 1;
    if (!PyArg_ParseTuple(args, "O", &o) || !py_router_may_call(x)) return NULL;
    if (py_text(o, "request_id", &id) == 0) {
        Py_BEGIN_ALLOW_THREADS rc = kvr_router_where(x->r, id.at, id.n, &w);
        Py_END_ALLOW_THREADS out = rc ? Py_BuildValue("") : Py_BuildValue("(KI)", (u)w.worker_id, w.dp_rank);
    }
    py_text_free(&id);
    return out;
}

/* loads() -> [{...}] */
PyObject *py_router_loads(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct kvr_rank_load *l = NULL;
    size_t cap = 64, n;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    for (;; cap = n + 64) {
        free(l);
        if (!(l = malloc(cap * sizeof *l))) return PyErr_NoMemory();
        Py_BEGIN_ALLOW_THREADS n = kvr_router_loads(x->r, l, cap);
        Py_END_ALLOW_THREADS if (n <= cap) break;
    }
    PyObject *out = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; out && i < n; i++) {
        PyObject *row =
            Py_BuildValue("{s:K,s:I,s:K,s:K,s:I,s:I}", "worker_id", (u)l[i].worker.worker_id, "dp_rank", l[i].worker.dp_rank,
                          "active_prefill_tokens", (u)l[i].active_prefill_tokens, "active_decode_blocks", (u)l[i].active_decode_blocks,
                          "active_requests", l[i].active_requests, "active_prefills", l[i].active_prefills);
        if (!row || PyList_SetItem(out, (Py_ssize_t)i, row)) Py_CLEAR(out);
    }
    free(l);
    return out;
}

/* models(worker_id or None) -> (ttft's line, observations, factor, its observations, generation's line, observations) */
PyObject *py_router_models(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct kvr_ttft_model t;
    struct kvr_ttft_factor f = {.value = 1};
    struct kvr_generation_model g;
    uint64_t id = 0;
    PyObject *o;
    int rc;
    if (!PyArg_ParseTuple(args, "O", &o) || !py_router_may_call(x)) return NULL;
    if (o != Py_None && py_u64(o, "worker_id", UINT64_MAX, &id)) return NULL;
    const uint64_t *of = o == Py_None ? NULL : &id;
    Py_BEGIN_ALLOW_THREADS rc = kvr_router_ttft_model(x->r, of, &t, of ? &f : NULL);
    kvr_router_generation_model(x->r, &g);
    Py_END_ALLOW_THREADS if (rc) return py_fail(rc);
    return Py_BuildValue("((dddd)K(dK)(ddd)K)", t.base_ms, t.token_ms, t.ahead_ms, t.request_ms, (u)t.observations, f.value,
                         (u)f.observations, g.base_ms, g.block_ms, g.tokens, (u)g.observations);
}

/* overload(request) -> what the library says, a number */
PyObject *py_router_overload(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_request q = {0};
    PyObject *out = NULL;
    int rc;
    if (!py_router_may_call(x)) return NULL;
    if (py_request(args, &q) == 0) {
        Py_BEGIN_ALLOW_THREADS rc = kvr_router_overload(x->r, &q.rq);
        Py_END_ALLOW_THREADS out = PyLong_FromLong(rc);
    }
    py_request_free(&q);
    return out;
}

/* A candidate with the terms of its delay, where there are such. */
static PyObject *explained(const struct kvr_router_ctx *c, size_t at, const struct kvr_candidate *of, const struct kvr_cost *cost)
{
    struct kvr_delay d;
    PyObject *row = py_candidate(of, cost);
    PyObject *prefill = row ? PyLong_FromUnsignedLongLong(kvr_router_prefill_of(c, at)) : NULL, *terms = NULL;
    if (prefill)
        terms = kvr_router_delays(c, &at, 1, &d) ? Py_BuildValue("{s:d,s:d,s:d,s:d}", "first", d.first, "computing", d.computing,
                                                                 "generation", d.generation, "pass", d.pass)
                                                 : Py_BuildValue("");
    if (!terms || PyDict_SetItemString(row, "prefill_tokens", prefill) || PyDict_SetItemString(row, "delay_ms", terms)) Py_CLEAR(row);
    Py_XDECREF(prefill);
    Py_XDECREF(terms);
    return row;
}

/* explain(request...) -> [{...}]: the candidates of a choice that is made now and not booked */
PyObject *py_router_explain(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_request q = {0};
    struct kvr_router_result res;
    struct kvr_router_ctx *c = NULL;
    const struct kvr_candidate *of;
    const struct kvr_cost *costs;
    PyObject *out = NULL;
    int rc;
    if (!py_router_may_call(x)) return NULL;
    if (py_request(args, &q) == 0 && (c = py_router_take(x))) {
        Py_BEGIN_ALLOW_THREADS py_router_tick(x);
        rc = kvr_router_find_best_match(x->r, c, &q.rq, &res);
        Py_END_ALLOW_THREADS size_t n = rc ? 0 : kvr_router_candidates(c, &of, &costs);
        out = rc ? py_router_fail(rc) : PyList_New((Py_ssize_t)n);
        for (size_t i = 0; out && i < n; i++) {
            PyObject *row = explained(c, i, &of[i], &costs[i]);
            if (!row || PyList_SetItem(out, (Py_ssize_t)i, row)) Py_CLEAR(out);
        }
        py_router_give(x, c);
    }
    py_request_free(&q);
    return out;
}

/* validate() -> None, or what is wrong */
PyObject *py_router_validate(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    const char *why = NULL;
    bool ok;
    (void)args;
    if (!py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS ok = kvr_router_validate(x->r, &why);
    Py_END_ALLOW_THREADS return ok ? Py_BuildValue("") : PyUnicode_FromString(why);
}
