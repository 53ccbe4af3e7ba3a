/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's KV event sockets: every batch is published once and kept in a ring, from which replays are answered. Threads:
 * app/mock/events.h.
 */
#include "app/mock/events.h"

#include <string.h>
#include <time.h>
#include <zmq.h>

#include "app/mock/encode.h"
#include "net/zmq/guard.h"
#include "wire/engine_encode.h"

/* Bounds, as those of an engine should be: connections, what a peer may say, and what waits unread (net/zmq/guard.h). An answer to a
 * replay shares the bytes of the buffer, and one that its asker does not read ends early: it is asked again. */
enum {
    CONNECTIONS_MAX = 64,
    FRAME_MAX = 64 << 10,
    LIVE_HWM = 4096,
    LIVE_MAX = 64 << 20,  /* bytes of live batches unread */
    BUFFER_MAX = 1 << 30, /* bytes of the replay buffer and its answers */
    REPLAYS_AT_ONCE = 32, /* answered in a row; then REPLAYS_A_SECOND */
    REPLAYS_A_SECOND = 20,
    TEND_MS = 20
};

struct sent {
    uint64_t seq;
    zmq_msg_t body; /* shared with the answers */
};

struct mock_events {
    struct mock_events_config config;
    void *pub, *router;
    uv_poll_t poll;
    struct kvr_buf events; /* encoded events of the batch in the making */
    uint32_t events_n;
    uint64_t next_seq;
    struct sent *ring;
    size_t ring_n, ring_head;
    struct kvr_zmq_budget *live, *kept;
    struct kvr_zmq_guard pub_guard, router_guard;
    double replays; /* that may be answered now */
    uint64_t replays_ms;
    uv_timer_t tend;
    int handles;
};

static void add_as_array(struct mock_events *m, const struct kvr_event *ev, const struct mock_event_words *words)
{
    struct kvr_engine_words w = {.tokens = words->tokens, .tokens_n = words->tokens_n, .block_size = words->block_size};
    if (words->lora) w.lora = (struct kvr_bytes){words->lora, strlen(words->lora)};
    if (words->salt) w.salt = (struct kvr_bytes){words->salt, strlen(words->salt)};
    kvr_engine_encode(&m->events, ev, &w);
}

void mock_events_add(struct mock_events *m, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n, const char *lora,
                     const char *salt)
{
    struct mock_event_words w = {tokens, tokens_n, m->config.block_size, lora, m->config.omit_salt ? NULL : salt};
    if (m->config.arrays) add_as_array(m, ev, &w);
    else mock_encode(&m->events, ev, &w);
    m->events_n++;
}

void mock_events_add_host(struct mock_events *m, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n)
{
    struct mock_event_words w = {tokens, tokens_n, m->config.block_size, NULL, NULL};
    m->events_n += mock_encode_host(&m->events, ev, &w, (enum mock_offload_form)m->config.offload);
}

