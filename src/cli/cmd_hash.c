/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "app/hash/hash.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/options.h"

#define AT(field) offsetof(struct hash_options, field)

static const struct option_row rows[] = {
    {"block-size", OPT_U64, AT(block_size), "16", 1, 65536, NULL, "tokens per block", NULL, NULL},
    {"tokens", OPT_STRING, AT(tokens), NULL, 0, 0, "1,2,3", "token ids", NULL, NULL},
    {"text", OPT_STRING, AT(text), NULL, 0, 0, "TEXT", "in their place: the prompt of a completion", NULL, NULL},
    {"messages", OPT_STRING, AT(messages), NULL, 0, 0, "FILE",
     "or a chat: a body of /v1/chat/completions, or its list of messages; - is stdin", NULL, NULL},
    {"tokenizer-dir", OPT_STRING, AT(tokenizer_dir), NULL, 0, 0, "DIR",
     "the model's folder (tokenizer.json, chat template), for --text and --messages", NULL, NULL},
    {"tokenizer-lib", OPT_STRING, AT(tokenizer_lib), NULL, 0, 0, "FILE",
     "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed", NULL, NULL},
    {"tokenizer-profile", OPT_STRING, AT(tokenizer_profile), NULL, 0, 0, "JSON",
     "what the engine does with a chat before its template (docs/guides/tokens.md); default: what vLLM 0.32 does", NULL, NULL},
    {"lora-name", OPT_STRING, AT(lora_name), NULL, 0, 0, "NAME", "LoRA adapter", NULL, NULL},
    {"cache-salt", OPT_STRING, AT(cache_salt), NULL, 0, 0, "TEXT", "cache namespace", NULL, NULL},
    {"eagle", OPT_BOOL, AT(eagle), "false", 0, 0, NULL, "windows of block size + 1 tokens", NULL, NULL},
    LOG_ROWS(AT(log)),
};

static int run(void *options, struct command_call *)
{
    return hash_main(options);
}

const struct command command_hash = {.table = {"hash", "print the hashes of tokens", help_hash, rows, KVR_ARRAY_LEN(rows), NULL, false},
                                     .options_size = sizeof(struct hash_options),
                                     .run = run};
