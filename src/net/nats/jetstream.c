/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Durable KV events: one JetStream stream per scope, a durable pull consumer per replica, snapshots of the indexes.
 *
 *     publishers --> stream --> follower (thread): snapshot, then the stream from its position on --> ingest
 *                      |
 *                      +------- keeper (thread): the replica that holds the lease writes snapshots, purges what they cover, and
 *                               removes consumers nobody uses
 *
 * Why a new replica ends right. Snapshot S is of position p: it was walked after everything up to p had been applied, and a walk
 * followed by all events since its beginning gives the content (kvroute/index.h). The reader applies S, then everything after p in
 * order. The stream is purged only up to the position of the oldest snapshot that is kept, and only up to what every live
 * consumer has acknowledged; should a reader find that the stream begins later than it needs (it read the head just before a
 * newer one was written and the stream purged), it starts over. A snapshot of another stream than the one there is, or that ends before its
 * beginning, is none. A message that is delivered again is left out by its sequence.
 * A message is acknowledged when the ingest has it in its queue: what dies with the process is restored from the snapshot and the
 * stream by the next one, not from its acknowledgements.
 *
 * Heartbeats come by a plain subscription: old ones say nothing. So do the events, a second time and sooner: publishers use the plain
 * subject, which the stream stores. A plain event is taken when it is the next of its rank and left to the stream otherwise; so
 * views keep up while the stream has no leader, and a loss on the plain way is none.
 */
#include <pthread.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "net/ingest/event_plane.h"
#include "net/nats/internal.h"
#include "net/nats/registry.h"
#include "net/nats/snapshots.h"
#include "wire/plane_event.h"
#include "wire/prom_page.h"

enum {
    CALL_MS = 2000,
    BATCH = 512,
    FETCH_MS = 200, /* a request for messages stands so long */
    LATE_MS = 1000, /* and its answer may take so long */
    UNANSWERED_MAX = 4,
    KEEPER_MS = 1000,
    WALK_BLOCKS = 2048,
    WALK_TRIES = 4,
    TTL_S = 5,
    AGED_MS = 60000,
    PENDING_BYTES = 64 << 20
};
static const int64_t MAX_AGE_NS = INT64_C(3600) * 1000000000;
static const char SERVICE_BUCKET[] = "kvroute-replicas";

void kvr__stream_name(const char *scope, char *out, size_t cap)
{
    snprintf(out, cap, "%s." KVR_PLANE_EVENTS, scope);
    for (char *p = out; *p; p++)
        if (*p == '.' || *p == '_') *p = '-';
}

natsStatus kvr__stream_ensure(jsCtx *js, const char *scope, const char *name, int replicas)
{
    char live[KVR_SCOPE_MAX + 32], own[KVR_SCOPE_MAX + 40];
    const char *list[] = {live, own};
    jsStreamConfig c;
    jsStreamInfo *si = NULL;
    natsStatus s = js_GetStreamInfo(&si, js, name, NULL, NULL);
    jsStreamInfo_Destroy(si);
    if (s != NATS_NOT_FOUND) return s;
    snprintf(live, sizeof live, "%s." KVR_PLANE_EVENTS, scope);
    snprintf(own, sizeof own, "%s.*", name);
    jsStreamConfig_Init(&c);
    c.Name = name;
    c.Subjects = list;
    c.SubjectsLen = 2;
    c.MaxAge = MAX_AGE_NS;
    c.Storage = js_FileStorage;
    c.Replicas = replicas;
    c.AllowDirect = true;
    return js_AddStream(NULL, js, &c, NULL, NULL);
}

/* ---- consuming ---------------------------------------------------------------------------------------------------- */

