/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slot tracker's routes: load book-keeping for callers that choose by themselves. State is the partition's router;
 * request ids are the partition's own.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"

enum { TRACKER_ID_MAX = 200 };

struct scope {
    char model[MODEL_MAX], group[MODEL_MAX], id[TRACKER_ID_MAX + 3];
    struct partition *partition;
};

/* model_name, routing_group and, when wanted, request_id. Returns: false after having answered. */
static bool read_scope(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, bool wants_id, struct scope *out)
{
    const char *bad = NULL;
    memset(out, 0, sizeof *out);
    memcpy(out->id, "t:", 3); /* apart from reservations and the proxy's own */
    bool ok = member_text(o, "model_name", out->model, MODEL_MAX, &bad) && member_text(o, "routing_group", out->group, MODEL_MAX, &bad) &&
              (!wants_id || member_text(o, "request_id", out->id + 2, TRACKER_ID_MAX + 1, &bad));
    if (ok && !out->model[0]) ok = false, bad = "model_name";
    if (ok && wants_id && !out->id[2]) ok = false, bad = "request_id";
    if (!ok) {
        admin_bad_field(c, bad);
        return false;
    }
    workers_lock(admin->workers);
    out->partition = partition_find_locked(admin->workers, out->model, out->group);
    workers_unlock(admin->workers);
    return true;
}

static bool known_scope(struct kvr_http_conn *c, const struct scope *sc)
{
    char text[2 * MODEL_MAX + 64];
    if (sc->partition) return true;
    snprintf(text, sizeof text, "unknown model_name=%s routing_group=%s", sc->model, sc->group[0] ? sc->group : "default");
    admin_error(c, 404, text);
    return false;
}

static bool same_registration(const struct worker *a, const struct worker *b)
{
    return !strcmp(a->model, b->model) && !strcmp(a->group, b->group) && a->block_size == b->block_size && a->dp_start == b->dp_start &&
           a->dp_size == b->dp_size;
}

void tracker_register(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct worker_spec spec;
    struct worker *w = &spec.w;
    uint64_t block_size = 0, start = 0, size = 0;
    const char *bad = NULL;
    char err[256];
    worker_spec_init(admin->workers, &spec);
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &w->id)) bad = "worker_id";
    else if (member_text(o, "model_name", w->model, MODEL_MAX, &bad) && member_text(o, "routing_group", w->group, MODEL_MAX, &bad) &&
             member_u64(o, "block_size", 65536, &block_size, &bad) && member_u64(o, "dp_start", 1u << 20, &start, &bad) &&
             member_u64(o, "dp_size", DP_MAX, &size, &bad))
        bad = !w->model[0] ? "model_name" : !block_size ? "block_size" : !size ? "dp_size" : NULL;
    if (bad) {
        admin_bad_field(c, bad);
        return;
    }
    w->block_size = (uint32_t)block_size;
    w->dp_start = (uint32_t)start;
    w->dp_size = (uint32_t)size;
    workers_lock(admin->workers);
    const struct worker *known = worker_find_locked(admin->workers, w->id);
    bool other = known && !same_registration(known, w);
    workers_unlock(admin->workers);
    if (other) admin_error(c, 409, "worker_id is registered otherwise");
    else if (known) admin_ok(c, 201); /* once more: what is booked there stays */
    else if (worker_add(admin->workers, w, err, sizeof err)) admin_not_added(c, err);
    else admin_ok(c, 201);
}

void tracker_unregister(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct scope sc;
    uint64_t id = 0;
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &id)) {
        admin_bad_field(c, "worker_id");
        return;
    }
    if (!read_scope(admin, c, o, false, &sc) || !known_scope(c, &sc)) return;
    workers_lock(admin->workers);
    const struct worker *w = worker_find_locked(admin->workers, id);
    bool here = w && w->partition == sc.partition;
    workers_unlock(admin->workers);
    if (here && worker_remove(admin->workers, id)) admin_ok(c, 200);
    else admin_error(c, 404, "worker not found");
}

void tracker_add(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct scope sc;
    uint64_t rank = 0, isl = 0, *seqs = NULL;
    size_t n = 0;
    struct kvr_worker w = {0, 0};
    const char *bad = NULL;
    if (!read_scope(admin, c, o, true, &sc)) return;
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &w.worker_id)) bad = "worker_id";
    else if (!member_u64(o, "dp_rank", UINT32_MAX, &rank, &bad) || !member_u64(o, "new_isl_tokens", UINT32_MAX, &isl, &bad)) (void)bad;
    else bad = get_hashes(o, "sequence_hashes", &seqs, &n);
    if (bad) {
        admin_bad_field(c, bad);
    } else if (known_scope(c, &sc)) {
        w.dp_rank = (uint32_t)rank;
        struct kvr_override tracked = {.set = KVR_OVERRIDE_TRACK_PREFILL_TOKENS, .track_prefill_tokens = isl > 0};
        struct kvr_router_request rq = {.id = sc.id, .id_len = strlen(sc.id), .seqs = seqs, .seqs_n = n, .isl = isl, .override = &tracked};
        struct kvr_router_ctx *ctx = admin_ctx(admin, sc.partition);
        int rc = ctx ? kvr_router_add_request(sc.partition->router, ctx, &rq, w, 0) : -KVR_ENOMEM;
        if (rc == 0) admin_ok(c, 201);
        else if (rc == -KVR_EEXISTS) admin_error(c, 409, "request_id is in use");
        else if (rc == -KVR_ENOTFOUND) admin_error(c, 404, "worker or rank not found");
        else admin_error(c, 503, kvr_strerror(rc));
    }
    free(seqs);
}

void tracker_prefill_complete(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct scope sc;
    if (!read_scope(admin, c, o, true, &sc) || !known_scope(c, &sc)) return;
    if (kvr_router_mark_prefill_completed(sc.partition->router, sc.id, strlen(sc.id)) == 0) admin_ok(c, 200);
    else admin_error(c, 404, "request not found");
}

void tracker_free(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct scope sc;
    if (!read_scope(admin, c, o, true, &sc) || !known_scope(c, &sc)) return;
    kvr_router_free(sc.partition->router, sc.id, strlen(sc.id)); /* an unknown id is free already */
    admin_ok(c, 200);
}
