/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data loops: made, run, told of what happens elsewhere, ended; and what is made and ended with them.
 *
 * Threads: a loop's functions run on its own; those of data_plane.h on the main loop. What is said to a loop is an atomic of the room or of
 * the loop, and a wake-up.
 */
#include "app/serve/config/config.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/picker/picker.h"
#include "app/serve/data/port/data_port.h"
#include "app/serve/data/port/flow.h"
#include "app/serve/data/prompt/local_tokens.h"
#include "app/serve/data/request/reply.h"
#include "app/serve/data/state/decisions.h"
#include "app/serve/data/state/disagg_state.h"
#include "app/serve/data/state/room.h"
#include "app/serve/data/state/sessions.h"
#include "app/serve/data/state/token_cache.h"
#include "app/serve/data/two_legs/bootstrap.h"
#include "app/serve/data/two_legs/side_call.h"
#include "app/serve/peers/remote.h"
#include "app/serve/workers/workers.h"
#include "net/otlp/otlp.h"
#include "store/line_log.h"

enum { TOKEN_CACHE_BYTES = 16 << 20, ACCESS_LANE_BYTES = 1 << 20 };

/* ---- on a loop's thread ------------------------------------------------------------------------------- */

static void follow_phase(struct loop *l)
{
    struct data_plane *d = l->data;
    int phase = atomic_load(&d->process->phase);
    if (atomic_load(&d->go) && !l->took_over) {
        l->took_over = true;
        kvr_http_server_go(l->server);
        atomic_fetch_add(&d->gone, 1);
    }
    if (phase >= KVR_LAME) kvr_http_server_lame(l->server);
    if (atomic_load(&d->deaf)) kvr_http_server_deaf(l->server, true);
    if (phase < KVR_DRAINING || l->draining) return;
    l->draining = true;
    kvr_http_server_drain(l->server);
    if (l->picker) picker_drain(l->picker);
}

static void on_wake(uv_async_t *a)
{
    struct loop *l = a->data;
    bool stop = atomic_load(&l->stop); /* read first: whose turn came by the queues' end is ready then */
    atomic_store(&l->answered, atomic_load(&l->data->asked));
    follow_phase(l);
    flow_take_ready(l);
    if (l->picker) picker_take_mail(l->picker);
    if (stop) { /* who still waits is told */
        flow_refuse_parked(l);
        uv_stop(&l->uv);
        return;
    }
    flow_try_parked(l);
    if (!l->draining) return;
    struct kvr_http_server_stats st;
    kvr_http_server_stats(l->server, &st);
    atomic_store(&l->owed_conns, st.owed + (l->picker ? picker_open_calls(l->picker) : 0));
}

static void *loop_main(void *arg)
{
    struct loop *l = arg;
    kvr_http_spares_keep(SPARE_BODIES_MAX);
    uv_run(&l->uv, UV_RUN_DEFAULT);
    kvr_http_spares_keep(0);
    return NULL;
}

/* Its thread has ended. `wake` stays open until loop_free: another thread may be about to use it. */
static void loop_end(struct loop *l)
{
    flow_refuse_parked(l);
    local_tokens_stop_checks(l);
    picker_close(l);
    kvr_http_server_close(l->server);
    side_calls_stop(l);
    bootstraps_free(l);
    remote_close(l->remotes, &l->remotes_n);
    kvr_http_client_close(l->client);
    uv_unref((uv_handle_t *)&l->wake);
    while (uv_run(&l->uv, UV_RUN_DEFAULT)) continue; /* a late wake-up stops it */
}

/* The first loop takes the port, which --port may leave open; the others join it. */
static uint16_t port_of(const struct data_plane *d)
{
    return d->loops_n ? kvr_http_server_port(d->loops[0]->server) : (uint16_t)d->o->port;
}

static struct loop *loop_new(struct data_plane *d, const struct data_ports *ports, int *rc, struct data_port_named *opens)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->data = d;
    l->place = d->loops_n;
    l->ids.state = kvr_mix64_keyed(l->place, kvr_secret()) ^ d->process->salt;
    kvr_lock_init(&l->mail_lock, KVR_LOCK_MAIL);
    uv_loop_init(&l->uv);
    uv_async_init(&l->uv, &l->wake, on_wake);
    l->wake.data = l;
    l->json = kvr_json_parser_new();
    if (kvr_http_client_create(&l->uv, 3, &l->client) == 0)
        kvr_http_client_count_reopened(l->client, &workers_counters(d->workers)->reopened_connections_total);
    *rc = remote_open(d->peers, &l->uv, l->client, l->remotes, &l->remotes_n) ? UV_ENOMEM : 0;
    struct kvr_http_server_config sc = {.host = d->o->picks_only ? NULL : d->o->host,
                                        .port = port_of(d),
                                        .joins_port = d->loops_n > 0,
                                        .listener = d->loops_n < ports->sockets_n ? ports->sockets[d->loops_n] : 0,
                                        .waits = ports->waits,
                                        .body_max = d->o->max_body_size,
                                        .body_option = "--max-body-size",
                                        .connections_max = ports->connections_max,
                                        .head_timeout_s = 10,
                                        .body_timeout_s = 30,
                                        .idle_timeout_s = 75,
                                        .write_timeout_s = d->o->client_write_timeout,
                                        .shared = &d->http,
                                        .tls = config_tls(d->config),
                                        .handler = {data_port_on_request, data_port_on_gone, data_port_on_drained, reply_error_body, l},
                                        .on_refused = data_port_on_refused,
                                        .body_room = data_port_body_room,
                                        .put_headers = d->o->cors_allow_origin ? data_port_put_headers : NULL};
    *opens = (struct data_port_named){"port", d->o->port};
    if (*rc == 0) *rc = kvr_http_server_start(&l->uv, &sc, &l->server);
    if (*rc == 0 && d->o->ext_proc_port) *rc = picker_open(l, data_plane_picker_port(d), opens);
    return l;
}

