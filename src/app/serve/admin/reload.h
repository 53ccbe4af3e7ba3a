/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files that are read again while the process runs: all of them by SIGHUP and by POST /reload, one that has changed by --watch-files. Each
 * is taken as a whole or changes nothing.
 *
 * Threads: the main loop. A reload runs from one end to the other without a turn of the loop in between, so there are never two at once:
 * who asks for one meanwhile is answered after it, by a reload of its own, which finds what the files say then.
 */
#ifndef KVR_SERVE_RELOAD_H
#define KVR_SERVE_RELOAD_H

#include <stddef.h>

#include "app/serve/config/reloads.h"

struct kvr_buf;
struct kvr_http_conn;
struct admin;

/* When all files have been read at the start. */
void reload_begin(struct admin *admin);
/* Reads all again. `by` is who asks, for the log; out: what became of each, as a JSON object, or NULL. Returns: whether none was refused.
 */
bool reload_all(struct admin *admin, const char *by, struct kvr_buf *out);
/* One of them, which must be configured. Returns: 0, or -1 with the reason in err. */
int reload_file(struct admin *admin, enum reload_file file, const char *by, char *err, size_t cap);
/* --watch-files: looks at each file, once in so many seconds, and reads those that have changed and look the same for the second time: one
 * that is being written is left until it is whole. */
void reload_tick(struct admin *admin);
/* POST /reload: 200 where none was refused, 422 where one was. */
void reload_post(struct admin *admin, struct kvr_http_conn *c);

#endif
