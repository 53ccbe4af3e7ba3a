/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events into a JetStream stream: each is kept until the server has said that it is stored.
 *
 *     rank's thread                  sender (a thread of the outlet)                        delivery thread of the answers
 *     js_publish --> head .. next .. tail --> the stream, answers to INBOX.TRY.PLACE --> on_answer: one more is stored, or a failure
 *                    ^         |
 *                    +---------+ a failure: another try, from the oldest on
 *
 * Order. The server stores what comes on one connection in its order, and answers in that order. A refusal, an answer out of turn, silence
 * for SILENT_MS and a lost connection are failures: the try is over, and after a pause everything that is kept is sent again; first the
 * oldest alone, and the others once it is stored. So whatever is stored while one before it is not, is stored again behind it; what is
 * there twice, readers leave out by its id. An answer to a try before counts when the one before it was of that try or of one before: then
 * it was stored behind that. That what comes later is stored first, and is a gap to who reads there, takes a server that lets go of one
 * message and stores the next before we know: while the oldest has had no answer for LATE_MS, the stream gets nothing new.
 *
 * Meanwhile events are sent once on the heartbeats' subject, which no stream keeps, for the views that follow live.
 *
 * Bounds. KEPT_MESSAGES and KEPT_BYTES wait; an event that finds no room is lost. Its id is missing in the stream then, and when nothing
 * follows the heartbeats tell of it. So does an event that no server takes for its size.
 *
 * Concurrency. `lock` guards all that is not marked. The list grows by js_publish and shrinks by the sender alone, so that the sender sends
 * a message with the lock let go, while js_publish adds behind it; a message's bytes do not change. on_answer only counts `answered` on or
 * sets `failed`. `sent` and `attempt` are set before the message goes out, so an answer that is faster than the call that asked for it
 * finds them. No call that may wait for the server is made under `lock`, nor on the rank's thread. kvr_nats_unsubscribe ends on_answer
 * before the outlet is freed.
 */
#include <pthread.h>
#include <string.h>

#include "base/lock.h"
#include "base/log.h"
#include "net/ingest/event_plane.h"
#include "net/nats/internal.h"
#include "wire/json.h"
#include "wire/plane_event.h"

enum {
    KEPT_MESSAGES = 1 << 16,
    KEPT_BYTES = 64 << 20,
    WINDOW = 4096, /* messages without an answer */
    CALL_MS = 1000,
    SILENT_MS = 5000,
    LATE_MS = 500,
    PAUSE_MS = 50, /* doubles with each failure in a row */
    PAUSE_MAX_MS = 2000,
    LOOK_MS = 50,
    END_MS = 1000, /* what waits at the end may take so long */
    ANSWERS_BYTES = 8 << 20,
    TOO_LARGE = 10054 /* JetStream's code: larger than the stream takes */
};

struct kept {
    struct kept *next;
    uint64_t place; /* from 1, without a gap */
    size_t len;
    char data[];
};

struct js_outlet {
    struct kvr_outlet base;
    struct kvr_outlet *heartbeats; /* a plain one, for the heartbeats and the stamp */
    struct kvr_nats *link;
    struct kvr_worker worker;
    struct kvr_nats_sub *answers;
    char subject[KVR_SCOPE_MAX + 32], beats[KVR_SCOPE_MAX + 32], scope[KVR_SCOPE_MAX], stream[KVR_SCOPE_MAX + 32], inbox[64];
    int replicas;
    pthread_t thread;
    bool has_thread;
    struct kvr_buf out; /* the rank's thread's */
    jsCtx *js;          /* this and the next two: the sender's */
    bool stream_is_there;
    uint64_t connects; /* of the link when the try began */
    struct kvr_lock lock;
    pthread_cond_t cond;
    struct kept *head, **tail;
    struct kept *next, *untold;     /* to be sent in this try; to be told of at all */
    uint64_t place, sent, answered; /* places: of the last that is kept, sent in this try, stored */
    uint64_t most;                  /* and sent in any */
    uint64_t attempt, by;           /* by: the try whose answer was counted last */
    uint64_t pause_ms, again_at_ms, moved_ms, end_ms;
    bool first_alone, failed, refused_size, retold, stop;
    char why[96]; /* of the last failure; "": it is over */
    struct kvr_outlet_kept n;
};

/* ---- what the server says ----------------------------------------------------------------------------------------- */

