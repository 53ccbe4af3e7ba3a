/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A source: executes what its view decides (struct kvr_view_actions), and decides nothing itself.
 *
 *     batch -> view -> read   -> decoded into ingest.batch (or plane_event)
 *                   -> apply  -> the stream of its rank -> events -> the handler; each result goes back to the view
 *                   -> ask, replay, renew, cancel         -> sockets.c, recover_client.c
 *                   -> trust, keep                        -> the handler, who keeps the view
 *
 * Invariants: every input of a view goes through kvr__source_view, which gives it the time; `current` is the source whose events the
 * handler is given, `applying` the stream they come from (NULL: from elsewhere).
 */
#include "net/ingest/internal.h"

#include <stdlib.h>

#include "base/log.h"
#include "wire/engine_memory.h"
#include "wire/plane_event.h"

enum {
    TURN_MESSAGES = 64, /* one source's, before the next gets its turn: whichever of these three comes first */
    TURN_BYTES = 1 << 20,
    TURN_MS = 20
};

_Static_assert((int)KVR_VIEW_FIRST_EVENT == (int)KVR_PLANE_FIRST_EVENT, "a publisher's first event");

/* ---- turns ------------------------------------------------------------------------------------------- */

struct turn kvr__turn_begin(void)
{
    return (struct turn){.began_ns = kvr_monotonic_ns()};
}

bool kvr__turn_over(const struct kvr_ingest *in, struct turn *t, size_t bytes)
{
    t->bytes += bytes;
    return ++t->messages >= TURN_MESSAGES || t->bytes >= TURN_BYTES || atomic_load_explicit(&in->stop, memory_order_relaxed) ||
           kvr_monotonic_ns() - t->began_ns >= TURN_MS * UINT64_C(1000000);
}

/* At least one is taken in each turn. */
static bool more(void *ctx, size_t messages, size_t bytes)
{
    struct source *s = ctx;
    if (messages == 0) {
        s->turn = kvr__turn_begin();
        return true;
    }
    return !kvr__turn_over(s->in, &s->turn, bytes - s->turn.bytes);
}

/* ---- ranks ------------------------------------------------------------------------------------------- */

struct rank_stream *kvr__source_carry(struct source *s, uint32_t rank)
{
    struct rank_stream *r = &s->own;
    if (rank == s->st.worker.dp_rank) return r;
    if (!s->any_rank) return NULL;
    for (r = s->own.next; r; r = r->next)
        if (r->stream.worker.dp_rank == rank) return r;
    if (s->view.ranks_n >= RANKS_MAX || !(r = calloc(1, sizeof *r))) return NULL;
    kvr_engine_stream_init(&r->stream, (struct kvr_worker){s->st.worker.worker_id, rank}, s->own.stream.block_size);
    r->stream.tiers = s->own.stream.tiers;
    r->stream.tier_chunk = s->own.stream.tier_chunk;
    r->stream.window = s->own.stream.window;
    r->stream.window_ctx = s->own.stream.window_ctx;
    r->stream.holds = s->own.stream.holds;
    r->stream.holds_ctx = s->own.stream.holds_ctx;
    r->next = s->own.next;
    s->own.next = r;
    s->view.ranks_n++;
    return r;
}

/* The stream of the decoded batch's rank; NULL when the source is not to carry it. */
static struct rank_stream *stream_of_batch(struct source *s)
{
    return s->in->batch.has_rank ? kvr__source_carry(s, s->in->batch.rank) : &s->own;
}

static void sum_counters(struct source *s)
{
    struct kvr_engine_counters *sum = &s->st.filtered;
    *sum = s->own.stream.counters;
    s->st.unproven_copies = s->own.stream.copies.unproven;
    for (const struct rank_stream *r = s->own.next; r; r = r->next) {
        s->st.unproven_copies += r->stream.copies.unproven;
#define KVR_SUM(name) sum->name += r->stream.counters.name;
        KVR_ENGINE_COUNTERS(KVR_SUM)
#undef KVR_SUM
    }
}

static bool is_hybrid(const struct rank_stream *r)
{
    return memchr(r->stream.group_main, 2, sizeof r->stream.group_main) != NULL;
}

