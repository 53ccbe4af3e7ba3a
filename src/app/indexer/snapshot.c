/* SPDX-License-Identifier: Apache-2.0 */
/* Writes and reads the indexer's snapshot; app/indexer/snapshot.h has the rules, wire/view_file.h the format. */
#include "app/indexer/snapshot.h"

#include "store/data_dir.h"
#include "wire/view_file.h"

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static struct kvr_saved_source source_of(struct kvr_worker w, const struct kvr_view_cursor *c)
{
    return (struct kvr_saved_source){.worker = w,
                                     .known = c->known,
                                     .whole = c->known && !c->partial,
                                     .next = c->next,
                                     .last_hash = c->last_hash,
                                     .last_ts = c->last_ts};
}

struct visit {
    struct kvr_saved_writer *w;
    struct kvr_ingest *ingest;
    const struct partition *part;
    struct kvr_saved_source source;
    struct kvr_buf memory;
    int rc;
};

/* On the ingest thread: one source's content, with its place. Kept in memory: the disk must not hold up the events. */
static void visit_source(void *arg, const struct kvr_view_status *st, const uint32_t *ranks, size_t n, struct kvr_view_cursor *)
{
    struct visit *v = arg;
    v->source = source_of(st->worker, &st->cursor);
    kvr_ingest_memory(v->ingest, &v->memory);
    for (size_t i = 0; i < n && v->rc == 0; i++) {
        struct kvr_worker w = {st->worker.worker_id, ranks[i]};
        v->rc = kvr_index_dump(v->part->index, &w, kvr_saved_keep_event, v->w);
    }
}

static void put_partition(struct kvr_saved_writer *w, const struct partition *p)
{
    struct kvr_saved_partition sp = {.block_size = p->block_size};
    snprintf(sp.model, sizeof sp.model, "%s", p->model);
    snprintf(sp.group, sizeof sp.group, "%s", p->group);
    kvr_saved_put_partition(w, &sp);
}

/* The sources of a partition, one by one. */
static void put_sources(struct indexer *x, struct kvr_saved_writer *w, const struct partition *p)
{
    size_t n;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    for (size_t i = 0; i < n && !w->failed; i++) {
        struct visit v = {.w = w, .ingest = x->ingest, .part = p};
        if (catalogue_is_in(x, st[i].worker.worker_id, p) && kvr_ingest_visit_view(x->ingest, st[i].worker, visit_source, &v) == 0) {
            w->failed |= v.rc != 0;
            kvr_saved_put_source(w, &v.source);
            kvr_saved_put_memory(w, &v.memory);
            kvr_saved_flush(w);
        }
        kvr_buf_free(&v.memory);
    }
    free(st);
}

/* Content that was restored for workers which nobody has registered yet. */
static void put_seed(struct indexer *x, struct kvr_saved_writer *w, const struct partition *p, const struct seed *s)
{
    struct kvr_saved_source source = source_of(s->worker, &s->cursor);
    size_t blocks = kvr_index_rank_blocks(p->index, s->worker);
    for (size_t i = 0; i < s->ranks_n; i++)
        blocks += kvr_index_rank_blocks(p->index, (struct kvr_worker){s->worker.worker_id, s->ranks[i]});
    if (!blocks || catalogue_has_listener(x, s->worker)) return;
    w->failed |= kvr_index_dump(p->index, &s->worker, kvr_saved_keep_event, w) != 0;
    for (size_t i = 0; i < s->ranks_n && !w->failed; i++) {
        struct kvr_worker other = {s->worker.worker_id, s->ranks[i]};
        w->failed |= kvr_index_dump(p->index, &other, kvr_saved_keep_event, w) != 0;
    }
    kvr_saved_put_source(w, &source);
    kvr_saved_put_memory(w, &(struct kvr_buf){.data = s->memory, .len = s->memory_len});
    kvr_saved_flush(w);
}

static void put_seeds(struct indexer *x, struct kvr_saved_writer *w, const struct partition *p)
{
    size_t n;
    struct seed **list = catalogue_seeds(x, &n);
    for (size_t i = 0; i < n; i++) {
        if (!w->failed) put_seed(x, w, p, list[i]);
        free(list[i]);
    }
    free(list);
}

static void write_all(struct indexer *x, struct kvr_saved_writer *w)
{
    size_t n;
    struct partition **list = catalogue_list(x, &n);
    kvr_saved_begin(w, KVR_SAVED_SNAPSHOT);
    for (size_t i = 0; i < n; i++) {
        put_partition(w, list[i]);
        put_sources(x, w, list[i]);
        put_seeds(x, w, list[i]);
        partition_unref(list[i]);
    }
    free(list);
    kvr_saved_end(w);
}

