/* SPDX-License-Identifier: Apache-2.0 */
/* Workers that a request asks for: data/request/pins.h. */
#include "app/serve/data/request/pins.h"

#include <string.h>

#include "app/serve/common/members.h"
#include "app/serve/data/request/hints.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"

#define NO_RANK UINT32_MAX

/* ---- the head ---------------------------------------------------------------------------------------- */

static void set_rank(struct pin *pin, uint64_t rank)
{
    if (rank == NO_RANK) return;
    pin->has_rank = true;
    pin->to.dp_rank = (uint32_t)rank;
}

static const char *read_pin(const struct kvr_headers *h, enum hint worker, enum hint rank, struct pin *out)
{
    struct kvr_text w = hint_get(h, worker), n = hint_get(h, rank);
    uint64_t v;
    if (n.ptr) {
        if (!kvr_parse_u64(n.ptr, n.len, UINT32_MAX, &v)) return "the data-parallel rank header must be a whole number";
        set_rank(out, v);
    }
    if (!w.ptr) return NULL;
    if (!kvr_parse_u64(w.ptr, w.len, UINT64_MAX, &out->to.worker_id)) return "the worker header must be a worker id";
    out->set = true;
    return NULL;
}

static const char *read_wish(const struct kvr_headers *h, enum wish *out)
{
    struct kvr_text t = kvr_headers_get(h, "x-kvroute-disagg");
    if (!t.ptr) return NULL;
    if (kvr_text_is(t, "remote")) *out = WISH_REMOTE;
    else if (kvr_text_is(t, "local")) *out = WISH_LOCAL;
    else return "x-kvroute-disagg: allowed: remote, local";
    return NULL;
}

const char *pins_read_head(struct request *r, const struct kvr_headers *h)
{
    const char *why = read_pin(h, HINT_WORKER, HINT_RANK, &r->pin);
    if (!why) why = read_pin(h, HINT_PREFILL_WORKER, HINT_PREFILL_RANK, &r->prefill_pin);
    return why ? why : read_wish(h, &r->wish);
}

/* ---- the body ---------------------------------------------------------------------------------------- */

void pins_read_body(struct kvr_json root, struct body_pins *out)
{
    struct kvr_json o = kvr_json_get(root, "nvext");
    const char *bad = NULL;
    uint64_t rank = NO_RANK, either = 0;
    if (kvr_json_type_of(o) != KVR_JSON_OBJECT) return;
    bool ok = member_u64(o, "prefill_worker_id", UINT64_MAX, &out->prefill.to.worker_id, &bad) &&
              member_u64(o, "prefill_dp_rank", UINT32_MAX, &rank, &bad) && member_u64(o, "backend_instance_id", UINT64_MAX, &either, &bad);
    out->answers.to.worker_id = either;
    ok = ok && member_u64(o, "decode_worker_id", UINT64_MAX, &out->answers.to.worker_id, &bad);
    bool both = kvr_json_has(o, "decode_worker_id") && kvr_json_has(o, "backend_instance_id");
    if (!ok || (both && out->answers.to.worker_id != either)) {
        out->wrong = ok ? "decode_worker_id" : bad;
        return;
    }
    out->prefill.set = kvr_json_has(o, "prefill_worker_id");
    out->answers.set = kvr_json_has(o, "decode_worker_id") || kvr_json_has(o, "backend_instance_id");
    set_rank(&out->prefill, rank);
}

/* What the head says counts. */
static void take(struct pin *pin, const struct pin *body)
{
    if (!pin->set && body->set) {
        pin->set = true;
        pin->to.worker_id = body->to.worker_id;
    }
    if (!pin->has_rank && body->has_rank) set_rank(pin, body->to.dp_rank);
}

const char *pins_join(struct request *r, const struct body_pins *body)
{
    if (body->wrong)
        return strcmp(body->wrong, "prefill_dp_rank") == 0
                   ? "`nvext.prefill_dp_rank` must be a whole number"
                   : "`nvext.prefill_worker_id`, `nvext.decode_worker_id` and `nvext.backend_instance_id` must be worker ids, and the last "
                     "two the same one";
    take(&r->pin, &body->answers);
    take(&r->prefill_pin, &body->prefill);
    if (r->prefill_pin.has_rank && !r->prefill_pin.set)
        return "a prefill data-parallel rank needs the worker too (x-kvroute-prefill-worker)";
    return NULL;
}

/* ---- the workers ------------------------------------------------------------------------------------- */

struct pin_seen pins_look(const struct request *r, const struct pin *pin)
{
    struct data_plane *data = data_of(r);
    struct pin_seen seen = {0};
    if (!pin->set) return seen;
    workers_lock(data->workers);
    const struct worker *w = worker_find_locked(data->workers, pin->to.worker_id);
    if (w)
        seen = (struct pin_seen){.exists = true,
                                 .is_up = worker_is_schedulable(w, kvr_now_ms()),
                                 .rank_exists =
                                     !pin->has_rank || (pin->to.dp_rank >= w->dp_start && pin->to.dp_rank - w->dp_start < w->dp_size),
                                 .role = w->role,
                                 .protocol = w->kv_protocol,
                                 .partition = w->partition};
    workers_unlock(data->workers);
    return seen;
}

enum outcome pins_judge(struct request *r, const struct pin_seen *seen, const char *what)
{
    if (!seen->exists) return request_refusef(r, 404, "the pinned %s is not known", what);
    if (!seen->rank_exists) return request_refusef(r, 400, "the data-parallel rank of the pinned %s is out of range", what);
    if (!seen->is_up) return request_refusef(r, 503, "the pinned %s is not available", what);
    return OUTCOME_DONE;
}
