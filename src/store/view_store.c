/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See the header. `lock` guards the list, the counters and what the ingest thread writes of a rank; nothing blocks under it. A rank whose
 * files are being written (`scribe_has`, `keeper_has`) is not freed meanwhile: who unfollows it waits. The scribe writes journals and
 * nothing else does, so a journal has one writer; the keeper writes snapshots and removes journals of generations that are over. The
 * ingest thread waits for neither: it takes the lock for the time of a copy.
 *
 * A generation begins in a visit, between two batches. Journals of one rank follow each other without a hole, and a snapshot names the
 * generation that began with it. So if the snapshot of a new generation cannot be written, the old one and all journals since go on being
 * right: up to JOURNALS_MAX, or to a batch that is in none. What is behind such a hole is of no use, and is removed.
 */
#include "store/view_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/lock.h"
#include "base/log.h"
#include "wire/prom_page.h"
#include "wire/view_file.h"

enum {
    FLUSH_MS = 20,
    LOOK_MS = 1000,  /* the keeper looks what is due at least that often */
    SOON_MS = 50,    /* the same, when something is due; and a view that has no place in its stream yet is tried again */
    RETRY_MS = 1000, /* between two snapshots of a rank that are due out of turn */
    PENDING_MAX = 8 << 20,
    JOURNALS_MAX = 64 << 20,
    TAIL_MAX = 256 << 20, /* of batches that are read at start */
    OPEN_MAX = 256,       /* journals that stay open */
    DIRECTORIES_MAX = 4096,
    DIR_ROOM = 320 /* of a path, for what is below the directory */
};

/* Bytes of a generation's journal that wait for the scribe. */
struct piece {
    struct piece *next;
    uint64_t generation;
    struct kvr_buf bytes;
};

struct kept {
    struct kept *next;
    struct kvr_view_store *store;
    struct kvr_view_of of;
    char dir[KVR_PATH_MAX];
    /* under the lock */
    uint64_t generation;                 /* whose journal is being written; 0: none yet */
    struct kvr_saved_writer journal;     /* into `pending` */
    struct kvr_buf pending;              /* of this generation */
    struct piece *pieces, **pieces_tail; /* of those before, in order */
    size_t pending_bytes;
    uint64_t journal_bytes; /* since the last snapshot that was written */
    bool journalling;       /* batches go to the journal */
    bool changed;           /* since the last snapshot */
    bool due;               /* as soon as may be: there is no journal that goes on */
    bool cut;               /* there was none: behind this one there is a hole, until a snapshot is written */
    uint64_t cut_at;        /* this one's generation */
    bool scribe_has, keeper_has;
    uint64_t not_before_ms;     /* may it be written out of turn */
    uint64_t written_ms, round; /* the last round of the keeper that looked at it */
    /* the scribe's */
    int fd;
    uint64_t fd_generation;
};

struct stats {
#define FIELD(name, help) uint64_t name;
    KVR_VIEW_STORE_COUNTERS(FIELD)
#undef FIELD
};

struct kvr_view_store {
    struct kvr_ingest *ingest;
    char dir[KVR_PATH_MAX], who[64];
    uint64_t interval_ms;
    pthread_t scribe, keeper;
    struct kvr_lock lock;
    pthread_cond_t to_scribe, to_keeper, done;
    struct kept *list;
    uint64_t round;
    bool stop;   /* the keeper is to end */
    bool closed; /* nothing is written any more: the directory may be another process's */
    int lock_fd;
    bool written;        /* it has: so may the scribe */
    bool something;      /* pending for the scribe */
    _Atomic size_t open; /* journals */
    struct stats stats;
    char last_error[512];
};

/* Said when it is new; the same trouble is not repeated every interval. */
static void complain(struct kvr_view_store *st, const char *text)
{
    kvr_lock(&st->lock);
    st->stats.snapshot_failures++;
    bool fresh = strcmp(text, st->last_error) != 0;
    snprintf(st->last_error, sizeof st->last_error, "%s", text);
    kvr_unlock(&st->lock);
    if (fresh) kvr_log_warning("%s: --data-dir: %s; going on without", st->who, text);
}

