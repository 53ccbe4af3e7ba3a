/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the data plane counts: a new counter is one row of DATA_COUNTERS. What carries labels is beside it: leg_counts.h of prefill and
 * decode workers; by model, worker and rank in the room of workers.
 *
 * Threads: any; all of it is atomic, and no two figures are read at one moment.
 */
#ifndef KVR_DATA_COUNTERS_H
#define KVR_DATA_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

#include <kvroute/types.h>

#include "app/serve/data/state/leg_counts.h"
#include "app/serve/data/state/choices.h"
#include "base/histogram.h"

/* Totals; labels.c tells them by model, worker and status class. */
#define DATA_TOTALS(X) X(requests_total) X(predicted_cached_tokens_total) X(actual_cached_tokens_total) X(prompt_tokens_total)

#define DATA_COUNTERS(X)                                                                                                                   \
    X(retries_total, "Requests sent again to another worker")                                                                              \
    X(disagg_aborts_total, "Legs of SGLang ended by /abort_request")                                                                       \
    X(disagg_aborts_failed_total, "Aborts that the engine did not take, or beyond the limit")                                              \
    X(errors_total, "Requests that ended in an error of ours or a broken stream")                                                          \
    X(client_gone_total, "Requests whose client went away first")                                                                          \
    X(queue_timeouts_total, "Requests that waited for a worker in vain")                                                                   \
    X(tokenize_failures_total, "Prompts without tokens, routed by load")                                                                   \
    X(tokenize_requests_total, "Prompts sent to an engine's tokenizer")                                                                    \
    X(tokenizer_full_total, "Prompts sent to an engine: the queue of the tokenizer's threads is full")                                     \
    X(token_ids_forwarded_total, "Completions sent as token ids (--forward-token-ids)")                                                    \
    X(multimodal_prompts_total, "Chats with parts that are not text; not in predicted and actual tokens")                                  \
    X(multimodal_unplaced_total, "Chats whose first such part has no known place: routed by load")                                         \
    X(tokenize_cache_hits_total, "Prompts found in the token cache")                                                                       \
    X(predicted_equals_actual_total, "Answers with equal predicted and actual cached blocks")                                              \
    X(tiers_short_tokens_total, "Prompt tokens predicted in lower tiers that the engine lacked")                                           \
    X(untold_cached_tokens_total, "Prompt tokens that engines had cached beyond all tiers of a whole view")                                \
    X(choices_total, "Answered requests with known tokens: what moves and regret are of")                                                  \
    X(usage_answers_total, "Answers whose usage told how much was cached")                                                                 \
    X(usage_untold_total, "Answers whose usage did not tell; they count nowhere else")                                                     \
    X(prompt_tokens_refused_total, "Prompts refused for --max-prompt-tokens")                                                              \
    X(prompt_messages_refused_total, "Requests refused for --max-messages")                                                                \
    X(prompt_texts_refused_total, "Prompts refused for --max-prompt-text")                                                                 \
    X(ext_proc_decisions_total, "Workers told to a gateway")                                                                               \
    X(ext_proc_refusals_total, "Requests refused: no worker, a full queue, a bad body")                                                    \
    X(ext_proc_by_load_total, "Requests placed by load: the gateway showed no whole body")                                                 \
    X(ext_proc_served_elsewhere_total, "Responses from another endpoint than the chosen one")                                              \
    X(ext_proc_unseen_total, "Bookings ended by --ext-proc-unseen-secs")                                                                   \
    X(ext_proc_observed_total, "Responses told by an observing stream")                                                                    \
    X(ext_proc_observers_unknown_total, "Observing streams of an unknown request")                                                         \
    X(ext_proc_observers_refused_total, "Observing streams of a request that has one already, or the id of another")                       \
    X(ext_proc_observers_full_total, "Responses not observed to the end, for want of memory or room")                                      \
    X(overload_rejections_total, "Requests refused: every eligible worker overloaded")

enum { TOKENS_FROM_MAX = 8 }; /* enum tokens_from */

struct data_counters {
    _Atomic uint64_t tokens_from[TOKENS_FROM_MAX];
    _Atomic uint64_t tiers_predicted[KVR_TIER_COUNT]; /* not the device */
#define DATA_COUNTER_FIELD(name, help) _Atomic uint64_t name;
    DATA_COUNTERS(DATA_COUNTER_FIELD)
#undef DATA_COUNTER_FIELD
#define DATA_TOTAL_FIELD(name) _Atomic uint64_t name;
    DATA_TOTALS(DATA_TOTAL_FIELD)
#undef DATA_TOTAL_FIELD
    struct kvr_histogram block_hashing, find_matches, seq_hashing, scheduling, total, hit_rate, isl;
    struct kvr_histogram best_overlap, regret, shortfall, queue_wait;
    struct kvr_histogram choice_regret, choice_gain;
    _Atomic uint64_t choices_compared, choices_seen_us, choices_alone_us; /* choices_totals.compared, .seen_ms, .alone_ms */
    _Atomic uint64_t moves[CHOICES_REASONS_N], computed_again[CHOICES_REASONS_N];
    struct leg_counts legs;
};

void data_counters_init(struct data_counters *m);

#endif
