/* SPDX-License-Identifier: Apache-2.0 */
/* Names of roles: role.h. */
#include "app/serve/workers/table/role.h"

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
