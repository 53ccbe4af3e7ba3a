/* SPDX-License-Identifier: Apache-2.0 */
/* An index elsewhere answers us: remote.c. A loop's clients are its own. */
#ifndef KVR_SERVE_REMOTE_H
#define KVR_SERVE_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdatomic.h>
#include <uv.h>

#include "base/buf.h"
#include "base/histogram.h"

struct peers;
struct kvr_http_client;
struct kvr_prom_page;
struct kvr_remote_index;

struct remote_counters {
    struct kvr_histogram query_ms;
    _Atomic uint64_t partial; /* requests of which some of several indexers did not answer */
};

/* Reads --use-remote-indexer. Returns: 0, or -1 with the reason in err. */
int remote_parse(struct peers *peers, char *err, size_t cap);
bool remote_needs_nats(const struct peers *peers);
/* Clients of it for one loop, which are the loop's: out[REMOTES_MAX], *n of them; none: the index is here. */
int remote_open(struct peers *peers, uv_loop_t *loop, struct kvr_http_client *client, struct kvr_remote_index **out, size_t *n);
void remote_close(struct kvr_remote_index **clients, size_t *n);
/* What requests count of it. Any thread. */
struct remote_counters *remote_counters(struct peers *peers);
bool remote_settled(struct peers *peers); /* validated once, or not within --restore-timeout; any thread */
/* The model by which several indexers know a block size's workers, into out. false: there are not several; the model has its own name. */
bool remote_model(const struct peers *peers, uint32_t block_size, char *out, size_t cap);
void remote_metrics(struct peers *peers, struct kvr_prom_page *out);

#endif
