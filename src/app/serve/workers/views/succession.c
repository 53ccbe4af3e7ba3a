/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process has learnt of its engines' caches, and which workers are drained, goes to the process that takes its place, so that its
 * first decision is right where no engine can say again what it has published.
 *
 *     the new one, main loop     its ingest thread                        the old one, main loop      its ingest thread
 *     a view is not whole  ----> a visit: nothing is applied meanwhile
 *                                asks                          ---------> finds the worker     ----> a visit: copies content and place
 *                                reads, checks all of it       <--------- writes it to memory
 *                                puts it in place, and adopts it
 *
 * WHY IT IS RIGHT. The new one asks when it is connected to the engine, so from then on what the engine publishes waits in its socket while
 * its thread waits for the answer. The copy is of a place that is not behind what the new one has already taken (until then the old one
 * says "later"), so what waits is of before that place, and passed over, or goes on from it. What was published before the new one's
 * subscription had reached the engine, and after the copy, is a gap, and shown as one by the next batch. An engine that restarts meanwhile
 * breaks both connections; a view whose connection is broken, or about which there is any doubt, is not given. A view that the engine can
 * repair is asked of the engine from the copy's place on, as ever; one that it cannot is believed at once (kvr__view_adopt).
 *
 * A partial view is given too: what it has is true; of two the one with more blocks is used. Not one with blocks under names of our
 * own (recover/consumer/supposed.h), which the new process could never take out; nor one of a hybrid model, whose windows are not kept.
 * Workers of an event plane have no endpoint by which both processes would mean the same stream; they have recover endpoints.
 *
 * BOUNDS. One view at a time, in memory twice at the old one: a rank's blocks. The new one serves nobody yet; the old one's clients are
 * served by other threads, and its events wait as they do for a snapshot. Nobody has a lock while waiting for the other process.
 * FAILURE. Whatever does not fit, is late or broken is left out, counted, and comes by the engine's replay or not at all.
 */
#include "app/serve/workers/views/succession.h"

#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <kvroute/hash.h>

#include "app/serve/workers/table/room.h"
#include "app/serve/workers/views/views.h"
#include "base/log.h"
#include "net/http/handover.h"
#include "store/data_dir.h"
#include "store/view_copy.h"

enum { ALL_MS = 20000, ONE_MS = 2000, PAUSE_MS = 5, TURN_MS = 100 };

enum { STANDING = 1 << 20 }; /* in place of a rank: how all workers stand */

struct question {
    uint64_t worker, rank, next; /* the place may not be before `next` */
};

/* Of a worker that both know by its number and its address. */
struct standing {
    uint64_t worker, url, drains;
};

static uint64_t url_of(const struct worker *w)
{
    return kvr_hash_bytes(w->url, strlen(w->url), 0);
}

/* ---- giving ------------------------------------------------------------------------------------------- */

struct giving {
    struct workers *workers;
    struct kvr_view_of of;
    uint64_t next;
    struct kvr_view_copy copy;
    int answer; /* 0: it is copied */
};

static void copy_view(void *arg, const struct kvr_view_status *st, const uint32_t *ranks, size_t n, struct kvr_view_cursor *)
{
    struct giving *g = arg;
    bool doubt = !st->connected || st->knowledge == KVR_VIEW_UNKNOWN || !st->cursor.known;
    bool of_use = !views_make_up(g->workers, g->of.worker) && kvr_ingest_bare(g->of.ingest) != KVR_VIEW_UNKNOWN;
    if (st->repairing || (!doubt && st->cursor.next < g->next)) g->answer = KVR_HANDOVER_LATER;
    else if (!doubt && of_use && kvr_view_copy_take(&g->copy, &g->of, st, ranks, n)) g->answer = 0;
}

