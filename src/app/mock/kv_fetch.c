/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that fetches: one connection for each sequence whose KV comes from another mock (app/mock/kv.h).
 *
 *     (looking ->) connecting -> idle -- pull --> asked -- kept --> reading -- done --> freeing -- freed --> loaded
 *                      |         beats             |                                      |
 *                      |                           '----- unknown: used or expired -------'-------------> loaded with garbage
 *                      '---- refused, closed, silent, another engine, another prompt -------------------> failed
 *
 * From any of these, when the sequence goes: release (unless done was said) -> ending, until the other side has closed.
 *
 * Invariants. A fetch with a sequence ends it once: loaded or failed, never within a call from outside. A fetch without one
 * only sees to it that the release gets there.
 */
#include "app/mock/kv.h"

#include <string.h>

#include "app/mock/generate.h"
#include "base/list.h"

enum { ANSWER_MS = 5000, KEPT_LINE_MAX = 96 << 20 };

enum state { LOOKING, CONNECTING, IDLE, ASKED, READING, FREEING, FAILED, ENDING };

struct mock_fetch {
    struct mock_kv_line line; /* first */
    uv_connect_t connect;
    uv_timer_t wait, beat;
    struct mock_kv *kv;
    struct mock_sequence *sequence; /* NULL: it went */
    struct mock_fetch *next, *prev;
    enum state state;
    bool wanted; /* the sequence waits for it */
    bool spoilt; /* what was read is not what was asked for */
    bool fatal;  /* failed, and recomputing would hide it */
    size_t cached, tokens;
    const char *why; /* failed; static */
    unsigned handles;
    struct mock_lookup *lookup; /* NULL: its address is known */
    uint64_t cached_there;
    char key[MOCK_KV_KEY_MAX], engine[MOCK_KV_NAME_MAX];
};

/* ---- ends ---------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *h)
{
    struct mock_fetch *f = h->data;
    if (--f->handles == 0) free(f);
}

static void close_fetch(struct mock_fetch *f)
{
    KVR_LIST_TAKE(f->kv->fetches, f);
    mock_kv_look_up_cancel(f->lookup);
    f->lookup = NULL;
    mock_kv_line_close(&f->line, on_closed);
    uv_close((uv_handle_t *)&f->wait, on_closed);
    uv_close((uv_handle_t *)&f->beat, on_closed);
}

/* Takes the sequence from the fetch, which ends. */
static struct mock_sequence *part(struct mock_fetch *f)
{
    struct mock_sequence *s = f->sequence;
    f->sequence = NULL;
    close_fetch(f);
    return s;
}

static void load(struct mock_fetch *f)
{
    struct mock_kv *kv = f->kv;
    size_t tokens = f->tokens;
    uint64_t cached = f->cached_there;
    bool spoilt = f->spoilt;
    if (spoilt) kv->bad_pulls++;
    kv->tell.loaded(part(f), tokens, spoilt, cached);
}

static void on_wait(uv_timer_t *t);

/* The sequence is told in a turn of its own, when it waits. */
static void fail(struct mock_fetch *f, const char *why)
{
    if (!f->sequence) {
        close_fetch(f);
        return;
    }
    f->state = FAILED;
    f->why = why;
    uv_timer_stop(&f->beat);
    if (f->wanted) uv_timer_start(&f->wait, on_wait, 0, 0);
}

/* ---- what is said -------------------------------------------------------------------------------------- */

static void say(struct mock_fetch *f, const char *op, const char *engine)
{
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'op':%s,'key':%s", op, f->key);
    if (engine) kvr_json_printf(&b, "'engine':%s", engine);
    kvr_json_close(&b, '}');
    mock_kv_line_send(&f->line, &b);
}

/* The other side may not have begun yet. */
static uint64_t waits_ms(const struct mock_fetch *f)
{
    return mock_kv_meets(f->kv->mock) ? (uint64_t)(f->kv->mock->o->bootstrap_timeout * 1000) : ANSWER_MS;
}

static void ask(struct mock_fetch *f)
{
    f->state = ASKED;
    say(f, "pull", f->engine);
    uv_timer_start(&f->wait, on_wait, waits_ms(f), 0);
}

static void give_up(struct mock_fetch *f)
{
    enum state before = f->state;
    f->state = ENDING;
    uv_timer_stop(&f->beat);
    uv_timer_stop(&f->wait);
    if (before == IDLE && mock_kv_meets(f->kv->mock)) { /* the other side has not heard of it */
        close_fetch(f);
        return;
    }
    if (before != FREEING) say(f, "release", NULL);
    mock_kv_line_finish(&f->line);
}

static void on_beat(uv_timer_t *t)
{
    struct mock_fetch *f = t->data;
    say(f, "beat", NULL);
}

static bool fails_by_fault(struct mock_kv *kv)
{
    uint64_t every = kv->mock->o->kv_fail_every;
    return every && ++kv->reads % every == 0;
}