/* The worst of its ranks' cache groups. */
static enum kvr_view_knowledge worth(void *ctx, const char **why)
{
    const struct source *s = ctx;
    enum kvr_engine_groups worst = KVR_GROUPS_EXACT;
    for (const struct rank_stream *r = &s->own; r; r = r->next) worst = KVR_MAX(worst, kvr_engine_stream_groups(&r->stream));
    if (worst == KVR_GROUPS_EXACT) return KVR_VIEW_WHOLE;
    *why = worst == KVR_GROUPS_BOUND ? "what a cache group of the model can reuse is not understood: a lower bound"
                                     : "a model with several cache groups (sliding windows): follow the engine itself";
    return worst == KVR_GROUPS_BOUND ? KVR_VIEW_PARTIAL : KVR_VIEW_UNKNOWN;
}

static bool copies_unsure(void *ctx)
{
    const struct source *s = ctx;
    for (const struct rank_stream *r = &s->own; r; r = r->next)
        if (r->stream.copies.unsure) return true;
    return false;
}

static void engine_restart(void *ctx)
{
    struct source *s = ctx;
    for (struct rank_stream *r = &s->own; r; r = r->next) kvr_engine_stream_restart(&r->stream);
}

static void forget_copies(void *ctx)
{
    struct source *s = ctx;
    kvr_engine_stream_forget_copies(&s->own.stream);
}

/* ---- content ----------------------------------------------------------------------------------------- */

static void clear_one(struct source *s, struct rank_stream *r)
{
    s->in->handler.on_reset(s->in->handler.ctx, s->user, r->stream.worker);
    kvr_engine_stream_reset(&r->stream);
}

static void clear_all(void *ctx)
{
    struct source *s = ctx;
    for (struct rank_stream *r = &s->own; r; r = r->next) clear_one(s, r);
}

static void clear_rank(void *ctx)
{
    struct source *s = ctx;
    clear_one(s, &s->own);
}

static void on_converted(void *ctx, const struct kvr_event *ev)
{
    struct kvr_ingest *in = ctx;
    struct source *s = in->current;
    struct kvr_ingest_origin origin = {&in->batch, in->applying ? in->applying->current : NULL, in->applying};
    int rc = in->handler.on_event(in->handler.ctx, s->user, ev, in->applying ? &origin : NULL);
    kvr__view_event(&s->view, ev, rc, in->applying && in->applying->taking_back);
}

static void on_window(void *ctx, const struct kvr_window_event *event)
{
    const struct kvr_ingest *in = ctx;
    in->handler.on_window(in->handler.ctx, in->current->user, event);
}

/* Of the stream that is being applied. */
static bool holds(void *ctx, enum kvr_tier tier, uint64_t name)
{
    const struct kvr_ingest *in = ctx;
    return in->handler.holds(in->handler.ctx, in->current->user, in->applying->worker, tier, name);
}

/* On a socket of its own, and in its recover endpoint's answers, a worker need not know the id that it has here. */
static void apply_event(void *ctx, const struct kvr_event *event)
{
    struct source *s = ctx;
    struct kvr_event ev = *event;
    ev.worker = s->st.worker;
    s->in->current = s;
    on_converted(s->in, &ev);
}

void kvr__source_restore(struct source *s, const struct kvr_event *ev)
{
    (void)kvr__source_view(s);
    if (ev->tier == KVR_TIER_DEVICE || s->own.stream.tiers) apply_event(s, ev);
}

/* An event of a publisher: plane_head and msgpack. */
static bool read_event(struct source *s, struct kvr_view_batch *b)
{
    struct kvr_ingest *in = s->in;
    struct plane_head h;
    if (b->len < sizeof h) return false;
    memcpy(&h, b->data, sizeof h);
    b->ts = h.ts;
    b->publisher = h.publisher;
    if (kvr_plane_event_read(b->data + sizeof h, b->len - sizeof h, &in->plane_event, &in->plane_blocks, &in->plane_blocks_cap))
        return false;
    b->clears = in->plane_event.kind == KVR_EVENT_CLEARED && in->plane_event.tier == KVR_TIER_DEVICE;
    return true;
}

static bool read_batch(void *ctx, struct kvr_view_batch *b)
{
    struct source *s = ctx;
    if (s->view.enveloped) return read_event(s, b);
    if (kvr_engine_decode(&s->in->batch, b->data, b->len)) return false;
    b->ts = s->in->batch.ts;
    return true;
}

