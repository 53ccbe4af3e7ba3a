/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /workers: the worker object of the selection service's API. This file writes it, and answers POST and PATCH; what a body says is read
 * by workers/entry/read_object.c. Main loop; a page takes the table's lock for one worker at a time.
 */
#include "app/serve/admin/room.h"

#include <string.h>

#include "app/serve/workers/engines/usage_reporting.h"
#include "app/serve/workers/entry/worker_tls.h"
#include "app/serve/workers/engines/learnt.h"
#include "app/serve/workers/table/rank.h"
#include "app/serve/workers/views/evidence.h"
#include "app/serve/workers/views/tiers.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"

static void put_endpoints(struct kvr_buf *b, const char *key, const struct worker *w, enum rank_socket which)
{
    kvr_json_printf(b, "%s:{", key);
    for (uint32_t r = 0; r < w->dp_size; r++)
        if (w->ranks[r].endpoints[which][0]) kvr_json_printf(b, "'%u':%s", w->dp_start + r, w->ranks[r].endpoints[which]);
    kvr_json_close(b, '}');
}

/* What the engine's replay buffer held when everything was asked of it. */
static void put_reach(struct kvr_buf *b, const struct kvr_view_status *st)
{
    if (!st->buffer_batches) return;
    kvr_json_printf(b, "'buffer_first':%ju,'buffer_batches':%ju,'buffer_seconds':%g", st->buffer_first, st->buffer_batches,
                    st->buffer_seconds);
}

/* What events have told of lower tiers. */
static void put_tiers(struct kvr_buf *b, struct kvr_index *index, const struct kvr_view_status *st)
{
    struct kvr_tier_status tiers[KVR_TIER_COUNT];
    kvr_index_tier_status(index, st->worker, tiers);
    kvr_json_printf(b, "'tiers':{");
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) {
        const struct kvr_tier_status *x = &tiers[t];
        enum kvr_view_knowledge known = tier_knowledge(x, st->knowledge);
        if (known == KVR_VIEW_UNKNOWN && !x->blocks) continue;
        kvr_json_printf(b, "%s:{'view':%s,'blocks':%ju,'chunk_blocks':%u,'unplaced':%ju,'given_up':%ju}", kvr_tier_name((enum kvr_tier)t),
                        kvr_view_knowledge_name(known), x->blocks, x->chunk, x->unplaced, x->given_up);
    }
    kvr_json_close(b, '}');
}

static int by_rank(const void *a, const void *b)
{
    return kvr_worker_cmp(((const struct kvr_view_status *)a)->worker, ((const struct kvr_view_status *)b)->worker);
}

/* Place of the first of a worker among views in the order of workers, or where it would be. */
static size_t first_view(const struct kvr_view_status *st, size_t n, uint64_t worker_id)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (st[mid].worker.worker_id < worker_id) low = mid + 1;
        else high = mid;
    }
    return low;
}

/* Its events come by the event plane. */
static bool is_of_plane(const struct admin *admin, const struct worker *w, uint32_t place)
{
    return place < w->dp_size && !w->ranks[place].endpoints[RANK_EVENTS][0] && views_has_source(admin->workers, w, place);
}

