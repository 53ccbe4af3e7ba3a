/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partitions: an index, a router and its queue.
 *
 * The selection service has one for each (model, routing group, block size), as its callers name them. The proxy's workers
 * often have no name until they are asked, and a request must reach all that serve its model, so there a partition is a
 * block size; only a model with queue classes of its own has one to itself. On both, workers that prefill for others are
 * apart from those that answer: a request may have a place in both.
 */
#include "app/serve/workers/table/room.h"

#include <string.h>

static void partition_free(struct partition *p)
{
    kvr_router_destroy(p->router);
    kvr_index_destroy(p->index);
    kvr_index_destroy(p->predicted);
    kvr_buf_free(&p->sync_buf);
    free(p);
}

static int make_indexes(struct workers *ws, struct partition *partition)
{
    const struct serve_options *o = ws->o;
    struct kvr_index_config ic = {.bytes_max = o->index_max_bytes,
                                  .lanes = (uint32_t)o->indexer_shards,
                                  .ttl_ns = (uint64_t)(o->ttl_secs * 1e9) + 1,
                                  .predicted_max = o->max_tree_size,
                                  .prune_target_ratio = o->prune_target_ratio,
                                  .clear_worker_wide = o->clear_worker_wide};
    if (o->overlap_credit <= 0 || o->use_remote_indexer) return 0;
    if (kvr_index_create(&ic, &partition->index)) return -1;
    if (o->predicted_ttl_secs < 0) return 0;
    ic.ttl_ns = (uint64_t)(o->predicted_ttl_secs * 1e9) + 1;
    return kvr_index_create(&ic, &partition->predicted);
}

/* The classes of a model: its own profile, else the root one, else one class from the plain flags. */
static void policy_of(const struct serve_options *o, const struct policy_profile *profiles, size_t n, const char *model,
                      struct kvr_policy *out)
{
    const struct policy_profile *root = NULL;
    for (size_t i = 0; i < n; i++) {
        if (profiles[i].model[0] == 0) root = &profiles[i];
        else if (!strcmp(profiles[i].model, model)) {
            *out = profiles[i].policy;
            return;
        }
    }
    if (root) {
        *out = root->policy;
        return;
    }
    kvr_policy_init(out);
    out->classes[0].policy = (enum kvr_queue_policy)o->queue_policy;
    out->classes[0].busy_frac = o->queue_threshold;
    out->classes[0].busy_requests = (double)o->queue_requests;
    out->classes[0].ageing_ns = (uint64_t)(o->queue_ageing * 1e9);
}

static void configure(const struct workers *ws, struct partition *partition, const struct kvr_policy *policy, struct kvr_router_config *rc)
{
    const struct serve_options *o = ws->o;
    kvr_router_config_init(rc);
    rc->block_size = partition->block_size;
    rc->index = partition->index;
    rc->predicted = partition->predicted;
    rc->remote_index = o->use_remote_indexer != NULL;
    rc->serve_index = o->serve_indexer;
    rc->cost.kind = (enum kvr_cost_kind)o->cost;
    rc->cost.overlap_credit = o->overlap_credit;
    rc->cost.credit_decay = o->credit_decay;
    rc->cost.prefill_load_scale = o->prefill_load_scale;
    rc->cost.host_weight = o->host_weight;
    rc->cost.disk_weight = o->disk_weight;
    rc->cost.shared_multiplier = o->shared_multiplier;
    rc->cost.request_weight = o->request_weight;
    rc->cost.temperature = o->temperature;
    rc->cost.track_prefill_tokens = o->track_prefill_tokens;
    rc->learn_from_reports = o->select_only; /* requests do not pass here: what callers report is all there is */
    rc->fit_ttft = o->prefill_load_model != 0;
    rc->mode = (enum kvr_router_mode)atomic_load(&ws->mode);
    rc->track_active_blocks = o->track_active_blocks && !partition->prefills;
    rc->assume_kv_reuse = o->assume_kv_reuse;
    rc->record_decisions = !o->kv_events && partition->index;
    rc->seed = o->seed ? o->seed : ws->process->salt;
    rc->policy = policy;
    rc->hook = ws->hooks.booked;
    rc->hook_ctx = partition;
    partition->listener = ws->listener;
    rc->busy = (struct kvr_busy_thresholds){o->busy_decode_blocks, o->busy_prefill_tokens, o->busy_prefill_frac};
}

static bool same_name(const char *a, const char *b)
{
    return !strcmp(*a ? a : "default", *b ? b : "default");
}

