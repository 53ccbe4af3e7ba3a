/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adding and removing workers.
 *
 * The lock of the table is what requests wait for, so nothing is done under it that takes longer in a larger fleet. What needs a look at
 * other workers is looked up before, without it: these functions run on the main loop, and nobody else changes what they read - which
 * workers there are, in which order, and what their entries say. Under the lock a worker is put in its place, or taken out.
 */
#include "app/serve/workers/evidence.h"
#include "app/serve/workers/room.h"
#include "base/log.h"
#include "app/serve/common/clock.h"
#include "app/serve/workers/health.h"
#include "app/serve/workers/labels.h"
#include "app/serve/workers/learn.h"
#include "app/serve/workers/model_counts.h"
#include "app/serve/workers/roster.h"
#include "app/serve/workers/views.h"

#include <string.h>
#include <time.h>

/* ---- workers of one engine --------------------------------------------------------------------------- */

static bool is_same_engine(const struct worker *a, const struct worker *b)
{
    return a->endpoint.key == b->endpoint.key && !strcmp(a->endpoint.base, b->endpoint.base);
}

/* So many workers have its address, and perhaps other paths. */
static size_t at_address(const struct workers *s, const struct worker *w)
{
    const uint64_t *n = kvr_map64_get(&s->workers_at, w->endpoint.key);
    return n ? (size_t)*n : 0;
}

/* Returns: false without memory. */
static bool count_address(struct workers *s, const struct worker *w)
{
    return !w->url[0] || kvr_map64_put(&s->workers_at, w->endpoint.key, at_address(s, w) + 1) == 0;
}

static void discount_address(struct workers *s, const struct worker *w)
{
    uint64_t *n = w->url[0] ? kvr_map64_get(&s->workers_at, w->endpoint.key) : NULL;
    if (n && --*n == 0) kvr_map64_del(&s->workers_at, w->endpoint.key);
}

/* One has come or gone: which workers are ranks of one engine, each registered for itself? All of one address are, or none: two that begin
 * at different ranks make each of them share with one of the two. */
static void sort_engine(struct workers *s, const struct worker *changed)
{
    const struct worker *first = NULL;
    bool shared = false;
    size_t n = changed->url[0] ? at_address(s, changed) : 0;
    if (n == 0 || (n == 1 && !changed->shares_engine && !atomic_load(&changed->removed))) return; /* it is alone there */
    for (const struct worker *w = s->workers; w && !shared; w = w->next) {
        if (!is_same_engine(w, changed)) continue;
        if (!first) first = w;
        shared = w->dp_start != first->dp_start;
    }
    for (struct worker *w = s->workers; w; w = w->next) {
        if (w->shares_engine == shared || !is_same_engine(w, changed)) continue;
        kvr_lock(&s->lock);
        w->shares_engine = shared;
        kvr_unlock(&s->lock);
    }
}

/* ---- table ------------------------------------------------------------------------------------------- */

/* What points to it. */
static struct worker **place_of(struct workers *s, const struct worker *w)
{
    struct worker **p = &s->workers;
    while (*p != w) p = &(*p)->next;
    return p;
}

/* p: what points to it. */
static void detach_locked(struct workers *s, struct worker *w, struct worker **p)
{
    *p = w->next;
    if (!*p) s->workers_end = p;
    atomic_store(&w->removed, true);
    if (worker_find_locked(s, w->id) == w) kvr_map64_del(&s->workers_by_id, w->id);
    discount_address(s, w);
    s->workers_n--;
    roster_outdate_locked(s);
    kvr_router_remove_worker(w->partition->router, w->id);
    evidence_forget(s, w);
}

static bool same_pool(const struct worker *a, const struct worker *b)
{
    return (a->role == ROLE_PREFILL) == (b->role == ROLE_PREFILL) && !strcmp(a->model, b->model) && !strcmp(a->group, b->group);
}

/* Workers of one model that may take each other's place must agree on the block size, or hashes could not be compared. What was not given
 * is learnt: then another size is named, not refused (learn.c). */
