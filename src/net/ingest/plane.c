/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One stream for many ranks.
 *
 *     any thread                          ingest thread
 *     kvr_ingest_plane_message -> queue -> take: envelope -> each event -> source of (worker, rank) -> its view
 *     kvr_ingest_plane_state   -> flag  ->       heartbeat -> the same: is everything here that was sent? does its publisher live?
 *
 * The unit a view sees is one event: its id is the sequence, its bytes (behind a plane_head) what waits and is remembered.
 *
 * The queue is bounded in bytes. What finds it full is refused: of a plain stream it is then lost, which the ids show; a
 * durable one offers it again.
 *
 * What waits is taken from the queue before the commands are, and applied after them: a message that came after
 * kvr_ingest_add returned finds its source.
 */
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "net/ingest/internal.h"
#include "wire/plane_event.h"
#include "wire/router_event.h"

int kvr__plane_init(struct kvr_ingest *in)
{
    kvr_lock_init(&in->plane.lock, KVR_LOCK_INGEST_PLANE);
    in->plane.tail = &in->plane.head;
    return 0;
}

static void free_messages(struct plane_message *m)
{
    while (m) {
        struct plane_message *next = m->next;
        free(m);
        m = next;
    }
}

void kvr__plane_free(struct kvr_ingest *in)
{
    free_messages(in->plane.head);
    kvr_lock_destroy(&in->plane.lock);
    kvr_map64_clear(&in->plane_sources);
    kvr_buf_free(&in->plane_unit);
    kvr_buf_free(&in->plane_scratch);
    free(in->plane_blocks);
    if (in->plane_json) kvr_json_parser_free(in->plane_json);
}

/* ---- from other threads ---------------------------------------------------------------------------------------- */

/* bounded: refused when too much waits. */
static int enqueue(struct kvr_ingest *in, enum plane_kind kind, const char *data, size_t len, uint64_t position, bool bounded, bool drop)
{
    struct kvr_plane_queue *q = &in->plane;
    struct plane_message *m = malloc(sizeof *m + len);
    if (!m) return -KVR_ENOMEM;
    *m = (struct plane_message){.kind = kind, .position = position, .len = len};
    if (len) memcpy(m->data, data, len);
    kvr_lock(&q->lock);
    bool full = bounded && q->bytes && q->bytes + len > PLANE_BYTES_MAX, first = !q->head;
    if (!full) {
        *q->tail = m;
        q->tail = &m->next;
        q->bytes += sizeof *m + len;
    }
    q->dropped += full && drop;
    kvr_unlock(&q->lock);
    if (full) free(m);
    if (!full && first) kvr__inbox_wake(in);
    return full ? -KVR_ELIMIT : 0;
}

int kvr_ingest_plane_message(struct kvr_ingest *in, const char *data, size_t len, uint64_t position, bool drop)
{
    return enqueue(in, PLANE_MESSAGE, data, len, position, true, drop);
}

void kvr_ingest_plane_state(struct kvr_ingest *in, bool up)
{
    while (enqueue(in, up ? PLANE_UP : PLANE_DOWN, NULL, 0, 0, false, false)) usleep(1000); /* it must be heard of */
}

void kvr_ingest_plane_durable(struct kvr_ingest *in)
{
    atomic_store(&in->plane_durable, true);
}

int kvr_ingest_plane_snapshot_begin(struct kvr_ingest *in)
{
    return enqueue(in, PLANE_SNAPSHOT_BEGIN, NULL, 0, 0, false, false);
}

int kvr_ingest_plane_snapshot_piece(struct kvr_ingest *in, const char *data, size_t len)
{
    return enqueue(in, PLANE_SNAPSHOT_PIECE, data, len, 0, true, false);
}

int kvr_ingest_plane_snapshot_end(struct kvr_ingest *in, uint64_t position)
{
    return enqueue(in, PLANE_SNAPSHOT_END, NULL, 0, position, false, false);
}

void kvr_ingest_plane_stats(struct kvr_ingest *in, struct kvr_ingest_plane_stats *out)
{
    kvr_lock(&in->lock);
    *out = in->plane_seen;
    kvr_unlock(&in->lock);
    kvr_lock(&in->plane.lock);
    out->dropped = in->plane.dropped;
    kvr_unlock(&in->plane.lock);
}

