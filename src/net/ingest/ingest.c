/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See the header for the life of a view. Threads: the ingest thread owns all sockets and sources. Others hand it
 * commands through a list under `lock` and wake it by an inproc PAIR socket; removal waits until the thread has done
 * it. Statuses are copied under the same lock, which the thread takes once per wake-up, never while it applies.
 */
#include "net/ingest/internal.h"

#include <errno.h>
#include <zmq.h>

#include "net/zmq/curve.h"
#include "wire/engine_memory.h"
#include "wire/prom_page.h"

/* ---- sockets ----------------------------------------------------------------------------------------- */

enum { FRAMES_MAX = 8 };

struct frames {
    zmq_msg_t m[FRAMES_MAX];
    int n, total;
    size_t bytes;
};

/* Receives one multipart message. Returns: false when there is none. Frames past the limit are counted, not kept. */
static bool receive(void *socket, struct frames *f, struct kvr_zmq_line *line)
{
    f->n = f->total = 0;
    f->bytes = 0;
    for (;;) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            return f->total > 0;
        }
        bool more = zmq_msg_more(&m);
        f->bytes += zmq_msg_size(&m);
        if (line) kvr_zmq_line_took(line, zmq_msg_size(&m));
        if (f->n < FRAMES_MAX) {
            zmq_msg_init(&f->m[f->n]);
            zmq_msg_move(&f->m[f->n++], &m);
        }
        zmq_msg_close(&m);
        f->total++;
        if (!more) return true;
    }
}

static void release(struct frames *f)
{
    for (int i = 0; i < f->n; i++) zmq_msg_close(&f->m[i]);
}

struct turn kvr__turn_begin(const struct kvr_ingest *in)
{
    return (struct turn){.began_ns = in->effects->now_ns()};
}

bool kvr__turn_over(const struct kvr_ingest *in, struct turn *t, size_t bytes)
{
    t->bytes += bytes;
    return ++t->messages >= TURN_MESSAGES || t->bytes >= TURN_BYTES || atomic_load_explicit(&in->stop, memory_order_relaxed) ||
           in->effects->now_ns() - t->began_ns >= TURN_MS * UINT64_C(1000000);
}

static void take_frames(struct kvr_ingest *in, struct source *s, struct frames *f)
{
    if (f->total == 4 && zmq_msg_size(&f->m[2]) == 8) kvr__plane_frame(in, s, zmq_msg_data(&f->m[3]), zmq_msg_size(&f->m[3]));
    else if (f->total != 3 || zmq_msg_size(&f->m[1]) != 8) s->st.bad_frames++;
    else kvr__view_live(in, s, kvr_load_be64(zmq_msg_data(&f->m[1])), zmq_msg_data(&f->m[2]), zmq_msg_size(&f->m[2]));
}

/* What the broken connection had brought is read. */
static void connection_broke(struct kvr_ingest *in, struct source *s)
{
    s->breaking = 0;
    in->breaking_n--;
    kvr__view_disconnected(in, s);
}

static void read_sub(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    struct turn t = kvr__turn_begin(in);
    bool drained = false, over = false;
    while (!drained && !over) {
        if (!receive(s->sub, &f, &s->line)) {
            drained = true;
            break;
        }
        take_frames(in, s, &f);
        release(&f);
        drained = s->breaking == 1; /* enough of it */
        s->breaking -= s->breaking > 1;
        over = kvr__turn_over(in, &t, f.bytes);
    }
    if (t.messages) s->floods = 0;
    if (drained && s->breaking) connection_broke(in, s);
}

/* Replies: "" [topic] sequence payload; the end is a sequence of all ones with an empty payload. */
static void take_reply_frames(struct kvr_ingest *in, struct source *s, struct frames *f)
{
    bool ok = (f->total == 3 || f->total == 4) && zmq_msg_size(&f->m[0]) == 0 && zmq_msg_size(&f->m[f->n - 2]) == 8;
    if (!ok) {
        s->st.bad_frames++;
        kvr__view_replay_broken(in, s);
        return;
    }
    uint64_t seq = kvr_load_be64(zmq_msg_data(&f->m[f->n - 2]));
    size_t len = zmq_msg_size(&f->m[f->n - 1]);
    kvr__view_replay_part(in, s, seq, zmq_msg_data(&f->m[f->n - 1]), len);
}

static void read_dealer(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    struct turn t = kvr__turn_begin(in);
    void *dealer = s->dealer;
    while (receive(dealer, &f, &s->dealer_line)) {
        take_reply_frames(in, s, &f);
        release(&f);
        if (s->dealer != dealer || kvr__turn_over(in, &t, f.bytes)) return; /* a renewed one has nothing yet */
    }
}

static bool read_event(void *monitor, uint16_t *event, uint32_t *value)
{
    struct frames f;
    if (!receive(monitor, &f, NULL)) return false;
    *event = 0;
    *value = 0;
    if (f.n > 0 && zmq_msg_size(&f.m[0]) >= 6) {
        memcpy(event, zmq_msg_data(&f.m[0]), 2);
        memcpy(value, (char *)zmq_msg_data(&f.m[0]) + 2, 4);
    }
    release(&f);
    return true;
}