/* No other thread is left. */
static void loop_free(struct loop *l)
{
    kvr_loop_end(&l->uv);
    ctx_list_free(&l->ctxs);
    kvr_json_parser_free(l->json);
    kvr_buf_free(&l->line);
    kvr_lock_destroy(&l->mail_lock);
    free(l);
}

/* ---- what they are told ------------------------------------------------------------------------------- */

void data_plane_wake(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++) uv_async_send(&d->loops[i]->wake);
}

void data_plane_wake_parked(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++)
        if (atomic_load(&d->loops[i]->parked_n) || atomic_load(&d->loops[i]->bound_n)) uv_async_send(&d->loops[i]->wake);
}

/* Nobody tells when decode workers are no longer overloaded. */
void data_plane_tick(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++)
        if (atomic_load(&d->loops[i]->gated_n)) uv_async_send(&d->loops[i]->wake);
}

void data_plane_take_connections(struct data_plane *d)
{
    atomic_store(&d->go, true);
    data_plane_wake(d);
}

bool data_plane_takes_connections(const struct data_plane *d)
{
    return atomic_load(&d->gone) >= d->loops_n;
}

bool data_plane_answers(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++)
        if (atomic_load(&d->loops[i]->answered) != atomic_load(&d->asked)) return false;
    atomic_fetch_add(&d->asked, 1);
    data_plane_wake(d);
    return true;
}

void data_plane_take_none(struct data_plane *d)
{
    atomic_store(&d->deaf, true);
}

void data_plane_phase_changed(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++) atomic_store(&d->loops[i]->owed_conns, 1); /* until each has looked */
    data_plane_wake(d);
}

bool data_plane_is_idle(const struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++)
        if (atomic_load(&d->loops[i]->in_flight) || atomic_load(&d->loops[i]->owed_conns)) return false;
    return true;
}

/* ---- their ports --------------------------------------------------------------------------------------- */

uint16_t data_plane_port(const struct data_plane *d)
{
    return port_of(d);
}

uint16_t data_plane_picker_port(const struct data_plane *d)
{
    return d->loops_n && d->loops[0]->picker ? picker_port(d->loops[0]->picker) : 0;
}

size_t data_plane_listeners(const struct data_plane *d, int *fds, size_t cap)
{
    size_t n = 0;
    for (; n < d->loops_n && n < cap; n++) fds[n] = kvr_http_server_listener(d->loops[n]->server);
    return n;
}

struct kvr_http_shared *data_plane_http(struct data_plane *d)
{
    return &d->http;
}

/* ---- what is kept ---------------------------------------------------------------------------------------- */

struct data_totals data_plane_totals(struct data_plane *d)
{
    struct data_counters *m = &d->counters;
    return (struct data_totals){.requests = atomic_load(&m->requests_total),
                                .retries = atomic_load(&m->retries_total),
                                .errors = atomic_load(&m->errors_total),
                                .prompt_tokens = atomic_load(&m->prompt_tokens_total),
                                .predicted_cached_tokens = atomic_load(&m->predicted_cached_tokens_total),
                                .actual_cached_tokens = atomic_load(&m->actual_cached_tokens_total),
                                .sessions = sessions_counts(d->sessions).bound,
                                .responses = sessions_counts(d->responses).bound};
}

void data_plane_decisions_write(struct data_plane *d, struct kvr_buf *b, size_t most)
{
    decisions_write(d->decisions, b, most);
}

bool data_plane_decision_write(struct data_plane *d, struct kvr_buf *b, const char *id, size_t len)
{
    return decisions_write_one(d->decisions, b, id, len);
}

void data_plane_count_long_prompt(struct data_plane *d)
{
    atomic_fetch_add_explicit(&d->counters.prompt_tokens_refused_total, 1, memory_order_relaxed);
}

