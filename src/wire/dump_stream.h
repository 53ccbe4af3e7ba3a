/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading another indexer's /dump as it arrives, in memory that does not grow with it:
 *
 *     {"<model>:<group>": {"block_size": n, "events": [RouterEvent, ...], "views": [...]}, ...}
 *
 * The text is cut into the elements of the two arrays, which are parsed one by one. "views" is our own addition (where each
 * rank stands in its stream); other members are skipped, but for "error", which fails the dump, as a partition without
 * block_size before its events does.
 */
#ifndef KVR_WIRE_DUMP_STREAM_H
#define KVR_WIRE_DUMP_STREAM_H

#include <kvroute/event.h>

#include "base/buf.h"
#include "wire/json.h"

struct kvr_dump_view {
    struct kvr_worker worker;
    bool trusted, partial; /* partial: older blocks may be missing */
    uint64_t next_sequence, last_hash;
    double last_ts;
};

struct kvr_dump_handler {
    /* A partition begins. Non-zero from any of these stops the reading with that value. */
    int (*on_partition)(void *ctx, const char *model, const char *group, uint32_t block_size);
    int (*on_event)(void *ctx, const struct kvr_event *ev); /* stored only; borrowed */
    int (*on_view)(void *ctx, const struct kvr_dump_view *view);
    void *ctx;
};

struct kvr_dump_stream {
    struct kvr_dump_handler handler;
    struct kvr_json_parser *json;
    struct kvr_buf text; /* the string, number or element being read */
    struct kvr_block *blocks;
    size_t blocks_cap;
    char key[1100];  /* of the partition */
    char member[16]; /* of the partition's object; longer ones are cut */
    int depth;
    bool in_string, escaped, have_key, in_value, announced, element, over;
    uint64_t block_size;
    const char *why; /* what is wrong, after an error */
};

int kvr_dump_stream_init(struct kvr_dump_stream *s, const struct kvr_dump_handler *handler);
void kvr_dump_stream_free(struct kvr_dump_stream *s);
/* Returns: 0, -KVR_EFORMAT (see why), -KVR_ENOMEM, or what the handler returned. */
int kvr_dump_stream_feed(struct kvr_dump_stream *s, const char *data, size_t len);
/* Did the dump end where it should? */
bool kvr_dump_stream_over(const struct kvr_dump_stream *s);

#endif