static void note_untold_keys(const struct source *s, struct kvr_worker w)
{
    kvr_log_warning("kvroute: worker %llu rank %u: its events tell neither salts nor images, as those of vLLM before 0.17: prompts with a "
                    "cache_salt or images find nothing there, and plain prompts may be promised their blocks; update it",
                    (unsigned long long)s->st.worker.worker_id, w.dp_rank);
}

static void convert(struct source *s, struct rank_stream *r, uint64_t seq, bool again, struct kvr_view_applied *out)
{
    struct kvr_ingest *in = s->in;
    uint64_t mismatches = r->stream.counters.block_size_mismatch, taken_back = r->stream.counters.copy_taken_back;
    uint64_t untold_keys = r->stream.counters.untold_keys;
    bool reported = r->stream.copies.reports;
    enum kvr_engine_groups groups = kvr_engine_stream_groups(&r->stream);
    in->current = s;
    in->applying = &r->stream;
    r->stream.again = again;
    out->torn = kvr_engine_convert(&r->stream, &in->batch, seq, on_converted, in) < 0;
    in->applying = NULL;
    if (!untold_keys && r->stream.counters.untold_keys) note_untold_keys(s, r->stream.worker);
    bool lost_groups = r->stream.copies.reports && !reported && is_hybrid(r);
    out->worth_changed = groups != kvr_engine_stream_groups(&r->stream);
    out->copies_lost = lost_groups || r->stream.counters.copy_taken_back != taken_back;
    out->other_block_size = r->stream.counters.block_size_mismatch != mismatches;
    out->engine_block_size = r->stream.engine_block_size;
}

static void apply_batch(struct source *s, uint64_t seq, bool again, struct kvr_view_applied *out)
{
    struct rank_stream *r = stream_of_batch(s);
    if (r) {
        convert(s, r, seq, again, out);
    } else {
        s->own.stream.counters.other_rank++;
        out->other_rank = true;
        out->rank = s->in->batch.rank;
    }
    s->st.engine_block_size = s->own.stream.engine_block_size;
    sum_counters(s);
}

static void apply(void *ctx, const struct kvr_view_batch *b, bool again, struct kvr_view_applied *out)
{
    struct source *s = ctx;
    const struct kvr_event *ev = &s->in->plane_event;
    s->st.heard_ns = kvr_monotonic_ns();
    if (!s->view.enveloped) {
        apply_batch(s, b->seq, again, out);
    } else if (ev->tier == KVR_TIER_DEVICE || s->own.stream.tiers) {
        struct kvr_event once = *ev;
        if (again) once.lower.copies = 0; /* the dump has it already */
        apply_event(s, &once);
    }
}

/* ---- asking and telling ------------------------------------------------------------------------------ */

static bool replay(void *ctx, uint64_t from)
{
    return kvr__sockets_send_replay(ctx, from);
}

static bool renew(void *ctx)
{
    struct source *s = ctx;
    return kvr__sockets_renew(s->in, s);
}

static int ask(void *ctx, bool everything, uint64_t from)
{
    struct source *s = ctx;
    struct kvr_recover_question q = {++s->in->tokens, s->recover, s->st.worker.dp_rank, !everything, from};
    s->token = q.token;
    return s->in->recover ? kvr_recover_client_ask(s->in->recover, &q) : -KVR_ENOMEM;
}

static void cancel(void *ctx)
{
    const struct source *s = ctx;
    kvr_recover_client_cancel(s->in->recover, s->token);
}

static void trust(void *ctx, enum kvr_view_knowledge knowledge, const char *reason)
{
    struct source *s = ctx;
    s->st.since_ns = kvr_monotonic_ns();
    if (s->in->handler.on_view) s->in->handler.on_view(s->in->handler.ctx, s->user, s->st.worker, knowledge, reason);
}

static void keep(void *ctx, const struct kvr_view_batch *b)
{
    const struct source *s = ctx;
    bool engine = !s->view.enveloped;
    if (s->keeper) s->keeper->on_batch(s->kept, b->seq, engine ? b->data : NULL, engine ? b->len : 0);
}

