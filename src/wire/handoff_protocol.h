/* SPDX-License-Identifier: Apache-2.0 */
/* The ways in which engines hand KV over (wire/handoff.h). Threads: pure functions. */
#ifndef KVR_WIRE_HANDOFF_PROTOCOL_H
#define KVR_WIRE_HANDOFF_PROTOCOL_H

#include <stdbool.h>

/* A row each: its name, and whether both legs are sent at once; else D's goes after P's answer. */
#define KVR_KV_ROWS(X)                                                                                                                     \
    X(VLLM_NIXL, "vllm-nixl", false)                                                                                                       \
    X(VLLM_NIXL_PUSH, "vllm-nixl-push", true)                                                                                              \
    X(VLLM_MOONCAKE, "vllm-mooncake", true)                                                                                                \
    X(VLLM_P2P, "vllm-p2p", false)                                                                                                         \
    X(SGLANG, "sglang", true)                                                                                                              \
    X(TRTLLM, "trtllm", false)

enum kvr_kv_protocol {
#define KVR_KV_MEMBER(id, name, at_once) KVR_KV_##id,
    KVR_KV_ROWS(KVR_KV_MEMBER)
#undef KVR_KV_MEMBER
        KVR_KV_NONE, /* the engines share a storage */
    KVR_KV_PROTOCOLS
};

#define KVR_KV_LISTED(id, name, at_once) name ", "
#define KVR_KV_PROTOCOL_NAMES            KVR_KV_ROWS(KVR_KV_LISTED) "none"
#define KVR_KV_VALUE(id, name, at_once)  name "|"
#define KVR_KV_PROTOCOL_VALUES           KVR_KV_ROWS(KVR_KV_VALUE) "none" /* as an option has them */

const char *kvr_kv_protocol_name(enum kvr_kv_protocol p); /* static */
bool kvr_kv_protocol_parse(const char *s, enum kvr_kv_protocol *out);
/* Both legs are sent at once; else D's after P's answer. */
bool kvr_kv_protocol_at_once(enum kvr_kv_protocol p);

#endif
