/* SPDX-License-Identifier: Apache-2.0 */
#include "app/indexer/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, RECORD_HEAD = 16, EVENT_HEAD = 32, SOURCE_BYTES = 40, BATCH = 256 };
enum record { PARTITION = 1, SOURCE, EVENTS, END };
static const char magic[8] = "KVRSNAP";

/* ---- writing ------------------------------------------------------------------------------------------------------- */

struct writer {
    FILE *f;
    struct kvr_buf piece; /* events that wait for their record */
    uint64_t records, blocks, bytes;
    bool failed;
};

static void put_raw(struct writer *w, const void *data, size_t len)
{
    if (len && fwrite(data, 1, len, w->f) != len) w->failed = true;
    w->bytes += len;
}

static void put_record(struct writer *w, uint32_t type, const void *data, size_t len)
{
    uint32_t head[2] = {type, 0};
    uint64_t size = len, sum = kvr_hash_bytes(data, len, w->records++);
    put_raw(w, head, sizeof head);
    put_raw(w, &size, sizeof size);
    put_raw(w, data, len);
    put_raw(w, &sum, sizeof sum);
}

static void flush_events(struct writer *w)
{
    if (w->piece.failed) w->failed = true;
    if (w->piece.len) put_record(w, EVENTS, w->piece.data, w->piece.len);
    w->piece.len = 0;
}

static int keep_event(void *ctx, const struct kvr_event *ev)
{
    struct writer *w = ctx;
    struct kvr_buf *b = &w->piece;
    uint8_t small[4] = {(uint8_t)ev->tier, (uint8_t)(ev->has_parent | ev->has_start_position << 1), 0, 0};
    uint64_t up = ev->has_parent ? ev->parent_hash : ev->start_position, n = ev->blocks_n;
    kvr_buf_add(b, &ev->worker.worker_id, 8);
    kvr_buf_add(b, &ev->worker.dp_rank, 4);
    kvr_buf_add(b, small, 4);
    kvr_buf_add(b, &up, 8);
    kvr_buf_add(b, &n, 8);
    for (size_t i = 0; i < ev->blocks_n; i++) kvr_buf_add(b, &ev->blocks[i].block_hash, 8);
    for (size_t i = 0; i < ev->blocks_n; i++) kvr_buf_add(b, &ev->blocks[i].tokens_hash, 8);
    w->blocks += ev->blocks_n;
    return b->failed ? -KVR_ENOMEM : 0;
}

static void source_text(unsigned char *b, struct kvr_worker w, const struct kvr_view_cursor *c)
{
    uint32_t known = c->known;
    memcpy(b, &w.worker_id, 8);
    memcpy(b + 8, &w.dp_rank, 4);
    memcpy(b + 12, &known, 4);
    memcpy(b + 16, &c->next, 8);
    memcpy(b + 24, &c->last_hash, 8);
    memcpy(b + 32, &c->last_ts, 8);
}

struct visit {
    struct writer *w;
    const struct partition *part;
    unsigned char source[SOURCE_BYTES];
    int rc;
};

/* On the ingest thread: one source's content, with its place. Kept in memory: the disk must not hold up the events. */
static void visit_source(void *arg, const struct kvr_view_status *st, const uint32_t *ranks, size_t n, struct kvr_view_cursor *adopt)
{
    struct visit *v = arg;
    (void)adopt;
    source_text(v->source, st->worker, &st->cursor);
    for (size_t i = 0; i < n && v->rc == 0; i++) {
        struct kvr_worker w = {st->worker.worker_id, ranks[i]};
        v->rc = kvr_index_dump(v->part->index, &w, keep_event, v->w);
    }
}

static void put_partition(struct writer *w, const struct partition *p)
{
    struct kvr_buf b = {0};
    uint16_t lens[2] = {(uint16_t)strlen(p->model), (uint16_t)strlen(p->group)};
    kvr_buf_add(&b, &p->block_size, 4);
    kvr_buf_add(&b, lens, sizeof lens);
    kvr_buf_str(&b, p->model);
    kvr_buf_str(&b, p->group);
    w->failed |= b.failed;
    put_record(w, PARTITION, b.data, b.len);
    kvr_buf_free(&b);
}

