/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See the header for what becomes of a view. Threads: the ingest thread owns all sockets and sources. Others hand it
 * commands through a list under `lock` and wake it by an inproc PAIR socket; removal waits until the thread has done
 * it. Statuses are copied under the same lock, which the thread takes once per wake-up, never while it applies.
 *
 * The ingest thread, and libzmq's that reads for it, push no loop off a core in the midst of its work (SCHED_BATCH, sched(7)), unless
 * the process has been given another policy: on a busy core events wait for some milliseconds, and are then taken together.
 */
#include "net/ingest/internal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#include "net/zmq/curve.h"
#include "wire/engine_memory.h"
#include "wire/prom_page.h"

/* ---- reading ----------------------------------------------------------------------------------------- */

enum {
    FRAMES_MAX = 8,
    UNREAD_MAX = 128 << 20,   /* bytes of one connection that came and make no message that can be taken */
    LOOK_MS = 20,             /* at all sources, those that are silent too */
    FLOOD_PAUSE_MS = 1000,    /* before a connection is tried again that brought too much; doubles up to RETRY_MAX_MS */
    OLD_MESSAGES_MAX = 100000 /* of a broken connection, read before it counts as broken */
};

struct frames {
    zmq_msg_t m[FRAMES_MAX];
    int n, total;
    size_t bytes;
};

/* Nothing came of a read: does the socket say when there is something? */
static void note_end(struct source *s, unsigned which)
{
    if (errno == EAGAIN) s->unread &= ~(1u << which);
}

static bool may_read(const struct source *s, unsigned which)
{
    return s->unread >> which & 1;
}

/* Receives one multipart message of that socket. Returns: false when there is none. Frames past the limit are counted, not kept. */
static bool receive(struct source *s, unsigned which, void *socket, struct frames *f, struct kvr_zmq_line *line)
{
    f->n = f->total = 0;
    f->bytes = 0;
    for (;;) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, ZMQ_DONTWAIT) < 0) {
            note_end(s, which);
            zmq_msg_close(&m);
            return f->total > 0;
        }
        bool more = zmq_msg_more(&m);
        f->bytes += zmq_msg_size(&m);
        kvr_zmq_line_took(line, zmq_msg_size(&m));
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

static void take_frames(struct kvr_ingest *in, struct source *s, struct frames *f)
{
    if (f->total == 4 && zmq_msg_size(&f->m[2]) == 8) {
        kvr__plane_frame(in, s, zmq_msg_data(&f->m[3]), zmq_msg_size(&f->m[3]));
    } else if (f->total != 3 || zmq_msg_size(&f->m[1]) != 8) {
        s->st.bad_frames++;
    } else {
        struct kvr_view *v = kvr__source_view(s);
        kvr__view_enveloped(v, false);
        kvr__view_batch(v, kvr_load_be64(zmq_msg_data(&f->m[1])), zmq_msg_data(&f->m[2]), zmq_msg_size(&f->m[2]));
    }
}

/* What the broken connection had brought is read. */
static void connection_broke(struct source *s)
{
    s->breaking = 0;
    kvr__view_disconnected(kvr__source_view(s));
}

/* A report follows its announcement: one that was read may be of a request whose announcement is not. */
static void heed_announcements(struct kvr_ingest *in)
{
    struct command *c = kvr__inbox_take_announced(in);
    while (c) {
        struct command *next = c->next;
        for (struct source *s = in->sources; s; s = s->next)
            if (s->st.worker.worker_id == c->worker.worker_id) kvr__source_expect_reports(s);
        kvr__inbox_free_command(in, c);
        c = next;
    }
}

static void read_sub(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    struct turn t = kvr__turn_begin();
    bool drained = false, over = false;
    while (!drained && !over) {
        if (!receive(s, SUB, s->sub, &f, &s->line)) {
            drained = true;
            break;
        }
        heed_announcements(in);
        take_frames(in, s, &f);
        release(&f);
        drained = s->breaking == 1; /* enough of it */
        s->breaking -= s->breaking > 1;
        over = kvr__turn_over(in, &t, f.bytes);
    }
    if (t.messages) s->floods = 0;
    if (drained && s->breaking) connection_broke(s);
}