static bool put(void *ctx, const void *data, size_t len)
{
    const int *fd = ctx;
    for (size_t at = 0; at < len;) {
        ssize_t n = write(*fd, (const char *)data + at, len - at);
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

/* Returns: a descriptor of bytes that are the reader's. */
static int in_memory(bool (*write_all)(void *ctx, int fd), void *ctx)
{
    int fd = memfd_create("kvroute", MFD_CLOEXEC);
    if (fd < 0 || write_all(ctx, fd)) return fd < 0 ? KVR_HANDOVER_NONE : fd;
    close(fd);
    return KVR_HANDOVER_NONE;
}

static bool write_view(void *ctx, int fd)
{
    struct giving *g = ctx;
    return kvr_view_copy_write(&g->copy, &g->of, put, &fd);
}

static bool write_standing(void *ctx, int fd)
{
    const struct workers *ws = ctx;
    bool ok = true;
    for (const struct worker *w = ws->workers; w && ok; w = w->next) {
        struct standing s = {w->id, url_of(w), atomic_load(&w->draining)};
        ok = put(&fd, &s, sizeof s);
    }
    return ok;
}

int succession_give(struct workers *ws, const void *question, size_t len)
{
    struct giving g = {.workers = ws, .answer = KVR_HANDOVER_NONE};
    struct question q;
    if (len != sizeof q) return KVR_HANDOVER_NONE;
    memcpy(&q, question, sizeof q);
    if (q.rank == STANDING) return in_memory(write_standing, ws);
    if (!ws->ingest) return KVR_HANDOVER_NONE;
    g.next = q.next;
    kvr_lock(&ws->lock);
    const struct worker *w = worker_find_locked(ws, q.worker);
    bool known = w && q.rank - w->dp_start < w->dp_size && views_describe(ws, w, (uint32_t)q.rank - w->dp_start, &g.of);
    kvr_unlock(&ws->lock);
    if (known) (void)kvr_ingest_visit_view(ws->ingest, g.of.worker, copy_view, &g);
    if (g.answer == 0) g.answer = in_memory(write_view, &g);
    kvr_view_copy_free(&g.copy);
    return g.answer;
}

/* ---- taking ------------------------------------------------------------------------------------------- */

struct taking {
    struct workers *workers;
    struct partition *partition;
    struct kvr_view_of of;
    int link;
    uint64_t until_ms;
    bool whole, taken, broken; /* whole: nothing is wanted */
    const char *why;           /* it was not taken; static */
    uint64_t blocks;
};

/* Returns: a descriptor, or a negative number. */
static int ask(struct taking *t, const struct kvr_view_status *st)
{
    struct question q = {st->worker.worker_id, st->worker.dp_rank, st->next_sequence};
    uint64_t until = KVR_MIN(kvr_now_ms() + ONE_MS, t->until_ms);
    int fd = kvr_handover_question(t->link, &q, sizeof q);
    while (fd == KVR_HANDOVER_LATER && kvr_now_ms() < until) {
        (void)poll(NULL, 0, PAUSE_MS);
        fd = kvr_handover_question(t->link, &q, sizeof q);
    }
    t->broken = fd == KVR_HANDOVER_BROKEN;
    return fd;
}

/* What becomes of the content, and of the view by it. */
static void use(struct taking *t, const struct kvr_mapped *m, const struct kvr_view_status *st, struct kvr_view_cursor *adopt)
{
    struct kvr_view_reading r = {0};
    t->why = kvr_view_read(&r, &t->of, m->data, m->len);
    bool both_partial = !r.source.whole && st->knowledge == KVR_VIEW_PARTIAL;
    if (!t->why && both_partial && r.blocks <= kvr_index_rank_blocks(t->of.index, t->of.worker)) t->why = "it knows less";
    if (!t->why && kvr_ingest_recall(t->of.ingest, r.memory.data ? r.memory.data : "", r.memory.len))
        t->why = "what its stream remembers cannot be used";
    if (!t->why) {
        views_replace(t->workers, t->of.worker);
        t->taken = kvr_view_load(&r);
        if (!t->taken) t->why = "out of memory";
        if (t->taken && r.tiers) kvr_router_use_lower_tiers(t->partition->router);
        *adopt = t->taken ? kvr_view_place(&r.source) : st->cursor;
        adopt->partial |= !t->taken; /* it has nothing now */
        t->blocks = r.blocks;
    }
    kvr_view_reading_free(&r);
}

static void take_view(void *arg, const struct kvr_view_status *st, const uint32_t *, size_t, struct kvr_view_cursor *adopt)
{
    struct taking *t = arg;
    struct kvr_mapped m;
    t->whole = st->knowledge == KVR_VIEW_WHOLE;
    if (t->whole) return;
    t->why = "the process before does not have it";
    int fd = ask(t, st);
    if (fd < 0) return;
    if (kvr_map_descriptor(fd, &m) == 0) {
        use(t, &m, st, adopt);
        kvr_unmap_file(&m);
    } else {
        t->why = "out of memory";
    }
    close(fd);
}

static void note(struct workers *ws, const struct taking *t)
{
    unsigned long long id = t->of.worker.worker_id;
    atomic_fetch_add(t->taken ? &ws->counters.view_takeovers_total : &ws->counters.view_takeover_failures_total, 1);
    if (t->taken)
        kvr_log("kvroute: --handover: worker %llu rank %u: %llu blocks from the process before", id, t->of.worker.dp_rank,
                (unsigned long long)t->blocks);
    else kvr_log_warning("kvroute: --handover: worker %llu rank %u: its view is not taken over: %s", id, t->of.worker.dp_rank, t->why);
}

/* An operator's word is kept, whatever the entry says. */
static void take_standing(struct workers *ws, const struct kvr_mapped *m)
{
    for (size_t at = 0; m->len - at >= sizeof(struct standing); at += sizeof(struct standing)) {
        struct standing s;
        memcpy(&s, (const char *)m->data + at, sizeof s);
        kvr_lock(&ws->lock);
        const struct worker *w = worker_find_locked(ws, s.worker);
        bool other = w && url_of(w) == s.url && atomic_load(&w->draining) != (s.drains != 0);
        kvr_unlock(&ws->lock);
        if (other) (void)worker_set_draining(ws, s.worker, s.drains != 0);
    }
}

static void ask_for_standing(struct workers *ws, int link)
{
    struct question q = {.rank = STANDING};
    struct kvr_mapped m;
    int fd = kvr_handover_question(link, &q, sizeof q);
    if (fd < 0) return;
    if (kvr_map_descriptor(fd, &m) == 0) {
        take_standing(ws, &m);
        kvr_unmap_file(&m);
    }
    close(fd);
}

/* Returns: false: nothing more can be asked. */
static bool take_rank(struct workers *ws, const struct worker *w, uint32_t place, int link, uint64_t until_ms)
{
    struct taking t = {.workers = ws, .partition = w->partition, .link = link, .until_ms = until_ms};
    if (!views_describe(ws, w, place, &t.of) || kvr_ingest_visit_view(ws->ingest, t.of.worker, take_view, &t)) return true;
    if (!t.whole) note(ws, &t);
    return !t.broken;
}

bool succession_take(struct workers *ws, int link, struct succession *s)
{
    uint64_t pause = kvr_now_ms() + TURN_MS;
    size_t at = 0;
    if (!s->until_ms) {
        s->until_ms = kvr_now_ms() + ALL_MS;
        ask_for_standing(ws, link);
    }
    for (const struct worker *w = ws->ingest ? ws->workers : NULL; w; w = w->next)
        for (uint32_t r = 0; r < w->dp_size; r++) {
            if (at++ < s->done) continue;
            if (kvr_now_ms() >= pause) return false;
            s->done = at;
            if (kvr_now_ms() >= s->until_ms || !take_rank(ws, w, r, link, s->until_ms)) return true;
        }
    return true;
}
