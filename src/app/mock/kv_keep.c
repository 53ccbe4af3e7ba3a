/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that keeps: the blocks of a request that has ended stay in use until somebody lets them go (app/mock/kv.h).
 *
 *     request ends ----> kept --- done ------> pulled
 *                       |    \--- release ---> notified
 *                       |     \-- lease -----> expired
 *                        <-- beat, pull: the lease begins anew
 *
 * Invariants. What is kept is in one table, found by its key and ordered by the end of its lease: all leases are equally long, so whoever
 * is renewed is the last. The table is emptied before the engines go. A key is used for one request in the life of the process.
 * Many may pull the same blocks until one of them is done, as many may read an engine's memory.
 */
#include "app/mock/kv.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/mock/generate.h"
#include "base/lru.h"

struct mock_kept {
    struct kvr_lru_entry entry; /* first */
    struct mock_rank *rank;
    struct mock_hold *hold;
    uint64_t salt, since_ms, ends_ms;
    char key[MOCK_KV_KEY_MAX];
};

/* A connection of somebody who fetches. */
struct mock_peer {
    struct mock_kv_line line; /* first */
    struct mock_kv *kv;
    struct mock_kv_port *port;
    struct mock_peer *next, *prev;
    bool answered; /* its pull: there is one on each connection */
};

/* ---- what is kept -------------------------------------------------------------------------------------- */

static uint64_t lease_ms(const struct mock_kv *kv)
{
    return (uint64_t)(kv->mock->o->kv_lease * 1000);
}

static uint64_t hash_of(const char *key)
{
    return kvr_hash_bytes(key, strlen(key), kvr_secret());
}

static bool same_key(const struct kvr_lru_entry *e, const void *key)
{
    return strcmp(((const struct mock_kept *)(const void *)e)->key, key) == 0;
}

static struct mock_kept *find(const struct mock_kv *kv, const char *key)
{
    return (struct mock_kept *)kvr_lru_find(&kv->kept, hash_of(key), same_key, key);
}

static void on_lease(uv_timer_t *t);

static void await_lease(struct mock_kv *kv)
{
    const struct mock_kept *k = (const struct mock_kept *)kv->kept.oldest;
    uint64_t now = uv_now(&kv->mock->loop);
    if (!k) uv_timer_stop(&kv->timer);
    else uv_timer_start(&kv->timer, on_lease, k->ends_ms > now ? k->ends_ms - now : 0, 0);
}

static void renew(struct mock_kv *kv, struct mock_kept *k)
{
    k->ends_ms = uv_now(&kv->mock->loop) + lease_ms(kv);
    kvr_lru_touch(&kv->kept, &k->entry);
    await_lease(kv);
}

/* The engine may have waited for these blocks. */
static void let_go(struct mock_kv *kv, struct mock_kept *k, enum mock_kv_how how)
{
    struct mock_rank *rank = k->rank;
    kvr_lru_remove(&kv->kept, &k->entry);
    mock_engine_release(rank->engine, k->hold);
    free(k);
    kv->released[how]++;
    await_lease(kv);
    if (!kv->stopping) kv->tell.wake(rank);
}

static void on_lease(uv_timer_t *t)
{
    struct mock_kv *kv = t->data;
    struct mock_kept *k = (struct mock_kept *)kv->kept.oldest;
    if (k && k->ends_ms <= uv_now(&kv->mock->loop)) let_go(kv, k, MOCK_KV_EXPIRED);
    else await_lease(kv);
}

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

