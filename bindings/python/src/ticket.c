/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Type Ticket: a request that waits for its turn.
 *
 *     submit --> parked --(load goes down, in some thread)--> done --> result, or an exception
 *                   \--cancel--> nothing was booked
 *
 * While it is parked the library has a pointer to it, and it holds a reference to itself. Its fields are written by `finished`,
 * with the GIL, and read with the GIL; `over` is for the threads that wait without it.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "binding.h"

struct ticket {
    PyObject_HEAD struct py_router *router;
    struct py_request q;
    struct kvr_ticket t;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over; /* under `lock` */
    int rc;
    struct kvr_router_result res;
    struct py_raised raised;
    PyObject *notify; /* called once when it is over */
};

static PyTypeObject *ticket_type;

static void ticket_dealloc(PyObject *self)
{
    struct ticket *t = (struct ticket *)self;
    PyTypeObject *type = Py_TYPE(self);
    py_request_free(&t->q);
    Py_XDECREF(t->raised.type);
    Py_XDECREF(t->raised.value);
    Py_XDECREF(t->raised.trace);
    Py_XDECREF(t->notify);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    Py_XDECREF(t->router);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *refuse_new(PyTypeObject *type, PyObject *args, PyObject *kw)
{
    (void)args;
    (void)kw;
    PyErr_Format(PyExc_TypeError, "%R comes from Router.submit", (PyObject *)type);
    return NULL;
}

static void set_over(struct ticket *t)
{
    pthread_mutex_lock(&t->lock);
    t->over = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

static void tell(struct ticket *t)
{
    PyObject *notify = t->notify;
    t->notify = NULL;
    if (!notify) return;
    PyObject *said = PyObject_CallFunctionObjArgs(notify, NULL);
    if (!said) PyErr_WriteUnraisable(notify);
    Py_XDECREF(said);
    Py_DECREF(notify);
}

/* The library's callback: under the router's lock, in any thread. */
static void finished(struct kvr_ticket *kt, int rc, const struct kvr_router_result *res, const struct kvr_router_ctx *ctx)
{
    struct ticket *t = kt->user;
    (void)ctx;
    PyGILState_STATE gil = PyGILState_Ensure();
    const struct py_router *outer = py_calling_back;
    py_calling_back = t->router;
    t->rc = rc;
    if (rc == 0) t->res = *res;
    t->raised = py_raised;
    py_raised = (struct py_raised){NULL, NULL, NULL};
    set_over(t);
    tell(t);
    Py_DECREF(t); /* the library's; what this may run is called by the router, too */
    py_calling_back = outer;
    PyGILState_Release(gil);
}

static struct ticket *ticket_new(struct py_router *x)
{
    pthread_condattr_t a;
    struct ticket *t = (struct ticket *)PyType_GenericAlloc(ticket_type, 0);
    if (!t) return NULL;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&t->changed, &a);
    pthread_condattr_destroy(&a);
    pthread_mutex_init(&t->lock, NULL);
    Py_INCREF(x);
    t->router = x;
    return t;
}

/* The result when it was admitted at once, else a Ticket. */
PyObject *py_router_submit(struct py_router *x, PyObject *args)
{
    struct ticket *t = ticket_new(x);
    struct kvr_router_ctx *c = NULL;
    PyObject *out = NULL;
    int rc;
    if (!t) return NULL;
    if (py_request(args, &t->q) || py_tokens_keep(&t->q.prompt.tokens)) goto end;
    t->q.rq.tokens = t->q.prompt.tokens.at;
    c = py_router_take(x);
    if (!c) goto end;
    Py_INCREF(t); /* the library's, if it is parked */
    Py_BEGIN_ALLOW_THREADS py_router_tick(x);
    rc = kvr_router_submit(x->r, c, &t->q.rq, &t->t, finished, t, &t->res, NULL);
    Py_END_ALLOW_THREADS py_router_give(x, c);
    if (rc == KVR_PARKED) return (PyObject *)t;
    Py_DECREF(t);
    out = rc ? py_router_fail(rc) : py_router_result(x, &t->res);
end:
    Py_DECREF(t);
    return out;
}

/* Waits at most 100 ms, so that signals are seen. Without the GIL. */
static bool wait_a_little(struct ticket *t, const struct timespec *until)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += 100 * 1000 * 1000;
    at.tv_sec += at.tv_nsec / 1000000000;
    at.tv_nsec %= 1000000000;
    if (until->tv_sec < at.tv_sec || (until->tv_sec == at.tv_sec && until->tv_nsec < at.tv_nsec)) at = *until;
    int rc = 0;
    pthread_mutex_lock(&t->lock);
    while (!t->over && rc != ETIMEDOUT) rc = pthread_cond_timedwait(&t->changed, &t->lock, &at);
    bool over = t->over;
    pthread_mutex_unlock(&t->lock);
    return over;
}

