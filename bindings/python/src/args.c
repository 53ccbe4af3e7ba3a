/* SPDX-License-Identifier: Apache-2.0 */
/* Python's values as arrays and texts of C, and back. */
#include <string.h>

#include "binding.h"

PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *o, struct py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(struct py_buffer *view);
enum { WITH_FORMAT = 0x4, C_CONTIGUOUS = 0x20 | 0x10 | 0x8 };

PyObject *py_make_error;

PyObject *py_fail(int rc)
{
    PyObject *e = py_make_error ? PyObject_CallFunction(py_make_error, "i", rc) : NULL;
    if (e) PyErr_SetObject((PyObject *)Py_TYPE(e), e);
    Py_XDECREF(e);
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, kvr_strerror(rc));
    return NULL;
}

PyObject *py_list(const uint64_t *values, size_t n)
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *v = PyLong_FromUnsignedLongLong(values[i]);
        if (!v || PyList_SetItem(list, (Py_ssize_t)i, v)) Py_CLEAR(list);
    }
    return list;
}

/* ---- integers */

int py_u64(PyObject *o, const char *name, uint64_t max, uint64_t *out)
{
    PyObject *v = PyNumber_Index(o);
    if (!v) {
        PyErr_Format(PyExc_TypeError, "%s: an integer is needed, not %R", name, (PyObject *)Py_TYPE(o));
        return -1;
    }
    unsigned long long n = PyLong_AsUnsignedLongLong(v);
    bool wide = n == (unsigned long long)-1 && PyErr_Occurred();
    if (wide) PyErr_Clear();
    if (wide || n > max) PyErr_Format(PyExc_ValueError, "%s: bad value %S; allowed: 0 to %llu", name, v, (unsigned long long)max);
    else *out = n;
    Py_DECREF(v);
    return wide || n > max ? -1 : 0;
}

int py_u32(PyObject *o, const char *name, uint32_t *out)
{
    uint64_t v;
    if (py_u64(o, name, UINT32_MAX, &v)) return -1;
    *out = (uint32_t)v;
    return 0;
}

static int name_of_bytes(PyObject *o, uint64_t *out)
{
    struct py_buffer v;
    if (PyObject_GetBuffer(o, &v, C_CONTIGUOUS)) return -1;
    *out = 0;
    for (Py_ssize_t i = v.len > 8 ? v.len - 8 : 0; i < v.len; i++) *out = *out << 8 | ((const unsigned char *)v.buf)[i];
    PyBuffer_Release(&v);
    return 0;
}

int py_name(PyObject *o, uint64_t *out)
{
    if (PyLong_Check(o)) {
        *out = PyLong_AsUnsignedLongLongMask(o);
        return 0;
    }
    if (PyBytes_Check(o) || PyByteArray_Check(o) || PyMemoryView_Check(o)) return name_of_bytes(o, out);
    PyObject *v = PyNumber_Index(o);
    if (!v) return -1;
    *out = PyLong_AsUnsignedLongLongMask(v);
    Py_DECREF(v);
    return 0;
}

/* Texts and bytes are sequences too, and never what was meant. */
static PyObject *list_of(PyObject *o, const char *name)
{
    if (!PyUnicode_Check(o) && !PyBytes_Check(o) && !PyByteArray_Check(o) && !PyDict_Check(o)) return PySequence_List(o);
    PyErr_Format(PyExc_TypeError, "%s: a list of integers is needed, not %R", name, (PyObject *)Py_TYPE(o));
    return NULL;
}

/* Reads a list, or what makes one, item by item. */
static int each(PyObject *o, const char *name, int (*take)(PyObject *item, void *at), size_t width, void **out, size_t *n)
{
    PyObject *list = list_of(o, name);
    *out = NULL;
    *n = 0;
    if (!list) return -1;
    Py_ssize_t len = PyList_Size(list);
    char *a = calloc((size_t)len + 1, width);
    if (!a) PyErr_NoMemory();
    for (Py_ssize_t i = 0; a && i < len; i++) {
        if (take(PyList_GetItem(list, i), a + (size_t)i * width)) {
            free(a);
            a = NULL;
        }
    }
    Py_DECREF(list);
    *out = a;
    *n = a ? (size_t)len : 0;
    return a ? 0 : -1;
}

