/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out at a chosen moment, for code that takes it from malloc and operator new: linked with --wrap (see
 * CMakeLists.txt), so what the libraries below take for themselves is left alone, but for C++'s, whose operators are replaced.
 */
#ifndef KVR_FAILING_MEMORY_H
#define KVR_FAILING_MEMORY_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th allocation from now on fails (0: the next), and after it `more` others. Any thread but those that were exempted. */
void memory_fails_at(long n, long more);
/* None fails any more. Returns: how many were asked for since memory_fails_at. */
long memory_recovers(void);
/* Whether one has failed since memory_fails_at. */
bool memory_has_failed(void);
/* What this thread asks for is neither counted nor refused. */
void memory_exempts_this_thread(void);

#ifdef __cplusplus
}
#endif
#endif
