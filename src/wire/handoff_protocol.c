/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handoff_protocol.h"

#include <string.h>

static const struct {
    const char *name;
    bool at_once;
} protocols[KVR_KV_PROTOCOLS] = {
    [KVR_KV_VLLM_NIXL] = {"vllm-nixl", false},
    [KVR_KV_VLLM_NIXL_PUSH] = {"vllm-nixl-push", true},
    [KVR_KV_VLLM_MOONCAKE] = {"vllm-mooncake", true},
    [KVR_KV_VLLM_P2P] = {"vllm-p2p", false},
    [KVR_KV_SGLANG] = {"sglang", true},
    [KVR_KV_TRTLLM] = {"trtllm", false},
    [KVR_KV_NONE] = {"none", false},
};

const char *kvr_kv_protocol_name(enum kvr_kv_protocol p)
{
    return protocols[p].name;
}

bool kvr_kv_protocol_parse(const char *s, enum kvr_kv_protocol *out)
{
    for (unsigned p = 0; p < KVR_KV_PROTOCOLS; p++) {
        if (strcmp(protocols[p].name, s) != 0) continue;
        *out = (enum kvr_kv_protocol)p;
        return true;
    }
    return false;
}

bool kvr_kv_protocol_at_once(enum kvr_kv_protocol p)
{
    return protocols[p].at_once;
}