static double wall_clock(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void keep(struct mock_events *m, uint64_t seq, const struct kvr_buf *payload)
{
    if (m->config.replay_buffer == 0) return;
    struct sent *s = &m->ring[(m->ring_head + m->ring_n) % m->config.replay_buffer];
    if (m->ring_n == m->config.replay_buffer) {
        zmq_msg_close(&s->body);
        m->ring_head = (m->ring_head + 1) % m->config.replay_buffer;
        m->ring_n--;
    }
    s = &m->ring[(m->ring_head + m->ring_n) % m->config.replay_buffer];
    s->seq = seq;
    if (kvr_zmq_message(m->kept, NULL, 0, payload->data, payload->len, &s->body) == 0) m->ring_n++; /* else a hole */
}

static void send_live(struct mock_events *m, const unsigned char seq[8], const struct kvr_buf *payload)
{
    zmq_msg_t body;
    if (kvr_zmq_message(m->live, NULL, 0, payload->data, payload->len, &body)) { /* lost: the sequence shows it */
        kvr_zmq_let_go(m->pub);
        return;
    }
    zmq_send(m->pub, m->config.topic, strlen(m->config.topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
    zmq_send(m->pub, seq, 8, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    if (zmq_msg_send(&body, m->pub, ZMQ_DONTWAIT) < 0) zmq_msg_close(&body);
}

void mock_events_flush(struct mock_events *m)
{
    struct kvr_buf out = {0};
    unsigned char seq[8];
    if (m->events_n == 0) return;
    kvr_engine_encode_batch(&out, wall_clock(), &m->events, m->events_n, m->config.rank);
    if (!out.failed) {
        kvr_store_be64(seq, m->next_seq);
        bool drop = m->config.drop_every && m->next_seq % m->config.drop_every == m->config.drop_every - 1;
        if (!drop) send_live(m, seq, &out);
        keep(m, m->next_seq++, &out);
    }
    kvr_buf_free(&out);
    m->events.len = 0;
    m->events_n = 0;
}

uint64_t mock_events_published(const struct mock_events *m)
{
    return m->next_seq;
}

/* ---- replay ------------------------------------------------------------------------------------------ */

/* body NULL: the end. false: the asker does not read, or is gone. */
static bool answer(struct mock_events *m, const void *id, size_t id_len, uint64_t seq, zmq_msg_t *body)
{
    unsigned char s[8];
    zmq_msg_t copy;
    kvr_store_be64(s, seq);
    if (zmq_send(m->router, id, id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return false; /* whole messages: the rest is taken */
    zmq_send(m->router, "", 0, ZMQ_SNDMORE);
    if (m->config.topic_in_replay) zmq_send(m->router, m->config.topic, body ? strlen(m->config.topic) : 0, ZMQ_SNDMORE);
    zmq_send(m->router, s, 8, ZMQ_SNDMORE);
    zmq_msg_init(&copy);
    if (body) zmq_msg_copy(&copy, body);
    if (zmq_msg_send(&copy, m->router, ZMQ_DONTWAIT) >= 0) return true;
    zmq_msg_close(&copy);
    return false;
}

static bool may_answer(struct mock_events *m)
{
    uint64_t now = kvr_now_ms();
    m->replays = KVR_MIN(m->replays + (double)(now - m->replays_ms) * REPLAYS_A_SECOND / 1000, (double)REPLAYS_AT_ONCE);
    m->replays_ms = now;
    if (m->replays < 1) return false;
    m->replays -= 1;
    return true;
}

static void serve_one(struct mock_events *m)
{
    char frames[4][256];
    int lens[4], n = 0, more = 1;
    size_t more_len = sizeof more;
    while (more) {
        char sink[256];
        int len = zmq_recv(m->router, n < 4 ? frames[n] : sink, 256, ZMQ_DONTWAIT);
        if (len < 0) return;
        if (n < 4) lens[n++] = KVR_MIN(len, 256);
        else n = 5;
        zmq_getsockopt(m->router, ZMQ_RCVMORE, &more, &more_len);
    }
    if (n != 3 || lens[1] != 0 || lens[2] != 8 || !may_answer(m)) return;
    uint64_t start = kvr_load_be64((unsigned char *)frames[2]);
    bool reads = true;
    for (size_t i = 0; i < m->ring_n && reads; i++) {
        struct sent *s = &m->ring[(m->ring_head + i) % m->config.replay_buffer];
        if (s->seq >= start) reads = answer(m, frames[0], (size_t)lens[0], s->seq, &s->body);
    }
    if (reads) (void)answer(m, frames[0], (size_t)lens[0], UINT64_MAX, NULL);
}

/* The ZMQ descriptor is edge-triggered: everything that waits must be taken. */
static void on_poll(uv_poll_t *poll, int, int)
{
    struct mock_events *m = poll->data;
    for (;;) {
        int ready = 0;
        size_t len = sizeof ready;
        if (zmq_getsockopt(m->router, ZMQ_EVENTS, &ready, &len) || !(ready & ZMQ_POLLIN)) return;
        serve_one(m);
    }
}

static void on_tend(uv_timer_t *t)
{
    struct mock_events *m = t->data;
    uint64_t now = kvr_now_ms();
    kvr_zmq_guard_step(&m->pub_guard, now);
    kvr_zmq_guard_step(&m->router_guard, now);
}

/* hwm: messages for each peer. */
static void *bind_socket(void *zmq, int type, const char *endpoint, int hwm, struct kvr_zmq_guard *guard,
                         const struct kvr_zmq_budget *budget)
{
    void *s = zmq_socket(zmq, type);
    int zero = 0, one = 1, requests = 64, backlog = CONNECTIONS_MAX;
    int64_t max = FRAME_MAX;
    if (!s) return NULL;
    zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s, ZMQ_RCVHWM, &requests, sizeof requests);
    zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &max, sizeof max);
    zmq_setsockopt(s, ZMQ_BACKLOG, &backlog, sizeof backlog);
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    if (type == ZMQ_ROUTER) zmq_setsockopt(s, ZMQ_ROUTER_MANDATORY, &one, sizeof one);
    if (kvr_zmq_guard_init(guard, zmq, s, CONNECTIONS_MAX, budget) == 0 && zmq_bind(s, endpoint) == 0) return s;
    kvr_zmq_guard_close(guard, s);
    zmq_close(s);
    return NULL;
}

struct mock_events *mock_events_create(const struct mock_events_config *config)
{
    struct mock_events *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->config = *config;
    m->replays = REPLAYS_AT_ONCE;
    m->live = kvr_zmq_budget_new(LIVE_MAX);
    m->kept = kvr_zmq_budget_new(BUFFER_MAX);
    m->ring = calloc(config->replay_buffer ? config->replay_buffer : 1, sizeof *m->ring);
    bool ok = m->live && m->kept && m->ring;
    if (ok) m->pub = bind_socket(config->zmq, ZMQ_PUB, config->events, LIVE_HWM, &m->pub_guard, m->live);
    if (ok && config->replay) /* one answer fits */
        m->router = bind_socket(config->zmq, ZMQ_ROUTER, config->replay, (int)KVR_MIN(config->replay_buffer + 2, (size_t)INT32_MAX),
                                &m->router_guard, NULL);
    if (!m->pub || (config->replay && !m->router)) {
        mock_events_destroy(m);
        return NULL;
    }
    uv_timer_init(config->loop, &m->tend);
    m->tend.data = m;
    uv_timer_start(&m->tend, on_tend, TEND_MS, TEND_MS);
    m->handles = 1;
    if (m->router) {
        int fd;
        size_t len = sizeof fd;
        zmq_getsockopt(m->router, ZMQ_FD, &fd, &len);
        uv_poll_init(config->loop, &m->poll, fd);
        m->poll.data = m;
        m->handles++;
        uv_poll_start(&m->poll, UV_READABLE, on_poll);
    }
    return m;
}

static void release(struct mock_events *m)
{
    for (size_t i = 0; i < m->ring_n; i++) zmq_msg_close(&m->ring[(m->ring_head + i) % m->config.replay_buffer].body);
    free(m->ring);
    kvr_buf_free(&m->events);
    kvr_zmq_guard_close(&m->pub_guard, m->pub);
    kvr_zmq_guard_close(&m->router_guard, m->router);
    if (m->pub) zmq_close(m->pub);
    if (m->router) zmq_close(m->router);
    kvr_zmq_budget_drop(m->live);
    kvr_zmq_budget_drop(m->kept);
    free(m);
}

static void on_closed(uv_handle_t *h)
{
    struct mock_events *m = h->data;
    if (--m->handles == 0) release(m);
}

void mock_events_destroy(struct mock_events *m)
{
    if (!m) return;
    if (!m->handles) {
        release(m);
        return;
    }
    bool polls = m->handles == 2;
    uv_close((uv_handle_t *)&m->tend, on_closed);
    if (polls) uv_close((uv_handle_t *)&m->poll, on_closed);
}
