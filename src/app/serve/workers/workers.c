/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve/workers/evidence.h"
#include "app/serve/state.h"

#include <string.h>
#include <time.h>

/* ---- table ------------------------------------------------------------------------------------------- */

static bool is_same_engine(const struct worker *a, const struct worker *b)
{
    return a->endpoint.key == b->endpoint.key && !strcmp(a->endpoint.base, b->endpoint.base);
}

/* It comes or goes: which workers are ranks of one engine, each registered for itself? All of one address are, or none: two that begin at
 * different ranks make each of them share with one of the two. */
static void sort_engines_locked(struct serve *s, const struct worker *changed)
{
    const struct worker *first = NULL;
    bool shared = false;
    if (!changed->url[0]) return;
    for (const struct worker *w = s->workers; w && !shared; w = w->next) {
        if (!is_same_engine(w, changed)) continue;
        if (!first) first = w;
        shared = w->dp_start != first->dp_start;
    }
    for (struct worker *w = s->workers; w; w = w->next)
        if (is_same_engine(w, changed)) w->shares_engine = shared;
}

/* Returns: its place in the table. */
static struct worker **detach_locked(struct serve *s, struct worker *w)
{
    struct worker **p = &s->workers;
    while (*p != w) p = &(*p)->next;
    *p = w->next;
    atomic_store(&w->removed, true);
    if (worker_find_locked(s, w->id) == w) kvr_map64_del(&s->workers_by_id, w->id);
    s->workers_n--;
    roster_outdate_locked(s);
    sort_engines_locked(s, w);
    kvr_router_remove_worker(w->partition->router, w->id);
    evidence_forget(s, w->id);
    return p;
}

static bool same_pool(const struct worker *a, const struct worker *b)
{
    return (a->role == ROLE_PREFILL) == (b->role == ROLE_PREFILL) && !strcmp(a->model, b->model) && !strcmp(a->group, b->group);
}

/* Workers of one model that may take each other's place must agree on the block size, or hashes could not be compared. What was not given
 * is learnt: then another size is named, not refused (learn.c). */
static const struct worker *block_size_conflict(const struct serve *s, const struct worker *spec)
{
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
    for (uint32_t r = 0; w->dp_start == old->dp_start && r < KVR_MIN(w->dp_size, old->dp_size); r++) w->ranks[r].load = old->ranks[r].load;
    old->models = NULL;
    old->models_n = 0;
}

/* Under its id, from which one of the same id goes. */
static bool register_locked(struct serve *s, struct worker *w)
{
    bool known = worker_find_locked(s, w->id) != NULL;
    if (!labels_register(s->labels, w->id)) return false;
    if (kvr_map64_put(&s->workers_by_id, w->id, (uint64_t)(uintptr_t)w) == 0) return true;
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

static int add_locked(struct serve *s, struct worker *w, char *err, size_t cap)
{
    const struct worker *other = w->block_size_known && !w->learns ? block_size_conflict(s, w) : NULL;
    if (other) {
        snprintf(err, cap, "block_size mismatch for model=%s: worker %llu has %u, requested=%u", w->model[0] ? w->model : "default",
                 (unsigned long long)other->id, other->block_size, w->block_size);
        return -1;
    }
    w->partition = partition_get_locked(s, w, err, cap);
    if (!w->partition) return -1;
    struct worker *old = worker_find_locked(s, w->id), **place = &s->workers;
    if (!register_locked(s, w)) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    if (old) {
        if (w->learns) inherit_locked(w, old);
        place = detach_locked(s, old);
        worker_let_go(old);
    }
    int rc = kvr_router_set_worker(w->partition->router, w->id, w->dp_start, w->dp_size);
    if (rc == 0) rc = set_taints(w);
    if (rc) {
        kvr_router_remove_worker(w->partition->router, w->id);
        kvr_map64_del(&s->workers_by_id, w->id);
        labels_forget(s->labels, w->id);
        snprintf(err, cap, "%s", kvr_strerror(rc));
        return -1;
    }
    kvr_router_set_limits(w->partition->router, w->id, w->max_num_batched_tokens,
                          w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks);
    engine_load_tell_locked(w);
    bool event_mode = s->o->kv_events && w->partition->index;
    for (uint32_t r = 0; event_mode && r < w->dp_size; r++)
        kvr_router_set_trusted(w->partition->router, (struct kvr_worker){w->id, w->dp_start + r}, false);
    atomic_store(&w->refs, 1);
    w->unreachable = !w->url[0] && !s->o->select_only;
    while (!old && *place) place = &(*place)->next;
    w->next = *place;
    *place = w;
    s->workers_n++;
    if (w->role != ROLE_BOTH) atomic_store(&s->has_roles, true);
    roster_outdate_locked(s);
    sort_engines_locked(s, w);
    worker_sync_locked(s, w);
    return 0;
}

/* What could not be replaced goes on as it was. */
static void follow_again(struct serve *s, uint64_t id)
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
    kvr_tls_peer_hold(w->tls);
    w->ranks = (struct worker_rank *)(w + 1);
    for (uint32_t r = 0; r < w->dp_size; r++) {
        memcpy(w->ranks[r].endpoints, spec->ranks[r].endpoints, sizeof spec->ranks[r].endpoints);
        w->ranks[r].load = spec->ranks[r].load;
        atomic_store(&w->ranks[r].view, KVR_VIEW_UNKNOWN);
    }
    return w;
}

int worker_add(struct serve *s, const struct worker *spec, char *err, size_t cap)
{
    struct worker *w = copy_of(spec);
    if (!w) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    views_unfollow(s, w->id);
    kvr_lock(&s->lock);
    if (s->o->enforce_disagg && w->role == ROLE_DECODE) w->local_prefill = false;
    w->shares_engine = false; /* this and below are of the one it was copied from */
    w->models = NULL;
    w->models_n = 0;
    if (!w->learns) learn_begin(s, w);
    if (!w->learns) w->block_size_known = w->given.block_size || !learns(s, w);
    if (!w->block_size_known) w->block_size = worker_block_size_locked(s, w);
    int rc = add_locked(s, w, err, cap);
    struct partition *partition = w->partition;
    if (rc == 0) w->learns = false;
    kvr_unlock(&s->lock);
    if (rc) {
        follow_again(s, spec->id);
        kvr_tls_peer_let_go(w->tls);
        free(w);
        return -1;
    }
    views_follow(s, w, partition);
    s->hooks.workers_changed(s);
    health_check_now(s, spec->id);
    s->hooks.may_route(s);
    return 0;
}

bool worker_remove(struct serve *s, uint64_t id)
{
    struct partition *partition = NULL;
    kvr_lock(&s->lock);
    struct worker *w = worker_find_locked(s, id);
    if (w) {
        partition = w->partition;
        detach_locked(s, w);
        labels_forget(s->labels, id);
        worker_let_go(w);
    }
    kvr_unlock(&s->lock);
    if (!partition) return false;
    views_unfollow(s, id);
    kvr_router_remove_worker(partition->router, id); /* once more: an event may have been on its way */
    return true;
}

void workers_destroy(struct serve *s)
{
    roster_destroy(s);
    while (s->workers) {
        struct worker *w = s->workers;
        detach_locked(s, w);
        worker_let_go(w);
    }
    kvr_map64_clear(&s->workers_by_id);
}
