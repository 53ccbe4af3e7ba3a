/* SPDX-License-Identifier: Apache-2.0 */
/* A growing list of events with copies of what they point to: content that is collected before it is used. Single-threaded. */
#ifndef KVR_RECOVER_EVENT_LIST_H
#define KVR_RECOVER_EVENT_LIST_H

#include <kvroute/event.h>

#include "base/base.h"

struct kvr_event_list {
    struct kvr_mem mem;
    struct kvr_event *events;
    size_t n, cap;
    char *data;
    size_t data_n, data_cap;
};

/* alloc NULL: libc. A zeroed list is fine too, for kvr__event_list_free. */
void kvr__event_list_init(struct kvr_event_list *l, const struct kvr_alloc *alloc);
void kvr__event_list_free(struct kvr_event_list *l);
/* Bytes of an event's blocks or hashes. */
size_t kvr__event_bytes(const struct kvr_event *ev);
/* Returns: 0, -KVR_ENOMEM. */
int kvr__event_list_add(struct kvr_event_list *l, const struct kvr_event *ev);
/* The n events with what they point to, valid until the next add. */
const struct kvr_event *kvr__event_list_events(struct kvr_event_list *l);

#endif
