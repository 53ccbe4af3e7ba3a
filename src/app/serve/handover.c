/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of one process after the other: app/serve/handover.h. The order of the sockets: the admin port's, then one of each data loop.
 */
#include "app/serve/handover.h"

#include "app/serve/data/ready.h"
#include "app/serve/state.h"
#include "base/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATIENCE_MS = 60000 };

static const char *name(const struct serve *s)
{
    return s->o->select_only ? "kvroute select" : "kvroute serve";
}

/* ---- taking ------------------------------------------------------------------------------------------- */

/* Is it the port that the options name? */
static bool is_at(int fd, uint64_t port)
{
    struct sockaddr_in a = {0}; /* its port is where the one of IPv6 is */
    socklen_t len = sizeof a;
    return port == 0 || (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && ntohs(a.sin_port) == port);
}

static int refuse(struct serve *s, char *err, size_t cap, const char *why)
{
    struct handover *h = &s->handover;
    snprintf(err, cap, "--handover: '%s': %s", s->o->handover, why);
    for (int i = 0; i < h->sockets_n; i++) close(h->sockets[i]);
    close(h->link);
    h->sockets_n = 0;
    return -1;
}

int handover_begin(struct serve *s, char *err, size_t cap)
{
    struct handover *h = &s->handover;
    char why[160];
    if (!s->o->handover) return 0;
    h->sockets_n = kvr_handover_ask(s->o->handover, h->sockets, &h->link);
    if (h->sockets_n < 0) {
        snprintf(err, cap, "--handover: '%s': %s; allowed: a path that this user may write to", s->o->handover, uv_strerror(h->sockets_n));
        h->sockets_n = 0;
        return -1;
    }
    if (h->sockets_n == 0) return 0;
    size_t loops = (size_t)h->sockets_n - 1;
    if (loops > s->o->threads || (loops > 0) == s->o->select_only) {
        snprintf(why, sizeof why, "the process there has %zu data loops; allowed: --threads of at least as many, and the same program",
                 loops);
        return refuse(s, err, cap, why);
    }
    for (int i = 0; i < h->sockets_n; i++)
        if (!is_at(h->sockets[i], i ? s->o->port : s->o->admin_port))
            return refuse(s, err, cap, "the process there listens on other ports; allowed: the same --port and --admin-port");
    h->waits = true;
    return 0;
}

/* The process before this one has ended without giving its place. */
static bool is_alone(const struct handover *h)
{
    char byte;
    return recv(h->link, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

static void take_over(struct serve *s)
{
    struct handover *h = &s->handover;
    h->waits = false;
    atomic_store(&h->go, true);
    kvr_http_server_go(s->admin);
    for (size_t i = 0; i < s->loops_n; i++) uv_async_send(&s->loops[i]->wake);
    h->takes = true;
}

/* All loops take connections: now the other may stop. */
static void taken_over(struct serve *s)
{
    struct handover *h = &s->handover;
    if (atomic_load(&h->gone) < s->loops_n) return;
    h->takes = false;
    if (kvr_handover_take(h->link)) kvr_log_warning("%s: --handover: the process before has ended by itself", name(s));
    else kvr_log("%s: --handover: the ports are taken over", name(s));
    if (handover_start(s)) kvr_log_error("%s: --handover: the next process will not find the ports", name(s));
}

void handover_tick(struct serve *s)
{
    struct handover *h = &s->handover;
    const char *why = "";
    if (h->takes) taken_over(s);
    if (!h->waits) return;
    if (serve_ready(s, &why) || is_alone(h)) {
        take_over(s);
    } else if (now_ms() - s->started_ms > PATIENCE_MS) {
        kvr_log_error("%s: --handover: given up, the process before goes on: %s", name(s), why);
        h->failed = true;
        uv_stop(&s->main_loop);
    }
}

/* ---- giving ------------------------------------------------------------------------------------------- */

static size_t sockets(void *ctx, int *fds)
{
    struct serve *s = ctx;
    size_t n = 0;
    fds[n++] = kvr_http_server_listener(s->admin);
    for (size_t i = 0; i < s->loops_n && n < KVR_HANDOVER_FDS_MAX; i++) fds[n++] = kvr_http_server_listener(s->loops[i]->server);
    return n;
}

static void on_asked(void *ctx)
{
    kvr_log("%s: --handover: another process gets ready to take the ports", name(ctx));
}

static void on_denied(void *ctx)
{
    kvr_log_warning("%s: --handover: the other process has gone without taking the ports", name(ctx));
}

static void on_taken(void *ctx)
{
    struct serve *s = ctx;
    atomic_store(&s->handover.given, true);
    kvr_http_server_deaf(s->admin, true);
    kvr_ending_begin(&s->ending, "the ports are handed over", true);
}

int handover_start(struct serve *s)
{
    struct kvr_handover_config c = {&s->main_loop, s->o->handover, sockets, on_asked, on_denied, on_taken, s};
    if (!s->o->handover || s->handover.waits) return 0;
    int rc = kvr_handover_offer(&c, &s->handover.offer);
    if (rc)
        kvr_log_error("%s: --handover: '%s': %s; allowed: a path that this user may write to", name(s), s->o->handover, uv_strerror(rc));
    return rc;
}

void handover_stop(struct serve *s)
{
    kvr_handover_close(s->handover.offer);
    s->handover.offer = NULL;
}
