/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker computes of a request: role.c. Pure functions. */
#ifndef KVR_SERVE_ROLE_H
#define KVR_SERVE_ROLE_H

#include <stdbool.h>

/* All of it; its prompt, for another worker; what follows a prompt that another worker has computed. */
enum worker_role { ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE };

#define ROLES_ALLOWED "both, prefill, decode"

#define KV_DOMAIN_TAINT "kv-domain=" /* before the domain: a taint of the worker */
enum { KV_DOMAIN_MAX = 53 };         /* so that both have room in a taint */

bool role_parse(const char *name, enum worker_role *out);
const char *role_name(enum worker_role role);

#endif
