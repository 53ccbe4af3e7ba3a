/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/log_options.h"

#include <stdlib.h>
#include <string.h>

static int set_format(const char *value)
{
    int at;
    if (!options_enum(value, KVR_LOG_FORMATS, &at)) return 2;
    kvr_log_set_format((enum kvr_log_format)at);
    return 0;
}

static int set_level(const char *value)
{
    int at;
    if (!options_enum(value, KVR_LOG_LEVELS, &at)) return 2;
    kvr_log_set_level((enum kvr_log_level)at);
    return 0;
}

int log_from_environment(void)
{
    const char *format = getenv("KVROUTE_LOG_FORMAT"), *level = getenv("KVROUTE_LOG_LEVEL");
    if (format && set_format(format)) {
        kvr_log_error("kvroute: KVROUTE_LOG_FORMAT: bad value '%s'; allowed: " KVR_LOG_FORMATS, format);
        return 2;
    }
    if (level && set_level(level)) {
        kvr_log_error("kvroute: KVROUTE_LOG_LEVEL: bad value '%s'; allowed: " KVR_LOG_LEVELS, level);
        return 2;
    }
    return 0;
}