static bool in_scope(const struct workers *ws, const struct worker *w, const char *model, const char *group)
{
    bool lora;
    if (ws->o->select_only) return same_name(w->model, model) && same_name(w->group, group);
    if (*group && strcmp(w->group, group)) return false;
    return !*model || same_name(w->model, model) || worker_serves_locked(ws, w, model, strlen(model), &lora);
}

/* Of select, which keeps partitions whose workers are gone, until others need their places. */
static struct partition *find_named_locked(struct workers *ws, const char *model, const char *group)
{
    for (struct partition *p = ws->partitions; p; p = p->next)
        if (!p->prefills && same_name(p->model, model) && same_name(p->group, group)) return p;
    return NULL;
}

struct partition *partition_find_locked(struct workers *ws, const char *model, const char *group)
{
    struct partition *prefills = NULL, *named = ws->o->select_only ? find_named_locked(ws, model, group) : NULL;
    for (const struct worker *w = ws->workers; w && !named; w = w->next) {
        if (!in_scope(ws, w, model, group)) continue;
        if (!w->partition->prefills) return w->partition;
        if (!prefills) prefills = w->partition;
    }
    return named ? named : prefills;
}

static bool does_part(const struct worker *w, const struct part_scope *scope)
{
    bool meets = scope->any_protocol || w->kv_protocol == scope->protocol;
    switch (scope->part) {
    case PART_PREFILL: return w->role == ROLE_PREFILL && meets;
    case PART_DECODE: return w->role == ROLE_DECODE && meets;
    default: return w->role != ROLE_PREFILL && worker_takes_whole(w);
    }
}

struct partition *partition_of_part_locked(struct workers *ws, const struct part_scope *scope, uint64_t *ids, size_t *n, bool *up)
{
    struct partition *partition = NULL;
    uint64_t now = kvr_now_ms();
    *n = 0;
    *up = false;
    for (const struct worker *w = ws->workers; w; w = w->next) {
        if (!in_scope(ws, w, scope->model, scope->group) || !does_part(w, scope)) continue;
        if (!partition) partition = w->partition;
        if (w->partition != partition) continue;
        ids[(*n)++] = w->id;
        *up = *up || worker_is_schedulable(w, now);
    }
    return partition;
}

size_t partition_scope_locked(struct workers *ws, const struct partition *partition, const char *model, const char *group, uint64_t *ids,
                              bool *all)
{
    size_t n = 0;
    *all = true;
    for (const struct worker *w = ws->workers; w; w = w->next) {
        if (w->partition != partition) continue;
        if (in_scope(ws, w, model, group)) ids[n++] = w->id;
        else *all = false;
    }
    return n;
}

static bool has_profile(const struct workers *ws, const char *model)
{
    for (size_t i = 0; i < ws->profiles_n; i++)
        if (ws->profiles[i].model[0] && !strcmp(ws->profiles[i].model, model)) return true;
    return false;
}

/* Of a partition: other routers know it by that. */
static void name_group(const struct workers *ws, const struct worker *w, char *out, size_t cap)
{
    bool prefills = w->role == ROLE_PREFILL;
    if (!ws->o->select_only) snprintf(out, cap, "%s", prefills ? PREFILL_GROUP : "default");
    else if (prefills) snprintf(out, cap, "%s/%s", *w->group ? w->group : "default", PREFILL_GROUP);
    else snprintf(out, cap, "%s", w->group);
}

static void name_partition(struct partition *p, const char *model, const char *group)
{
    snprintf(p->model, sizeof p->model, "%s", model);
    snprintf(p->group, sizeof p->group, "%s", group);
}

/* Without workers there are no bookings. */
static bool is_idle(struct workers *ws, const struct partition *p)
{
    return kvr_router_loads(p->router, NULL, 0) == 0 && !ws->hooks.partition_asked(ws->hooks.ctx, p);
}

/* One that nobody needs, for another model and group: it stays where it is, so whoever has it may keep it, and its router and index are
 * empty. What a router is made for stays, so the block size and the kind have to be the same. On select only: on serve, requests of other
 * threads have partitions, and there are few, as block sizes tell them apart. Returns: NULL: there is none, or no memory. */
static struct partition *reuse_locked(struct workers *ws, const char *model, const char *group, uint32_t block_size, bool prefills)
{
    const struct serve_options *o = ws->o;
    struct kvr_busy_thresholds busy = {o->busy_decode_blocks, o->busy_prefill_tokens, o->busy_prefill_frac};
    struct partition *p = o->select_only ? ws->partitions : NULL;
    while (p && (p->block_size != block_size || p->prefills != prefills || !is_idle(ws, p))) p = p->next;
    struct kvr_policy *policy = p ? malloc(sizeof *policy) : NULL;
    if (!policy) return NULL;
    policy_of(o, ws->profiles, ws->profiles_n, model, policy);
    int rc = kvr_router_start_over(p->router, policy, &busy);
    free(policy);
    if (rc) return NULL;
    name_partition(p, model, group);
    return p;
}