/* Replies: "" [topic] sequence payload; the end is a sequence of all ones with an empty payload. */
static void take_reply_frames(struct source *s, struct frames *f)
{
    bool ok = (f->total == 3 || f->total == 4) && zmq_msg_size(&f->m[0]) == 0 && zmq_msg_size(&f->m[f->n - 2]) == 8;
    if (!ok) {
        s->st.bad_frames++;
        kvr__view_replay_broken(kvr__source_view(s));
        return;
    }
    uint64_t seq = kvr_load_be64(zmq_msg_data(&f->m[f->n - 2]));
    size_t len = zmq_msg_size(&f->m[f->n - 1]);
    kvr__view_replay_part(kvr__source_view(s), seq, zmq_msg_data(&f->m[f->n - 1]), len);
}

static void read_dealer(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    struct turn t = kvr__turn_begin();
    void *dealer = s->dealer;
    while (receive(s, DEALER, dealer, &f, &s->dealer_line)) {
        take_reply_frames(s, &f);
        release(&f);
        if (s->dealer != dealer || kvr__turn_over(in, &t, f.bytes)) return; /* a renewed one has nothing yet */
    }
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
 * taken for the next process's, if its sequence happens to be the next. What the next one has brought by now is taken for the one before,
 * and asked for again. */
static void read_monitor(struct kvr_ingest *in, struct source *s)
{
    uint16_t event;
    uint32_t value;
    while (!s->breaking) {
        if (!kvr_zmq_monitor_read(s->monitor, &event, &value)) {
            note_end(s, SUB_MONITOR);
            return;
        }
        kvr_zmq_line_event(&s->line, event, value, in->now_ms);
        note_handshake(event, &s->sub_half, &s->st.events_trouble);
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) kvr__view_connected(kvr__source_view(s));
        if (event != ZMQ_EVENT_DISCONNECTED && event != ZMQ_EVENT_CLOSED) continue;
        s->breaking = OLD_MESSAGES_MAX;
    }
}

static void read_dealer_monitor(struct kvr_ingest *in, struct source *s)
{
    uint16_t event;
    uint32_t value;
    while (kvr_zmq_monitor_read(s->dealer_monitor, &event, &value)) {
        kvr_zmq_line_event(&s->dealer_line, event, value, in->now_ms);
        note_handshake(event, &s->dealer_half, &s->st.replay_trouble);
    }
    note_end(s, DEALER_MONITOR);
}

/* A connection that brings bytes and no messages: it is given up, and tried again after a pause. */
static void give_up_flood(struct kvr_ingest *in, struct source *s)
{
    uint64_t pause = (uint64_t)FLOOD_PAUSE_MS << KVR_MIN(s->floods, 5u);
    s->floods++;
    s->st.floods++;
    kvr__view_flooded(kvr__source_view(s));
    kvr__sockets_close(s);
    s->reopen_ms = in->now_ms + KVR_MIN(pause, (uint64_t)RETRY_MAX_MS);
}

static void reopen(struct kvr_ingest *in, struct source *s)
{
    s->reopen_ms = 0;
    if (kvr__sockets_open(in, s)) return;
    kvr__sockets_close(s);
    s->reopen_ms = in->now_ms + RETRY_MAX_MS; /* memory is short */
}

static void look_for_floods(struct kvr_ingest *in)
{
    for (struct source *s = in->sources; s; s = s->next)
        if (kvr_zmq_line_unread(&s->line, in->now_ms) > UNREAD_MAX || kvr_zmq_line_unread(&s->dealer_line, in->now_ms) > UNREAD_MAX)
            give_up_flood(in, s);
}

static void source_end(struct kvr_ingest *in, struct source *s)
{
    kvr__plane_detach(in, s);
    kvr__sockets_close(s);
    kvr__source_free(s);
}

