/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve/workers/role.h"

#include <string.h>

#include "base/base.h"

static const char *const roles[] = {"both", "prefill", "decode"};

bool role_parse(const char *name, enum worker_role *out)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(roles); i++)
        if (strcmp(name, roles[i]) == 0) {
            *out = (enum worker_role)i;
            return true;
        }
    return false;
}

const char *role_name(enum worker_role role)
{
    return roles[role];
}

enum kvr_kv_protocol role_protocol(int option)
{
    static const enum kvr_kv_protocol protocols[] = {KVR_KV_VLLM_NIXL, KVR_KV_TRTLLM, KVR_KV_NONE};
    return protocols[option];
}

bool role_protocol_parse(const char *name, enum kvr_kv_protocol *out)
{
    enum kvr_kv_protocol p;
    if (!kvr_kv_protocol_parse(name, &p)) return false;
    if (p != KVR_KV_VLLM_NIXL && p != KVR_KV_TRTLLM && p != KVR_KV_NONE) return false;
    *out = p;
    return true;
}