struct kvr_durable_feed {
    struct kvr_durable_config c;
    char scope[KVR_SCOPE_MAX], stream[KVR_SCOPE_MAX + 32], consumer[40], token[100];
    struct kvr_nats_sub *heartbeats, *live;
    struct kvr_registry *registry;
    pthread_t follower, keeper;
    bool follows, keeps;
    _Atomic bool stop, reset_done;
    /* the follower's */
    jsCtx *js;
    natsSubscription *sub;
    char inbox[64];
    int owed;          /* messages that were asked for and have not come */
    int unanswered;    /* requests in a row */
    uint64_t asked_ms; /* when */
    uint64_t last;     /* sequence that was handed to the ingest */
    uint64_t consumed; /* the consumer's own sequence, of the last message */
    bool started, up;
    _Atomic uint64_t stream_ns; /* when the stream was made of which the content is */
    struct kvr_durable_stats n; /* atomics */
};

#define NOTE(f, name, v) atomic_store_explicit(&(f)->n.name, (v), memory_order_relaxed)
#define COUNT(f, name)   atomic_fetch_add_explicit(&(f)->n.name, 1, memory_order_relaxed)

static void set_up(struct kvr_durable_feed *f, bool up)
{
    if (f->up == up) return;
    f->up = up;
    kvr_ingest_plane_state(f->c.in, up);
}

/* Waits until the ingest has room. */
static bool hand_over(struct kvr_durable_feed *f, const char *data, size_t len, uint64_t position)
{
    while (!atomic_load(&f->stop)) {
        int rc =
            position ? kvr_ingest_plane_message(f->c.in, data, len, position, false) : kvr_ingest_plane_snapshot_piece(f->c.in, data, len);
        if (rc == 0) return true;
        nats_Sleep(1);
    }
    return false;
}

/* ---- start: a snapshot -------------------------------------------------------------------------------------------- */

/* Returns: 0, -KVR_EFORMAT (torn), -KVR_ETIMEDOUT. */
static int load_version(struct kvr_durable_feed *f, struct kvr_snapshots *s, const struct kvr_snapshot_version *v)
{
    struct kvr_buf piece = {0};
    int rc = kvr_ingest_plane_snapshot_begin(f->c.in);
    for (size_t i = 0; rc == 0 && i < v->pieces && !atomic_load(&f->stop); i++) {
        rc = kvr_snapshots_piece(s, v, i, &piece);
        if (rc == 0 && !hand_over(f, piece.data, piece.len, 0)) rc = -KVR_ESHUTDOWN;
    }
    kvr_buf_free(&piece);
    return rc;
}

/* What the stream was like before the list of snapshots is read: it is purged up to what is in the list. */
struct stream_state {
    bool known;
    uint64_t created_ns, first;
};

static struct stream_state stream_state(struct kvr_durable_feed *f)
{
    jsStreamInfo *si = NULL;
    if (js_GetStreamInfo(&si, f->js, f->stream, NULL, NULL) != NATS_OK) return (struct stream_state){0};
    struct stream_state st = {true, (uint64_t)si->Created, si->State.FirstSeq};
    jsStreamInfo_Destroy(si);
    return st;
}

/* Puts the newest good snapshot in place, or nothing. *position: what it is of; 0: nothing. */
static int load_newest(struct kvr_durable_feed *f, uint64_t *position)
{
    struct kvr_snapshots *s;
    struct kvr_snapshot_head h;
    struct stream_state st = stream_state(f);
    int rc = st.known ? kvr_snapshots_open(f->c.link, f->token, f->c.replicas, &s) : -KVR_ETIMEDOUT;
    if (rc) return rc;
    *position = 0;
    rc = kvr_snapshots_head(s, &h);
    if (rc == -KVR_EFORMAT) {
        kvr_log_warning("kvroute: jetstream: the list of snapshots cannot be read; starting without one");
        rc = 0;
    }
    bool loaded = false;
    for (size_t i = 0; rc == 0 && i < h.n && !loaded; i++) {
        if (h.v[i].stream != st.created_ns || h.v[i].position + 1 < st.first) continue;
        rc = load_version(f, s, &h.v[i]);
        loaded = rc == 0;
        if (loaded) *position = h.v[i].position;
        if (rc != -KVR_EFORMAT) continue;
        COUNT(f, torn_snapshots);
        kvr_log_warning("kvroute: jetstream: snapshot %llu is torn; trying the one before", (unsigned long long)h.v[i].version);
        rc = 0;
    }
    if (rc == 0 && !loaded) rc = kvr_ingest_plane_snapshot_begin(f->c.in); /* what a torn one has left */
    if (rc == 0) rc = kvr_ingest_plane_snapshot_end(f->c.in, *position);
    if (rc == 0) atomic_store(&f->stream_ns, st.created_ns);
    if (loaded) COUNT(f, loaded_snapshots);
    kvr_snapshot_head_free(&h);
    kvr_snapshots_close(s);
    return rc;
}