/* An answer of the stream that is a refusal. Returns: its code. */
static uint64_t read_refusal(const struct kvr_nats_message *m, char *why, size_t cap)
{
    struct kvr_json_parser *p = kvr_json_parser_new();
    struct kvr_json root, error = {0};
    const char *text = NULL;
    size_t len;
    uint64_t code = 0;
    if (p && kvr_json_parse(p, m->data, m->len, &root, NULL) == 0) error = kvr_json_get(root, "error");
    (void)kvr_json_as_u64(kvr_json_get(error, "err_code"), &code);
    if (kvr_json_as_name(kvr_json_get(error, "description"), &text, &len)) snprintf(why, cap, "%.*s", (int)KVR_MIN(len, cap - 1), text);
    else snprintf(why, cap, "an answer that is not known here");
    if (p) kvr_json_parser_free(p);
    return code;
}

/* Under `lock`. With the first failure all that is kept is told again past the stream: readers take the two ways in no order. */
static void fail(struct js_outlet *o, const char *why)
{
    o->failed = true;
    o->retold |= !o->why[0];
    snprintf(o->why, sizeof o->why, "%s", why);
}

/* Under `lock`: the oldest without an answer is stored. */
static void stored(struct js_outlet *o, uint64_t attempt)
{
    o->by = attempt;
    o->answered++;
    o->sent = KVR_MAX(o->sent, o->answered);
    o->moved_ms = kvr_now_ms();
    o->first_alone = false;
    o->pause_ms = PAUSE_MS;
    if (!o->failed) o->why[0] = 0;
}

static void on_answer(void *ctx, const struct kvr_nats_message *m)
{
    struct js_outlet *o = ctx;
    unsigned long long attempt, place;
    char why[sizeof o->why] = "no stream takes it";
    uint64_t code = 0;
    bool ok = m->len && memmem(m->data, m->len, "\"seq\"", 5) && !memmem(m->data, m->len, "\"error\"", 7);
    if (m->len && !ok) code = read_refusal(m, why, sizeof why);
    if (sscanf(m->subject + strlen(o->inbox), ".%llu.%llu", &attempt, &place) != 2) return;
    kvr_lock(&o->lock);
    bool ours = attempt == o->attempt && !o->failed, next = place == o->answered + 1;
    if (ok && next && attempt >= o->by) stored(o, attempt);
    else if (ours && place > o->answered) fail(o, ok ? "one was not stored" : why);
    o->refused_size |= ours && next && code == TOO_LARGE;
    pthread_cond_signal(&o->cond);
    kvr_unlock(&o->lock);
}

/* ---- the sender ----------------------------------------------------------------------------------------------------- */

/* All under `lock`, which those that say so let go meanwhile. */

static void release_stored(struct js_outlet *o)
{
    while (o->head && o->head->place <= o->answered) {
        struct kept *m = o->head;
        o->head = m->next;
        if (!o->head) o->tail = &o->head;
        if (o->next == m) o->next = m->next;
        if (o->untold == m) o->untold = m->next;
        o->n.messages--;
        o->n.bytes -= sizeof *m + m->len;
        free(m);
    }
    if (!o->head) o->n.lacks = false; /* the heartbeats and the ids tell of it from now on */
}

static void tell_lost(struct js_outlet *o, const char *why)
{
    o->n.lost++;
    o->n.lacks = true;
    snprintf(o->n.why_lost, sizeof o->n.why_lost, "%s", why);
}

/* No server takes the oldest. */
static void give_oldest_up(struct js_outlet *o)
{
    o->answered = o->head->place;
    release_stored(o);
    tell_lost(o, "it is larger than the server takes");
}

static void begin_again(struct js_outlet *o, uint64_t now)
{
    bool no_stream = o->failed && !o->refused_size;
    if (o->refused_size) give_oldest_up(o);
    o->n.failures++;
    o->attempt++;
    o->sent = o->answered;
    o->next = o->head;
    if (o->retold) o->untold = o->head;
    o->first_alone = true;
    o->failed = o->refused_size = o->retold = false;
    o->again_at_ms = now + o->pause_ms;
    o->pause_ms = KVR_MIN(2 * o->pause_ms, (uint64_t)PAUSE_MAX_MS);
    if (no_stream) o->stream_is_there = false;
    kvr_log_warning_of(kvr_log_key(o->worker.worker_id, o->worker.dp_rank, o->why),
                       "kvroute: jetstream: worker %llu rank %u: events that were not stored are published again: %s",
                       (unsigned long long)o->worker.worker_id, o->worker.dp_rank, o->why);
}

