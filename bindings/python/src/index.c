/* SPDX-License-Identifier: Apache-2.0 */
/* Type Index: who holds which blocks. Each call that matches borrows a reader from those at hand. */
#include "binding.h"

PyTypeObject *py_index_type;

/* Index(ttl_s, predicted_max, prune_ratio, window_s, bytes_max, rank_capacity): 0 for what is not wanted */
static PyObject *index_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    double ttl, ratio, window;
    unsigned long long predicted_max, bytes_max, capacity;
    (void)kw;
    if (!PyArg_ParseTuple(args, "dKddKK", &ttl, &predicted_max, &ratio, &window, &bytes_max, &capacity)) return NULL;
    struct py_index *x = (struct py_index *)PyType_GenericAlloc(type, 0);
    if (!x) return NULL;
    struct kvr_index_config c = {.bytes_max = bytes_max,
                                 .rank_capacity = capacity,
                                 .ttl_ns = (uint64_t)(ttl * 1e9),
                                 .predicted_max = predicted_max,
                                 .prune_target_ratio = ratio,
                                 .frequency_window_ns = (uint64_t)(window * 1e9)};
    x->expires = ttl > 0;
    x->counts = window > 0;
    int rc = kvr_index_create(&c, &x->ix);
    if (rc) {
        Py_DECREF(x);
        return py_fail(rc);
    }
    return (PyObject *)x;
}

static void index_dealloc(PyObject *self)
{
    struct py_index *x = (struct py_index *)self;
    PyTypeObject *type = Py_TYPE(self);
    kvr_index_destroy(x->ix); /* and its readers */
    free(x->readers);
    PyObject_Free(self);
    Py_DECREF(type);
}

void py_index_tick(const struct py_index *x)
{
    if (x->expires) kvr_index_expire(x->ix);
}

/* ---- events. They return what the library says, a number; what it means is Python's to say. */

static PyObject *store(PyObject *self, PyObject *args)
{
    struct py_index *x = (struct py_index *)self;
    unsigned long long id, parent;
    unsigned rank, start;
    int tier, has_parent, has_start, rc = -KVR_ELENGTH;
    PyObject *names, *locals;
    uint64_t *n = NULL, *l = NULL;
    size_t count, locals_n;
    struct kvr_block *b = NULL;
    if (!PyArg_ParseTuple(args, "KIipKpIOO", &id, &rank, &tier, &has_parent, &parent, &has_start, &start, &names, &locals)) return NULL;
    if (py_names(names, &n, &count)) return NULL;
    if (py_names(locals, &l, &locals_n)) {
        free(n);
        return NULL;
    }
    b = malloc((count + 1) * sizeof *b);
    if (b && locals_n == count) {
        for (size_t i = 0; i < count; i++) b[i] = (struct kvr_block){n[i], l[i]};
        struct kvr_event ev = {.worker = {id, rank},
                               .tier = (enum kvr_tier)tier,
                               .kind = KVR_EVENT_STORED,
                               .has_parent = has_parent,
                               .parent_hash = parent,
                               .has_start_position = has_start,
                               .start_position = start,
                               .blocks = b,
                               .blocks_n = count};
        Py_BEGIN_ALLOW_THREADS rc = kvr_index_apply(x->ix, &ev);
        Py_END_ALLOW_THREADS
    }
    free(n);
    free(l);
    free(b);
    return PyLong_FromLong(b ? rc : -KVR_ENOMEM);
}

static PyObject *apply(struct py_index *x, const struct kvr_event *ev)
{
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = kvr_index_apply(x->ix, ev);
    Py_END_ALLOW_THREADS return PyLong_FromLong(rc);
}

static PyObject *removed(PyObject *self, PyObject *args)
{
    unsigned long long id;
    unsigned rank;
    int tier;
    PyObject *names;
    uint64_t *n;
    size_t count;
    if (!PyArg_ParseTuple(args, "KIiO", &id, &rank, &tier, &names) || py_names(names, &n, &count)) return NULL;
    struct kvr_event ev = {.worker = {id, rank}, .tier = (enum kvr_tier)tier, .kind = KVR_EVENT_REMOVED, .removed = n, .removed_n = count};
    PyObject *rc = apply((struct py_index *)self, &ev);
    free(n);
    return rc;
}

static PyObject *cleared(PyObject *self, PyObject *args)
{
    unsigned long long id;
    unsigned rank;
    int tier;
    if (!PyArg_ParseTuple(args, "KIi", &id, &rank, &tier)) return NULL;
    struct kvr_event ev = {.worker = {id, rank}, .tier = (enum kvr_tier)tier, .kind = KVR_EVENT_CLEARED};
    return apply((struct py_index *)self, &ev);
}

