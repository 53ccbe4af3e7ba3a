/* SPDX-License-Identifier: Apache-2.0 */
/* The picker's ports: data/picker/picker.h. */
#include "app/serve/data/picker/picker.h"

#include "app/serve/config/config.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/picker/call.h"
#include "app/serve/data/picker/observed.h"
#include "app/serve/data/picker/pick.h"
#include "app/serve/data/state/room.h"

enum { CONNECTIONS_MAX = 1024, STREAMS_MAX = 100000, HANDSHAKE_S = 10 };

static const struct {
    const char *path;
    struct call *(*begin)(struct picker *p, struct kvr_grpc_stream *s);
    bool for_all; /* on the port of health, too */
} services[] = {{"/envoy.service.ext_proc.v3.ExternalProcessor/Process", pick_new, false},
                {"/grpc.health.v1.Health/Check", health_check_new, true},
                {"/grpc.health.v1.Health/Watch", health_watch_new, true}};

static void begin(struct picker *p, struct kvr_grpc_stream *s, bool all)
{
    struct kvr_text path = kvr_grpc_path(s);
    for (size_t i = 0; i < KVR_ARRAY_LEN(services); i++) {
        if (!kvr_text_is(path, services[i].path) || (all && !services[i].for_all)) continue;
        struct call *c = services[i].begin(p, s);
        kvr_grpc_set_user(s, c);
        if (!c) kvr_grpc_finish(s, KVR_GRPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    kvr_grpc_finish(s, KVR_GRPC_UNIMPLEMENTED, "unknown method; there is ExternalProcessor/Process, Health/Check and Health/Watch");
}

static void on_open(struct kvr_grpc_stream *s, void *ctx)
{
    begin(ctx, s, false);
}

static void on_open_health(struct kvr_grpc_stream *s, void *ctx)
{
    begin(ctx, s, true);
}

static void on_message(struct kvr_grpc_stream *s, void *, const uint8_t *data, size_t len)
{
    struct call *c = kvr_grpc_user(s);
    if (c) c->service->message(c, data, len);
}

static void on_half_closed(struct kvr_grpc_stream *s, void *)
{
    struct call *c = kvr_grpc_user(s);
    if (c) c->service->half_closed(c);
}

static void on_gone(struct kvr_grpc_stream *s, void *)
{
    struct call *c = kvr_grpc_user(s);
    if (!c) return;
    c->stream = NULL;
    c->service->gone(c);
}

static struct kvr_grpc_server_config config_of(struct picker *p, uint16_t port, bool joins)
{
    struct data_plane *d = p->loop->data;
    return (struct kvr_grpc_server_config){.host = d->o->host,
                                           .port = port,
                                           .joins_port = joins,
                                           .connections_max = CONNECTIONS_MAX,
                                           .streams_max = STREAMS_MAX,
                                           .message_max = d->o->max_body_size + KVR_HTTP_HEAD_MAX,
                                           .write_max = 2 * d->o->max_body_size + (1 << 20),
                                           .memory_max = d->o->ext_proc_memory / d->o->threads,
                                           .handshake_timeout_s = HANDSHAKE_S,
                                           .write_timeout_s = d->o->client_write_timeout,
                                           .connection_age_s = d->o->ext_proc_connection_age,
                                           .tls = config_picker_tls(d->config),
                                           .shared = &d->grpc,
                                           .handler = {on_open, on_message, on_half_closed, on_gone, p}};
}

/* Plain, for who checks health without TLS: the first loop's alone. */
static int open_health(struct picker *p)
{
    struct kvr_grpc_server_config c = config_of(p, (uint16_t)p->loop->data->o->ext_proc_health_port, false);
    c.handler.on_open = on_open_health;
    c.tls = NULL;
    return kvr_grpc_server_start(&p->loop->uv, &c, &p->health);
}

int picker_open(struct loop *l, uint16_t port, struct data_port_named *opens)
{
    const struct serve_options *o = l->data->o;
    struct picker *p = l->picker = calloc(1, sizeof *p);
    *opens = (struct data_port_named){"ext-proc-port", o->ext_proc_port};
    if (!p) return UV_ENOMEM;
    p->loop = l;
    p->observed = observed_hold(port ? l->data->loops[0]->picker->observed : NULL);
    uv_timer_init(&l->uv, &p->look);
    uv_unref((uv_handle_t *)&p->look);
    p->look.data = p;
    if (!p->observed) return UV_ENOMEM;
    struct kvr_grpc_server_config c = config_of(p, port ? port : (uint16_t)o->ext_proc_port, port != 0);
    int rc = kvr_grpc_server_start(&l->uv, &c, &p->server);
    if (rc || port || !o->ext_proc_health_port) return rc;
    *opens = (struct data_port_named){"ext-proc-health-port", o->ext_proc_health_port};
    return open_health(p);
}

uint16_t picker_port(const struct picker *p)
{
    return kvr_grpc_server_port(p->server);
}

void picker_drain(struct picker *p)
{
    kvr_grpc_server_drain(p->server);
}

size_t picker_open_calls(const struct picker *p)
{
    return p->picks_n;
}

void picker_close(struct loop *l)
{
    struct picker *p = l->picker;
    l->picker = NULL;
    if (!p) return;
    kvr_grpc_server_close(p->server);
    kvr_grpc_server_close(p->health);
    picks_end(p);
    picker_take_mail(p);
    observed_let_go(p->observed);
    uv_close((uv_handle_t *)&p->look, kvr_free_closed);
}

void picker_metrics(struct data_plane *data, struct kvr_prom_page *out)
{
    const struct kvr_grpc_port port = {"ext_proc", &data->grpc};
    if (!data->o->ext_proc_port) return;
    kvr_grpc_shared_metrics(&port, 1, out);
}
