/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GET /dump: {"<model>:<group>": {"block_size": n, "events": [RouterEvent, ...]}, ...}, written by a thread of its own
 * (net/http/produce.h). The memory of a dump is what is on its way and one (worker, rank) pair's blocks.
 * With ?views=1 each partition also has "views": where each rank stands in its engine's stream, sampled before the
 * events, so that another replica can go on from there; it is only said of ranks whose content was taken at that very place.
 *
 * A colon or a percent sign in a model's name is written as %3A or %25, so that the first colon is the separator.
 */
#include "app/indexer/stage.h"

#include <string.h>

#include "net/http/produce.h"
#include "recover/event_json.h"

struct dump {
    struct request rq;
    struct kvr_producer *out;
    bool views;
    struct kvr_buf b;
    uint64_t events;
};

static int on_event(void *ctx, const struct kvr_event *ev)
{
    struct dump *d = ctx;
    kvr__event_json(&d->b, ev, d->events++);
    return d->b.len < KVR_PRODUCE_PIECE ? 0 : kvr_produce(d->out, &d->b);
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

/* bare: what it is without what its stream remembers, which a dump has not. */
static void put_view(struct kvr_buf *b, const struct kvr_view_status *s, enum kvr_view_knowledge bare)
{
    kvr_json_printf(
        b, "{'worker_id':%ju,'dp_rank':%u,'trusted':%i,'view':%s,'next_sequence':%ju,'last_hash':%ju,'last_ts':", s->worker.worker_id,
        s->worker.dp_rank, s->trusted && bare != KVR_VIEW_UNKNOWN, kvr_view_knowledge_name(bare), s->cursor.next, s->cursor.last_hash);
    kvr_buf_printf(b, "%.17g", s->cursor.last_ts);
    kvr_json_close(b, '}');
}

/* A source's content at one place of its stream, copied on the ingest thread. */
struct still {
    struct kvr_ingest *ingest;
    struct partition *part;
    enum kvr_view_knowledge bare;
    struct stage stage;
    struct kvr_view_status status;
    bool failed;
};

static int keep_event(void *ctx, const struct kvr_event *ev)
{
    struct still *s = ctx;
    return stage_add(&s->stage, s->part, ev);
}

static void take_still(void *arg, const struct kvr_view_status *st, const uint32_t *ranks, size_t n, struct kvr_view_cursor *)
{
    struct still *s = arg;
    s->status = *st;
    s->bare = kvr_ingest_bare(s->ingest);
    if (st->trusted && s->bare == KVR_VIEW_UNKNOWN) return; /* it would claim too much */
    for (size_t i = 0; i < n && !s->failed; i++) {
        struct kvr_worker w = {st->worker.worker_id, ranks[i]};
        s->failed = kvr_index_dump(s->part->index, &w, keep_event, s) != 0;
    }
}

/* The events of one source together with its place. */
static bool dump_source(struct dump *d, struct partition *p, struct kvr_worker w, struct kvr_buf *views)
{
    struct still s = {.ingest = d->rq.loop->indexer->ingest, .part = p};
    int rc = kvr_ingest_visit_view(s.ingest, w, take_still, &s);
    bool ok = rc == -KVR_ENOTFOUND || (rc == 0 && !s.failed);
    for (size_t g = 0; ok && g < s.stage.n; g++) {
        const struct kvr_event *ev = kvr__event_list_events(&s.stage.list[g].content);
        for (size_t i = 0; ok && i < s.stage.list[g].content.n; i++) ok = on_event(d, &ev[i]) == 0;
    }
    if (rc == 0 && ok && s.status.cursor.known) put_view(views, &s.status, s.bare);
    stage_free(&s.stage);
    return ok;
}

static bool dump_with_views(struct dump *d, struct partition *p, struct kvr_buf *views)
{
    struct indexer *x = d->rq.loop->indexer;
    size_t n;
    bool ok = true;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    for (size_t i = 0; ok && i < n; i++)
        if (catalogue_is_in(x, st[i].worker.worker_id, p)) ok = dump_source(d, p, st[i].worker, views);
    free(st);
    return ok;
}

static bool dump_partition(struct dump *d, struct partition *p)
{
    struct kvr_buf *b = &d->b, views = {0};
    put_key(b, p);
    kvr_json_printf(b, "{'block_size':%u,'events':[", p->block_size);
    bool ok = d->views ? dump_with_views(d, p, &views) : kvr_index_dump(p->index, NULL, on_event, d) == 0;
    kvr_json_close(b, ']');
    if (d->views) {
        kvr_json_printf(b, "'views':[");
        kvr_buf_add(b, views.data, views.len);
        kvr_json_close(b, ']');
    }
    kvr_json_close(b, '}');
    ok = ok && !views.failed && !b->failed;
    kvr_buf_free(&views);
    return ok;
}

static bool write_dump(struct kvr_producer *out, void *arg)
{
    struct dump *d = arg;
    size_t n;
    struct partition **list = catalogue_list(d->rq.loop->indexer, &n);
    bool ok = list != NULL;
    d->out = out;
    kvr_json_open(&d->b, '{');
    for (size_t i = 0; i < n; i++) {
        ok = ok && dump_partition(d, list[i]);
        partition_unref(list[i]);
    }
    free(list);
    kvr_json_close(&d->b, '}');
    return ok && kvr_produce(out, &d->b) == 0;
}

static void on_over(void *arg, bool sent, bool gone)
{
    struct dump *d = arg;
    if (!gone) telemetry_record(&d->rq, sent ? 200 : 500);
    atomic_fetch_sub(&d->rq.loop->dumps, 1);
    kvr_buf_free(&d->b);
    free(d);
}

void dump_start(struct request *rq)
{
    struct dump *d = calloc(1, sizeof *d);
    struct kvr_text q = kvr_http_conn_request(rq->conn)->query;
    bool too_many = atomic_load(&rq->loop->dumps) >= DUMPS_MAX, ready = atomic_load(&rq->loop->indexer->ready);
    struct kvr_produce_config c = {.loop = &rq->loop->uv, .conn = rq->conn, .fn = write_dump, .on_over = on_over, .arg = d};
    c.headers = ready ? "Content-Type: application/json\r\n" : "Content-Type: application/json\r\nx-kvroute-recovering: 1\r\n";
    if (d) {
        d->rq = *rq;
        d->views = q.ptr && memmem(q.ptr, q.len, "views=1", 7);
    }
    if (!too_many && d) atomic_fetch_add(&rq->loop->dumps, 1);
    if (!too_many && d && kvr_produce_start(&c) == 0) return;
    if (!too_many && d) atomic_fetch_sub(&rq->loop->dumps, 1);
    free(d);
    answer_error(rq, too_many ? 503 : 500, too_many ? "too many dumps are being sent" : "out of memory");
}