/* Returns: whether something can be sent at all. */
static bool look_after(struct js_outlet *o, uint64_t now)
{
    struct kvr_nats_stats st;
    bool waits = o->sent > o->answered;
    kvr_nats_stats(o->link, &st);
    if (waits && !o->failed && (!st.up || st.connects != o->connects)) fail(o, "the connection was lost");
    if (waits && !o->failed && now - o->moved_ms >= SILENT_MS) fail(o, "no answer came");
    o->connects = st.connects;
    release_stored(o);
    if (o->failed) begin_again(o, now);
    return st.up;
}

static bool is_late(const struct js_outlet *o, uint64_t now)
{
    return o->sent > o->answered && now - o->moved_ms >= LATE_MS;
}

static bool may_send(const struct js_outlet *o, uint64_t now)
{
    return o->next && now >= o->again_at_ms && !is_late(o, now) && o->sent - o->answered < (o->first_alone ? 1 : WINDOW);
}

/* Lets go of `lock`. */
static void ensure(struct js_outlet *o)
{
    kvr_unlock(&o->lock);
    natsStatus s = kvr__stream_ensure(o->js, o->scope, o->stream, o->replicas);
    kvr_lock(&o->lock);
    o->stream_is_there = s == NATS_OK;
    if (s != NATS_OK) fail(o, natsStatus_GetText(s));
}

/* The next one. Lets go of `lock`. */
static void send_next(struct js_outlet *o, uint64_t now)
{
    struct kept *m = o->next;
    char reply[sizeof o->inbox + 48];
    snprintf(reply, sizeof reply, "%s.%llu.%llu", o->inbox, (unsigned long long)o->attempt, (unsigned long long)m->place);
    if (o->sent == o->answered) o->moved_ms = now;
    o->sent = m->place;
    o->n.again += m->place <= o->most;
    o->most = KVR_MAX(o->most, m->place);
    kvr_unlock(&o->lock);
    bool stands = natsConnection_Status(kvr__nats_connection(o->link)) == NATS_CONN_STATUS_CONNECTED;
    int rc = stands ? kvr_nats_publish(o->link, o->subject, reply, m->data, m->len) : -KVR_ESHUTDOWN;
    kvr_lock(&o->lock);
    o->next = m->next;
    if (o->untold == m) o->untold = m->next;
    if (rc && !o->failed) fail(o, stands ? kvr_strerror(rc) : "the connection was lost");
    o->refused_size |= rc == -KVR_EINVAL && m->place == o->answered + 1;
}

/* To who follows live, past the stream. Lets go of `lock`. */
static void tell_next(struct js_outlet *o)
{
    struct kept *m = o->untold;
    kvr_unlock(&o->lock);
    (void)kvr_nats_publish(o->link, o->beats, NULL, m->data, m->len);
    kvr_lock(&o->lock);
    o->untold = m->next;
}

static bool is_over(const struct js_outlet *o, uint64_t now, bool up)
{
    return o->stop && (!o->head || !up || now >= o->end_ms);
}

static void *sender_main(void *arg)
{
    struct js_outlet *o = arg;
    kvr_lock(&o->lock);
    for (;;) {
        uint64_t now = kvr_now_ms();
        bool up = look_after(o, now), troubled = o->why[0] || is_late(o, now);
        if (is_over(o, now, up)) break;
        if (up && troubled && o->untold) tell_next(o);
        else if (up && may_send(o, now) && !o->stream_is_there) ensure(o);
        else if (up && may_send(o, now)) send_next(o, now);
        else kvr_cond_wait_ms(&o->cond, &o->lock, LOOK_MS);
    }
    kvr_unlock(&o->lock);
    return NULL;
}

/* ---- the outlet ------------------------------------------------------------------------------------------------------ */

static struct kept *copy_of(const struct kvr_buf *b)
{
    struct kept *m = malloc(sizeof *m + b->len);
    if (!m) return NULL;
    *m = (struct kept){.len = b->len};
    memcpy(m->data, b->data, b->len);
    return m;
}

/* Under `lock`. Returns: whether there is room. */
static bool keep(struct js_outlet *o, struct kept *m)
{
    size_t bytes = sizeof *m + m->len;
    char why[sizeof o->n.why_lost];
    if (o->n.messages == KEPT_MESSAGES || o->n.bytes + bytes > KEPT_BYTES) {
        snprintf(why, sizeof why, "%s wait to be stored (%s)", o->n.messages == KEPT_MESSAGES ? "65,536 events" : "64 MiB",
                 o->why[0] ? o->why : "the server is away or slow");
        tell_lost(o, why);
        return false;
    }
    m->place = ++o->place;
    *o->tail = m;
    o->tail = &m->next;
    if (!o->next) o->next = m;
    if (!o->untold) o->untold = m;
    o->n.messages++;
    o->n.bytes += bytes;
    return true;
}