static void source_open(struct kvr_ingest *in, struct source *s)
{
    bool asks = s->recover[0] && !in->recover;
    if (asks && kvr_recover_client_create(kvr__inbox_on_reply, in, &in->recover)) in->recover = NULL;
    s->st.failed = !s->view.shared && !kvr__sockets_open(in, s);
    if (s->st.failed) {
        kvr__sockets_close(s);
        kvr__view_failed(kvr__source_view(s), "the events socket could not be made");
    } else {
        kvr__view_begin(kvr__source_view(s));
    }
    if (!s->view.shared) return;
    kvr__plane_attach(in, s);
    if (in->plane_up) kvr__view_connected(kvr__source_view(s));
}

static void source_start(struct kvr_ingest *in, struct source *s, const struct kvr_ingest_keeper *keeper)
{
    kvr__source_take_tail(s);
    s->keeper = keeper;
    s->next = in->sources;
    in->sources = s;
    in->sources_n++;
    in->reordered = true;
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
    kvr__sockets_close(s);
    s->reopen_ms = 0;
    kvr__plane_detach(in, s);
    kvr__view_paused(kvr__source_view(s));
}

static void source_visit(struct kvr_ingest *in, struct source *s, const struct command *c)
{
    uint32_t ranks[RANKS_MAX];
    size_t n = 0;
    struct kvr_view_cursor adopt = {0};
    for (const struct rank_stream *r = &s->own; r && n < RANKS_MAX; r = r->next) ranks[n++] = r->stream.worker.dp_rank;
    kvr__source_status(s);
    s->st.cursor.partial |= in->handler.makes_up && in->handler.makes_up(in->handler.ctx, s->st.worker);
    in->visited = s;
    c->visit(c->arg, &s->st, ranks, n, &adopt);
    in->visited = NULL;
    if (adopt.known) kvr__view_adopt(kvr__source_view(s), &adopt);
}

int kvr_ingest_carry(struct kvr_ingest *in, uint32_t rank)
{
    return kvr__source_carry(in->visited, rank) ? 0 : -KVR_ELIMIT;
}

void kvr_ingest_memory(struct kvr_ingest *in, struct kvr_buf *out)
{
    for (const struct rank_stream *r = &in->visited->own; r; r = r->next) kvr_engine_memory_write(&r->stream, out);
}

void kvr_ingest_keep(struct kvr_ingest *in, const struct kvr_ingest_keeper *keeper, void *kept)
{
    in->visited->keeper = keeper;
    in->visited->kept = kept;
}

int kvr_ingest_recall(struct kvr_ingest *in, const char *memory, size_t len)
{
    return kvr__source_recall(in->visited, memory, len);
}

enum kvr_view_knowledge kvr_ingest_bare(struct kvr_ingest *in)
{
    const struct source *s = in->visited;
    enum kvr_view_knowledge bare = s->view.knowledge;
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
    for (struct source *s = in->sources; s; s = s->next, n++) {
        if (!s->changed && !in->reordered) continue;
        kvr__source_status(s);
        in->statuses[n] = s->st;
        s->changed = false;
    }
    in->statuses_n = n;
    in->reordered = false;
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
        while (s && !(kvr__view_is_asking(&s->view) && s->token == r->token)) s = s->next;
        if (s) kvr__view_answer(kvr__source_view(s), &r->answer);
        kvr_recover_reply_free(r);
        r = next;
    }
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
            in->reordered = true;
            source_end(in, s);
            continue;
        }
        if (c->kind == PAUSE || c->kind == RESUME) source_pause(in, s, c->kind == PAUSE);
        if (c->kind == EVIDENCE) kvr__view_evidence(kvr__source_view(s), c->text);
        if (c->kind == DOUBT_COPIES) kvr__source_doubt_copies(s, c->has_name ? &c->name : NULL);
        if (c->kind == EXPECT_REPORTS) kvr__source_expect_reports(s);
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
        kvr__inbox_free_command(in, c);
        return;
    }
    kvr_lock(&in->lock);
    publish_statuses(in); /* who waited sees what it asked for */
    if (c->rc) *c->rc = rc;
    *c->done = true;
    pthread_cond_broadcast(&in->cond);
    kvr_unlock(&in->lock);
}