int snapshot_write(struct indexer *x, const char *path, uint64_t *bytes, uint64_t *blocks, char *err, size_t cap)
{
    struct kvr_new_file f;
    struct kvr_saved_writer w = {.put = kvr_new_file_put, .ctx = &f};
    if (kvr_new_file_open(&f, path, err, cap)) return -1;
    write_all(x, &w);
    kvr_saved_writer_free(&w);
    *bytes = w.bytes;
    *blocks = w.blocks;
    return kvr_new_file_close(&f, !w.failed, err, cap);
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

struct loader {
    struct indexer *x;
    struct partition *part;
    bool skip, locked; /* of the current source */
    struct seed seed;  /* of it */
    uint32_t ranks[RANKS_OF_INSTANCE_MAX];
};

/* The current source's content is in place: from here on a registration goes on from it. */
static void end_source(struct loader *l)
{
    if (!l->locked) return;
    if (!l->skip) catalogue_seed(l->x, &l->seed);
    kvr_unlock(&l->x->change_lock);
    l->locked = false;
}

static bool begin_source(void *ctx, const struct kvr_saved_source *s)
{
    struct loader *l = ctx;
    end_source(l);
    l->seed = (struct seed){.worker = s->worker, .ranks = l->ranks};
    l->seed.cursor = (struct kvr_view_cursor){s->known, !s->whole, s->next, s->last_hash, s->last_ts};
    kvr_lock(&l->x->change_lock); /* nobody registers it meanwhile */
    l->locked = true;
    l->skip = !l->part || catalogue_has_listener(l->x, s->worker); /* registered already: the engine knows better */
    return !atomic_load(&l->x->stopping);
}

/* Borrowed until the source ends; the file is in memory. */
static bool take_memory(void *ctx, const char *data, size_t len)
{
    struct loader *l = ctx;
    l->seed.memory = (char *)(uintptr_t)data;
    l->seed.memory_len = len;
    return true;
}

/* Events go rank by rank. */
static void note_rank(struct loader *l, uint32_t rank)
{
    if (rank == l->seed.worker.dp_rank || l->seed.ranks_n == RANKS_OF_INSTANCE_MAX) return;
    for (size_t i = l->seed.ranks_n; i-- > 0;)
        if (l->ranks[i] == rank) return;
    l->ranks[l->seed.ranks_n++] = rank;
}

static bool take_events(void *ctx, const struct kvr_event *events, size_t n)
{
    struct loader *l = ctx;
    if (l->skip) return true;
    for (size_t i = 0; i < n; i++) {
        note_rank(l, events[i].worker.dp_rank);
        if (events[i].tier != KVR_TIER_DEVICE) atomic_store(&l->part->tiers, true);
    }
    kvr_index_apply_batch(l->part->index, events, n, NULL); /* what a byte cap has no room for is counted there */
    return !atomic_load(&l->x->stopping);
}

static bool begin_partition(void *ctx, const struct kvr_saved_partition *p)
{
    struct loader *l = ctx;
    end_source(l);
    if (l->part) partition_unref(l->part);
    l->part = catalogue_get(l->x, p->model, p->group, p->block_size);
    return true;
}

static bool load(struct indexer *x, const struct kvr_saved_file *f)
{
    struct loader *l = calloc(1, sizeof *l);
    if (!l) return false;
    struct kvr_saved_reader r = {
        .partition = begin_partition, .source = begin_source, .memory = take_memory, .events = take_events, .ctx = l};
    l->x = x;
    bool ok = kvr_saved_read(f, &r) || atomic_load(&x->stopping);
    end_source(l);
    if (l->part) partition_unref(l->part);
    free(l);
    return ok;
}

int snapshot_read(struct indexer *x, const char *path, uint64_t *blocks, char *err, size_t cap)
{
    struct kvr_mapped m;
    struct kvr_saved_file f;
    int rc = kvr_map_file(path, &m, err, cap);
    if (rc) return rc;
    const char *wrong = kvr_saved_check(m.data, m.len, &f, blocks);
    if (!wrong && !load(x, &f)) wrong = "out of memory";
    kvr_unmap_file(&m);
    if (wrong) snprintf(err, cap, "'%s' is not used: %s", path, wrong);
    return wrong ? -1 : 0;
}
