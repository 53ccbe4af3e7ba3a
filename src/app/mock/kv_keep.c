/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that keeps: the blocks of a request that has ended stay in use until somebody lets them go (app/mock/kv.h).
 *
 *     request ends -----------> kept --- done ------> pulled
 *                        ^     |    \--- release ---> notified
 *     room ---- request -'     |     \-- lease -----> expired
 *     (pull first, or a         <-- beat, pull: the lease begins anew
 *     request that waits)
 *
 * A room is where the two sides meet whose legs are sent at once: whoever comes first waits in it, for --bootstrap-timeout. With sglang
 * the request waits to be begun until its reader is there, and is answered when that is done: it owns the room, and either one's going
 * ends both.
 *
 * Invariants. An entry is in one of two tables, found by its key and ordered by its end: all spans of a table are equally long, so whoever
 * is renewed is the last. Rooms have no blocks, kept ones do. entry->reader and peer->entry point to each other. The tables are emptied
 * before the engines go. Hooks are called when the entry is gone. Where nobody waits, many may pull the same blocks until one of them is
 * done, as many may read an engine's memory.
 */
#include "app/mock/kv.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/mock/generate.h"
#include "base/list.h"
#include "base/lru.h"
#include "net/http/ending.h"
#include "net/http/listen.h"

struct mock_kept {
    struct kvr_lru_entry entry; /* first */
    struct mock_kv_table *table;
    struct mock_rank *rank;      /* NULL: only the reader is there */
    struct mock_hold *hold;      /* NULL: a room */
    struct mock_sequence *owner; /* which waits for the reader; NULL: none does */
    struct mock_peer *reader;    /* NULL: none waits or reads */
    uint64_t salt, cached, since_ms, ends_ms;
    char key[MOCK_KV_KEY_MAX];
};

/* A connection of somebody who fetches. */
struct mock_peer {
    struct mock_kv_line line; /* first */
    struct mock_kv *kv;
    struct mock_kv_port *port;
    struct mock_kept *entry; /* whose reader it is */
    struct mock_peer *next, *prev;
    bool answered; /* its pull: there is one on each connection */
};

static void say(struct mock_peer *p, const char *state, const struct mock_kept *k);

/* ---- tables -------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const char *key)
{
    return kvr_hash_bytes(key, strlen(key), kvr_secret());
}

static bool same_key(const struct kvr_lru_entry *e, const void *key)
{
    return strcmp(((const struct mock_kept *)(const void *)e)->key, key) == 0;
}

static struct mock_kept *find_in(const struct mock_kv_table *t, const char *key)
{
    return (struct mock_kept *)kvr_lru_find(&t->list, hash_of(key), same_key, key);
}

static struct mock_kept *find(const struct mock_kv *kv, const char *key)
{
    struct mock_kept *k = find_in(&kv->kept, key);
    return k ? k : find_in(&kv->rooms, key);
}

static void on_table_timer(uv_timer_t *t);

static void await_end(struct mock_kv_table *t)
{
    const struct mock_kept *k = (const struct mock_kept *)t->list.oldest;
    uint64_t now = uv_now(&t->kv->mock->loop);
    if (!k) uv_timer_stop(&t->timer);
    else uv_timer_start(&t->timer, on_table_timer, k->ends_ms > now ? k->ends_ms - now : 0, 0);
}

static void renew(struct mock_kept *k)
{
    k->ends_ms = uv_now(&k->table->kv->mock->loop) + k->table->span_ms;
    kvr_lru_touch(&k->table->list, &k->entry);
    await_end(k->table);
}

static void put_into(struct mock_kv_table *t, struct mock_kept *k)
{
    if (k->table) {
        kvr_lru_remove(&k->table->list, &k->entry);
        await_end(k->table);
    }
    k->table = t;
    k->since_ms = uv_now(&t->kv->mock->loop);
    kvr_lru_add(&t->list, &k->entry, hash_of(k->key));
    renew(k);
}

static bool full(const struct mock_kv *kv)
{
    return kv->kept.list.n + kv->rooms.list.n >= MOCK_KV_KEPT_MAX;
}

/* In no table yet. NULL: no memory, or too many. */
static struct mock_kept *entry_new(struct mock_kv *kv, const char *key)
{
    struct mock_kept *k = full(kv) ? NULL : calloc(1, sizeof *k);
    if (k) snprintf(k->key, sizeof k->key, "%s", key);
    else kvr_log_warning("kvroute mock: the KV of a request is not kept: too many are, or memory is short");
    return k;
}