/* A connection that ends before its handshake is over: libzmq does so with a socket of another kind, and does not try again soon. */
static void note_handshake(uint16_t event, bool *half, const char **trouble)
{
    if (event == ZMQ_EVENT_DISCONNECTED && *half)
        *trouble =
            "what answers there ends the handshake: another kind of socket (are events and replay swapped?), no ZeroMQ, or other keys";
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) *trouble = NULL;
    if (event == ZMQ_EVENT_CONNECTED || event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED || event == ZMQ_EVENT_DISCONNECTED)
        *half = event == ZMQ_EVENT_CONNECTED;
}

/* After a break the next events wait until what the broken connection had brought is read (read_sub): after the next one it could be
 * taken for a new life's, if its sequence happens to be the next. What the next one has brought by now is taken for the old life's, and
 * asked for again. */
static void read_monitor(struct kvr_ingest *in, struct source *s)
{
    uint16_t event;
    uint32_t value;
    while (!s->breaking && read_event(s->monitor, &event, &value)) {
        kvr_zmq_line_event(&s->line, event, value, in->now_ms);
        note_handshake(event, &s->sub_half, &s->st.events_trouble);
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) kvr__view_connected(in, s);
        if (event != ZMQ_EVENT_DISCONNECTED && event != ZMQ_EVENT_CLOSED) continue;
        s->breaking = OLD_MESSAGES_MAX;
        in->breaking_n++;
    }
}

static void read_dealer_monitor(struct kvr_ingest *in, struct source *s)
{
    uint16_t event;
    uint32_t value;
    while (read_event(s->dealer_monitor, &event, &value)) {
        kvr_zmq_line_event(&s->dealer_line, event, value, in->now_ms);
        note_handshake(event, &s->dealer_half, &s->st.replay_trouble);
    }
}

