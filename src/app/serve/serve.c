/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process: reads what is configured (read_all), starts the rooms (start_rooms), runs the main loop with its timers
 * and signals, drains, and stops the rooms in the reverse order (stop). The map of rooms and threads is in rooms.c.
 */
#include "app/serve/serve.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "app/serve/admin/admin.h"
#include "app/serve/admin/reload.h"
#include "app/serve/config/config.h"
#include "app/serve/config/keyring.h"
#include "app/serve/config/models_config.h"
#include "app/serve/config/port_tls.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/port/ready.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/handover.h"
#include "app/serve/peers/peers.h"
#include "app/serve/peers/remote.h"
#include "app/serve/peers/replicas.h"
#include "app/serve/rooms.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"
#include "net/http/jobs.h"
#include "net/http/systemd.h"
#include "net/zmq/curve.h"

struct serve {
    const struct serve_options *o;
    struct rooms rooms;
    struct handover handover;
    struct kvr_ending ending;
    struct kvr_watchdog watchdog;
    uv_signal_t hup, usr2;
    uv_timer_t second, poll;
};

/* ---- main loop --------------------------------------------------------------------------------------- */

/* This process is the service: not before it has taken the ports over, nor after it has given them away. */
static bool speaks(const struct serve *s)
{
    return !s->handover.waits && !s->handover.takes && !process_is_ending(&s->rooms.process);
}

static void tell_status(struct serve *s)
{
    const char *why = "";
    char text[160];
    if (!speaks(s)) return;
    if (data_plane_ready(s->rooms.data, &why)) snprintf(text, sizeof text, "ready, %zu worker(s)", workers_count(s->rooms.workers));
    else snprintf(text, sizeof text, "not ready: %s", why);
    kvr_systemd_status(text);
}

/* Requests are answered by the loops, and rightly as long as events are followed; the main loop asks. */
static bool is_alive(void *ctx)
{
    struct serve *s = ctx;
    bool events = views_move(s->rooms.workers), loops = data_plane_answers(s->rooms.data);
    return events && loops;
}

static void on_second(uv_timer_t *t)
{
    struct serve *s = t->data;
    struct rooms *r = &s->rooms;
    tell_status(s);
    workers_second(r->workers);
    config_second(r->config);
    data_plane_second(r->data);
    admin_second(r->admin);
}

/* A durable stream begins when the workers are known whose events it brings. */
static void follow_durable(struct rooms *r)
{
    enum { PATIENCE_MS = 5000 };
    if (views_durable_runs(r->workers) || r->process.o->plane.plane != KVR_PLANE_JETSTREAM) return;
    if (!discovery_settled(r->discovery) && kvr_now_ms() - r->process.started_ms < PATIENCE_MS) return;
    if (views_start_durable(r->workers)) kvr_log_error("kvroute: the durable stream cannot be followed: out of memory");
}

static void on_poll(uv_timer_t *t)
{
    struct serve *s = t->data;
    struct rooms *r = &s->rooms;
    workers_tick(r->workers);
    data_plane_tick(r->data);
    peers_tick(r->peers);
    discovery_tick(r->discovery);
    follow_durable(r);
    tokenizers_tick(r->tokenizers);
    admin_tick(r->admin);
    handover_tick(&s->handover);
}

static void on_phase(void *ctx, enum kvr_ending_phase phase)
{
    struct serve *s = ctx;
    struct rooms *r = &s->rooms;
    atomic_store(&r->process.phase, phase);
    if (phase == KVR_LAME) admin_lame(r->admin);
    data_plane_phase_changed(r->data);
    if (phase != KVR_DRAINING) return;
    admin_drain(r->admin);
    handover_withdraw(&s->handover);
    views_let_go_of_disk(r->workers);
}

static bool is_done(void *ctx)
{
    struct serve *s = ctx;
    bool done = data_plane_is_idle(s->rooms.data) && admin_is_idle(s->rooms.admin);
    data_plane_wake(s->rooms.data);
    return done;
}

/* The ports are this process's: of those that take part in a hand-over, this is the service from now on. */
static void on_ready(void *ctx)
{
    struct serve *s = ctx;
    if (s->rooms.process.succeeds) kvr_systemd_tell("MAINPID=%d", (int)getpid());
    kvr_systemd_tell("READY=1");
    kvr_watchdog_start(&s->watchdog);
}

static void on_given(void *ctx)
{
    struct serve *s = ctx;
    kvr_watchdog_stop(&s->watchdog);
    kvr_ending_begin(&s->ending, "the ports are handed over", true);
}

static void on_reload(uv_signal_t *sig, int)
{
    kvr_systemd_reloading();
    (void)reload_all(sig->data, "SIGHUP", NULL);
    kvr_systemd_reloaded();
}

static void on_next(uv_signal_t *sig, int)
{
    handover_start_next(sig->data);
}

