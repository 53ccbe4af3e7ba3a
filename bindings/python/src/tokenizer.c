/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Type Tokenizer: a model's folder, read by the library that makes token ids (src/token/library.h), which is loaded when one is opened.
 * What goes wrong there is a value, (code, text): the package's Python makes an exception of it.
 */
#include <string.h>

#include "binding.h"
#include "token/library.h"

struct tokenizer {
    PyObject_HEAD struct kvr_token_library lib;
    struct kvr_tok *tok;
};

static PyTypeObject *type_made;

/* What the library says of an error; gives the buffer back. */
static PyObject *said(const struct kvr_token_library *lib, int code, struct kvr_tok_buf *text)
{
    PyObject *o = Py_BuildValue("(iN)", code, PyUnicode_DecodeUTF8(text->data ? text->data : "", (Py_ssize_t)text->len, "replace"));
    lib->buf_free(text);
    return o;
}

static void tokenizer_dealloc(PyObject *self)
{
    struct tokenizer *x = (struct tokenizer *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (x->tok) x->lib.free(x->tok);
    PyObject_Free(self);
    Py_DECREF(type);
}

PyObject *py_tokenizer_open(PyObject *module, PyObject *args)
{
    const char *path, *dir, *options;
    char why[1200];
    struct kvr_tok_buf err = {0};
    (void)module;
    if (!PyArg_ParseTuple(args, "yyy", &path, &dir, &options)) return NULL;
    struct tokenizer *x = (struct tokenizer *)PyType_GenericAlloc(type_made, 0);
    if (!x) return NULL;
    int rc;
    Py_BEGIN_ALLOW_THREADS rc = kvr_token_library_open(path, &x->lib, why, sizeof why);
    Py_END_ALLOW_THREADS if (rc)
    {
        Py_DECREF(x);
        return Py_BuildValue("(iN)", 0, PyUnicode_DecodeUTF8(why, (Py_ssize_t)strlen(why), "replace"));
    }
    Py_BEGIN_ALLOW_THREADS rc = x->lib.load(dir, options, &x->tok, &err);
    Py_END_ALLOW_THREADS if (rc == 0) return (PyObject *)x;
    PyObject *error = said(&x->lib, rc, &err);
    Py_DECREF(x);
    return error;
}

static PyObject *list_of_ids(const uint32_t *ids, size_t n)
{
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *v = PyLong_FromUnsignedLong(ids[i]);
        if (!v || PyList_SetItem(list, (Py_ssize_t)i, v)) Py_CLEAR(list);
    }
    return list;
}

/* ids(question as JSON) -> list, or (code, text) */
static PyObject *ids(PyObject *self, PyObject *args)
{
    struct tokenizer *x = (struct tokenizer *)self;
    const char *question;
    Py_ssize_t len;
    struct kvr_tok_buf out = {0};
    struct kvr_tok_job *job;
    int rc;
    if (!PyArg_ParseTuple(args, "y#", &question, &len)) return NULL;
    Py_BEGIN_ALLOW_THREADS rc = x->lib.ask(x->tok, question, (size_t)len, SIZE_MAX, &job, &out);
    Py_END_ALLOW_THREADS if (rc) return said(&x->lib, rc, &out);
    PyObject *list = list_of_ids(out.data, out.len / sizeof(uint32_t));
    x->lib.buf_free(&out);
    return list;
}

static PyMethodDef methods[] = {{"ids", ids, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};

PyTypeObject *py_tokenizer_make_type(void)
{
    PyType_Slot slots[] = {{Py_tp_dealloc, (void *)tokenizer_dealloc}, {Py_tp_methods, methods}, {0, NULL}};
    PyType_Spec spec = {"kvroute._kvroute.Tokenizer", sizeof(struct tokenizer), 0, Py_TPFLAGS_DEFAULT, slots};
    return type_made = (PyTypeObject *)PyType_FromSpec(&spec);
}
