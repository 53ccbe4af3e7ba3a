/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /dump: {"<model>:<group>": {"block_size": n, "events": [RouterEvent, ...]}, ...}, streamed.
 *
 * A thread of its own walks the indexes and writes JSON into pieces; it waits while PIECES_MAX of them are on their way
 * or the client is slow, so the memory of a dump is those pieces and one (worker, rank) pair's blocks. The data loop sends the pieces.
 * With ?views=1 each partition also has "views": where each rank stands in its engine's stream, sampled before the
 * events, so that another replica can go on from there; it is only said of ranks whose content was taken at that very place.
 *
 * A colon or a percent sign in a model's name is written as %3A or %25, so that the first colon is the separator.
 */
#include "app/indexer/stage.h"

#include <string.h>

#include "recover/event_json.h"

enum { PIECE = 256 << 10, PIECES_MAX = 8 };

struct piece {
    struct piece *next;
    struct kvr_buf b;
};

struct dump {
    struct request rq;
    uv_async_t async;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct piece *head, **tail;
    size_t pieces;
    bool full;     /* the client's queue is above its mark */
    bool finished; /* the thread has written all it will */
    bool failed;
    bool gone; /* the client, or the program */
    bool views;
    struct kvr_buf b; /* the thread's */
    uint64_t events;
};

/* ---- the thread ------------------------------------------------------------------------------------------------- */

/* Hands over what has been written. Returns: false when it is of no use any more. */
static bool flush(struct dump *d)
{
    struct piece *p = calloc(1, sizeof *p);
    pthread_mutex_lock(&d->lock);
    while (d->pieces >= PIECES_MAX && !d->gone) pthread_cond_wait(&d->cond, &d->lock);
    bool go = p && !d->gone && !d->b.failed;
    if (go) {
        bool comma = d->b.comma;
        p->b = d->b;
        d->b = (struct kvr_buf){.comma = comma};
        *d->tail = p;
        d->tail = &p->next;
        d->pieces++;
    } else {
        free(p);
    }
    pthread_mutex_unlock(&d->lock);
    uv_async_send(&d->async);
    return go;
}

static int on_event(void *ctx, const struct kvr_event *ev)
{
    struct dump *d = ctx;
    kvr__event_json(&d->b, ev, d->events++);
    if (d->b.len < PIECE) return 0;
    return flush(d) ? 0 : 1;
}

static void put_key(struct kvr_buf *b, const struct partition *p)
{
    char key[4 * (NAME_MAX_LEN + 1)];
    size_t n = 0;
    for (const char *s = p->model; *s; s++) n += (size_t)snprintf(key + n, 4, *s == ':' ? "%%3A" : *s == '%' ? "%%25" : "%c", *s);
    snprintf(key + n, sizeof key - n, ":%s", p->group);
    kvr_json_str(b, key, strlen(key));
    kvr_buf_str(b, ":");
    b->comma = false;
}

static void put_view(struct kvr_buf *b, const struct kvr_view_status *s)
{
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "worker_id", s->worker.worker_id);
    kvr_json_put_u64(b, "dp_rank", s->worker.dp_rank);
    kvr_json_key(b, "trusted");
    kvr_json_bool(b, s->trusted);
    kvr_json_put_u64(b, "next_sequence", s->cursor.next);
    kvr_json_put_u64(b, "last_hash", s->cursor.last_hash);
    kvr_json_key(b, "last_ts");
    kvr_buf_printf(b, "%.17g", s->cursor.last_ts);
    b->comma = true;
    kvr_json_close(b, '}');
}

/* A source's content at one place of its stream, copied on the ingest thread. */
struct still {
    struct partition *part;
    struct stage stage;
    struct kvr_view_status status;
    bool failed;
};

static int keep_event(void *ctx, const struct kvr_event *ev)
{
    struct still *s = ctx;
    return stage_add(&s->stage, s->part, ev);
}

static void take_still(void *arg, const struct kvr_view_status *st, const uint32_t *ranks, size_t n, struct kvr_view_cursor *adopt)
{
    struct still *s = arg;
    (void)adopt;
    s->status = *st;
    for (size_t i = 0; i < n && !s->failed; i++) {
        struct kvr_worker w = {st->worker.worker_id, ranks[i]};
        s->failed = kvr_index_dump(s->part->index, &w, keep_event, s) != 0;
    }
}

/* The events of one source together with its place. */
static bool dump_source(struct dump *d, struct partition *p, struct kvr_worker w, struct kvr_buf *views)
{
    struct still s = {.part = p};
    int rc = kvr_ingest_visit_view(d->rq.loop->indexer->ingest, w, take_still, &s);
    bool ok = rc == -KVR_ENOTFOUND || (rc == 0 && !s.failed);
    for (size_t g = 0; ok && g < s.stage.n; g++) {
        const struct kvr_event *ev = kvr__event_list_events(&s.stage.list[g].content);
        for (size_t i = 0; ok && i < s.stage.list[g].content.n; i++) ok = on_event(d, &ev[i]) == 0;
    }
    if (rc == 0 && ok && s.status.cursor.known) put_view(views, &s.status);
    stage_free(&s.stage);
    return ok;
}

static bool dump_with_views(struct dump *d, struct partition *p, struct kvr_buf *views)
{
    struct indexer *x = d->rq.loop->indexer;
    size_t n;
    bool ok = true;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    for (size_t i = 0; ok && i < n; i++) {
        pthread_mutex_lock(&x->lock);
        bool here = false;
        for (const struct instance *k = x->instances; k && !here; k = k->next) here = k->id == st[i].worker.worker_id && k->part == p;
        pthread_mutex_unlock(&x->lock);
        if (here) ok = dump_source(d, p, st[i].worker, views);
    }
    free(st);
    return ok;
}

