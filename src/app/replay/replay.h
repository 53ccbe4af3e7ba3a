/* SPDX-License-Identifier: Apache-2.0 */
/* kvroute replay: drives a live endpoint with a trace or a synthetic workload and reports what came back. */
#ifndef KVR_APP_REPLAY_H
#define KVR_APP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

enum { REPLAY_IDS, REPLAY_TEXT }; /* prompts */

struct replay_options {
    char *config, *trace, *workload, *url, *tls_ca, *admin_url, *admin_key_file, *model, *json, *compare, *write_trace;
    uint64_t limit, concurrency, max_output, vocab, sessions, turns, system_tokens, turn_tokens, output_tokens, groups, seed;
    double speedup, timeout, duration;
    int prompts;
    bool stream, progress;
    bool offline; /* virtual time, and then: */
    uint64_t workers, prefill_workers, block_size, num_gpu_blocks, max_num_seqs, max_num_batched_tokens, seeds, routers;
    double engine_speed, tell_ms;
    char *tokenizer_dir, *tokenizer_lib, *tokenizer_profile; /* of a trace's texts */
    struct kvr_log_options log;
};

int replay_main(const struct replay_options *options);

#endif
