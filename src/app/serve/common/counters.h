/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the process counts: a new counter is one row of SERVE_COUNTERS. What carries labels is beside it: labels.h by model, worker and
 * status class, model_counts.h by model, engine_load.h by rank, leg_counts.h of prefill and decode workers.
 *
 * Threads: any; all of it is atomic, and no two figures are read at one moment.
 */
#ifndef KVR_SERVE_COUNTERS_H
#define KVR_SERVE_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include <kvroute/types.h>

#include "app/serve/common/leg_counts.h"
#include "app/serve/data/choices.h"
#include "base/histogram.h"

/* Totals; labels.c tells them by model, worker and status class. */
#define SERVE_LABELLED(X) X(requests_total) X(predicted_cached_tokens_total) X(actual_cached_tokens_total) X(prompt_tokens_total)

#define SERVE_COUNTERS(X)                                                                                                                  \
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
    X(retries_total, "Requests sent again to another worker")                                                                              \
    X(disagg_rendezvous_missed_total, "Pairs of a prefill and a decode worker that missed each other")                                     \
    X(disagg_aborts_total, "Legs of SGLang that were ended by /abort_request")                                                             \
    X(disagg_aborts_failed_total, "Of these, those that the engine did not take, and legs beyond the limit")                               \
    X(errors_total, "Client requests that ended in an error of ours or a broken stream")                                                   \
    X(client_gone_total, "Requests whose client went away first")                                                                          \
    X(queue_timeouts_total, "Requests that waited for a worker in vain")                                                                   \
    X(tokenize_failures_total, "Prompts that could not be tokenized and were routed by load")                                              \
    X(tokenize_requests_total, "Prompts sent to an engine's tokenizer")                                                                    \
    X(tokenizer_full_total, "Prompts for the tokenizer's threads that found their queue full and went to an engine")                       \
    X(token_ids_forwarded_total, "Completions whose worker got token ids in the place of the text (--forward-token-ids)")                  \
    X(multimodal_prompts_total, "Chats with parts that are not text, left out of the predicted and actual cached tokens")                  \
    X(multimodal_unplaced_total, "Those of them whose first such part has no known place in the tokens: routed by load")                   \
    X(tokenize_cache_hits_total, "Prompts found in the token cache")                                                                       \
    X(predicted_equals_actual_total, "Answers whose predicted and actual cached blocks were equal")                                        \
    X(tiers_short_tokens_total, "Prompt tokens that were predicted to be read from lower tiers, and that the engine did not have")         \
    X(untold_cached_tokens_total, "Prompt tokens that engines had cached beyond what every tier of a whole view was said to have")         \
    X(choices_total, "Requests with known tokens that were answered: those that moves, blocks computed again and regret are of")           \
    X(usage_answers_total, "Answers whose usage told how much was cached")                                                                 \
    X(usage_untold_total, "Answers whose usage did not, from workers that have not told yet: they count nowhere else")                     \
    X(prompt_tokens_refused_total, "Prompts refused because they had more tokens than --max-prompt-tokens")                                \
    X(prompt_messages_refused_total, "Requests refused because they had more messages than --max-messages")                                \
    X(prompt_texts_refused_total, "Prompts refused because their text was longer than --max-prompt-text")                                  \
    X(overload_rejections_total, "Requests refused because every eligible worker was overloaded")                                          \
    X(breaker_opened_total, "Times a worker's breaker opened")                                                                             \
    X(events_applied_total, "KV events applied")                                                                                           \
    X(events_failed_total, "KV events refused by the index")                                                                               \
    X(model_names_left_out_total, "Requests counted under the model `other` because 64 models have series of their own")

enum { TOKENS_FROM_MAX = 8 }; /* enum tokens_from */

struct metrics {
    _Atomic uint64_t tokens_from[TOKENS_FROM_MAX];
    _Atomic uint64_t tiers_predicted[KVR_TIER_COUNT]; /* not the device */
#define SERVE_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    SERVE_COUNTERS(SERVE_COUNTER_FIELD)
#undef SERVE_COUNTER_FIELD
#define SERVE_LABELLED_FIELD(name) _Atomic uint64_t name;
    SERVE_LABELLED(SERVE_LABELLED_FIELD)
#undef SERVE_LABELLED_FIELD
    struct kvr_histogram block_hashing, find_matches, seq_hashing, scheduling, total, hit_rate, isl;
    struct kvr_histogram best_overlap, regret, shortfall, queue_wait, remote_query;
    struct kvr_histogram choice_regret, choice_gain;
    _Atomic uint64_t choices_compared, choices_seen_us, choices_alone_us; /* choices_totals.compared, .seen_ms, .alone_ms */
    _Atomic uint64_t moves[CHOICES_REASONS_N], computed_again[CHOICES_REASONS_N];
    _Atomic uint64_t remote_partial;
    struct leg_counts legs;
};

void metrics_init(struct metrics *m);

#endif