/* Returns: false when it is time to stop. */
static bool exchange(struct kvr_ingest *in)
{
    char drain[64];
    if (in->called) {
        while (zmq_recv(in->wake_out, drain, sizeof drain, ZMQ_DONTWAIT) >= 0) continue;
        in->called = errno != EAGAIN;
    }
    struct plane_message *messages = kvr__plane_waiting(in); /* before the commands: see plane.c */
    kvr_lock(&in->lock);
    struct command *c = in->commands;
    struct kvr_recover_reply *replies = in->replies;
    in->commands = NULL;
    in->replies = NULL;
    bool stop = in->stop;
    kvr_unlock(&in->lock);
    while (c) {
        struct command *next = c->next;
        run_command(in, c);
        c = next;
    }
    take_replies(in, replies);
    kvr__plane_take(in, messages, !stop);
    kvr_lock(&in->lock);
    publish_statuses(in); /* of this round and of the turns before it: the thread may sleep now */
    kvr_unlock(&in->lock);
    return !stop;
}

/* While what has waited is taken, new messages stay in the socket; after a break the monitor's words wait. */
static bool is_readable(const struct source *s)
{
    if (!s->sub || !s->monitor) return false;
    return s->breaking || may_read(s, SUB_MONITOR) || (may_read(s, SUB) && !kvr__view_is_settling(&s->view)) ||
           (s->dealer && (may_read(s, DEALER) || may_read(s, DEALER_MONITOR)));
}

/* Is there something to go on with, whatever comes? */
static bool is_busy(const struct source *s)
{
    return is_readable(s) || kvr__view_is_busy(&s->view);
}

static bool any_busy(const struct kvr_ingest *in)
{
    bool busy = false;
    for (const struct source *s = in->sources; s && !busy; s = s->next) busy = is_busy(s);
    return busy;
}

/* One source's turn. */
static void take_turn(struct kvr_ingest *in, struct source *s)
{
    if (s->sub && s->monitor) {
        if (may_read(s, SUB_MONITOR)) read_monitor(in, s);
        if (s->breaking || (may_read(s, SUB) && !kvr__view_is_settling(&s->view))) read_sub(in, s);
        if (s->dealer) {
            if (may_read(s, DEALER_MONITOR)) read_dealer_monitor(in, s);
            if (may_read(s, DEALER)) read_dealer(in, s);
        }
    } else if (s->reopen_ms && in->now_ms >= s->reopen_ms) {
        reopen(in, s);
    }
    struct kvr_view *v = kvr__source_view(s);
    if (kvr__view_is_busy(v)) kvr__view_step(v);
    kvr__view_tick(v);
}

/* Sleeps until there is something to do. What comes one by one, a thousand times a second and more, is let gather for a millisecond: to
 * wake up costs as much as to apply some events, here and in libzmq's thread, which then has nobody to wake. */
static void sleep_for_events(struct kvr_ingest *in)
{
    const struct timespec gather = {.tv_nsec = 1000000};
    if (kvr_now_ms() <= in->woken_ms + 1) nanosleep(&gather, NULL);
    if (kvr__sockets_wait(in, 50)) in->woken_ms = kvr_now_ms();
}

static void poll_once(struct kvr_ingest *in)
{
    if (any_busy(in)) (void)kvr__sockets_wait(in, 0);
    else sleep_for_events(in);
    in->now_ms = kvr_now_ms();
    bool all = in->now_ms >= in->look_at_ms;
    for (struct source *s = in->sources; s && !in->stop; s = s->next)
        if (all || is_busy(s)) take_turn(in, s);
    if (!all) return;
    in->look_at_ms = in->now_ms + LOOK_MS;
    look_for_floods(in);
    kvr__wiring_look(in);
    if (in->handler.on_tick) in->handler.on_tick(in->handler.ctx, in->now_ms);
}

static bool be_patient(void)
{
    return pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0}) == 0;
}

/* A policy that an operator has chosen stays. libzmq ends the program where the kernel refuses; so it is tried here, on a thread that takes
 * its own policy back. */
