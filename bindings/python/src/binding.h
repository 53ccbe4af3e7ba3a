/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The compiled part of the Python package: libkvroute, linked in, as a module of the stable ABI (3.9 and later), so that one
 * wheel serves every version and needs nothing else. The library that makes token ids is loaded when a Tokenizer is made.
 *
 *   args.c      Python's values -> arrays and texts of C, and back
 *   hashing.c   tokens -> hashes
 *   index.c     type Index
 *   local.c     type LocalIndex
 *   request.c   what a router is asked, as one tuple
 *   router.c    type Router: requests
 *   control.c   type Router: workers, how it chooses, what it says of itself
 *   pair.c      two routers, one request of two legs
 *   ticket.c    type Ticket: a request that waits for its turn
 *   tokenizer.c type Tokenizer: texts and chats -> token ids
 *   module.c    what the module offers
 *
 * It is private to the package: the classes that users see are Python (../kvroute), which checks what they are given, names what is
 * wrong and calls this with positions and no defaults.
 *
 * Threads. A call that works in the library releases the interpreter lock (GIL) meanwhile, always: the router calls Python back
 * under its own lock, so a thread that waited for that lock with the GIL would wait for ever. Lists that the types keep (readers,
 * contexts) are touched only with the GIL.
 */
#ifndef KVROUTE_PYTHON_BINDING_H
#define KVROUTE_PYTHON_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <kvroute/kvroute.h>

/* The buffer protocol joined the stable ABI in 3.11 as it was: 3.9 and 3.10 export these functions with this struct. */
struct py_buffer {
    void *buf;
    PyObject *obj;
    Py_ssize_t len, itemsize;
    int readonly, ndim;
    char *format;
    Py_ssize_t *shape, *strides, *suboffsets;
    void *internal;
};

/* ---- args.c. Functions that return int: 0, or -1 with an exception set. */

/* Tokens as 32-bit words: in the caller's buffer when it has such, else a copy. Give it to py_tokens_free, also after a failure;
 * zeroed before. */
struct py_tokens {
    const uint32_t *at;
    size_t n;
    uint32_t *own;
    struct py_buffer view;
};
int py_tokens(PyObject *o, struct py_tokens *out);
/* Makes a copy if there is none, for work that goes on after the call. */
int py_tokens_keep(struct py_tokens *t);
void py_tokens_free(struct py_tokens *t);

/* A str in UTF-8, or bytes; None and "" are NULL, 0. Owns `bytes`. */
struct py_text {
    const char *at;
    size_t n;
    PyObject *bytes;
};
int py_text(PyObject *o, const char *name, struct py_text *out);
void py_text_free(struct py_text *t);
/* Into a name of the library's length. */
int py_copy_text(const struct py_text *t, const char *name, char out[KVR_CLASS_NAME_MAX]);

/* An unsigned integer up to `max`; ValueError names it. */
int py_u64(PyObject *o, const char *name, uint64_t max, uint64_t *out);
int py_u32(PyObject *o, const char *name, uint32_t *out);
/* An engine's name of a block: an integer, signed or not, of which 64 bits count, or bytes, of which the last eight do. */
int py_name(PyObject *o, uint64_t *out);
/* A list of them; *out is the caller's to free. */
int py_names(PyObject *o, uint64_t **out, size_t *n);
/* Worker ids and hashes that must be unsigned and of 64 bits. */
int py_u64s(PyObject *o, const char *name, uint64_t **out, size_t *n);

/* Multimodal objects: None, or (count for each block, their hashes one after the other). */
struct py_mm {
    struct kvr_mm_block *blocks;
    size_t n;
    uint64_t *hashes;
};
int py_mm(PyObject *o, struct py_mm *out);
void py_mm_free(struct py_mm *m);

PyObject *py_list(const uint64_t *values, size_t n);
/* Sets the exception that stands for an error of the library. Returns: NULL. */
PyObject *py_fail(int rc);
PyObject *py_done(int rc);      /* None, or as py_fail */
extern PyObject *py_make_error; /* (code) -> exception; kvroute._errors sets it */

/* ---- hashing.c */

/* What decides a prompt's local hashes. Zeroed before, freed always. */
struct py_prompt {
    struct py_tokens tokens;
    struct py_text lora, salt;
    struct py_mm mm;
    uint32_t block_size;
    int eagle;
};
/* From (tokens, block_size, lora, salt, eagle, mm). More multimodal infos than the tokens have blocks, a last one that is not full
 * included, are those of another block size: ValueError. */
int py_prompt(PyObject *tuple, struct py_prompt *out);
void py_prompt_free(struct py_prompt *p);
/* The local hashes into *out (the caller frees), without the GIL. */
int py_prompt_locals(const struct py_prompt *p, uint64_t **out, size_t *n);

PyObject *py_hash_locals(PyObject *module, PyObject *args);
PyObject *py_hash_sequence(PyObject *module, PyObject *args);

