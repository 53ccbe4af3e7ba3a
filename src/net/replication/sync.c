/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lock order: callers' locks, then outbox; `lock` (commands, peer list, stats) is never held while the handler runs.
 * Bounds: the outbox has OUTBOX_MAX bytes; an event that does not fit keeps its number and loses its content, so that
 * followers see a gap and ask. What a follower keeps back while it waits for a snapshot has HELD_MAX bytes; beyond that it
 * begins anew. What was sent and is not read has QUEUED_MAX bytes, however many followers there are: they share a message's
 * bytes, and who does not read is cut off (zmq/guard.h). Snapshots are made for all who ask at once, ASKED_MAX of them every
 * SNAPSHOT_EVERY_MS. Frames have FRAME_MAX bytes, and a peer that sends frames without end is connected to anew.
 */
#include "net/replication/sync.h"

#include <errno.h>
#include <msgpuck.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/lock.h"
#include "base/log.h"
#include "net/ingest/ingest.h"
#include "net/zmq/guard.h"
#include "wire/sync_event.h"

enum {
    VERSION = 1,
    HEARTBEAT_MS = 250,
    SILENCE_MS = 1200,
    SNAPSHOT_MS = 1500, /* patience with a snapshot's next part */
    BATCH_MS = 1,
    PEERS_MAX = 64,
    HWM = 1024, /* messages */
    QUEUED_MAX = 128 << 20,
    FRAME_MAX = 16 << 20,
    EVENT_MAX = FRAME_MAX - (1 << 20), /* a message is about MESSAGE_TARGET and one event more */
    UNREAD_MAX = 128 << 20,
    FOLLOWERS_MAX = 64, /* connections */
    ASKED_MAX = 64,
    SNAPSHOT_EVERY_MS = 100,
    LOOK_MS = 20,
    TURN_MS = 20,
    OUTBOX_MAX = 64 << 20,
    MESSAGE_TARGET = 256 << 10, /* messages end at the event that crosses it */
    MESSAGE_MAX = 64 << 20,     /* of NATS */
    HELD_MAX = 64 << 20,
    HEADER_MAX = 48,
    ENDPOINT_MAX = 256,
    MAIL_BYTES_MAX = 64 << 20,
    FORGET_MS = 60000
};

enum kind { KIND_EVENTS, KIND_PART, KIND_END };
enum state { WAITING, SYNCING, LIVE };

/* A message of NATS on its way to the thread. */
struct mail {
    struct mail *next;
    uint64_t publisher;
    char topic[24];
    size_t len;
    char data[];
};

struct held {
    struct held *next;
    uint64_t number;
    size_t len;
    char data[];
};

struct peer {
    uint32_t id;
    char endpoint[ENDPOINT_MAX];
    void *sub, *monitor;
    struct kvr_zmq_line line;
    enum state state;
    uint64_t publisher, expected; /* next event number */
    uint64_t heard_ms, asked_ms;
    uint64_t parts;
    bool fresh;     /* over NATS: nothing of it is known */
    bool again;     /* a snapshot is wanted after the one that is being taken: what was left out of its parts is wanted now */
    char topic[24]; /* of the snapshot that is waited for */
    struct held *held, **held_tail;
    size_t held_bytes;
};

struct kvr_sync {
    struct kvr_sync_handler h;
    void *zmq, *pub;
    struct kvr_nats *nats; /* then the two above are NULL */
    struct kvr_nats_sub *sub;
    char root[192];                 /* subject tree */
    struct mail *mail, **mail_tail; /* under `lock` */
    size_t mail_bytes;
    const struct kvr_curve *curve;
    struct kvr_curve_door *door;
    struct kvr_zmq_budget *queued;
    struct kvr_zmq_guard guard;
    char asked[ASKED_MAX][24]; /* topics of the snapshots that are wanted */
    size_t asked_n;
    uint64_t snapshot_ms, look_ms; /* the next one may be made then; connections are looked at then */
    uint64_t self;
    int wake;
    pthread_t thread;
    _Atomic bool stop;
    /* outbox */
    struct kvr_lock out_lock;
    struct kvr_buf out;
    uint64_t out_first, next; /* number of the first event in `out`; of the next to come */
    /* the thread's */
    struct peer *peers[PEERS_MAX];
    size_t peers_n;
    uint64_t heartbeat_ms, nonce;
    uint32_t ids;
    /* commands and what others may see */
    struct kvr_lock lock;
    struct peer *adds[PEERS_MAX]; /* made, not begun with */
    char removes[PEERS_MAX][ENDPOINT_MAX], known[PEERS_MAX][ENDPOINT_MAX];
    bool live[PEERS_MAX];
    size_t adds_n, removes_n, known_n;
    bool resync;
    struct kvr_sync_stats stats;
};

static void count(struct kvr_sync *s, uint64_t *counter, uint64_t n)
{
    kvr_lock(&s->lock);
    *counter += n;
    kvr_unlock(&s->lock);
}

