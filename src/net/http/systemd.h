/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a supervisor that speaks systemd's protocol tells a process, and is told by it, without its library: sd_notify(3), sd_listen_fds(3),
 * sd_watchdog_enabled(3). Where the environment has none of it, nothing is said and nothing comes.
 *
 *     LISTEN_FDS, LISTEN_PID, LISTEN_FDNAMES --> sockets that listen already      (kvr_systemd_sockets)
 *     READY=1, STATUS=..., STOPPING=1, ...   --> $NOTIFY_SOCKET, a datagram each  (kvr_systemd_tell)
 *     WATCHDOG=1 within WATCHDOG_USEC, else the process is taken for hung and killed (struct kvr_watchdog)
 *
 * THE WATCHDOG says that the process is alive only when every thread is whose standing still would leave clients without an answer, or with
 * wrong ones: the loop on which it runs, by running; the others by `alive`, which the program gives. A thread that waits for a disk or for
 * another machine (journals, snapshots, logs, libuv's pool) is none of them: it may stand still for long, and nobody is the worse for it.
 * The look is four times in WATCHDOG_USEC, so a thread may be held up for half of it, and no word is ever later than that.
 *
 * Threads: everything on the thread of the main loop.
 */
#ifndef KVR_NET_HTTP_SYSTEMD_H
#define KVR_NET_HTTP_SYSTEMD_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

/* Lines of NAME=value. What cannot be sent within a second is lost. */
void kvr_systemd_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The text that `systemctl status` shows; said when it is another one than before. */
void kvr_systemd_status(const char *text);
/* Configuration is read again, between these two. */
void kvr_systemd_reloading(void);
void kvr_systemd_reloaded(void);

/* Of the sockets that came, those of one name, in their order; they are the caller's. Returns: how many. */
size_t kvr_systemd_sockets(const char *name, int *fds, size_t cap);
/* That all that came are stream sockets that listen, with one of these names (NULL ends them). Returns: 0, or -1 with the reason. */
int kvr_systemd_check(const char *const *names, char *err, size_t cap);

struct kvr_watchdog {
    uv_timer_t timer;
    bool (*alive)(void *ctx); /* has each other thread moved since it was asked last? NULL: there is none */
    void *ctx;
};

/* The handle is closed with those of the loop. */
void kvr_watchdog_init(struct kvr_watchdog *w, uv_loop_t *loop, bool (*alive)(void *ctx), void *ctx);
void kvr_watchdog_start(struct kvr_watchdog *w);
void kvr_watchdog_stop(struct kvr_watchdog *w); /* another process speaks from now on */

#endif
