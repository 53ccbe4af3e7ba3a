/* SPDX-License-Identifier: Apache-2.0 */
/* What this room counts: a new counter is one row. Threads: any; all of it is atomic, and no two figures are read at one moment. */
#ifndef KVR_SERVE_WORKERS_COUNTERS_H
#define KVR_SERVE_WORKERS_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define WORKER_COUNTERS(X)                                                                                                                 \
    X(engine_metrics_reads_total, "Times that an engine's metrics were read")                                                              \
    X(engine_metrics_failures_total, "Times that they could not be read, or had nothing of use")                                           \
    X(engine_metrics_bad_lines_total, "Lines of them that were passed over: no sample, or longer than 8 KiB")                              \
    X(engine_metrics_postponed_total, "Times that a reading waited because 64 others were on the way")                                     \
    X(engine_load_reports_total, "Loads of engines that came over the event plane")                                                        \
    X(engine_load_malformed_total, "Of these, messages that could not be read")                                                            \
    X(engine_load_unknown_workers_total, "Loads of ranks that are not registered")                                                         \
    X(engine_loads_expired_total, "Loads of engines that grew too old to be used")                                                         \
    X(uncounted_total, "Requests that no labelled counter took: out of memory")                                                            \
    X(reopened_connections_total, "Requests sent again on a fresh connection: the worker had closed the kept one")                         \
    X(view_prompts_dropped_total, "Answered prompts that were not looked at for a partial view: too many at once")                         \
    X(view_takeovers_total, "Views that the process before has given, at a hand-over")                                                     \
    X(view_takeover_failures_total, "Views that were not whole then, and were not to be had from it")                                      \
    X(disagg_rendezvous_missed_total, "Pairs of a prefill and a decode worker that missed each other")                                     \
    X(breaker_opened_total, "Times a worker's breaker opened")                                                                             \
    X(events_applied_total, "KV events applied")                                                                                           \
    X(events_failed_total, "KV events refused by the index")                                                                               \
    X(model_names_left_out_total, "Requests counted under the model `other` because 64 models have series of their own")

struct worker_counters {
#define WORKER_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    WORKER_COUNTERS(WORKER_COUNTER_FIELD)
#undef WORKER_COUNTER_FIELD
};

#endif