/* The sources of a partition, one by one. */
static void put_sources(struct indexer *x, struct writer *w, const struct partition *p)
{
    size_t n;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    for (size_t i = 0; i < n && !w->failed; i++) {
        bool here = false;
        pthread_mutex_lock(&x->lock);
        for (const struct instance *k = x->instances; k && !here; k = k->next) here = k->id == st[i].worker.worker_id && k->part == p;
        pthread_mutex_unlock(&x->lock);
        struct visit v = {.w = w, .part = p};
        if (here && kvr_ingest_visit_view(x->ingest, st[i].worker, visit_source, &v) == 0) {
            w->failed |= v.rc != 0;
            put_record(w, SOURCE, v.source, sizeof v.source);
            flush_events(w);
        }
    }
    free(st);
}

/* Content that was restored for workers which nobody has registered yet. */
static void put_seed(struct indexer *x, struct writer *w, const struct partition *p, const struct seed *s)
{
    unsigned char b[SOURCE_BYTES];
    size_t blocks = kvr_index_rank_blocks(p->index, s->worker);
    for (size_t i = 0; i < s->ranks_n; i++)
        blocks += kvr_index_rank_blocks(p->index, (struct kvr_worker){s->worker.worker_id, s->ranks[i]});
    if (!blocks || catalogue_has_listener(x, s->worker)) return;
    source_text(b, s->worker, &s->cursor);
    w->failed |= kvr_index_dump(p->index, &s->worker, keep_event, w) != 0;
    for (size_t i = 0; i < s->ranks_n && !w->failed; i++) {
        struct kvr_worker other = {s->worker.worker_id, s->ranks[i]};
        w->failed |= kvr_index_dump(p->index, &other, keep_event, w) != 0;
    }
    put_record(w, SOURCE, b, sizeof b);
    flush_events(w);
}

static void put_seeds(struct indexer *x, struct writer *w, const struct partition *p)
{
    size_t n;
    struct seed **list = catalogue_seeds(x, &n);
    for (size_t i = 0; i < n; i++) {
        if (!w->failed) put_seed(x, w, p, list[i]);
        free(list[i]);
    }
    free(list);
}