static natsStatus make_consumer(struct kvr_durable_feed *f, uint64_t after)
{
    jsConsumerConfig c;
    jsConsumerConfig_Init(&c);
    (void)js_DeleteConsumer(f->js, f->stream, f->consumer, NULL, NULL);
    c.Durable = f->consumer;
    c.DeliverPolicy = after ? js_DeliverByStartSequence : js_DeliverAll;
    c.OptStartSeq = after ? after + 1 : 0;
    c.AckPolicy = js_AckAll;
    c.AckWait = INT64_C(30000000000);
    c.MaxAckPending = -1;
    c.InactiveThreshold = MAX_AGE_NS;
    c.Replicas = f->c.replicas;
    return js_AddConsumer(NULL, f->js, f->stream, &c, NULL, NULL);
}

/* What the consumer sends comes to an inbox of ours. natsSubscription_Fetch would do it too, but that of libnats 3.4 writes past
 * its array when some of the messages were there before the call and more come than it then asks for. */
static natsStatus bind_consumer(struct kvr_durable_feed *f)
{
    if (f->sub) return NATS_OK;
    f->owed = f->unanswered = 0;
    kvr_nats_inbox(f->inbox, sizeof f->inbox);
    return natsConnection_SubscribeSync(&f->sub, kvr__nats_connection(f->c.link), f->inbox);
}

static void unbind(struct kvr_durable_feed *f)
{
    if (f->sub) kvr__nats_retire(f->c.link, f->sub); /* the consumer stays */
    f->sub = NULL;
}

/* Does the stream still have what comes after our position? */
static bool stream_reaches(struct kvr_durable_feed *f, uint64_t position)
{
    struct stream_state st = stream_state(f);
    return st.known && (position == 0 || st.first <= position + 1);
}

static bool well(const char *what, natsStatus s)
{
    if (s != NATS_OK) kvr__nats_failed(what, s);
    return s == NATS_OK;
}

static bool reset_states(struct kvr_durable_feed *f)
{
    struct kvr_snapshots *s;
    if (!f->c.reset || atomic_load(&f->reset_done)) return true;
    if (!well("the stream of KV events cannot be emptied", js_PurgeStream(f->js, f->stream, NULL, NULL))) return false;
    if (kvr_snapshots_open(f->c.link, f->token, f->c.replicas, &s)) return false;
    int rc = kvr_snapshots_reset(s);
    kvr_snapshots_close(s);
    atomic_store(&f->reset_done, rc == 0);
    return rc == 0;
}

/* Returns: whether there is content, and a consumer that goes on after it. */
static bool start_over(struct kvr_durable_feed *f)
{
    uint64_t position;
    unbind(f);
    if (!well("the stream of KV events is not there", kvr__stream_ensure(f->js, f->scope, f->stream, f->c.replicas)) || !reset_states(f))
        return false;
    int rc = load_newest(f, &position);
    if (rc) kvr_log_warning_of(kvr_log_key(0, 0, "snapshot"), "kvroute: jetstream: no snapshot can be read: %s", kvr_strerror(rc));
    if (rc || !well("the stream of KV events cannot be followed", make_consumer(f, position))) return false;
    if (!stream_reaches(f, position)) {
        COUNT(f, restarts);
        return false; /* a newer snapshot is there by now */
    }
    f->last = position;
    f->consumed = 0;
    COUNT(f, starts);
    return true;
}

/* ---- the stream --------------------------------------------------------------------------------------------------- */