static void journal_path(const struct kept *k, uint64_t generation, char out[KVR_PATH_MAX])
{
    snprintf(out, KVR_PATH_MAX, "%.*s/journal-%llu.kvr", KVR_PATH_MAX - 64, k->dir, (unsigned long long)generation);
}

static void view_path(const struct kept *k, char out[KVR_PATH_MAX])
{
    snprintf(out, KVR_PATH_MAX, "%.*s/view.kvr", KVR_PATH_MAX - 64, k->dir);
}

/* ---- on the ingest thread -------------------------------------------------------------------------------------------------- */

static bool put_pending(void *ctx, const void *data, size_t len)
{
    struct kvr_buf *b = ctx;
    kvr_buf_add(b, data, len);
    return !b->failed;
}

static void wake_scribe_locked(struct kvr_view_store *st)
{
    if (!st->something) pthread_cond_signal(&st->to_scribe);
    st->something = true;
}

/* The journal ends here, and what is behind is only in the next snapshot. */
static void give_up_journal_locked(struct kept *k)
{
    if (!k->cut) k->cut_at = k->generation;
    k->cut = true;
    k->journalling = false;
    k->due = k->changed = true;
    pthread_cond_signal(&k->store->to_keeper);
}

static void on_batch(void *kept, uint64_t seq, const char *data, size_t len)
{
    struct kept *k = kept;
    struct kvr_view_store *st = k->store;
    kvr_lock(&st->lock);
    k->changed = true;
    if (st->closed) {
        k->journalling = false;
    } else if (!k->journalling) {
        if (!k->generation) give_up_journal_locked(k);
    } else if (k->pending_bytes + k->pending.len + len > PENDING_MAX) {
        st->stats.journal_overflows++;
        give_up_journal_locked(k);
    } else {
        uint64_t before = k->journal.bytes;
        kvr_saved_put_batch(&k->journal, seq, data, len);
        k->journal_bytes += k->journal.bytes - before;
        st->stats.journal_batches++;
        st->stats.journal_bytes += k->journal.bytes - before;
        wake_scribe_locked(st);
        if (k->journal.failed) give_up_journal_locked(k);
        if (k->journal_bytes > JOURNALS_MAX) pthread_cond_signal(&st->to_keeper);
    }
    kvr_unlock(&st->lock);
}

static void on_break(void *kept)
{
    struct kept *k = kept;
    kvr_lock(&k->store->lock);
    if (k->journalling) {
        kvr_saved_put_break(&k->journal);
        wake_scribe_locked(k->store);
    }
    give_up_journal_locked(k);
    kvr_unlock(&k->store->lock);
}

/* The journal of the next generation begins, behind the content that is being copied. */
static void begin_generation_locked(struct kept *k, const struct kvr_saved_source *source)
{
    struct piece *p = k->pending.len && !k->pending.failed ? calloc(1, sizeof *p) : NULL;
    if (p) {
        *p = (struct piece){.generation = k->generation, .bytes = k->pending};
        *k->pieces_tail = p;
        k->pieces_tail = &p->next;
        k->pending_bytes += p->bytes.len;
    } else {
        kvr_buf_free(&k->pending);
    }
    k->generation = source->generation;
    k->pending = (struct kvr_buf){0};
    k->journal = (struct kvr_saved_writer){.put = put_pending, .ctx = &k->pending};
    kvr_saved_begin(&k->journal, KVR_SAVED_JOURNAL);
    kvr_saved_put_source(&k->journal, source);
    k->journalling = !k->journal.failed;
    k->due = k->changed = k->cut = false;
    wake_scribe_locked(k->store);
}

struct visit {
    struct kept *k;
    struct kvr_view_copy copy;
    bool known, partial, taken;
    bool cut; /* as of the rank, before */
    uint64_t cut_at;
};

