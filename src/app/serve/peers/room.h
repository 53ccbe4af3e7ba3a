/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the room of other routers (peers.h), which its own files alone see: replicas.c, shards.c, index_server.c and remote.c each
 * have a part of it. The main loop's, but for what is atomic or said to be another thread's.
 */
#ifndef KVR_SERVE_PEERS_ROOM_H
#define KVR_SERVE_PEERS_ROOM_H

#include <stdatomic.h>

#include "app/serve/common/limits.h"
#include "app/serve/common/process.h"
#include "app/serve/peers/peers.h"
#include "app/serve/peers/remote.h"
#include "net/http/http.h"
#include "net/replication/remote_index.h"

struct kvr_sync;
struct replicas;
struct index_server;
struct shards;

struct peers {
    const struct serve_options *o;
    struct process *process;
    struct workers *workers;
    struct peers_hooks hooks;
    struct kvr_sync *sync;       /* NULL: alone */
    struct replicas *replicas;   /* the sync thread's; of it the counters are any thread's */
    struct shards *shards;       /* main loop's; NULL: there are not several indexers */
    struct index_server *served; /* NULL: the index is not served */

    /* remote.c: --use-remote-indexer, over HTTP or over NATS; neither: not used */
    struct kvr_endpoint remote[REMOTES_MAX];
    size_t remote_n;
    char **remote_keys; /* the first is sent to these; NULL: none */
    char remote_scope[KVR_SCOPE_MAX];
    struct kvr_remote_stats remote_stats; /* of all loops */
    struct remote_counters remote_counters;
    _Atomic int remote_opened; /* clients that there are */
    _Atomic bool remote_seen;  /* all of them have been found good once, or waited for long enough */
};

#endif