/* Is what is missing before a message missing in the stream itself? Then it will not come, and ids tell who lacks it. */
static bool is_hole(struct kvr_durable_feed *f, uint64_t consumer_seq)
{
    return consumer_seq == f->consumed + 1 && stream_reaches(f, f->last);
}

/* Returns: false when something before it is missing. */
static bool take_message(struct kvr_durable_feed *f, natsMsg *msg, uint64_t *pending)
{
    jsMsgMetaData *meta = NULL;
    bool ok = true;
    if (natsMsg_GetMetaData(&meta, msg) != NATS_OK) return true;
    uint64_t seq = meta->Sequence.Stream;
    *pending = meta->NumPending;
    if (f->last && seq > f->last + 1) ok = is_hole(f, meta->Sequence.Consumer);
    f->consumed = meta->Sequence.Consumer;
    if (ok && seq > f->last && hand_over(f, natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg), seq)) f->last = seq;
    jsMsgMetaData_Destroy(meta);
    return ok;
}

/* Asks for a batch, unless what was asked for before is still to come. */
static natsStatus ask(struct kvr_durable_feed *f)
{
    char subject[KVR_SCOPE_MAX + 128], body[64];
    if (f->owed && kvr_now_ms() - f->asked_ms < FETCH_MS + LATE_MS) return NATS_OK;
    f->unanswered += f->owed > 0;
    f->owed = BATCH;
    f->asked_ms = kvr_now_ms();
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.MSG.NEXT.%s.%s", f->stream, f->consumer);
    snprintf(body, sizeof body, "{\"batch\":%d,\"expires\":%lld}", BATCH, FETCH_MS * 1000000ll);
    return natsConnection_PublishRequestString(kvr__nats_connection(f->c.link), subject, f->inbox, body);
}

/* What the server says instead of more messages; NULL: `msg` is one. */
static const char *status_of(natsMsg *msg)
{
    const char *status;
    return natsMsg_GetDataLength(msg) == 0 && natsMsgHeader_Get(msg, "Status", &status) == NATS_OK ? status : NULL;
}

struct batch {
    int n;
    uint64_t pending;                /* behind the last one */
    bool whole, over;                /* over: the server has nothing more now */
    char reply[KVR_SCOPE_MAX + 256]; /* where the last one is acknowledged */
};

static natsStatus take_next(struct kvr_durable_feed *f, struct batch *b, int64_t wait_ms)
{
    natsMsg *msg = NULL;
    natsStatus s = natsSubscription_NextMsg(&msg, f->sub, wait_ms);
    if (s != NATS_OK) return s;
    f->unanswered = 0;
    const char *status = status_of(msg), *reply = natsMsg_GetReply(msg);
    if (status) {
        f->owed = 0;
        b->over = strcmp(status, "404") == 0 || strcmp(status, "408") == 0; /* no messages; none until the request expired */
        s = b->over ? NATS_TIMEOUT : NATS_ERR;
    } else {
        f->owed -= f->owed > 0;
        b->n++;
        b->whole = take_message(f, msg, &b->pending);
        if (b->whole) snprintf(b->reply, sizeof b->reply, "%s", reply ? reply : "");
    }
    natsMsg_Destroy(msg);
    return s;
}

/* Returns: false when the stream has to be started over. */
static bool take_batch(struct kvr_durable_feed *f)
{
    struct batch b = {.whole = true};
    natsStatus s = ask(f);
    uint64_t until = kvr_now_ms() + FETCH_MS, now;
    while (s == NATS_OK && b.whole && f->owed && (now = kvr_now_ms()) < until) s = take_next(f, &b, (int64_t)(until - now));
    if (!b.whole) {
        COUNT(f, restarts);
        kvr_log_warning("kvroute: jetstream: the stream was purged past our place; starting over");
        return false;
    }
    if (b.reply[0]) (void)natsConnection_PublishString(kvr__nats_connection(f->c.link), b.reply, "+ACK"); /* and all before it */
    if (b.n ? b.pending == 0 : b.over) set_up(f, true);
    if ((s == NATS_OK || s == NATS_TIMEOUT) && f->unanswered < UNANSWERED_MAX) return true;
    unbind(f); /* the consumer's leader moved, the consumer is gone, or the like: bind again */
    nats_Sleep(50);
    return true;
}

