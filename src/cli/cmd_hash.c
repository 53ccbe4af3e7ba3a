/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "app/hash/hash.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"
#include "cli/log_options.h"
#include "cli/options.h"

#define OPTIONS struct hash_options
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    NUM("block-size", block_size, "16", 1, 65536, "tokens per block"),
    STR("tokens", tokens, NULL, "1,2,3", "token ids"),
    STR("text", text, NULL, "TEXT", "in their place: the prompt of a completion"),
    STR("messages", messages, NULL, "FILE", "or a chat: a body of /v1/chat/completions, or its list of messages; - is stdin"),
    STR("tokenizer-dir", tokenizer_dir, NULL, "DIR", "the model's folder (tokenizer.json, chat template), for --text and --messages"),
    STR("tokenizer-lib", tokenizer_lib, NULL, "FILE",
        "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed"),
    STR("tokenizer-profile", tokenizer_profile, NULL, "JSON",
        "what the engine does with a chat before its template (docs/guides/tokens.md); default: what vLLM 0.32 does"),
    STR("lora-name", lora_name, NULL, "NAME", "LoRA adapter"),
    STR("cache-salt", cache_salt, NULL, "TEXT", "cache namespace"),
    BOO("eagle", eagle, "false", "windows of block size + 1 tokens"),
    LOG_ROWS(AT(log)),
};

static int run(void *options, struct command_call *)
{
    return hash_main(options);
}

const struct command command_hash = {.table = {"hash", "print the hashes of tokens", help_hash, rows, KVR_ARRAY_LEN(rows), NULL, false},
                                     .options_size = sizeof(struct hash_options),
                                     .run = run};
