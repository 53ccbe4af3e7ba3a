/* SPDX-License-Identifier: Apache-2.0 */
/* Names of values of options: options.h. */
#include "app/serve/common/options.h"

#include <string.h>

#include "base/base.h"

static const char *const modes[] = {"kv", "round-robin", "random", "least-loaded", "direct"};

const char *router_mode_name(int mode)
{
    return modes[mode];
}

int router_mode_of(const char *name, size_t len)
{
    for (int i = 0; i < (int)KVR_ARRAY_LEN(modes); i++)
        if (strlen(modes[i]) == len && memcmp(modes[i], name, len) == 0) return i;
    return -1;
}
