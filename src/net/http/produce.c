/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: `lock` guards the pieces and the flags; the thread only makes pieces, the loop only sends them. */
#include "net/http/produce.h"

#include <pthread.h>
#include <string.h>

#include "base/lock.h"

struct piece {
    struct piece *next;
    struct kvr_buf b;
};

enum { LOOK_MS = 1000, STALL_S = 30 };

struct kvr_producer {
    struct kvr_produce_config config;
    uv_async_t async;
    uv_timer_t timer;
    int handles;
    uint64_t full_since_ms; /* loop time; 0: the client takes what there is */
    pthread_t thread;
    struct kvr_lock lock;
    pthread_cond_t cond;
    struct piece *head, **tail;
    size_t pieces;
    bool full;     /* the client's queue is above its mark */
    bool finished; /* the thread has written all it will */
    bool failed;
    bool gone; /* the client, or the program */
};

int kvr_produce(struct kvr_producer *d, struct kvr_buf *b)
{
    if (b->len == 0 && !b->failed) return 0;
    struct piece *p = calloc(1, sizeof *p);
    kvr_lock(&d->lock);
    while (d->pieces >= KVR_PRODUCE_PIECES && !d->gone) pthread_cond_wait(&d->cond, &d->lock.mutex);
    bool go = p && !d->gone && !b->failed;
    if (go) {
        bool comma = b->comma;
        p->b = *b;
        *b = (struct kvr_buf){.comma = comma};
        *d->tail = p;
        d->tail = &p->next;
        d->pieces++;
    } else {
        free(p);
    }
    kvr_unlock(&d->lock);
    uv_async_send(&d->async);
    return !go;
}

static void *thread_main(void *arg)
{
    struct kvr_producer *d = arg;
    bool ok = d->config.fn(d, d->config.arg);
    kvr_lock(&d->lock);
    d->finished = true;
    d->failed = !ok;
    kvr_unlock(&d->lock);
    uv_async_send(&d->async);
    return NULL;
}

static void on_closed(uv_handle_t *h)
{
    struct kvr_producer *d = h->data;
    if (--d->handles) return;
    while (d->head) {
        struct piece *p = d->head;
        d->head = p->next;
        kvr_buf_free(&p->b);
        free(p);
    }
    kvr_lock_destroy(&d->lock);
    pthread_cond_destroy(&d->cond);
    free(d);
}

static void end(struct kvr_producer *d, bool gone, bool failed)
{
    pthread_join(d->thread, NULL);
    if (!gone) {
        kvr_http_conn_set_user(d->config.conn, NULL);
        d->config.on_over(d->config.arg, !failed, false);
        if (failed) kvr_http_abort(d->config.conn);
        else kvr_http_end(d->config.conn);
    } else {
        d->config.on_over(d->config.arg, false, true);
    }
    uv_close((uv_handle_t *)&d->async, on_closed);
    uv_close((uv_handle_t *)&d->timer, on_closed);
}

/* Nobody may hold an answer up for ever. */
static void on_timer(uv_timer_t *t)
{
    struct kvr_producer *d = t->data;
    kvr_lock(&d->lock);
    bool stalled = d->full && !d->gone && (double)(uv_now(d->config.loop) - d->full_since_ms) > 1000 * d->config.stall_s;
    if (stalled) {
        d->gone = true;
        pthread_cond_signal(&d->cond);
    }
    kvr_unlock(&d->lock);
    if (!stalled) return;
    kvr_http_conn_set_user(d->config.conn, NULL);
    kvr_http_abort(d->config.conn);
    uv_async_send(&d->async);
}

/* Sends what is there, as far as the client takes it. */
static void on_async(uv_async_t *a)
{
    struct kvr_producer *d = a->data;
    for (;;) {
        kvr_lock(&d->lock);
        struct piece *p = d->full || d->gone ? NULL : d->head;
        bool over = d->finished && (d->gone || !d->head), gone = d->gone, failed = d->failed;
        if (p) {
            d->head = p->next;
            if (!d->head) d->tail = &d->head;
            d->pieces--;
            pthread_cond_signal(&d->cond);
        }
        kvr_unlock(&d->lock);
        if (!p) {
            if (over && !uv_is_closing((uv_handle_t *)a)) end(d, gone, failed);
            return;
        }
        size_t waiting = kvr_http_write(d->config.conn, p->b.data, p->b.len);
        kvr_buf_free(&p->b);
        free(p);
        kvr_lock(&d->lock);
        d->full = waiting > KVR_HTTP_HIGH_WATER;
        d->full_since_ms = uv_now(d->config.loop);
        kvr_unlock(&d->lock);
    }
}

int kvr_produce_start(const struct kvr_produce_config *config)
{
    struct kvr_producer *d = calloc(1, sizeof *d);
    if (!d) return -KVR_ENOMEM;
    d->config = *config;
    if (d->config.stall_s <= 0) d->config.stall_s = STALL_S;
    d->tail = &d->head;
    kvr_lock_init(&d->lock, KVR_LOCK_PRODUCE);
    pthread_cond_init(&d->cond, NULL);
    uv_async_init(config->loop, &d->async, on_async);
    uv_timer_init(config->loop, &d->timer);
    d->async.data = d->timer.data = d;
    d->handles = 2;
    uv_timer_start(&d->timer, on_timer, LOOK_MS, LOOK_MS);
    if (pthread_create(&d->thread, NULL, thread_main, d)) {
        uv_close((uv_handle_t *)&d->async, on_closed);
        uv_close((uv_handle_t *)&d->timer, on_closed);
        return -KVR_ENOMEM;
    }
    kvr_http_conn_set_user(config->conn, d);
    kvr_http_start(config->conn, 200, config->headers, strlen(config->headers), -1);
    return 0;
}

void kvr_produce_on_gone(struct kvr_http_conn *conn, void *)
{
    struct kvr_producer *d = kvr_http_conn_user(conn);
    if (!d) return;
    kvr_lock(&d->lock);
    d->gone = true;
    pthread_cond_signal(&d->cond);
    kvr_unlock(&d->lock);
    uv_async_send(&d->async);
}

void kvr_produce_on_drained(struct kvr_http_conn *conn, void *)
{
    struct kvr_producer *d = kvr_http_conn_user(conn);
    if (!d) return;
    kvr_lock(&d->lock);
    d->full = false;
    kvr_unlock(&d->lock);
    uv_async_send(&d->async);
}
