/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/record.h"

#include "recover/event_json.h"
#include "wire/router_event.h"

void kvr_record_write(struct kvr_buf *b, uint64_t timestamp_ms, const struct kvr_event *ev)
{
    b->comma = false;
    kvr_json_open(b, '{');
    kvr_json_put_u64(b, "timestamp", timestamp_ms);
    kvr_json_key(b, "event");
    kvr__event_json(b, ev, ev->event_id);
    kvr_json_close(b, '}');
    kvr_buf_str(b, "\n");
}

int kvr_record_read(struct kvr_json_parser *p, const char *line, size_t len, uint64_t *timestamp_ms, struct kvr_event *out,
                    struct kvr_block **blocks, size_t *cap)
{
    struct kvr_json o, ev, stamp;
    uint64_t ms = 0;
    int rc = kvr_json_parse(p, line, len, &o, NULL);
    if (rc) return rc;
    if (kvr_json_type_of(o) != KVR_JSON_OBJECT) return -KVR_EFORMAT;
    ev = kvr_json_get(o, "event");
    stamp = kvr_json_get(o, "timestamp");
    bool bare = kvr_json_type_of(kvr_json_get(o, "worker_id")) != KVR_JSON_NONE;
    if (kvr_json_type_of(stamp) != KVR_JSON_NONE && !kvr_json_as_u64(stamp, &ms)) return -KVR_EFORMAT;
    rc = kvr_router_event_read(bare ? o : ev, out, blocks, cap);
    if (rc == 0) *timestamp_ms = ms;
    return rc;
}