static bool consumer_is_there(struct kvr_durable_feed *f)
{
    jsConsumerInfo *ci = NULL;
    jsErrCode why = 0;
    natsStatus s = js_GetConsumerInfo(&ci, f->js, f->stream, f->consumer, NULL, &why);
    jsConsumerInfo_Destroy(ci);
    return s != NATS_NOT_FOUND && why != JSStreamNotFoundErr;
}

static void *follower_main(void *arg)
{
    struct kvr_durable_feed *f = arg;
    while (!atomic_load(&f->stop)) {
        NOTE(f, position, f->last);
        if (!kvr_nats_is_up(f->c.link)) {
            set_up(f, false);
            unbind(f);
            nats_Sleep(50);
            continue;
        }
        if (!f->js && kvr__nats_jetstream(f->c.link, CALL_MS, &f->js) != NATS_OK) {
            nats_Sleep(200);
            continue;
        }
        if (f->started && !f->sub && !consumer_is_there(f)) f->started = false;
        if (!f->started) {
            set_up(f, false);
            f->started = start_over(f);
            if (!f->started) nats_Sleep(100);
            continue;
        }
        if (bind_consumer(f) != NATS_OK) {
            nats_Sleep(100);
            continue;
        }
        if (!take_batch(f)) f->started = false;
    }
    unbind(f);
    if (f->js && kvr_nats_is_up(f->c.link)) (void)js_DeleteConsumer(f->js, f->stream, f->consumer, NULL, NULL);
    jsCtx_Destroy(f->js);
    return NULL;
}

/* ---- snapshots ---------------------------------------------------------------------------------------------------- */

struct view {
    struct kvr_snapshot_cursor cursor;
    struct kvr_index *index;
    void *user;
};

struct still {
    struct kvr_durable_feed *f;
    uint64_t position;
    struct view *views;
    size_t n;
};

/* On the ingest thread: what is whole, and of which position. */
static void take_still(void *arg, uint64_t position, const struct kvr_plane_view *views, size_t n)
{
    struct still *st = arg;
    const struct kvr_durable_config *c = &st->f->c;
    st->position = position;
    st->views = malloc((n + 1) * sizeof *st->views);
    for (size_t i = 0; st->views && i < n; i++) {
        if (!views[i].whole) continue;
        st->views[st->n++] = (struct view){views[i].cursor, c->hold(c->ctx, views[i].user), views[i].user};
    }
}

struct writing {
    struct kvr_snapshots *store;
    struct kvr_snapshot_draft draft;
    struct kvr_buf piece, view;
};

static int put_event(void *ctx, const struct kvr_event *ev)
{
    struct writing *w = ctx;
    kvr_snapshot_event_write(&w->view, ev);
    return w->view.failed ? -KVR_ENOMEM : 0;
}

/* A rank's content into w->view; a walk that was disturbed is begun again. */
static int walk_view(struct writing *w, const struct view *v)
{
    int rc = -KVR_ESEQUENCE;
    for (int i = 0; rc == -KVR_ESEQUENCE && i < WALK_TRIES; i++) {
        struct kvr_index_walk *walk;
        bool more = true;
        w->view.len = 0;
        rc = kvr_index_walk_begin(v->index, v->cursor.worker, &walk);
        if (rc) return rc;
        while (more && rc == 0) rc = kvr_index_walk_next(walk, WALK_BLOCKS, put_event, w, &more);
        kvr_index_walk_end(walk);
    }
    if (rc == 0) kvr_snapshot_cursor_write(&w->view, &v->cursor);
    if (rc == -KVR_ESEQUENCE) w->view.len = 0; /* left out: it is then restored by its worker, or untrusted */
    return rc == -KVR_ESEQUENCE ? 0 : rc;
}

