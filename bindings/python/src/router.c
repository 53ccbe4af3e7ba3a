/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Type Router: chooses workers. Every call borrows a context from those at hand, and drops predicted blocks whose time has come
 * before it looks at them.
 *
 * A choice by a Python function: the library calls it under the router's lock, in whatever thread is choosing. It takes the GIL
 * there; that is safe because nobody waits for that lock with the GIL. It must not call the router: py_calling_back notices.
 */
#include <math.h>
#include <string.h>

#include "binding.h"

PyTypeObject *py_router_type;
_Thread_local struct py_raised py_raised;
_Thread_local const struct py_router *py_calling_back;

bool py_router_may_call(const struct py_router *x)
{
    if (py_calling_back != x) return true;
    PyErr_SetString(PyExc_RuntimeError, "a callback of the router must not call the router: it holds its lock");
    return false;
}

PyObject *py_router_fail(int rc)
{
    if (!py_raised.type) return py_fail(rc);
    PyErr_Restore(py_raised.type, py_raised.value, py_raised.trace);
    py_raised = (struct py_raised){NULL, NULL, NULL};
    return NULL;
}

void py_router_tick(const struct py_router *x)
{
    if (x->index) py_index_tick(x->index);
    if (x->predicted) py_index_tick(x->predicted);
}

/* ---- the choice of a function */

PyObject *py_candidate(const struct kvr_candidate *c, const struct kvr_cost *cost)
{
    typedef unsigned long long u;
    return Py_BuildValue("{s:K,s:I,s:d,s:d,s:d,s:d,s:d,s:d,s:K,s:d,s:K,s:K,s:I}", "worker_id", (u)c->worker.worker_id, "dp_rank",
                         c->worker.dp_rank, "device_blocks", c->device_blocks, "host_blocks", c->host_blocks, "disk_blocks", c->disk_blocks,
                         "external_blocks", c->external_blocks, "shared_blocks", c->shared_blocks, "effective_blocks",
                         cost->effective_blocks, "cached_tokens", (u)cost->cached_tokens, "cost", cost->cost, "active_prefill_tokens",
                         (u)c->active_prefill_tokens, "decode_blocks", (u)c->decode_blocks, "active_requests", c->active_requests);
}

/* What the function said as a place, n for nobody; an exception is left set. */
static size_t place_of(PyObject *said, size_t n)
{
    if (said == Py_None) return n;
    PyObject *v = PyNumber_Index(said);
    if (!v) return n;
    Py_ssize_t at = PyLong_AsSsize_t(v);
    if (at == -1 && PyErr_Occurred()) PyErr_Clear(); /* out of range anyhow */
    if (at < 0 || (size_t)at >= n)
        PyErr_Format(PyExc_ValueError, "select: returned %S; allowed: 0 to %zu, the place of a candidate, or None", v, n - 1);
    Py_DECREF(v);
    return at < 0 || (size_t)at >= n ? n : (size_t)at;
}

static size_t choose(void *ctx, const struct kvr_candidate *candidates, const struct kvr_cost *costs, size_t n)
{
    struct py_router *x = ctx;
    size_t at = n;
    PyGILState_STATE gil = PyGILState_Ensure();
    const struct py_router *outer = py_calling_back;
    py_calling_back = x;
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *c = py_candidate(&candidates[i], &costs[i]);
        if (!c || PyList_SetItem(list, (Py_ssize_t)i, c)) Py_CLEAR(list);
    }
    PyObject *said = list && x->select ? PyObject_CallFunctionObjArgs(x->select, list, NULL) : NULL;
    if (said) at = place_of(said, n);
    Py_XDECREF(said);
    Py_XDECREF(list);
    if (PyErr_Occurred()) PyErr_Fetch(&py_raised.type, &py_raised.value, &py_raised.trace);
    py_calling_back = outer;
    PyGILState_Release(gil);
    return at;
}

/* ---- life */

/* The policy with one class that waits while a rank is above `threshold` (a share of max_num_batched_tokens). */
static void make_policy(struct kvr_policy *p, double threshold, int order)
{
    kvr_policy_init(p);
    p->classes[0].busy_frac = threshold;
    p->classes[0].policy = (enum kvr_queue_policy)order;
}

/* (overlap_credit, credit_decay, prefill_load_scale, host_weight, disk_weight, shared_multiplier, temperature, request_weight, kind,
 *  decode_role, track_active_blocks, assume_kv_reuse, track_prefill_tokens, seed, queue_threshold (negative: none), queue_policy, mode,
 *  learn_from_reports, fit_ttft, (decode_blocks_frac, prefill_tokens, prefill_tokens_frac), policy or None) */
