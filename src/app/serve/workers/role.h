/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker computes of a request, and how two of them hand a computed prompt over: role.c. Pure functions. */
#ifndef KVR_SERVE_ROLE_H
#define KVR_SERVE_ROLE_H

#include <stdbool.h>

#include "wire/handoff.h"

/* All of it; its prompt, for another worker; what follows a prompt that another worker has computed. */
enum worker_role { ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE };

#define ROLES_ALLOWED "both, prefill, decode"
#define KV_PROTOCOLS_ALLOWED                                                                                                               \
    "vllm-nixl, trtllm, none" /* those in which the decode worker is asked when the prefill worker has answered                            \
                               */

enum { KV_LEASE_DEFAULT_S = 30, KV_LEASE_MAX_S = 86400 };

bool role_parse(const char *name, enum worker_role *out);
const char *role_name(enum worker_role role);
/* Of a value of --kv-protocol, by its place among those that are allowed. */
enum kvr_kv_protocol role_protocol(int option);
/* A protocol that is understood here. */
bool role_protocol_parse(const char *name, enum kvr_kv_protocol *out);

#endif