static void on_wait(uv_timer_t *t)
{
    struct mock_fetch *f = t->data;
    if (f->state == READING && fails_by_fault(f->kv)) {
        fail(f, "--kv-fail-every");
    } else if (f->state == READING) {
        f->state = FREEING;
        say(f, "done", NULL);
        uv_timer_start(&f->wait, on_wait, ANSWER_MS, 0);
    } else if (f->state == FAILED) {
        const char *why = f->why;
        bool fatal = f->fatal;
        struct mock_kv *kv = f->kv;
        kv->tell.failed(part(f), why, fatal);
    } else {
        fail(f, "the other engine does not answer");
    }
}

/* ---- what is heard ------------------------------------------------------------------------------------- */

static bool said_state(struct kvr_json said, const char *state)
{
    return kvr_json_is_str(kvr_json_get(said, "state"), state);
}

/* Returns: the list, to be freed, or NULL. */
static uint32_t *read_list(struct kvr_json said, const char *name, size_t *n)
{
    struct kvr_json list = kvr_json_get(said, name);
    *n = kvr_json_count(list);
    uint32_t *v = malloc((*n + 1) * sizeof *v);
    if (v && kvr_json_u32_array(list, v, *n) == (long)*n) return v;
    free(v);
    return NULL;
}

/* How many tokens of the own prompt they are. Returns: -1: they are of another one. */
static int compare_tokens(const struct mock_fetch *f, struct kvr_json said, size_t *out)
{
    const struct mock_prompt *own = f->sequence->prompt;
    uint64_t salt = 0;
    size_t n;
    uint32_t *tokens = read_list(said, "tokens", &n);
    bool same = tokens && n <= own->n && memcmp(tokens, own->tokens, n * sizeof *tokens) == 0 &&
                kvr_json_as_u64(kvr_json_get(said, "salt"), &salt) && salt == f->sequence->exchange->salt;
    free(tokens);
    *out = n;
    return same ? 0 : -1;
}

/* Whether the blocks that the request names are those that are kept: an engine reads whatever it is told to. */
static bool same_blocks(const struct mock_fetch *f, struct kvr_json said)
{
    const struct mock_kv_ask *a = &f->sequence->exchange->ask.kv;
    size_t n;
    if (f->kv->mock->o->kv_protocol != MOCK_KV_NIXL) return true; /* none are named */
    uint32_t *blocks = read_list(said, "blocks", &n);
    bool same = blocks && n == a->blocks_n && memcmp(blocks, a->blocks, n * sizeof *blocks) == 0;
    free(blocks);
    return same;
}

static void start_reading(struct mock_fetch *f)
{
    const struct mock_options *o = f->kv->mock->o;
    double seconds = o->kv_latency;
    size_t missing = f->tokens > f->cached ? f->tokens - f->cached : 0;
    if (o->kv_bandwidth > 0) seconds += (double)missing * (double)o->kv_bytes_per_token / o->kv_bandwidth;
    f->state = READING;
    uv_timer_start(&f->wait, on_wait, (uint64_t)(seconds * 1000), 0);
}

static void on_kept(struct mock_fetch *f, struct kvr_json said)
{
    uint64_t size = 0;
    if (!kvr_json_as_u64(kvr_json_get(said, "block_size"), &size) || size != f->kv->mock->o->block_size) {
        fail(f, "the other engine has blocks of another size");
    } else if (compare_tokens(f, said, &f->tokens)) {
        f->fatal = true;
        fail(f, "what is kept under this name is of another prompt");
    } else {
        f->spoilt = !same_blocks(f, said);
        kvr_json_as_u64(kvr_json_get(said, "cached"), &f->cached_there);
        start_reading(f);
    }
}

static void on_fetch_line(struct mock_kv_line *l, struct kvr_json said)
{
    struct mock_fetch *f = (struct mock_fetch *)l;
    if (f->state == ENDING || f->state == FAILED) return;
    if (f->state == ASKED && said_state(said, "kept")) {
        on_kept(f, said);
    } else if (f->state == FREEING && said_state(said, "freed")) {
        load(f);
    } else if (said_state(said, "late")) {
        fail(f, "the other side has not come, or has gone");
    } else if ((f->state == ASKED || f->state == FREEING) && said_state(said, "unknown")) {
        f->tokens = f->sequence->prompt->n;
        f->spoilt = true;
        load(f);
    } else {
        fail(f, "the other side is not the engine that was named");
    }
}

static void on_fetch_end(struct mock_kv_line *l)
{
    fail((struct mock_fetch *)l, l->status == UV_EOF ? "the other engine has closed the connection"
                                 : l->status         ? uv_strerror(l->status)
                                                     : "the other engine says what is no line");
}

