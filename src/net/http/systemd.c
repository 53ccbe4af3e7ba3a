/* SPDX-License-Identifier: Apache-2.0 */
/* systemd's protocol: net/http/systemd.h. */
#include "net/http/systemd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/base.h"

enum { FIRST_FD = 3, SOCKETS_MAX = 1024 };

/* ---- telling ------------------------------------------------------------------------------------------ */

/* A path, or a name of the abstract space, whose first byte is 0 for the kernel and '@' in the environment. Returns: its length, or 0. */
static socklen_t address(struct sockaddr_un *a)
{
    const char *path = getenv("NOTIFY_SOCKET");
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof a->sun_path || (path[0] != '/' && path[0] != '@')) return 0;
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(a->sun_path, path, n);
    if (path[0] == '@') a->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

void kvr_systemd_tell(const char *format, ...)
{
    struct sockaddr_un a;
    socklen_t len = address(&a);
    char text[512];
    va_list args;
    if (!len) return;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    int fd = n > 0 ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0) return;
    struct timeval patience = {1, 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    (void)sendto(fd, text, KVR_MIN((size_t)n, sizeof text - 1), MSG_NOSIGNAL, (struct sockaddr *)&a, len);
    close(fd);
}

void kvr_systemd_status(const char *text)
{
    static char last[256];
    if (strcmp(last, text) == 0) return;
    snprintf(last, sizeof last, "%s", text);
    kvr_systemd_tell("STATUS=%s", last);
}

void kvr_systemd_reloading(void)
{
    kvr_systemd_tell("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(kvr_monotonic_ns() / 1000));
}

void kvr_systemd_reloaded(void)
{
    kvr_systemd_tell("READY=1");
}

/* ---- sockets that listen already ------------------------------------------------------------------------- */

static uint64_t number_of(const char *name, uint64_t max)
{
    const char *text = getenv(name);
    uint64_t n;
    return text && kvr_parse_u64(text, strlen(text), max, &n) ? n : 0;
}

/* How many came for this process. */
static int given(void)
{
    return number_of("LISTEN_PID", INT32_MAX) == (uint64_t)getpid() ? (int)number_of("LISTEN_FDS", SOCKETS_MAX) : 0;
}

/* The name of socket `at`; the names are separated by colons. */
static void name_of(int at, char *out, size_t cap)
{
    const char *names = getenv("LISTEN_FDNAMES");
    for (; names && at > 0; at--) names = strchr(names, ':') ? strchr(names, ':') + 1 : NULL;
    snprintf(out, cap, "%.*s", names ? (int)strcspn(names, ":") : 0, names ? names : "");
}

size_t kvr_systemd_sockets(const char *name, int *fds, size_t cap)
{
    char have[256];
    size_t n = 0;
    for (int i = 0, all = given(); i < all && n < cap; i++) {
        name_of(i, have, sizeof have);
        if (strcmp(have, name) == 0) fds[n++] = FIRST_FD + i;
    }
    return n;
}

static bool listens(int fd)
{
    int type = 0, on = 0;
    socklen_t len = sizeof type, on_len = sizeof on;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM &&
           getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &on_len) == 0 && on;
}

int kvr_systemd_check(const char *const *names, char *err, size_t cap)
{
    char name[256], allowed[128] = "";
    for (size_t i = 0; names[i]; i++) {
        size_t at = strlen(allowed);
        snprintf(allowed + at, sizeof allowed - at, "%s'%s'", i ? ", " : "", names[i]);
    }
    for (int i = 0, all = given(); i < all; i++) {
        size_t known = 0;
        name_of(i, name, sizeof name);
        while (names[known] && strcmp(names[known], name) != 0) known++;
        if (!names[known])
            return kvr_refuse(err, cap,
                              "systemd has given a socket named '%s'; allowed: FileDescriptorName= of the socket unit is one of %s", name,
                              allowed);
        if (!listens(FIRST_FD + i))
            return kvr_refuse(err, cap, "the socket '%s' of systemd does not listen; allowed: ListenStream=, with Accept=no", name);
        (void)fcntl(FIRST_FD + i, F_SETFD, FD_CLOEXEC);
        (void)fcntl(FIRST_FD + i, F_SETFL, fcntl(FIRST_FD + i, F_GETFL) | O_NONBLOCK);
    }
    return 0;
}

/* ---- the watchdog --------------------------------------------------------------------------------------- */

static void on_look(uv_timer_t *t)
{
    const struct kvr_watchdog *w = t->data;
    if (!w->alive || w->alive(w->ctx)) kvr_systemd_tell("WATCHDOG=1");
}

void kvr_watchdog_init(struct kvr_watchdog *w, uv_loop_t *loop, bool (*alive)(void *ctx), void *ctx)
{
    *w = (struct kvr_watchdog){.alive = alive, .ctx = ctx};
    uv_timer_init(loop, &w->timer);
    w->timer.data = w;
}

void kvr_watchdog_start(struct kvr_watchdog *w)
{
    uint64_t usec = number_of("WATCHDOG_USEC", INT64_MAX), pid = number_of("WATCHDOG_PID", INT32_MAX);
    if (usec && (!pid || pid == (uint64_t)getpid())) uv_timer_start(&w->timer, on_look, 0, KVR_MAX(usec / 4000, (uint64_t)1));
}

void kvr_watchdog_stop(struct kvr_watchdog *w)
{
    uv_timer_stop(&w->timer);
}