static bool dump_partition(struct dump *d, struct partition *p)
{
    struct kvr_buf *b = &d->b, views = {0};
    put_key(b, p);
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "block_size", p->block_size);
    kvr_json_key(b, "events");
    kvr_json_open(b, '[');
    bool ok = d->views ? dump_with_views(d, p, &views) : kvr_index_dump(p->index, NULL, on_event, d) == 0;
    kvr_json_close(b, ']');
    if (d->views) {
        kvr_json_key(b, "views");
        kvr_buf_str(b, "[");
        kvr_buf_add(b, views.data ? views.data : "", views.len);
        kvr_buf_str(b, "]");
        b->comma = true;
    }
    kvr_json_close(b, '}');
    ok = ok && !views.failed && !b->failed;
    kvr_buf_free(&views);
    return ok;
}

static void *dump_main(void *arg)
{
    struct dump *d = arg;
    size_t n;
    struct partition **list = catalogue_list(d->rq.loop->indexer, &n);
    bool ok = list != NULL;
    kvr_json_open(&d->b, '{');
    for (size_t i = 0; i < n; i++) {
        ok = ok && dump_partition(d, list[i]);
        partition_unref(list[i]);
    }
    free(list);
    kvr_json_close(&d->b, '}');
    ok = ok && flush(d);
    pthread_mutex_lock(&d->lock);
    d->finished = true;
    d->failed = !ok;
    pthread_mutex_unlock(&d->lock);
    uv_async_send(&d->async);
    return NULL;
}

/* ---- the data loop ---------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct dump *d = h->data;
    while (d->head) {
        struct piece *p = d->head;
        d->head = p->next;
        kvr_buf_free(&p->b);
        free(p);
    }
    kvr_buf_free(&d->b);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->cond);
    atomic_fetch_sub(&d->rq.loop->dumps, 1);
    free(d);
}

/* Sends what is there, as far as the client takes it. */
static void on_async(uv_async_t *a)
{
    struct dump *d = a->data;
    for (;;) {
        pthread_mutex_lock(&d->lock);
        struct piece *p = d->full || d->gone ? NULL : d->head;
        bool over = d->finished && (d->gone || !d->head), gone = d->gone, failed = d->failed;
        if (p) {
            d->head = p->next;
            if (!d->head) d->tail = &d->head;
            d->pieces--;
            pthread_cond_signal(&d->cond);
        }
        pthread_mutex_unlock(&d->lock);
        if (p) {
            size_t waiting = kvr_http_write(d->rq.conn, p->b.data, p->b.len);
            kvr_buf_free(&p->b);
            free(p);
            pthread_mutex_lock(&d->lock);
            d->full = waiting > KVR_HTTP_HIGH_WATER;
            pthread_mutex_unlock(&d->lock);
            continue;
        }
        if (!over || uv_is_closing((uv_handle_t *)a)) return;
        pthread_join(d->thread, NULL);
        if (!gone) {
            kvr_http_conn_set_user(d->rq.conn, NULL);
            telemetry_record(&d->rq, failed ? 500 : 200);
            if (failed) kvr_http_abort(d->rq.conn);
            else kvr_http_end(d->rq.conn);
        }
        uv_close((uv_handle_t *)a, on_closed);
        return;
    }
}

void dump_start(struct request *rq)
{
    static const char head[] = "Content-Type: application/json\r\n";
    struct dump *d = calloc(1, sizeof *d);
    struct kvr_text q = kvr_http_conn_request(rq->conn)->query;
    bool too_many = atomic_load(&rq->loop->dumps) >= DUMPS_MAX;
    if (!d || too_many) {
        free(d);
        routes_error(rq, too_many ? 503 : 500, too_many ? "too many dumps are being sent" : "out of memory");
        return;
    }
    d->rq = *rq;
    d->tail = &d->head;
    d->views = q.ptr && memmem(q.ptr, q.len, "views=1", 7);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->cond, NULL);
    uv_async_init(&rq->loop->uv, &d->async, on_async);
    d->async.data = d;
    atomic_fetch_add(&rq->loop->dumps, 1);
    if (pthread_create(&d->thread, NULL, dump_main, d)) {
        uv_close((uv_handle_t *)&d->async, on_closed);
        routes_error(rq, 500, "no thread for the dump");
        return;
    }
    kvr_http_conn_set_user(rq->conn, d);
    bool ready = atomic_load(&rq->loop->indexer->ready);
    struct kvr_buf h = {0};
    kvr_buf_printf(&h, "%s%s", head, ready ? "" : "x-kvroute-recovering: 1\r\n");
    kvr_http_start(rq->conn, 200, h.data ? h.data : "", h.len, -1);
    kvr_buf_free(&h);
}

void dump_on_gone(struct kvr_http_conn *c, void *ctx)
{
    struct dump *d = kvr_http_conn_user(c);
    (void)ctx;
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->gone = true;
    pthread_cond_signal(&d->cond);
    pthread_mutex_unlock(&d->lock);
    uv_async_send(&d->async);
}

void dump_on_drained(struct kvr_http_conn *c, void *ctx)
{
    struct dump *d = kvr_http_conn_user(c);
    (void)ctx;
    if (!d) return;
    pthread_mutex_lock(&d->lock);
    d->full = false;
    pthread_mutex_unlock(&d->lock);
    uv_async_send(&d->async);
}
