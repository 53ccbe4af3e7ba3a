/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error codes of libkvroute.
 *
 * Functions return 0 or a count on success and a negative code on failure. Out-parameters are untouched
 * on failure unless a function says otherwise. A peer's mistake is a value from this table; a programmer's
 * mistake is an assertion that stays in release builds.
 */
#ifndef KVROUTE_ERROR_H
#define KVROUTE_ERROR_H

#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One row gives the enumerator, its value and its message. Values never change once released. */
#define KVR_ERROR_MAP(X)                                                                                                                   \
    X(NOMEM, 1, "out of memory")                                                                                                           \
    X(INVAL, 2, "invalid argument")                                                                                                        \
    X(PARENT, 3, "parent block not found")                                                                                                 \
    X(NOTFOUND, 4, "not found")                                                                                                            \
    X(SEQUENCE, 5, "invalid block sequence")                                                                                               \
    X(CAPACITY, 6, "capacity exhausted")                                                                                                   \
    X(EXISTS, 7, "already exists")                                                                                                         \
    X(LENGTH, 8, "local and sequence hashes differ in length")                                                                             \
    X(FORMAT, 9, "malformed input")                                                                                                        \
    X(LIMIT, 10, "input exceeds a limit")                                                                                                  \
    X(UNSUPPORTED, 11, "unsupported operation")                                                                                            \
    X(NOENDPOINTS, 12, "no eligible worker")                                                                                               \
    X(NOTALLOWED, 13, "pinned worker not allowed")                                                                                         \
    X(RANK, 14, "data-parallel rank out of range")                                                                                         \
    X(NOID, 15, "booking needs a request id")                                                                                              \
    X(NOINDEX, 16, "no index: the overlap credit is 0")                                                                                    \
    X(BUSY, 17, "every eligible worker is busy")                                                                                           \
    X(OVERLOADED, 18, "every eligible worker is overloaded")                                                                               \
    X(QUEUEFULL, 19, "the queue of the request's class is full")                                                                           \
    X(SHUTDOWN, 20, "shutting down")                                                                                                       \
    X(TIMEDOUT, 21, "timed out")

enum kvr_error {
#define KVR_ERROR_ENUM(name, value, text) KVR_E##name = (value),
    KVR_ERROR_MAP(KVR_ERROR_ENUM)
#undef KVR_ERROR_ENUM
};

/* Message of an error code. `code` may be positive or negative.
 * Returns: a static string, "unknown error" for a value not in the table. Threads: any. */
KVR_API const char *kvr_strerror(int code);

/* Symbolic name ("KVR_ENOMEM"), or "KVR_EUNKNOWN". Threads: any. */
KVR_API const char *kvr_err_name(int code);

/* Version of the library that is running, "major.minor.patch". Threads: any. */
KVR_API const char *kvr_version(void);

#ifdef __cplusplus
}
#endif
#endif
