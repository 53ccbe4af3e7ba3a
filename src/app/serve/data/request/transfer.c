/* SPDX-License-Identifier: Apache-2.0 */
/* What two legs are told so that they meet: data/request/transfer.h. */
#include "app/serve/data/request/transfer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <uv.h>

#include "app/serve/data/request/attempt.h"
#include "app/serve/data/request/legs.h"

static bool draw_rooms(struct transfer *t, size_t n, uint32_t rank, uint32_t ranks)
{
    t->rooms = calloc(n, sizeof *t->rooms);
    if (!t->rooms || uv_random(NULL, NULL, t->rooms, n * sizeof *t->rooms, 0, NULL)) return false;
    for (size_t i = 0; i < n; i++) t->rooms[i] = kvr_handoff_room(t->rooms[i], rank, ranks);
    t->rooms_n = n;
    return true;
}

static void put_p2p(const struct request *r, const uint64_t random[2], struct kvr_buf *out)
{
    const struct attempt *legs[] = {r->legs->prefill, r->attempt};
    struct kvr_buf at[2] = {{0}, {0}};
    for (size_t i = 0; i < 2; i++) {
        struct kv_address a = kv_side_of(legs[i]->worker, legs[i]->result.worker.dp_rank - legs[i]->worker->dp_start);
        kv_address_put(&a, &at[i]);
    }
    out->failed |= at[0].failed || at[1].failed;
    if (!out->failed) kvr_handoff_p2p_id(at[0].data, at[1].data, random, out);
    kvr_buf_free(&at[0]);
    kvr_buf_free(&at[1]);
}

static void put_id(const struct request *r, uint64_t random, struct transfer *t)
{
    char again[16] = "";
    if (r->legs->prefill->number) snprintf(again, sizeof again, ".%u", r->legs->prefill->number);
    snprintf(t->id, sizeof t->id, "%s%s-%016" PRIx64, r->id, again, random);
}

bool transfer_draw(struct request *r)
{
    struct transfer *t = &r->legs->transfer;
    const struct attempt *p = r->legs->prefill;
    const struct worker *w = p->worker;
    uint32_t rank = p->result.worker.dp_rank - w->dp_start;
    uint64_t random[2];
    transfer_forget(t);
    if (uv_random(NULL, NULL, random, sizeof random, 0, NULL)) return false;
    put_id(r, random[0], t);
    t->at = r->legs->protocol == KVR_KV_VLLM_NIXL_PUSH ? kv_side_of(w, rank) : kv_bootstrap_of(w);
    if (r->legs->protocol == KVR_KV_VLLM_NIXL_PUSH) snprintf(t->engine, sizeof t->engine, "%s", w->engine_id);
    if (r->legs->protocol == KVR_KV_VLLM_NIXL_PUSH) kvr_buf_str(&t->header, t->id);
    if (r->legs->protocol == KVR_KV_VLLM_P2P) put_p2p(r, random, &t->header);
    if (r->legs->protocol == KVR_KV_SGLANG && !draw_rooms(t, r->split.rooms ? r->split.rooms : 1, rank, w->dp_size)) return false;
    return !t->header.failed;
}

bool transfer_has_rid(const struct request *r)
{
    return r->legs->transfer.id[0] && !r->split.room_list && r->legs->transfer.rooms_n <= 1;
}

struct kvr_handoff_leg transfer_leg(const struct request *r)
{
    const struct legs *l = r->legs;
    struct kvr_handoff_leg leg = {.protocol = l->protocol, .disagg_request_id = l->disagg_id, .chat = r->form == KVR_FORM_CHAT};
    if (!l->transfer.id[0]) return leg;
    bool has_id = l->protocol != KVR_KV_SGLANG || transfer_has_rid(r);
    leg.id = has_id ? l->transfer.id : NULL;
    leg.host = l->transfer.at.host;
    leg.port = l->transfer.at.port;
    leg.engine_id = l->transfer.engine;
    leg.tp = l->prefill->worker->tp;
    leg.pp = l->prefill->worker->pp;
    leg.rooms = l->transfer.rooms;
    leg.rooms_n = l->transfer.rooms_n;
    leg.room_list = r->split.room_list;
    leg.has_rank = l->prefill->names_rank || r->attempt->names_rank;
    leg.prefill_rank = l->prefill->named_rank;
    leg.decode_rank = r->attempt->named_rank;
    return leg;
}

void transfer_forget(struct transfer *t)
{
    kvr_buf_free(&t->header);
    free(t->rooms);
    *t = (struct transfer){0};
}
