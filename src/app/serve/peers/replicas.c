/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replicas: other routers in front of the same fleet. What this one books goes out as it happens (on_change, under a
 * router's lock, any thread); what others book is put into our book under their number (the sync thread). So both
 * choose on the sum of both.
 *
 * Generation is told in steps of OUTPUT_STEP blocks. A partition's events before the mark of its snapshot are in the
 * snapshot already and are left out.
 */
#include "app/serve/peers/replicas.h"

#include <string.h>

#include "app/serve/peers/room.h"
#include "app/serve/workers/table/partition.h"
#include "app/serve/workers/workers.h"
#include "net/replication/sync.h"
#include "wire/prom_page.h"
#include "wire/sync_event.h"

enum { OUTPUT_STEP = 8, PEER_SLOTS = 64 };

struct peer_view {
    uint32_t peer; /* 0: free */
    struct {
        struct partition *partition;
        uint64_t mark;
    } partitions[PARTITIONS_MAX];
};

struct replicas {
    struct peer_view *views[PEER_SLOTS]; /* the sync thread's */
    uint64_t *hashes;
    size_t hashes_cap;
    _Atomic uint64_t ignored; /* events of workers or partitions that are not known here */
};

/* ---- out --------------------------------------------------------------------------------------------- */

void replicas_on_change(void *ctx, const struct kvr_load_event *ev)
{
    struct partition *p = ctx;
    const struct peers *peers = p->listener;
    struct kvr_load_event coarse = *ev;
    if (!peers->sync) return;
    if (ev->kind == KVR_LOAD_OUTPUT && ev->fraction < 0) {
        uint64_t before = (ev->output_total - ev->output_blocks) / OUTPUT_STEP, after = ev->output_total / OUTPUT_STEP;
        if (before == after) return;
        coarse.output_blocks = (after - before) * OUTPUT_STEP;
    }
    p->sync_buf.len = 0; /* under the router's lock */
    kvr_sync_event_write(&p->sync_buf, p->number, p->model, p->group, p->block_size, &coarse);
    if (!p->sync_buf.failed) kvr_sync_publish(peers->sync, p->sync_buf.data, p->sync_buf.len);
}

void replicas_on_session(struct peers *peers, const char *id, size_t len, struct kvr_worker w)
{
    struct kvr_buf b = {0};
    if (!peers->sync) return;
    kvr_sync_session_write(&b, id, len, w);
    if (!b.failed) kvr_sync_publish(peers->sync, b.data, b.len);
    kvr_buf_free(&b);
}

struct snapshot {
    const struct peers *peers;
    struct partition *partition;
    struct kvr_buf *out;
};

static void write_mark(void *ctx)
{
    const struct snapshot *s = ctx;
    kvr_sync_mark_write(s->out, s->partition->number, kvr_sync_next(s->peers->sync) - 1);
}

static void write_entry(void *ctx, const struct kvr_load_event *ev)
{
    const struct snapshot *s = ctx;
    struct kvr_load_event coarse = *ev;
    coarse.output_blocks -= coarse.output_blocks % OUTPUT_STEP;
    kvr_sync_event_write(s->out, s->partition->number, s->partition->model, s->partition->group, s->partition->block_size, &coarse);
}

/* Partitions are never freed while the thread runs; the list is read under the table's lock. */
static size_t list_partitions(struct peers *peers, struct partition *list[PARTITIONS_MAX])
{
    size_t n = 0;
    workers_lock(peers->workers);
    for (struct partition *p = partitions_first(peers->workers); p && n < PARTITIONS_MAX; p = p->next) list[n++] = p;
    workers_unlock(peers->workers);
    return n;
}

static void write_snapshot(void *ctx, struct kvr_buf *out)
{
    struct partition *partitions[PARTITIONS_MAX];
    size_t n = list_partitions(ctx, partitions);
    for (size_t i = 0; i < n; i++) {
        struct snapshot s = {ctx, partitions[i], out};
        if (kvr_router_snapshot(partitions[i]->router, write_mark, write_entry, &s)) out->failed = true;
    }
}

/* ---- in ---------------------------------------------------------------------------------------------- */

static struct peer_view *view_of(struct replicas *rep, uint32_t peer, bool make)
{
    size_t place = PEER_SLOTS;
    for (size_t i = 0; i < PEER_SLOTS; i++) {
        if (rep->views[i] && rep->views[i]->peer == peer) return rep->views[i];
        if (!rep->views[i] && place == PEER_SLOTS) place = i;
    }
    if (!make || place == PEER_SLOTS) return NULL;
    rep->views[place] = calloc(1, sizeof *rep->views[place]);
    if (rep->views[place]) rep->views[place]->peer = peer;
    return rep->views[place];
}

static void on_reset(void *ctx, uint32_t peer)
{
    struct peers *peers = ctx;
    struct replicas *rep = peers->replicas;
    struct partition *partitions[PARTITIONS_MAX];
    size_t n = list_partitions(ctx, partitions);
    for (size_t i = 0; i < n; i++) kvr_router_forget_remote(partitions[i]->router, peer);
    for (size_t i = 0; i < PEER_SLOTS; i++)
        if (rep->views[i] && rep->views[i]->peer == peer) {
            free(rep->views[i]);
            rep->views[i] = NULL;
        }
}

/* "" and "default" are one name. */
static bool same_name(const char *s, const char *text, uint32_t len)
{
    if (len == 0) text = "default", len = 7;
    if (!*s) s = "default";
    return kvr_span_is(text, len, s);
}

static struct partition *find_partition(struct peers *peers, const struct kvr_sync_event *e)
{
    workers_lock(peers->workers);
    struct partition *p = partitions_first(peers->workers);
    while (p &&
           !(p->block_size == e->block_size && same_name(p->model, e->model, e->model_len) && same_name(p->group, e->group, e->group_len)))
        p = p->next;
    workers_unlock(peers->workers);
    return p;
}

static bool take_hashes(struct replicas *rep, struct kvr_sync_event *e)
{
    struct kvr_load_request *q = &e->load.request;
    if (q->seqs_n > rep->hashes_cap) {
        uint64_t *grown = realloc(rep->hashes, q->seqs_n * 2 * sizeof *grown);
        if (!grown) return false;
        rep->hashes = grown;
        rep->hashes_cap = q->seqs_n * 2;
    }
    kvr_sync_event_hashes(e, rep->hashes);
    q->seqs = rep->hashes;
    return true;
}

static void on_event(void *ctx, uint32_t peer, uint64_t number, const char *data, size_t len)
{
    struct peers *peers = ctx;
    struct kvr_sync_event e;
    struct peer_view *v = view_of(peers->replicas, peer, true);
    char id[272];
    bool ok = v && kvr_sync_event_read(data, len, &e) == 0 && e.partition < PARTITIONS_MAX;
    if (ok && e.kind == KVR_SYNC_SESSION) {
        peers->hooks.session_heard(peers->hooks.ctx, e.session, e.session_len, e.load.request.worker);
        return;
    }
    if (ok && e.kind == KVR_SYNC_MARK) {
        v->partitions[e.partition].mark = e.number;
        return;
    }
    if (ok && number && number <= v->partitions[e.partition].mark) return; /* the snapshot has it */
    if (ok && e.kind == KVR_SYNC_ADD) {
        v->partitions[e.partition].partition = find_partition(ctx, &e);
        ok = take_hashes(peers->replicas, &e);
    }
    struct partition *partition = ok ? v->partitions[e.partition].partition : NULL;
    if (partition) { /* ids of different partitions and peers must not meet */
        e.load.request.owner = peer;
        e.load.request.id_len = (size_t)snprintf(id, sizeof id, "p%u/%llu/%.*s", peer, (unsigned long long)e.partition,
                                                 (int)e.load.request.id_len, e.load.request.id);
        e.load.request.id = id;
        ok = e.load.request.id_len < 256 && kvr_router_apply_remote(partition->router, &e.load) == 0;
    }
    if (!ok || !partition) atomic_fetch_add_explicit(&peers->replicas->ignored, 1, memory_order_relaxed);
}

/* ---- life -------------------------------------------------------------------------------------------- */

bool replicas_over_nats(const struct serve_options *o)
{
    return o->replica_sync && o->replica_sync_transport == 1;
}

bool replicas_wanted(const struct serve_options *o)
{
    return o->replica_sync_port || replicas_over_nats(o);
}

int replicas_start(struct peers *peers, char *err, size_t cap)
{
    if (!replicas_wanted(peers->o)) return 0;
    if (!(peers->replicas = calloc(1, sizeof *peers->replicas))) return kvr_refuse(err, cap, "out of memory");
    struct kvr_sync_handler h = {.on_event = on_event, .on_reset = on_reset, .write_snapshot = write_snapshot, .ctx = peers};
    if (replicas_over_nats(peers->o)) {
        int failed = kvr_sync_create_nats(peers->process->nats, peers->process->scope, &h, &peers->sync);
        if (failed) snprintf(err, cap, "replica-sync-transport: %s", kvr_strerror(failed));
        return failed ? -1 : 0;
    }
    int rc = kvr_sync_create(peers->o->replica_sync_bind, (uint16_t)peers->o->replica_sync_port, peers->process->curve, &h, &peers->sync);
    if (rc)
        return kvr_refuse(err, cap, "replica-sync-port, replica-sync-bind: cannot listen on %.80s, port %llu: %s",
                          peers->o->replica_sync_bind, (unsigned long long)peers->o->replica_sync_port,
                          rc == -KVR_EEXISTS     ? "the port is in use"
                          : rc == -KVR_EINVAL    ? "allowed: an address of this machine, or 0.0.0.0"
                          : rc == -KVR_ENOTFOUND ? "--zmq-curve-key needs --zmq-curve-clients, the keys of the other routers"
                                                 : kvr_strerror(rc));
    char *copy = peers->o->replica_sync_peers ? strdup(peers->o->replica_sync_peers) : NULL, *rest = copy, *one;
    while (rc == 0 && copy && (one = strsep(&rest, ", "))) {
        if (!*one) continue;
        rc = kvr_sync_add_peer(peers->sync, one);
        if (rc) snprintf(err, cap, "replica-sync-peers: bad value '%.100s'; allowed: different tcp://host:port, at most 64", one);
    }
    free(copy);
    return rc ? -1 : 0;
}

bool replicas_run(const struct peers *peers)
{
    return peers->sync != NULL;
}

int replicas_add_router(struct peers *peers, const char *endpoint)
{
    return kvr_sync_add_peer(peers->sync, endpoint);
}

int replicas_remove_router(struct peers *peers, const char *endpoint)
{
    return kvr_sync_remove_peer(peers->sync, endpoint);
}

void replicas_each_router(struct peers *peers, void (*fn)(void *ctx, const char *endpoint, bool live), void *ctx)
{
    if (peers->sync) kvr_sync_each_peer(peers->sync, fn, ctx);
}

void replicas_stop(struct peers *peers)
{
    kvr_sync_destroy(peers->sync);
    peers->sync = NULL;
    if (!peers->replicas) return;
    for (size_t i = 0; i < PEER_SLOTS; i++) free(peers->replicas->views[i]);
    free(peers->replicas->hashes);
    free(peers->replicas);
    peers->replicas = NULL;
}

void replicas_workers_changed(struct peers *peers)
{
    if (peers->sync) kvr_sync_resync(peers->sync); /* what was said of unknown workers was left out */
}

void replicas_metrics(struct peers *peers, struct kvr_prom_page *b)
{
    struct kvr_sync_stats st = {0};
    if (peers->sync) kvr_sync_stats(peers->sync, &st);
    const struct kvr_prom_row rows[] = {
        {"peers", "gauge", "Other routers that are followed", st.peers},
        {"live_peers", "gauge", "Other routers whose bookings are known now", st.live_peers},
        {"events_sent_total", "counter", "Changes of the book told", st.events_sent},
        {"events_received_total", "counter", "Changes heard", st.events_received},
        {"events_ignored_total", "counter", "Changes heard that are repeated, or about what is unknown here",
         peers->replicas ? atomic_load(&peers->replicas->ignored) : 0},
        {"gaps_total", "counter", "Losses noticed, each mended by a snapshot", st.gaps},
        {"snapshots_sent_total", "counter", "Snapshots told", st.snapshots_sent},
        {"snapshots_received_total", "counter", "Snapshots heard", st.snapshots_received},
        {"dropped_total", "counter", "Changes that found the outbox full", st.dropped},
        {"malformed_total", "counter", "Messages that could not be read, or of another version", st.malformed},
        {"queue_full_total", "counter", "Messages not sent: 128 MiB wait unread", st.queue_full},
        {"queued_bytes", "gauge", "Bytes sent that somebody has not read yet", st.queued_bytes},
        {"snapshots_refused_total", "counter", "Questions for a snapshot that came too fast", st.snapshots_refused},
        {"floods_total", "counter", "Connections to peers given up: bytes, no messages", st.floods},
        {"connections", "gauge", "Connections to the replica-sync port", st.connections},
        {"connections_refused_total", "counter", "Connections beyond 64", st.connections_refused},
        {"talkers_total", "counter", "Connections ended: they said more than followers do", st.talkers},
        {"stalled_total", "counter", "Connections ended: they did not read", st.stalled},
        {"lost_peers_total", "counter", "Peers that fell silent, were replaced or taken away", st.lost_peers},
    };
    kvr_prom_rows(b, peers->sync != NULL, "kvroute_replica_sync_", rows, KVR_ARRAY_LEN(rows));
}
