/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which engines hand KV over (wire/handoff.h). Threads: pure functions. */
#ifndef KVR_WIRE_HANDOFF_PROTOCOL_H
#define KVR_WIRE_HANDOFF_PROTOCOL_H

#include <stdbool.h>

enum kvr_kv_protocol {
    KVR_KV_VLLM_NIXL,
    KVR_KV_VLLM_NIXL_PUSH,
    KVR_KV_VLLM_MOONCAKE,
    KVR_KV_VLLM_P2P,
    KVR_KV_SGLANG,
    KVR_KV_TRTLLM,
    KVR_KV_NONE, /* the engines share a storage */
    KVR_KV_PROTOCOLS
};

#define KVR_KV_PROTOCOL_NAMES "vllm-nixl, vllm-nixl-push, vllm-mooncake, vllm-p2p, sglang, trtllm, none"

const char *kvr_kv_protocol_name(enum kvr_kv_protocol p); /* static */
bool kvr_kv_protocol_parse(const char *s, enum kvr_kv_protocol *out);
/* Both legs are sent at once; else D's after P's answer. */
bool kvr_kv_protocol_at_once(enum kvr_kv_protocol p);

#endif
