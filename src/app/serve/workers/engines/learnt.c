/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is learnt of a worker from its engine, before and after the asking (learn.h): whether its engine is asked at all, what the worker
 * begins with until it has answered, and what /workers shows of the answer. Who asks is engine_survey.c; what is made of the answer,
 * learn.c. Main loop.
 */
#include <string.h>

#include "app/serve/workers/engines/learnt.h"
#include "app/serve/workers/table/room.h"
#include "base/log.h"

bool learns_events(const struct workers *ws)
{
    return ws->ingest && ws->o->plane.plane == KVR_PLANE_ZMQ;
}

bool learns(const struct workers *ws, const struct worker *w)
{
    return ws->o->ask_engines && !ws->o->select_only && w->url[0];
}

uint32_t worker_block_size(const struct workers *ws, const struct worker *w)
{
    for (const struct worker *o = ws->workers; o; o = o->next)
        if (o->id != w->id && o->block_size_known && !strcmp(o->model, w->model) && !strcmp(o->group, w->group)) return o->block_size;
    return ws->o->block_size ? (uint32_t)ws->o->block_size : BLOCK_SIZE_DEFAULT;
}

void learn_begin(const struct workers *ws, struct worker *w)
{
    w->learnt = (struct learnt){.since_ms = kvr_now_ms()};
    w->misplaced = false;
    if (!learns(ws, w) && learns_events(ws) && !w->has_events)
        kvr_log_warning_of(kvr_log_key(w->id, 0, "events"),
                           "kvroute: worker %llu (%.200s): no KV events endpoint is given, so its requests are routed by load",
                           (unsigned long long)w->id, w->url);
    if (!learns(ws, w)) return;
    w->learnt.due_ms = 1;
    w->misplaced = w->role == ROLE_PREFILL && w->kv_protocol == KVR_KV_SGLANG && !w->given.bootstrap;
    w->learnt.waits = learns_events(ws) && (!w->given.block_size || !w->given.events);
}

void learnt_write(struct kvr_buf *b, const struct worker *w)
{
    static const char *const names[] = {"unknown", "vllm", "sglang"};
    const struct learnt *l = &w->learnt;
    const struct kvr_engine_facts *f = &l->facts;
    kvr_json_printf(b, "'learnt':{'state':%s", l->answered ? "answered" : l->due_ms || l->waits ? "asking" : "not asked");
    if (l->answered) kvr_json_put_str(b, "engine", names[f->engine]);
    if (f->block_size) kvr_json_put_u64(b, "block_size", f->block_size);
    if (f->block_size) kvr_json_put_str(b, "block_size_from", f->block_size_from);
    if (f->total_blocks) kvr_json_put_u64(b, "total_kv_blocks", kvr_engine_facts_blocks(f));
    if (f->total_blocks) kvr_json_put_str(b, "total_kv_blocks_from", f->total_blocks_from);
    if (f->events_from) kvr_json_put_str(b, "events_from", f->events_from);
    if (f->ranks_n) {
        kvr_json_printf(b, "'ranks_from':%s,'ranks':[", f->ranks_from);
        for (size_t i = 0; i < f->ranks_n; i++) kvr_json_u64(b, f->ranks[i].rank);
        kvr_json_close(b, ']');
    }
    if (f->ranks_n && f->ranks[0].buffer_steps) kvr_json_put_u64(b, "buffer_steps", f->ranks[0].buffer_steps);
    kvr_json_printf(b, "'notes':[");
    for (size_t i = 0; i < l->notes_n; i++) kvr_json_str(b, l->notes[i], strlen(l->notes[i]));
    kvr_json_printf(b, "]}");
}