static int take_name(PyObject *item, void *at)
{
    return py_name(item, at);
}

int py_names(PyObject *o, uint64_t **out, size_t *n)
{
    void *p;
    int rc = each(o, "hashes", take_name, sizeof **out, &p, n);
    *out = p;
    return rc;
}

int py_u64s(PyObject *o, const char *name, uint64_t **out, size_t *n)
{
    PyObject *list = list_of(o, name);
    *n = 0;
    *out = NULL;
    if (!list) return -1;
    size_t len = (size_t)PyList_Size(list), i = 0;
    uint64_t *a = malloc((len + 1) * sizeof *a);
    if (!a) PyErr_NoMemory();
    while (a && i < len && py_u64(PyList_GetItem(list, (Py_ssize_t)i), name, UINT64_MAX, &a[i]) == 0) i++;
    Py_DECREF(list);
    if (!a || i < len) {
        free(a);
        return -1;
    }
    *out = a;
    *n = len;
    return 0;
}

/* ---- tokens */

static int take_token(PyObject *item, void *at)
{
    PyObject *v = PyLong_Check(item) ? NULL : PyNumber_Index(item);
    if (!v && !PyLong_Check(item)) return -1;
    unsigned long n = PyLong_AsUnsignedLong(v ? v : item); /* OverflowError below 0 */
    Py_XDECREF(v);
    if (n == (unsigned long)-1 && PyErr_Occurred()) return -1;
    if (n > UINT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "tokens: bad value %lu; allowed: 0 to 4294967295", n);
        return -1;
    }
    *(uint32_t *)at = (uint32_t)n;
    return 0;
}

static int refuse_tokens(PyObject *o)
{
    PyErr_Format(PyExc_TypeError, "tokens: integers are needed, or a buffer of 4-byte integers, not %R", (PyObject *)Py_TYPE(o));
    return -1;
}

/* Whether a buffer of these can be read as it is. */
static bool is_words(const struct py_buffer *v)
{
    return v->ndim == 1 && v->itemsize == 4 && v->format && strlen(v->format) == 1 && strchr("IiLl", v->format[0]);
}

static bool is_long_words(const struct py_buffer *v)
{
    return v->ndim == 1 && v->itemsize == 8 && v->format && strlen(v->format) == 1 && strchr("qQlL", v->format[0]);
}

static int narrow(const struct py_buffer *v, struct py_tokens *t)
{
    size_t n = (size_t)v->len / 8;
    const uint64_t *from = v->buf;
    t->own = malloc((n + 1) * sizeof *t->own);
    if (!t->own) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < n; i++) {
        if (from[i] > UINT32_MAX) {
            PyErr_Format(PyExc_OverflowError, "tokens: bad value at %zu; allowed: 0 to 4294967295", i);
            return -1;
        }
        t->own[i] = (uint32_t)from[i];
    }
    t->at = t->own;
    t->n = n;
    return 0;
}

/* Returns: 0 with the tokens, 1 when there is no buffer that can be read as integers, -1. */
static int tokens_of_buffer(PyObject *o, struct py_tokens *t)
{
    int rc = 1;
    if (PyObject_GetBuffer(o, &t->view, C_CONTIGUOUS | WITH_FORMAT)) {
        t->view.obj = NULL;
        PyErr_Clear(); /* not a buffer, or one with gaps */
        return 1;
    }
    if (is_words(&t->view)) {
        t->at = t->view.buf;
        t->n = (size_t)t->view.len / 4;
        return 0;
    }
    if (is_long_words(&t->view)) rc = narrow(&t->view, t);
    else if (t->view.itemsize == 1) rc = refuse_tokens(o);
    PyBuffer_Release(&t->view);
    t->view.obj = NULL;
    return rc;
}

