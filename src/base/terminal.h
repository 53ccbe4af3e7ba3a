/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVR_BASE_TERMINAL_H
#define KVR_BASE_TERMINAL_H

#include <stdbool.h>

/* Whether what is written there is seen in colours: on a terminal that has them (TERM), unless NO_COLOR is set (no-color.org). */
bool kvr_terminal_coloured(int fd);

#endif
