/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of one process after the other: app/serve/handover.h. The order of the sockets: the admin port's, then one of each data loop.
 */
#include "app/serve/handover.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "app/serve/admin/admin.h"
#include "app/serve/common/clock.h"
#include "app/serve/common/process.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/port/ready.h"
#include "base/log.h"

enum { PATIENCE_MS = 60000 };

static const char *name(const struct handover *h)
{
    return h->process->o->select_only ? "kvroute select" : "kvroute serve";
}

/* ---- taking ------------------------------------------------------------------------------------------- */

/* Is it the port that the options name? */
static bool is_at(int fd, uint64_t port)
{
    struct sockaddr_in a = {0}; /* its port is where the one of IPv6 is */
    socklen_t len = sizeof a;
    return port == 0 || (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && ntohs(a.sin_port) == port);
}

static int refuse(struct handover *h, char *err, size_t cap, const char *why)
{
    snprintf(err, cap, "--handover: '%s': %s", h->process->o->handover, why);
    for (int i = 0; i < h->sockets_n; i++) close(h->sockets[i]);
    close(h->link);
    h->sockets_n = 0;
    return -1;
}

int handover_begin(struct handover *h, char *err, size_t cap)
{
    char why[160];
    if (!h->process->o->handover) return 0;
    h->sockets_n = kvr_handover_ask(h->process->o->handover, h->sockets, &h->link);
    if (h->sockets_n < 0) {
        snprintf(err, cap, "--handover: '%s': %s; allowed: a path that this user may write to", h->process->o->handover,
                 uv_strerror(h->sockets_n));
        h->sockets_n = 0;
        return -1;
    }
    if (h->sockets_n == 0) return 0;
    size_t loops = (size_t)h->sockets_n - 1;
    if (loops > h->process->o->threads || (loops > 0) == h->process->o->select_only) {
        snprintf(why, sizeof why, "the process there has %zu data loops; allowed: --threads of at least as many, and the same program",
                 loops);
        return refuse(h, err, cap, why);
    }
    for (int i = 0; i < h->sockets_n; i++)
        if (!is_at(h->sockets[i], i ? h->process->o->port : h->process->o->admin_port))
            return refuse(h, err, cap, "the process there listens on other ports; allowed: the same --port and --admin-port");
    h->waits = true;
    return 0;
}

/* The process before this one has ended without giving its place. */
static bool is_alone(const struct handover *h)
{
    char byte;
    return recv(h->link, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
}

static void take_over(struct handover *h)
{
    h->waits = false;
    admin_take_connections(h->admin);
    data_plane_take_connections(h->data);
    h->takes = true;
}

/* All loops take connections: now the other may stop. */
static void taken_over(struct handover *h)
{
    if (!data_plane_takes_connections(h->data)) return;
    h->takes = false;
    if (kvr_handover_take(h->link)) kvr_log_warning("%s: --handover: the process before has ended by itself", name(h));
    else kvr_log("%s: --handover: the ports are taken over", name(h));
    if (handover_start(h)) kvr_log_error("%s: --handover: the next process will not find the ports", name(h));
}

void handover_tick(struct handover *h)
{
    const char *why = "";
    if (h->takes) taken_over(h);
    if (!h->waits) return;
    if (data_plane_ready(h->data, &why) || is_alone(h)) {
        take_over(h);
    } else if (now_ms() - h->process->started_ms > PATIENCE_MS) {
        kvr_log_error("%s: --handover: given up, the process before goes on: %s", name(h), why);
        h->failed = true;
        uv_stop(&h->process->main_loop);
    }
}

/* ---- giving ------------------------------------------------------------------------------------------- */

static size_t sockets(void *ctx, int *fds)
{
    struct handover *h = ctx;
    fds[0] = admin_listener(h->admin);
    return 1 + data_plane_listeners(h->data, fds + 1, KVR_HANDOVER_FDS_MAX - 1);
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
    struct handover *h = ctx;
    data_plane_take_none(h->data);
    admin_take_none(h->admin);
    h->given(h->ctx);
}

int handover_start(struct handover *h)
{
    struct kvr_handover_config c = {&h->process->main_loop, h->process->o->handover, sockets, on_asked, on_denied, on_taken, h};
    if (!h->process->o->handover || h->waits) return 0;
    int rc = kvr_handover_offer(&c, &h->offer);
    if (rc)
        kvr_log_error("%s: --handover: '%s': %s; allowed: a path that this user may write to", name(h), h->process->o->handover,
                      uv_strerror(rc));
    return rc;
}

void handover_stop(struct handover *h)
{
    kvr_handover_close(h->offer);
    h->offer = NULL;
}