int py_tokens(PyObject *o, struct py_tokens *t)
{
    void *p;
    if (PyUnicode_Check(o) || PyDict_Check(o)) return refuse_tokens(o);
    int rc = PyList_Check(o) || PyTuple_Check(o) ? 1 : tokens_of_buffer(o, t);
    if (rc <= 0) return rc;
    if (each(o, "tokens", take_token, sizeof *t->own, &p, &t->n)) return -1;
    t->at = t->own = p;
    return 0;
}

int py_tokens_keep(struct py_tokens *t)
{
    if (t->own) return 0;
    t->own = malloc((t->n + 1) * sizeof *t->own);
    if (!t->own) {
        PyErr_NoMemory();
        return -1;
    }
    if (t->n) memcpy(t->own, t->at, t->n * sizeof *t->own);
    t->at = t->own;
    if (t->view.obj) PyBuffer_Release(&t->view);
    t->view.obj = NULL;
    return 0;
}

void py_tokens_free(struct py_tokens *t)
{
    if (t->view.obj) PyBuffer_Release(&t->view);
    free(t->own);
    memset(t, 0, sizeof *t);
}

/* ---- texts */

int py_text(PyObject *o, const char *name, struct py_text *out)
{
    char *at;
    Py_ssize_t n;
    if (o == Py_None) return 0;
    if (PyUnicode_Check(o)) {
        out->bytes = PyUnicode_AsUTF8String(o);
    } else if (PyBytes_Check(o)) {
        Py_INCREF(o);
        out->bytes = o;
    } else {
        PyErr_Format(PyExc_TypeError, "%s: a str is needed, not %R", name, (PyObject *)Py_TYPE(o));
    }
    if (!out->bytes || PyBytes_AsStringAndSize(out->bytes, &at, &n)) return -1;
    out->at = n ? at : NULL;
    out->n = (size_t)n;
    return 0;
}

int py_copy_text(const struct py_text *t, const char *name, char out[KVR_CLASS_NAME_MAX])
{
    if (t->n >= KVR_CLASS_NAME_MAX || (t->n && memchr(t->at, 0, t->n))) {
        PyErr_Format(PyExc_ValueError, "%s: at most %d bytes, none of them 0", name, KVR_CLASS_NAME_MAX - 1);
        return -1;
    }
    memset(out, 0, KVR_CLASS_NAME_MAX);
    if (t->n) memcpy(out, t->at, t->n);
    return 0;
}

void py_text_free(struct py_text *t)
{
    Py_CLEAR(t->bytes);
    t->at = NULL;
    t->n = 0;
}

/* ---- multimodal objects */

int py_mm(PyObject *o, struct py_mm *out)
{
    PyObject *counts, *hashes;
    uint64_t *n = NULL;
    size_t hashes_n, at = 0;
    if (o == Py_None) return 0;
    if (!PyArg_ParseTuple(o, "OO", &counts, &hashes)) return -1;
    if (py_u64s(counts, "block_mm_infos", &n, &out->n) || py_u64s(hashes, "mm_hash", &out->hashes, &hashes_n)) {
        free(n);
        return -1;
    }
    out->blocks = calloc(out->n + 1, sizeof *out->blocks);
    for (size_t i = 0; out->blocks && i < out->n && n[i] <= hashes_n - at; at += n[i++])
        out->blocks[i] = (struct kvr_mm_block){out->hashes + at, n[i]};
    free(n);
    if (!out->blocks) PyErr_NoMemory();
    return out->blocks ? 0 : -1;
}

void py_mm_free(struct py_mm *m)
{
    free(m->blocks);
    free(m->hashes);
    memset(m, 0, sizeof *m);
}
