/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adding and removing workers.
 *
 * The lock of the table is what requests wait for, so nothing is done under it that takes longer in a larger fleet. What needs a look at
 * other workers is looked up before, without it: these functions run on the main loop, and nobody else changes what they read - which
 * workers there are, in which order, and what their entries say. Under the lock a worker is put in its place, or taken out.
 */
#include <string.h>
#include <time.h>

#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/engines/engine_load.h"
#include "app/serve/workers/engines/health.h"
#include "app/serve/workers/engines/learnt.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/views/evidence.h"
#include "app/serve/workers/views/views.h"
#include "base/log.h"

/* ---- workers of one engine --------------------------------------------------------------------------- */

static bool is_same_engine(const struct worker *a, const struct worker *b)
{
    return a->endpoint.key == b->endpoint.key && !strcmp(a->endpoint.base, b->endpoint.base);
}

/* So many workers have its address, and perhaps other paths. */
static size_t at_address(const struct workers *ws, const struct worker *w)
{
    const uint64_t *n = kvr_map64_get(&ws->workers_at, w->endpoint.key);
    return n ? (size_t)*n : 0;
}

/* Returns: false without memory. */
static bool count_address(struct workers *ws, const struct worker *w)
{
    return !w->url[0] || kvr_map64_put(&ws->workers_at, w->endpoint.key, at_address(ws, w) + 1) == 0;
}

static void discount_address(struct workers *ws, const struct worker *w)
{
    uint64_t *n = w->url[0] ? kvr_map64_get(&ws->workers_at, w->endpoint.key) : NULL;
    if (n && --*n == 0) kvr_map64_del(&ws->workers_at, w->endpoint.key);
}

/* One has come or gone: which workers are ranks of one engine, each registered for itself? All of one address are, or none: two that begin
 * at different ranks make each of them share with one of the two. */
static void sort_engine(struct workers *ws, const struct worker *changed)
{
    const struct worker *first = NULL;
    bool shared = false;
    size_t n = changed->url[0] ? at_address(ws, changed) : 0;
    if (n == 0 || (n == 1 && !changed->shares_engine && !atomic_load(&changed->removed))) return; /* it is alone there */
    for (const struct worker *w = ws->workers; w && !shared; w = w->next) {
        if (!is_same_engine(w, changed)) continue;
        if (!first) first = w;
        shared = w->dp_start != first->dp_start;
    }
    for (struct worker *w = ws->workers; w; w = w->next) {
        if (w->shares_engine == shared || !is_same_engine(w, changed)) continue;
        kvr_lock(&ws->lock);
        w->shares_engine = shared;
        kvr_unlock(&ws->lock);
    }
}

/* ---- table ------------------------------------------------------------------------------------------- */

/* What points to it. */
static struct worker **place_of(struct workers *ws, const struct worker *w)
{
    struct worker **p = &ws->workers;
    while (*p != w) p = &(*p)->next;
    return p;
}

/* What is booked on it stays: only what it held, and what its engine said of that, is forgotten. */
static void forget_blocks(const struct worker *w)
{
    for (uint32_t i = 0; i < w->dp_size; i++) kvr_router_set_kv_used(w->partition->router, (struct kvr_worker){w->id, w->dp_start + i}, 0);
    if (w->partition->index) kvr_index_drop_worker(w->partition->index, w->id);
    if (w->partition->predicted) kvr_index_drop_worker(w->partition->predicted, w->id);
}

/* p: what points to it; stays: the same engine goes on under its id, in the same router. */
static void detach_locked(struct workers *ws, struct worker *w, struct worker **p, bool stays)
{
    *p = w->next;
    if (!*p) ws->workers_end = p;
    atomic_store(&w->removed, true);
    if (worker_find_locked(ws, w->id) == w) kvr_map64_del(&ws->workers_by_id, w->id);
    discount_address(ws, w);
    ws->workers_n--;
    roster_outdate_locked(ws);
    if (stays) forget_blocks(w);
    else kvr_router_remove_worker(w->partition->router, w->id);
    evidence_forget(ws, w);
}