static const struct worker *block_size_conflict(const struct workers *s, const struct worker *spec)
{
    bool other = false; /* than that of every partition: then no worker has another one */
    for (const struct partition *p = s->partitions; p && !other; p = p->next) other = p->block_size != spec->block_size;
    if (!other) return NULL;
    for (const struct worker *w = s->workers; w; w = w->next)
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
static bool register_locked(struct workers *s, struct worker *w)
{
    bool known = worker_find_locked(s, w->id) != NULL;
    if (!labels_register(s->labels, w->id)) return false;
    if (count_address(s, w)) {
        if (kvr_map64_put(&s->workers_by_id, w->id, (uint64_t)(uintptr_t)w) == 0) return true;
        discount_address(s, w);
    }
    if (!known) labels_forget(s->labels, w->id);
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
static int tell_router_locked(struct workers *s, struct worker *w)
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
    bool event_mode = s->o->kv_events && w->partition->index;
    for (uint32_t r = 0; event_mode && r < w->dp_size; r++)
        kvr_router_set_trusted(router, (struct kvr_worker){w->id, w->dp_start + r}, false);
    return 0;
}

/* One that is not in the table after all: old has its id again, if that is still there. */
static void unregister_locked(struct workers *s, struct worker *w, struct worker *old)
{
    uint64_t *at = old && !atomic_load(&old->removed) ? kvr_map64_get(&s->workers_by_id, w->id) : NULL;
    discount_address(s, w);
    if (at) {
        *at = (uint64_t)(uintptr_t)old;
        return;
    }
    kvr_map64_del(&s->workers_by_id, w->id);
    labels_forget(s->labels, w->id);
}

/* The router has it, and old, if there is one, is gone; or all is as it was. In the router that old is in there is no room for both under
 * one id: there old gets its taints first, so that they have their places when it comes. */
static int take_over_locked(struct workers *s, struct worker *w, struct worker *old, struct worker **place)
{
    int rc = old && old->partition == w->partition ? set_taints(w) : tell_router_locked(s, w);
    if (rc || !old) return rc;
    if (w->learns) inherit_locked(w, old);
    detach_locked(s, old, place);
    return tell_router_locked(s, w); /* only for more ranks could memory be short */
}

/* old: the one it takes the place of, or NULL; place: what points to that. */
static int add_locked(struct workers *s, struct worker *w, struct worker *old, struct worker **place, char *err, size_t cap)
{
    w->partition = partition_get_locked(s, w, err, cap);
    if (!w->partition) return -1;
    if (!register_locked(s, w)) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    int rc = take_over_locked(s, w, old, place);
    if (rc) {
        unregister_locked(s, w, old);
        snprintf(err, cap, "%s", rc == -KVR_ELIMIT ? "more than 256 taints of one (model, group, block size)" : kvr_strerror(rc));
        return -1;
    }
    atomic_store(&w->refs, 1);
    w->unreachable = !w->url[0] && !s->o->select_only;
    if (!w->learns) w->since_ms = now_ms();
    if (!old) place = s->workers_end ? s->workers_end : &s->workers;
    w->next = *place;
    *place = w;
    if (!w->next) s->workers_end = &w->next;
    s->workers_n++;
    if (w->role != ROLE_BOTH) atomic_store(&s->has_roles, true);
    roster_outdate_locked(s);
    worker_sync_locked(s, w);
    return 0;
}

/* What could not be replaced goes on as it was. */
static void follow_again(struct workers *s, uint64_t id)
{
    kvr_lock(&s->lock);
    struct worker *old = worker_find_locked(s, id);
    if (old) worker_hold(old);
    kvr_unlock(&s->lock);
    if (old) views_follow(s, old, old->partition);
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

uint64_t worker_twin(struct workers *s, const struct worker *w)
{
    uint64_t id = 0;
    for (const struct worker *o = s->workers; o && !id; o = o->next) {
        bool same_ranks = o->dp_start < w->dp_start + w->dp_size && w->dp_start < o->dp_start + o->dp_size;
        if (w->url[0] && o->id != w->id && same_ranks && strcmp(o->url, w->url) == 0) id = o->id;
    }
    return id;
}

static void warn_of_twin(struct workers *s, const struct worker *w)
{
    uint64_t twin = s->o->select_only ? 0 : worker_twin(s, w);
    if (twin)
        kvr_log_warning("kvroute: workers %llu and %llu have one address, %.200s: its cache is counted twice, and its load by halves",
                        (unsigned long long)twin, (unsigned long long)w->id, w->url);
}

/* What it is before it is in the table. Returns: 0, or -1 with the reason in err. */
static int make_ready(const struct workers *s, struct worker *w, char *err, size_t cap)
{
    if (s->o->enforce_disagg && w->role == ROLE_DECODE) w->local_prefill = false;
    w->shares_engine = false; /* this and below are of the one it was copied from */
    w->models = NULL;
    w->models_n = 0;
    if (!w->learns) learn_begin(s, w);
    if (!w->learns) w->block_size_known = w->given.block_size || !learns(s, w);
    if (!w->block_size_known) w->block_size = worker_block_size(s, w);
    const struct worker *other = w->block_size_known && !w->learns ? block_size_conflict(s, w) : NULL;
    if (!other) return 0;
    snprintf(err, cap, "block_size mismatch for model=%s: worker %llu has %u, requested=%u", w->model[0] ? w->model : "default",
             (unsigned long long)other->id, other->block_size, w->block_size);
    return -1;
}

int worker_add(struct workers *s, const struct worker *spec, char *err, size_t cap)
{
    struct worker *w = copy_of(spec);
    if (!w) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    views_unfollow(s, w->id);
    struct worker *old = worker_find_locked(s, w->id), **place = old ? place_of(s, old) : NULL;
    int rc = make_ready(s, w, err, cap);
    kvr_lock(&s->lock);
    if (rc == 0) rc = add_locked(s, w, old, place, err, cap);
    struct partition *partition = w->partition;
    if (rc == 0) w->learns = false;
    kvr_unlock(&s->lock);
    if (old && atomic_load(&old->removed)) {
        sort_engine(s, old);
        worker_let_go(old);
    }
    if (rc) {
        follow_again(s, spec->id);
        kvr_tls_peer_let_go(w->tls);
        free(w);
        return -1;
    }
    sort_engine(s, w);
    views_follow(s, w, partition);
    if (!spec->learns) warn_of_twin(s, spec);
    s->hooks.changed(s->hooks.ctx);
    health_check_now(s, spec->id);
    s->hooks.may_route(s->hooks.ctx);
    return 0;
}

bool worker_remove(struct workers *s, uint64_t id)
{
    struct worker *w = worker_find_locked(s, id), **place = w ? place_of(s, w) : NULL;
    if (!w) return false;
    struct partition *partition = w->partition;
    kvr_lock(&s->lock);
    detach_locked(s, w, place);
    labels_forget(s->labels, id);
    kvr_unlock(&s->lock);
    sort_engine(s, w);
    worker_let_go(w);
    views_unfollow(s, id);
    kvr_router_remove_worker(partition->router, id); /* once more: an event may have been on its way */
    return true;
}

struct workers *workers_create(struct process *p, const struct workers_hooks *hooks)
{
    struct workers *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = p->o;
    s->process = p;
    s->hooks = *hooks;
    s->profiles = p->o->profiles;
    s->profiles_n = p->o->profiles_n;
    atomic_store(&s->mode, p->o->mode);
    kvr_lock_init(&s->lock, KVR_LOCK_SERVE);
    kvr_lock_init(&s->roster_lock, KVR_LOCK_ROSTER);
    s->labels = labels_create();
    s->model_counts = model_counts_create();
    s->evidence = evidence_create();
    s->health_checks = health_create();
    if (s->labels && s->model_counts && s->evidence && s->health_checks) return s;
    workers_destroy(s);
    return NULL;
}

void workers_destroy(struct workers *s)
{
    if (!s) return;
    roster_destroy(s);
    while (s->workers) {
        struct worker *w = s->workers;
        detach_locked(s, w, &s->workers);
        worker_let_go(w);
    }
    kvr_map64_clear(&s->workers_by_id);
    kvr_map64_clear(&s->workers_at);
    labels_destroy(s->labels);
    model_counts_destroy(s->model_counts);
    evidence_destroy(s->evidence);
    health_destroy(s->health_checks);
    partitions_destroy(s);
    kvr_lock_destroy(&s->lock);
    kvr_lock_destroy(&s->roster_lock);
    free(s);
}

int workers_start(struct workers *s, char *err, size_t cap)
{
    if (engine_load_start(s)) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    return s->o->select_only || health_start(s) == 0 ? 0 : -1;
}

void workers_tick(struct workers *s)
{
    for (const struct partition *p = s->partitions; p; p = p->next) kvr_router_poll(p->router); /* decay alone can release what waits */
    views_tick(s);
    evidence_tick(s);
    engine_load_tick(s);
    survey_tick(s);
    if (++s->ticks % (WIRING_EVERY_MS / TICK_MS) == 0) views_wiring_tick(s);
    missed_tick(s);
}

void workers_second(struct workers *s)
{
    partitions_tick(s);
    roster_tick(s);
}

void workers_stop(struct workers *s)
{
    survey_stop(s);
    health_stop(s);
    engine_load_stop(s);
}

/* ---- for other rooms --------------------------------------------------------------------------------- */

void workers_set_listener(struct workers *s, void *listener)
{
    s->listener = listener;
}

void workers_lock(struct workers *s)
{
    kvr_lock(&s->lock);
}

void workers_unlock(struct workers *s)
{
    kvr_unlock(&s->lock);
}

struct worker *workers_first(const struct workers *s)
{
    return s->workers;
}

size_t workers_count(const struct workers *s)
{
    return s->workers_n;
}

int workers_mode(const struct workers *s)
{
    return atomic_load(&s->mode);
}

void workers_set_mode(struct workers *s, int mode)
{
    atomic_store(&s->mode, mode);
}

bool workers_have_roles(const struct workers *s)
{
    return atomic_load(&s->has_roles);
}

uint64_t workers_version(const struct workers *s)
{
    return atomic_load(&s->workers_version);
}

struct worker_counters *workers_counters(struct workers *s)
{
    return &s->counters;
}
