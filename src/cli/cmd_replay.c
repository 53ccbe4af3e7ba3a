/* SPDX-License-Identifier: Apache-2.0 */
#include "app/replay/replay.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"

#define OPTIONS struct replay_options
#include "cli/log_options.h"
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    GROUP("what", "What is sent"),
    STR("config", config, NULL, "FILE", "YAML file of these options"),
    STR("trace", trace, "synthetic", "FILE|synthetic",
        "rows as JSON lines: Mooncake's, texts, chats; or conversations that wait for answers only"),
    STR("workload", workload, NULL, "NAME[,KEY=VALUE...]",
        "requests with times of their own instead: conversations, agents, shared, hot, siblings, uniform, tail, long-tail, mixed, "
        "mooncake, trace (of --trace); keys: rate (requests/s), seconds, requests, seed, and the workload's own"),
    STR("model", model, NULL, "NAME", "model to ask for"),
    MORE,
    ENU("prompts", prompts, "ids", "ids|text", "token ids; or text, in which a mock engine's token is a byte"),
    NUM("limit", limit, "0", 0, 1e12, "stop after this many requests; 0 = all"),
    NUM("max-output", max_output, "0", 0, 1e9, "cap on output tokens per request; 0 = as in the trace"),
    ALIAS("vocab", "vocab-size"),
    NUM("vocab-size", vocab, "100000", 1, 4e9, "the model's vocabulary: every token id that is sent is below it"),
    BOO("stream", stream, "true", "ask for streams"),
    STR("write-trace", write_trace, NULL, "FILE", "write the rows of --workload mooncake, or of --trace, here and stop"),
    GROUP("where", "Where to, and how fast"),
    STR("url", url, "http://127.0.0.1:8080", "URL[,URL...]", "endpoint to drive, or several in turns"),
    NUM("concurrency", concurrency, "0", 0, 65536, "closed loop with so many requests at once; 0 = open loop by the trace's times"),
    DBL("speedup", speedup, "1", 1e-6, 1e9, "divides the trace's times (open loop), unless --workload has its own"),
    MORE,
    DBL("duration", duration, "0", 0, 1e7, "repeat the workload until so many seconds have passed; 0 = once"),
    DBL("timeout", timeout, "300", 0.1, 1e6, "seconds per request"),
    STR("tls-ca", tls_ca, NULL, "FILE", "certificates (PEM) that sign those of https endpoints; default: the system's"),
    GROUP("report", "What is reported"),
    STR("report", json, NULL, "FILE", "write it here, as JSON"),
    ALIAS("json", "report"),
    STR("compare", compare, NULL, "MODE,MODE...",
        "run under each router mode (needs --admin-url) and print them side by side; with --offline the policies, default all of them"),
    MORE,
    STR("admin-url", admin_url, "http://127.0.0.1:9090", "URL", "admin port of the router, for --compare"),
    STR("admin-key-file", admin_key_file, NULL, "FILE", "its first key is sent to the admin port"),
    BOO("progress", progress, "true", "show progress"),
    GROUP("synthetic", "The synthetic trace"),
    MORE,
    NUM("sessions", sessions, "64", 1, 1e7, "synthetic: conversations"),
    NUM("turns", turns, "6", 1, 1e5, "synthetic: turns per conversation"),
    NUM("groups", groups, "8", 1, 1e6, "synthetic: different system prompts"),
    NUM("system-tokens", system_tokens, "2048", 0, 1e7, "synthetic: tokens of a system prompt"),
    NUM("turn-tokens", turn_tokens, "256", 1, 1e7, "synthetic: mean tokens of a user turn"),
    NUM("output-tokens", output_tokens, "64", 1, 1e6, "synthetic: output tokens per turn"),
    NUM("seed", seed, "1", 0, 1.8e19, "of what is made up, unless --workload has its own"),
    GROUP("offline", "Simulated engines"),
    BOO("offline", offline, "false",
        "nobody is asked: simulated engines in virtual time, under every policy; the options below are for it"),
    NUM("workers", workers, "4", 1, 65535, "offline: engines"),
    MORE,
    NUM("prefill-workers", prefill_workers, "0", 0, 65534,
        "offline: of the workers, those that compute prompts for the others; the policies are then one leg, two legs and the rules that "
        "choose between them"),
    NUM("num-gpu-blocks", num_gpu_blocks, "16384", 2, 1e8, "offline: blocks in the cache of an engine"),
    NUM("block-size", block_size, "16", 1, 4096, "offline: tokens per KV block"),
    NUM("max-num-seqs", max_num_seqs, "256", 1, 1e6, "offline: requests that run at once"),
    NUM("max-num-batched-tokens", max_num_batched_tokens, "8192", 1, 1e8, "offline: tokens per pass"),
    DBL("engine-speed", engine_speed, "1", 1e-3, 1e6, "offline: divides the engines' times; 1 is a mid-size model on one large GPU"),
    NUM("seeds", seeds, "4", 1, 1000, "offline: runs of each policy, with this seed, the next one..."),
    NUM("routers", routers, "1", 1, 16, "offline: routers beside each other"),
    DBL("tell-ms", tell_ms, "2", 0, 1e6, "offline: until one router hears of what another has booked"),
    GROUP("tokens", "Token ids of prompts"),
    MORE,
    STR("tokenizer-dir", tokenizer_dir, NULL, "DIR",
        "the model's folder (tokenizer.json, chat template): tokens of a trace's texts and chats, for --offline and --write-trace"),
    STR("tokenizer-lib", tokenizer_lib, NULL, "FILE",
        "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute, where it was installed"),
    STR("tokenizer-profile", tokenizer_profile, NULL, "JSON",
        "what the engine does with a chat before its template (docs/guides/tokens.md); default: what vLLM 0.32 does"),
    LOG_ROWS(AT(log)),
};

static int run(void *options, struct command_call *)
{
    return replay_main(options);
}

const struct command command_replay = {
    .table = {"replay", "replay a trace or a synthetic workload against an endpoint", help_replay, rows, KVR_ARRAY_LEN(rows), NULL, false},
    .options_size = sizeof(struct replay_options),
    .run = run};