static bool may_be_patient(void)
{
    int policy;
    struct sched_param own;
    if (pthread_getschedparam(pthread_self(), &policy, &own) || policy != SCHED_OTHER || !be_patient()) return false;
    return pthread_setschedparam(pthread_self(), policy, &own) == 0;
}

static void *ingest_main(void *arg)
{
    struct kvr_ingest *in = arg;
    if (in->patient) (void)be_patient();
    in->now_ms = kvr_now_ms();
    while (exchange(in)) {
        atomic_store_explicit(&in->moved, true, memory_order_relaxed);
        poll_once(in);
    }
    while (in->sources) {
        struct source *s = in->sources;
        in->sources = s->next;
        source_end(in, s);
    }
    return NULL;
}

/* ---- from other threads ------------------------------------------------------------------------------ */

int kvr_ingest_create(const struct kvr_ingest_handler *handler, double restore_timeout_s, struct kvr_ingest **out)
{
    struct kvr_ingest *in = calloc(1, sizeof *in);
    if (!in) return -KVR_ENOMEM;
    in->handler = *handler;
    in->restore_timeout_ms = (uint64_t)(restore_timeout_s * 1000) + 1;
    kvr_engine_batch_init(&in->batch);
    kvr__plane_init(in);
    kvr_lock_init(&in->lock, KVR_LOCK_INGEST);
    pthread_cond_init(&in->cond, NULL);
    in->zmq = zmq_ctx_new();
    if (in->zmq) zmq_ctx_set(in->zmq, ZMQ_MAX_SOCKETS, 32768);
    in->patient = may_be_patient();
    if (in->zmq && in->patient) zmq_ctx_set(in->zmq, ZMQ_THREAD_SCHED_POLICY, SCHED_BATCH);
    in->wake_in = in->zmq ? zmq_socket(in->zmq, ZMQ_PAIR) : NULL;
    in->wake_out = in->zmq ? zmq_socket(in->zmq, ZMQ_PAIR) : NULL;
    in->epoll = epoll_create1(EPOLL_CLOEXEC);
    in->called = true;
    bool ok = in->wake_in && in->wake_out && zmq_bind(in->wake_out, "inproc://wake") == 0 &&
              zmq_connect(in->wake_in, "inproc://wake") == 0 && in->epoll >= 0 && kvr__sockets_watch(in, in->wake_out, NULL) &&
              pthread_create(&in->thread, NULL, ingest_main, in) == 0;
    if (!ok) {
        if (in->epoll >= 0) close(in->epoll);
        if (in->wake_in) zmq_close(in->wake_in);
        if (in->wake_out) zmq_close(in->wake_out);
        if (in->zmq) zmq_ctx_term(in->zmq);
        kvr_lock_destroy(&in->lock);
        pthread_cond_destroy(&in->cond);
        kvr__plane_free(in);
        free(in);
        return -KVR_ENOMEM;
    }
    *out = in;
    return 0;
}

bool kvr_ingest_moved(struct kvr_ingest *in)
{
    return !in || atomic_exchange_explicit(&in->moved, false, memory_order_relaxed);
}

void kvr_ingest_set_curve(struct kvr_ingest *in, const struct kvr_curve *c)
{
    kvr_lock(&in->lock);
    in->curve = c;
    kvr_unlock(&in->lock);
}

void kvr_ingest_destroy(struct kvr_ingest *in)
{
    if (!in) return;
    kvr_lock(&in->lock);
    in->stop = true;
    pthread_cond_broadcast(&in->cond);
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT);
    kvr_unlock(&in->lock);
    pthread_join(in->thread, NULL);
    kvr_recover_client_destroy(in->recover);
    while (in->commands) {
        struct command *c = in->commands;
        in->commands = c->next;
        if (c->add) source_end(in, c->add);
        if (!c->spare) free(c); /* nobody waits any more */
    }
    while (in->replies) {
        struct kvr_recover_reply *r = in->replies;
        in->replies = r->next;
        kvr_recover_reply_free(r);
    }
    close(in->epoll);
    zmq_close(in->wake_in);
    zmq_close(in->wake_out);
    zmq_ctx_term(in->zmq);
    kvr_engine_batch_free(&in->batch);
    kvr__plane_free(in);
    kvr_lock_destroy(&in->lock);
    pthread_cond_destroy(&in->cond);
    free(in->statuses);
    free(in);
}

