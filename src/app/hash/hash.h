/* SPDX-License-Identifier: Apache-2.0 */
/* kvroute hash: prints token ids and their hashes. The ids are given, or made of a text or a chat with a model's folder. */
#ifndef KVR_APP_HASH_H
#define KVR_APP_HASH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/log.h"

struct hash_options {
    char *config, *tokens, *text, *messages, *lora_name, *cache_salt; /* of the first three one; messages: a file's name, "-": stdin */
    char *tokenizer_dir, *tokenizer_lib, *tokenizer_profile;
    uint64_t block_size;
    bool eagle;
    struct kvr_log_options log;
};

/* Returns: an exit code. */
int hash_main(const struct hash_options *options);

#endif