/* ---- which source --------------------------------------------------------------------------------------------- */

static uint64_t key_of(struct kvr_worker w)
{
    return kvr_mix64_keyed(w.worker_id, kvr_secret()) + w.dp_rank;
}

static struct source *source_of(struct kvr_ingest *in, struct kvr_worker w)
{
    const uint64_t *at = kvr_map64_get(&in->plane_sources, key_of(w));
    struct source *s = at ? (struct source *)(uintptr_t)*at : NULL;
    if (s && kvr_worker_cmp(s->st.worker, w) == 0) return s;
    if (at) /* two ranks share a key */
        for (s = in->sources; s && (!s->view.shared || kvr_worker_cmp(s->st.worker, w) != 0);) s = s->next;
    return s;
}

void kvr__plane_attach(struct kvr_ingest *in, struct source *s)
{
    if (kvr_map64_put(&in->plane_sources, key_of(s->st.worker), (uint64_t)(uintptr_t)s) == 0) return;
    s->st.failed = true;
    kvr__view_failed(kvr__source_view(s), "out of memory");
}

void kvr__plane_detach(struct kvr_ingest *in, struct source *s)
{
    const uint64_t *at = s->view.shared ? kvr_map64_get(&in->plane_sources, key_of(s->st.worker)) : NULL;
    if (!at || (struct source *)(uintptr_t)*at != s) return;
    kvr_map64_del(&in->plane_sources, key_of(s->st.worker));
    for (struct source *o = in->sources; o; o = o->next) /* one that shared the key */
        if (o != s && o->view.shared && key_of(o->st.worker) == key_of(s->st.worker)) kvr__plane_attach(in, o);
}

/* ---- messages ------------------------------------------------------------------------------------------------- */

struct taking {
    struct kvr_ingest *in;
    struct plane_head head;
    struct source *only; /* events of one socket; NULL: of the shared stream */
    bool heartbeats;     /* their publisher sends heartbeats */
    bool partial;        /* and has only a part itself */
    bool live;           /* of a durable stream, ahead of its storing: taken when it is what comes next, else left to the stream */
};

static void hand_over(const struct taking *t, struct source *s, const struct kvr_plane_place *place)
{
    struct kvr_ingest *in = t->in;
    in->plane_unit.len = 0;
    kvr_buf_add(&in->plane_unit, &t->head, sizeof t->head);
    kvr_buf_add(&in->plane_unit, place->data, place->len);
    if (in->plane_unit.failed) { /* as if it had been lost */
        in->plane_unit.failed = false;
        s->view.counts.overflows++;
        return;
    }
    kvr__view_batch(kvr__source_view(s), place->event_id, in->plane_unit.data, in->plane_unit.len);
}

static int take_event(void *ctx, const struct kvr_plane_place *place)
{
    const struct taking *t = ctx;
    struct kvr_ingest *in = t->in;
    struct source *s = source_of(in, place->worker);
    in->plane_stats.events++;
    in->plane_stats.unknown_workers += !s;
    if (!s || s->st.paused) return 0;
    struct kvr_view *v = kvr__source_view(s);
    if (!kvr__view_expects(v, t->head.publisher, place->event_id, t->live, t->heartbeats)) return 0;
    hand_over(t, s, place);
    kvr__view_told_partial(v, t->partial);
    return 0;
}

/* Several ranks may share a socket; or the port is another rank's. */
static void leave_out(struct source *s, uint32_t rank)
{
    s->st.filtered.other_rank = ++s->own.stream.counters.other_rank;
    if (s->st.filtered.other_rank > 1) return;
    kvr_log_warning(
        "kvroute: worker %llu rank %u: events of rank %u come on its events endpoint too, and are left out here; when that is not the "
        "port of both, give that rank (dp-start), or the port of this one",
        (unsigned long long)s->st.worker.worker_id, s->st.worker.dp_rank, rank);
}