static int flush_piece(struct writing *w, size_t above)
{
    if (w->piece.failed) return -KVR_ENOMEM;
    if (w->piece.len <= above) return 0;
    int rc = kvr_snapshots_put(w->store, &w->draft, w->piece.data, w->piece.len);
    w->piece.len = 0;
    return rc;
}

/* A view's records into pieces; a record is never cut. */
static int put_view(struct writing *w)
{
    for (size_t at = 0, end; at < w->view.len; at = end) {
        end = at;
        while (end < w->view.len) {
            size_t len = kvr_snapshot_record_len(w->view.data + end, w->view.len - end);
            if (end > at && end - at + len + w->piece.len > KVR_SNAPSHOT_PIECE) break;
            end += len;
        }
        kvr_buf_add(&w->piece, w->view.data + at, end - at);
        int rc = flush_piece(w, KVR_SNAPSHOT_PIECE * 3 / 4);
        if (rc) return rc;
    }
    return 0;
}

/* Returns: 0 and the position, or an error. */
static int write_snapshot(struct kvr_durable_feed *f, struct kvr_snapshots *store, const struct kvr_snapshot_head *head, uint64_t stream)
{
    struct still st = {.f = f};
    struct writing w = {.store = store};
    int rc = kvr_ingest_visit_plane(f->c.in, take_still, &st);
    if (rc == 0 && (!st.views || !st.position)) rc = -KVR_ENOMEM;
    if (rc == 0) kvr_snapshots_begin(store, head, stream, st.position, &w.draft);
    for (size_t i = 0; rc == 0 && i < st.n; i++) {
        rc = walk_view(&w, &st.views[i]);
        if (rc == 0) rc = put_view(&w);
    }
    if (rc == 0) rc = flush_piece(&w, 0);
    if (rc == 0) rc = kvr_snapshots_commit(store, &w.draft, head);
    else if (w.draft.v.version) kvr_snapshots_abandon(store, &w.draft);
    for (size_t i = 0; i < st.n; i++) f->c.release(f->c.ctx, st.views[i].user);
    free(st.views);
    kvr_buf_free(&w.piece);
    kvr_buf_free(&w.view);
    return rc;
}

/* ---- the keeper --------------------------------------------------------------------------------------------------- */

struct keeping {
    struct kvr_durable_feed *f;
    jsCtx *js;
    struct kvr_snapshots *store;
    uint64_t since_ms; /* the lease is ours since */
    uint64_t aged_ms;  /* a snapshot was written for the age of what it covers */
};

/* Lowest acknowledged sequence of all consumers. Those of replicas that are gone are removed on the way. */
static bool lowest_ack(struct keeping *k, uint64_t *out)
{
    struct kvr_durable_feed *f = k->f;
    jsConsumerInfoList *list = NULL;
    if (js_Consumers(&list, k->js, f->stream, NULL, NULL) != NATS_OK) return false;
    *out = UINT64_MAX;
    for (int i = 0; i < list->Count; i++) {
        const jsConsumerInfo *ci = list->List[i];
        char key[KVR_REGISTRY_KEY_MAX];
        snprintf(key, sizeof key, "replica.%s", ci->Name);
        bool ours = strncmp(ci->Name, "kvroute-", 8) == 0;
        if (ours && kvr_now_ms() - k->since_ms > 2000 * TTL_S && !kvr_registry_sees(f->registry, key)) {
            if (js_DeleteConsumer(k->js, f->stream, ci->Name, NULL, NULL) == NATS_OK) COUNT(f, orphans_removed);
            continue;
        }
        *out = KVR_MIN(*out, ci->AckFloor.Stream);
    }
    jsConsumerInfoList_Destroy(list);
    return true;
}