static void visit_view(void *arg, const struct kvr_view_status *s, const uint32_t *ranks, size_t n, struct kvr_view_cursor *)
{
    struct visit *v = arg;
    v->known = s->cursor.known;
    v->partial = s->cursor.partial;
    if (!v->known || v->partial) return;
    v->taken = kvr_view_copy_take(&v->copy, &v->k->of, s, ranks, n);
    if (!v->taken) return;
    kvr_lock(&v->k->store->lock);
    v->copy.source.generation = v->k->generation + 1;
    v->cut = v->k->cut;
    v->cut_at = v->k->cut_at;
    begin_generation_locked(v->k, &v->copy.source);
    kvr_unlock(&v->k->store->lock);
}

/* ---- the keeper ------------------------------------------------------------------------------------------------------------ */

/* As opendir; the thread sanitizer sees open, and takes the descriptor for a new one. */
static DIR *open_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (fd >= 0 && !d) close(fd);
    return d;
}

/* The number of a journal's name; 0: it is none. */
static uint64_t generation_of(const char *name)
{
    uint64_t n;
    size_t len = strlen(name);
    if (len < 13 || strncmp(name, "journal-", 8) != 0 || strcmp(name + len - 4, ".kvr") != 0) return 0;
    return kvr_parse_u64(name + 8, len - 12, UINT64_MAX - 1, &n) ? n : 0;
}

/* Removes the journals of generations before `first` and after `last`. Returns: the newest generation there was. */
static uint64_t sweep_journals(const struct kept *k, uint64_t first, uint64_t last)
{
    char path[KVR_PATH_MAX];
    uint64_t newest = 0;
    DIR *d = open_directory(k->dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        uint64_t g = generation_of(e->d_name);
        newest = KVR_MAX(newest, g);
        if (!g || (g >= first && g <= last)) continue;
        journal_path(k, g, path);
        (void)unlink(path);
    }
    if (d) closedir(d);
    return newest;
}

static bool write_view(struct visit *v, char *err, size_t cap)
{
    char path[KVR_PATH_MAX];
    struct kvr_new_file f;
    view_path(v->k, path);
    if (kvr_new_file_open(&f, path, err, cap)) return false;
    bool ok = kvr_view_copy_write(&v->copy, &v->k->of, kvr_new_file_put, &f);
    return kvr_new_file_close(&f, ok, err, cap) == 0;
}

/* What is in the journals of the new generation by now is not counted: a few batches. */
static void note_written(struct kept *k)
{
    struct kvr_view_store *st = k->store;
    kvr_lock(&st->lock);
    k->journal_bytes = 0;
    st->stats.snapshots++;
    st->last_error[0] = 0;
    kvr_unlock(&st->lock);
}

/* The old snapshot and the journals since stay of use, but those behind a hole. */
static void note_unwritten(struct visit *v)
{
    struct kept *k = v->k;
    kvr_lock(&k->store->lock);
    if (v->cut) k->cut_at = v->cut_at;
    k->cut |= v->cut;
    if (k->cut || k->journal_bytes > JOURNALS_MAX) give_up_journal_locked(k);
    uint64_t last = k->cut ? k->cut_at : UINT64_MAX;
    kvr_unlock(&k->store->lock);
    sweep_journals(k, 0, last);
}

/* Returns: whether the view has a place in its stream. */
static bool take_snapshot(struct kept *k)
{
    char err[KVR_PATH_ERROR_MAX] = "out of memory";
    struct visit v = {.k = k};
    int rc = kvr_ingest_visit_view(k->store->ingest, k->of.worker, visit_view, &v);
    if (v.taken && write_view(&v, err, sizeof err)) {
        note_written(k);
        sweep_journals(k, v.copy.source.generation, UINT64_MAX);
    } else if (rc == 0 && v.known && !v.partial) {
        complain(k->store, err);
        if (v.taken) note_unwritten(&v);
    }
    kvr_view_copy_free(&v.copy);
    return v.known;
}