bool data_plane_reopen_access_log(struct data_plane *d)
{
    if (d->access_log) kvr_line_log_reopen(d->access_log);
    return d->access_log != NULL;
}

/* ---- life ---------------------------------------------------------------------------------------------- */

struct data_plane *data_plane_create(struct process *p, const struct data_plane_uses *uses)
{
    const struct serve_options *o = p->o;
    struct data_plane *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->o = o;
    d->process = p;
    d->workers = uses->workers;
    d->config = uses->config;
    d->tokenizers = uses->tokenizers;
    d->peers = uses->peers;
    d->http.bodies_max = o->max_bodies_bytes;
    kvr_addresses_init(&d->addresses, o->address_connections);
    if (o->address_connections) d->http.addresses = &d->addresses;
    kvr_addresses_init(&d->unfinished, o->max_bodies_bytes ? KVR_MAX(o->max_bodies_bytes / 2, o->max_body_size) : 0);
    d->http.unfinished = &d->unfinished;
    fallback_counts_init(&d->fallback_counts);
    data_counters_init(&d->counters);
    kvr_lock_init(&d->quality.lock, KVR_LOCK_QUALITY);
    d->decisions = decisions_create();
    d->tokens = token_cache_create(TOKEN_CACHE_BYTES);
    if (o->session_ttl > 0) d->sessions = sessions_create(o->session_ttl);
    d->responses = responses_create();
    d->disagg_states = disagg_states_create();
    if (d->decisions && d->tokens && d->disagg_states) return d;
    data_plane_destroy(d);
    return NULL;
}

int data_plane_observe(struct data_plane *d, char *err, size_t cap)
{
    const struct serve_options *o = d->o;
    char why[480], instance[32];
    struct kvr_line_log_config log = {o->access_log, "kvroute: access log", o->threads, ACCESS_LANE_BYTES};
    if (o->access_log && kvr_line_log_create(&log, &d->access_log, why, sizeof why)) return kvr_refuse(err, cap, "--access-log: %s", why);
    snprintf(instance, sizeof instance, "%016llx", (unsigned long long)d->process->salt);
    struct kvr_otlp_config traces = {o->otlp_endpoint, o->otlp_service_name, instance};
    if (o->otlp_endpoint && kvr_otlp_create(&traces, &d->otlp, why, sizeof why)) return kvr_refuse(err, cap, "--otlp-endpoint: %s", why);
    return 0;
}

int data_plane_open(struct data_plane *d, const struct data_ports *ports, struct data_port_named *failed)
{
    d->loops = calloc(d->o->threads, sizeof(struct loop *));
    if (!d->loops) return UV_ENOMEM;
    for (uint64_t i = 0; i < d->o->threads; i++) {
        int rc = 0;
        struct loop *l = loop_new(d, ports, &rc, failed);
        if (!l) return UV_ENOMEM;
        kvr_http_client_open_max(l->client, ports->connections_max);
        d->loops[d->loops_n++] = l;
        if (rc) return rc;
    }
    return 0;
}

int data_plane_run(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++)
        if (pthread_create(&d->loops[i]->thread, NULL, loop_main, d->loops[i])) return -1;
    d->loops_run = true;
    return 0;
}

void data_plane_second(struct data_plane *d)
{
    disagg_states_look(d);
    quality_tick(d);
    data_plane_wake_parked(d); /* a breaker's pause may be over */
}

bool data_plane_stop(struct data_plane *d)
{
    bool ran = d->loops_run;
    if (ran)
        for (const struct partition *p = partitions_first(d->workers); p; p = p->next) kvr_router_shut_queue(p->router);
    for (size_t i = 0; i < d->loops_n; i++) atomic_store(&d->loops[i]->stop, true);
    if (ran) data_plane_wake(d);
    for (size_t i = 0; ran && i < d->loops_n; i++) pthread_join(d->loops[i]->thread, NULL);
    for (size_t i = 0; i < d->loops_n; i++) loop_end(d->loops[i]);
    kvr_line_log_destroy(d->access_log);
    kvr_otlp_destroy(d->otlp);
    d->access_log = NULL;
    d->otlp = NULL;
    return ran;
}

void data_plane_free_loops(struct data_plane *d)
{
    for (size_t i = 0; i < d->loops_n; i++) loop_free(d->loops[i]);
    free(d->loops);
    d->loops = NULL;
    d->loops_n = 0;
}

void data_plane_destroy(struct data_plane *d)
{
    if (!d) return;
    fallback_counts_destroy(&d->fallback_counts);
    disagg_states_destroy(d->disagg_states);
    sessions_destroy(d->sessions);
    sessions_destroy(d->responses);
    token_cache_destroy(d->tokens);
    decisions_destroy(d->decisions);
    kvr_addresses_destroy(&d->addresses);
    kvr_addresses_destroy(&d->unfinished);
    kvr_lock_destroy(&d->quality.lock);
    free(d);
}
