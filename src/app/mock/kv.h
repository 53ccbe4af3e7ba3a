/* SPDX-License-Identifier: Apache-2.0 */
/*
 * KV transfers: one mock computes a prompt and keeps its blocks, another one fetches them and generates (docs/guides/mock.md).
 *
 *     kv.c         start and end, what is told of transfers (GET /mock/kv, metrics)
 *       kv_params.c  members of requests and answers that speak of transfers
 *       kv_trtllm.c  those of TensorRT-LLM
 *       kv_boot.c    where those who fetch ask for the addresses of ranks (sglang, vllm-mooncake)
 *       kv_keep.c    the side that keeps: blocks, leases, who may have them, rooms where both sides meet
 *       kv_fetch.c   the side that fetches
 *       kv_line.c    lines of JSON between the two
 *
 * The side channel is the mocks' own; engines have others. One connection for each fetch, one object a line:
 *
 *     {"op":"beat","key":K}                              the lease begins anew
 *     {"op":"pull","key":K,"engine":E}                -> {"state":"kept","block_size":b,"salt":s,"cached":c,"blocks":[...],"tokens":[...]}
 *                                                        or "unknown" (never there, used, expired), or "engine" (not E), or "late" (nobody
 * came)
 *     {"op":"done","key":K}                           -> {"state":"freed"}, or "unknown": it has expired meanwhile
 *     {"op":"release","key":K}                           nobody will pull it
 *
 * Limits: MOCK_KV_KEPT_MAX requests are kept or waited for, further ones have no hand-off; MOCK_KV_PEERS_MAX connections, further ones are
 * closed; a line of a fetcher has 4 KiB, one of a keeper 96 MiB. Whoever says what is no line of the above is cut off. Threads: one. Units:
 * seconds in options, milliseconds here. Times of transfers are real: --speedup does not divide them.
 */
#ifndef KVR_APP_MOCK_KV_H
#define KVR_APP_MOCK_KV_H

#include <uv.h>

#include "base/lru.h"
#include "sim/engine.h"
#include "wire/json.h"

struct kvr_buf;
struct kvr_http_conn;
struct kvr_prom_page;
struct mock;
struct mock_rank;
struct mock_exchange;
struct mock_sequence;
struct mock_kv;

enum { MOCK_KV_KEY_MAX = 192, MOCK_KV_NAME_MAX = 80, MOCK_KV_HOST_MAX = 256, MOCK_KV_KEPT_MAX = 65536, MOCK_KV_PEERS_MAX = 2048 };

/* In the order of --kv-protocol, --role, --kv-load-failure-policy, --fault-die-after. */
enum mock_kv_protocol { MOCK_KV_NIXL, MOCK_KV_PUSH, MOCK_KV_MOONCAKE, MOCK_KV_SGLANG, MOCK_KV_TRTLLM, MOCK_KV_NONE };
#define MOCK_KV_PROTOCOLS "vllm-nixl|vllm-nixl-push|vllm-mooncake|sglang|trtllm|none"
#define MOCK_KV_ROLES     "both|prefill|decode"
#define MOCK_KV_POLICIES  "fail|recompute"
#define MOCK_DEATHS       "none|prefill|pull"
enum mock_role { MOCK_BOTH, MOCK_PREFILL, MOCK_DECODE };
enum mock_death { MOCK_DIE_NEVER, MOCK_DIE_AFTER_PREFILL, MOCK_DIE_AFTER_PULL };
enum mock_kv_policy { MOCK_KV_FAIL, MOCK_KV_RECOMPUTE };

/* ---- kv.c -------------------------------------------------------------------------------------------- */

/* Whom transfers tell: generate.c, which is above. None is called within a call from there. */
struct mock_kv_hooks {
    /* The KV of a sequence has come, or nothing has (tokens 0, to be computed). spoilt: it is another prompt's. */
    void (*loaded)(struct mock_sequence *s, size_t tokens, bool spoilt, uint64_t cached_there);
    /* It does not come. fatal: the request fails, whatever --kv-load-failure-policy says. */
    void (*failed)(struct mock_sequence *s, const char *why, bool fatal);
    /* Blocks are free again: somebody may have waited for them. */
    void (*wake)(struct mock_rank *r);
    /* Somebody has fetched what was kept, and knows that it is his. */
    void (*pulled)(struct mock *m);
    /* To the owner of a room: its reader is there; has all of it; has not come or has gone. */
    void (*met)(struct mock_sequence *s);
    void (*handed)(struct mock_sequence *s);
    void (*lost)(struct mock_sequence *s);
};

