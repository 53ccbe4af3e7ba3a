/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC's health service (grpc.health.v1), as gateways and Kubernetes ask for it. Names:
 *
 *     ""                                                   the process serves, until it drains
 *     liveness                                             it lives
 *     readiness, inference-extension,
 *     envoy.service.ext_proc.v3.ExternalProcessor          requests should be sent here: GET /ready of the admin port
 */
#include <string.h>

#include "app/serve/data/picker/call.h"
#include "app/serve/data/picker/picker.h"
#include "app/serve/data/port/ready.h"
#include "app/serve/data/state/room.h"
#include "base/list.h"
#include "wire/ext_proc.h"

enum { LOOK_MS = 200 };

struct watch {
    struct call call;
    struct watch *next, *prev;
    bool watches; /* a Check is answered once */
    bool asked;
    enum kvr_health told;
    char name[KVR_HEALTH_NAME_MAX + 1];
};

static enum kvr_health look(const struct watch *w)
{
    static const char *const ready[] = {"readiness", "inference-extension", "envoy.service.ext_proc.v3.ExternalProcessor"};
    struct data_plane *d = w->call.picker->loop->data;
    const char *why;
    if (!strcmp(w->name, "liveness")) return KVR_HEALTH_SERVING;
    if (!w->name[0]) return process_is_ending(d->process) ? KVR_HEALTH_NOT_SERVING : KVR_HEALTH_SERVING;
    for (size_t i = 0; i < KVR_ARRAY_LEN(ready); i++)
        if (!strcmp(w->name, ready[i])) return data_plane_ready(d, &why) ? KVR_HEALTH_SERVING : KVR_HEALTH_NOT_SERVING;
    return KVR_HEALTH_SERVICE_UNKNOWN;
}

static void tell(struct watch *w, enum kvr_health health)
{
    struct kvr_buf b = {0};
    w->told = health;
    kvr_health_put(&b, health);
    if (b.failed) kvr_grpc_reset(w->call.stream);
    else kvr_grpc_send(w->call.stream, b.data, b.len);
    kvr_buf_free(&b);
}

static void on_look(uv_timer_t *t)
{
    const struct picker *p = t->data;
    for (struct watch *w = p->watches; w; w = w->next) {
        enum kvr_health health = w->asked && w->watches ? look(w) : w->told;
        if (health != w->told) tell(w, health);
    }
}

static void answer(struct watch *w)
{
    enum kvr_health health = look(w);
    w->asked = true;
    if (w->watches) {
        tell(w, health);
        return;
    }
    if (health == KVR_HEALTH_SERVICE_UNKNOWN) {
        kvr_grpc_finish(w->call.stream, KVR_GRPC_NOT_FOUND, "unknown service");
        return;
    }
    tell(w, health);
    kvr_grpc_finish(w->call.stream, KVR_GRPC_OK, NULL);
}

static void message(struct call *c, const uint8_t *data, size_t len)
{
    struct watch *w = (struct watch *)c;
    if (w->asked || kvr_health_read(data, len, w->name)) {
        kvr_grpc_finish(c->stream, KVR_GRPC_INVALID_ARGUMENT, w->asked ? "one question for each call" : "malformed message");
        return;
    }
    answer(w);
}

/* Who watches says nothing more, and goes on to listen. */
static void half_closed(struct call *c)
{
    const struct watch *w = (struct watch *)c;
    if (!w->asked) kvr_grpc_finish(c->stream, KVR_GRPC_INVALID_ARGUMENT, "a question is missing");
}

static void gone(struct call *c)
{
    struct watch *w = (struct watch *)c;
    struct picker *p = c->picker;
    KVR_LIST_TAKE(p->watches, w);
    if (!p->watches) uv_timer_stop(&p->look);
    free(w);
}

static const struct call_service service = {message, half_closed, gone};

static struct call *watch_new(struct picker *p, struct kvr_grpc_stream *s, bool watches)
{
    struct watch *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->call = (struct call){&service, s, p};
    w->watches = watches;
    KVR_LIST_PUSH(p->watches, w);
    if (watches) uv_timer_start(&p->look, on_look, LOOK_MS, LOOK_MS);
    return &w->call;
}

struct call *health_check_new(struct picker *p, struct kvr_grpc_stream *s)
{
    return watch_new(p, s, false);
}

struct call *health_watch_new(struct picker *p, struct kvr_grpc_stream *s)
{
    return watch_new(p, s, true);
}
