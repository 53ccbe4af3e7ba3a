/* SPDX-License-Identifier: Apache-2.0 */
/* A stream of a filter in observability_mode: it is told of a request and its response, and nobody waits for an answer
 * (data/picker/observed.h). What it has to say ends with the response: the stream too, as the gateway would keep it open for a while. */
#include <string.h>

#include "app/serve/data/picker/call.h"
#include "app/serve/data/picker/observed.h"

struct observer {
    struct call call;
    struct observed *of; /* NULL: nothing has come, or it is refused */
    bool tells;          /* the response has begun */
};

static bool is_of_response(enum kvr_ext_proc_kind k)
{
    return k == KVR_EXT_PROC_RESPONSE_HEADERS || k == KVR_EXT_PROC_RESPONSE_BODY || k == KVR_EXT_PROC_RESPONSE_TRAILERS;
}

static bool is_end(const struct kvr_ext_proc_message *m)
{
    return m->kind == KVR_EXT_PROC_RESPONSE_TRAILERS || m->end_of_stream;
}

/* Returns: whether more is wanted. */
static bool begin(struct observer *o, const struct kvr_ext_proc_message *m)
{
    if (!o->of) o->of = observed_come(o->call.picker, kvr_ext_proc_header_get(m, "x-request-id"));
    return o->of != NULL;
}

static bool tell(struct observer *o, const struct kvr_ext_proc_message *m, const uint8_t *data, size_t len)
{
    if (!o->of) return false;
    if (!o->tells && (m->kind != KVR_EXT_PROC_RESPONSE_HEADERS || !observed_begin(o->call.picker, o->of))) return false;
    o->tells = true;
    return observed_tell(o->call.picker, o->of, m, data, len) && !is_end(m);
}

static void message(struct call *c, const uint8_t *data, size_t len)
{
    struct observer *o = (struct observer *)c;
    struct kvr_ext_proc_message m;
    if (kvr_ext_proc_read(data, len, &m)) {
        kvr_grpc_finish(c->stream, KVR_GRPC_INTERNAL, "malformed message");
        return;
    }
    bool goes_on = m.kind == KVR_EXT_PROC_REQUEST_HEADERS ? begin(o, &m) : !is_of_response(m.kind) || tell(o, &m, data, len);
    if (!goes_on) kvr_grpc_finish(c->stream, KVR_GRPC_OK, NULL);
    kvr_ext_proc_free(&m);
}

static void half_closed(struct call *c)
{
    kvr_grpc_finish(c->stream, KVR_GRPC_OK, NULL);
}

static void gone(struct call *c)
{
    struct observer *o = (struct observer *)c;
    if (o->of) observed_over(c->picker, o->of);
    free(o);
}

static const struct call_service service = {message, half_closed, gone};

struct call *observer_new(struct picker *p, struct kvr_grpc_stream *s)
{
    struct observer *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->call = (struct call){&service, s, p};
    return &o->call;
}