static void put_views(struct admin *admin, struct kvr_buf *b, const struct worker *w, const struct kvr_view_status *st, size_t n)
{
    kvr_json_printf(b, "'views':[");
    for (size_t i = first_view(st, n, w->id); i < n && st[i].worker.worker_id == w->id; i++) {
        kvr_json_printf(b, "{'dp_rank':%u,'state':%s,'view':%s,'trust':%s,'trusted':%i,'reason':%s", st[i].worker.dp_rank,
                        st[i].state == KVR_VIEW_LIVE ? "live" : "restoring", kvr_view_knowledge_name(st[i].knowledge),
                        kvr_view_trust_name(&st[i]), st[i].trusted, st[i].reason);
        if (is_of_plane(admin, w, st[i].worker.dp_rank - w->dp_start)) kvr_json_put_str(b, "endpoint", "plane");
        if (st[i].events_trouble) kvr_json_put_str(b, "events_error", st[i].events_trouble);
        if (st[i].replay_trouble) kvr_json_put_str(b, "replay_error", st[i].replay_trouble);
        kvr_json_printf(b, "'for_ms':%ju,'next_sequence':%ju,'batches':%ju", (kvr_monotonic_ns() - st[i].since_ns) / 1000000,
                        st[i].next_sequence, st[i].batches);
        put_reach(b, &st[i]);
        kvr_json_printf(b, "'events':%ju,'gaps':%ju,'restarts':%ju,'recovered_events':%ju,'recovered_dumps':%ju,'blocks':%ju", st[i].events,
                        st[i].gaps, st[i].restarts, st[i].recovered_events, st[i].recovered_dumps,
                        w->partition->index ? kvr_index_rank_blocks(w->partition->index, st[i].worker) : 0);
        if (w->partition->index) put_tiers(b, w->partition->index, &st[i]);
        evidence_write(admin->workers, b, st[i].worker);
        kvr_json_close(b, '}');
    }
    for (uint32_t r = 0; views_run(admin->workers) && r < w->dp_size; r++) {
        if (views_has_source(admin->workers, w, r)) continue;
        kvr_json_printf(b, "{'dp_rank':%u,'state':'none','view':'unknown','trust':'untrusted','trusted':false,'reason':%s,'blocks':0}",
                        w->dp_start + r, views_why_none(admin->workers, w));
    }
    kvr_json_close(b, ']');
}

/* What has been learnt about its times to first token: the fleet's line and its own factor. */
static void put_model(struct kvr_buf *b, const struct worker *w)
{
    struct kvr_ttft_model m;
    struct kvr_ttft_factor f;
    if (kvr_router_ttft_model(w->partition->router, &w->id, &m, &f)) return;
    kvr_json_printf(b,
                    "'ttft_model':{'factor':%g,'base_ms':%g,'token_ms':%g,'ahead_token_ms':%g,'request_ms':%g,'error_ms':%g,"
                    "'read_share':{",
                    f.value, m.base_ms, m.token_ms, m.ahead_ms, m.request_ms, m.error_ms);
    for (int t = KVR_TIER_HOST_PINNED; t < KVR_TIER_COUNT; t++) kvr_json_put_double(b, kvr_tier_name((enum kvr_tier)t), m.share[t]);
    kvr_json_printf(b, "},'observations':%ju}", f.observations);
}

/* What has been learnt of how its fleet generates. */
static void put_generation(struct kvr_buf *b, const struct worker *w)
{
    struct kvr_generation_model g;
    kvr_router_generation_model(w->partition->router, &g);
    kvr_json_printf(b, "'generation_model':{'base_ms':%g,'block_ms':%g,'tokens':%g,'observations':%ju}", g.base_ms, g.block_ms, g.tokens,
                    g.observations);
}

static void put_role(struct kvr_buf *b, const struct worker *w)
{
    kvr_json_put_str(b, "role", role_name(w->role));
    kv_keys_write(w, b);
}

static double seconds_since(uint64_t then_ms)
{
    uint64_t now = kvr_now_ms();
    return then_ms && now > then_ms ? (double)(now - then_ms) / 1000 : 0;
}

/* Why it gets no requests, in the order in which an operator would look. */
static const char *why_not(const struct worker *w)
{
    if (w->draining) return "it is drained (state)";
    if (w->unreachable) return "it has no endpoint";
    if (w->health == HEALTH_DOWN) return "its last check failed";
    if (w->open_until_ms > kvr_now_ms()) return "too many requests in a row have failed (breaker)";
    if (w->misplaced) return "its engine is of another role, or has yet to say where it is met";
    return NULL;
}

