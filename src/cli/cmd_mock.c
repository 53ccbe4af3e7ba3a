/* SPDX-License-Identifier: Apache-2.0 */
#include "app/mock/encode.h"
#include "app/mock/kv.h"
#include "app/mock/mock.h"
#include "base/base.h"
#include "cli/commands.h"
#include "cli/help.h"

#define OPTIONS struct mock_options
#include "cli/log_options.h"
#include "cli/option_rows.h"

static const struct option_row rows[] = {
    GROUP("start", "Start and address"),
    STR("config", config, NULL, "FILE", "YAML file of these options"),
    STR("host", host, "127.0.0.1", "ADDRESS", "address to listen on"),
    NUM("port", port, "8001", 0, 65535, "HTTP port; 0: a free one, which the first line tells"),
    MORE,
    STR("tls-cert", tls_cert, NULL, "FILE", "speak HTTPS with this certificate chain (PEM), as vLLM's --ssl-certfile; needs --tls-key"),
    STR("tls-key", tls_key, NULL, "FILE", "its private key (PEM)"),
    DBL("startup-time", startup_time, "0", 0, 86400, "seconds during which /health answers 503"),
    GROUP("model", "Model and tokens"),
    STR("model", model, "mock", "NAME", "served model"),
    MORE,
    ALIAS("lora", "lora-name"),
    STR("lora-name", lora, NULL, "NAME", "LoRA adapter that is served too"),
    BOO("runtime-lora", runtime_lora, "false",
        "load and unload adapters by request, as vLLM does with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; their weights are nobody's"),
    NUM("max-model-len", max_model_len, "0", 0, 1e8, "tokens of a prompt and its answer together (0: what the cache holds)"),
    NUM("default-max-tokens", default_max_tokens, "16", 1, 1e6, "output length when the request names none"),
    NUM("seed", seed, "0", 0, 1.8e19, "seed of the generated text"),
    NUM("bos-token", bos_token, "0", 0, 4294967295.0, "token in front of a prompt's text, unless add_special_tokens is false (0: none)"),
    NUM("vocab-size", vocab_size, "0", 0, 4294967295.0, "token ids from here on are refused (0: none is)"),
    STR("tokenizer-dir", tokenizer_dir, NULL, "DIR",
        "a model's folder: its tokenizer and chat template make the tokens of texts and chats, as those of vLLM 0.32 would; it is the "
        "model's "
        "`root`"),
    STR("tokenizer-lib", tokenizer_lib, NULL, "FILE", "libkvr_tokenizer.so; default: beside the program, in ../lib/kvroute"),
    GROUP("cache", "Cache"),
    NUM("block-size", block_size, "16", 1, 65536, "tokens per KV block"),
    NUM("num-gpu-blocks", num_gpu_blocks, "16384", 2, 1e8, "blocks in the cache of a rank, one of which is never used"),
    MORE,
    BOO("enable-prefix-caching", prefix_caching, "true", "reuse cached prefixes and publish events"),
    NUM("host-kv-blocks", host_kv_blocks, "0", 0, 1e8, "blocks that a rank keeps in the host's memory behind these (0: none)"),
    NUM("kv-offload-chunk", kv_offload_chunk, "1", 1, 256, "blocks that are kept there, and read back, at once (as SGLang: always 1)"),
    DBL("kv-load-ratio", kv_load_ratio, "0.1", 0, 100, "time of reading a token from there, as a share of that of computing it"),
    ENU("kv-offload-events", kv_offload_events, "placeholder", MOCK_OFFLOAD_FORMS,
        "how it tells of them: vLLM's OffloadingConnector without and with self_describing_kv_events, SGLang's HiCache, not at all, "
        "LMCache's server, "
        "vLLM's MooncakeStoreConnector"),
    BOO("reset-at-once", reset_at_once, "true", "publish the event of a reset at once; vLLM does with the next pass that has work"),
    GROUP("engine", "Scheduling and speed"),
    NUM("dp-size", dp_size, "1", 1, 64, "data-parallel ranks"),
    ALIAS("speedup-ratio", "speedup"),
    DBL("speedup", speedup_ratio, "1", 1e-3, 1e9, "divides all simulated times"),
    MORE,
    NUM("max-num-seqs", max_num_seqs, "256", 1, 1e6, "requests that run at once"),
    NUM("max-num-batched-tokens", max_num_batched_tokens, "8192", 1, 1e8, "tokens per pass"),
    GROUP("events", "KV events"),
    ALIAS("kv-events", "events"),
    ALIAS("kv-replay", "replay"),
    STR("events", kv_events, NULL, "ENDPOINT", "bind KV events here, e.g. tcp://127.0.0.1:5557; rank r uses port + r"),
    STR("replay", kv_replay, NULL, "ENDPOINT", "bind the replay socket here; rank r uses port + r"),
    MORE,
    STR("kv-topic", kv_topic, NULL, "TEXT", "topic of the event messages; else it is empty"),
    NUM("kv-buffer-steps", kv_buffer_steps, "10000", 0, 1e7, "batches kept for replay"),
    BOO("kv-event-arrays", kv_event_arrays, "false", "write events as arrays, as older engines do"),
    BOO("replay-topic-frame", replay_topic, "true", "send a topic frame in replay answers; older engines send none"),
    GROUP("surface", "What it is asked and tells"),
    MORE,
    BOO("enable-prompt-tokens-details", prompt_tokens_details, "false", "tell cached_tokens in usage"),
    BOO("responses-store", responses_store, "false", "keep answers of /v1/responses for previous_response_id"),
    BOO("dev-mode", dev_mode, "true", "answer /server_info and /reset_prefix_cache, as vLLM does with VLLM_SERVER_DEV_MODE=1"),
    BOO("enable-scale-out", scale_out, "false",
        "answer /v1/completions/render and /v1/chat/completions/render, as vLLM does with that switch"),
    BOO("sglang-info", sglang_info, "false",
        "answer /server_info, /get_server_info, /model_info, /get_model_info, /get_load, /v1/loads as SGLang does"),
    BOO("tell-event-sources", tell_event_sources, "true", "answer /kv_event_sources; older engines do not"),
    BOO("tell-cache-config", tell_cache_config, "true", "have vllm:cache_config_info in /metrics; older engines do not"),
    GROUP("disagg", "Prefill and decode workers"),
    ENU("role", role, "both", MOCK_KV_ROLES,
        "the side that it is of; with vllm-nixl each request says it, and this is only told at /mock/kv"),
    ENU("kv-protocol", kv_protocol, "none", MOCK_KV_PROTOCOLS,
        "KV transfers to and from other mocks, as this connector has them (docs/guides/mock.md)"),
    MORE,
    NUM("kv-side-port", kv_side_port, "0", 0, 65535, "where others fetch KV; rank r uses port + r (0: any free ports; answers tell them)"),
    NUM("bootstrap-port", bootstrap_port, "8998", 1, 65535, "of --role prefill and both: where others ask for the addresses of its ranks"),
    DBL("bootstrap-timeout", bootstrap_timeout, "300", 0.01, 86400, "seconds that one side of a transfer waits for the other"),
    DBL("kv-lease", kv_lease, "30", 0.01, 86400, "seconds that KV is kept for nobody; heartbeats begin them anew"),
    DBL("kv-heartbeat", kv_heartbeat, "5", 0.01, 86400, "seconds between two heartbeats of who fetches"),
    DBL("kv-latency", kv_latency, "0", 0, 86400, "seconds that a transfer takes at least; --speedup does not divide them"),
    DBL("kv-bandwidth", kv_bandwidth, "0", 0, 1e15, "bytes per second of a transfer (0: no limit)"),
    NUM("kv-bytes-per-token", kv_bytes_per_token, "131072", 1, 1e9, "bytes of KV that a token has"),
    ENU("kv-load-failure-policy", kv_load_failure, "fail", MOCK_KV_POLICIES, "when KV does not come: answer 500, or compute the prompt"),
    GROUP("faults", "Faults"),
    MORE,
    NUM("drop-events", drop_events, "0", 0, 1e9, "fault: drop every n-th event batch"),
    NUM("fault-block-size", fault_block_size, "0", 0, 65536, "fault: block size told in events"),
    BOO("fault-omit-salt", fault_omit_salt, "false", "fault: events do not tell the cache salt of a request"),
    BOO("fault-hang", fault_hang, "false", "fault: never answer completions"),
    BOO("fault-bare-stream", fault_bare_stream, "false", "fault: stream headers, then silence"),
    NUM("fault-error-after", fault_error_after, "0", 0, 1e9, "fault: generations fail after n tokens"),
    NUM("fault-reset-after", fault_reset_after, "0", 0, 1e9, "fault: cut a stream after n tokens"),
    NUM("kv-fail-every", kv_fail_every, "0", 0, 1e9, "fault: every n-th transfer fails where it is fetched (0: none)"),
    NUM("fault-prefill-status", fault_prefill_status, "0", 0, 599,
        "fault: answer this to requests whose KV is to be kept (with --kv-protocol none: to all of --role prefill)"),
    NUM("fault-decode-status", fault_decode_status, "0", 0, 599,
        "fault: answer this to requests that are to fetch KV (with --kv-protocol none: to all of --role decode)"),
    NUM("fault-count", fault_count, "0", 0, 1e9, "fault: only the first n of these (0: all)"),
    BOO("fault-no-handoff", fault_no_handoff, "false", "fault: keep no KV, and tell of none"),
    BOO("fault-bad-handoff", fault_bad_handoff, "false", "fault: keep no KV, and answer with a hand-off that leads nowhere"),
    ENU("fault-die-after", fault_die_after, "none", MOCK_DEATHS,
        "fault: end at once, with exit code 3, when a prompt's KV is kept and told of, or has been fetched (by either side)"),
    DBL("fault-slow-prefill", fault_slow_prefill, "0", 0, 86400, "fault: seconds before a prompt whose KV is to be kept is begun"),
    BOO("fault-ignore-abort", fault_ignore_abort, "false", "fault: compute and keep a prompt although its client has gone"),
    LOG_ROWS(AT(log)),
};

