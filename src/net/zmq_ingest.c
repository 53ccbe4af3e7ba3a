/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See the header for the life of a view. Threads: the ingest thread owns all sockets and sources. Others hand it
 * commands through a list under `lock` and wake it by an inproc PAIR socket; removal waits until the thread has done
 * it. Statuses are copied under the same lock, which the thread takes once per wake-up, never while it applies.
 */
#include "net/zmq_ingest.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <zmq.h>

#include "recover/cursor.h"

enum {
    HWM = 100000,
    MESSAGE_MAX = 64 << 20,
    WAITING_MESSAGES_MAX = 4096,
    WAITING_BYTES_MAX = 32 << 20,
    BURST = 64,            /* messages taken from one socket before the next gets its turn */
    REPLAY_ROUNDS_MAX = 4, /* holes behind holes before we give up */
    DOWN_GRACE_MS = 2000,
    TAIL_CHECK_MS = 200, /* the subscription may have come too late for what was sent just then */
    RETRY_MIN_MS = 500,
    RETRY_MAX_MS = 30000,
    RANKS_MAX = 1024, /* of one source */
    RECENT = 64,
    REBUILD_PAUSE_MS = 30000
};

struct waiting {
    struct waiting *next;
    uint64_t seq;
    bool seen; /* the cursor knows that the live stream showed it */
    size_t len;
    char data[];
};

/* What must be remembered of one rank; a source has one for its own and makes others as they show up. */
struct rank_stream {
    struct rank_stream *next;
    struct kvr_engine_stream stream;
};

struct source {
    struct source *next;
    struct kvr_view_status st;
    void *user;
    bool any_rank, lossy;
    char events[256], replay[256];
    void *sub, *monitor, *dealer;
    struct rank_stream own;
    size_t ranks_n;
    struct kvr_cursor cursor;
    struct waiting *wait_head, **wait_tail;
    size_t wait_n, wait_bytes;
    uint64_t last_hash; /* of the last applied payload */
    struct {
        uint64_t end, hash; /* sequence + 1, so that 0 is empty */
    } recent[RECENT];       /* the last applied batches: one that comes again is not a restart */
    uint64_t replay_from, silent_deadline_ms, retry_at_ms, tail_at_ms, drop_at_ms, rebuilt_ms;
    unsigned rounds, retries, owed_ends; /* owed_ends: replays asked for on this dealer whose end has not come */
    bool replaying, verifying, missing, connected, cleared, orphaned, mismatch;
    bool doubt; /* reconnected without replay: the next batch tells whether it is the same stream */
};

enum command_kind { ADD, REMOVE_WORKER, REMOVE_RANK, PAUSE, RESUME, VISIT };

struct command {
    struct command *next;
    enum command_kind kind;
    struct source *add;
    struct kvr_worker worker;
    kvr_ingest_visit *visit;
    void *arg;
    bool *done;
    int *rc;
};

struct kvr_ingest {
    struct kvr_ingest_handler handler;
    uint64_t restore_timeout_ms;
    void *zmq, *wake_in, *wake_out;
    pthread_t thread;
    pthread_mutex_t lock; /* commands, stop, statuses */
    pthread_cond_t cond;
    struct command *commands;
    bool stop;
    struct kvr_view_status *statuses;
    size_t statuses_n, statuses_cap;
    /* the thread's own */
    struct source *sources;
    size_t sources_n, monitors;
    struct kvr_engine_batch batch;
    struct source *current;
    uint64_t now_ms;
};

/* ---- trust ------------------------------------------------------------------------------------------- */

static void set_trust(struct kvr_ingest *in, struct source *s, bool trusted, const char *reason)
{
    bool changed = s->st.trusted != trusted || !s->st.settled || strcmp(s->st.reason, reason) != 0;
    s->st.settled = true;
    if (!changed) return;
    s->st.trusted = trusted;
    snprintf(s->st.reason, sizeof s->st.reason, "%s", reason);
    s->st.since_ns = kvr_now_ns(kvr_clock_monotonic());
    in->handler.on_trust(in->handler.ctx, s->user, s->st.worker, trusted, reason);
}

static void drop_waiting(struct source *s)
{
    while (s->wait_head) {
        struct waiting *w = s->wait_head;
        s->wait_head = w->next;
        free(w);
    }
    s->wait_tail = &s->wait_head;
    s->wait_n = s->wait_bytes = 0;
}