static void on_connect(uv_connect_t *c, int status)
{
    struct mock_fetch *f = c->data;
    if (uv_is_closing((uv_handle_t *)&f->line.tcp)) return;
    if (status < 0 || mock_kv_line_listen(&f->line)) {
        fail(f, "the other engine cannot be reached");
    } else if (!f->sequence) {
        give_up(f);
    } else {
        uint64_t every = (uint64_t)(f->kv->mock->o->kv_heartbeat * 1000);
        f->state = IDLE;
        if (!mock_kv_meets(f->kv->mock)) uv_timer_start(&f->beat, on_beat, every, every);
        if (f->wanted) ask(f);
    }
}

/* ---- interface ----------------------------------------------------------------------------------------- */

static void connect_to(struct mock_fetch *f, const char *host, uint16_t port)
{
    struct sockaddr_storage at;
    f->state = CONNECTING;
    if (mock_kv_address(host, port, &at) || uv_tcp_connect(&f->connect, &f->line.tcp, (struct sockaddr *)&at, on_connect))
        fail(f, "the address of the other engine is none");
}

static void on_looked_up(void *ctx, const struct mock_lookup_answer *answer)
{
    struct mock_fetch *f = ctx;
    f->lookup = NULL;
    if (f->state != LOOKING) return; /* it was given up */
    if (!answer) {
        fail(f, "the bootstrap port does not know the engine");
        return;
    }
    memcpy(f->engine, answer->engine, sizeof f->engine);
    connect_to(f, answer->host, answer->port);
}

static void look_up(struct mock_fetch *f, const struct mock_kv_ask *a)
{
    struct mock_lookup_question q = {.url = a->boot, .rank = a->kept_rank, .told = on_looked_up, .ctx = f};
    memcpy(q.engine, a->engine, sizeof q.engine);
    if (a->rooms_n) q.room = a->rooms[f->sequence->index];
    f->state = LOOKING;
    if (!(f->lookup = mock_kv_look_up(f->kv, &q))) fail(f, "the address of the bootstrap port is none");
}

static struct mock_fetch *fetch_new(struct mock_kv *kv)
{
    struct mock_fetch *f = calloc(1, sizeof *f);
    if (!f) return NULL;
    if (mock_kv_line_init(&f->line, &kv->mock->loop)) {
        free(f);
        return NULL;
    }
    f->kv = kv;
    f->line.max = KEPT_LINE_MAX;
    f->line.on_line = on_fetch_line;
    f->line.on_end = on_fetch_end;
    uv_timer_init(&kv->mock->loop, &f->wait);
    uv_timer_init(&kv->mock->loop, &f->beat);
    f->connect.data = f->wait.data = f->beat.data = f;
    f->handles = 3;
    KVR_LIST_PUSH(kv->fetches, f);
    return f;
}

/* s NULL: only to release. */
static struct mock_fetch *fetch_start(struct mock_kv *kv, const struct mock_kv_ask *a, struct mock_sequence *s)
{
    struct mock_fetch *f = fetch_new(kv);
    if (!f) return NULL;
    f->sequence = s;
    mock_kv_key(a, s ? s->index : 0, f->key);
    memcpy(f->engine, a->engine, sizeof f->engine);
    if (a->boot[0]) look_up(f, a);
    else connect_to(f, a->host, a->port);
    return f;
}

struct mock_fetch *mock_kv_fetch(struct mock_sequence *s)
{
    return fetch_start(s->exchange->rank->mock->kv, &s->exchange->ask.kv, s);
}

void mock_kv_release(struct mock *m, const struct mock_kv_ask *a)
{
    if (!mock_kv_meets(m)) fetch_start(m->kv, a, NULL);
}

void mock_kv_pull(struct mock_fetch *f, size_t cached)
{
    f->wanted = true;
    f->cached = cached;
    if (f->state == IDLE) ask(f);
    else uv_timer_start(&f->wait, on_wait, f->state == FAILED ? 0 : ANSWER_MS, 0);
}

void mock_kv_leave(struct mock_fetch *f)
{
    if (!f) return;
    f->sequence = NULL;
    if (f->state == FAILED || f->state == LOOKING) close_fetch(f);
    else if (f->state == CONNECTING) uv_timer_stop(&f->wait);
    else give_up(f);
}

void mock_kv_stop_fetching(struct mock_kv *kv)
{
    while (kv->fetches) close_fetch(kv->fetches);
}

bool mock_kv_is_fetched(const struct mock *m, const struct mock_kv_ask *a)
{
    char key[MOCK_KV_KEY_MAX];
    for (const struct mock_fetch *f = m->kv->fetches; f; f = f->next)
        for (size_t i = 0; i < a->rooms_n && f->sequence; i++) {
            mock_kv_key(a, (uint32_t)i, key);
            if (strcmp(key, f->key) == 0) return true;
        }
    return false;
}

uint64_t mock_kv_waiting_fetches(const struct mock_kv *kv)
{
    uint64_t n = 0;
    for (const struct mock_fetch *f = kv->fetches; f && mock_kv_meets(kv->mock); f = f->next) n += f->sequence && f->state <= ASKED;
    return n;
}