/* Returns: 0, or 1 when it was said what is wrong. Owns: the mock, m->kv, which is to be stopped and freed after either. */
int mock_kv_start(struct mock *m, const struct mock_kv_hooks *hooks);
/* Closes everything; the loop is run before the memory goes. NULL is fine for both. */
void mock_kv_stop(struct mock_kv *kv);
void mock_kv_free(struct mock_kv *kv);
void mock_kv_tell(struct mock *m, struct kvr_http_conn *c);
void mock_kv_metrics(struct mock *m, struct kvr_prom_page *page);

/* ---- kv_params.c ------------------------------------------------------------------------------------- */

enum mock_kv_leg { MOCK_KV_ALONE, MOCK_KV_KEEPS, MOCK_KV_FETCHES };

/* What a request says of transfers. */
struct mock_kv_ask {
    enum mock_kv_leg leg;
    const char *lacks; /* a member that must be there and is not; static. NULL: none */
    char key[MOCK_KV_KEY_MAX], engine[MOCK_KV_NAME_MAX], host[MOCK_KV_HOST_MAX];
    uint16_t port;
    uint64_t disagg_id;               /* of trtllm */
    char boot[MOCK_KV_HOST_MAX + 32]; /* URL that tells the address of the rank; "": host and port are known */
    uint32_t *blocks;                 /* owned */
    size_t blocks_n;
    uint64_t *rooms; /* of each sequence; owned. NULL: the key is that of all */
    size_t rooms_n;
    int64_t routed;    /* the rank that is asked for; -1: none */
    int64_t kept_rank; /* where to fetch; -1: as the room says */
    char rid[MOCK_KV_KEY_MAX];
};

/* Returns: 0, or -KVR_ENOMEM. */
int mock_kv_read(const struct mock *m, struct kvr_json body, struct mock_kv_ask *out);
void mock_kv_ask_free(struct mock_kv_ask *a);
/* What both sides call the KV of a sequence. */
void mock_kv_key(const struct mock_kv_ask *a, uint32_t sequence, char out[MOCK_KV_KEY_MAX]);
/* Whether the legs are sent at once: one waits for the other. */
bool mock_kv_meets(const struct mock *m);
/* The value of kv_transfer_params in an answer. */
void mock_kv_put_params(struct kvr_buf *b, const struct mock_exchange *x);

/* ---- kv_trtllm.c ------------------------------------------------------------------------------------- */

void mock_kv_read_trtllm(struct kvr_json body, struct mock_kv_ask *out);
/* The value of disaggregated_params in an answer. */
void mock_kv_put_trtllm(struct kvr_buf *b, const struct mock_exchange *x);

/* ---- kv_keep.c --------------------------------------------------------------------------------------- */

struct mock_kept;

/* Names the request of a leg that keeps, in x->ask.kv.key; the headers of its request are still there. */
void mock_kv_name(struct mock_exchange *x);
/* Within on_token, when it is the last one. Returns: NULL when nothing is kept: no memory, or too much of it. Lives until the answer has
 * been written, and longer if nobody lets it go. */
struct mock_kept *mock_kv_keep(struct mock_sequence *s, struct mock_request *r);
/* The sequence waits for its reader. *met: it is there. Returns: NULL when memory is short or rooms are. */
struct mock_kept *mock_kv_open_room(struct mock_sequence *s, bool *met);
bool mock_kv_in_use(const struct mock *m, const struct mock_kv_ask *a);
/* The owner goes. */
void mock_kv_abandon(struct mock *m, struct mock_kept *k);
void mock_kv_count_aborted(struct mock *m);

/* ---- kv_fetch.c -------------------------------------------------------------------------------------- */

struct mock_fetch;

/* Connects, and keeps the lease alive. One of the hooks loaded and failed ends it, in a later turn of the loop; so does mock_kv_leave.
 * Returns: NULL when memory is short. */
struct mock_fetch *mock_kv_fetch(struct mock_sequence *s);
/* The sequence has its blocks; the leading ones have `cached` tokens. */
void mock_kv_pull(struct mock_fetch *f, size_t cached);
/* The sequence goes. What was not pulled is released. NULL is fine. */
void mock_kv_leave(struct mock_fetch *f);
/* Whether one of these rooms is waited in or read. */
bool mock_kv_is_fetched(const struct mock *m, const struct mock_kv_ask *a);
/* A request that was refused before it began. */
void mock_kv_release(struct mock *m, const struct mock_kv_ask *a);