static bool is_due(const struct kept *k, uint64_t now, bool last)
{
    if (last) return k->changed;
    if (k->due || k->journal_bytes > JOURNALS_MAX) return now >= k->not_before_ms;
    return k->changed && now - k->written_ms >= k->store->interval_ms;
}

/* Writes what is due, one after the other; each once. */
static void write_due_locked(struct kvr_view_store *st, bool last)
{
    st->round++;
    for (struct kept *k = st->list; k;) {
        bool due = k->round != st->round && !k->keeper_has && is_due(k, kvr_now_ms(), last);
        k->round = st->round;
        if (!due) {
            k = k->next;
            continue;
        }
        k->keeper_has = true;
        kvr_unlock(&st->lock);
        bool known = take_snapshot(k);
        kvr_lock(&st->lock);
        k->keeper_has = false;
        k->written_ms = kvr_now_ms(); /* or tried in vain */
        k->not_before_ms = k->written_ms + (known ? RETRY_MS : SOON_MS);
        pthread_cond_broadcast(&st->done);
        k = st->list; /* it may have changed */
    }
}

/* Something is to be written soon, or everything is as it should be. */
static uint64_t pause_locked(const struct kvr_view_store *st)
{
    uint64_t ms = KVR_MIN(st->interval_ms, (uint64_t)LOOK_MS);
    for (const struct kept *k = st->list; k; k = k->next)
        if (k->due) return KVR_MIN(ms, (uint64_t)SOON_MS);
    return ms;
}

static void *keeper_main(void *arg)
{
    struct kvr_view_store *st = arg;
    kvr_lock(&st->lock);
    while (!st->stop) {
        write_due_locked(st, false);
        if (!st->stop) kvr_cond_wait_ms(&st->to_keeper, &st->lock, pause_locked(st));
    }
    write_due_locked(st, true);
    st->written = true;
    pthread_cond_signal(&st->to_scribe);
    kvr_unlock(&st->lock);
    return NULL;
}

/* ---- the scribe ------------------------------------------------------------------------------------------------------------ */

static void close_journal(struct kept *k)
{
    if (k->fd < 0) return;
    close(k->fd);
    k->fd = -1;
    atomic_fetch_sub(&k->store->open, 1);
}

static bool open_journal(struct kept *k, uint64_t generation)
{
    char path[KVR_PATH_MAX];
    if (k->fd >= 0 && k->fd_generation == generation) return true;
    close_journal(k);
    journal_path(k, generation, path);
    k->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    k->fd_generation = generation;
    if (k->fd >= 0) atomic_fetch_add(&k->store->open, 1);
    return k->fd >= 0;
}

