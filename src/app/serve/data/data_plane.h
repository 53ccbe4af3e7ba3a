/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room of clients' requests: the data loops, and what is kept of what passed through them. request/request.h draws the way of a
 * request through the folders; state/room.h is the room's state.
 *
 * Threads: the main loop, but where another one is named.
 */
#ifndef KVR_SERVE_DATA_PLANE_H
#define KVR_SERVE_DATA_PLANE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct config;
struct data_plane;
struct kvr_buf;
struct kvr_http_shared;
struct kvr_prom_page;
struct peers;
struct process;
struct tokenizers;
struct workers;

/* What is below this room. */
struct data_plane_uses {
    struct workers *workers;
    struct config *config;
    struct tokenizers *tokenizers;
    struct peers *peers;
};

/* Sockets of a process before this one, one for each loop; those beyond open their own. */
struct data_ports {
    const int *sockets;
    size_t sockets_n;
    bool waits;             /* for data_plane_take_connections */
    size_t connections_max; /* of each loop */
};

struct data_plane *data_plane_create(struct process *p, const struct data_plane_uses *uses); /* NULL: out of memory */
/* Where single requests are told of. Returns: 0, or -1 with the reason in err. */
int data_plane_observe(struct data_plane *d, char *err, size_t cap);
/* A port by its option (static). */
struct data_port_named {
    const char *option;
    uint64_t port;
};
/* Returns: 0, or UV_E...: a port cannot be had, which is *failed. */
int data_plane_open(struct data_plane *d, const struct data_ports *ports, struct data_port_named *failed);
int data_plane_run(struct data_plane *d);     /* each loop on its thread. Returns: 0 or -1 */
void data_plane_tick(struct data_plane *d);   /* every 0.1 s */
void data_plane_second(struct data_plane *d); /* every second */
void data_plane_metrics(struct data_plane *d, struct kvr_prom_page *out);
bool data_plane_stop(struct data_plane *d); /* no loop runs any more. Returns: whether they have */
/* Each loop's memory; nobody wakes one any more. Before workers and partitions go. */
void data_plane_free_loops(struct data_plane *d);
void data_plane_destroy(struct data_plane *d); /* NULL is fine */

void data_plane_wake_parked(struct data_plane *d);   /* requests that wait for a worker are looked at again. Any thread */
void data_plane_wake(struct data_plane *d);          /* all loops look around */
void data_plane_phase_changed(struct data_plane *d); /* process.phase */
bool data_plane_is_idle(const struct data_plane *d); /* no request is open and every answer has left, as far as each loop has looked */

void data_plane_take_connections(struct data_plane *d);        /* of ports that wait */
bool data_plane_takes_connections(const struct data_plane *d); /* all loops do */
void data_plane_take_none(struct data_plane *d);               /* new ones, when they are woken next */
bool data_plane_answers(struct data_plane *d);                 /* has each loop looked around since this was asked last? */
uint16_t data_plane_port(const struct data_plane *d);
uint16_t data_plane_picker_port(const struct data_plane *d);                   /* 0: there is none */
size_t data_plane_listeners(const struct data_plane *d, int *fds, size_t cap); /* how many */
/* Since the start; sessions and responses: those that are bound now. */
struct data_totals {
    uint64_t requests, retries, errors, prompt_tokens, predicted_cached_tokens, actual_cached_tokens;
    size_t sessions, responses;
};
struct data_totals data_plane_totals(struct data_plane *d);
/* What is kept of requests, as JSON: the latest decisions as a list; one of an id (false: it is not kept). */
void data_plane_decisions_write(struct data_plane *d, struct kvr_buf *b, size_t most);
bool data_plane_decision_write(struct data_plane *d, struct kvr_buf *b, const char *id, size_t len);
void data_plane_count_long_prompt(struct data_plane *d); /* one was refused for --max-prompt-tokens. Any thread */
bool data_plane_reopen_access_log(struct data_plane *d); /* false: there is none */
struct kvr_http_shared *data_plane_http(struct data_plane *d);

#endif