struct mock_kept *mock_kv_keep(struct mock_exchange *x, struct mock_request *r)
{
    struct mock_kv *kv = x->rank->mock->kv;
    struct mock_kept *k = kv->kept.n < MOCK_KV_KEPT_MAX ? calloc(1, sizeof *k) : NULL;
    if (!k || !(k->hold = mock_engine_hold(x->rank->engine, r))) {
        free(k);
        kvr_log_warning("kvroute mock: the KV of a request is not kept: %zu are", kv->kept.n);
        return NULL;
    }
    k->rank = x->rank;
    k->salt = x->salt;
    k->since_ms = uv_now(&kv->mock->loop);
    k->ends_ms = k->since_ms + lease_ms(kv);
    memcpy(k->key, x->ask.kv.key, sizeof k->key);
    kvr_lru_add(&kv->kept, &k->entry, hash_of(k->key));
    await_lease(kv);
    return k;
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

static void on_peer_closed(uv_handle_t *h)
{
    struct mock_peer *p = h->data; /* the line, its first member */
    free(p);
}

static void close_peer(struct mock_peer *p)
{
    *(p->prev ? &p->prev->next : &p->kv->peers) = p->next;
    if (p->next) p->next->prev = p->prev;
    p->kv->peers_n--;
    mock_kv_line_close(&p->line, on_peer_closed);
}

static void on_peer_end(struct mock_kv_line *l)
{
    close_peer((struct mock_peer *)l);
}

static void put_numbers(struct kvr_buf *b, const char *name, const uint32_t *v, size_t n)
{
    kvr_json_key(b, name);
    kvr_json_open(b, '[');
    for (size_t i = 0; i < n; i++) kvr_json_u64(b, v[i]);
    kvr_json_close(b, ']');
}

/* k: what it may read; NULL: only the state. */
static void say(struct mock_peer *p, const char *state, const struct mock_kept *k)
{
    struct kvr_buf b = {0};
    size_t n;
    kvr_json_open(&b, '{');
    kvr_json_put_str(&b, "state", state);
    if (k) {
        kvr_json_put_u64(&b, "block_size", p->kv->mock->o->block_size);
        kvr_json_put_u64(&b, "salt", k->salt);
        const uint32_t *blocks = mock_hold_blocks(k->hold, &n);
        put_numbers(&b, "blocks", blocks, n);
        const uint32_t *tokens = mock_hold_tokens(k->hold, &n);
        put_numbers(&b, "tokens", tokens, n);
    }
    kvr_json_close(&b, '}');
    mock_kv_line_send(&p->line, &b);
}

static bool text_of(struct kvr_json said, const char *name, char *out, size_t cap)
{
    const char *s;
    size_t len;
    if (!kvr_json_as_str(kvr_json_get(said, name), &s, &len) || len >= cap || memchr(s, 0, len)) return false;
    memcpy(out, s, len);
    out[len] = 0;
    return true;
}

static bool answer_pull(struct mock_peer *p, struct kvr_json said, struct mock_kept *k)
{
    char engine[MOCK_KV_NAME_MAX];
    if (p->answered || !text_of(said, "engine", engine, sizeof engine)) return false;
    p->answered = true;
    if (strcmp(engine, p->port->engine) != 0) {
        say(p, "engine", NULL);
        return true;
    }
    if (k && k->rank != p->port->rank) k = NULL;
    if (k) renew(p->kv, k);
    say(p, k ? "kept" : "unknown", k);
    return true;
}

static bool obey(struct mock_peer *p, struct kvr_json said)
{
    char op[16], key[MOCK_KV_KEY_MAX];
    if (!text_of(said, "op", op, sizeof op) || !text_of(said, "key", key, sizeof key)) return false;
    struct mock_kept *k = find(p->kv, key);
    if (!strcmp(op, "pull")) return answer_pull(p, said, k);
    if (!strcmp(op, "beat")) {
        if (k) renew(p->kv, k);
    } else if (!strcmp(op, "release")) {
        if (k) let_go(p->kv, k, MOCK_KV_NOTIFIED);
    } else if (!strcmp(op, "done")) {
        say(p, k ? "freed" : "unknown", NULL);
        if (k) let_go(p->kv, k, MOCK_KV_PULLED);
        if (k) p->kv->tell.pulled(p->kv->mock);
    } else {
        return false;
    }
    return true;
}

static void on_peer_line(struct mock_kv_line *l, struct kvr_json said)
{
    struct mock_peer *p = (struct mock_peer *)l;
    if (!obey(p, said)) close_peer(p);
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
    p->next = kv->peers;
    if (p->next) p->next->prev = p;
    kv->peers = p;
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
    if ((rc = uv_tcp_bind(&port->tcp, (struct sockaddr *)&at, 0)) || (rc = uv_listen((uv_stream_t *)&port->tcp, 128, on_connection)) ||
        (rc = uv_tcp_getsockname(&port->tcp, (struct sockaddr *)&at, &len)))
        return rc;
    port->number = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
    return 0;
}

void mock_kv_stop_keeping(struct mock_kv *kv)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(kv->ports); i++)
        if (kv->ports[i].open) uv_close((uv_handle_t *)&kv->ports[i].tcp, NULL);
    while (kv->peers) close_peer(kv->peers);
    while (kv->kept.oldest) let_go(kv, (struct mock_kept *)kv->kept.oldest, MOCK_KV_ABORTED);
}

/* ---- what is told -------------------------------------------------------------------------------------- */

void mock_kv_put_kept(struct mock_kv *kv, struct kvr_buf *b)
{
    uint64_t now = uv_now(&kv->mock->loop);
    kvr_json_key(b, "held");
    kvr_json_open(b, '[');
    for (const struct kvr_lru_entry *e = kv->kept.oldest; e; e = e->newer) {
        const struct mock_kept *k = (const struct mock_kept *)(const void *)e;
        size_t n;
        mock_hold_blocks(k->hold, &n);
        kvr_json_open(b, '{');
        kvr_json_put_str(b, "request_id", k->key);
        kvr_json_put_u64(b, "blocks", n);
        kvr_json_put_double(b, "age_s", (double)(now - k->since_ms) / 1000);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, ']');
}

uint64_t mock_kv_kept_blocks(const struct mock_kv *kv, const struct mock_rank *rank)
{
    uint64_t sum = 0;
    for (const struct kvr_lru_entry *e = kv->kept.oldest; e; e = e->newer) {
        const struct mock_kept *k = (const struct mock_kept *)(const void *)e;
        size_t n;
        mock_hold_blocks(k->hold, &n);
        sum += k->rank == rank ? n : 0;
    }
    return sum;
}