static void keep_anew(void *ctx)
{
    const struct source *s = ctx;
    if (s->keeper) s->keeper->on_break(s->kept);
}

static void say_reach(void *ctx)
{
    const struct source *s = ctx;
    const struct kvr_view *v = &s->view;
    char seconds[32] = "";
    if (v->buffer_seconds > 0 && v->buffer_seconds < 1e9) snprintf(seconds, sizeof seconds, ", %.0f s", v->buffer_seconds);
    kvr_log(v->buffer_first
                ? "kvroute: worker %llu rank %u: its replay buffer holds the last %llu batches%s: who is away for longer, without "
                  "--data-dir, has a partial view at first (vLLM: buffer_steps)"
                : "kvroute: worker %llu rank %u: its replay buffer has all %llu batches since it began%s",
            (unsigned long long)s->st.worker.worker_id, s->st.worker.dp_rank, (unsigned long long)v->buffer_batches, seconds);
}

static const struct kvr_view_actions ACTIONS = {.read = read_batch,
                                                .apply = apply,
                                                .apply_event = apply_event,
                                                .clear = clear_all,
                                                .clear_rank = clear_rank,
                                                .engine_restart = engine_restart,
                                                .forget_copies = forget_copies,
                                                .copies_unsure = copies_unsure,
                                                .worth = worth,
                                                .replay = replay,
                                                .renew = renew,
                                                .ask = ask,
                                                .cancel = cancel,
                                                .more = more,
                                                .trust = trust,
                                                .keep = keep,
                                                .keep_anew = keep_anew,
                                                .reach = say_reach};

/* ---- copies ------------------------------------------------------------------------------------------ */

/* Returns: false: for want of memory, some are still there. */
static bool take_back(struct source *s, struct rank_stream *r)
{
    uint64_t next = s->view.cursor.next;
    s->in->current = s;
    s->in->applying = &r->stream;
    r->stream.current = NULL;
    long n = kvr_engine_stream_take_back(&r->stream, next ? next - 1 : 0, on_converted, s->in);
    s->in->applying = NULL;
    return n >= 0;
}

/* What a hybrid model's engine has not may be missing in another group. */
static bool is_doubtful(const struct rank_stream *r, const uint64_t *name)
{
    if (name && (is_hybrid(r) || !kvr__copies_unproven(&r->stream.copies, KVR_TIER_DEVICE, *name))) return false;
    return r->stream.copies.unproven > 0;
}

void kvr__source_doubt_copies(struct source *s, const uint64_t *name)
{
    bool any = false, all = true;
    struct kvr_view *v = kvr__source_view(s);
    for (struct rank_stream *r = &s->own; r; r = r->next) {
        if (!is_doubtful(r, name)) continue;
        all &= take_back(s, r);
        any = true;
    }
    sum_counters(s);
    if (any) kvr__view_copies_taken_back(v, !all);
}

/* The first report may have come before the word that there will be some. */
void kvr__source_expect_reports(struct source *s)
{
    bool any = false, all = true;
    struct kvr_view *v = kvr__source_view(s);
    for (struct rank_stream *r = &s->own; r; r = r->next) {
        if (!r->stream.copies.reports && r->stream.copies.unproven) {
            all &= take_back(s, r);
            any = true;
        }
        r->stream.copies.reports = true;
    }
    sum_counters(s);
    if (any) kvr__view_copies_taken_back(v, !all);
}

/* ---- birth, status, end ------------------------------------------------------------------------------ */

struct kvr_view *kvr__source_view(struct source *s)
{
    const struct kvr_ingest *in = s->in;
    bool durable = s->view.shared && atomic_load_explicit(&in->plane_durable, memory_order_relaxed);
    s->changed = true;
    s->view.now = (struct kvr_view_now){.ms = in->now_ms, .stream_up = in->plane_up, .durable = durable};
    return &s->view;
}

static struct kvr_engine_stream *stream_of_rank(void *ctx, uint32_t rank)
{
    struct rank_stream *r = kvr__source_carry(ctx, rank);
    return r ? &r->stream : NULL;
}

int kvr__source_recall(struct source *s, const char *memory, size_t len)
{
    return kvr_engine_memory_read(memory, len, stream_of_rank, s);
}

/* Its place in the stream, and what was remembered there. Content without its memory would be taken further wrongly: then it is asked for
 * anew. */
