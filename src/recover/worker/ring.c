/* SPDX-License-Identifier: Apache-2.0 */
#include "recover/worker/ring.h"

#include <string.h>

#include "recover/event_list.h"

int kvr__ring_init(struct kvr_ring *r, struct kvr_mem *mem, size_t events_max, size_t bytes_max)
{
    *r = (struct kvr_ring){.mem = mem, .slots_n = events_max, .bytes_max = bytes_max};
    r->slots = kvr_mem_zget(mem, events_max * sizeof *r->slots);
    return r->slots ? 0 : -KVR_ENOMEM;
}

void kvr__ring_free(struct kvr_ring *r)
{
    for (size_t i = 0; r->slots && i < r->slots_n; i++) kvr_mem_put(r->mem, r->slots[i].data, r->slots[i].cap);
    kvr_mem_put(r->mem, r->slots, r->slots ? r->slots_n * sizeof *r->slots : 0);
    *r = (struct kvr_ring){0};
}

static struct kvr_ring_entry *slot(const struct kvr_ring *r, uint64_t place)
{
    return &r->slots[place % r->slots_n];
}

static void give_back(struct kvr_ring *r, struct kvr_ring_entry *e)
{
    kvr_mem_put(r->mem, e->data, e->cap);
    r->bytes -= e->cap;
    e->data = NULL;
    e->cap = 0;
}

static void drop_oldest(struct kvr_ring *r, bool keep_memory)
{
    struct kvr_ring_entry *e = slot(r, r->first++);
    r->evicted_id = e->ev.event_id;
    r->evicted_any = true;
    r->shown = KVR_MAX(r->shown, r->first);
    if (!keep_memory) give_back(r, e);
}

/* Memory of `need` bytes in the slot that comes next. */
static bool make_room(struct kvr_ring *r, struct kvr_ring_entry *e, size_t need)
{
    if (e->cap >= need && e->cap <= 4 * need + 256) return true;
    give_back(r, e);
    if (need == 0) return true;
    if (need > r->bytes_max) return false;
    while (r->bytes + need > r->bytes_max && r->first < r->end) drop_oldest(r, false);
    for (size_t i = 0; r->bytes + need > r->bytes_max && i < r->slots_n; i++) give_back(r, &r->slots[i]); /* slots not in use */
    e->data = kvr_mem_get(r->mem, need);
    if (!e->data) return false;
    e->cap = need;
    r->bytes += need;
    return true;
}

void kvr__ring_skip(struct kvr_ring *r, uint64_t id)
{
    while (r->first < r->end) drop_oldest(r, false);
    r->first = ++r->end;
    r->shown = KVR_MAX(r->shown, r->first);
    r->evicted_id = id;
    r->evicted_any = true;
}

void kvr__ring_add(struct kvr_ring *r, const struct kvr_event *ev)
{
    size_t need = kvr__event_bytes(ev);
    if (r->end - r->first == r->slots_n) drop_oldest(r, true);
    struct kvr_ring_entry *e = slot(r, r->end);
    if (!make_room(r, e, need)) {
        kvr__ring_skip(r, ev->event_id);
        return;
    }
    e->ev = *ev;
    e->ev.blocks = ev->kind == KVR_EVENT_STORED ? e->data : NULL;
    e->ev.removed = ev->kind == KVR_EVENT_REMOVED ? e->data : NULL;
    if (need) memcpy(e->data, ev->kind == KVR_EVENT_STORED ? (const void *)ev->blocks : ev->removed, need);
    r->end++;
}

const struct kvr_event *kvr__ring_at(const struct kvr_ring *r, uint64_t place)
{
    return &slot(r, place)->ev;
}

uint64_t kvr__ring_find(const struct kvr_ring *r, uint64_t id)
{
    uint64_t lo = r->first, hi = r->shown;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        if (kvr__ring_at(r, mid)->event_id < id) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

bool kvr__ring_reaches(const struct kvr_ring *r, uint64_t id)
{
    return !r->evicted_any || id > r->evicted_id;
}
