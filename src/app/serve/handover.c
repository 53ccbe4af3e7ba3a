/* SPDX-License-Identifier: Apache-2.0 */
/* The ports of one process after the other: app/serve/handover.h. The order of the sockets: the admin port's (0: none came), then one of
 * each data loop. */
#include "app/serve/handover.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "app/serve/admin/admin.h"
#include "app/serve/common/process.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/port/ready.h"
#include "app/serve/workers/views/views.h"
#include "base/log.h"
#include "net/http/systemd.h"

enum {
    PATIENCE_MS = 60000,
    QUEUED_MS = 5000 /* clients of systemd's sockets wait for the first right answer, or for any */,
    READY_TICKS = 3 /* subscriptions have reached the engines when their connections have stood for so long */
};

static const char *name(const struct handover *h)
{
    return serve_program(h->process->o);
}

/* ---- taking ------------------------------------------------------------------------------------------- */

/* 0: of no address. */
static unsigned port_of(int fd)
{
    struct sockaddr_in a = {0}; /* its port is where the one of IPv6 is */
    socklen_t len = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &len) == 0 ? ntohs(a.sin_port) : 0;
}

/* Is it the port that the options name? */
static bool is_at(int fd, uint64_t port)
{
    return port == 0 || port_of(fd) == port;
}

static int refuse(struct handover *h, char *err, size_t cap, const char *why)
{
    snprintf(err, cap, "--handover: '%s': %s", h->process->o->handover, why);
    for (int i = 0; i < h->sockets_n; i++) close(h->sockets[i]);
    close(h->link);
    h->sockets_n = 0;
    return -1;
}

/* Loops for which there is none share those that there are: a socket has one queue, from which each loop takes. */
static void share(struct handover *h)
{
    size_t have = (size_t)h->sockets_n - 1, want = KVR_MIN((size_t)h->process->o->threads, (size_t)KVR_HANDOVER_FDS_MAX - 1);
    for (size_t i = have; have && i < want; i++) {
        int fd = fcntl(h->sockets[1 + i % have], F_DUPFD_CLOEXEC, 0);
        if (fd < 0) return;
        h->sockets[h->sockets_n++] = fd;
    }
}

/* Another socket can listen on its port, too. */
static bool can_be_joined(int fd)
{
    int on = 0;
    socklen_t len = sizeof on;
    return getsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, &len) == 0 && on;
}

static int from_systemd(struct handover *h, char *err, size_t cap);

int handover_begin(struct handover *h, char *err, size_t cap)
{
    char why[160];
    h->link = -1;
    ssize_t n = readlink("/proc/self/exe", h->program, sizeof h->program - 1); /* later another file may be there: the next one's */
    h->program[n > 0 ? n : 0] = 0;
    if (!h->process->o->handover) return from_systemd(h, err, cap);
    h->sockets_n = kvr_handover_ask(h->process->o->handover, h->sockets, &h->link);
    if (h->sockets_n < 0) {
        snprintf(err, cap, "--handover: '%s': %s; allowed: a path that this user may write to", h->process->o->handover,
                 uv_strerror(h->sockets_n));
        h->sockets_n = 0;
        return -1;
    }
    if (h->sockets_n == 0) return from_systemd(h, err, cap);
    size_t loops = (size_t)h->sockets_n - 1;
    if (loops > h->process->o->threads || (loops > 0) == h->process->o->select_only) {
        snprintf(why, sizeof why, "the process there has %zu data loops; allowed: --threads of at least as many, and the same program",
                 loops);
        return refuse(h, err, cap, why);
    }
    for (int i = 0; i < h->sockets_n; i++)
        if (!is_at(h->sockets[i], i ? h->process->o->port : h->process->o->admin_port))
            return refuse(h, err, cap, "the process there listens on other ports; allowed: the same --port and --admin-port");
    if (loops && !can_be_joined(h->sockets[1])) share(h);
    h->waits = h->process->succeeds = true;
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
    h->taken(h->ctx);
    if (h->link >= 0 && kvr_handover_take(h->link)) kvr_log_warning("%s: --handover: the process before has ended by itself", name(h));
    else if (h->link >= 0) kvr_log("%s: --handover: the ports are taken over", name(h));
    if (handover_start(h)) kvr_log_error("%s: --handover: the next process will not find the ports", name(h));
}

