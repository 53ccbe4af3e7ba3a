/* SPDX-License-Identifier: Apache-2.0 */
/* What is counted of requests of fleets with prefill and decode workers, by labels: leg_counts.c. Threads: any; all of it is atomic. */
#ifndef KVR_SERVE_LEG_COUNTS_H
#define KVR_SERVE_LEG_COUNTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/histogram.h"

struct kvr_prom_page;

/* How a request was treated, as it is told: legs.h. */
#define TOLD_TREATMENTS(X)                                                                                                                 \
    X(REMOTE, "remote") X(LOCAL, "local") X(AGGREGATED, "aggregated") X(PREFILL_ONLY, "prefill-only") X(FALLBACK, "fallback")

/* Why a request that a prefill worker was asked for goes to one worker. */
#define FALLBACKS(X)                                                                                                                       \
    X(PREFILL_FAILED, "prefill-failed") /* the prefill workers that were tried have failed */                                              \
    X(NO_PREFILL, "no-prefill")         /* and there is no other one */                                                                    \
    X(NO_HANDOFF, "no-handoff")         /* its answer has no hand-off object that can be used */                                           \
    X(ONE_TOKEN, "one-token")           /* it refuses a forced tool call or a grammar, of which it computes one token */

/* Why a computed prompt may be held until its lease is over. */
#define LEAKS(X)                                                                                                                           \
    X(ABORT_RACE, "abort-race")           /* the client has left while the prefill worker's answer was on its way */                       \
    X(EARLY_ABORT, "early-abort")         /* it has left just after the decode worker was asked */                                         \
    X(PREFILL_TIMEOUT, "prefill-timeout") /* the prefill worker took too long */                                                           \
    X(BAD_HANDOFF, "bad-handoff")         /* its hand-off object cannot be used */                                                         \
    X(DECODE_4XX, "decode-4xx")           /* the decode worker refuses the request */                                                      \
    X(DECODE_FAILED, "decode-failed")     /* it has failed, and may not have pulled the prompt */                                          \
    X(STALE, "stale")                     /* no decode worker was found while it could be used */                                          \
    X(NOT_RELEASED, "not-released")       /* nobody could be asked to pull it, or --disagg-release is off */                               \
    X(RELEASE_FAILED, "release-failed")   /* somebody was asked, in vain */

#define TOLD_ENUM(name, text)     TOLD_##name,
#define FALLBACK_ENUM(name, text) FALLBACK_##name,
#define LEAK_ENUM(name, text)     LEAK_##name,
enum told_treatment { TOLD_TREATMENTS(TOLD_ENUM) TOLD_TREATMENTS_N };
enum fallback { FALLBACKS(FALLBACK_ENUM) FALLBACKS_N };
enum leak { LEAKS(LEAK_ENUM) LEAKS_N };
enum leg { LEG_PREFILL, LEG_DECODE, LEGS_N };
enum release_end { RELEASE_DISPATCHED, RELEASE_FAILED, RELEASE_ENDS };

enum { LEG_STATUSES = 600 }; /* 0: no answer */

struct leg_counts {
    _Atomic uint64_t treatments[TOLD_TREATMENTS_N], fallbacks[FALLBACKS_N], leaks[LEAKS_N], releases[RELEASE_ENDS];
    _Atomic uint64_t retries[LEGS_N], errors[LEGS_N][LEG_STATUSES];
    struct kvr_histogram prefill, handoff, kv_wait; /* seconds */
};

const char *told_treatment_name(enum told_treatment t);
/* It has failed, or was answered with an error; without an answer status is 0. */
void leg_counts_error(struct leg_counts *c, enum leg leg, int status);
void leg_counts_metrics(const struct leg_counts *c, struct kvr_prom_page *b);

#endif
