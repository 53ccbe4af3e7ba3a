/* SPDX-License-Identifier: Apache-2.0 */
/* The room of the admin port: what it answers, and files that are read again. Threads: the main loop. */
#ifndef KVR_SERVE_ADMIN_H
#define KVR_SERVE_ADMIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct admin;
struct config;
struct data_plane;
struct discovery;
struct kvr_http_shared;
struct partition;
struct peers;
struct process;
struct tokenizers;
struct workers;

/* What is below this room. */
struct admin_uses {
    struct workers *workers;
    struct config *config;
    struct tokenizers *tokenizers;
    struct discovery *discovery;
    struct peers *peers;
    struct data_plane *data;
};

/* A socket of a process before this one, or 0. */
struct admin_port {
    int socket;
    bool waits; /* for admin_take_connections */
    size_t connections_max;
};

struct admin *admin_create(struct process *p, const struct admin_uses *uses); /* NULL: out of memory */
int admin_open(struct admin *a, char *err, size_t cap);          /* reads --admin-key-file. Returns: 0, or -1 with the reason in err */
int admin_text_open(struct admin *a, char *err, size_t cap);     /* on select: for prompts that are text. Returns: as above */
int admin_start(struct admin *a, const struct admin_port *port); /* Returns: 0 or UV_E... */
void admin_tick(struct admin *a);                                /* every 0.1 s */
void admin_second(struct admin *a);                              /* every second */
void admin_stop(struct admin *a);                                /* nothing is answered any more */
void admin_destroy(struct admin *a);                             /* NULL is fine */

/* Is a selection of this partition booked, or does one wait? */
bool admin_asks_partition(struct admin *a, const struct partition *p);
void admin_lame(struct admin *a);
void admin_drain(struct admin *a);
bool admin_is_idle(const struct admin *a); /* every answer has left */
uint16_t admin_port(const struct admin *a);
int admin_listener(const struct admin *a);
void admin_take_connections(struct admin *a);
void admin_take_none(struct admin *a);
struct kvr_http_shared *admin_http(struct admin *a);

#endif
