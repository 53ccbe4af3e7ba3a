/* SPDX-License-Identifier: Apache-2.0 */
/* Names of programs and of values of options: options.h. */
#include "app/serve/common/options.h"

#include <string.h>

#include "base/base.h"

static const char *const modes[] = {"kv", "round-robin", "random", "least-loaded", "direct"};

const char *serve_program(const struct serve_options *o)
{
    return o->select_only ? "kvroute select" : o->picks_only ? "kvroute epp" : "kvroute serve";
}

const char *serve_command(const struct serve_options *o)
{
    return serve_program(o) + strlen("kvroute ");
}

const char *router_mode_name(int mode)
{
    return modes[mode];
}

int router_mode_of(const char *name, size_t len)
{
    for (int i = 0; i < (int)KVR_ARRAY_LEN(modes); i++)
        if (kvr_span_is(name, len, modes[i])) return i;
    return -1;
}