/* The worker's id is ours: it need not know it. */
static int take_own_event(void *ctx, const struct kvr_plane_place *place)
{
    const struct taking *t = ctx;
    struct source *s = t->only;
    if (place->worker.dp_rank != s->st.worker.dp_rank) {
        leave_out(s, place->worker.dp_rank);
        return 0;
    }
    hand_over(t, s, place);
    kvr__view_told_partial(kvr__source_view(s), t->partial);
    return 0;
}

void kvr__plane_frame(struct kvr_ingest *in, struct source *s, const char *data, size_t len)
{
    const char *envelope;
    size_t envelope_len;
    struct kvr_envelope e;
    bool ok = kvr_plane_frame_open(data, len, &envelope, &envelope_len) == 0 &&
              kvr_envelope_read(envelope, envelope_len, &in->plane_scratch, &e) == 0;
    in->plane_scratch.failed = false;
    if (ok) kvr__view_enveloped(kvr__source_view(s), true);
    struct taking t = {in, {ok ? (double)e.published_at_ms * 1e-3 : 0, ok ? e.publisher : 0}, s, false, ok && e.partial, false};
    if (ok && kvr_envelope_is(&e, KVR_PLANE_EVENTS)) ok = kvr_plane_events_each(e.payload, e.payload_len, take_own_event, &t) == 0;
    s->view.counts.decode_errors += !ok;
}

static int take_json(struct kvr_ingest *in, const struct plane_message *m)
{
    struct kvr_json root;
    struct kvr_event ev;
    struct taking t = {.in = in};
    if (!in->plane_json && !(in->plane_json = kvr_json_parser_new())) return -KVR_ENOMEM;
    int rc = kvr_json_parse(in->plane_json, m->data, m->len, &root, NULL);
    if (rc == 0) rc = kvr_router_event_read(root, &ev, &in->plane_blocks, &in->plane_blocks_cap);
    if (rc) return rc;
    in->plane_scratch.len = 0;
    kvr_plane_event_write(&in->plane_scratch, &ev);
    if (in->plane_scratch.failed) return -KVR_ENOMEM;
    return kvr_plane_events_each(in->plane_scratch.data, in->plane_scratch.len, take_event, &t);
}

static void take_heartbeat(struct kvr_ingest *in, const struct taking *t, const struct kvr_heartbeat *b)
{
    struct source *s = source_of(in, b->worker);
    in->plane_stats.heartbeats++;
    in->plane_stats.unknown_workers += !s;
    if (!s || s->st.paused) return;
    kvr__view_heartbeat(kvr__source_view(s), t->head.publisher, t->head.ts, b->last_event_id);
    kvr__view_told_partial(kvr__source_view(s), t->partial);
}

static int take_envelope(struct kvr_ingest *in, const struct plane_message *m)
{
    struct kvr_envelope e;
    struct kvr_heartbeat heartbeat;
    int rc = kvr_envelope_read(m->data, m->len, &in->plane_scratch, &e);
    if (rc) return rc;
    struct taking t = {in,        {(double)e.published_at_ms * 1e-3, e.publisher},
                       NULL,      e.heartbeats,
                       e.partial, !m->position && atomic_load_explicit(&in->plane_durable, memory_order_relaxed)};
    if (kvr_envelope_is(&e, KVR_PLANE_EVENTS)) return kvr_plane_events_each(e.payload, e.payload_len, take_event, &t);
    if (!kvr_envelope_is(&e, KVR_PLANE_HEARTBEATS)) return 0; /* something else that travels here */
    rc = kvr_heartbeat_read(e.payload, e.payload_len, &heartbeat);
    if (rc == 0) take_heartbeat(in, &t, &heartbeat);
    return rc;
}

static void warn_of_unread(bool is_newer)
{
    const char *why = is_newer ? "they have a version that is not known here: update kvroute" : "they are no events of this plane";
    kvr_log_warning_of(kvr_log_key(0, 0, why), "kvroute: event plane: messages are left out, and what they tell is not seen: %s", why);
}

