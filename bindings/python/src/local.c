/* SPDX-License-Identifier: Apache-2.0 */
/* Type LocalIndex: what one (worker, rank) of an engine holds. Writers return what the library says, a number. */
#include <string.h>

#include "binding.h"

struct local {
    PyObject_HEAD struct kvr_local_index *li;
    uint32_t block_size;
    struct kvr_block *blocks; /* the writer's scratch */
    size_t blocks_cap;
};

/* LocalIndex(worker_id, rank, block_size, epoch, events_max, ring_bytes, index_bytes) */
static PyObject *local_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    unsigned long long id, epoch, events, ring, index;
    unsigned rank, bs;
    (void)kw;
    if (!PyArg_ParseTuple(args, "KIIKKKK", &id, &rank, &bs, &epoch, &events, &ring, &index)) return NULL;
    struct local *x = (struct local *)PyType_GenericAlloc(type, 0);
    if (!x) return NULL;
    struct kvr_local_index_config c = {
        .worker = {id, rank}, .block_size = bs, .epoch = epoch, .events_max = events, .ring_bytes_max = ring, .index_bytes_max = index};
    int rc = kvr_local_index_create(&c, &x->li);
    if (rc) {
        Py_DECREF(x);
        return py_fail(rc);
    }
    return (PyObject *)x;
}