static void drop_content(struct kvr_ingest *in, struct source *s)
{
    for (struct rank_stream *r = &s->own; r; r = r->next) {
        in->handler.on_reset(in->handler.ctx, s->user, r->stream.worker);
        kvr_engine_stream_reset(&r->stream);
    }
}

static void note_cursor(struct source *s)
{
    bool whole = s->cursor.applied_any && !s->missing && !s->mismatch;
    s->st.cursor = (struct kvr_view_cursor){whole, s->cursor.next, s->last_hash, s->cursor.last_ts};
    s->st.next_sequence = s->cursor.next;
}

static void drop_view(struct kvr_ingest *in, struct source *s)
{
    drop_content(in, s);
    kvr__cursor_reset(&s->cursor);
    memset(s->recent, 0, sizeof s->recent);
    s->missing = false;
    note_cursor(s);
}

static void remember(struct source *s, uint64_t seq, uint64_t hash)
{
    s->last_hash = hash;
    s->recent[seq % RECENT].end = seq + 1;
    s->recent[seq % RECENT].hash = hash;
}

static bool remembers(const struct source *s, uint64_t seq, const char *data, size_t len)
{
    return s->recent[seq % RECENT].end == seq + 1 && s->recent[seq % RECENT].hash == kvr_hash_bytes(data, len, 0);
}

/* The stream of the batch's rank; NULL when the source is not to carry it. */
static struct rank_stream *stream_of(struct kvr_ingest *in, struct source *s)
{
    struct rank_stream *r = &s->own;
    if (!in->batch.has_rank || in->batch.rank == s->st.worker.dp_rank) return r;
    if (!s->any_rank) return NULL;
    for (r = s->own.next; r; r = r->next)
        if (r->stream.worker.dp_rank == in->batch.rank) return r;
    if (s->ranks_n >= RANKS_MAX || !(r = calloc(1, sizeof *r))) return NULL;
    kvr_engine_stream_init(&r->stream, (struct kvr_worker){s->st.worker.worker_id, in->batch.rank}, s->own.stream.block_size);
    r->stream.tiers = s->own.stream.tiers;
    r->next = s->own.next;
    s->own.next = r;
    s->ranks_n++;
    return r;
}

static void sum_counters(struct source *s)
{
    struct kvr_engine_counters *sum = &s->st.filtered;
    *sum = s->own.stream.counters;
    for (const struct rank_stream *r = s->own.next; r; r = r->next) {
#define KVR_SUM(name) sum->name += r->stream.counters.name;
        KVR_ENGINE_COUNTERS(KVR_SUM)
#undef KVR_SUM
    }
}

/* ---- applying ---------------------------------------------------------------------------------------- */

static void on_converted(void *ctx, const struct kvr_event *ev)
{
    struct kvr_ingest *in = ctx;
    struct source *s = in->current;
    int rc = in->handler.on_event(in->handler.ctx, s->user, ev);
    s->st.events++;
    s->st.blocks += ev->blocks_n + ev->removed_n;
    if (ev->kind == KVR_EVENT_CLEARED && rc == 0) s->cleared = true;
    if (rc == -KVR_EPARENT) {
        s->st.parent_not_found++;
        s->orphaned = true;
    } else if (rc == -KVR_ENOTFOUND) {
        s->st.block_not_found++;
    } else if (rc) {
        s->st.apply_errors++;
    }
}

/* Applies the decoded batch. */
static void apply_batch(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    struct rank_stream *r = stream_of(in, s);
    uint64_t mismatches = r ? r->stream.counters.block_size_mismatch : 0;
    if (!r) {
        s->own.stream.counters.other_rank++;
        s->mismatch = true;
        set_trust(in, s, false, "the engine sends another data-parallel rank on this port");
    } else {
        in->current = s;
        s->cleared = s->orphaned = false;
        if (kvr_engine_convert(&r->stream, &in->batch, seq, on_converted, in) < 0) s->st.apply_errors++;
        if (s->cleared && s->missing && s->ranks_n == 1) s->missing = false; /* an empty view is a complete one */
        if (r->stream.counters.block_size_mismatch != mismatches) {
            s->mismatch = true;
            set_trust(in, s, false, "the engine's block size differs from the configured one");
        }
    }
    s->st.batches++;
    s->st.bytes += len;
    sum_counters(s);
    remember(s, seq, kvr_hash_bytes(data, len, 0));
    kvr__cursor_advance(&s->cursor, seq, in->batch.ts);
    note_cursor(s);
}