static int js_publish(struct kvr_outlet *base, const struct kvr_event *ev, const struct kvr_engine_words *)
{
    struct js_outlet *o = (struct js_outlet *)base;
    kvr_buf_reset(&o->out);
    atomic_store(&o->heartbeats->partial, atomic_load(&base->partial));
    kvr_nats_outlet_envelope(o->heartbeats, ev, &o->out);
    struct kept *m = o->out.failed ? NULL : copy_of(&o->out);
    kvr_lock(&o->lock);
    if (!m) tell_lost(o, "there is no memory");
    bool kept = m && keep(o, m);
    pthread_cond_signal(&o->cond);
    kvr_unlock(&o->lock);
    if (!kept) free(m);
    return kept ? 0 : -KVR_ELIMIT;
}

static void js_heartbeat(struct kvr_outlet *base)
{
    struct js_outlet *o = (struct js_outlet *)base;
    atomic_store(&o->heartbeats->partial, atomic_load(&base->partial));
    o->heartbeats->heartbeat(o->heartbeats);
}

static void js_kept(struct kvr_outlet *base, struct kvr_outlet_kept *out)
{
    struct js_outlet *o = (struct js_outlet *)base;
    kvr_lock(&o->lock);
    *out = o->n;
    snprintf(out->why, sizeof out->why, "%s", o->why);
    kvr_unlock(&o->lock);
}

static void js_close(struct kvr_outlet *base)
{
    struct js_outlet *o = (struct js_outlet *)base;
    kvr_lock(&o->lock);
    o->stop = true;
    o->end_ms = kvr_now_ms() + END_MS;
    pthread_cond_signal(&o->cond);
    kvr_unlock(&o->lock);
    if (o->has_thread) pthread_join(o->thread, NULL);
    kvr_nats_unsubscribe(o->answers);
    o->answered = o->place;
    release_stored(o);
    jsCtx_Destroy(o->js);
    if (o->heartbeats) o->heartbeats->close(o->heartbeats);
    pthread_cond_destroy(&o->cond);
    kvr_lock_destroy(&o->lock);
    kvr_buf_free(&o->out);
    free(o);
}

/* Returns: 0, -1 without memory. */
static int begin(struct js_outlet *o)
{
    char answers[sizeof o->inbox + 4];
    kvr_nats_inbox(o->inbox, sizeof o->inbox);
    snprintf(answers, sizeof answers, "%s.>", o->inbox);
    if (kvr__nats_jetstream(o->link, CALL_MS, &o->js) != NATS_OK) return -1;
    if (kvr_nats_subscribe(o->link, answers, NULL, ANSWERS_BYTES, on_answer, o, &o->answers)) return -1;
    o->has_thread = pthread_create(&o->thread, NULL, sender_main, o) == 0;
    return o->has_thread ? 0 : -1;
}

static struct js_outlet *create(void)
{
    struct js_outlet *o = calloc(1, sizeof *o);
    if (!o) return NULL;
    o->base = (struct kvr_outlet){.publish = js_publish, .heartbeat = js_heartbeat, .kept = js_kept, .close = js_close};
    o->tail = &o->head;
    o->first_alone = true;
    o->pause_ms = PAUSE_MS;
    kvr_lock_init(&o->lock, KVR_LOCK_PLANE);
    kvr_cond_init(&o->cond);
    return o;
}

int kvr_outlet_jetstream(struct kvr_nats *link, const char *scope, int replicas, struct kvr_worker w, struct kvr_outlet **out, char *err,
                         size_t cap)
{
    struct js_outlet *o = create();
    if (o) {
        o->link = link;
        o->worker = w;
        o->replicas = replicas;
        kvr__stream_name(scope, o->stream, sizeof o->stream);
        snprintf(o->scope, sizeof o->scope, "%s", scope);
        snprintf(o->subject, sizeof o->subject, "%s." KVR_PLANE_EVENTS, scope);
        snprintf(o->beats, sizeof o->beats, "%s." KVR_PLANE_HEARTBEATS, scope);
        snprintf(o->base.where, sizeof o->base.where, "jetstream %s", o->subject);
    }
    if (!o || kvr_outlet_nats(link, scope, w, &o->heartbeats, err, cap) || begin(o)) {
        snprintf(err, cap, "out of memory");
        if (o) js_close(&o->base);
        return -1;
    }
    *out = &o->base;
    return 0;
}