static void watch(struct serve *s)
{
    struct rooms *r = &s->rooms;
    uv_loop_t *loop = &r->process.main_loop;
    struct kvr_ending_config c = {.program = serve_program(s->o),
                                  .lame_duck_s = s->o->lame_duck_time,
                                  .drain_s = s->o->drain_timeout,
                                  .enter = on_phase,
                                  .is_done = is_done,
                                  .ctx = s};
    kvr_ending_init(&s->ending, loop, &c);
    kvr_watchdog_init(&s->watchdog, loop, is_alive, s);
    uv_signal_init(loop, &s->hup);
    s->hup.data = r->admin;
    uv_signal_start(&s->hup, on_reload, SIGHUP);
    uv_signal_init(loop, &s->usr2);
    s->usr2.data = &s->handover;
    uv_signal_start(&s->usr2, on_next, SIGUSR2);
    uv_timer_init(loop, &s->second);
    uv_timer_init(loop, &s->poll);
    s->poll.data = s;
    uv_timer_start(&s->poll, on_poll, TICK_MS, TICK_MS);
    s->second.data = s;
    uv_timer_start(&s->second, on_second, 1000, 1000);
}

/* ---- start --------------------------------------------------------------------------------------------- */

static int add_configured_workers(struct serve *s)
{
    char err[2048];
    if (!s->o->workers_n && s->o->discovery == DISCOVERY_STATIC)
        kvr_log_warning("%s: warning: there is no worker and none is looked for; use --worker, --discovery or POST /workers",
                        serve_program(s->o));
    for (size_t i = 0; i < s->o->workers_n; i++)
        if (rooms_add_worker(&s->rooms, &s->o->workers[i], i + 1, err, sizeof err)) {
            kvr_log_error("%s: %s", serve_program(s->o), err);
            return 1;
        }
    return 0;
}

static int listen_failed(const struct serve_options *o, const char *flag, const char *host, uint64_t port, int rc)
{
    kvr_log_error("%s: --%s: cannot listen on %s:%llu: %s; allowed: a free port and an address of this machine", serve_program(o), flag,
                  host, (unsigned long long)port, uv_strerror(rc));
    return 1;
}

enum {
    ADMIN_CONNECTIONS_MAX = 4096,
    FOR_EACH_WORKER = 12 /* descriptors: nine for good, most of them sockets of its events and their monitors; checks, surveys */
};

/* Of the descriptors that are left an eighth is for the admin port, and each client of the data port may need one to a worker. */
static size_t admin_connections(const struct serve *s)
{
    size_t room = kvr_http_descriptors_room(FOR_EACH_WORKER * workers_count(s->rooms.workers));
    return KVR_MIN((size_t)ADMIN_CONNECTIONS_MAX, KVR_MAX(s->o->select_only ? room / 2 : room / 8, (size_t)2));
}

static size_t data_connections(const struct serve *s)
{
    size_t room = kvr_http_descriptors_room(admin_connections(s) + FOR_EACH_WORKER * workers_count(s->rooms.workers));
    size_t most = KVR_MIN((size_t)s->o->max_connections, KVR_MAX(room / 2 / s->o->threads, (size_t)2));
    if (most < KVR_MIN(s->o->max_connections, (uint64_t)1024))
        kvr_log_warning("%s: warning: only %zu client connections per loop: this process may open too few files (ulimit -n)",
                        serve_program(s->o), most);
    return most;
}

/* Sockets that the process before has given: the admin port's, then one of each data loop. */
static int open_ports(struct serve *s)
{
    const struct handover *h = &s->handover;
    size_t given = (size_t)h->sockets_n;
    struct data_ports ports = {h->sockets + (given > 0), given - (given > 0), h->waits, 0};
    struct admin_port admin = {given ? h->sockets[0] : 0, h->waits, admin_connections(s)};
    if (!s->o->select_only) {
        ports.connections_max = data_connections(s);
        struct data_port_named failed;
        int rc = data_plane_open(s->rooms.data, &ports, &failed);
        if (rc) return listen_failed(s->o, failed.option, s->o->host, failed.port, rc);
    }
    int rc = admin_start(s->rooms.admin, &admin);
    return rc ? listen_failed(s->o, s->o->select_only ? "port" : "admin-port", s->o->admin_host, s->o->admin_port, rc) : 0;
}

static void announce(const struct serve *s)
{
    const struct rooms *r = &s->rooms;
    const char *admin = config_admin_tls(r->config) ? "https" : "http";
    const char *caches = s->o->use_remote_indexer ? "another's index" : views_run(r->workers) ? "KV events" : "predicted cache";
    if (s->o->select_only)
        printf("kvroute select: on %s://%s:%u/, mode %s, %s\n", admin, s->o->admin_host, admin_port(r->admin), router_mode_name(s->o->mode),
               caches);
    else {
        printf("%s: ", serve_program(s->o));
        if (!s->o->picks_only) printf("data on %s%s:%u, ", config_tls(r->config) ? "https://" : "", s->o->host, data_plane_port(r->data));
        if (s->o->ext_proc_port) printf("ext_proc on %s:%u, ", s->o->host, data_plane_picker_port(r->data));
        printf("admin on %s://%s:%u/, mode %s, %s, %zu worker(s)\n", admin, s->o->admin_host, admin_port(r->admin),
               router_mode_name(s->o->mode), caches, workers_count(r->workers));
    }
    fflush(stdout);
}

