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
    X(ext_proc_decisions_total, "Workers told to a gateway that asked by external processing")                                             \
    X(ext_proc_refusals_total, "Requests that it was told to answer itself: no worker, a full queue, a bad body")                          \
    X(ext_proc_by_load_total, "Requests chosen by load alone, as the gateway showed no body, or not all of it")                            \
    X(ext_proc_served_elsewhere_total, "Responses that came from another endpoint than the one it was told")                               \
    X(ext_proc_unseen_total, "Bookings ended by --ext-proc-unseen-secs, as the gateway does not tell when responses end")                  \
    X(ext_proc_observed_total, "Responses of which a second stream told, that observes")                                                   \
    X(ext_proc_observers_unknown_total, "Streams that observe and name no request whose response may be observed")                         \
    X(ext_proc_observers_refused_total, "Streams that observe a request with an observer already, or with the id of another one")          \
    X(ext_proc_observers_full_total, "Responses that could not be observed, or no longer, for want of memory or room")                     \
    X(overload_rejections_total, "Requests refused because every eligible worker was overloaded")

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