static int sync_directory(const char *path)
{
    char dir[4096];
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    int fd = open(slash ? dir : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? -1 : fsync(fd);
    if (fd >= 0) close(fd);
    return rc;
}

static void write_all(struct indexer *x, struct writer *w)
{
    uint32_t head[2] = {VERSION, 0};
    size_t n;
    struct partition **list = catalogue_list(x, &n);
    put_raw(w, magic, sizeof magic);
    put_raw(w, head, sizeof head);
    for (size_t i = 0; i < n; i++) {
        put_partition(w, list[i]);
        put_sources(x, w, list[i]);
        put_seeds(x, w, list[i]);
        partition_unref(list[i]);
    }
    free(list);
    put_record(w, END, &w->blocks, sizeof w->blocks);
}

int snapshot_write(struct indexer *x, const char *path, uint64_t *bytes, uint64_t *blocks, char *err, size_t cap)
{
    char tmp[4200];
    struct writer w = {0};
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    w.f = fopen(tmp, "we");
    if (!w.f) {
        snprintf(err, cap, "cannot write '%s': %s", tmp, strerror(errno));
        return -1;
    }
    errno = 0;
    write_all(x, &w);
    bool ok = !w.failed && fflush(w.f) == 0 && fsync(fileno(w.f)) == 0;
    int why = errno;
    ok &= fclose(w.f) == 0;
    kvr_buf_free(&w.piece);
    if (ok && rename(tmp, path) == 0 && sync_directory(path) == 0) {
        *bytes = w.bytes;
        *blocks = w.blocks;
        return 0;
    }
    snprintf(err, cap, "cannot write '%s': %s", tmp, why ? strerror(why) : errno ? strerror(errno) : "out of memory");
    (void)unlink(tmp);
    return -1;
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

struct file {
    const unsigned char *at, *end;
    uint64_t records;
};

/* The next record, its checksum verified. Returns: its type, 0 at the end of the file, -1 when it is torn. */
static int next_record(struct file *f, const unsigned char **data, uint64_t *len)
{
    uint32_t type, zero;
    uint64_t sum;
    if (f->at == f->end) return 0;
    if (f->end - f->at < RECORD_HEAD + 8) return -1;
    memcpy(&type, f->at, 4);
    memcpy(&zero, f->at + 4, 4);
    memcpy(len, f->at + 8, 8);
    if (*len > (uint64_t)(f->end - f->at) - RECORD_HEAD - 8 || type < PARTITION || type > END || zero) return -1;
    *data = f->at + RECORD_HEAD;
    memcpy(&sum, *data + *len, 8);
    if (sum != kvr_hash_bytes(*data, *len, f->records++)) return -1;
    f->at = *data + *len + 8;
    return (int)type;
}

/* Is an events record well formed? Adds its blocks to *blocks. */
static bool events_ok(const unsigned char *p, uint64_t len, uint64_t *blocks)
{
    while (len) {
        uint64_t n;
        if (len < EVENT_HEAD || p[12] >= KVR_TIER_COUNT || p[13] > 2) return false;
        memcpy(&n, p + 24, 8);
        if (n == 0 || n > (len - EVENT_HEAD) / 16) return false;
        p += EVENT_HEAD + n * 16;
        len -= EVENT_HEAD + n * 16;
        *blocks += n;
    }
    return true;
}

static bool partition_ok(const unsigned char *p, uint64_t len)
{
    uint16_t lens[2];
    uint32_t bs;
    if (len < 8) return false;
    memcpy(&bs, p, 4);
    memcpy(lens, p + 4, 4);
    return bs >= 1 && bs <= 65536 && lens[0] <= NAME_MAX_LEN && lens[1] <= NAME_MAX_LEN && len == 8u + lens[0] + lens[1];
}

/* Checks a whole file. Returns: NULL, or what is wrong with it. */
static const char *check_file(struct file f, uint64_t *blocks)
{
    const unsigned char *p;
    uint64_t len, said = 0;
    int type, last = 0;
    *blocks = 0;
    while ((type = next_record(&f, &p, &len)) > 0) {
        bool ok = last != END;
        if (type == PARTITION) ok = ok && partition_ok(p, len);
        else if (type == SOURCE) ok = ok && last != 0 && len == SOURCE_BYTES;
        else if (type == EVENTS) ok = ok && (last == SOURCE || last == EVENTS) && events_ok(p, len, blocks);
        else if (len == 8) memcpy(&said, p, 8);
        else ok = false;
        if (!ok) return "a record is not as it should be";
        last = type;
    }
    if (type < 0) return "it is torn or damaged: a checksum or a length is wrong";
    if (last != END) return "it is torn: the end is missing";
    return said == *blocks ? NULL : "it has another number of blocks than it says";
}

struct loader {
    struct indexer *x;
    struct partition *part;
    bool skip, locked; /* of the current source */
    struct kvr_worker worker;
    struct kvr_view_cursor cursor;
    uint32_t ranks[RANKS_OF_INSTANCE_MAX]; /* further ones of the same stream */
    size_t ranks_n;
    struct kvr_event events[BATCH];
    size_t n;
    struct kvr_block *blocks; /* of the batch */
    size_t blocks_n, blocks_cap;
};

static void apply_batch(struct loader *l)
{
    size_t at = 0;
    for (size_t i = 0; i < l->n; i++) {
        l->events[i].blocks = l->blocks + at;
        at += l->events[i].blocks_n;
        if (l->events[i].tier != KVR_TIER_DEVICE) atomic_store(&l->part->tiers, true);
    }
    kvr_index_apply_batch(l->part->index, l->events, l->n, NULL); /* what a byte cap has no room for is counted there */
    l->n = l->blocks_n = 0;
}

/* The current source's content is in place: from here on a registration goes on from it. */
static void end_source(struct loader *l)
{
    if (!l->locked) return;
    if (l->n) apply_batch(l);
    if (!l->skip) catalogue_seed(l->x, l->worker, &l->cursor, l->ranks, l->ranks_n);
    pthread_mutex_unlock(&l->x->change_lock);
    l->locked = false;
}

static void begin_source(struct loader *l, const unsigned char *p)
{
    uint32_t known;
    memcpy(&l->worker.worker_id, p, 8);
    memcpy(&l->worker.dp_rank, p + 8, 4);
    memcpy(&known, p + 12, 4);
    memcpy(&l->cursor.next, p + 16, 8);
    memcpy(&l->cursor.last_hash, p + 24, 8);
    memcpy(&l->cursor.last_ts, p + 32, 8);
    l->cursor.known = known == 1;
    l->ranks_n = 0;
    pthread_mutex_lock(&l->x->change_lock); /* nobody registers it meanwhile */
    l->locked = true;
    l->skip = !l->part || catalogue_has_listener(l->x, l->worker); /* registered already: the engine knows better */
}

/* Events go rank by rank. */
static void note_rank(struct loader *l, uint32_t rank)
{
    if (rank == l->worker.dp_rank || l->ranks_n == RANKS_OF_INSTANCE_MAX) return;
    for (size_t i = l->ranks_n; i-- > 0;)
        if (l->ranks[i] == rank) return;
    l->ranks[l->ranks_n++] = rank;
}

static bool read_events(struct loader *l, const unsigned char *p, uint64_t len)
{
    for (uint64_t n; len && !l->skip; p += EVENT_HEAD + n * 16, len -= EVENT_HEAD + n * 16) {
        struct kvr_event ev = {.kind = KVR_EVENT_STORED};
        uint64_t up;
        memcpy(&ev.worker.worker_id, p, 8);
        memcpy(&ev.worker.dp_rank, p + 8, 4);
        note_rank(l, ev.worker.dp_rank);
        ev.tier = (enum kvr_tier)p[12];
        ev.has_parent = p[13] & 1;
        ev.has_start_position = p[13] & 2;
        memcpy(&up, p + 16, 8);
        memcpy(&n, p + 24, 8);
        ev.parent_hash = ev.has_parent ? up : 0;
        ev.start_position = ev.has_start_position ? (uint32_t)up : 0;
        ev.blocks_n = n;
        if (l->n == BATCH) apply_batch(l);
        if (l->blocks_n + n > l->blocks_cap) {
            size_t cap = (l->blocks_n + n) * 2;
            struct kvr_block *b = realloc(l->blocks, cap * sizeof *b);
            if (!b) return false;
            l->blocks = b;
            l->blocks_cap = cap;
        }
        for (uint64_t i = 0; i < n; i++) {
            memcpy(&l->blocks[l->blocks_n + i].block_hash, p + EVENT_HEAD + i * 8, 8);
            memcpy(&l->blocks[l->blocks_n + i].tokens_hash, p + EVENT_HEAD + n * 8 + i * 8, 8);
        }
        l->blocks_n += n;
        l->events[l->n++] = ev;
    }
    return true;
}

static void begin_partition(struct loader *l, const unsigned char *p)
{
    char model[NAME_MAX_LEN + 1], group[NAME_MAX_LEN + 1];
    uint16_t lens[2];
    uint32_t bs;
    memcpy(&bs, p, 4);
    memcpy(lens, p + 4, 4);
    snprintf(model, sizeof model, "%.*s", lens[0], (const char *)p + 8);
    snprintf(group, sizeof group, "%.*s", lens[1], (const char *)p + 8 + lens[0]);
    if (l->part) partition_unref(l->part);
    l->part = catalogue_get(l->x, model, group, bs);
}

static bool load(struct indexer *x, struct file f)
{
    struct loader *l = calloc(1, sizeof *l);
    const unsigned char *p;
    uint64_t len;
    int type;
    bool ok = l != NULL;
    if (!l) return false;
    l->x = x;
    while (ok && (type = next_record(&f, &p, &len)) > 0 && !atomic_load(&x->stopping)) {
        if (type != EVENTS) end_source(l);
        if (type == PARTITION) begin_partition(l, p);
        if (type == SOURCE) begin_source(l, p);
        if (type == EVENTS) ok = read_events(l, p, len);
    }
    end_source(l);
    if (l->part) partition_unref(l->part);
    free(l->blocks);
    free(l);
    return ok;
}

static const char *read_mapped(struct indexer *x, const unsigned char *map, size_t size, uint64_t *blocks)
{
    uint32_t version;
    if (size < sizeof magic + 8 || memcmp(map, magic, sizeof magic) != 0) return "it is not a snapshot of kvroute";
    memcpy(&version, map + sizeof magic, 4);
    if (version != VERSION) return "it is of another version; this program reads version 1";
    struct file f = {map + sizeof magic + 8, map + size, 0};
    const char *wrong = check_file(f, blocks);
    return wrong ? wrong : load(x, f) ? NULL : "out of memory";
}

int snapshot_read(struct indexer *x, const char *path, uint64_t *blocks, char *err, size_t cap)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return 1;
    if (fd < 0 || fstat(fd, &st)) {
        snprintf(err, cap, "cannot read '%s': %s", path, strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    const char *wrong = "it is not a snapshot of kvroute";
    unsigned char *map = st.st_size > 0 ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (map != MAP_FAILED) {
        wrong = read_mapped(x, map, (size_t)st.st_size, blocks);
        munmap(map, (size_t)st.st_size);
    }
    if (wrong) snprintf(err, cap, "'%s' is not used: %s", path, wrong);
    return wrong ? -1 : 0;
}