/* ---- kv_boot.c --------------------------------------------------------------------------------------- */

struct mock_lookup;

struct mock_lookup_answer {
    char host[MOCK_KV_HOST_MAX], engine[MOCK_KV_NAME_MAX];
    uint16_t port;
};

struct mock_lookup_question {
    const char *url;               /* of the bootstrap port; borrowed for the call */
    char engine[MOCK_KV_NAME_MAX]; /* "": the rank is meant */
    int64_t rank;                  /* -1: that of the room */
    uint64_t room;
    /* Once, in a later turn, unless it is cancelled. NULL: there is no such rank, or no answer. */
    void (*told)(void *ctx, const struct mock_lookup_answer *answer);
    void *ctx;
};

/* Returns: 0 or a libuv error. */
int mock_kv_open_boot(struct mock_kv *kv);
/* Returns: NULL when the URL is none, or memory is short. */
struct mock_lookup *mock_kv_look_up(struct mock_kv *kv, const struct mock_lookup_question *q);
void mock_kv_look_up_cancel(struct mock_lookup *l); /* NULL is fine */

/* ---- kv_line.c --------------------------------------------------------------------------------------- */

struct mock_kv_line {
    uv_tcp_t tcp; /* data: the line */
    uv_shutdown_t end;
    struct kvr_json_parser *json;
    struct kvr_buf *in;
    size_t max;
    int status; /* of the last read: why it has ended, UV_EOF, or 0: what was said is no line */
    /* May close the line. */
    void (*on_line)(struct mock_kv_line *l, struct kvr_json said);
    /* The peer has ended, or says what is no line. The line is to be closed. */
    void (*on_end)(struct mock_kv_line *l);
};

/* Where others reach this process. */
const char *mock_kv_own_host(const struct mock *m);
/* Returns: 0, or -1: the host is neither an address nor localhost. */
int mock_kv_address(const char *host, uint16_t port, struct sockaddr_storage *out);
/* Returns: 0 or a libuv error; either way the line is to be closed when json is not NULL. The handlers and `max` are set by the caller. */
int mock_kv_line_init(struct mock_kv_line *l, uv_loop_t *loop);
int mock_kv_line_listen(struct mock_kv_line *l);
/* Sends the buffer and a newline. The buffer goes. */
void mock_kv_line_send(struct mock_kv_line *l, struct kvr_buf *b);
/* Calls on_end when what was sent has left. */
void mock_kv_line_finish(struct mock_kv_line *l);
/* Frees what the line has; its own memory is free after the callback. */
void mock_kv_line_close(struct mock_kv_line *l, uv_close_cb closed);

/* ---- between the files of it ------------------------------------------------------------------------------- */

enum mock_kv_how { MOCK_KV_PULLED, MOCK_KV_NOTIFIED, MOCK_KV_ABORTED, MOCK_KV_EXPIRED, MOCK_KV_HOWS };

struct mock_kv_port {
    struct mock_rank *rank;
    uv_tcp_t tcp;
    bool open;
    uint16_t number;
    char engine[MOCK_KV_NAME_MAX];
};

struct mock_kv_table {
    struct mock_kv *kv;
    struct kvr_lru list; /* oldest: which ends first */
    uint64_t span_ms;
    uv_timer_t timer; /* of the oldest */
};

struct mock_kv {
    struct mock *mock;
    struct mock_kv_hooks tell;
    struct mock_kv_port ports[64];
    struct mock_kv_table kept, rooms;
    struct kvr_http_server *boot;
    struct kvr_http_client *client;
    struct mock_peer *peers;
    size_t peers_n;
    struct mock_fetch *fetches;
    uint64_t released[MOCK_KV_HOWS], bad_pulls, reads;
    bool stopping;
};

int mock_kv_open_port(struct mock_kv *kv, struct mock_rank *rank, uint16_t number);
int mock_kv_start_keeping(struct mock_kv *kv);
void mock_kv_stop_keeping(struct mock_kv *kv);
uint64_t mock_kv_waiting_fetches(const struct mock_kv *kv);
void mock_kv_stop_fetching(struct mock_kv *kv);
void mock_kv_put_kept(struct mock_kv *kv, struct kvr_buf *b);
uint64_t mock_kv_kept_blocks(const struct mock_kv *kv, const struct mock_rank *rank);
const char *mock_kept_key(const struct mock_kept *k);
const struct mock_hold *mock_kept_hold(const struct mock_kept *k);

#endif
