/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster: which workers serve which model, worked out once for each change of the worker table, so that a request need not look at
 * every worker.
 *
 *     model --> row: every worker that serves it; of these, by what they do, the partition that most of them are in, and their ids there
 *
 * A roster does not change once it is made. Whoever holds a row holds its roster and the workers in it; a new roster takes the place of one
 * that is out of date at the next question. It has at most ROSTER_ROWS_MAX models and ROSTER_PLACES_MAX places of workers; models beyond
 * that (roster_models_left_out) get a roster of their own with each question, at the price of a look at every worker.
 *
 * Threads: any. Takes the table's lock when the table has changed, else a lock of its own for as long as it takes to count a holder.
 */
#ifndef KVR_SERVE_ROSTER_H
#define KVR_SERVE_ROSTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "app/serve/common/limits.h"
#include "app/serve/workers/table/role.h"
#include "wire/handoff.h"

enum { ROSTER_ROWS_MAX = 4096, ROSTER_PLACES_MAX = 1 << 21 };

struct partition;
struct roster;
struct workers;
struct worker;

struct roster_server {
    struct worker *worker;
    /* What choices are made of, beside each other: workers lie far apart, and a row is gone through several times. */
    struct partition *partition;
    uint64_t id;
    enum kvr_kv_protocol protocol;
    enum worker_role role;
    bool takes_whole, is_sglang, has_models;
    bool is_lora; /* it lists the model as an adapter */
};

/* Workers that a router may choose from. */
struct roster_choice {
    struct partition *partition; /* NULL: there are none */
    uint64_t *ids;               /* of those in that partition, in the order of the table */
    size_t n;
    bool all; /* that is every worker of the partition */
};

struct roster_row {
    struct roster *of;
    char model[MODEL_MAX];
    struct roster_choice main;  /* the workers that answer requests */
    struct roster_choice whole; /* of these, those that may be given whole requests; the same ids where there are no roles */
    struct roster_choice decode[KVR_KV_PROTOCOLS];  /* of these, those that go on from prompts computed elsewhere */
    struct roster_choice prefill[KVR_KV_PROTOCOLS]; /* the workers that compute prompts for others */
    bool has_roles;                                 /* a server has another role than both */
    bool is_lora;                                   /* a worker that answers lists it as an adapter */
    bool has_sglang;                                /* a server is no vLLM */
    uint64_t room;                                  /* tokens that the first server that says so has room for; 0: not known */
    struct roster_server *servers;                  /* of all partitions, in the order of the table */
    size_t servers_n, servers_cap;
    uint64_t *knowers; /* workers that were configured with the name or list it, rising */
    size_t knowers_n, knowers_cap;
    bool left_out; /* there was no room for all of its servers */
};

/* The row of a model; "": of requests that name none. A model that no worker knows has a row too: of the workers whose models are not known
 * yet. Give it back. Returns: NULL without memory. */
const struct roster_row *roster_hold(struct workers *ws, const char *model);
void roster_let_go(const struct roster_row *row); /* NULL is fine */
/* Of a row: does that worker know the model? */
bool roster_knows(const struct roster_row *row, uint64_t worker_id);
/* Calls `fn` with the row of each model that a worker knows. */
void roster_each_model(struct workers *ws, void (*fn)(void *ctx, const struct roster_row *row), void *ctx);
size_t roster_workers_n(const struct roster_row *row); /* in the table, whatever they serve */
/* The workers of a choice that are up, one after the other. Begin with zeroes; the worker is the row's. Returns: NULL: there is none more.
 */
struct roster_walk {
    size_t server, id;
};
const struct worker *roster_next_up(const struct roster_row *row, const struct roster_choice *choice, struct roster_walk *walk);
/* Is one of a choice up? */
bool roster_any_up(const struct roster_row *row, const struct roster_choice *choice);
/* A server of the row that may be chosen now and has these taints, any of them, with a reference; NULL: none. */
struct worker *roster_pick(struct workers *ws, const struct roster_row *row, const char *const *taints, size_t taints_n);
/* The worker table has changed, or what a worker serves. Under the table's lock. */
void roster_outdate_locked(struct workers *ws);
/* Main loop: workers that are gone do not stay in memory until the next question. */
void roster_tick(struct workers *ws);
/* Names of models, of each worker that has them, that found no room. */
size_t roster_models_left_out(struct workers *ws);
void roster_destroy(struct workers *ws);

#endif