static bool same_pool(const struct worker *a, const struct worker *b)
{
    return (a->role == ROLE_PREFILL) == (b->role == ROLE_PREFILL) && !strcmp(a->model, b->model) && !strcmp(a->group, b->group);
}

/* Workers of one model that may take each other's place must agree on the block size, or hashes could not be compared. What was not given
 * is learnt: then another size is named, not refused (learn.c). */
static const struct worker *block_size_conflict(const struct workers *ws, const struct worker *spec)
{
    bool other = false; /* than that of every partition: then no worker has another one */
    for (const struct partition *p = ws->partitions; p && !other; p = p->next) other = p->block_size != spec->block_size;
    if (!other) return NULL;
    for (const struct worker *w = ws->workers; w; w = w->next)
        if (w->id != spec->id && w->block_size_known && w->block_size != spec->block_size && same_pool(w, spec)) return w;
    return NULL;
}

/* What goes on of one that is replaced as more is known of it. */
static void inherit_locked(struct worker *w, struct worker *old)
{
    w->health = old->health;
    w->failures = old->failures;
    w->open_until_ms = old->open_until_ms;
    w->models = old->models;
    w->models_n = old->models_n;
    w->models_status = old->models_status;
    w->requests = old->requests;
    w->errors = old->errors;
    w->ups = old->ups;
    w->draining = old->draining;
    w->since_ms = old->since_ms;
    w->checked_ms = old->checked_ms;
    w->error_ms = old->error_ms;
    memcpy(w->last_error, old->last_error, sizeof w->last_error);
    for (uint32_t r = 0; w->dp_start == old->dp_start && r < KVR_MIN(w->dp_size, old->dp_size); r++) w->ranks[r].load = old->ranks[r].load;
    old->models = NULL;
    old->models_n = 0;
}

/* Under its id, from which one of the same id goes. */
static bool register_locked(struct workers *ws, struct worker *w)
{
    bool known = worker_find_locked(ws, w->id) != NULL;
    if (!labels_register(ws->labels, w->id)) return false;
    if (count_address(ws, w)) {
        if (kvr_map64_put(&ws->workers_by_id, w->id, (uint64_t)(uintptr_t)w) == 0) return true;
        discount_address(ws, w);
    }
    if (!known) labels_forget(ws->labels, w->id);
    return false;
}

/* Those it was given, and its transfer domain. */
static int set_taints(const struct worker *w)
{
    const char *taints[TAINTS_MAX + 1];
    char domain[sizeof KV_DOMAIN_TAINT + KV_DOMAIN_MAX];
    size_t n = 0;
    for (; n < w->taints_n; n++) taints[n] = w->taints[n];
    snprintf(domain, sizeof domain, KV_DOMAIN_TAINT "%s", w->kv_domain);
    if (w->kv_domain[0]) taints[n++] = domain;
    return kvr_router_set_taints(w->partition->router, w->id, taints, n);
}

/* In the router of its partition. */
static int tell_router_locked(struct workers *ws, struct worker *w)
{
    struct kvr_router *router = w->partition->router;
    int rc = kvr_router_set_worker(router, w->id, w->dp_start, w->dp_size);
    if (rc == 0) rc = set_taints(w);
    if (rc) {
        kvr_router_remove_worker(router, w->id);
        return rc;
    }
    kvr_router_set_limits(router, w->id, w->max_num_batched_tokens, w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks);
    engine_load_tell_locked(w);
    bool event_mode = ws->o->kv_events && w->partition->index;
    for (uint32_t r = 0; event_mode && r < w->dp_size; r++)
        kvr_router_set_trusted(router, (struct kvr_worker){w->id, w->dp_start + r}, false);
    return 0;
}