/* The process before serves until this one is ready, however long that takes, and goes on when it never is. */
static void succeed(struct handover *h, const char *why)
{
    if (is_alone(h)) {
        take_over(h);
    } else if (h->ready_ticks >= READY_TICKS) {
        if (succession_take(h->workers, h->link, &h->succession)) take_over(h);
    } else if (kvr_now_ms() - h->process->started_ms > PATIENCE_MS) {
        kvr_log_error("%s: --handover: given up, the process before goes on: %s", name(h), why);
        h->failed = true;
        uv_stop(&h->process->main_loop);
    }
}

void handover_tick(struct handover *h)
{
    const char *why = "";
    if (h->takes) taken_over(h);
    if (!h->waits && !h->takes) views_take_disk(h->workers);
    if (!h->waits) return;
    bool ready = data_plane_ready(h->data, &why);
    h->ready_ticks = ready ? h->ready_ticks + 1 : 0;
    if (h->link >= 0) succeed(h, why);
    else if (ready || kvr_now_ms() - h->process->started_ms > QUEUED_MS) take_over(h);
}

/* ---- sockets of systemd ------------------------------------------------------------------------------------ */

/* Of an address of IPv4 or IPv6: the same, or both are any. */
static bool same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    char x[64], y[64];
    if (uv_ip_name((const struct sockaddr *)a, x, sizeof x) || uv_ip_name((const struct sockaddr *)b, y, sizeof y)) return false;
    bool any_x = strcmp(x, "::") == 0 || strcmp(x, "0.0.0.0") == 0, any_y = strcmp(y, "::") == 0 || strcmp(y, "0.0.0.0") == 0;
    return any_x ? any_y : strcmp(x, y) == 0;
}

/* A program that says where it listens listens there: who may use the admin port depends on it. */
static int judge(int fd, const char *name, const char *host, uint64_t port, char *err, size_t cap)
{
    struct sockaddr_storage is = {0}, said = {0};
    socklen_t len = sizeof is;
    char text[64] = "?";
    if (uv_ip4_addr(host, (int)port, (struct sockaddr_in *)&said)) (void)uv_ip6_addr(host, (int)port, (struct sockaddr_in6 *)&said);
    if (getsockname(fd, (struct sockaddr *)&is, &len) == 0 && is_at(fd, port) && same_address(&is, &said)) return 0;
    (void)uv_ip_name((struct sockaddr *)&is, text, sizeof text);
    return kvr_refuse(err, cap, "the socket '%s' of systemd listens on %s port %u; allowed: what the options say, %s port %llu", name, text,
                      port_of(fd), host, (unsigned long long)port);
}

/*
 * Sockets that systemd has opened and keeps: it gives the same ones to the next process, so a restart refuses nobody. One `data` for each
 * loop (a socket unit with ReusePort=yes that names the port as often), or fewer, which loops share; and one `admin`. What is not given is
 * opened here. Who comes before the views are restored waits in the kernel's queue, where nobody is refused.
 */
static int from_systemd(struct handover *h, char *err, size_t cap)
{
    static const char *const names[] = {"admin", "data", NULL}, *const of_select[] = {"admin", NULL};
    const struct serve_options *o = h->process->o;
    int admin[2] = {0};
    if (kvr_systemd_check(o->select_only ? of_select : names, err, cap)) return -1;
    size_t admins = kvr_systemd_sockets("admin", admin, 2), n = kvr_systemd_sockets("data", h->sockets + 1, KVR_HANDOVER_FDS_MAX - 1);
    if (admins > 1 || (n && n > o->threads))
        return kvr_refuse(err, cap,
                          "systemd has given %zu sockets 'admin' and %zu 'data'; allowed: one, and as many as --threads (%llu) at most",
                          admins, n, (unsigned long long)o->threads);
    if (admins && judge(admin[0], "admin", o->admin_host, o->admin_port, err, cap)) return -1;
    for (size_t i = 0; i < n; i++)
        if (judge(h->sockets[1 + i], "data", o->host, o->port, err, cap)) return -1;
    h->sockets[0] = admin[0];
    h->sockets_n = admins || n ? (int)n + 1 : 0;
    if (n) share(h);
    h->waits = n || (admins && o->select_only);
    if (h->sockets_n) kvr_log("%s: sockets of systemd: %zu 'data', %zu 'admin'", name(h), n, admins);
    return 0;
}

/* ---- giving ------------------------------------------------------------------------------------------- */

