/* SPDX-License-Identifier: Apache-2.0 */
/* Short forms of option rows for a subcommand whose options are OPTIONS, defined before this is included; FIELD(name), where the options
 * of the program are a part of these. Behind each row's help may stand a name of other software's environment that is accepted, too. */
#ifndef KVR_CLI_OPTION_ROWS_H
#define KVR_CLI_OPTION_ROWS_H

#include <stddef.h>

#include "cli/options.h"

#ifndef FIELD
#define FIELD(name) name
#endif
#define AT(field)                                      offsetof(OPTIONS, FIELD(field))
#define NUM(name, field, initial, min, max, help, ...) ROW(name, OPT_U64, AT(field), initial, min, max, NULL, help, ##__VA_ARGS__)
#define DBL(name, field, initial, min, max, help, ...) ROW(name, OPT_DOUBLE, AT(field), initial, min, max, NULL, help, ##__VA_ARGS__)
#define STR(name, field, initial, what, help, ...)     ROW(name, OPT_STRING, AT(field), initial, 0, 0, what, help, ##__VA_ARGS__)
#define WOR(name, field, initial, what, help, ...)     ROW(name, OPT_WORDS, AT(field), initial, 0, 0, what, help, ##__VA_ARGS__)
#define PAI(name, field, initial, what, help, ...)     ROW(name, OPT_PAIRS, AT(field), initial, 0, 0, what, help, ##__VA_ARGS__)
#define SIZ(name, field, initial, help, ...)           ROW(name, OPT_SIZE, AT(field), initial, 0, 0, NULL, help, ##__VA_ARGS__)
#define BOO(name, field, initial, help, ...)           ROW(name, OPT_BOOL, AT(field), initial, 0, 0, NULL, help, ##__VA_ARGS__)
#define ENU(name, field, initial, values, help, ...)   ROW(name, OPT_ENUM, AT(field), initial, 0, 0, values, help, ##__VA_ARGS__)

#endif
