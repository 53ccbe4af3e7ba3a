/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process gives its listening sockets to the one that comes after it, so that no connection is refused in between:
 *
 *     old: offers at a path                new: asks at that path
 *       <------------------------------------- connects
 *       ---- the sockets (SCM_RIGHTS) -------->
 *     goes on serving                      becomes ready; takes no connection yet
 *       <------------------------------------- asks for what it lacks, as often as it likes
 *       ---- a file, or none of it ----------->
 *       <------------------------------------- takes connections, then says "taken"
 *     takes none any more, and ends        offers at the path itself
 *
 * Both hold the same sockets of the kernel, so what waits in their queues is lost by neither. A taker that goes away without a word changes
 * nothing. Only processes of the same user are served, and are asked (the path's mode, and SO_PEERCRED).
 *
 * Threads: the offer's on the thread of its loop; asking and taking may block for KVR_HANDOVER_MS.
 */
#ifndef KVR_NET_HTTP_HANDOVER_H
#define KVR_NET_HTTP_HANDOVER_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

enum { KVR_HANDOVER_FDS_MAX = 250 /* the kernel's SCM_MAX_FD is 253 */, KVR_HANDOVER_MS = 5000, KVR_HANDOVER_QUESTION_MAX = 64 };
enum { KVR_HANDOVER_NONE = -1, KVR_HANDOVER_LATER = -2, KVR_HANDOVER_BROKEN = -3 /* nothing more can be asked */ };

struct kvr_handover;
struct kvr_handover_config {
    uv_loop_t *loop;
    const char *path; /* borrowed */
    /* The sockets; they stay the caller's. Returns: how many. */
    size_t (*sockets)(void *ctx, int fds[KVR_HANDOVER_FDS_MAX]);
    /* What a taker asks, whose bytes are its own and the program's. Returns: a descriptor, which is closed here; or KVR_HANDOVER_NONE,
     * KVR_HANDOVER_LATER. */
    int (*question)(void *ctx, const void *question, size_t len);
    void (*asked)(void *ctx);  /* a taker has them from now on; what only one process may hold is let go */
    void (*denied)(void *ctx); /* it has gone without taking them */
    void (*taken)(void *ctx);
    void *ctx;
};

/* Takes the place of a socket that is there, and of nothing else. Returns: 0 or a libuv error. */
int kvr_handover_offer(const struct kvr_handover_config *config, struct kvr_handover **out);
/* The path is free for whoever comes next. One that has asked may still take them, or ask. NULL is fine. */
void kvr_handover_withdraw(struct kvr_handover *h);
/* NULL is fine. Removes the path unless all was taken. Memory goes when the loop has run its close callbacks. */
void kvr_handover_close(struct kvr_handover *h);

/* Returns: how many sockets came, the caller's from now on, and *link to the process that has them, too; 0: nobody offers any; or a libuv
 * error. */
int kvr_handover_ask(const char *path, int fds[KVR_HANDOVER_FDS_MAX], int *link);
/* Returns: a descriptor, the caller's; or one of the above. Any thread, one at a time. */
int kvr_handover_question(int link, const void *question, size_t len);
/* Says "taken", and closes the link. Returns: 0 or a libuv error: the other process has gone meanwhile. */
int kvr_handover_take(int link);

#endif
