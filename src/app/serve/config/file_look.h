/* SPDX-License-Identifier: Apache-2.0 */
/* How files look from outside: whether one may say something else than it did, without reading it. Any thread. */
#ifndef KVR_SERVE_FILE_LOOK_H
#define KVR_SERVE_FILE_LOOK_H

#include <stdint.h>

/* Of what the path leads to (so a link that leads elsewhere is a change): where it is, how large, when it was written and moved there.
 * Files that belong together are looked at one after the other, each with the look of those before it; 0 for the first. */
uint64_t file_look(uint64_t before, const char *path);

#endif
