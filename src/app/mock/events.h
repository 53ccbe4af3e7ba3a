/* SPDX-License-Identifier: Apache-2.0 */
/* The KV event stream of one rank: PUB with sequences from 0, and a ROUTER that replays the last batches. */
#ifndef KVR_MOCK_EVENTS_H
#define KVR_MOCK_EVENTS_H

#include <uv.h>
#include <kvroute/event.h>

#include "base/buf.h"

struct mock_events;

struct mock_events_config {
    void *zmq;
    uv_loop_t *loop;
    const char *events, *replay; /* bind endpoints; replay may be NULL */
    uint32_t rank, block_size;
    uint64_t replay_buffer, drop_every;
    const char *topic;    /* first frame of a message; may be empty */
    bool topic_in_replay; /* its answers have that frame too */
    bool arrays;          /* events are arrays, as those of older engines */
    bool omit_salt;       /* fault: events do not tell the cache salt */
    int offload;          /* enum mock_offload_form (encode.h) */
};

/* Returns: NULL when an endpoint cannot be bound; errno tells. */
struct mock_events *mock_events_create(const struct mock_events_config *config);
void mock_events_destroy(struct mock_events *m);
/* Adds an event to the batch that is being made. lora and salt may be NULL. */
void mock_events_add(struct mock_events *m, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n, const char *lora,
                     const char *salt);
/* The same of a chunk in the host's memory; it comes behind what the batch tells of the device. */
void mock_events_add_host(struct mock_events *m, const struct kvr_event *ev, const uint32_t *tokens, size_t tokens_n);
/* Publishes the batch, if it holds anything. */
void mock_events_flush(struct mock_events *m);
uint64_t mock_events_published(const struct mock_events *m); /* batches, those that were dropped on purpose among them */

#endif