/* ---- index.c */

struct py_index {
    PyObject_HEAD struct kvr_index *ix;
    bool expires, counts; /* predicted blocks have a time; uses are counted */
    struct kvr_index_reader **readers;
    size_t readers_n, readers_cap;
};
extern PyTypeObject *py_index_type;
PyTypeObject *py_index_make_type(void);
/* Drops what has expired. Without the GIL. */
void py_index_tick(const struct py_index *x);

/* ---- local.c */

PyTypeObject *py_local_make_type(void);

/* ---- request.c */

/* One request and all it points to. It must not move once it is filled. */
struct py_request {
    struct kvr_router_request rq;
    struct kvr_override override;
    struct py_prompt prompt;
    struct py_text id, policy_class;
    uint64_t *allowed, *excluded;
    enum kvr_router_mode mode;
    struct py_text *taints; /* required ones, then preferred ones */
    size_t taints_n;
    const char **required;
    struct kvr_preferred_taint *preferred;
};
int py_request(PyObject *tuple, struct py_request *out);
void py_request_free(struct py_request *r);

/* ---- router.c */

struct py_router {
    PyObject_HEAD struct kvr_router *r;
    struct py_index *index, *predicted; /* NULL: none */
    PyObject *select;                   /* NULL: the library chooses */
    pthread_mutex_t classes;            /* who reads their figures or changes them; taken without the GIL, before the router's lock */
    struct kvr_router_ctx **contexts;   /* not in use now */
    size_t contexts_n, contexts_cap;
    uint64_t decisions;
    struct kvr_router_times spent; /* sums over decisions */
};
extern PyTypeObject *py_router_type;
PyTypeObject *py_router_make_type(void);
struct kvr_router_ctx *py_router_take(struct py_router *x);
void py_router_give(struct py_router *x, struct kvr_router_ctx *c);
/* What a decision is for Python; counts its times. */
PyObject *py_router_result(struct py_router *x, const struct kvr_router_result *res);
/* Drops predicted blocks whose time has come, where there are such. Without the GIL. */
void py_router_tick(const struct py_router *x);
/* False, with RuntimeError set, in a callback of this router: its lock is held. */
bool py_router_may_call(const struct py_router *x);

/* An exception that a callback raised in this thread, until somebody takes it. */
struct py_raised {
    PyObject *type, *value, *trace;
};
extern _Thread_local struct py_raised py_raised;
extern _Thread_local const struct py_router *py_calling_back; /* whose lock this thread holds */
/* Sets the exception for a failed choice: what the callback raised, else that of `rc`. Returns: NULL. */
PyObject *py_router_fail(int rc);

/* A candidate as a dict. */
PyObject *py_candidate(const struct kvr_candidate *c, const struct kvr_cost *cost);

/* ---- control.c */

/* (default family, [(bucket, min_tokens)], [class]) */
int py_policy(PyObject *o, struct kvr_policy *p);
#define PY_ROUTER_CONTROLS(X)                                                                                                              \
    X(set_policy)                                                                                                                          \
    X(set_mode)                                                                                                                            \
    X(mode)                                                                                                                                \
    X(set_busy)                                                                                                                            \
    X(busy)                                                                                                                                \
    X(set_schedulable)                                                                                                                     \
    X(set_trusted)                                                                                                                         \
    X(set_kv_used)                                                                                                                         \
    X(use_lower_tiers)                                                                                                                     \
    X(poll)                                                                                                                                \
    X(shut_queue)                                                                                                                          \
    X(class_stats)                                                                                                                         \
    X(where)                                                                                                                               \
    X(loads)                                                                                                                               \
    X(models)                                                                                                                              \
    X(overload)                                                                                                                            \
    X(explain)                                                                                                                             \
    X(validate)
#define PY_DECLARE(name) PyObject *py_router_##name(PyObject *self, PyObject *args);
PY_ROUTER_CONTROLS(PY_DECLARE)
#undef PY_DECLARE

/* ---- ticket.c */

PyTypeObject *py_ticket_make_type(void);
PyObject *py_router_submit(struct py_router *x, PyObject *args);

/* ---- pair.c. The first two arguments are the prefill Router and the decode Router. */

/* (.., options, prefill request, decode request) -> (result, result), or (error, leg) */
PyObject *py_pair_best(PyObject *module, PyObject *args);
/* (.., request_id) -> what the library says, a number */
PyObject *py_pair_prefill_done(PyObject *module, PyObject *args);
PyObject *py_pair_free(PyObject *module, PyObject *args);

/* ---- tokenizer.c */

PyTypeObject *py_tokenizer_make_type(void);
/* (library, folder, options as JSON), as bytes -> a Tokenizer, or (code, text): enum of kvr_tokenizer.h, 0: the library cannot be used */
PyObject *py_tokenizer_open(PyObject *module, PyObject *args);

#endif
