/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms of option rows for a subcommand whose options are OPTIONS, defined before this is included; FIELD(name), where the options
 * of the program are a part of these. */
#ifndef KVR_CLI_OPTION_ROWS_H
#define KVR_CLI_OPTION_ROWS_H

#include <stddef.h>

#include "cli/options.h"

#ifndef FIELD
#define FIELD(name) name
#endif
#define AT(field) offsetof(OPTIONS, FIELD(field))
#define NUM(name, field, initial, min, max, help)                                                                                          \
    {                                                                                                                                      \
        name, OPT_U64, AT(field), initial, min, max, NULL, help, NULL, NULL                                                                \
    }
#define DBL(name, field, initial, min, max, help)                                                                                          \
    {                                                                                                                                      \
        name, OPT_DOUBLE, AT(field), initial, min, max, NULL, help, NULL, NULL                                                             \
    }
#define STR(name, field, initial, what, help)                                                                                              \
    {                                                                                                                                      \
        name, OPT_STRING, AT(field), initial, 0, 0, what, help, NULL, NULL                                                                 \
    }
#define SIZ(name, field, initial, help)                                                                                                    \
    {                                                                                                                                      \
        name, OPT_SIZE, AT(field), initial, 0, 0, NULL, help, NULL, NULL                                                                   \
    }
#define BOO(name, field, initial, help)                                                                                                    \
    {                                                                                                                                      \
        name, OPT_BOOL, AT(field), initial, 0, 0, NULL, help, NULL, NULL                                                                   \
    }
#define ENU(name, field, initial, values, help)                                                                                            \
    {                                                                                                                                      \
        name, OPT_ENUM, AT(field), initial, 0, 0, values, help, NULL, NULL                                                                 \
    }

#endif