void *kvr__ingest_socket(struct kvr_ingest *in, int type)
{
    void *sock = zmq_socket(in->zmq, type);
    int hwm = HWM, zero = 0, reconnect = 50, reconnect_max = 1000, heartbeat = 2000, patience = 5000, v6 = 1;
    int64_t max = FRAME_MAX;
    if (!sock) return NULL;
    zmq_setsockopt(sock, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(sock, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(sock, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(sock, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(sock, ZMQ_RECONNECT_IVL, &reconnect, sizeof reconnect);
    zmq_setsockopt(sock, ZMQ_RECONNECT_IVL_MAX, &reconnect_max, sizeof reconnect_max);
    zmq_setsockopt(sock, ZMQ_HEARTBEAT_IVL, &heartbeat, sizeof heartbeat);
    zmq_setsockopt(sock, ZMQ_HEARTBEAT_TIMEOUT, &patience, sizeof patience); /* a peer on a busy machine answers late */
    zmq_setsockopt(sock, ZMQ_IPV6, &v6, sizeof v6);
    return sock;
}

/* A socket that hears of another one's connections; NULL: no memory. */
static void *monitor_of(struct kvr_ingest *in, void *socket)
{
    char name[64];
    void *monitor = zmq_socket(in->zmq, ZMQ_PAIR);
    snprintf(name, sizeof name, "inproc://monitor-%zu", in->monitors++);
    int events = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED;
    if (monitor && zmq_socket_monitor(socket, name, events) == 0 && zmq_connect(monitor, name) == 0) return monitor;
    if (monitor) zmq_close(monitor);
    return NULL;
}

static void close_pair(void **socket, void **monitor)
{
    if (*socket) zmq_socket_monitor(*socket, NULL, 0);
    if (*socket) zmq_close(*socket);
    if (*monitor) zmq_close(*monitor);
    *socket = *monitor = NULL;
}

static void *connect_dealer(struct kvr_ingest *in, struct source *s, void **monitor)
{
    void *dealer = kvr__ingest_socket(in, ZMQ_DEALER);
    *monitor = dealer ? monitor_of(in, dealer) : NULL;
    if (*monitor && kvr_curve_client(in->curve, dealer, s->replay) == 0 && zmq_connect(dealer, s->replay) == 0) return dealer;
    close_pair(&dealer, monitor);
    return NULL;
}

static bool open_sockets(struct kvr_ingest *in, struct source *s)
{
    if (!kvr_ingest_endpoint_ok(s->events) || (s->replay[0] && !kvr_ingest_endpoint_ok(s->replay))) return false; /* inproc:// is ours */
    s->sub = kvr__ingest_socket(in, ZMQ_SUB);
    s->monitor = s->sub ? monitor_of(in, s->sub) : NULL;
    if (!s->monitor) return false;
    if (kvr_curve_client(in->curve, s->sub, s->events)) return false;
    if (zmq_setsockopt(s->sub, ZMQ_SUBSCRIBE, "", 0) || zmq_connect(s->sub, s->events)) return false;
    if (!s->replay[0]) return true;
    s->dealer = connect_dealer(in, s, &s->dealer_monitor);
    return s->dealer != NULL;
}

static void close_sockets(struct kvr_ingest *in, struct source *s)
{
    close_pair(&s->sub, &s->monitor);
    close_pair(&s->dealer, &s->dealer_monitor);
    s->line = s->dealer_line = (struct kvr_zmq_line){0};
    s->owed_ends = 0;
    in->breaking_n -= s->breaking != 0;
    s->breaking = 0;
}

/* A connection that brings bytes and no messages: it is given up, and tried again after a pause. */
static void give_up_flood(struct kvr_ingest *in, struct source *s)
{
    uint64_t pause = (uint64_t)FLOOD_PAUSE_MS << KVR_MIN(s->floods, 5u);
    s->floods++;
    s->st.floods++;
    kvr__view_disconnected(in, s);
    kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "the worker sends more than can be taken");
    close_sockets(in, s);
    s->reopen_ms = in->now_ms + KVR_MIN(pause, (uint64_t)RETRY_MAX_MS);
}

static void reopen(struct kvr_ingest *in, struct source *s)
{
    s->reopen_ms = 0;
    if (open_sockets(in, s)) return;
    close_sockets(in, s);
    s->reopen_ms = in->now_ms + RETRY_MAX_MS; /* memory is short */
}

static void look_for_floods(struct kvr_ingest *in)
{
    if (in->now_ms < in->unread_at_ms) return;
    in->unread_at_ms = in->now_ms + UNREAD_LOOK_MS;
    for (struct source *s = in->sources; s; s = s->next)
        if (kvr_zmq_line_unread(&s->line, in->now_ms) > UNREAD_MAX || kvr_zmq_line_unread(&s->dealer_line, in->now_ms) > UNREAD_MAX)
            give_up_flood(in, s);
}

static void source_free(struct kvr_ingest *in, struct source *s)
{
    kvr__plane_detach(in, s);
    close_sockets(in, s);
    kvr__view_forget_repair(in, s);
    while (s->own.next) {
        struct rank_stream *r = s->own.next;
        s->own.next = r->next;
        kvr_engine_stream_free(&r->stream);
        free(r);
    }
    kvr_engine_stream_free(&s->own.stream);
    free(s->tail);
    if (in->handler.on_leave) in->handler.on_leave(in->handler.ctx, s->st.worker);
    if (in->handler.on_end) in->handler.on_end(in->handler.ctx, s->user);
    free(s);
}

static void source_open(struct kvr_ingest *in, struct source *s)
{
    bool asks = s->recover[0] && !in->recover;
    if (asks && kvr_recover_client_create(kvr__ingest_on_reply, in, &in->recover)) in->recover = NULL;
    s->st.failed = !s->plane && !open_sockets(in, s);
    if (s->st.failed) close_sockets(in, s);
    kvr__view_begin(in, s);
    if (!s->plane) return;
    kvr__plane_attach(in, s);
    if (in->plane_up) kvr__view_connected(in, s);
}

static void source_start(struct kvr_ingest *in, struct source *s, const struct kvr_ingest_keeper *keeper)
{
    kvr__view_take_tail(in, s);
    s->keeper = keeper;
    s->next = in->sources;
    in->sources = s;
    in->sources_n++;
    source_open(in, s);
}

static void source_pause(struct kvr_ingest *in, struct source *s, bool pause)
{
    if (pause == s->st.paused) return;
    s->st.paused = pause;
    if (!pause) {
        source_open(in, s);
        return;
    }
    close_sockets(in, s);
    s->reopen_ms = 0;
    kvr__plane_detach(in, s);
    kvr__view_forget_repair(in, s);
    s->connected = s->st.connected = false;
    s->drop_at_ms = 0;
    s->beat_ms = 0;
    if (kvr__plane_is_durable(in, s)) s->missing = s->unsure = true; /* what passes is not brought again */
    kvr__view_trust(in, s, KVR_VIEW_UNKNOWN, "paused");
}

static void source_visit(struct kvr_ingest *in, struct source *s, const struct command *c)
{
    uint32_t ranks[RANKS_MAX];
    size_t n = 0;
    struct kvr_view_cursor adopt = {0};
    for (const struct rank_stream *r = &s->own; r && n < RANKS_MAX; r = r->next) ranks[n++] = r->stream.worker.dp_rank;
    kvr__view_note_cursor(s);
    s->st.cursor.partial |= in->handler.makes_up && in->handler.makes_up(in->handler.ctx, s->st.worker);
    in->visited = s;
    c->visit(c->arg, &s->st, ranks, n, &adopt);
    in->visited = NULL;
    if (adopt.known) kvr__view_adopt(in, s, &adopt);
}

int kvr_ingest_carry(struct kvr_ingest *in, uint32_t rank)
{
    return kvr__view_carry(in->visited, rank) ? 0 : -KVR_ELIMIT;
}

void kvr_ingest_memory(struct kvr_ingest *in, struct kvr_buf *out)
{
    for (const struct rank_stream *r = &in->visited->own; r; r = r->next) kvr_engine_memory_write(&r->stream, out);
}

enum kvr_view_knowledge kvr_ingest_bare(struct kvr_ingest *in)
{
    const struct source *s = in->visited;
    enum kvr_view_knowledge bare = s->st.knowledge;
    for (const struct rank_stream *r = &s->own; r; r = r->next) {
        enum kvr_memory_worth worth = kvr_engine_memory_worth(&r->stream);
        if (worth == KVR_MEMORY_MORE) bare = KVR_MIN(bare, KVR_VIEW_PARTIAL);
        if (worth == KVR_MEMORY_TRUTH) bare = KVR_VIEW_UNKNOWN;
    }
    return bare;
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void publish_statuses(struct kvr_ingest *in)
{
    size_t n = 0;
    if (in->sources_n > in->statuses_cap) {
        struct kvr_view_status *p = realloc(in->statuses, in->sources_n * 2 * sizeof *p);
        if (!p) return;
        in->statuses = p;
        in->statuses_cap = in->sources_n * 2;
    }
    for (const struct source *s = in->sources; s; s = s->next) {
        in->statuses[n] = s->st;
        in->statuses[n].sound = s->known != KVR_VIEW_UNKNOWN;
        in->statuses[n++].repairing = kvr__view_repairing(s);
    }
    in->statuses_n = n;
    in->plane_seen = in->plane_stats;
    in->plane_seen.up = in->plane_up;
}

/* Takes the list. */
static void take_replies(struct kvr_ingest *in, struct kvr_recover_reply *list)
{
    struct kvr_recover_reply *r = NULL;
    while (list) { /* in the order in which they came */
        struct kvr_recover_reply *next = list->next;
        list->next = r;
        r = list;
        list = next;
    }
    while (r) {
        struct kvr_recover_reply *next = r->next;
        struct source *s = in->sources;
        while (s && s->asking != r->token) s = s->next;
        if (s) kvr__view_reply(in, s, r);
        else kvr_recover_reply_free(r);
        r = next;
    }
}

static void command_free(struct kvr_ingest *in, struct command *c)
{
    if (c->kind == SERVED) {
        pthread_mutex_lock(&in->lock);
        in->served_n--;
        in->served_blocks -= c->served.n;
        pthread_mutex_unlock(&in->lock);
    }
    if (!c->spare) {
        free(c);
        return;
    }
    pthread_mutex_lock(&in->lock);
    c->spare = false;
    pthread_mutex_unlock(&in->lock);
}

static bool concerns(const struct command *c, const struct source *s)
{
    bool of_worker = s->st.worker.worker_id == c->worker.worker_id;
    return of_worker && (c->kind == REMOVE_WORKER || c->kind == EXPECT_REPORTS || s->st.worker.dp_rank == c->worker.dp_rank);
}

/* Returns: whether a source was there. */
static bool run_on_sources(struct kvr_ingest *in, const struct command *c)
{
    bool found = false;
    for (struct source **p = &in->sources; *p;) {
        struct source *s = *p;
        if (!concerns(c, s)) {
            p = &s->next;
            continue;
        }
        found = true;
        if (c->kind == REMOVE_WORKER || c->kind == REMOVE_RANK) {
            *p = s->next;
            in->sources_n--;
            source_free(in, s);
            continue;
        }
        if (c->kind == PAUSE || c->kind == RESUME) source_pause(in, s, c->kind == PAUSE);
        if (c->kind == EVIDENCE) kvr__view_evidence(in, s, c->text);
        if (c->kind == DOUBT_COPIES) kvr__view_doubt_copies(in, s, c->has_name ? &c->name : NULL);
        if (c->kind == EXPECT_REPORTS) kvr__view_expect_reports(in, s);
        if (c->kind == VISIT) source_visit(in, s, c);
        if (c->kind == SERVED && in->handler.on_served) in->handler.on_served(in->handler.ctx, s->user, &c->served);
        p = &s->next;
    }
    return found;
}

static void run_command(struct kvr_ingest *in, struct command *c)
{
    int rc = 0;
    if (c->kind == ADD) source_start(in, c->add, c->keeper);
    else if (c->kind == VISIT_PLANE) rc = kvr__plane_visit(in, c->visit_plane, c->arg);
    else if (!run_on_sources(in, c) && c->kind == VISIT) rc = -KVR_ENOTFOUND;
    if (!c->done) {
        command_free(in, c);
        return;
    }
    pthread_mutex_lock(&in->lock);
    publish_statuses(in); /* who waited sees what it asked for */
    if (c->rc) *c->rc = rc;
    *c->done = true;
    pthread_cond_broadcast(&in->cond);
    pthread_mutex_unlock(&in->lock);
}

/* Returns: false when it is time to stop. */
static bool exchange(struct kvr_ingest *in)
{
    char drain[64];
    while (zmq_recv(in->wake_out, drain, sizeof drain, ZMQ_DONTWAIT) >= 0) continue;
    struct plane_message *messages = kvr__plane_waiting(in); /* before the commands: see ingest/plane.c */
    pthread_mutex_lock(&in->lock);
    struct command *c = in->commands;
    struct kvr_recover_reply *replies = in->replies;
    in->commands = NULL;
    in->replies = NULL;
    bool stop = in->stop;
    pthread_mutex_unlock(&in->lock);
    while (c) {
        struct command *next = c->next;
        run_command(in, c);
        c = next;
    }
    take_replies(in, replies);
    kvr__plane_take(in, messages, !stop);
    pthread_mutex_lock(&in->lock);
    publish_statuses(in); /* of this round and of the turns before it: the thread may sleep now */
    pthread_mutex_unlock(&in->lock);
    return !stop;
}

/* Room for what is polled. */
static bool items_reserve(const struct kvr_ingest *in, zmq_pollitem_t **items, size_t *cap)
{
    size_t need = 1 + 4 * in->sources_n;
    if (need <= *cap) return true;
    zmq_pollitem_t *p = realloc(*items, need * 2 * sizeof *p);
    if (!p) return false;
    *items = p;
    *cap = need * 2;
    return true;
}

/* While what has waited is taken, new messages stay in the socket. */
static bool reads_sub(const struct source *s)
{
    return !s->settling || s->breaking;
}

static size_t fill_items(const struct kvr_ingest *in, zmq_pollitem_t *it)
{
    size_t n = 0;
    it[n++] = (zmq_pollitem_t){.socket = in->wake_out, .events = ZMQ_POLLIN};
    for (const struct source *s = in->sources; s; s = s->next) {
        if (!s->sub || !s->monitor) continue;
        it[n++] = (zmq_pollitem_t){.socket = s->monitor, .events = s->breaking ? 0 : ZMQ_POLLIN};
        it[n++] = (zmq_pollitem_t){.socket = s->sub, .events = reads_sub(s) ? ZMQ_POLLIN : 0};
        if (!s->dealer) continue;
        it[n++] = (zmq_pollitem_t){.socket = s->dealer_monitor, .events = ZMQ_POLLIN};
        it[n++] = (zmq_pollitem_t){.socket = s->dealer, .events = ZMQ_POLLIN};
    }
    return n;
}

/* One source's turn. Returns: how many items were its. */
static size_t take_turn(struct kvr_ingest *in, struct source *s, const zmq_pollitem_t *it)
{
    size_t n = 0;
    if (s->sub && s->monitor) {
        if (it[n++].revents) read_monitor(in, s);
        if (it[n++].revents || s->breaking) read_sub(in, s);
        if (s->dealer) {
            if (it[n++].revents) read_dealer_monitor(in, s);
            if (it[n++].revents) read_dealer(in, s);
        }
    } else if (s->reopen_ms && in->now_ms >= s->reopen_ms) {
        reopen(in, s);
    }
    kvr__view_step(in, s);
    kvr__view_deadlines(in, s);
    if (s->plane) kvr__plane_deadlines(in, s);
    return n;
}

static bool poll_once(struct kvr_ingest *in, zmq_pollitem_t **items, size_t *cap)
{
    if (!items_reserve(in, items, cap)) return false;
    zmq_pollitem_t *it = *items;
    size_t n = fill_items(in, it);
    bool busy = in->incoming_n || in->settling_n || in->breaking_n;
    zmq_poll(it, (int)n, busy ? 0 : 50);
    in->now_ms = in->effects->now_ns() / 1000000;
    n = 1;
    for (struct source *s = in->sources; s && !in->stop; s = s->next) n += take_turn(in, s, it + n);
    look_for_floods(in);
    if (in->handler.on_tick) in->handler.on_tick(in->handler.ctx, in->now_ms);
    return true;
}

static void *ingest_main(void *arg)
{
    struct kvr_ingest *in = arg;
    zmq_pollitem_t *items = NULL;
    size_t cap = 0;
    in->now_ms = in->effects->now_ns() / 1000000;
    while (exchange(in))
        if (!poll_once(in, &items, &cap)) continue; /* memory is short: try again */
    while (in->sources) {
        struct source *s = in->sources;
        in->sources = s->next;
        source_free(in, s);
    }
    free(items);
    return NULL;
}

/* ---- from other threads ------------------------------------------------------------------------------ */

static void send_command(struct kvr_ingest *in, struct command *c)
{
    pthread_mutex_lock(&in->lock);
    struct command **p = &in->commands;
    while (*p) p = &(*p)->next;
    *p = c;
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT); /* under the lock: a ZMQ socket has one user at a time */
    pthread_mutex_unlock(&in->lock);
}

void kvr__ingest_wake(struct kvr_ingest *in)
{
    pthread_mutex_lock(&in->lock);
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT);
    pthread_mutex_unlock(&in->lock);
}

void kvr__ingest_on_reply(void *ctx, struct kvr_recover_reply *reply)
{
    struct kvr_ingest *in = ctx;
    pthread_mutex_lock(&in->lock);
    reply->next = in->replies;
    in->replies = reply;
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT);
    pthread_mutex_unlock(&in->lock);
}

/* ---- what views have done ----------------------------------------------------------------------------- */

static bool send_replay(struct source *s, uint64_t from)
{
    unsigned char start[8];
    kvr_store_be64(start, from);
    return zmq_send(s->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 && zmq_send(s->dealer, start, 8, ZMQ_DONTWAIT) >= 0;
}

/* A fresh dealer: what the old one was still owed will not be taken for the answer to the next question. */
static void renew_dealer(struct kvr_ingest *in, struct source *s)
{
    void *monitor, *fresh = connect_dealer(in, s, &monitor);
    if (!fresh) return; /* then a late answer is told apart by its end only */
    close_pair(&s->dealer, &s->dealer_monitor);
    s->dealer = fresh;
    s->dealer_monitor = monitor;
    s->dealer_line = (struct kvr_zmq_line){0};
    s->owed_ends = 0;
}

static int ask_worker(struct kvr_ingest *in, const struct kvr_recover_question *q)
{
    return in->recover ? kvr_recover_client_ask(in->recover, q) : -KVR_ENOMEM;
}

static void cancel_question(struct kvr_ingest *in, uint64_t token)
{
    kvr_recover_client_cancel(in->recover, token);
}

static uint64_t monotonic_ns(void)
{
    return kvr_now_ns(kvr_clock_monotonic());
}

static const struct ingest_effects EFFECTS = {send_replay, renew_dealer, ask_worker, cancel_question, monotonic_ns};

int kvr_ingest_create(const struct kvr_ingest_handler *handler, double restore_timeout_s, struct kvr_ingest **out)
{
    struct kvr_ingest *in = calloc(1, sizeof *in);
    if (!in) return -KVR_ENOMEM;
    in->handler = *handler;
    in->effects = &EFFECTS;
    in->restore_timeout_ms = (uint64_t)(restore_timeout_s * 1000) + 1;
    kvr_engine_batch_init(&in->batch);
    kvr__plane_init(in);
    pthread_mutex_init(&in->lock, NULL);
    pthread_cond_init(&in->cond, NULL);
    in->zmq = zmq_ctx_new();
    if (in->zmq) zmq_ctx_set(in->zmq, ZMQ_MAX_SOCKETS, 32768);
    in->wake_in = in->zmq ? zmq_socket(in->zmq, ZMQ_PAIR) : NULL;
    in->wake_out = in->zmq ? zmq_socket(in->zmq, ZMQ_PAIR) : NULL;
    bool ok = in->wake_in && in->wake_out && zmq_bind(in->wake_out, "inproc://wake") == 0 &&
              zmq_connect(in->wake_in, "inproc://wake") == 0 && pthread_create(&in->thread, NULL, ingest_main, in) == 0;
    if (!ok) {
        if (in->wake_in) zmq_close(in->wake_in);
        if (in->wake_out) zmq_close(in->wake_out);
        if (in->zmq) zmq_ctx_term(in->zmq);
        pthread_mutex_destroy(&in->lock);
        pthread_cond_destroy(&in->cond);
        kvr__plane_free(in);
        free(in);
        return -KVR_ENOMEM;
    }
    *out = in;
    return 0;
}

void kvr_ingest_set_curve(struct kvr_ingest *in, const struct kvr_curve *c)
{
    pthread_mutex_lock(&in->lock);
    in->curve = c;
    pthread_mutex_unlock(&in->lock);
}

void kvr_ingest_destroy(struct kvr_ingest *in)
{
    if (!in) return;
    pthread_mutex_lock(&in->lock);
    in->stop = true;
    pthread_cond_broadcast(&in->cond);
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT);
    pthread_mutex_unlock(&in->lock);
    pthread_join(in->thread, NULL);
    kvr_recover_client_destroy(in->recover);
    while (in->commands) {
        struct command *c = in->commands;
        in->commands = c->next;
        if (c->add) source_free(in, c->add);
        if (!c->spare) free(c); /* nobody waits any more */
    }
    while (in->replies) {
        struct kvr_recover_reply *r = in->replies;
        in->replies = r->next;
        kvr_recover_reply_free(r);
    }
    zmq_close(in->wake_in);
    zmq_close(in->wake_out);
    zmq_ctx_term(in->zmq);
    kvr_engine_batch_free(&in->batch);
    kvr__plane_free(in);
    pthread_mutex_destroy(&in->lock);
    pthread_cond_destroy(&in->cond);
    free(in->statuses);
    free(in);
}

bool kvr_ingest_endpoint_ok(const char *e)
{
    if (strlen(e) >= 240) return false;
    if (strncmp(e, "ipc://", 6) == 0) return e[6] != 0;
    if (strncmp(e, "tcp://", 6) != 0) return false;
    const char *colon = strrchr(e + 6, ':');
    if (!colon || colon == e + 6 || !colon[1] || e[6] == '*') return false; /* '*' is for who binds */
    unsigned long port = 0;
    for (const char *p = colon + 1; *p; p++) {
        if (*p < '0' || *p > '9' || port > 65535) return false;
        port = port * 10 + (unsigned long)(*p - '0');
    }
    return port > 0 && port <= 65535;
}

bool kvr_ingest_endpoint_shift(const char *e, uint32_t offset, char *out, size_t cap)
{
    const char *colon = strrchr(e, ':');
    if (offset == 0) return snprintf(out, cap, "%s", e) < (int)cap;
    if (strncmp(e, "tcp://", 6) != 0 || !colon) return false;
    unsigned long port = strtoul(colon + 1, NULL, 10) + offset;
    return port <= 65535 && snprintf(out, cap, "%.*s:%lu", (int)(colon - e), e, port) < (int)cap;
}

bool kvr_ingest_endpoint_at(const char *host, uint16_t port, char *out, size_t cap)
{
    bool v6 = strchr(host, ':') != NULL;
    if (snprintf(out, cap, "tcp://%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port) < (int)cap) return true;
    out[0] = 0;
    return false;
}

static struct kvr_engine_stream *stream_of_rank(void *ctx, uint32_t rank)
{
    struct rank_stream *r = kvr__view_carry(ctx, rank);
    return r ? &r->stream : NULL;
}

/* Its place in the stream, and what was remembered there. Content without its memory would be taken further wrongly: then it is asked for
 * anew. */
static void go_on_from(struct source *s, const struct kvr_ingest_source *src)
{
    for (size_t i = 0; i < src->ranks_n; i++) (void)kvr__view_carry(s, src->ranks[i]);
    if (!src->from.known || kvr_engine_memory_read(src->memory, src->memory_len, stream_of_rank, s)) return;
    s->cursor.applied_any = true;
    s->cursor.next = src->from.next;
    s->cursor.last_ts = src->from.last_ts;
    s->missing = src->from.partial;
    if (src->from.next) kvr__view_remember(s, src->from.next - 1, src->from.last_hash);
    kvr__view_note_cursor(s);
}

int kvr_ingest_add(struct kvr_ingest *in, const struct kvr_ingest_source *src)
{
    bool connectable = (!src->events || kvr_ingest_endpoint_ok(src->events)) && (!src->replay || kvr_ingest_endpoint_ok(src->replay));
    if ((src->replay && !src->events) || (!connectable && !src->any_endpoint)) return -KVR_EINVAL;
    struct source *s = calloc(1, sizeof *s);
    struct command *c = calloc(1, sizeof *c);
    if (!s || !c) {
        free(s);
        free(c);
        return -KVR_ENOMEM;
    }
    s->st.worker = src->worker;
    s->user = src->user;
    s->any_rank = src->any_rank;
    s->lossy = src->lossy;
    s->ranks_n = 1;
    s->missing_why = "what was kept of it was not whole";
    s->wait_tail = &s->wait_head;
    s->plane = s->enveloped = !src->events;
    if (src->events) snprintf(s->events, sizeof s->events, "%s", src->events);
    if (src->replay) snprintf(s->replay, sizeof s->replay, "%s", src->replay);
    if (src->recover) snprintf(s->recover, sizeof s->recover, "%s", src->recover);
    s->st.can_replay = src->replay != NULL || s->recover[0];
    kvr_engine_stream_init(&s->own.stream, src->worker, src->block_size);
    s->own.stream.tiers = src->tiers;
    if (in->handler.on_window) {
        s->own.stream.window = kvr__view_window;
        s->own.stream.window_ctx = in;
    }
    if (in->handler.holds) {
        s->own.stream.holds = kvr__view_holds;
        s->own.stream.holds_ctx = in;
    }
    go_on_from(s, src);
    s->kept = src->kept;
    s->tail = src->tail;
    s->tail_len = src->tail_len;
    c->kind = ADD;
    c->add = s;
    c->keeper = src->keeper;
    send_command(in, c);
    return 0;
}

/* Takes a command back that the thread has not begun with. */
static bool withdraw_locked(struct kvr_ingest *in, const struct command *c)
{
    struct command **p = &in->commands;
    while (*p && *p != c) p = &(*p)->next;
    if (!*p) return false;
    *p = c->next;
    return true;
}

/* Sends the command and waits until the thread has run it, or is about to end; needs no memory. */
static int run_and_wait(struct kvr_ingest *in, struct command *c)
{
    bool done = false;
    int rc = -KVR_ENOMEM;
    c->done = &done;
    c->rc = &rc;
    send_command(in, c);
    pthread_mutex_lock(&in->lock);
    while (!done && !(in->stop && withdraw_locked(in, c))) pthread_cond_wait(&in->cond, &in->lock);
    pthread_mutex_unlock(&in->lock);
    return rc;
}

void kvr_ingest_remove(struct kvr_ingest *in, uint64_t worker_id, const uint32_t *rank)
{
    struct command c = {.kind = rank ? REMOVE_RANK : REMOVE_WORKER, .worker = {worker_id, rank ? *rank : 0}};
    (void)run_and_wait(in, &c);
}

void kvr_ingest_pause(struct kvr_ingest *in, struct kvr_worker worker, bool pause)
{
    struct command c = {.kind = pause ? PAUSE : RESUME, .worker = worker};
    (void)run_and_wait(in, &c);
}

/* What must not be lost when memory is short. */
static struct command *take_spare(struct kvr_ingest *in)
{
    struct command *c = NULL;
    pthread_mutex_lock(&in->lock);
    for (size_t i = 0; i < SPARE_COMMANDS && !c; i++)
        if (!in->spares[i].spare) c = &in->spares[i];
    if (c) *c = (struct command){.spare = true};
    pthread_mutex_unlock(&in->lock);
    return c;
}

/* A command nobody waits for; NULL: not even a spare one is left. */
static struct command *make_command(struct kvr_ingest *in, enum command_kind kind, struct kvr_worker worker)
{
    struct command *c = calloc(1, sizeof *c);
    if (!c) c = take_spare(in);
    if (!c) return NULL;
    c->kind = kind;
    c->worker = worker;
    return c;
}

void kvr_ingest_set_evidence(struct kvr_ingest *in, struct kvr_worker worker, const char *text)
{
    struct command *c = make_command(in, EVIDENCE, worker);
    if (!c) return;
    snprintf(c->text, sizeof c->text, "%s", text ? text : "");
    send_command(in, c);
}

void kvr_ingest_doubt_copies(struct kvr_ingest *in, struct kvr_worker worker, const uint64_t *name)
{
    struct command *c = make_command(in, DOUBT_COPIES, worker);
    if (!c) return;
    c->has_name = name != NULL;
    c->name = name ? *name : 0;
    send_command(in, c);
}

bool kvr_ingest_expect_reports(struct kvr_ingest *in, uint64_t worker_id)
{
    struct command *c = make_command(in, EXPECT_REPORTS, (struct kvr_worker){worker_id, 0});
    if (c) send_command(in, c);
    return c != NULL;
}

int kvr_ingest_served(struct kvr_ingest *in, const struct kvr_served *prompt)
{
    struct command *c = malloc(sizeof *c + prompt->n * sizeof *prompt->locals);
    if (!c) return -KVR_ENOMEM;
    *c = (struct command){.kind = SERVED, .worker = prompt->worker, .served = *prompt};
    c->served.locals = memcpy(c + 1, prompt->locals, prompt->n * sizeof *prompt->locals);
    pthread_mutex_lock(&in->lock);
    bool room = in->served_n < SERVED_MAX && in->served_blocks + prompt->n <= SERVED_BLOCKS_MAX;
    in->served_n += room;
    in->served_blocks += room ? prompt->n : 0;
    pthread_mutex_unlock(&in->lock);
    if (room) send_command(in, c);
    else free(c);
    return room ? 0 : -KVR_ELIMIT;
}

int kvr_ingest_visit_view(struct kvr_ingest *in, struct kvr_worker worker, kvr_ingest_visit *fn, void *arg)
{
    struct command c = {.kind = VISIT, .worker = worker, .visit = fn, .arg = arg};
    return run_and_wait(in, &c);
}

int kvr_ingest_visit_plane(struct kvr_ingest *in, kvr_ingest_plane_visit *fn, void *arg)
{
    struct command c = {.kind = VISIT_PLANE, .visit_plane = fn, .arg = arg};
    return run_and_wait(in, &c);
}

size_t kvr_ingest_status(struct kvr_ingest *in, struct kvr_view_status *out, size_t cap)
{
    pthread_mutex_lock(&in->lock);
    size_t n = in->statuses_n;
    if (n && cap) memcpy(out, in->statuses, KVR_MIN(n, cap) * sizeof *out);
    pthread_mutex_unlock(&in->lock);
    return n;
}

const char *kvr_view_knowledge_name(enum kvr_view_knowledge k)
{
    static const char *const names[] = {"unknown", "partial", "whole"};
    return names[k];
}

void kvr_view_metrics(struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n)
{
    kvr_prom_family(b, "kvroute_", "view_knowledge", "gauge",
                    "1 for the state that a view is in: whole, partial (older blocks may be missing), unknown");
    for (size_t i = 0; i < n; i++)
        for (int k = KVR_VIEW_UNKNOWN; k <= KVR_VIEW_WHOLE; k++)
            kvr_prom_put_u64(b,
                             KVR_PROM_PAIRS(KVR_PROM_RANK(st[i].worker.worker_id, st[i].worker.dp_rank),
                                            KVR_PROM_TEXT("state", kvr_view_knowledge_name((enum kvr_view_knowledge)k))),
                             (int)st[i].knowledge == k);
}

const char *kvr_view_trust_name(const struct kvr_view_status *st)
{
    return st->trusted ? "trusted" : st->repairing ? "recovering" : "untrusted";
}