int kvr_ingest_add(struct kvr_ingest *in, const struct kvr_ingest_source *src)
{
    bool connectable = (!src->events || kvr_ingest_endpoint_ok(src->events)) && (!src->replay || kvr_ingest_endpoint_ok(src->replay));
    if ((src->replay && !src->events) || (!connectable && !src->any_endpoint)) return -KVR_EINVAL;
    struct command *c = calloc(1, sizeof *c);
    struct source *s = c ? kvr__source_create(in, src) : NULL;
    if (!s) {
        free(c);
        return -KVR_ENOMEM;
    }
    c->kind = ADD;
    c->add = s;
    c->keeper = src->keeper;
    kvr__inbox_send(in, c);
    return 0;
}

void kvr_ingest_remove(struct kvr_ingest *in, uint64_t worker_id, const uint32_t *rank)
{
    struct command c = {.kind = rank ? REMOVE_RANK : REMOVE_WORKER, .worker = {worker_id, rank ? *rank : 0}};
    (void)kvr__inbox_run(in, &c);
}

void kvr_ingest_pause(struct kvr_ingest *in, struct kvr_worker worker, bool pause)
{
    struct command c = {.kind = pause ? PAUSE : RESUME, .worker = worker};
    (void)kvr__inbox_run(in, &c);
}

void kvr_ingest_set_evidence(struct kvr_ingest *in, struct kvr_worker worker, const char *text)
{
    struct command *c = kvr__inbox_command(in, EVIDENCE, worker);
    if (!c) return;
    snprintf(c->text, sizeof c->text, "%s", text ? text : "");
    kvr__inbox_send(in, c);
}

void kvr_ingest_doubt_copies(struct kvr_ingest *in, struct kvr_worker worker, const uint64_t *name)
{
    struct command *c = kvr__inbox_command(in, DOUBT_COPIES, worker);
    if (!c) return;
    c->has_name = name != NULL;
    c->name = name ? *name : 0;
    kvr__inbox_send(in, c);
}

bool kvr_ingest_expect_reports(struct kvr_ingest *in, uint64_t worker_id)
{
    struct command *c = kvr__inbox_command(in, EXPECT_REPORTS, (struct kvr_worker){worker_id, 0});
    if (c) kvr__inbox_send(in, c);
    return c != NULL;
}

int kvr_ingest_served(struct kvr_ingest *in, const struct kvr_served *prompt)
{
    return kvr__inbox_send_served(in, prompt);
}

int kvr_ingest_visit_view(struct kvr_ingest *in, struct kvr_worker worker, kvr_ingest_visit *fn, void *arg)
{
    struct command c = {.kind = VISIT, .worker = worker, .visit = fn, .arg = arg};
    return kvr__inbox_run(in, &c);
}

int kvr_ingest_visit_plane(struct kvr_ingest *in, kvr_ingest_plane_visit *fn, void *arg)
{
    struct command c = {.kind = VISIT_PLANE, .visit_plane = fn, .arg = arg};
    return kvr__inbox_run(in, &c);
}

size_t kvr_ingest_status(struct kvr_ingest *in, struct kvr_view_status *out, size_t cap)
{
    kvr_lock(&in->lock);
    size_t n = in->statuses_n;
    if (n && cap) memcpy(out, in->statuses, KVR_MIN(n, cap) * sizeof *out);
    kvr_unlock(&in->lock);
    return n;
}

const char *kvr_view_knowledge_name(enum kvr_view_knowledge k)
{
    static const char *const names[] = {"unknown", "partial", "whole"};
    return names[k];
}

void kvr_view_metrics(struct kvr_prom_page *b, const struct kvr_view_status *st, size_t n)
{
    kvr_prom_family(b, "kvroute_", "view_knowledge", "gauge", "1 for the state of a view: whole, partial, unknown");
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
