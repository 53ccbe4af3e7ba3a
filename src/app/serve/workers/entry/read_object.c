/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker as JSON, the worker object of the selection service's API: read from bodies of the admin port and from the registry in NATS.
 * admin/worker_object.c writes it. The members are written over a struct worker_spec, so that PATCH changes what it names. Main loop.
 */
#include <string.h>

#include "app/serve/common/members.h"
#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/entry/worker_tls.h"
#include "app/serve/workers/table/rank.h"
#include "app/serve/workers/table/room.h"
#include "base/log.h"

static bool add_endpoint(struct worker *w, enum rank_socket which, const struct kvr_json_iter *given)
{
    uint64_t rank;
    if (!kvr_parse_u64(given->key, given->key_len, UINT32_MAX, &rank) || rank < w->dp_start || rank - w->dp_start >= w->dp_size)
        return false;
    char *out = w->ranks[rank - w->dp_start].endpoints[which];
    return kvr_json_copy_name(given->value, out, RANK_ENDPOINT_MAX) && kvr_ingest_endpoint_ok(out);
}

/* {rank: url}, or one url whose port rises with the rank. */
static bool get_endpoints(struct kvr_json v, struct worker_spec *spec, enum rank_socket which)
{
    struct worker *w = &spec->w;
    char base[RANK_ENDPOINT_MAX];
    if (!kvr_json_is_given(v)) return true;
    for (int r = 0; r < DP_MAX; r++) spec->ranks[r].endpoints[which][0] = 0;
    if (kvr_json_type_of(v) == KVR_JSON_OBJECT) {
        for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i);)
            if (!add_endpoint(w, which, &i)) return false;
        return true;
    }
    if (!kvr_json_copy_name(v, base, sizeof base) || !kvr_ingest_endpoint_ok(base)) return false;
    for (uint32_t r = 0; r < w->dp_size; r++)
        if (!kvr_ingest_endpoint_shift(base, r, w->ranks[r].endpoints[which], RANK_ENDPOINT_MAX)) return false;
    return true;
}

/* null or "": none. */
static bool get_url(struct kvr_json v, int (*parse)(const char *url, size_t len, struct kvr_endpoint *out), char *out, size_t cap)
{
    const char *url;
    size_t n;
    struct kvr_endpoint e;
    if (kvr_json_type_of(v) == KVR_JSON_NONE) return true;
    out[0] = 0;
    if (kvr_json_type_of(v) == KVR_JSON_NULL || (kvr_json_as_str(v, &url, &n) && n == 0)) return true;
    if (!kvr_json_as_name(v, &url, &n) || n >= cap || parse(url, n, &e)) return false;
    snprintf(out, cap, "%.*s", (int)n, url);
    return true;
}

static bool get_taints(struct kvr_json v, struct worker *w)
{
    if (!kvr_json_is_given(v)) return true;
    memset(w->taints, 0, sizeof w->taints);
    w->taints_n = 0;
    if (kvr_json_type_of(v) != KVR_JSON_ARRAY || kvr_json_count(v) > TAINTS_MAX) return false;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i); w->taints_n++)
        if (!kvr_json_copy_name(i.value, w->taints[w->taints_n], sizeof w->taints[0]) || !w->taints[w->taints_n][0]) return false;
    return true;
}

static void note_given(struct kvr_json o, struct worker *w)
{
    struct given *g = &w->given;
    g->block_size |= kvr_json_has(o, "block_size");
    g->ranks |= kvr_json_has(o, "data_parallel_start_rank") || kvr_json_has(o, "data_parallel_size");
    g->total_kv_blocks |= kvr_json_has(o, "total_kv_blocks");
    g->events |= kvr_json_has(o, "kv_events_endpoints");
    g->replay |= kvr_json_has(o, "replay_endpoint") || kvr_json_has(o, "replay_endpoints");
}

/* The files that were named, or the address, may be what is wrong. */
static const char *read_tls(struct kvr_json o, struct worker_spec *spec)
{
    char why[320];
    const char *bad = worker_tls_read(o, &spec->tls);
    if (bad || worker_tls_apply(&spec->tls, &spec->w, why, sizeof why) == 0) return bad;
    kvr_log_warning("kvroute: worker %llu: %s", (unsigned long long)spec->w.id, why);
    return "tls_ca";
}