static void take_message(struct kvr_ingest *in, const struct plane_message *m)
{
    int rc = m->len && m->data[0] == '{' ? take_json(in, m) : take_envelope(in, m);
    if (rc) warn_of_unread(rc == -KVR_EUNSUPPORTED);
    in->plane_stats.messages++;
    in->plane_stats.bytes += m->len;
    in->plane_stats.other_version += rc == -KVR_EUNSUPPORTED;
    in->plane_stats.malformed += rc && rc != -KVR_EUNSUPPORTED;
    if (m->position) in->plane_stats.position = m->position;
    in->plane_scratch.failed = false;
}

/* ---- the stream as a whole -------------------------------------------------------------------------------------- */

static void take_state(struct kvr_ingest *in, bool up)
{
    bool was = in->plane_up;
    in->plane_up = up;
    for (struct source *s = in->sources; s; s = s->next) {
        if (!s->view.shared || s->st.paused) continue;
        if (was && !up) kvr__view_stream_down(kvr__source_view(s));
        if (!was && up) kvr__view_stream_up(kvr__source_view(s));
    }
}

static int restore_event(void *ctx, const struct kvr_event *ev)
{
    struct kvr_ingest *in = ctx;
    struct source *s = source_of(in, ev->worker);
    in->plane_stats.unknown_workers += !s;
    if (s && !s->st.paused) kvr__source_restore(s, ev);
    return 0;
}

static int restore_cursor(void *ctx, const struct kvr_snapshot_cursor *c)
{
    struct kvr_ingest *in = ctx;
    struct source *s = source_of(in, c->worker);
    if (s && !s->st.paused) kvr__view_restored(kvr__source_view(s), c->next, c->publisher, c->ts, c->heartbeats);
    return 0;
}

static void take_piece(struct kvr_ingest *in, const struct plane_message *m)
{
    struct kvr_snapshot_reader r = {restore_event, restore_cursor, in, in->plane_blocks, in->plane_blocks_cap};
    in->plane_stats.malformed += kvr_snapshot_read(&r, m->data, m->len) != 0;
    in->plane_blocks = r.blocks;
    in->plane_blocks_cap = r.cap;
}

static void take_one(struct kvr_ingest *in, const struct plane_message *m)
{
    switch (m->kind) {
    case PLANE_MESSAGE: take_message(in, m); return;
    case PLANE_UP: take_state(in, true); return;
    case PLANE_DOWN: take_state(in, false); return;
    case PLANE_SNAPSHOT_PIECE: take_piece(in, m); return;
    case PLANE_SNAPSHOT_END: in->plane_stats.position = m->position; return;
    case PLANE_SNAPSHOT_BEGIN:
        for (struct source *s = in->sources; s; s = s->next)
            if (s->view.shared) kvr__view_empty(kvr__source_view(s));
        return;
    }
}

struct plane_message *kvr__plane_waiting(struct kvr_ingest *in)
{
    struct kvr_plane_queue *q = &in->plane;
    kvr_lock(&q->lock);
    struct plane_message *list = q->head;
    q->head = NULL;
    q->tail = &q->head;
    q->bytes = 0;
    kvr_unlock(&q->lock);
    return list;
}

void kvr__plane_take(struct kvr_ingest *in, struct plane_message *list, bool apply)
{
    for (const struct plane_message *m = list; m && apply && !in->stop; m = m->next) take_one(in, m);
    free_messages(list);
}

int kvr__plane_visit(struct kvr_ingest *in, kvr_ingest_plane_visit *fn, void *arg)
{
    size_t n = 0;
    struct kvr_plane_view *views = malloc((in->sources_n + 1) * sizeof *views);
    for (const struct source *s = in->sources; s && views; s = s->next) {
        if (!s->view.shared) continue;
        bool made_up = in->handler.makes_up && in->handler.makes_up(in->handler.ctx, s->st.worker);
        const struct kvr_view *v = &s->view;
        views[n++] = (struct kvr_plane_view){{s->st.worker, v->cursor.next, v->publisher, v->publisher_since, v->heartbeat_ms != 0},
                                             !made_up && kvr__view_is_complete(v),
                                             s->user};
    }
    if (views) fn(arg, in->plane_stats.position, views, n);
    free(views);
    return views ? 0 : -KVR_ENOMEM;
}