static int connect_nats(struct rooms *r, char *err, size_t cap)
{
    const struct serve_options *o = r->process.o;
    if (kvr_plane_scope(&o->plane, r->process.scope, err, cap)) return -1;
    if (remote_parse(r->peers, err, cap)) return -1;
    if (o->plane.plane == KVR_PLANE_ZMQ && !remote_needs_nats(r->peers) && !replicas_over_nats(o) && o->discovery != DISCOVERY_NATS)
        return 0;
    return kvr_plane_connect(&o->plane, serve_program(o), &r->process.nats, err, cap);
}

/* Reads what is configured. */
static int read_all(struct serve *s, char *err, size_t cap)
{
    struct rooms *r = &s->rooms;
    reload_begin(r->admin); /* before they are read: what changes in between is seen later */
    return handover_begin(&s->handover, err, cap) || data_plane_observe(r->data, err, cap) || port_tls_open(r->config, err, cap) ||
           models_config_open(r->config, err, cap) || admin_open(r->admin, err, cap) || keyrings_open(r->config, err, cap) ||
           kvr_curve_load(&s->o->plane.curve, &r->process.curve, err, cap) || connect_nats(r, err, cap);
}

static int start_rooms(struct serve *s, char *err, size_t cap)
{
    struct rooms *r = &s->rooms;
    *err = 0; /* what has said so itself leaves it empty */
    if (views_start(r->workers) || peers_start(r->peers, err, cap) || workers_start(r->workers, err, cap)) return -1;
    if (s->o->select_only ? admin_text_open(r->admin, err, cap) : tokenizers_open(r->tokenizers, err, cap)) return -1;
    if (!s->o->select_only && add_configured_workers(s)) return -1;
    return discovery_start(r->discovery, err, cap) || open_ports(s) || discovery_announce(r->discovery, admin_port(r->admin), err, cap);
}

static int run(struct serve *s)
{
    struct rooms *r = &s->rooms;
    char err[2048];
    if (read_all(s, err, sizeof err) || start_rooms(s, err, sizeof err)) {
        if (*err) kvr_log_error("kvroute %s: %s", serve_command(s->o), err);
        return 1;
    }
    watch(s);
    if (handover_start(&s->handover) || data_plane_run(r->data)) return 1;
    announce(s);
    if (speaks(s)) on_ready(s);
    uv_run(&r->process.main_loop, UV_RUN_DEFAULT);
    uv_timer_stop(&s->second); /* what they look after ends now */
    uv_timer_stop(&s->poll);
    return s->handover.failed;
}

/* ---- end ------------------------------------------------------------------------------------------------ */

/* In the reverse of the order in which they began, but for what another room still uses. */
static void stop(struct serve *s)
{
    struct rooms *r = &s->rooms;
    bool ran = data_plane_stop(r->data);
    handover_stop(&s->handover);
    admin_stop(r->admin);
    tokenizers_stop(r->tokenizers);
    workers_stop(r->workers);
    discovery_stop(r->discovery);
    peers_stop(r->peers);
    views_stop(r->workers);
    replicas_stop(r->peers); /* views have told it of bookings */
    kvr_nats_close(r->process.nats);
    if (ran) kvr_ending_tell(&s->ending, (struct kvr_http_shared *[]){data_plane_http(r->data), admin_http(r->admin)}, 2);
    uv_run(&r->process.main_loop, UV_RUN_NOWAIT);
    kvr_loop_end(&r->process.main_loop);
}

int serve_main(const struct serve_options *o)
{
    struct serve *s = calloc(1, sizeof *s);
    if (!s || !rooms_create(&s->rooms, o)) {
        kvr_log_error("kvroute %s: out of memory", serve_command(o));
        free(s);
        return 1;
    }
    s->o = o;
    s->handover = (struct handover){.process = &s->rooms.process,
                                    .workers = s->rooms.workers,
                                    .data = s->rooms.data,
                                    .admin = s->rooms.admin,
                                    .taken = on_ready,
                                    .given = on_given,
                                    .ctx = s};
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of a write */
    kvr_http_descriptors_raise();
    kvr_jobs_reserve_threads((o->select_only ? 0 : o->threads) + 1);
    uv_loop_init(&s->rooms.process.main_loop);
    int rc = run(s);
    stop(s);
    rooms_destroy(&s->rooms);
    free(s);
    return rc;
}