/* record(worker_id, rank, prompt) */
static PyObject *record(PyObject *self, PyObject *args)
{
    struct py_index *x = (struct py_index *)self;
    unsigned long long id;
    unsigned rank;
    PyObject *prompt;
    struct py_prompt p = {0};
    uint64_t *locals = NULL, *seqs = NULL;
    size_t n = 0;
    int rc = -1;
    if (!PyArg_ParseTuple(args, "KIO", &id, &rank, &prompt)) return NULL;
    if (py_prompt(prompt, &p) == 0 && py_prompt_locals(&p, &locals, &n) == 0) {
        seqs = malloc((n + 1) * sizeof *seqs);
        if (!seqs) PyErr_NoMemory();
    }
    py_prompt_free(&p);
    if (seqs) {
        Py_BEGIN_ALLOW_THREADS py_index_tick(x);
        kvr_hash_sequence(locals, n, seqs);
        rc = kvr_index_record(x->ix, (struct kvr_worker){id, rank}, locals, n, seqs, n);
        Py_END_ALLOW_THREADS if (rc) py_fail(rc);
    }
    free(locals);
    free(seqs);
    if (rc) return NULL;
    Py_RETURN_NONE;
}

/* ---- questions */

static struct kvr_index_reader *take(struct py_index *x)
{
    struct kvr_index_reader *r = NULL;
    if (x->readers_n) return x->readers[--x->readers_n];
    int rc = kvr_index_reader_create(x->ix, &r);
    if (rc) py_fail(rc);
    return r;
}

static void give(struct py_index *x, struct kvr_index_reader *r)
{
    if (x->readers_n == x->readers_cap) {
        size_t cap = x->readers_cap * 2 + 4;
        struct kvr_index_reader **a = realloc(x->readers, cap * sizeof(struct kvr_index_reader *));
        if (!a) {
            kvr_index_reader_destroy(r);
            return;
        }
        x->readers = a;
        x->readers_cap = cap;
    }
    x->readers[x->readers_n++] = r;
}

struct matched {
    struct kvr_overlap *at;
    long n;
    uint32_t *uses; /* for each block; NULL: not counted */
};

/* Without the GIL. Returns: 0 or an error. */
static int find(struct py_index *x, struct kvr_index_reader *r, const uint64_t *locals, size_t n, struct matched *m)
{
    py_index_tick(x);
    for (size_t cap = kvr_index_ranks(x->ix) + 16;; cap *= 2) {
        free(m->at);
        m->at = malloc(cap * sizeof *m->at);
        if (!m->at) return -KVR_ENOMEM;
        m->n = kvr_index_match(r, locals, n, m->at, cap);
        if (m->n != -KVR_ELIMIT) break; /* else somebody has registered more */
    }
    if (m->n < 0 || !x->counts) return m->n < 0 ? (int)m->n : 0;
    m->uses = malloc((n + 1) * sizeof *m->uses);
    return m->uses ? kvr_index_use(x->ix, locals, n, m->uses) : -KVR_ENOMEM;
}

/* ({(worker_id, rank): blocks}, [uses]) */
static PyObject *answer(const struct matched *m, size_t n)
{
    PyObject *scores = PyDict_New(), *uses = PyList_New(0);
    bool ok = scores && uses;
    for (long i = 0; ok && i < m->n; i++) {
        PyObject *key = Py_BuildValue("(KI)", (unsigned long long)m->at[i].worker.worker_id, m->at[i].worker.dp_rank);
        PyObject *depth = PyLong_FromUnsignedLong(m->at[i].depth);
        ok = key && depth && PyDict_SetItem(scores, key, depth) == 0;
        Py_XDECREF(key);
        Py_XDECREF(depth);
    }
    for (size_t i = 0; ok && m->uses && i < n; i++) {
        PyObject *v = m->uses[i] ? PyLong_FromUnsignedLong(m->uses[i]) : NULL;
        ok = !m->uses[i] || (v && PyList_Append(uses, v) == 0);
        Py_XDECREF(v);
    }
    if (ok) return Py_BuildValue("(NN)", scores, uses);
    Py_XDECREF(scores);
    Py_XDECREF(uses);
    return NULL;
}

