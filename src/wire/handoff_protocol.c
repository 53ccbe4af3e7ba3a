/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/handoff_protocol.h"

#include <string.h>

static const struct {
    const char *name;
    bool at_once;
} protocols[KVR_KV_PROTOCOLS] = {
#define ROW(id, name, at_once) [KVR_KV_##id] = {name, at_once},
    KVR_KV_ROWS(ROW)
#undef ROW
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