static size_t sockets(void *ctx, int *fds)
{
    struct handover *h = ctx;
    fds[0] = admin_listener(h->admin);
    return 1 + data_plane_listeners(h->data, fds + 1, KVR_HANDOVER_FDS_MAX - 1);
}

static int on_question(void *ctx, const void *question, size_t len)
{
    const struct handover *h = ctx;
    return succession_give(h->workers, question, len);
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
    struct kvr_handover_config c = {
        &h->process->main_loop, h->process->o->handover, sockets, on_question, on_asked, on_denied, on_taken, h};
    if (!h->process->o->handover || h->waits) return 0;
    int rc = kvr_handover_offer(&c, &h->offer);
    if (rc)
        kvr_log_error("%s: --handover: '%s': %s; allowed: a path that this user may write to", name(h), h->process->o->handover,
                      uv_strerror(rc));
    return rc;
}

/* ---- the next one, from this one ---------------------------------------------------------------------------- */

static void on_next_closed(uv_handle_t *p)
{
    ((struct handover *)p->data)->next_runs = false;
}

static void on_next_ended(uv_process_t *p, int64_t status, int number)
{
    const struct handover *h = p->data;
    if (!process_is_ending(h->process))
        kvr_log_error("%s: --handover: the next process has ended by itself (%s %d): this one goes on", name(h),
                      number ? "signal" : "status", number ? number : (int)status);
    uv_close((uv_handle_t *)p, on_next_closed);
}

/* The words of this process's command line, one after the other. Returns: how many, or 0: it cannot be read. */
static size_t own_words(struct kvr_buf *out)
{
    char piece[4096];
    size_t words = 0;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    for (ssize_t n; fd >= 0 && (n = read(fd, piece, sizeof piece)) > 0;) kvr_buf_add(out, piece, (size_t)n);
    if (fd >= 0) close(fd);
    for (size_t i = 0; i < out->len && !out->failed; i++) words += out->data[i] == 0;
    return words;
}

/* As execve wants them; what is meant for this process alone is left out. */
static char **own_environment(void)
{
    size_t n = 0, kept = 0;
    while (environ[n]) n++;
    char **env = calloc(n + 1, sizeof *env);
    for (size_t i = 0; env && i < n; i++)
        if (strncmp(environ[i], "WATCHDOG_PID=", 13) != 0 && strncmp(environ[i], "LISTEN_", 7) != 0) env[kept++] = environ[i];
    return env;
}

static int spawn(struct handover *h, char **args, char **env)
{
    uv_stdio_container_t stdio[3];
    for (int fd = 0; fd < 3; fd++) {
        stdio[fd].flags = UV_INHERIT_FD;
        stdio[fd].data.fd = fd;
    }
    uv_process_options_t o = {.file = h->program, .args = args, .env = env, .stdio = stdio, .stdio_count = 3, .exit_cb = on_next_ended};
    h->next.data = h;
    h->next_runs = true;
    int rc = uv_spawn(&h->process->main_loop, &h->next, &o);
    if (rc) uv_close((uv_handle_t *)&h->next, on_next_closed); /* it is one of the loop's in any case */
    return rc;
}

void handover_start_next(struct handover *h)
{
    struct kvr_buf words = {0};
    if (!h->process->o->handover || h->next_runs || h->waits || h->takes || process_is_ending(h->process)) {
        kvr_log_warning("%s: SIGUSR2: %s", name(h), h->process->o->handover ? "a hand-over is under way" : "needs --handover");
        return;
    }
    size_t n = own_words(&words);
    char **args = calloc(n + 1, sizeof *args), **env = own_environment();
    char *at = words.data;
    for (size_t i = 0; args && i < n; i++, at += strlen(at) + 1) args[i] = at;
    int rc = n && args && env ? spawn(h, args, env) : UV_ENOMEM;
    if (rc) kvr_log_error("%s: SIGUSR2: '%s' cannot be started: %s", name(h), h->program, uv_strerror(rc));
    else kvr_log("%s: SIGUSR2: '%s' starts as process %d", name(h), h->program, h->next.pid);
    free(args);
    free(env);
    kvr_buf_free(&words);
}

void handover_withdraw(struct handover *h)
{
    kvr_handover_withdraw(h->offer);
}

void handover_stop(struct handover *h)
{
    kvr_handover_close(h->offer);
    h->offer = NULL;
}
