/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the room of workers (workers.h), which its own files alone see, in the order of the folders: the table, partitions, views,
 * and what single files own. A member says whose it is: under the table's lock, the main loop's, the ingest thread's, or atomic.
 */
#ifndef KVR_SERVE_WORKERS_ROOM_H
#define KVR_SERVE_WORKERS_ROOM_H

#include "app/serve/common/process.h"
#include "app/serve/workers/table/missed_rendezvous.h"
#include "app/serve/workers/table/partition.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "base/lock.h"
#include "base/map64.h"
#include "net/ingest/event_plane.h"

struct evidence;
struct health_checks;
struct kvr_durable_feed;
struct kvr_plane_feed;
struct kvr_http_client;
struct kvr_nats_sub;
struct kvr_recorder;
struct kvr_view_store;
struct labels;
struct model_table;
struct reading;
struct roster;
struct supposition;
struct survey;

/* Readings of engines' loads: engine_load.c. The main loop's. */
struct engine_loads {
    struct kvr_http_client *client; /* made at first use */
    struct reading *readings;       /* under way */
    size_t readings_n;
    struct kvr_nats_sub *reports; /* NULL: none */
};

struct workers {
    const struct serve_options *o;
    struct process *process;
    struct workers_hooks hooks;
    void *listener; /* workers_set_listener */
    struct worker_counters counters;
    unsigned ticks;

    /* The table: table.c, workers.c, availability.c. */
    struct kvr_lock lock;
    struct worker *workers;
    size_t workers_n;
    struct worker **workers_end; /* where the next one is put; NULL: at the beginning. Main loop */
    uint64_t ups;                /* of all workers that there have been */
    struct kvr_map64 workers_by_id;
    struct kvr_map64 workers_at;      /* how many have an address, by the key of their endpoint. Main loop */
    _Atomic uint64_t workers_version; /* rises under lock, with what the roster is made of */
    _Atomic bool has_roles;           /* a worker of role prefill or decode has been there */
    _Atomic uint64_t breaker_due_ms;  /* a breaker's pause is over then; 0: none is open */
    struct kvr_lock roster_lock;
    struct roster *roster; /* NULL: none has been asked for */

    /* partitions.c */
    struct partition *partitions;
    const struct policy_profile *profiles; /* of queues; main loop's */
    size_t profiles_n;
    _Atomic int mode; /* enum kvr_router_mode */

    /* views.c */
    struct kvr_ingest *ingest;    /* NULL: caches are predicted */
    struct kvr_view_store *store; /* NULL: no data directory, or the process before has it yet. Main loop's */
    bool disk_refused;            /* it cannot be had */
    _Atomic bool views_wanted;    /* something reads views, or has read some; the main loop sets it */
    struct kvr_durable_feed *durable;
    struct kvr_plane_feed *feed;      /* NULL: each source has its own socket */
    struct kvr_recorder *recorder;    /* NULL: nothing is recorded */
    struct kvr_catch_up catch_up;     /* main loop's */
    _Atomic bool caught_up;           /* the durable stream: as far as can be waited for */
    struct supposition *suppositions; /* the ingest thread's */
    _Atomic uint64_t view_tick;       /* rises with each event of a rank of which things are supposed, before it is applied */
    _Atomic uint64_t view_supposed;   /* blocks in views for which only our own requests speak */

    /* Each of a file of that name; with locks of their own, or the main loop's. */
    struct evidence *evidence;
    struct labels *labels;
    struct model_table *model_counts;
    struct engine_loads engine_loads;
    struct missed_rendezvous missed;
    struct health_checks *health_checks;
    struct survey *surveys; /* under way; main loop's */
    size_t surveys_n;
};

/* The table without workers: workers.c. Nothing of it runs any more. */
void workers_clear(struct workers *ws);

#endif
