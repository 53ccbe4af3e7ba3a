/* SPDX-License-Identifier: Apache-2.0 */
#include "recover/event_list.h"

#include <string.h>

void kvr__event_list_init(struct kvr_event_list *l, const struct kvr_alloc *alloc)
{
    *l = (struct kvr_event_list){0};
    kvr_mem_init(&l->mem, alloc, 0);
}

void kvr__event_list_free(struct kvr_event_list *l)
{
    if (!l->mem.a.resize) return;
    kvr_mem_put(&l->mem, l->events, l->cap * sizeof *l->events);
    kvr_mem_put(&l->mem, l->data, l->data_cap);
    *l = (struct kvr_event_list){0};
}

size_t kvr__event_bytes(const struct kvr_event *ev)
{
    if (ev->kind == KVR_EVENT_STORED) return ev->blocks_n * sizeof *ev->blocks;
    return ev->kind == KVR_EVENT_REMOVED ? ev->removed_n * sizeof *ev->removed : 0;
}

int kvr__event_list_add(struct kvr_event_list *l, const struct kvr_event *ev)
{
    size_t bytes = kvr__event_bytes(ev);
    if (kvr_mem_grow(&l->mem, (void **)&l->events, &l->cap, l->n + 1, sizeof *l->events) ||
        kvr_mem_grow(&l->mem, (void **)&l->data, &l->data_cap, l->data_n + bytes + 1, 1))
        return -KVR_ENOMEM;
    l->events[l->n++] = *ev;
    if (bytes) memcpy(l->data + l->data_n, ev->kind == KVR_EVENT_STORED ? (const void *)ev->blocks : ev->removed, bytes);
    l->data_n += bytes;
    return 0;
}

const struct kvr_event *kvr__event_list_events(struct kvr_event_list *l)
{
    const char *at = l->data; /* it may have moved since the events were added */
    for (size_t i = 0; i < l->n; i++) {
        struct kvr_event *ev = &l->events[i];
        size_t bytes = kvr__event_bytes(ev);
        if (ev->kind == KVR_EVENT_STORED) ev->blocks = (const struct kvr_block *)(const void *)at;
        else if (ev->kind == KVR_EVENT_REMOVED) ev->removed = (const uint64_t *)(const void *)at;
        at += bytes;
    }
    return l->events;
}