/* Frees the entry; the engine may have waited for its blocks. Returns: who owned it, to be told. */
static struct mock_sequence *drop(struct mock_kv *kv, struct mock_kept *k)
{
    struct mock_sequence *owner = k->owner;
    struct mock_rank *rank = k->hold ? k->rank : NULL;
    kvr_lru_remove(&k->table->list, &k->entry);
    await_end(k->table);
    if (k->reader) k->reader->entry = NULL;
    if (k->hold) mock_engine_release(k->rank->engine, k->hold);
    free(k);
    if (rank && !kv->stopping) kv->tell.wake(rank);
    return owner;
}

static struct mock_sequence *let_go(struct mock_kv *kv, struct mock_kept *k, enum mock_kv_how how)
{
    if (k->hold) kv->released[how]++;
    return drop(kv, k);
}

/* The other side has not come, or has gone. */
static void lose(struct mock_kv *kv, struct mock_kept *k, enum mock_kv_how how)
{
    if (k->reader) say(k->reader, "late", NULL);
    struct mock_sequence *owner = let_go(kv, k, how);
    if (owner) kv->tell.lost(owner);
}

static void on_table_timer(uv_timer_t *timer)
{
    struct mock_kv_table *t = timer->data;
    struct mock_kept *k = (struct mock_kept *)t->list.oldest;
    if (k && k->ends_ms <= uv_now(&t->kv->mock->loop)) lose(t->kv, k, MOCK_KV_EXPIRED);
    else await_end(t);
}

int mock_kv_start_keeping(struct mock_kv *kv)
{
    struct mock_kv_table *tables[] = {&kv->kept, &kv->rooms};
    const struct mock_options *o = kv->mock->o;
    kv->kept.span_ms = (uint64_t)(o->kv_lease * 1000);
    kv->rooms.span_ms = (uint64_t)(o->bootstrap_timeout * 1000);
    for (size_t i = 0; i < KVR_ARRAY_LEN(tables); i++) {
        tables[i]->kv = kv;
        uv_timer_init(&kv->mock->loop, &tables[i]->timer);
        tables[i]->timer.data = tables[i];
        if (kvr_lru_init(&tables[i]->list)) return 1;
    }
    return 0;
}

/* ---- requests ------------------------------------------------------------------------------------------ */

/* As vLLM names a request: what the client calls it, and eight digits of its own. */
void mock_kv_name(struct mock_exchange *x)
{
    struct kvr_text id = kvr_headers_get(kvr_http_conn_request(x->conn)->headers, "x-request-id");
    size_t cap = sizeof x->ask.kv.key;
    bool chat = x->ask.api == MOCK_CHAT;
    unsigned random = 0;
    char own[24];
    snprintf(own, sizeof own, "%llu", (unsigned long long)x->id);
    if (!id.ptr || id.len == 0 || id.len > cap / 2) id = (struct kvr_text){own, strlen(own)};
    uv_random(NULL, NULL, &random, sizeof random, 0, NULL);
    snprintf(x->ask.kv.key, cap, "%s-%.*s%s-%08x", chat ? "chatcmpl" : "cmpl", (int)id.len, id.ptr, chat ? "" : "-0", random);
}

/* The two sides of a key meet once. */
static struct mock_kept *room_for(struct mock_kv *kv, const char *key)
{
    struct mock_kept *k = find(kv, key);
    if (k && (k->hold || k->owner)) {
        kvr_log_warning("kvroute mock: %s is in use already: its KV is not kept", key);
        return NULL;
    }
    return k ? k : entry_new(kv, key);
}

struct mock_kept *mock_kv_keep(struct mock_sequence *s, struct mock_request *r)
{
    struct mock_exchange *x = s->exchange;
    struct mock_kv *kv = x->rank->mock->kv;
    char key[MOCK_KV_KEY_MAX];
    mock_kv_key(&x->ask.kv, s->index, key);
    struct mock_kept *k = s->kept ? s->kept : room_for(kv, key);
    if (!k) return NULL;
    k->hold = mock_engine_hold(x->rank->engine, r);
    if (!k->hold) {
        if (!k->table) free(k);
        return NULL;
    }
    k->rank = x->rank;
    k->salt = x->salt;
    k->cached = s->cached;
    put_into(&kv->kept, k);
    if (k->reader) say(k->reader, "kept", k);
    return k;
}

struct mock_kept *mock_kv_open_room(struct mock_sequence *s, bool *met)
{
    struct mock_kv *kv = s->exchange->rank->mock->kv;
    char key[MOCK_KV_KEY_MAX];
    mock_kv_key(&s->exchange->ask.kv, s->index, key);
    struct mock_kept *k = find(kv, key);
    *met = k && k->reader;
    if (!k && !(k = entry_new(kv, key))) return NULL;
    k->owner = s;
    k->rank = s->exchange->rank;
    if (!k->table) put_into(&kv->rooms, k);
    return k;
}