static void purge_covered(struct keeping *k, const struct kvr_snapshot_head *head, const struct stream_state *st)
{
    uint64_t ack, first = st->first;
    jsOptions o;
    if (head->n == 0 || !lowest_ack(k, &ack)) return;
    const struct kvr_snapshot_version *oldest = &head->v[head->n - 1];
    uint64_t covered = head->n == KVR_SNAPSHOT_KEPT && oldest->stream == st->created_ns ? oldest->position : 0;
    uint64_t bound = KVR_MIN(covered, ack);
    if (bound == 0 || bound == UINT64_MAX || bound < first) return;
    jsOptions_Init(&o);
    o.Wait = CALL_MS;
    o.Stream.Purge.Sequence = bound + 1; /* exclusive */
    if (js_PurgeStream(k->js, k->f->stream, &o, NULL) == NATS_OK) COUNT(k->f, purges);
}

static void keep(struct keeping *k)
{
    struct kvr_durable_feed *f = k->f;
    jsStreamInfo *si = NULL;
    struct kvr_snapshot_head head = {0};
    if (!k->js && kvr__nats_jetstream(f->c.link, CALL_MS, &k->js) != NATS_OK) return;
    if (!k->store && kvr_snapshots_open(f->c.link, f->token, f->c.replicas, &k->store)) return;
    if (js_GetStreamInfo(&si, k->js, f->stream, NULL, NULL) != NATS_OK) return;
    uint64_t msgs = si->State.Msgs, last = si->State.LastSeq;
    struct stream_state st = {true, (uint64_t)si->Created, si->State.FirstSeq};
    bool old = msgs && (int64_t)nats_NowInNanoSeconds() - si->State.FirstTime > MAX_AGE_NS / 2;
    jsStreamInfo_Destroy(si);
    NOTE(f, stream_messages, msgs);
    int rc = kvr_snapshots_head(k->store, &head);
    uint64_t before = st.first ? st.first - 1 : 0;
    uint64_t covered = head.n && head.v[0].stream == st.created_ns ? head.v[0].position : before;
    uint64_t uncovered = last > covered ? last - covered : 0;
    bool due = uncovered > f->c.threshold;
    if (!due && old && uncovered && kvr_now_ms() - k->aged_ms > AGED_MS) { /* before they are too old to be kept */
        k->aged_ms = kvr_now_ms();
        due = true;
    }
    if ((rc == 0 || rc == -KVR_EFORMAT) && due && atomic_load(&f->stream_ns) == st.created_ns) {
        rc = write_snapshot(f, k->store, &head, st.created_ns);
        if (rc == 0) COUNT(f, written_snapshots);
        else COUNT(f, failed_snapshots);
        kvr_snapshot_head_free(&head);
        rc = kvr_snapshots_head(k->store, &head);
    }
    if (rc == 0) purge_covered(k, &head, &st);
    kvr_snapshot_head_free(&head);
    if (rc != -KVR_ETIMEDOUT) return;
    kvr_snapshots_close(k->store); /* the bucket may be gone */
    k->store = NULL;
}