/* One that is not in the table after all: old has its id again, if that is still there. */
static void unregister_locked(struct workers *ws, struct worker *w, struct worker *old)
{
    uint64_t *at = old && !atomic_load(&old->removed) ? kvr_map64_get(&ws->workers_by_id, w->id) : NULL;
    discount_address(ws, w);
    if (at) {
        *at = (uint64_t)(uintptr_t)old;
        return;
    }
    kvr_map64_del(&ws->workers_by_id, w->id);
    labels_forget(ws->labels, w->id);
}

/* The router has it, and old, if there is one, is gone; or all is as it was. In the router that old is in there is no room for both under
 * one id: there old gets its taints first, so that they have their places when it comes. */
static int take_over_locked(struct workers *ws, struct worker *w, struct worker *old, struct worker **place)
{
    int rc = old && old->partition == w->partition ? set_taints(w) : tell_router_locked(ws, w);
    if (rc || !old) return rc;
    if (w->learns) inherit_locked(w, old);
    detach_locked(ws, old, place, old->partition == w->partition && !strcmp(old->url, w->url));
    return tell_router_locked(ws, w); /* only for more ranks could memory be short */
}

/* old: the one it takes the place of, or NULL; place: what points to that. */
static int add_locked(struct workers *ws, struct worker *w, struct worker *old, struct worker **place, char *err, size_t cap)
{
    w->partition = partition_get_locked(ws, w, err, cap);
    if (!w->partition) return -1;
    if (!register_locked(ws, w)) return kvr_refuse(err, cap, "out of memory");
    int rc = take_over_locked(ws, w, old, place);
    if (rc) {
        unregister_locked(ws, w, old);
        return kvr_refuse(err, cap, "%s", rc == -KVR_ELIMIT ? "more than 256 taints of one (model, group, block size)" : kvr_strerror(rc));
    }
    atomic_store(&w->refs, 1);
    w->unreachable = !w->url[0] && !ws->o->select_only;
    if (!w->learns) w->since_ms = kvr_now_ms();
    if (!old) place = ws->workers_end ? ws->workers_end : &ws->workers;
    w->next = *place;
    *place = w;
    if (!w->next) ws->workers_end = &w->next;
    ws->workers_n++;
    if (w->role != ROLE_BOTH) atomic_store(&ws->has_roles, true);
    roster_outdate_locked(ws);
    worker_sync_locked(ws, w);
    return 0;
}

/* What could not be replaced goes on as it was. */
static void follow_again(struct workers *ws, uint64_t id)
{
    kvr_lock(&ws->lock);
    struct worker *old = worker_find_locked(ws, id);
    if (old) worker_hold(old);
    kvr_unlock(&ws->lock);
    if (old) views_follow(ws, old, old->partition);
    worker_let_go(old);
}

/* A copy with memory for the ranks it has, none of whose views is known yet. Returns: NULL without memory. */
static struct worker *copy_of(const struct worker *spec)
{
    struct worker *w = calloc(1, sizeof *w + spec->dp_size * sizeof *w->ranks);
    if (!w) return NULL;
    memcpy(w, spec, offsetof(struct worker, refs));
    w->draining = w->drains;
    kvr_tls_peer_hold(w->tls);
    w->ranks = (struct worker_rank *)(w + 1);
    for (uint32_t r = 0; r < w->dp_size; r++) {
        memcpy(w->ranks[r].endpoints, spec->ranks[r].endpoints, sizeof spec->ranks[r].endpoints);
        w->ranks[r].load = spec->ranks[r].load;
        atomic_store(&w->ranks[r].view, KVR_VIEW_UNKNOWN);
    }
    return w;
}

uint64_t worker_twin(struct workers *ws, const struct worker *w)
{
    uint64_t id = 0;
    for (const struct worker *o = ws->workers; o && !id; o = o->next) {
        bool same_ranks = o->dp_start < w->dp_start + w->dp_size && w->dp_start < o->dp_start + o->dp_size;
        if (w->url[0] && o->id != w->id && same_ranks && strcmp(o->url, w->url) == 0) id = o->id;
    }
    return id;
}

