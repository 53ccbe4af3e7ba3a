/* SPDX-License-Identifier: Apache-2.0 */
#include "app/mock/events.h"

#include <string.h>
#include <time.h>
#include <zmq.h>

#include "wire/engine_encode.h"

struct sent {
    uint64_t seq;
    size_t len;
    char *data;
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
    int handles;
};

void mock_events_add(struct mock_events *m, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n, const char *lora,
                     const char *salt)
{
    struct kvr_engine_words w = {.tokens = tokens, .tokens_n = tokens_n, .block_size = m->config.block_size};
    if (lora) w.lora = (struct kvr_bytes){lora, strlen(lora)};
    if (salt && !m->config.omit_salt) w.salt = (struct kvr_bytes){salt, strlen(salt)};
    kvr_engine_encode(&m->events, ev, &w);
    m->events_n++;
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
        free(s->data);
        m->ring_head = (m->ring_head + 1) % m->config.replay_buffer;
        m->ring_n--;
    }
    *s = (struct sent){seq, payload->len, malloc(payload->len)};
    if (!s->data) return;
    memcpy(s->data, payload->data, payload->len);
    m->ring_n++;
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
        if (!drop) {
            zmq_send(m->pub, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
            zmq_send(m->pub, seq, 8, ZMQ_SNDMORE | ZMQ_DONTWAIT);
            zmq_send(m->pub, out.data, out.len, ZMQ_DONTWAIT);
        }
        keep(m, m->next_seq++, &out);
    }
    kvr_buf_free(&out);
    m->events.len = 0;
    m->events_n = 0;
}

/* ---- replay ------------------------------------------------------------------------------------------ */

static void answer(struct mock_events *m, const void *id, size_t id_len, uint64_t seq, const char *data, size_t len)
{
    unsigned char s[8];
    kvr_store_be64(s, seq);
    zmq_send(m->router, id, id_len, ZMQ_SNDMORE);
    zmq_send(m->router, "", 0, ZMQ_SNDMORE);
    if (m->config.topic_in_replay) zmq_send(m->router, "", 0, ZMQ_SNDMORE);
    zmq_send(m->router, s, 8, ZMQ_SNDMORE);
    zmq_send(m->router, data, len, 0);
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
    if (n != 3 || lens[1] != 0 || lens[2] != 8) return;
    uint64_t start = kvr_load_be64((unsigned char *)frames[2]);
    for (size_t i = 0; i < m->ring_n; i++) {
        const struct sent *s = &m->ring[(m->ring_head + i) % m->config.replay_buffer];
        if (s->seq >= start) answer(m, frames[0], (size_t)lens[0], s->seq, s->data, s->len);
    }
    answer(m, frames[0], (size_t)lens[0], UINT64_MAX, "", 0);
}

/* The ZMQ descriptor is edge-triggered: everything that waits must be taken. */
static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct mock_events *m = poll->data;
    (void)status;
    (void)events;
    for (;;) {
        int ready = 0;
        size_t len = sizeof ready;
        if (zmq_getsockopt(m->router, ZMQ_EVENTS, &ready, &len) || !(ready & ZMQ_POLLIN)) return;
        serve_one(m);
    }
}

static void *bind_socket(void *zmq, int type, const char *endpoint)
{
    void *s = zmq_socket(zmq, type);
    int hwm = 100000, zero = 0;
    if (!s) return NULL;
    zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s, ZMQ_LINGER, &zero, sizeof zero);
    if (zmq_bind(s, endpoint) == 0) return s;
    zmq_close(s);
    return NULL;
}

struct mock_events *mock_events_create(const struct mock_events_config *config)
{
    struct mock_events *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->config = *config;
    m->ring = calloc(config->replay_buffer ? config->replay_buffer : 1, sizeof *m->ring);
    m->pub = bind_socket(config->zmq, ZMQ_PUB, config->events);
    if (config->replay) m->router = bind_socket(config->zmq, ZMQ_ROUTER, config->replay);
    if (!m->ring || !m->pub || (config->replay && !m->router)) {
        mock_events_destroy(m);
        return NULL;
    }
    if (m->router) {
        int fd;
        size_t len = sizeof fd;
        zmq_getsockopt(m->router, ZMQ_FD, &fd, &len);
        uv_poll_init(config->loop, &m->poll, fd);
        m->poll.data = m;
        m->handles = 1;
        uv_poll_start(&m->poll, UV_READABLE, on_poll);
    }
    return m;
}

static void release(struct mock_events *m)
{
    for (size_t i = 0; i < m->ring_n; i++) free(m->ring[(m->ring_head + i) % m->config.replay_buffer].data);
    free(m->ring);
    kvr_buf_free(&m->events);
    if (m->pub) zmq_close(m->pub);
    if (m->router) zmq_close(m->router);
    free(m);
}

static void on_poll_closed(uv_handle_t *h)
{
    release(h->data);
}

void mock_events_destroy(struct mock_events *m)
{
    if (!m) return;
    if (m->handles) uv_close((uv_handle_t *)&m->poll, on_poll_closed);
    else release(m);
}