static int take_config(PyObject *o, struct kvr_router_config *c, struct kvr_policy *policy)
{
    int kind, decode, blocks, reuse, prefill, order, mode, learn, fit;
    unsigned long long seed;
    double threshold;
    PyObject *classes;
    kvr_router_config_init(c);
    if (!PyArg_ParseTuple(o, "ddddddddippppKdiipp(ddd)O", &c->cost.overlap_credit, &c->cost.credit_decay, &c->cost.prefill_load_scale,
                          &c->cost.host_weight, &c->cost.disk_weight, &c->cost.shared_multiplier, &c->cost.temperature,
                          &c->cost.request_weight, &kind, &decode, &blocks, &reuse, &prefill, &seed, &threshold, &order, &mode, &learn,
                          &fit, &c->busy.decode_blocks_frac, &c->busy.prefill_tokens, &c->busy.prefill_tokens_frac, &classes))
        return -1;
    c->cost.kind = (enum kvr_cost_kind)kind;
    c->cost.decode_role = decode;
    c->cost.track_prefill_tokens = prefill;
    c->track_active_blocks = blocks;
    c->assume_kv_reuse = reuse;
    c->seed = seed;
    c->mode = (enum kvr_router_mode)mode;
    c->learn_from_reports = learn;
    c->fit_ttft = fit;
    if (classes != Py_None && py_policy(classes, policy)) return -1;
    if (classes == Py_None) make_policy(policy, threshold, order);
    if (classes != Py_None || threshold >= 0) c->policy = policy;
    return 0;
}

static int take_index(PyObject *o, struct py_index **out)
{
    if (o == Py_None) return 0;
    if (Py_TYPE(o) != py_index_type) {
        PyErr_SetString(PyExc_TypeError, "an Index is needed");
        return -1;
    }
    Py_INCREF(o);
    *out = (struct py_index *)o;
    return 0;
}

/* Router(index or None, predicted index or None, block_size, config, select or None) */
static PyObject *router_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    PyObject *index, *predicted, *config, *select;
    struct kvr_router_config c;
    const char *field = NULL;
    unsigned bs;
    (void)kw;
    if (!PyArg_ParseTuple(args, "OOIOO", &index, &predicted, &bs, &config, &select)) return NULL;
    struct kvr_policy *policy = malloc(sizeof *policy); /* of some 20 KB */
    if (!policy) return PyErr_NoMemory();
    struct py_router *x = (struct py_router *)PyType_GenericAlloc(type, 0);
    if (x) pthread_mutex_init(&x->classes, NULL);
    int rc = !x || take_config(config, &c, policy) || take_index(index, &x->index) || take_index(predicted, &x->predicted) ? 1 : 0;
    if (rc == 0) {
        c.index = x->index ? x->index->ix : NULL;
        c.predicted = x->predicted ? x->predicted->ix : NULL;
        c.block_size = bs;
        if (select != Py_None) {
            Py_INCREF(select);
            x->select = select;
            c.select = choose;
            c.select_ctx = x;
        }
        rc = kvr_router_create(&c, &x->r, &field);
        if (rc == -KVR_EINVAL && field) PyErr_Format(PyExc_ValueError, "KvRouterConfig: bad value for %s", field);
        else if (rc) py_fail(rc);
    }
    free(policy);
    if (rc == 0) return (PyObject *)x;
    Py_XDECREF(x);
    return NULL;
}

static int router_traverse(PyObject *self, visitproc visit, void *arg)
{
    struct py_router *x = (struct py_router *)self;
    Py_VISIT((PyObject *)Py_TYPE(self));
    Py_VISIT(x->select);
    return 0;
}

static int router_clear(PyObject *self)
{
    Py_CLEAR(((struct py_router *)self)->select); /* whoever chooses now chooses nobody */
    return 0;
}