static bool is_past(const struct timespec *t)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec > t->tv_sec || (now.tv_sec == t->tv_sec && now.tv_nsec >= t->tv_nsec);
}

/* Gives up. Returns: whether it was waiting still; else it is over, and what it came to stands. */
static bool give_up(struct ticket *t)
{
    bool was;
    Py_BEGIN_ALLOW_THREADS was = kvr_router_cancel(t->router->r, &t->t);
    Py_END_ALLOW_THREADS if (!was) return false;
    t->rc = -KVR_ETIMEDOUT;
    set_over(t);
    Py_DECREF(t); /* the library's; the caller has another */
    return true;
}

static PyObject *result(struct ticket *t)
{
    if (t->rc == 0) return py_router_result(t->router, &t->res);
    if (t->raised.type) {
        py_raised = t->raised;
        t->raised = (struct py_raised){NULL, NULL, NULL};
    }
    return py_router_fail(t->rc);
}

/* wait(seconds) -> result; TimeoutError by the exception of -KVR_ETIMEDOUT */
static PyObject *wait_(PyObject *self, PyObject *args)
{
    struct ticket *t = (struct ticket *)self;
    struct timespec until;
    double seconds;
    bool over = false;
    if (!PyArg_ParseTuple(args, "d", &seconds) || !py_router_may_call(t->router)) return NULL;
    clock_gettime(CLOCK_MONOTONIC, &until);
    seconds = seconds < 0 ? 0 : seconds > 1e8 ? 1e8 : seconds;
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (!over) {
        Py_BEGIN_ALLOW_THREADS over = wait_a_little(t, &until);
        Py_END_ALLOW_THREADS if (!over && (PyErr_CheckSignals() || is_past(&until)))
        {
            bool signal = PyErr_Occurred() != NULL;
            PyObject *type = NULL, *value = NULL, *trace = NULL;
            if (signal) PyErr_Fetch(&type, &value, &trace);
            bool gone = give_up(t);
            if (!gone && signal && t->rc == 0) { /* it was booked just now, and nobody will hear of it */
                Py_BEGIN_ALLOW_THREADS kvr_router_free(t->router->r, t->q.rq.id, t->q.rq.id_len);
                Py_END_ALLOW_THREADS
            }
            if (signal) {
                PyErr_Restore(type, value, trace);
                return NULL;
            }
            over = true;
        }
    }
    return result(t);
}

/* cancel() -> whether nothing was booked */
static PyObject *cancel(PyObject *self, PyObject *args)
{
    struct ticket *t = (struct ticket *)self;
    (void)args;
    if (!py_router_may_call(t->router)) return NULL;
    return PyBool_FromLong(give_up(t));
}

/* on_done(callable): called once it is over, at once if it is. The callable must not call the router. */
static PyObject *on_done(PyObject *self, PyObject *args)
{
    struct ticket *t = (struct ticket *)self;
    PyObject *notify;
    if (!PyArg_ParseTuple(args, "O", &notify)) return NULL;
    Py_INCREF(notify);
    Py_XDECREF(t->notify);
    t->notify = notify;
    pthread_mutex_lock(&t->lock);
    bool over = t->over;
    pthread_mutex_unlock(&t->lock);
    if (over) tell(t);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"wait", wait_, METH_VARARGS, NULL},
                                {"cancel", cancel, METH_NOARGS, NULL},
                                {"on_done", on_done, METH_VARARGS, NULL},
                                {NULL, NULL, 0, NULL}};

PyTypeObject *py_ticket_make_type(void)
{
    PyType_Slot slots[] = {{Py_tp_new, (void *)refuse_new}, {Py_tp_dealloc, (void *)ticket_dealloc}, {Py_tp_methods, methods}, {0, NULL}};
    PyType_Spec spec = {"kvroute._kvroute.Ticket", sizeof(struct ticket), 0, Py_TPFLAGS_DEFAULT, slots};
    return ticket_type = (PyTypeObject *)PyType_FromSpec(&spec);
}