static void wake(struct kvr_sync *s)
{
    uint64_t one = 1;
    if (write(s->wake, &one, sizeof one) < 0) return; /* the counter is full: it is awake */
}

/* ---- publishing -------------------------------------------------------------------------------------- */

void kvr_sync_publish(struct kvr_sync *s, const char *event, size_t len)
{
    bool dropped = false, was_empty;
    kvr_lock(&s->out_lock);
    s->next++;
    was_empty = s->out.len == 0;
    /* content must be contiguous with numbers: after a drop the rest of this outbox is dropped too */
    if (s->out_first == UINT64_MAX || len > EVENT_MAX || s->out.len + len > OUTBOX_MAX) dropped = true;
    else kvr_buf_add(&s->out, event, len);
    if (s->out.failed) {
        s->out.failed = false;
        dropped = true;
    }
    if (dropped) s->out_first = UINT64_MAX;
    kvr_unlock(&s->out_lock);
    if (dropped) count(s, &s->stats.dropped, 1);
    if (was_empty || dropped) wake(s);
}

uint64_t kvr_sync_next(struct kvr_sync *s)
{
    kvr_lock(&s->out_lock);
    uint64_t n = s->next;
    kvr_unlock(&s->out_lock);
    return n;
}

static void send_over_nats(struct kvr_sync *s, const char *topic, const char *head, size_t head_len, const char *data, size_t len)
{
    char subject[256];
    struct kvr_buf b = {0};
    snprintf(subject, sizeof subject, "%s.%016llx.%s", s->root, (unsigned long long)s->self, topic);
    kvr_buf_add(&b, head, head_len);
    kvr_buf_add(&b, data, len);
    if (!b.failed) (void)kvr_nats_publish(s->nats, subject, NULL, b.data, b.len); /* a loss is a gap, which is mended */
    kvr_buf_free(&b);
    count(s, &s->stats.messages_sent, 1);
}

