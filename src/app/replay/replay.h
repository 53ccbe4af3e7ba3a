/* SPDX-License-Identifier: Apache-2.0 */
/* kvroute replay: drives a live endpoint with a trace or a synthetic workload and reports what came back. */
#ifndef KVR_APP_REPLAY_H
#define KVR_APP_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

struct replay_options {
    char *config, *trace, *url, *admin_url, *admin_key_file, *model, *json, *compare;
    uint64_t limit, concurrency, max_output, vocab, sessions, turns, system_tokens, turn_tokens, output_tokens, groups, seed;
    double speedup, timeout, duration;
    bool stream, progress;
};

int replay_main(const struct replay_options *options);

#endif
