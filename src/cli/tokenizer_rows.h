/* SPDX-License-Identifier: Apache-2.0 */
/* Option rows of programs that make tokens with folders which the operator gives (token/given.h). `dirs` is where a struct option_list
 * stands in the options, the others where char *lib, char *profile and uint64_t cache do; `use` is what the folder is for. */
#ifndef KVR_CLI_TOKENIZER_ROWS_H
#define KVR_CLI_TOKENIZER_ROWS_H

#include "cli/options.h"

#define TOKENIZER_ROWS(dirs, lib, profile, cache, use)                                                                                     \
    GROUP("tokens", "Token ids of prompts"), MORE,                                                                                         \
        ROW("tokenizer-dir", OPT_LIST, dirs, NULL, 0, 0, "[MODEL=]DIR",                                                                    \
            "the folder (tokenizer.json, chat template) of a model, or of all: " use),                                                     \
        ROW("tokenizer-lib", OPT_STRING, lib, NULL, 0, 0, "FILE",                                                                          \
            "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed"),                                \
        ROW("tokenizer-profile", OPT_STRING, profile, NULL, 0, 0, "JSON",                                                                  \
            "how the engines render chats (docs/guides/tokens.md); default: as vLLM 0.32"),                                                \
        ROW("tokenizer-cache", OPT_SIZE, cache, "64MiB", 0, 0, NULL, "tokens of parts of prompts kept for each model; 0 = none")

#endif