static void warn_of_twin(struct workers *ws, const struct worker *w)
{
    uint64_t twin = ws->o->select_only ? 0 : worker_twin(ws, w);
    if (twin)
        kvr_log_warning("kvroute: workers %llu and %llu have one address, %.200s: its cache is counted twice, and its load by halves",
                        (unsigned long long)twin, (unsigned long long)w->id, w->url);
}

/* What it is before it is in the table. Returns: 0, or -1 with the reason in err. */
static int make_ready(const struct workers *ws, struct worker *w, char *err, size_t cap)
{
    if (ws->o->enforce_disagg && w->role == ROLE_DECODE) w->local_prefill = false;
    w->shares_engine = false; /* this and below are of the one it was copied from */
    w->models = NULL;
    w->models_n = 0;
    if (!w->learns) learn_begin(ws, w);
    if (!w->learns) w->block_size_known = w->given.block_size || !learns(ws, w);
    if (!w->block_size_known) w->block_size = worker_block_size(ws, w);
    const struct worker *other = w->block_size_known && !w->learns ? block_size_conflict(ws, w) : NULL;
    if (!other) return 0;
    return kvr_refuse(err, cap, "block_size mismatch for model=%s: worker %llu has %u, requested=%u", w->model[0] ? w->model : "default",
                      (unsigned long long)other->id, other->block_size, w->block_size);
}

int worker_add(struct workers *ws, const struct worker *spec, char *err, size_t cap)
{
    struct worker *w = copy_of(spec);
    if (!w) return kvr_refuse(err, cap, "out of memory");
    views_unfollow(ws, w->id);
    struct worker *old = worker_find_locked(ws, w->id), **place = old ? place_of(ws, old) : NULL;
    int rc = make_ready(ws, w, err, cap);
    kvr_lock(&ws->lock);
    if (rc == 0) rc = add_locked(ws, w, old, place, err, cap);
    struct partition *partition = w->partition;
    if (rc == 0) w->learns = false;
    kvr_unlock(&ws->lock);
    if (old && atomic_load(&old->removed)) {
        sort_engine(ws, old);
        worker_let_go(old);
        if (!spec->learns) health_forget(ws, spec->id);
    }
    if (rc) {
        follow_again(ws, spec->id);
        kvr_tls_peer_let_go(w->tls);
        free(w);
        return -1;
    }
    sort_engine(ws, w);
    views_follow(ws, w, partition);
    if (!spec->learns) warn_of_twin(ws, spec);
    ws->hooks.changed(ws->hooks.ctx);
    health_check_now(ws, spec->id);
    ws->hooks.may_route(ws->hooks.ctx);
    return 0;
}

bool worker_remove(struct workers *ws, uint64_t id)
{
    struct worker *w = worker_find_locked(ws, id), **place = w ? place_of(ws, w) : NULL;
    if (!w) return false;
    struct partition *partition = w->partition;
    kvr_lock(&ws->lock);
    detach_locked(ws, w, place, false);
    labels_forget(ws->labels, id);
    kvr_unlock(&ws->lock);
    sort_engine(ws, w);
    worker_let_go(w);
    health_forget(ws, id);
    views_unfollow(ws, id);
    kvr_router_remove_worker(partition->router, id); /* once more: an event may have been on its way */
    return true;
}

void workers_clear(struct workers *ws)
{
    roster_destroy(ws);
    while (ws->workers) {
        struct worker *w = ws->workers;
        detach_locked(ws, w, &ws->workers, true); /* its router ends with what is booked, and tells nobody */
        worker_let_go(w);
    }
    kvr_map64_clear(&ws->workers_by_id);
    kvr_map64_clear(&ws->workers_at);
}