static void router_dealloc(PyObject *self)
{
    struct py_router *x = (struct py_router *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    while (x->contexts_n) kvr_router_ctx_destroy(x->contexts[--x->contexts_n]);
    free(x->contexts);
    kvr_router_destroy(x->r);
    pthread_mutex_destroy(&x->classes);
    Py_CLEAR(x->select);
    Py_XDECREF(x->index); /* after the router, which does not own it */
    Py_XDECREF(x->predicted);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

struct kvr_router_ctx *py_router_take(struct py_router *x)
{
    struct kvr_router_ctx *c = NULL;
    if (x->contexts_n) return x->contexts[--x->contexts_n];
    int rc = kvr_router_ctx_create(x->r, &c);
    if (rc) py_fail(rc);
    return c;
}

void py_router_give(struct py_router *x, struct kvr_router_ctx *c)
{
    if (x->contexts_n == x->contexts_cap) {
        size_t cap = x->contexts_cap * 2 + 4;
        struct kvr_router_ctx **a = realloc(x->contexts, cap * sizeof(struct kvr_router_ctx *));
        if (!a) {
            kvr_router_ctx_destroy(c);
            return;
        }
        x->contexts = a;
        x->contexts_cap = cap;
    }
    x->contexts[x->contexts_n++] = c;
}

/* ---- workers */

PyObject *py_done(int rc)
{
    if (rc) return py_fail(rc);
    Py_RETURN_NONE;
}

static PyObject *set_worker(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long id;
    unsigned start, size;
    int rc;
    if (!PyArg_ParseTuple(args, "KII", &id, &start, &size) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = kvr_router_set_worker(x->r, id, start, size);
    Py_END_ALLOW_THREADS return py_done(rc);
}

/* set_limits(worker_id, max_num_batched_tokens, total_kv_blocks); 0: not known */
static PyObject *set_limits(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long id, tokens, blocks;
    if (!PyArg_ParseTuple(args, "KKK", &id, &tokens, &blocks) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_set_limits(x->r, id, tokens, blocks);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* set_taints(worker_id, [names]) */
static PyObject *set_taints(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_request names = {0}; /* its taints */
    unsigned long long id;
    PyObject *list;
    int rc = 1;
    if (!PyArg_ParseTuple(args, "KO!", &id, &PyList_Type, &list) || !py_router_may_call(x)) return NULL;
    size_t n = (size_t)PyList_Size(list);
    names.taints = calloc(n + 1, sizeof *names.taints);
    names.required = calloc(n + 1, sizeof *names.required);
    if (!names.taints || !names.required) PyErr_NoMemory();
    while (names.taints && names.required && names.taints_n < n) {
        struct py_text *t = &names.taints[names.taints_n];
        if (py_text(PyList_GetItem(list, (Py_ssize_t)names.taints_n), "taints", t)) break;
        names.required[names.taints_n++] = t->at ? t->at : "";
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS rc = kvr_router_set_taints(x->r, id, names.required, n);
        Py_END_ALLOW_THREADS
    }
    py_request_free(&names);
    return rc == 1 ? NULL : py_done(rc);
}

static PyObject *remove_worker(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long id;
    if (!PyArg_ParseTuple(args, "K", &id) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_router_remove_worker(x->r, id);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* ---- requests */

PyObject *py_router_result(struct py_router *x, const struct kvr_router_result *r)
{
    typedef unsigned long long u;
    const struct kvr_router_times *t = &r->times;
    x->decisions++;
    x->spent.block_hashing += t->block_hashing;
    x->spent.find_matches += t->find_matches;
    x->spent.seq_hashing += t->seq_hashing;
    x->spent.scheduling += t->scheduling;
    x->spent.total += t->total;
    return Py_BuildValue("(KII(ddKKKKKn)(KKKKK))", (u)r->worker.worker_id, r->worker.dp_rank, r->overlap_blocks, r->effective_blocks,
                         r->cost, (u)r->cached_tokens, (u)r->prefill_tokens, (u)r->required_blocks, (u)lround(r->best_blocks),
                         (u)r->waited_ns, (Py_ssize_t)r->candidates, (u)t->block_hashing, (u)t->find_matches, (u)t->seq_hashing,
                         (u)t->scheduling, (u)t->total);
}

/* best(request...) -> result */
static PyObject *best(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_request q = {0};
    struct kvr_router_result res = {0};
    struct kvr_router_ctx *c = NULL;
    PyObject *out = NULL;
    int rc;
    if (!py_router_may_call(x)) return NULL;
    if (py_request(args, &q) == 0 && (c = py_router_take(x))) {
        Py_BEGIN_ALLOW_THREADS py_router_tick(x);
        rc = kvr_router_find_best_match(x->r, c, &q.rq, &res);
        Py_END_ALLOW_THREADS py_router_give(x, c);
        out = rc ? py_router_fail(rc) : py_router_result(x, &res);
    }
    py_request_free(&q);
    return out;
}

static PyObject *submit(PyObject *self, PyObject *args)
{
    return py_router_may_call((struct py_router *)self) ? py_router_submit((struct py_router *)self, args) : NULL;
}

/* add_request(request, worker_id, rank, cached_tokens) */
static PyObject *add_request(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_request q = {0};
    struct kvr_router_ctx *c = NULL;
    unsigned long long id, cached;
    unsigned rank;
    PyObject *request;
    int rc = 1;
    if (!PyArg_ParseTuple(args, "OKIK", &request, &id, &rank, &cached) || !py_router_may_call(x)) return NULL;
    if (py_request(request, &q) == 0 && (c = py_router_take(x))) {
        Py_BEGIN_ALLOW_THREADS rc = kvr_router_add_request(x->r, c, &q.rq, (struct kvr_worker){id, rank}, cached);
        Py_END_ALLOW_THREADS py_router_give(x, c);
    }
    py_request_free(&q);
    return rc == 1 ? NULL : py_done(rc);
}

enum book_call { PREFILL_DONE, FREE, TOUCH };

static PyObject *on_booking(PyObject *self, PyObject *args, enum book_call what)
{
    struct py_router *x = (struct py_router *)self;
    struct py_text id = {0};
    PyObject *o;
    int rc = 1;
    if (!PyArg_ParseTuple(args, "O", &o) || !py_router_may_call(x)) return NULL;
    if (py_text(o, "request_id", &id) == 0) {
        Py_BEGIN_ALLOW_THREADS rc = what == PREFILL_DONE ? kvr_router_mark_prefill_completed(x->r, id.at, id.n)
                                    : what == FREE       ? kvr_router_free(x->r, id.at, id.n)
                                                         : kvr_router_touch(x->r, id.at, id.n);
        Py_END_ALLOW_THREADS
    }
    py_text_free(&id);
    return rc == 1 ? NULL : PyLong_FromLong(rc);
}

/* These three return what the library says, a number. */
static PyObject *mark_prefill(PyObject *self, PyObject *args)
{
    return on_booking(self, args, PREFILL_DONE);
}

static PyObject *free_(PyObject *self, PyObject *args)
{
    return on_booking(self, args, FREE);
}

static PyObject *touch(PyObject *self, PyObject *args)
{
    return on_booking(self, args, TOUCH);
}

/* output(request_id, blocks, fraction); negative: none */
static PyObject *output(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_text id = {0};
    unsigned long long n;
    double fraction;
    PyObject *o;
    int rc = 1;
    if (!PyArg_ParseTuple(args, "OKd", &o, &n, &fraction) || !py_router_may_call(x)) return NULL;
    if (py_text(o, "request_id", &id) == 0) {
        Py_BEGIN_ALLOW_THREADS rc = kvr_router_add_output_blocks(x->r, id.at, id.n, n, fraction);
        Py_END_ALLOW_THREADS
    }
    py_text_free(&id);
    return rc == 1 ? NULL : py_done(rc);
}

/* Frees bookings of which nothing was heard for so many nanoseconds. Returns: how many. */
static PyObject *expire_requests(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    unsigned long long ns;
    size_t n;
    if (!PyArg_ParseTuple(args, "K", &ns) || !py_router_may_call(x)) return NULL;
    Py_BEGIN_ALLOW_THREADS n = kvr_router_expire_requests(x->r, ns);
    Py_END_ALLOW_THREADS return PyLong_FromSize_t(n);
}

/* ---- questions */

/* potential_loads(request...) -> [{...}] */
static PyObject *potential_loads(PyObject *self, PyObject *args)
{
    typedef unsigned long long u;
    struct py_router *x = (struct py_router *)self;
    struct py_request q = {0};
    struct kvr_router_ctx *c = NULL;
    struct kvr_potential_load *l = NULL;
    PyObject *out = NULL;
    long n = 0;
    if (!py_router_may_call(x)) return NULL;
    if (py_request(args, &q) || !(c = py_router_take(x))) goto end;
    Py_BEGIN_ALLOW_THREADS py_router_tick(x);
    size_t cap = 64;
    do {
        cap = (size_t)n > cap ? (size_t)n : cap;
        free(l);
        l = malloc(cap * sizeof *l);
        n = l ? kvr_router_potential_loads(x->r, c, &q.rq, l, cap) : -KVR_ENOMEM;
    } while (n > 0 && (size_t)n > cap);
    Py_END_ALLOW_THREADS py_router_give(x, c);
    if (n < 0) py_fail((int)n);
    else out = PyList_New(n);
    for (long i = 0; out && i < n; i++) {
        PyObject *row = Py_BuildValue("{s:K,s:I,s:K,s:K,s:I}", "worker_id", (u)l[i].worker.worker_id, "dp_rank", l[i].worker.dp_rank,
                                      "potential_prefill_tokens", (u)l[i].potential_prefill_tokens, "potential_decode_blocks",
                                      (u)l[i].potential_decode_blocks, "active_requests", l[i].active_requests);
        if (!row || PyList_SetItem(out, i, row)) Py_CLEAR(out);
    }
end:
    free(l);
    py_request_free(&q);
    return out;
}

/* overlaps(request...) -> (blocks of the prompt, [{...}]) */
static PyObject *overlaps(PyObject *self, PyObject *args)
{
    struct py_router *x = (struct py_router *)self;
    struct py_request q = {0};
    struct kvr_router_ctx *c = NULL;
    struct kvr_reach *l = NULL;
    PyObject *rows = NULL, *out = NULL;
    size_t blocks = 0;
    long n = 0;
    if (!py_router_may_call(x)) return NULL;
    if (py_request(args, &q) || !(c = py_router_take(x))) goto end;
    Py_BEGIN_ALLOW_THREADS py_router_tick(x);
    for (size_t cap = x->index ? kvr_index_ranks(x->index->ix) + 64 : 1;; cap *= 2) {
        free(l);
        l = malloc(cap * sizeof *l);
        n = l ? kvr_router_overlap(x->r, c, &q.rq, l, cap, &blocks) : -KVR_ENOMEM;
        if (n != -KVR_ELIMIT) break;
    }
    Py_END_ALLOW_THREADS py_router_give(x, c);
    if (n < 0) py_fail((int)n);
    else rows = PyList_New(n);
    for (long i = 0; rows && i < n; i++) {
        const uint32_t *d = l[i].depth;
        PyObject *row =
            Py_BuildValue("{s:K,s:I,s:I,s:I,s:I}", "worker_id", (unsigned long long)l[i].worker.worker_id, "dp_rank", l[i].worker.dp_rank,
                          "device_blocks", d[KVR_TIER_DEVICE], "host_pinned_blocks", d[KVR_TIER_HOST_PINNED] - d[KVR_TIER_DEVICE],
                          "disk_blocks", d[KVR_TIER_EXTERNAL] - d[KVR_TIER_HOST_PINNED]);
        if (!row || PyList_SetItem(rows, i, row)) Py_CLEAR(rows);
    }
    if (rows) out = Py_BuildValue("(nN)", (Py_ssize_t)blocks, rows);
end:
    free(l);
    py_request_free(&q);
    return out;
}

/* (requests that wait, decisions, sums of the stages' nanoseconds...) */
static PyObject *stats(PyObject *self, PyObject *args)
{
    typedef unsigned long long u;
    const struct py_router *x = (const struct py_router *)self;
    const struct kvr_router_times *t = &x->spent;
    (void)args;
    return Py_BuildValue("(nKKKKKK)", (Py_ssize_t)kvr_router_pending(x->r), (u)x->decisions, (u)t->block_hashing, (u)t->find_matches,
                         (u)t->seq_hashing, (u)t->scheduling, (u)t->total);
}

#define CONTROL(name) {#name, py_router_##name, METH_VARARGS, NULL},
static PyMethodDef methods[] = {{"set_worker", set_worker, METH_VARARGS, NULL},
                                {"set_limits", set_limits, METH_VARARGS, NULL},
                                {"set_taints", set_taints, METH_VARARGS, NULL},
                                {"remove_worker", remove_worker, METH_VARARGS, NULL},
                                {"best", best, METH_VARARGS, NULL},
                                {"submit", submit, METH_VARARGS, NULL},
                                {"add_request", add_request, METH_VARARGS, NULL},
                                {"mark_prefill", mark_prefill, METH_VARARGS, NULL},
                                {"free", free_, METH_VARARGS, NULL},
                                {"touch", touch, METH_VARARGS, NULL},
                                {"output", output, METH_VARARGS, NULL},
                                {"expire_requests", expire_requests, METH_VARARGS, NULL},
                                {"potential_loads", potential_loads, METH_VARARGS, NULL},
                                {"overlaps", overlaps, METH_VARARGS, NULL},
                                {"stats", stats, METH_NOARGS, NULL},
                                PY_ROUTER_CONTROLS(CONTROL){NULL, NULL, 0, NULL}};

PyTypeObject *py_router_make_type(void)
{
    PyType_Slot slots[] = {{Py_tp_new, (void *)router_new},
                           {Py_tp_dealloc, (void *)router_dealloc},
                           {Py_tp_traverse, (void *)router_traverse},
                           {Py_tp_clear, (void *)router_clear},
                           {Py_tp_methods, methods},
                           {0, NULL}};
    PyType_Spec spec = {"kvroute._kvroute.Router", sizeof(struct py_router), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};
    return py_router_type = (PyTypeObject *)PyType_FromSpec(&spec);
}