static PyObject *match(struct py_index *x, const uint64_t *locals, size_t n)
{
    struct matched m = {0};
    PyObject *out = NULL;
    int rc = 0;
    if (n) {
        struct kvr_index_reader *r = take(x);
        if (!r) return NULL;
        Py_BEGIN_ALLOW_THREADS rc = find(x, r, locals, n, &m);
        Py_END_ALLOW_THREADS give(x, r);
    }
    out = rc ? py_fail(rc) : answer(&m, n);
    free(m.at);
    free(m.uses);
    return out;
}

static PyObject *match_hashes(PyObject *self, PyObject *args)
{
    PyObject *hashes;
    uint64_t *h;
    size_t n;
    if (!PyArg_ParseTuple(args, "O", &hashes) || py_names(hashes, &h, &n)) return NULL;
    PyObject *out = match((struct py_index *)self, h, n);
    free(h);
    return out;
}

static PyObject *match_prompt(PyObject *self, PyObject *args)
{
    struct py_prompt p = {0};
    uint64_t *locals = NULL;
    PyObject *out = NULL;
    size_t n;
    if (py_prompt(args, &p) == 0 && py_prompt_locals(&p, &locals, &n) == 0) out = match((struct py_index *)self, locals, n);
    free(locals);
    py_prompt_free(&p);
    return out;
}

/* One stored event as (worker_id, rank, tier, parent or None, start or None, names, locals); `ctx` is the list. */
static int emit(void *ctx, const struct kvr_event *ev)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *names = PyList_New(0), *locals = PyList_New(0), *parent = Py_None, *start = Py_None, *row = NULL;
    bool ok = names && locals;
    for (size_t i = 0; ok && i < ev->blocks_n; i++) {
        PyObject *n = PyLong_FromUnsignedLongLong(ev->blocks[i].block_hash), *l = PyLong_FromUnsignedLongLong(ev->blocks[i].tokens_hash);
        ok = n && l && PyList_Append(names, n) == 0 && PyList_Append(locals, l) == 0;
        Py_XDECREF(n);
        Py_XDECREF(l);
    }
    if (ev->has_parent) parent = PyLong_FromUnsignedLongLong(ev->parent_hash);
    else Py_INCREF(parent);
    if (ev->has_start_position) start = PyLong_FromUnsignedLong(ev->start_position);
    else Py_INCREF(start);
    if (ok && parent && start)
        row = Py_BuildValue("(KIiOOOO)", (unsigned long long)ev->worker.worker_id, ev->worker.dp_rank, (int)ev->tier, parent, start, names,
                            locals);
    ok = row && PyList_Append(ctx, row) == 0;
    Py_XDECREF(row);
    Py_XDECREF(parent);
    Py_XDECREF(start);
    Py_XDECREF(names);
    Py_XDECREF(locals);
    PyGILState_Release(gil);
    return ok ? 0 : 1;
}

static PyObject *dump(PyObject *self, PyObject *args)
{
    struct py_index *x = (struct py_index *)self;
    PyObject *list = PyList_New(0);
    int rc;
    (void)args;
    if (!list) return NULL;
    Py_BEGIN_ALLOW_THREADS py_index_tick(x);
    rc = kvr_index_dump(x->ix, NULL, emit, list);
    Py_END_ALLOW_THREADS if (rc == 0) return list;
    Py_DECREF(list);
    return PyErr_Occurred() ? NULL : py_fail(rc);
}