struct partition *partition_get_locked(struct workers *ws, const struct worker *w, char *err, size_t cap)
{
    bool prefills = w->role == ROLE_PREFILL;
    char group[sizeof((struct partition *)0)->group];
    const char *model = ws->o->select_only || has_profile(ws, w->model) ? w->model : "";
    uint32_t block_size = w->block_size;
    struct kvr_router_config rc;
    struct partition **p = &ws->partitions;
    size_t n = 0;
    name_group(ws, w, group, sizeof group);
    for (; *p; p = &(*p)->next, n++)
        if ((*p)->block_size == block_size && (*p)->prefills == prefills && same_name((*p)->model, model) && same_name((*p)->group, group))
            return *p;
    snprintf(err, cap, n < PARTITIONS_MAX ? "out of memory" : "more than 256 partitions of (model, group, block size)");
    if (n == PARTITIONS_MAX) return reuse_locked(ws, model, group, block_size, prefills);
    struct partition *partition = calloc(1, sizeof *partition);
    struct kvr_policy *policy = malloc(sizeof *policy);
    bool ok = partition && policy;
    if (ok) {
        name_partition(partition, model, group);
        partition->block_size = block_size;
        partition->number = n;
        partition->prefills = prefills;
        partition->workers = ws;
        policy_of(ws->o, ws->profiles, ws->profiles_n, model, policy);
        ok = make_indexes(ws, partition) == 0;
    }
    if (ok) {
        configure(ws, partition, policy, &rc);
        ok = kvr_router_create(&rc, &partition->router, NULL) == 0;
    }
    free(policy);
    if (!ok) {
        if (partition) partition_free(partition);
        return NULL;
    }
    *p = partition;
    return partition;
}

/* One for which there is no memory stays as it was, and so do those after it. */
static const struct partition *set_policies(struct workers *ws, const struct policy_profile *profiles, size_t n, struct kvr_policy *scratch)
{
    for (const struct partition *p = ws->partitions; p; p = p->next) {
        policy_of(ws->o, profiles, n, p->model, scratch);
        if (kvr_router_set_policy(p->router, scratch)) return p;
    }
    return NULL;
}

int partitions_set_policies(struct workers *ws, const struct policy_profile *profiles, size_t n)
{
    struct kvr_policy *scratch = malloc(sizeof *scratch);
    if (!scratch) return -1;
    const struct partition *failed = set_policies(ws, profiles, n, scratch);
    if (failed) (void)set_policies(ws, ws->profiles, ws->profiles_n, scratch); /* as they were, as far as there is memory */
    free(scratch);
    if (failed) return -1;
    ws->profiles = profiles;
    ws->profiles_n = n;
    return 0;
}

const struct policy_profile *partitions_policies(const struct workers *ws, size_t *n)
{
    *n = ws->profiles_n;
    return ws->profiles;
}

struct partition *partitions_first(const struct workers *ws)
{
    return ws->partitions;
}

void partitions_tick(struct workers *ws)
{
    for (const struct partition *p = ws->partitions; p; p = p->next) {
        if (p->index) kvr_index_expire(p->index);
        if (p->predicted) kvr_index_expire(p->predicted);
        kvr_router_expire_requests(p->router, (uint64_t)(ws->o->request_expiry * 1e9));
    }
}

void partitions_destroy(struct workers *ws)
{
    while (ws->partitions) {
        struct partition *p = ws->partitions;
        ws->partitions = p->next;
        partition_free(p);
    }
}

/* ---- contexts ---------------------------------------------------------------------------------------- */

struct kvr_router_ctx *ctx_get(struct ctx_list *list, struct partition *partition)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i].partition == partition) return list->items[i].ctx;
    void *grown = realloc(list->items, (list->n + 1) * sizeof *list->items);
    if (!grown) return NULL;
    list->items = grown;
    if (kvr_router_ctx_create(partition->router, &list->items[list->n].ctx)) return NULL;
    list->items[list->n].partition = partition;
    return list->items[list->n++].ctx;
}

void ctx_list_free(struct ctx_list *list)
{
    for (size_t i = 0; i < list->n; i++) kvr_router_ctx_destroy(list->items[i].ctx);
    free(list->items);
}