/* A side of an SGLang is told which one it is when it starts. */
static int check_sglang(struct mock_options *o)
{
    o->sglang_info = true;
    if (o->role != MOCK_BOTH) return 0;
    kvr_log_error("kvroute mock: role: bad value 'both' with --kv-protocol sglang; allowed: prefill, decode");
    return 2;
}

static bool check_status(const char *option, uint64_t status)
{
    if (status == 0 || status >= 400) return true;
    kvr_log_error("kvroute mock: %s: bad value '%ju'; allowed: 0, or 400 to 599", option, (uintmax_t)status);
    return false;
}

static int run(void *options, struct command_call *)
{
    struct mock_options *o = options;
    if (!check_status("fault-prefill-status", o->fault_prefill_status) || !check_status("fault-decode-status", o->fault_decode_status))
        return 2;
    if (o->kv_replay && !o->kv_events) {
        kvr_log_error("kvroute mock: replay: there is nothing to replay without --events; allowed: both, --events alone or none");
        return 2;
    }
    if (!o->tls_cert != !o->tls_key) {
        kvr_log_error("kvroute mock: tls-cert and tls-key: one is missing; allowed: both or none");
        return 2;
    }
    if (o->kv_protocol == MOCK_KV_SGLANG && check_sglang(o)) return 2;
    kvr_log_set_spoken(false);
    return mock_main(o);
}

const struct command command_mock = {
    .table = {"mock", "mock engine: prefix cache, batching, KV events, OpenAI API", help_mock, rows, KVR_ARRAY_LEN(rows), NULL, false},
    .options_size = sizeof(struct mock_options),
    .run = run,
    .stays = true};