bool mock_kv_in_use(const struct mock *m, const struct mock_kv_ask *a)
{
    char key[MOCK_KV_KEY_MAX];
    for (size_t i = 0; i < a->rooms_n; i++) {
        mock_kv_key(a, (uint32_t)i, key);
        const struct mock_kept *k = find(m->kv, key);
        if (k && (k->hold || k->owner)) return true;
    }
    return false;
}

void mock_kv_abandon(struct mock *m, struct mock_kept *k)
{
    if (k->reader) say(k->reader, "late", NULL);
    drop(m->kv, k);
}

void mock_kv_count_aborted(struct mock *m)
{
    m->kv->released[MOCK_KV_ABORTED]++;
}

const char *mock_kept_key(const struct mock_kept *k)
{
    return k->key;
}

const struct mock_hold *mock_kept_hold(const struct mock_kept *k)
{
    return k->hold;
}

/* ---- who fetches --------------------------------------------------------------------------------------- */

static void close_peer(struct mock_peer *p)
{
    KVR_LIST_TAKE(p->kv->peers, p);
    p->kv->peers_n--;
    mock_kv_line_close(&p->line, kvr_free_closed);
}

/* Who waits in a room, or reads what its owner waits to be rid of, is missed. */
static void leave_entry(struct mock_peer *p)
{
    struct mock_kept *k = p->entry;
    p->entry = NULL;
    if (!k) return;
    k->reader = NULL;
    if (k->owner || !k->hold) lose(p->kv, k, MOCK_KV_ABORTED);
}

static void part_with(struct mock_peer *p)
{
    leave_entry(p);
    close_peer(p);
}

static void on_peer_end(struct mock_kv_line *l)
{
    part_with((struct mock_peer *)l);
}

/* k: what it may read; NULL: only the state. */
static void say(struct mock_peer *p, const char *state, const struct mock_kept *k)
{
    struct kvr_buf b = {0};
    size_t n;
    kvr_json_printf(&b, "{'state':%s", state);
    if (k) {
        kvr_json_printf(&b, "'block_size':%ju,'salt':%ju,'cached':%ju,'blocks':", p->kv->mock->o->block_size, k->salt, k->cached);
        const uint32_t *blocks = mock_hold_blocks(k->hold, &n);
        kvr_json_u32s(&b, blocks, n);
        const uint32_t *tokens = mock_hold_tokens(k->hold, &n);
        kvr_json_key(&b, "tokens");
        kvr_json_u32s(&b, tokens, n);
    }
    kvr_json_close(&b, '}');
    mock_kv_line_send(&p->line, &b);
}

/* Takes a place in the room of a key, which may be there already. At another rank than the request's, or where somebody reads already,
 * nobody ever comes. */
static void wait_in_room(struct mock_peer *p, struct mock_kept *k, const char *key)
{
    if (k && (k->reader || (k->rank && k->rank != p->port->rank))) return;
    bool fresh = !k;
    if (fresh && !(k = entry_new(p->kv, key))) {
        say(p, "late", NULL);
        return;
    }
    k->reader = p;
    p->entry = k;
    if (fresh) put_into(&p->kv->rooms, k);
    else if (k->hold) renew(k);
    if (k->hold) say(p, "kept", k);
    else if (k->owner) p->kv->tell.met(k->owner);
}

static bool answer_pull(struct mock_peer *p, struct kvr_json said, struct mock_kept *k, const char *key)
{
    char engine[MOCK_KV_NAME_MAX];
    if (p->answered || !kvr_json_copy_name(kvr_json_get(said, "engine"), engine, sizeof engine)) return false;
    p->answered = true;
    if (strcmp(engine, p->port->engine) != 0) {
        say(p, "engine", NULL);
        return true;
    }
    if (mock_kv_meets(p->kv->mock)) {
        wait_in_room(p, k, key);
        return true;
    }
    if (k && k->rank != p->port->rank) k = NULL;
    if (k) renew(k);
    say(p, k ? "kept" : "unknown", k);
    return true;
}

/* Somebody has what was kept. */
static void finish_pull(struct mock_peer *p, struct mock_kept *k)
{
    struct mock_kv *kv = p->kv;
    say(p, k ? "freed" : "unknown", NULL);
    if (!k) return;
    struct mock_sequence *owner = let_go(kv, k, MOCK_KV_PULLED);
    if (owner) kv->tell.handed(owner);
    kv->tell.pulled(kv->mock);
}