static void go_on_from(struct source *s, const struct kvr_ingest_source *src)
{
    for (size_t i = 0; i < src->ranks_n; i++) (void)kvr__source_carry(s, src->ranks[i]);
    if (!src->from.known || kvr__source_recall(s, src->memory, src->memory_len)) return;
    kvr__view_go_on_from(&s->view, &src->from);
}

static void init_stream(struct kvr_ingest *in, struct kvr_engine_stream *stream, const struct kvr_ingest_source *src)
{
    kvr_engine_stream_init(stream, src->worker, src->block_size);
    stream->tiers = src->tiers;
    stream->tier_chunk = src->tier_chunk;
    if (in->handler.on_window) {
        stream->window = on_window;
        stream->window_ctx = in;
    }
    if (in->handler.holds) {
        stream->holds = holds;
        stream->holds_ctx = in;
    }
}

struct source *kvr__source_create(struct kvr_ingest *in, const struct kvr_ingest_source *src)
{
    struct source *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->in = in;
    for (unsigned i = 0; i < SOCKETS; i++) s->watches[i] = (struct watch){s, 1u << i};
    s->st.worker = src->worker;
    s->user = src->user;
    s->any_rank = src->any_rank;
    if (src->events) snprintf(s->events, sizeof s->events, "%s", src->events);
    if (src->replay) snprintf(s->replay, sizeof s->replay, "%s", src->replay);
    if (src->recover) snprintf(s->recover, sizeof s->recover, "%s", src->recover);
    kvr__view_init(&s->view, &ACTIONS, s);
    s->view.block_size = src->block_size;
    s->view.restore_timeout_ms = in->restore_timeout_ms;
    s->view.has_replay = s->replay[0] != 0;
    s->view.has_recover = s->recover[0] != 0;
    s->view.shared = s->view.enveloped = !src->events;
    s->view.lossy = src->lossy;
    s->st.can_replay = src->replay != NULL || s->recover[0];
    init_stream(in, &s->own.stream, src);
    go_on_from(s, src);
    s->kept = src->kept;
    s->tail = src->tail;
    s->tail_len = src->tail_len;
    return s;
}

void kvr__source_take_tail(struct source *s)
{
    struct kvr_view *v = kvr__source_view(s);
    for (size_t at = 0; s->tail_len - at >= 16;) {
        uint64_t seq, len;
        memcpy(&seq, s->tail + at, 8);
        memcpy(&len, s->tail + at + 8, 8);
        at += 16;
        if (len > s->tail_len - at || !kvr__view_kept_batch(v, seq, s->tail + at, len)) break;
        at += len;
    }
    kvr__view_kept_end(v);
    free(s->tail);
    s->tail = NULL;
}

void kvr__source_status(struct source *s)
{
    const struct kvr_view *v = &s->view;
    struct kvr_view_status *st = &s->st;
    st->state = v->state;
    st->knowledge = v->knowledge;
    st->trusted = v->knowledge != KVR_VIEW_UNKNOWN;
    st->settled = v->settled;
    st->connected = v->connected;
    st->repairing = kvr__view_is_repairing(v);
    st->sound = v->known != KVR_VIEW_UNKNOWN;
    st->cursor = kvr__view_cursor(v);
    st->next_sequence = v->cursor.next;
    memcpy(st->reason, v->reason, sizeof st->reason);
    st->buffer_first = v->buffer_first;
    st->buffer_batches = v->buffer_batches;
    st->buffer_seconds = v->buffer_seconds;
#define KVR_COPY(name) st->name = v->counts.name;
    KVR_VIEW_COUNTERS(KVR_COPY)
#undef KVR_COPY
}

void kvr__source_free(struct source *s)
{
    struct kvr_ingest *in = s->in;
    kvr__view_end(&s->view);
    while (s->own.next) {
        struct rank_stream *r = s->own.next;
        s->own.next = r->next;
        kvr_engine_stream_free(&r->stream);
        free(r);
    }
    kvr_engine_stream_free(&s->own.stream);
    free(s->tail);
    if (in->handler.on_leave) in->handler.on_leave(in->handler.ctx, s->st.worker);
    if (in->handler.on_end) in->handler.on_end(in->handler.ctx, s->user);
    free(s);
}
