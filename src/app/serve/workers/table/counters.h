/* SPDX-License-Identifier: Apache-2.0 */
/* What this room counts: a new counter is one row. Threads: any; all of it is atomic, and no two figures are read at one moment. */
#ifndef KVR_SERVE_WORKERS_COUNTERS_H
#define KVR_SERVE_WORKERS_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define WORKER_COUNTERS(X)                                                                                                                 \
    X(engine_metrics_reads_total, "Times that an engine's metrics were read")                                                              \
    X(engine_metrics_failures_total, "Readings that failed, or had nothing of use")                                                        \
    X(engine_metrics_bad_lines_total, "Lines passed over: no sample, or over 8 KiB")                                                       \
    X(engine_metrics_postponed_total, "Readings that waited for 64 others")                                                                \
    X(engine_load_reports_total, "Engines' loads that came over the event plane")                                                          \
    X(engine_load_malformed_total, "Loads that could not be read")                                                                         \
    X(engine_load_unknown_workers_total, "Loads of ranks that are not registered")                                                         \
    X(engine_loads_expired_total, "Loads that grew too old to be used")                                                                    \
    X(uncounted_total, "Requests that no labelled counter took: out of memory")                                                            \
    X(reopened_connections_total, "Requests sent again: the worker had closed the kept connection")                                        \
    X(view_prompts_dropped_total, "Answered prompts not added to a partial view: too many at once")                                        \
    X(view_takeovers_total, "Views that the process before has given, at a hand-over")                                                     \
    X(view_takeover_failures_total, "Views that a hand-over did not give")                                                                 \
    X(disagg_rendezvous_missed_total, "Pairs of workers that missed each other")                                                           \
    X(breaker_opened_total, "Times a worker's breaker opened")                                                                             \
    X(events_applied_total, "KV events applied")                                                                                           \
    X(events_failed_total, "KV events refused by the index")                                                                               \
    X(model_names_left_out_total, "Requests counted under the model `other`")

struct worker_counters {
#define WORKER_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    WORKER_COUNTERS(WORKER_COUNTER_FIELD)
#undef WORKER_COUNTER_FIELD
};

#endif