/* To everybody who wants one of the topics; they share the bytes. */
static void send_over_zmq(struct kvr_sync *s, const char (*topics)[24], size_t n, const char *head, size_t head_len, const char *data,
                          size_t len)
{
    zmq_msg_t m;
    if (kvr_zmq_message(s->queued, head, head_len, data, len, &m)) { /* a gap, which is mended */
        count(s, &s->stats.queue_full, 1);
        kvr_zmq_let_go(s->pub);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        zmq_msg_t copy;
        zmq_msg_init(&copy);
        if (zmq_msg_copy(&copy, &m) || zmq_send(s->pub, topics[i], strlen(topics[i]), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0 ||
            zmq_msg_send(&copy, s->pub, ZMQ_DONTWAIT) < 0)
            zmq_msg_close(&copy);
        else count(s, &s->stats.messages_sent, 1);
    }
    zmq_msg_close(&m);
}

static void send_message(struct kvr_sync *s, const char (*topics)[24], size_t n, enum kind kind, uint64_t number, const char *data,
                         size_t len)
{
    char head[HEADER_MAX], *p = head;
    p = mp_encode_array(p, 5);
    p = mp_encode_uint(p, VERSION);
    p = mp_encode_uint(p, s->self);
    p = mp_encode_uint(p, kind);
    p = mp_encode_uint(p, number);
    p = mp_encode_binl(p, (uint32_t)len);
    size_t head_len = (size_t)(p - head);
    if (!s->nats) send_over_zmq(s, topics, n, head, head_len, data, len);
    for (size_t i = 0; s->nats && i < n; i++) send_over_nats(s, topics[i], head, head_len, data, len);
}

/* Cuts a run of values into messages of about MESSAGE_TARGET bytes. Returns: how many values there were. */
static uint64_t send_run(struct kvr_sync *s, const char (*topics)[24], size_t n, enum kind kind, uint64_t first, const char *data,
                         size_t len)
{
    const char *end = data + len, *start = data, *p = data;
    uint64_t values = 0, from = first, parts = 0;
    while (p < end) {
        mp_next(&p);
        values++;
        if ((size_t)(p - start) < MESSAGE_TARGET && p < end) continue;
        send_message(s, topics, n, kind, kind == KIND_PART ? parts : from, start, (size_t)(p - start));
        parts++;
        start = p;
        from = first + values;
    }
    return kind == KIND_PART ? parts : values;
}

static const char events_topic[1][24] = {"e"};

static void flush(struct kvr_sync *s, bool heartbeat)
{
    struct kvr_buf run = {0};
    kvr_lock(&s->out_lock);
    uint64_t first = s->out_first, next = s->next;
    run = s->out;
    s->out = (struct kvr_buf){0};
    s->out_first = next;
    kvr_unlock(&s->out_lock);
    if (first != UINT64_MAX && run.len)
        count(s, &s->stats.events_sent, send_run(s, events_topic, 1, KIND_EVENTS, first, run.data, run.len));
    if (heartbeat || first == UINT64_MAX) send_message(s, events_topic, 1, KIND_EVENTS, next, NULL, 0);
    kvr_buf_free(&run);
}

/* One for all who have asked. */
static void send_snapshots(struct kvr_sync *s)
{
    struct kvr_buf b = {0};
    size_t n = s->asked_n;
    s->asked_n = 0;
    s->snapshot_ms = kvr_now_ms() + SNAPSHOT_EVERY_MS;
    flush(s, false);
    s->h.write_snapshot(s->h.ctx, &b);
    if (!b.failed) {
        uint64_t parts = send_run(s, s->asked, n, KIND_PART, 0, b.data, b.len);
        send_message(s, s->asked, n, KIND_END, parts, NULL, 0);
        count(s, &s->stats.snapshots_sent, n);
    }
    kvr_buf_free(&b);
}

/* Who is not taken asks again. */
static void note_question(struct kvr_sync *s, const char *topic)
{
    size_t len = strlen(topic);
    bool ok = len > 1 && len < sizeof s->asked[0] && topic[0] == 's' && strspn(topic + 1, "0123456789abcdef") == len - 1;
    if (!ok || s->asked_n == ASKED_MAX) {
        count(s, &s->stats.snapshots_refused, 1);
        return;
    }
    memcpy(s->asked[s->asked_n++], topic, len + 1);
}

/* Subscriptions are the questions; a turn's worth of them. */
static void take_questions(struct kvr_sync *s)
{
    char frame[64];
    int n;
    uint64_t until = kvr_now_ms() + TURN_MS;
    while (kvr_now_ms() < until && (n = zmq_recv(s->pub, frame, sizeof frame - 1, ZMQ_DONTWAIT)) >= 0) {
        if (n < 3 || n >= (int)sizeof frame - 1 || frame[0] != 1 || frame[1] != 's') continue;
        frame[n] = 0;
        note_question(s, frame + 1);
    }
}

/* ---- following --------------------------------------------------------------------------------------- */

static void drop_held(struct peer *p)
{
    while (p->held) {
        struct held *h = p->held;
        p->held = h->next;
        free(h);
    }
    p->held_tail = &p->held;
    p->held_bytes = 0;
}

static void stop_asking(struct peer *p)
{
    if (p->topic[0] && p->sub) zmq_setsockopt(p->sub, ZMQ_UNSUBSCRIBE, p->topic, strlen(p->topic));
    p->topic[0] = 0;
}

static void ask_snapshot(struct kvr_sync *s, struct peer *p)
{
    stop_asking(p);
    drop_held(p);
    p->state = SYNCING;
    p->asked_ms = kvr_now_ms();
    p->parts = 0;
    p->again = false;
    snprintf(p->topic, sizeof p->topic, "s%016llx", (unsigned long long)kvr_mix64(s->self ^ ++s->nonce));
    if (p->sub) {
        zmq_setsockopt(p->sub, ZMQ_SUBSCRIBE, p->topic, strlen(p->topic));
        return;
    }
    char subject[256];
    snprintf(subject, sizeof subject, "%s.%016llx.ask", s->root, (unsigned long long)p->publisher);
    (void)kvr_nats_publish(s->nats, subject, NULL, p->topic, strlen(p->topic));
}

static void lose(struct kvr_sync *s, struct peer *p)
{
    bool had = p->state != WAITING;
    stop_asking(p);
    drop_held(p);
    p->state = WAITING;
    if (p->sub) p->publisher = 0; /* over NATS a peer is its publisher */
    else p->fresh = true;
    if (!had) return;
    count(s, &s->stats.lost_peers, 1);
    s->h.on_reset(s->h.ctx, p->id);
}

static void hand_over(struct kvr_sync *s, struct peer *p, uint64_t number, const char *data, size_t len)
{
    const char *end = data + len, *at = data;
    uint64_t n = 0;
    while (at < end) {
        const char *event = at;
        mp_next(&at);
        s->h.on_event(s->h.ctx, p->id, number ? number + n : 0, event, (size_t)(at - event));
        n++;
    }
    if (number) p->expected = number + n;
    count(s, &s->stats.events_received, n);
}

static void hold_back(struct kvr_sync *s, struct peer *p, uint64_t number, const char *data, size_t len)
{
    struct held *h = p->held_bytes + len > HELD_MAX ? NULL : malloc(sizeof *h + len);
    if (!h) {
        ask_snapshot(s, p);
        return;
    }
    *h = (struct held){.number = number, .len = len};
    if (len) memcpy(h->data, data, len);
    *p->held_tail = h;
    p->held_tail = &h->next;
    p->held_bytes += len;
}

/* Takes a run of live events. false: there is a gap before it. */
static bool take_run(struct kvr_sync *s, struct peer *p, uint64_t number, const char *data, size_t len)
{
    if (number > p->expected) return false;
    if (len && number + 1 > p->expected) hand_over(s, p, number, data, len);
    return true; /* runs are never cut differently, so an older one is a copy */
}

static void snapshot_ended(struct kvr_sync *s, struct peer *p, uint64_t parts)
{
    if (parts != p->parts) {
        ask_snapshot(s, p);
        return;
    }
    if (parts == 0) s->h.on_reset(s->h.ctx, p->id); /* an empty one */
    stop_asking(p);
    p->state = LIVE;
    struct held *h = p->held;
    p->expected = h ? h->number : p->expected;
    while (h && take_run(s, p, h->number, h->data, h->len)) h = h->next;
    bool gap = h != NULL;
    drop_held(p);
    count(s, &s->stats.snapshots_received, 1);
    if (gap || p->again) ask_snapshot(s, p);
}

static void take_live(struct kvr_sync *s, struct peer *p, uint64_t publisher, uint64_t number, const char *data, size_t len)
{
    if (p->fresh) {
        p->fresh = false;
        p->expected = number;
        ask_snapshot(s, p);
    }
    if (publisher != p->publisher) { /* the first word, or another process at the same place */
        if (p->publisher) lose(s, p);
        p->publisher = publisher; /* so it is WAITING only while it has none */
        p->expected = number;
        ask_snapshot(s, p);
    }
    if (p->state == SYNCING) {
        hold_back(s, p, number, data, len);
    } else if (!take_run(s, p, number, data, len)) {
        count(s, &s->stats.gaps, 1);
        ask_snapshot(s, p);
        hold_back(s, p, number, data, len);
    }
}

struct message {
    uint64_t version, publisher, kind, number;
    const char *data;
    uint32_t len;
};

static bool read_message(const char *p, size_t len, struct message *m)
{
    const char *end = p + len, *check = p;
    uint64_t *fields[] = {&m->version, &m->publisher, &m->kind, &m->number};
    if (len == 0 || mp_typeof(*p) != MP_ARRAY || mp_check(&check, end) || check != end || mp_decode_array(&p) != 5) return false;
    for (int i = 0; i < 4; i++) {
        if (mp_typeof(*p) != MP_UINT) return false;
        *fields[i] = mp_decode_uint(&p);
    }
    if (mp_typeof(*p) != MP_BIN) return false;
    m->data = mp_decode_bin(&p, &m->len);
    return m->version == VERSION && m->kind <= KIND_END && kvr_sync_run_is_whole(m->data, m->len);
}

/* Over NATS a peer is who the subject says; over ZeroMQ a router that has two addresses is heard at one of them. */
static bool is_another(const struct kvr_sync *s, const struct peer *p, uint64_t publisher)
{
    if (publisher == p->publisher || s->nats) return publisher != p->publisher;
    for (size_t i = 0; i < s->peers_n; i++) {
        const struct peer *o = s->peers[i];
        if (o == p || o->publisher != publisher) continue;
        kvr_log_warning_of(kvr_log_key(p->id, 0, o->endpoint), "kvroute: replica sync: %s and %s are one router, which counts once",
                           o->endpoint, p->endpoint);
        return true;
    }
    return false;
}

static void take_message(struct kvr_sync *s, struct peer *p, const char *topic, const char *data, size_t len)
{
    struct message m;
    if (!read_message(data, len, &m)) {
        count(s, &s->stats.malformed, 1);
        return;
    }
    count(s, &s->stats.messages_received, 1);
    if (m.publisher == s->self) return; /* somebody gave us our own port */
    if (is_another(s, p, m.publisher)) {
        if (!s->nats) lose(s, p); /* whoever was here before is not */
        return;
    }
    p->heard_ms = kvr_now_ms();
    if (m.kind == KIND_EVENTS) {
        if (m.number && m.number < UINT64_MAX / 2) take_live(s, p, m.publisher, m.number, m.data, m.len);
    } else if (p->state == SYNCING && m.publisher == p->publisher && !strcmp(topic, p->topic)) {
        if (m.kind == KIND_END) {
            snapshot_ended(s, p, m.number);
        } else if (m.number != p->parts) {
            ask_snapshot(s, p);
        } else {
            if (p->parts++ == 0) s->h.on_reset(s->h.ctx, p->id);
            p->asked_ms = p->heard_ms;
            hand_over(s, p, 0, m.data, m.len);
        }
    }
}

static bool next_frame(struct peer *p, zmq_msg_t *m, bool *more)
{
    zmq_msg_init(m);
    if (zmq_msg_recv(m, p->sub, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(m);
        return false;
    }
    kvr_zmq_line_took(&p->line, zmq_msg_size(m));
    *more = zmq_msg_more(m);
    return true;
}

/* Takes what a peer has sent, at most a turn's worth, so that all get their turn. */
static void take_messages(struct kvr_sync *s, struct peer *p)
{
    uint64_t until = kvr_now_ms() + TURN_MS;
    for (int burst = 0; burst < 256 && kvr_now_ms() <= until && !s->stop; burst++) {
        char topic[24] = "";
        zmq_msg_t m;
        bool more;
        if (!next_frame(p, &m, &more)) return;
        memcpy(topic, zmq_msg_data(&m), KVR_MIN(zmq_msg_size(&m), sizeof topic - 1));
        zmq_msg_close(&m);
        for (int frame = 0; more && next_frame(p, &m, &more); frame++) {
            if (frame == 0) take_message(s, p, topic, zmq_msg_data(&m), zmq_msg_size(&m));
            zmq_msg_close(&m);
        }
    }
}

/* ---- NATS -------------------------------------------------------------------------------------------- */

/* root.{publisher}.{topic} */
static bool read_subject(const struct kvr_sync *s, const char *subject, uint64_t *publisher, char topic[24])
{
    size_t n = strlen(s->root);
    char *end;
    if (strncmp(subject, s->root, n) != 0 || subject[n] != '.') return false;
    *publisher = strtoull(subject + n + 1, &end, 16);
    return *publisher && *end == '.' && snprintf(topic, 24, "%s", end + 1) < 24;
}

static void on_nats(void *ctx, const struct kvr_nats_message *m)
{
    struct kvr_sync *s = ctx;
    uint64_t publisher;
    char topic[24];
    if (m->len > MESSAGE_MAX || !read_subject(s, m->subject, &publisher, topic)) return;
    bool ask = strcmp(topic, "ask") == 0;
    if (ask != (publisher == s->self)) return; /* our own words, or questions to others */
    struct mail *mail = malloc(sizeof *mail + m->len + 1);
    if (!mail) return; /* a gap */
    *mail = (struct mail){.publisher = publisher, .len = m->len};
    memcpy(mail->topic, topic, sizeof topic);
    memcpy(mail->data, m->data, m->len);
    mail->data[m->len] = 0;
    kvr_lock(&s->lock);
    bool full = s->mail_bytes + m->len > MAIL_BYTES_MAX;
    if (!full) {
        *s->mail_tail = mail;
        s->mail_tail = &mail->next;
        s->mail_bytes += m->len;
    }
    kvr_unlock(&s->lock);
    if (full) free(mail);
    else wake(s);
}

static struct peer *peer_of(struct kvr_sync *s, uint64_t publisher)
{
    for (size_t i = 0; i < s->peers_n; i++)
        if (s->peers[i]->publisher == publisher) return s->peers[i];
    struct peer *p = s->peers_n < PEERS_MAX ? calloc(1, sizeof *p) : NULL;
    if (!p) return NULL;
    p->id = ++s->ids;
    p->held_tail = &p->held;
    p->publisher = publisher;
    p->fresh = true;
    snprintf(p->endpoint, sizeof p->endpoint, "nats:%016llx", (unsigned long long)publisher);
    s->peers[s->peers_n++] = p;
    return p;
}

static void take_mail(struct kvr_sync *s)
{
    kvr_lock(&s->lock);
    struct mail *list = s->mail;
    s->mail = NULL;
    s->mail_tail = &s->mail;
    s->mail_bytes = 0;
    kvr_unlock(&s->lock);
    while (list) {
        struct mail *m = list;
        list = m->next;
        if (m->publisher == s->self) {
            if (strlen(m->data) == m->len) note_question(s, m->data);
        } else {
            struct peer *p = peer_of(s, m->publisher);
            if (p) take_message(s, p, m->topic, m->data, m->len);
        }
        free(m);
    }
}

/* ---- the thread -------------------------------------------------------------------------------------- */

static void set_int(void *socket, int option, int value)
{
    zmq_setsockopt(socket, option, &value, sizeof value);
}

/* false: no memory. */
static bool line_open(struct kvr_sync *s, struct peer *p)
{
    int64_t max = FRAME_MAX;
    p->line = (struct kvr_zmq_line){0};
    p->sub = zmq_socket(s->zmq, ZMQ_SUB);
    if (!p->sub) return false;
    set_int(p->sub, ZMQ_LINGER, 0);
    set_int(p->sub, ZMQ_RCVHWM, HWM);
    set_int(p->sub, ZMQ_RECONNECT_IVL, 100);
    set_int(p->sub, ZMQ_RECONNECT_IVL_MAX, 500);
    set_int(p->sub, ZMQ_IPV6, 1);
    zmq_setsockopt(p->sub, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(p->sub, ZMQ_SUBSCRIBE, "e", 1);
    p->monitor = kvr_zmq_monitor_open(s->zmq, p->sub, ZMQ_EVENT_CONNECTED | ZMQ_EVENT_DISCONNECTED);
    return p->monitor && kvr_curve_client(s->curve, p->sub, p->endpoint) == 0 && zmq_connect(p->sub, p->endpoint) == 0;
}

static void line_close(struct peer *p)
{
    kvr_zmq_monitor_close(p->monitor, p->sub);
    if (p->sub) zmq_close(p->sub);
    p->sub = p->monitor = NULL;
}

static void peer_open(struct kvr_sync *s, struct peer *p)
{
    p->id = ++s->ids;
    if (!line_open(s, p)) line_close(p); /* tried again */
    s->peers[s->peers_n++] = p;
}

static void peer_close(struct kvr_sync *s, size_t at)
{
    struct peer *p = s->peers[at];
    lose(s, p);
    line_close(p);
    free(p);
    s->peers[at] = s->peers[--s->peers_n];
}

/* Connections: what the monitors tell, and who sends without end. */
static void look_at_lines(struct kvr_sync *s)
{
    uint64_t now = kvr_now_ms();
    if (s->nats || now < s->look_ms) return;
    s->look_ms = now + LOOK_MS;
    kvr_zmq_guard_step(&s->guard, now);
    for (size_t i = 0; i < s->peers_n; i++) {
        struct peer *p = s->peers[i];
        uint16_t event;
        uint32_t value;
        while (p->monitor && kvr_zmq_monitor_read(p->monitor, &event, &value)) kvr_zmq_line_event(&p->line, event, value, now);
        bool flood = kvr_zmq_line_unread(&p->line, now) > UNREAD_MAX;
        if (p->sub && !flood) continue;
        count(s, &s->stats.floods, flood);
        lose(s, p);
        line_close(p);
        if (!line_open(s, p)) line_close(p);
    }
}

static void run_commands(struct kvr_sync *s)
{
    char endpoint[ENDPOINT_MAX];
    for (;;) {
        int what = 0;
        struct peer *fresh = NULL;
        endpoint[0] = 0;
        kvr_lock(&s->lock);
        if (s->removes_n) what = 1, memcpy(endpoint, s->removes[--s->removes_n], ENDPOINT_MAX);
        else if (s->adds_n && s->peers_n < PEERS_MAX) what = 2, fresh = s->adds[--s->adds_n];
        else if (s->resync) what = 3, s->resync = false;
        kvr_unlock(&s->lock);
        if (what == 0) return;
        if (what == 2) peer_open(s, fresh);
        for (size_t i = s->peers_n; i-- > 0;) {
            if (what == 1 && !strcmp(s->peers[i]->endpoint, endpoint)) peer_close(s, i);
            else if (what == 3 && s->peers[i]->state == LIVE) ask_snapshot(s, s->peers[i]);
            else if (what == 3 && s->peers[i]->parts > 0) s->peers[i]->again = true;
        }
    }
}

static void look_at_clocks(struct kvr_sync *s)
{
    uint64_t now = kvr_now_ms();
    for (size_t i = 0; i < s->peers_n; i++) {
        struct peer *p = s->peers[i];
        if (p->state != WAITING && now - p->heard_ms > SILENCE_MS) lose(s, p);
        else if (p->state == SYNCING && now - p->asked_ms > SNAPSHOT_MS) ask_snapshot(s, p);
    }
    for (size_t i = s->peers_n; s->nats && i-- > 0;)
        if (s->peers[i]->state == WAITING && now - s->peers[i]->heard_ms > FORGET_MS) peer_close(s, i);
    if (now >= s->heartbeat_ms) {
        flush(s, true);
        s->heartbeat_ms = now + HEARTBEAT_MS;
    }
    kvr_lock(&s->lock);
    s->stats.peers = s->peers_n;
    s->stats.live_peers = 0;
    for (size_t i = 0; i < s->peers_n; i++) {
        bool live = s->peers[i]->state == LIVE;
        s->stats.live_peers += live;
        for (size_t k = 0; k < s->known_n; k++)
            if (!strcmp(s->known[k], s->peers[i]->endpoint)) s->live[k] = live;
    }
    kvr_unlock(&s->lock);
}

static void *sync_main(void *arg)
{
    struct kvr_sync *s = arg;
    uint64_t flush_at = 0;
    while (!s->stop) {
        zmq_pollitem_t items[PEERS_MAX + 2] = {{.fd = s->wake, .events = ZMQ_POLLIN}, {.socket = s->pub, .events = ZMQ_POLLIN}};
        size_t n = s->nats ? 0 : s->peers_n, fixed = s->nats ? 1 : 2;
        uint64_t now = kvr_now_ms(), until = flush_at ? KVR_MIN(flush_at, s->heartbeat_ms) : s->heartbeat_ms, junk;
        if (!s->nats) until = KVR_MIN(until, s->look_ms);
        if (s->asked_n) until = KVR_MIN(until, s->snapshot_ms);
        for (size_t i = 0; i < n; i++) { /* one without a socket waits for memory */
            bool has = s->peers[i]->sub != NULL;
            items[i + 2] = (zmq_pollitem_t){.socket = has ? s->peers[i]->sub : s->pub, .events = has ? ZMQ_POLLIN : 0};
        }
        zmq_poll(items, (int)(n + fixed), until > now ? (long)(until - now) : 0);
        if (items[0].revents) {
            if (read(s->wake, &junk, sizeof junk) > 0 && !flush_at) flush_at = kvr_now_ms() + BATCH_MS;
            run_commands(s);
        }
        if (s->nats) take_mail(s);
        else if (items[1].revents) take_questions(s);
        if (s->asked_n && kvr_now_ms() >= s->snapshot_ms) send_snapshots(s);
        for (size_t i = 0; i < n && i < s->peers_n; i++)
            if (s->peers[i]->sub) take_messages(s, s->peers[i]);
        if (flush_at && kvr_now_ms() >= flush_at) {
            flush_at = 0;
            flush(s, false);
        }
        look_at_clocks(s);
        look_at_lines(s);
    }
    while (s->peers_n) peer_close(s, s->peers_n - 1);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------------- */

static void sync_free(struct kvr_sync *s)
{
    while (s->mail) {
        struct mail *m = s->mail;
        s->mail = m->next;
        free(m);
    }
    while (s->adds_n) free(s->adds[--s->adds_n]);
    kvr_zmq_guard_close(&s->guard, s->pub);
    if (s->pub) zmq_close(s->pub);
    if (s->zmq) zmq_ctx_term(s->zmq);
    kvr_curve_door_close(s->door);
    kvr_zmq_budget_drop(s->queued);
    if (s->wake >= 0) close(s->wake);
    kvr_buf_free(&s->out);
    kvr_lock_destroy(&s->lock);
    kvr_lock_destroy(&s->out_lock);
    free(s);
}

static struct kvr_sync *sync_new(const struct kvr_sync_handler *handler, uint64_t seed)
{
    struct kvr_sync *s = calloc(1, sizeof *s);
    struct timespec ts;
    if (!s) return NULL;
    s->h = *handler;
    s->next = s->out_first = 1;
    s->mail_tail = &s->mail;
    kvr_lock_init(&s->lock, KVR_LOCK_SYNC);
    kvr_lock_init(&s->out_lock, KVR_LOCK_SYNC_OUT);
    clock_gettime(CLOCK_REALTIME, &ts);
    s->self = kvr_mix64((uint64_t)ts.tv_sec * 1000000007u + (uint64_t)ts.tv_nsec) ^ kvr_mix64((uint64_t)getpid() << 20 ^ seed);
    s->self |= 1; /* 0 is nobody */
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return s;
}

static int start(struct kvr_sync *s, int rc, struct kvr_sync **out)
{
    if (rc == 0 && s->wake < 0) rc = -KVR_ENOMEM;
    if (rc == 0 && pthread_create(&s->thread, NULL, sync_main, s)) rc = -KVR_ENOMEM;
    if (rc) {
        kvr_nats_unsubscribe(s->sub);
        sync_free(s);
    } else {
        *out = s;
    }
    return rc;
}

static int bind_pub(struct kvr_sync *s, const char *address, uint16_t port)
{
    char endpoint[160];
    int64_t max = FRAME_MAX;
    bool v6 = strchr(address, ':') && address[0] != '[';
    set_int(s->pub, ZMQ_LINGER, 0);
    set_int(s->pub, ZMQ_SNDHWM, HWM);
    set_int(s->pub, ZMQ_RCVHWM, HWM);
    set_int(s->pub, ZMQ_BACKLOG, FOLLOWERS_MAX);
    set_int(s->pub, ZMQ_IPV6, 1);
    set_int(s->pub, ZMQ_XPUB_VERBOSE, 1);
    zmq_setsockopt(s->pub, ZMQ_MAXMSGSIZE, &max, sizeof max);
    int rc = kvr_zmq_guard_init(&s->guard, s->zmq, s->pub, FOLLOWERS_MAX, s->queued);
    if (rc == 0) rc = kvr_curve_door_open(s->curve, s->zmq, &s->door);
    if (rc == -KVR_EINVAL) return -KVR_ENOTFOUND;
    if (rc == 0 && kvr_curve_server(s->door, s->pub)) rc = -KVR_EINVAL;
    if (rc) return rc;
    snprintf(endpoint, sizeof endpoint, "tcp://%s%s%s:%u", v6 ? "[" : "", strcmp(address, "0.0.0.0") != 0 ? address : "*", v6 ? "]" : "",
             port);
    if (zmq_bind(s->pub, endpoint) == 0) return 0;
    return zmq_errno() == EADDRINUSE ? -KVR_EEXISTS : -KVR_EINVAL;
}

int kvr_sync_create(const char *address, uint16_t port, const struct kvr_curve *curve, const struct kvr_sync_handler *handler,
                    struct kvr_sync **out)
{
    struct kvr_sync *s = sync_new(handler, port);
    if (!s) return -KVR_ENOMEM;
    s->curve = curve;
    s->queued = kvr_zmq_budget_new(QUEUED_MAX);
    s->zmq = s->queued ? zmq_ctx_new() : NULL;
    s->pub = s->zmq ? zmq_socket(s->zmq, ZMQ_XPUB) : NULL;
    return start(s, s->pub ? bind_pub(s, address, port) : -KVR_ENOMEM, out);
}

int kvr_sync_create_nats(struct kvr_nats *link, const char *scope, const struct kvr_sync_handler *handler, struct kvr_sync **out)
{
    struct kvr_sync *s = sync_new(handler, (uint64_t)(uintptr_t)link);
    char subject[256];
    if (!s) return -KVR_ENOMEM;
    s->nats = link;
    snprintf(s->root, sizeof s->root, "%s.replica_sync", scope);
    snprintf(subject, sizeof subject, "%s.*.*", s->root);
    return start(s, kvr_nats_subscribe(link, subject, NULL, MAIL_BYTES_MAX, on_nats, s, &s->sub), out);
}

void kvr_sync_destroy(struct kvr_sync *s)
{
    if (!s) return;
    kvr_nats_unsubscribe(s->sub);
    s->stop = true;
    wake(s);
    pthread_join(s->thread, NULL);
    sync_free(s);
}

/* ---- peers ------------------------------------------------------------------------------------------- */

static long known_at(const struct kvr_sync *s, const char *endpoint)
{
    for (size_t i = 0; i < s->known_n; i++)
        if (!strcmp(s->known[i], endpoint)) return (long)i;
    return -1;
}

int kvr_sync_add_peer(struct kvr_sync *s, const char *endpoint)
{
    int rc = 0;
    if (s->nats) return -KVR_EUNSUPPORTED;
    if (strlen(endpoint) >= ENDPOINT_MAX || !kvr_ingest_endpoint_ok(endpoint)) return -KVR_EINVAL;
    struct peer *p = calloc(1, sizeof *p);
    if (!p) return -KVR_ENOMEM;
    p->held_tail = &p->held;
    snprintf(p->endpoint, sizeof p->endpoint, "%s", endpoint);
    kvr_lock(&s->lock);
    if (known_at(s, endpoint) >= 0) rc = -KVR_EEXISTS;
    else if (s->known_n == PEERS_MAX || s->adds_n == PEERS_MAX) rc = -KVR_ELIMIT;
    if (rc == 0) {
        s->adds[s->adds_n++] = p;
        p = NULL;
        size_t at = s->known_n++;
        for (; at > 0 && strcmp(s->known[at - 1], endpoint) > 0; at--) {
            memcpy(s->known[at], s->known[at - 1], ENDPOINT_MAX);
            s->live[at] = s->live[at - 1];
        }
        snprintf(s->known[at], ENDPOINT_MAX, "%s", endpoint);
        s->live[at] = false;
    }
    kvr_unlock(&s->lock);
    free(p);
    wake(s);
    return rc;
}

int kvr_sync_remove_peer(struct kvr_sync *s, const char *endpoint)
{
    if (s->nats) return -KVR_EUNSUPPORTED;
    kvr_lock(&s->lock);
    long at = known_at(s, endpoint);
    bool full = at >= 0 && s->removes_n == PEERS_MAX;
    for (size_t i = 0; at >= 0 && i < s->adds_n; i++) /* not begun yet: never begin */
        if (!strcmp(s->adds[i]->endpoint, endpoint)) {
            free(s->adds[i]);
            s->adds[i] = s->adds[--s->adds_n];
        }
    if (at >= 0 && !full) {
        snprintf(s->removes[s->removes_n++], ENDPOINT_MAX, "%s", endpoint);
        for (size_t i = (size_t)at; i + 1 < s->known_n; i++) {
            memcpy(s->known[i], s->known[i + 1], ENDPOINT_MAX);
            s->live[i] = s->live[i + 1];
        }
        s->known_n--;
    }
    kvr_unlock(&s->lock);
    wake(s);
    return full ? -KVR_ELIMIT : at >= 0 ? 0 : -KVR_ENOTFOUND;
}

void kvr_sync_each_peer(struct kvr_sync *s, void (*fn)(void *ctx, const char *endpoint, bool live), void *ctx)
{
    kvr_lock(&s->lock);
    for (size_t i = 0; i < s->known_n; i++) fn(ctx, s->known[i], s->live[i]);
    kvr_unlock(&s->lock);
}

void kvr_sync_resync(struct kvr_sync *s)
{
    kvr_lock(&s->lock);
    s->resync = true;
    kvr_unlock(&s->lock);
    wake(s);
}

void kvr_sync_stats(struct kvr_sync *s, struct kvr_sync_stats *out)
{
    kvr_lock(&s->lock);
    *out = s->stats;
    kvr_unlock(&s->lock);
    out->connections = atomic_load(&s->guard.connections);
    out->connections_refused = atomic_load(&s->guard.refused);
    out->talkers = atomic_load(&s->guard.talkers);
    out->stalled = atomic_load(&s->guard.stalled);
    out->queued_bytes = s->queued ? atomic_load(&s->queued->bytes) : 0;
}