static PyObject *remove_worker(PyObject *self, PyObject *args)
{
    unsigned long long id;
    if (!PyArg_ParseTuple(args, "K", &id)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_index_remove_worker(((struct py_index *)self)->ix, id);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *remove_rank(PyObject *self, PyObject *args)
{
    unsigned long long id;
    unsigned rank;
    if (!PyArg_ParseTuple(args, "KI", &id, &rank)) return NULL;
    Py_BEGIN_ALLOW_THREADS kvr_index_remove_rank(((struct py_index *)self)->ix, (struct kvr_worker){id, rank});
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* Drops what has expired. Returns: how many pairs went. */
static PyObject *expire(PyObject *self, PyObject *args)
{
    struct py_index *x = (struct py_index *)self;
    size_t n = 0;
    (void)args;
    Py_BEGIN_ALLOW_THREADS if (x->expires) n = kvr_index_expire(x->ix);
    Py_END_ALLOW_THREADS return PyLong_FromSize_t(n);
}

/* set_capacity(worker_id, rank, blocks) */
static PyObject *set_capacity(PyObject *self, PyObject *args)
{
    unsigned long long id, blocks;
    unsigned rank;
    int rc;
    if (!PyArg_ParseTuple(args, "KIK", &id, &rank, &blocks)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = kvr_index_set_capacity(((struct py_index *)self)->ix, (struct kvr_worker){id, rank}, blocks);
    Py_END_ALLOW_THREADS return py_done(rc);
}

/* holds(worker_id, rank, tier, name) */
static PyObject *holds(PyObject *self, PyObject *args)
{
    unsigned long long id;
    unsigned rank;
    int tier;
    PyObject *o;
    uint64_t name;
    bool yes;
    if (!PyArg_ParseTuple(args, "KIiO", &id, &rank, &tier, &o) || py_name(o, &name)) return NULL;
    Py_BEGIN_ALLOW_THREADS yes = kvr_index_holds(((struct py_index *)self)->ix, (struct kvr_worker){id, rank}, (enum kvr_tier)tier, name);
    Py_END_ALLOW_THREADS return PyBool_FromLong(yes);
}

/* rank_stats(worker_id, rank) -> (blocks, (stored, removed), [(blocks, unplaced, given up) of each tier]) */
static PyObject *rank_stats(PyObject *self, PyObject *args)
{
    typedef unsigned long long u;
    const struct py_index *x = (const struct py_index *)self;
    struct kvr_turnover t;
    struct kvr_tier_status tiers[KVR_TIER_COUNT];
    unsigned long long id;
    struct kvr_worker w = {0};
    size_t n;
    if (!PyArg_ParseTuple(args, "KI", &id, &w.dp_rank)) return NULL;
    w.worker_id = id;
    Py_BEGIN_ALLOW_THREADS n = kvr_index_rank_blocks(x->ix, w);
    kvr_index_rank_turnover(x->ix, w, &t);
    kvr_index_tier_status(x->ix, w, tiers);
    Py_END_ALLOW_THREADS PyObject *rows = PyList_New(0);
    for (int i = 0; rows && i < KVR_TIER_COUNT; i++) {
        PyObject *row = Py_BuildValue("(KKK)", (u)tiers[i].blocks, (u)tiers[i].unplaced, (u)tiers[i].given_up);
        if (!row || PyList_Append(rows, row)) Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows ? Py_BuildValue("(K(KK)N)", (u)n, (u)t.stored, (u)t.removed, rows) : NULL;
}

/* validate() -> None, or what is wrong */
static PyObject *validate(PyObject *self, PyObject *args)
{
    const char *why = NULL;
    bool ok;
    (void)args;
    Py_BEGIN_ALLOW_THREADS ok = kvr_index_validate(((struct py_index *)self)->ix, &why);
    Py_END_ALLOW_THREADS return ok ? Py_BuildValue("") : PyUnicode_FromString(why);
}

/* (block, holder) pairs */
static PyObject *blocks(PyObject *self, PyObject *args)
{
    struct py_index *x = (struct py_index *)self;
    struct kvr_index_stats st;
    (void)args;
    Py_BEGIN_ALLOW_THREADS py_index_tick(x);
    kvr_index_stats(x->ix, &st);
    Py_END_ALLOW_THREADS return PyLong_FromUnsignedLongLong(st.blocks);
}

static PyMethodDef methods[] = {{"store", store, METH_VARARGS, NULL},
                                {"removed", removed, METH_VARARGS, NULL},
                                {"cleared", cleared, METH_VARARGS, NULL},
                                {"record", record, METH_VARARGS, NULL},
                                {"match_hashes", match_hashes, METH_VARARGS, NULL},
                                {"match_prompt", match_prompt, METH_VARARGS, NULL},
                                {"dump", dump, METH_NOARGS, NULL},
                                {"remove_worker", remove_worker, METH_VARARGS, NULL},
                                {"remove_rank", remove_rank, METH_VARARGS, NULL},
                                {"expire", expire, METH_NOARGS, NULL},
                                {"set_capacity", set_capacity, METH_VARARGS, NULL},
                                {"holds", holds, METH_VARARGS, NULL},
                                {"rank_stats", rank_stats, METH_VARARGS, NULL},
                                {"validate", validate, METH_NOARGS, NULL},
                                {"blocks", blocks, METH_NOARGS, NULL},
                                {NULL, NULL, 0, NULL}};

PyTypeObject *py_index_make_type(void)
{
    PyType_Slot slots[] = {{Py_tp_new, (void *)index_new}, {Py_tp_dealloc, (void *)index_dealloc}, {Py_tp_methods, methods}, {0, NULL}};
    PyType_Spec spec = {"kvroute._kvroute.Index", sizeof(struct py_index), 0, Py_TPFLAGS_DEFAULT, slots};
    return py_index_type = (PyTypeObject *)PyType_FromSpec(&spec);
}
