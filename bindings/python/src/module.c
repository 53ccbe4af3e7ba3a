/* SPDX-License-Identifier: Apache-2.0 */
/* What the module offers. */
#include "binding.h"

static PyObject *error_text(PyObject *module, PyObject *args)
{
    int code;
    (void)module;
    return PyArg_ParseTuple(args, "i", &code) ? PyUnicode_FromString(kvr_strerror(code)) : NULL;
}

/* on_error(callable): makes the exception for an error code */
static PyObject *on_error(PyObject *module, PyObject *args)
{
    PyObject *f;
    (void)module;
    if (!PyArg_ParseTuple(args, "O", &f)) return NULL;
    Py_INCREF(f);
    Py_XDECREF(py_make_error);
    py_make_error = f;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {{"hash_locals", py_hash_locals, METH_VARARGS, NULL},
                                  {"hash_sequence", py_hash_sequence, METH_VARARGS, NULL},
                                  {"error_text", error_text, METH_VARARGS, NULL},
                                  {"tokenizer_open", py_tokenizer_open, METH_VARARGS, NULL},
                                  {"on_error", on_error, METH_VARARGS, NULL},
                                  {"pair_best", py_pair_best, METH_VARARGS, NULL},
                                  {"pair_prefill_done", py_pair_prefill_done, METH_VARARGS, NULL},
                                  {"pair_free", py_pair_free, METH_VARARGS, NULL},
                                  {NULL, NULL, 0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_kvroute", NULL, -1, functions, NULL, NULL, NULL, NULL};

/* The module takes the reference. */
static bool add(PyObject *module, const char *name, PyObject *o)
{
    if (o && PyModule_AddObject(module, name, o) == 0) return true;
    Py_XDECREF(o);
    return false;
}

PyMODINIT_FUNC PyInit__kvroute(void)
{
    PyObject *m = PyModule_Create(&definition);
    if (!m) return NULL;
    if (add(m, "Index", (PyObject *)py_index_make_type()) && add(m, "LocalIndex", (PyObject *)py_local_make_type()) &&
        add(m, "Router", (PyObject *)py_router_make_type()) && add(m, "Ticket", (PyObject *)py_ticket_make_type()) &&
        add(m, "Tokenizer", (PyObject *)py_tokenizer_make_type()) && PyModule_AddStringConstant(m, "version", kvr_version()) == 0)
        return m;
    Py_DECREF(m);
    return NULL;
}