static void local_dealloc(PyObject *self)
{
    struct local *x = (struct local *)self;
    PyTypeObject *type = Py_TYPE(self);
    kvr_local_index_destroy(x->li);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *said(int rc)
{
    return PyLong_FromLong(rc);
}

/* store(event_id, tier, prompt, names, parent or None) */
static PyObject *store(PyObject *self, PyObject *args)
{
    unsigned long long event_id;
    int tier, rc = 1;
    PyObject *prompt, *names, *parent;
    struct py_prompt p = {0};
    uint64_t *n = NULL, parent_hash = 0;
    size_t count;
    if (!PyArg_ParseTuple(args, "KiOOO", &event_id, &tier, &prompt, &names, &parent)) return NULL;
    bool has_parent = parent != Py_None;
    if (py_prompt(prompt, &p) == 0 && py_names(names, &n, &count) == 0 && (!has_parent || py_name(parent, &parent_hash) == 0)) {
        struct kvr_local_store s = {.tokens = p.tokens.at,
                                    .tokens_n = p.tokens.n,
                                    .block_hashes = n,
                                    .blocks_n = count,
                                    .has_parent = has_parent,
                                    .parent_hash = parent_hash,
                                    .lora = p.lora.at,
                                    .lora_len = p.lora.n,
                                    .salt = p.salt.at,
                                    .salt_len = p.salt.n,
                                    .eagle = p.eagle,
                                    .tier = (enum kvr_tier)tier,
                                    .mm = p.mm.blocks,
                                    .mm_n = p.mm.n};
        Py_BEGIN_ALLOW_THREADS rc = kvr_local_index_store(((struct local *)self)->li, event_id, &s);
        Py_END_ALLOW_THREADS
    }
    free(n);
    py_prompt_free(&p);
    return rc == 1 ? NULL : said(rc);
}

static PyObject *removed(PyObject *self, PyObject *args)
{
    unsigned long long event_id;
    int tier, rc;
    PyObject *names;
    uint64_t *n;
    size_t count;
    if (!PyArg_ParseTuple(args, "KiO", &event_id, &tier, &names) || py_names(names, &n, &count)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = kvr_local_index_remove(((struct local *)self)->li, event_id, (enum kvr_tier)tier, n, count);
    Py_END_ALLOW_THREADS free(n);
    return said(rc);
}

static PyObject *cleared(PyObject *self, PyObject *args)
{
    unsigned long long event_id;
    int rc;
    if (!PyArg_ParseTuple(args, "K", &event_id)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = kvr_local_index_clear(((struct local *)self)->li, event_id);
    Py_END_ALLOW_THREADS return said(rc);
}

static PyObject *hold(PyObject *self, PyObject *args)
{
    (void)args;
    kvr_local_index_hold(((struct local *)self)->li);
    Py_RETURN_NONE;
}

static PyObject *release(PyObject *self, PyObject *args)
{
    (void)args;
    Py_BEGIN_ALLOW_THREADS kvr_local_index_release(((struct local *)self)->li);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* ---- answers */

struct collected {
    char *data;
    size_t len, cap;
};

static int collect(void *ctx, const char *data, size_t len)
{
    struct collected *t = ctx;
    if (t->len + len > t->cap) {
        size_t cap = (t->len + len) * 2;
        char *p = realloc(t->data, cap);
        if (!p) return -KVR_ENOMEM;
        t->data = p;
        t->cap = cap;
    }
    memcpy(t->data + t->len, data, len);
    t->len += len;
    return 0;
}

/* Calls write(bytes); its exception ends the answer. */
static int hand_over(void *ctx, const char *data, size_t len)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *done = PyObject_CallFunction(ctx, "y#", data, (Py_ssize_t)len);
    bool ok = done != NULL;
    Py_XDECREF(done);
    PyGILState_Release(gil);
    return ok ? 0 : 1;
}

/* (start or None, end or None, old_shape, supports_tree_dump_failed) */
static int query(PyObject *args, struct kvr_local_query *q, PyObject **write)
{
    PyObject *start, *end;
    int old_shape, failed;
    if (!PyArg_ParseTuple(args, "OOpp|O", &start, &end, &old_shape, &failed, write)) return -1;
    *q = (struct kvr_local_query){start != Py_None, end != Py_None, 0, 0, old_shape, failed};
    return (q->has_start && py_u64(start, "start", UINT64_MAX, &q->start)) || (q->has_end && py_u64(end, "end", UINT64_MAX, &q->end)) ? -1
                                                                                                                                      : 0;
}

static PyObject *answer(PyObject *self, PyObject *args)
{
    struct kvr_local_query q;
    struct collected t = {0};
    PyObject *ignored, *text = NULL;
    int rc;
    if (query(args, &q, &ignored)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = kvr_local_index_answer(((struct local *)self)->li, &q, collect, &t);
    Py_END_ALLOW_THREADS text = rc ? py_fail(rc) : PyUnicode_FromStringAndSize(t.data, (Py_ssize_t)t.len);
    free(t.data);
    return text;
}

static PyObject *write_answer(PyObject *self, PyObject *args)
{
    struct kvr_local_query q;
    PyObject *write = NULL;
    int rc;
    if (query(args, &q, &write)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = kvr_local_index_answer(((struct local *)self)->li, &q, hand_over, write);
    Py_END_ALLOW_THREADS if (rc) return PyErr_Occurred() ? NULL : py_fail(rc);
    Py_RETURN_NONE;
}

static PyObject *set_incomplete(PyObject *self, PyObject *args)
{
    PyObject *why;
    struct py_text t = {0};
    if (!PyArg_ParseTuple(args, "O", &why)) return NULL;
    if (py_text(why, "why", &t) == 0) {
        const char *text = why == Py_None ? NULL : t.at ? t.at : "not said";
        Py_BEGIN_ALLOW_THREADS kvr_local_index_set_incomplete(((struct local *)self)->li, text);
        Py_END_ALLOW_THREADS
    }
    py_text_free(&t);
    if (PyErr_Occurred()) return NULL;
    Py_RETURN_NONE;
}

static PyObject *stats(PyObject *self, PyObject *args)
{
    struct kvr_local_index_stats s;
    typedef unsigned long long u;
    (void)args;
    Py_BEGIN_ALLOW_THREADS kvr_local_index_stats(((struct local *)self)->li, &s);
    Py_END_ALLOW_THREADS return Py_BuildValue(
        "{s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:O}", "epoch", (u)s.epoch, "newest_id", (u)s.newest_id, "oldest_id",
        (u)s.oldest_id, "events", (u)s.events, "evicted", (u)s.evicted, "refused", (u)s.refused, "dumps", (u)s.dumps, "dump_failures",
        (u)s.dump_failures, "ranges", (u)s.ranges, "too_new", (u)s.too_new, "ring_events", (u)s.ring_events, "ring_bytes", (u)s.ring_bytes,
        "index_bytes", (u)s.index_bytes, "blocks", (u)s.blocks, "complete", s.complete ? Py_True : Py_False);
}

static PyObject *shutdown_(PyObject *self, PyObject *args)
{
    (void)args;
    Py_BEGIN_ALLOW_THREADS kvr_local_index_shutdown(((struct local *)self)->li);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"store", store, METH_VARARGS, NULL},
                                {"removed", removed, METH_VARARGS, NULL},
                                {"cleared", cleared, METH_VARARGS, NULL},
                                {"hold", hold, METH_NOARGS, NULL},
                                {"release", release, METH_NOARGS, NULL},
                                {"answer", answer, METH_VARARGS, NULL},
                                {"write_answer", write_answer, METH_VARARGS, NULL},
                                {"set_incomplete", set_incomplete, METH_VARARGS, NULL},
                                {"stats", stats, METH_NOARGS, NULL},
                                {"shutdown", shutdown_, METH_NOARGS, NULL},
                                {NULL, NULL, 0, NULL}};

PyTypeObject *py_local_make_type(void)
{
    PyType_Slot slots[] = {{Py_tp_new, (void *)local_new}, {Py_tp_dealloc, (void *)local_dealloc}, {Py_tp_methods, methods}, {0, NULL}};
    PyType_Spec spec = {"kvroute._kvroute.LocalIndex", sizeof(struct local), 0, Py_TPFLAGS_DEFAULT, slots};
    return (PyTypeObject *)PyType_FromSpec(&spec);
}