static void *keeper_main(void *arg)
{
    struct keeping k = {.f = arg};
    struct kvr_durable_feed *f = arg;
    char lease[KVR_REGISTRY_KEY_MAX];
    snprintf(lease, sizeof lease, "keeper.%s", f->token);
    while (!atomic_load(&f->stop)) {
        bool held = kvr_nats_is_up(f->c.link) && kvr_registry_holds(f->registry, lease, NULL, 0) && f->c.threshold;
        if (!held) k.since_ms = 0;
        else if (!k.since_ms) k.since_ms = kvr_now_ms();
        NOTE(f, keeper, held);
        if (held) keep(&k);
        for (int i = 0; i < KEEPER_MS / 50 && !atomic_load(&f->stop); i++) nats_Sleep(50);
    }
    kvr_snapshots_close(k.store);
    jsCtx_Destroy(k.js);
    return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------------- */

static void on_plain(void *ctx, const struct kvr_nats_message *m)
{
    struct kvr_durable_feed *f = ctx;
    (void)kvr_ingest_plane_message(f->c.in, m->data, m->len, 0, true);
}

static int open_registry(struct kvr_durable_feed *f)
{
    char key[KVR_REGISTRY_KEY_MAX];
    struct kvr_registry_config rc = {
        .link = f->c.link, .bucket = SERVICE_BUCKET, .ttl_s = TTL_S, .replicas = f->c.replicas, .watch = "replica.>"};
    int failed = kvr_registry_open(&rc, &f->registry);
    snprintf(key, sizeof key, "replica.%s", f->consumer);
    if (!failed) failed = kvr_registry_keep(f->registry, key, f->scope, false);
    snprintf(key, sizeof key, "keeper.%s", f->token);
    return failed ? failed : kvr_registry_keep(f->registry, key, f->consumer, true);
}

int kvr_durable_feed_open(const struct kvr_durable_config *c, struct kvr_durable_feed **out)
{
    struct kvr_durable_feed *f = calloc(1, sizeof *f);
    char subject[KVR_SCOPE_MAX + 32];
    struct kvr_stamp id;
    if (!f) return -KVR_ENOMEM;
    f->c = *c;
    snprintf(f->scope, sizeof f->scope, "%s", c->scope);
    kvr__stream_name(c->scope, f->stream, sizeof f->stream);
    kvr_registry_token(c->scope, f->token, sizeof f->token);
    kvr_stamp_init(&id);
    snprintf(f->consumer, sizeof f->consumer, "kvroute-%llx", (unsigned long long)id.publisher);
    kvr_ingest_plane_durable(c->in);
    snprintf(subject, sizeof subject, "%s." KVR_PLANE_HEARTBEATS, c->scope);
    int rc = kvr_nats_subscribe(c->link, subject, NULL, PENDING_BYTES, on_plain, f, &f->heartbeats);
    snprintf(subject, sizeof subject, "%s." KVR_PLANE_EVENTS, c->scope);
    if (rc == 0) rc = kvr_nats_subscribe(c->link, subject, NULL, PENDING_BYTES, on_plain, f, &f->live);
    if (rc == 0) rc = open_registry(f);
    if (rc == 0) f->follows = pthread_create(&f->follower, NULL, follower_main, f) == 0;
    if (rc == 0) f->keeps = pthread_create(&f->keeper, NULL, keeper_main, f) == 0;
    if (rc == 0 && (!f->follows || !f->keeps)) rc = -KVR_ENOMEM;
    if (rc) kvr_durable_feed_close(f);
    else *out = f;
    return rc;
}

void kvr_durable_feed_close(struct kvr_durable_feed *f)
{
    if (!f) return;
    atomic_store(&f->stop, true);
    if (f->follows) pthread_join(f->follower, NULL);
    if (f->keeps) pthread_join(f->keeper, NULL);
    kvr_registry_close(f->registry);
    kvr_nats_unsubscribe(f->heartbeats);
    kvr_nats_unsubscribe(f->live);
    free(f);
}

void kvr_durable_feed_metrics(const struct kvr_durable_feed *f, struct kvr_prom_page *out)
{
#define ROW(name, type, field, help)                                                                                                       \
    kvr_prom_one_if(out, f != NULL, "kvroute_durable_", name, type, help, f ? atomic_load_explicit(&f->n.field, memory_order_relaxed) : 0)
    ROW("position", "gauge", position, "Sequence of the stream that has been taken");
    ROW("stream_messages", "gauge", stream_messages, "Messages in the stream, as the keeper saw it");
    ROW("keeper", "gauge", keeper, "1 when this replica writes the snapshots");
    ROW("starts_total", "counter", starts, "Starts from a snapshot or the stream's beginning");
    ROW("restarts_total", "counter", restarts, "Restarts: the stream was purged past our place");
    ROW("loaded_snapshots_total", "counter", loaded_snapshots, "Snapshots put in place");
    ROW("torn_snapshots_total", "counter", torn_snapshots, "Snapshots refused: a piece is torn or gone");
    ROW("written_snapshots_total", "counter", written_snapshots, "Snapshots written");
    ROW("failed_snapshots_total", "counter", failed_snapshots, "Snapshots not written, or overtaken by another replica's");
    ROW("purges_total", "counter", purges, "Purges of what snapshots cover");
    ROW("orphans_removed_total", "counter", orphans_removed, "Consumers of replicas that are gone, removed");
#undef ROW
}
