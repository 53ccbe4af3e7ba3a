/* SPDX-License-Identifier: Apache-2.0 */
/* kvroute hash: prints the hashes of tokens. */
#ifndef KVR_APP_HASH_H
#define KVR_APP_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

struct hash_options {
    char *config, *tokens, *lora_name, *cache_salt;
    uint64_t block_size;
    bool eagle;
    struct kvr_log_options log;
};

int hash_main(const struct hash_options *options);

#endif
