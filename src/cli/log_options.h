/* SPDX-License-Identifier: Apache-2.0 */
/* --log-format and --log-level: rows for every program, and the environment. */
#ifndef KVR_CLI_LOG_OPTIONS_H
#define KVR_CLI_LOG_OPTIONS_H

#include <stddef.h>

#include "base/log.h"
#include "cli/options.h"

/* Rows of a struct kvr_log_options that stands at `at` in the options. */
#define LOG_ROWS(at)                                                                                                                       \
    GROUP("log", "Log"),                                                                                                                   \
        ROW("log-format", OPT_ENUM, (at) + offsetof(struct kvr_log_options, format), "text", 0, 0, KVR_LOG_FORMATS,                        \
            "lines on stderr: text, or one JSON object each"),                                                                             \
        ROW("log-level", OPT_ENUM, (at) + offsetof(struct kvr_log_options, level), "info", 0, 0, KVR_LOG_LEVELS,                           \
            "the least important lines that are written")

/* KVROUTE_LOG_FORMAT and KVROUTE_LOG_LEVEL. Returns: 0; 2 a value is bad, which the log says. */
int log_from_environment(void);

#endif