/* Whether it gets requests, since when, why not; and how it was found the last time. */
static void put_standing(struct kvr_buf *b, const struct worker *w)
{
    static const char *const states[] = {"unknown", "up", "down"};
    const char *why = why_not(w);
    kvr_json_printf(b, "'status':%s,'state':%s,'since_s':%g,'schedulable':%i", states[w->health], w->draining ? "draining" : "active",
                    seconds_since(w->since_ms), worker_is_schedulable(w, kvr_now_ms()));
    if (why) kvr_json_put_str(b, "why_not_schedulable", why);
    kvr_json_put_u64(b, "active_requests", w->active);
    if (w->checked_ms) kvr_json_put_double(b, "checked_s_ago", seconds_since(w->checked_ms));
    if (!w->error_ms) return;
    kvr_json_printf(b, "'last_error':%s,'last_error_s_ago':%g", w->last_error, seconds_since(w->error_ms));
}

/* w: a copy, so that nobody waits while it is written. */
static void put_worker(struct admin *admin, struct kvr_buf *b, const struct worker *w, const struct kvr_view_status *st, size_t n)
{
    kvr_json_printf(b,
                    "{'worker_id':%ju,'model_name':%s,'routing_group':%s,'endpoint':%s,'block_size':%u,"
                    "'data_parallel_start_rank':%u,'data_parallel_size':%u",
                    w->id, worker_model(admin->workers, w), w->group, w->url, w->block_size, w->dp_start, w->dp_size);
    put_role(b, w);
    kvr_json_put_str(b, "engine", engine_kind_name(w->engine));
    put_endpoints(b, "kv_events_endpoints", w, RANK_EVENTS);
    put_endpoints(b, "replay_endpoints", w, RANK_REPLAY);
    worker_tls_write(w, b);
    if (w->recover[0]) kvr_json_put_str(b, "recover_endpoint", w->recover);
    if (w->metrics[0]) kvr_json_put_str(b, "metrics_endpoint", w->metrics);
    if (w->metrics_error) kvr_json_put_str(b, "metrics_error", w->metrics_error);
    kvr_json_printf(b, "'max_num_batched_tokens':%ju,'total_kv_blocks':%ju", w->max_num_batched_tokens,
                    w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks);
    put_standing(b, w);
    kvr_json_printf(b, "'breaker_open':%i,'taints':[", w->open_until_ms > kvr_now_ms());
    for (size_t i = 0; i < w->taints_n; i++) kvr_json_str(b, w->taints[i], strlen(w->taints[i]));
    kvr_json_close(b, ']');
    put_model(b, w);
    put_generation(b, w);
    if (learns(admin->workers, w)) learnt_write(b, w);
    usage_reporting_write_locked(w, b);
    kvr_json_printf(b, "'requests':%ju,'errors':%ju", w->requests, w->errors);
    put_views(admin, b, w, st, n);
    kvr_json_close(b, '}');
}

/* Returns: whether it is one of those that are asked for. */
static bool copy_of(struct admin *admin, const struct worker *w, const char *model, const char *group, struct worker_spec *out)
{
    workers_lock(admin->workers);
    bool wanted = (!model || !strcmp(model, worker_model(admin->workers, w))) && (!group || !strcmp(group, w->group));
    if (wanted) worker_copy_locked(out, w);
    workers_unlock(admin->workers);
    out->w.health = w->health;
    out->w.open_until_ms = w->open_until_ms;
    out->w.draining = w->draining;
    out->w.active = w->active;
    return wanted;
}

void admin_workers_write(struct admin *admin, struct kvr_buf *b, const char *model, const char *group)
{
    size_t n;
    struct kvr_view_status *st = views_status(admin->workers, &n);
    struct worker_spec *copy = malloc(sizeof *copy);
    if (!st || !copy) b->failed = true;
    if (st && n) qsort(st, n, sizeof *st, by_rank);
    kvr_json_open(b, '[');
    for (const struct worker *w = workers_first(admin->workers); w && !b->failed; w = w->next)
        if (copy_of(admin, w, model, group, copy)) put_worker(admin, b, &copy->w, st, n);
    kvr_json_close(b, ']');
    free(copy);
    free(st);
}

