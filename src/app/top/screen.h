/* SPDX-License-Identifier: Apache-2.0 */
/* A look as lines of text. Pure functions. */
#ifndef KVR_TOP_SCREEN_H
#define KVR_TOP_SCREEN_H

#include "app/top/look.h"
#include "base/buf.h"

struct screen {
    size_t columns, rows; /* rows 0: as many as there are lines */
    bool coloured;
};

/* Appends the lines, none of which is longer than the screen is wide. `before`: an earlier look, NULL: the rate is that since the start. */
void screen_put(struct kvr_buf *b, const struct screen *s, const char *url, const struct top_look *now, const struct top_look *before);

#endif