static const char *const own_fields[] = {"worker_id",
                                         "endpoint",
                                         "model_name",
                                         "routing_group",
                                         "engine",
                                         "api_key",
                                         "block_size",
                                         "data_parallel_start_rank",
                                         "data_parallel_size",
                                         "max_num_batched_tokens",
                                         "total_kv_blocks",
                                         "taints",
                                         "kv_events_endpoints",
                                         "replay_endpoint",
                                         "replay_endpoints",
                                         "recover_endpoint",
                                         "metrics_endpoint",
                                         "tls_ca",
                                         "tls_cert",
                                         "tls_key",
                                         "tls_server_name",
                                         "tls_verify",
                                         "force",
                                         NULL};

void worker_unknown_members(struct kvr_json o, struct kvr_unknown_members *out)
{
    kvr_unknown_members(o, (const char *const *const[]){own_fields, kv_keys_fields()}, 2, out);
}

void worker_unknown_say(const struct kvr_unknown_members *u, char *out, size_t cap)
{
    kvr_unknown_member_say(u->names[0], (const char *const *const[]){own_fields, kv_keys_fields()}, 2, out, cap);
}

const char *worker_read_object(struct kvr_json o, struct worker_spec *spec)
{
    struct worker *w = &spec->w;
    const char *bad = NULL;
    uint64_t bs = w->block_size, start = w->dp_start, size = w->dp_size;
    char url[512] = "", engine[16] = "", key[API_KEY_MAX] = "";
    if (!member_text(o, "endpoint", url, sizeof url, &bad) || !member_text(o, "model_name", w->model, MODEL_MAX, &bad) ||
        !member_text(o, "routing_group", w->group, MODEL_MAX, &bad) || !member_text(o, "engine", engine, sizeof engine, &bad) ||
        !member_text(o, "api_key", key, sizeof key, &bad) || !member_u64(o, "block_size", 65536, &bs, &bad) ||
        !member_u64(o, "data_parallel_start_rank", 1u << 20, &start, &bad) || !member_u64(o, "data_parallel_size", DP_MAX, &size, &bad) ||
        !member_u64(o, "max_num_batched_tokens", UINT64_MAX, &w->max_num_batched_tokens, &bad) ||
        !member_u64(o, "total_kv_blocks", UINT64_MAX, &w->total_kv_blocks, &bad))
        return bad;
    if (bs == 0) return "block_size";
    if (size == 0) return "data_parallel_size";
    if (engine[0] && !engine_kind_parse(engine, &w->engine)) return "engine";
    note_given(o, w);
    if (key[0] && !worker_key_ok(key)) return "api_key";
    if (key[0]) snprintf(w->api_key, sizeof w->api_key, "%s", key);
    w->block_size = (uint32_t)bs;
    w->dp_start = (uint32_t)start;
    w->dp_size = (uint32_t)size;
    const struct kv_key *wrong = kv_keys_read(o, w);
    if (wrong) return wrong->field;
    if (url[0] && !worker_set_url(w, url, strlen(url))) return "endpoint";
    if (!get_taints(kvr_json_get(o, "taints"), w)) return "taints";
    if (!get_endpoints(kvr_json_get(o, "kv_events_endpoints"), spec, RANK_EVENTS)) return "kv_events_endpoints";
    if (!get_endpoints(kvr_json_get(o, "replay_endpoint"), spec, RANK_REPLAY)) return "replay_endpoint";
    if (!get_endpoints(kvr_json_get(o, "replay_endpoints"), spec, RANK_REPLAY)) return "replay_endpoints";
    if (!get_url(kvr_json_get(o, "recover_endpoint"), kvr_endpoint_parse_any, w->recover, sizeof w->recover)) return "recover_endpoint";
    bad = read_tls(o, spec);
    if (bad) return bad;
    if (!get_url(kvr_json_get(o, "metrics_endpoint"), kvr_endpoint_parse_any, w->metrics, sizeof w->metrics)) return "metrics_endpoint";
    worker_note_events(w);
    return NULL;
}
