/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a text of help/: paragraphs, and lines that stay as they are: usage, and what begins with a blank. */
#ifndef KVR_CLI_HELP_TEXT_H
#define KVR_CLI_HELP_TEXT_H

#include <stdbool.h>

#include "base/buf.h"

#define HELP_USAGE "usage:" /* how the first part begins */

/* Takes the part at *at, of a paragraph with its lines joined, into an empty `out`, and moves *at behind it. false: there is none. */
bool help_text_next(const char **at, struct kvr_buf *out, bool *as_it_is);

#endif