static bool obey(struct mock_peer *p, struct kvr_json said)
{
    char op[16], key[MOCK_KV_KEY_MAX];
    if (!kvr_json_copy_name(kvr_json_get(said, "op"), op, sizeof op) || !kvr_json_copy_name(kvr_json_get(said, "key"), key, sizeof key))
        return false;
    struct mock_kept *k = find(p->kv, key);
    if (!strcmp(op, "pull")) return answer_pull(p, said, k, key);
    if (k && !k->hold) k = NULL;
    if (!strcmp(op, "beat")) {
        if (k) renew(k);
    } else if (!strcmp(op, "release")) {
        if (k) lose(p->kv, k, MOCK_KV_NOTIFIED);
    } else if (!strcmp(op, "done")) {
        finish_pull(p, k);
    } else {
        return false;
    }
    return true;
}

static void on_peer_line(struct mock_kv_line *l, struct kvr_json said)
{
    struct mock_peer *p = (struct mock_peer *)l;
    if (!obey(p, said)) part_with(p);
}

/* One more than the limit is taken from the queue all the same, and closed. */
static void on_connection(uv_stream_t *s, int status)
{
    struct mock_kv_port *port = s->data;
    struct mock_kv *kv = port->rank->mock->kv;
    struct mock_peer *p = status == 0 ? calloc(1, sizeof *p) : NULL;
    if (!p) return;
    p->kv = kv;
    p->port = port;
    if (mock_kv_line_init(&p->line, &kv->mock->loop)) {
        free(p);
        return;
    }
    p->line.max = 4096;
    p->line.on_line = on_peer_line;
    p->line.on_end = on_peer_end;
    KVR_LIST_PUSH(kv->peers, p);
    kv->peers_n++;
    if (uv_accept(s, (uv_stream_t *)&p->line.tcp) || kv->peers_n > MOCK_KV_PEERS_MAX || mock_kv_line_listen(&p->line)) close_peer(p);
}

int mock_kv_open_port(struct mock_kv *kv, struct mock_rank *rank, uint16_t number)
{
    struct mock_kv_port *port = &kv->ports[rank->id];
    struct sockaddr_storage at;
    int len = sizeof at;
    port->rank = rank;
    if (mock_kv_address(kv->mock->o->host, number, &at)) return UV_EADDRNOTAVAIL;
    int rc = uv_tcp_init(&kv->mock->loop, &port->tcp);
    if (rc) return rc;
    port->open = true;
    port->tcp.data = port;
    if ((rc = uv_tcp_bind(&port->tcp, (struct sockaddr *)&at, 0)) ||
        (rc = uv_listen((uv_stream_t *)&port->tcp, KVR_LISTEN_BACKLOG, on_connection)) ||
        (rc = uv_tcp_getsockname(&port->tcp, (struct sockaddr *)&at, &len)))
        return rc;
    port->number = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    return 0;
}

void mock_kv_stop_keeping(struct mock_kv *kv)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(kv->ports); i++)
        if (kv->ports[i].open) uv_close((uv_handle_t *)&kv->ports[i].tcp, NULL);
    while (kv->peers) {
        if (kv->peers->entry) kv->peers->entry->reader = NULL;
        close_peer(kv->peers);
    }
    while (kv->kept.list.oldest) drop(kv, (struct mock_kept *)kv->kept.list.oldest);
    while (kv->rooms.list.oldest) drop(kv, (struct mock_kept *)kv->rooms.list.oldest);
}

/* ---- what is told -------------------------------------------------------------------------------------- */

void mock_kv_put_kept(struct mock_kv *kv, struct kvr_buf *b)
{
    uint64_t now = uv_now(&kv->mock->loop);
    for (const struct kvr_lru_entry *e = kv->kept.list.oldest; e; e = e->newer) {
        const struct mock_kept *k = (const struct mock_kept *)(const void *)e;
        size_t n;
        mock_hold_blocks(k->hold, &n);
        kvr_json_printf(b, "{'request_id':%s,'blocks':%zu,'age_s':%g}", k->key, n, (double)(now - k->since_ms) / 1000);
    }
}

uint64_t mock_kv_kept_blocks(const struct mock_kv *kv, const struct mock_rank *rank)
{
    uint64_t sum = 0;
    for (const struct kvr_lru_entry *e = kv->kept.list.oldest; e; e = e->newer) {
        const struct mock_kept *k = (const struct mock_kept *)(const void *)e;
        size_t n;
        mock_hold_blocks(k->hold, &n);
        sum += k->rank == rank ? n : 0;
    }
    return sum;
}