static bool decode(struct kvr_ingest *in, struct source *s, const char *data, size_t len)
{
    if (kvr_engine_decode(&in->batch, data, len) == 0) return true;
    s->st.decode_errors++;
    return false;
}

/* ---- replay ------------------------------------------------------------------------------------------ */

static void request_replay(struct kvr_ingest *in, struct source *s, uint64_t from)
{
    unsigned char start[8];
    kvr_store_be64(start, from);
    s->st.replays++;
    s->replaying = true;
    s->owed_ends++;
    s->replay_from = from;
    s->silent_deadline_ms = in->now_ms + in->restore_timeout_ms;
    s->retry_at_ms = s->tail_at_ms = 0;
    if (zmq_send(s->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 || zmq_send(s->dealer, start, 8, ZMQ_DONTWAIT) < 0)
        s->silent_deadline_ms = in->now_ms; /* reported as silence */
}

static void *socket_new(struct kvr_ingest *in, int type);

/* A fresh dealer: what the old one was still owed will not be taken for the answer to the next question. */
static void renew_dealer(struct kvr_ingest *in, struct source *s)
{
    void *fresh = socket_new(in, ZMQ_DEALER);
    if (!fresh || zmq_connect(fresh, s->replay)) { /* then a late answer is told apart by its end only */
        if (fresh) zmq_close(fresh);
        return;
    }
    zmq_close(s->dealer);
    s->dealer = fresh;
    s->owed_ends = 0;
}

static void rebuild(struct kvr_ingest *in, struct source *s)
{
    drop_view(in, s);
    s->verifying = false;
    s->rounds = 0;
    s->st.state = KVR_VIEW_RESTORING;
    set_trust(in, s, false, "being replayed from the start");
    request_replay(in, s, 0);
}

static void replay_failed(struct kvr_ingest *in, struct source *s)
{
    uint64_t pause = (uint64_t)RETRY_MIN_MS << KVR_MIN(s->retries, 6u);
    s->st.replay_failures++;
    s->replaying = false; /* verifying stays: who has not answered has confirmed nothing */
    s->retries++;
    renew_dealer(in, s);
    s->retry_at_ms = in->now_ms + KVR_MIN(pause, (uint64_t)RETRY_MAX_MS);
    drop_waiting(s);
    set_trust(in, s, false, s->connected ? "the replay endpoint does not answer" : "the events endpoint is not reachable");
}

static void on_live_message(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len, bool seen);

static void replay_complete(struct kvr_ingest *in, struct source *s)
{
    struct waiting *w = s->wait_head;
    s->wait_head = NULL;
    s->wait_tail = &s->wait_head;
    s->wait_n = s->wait_bytes = 0;
    s->replaying = false;
    s->retries = 0;
    s->st.state = KVR_VIEW_LIVE;
    if (!s->cursor.applied_any && !w) drop_content(in, s); /* the engine has done nothing yet */
    while (w) {                                            /* a hole starts another replay, and the rest waits again */
        struct waiting *next = w->next;
        on_live_message(in, s, w->seq, w->data, w->len, w->seen);
        free(w);
        w = next;
    }
    if (s->replaying) return;
    s->rounds = 0;
    s->st.state = KVR_VIEW_LIVE;
    if (s->mismatch) return;
    if (s->missing) set_trust(in, s, false, "the engine's replay buffer no longer holds the whole history");
    else set_trust(in, s, true, "");
}

/* A reconnected engine must still have our last batch, else it is another life of it. */
static void on_verified(struct kvr_ingest *in, struct source *s, bool same)
{
    s->verifying = false;
    if (same) return;
    s->st.restarts++;
    s->mismatch = false;
    s->replaying = false;
    rebuild(in, s);
}

static void on_replayed(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    s->silent_deadline_ms = in->now_ms + in->restore_timeout_ms;
    if (seq < s->replay_from) return; /* left over from an earlier request */
    if (s->verifying) {
        bool same = seq + 1 == s->cursor.next && kvr_hash_bytes(data, len, 0) == s->last_hash;
        on_verified(in, s, same);
        return;
    }
    if (!s->cursor.applied_any) drop_content(in, s); /* what was there came from less than the engine itself */
    switch (kvr__cursor_replay(&s->cursor, seq)) {
    case KVR_CURSOR_STALE:
    case KVR_CURSOR_RESTART: return;
    case KVR_CURSOR_GAP: s->missing = true; break;
    case KVR_CURSOR_APPLY: break;
    }
    if (decode(in, s, data, len)) {
        apply_batch(in, s, seq, data, len);
    } else {
        s->missing = true; /* it will never decode; go on without it, untrusted */
        kvr__cursor_advance(&s->cursor, seq, 0);
    }
}

static void on_replay_end(struct kvr_ingest *in, struct source *s)
{
    if (!s->replaying) return;
    if (s->verifying) {
        on_verified(in, s, false);
        return;
    }
    replay_complete(in, s);
}

/* ---- live -------------------------------------------------------------------------------------------- */

static void keep_waiting(struct source *s, uint64_t seq, const char *data, size_t len, bool seen)
{
    struct waiting *w = NULL;
    if (s->wait_n < WAITING_MESSAGES_MAX && s->wait_bytes + len <= WAITING_BYTES_MAX) w = malloc(sizeof *w + len);
    if (!w) { /* the hole is found, and repaired, when the replay ends */
        s->st.overflows++;
        return;
    }
    w->next = NULL;
    w->seq = seq;
    w->seen = seen;
    w->len = len;
    memcpy(w->data, data, len);
    *s->wait_tail = w;
    s->wait_tail = &w->next;
    s->wait_n++;
    s->wait_bytes += len;
}

static void unrepaired_gap(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    struct kvr_cursor seen = s->cursor;
    drop_view(in, s);
    s->cursor.live_any = true;
    s->cursor.last_live = seen.last_live;
    s->missing = true;
    apply_batch(in, s, seq, data, len);
    if (s->missing) set_trust(in, s, false, "batches were lost and there is no replay endpoint");
    else if (!s->mismatch) set_trust(in, s, true, "");
}

static void on_gap(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    s->st.gaps++;
    if (!s->dealer) {
        unrepaired_gap(in, s, seq, data, len);
    } else if (s->rounds++ < REPLAY_ROUNDS_MAX) {
        keep_waiting(s, seq, data, len, true);
        request_replay(in, s, s->cursor.next);
    } else {
        s->rounds = 0;
        unrepaired_gap(in, s, seq, data, len);
    }
}

static void on_restart(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len)
{
    s->st.restarts++;
    s->mismatch = false;
    drop_view(in, s);
    s->cursor.live_any = true;
    s->cursor.last_live = seq;
    if (seq == 0) {
        apply_batch(in, s, seq, data, len);
        if (!s->mismatch) set_trust(in, s, true, "");
    } else {
        set_trust(in, s, false, "being replayed from the start");
        on_gap(in, s, seq, data, len);
    }
}

static void on_live_message(struct kvr_ingest *in, struct source *s, uint64_t seq, const char *data, size_t len, bool seen)
{
    if (s->replaying) {
        keep_waiting(s, seq, data, len, seen);
        return;
    }
    if (s->retry_at_ms && s->dealer) return; /* the replay that is due will bring it */
    if (remembers(s, seq, data, len)) {      /* sent twice, or overtaken by its replay */
        s->st.stale_batches++;
        return;
    }
    if (!decode(in, s, data, len)) return;
    switch (seen ? kvr__cursor_replay(&s->cursor, seq) : kvr__cursor_live(&s->cursor, seq, in->batch.ts)) {
    case KVR_CURSOR_STALE: s->st.stale_batches++; return;
    case KVR_CURSOR_RESTART: on_restart(in, s, seq, data, len); return;
    case KVR_CURSOR_GAP: on_gap(in, s, seq, data, len); return;
    case KVR_CURSOR_APPLY: break;
    }
    bool was_missing = s->missing;
    apply_batch(in, s, seq, data, len);
    s->rounds = 0;
    s->st.state = KVR_VIEW_LIVE;
    if (s->orphaned && !s->lossy && s->dealer && s->st.trusted && in->now_ms - s->rebuilt_ms > REBUILD_PAUSE_MS) {
        s->rebuilt_ms = in->now_ms; /* a store under an unknown parent: something was missed, start over */
        rebuild(in, s);
    } else if (!s->st.trusted && !s->missing && !s->mismatch && (seq == 0 || was_missing || s->doubt)) {
        set_trust(in, s, true, "");
    }
    s->doubt = false;
}

/* ---- sockets ----------------------------------------------------------------------------------------- */

enum { FRAMES_MAX = 8 };

struct frames {
    zmq_msg_t m[FRAMES_MAX];
    int n, total;
};

/* Receives one multipart message. Returns: false when there is none. Frames past the limit are counted, not kept. */
static bool receive(void *socket, struct frames *f)
{
    f->n = f->total = 0;
    for (;;) {
        zmq_msg_t m;
        zmq_msg_init(&m);
        if (zmq_msg_recv(&m, socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&m);
            return f->total > 0;
        }
        bool more = zmq_msg_more(&m);
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

static void read_sub(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    for (int i = 0; i < BURST && receive(s->sub, &f); i++) {
        if (f.total != 3 || zmq_msg_size(&f.m[1]) != 8) s->st.bad_frames++;
        else on_live_message(in, s, kvr_load_be64(zmq_msg_data(&f.m[1])), zmq_msg_data(&f.m[2]), zmq_msg_size(&f.m[2]), false);
        release(&f);
    }
}

/* Replies: "" [topic] sequence payload; the end is a sequence of all ones with an empty payload. */
static void read_dealer(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    for (int i = 0; i < BURST && receive(s->dealer, &f); i++) {
        bool ok = (f.total == 3 || f.total == 4) && zmq_msg_size(&f.m[0]) == 0 && zmq_msg_size(&f.m[f.n - 2]) == 8;
        if (!ok) {
            s->st.bad_frames++;
        } else {
            uint64_t seq = kvr_load_be64(zmq_msg_data(&f.m[f.n - 2]));
            size_t len = zmq_msg_size(&f.m[f.n - 1]);
            bool end = seq == UINT64_MAX && len == 0;
            s->owed_ends -= end && s->owed_ends;
            bool current = s->replaying && s->owed_ends == !end; /* answers come in the order of the questions */
            if (current && end) on_replay_end(in, s);
            else if (current) on_replayed(in, s, seq, zmq_msg_data(&f.m[f.n - 1]), len);
        }
        release(&f);
    }
}

static void on_connected(struct kvr_ingest *in, struct source *s)
{
    s->connected = s->st.connected = true;
    s->drop_at_ms = 0;
    if (!s->dealer) {
        s->doubt = s->cursor.applied_any;
        return;
    }
    drop_waiting(s);
    if (s->owed_ends) renew_dealer(in, s);
    s->rounds = s->retries = 0;
    if (s->cursor.applied_any) {
        s->verifying = true;
        request_replay(in, s, s->cursor.next - 1);
    } else {
        request_replay(in, s, 0);
    }
    s->tail_at_ms = in->now_ms + TAIL_CHECK_MS;
}

static void on_disconnected(struct kvr_ingest *in, struct source *s)
{
    if (!s->connected) return;
    s->connected = s->st.connected = false;
    s->st.disconnects++;
    s->replaying = s->verifying = false;
    s->retry_at_ms = s->tail_at_ms = 0;
    drop_waiting(s);
    s->drop_at_ms = in->now_ms + DOWN_GRACE_MS;
    set_trust(in, s, false, "the events endpoint is down");
}

static void read_monitor(struct kvr_ingest *in, struct source *s)
{
    struct frames f;
    while (receive(s->monitor, &f)) {
        uint16_t event = 0;
        if (f.n > 0 && zmq_msg_size(&f.m[0]) >= 2) memcpy(&event, zmq_msg_data(&f.m[0]), 2);
        release(&f);
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) on_connected(in, s);
        if (event == ZMQ_EVENT_DISCONNECTED || event == ZMQ_EVENT_CLOSED) on_disconnected(in, s);
    }
}

static void *socket_new(struct kvr_ingest *in, int type)
{
    void *sock = zmq_socket(in->zmq, type);
    int hwm = HWM, zero = 0, reconnect = 50, reconnect_max = 1000, heartbeat = 2000, v6 = 1;
    int64_t max = MESSAGE_MAX;
    if (!sock) return NULL;
    zmq_setsockopt(sock, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(sock, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(sock, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(sock, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(sock, ZMQ_RECONNECT_IVL, &reconnect, sizeof reconnect);
    zmq_setsockopt(sock, ZMQ_RECONNECT_IVL_MAX, &reconnect_max, sizeof reconnect_max);
    zmq_setsockopt(sock, ZMQ_HEARTBEAT_IVL, &heartbeat, sizeof heartbeat);
    zmq_setsockopt(sock, ZMQ_IPV6, &v6, sizeof v6);
    return sock;
}

static bool open_sockets(struct kvr_ingest *in, struct source *s)
{
    char monitor[64];
    snprintf(monitor, sizeof monitor, "inproc://monitor-%zu", in->monitors++);
    s->sub = socket_new(in, ZMQ_SUB);
    s->monitor = zmq_socket(in->zmq, ZMQ_PAIR);
    if (!s->sub || !s->monitor) return false;
    if (zmq_setsockopt(s->sub, ZMQ_SUBSCRIBE, "", 0)) return false;
    if (zmq_socket_monitor(s->sub, monitor, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED)) return false;
    if (zmq_connect(s->monitor, monitor) || zmq_connect(s->sub, s->events)) return false;
    if (!s->replay[0]) return true;
    s->dealer = socket_new(in, ZMQ_DEALER);
    return s->dealer && zmq_connect(s->dealer, s->replay) == 0;
}

static void close_sockets(struct source *s)
{
    if (s->sub) zmq_socket_monitor(s->sub, NULL, 0);
    if (s->sub) zmq_close(s->sub);
    if (s->monitor) zmq_close(s->monitor);
    if (s->dealer) zmq_close(s->dealer);
    s->sub = s->monitor = s->dealer = NULL;
    s->owed_ends = 0;
}

static void source_free(struct kvr_ingest *in, struct source *s)
{
    close_sockets(s);
    drop_waiting(s);
    while (s->own.next) {
        struct rank_stream *r = s->own.next;
        s->own.next = r->next;
        kvr_engine_stream_free(&r->stream);
        free(r);
    }
    kvr_engine_stream_free(&s->own.stream);
    if (in->handler.on_end) in->handler.on_end(in->handler.ctx, s->user);
    free(s);
}

static void source_open(struct kvr_ingest *in, struct source *s)
{
    s->st.failed = !open_sockets(in, s);
    if (s->st.failed) {
        close_sockets(s);
        set_trust(in, s, false, "the events socket could not be made");
    } else if (s->dealer) {
        s->silent_deadline_ms = in->now_ms + in->restore_timeout_ms;
        s->replaying = true; /* waits for the connection; asked for when it stands */
    } else {
        s->st.state = KVR_VIEW_LIVE;
        set_trust(in, s, false,
                  s->cursor.applied_any ? "waiting for the next batch to confirm it (no replay endpoint)"
                                        : "waiting for sequence 0 (no replay endpoint)");
    }
}

static void source_start(struct kvr_ingest *in, struct source *s)
{
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
    close_sockets(s);
    drop_waiting(s);
    s->connected = s->st.connected = s->replaying = s->verifying = false;
    s->retry_at_ms = s->tail_at_ms = s->drop_at_ms = 0;
    set_trust(in, s, false, "paused");
}

/* Content up to `c` has been put in place from elsewhere. */
static void source_adopt(struct kvr_ingest *in, struct source *s, const struct kvr_view_cursor *c)
{
    s->cursor.applied_any = true;
    s->cursor.next = c->next;
    s->cursor.last_ts = c->last_ts;
    if (c->next) remember(s, c->next - 1, c->last_hash);
    s->missing = s->verifying = false;
    note_cursor(s);
    if (s->dealer && s->connected) {
        s->rounds = s->retries = 0;
        request_replay(in, s, c->next);
    } else if (s->connected && !s->mismatch) {
        set_trust(in, s, true, "");
    }
}

static void source_visit(struct kvr_ingest *in, struct source *s, const struct command *c)
{
    uint32_t ranks[RANKS_MAX];
    size_t n = 0;
    struct kvr_view_cursor adopt = {0};
    for (const struct rank_stream *r = &s->own; r && n < RANKS_MAX; r = r->next) ranks[n++] = r->stream.worker.dp_rank;
    note_cursor(s);
    c->visit(c->arg, &s->st, ranks, n, &adopt);
    if (adopt.known) source_adopt(in, s, &adopt);
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
    for (const struct source *s = in->sources; s; s = s->next) in->statuses[n++] = s->st;
    in->statuses_n = n;
}

static void run_command(struct kvr_ingest *in, struct command *c)
{
    int rc = c->kind == VISIT ? -KVR_ENOTFOUND : 0;
    if (c->kind == ADD) source_start(in, c->add);
    for (struct source **p = &in->sources; c->kind != ADD && *p;) {
        struct source *s = *p;
        bool of_worker = s->st.worker.worker_id == c->worker.worker_id;
        bool it = of_worker && (c->kind == REMOVE_WORKER || s->st.worker.dp_rank == c->worker.dp_rank);
        if (it && (c->kind == REMOVE_WORKER || c->kind == REMOVE_RANK)) {
            *p = s->next;
            in->sources_n--;
            source_free(in, s);
            continue;
        }
        if (it && (c->kind == PAUSE || c->kind == RESUME)) source_pause(in, s, c->kind == PAUSE);
        if (it && c->kind == VISIT) {
            source_visit(in, s, c);
            rc = 0;
        }
        p = &s->next;
    }
    if (c->done) {
        pthread_mutex_lock(&in->lock);
        publish_statuses(in); /* who waited sees what it asked for */
        if (c->rc) *c->rc = rc;
        *c->done = true;
        pthread_cond_broadcast(&in->cond);
        pthread_mutex_unlock(&in->lock);
    }
    free(c);
}

/* Returns: false when it is time to stop. */
static bool exchange(struct kvr_ingest *in)
{
    char drain[64];
    while (zmq_recv(in->wake_out, drain, sizeof drain, ZMQ_DONTWAIT) >= 0) continue;
    pthread_mutex_lock(&in->lock);
    struct command *c = in->commands;
    in->commands = NULL;
    bool stop = in->stop;
    publish_statuses(in);
    pthread_mutex_unlock(&in->lock);
    while (c) {
        struct command *next = c->next;
        run_command(in, c);
        c = next;
    }
    return !stop;
}

static void check_deadlines(struct kvr_ingest *in, struct source *s)
{
    uint64_t now = in->now_ms;
    if (s->replaying && now >= s->silent_deadline_ms) replay_failed(in, s);
    if (s->drop_at_ms && now >= s->drop_at_ms) {
        s->drop_at_ms = 0;
        drop_view(in, s);
    }
    if (s->retry_at_ms && now >= s->retry_at_ms && s->connected && s->dealer && !s->replaying)
        request_replay(in, s, s->cursor.next - s->verifying);
    if (s->tail_at_ms && now >= s->tail_at_ms && s->connected && s->dealer && !s->replaying) request_replay(in, s, s->cursor.next);
}

static bool poll_once(struct kvr_ingest *in, zmq_pollitem_t **items, size_t *cap)
{
    size_t n = 0, need = 1 + 3 * in->sources_n;
    if (need > *cap) {
        zmq_pollitem_t *p = realloc(*items, need * 2 * sizeof *p);
        if (!p) return false;
        *items = p;
        *cap = need * 2;
    }
    zmq_pollitem_t *it = *items;
    it[n++] = (zmq_pollitem_t){.socket = in->wake_out, .events = ZMQ_POLLIN};
    for (const struct source *s = in->sources; s; s = s->next) {
        if (!s->sub || !s->monitor) continue;
        it[n++] = (zmq_pollitem_t){.socket = s->monitor, .events = ZMQ_POLLIN};
        it[n++] = (zmq_pollitem_t){.socket = s->sub, .events = ZMQ_POLLIN};
        if (s->dealer) it[n++] = (zmq_pollitem_t){.socket = s->dealer, .events = ZMQ_POLLIN};
    }
    zmq_poll(it, (int)n, 50);
    in->now_ms = kvr_now_ns(kvr_clock_monotonic()) / 1000000;
    n = 1;
    for (struct source *s = in->sources; s; s = s->next) {
        if (s->sub && s->monitor) {
            if (it[n++].revents) read_monitor(in, s);
            if (it[n++].revents) read_sub(in, s);
            if (s->dealer && it[n++].revents) read_dealer(in, s); /* a renewed one has nothing yet */
        }
        check_deadlines(in, s);
    }
    return true;
}

static void *ingest_main(void *arg)
{
    struct kvr_ingest *in = arg;
    zmq_pollitem_t *items = NULL;
    size_t cap = 0;
    in->now_ms = kvr_now_ns(kvr_clock_monotonic()) / 1000000;
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

int kvr_ingest_create(const struct kvr_ingest_handler *handler, double restore_timeout_s, struct kvr_ingest **out)
{
    struct kvr_ingest *in = calloc(1, sizeof *in);
    if (!in) return -KVR_ENOMEM;
    in->handler = *handler;
    in->restore_timeout_ms = (uint64_t)(restore_timeout_s * 1000) + 1;
    kvr_engine_batch_init(&in->batch);
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
        free(in);
        return -KVR_ENOMEM;
    }
    *out = in;
    return 0;
}

void kvr_ingest_destroy(struct kvr_ingest *in)
{
    if (!in) return;
    pthread_mutex_lock(&in->lock);
    in->stop = true;
    zmq_send(in->wake_in, "", 0, ZMQ_DONTWAIT);
    pthread_mutex_unlock(&in->lock);
    pthread_join(in->thread, NULL);
    while (in->commands) {
        struct command *c = in->commands;
        in->commands = c->next;
        if (c->add) source_free(in, c->add);
        free(c);
    }
    zmq_close(in->wake_in);
    zmq_close(in->wake_out);
    zmq_ctx_term(in->zmq);
    kvr_engine_batch_free(&in->batch);
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
    if (!colon || colon == e + 6 || !colon[1]) return false;
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

int kvr_ingest_add(struct kvr_ingest *in, const struct kvr_ingest_source *src)
{
    if (!kvr_ingest_endpoint_ok(src->events) || (src->replay && !kvr_ingest_endpoint_ok(src->replay))) return -KVR_EINVAL;
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
    s->wait_tail = &s->wait_head;
    snprintf(s->events, sizeof s->events, "%s", src->events);
    if (src->replay) snprintf(s->replay, sizeof s->replay, "%s", src->replay);
    s->st.can_replay = src->replay != NULL;
    kvr_engine_stream_init(&s->own.stream, src->worker, src->block_size);
    s->own.stream.tiers = src->tiers;
    if (src->from.known) {
        s->cursor.applied_any = true;
        s->cursor.next = src->from.next;
        s->cursor.last_ts = src->from.last_ts;
        if (src->from.next) remember(s, src->from.next - 1, src->from.last_hash);
        note_cursor(s);
    }
    c->kind = ADD;
    c->add = s;
    send_command(in, c);
    return 0;
}

/* Sends a copy of the command and waits until the thread has run it. */
static int run_and_wait(struct kvr_ingest *in, const struct command *what)
{
    struct command *c = malloc(sizeof *c);
    bool done = false;
    int rc = -KVR_ENOMEM;
    if (!c) return rc;
    *c = *what;
    c->done = &done;
    c->rc = &rc;
    send_command(in, c);
    pthread_mutex_lock(&in->lock);
    while (!done && !in->stop) pthread_cond_wait(&in->cond, &in->lock);
    pthread_mutex_unlock(&in->lock);
    return rc;
}

void kvr_ingest_remove(struct kvr_ingest *in, uint64_t worker_id, const uint32_t *rank)
{
    struct command c = {.kind = rank ? REMOVE_RANK : REMOVE_WORKER, .worker = {worker_id, rank ? *rank : 0}};
    (void)run_and_wait(in, &c); /* without memory the source goes on */
}

void kvr_ingest_pause(struct kvr_ingest *in, struct kvr_worker worker, bool pause)
{
    struct command c = {.kind = pause ? PAUSE : RESUME, .worker = worker};
    (void)run_and_wait(in, &c);
}

int kvr_ingest_visit_view(struct kvr_ingest *in, struct kvr_worker worker, kvr_ingest_visit *fn, void *arg)
{
    struct command c = {.kind = VISIT, .worker = worker, .visit = fn, .arg = arg};
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