static bool append(struct kept *k, const struct piece *p)
{
    if (!open_journal(k, p->generation)) return false;
    for (size_t at = 0; at < p->bytes.len;) {
        ssize_t n = write(k->fd, p->bytes.data + at, p->bytes.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

/* Everything of a rank that waits, in order; the list is the caller's. */
static struct piece *take_pieces_locked(struct kept *k)
{
    if (k->pending.len && !k->pending.failed) {
        struct piece *p = calloc(1, sizeof *p);
        if (p) {
            *p = (struct piece){.generation = k->generation, .bytes = k->pending};
            *k->pieces_tail = p;
            k->pending = (struct kvr_buf){0};
        }
    }
    struct piece *list = k->pieces;
    k->pieces = NULL;
    k->pieces_tail = &k->pieces;
    k->pending_bytes = 0;
    return list;
}

/* Writes and frees them. Returns: 0, or the errno of the first that could not be written; those behind it are left out. */
static int write_pieces(struct kept *k, struct piece *list)
{
    int failed = 0;
    while (list) {
        struct piece *p = list;
        list = p->next;
        if (!failed && !append(k, p)) failed = errno ? errno : EIO;
        kvr_buf_free(&p->bytes);
        free(p);
    }
    if (atomic_load(&k->store->open) > OPEN_MAX) close_journal(k);
    return failed;
}

/* The journal has a hole now: no more is written to it. */
static void journal_failed(struct kept *k, int why)
{
    char text[KVR_PATH_MAX + 128];
    snprintf(text, sizeof text, "cannot write a journal in '%s': %s", k->dir, strerror(why));
    complain(k->store, text);
    kvr_lock(&k->store->lock);
    if (k->journalling) give_up_journal_locked(k);
    kvr_unlock(&k->store->lock);
}

static void write_journals_locked(struct kvr_view_store *st)
{
    st->something = false;
    for (struct kept *k = st->list; k;) {
        struct piece *list = take_pieces_locked(k);
        struct kept *next = k->next;
        if (list) {
            k->scribe_has = true;
            kvr_unlock(&st->lock);
            int failed = write_pieces(k, list);
            if (failed) journal_failed(k, failed);
            kvr_lock(&st->lock);
            next = k->next;
            k->scribe_has = false;
            pthread_cond_broadcast(&st->done);
        }
        k = next;
    }
}

static void *scribe_main(void *arg)
{
    struct kvr_view_store *st = arg;
    kvr_lock(&st->lock);
    while (!st->written) {
        if (!st->something) pthread_cond_wait(&st->to_scribe, &st->lock.mutex);
        else kvr_cond_wait_ms(&st->to_scribe, &st->lock, FLUSH_MS); /* so that one write takes what comes together */
        write_journals_locked(st);
    }
    write_journals_locked(st);
    kvr_unlock(&st->lock);
    return NULL;
}

/* ---- restoring ------------------------------------------------------------------------------------------------------------- */

struct restore {
    struct kept *k;
    struct kvr_ingest_source *src;
    struct kvr_view_reading view;
    uint64_t batches, tail_next;
    bool broken;
    struct kvr_buf tail;
};

static const char *read_view(struct restore *r, const struct kvr_mapped *m)
{
    const char *wrong = kvr_view_read(&r->view, &r->k->of, m->data, m->len);
    if (wrong) return wrong;
    if (!r->view.source.whole) return "it has no view";
    return kvr_view_load(&r->view) ? NULL : "out of memory";
}

/* A batch that goes on from what is there; one that does not ends the journal. */
static bool take_batch(void *ctx, uint64_t seq, const char *data, size_t len)
{
    struct restore *r = ctx;
    uint64_t n = len;
    if (seq != r->tail_next || r->tail.len + len > TAIL_MAX) return false;
    kvr_buf_add(&r->tail, &seq, 8);
    kvr_buf_add(&r->tail, &n, 8);
    kvr_buf_add(&r->tail, data, len);
    r->tail_next++;
    r->batches++;
    return !r->tail.failed;
}

static void take_break(void *ctx)
{
    ((struct restore *)ctx)->broken = true;
}

static void discard(struct kept *k, const char *path, const char *why)
{
    kvr_log_warning("%s: --data-dir: '%s' is not used: %s", k->store->who, path, why);
    kvr_set_aside(path, k->store->who);
    kvr_lock(&k->store->lock);
    k->store->stats.discarded_files++;
    kvr_unlock(&k->store->lock);
}

static void read_journals(struct restore *r)
{
    char path[KVR_PATH_MAX], err[KVR_PATH_ERROR_MAX];
    const struct kvr_saved_reader reader = {.batch = take_batch, .broken = take_break, .ctx = r};
    struct kvr_mapped m;
    r->tail_next = r->view.source.next;
    for (uint64_t g = r->view.source.generation; !r->broken && !r->tail.failed; g++) {
        journal_path(r->k, g, path);
        int rc = kvr_map_file(path, &m, err, sizeof err);
        const char *wrong = rc < 0 ? err : rc == 0 ? kvr_saved_read_journal(m.data, m.len, &reader) : NULL;
        if (rc == 0) kvr_unmap_file(&m);
        if (wrong) discard(r->k, path, wrong);
        if (rc || wrong) break;
    }
}

/* Returns: whether there is something to go on from. */
static bool read_files(struct restore *r)
{
    char path[KVR_PATH_MAX], err[KVR_PATH_ERROR_MAX];
    struct kvr_mapped m;
    view_path(r->k, path);
    int rc = kvr_map_file(path, &m, err, sizeof err);
    if (rc > 0) return false;
    const char *wrong = rc < 0 ? err : read_view(r, &m);
    if (rc == 0) kvr_unmap_file(&m);
    if (wrong) {
        discard(r->k, path, wrong);
        return false;
    }
    read_journals(r);
    if (r->broken || r->tail.failed) kvr_index_drop_rank(r->k->of.index, r->k->of.worker); /* what the engine has since is not known */
    return !r->broken && !r->tail.failed;
}

static void note_restored(struct restore *r)
{
    struct kept *k = r->k;
    struct stats *s = &k->store->stats;
    kvr_lock(&k->store->lock);
    s->restored_views++;
    s->restored_blocks += r->view.blocks;
    s->restored_batches += r->batches;
    kvr_unlock(&k->store->lock);
    kvr_log("%s: worker %llu rank %u: %llu blocks and %llu batches from '%s', up to batch %llu, to be confirmed by the engine",
            k->store->who, (unsigned long long)k->of.worker.worker_id, k->of.worker.dp_rank, (unsigned long long)r->view.blocks,
            (unsigned long long)r->batches, k->dir, (unsigned long long)(r->tail_next - 1));
}

static void restore(struct restore *r)
{
    struct kvr_saved_source *s = &r->view.source;
    if (read_files(r)) {
        r->src->from = kvr_view_place(s);
        r->src->memory = r->view.memory.data;
        r->src->memory_len = r->view.memory.len;
        r->src->tail = r->tail.data;
        r->src->tail_len = r->tail.len;
        r->tail = (struct kvr_buf){0};
        note_restored(r);
    } else {
        s->generation = UINT64_MAX; /* no journal is of use */
    }
    /* Journals that are there are not written on: the last may be torn. */
    uint64_t newest = sweep_journals(r->k, s->generation, UINT64_MAX);
    r->k->generation = r->k->cut_at = s->generation < UINT64_MAX ? KVR_MAX(newest, s->generation) : newest;
    r->k->changed = r->k->due = r->k->generation != 0;
    kvr_buf_free(&r->tail);
}

/* ---- from outside ------------------------------------------------------------------------------------------------------------ */

static const struct kvr_ingest_keeper keeper = {on_batch, on_break};

static struct kept *kept_new(struct kvr_view_store *st, const struct kvr_view_of *of)
{
    struct kept *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    k->store = st;
    k->of = *of;
    snprintf(k->dir, sizeof k->dir, "%.*s/worker-%llu-rank-%u", KVR_PATH_MAX - DIR_ROOM, st->dir, (unsigned long long)of->worker.worker_id,
             of->worker.dp_rank);
    k->pieces_tail = &k->pieces;
    k->cut = true;
    k->fd = -1;
    return k;
}

static void make_directory(struct kept *k)
{
    char text[KVR_PATH_MAX + 128];
    if (mkdir(k->dir, 0700) == 0 || errno == EEXIST) return;
    snprintf(text, sizeof text, "cannot make '%s': %s", k->dir, strerror(errno));
    complain(k->store, text);
}

/* Taken off the list, what is pending written, freed. No more is told of it by the ingest. */
static void forget(struct kept *k)
{
    struct kvr_view_store *st = k->store;
    kvr_lock(&st->lock);
    struct kept **at = &st->list;
    while (*at && *at != k) at = &(*at)->next;
    if (*at) *at = k->next;
    while (k->scribe_has || k->keeper_has) pthread_cond_wait(&st->done, &st->lock.mutex);
    struct piece *list = take_pieces_locked(k);
    kvr_unlock(&st->lock);
    int failed = write_pieces(k, list);
    if (failed) journal_failed(k, failed);
    close_journal(k);
    kvr_buf_free(&k->pending);
    free(k);
}

static void list(struct kept *k)
{
    struct kvr_view_store *st = k->store;
    kvr_lock(&st->lock);
    k->next = st->list;
    st->list = k;
    pthread_cond_signal(&st->to_keeper);
    kvr_unlock(&st->lock);
}

int kvr_view_store_follow(struct kvr_view_store *st, const struct kvr_view_of *of, struct kvr_ingest_source *src, bool *tiers)
{
    kvr_lock(&st->lock);
    bool closed = st->closed;
    kvr_unlock(&st->lock);
    struct kept *k = closed ? NULL : kept_new(st, of);
    if (!k) return kvr_ingest_add(st->ingest, src);
    struct restore r = {.k = k, .src = src};
    make_directory(k);
    restore(&r);
    *tiers = r.view.tiers;
    src->keeper = &keeper;
    src->kept = k;
    int rc = kvr_ingest_add(st->ingest, src);
    kvr_view_reading_free(&r.view);
    if (rc) {
        free(src->tail);
        free(k);
        return rc;
    }
    list(k);
    return 0;
}

static void begin_to_keep(void *arg, const struct kvr_view_status *, const uint32_t *, size_t, struct kvr_view_cursor *)
{
    struct kept *k = arg;
    kvr_ingest_keep(k->of.ingest, &keeper, k);
}

int kvr_view_store_keep(struct kvr_view_store *st, const struct kvr_view_of *of)
{
    struct kept *k = kept_new(st, of);
    if (!k) return -KVR_ENOMEM;
    make_directory(k);
    k->generation = k->cut_at = sweep_journals(k, 0, UINT64_MAX);
    k->changed = k->due = true;
    int rc = kvr_ingest_visit_view(st->ingest, of->worker, begin_to_keep, k);
    if (rc) free(k);
    else list(k);
    return rc;
}

void kvr_view_store_unfollow(struct kvr_view_store *st, uint64_t worker_id)
{
    for (;;) {
        kvr_lock(&st->lock);
        struct kept *k = st->list;
        while (k && k->of.worker.worker_id != worker_id) k = k->next;
        kvr_unlock(&st->lock);
        if (!k) return;
        forget(k);
    }
}

void kvr_view_store_metrics(struct kvr_view_store *st, struct kvr_prom_page *b)
{
    struct stats all = {0};
    if (st) {
        kvr_lock(&st->lock);
        all = st->stats;
        kvr_unlock(&st->lock);
    }
#define PUT(name, help) kvr_prom_one_if(b, st != NULL, "kvroute_data_dir_", #name "_total", "counter", help, all.name);
    KVR_VIEW_STORE_COUNTERS(PUT)
#undef PUT
}

/* ---- directories of ranks that nobody follows --------------------------------------------------------------------------------- */

struct stranger {
    char name[64];
    time_t changed;
};

static int newest_first(const void *a, const void *b)
{
    const struct stranger *x = a, *y = b;
    return (x->changed < y->changed) - (x->changed > y->changed);
}

static void remove_directory(const struct kvr_view_store *st, const char *name)
{
    char dir[KVR_PATH_MAX], path[KVR_PATH_MAX + 264];
    snprintf(dir, sizeof dir, "%.*s/%s", KVR_PATH_MAX - DIR_ROOM, st->dir, name);
    DIR *d = open_directory(dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        (void)unlink(path);
    }
    if (d) closedir(d);
    (void)rmdir(dir);
}

/* The oldest go when there are too many. */
static void sweep_directories(const struct kvr_view_store *st)
{
    char path[KVR_PATH_MAX];
    struct stranger *list = NULL;
    size_t n = 0, cap = 0;
    struct stat s;
    DIR *d = open_directory(st->dir);
    for (const struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, "worker-", 7) != 0 || strlen(e->d_name) >= sizeof list->name) continue;
        snprintf(path, sizeof path, "%.*s/%.63s", KVR_PATH_MAX - DIR_ROOM, st->dir, e->d_name);
        if (lstat(path, &s) || !S_ISDIR(s.st_mode)) continue;
        struct stranger *more = n < cap ? list : realloc(list, (cap = cap * 2 + 64) * sizeof *list);
        if (!more) break;
        list = more;
        snprintf(list[n].name, sizeof list[n].name, "%.63s", e->d_name);
        list[n++].changed = s.st_mtime;
    }
    if (d) closedir(d);
    if (n > DIRECTORIES_MAX) qsort(list, n, sizeof *list, newest_first);
    for (size_t i = DIRECTORIES_MAX; i < n; i++) remove_directory(st, list[i].name);
    free(list);
}

/* ---- life ---------------------------------------------------------------------------------------------------------------------- */

static void store_free(struct kvr_view_store *st)
{
    kvr_lock_destroy(&st->lock);
    pthread_cond_destroy(&st->to_scribe);
    pthread_cond_destroy(&st->to_keeper);
    pthread_cond_destroy(&st->done);
    if (st->lock_fd >= 0) close(st->lock_fd);
    free(st);
}

static struct kvr_view_store *store_new(const struct kvr_view_store_config *c)
{
    struct kvr_view_store *st = calloc(1, sizeof *st);
    if (!st) return NULL;
    st->ingest = c->ingest;
    st->interval_ms = (uint64_t)(c->interval_s * 1000) + 1;
    snprintf(st->dir, sizeof st->dir, "%s", c->dir);
    snprintf(st->who, sizeof st->who, "%s", c->who);
    kvr_lock_init(&st->lock, KVR_LOCK_VIEW_STORE);
    kvr_cond_init(&st->to_scribe);
    kvr_cond_init(&st->to_keeper);
    pthread_cond_init(&st->done, NULL);
    return st;
}

int kvr_view_store_open(const struct kvr_view_store_config *c, struct kvr_view_store **out, char *err, size_t cap)
{
    int lock_fd = kvr_data_dir_open(c->dir, c->patience_ms, err, cap);
    if (lock_fd < 0) return lock_fd;
    struct kvr_view_store *st = store_new(c);
    if (st) st->lock_fd = lock_fd;
    else close(lock_fd);
    if (st) sweep_directories(st);
    bool keeps = st && pthread_create(&st->keeper, NULL, keeper_main, st) == 0;
    bool scribes = keeps && pthread_create(&st->scribe, NULL, scribe_main, st) == 0;
    if (scribes) {
        *out = st;
        return 0;
    }
    snprintf(err, cap, "out of memory");
    if (keeps) {
        kvr_lock(&st->lock);
        st->stop = true;
        pthread_cond_signal(&st->to_keeper);
        kvr_unlock(&st->lock);
        pthread_join(st->keeper, NULL);
    }
    if (st) store_free(st);
    return -1;
}

void kvr_view_store_stop(struct kvr_view_store *st)
{
    if (!st || st->closed) return;
    kvr_lock(&st->lock);
    st->stop = true;
    pthread_cond_signal(&st->to_keeper);
    kvr_unlock(&st->lock);
    pthread_join(st->keeper, NULL);
    pthread_join(st->scribe, NULL);
    kvr_lock(&st->lock);
    st->closed = true;
    for (struct kept *k = st->list; k; k = k->next) {
        close_journal(k);
        k->journalling = false;
        kvr_buf_free(&k->pending);
    }
    kvr_unlock(&st->lock);
    close(st->lock_fd);
    st->lock_fd = -1;
}

void kvr_view_store_destroy(struct kvr_view_store *st)
{
    if (!st) return;
    while (st->list) forget(st->list);
    store_free(st);
}