static void reset_runtime(struct worker *w)
{
    w->next = NULL;
    w->partition = NULL;
    w->failures = 0;
    w->models = NULL;
    w->models_n = 0;
    w->models_status = 0;
    w->requests = w->errors = 0;
    w->metrics_error = NULL;
    w->metrics_due_ms = w->learnt_kv_blocks = 0;
    for (uint32_t r = 0; r < w->dp_size; r++) w->ranks[r].load = (struct rank_load){0};
}

static void save_worker(struct admin *admin, struct kvr_http_conn *c, struct worker *w, int status)
{
    char err[256];
    if (worker_add(admin->workers, w, err, sizeof err)) admin_not_added(c, err);
    else admin_ok(c, status);
}

/* A member that nobody reads would be an order that nobody follows. Returns: whether there is none; else it has answered. */
static bool all_is_known(struct kvr_http_conn *c, struct kvr_json o)
{
    struct kvr_unknown_members u;
    char text[1024];
    worker_unknown_members(o, &u);
    if (!u.n) return true;
    worker_unknown_say(&u, text, sizeof text);
    admin_error(c, 400, text);
    return false;
}

static bool is_the_only_one(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, const struct worker *w)
{
    char text[200];
    bool force = false;
    const char *bad = NULL;
    if (!member_bool(o, "force", &force, &bad)) {
        admin_bad_field(c, bad);
        return false;
    }
    uint64_t twin = force || admin->o->select_only ? 0 : worker_twin(admin->workers, w);
    if (!twin) return true;
    snprintf(text, sizeof text, "worker %llu has this endpoint already; remove it first, or send \"force\": true",
             (unsigned long long)twin);
    admin_error(c, 409, text);
    return false;
}

void admin_post_worker(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o)
{
    struct worker_spec spec;
    if (!all_is_known(c, o)) return;
    worker_spec_init(admin->workers, &spec);
    if (!kvr_json_as_u64(kvr_json_get(o, "worker_id"), &spec.w.id)) {
        admin_bad_field(c, "worker_id");
        return;
    }
    const char *bad = worker_read_object(o, &spec);
    if (!bad && !spec.w.url[0] && !admin->o->select_only) bad = "endpoint";
    if (bad) admin_bad_field(c, bad);
    else if (is_the_only_one(admin, c, o, &spec.w)) save_worker(admin, c, &spec.w, 201);
}

/* The state alone: nothing else of the worker is touched, its views least of all. Returns: whether it was that, and is answered. */
static bool patch_state(struct admin *admin, struct kvr_http_conn *c, uint64_t id, struct kvr_json o)
{
    char state[16] = "";
    const char *bad = NULL;
    if (kvr_json_count(o) != 1 || kvr_json_type_of(kvr_json_get(o, "state")) == KVR_JSON_NONE) return false;
    bool drains = member_text(o, "state", state, sizeof state, &bad) && strcmp(state, "draining") == 0;
    if (bad || (!drains && strcmp(state, "active") != 0)) {
        admin_bad_field(c, "state");
        return true;
    }
    if (worker_set_draining(admin->workers, id, drains)) admin_ok(c, 200);
    else admin_error(c, 404, "worker not found");
    return true;
}

void admin_patch_worker(struct admin *admin, struct kvr_http_conn *c, uint64_t id, struct kvr_json o)
{
    struct worker_spec spec;
    if (!all_is_known(c, o)) return;
    workers_lock(admin->workers);
    const struct worker *old = worker_find_locked(admin->workers, id);
    if (old) worker_copy_locked(&spec, old);
    workers_unlock(admin->workers);
    if (!old) {
        admin_error(c, 404, "worker not found");
        return;
    }
    if (patch_state(admin, c, id, o)) return;
    reset_runtime(&spec.w);
    worker_tls_of(&spec.w, &spec.tls);
    const char *bad = worker_read_object(o, &spec);
    if (bad) admin_bad_field(c, bad);
    else save_worker(admin, c, &spec.w, 200);
}
