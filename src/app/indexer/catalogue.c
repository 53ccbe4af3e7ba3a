/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partitions, instances, listeners. The first registration of a partition fixes its block size; with its last instance it
 * goes. Error texts are those of Dynamo's indexer, which clients compare.
 */
#include "app/indexer/state.h"

#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "net/nats/registry.h"

/* ---- partitions ------------------------------------------------------------------------------------------ */

void partition_ref(struct partition *p)
{
    atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
}

void partition_unref(struct partition *p)
{
    if (atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel) != 1) return;
    kvr_index_destroy(p->index);
    free(p);
}

static struct partition *find_locked(const struct indexer *x, const char *model, size_t model_len, const char *group, size_t group_len)
{
    for (struct partition *p = x->partitions; p; p = p->next)
        if (kvr_span_is(model, model_len, p->model) && kvr_span_is(group, group_len, p->group)) return p;
    return NULL;
}

struct partition *catalogue_find(struct indexer *x, const char *model, size_t model_len, const char *group, size_t group_len)
{
    kvr_lock(&x->lock);
    struct partition *p = find_locked(x, model, model_len, group, group_len);
    if (p) partition_ref(p);
    kvr_unlock(&x->lock);
    return p;
}

/* Partitions share the cap in equal parts. */
static void share_cap_locked(struct indexer *x)
{
    for (struct partition *p = x->partitions; p && x->o->max_bytes; p = p->next)
        kvr_index_set_bytes_max(p->index, x->o->max_bytes / x->partitions_n);
}

static struct partition *make_locked(struct indexer *x, const char *model, const char *group, uint32_t block_size)
{
    if (x->partitions_n >= PARTITIONS_MAX) return NULL;
    struct partition *p = calloc(1, sizeof *p);
    struct kvr_index_config c = {.bytes_max = x->o->max_bytes, .lanes = (uint32_t)x->o->indexer_shards};
    if (!p || kvr_index_create(&c, &p->index)) {
        free(p);
        return NULL;
    }
    snprintf(p->model, sizeof p->model, "%s", model);
    snprintf(p->group, sizeof p->group, "%s", group);
    p->block_size = block_size;
    atomic_init(&p->refs, 1);
    p->next = x->partitions;
    x->partitions = p;
    x->partitions_n++;
    share_cap_locked(x);
    return p;
}

static void drop_locked(struct indexer *x, struct partition *p)
{
    KVR_UNLINK(x->partitions, p);
    x->partitions_n--;
    atomic_store(&p->gone, true);
    if (x->partitions_n) share_cap_locked(x);
    partition_unref(p);
}

struct partition *catalogue_get(struct indexer *x, const char *model, const char *group, uint32_t block_size)
{
    kvr_lock(&x->lock);
    struct partition *p = find_locked(x, model, strlen(model), group, strlen(group));
    if (!p) p = make_locked(x, model, group, block_size);
    if (p && p->block_size != block_size) p = NULL;
    if (p) partition_ref(p);
    kvr_unlock(&x->lock);
    return p;
}

struct partition **catalogue_list(struct indexer *x, size_t *n)
{
    kvr_lock(&x->lock);
    struct partition **list = calloc(x->partitions_n + 1, sizeof *list);
    *n = 0;
    for (struct partition *p = x->partitions; p && list; p = p->next) {
        partition_ref(p);
        list[(*n)++] = p;
    }
    kvr_unlock(&x->lock);
    return list;
}

/* ---- events ------------------------------------------------------------------------------------------------ */

static int on_event(void *ctx, void *user, const struct kvr_event *ev, const struct kvr_ingest_origin *)
{
    struct indexer *x = ctx;
    struct partition *p = user;
    kvr_recorder_event(x->recorder, ev);
    int rc = kvr_index_apply(p->index, ev);
    if (ev->tier != KVR_TIER_DEVICE && ev->kind == KVR_EVENT_STORED) atomic_store_explicit(&p->tiers, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->telemetry.events[ev->tier != KVR_TIER_DEVICE][ev->kind][rc != 0], 1, memory_order_relaxed);
    return rc;
}

static bool holds(void *, void *user, struct kvr_worker w, enum kvr_tier tier, uint64_t name)
{
    const struct partition *p = user;
    return kvr_index_holds(p->index, w, tier, name);
}

static void on_window(void *, void *user, const struct kvr_window_event *ev)
{
    const struct partition *p = user;
    (void)kvr_index_window(p->index, ev);
}

static void on_reset(void *ctx, void *user, struct kvr_worker w)
{
    const struct partition *p = user;
    const struct indexer *x = ctx;
    kvr_recorder_event(x->recorder, &(struct kvr_event){.worker = w, .kind = KVR_EVENT_CLEARED});
    kvr_index_drop_rank(p->index, w);
}

static void on_view(void *, void *, struct kvr_worker w, enum kvr_view_knowledge knowledge, const char *reason)
{
    unsigned long long id = w.worker_id;
    if (knowledge == KVR_VIEW_WHOLE) kvr_log("kvroute: view of instance %llu rank %u is whole", id, w.dp_rank);
    else
        kvr_log_warning_of(kvr_log_key(id, w.dp_rank, reason), "kvroute: view of instance %llu rank %u is %s%s%s", id, w.dp_rank,
                           kvr_view_knowledge_name(knowledge), reason[0] ? ": " : "", reason);
}

static void on_wiring(void *, void *, struct kvr_worker w, enum kvr_wiring wiring, const char *endpoint, const char *why)
{
    kvr_ingest_tell_wiring("kvroute indexer: instance", w, wiring, endpoint, why);
}

static void on_end(void *, void *user)
{
    partition_unref(user);
}

/* indexer.{scope}.{number} in the registry of workers and routers. */
int catalogue_announce(struct indexer *x, uint16_t port)
{
    char host[64] = "", scope[96], key[KVR_REGISTRY_KEY_MAX], url[200];
    struct kvr_buf value = {0};
    struct kvr_registry_config config = {
        .link = x->nats, .bucket = KVR_REGISTRY_BUCKET, .ttl_s = KVR_REGISTRY_TTL_S, .replicas = (int)x->o->plane.nats_replicas};
    if (!x->nats) return 0;
    (void)gethostname(host, sizeof host - 1);
    kvr_registry_token(x->scope, scope, sizeof scope);
    snprintf(key, sizeof key, "indexer.%.90s.%llu", scope, (unsigned long long)x->instance_number);
    snprintf(url, sizeof url, "http%s://%.100s:%llu", x->tls ? "s" : "", x->o->advertise_host ? x->o->advertise_host : host,
             (unsigned long long)port);
    kvr_json_printf(&value, "{'url':%s}", url);
    kvr_buf_add(&value, "", 1);
    bool kept =
        !value.failed && kvr_registry_open(&config, &x->registry) == 0 && kvr_registry_keep(x->registry, key, value.data, false) == 0;
    kvr_buf_free(&value);
    return kept ? 0 : -KVR_ENOMEM;
}

static int start_plane(struct indexer *x)
{
    const struct kvr_plane_options *o = &x->o->plane;
    char err[512];
    if (o->plane == KVR_PLANE_ZMQ) return 0;
    if (kvr_plane_scope(o, x->scope, err, sizeof err) || kvr_plane_connect(o, "kvroute indexer", &x->nats, err, sizeof err)) {
        kvr_log_warning("kvroute indexer: %s", err);
        return -1;
    }
    return o->plane == KVR_PLANE_NATS ? kvr_plane_feed_nats(x->nats, x->scope, x->ingest, &x->feed) : 0;
}

static struct kvr_index *hold(void *, void *user)
{
    struct partition *p = user;
    partition_ref(p);
    return p->index;
}

static void release(void *, void *user)
{
    partition_unref(user);
}

int catalogue_start_durable(struct indexer *x)
{
    const struct kvr_plane_options *o = &x->o->plane;
    struct kvr_durable_config c = {.link = x->nats,
                                   .scope = x->scope,
                                   .in = x->ingest,
                                   .replicas = (int)o->nats_replicas,
                                   .threshold = o->snapshot_threshold,
                                   .reset = o->reset_states,
                                   .hold = hold,
                                   .release = release,
                                   .ctx = x};
    return o->plane == KVR_PLANE_JETSTREAM ? kvr_durable_feed_open(&c, &x->durable) : 0;
}

int catalogue_start(struct indexer *x)
{
    struct kvr_ingest_handler h = {.on_event = on_event,
                                   .on_reset = on_reset,
                                   .holds = holds,
                                   .on_window = on_window,
                                   .on_view = on_view,
                                   .on_wiring = on_wiring,
                                   .on_end = on_end,
                                   .ctx = x};
    struct kvr_recorder_config rc = {x->o->record_events, x->o->record_max_lines, x->o->record_max_count, x->o->record_max_secs};
    char err[400];
    if (rc.path && kvr_recorder_create(&rc, &x->recorder, err, sizeof err)) {
        kvr_log_error("kvroute indexer: --record-events: %s", err);
        return -1;
    }
    char why[400];
    if (kvr_curve_load(&x->o->plane.curve, &x->curve, why, sizeof why)) {
        kvr_log_warning("kvroute indexer: %s", why);
        return -1;
    }
    if (kvr_ingest_create(&h, x->o->restore_timeout, &x->ingest)) return -KVR_ENOMEM;
    kvr_ingest_set_curve(x->ingest, x->curve);
    return start_plane(x);
}

/* ---- instances --------------------------------------------------------------------------------------------- */

static struct instance *instance_locked(const struct indexer *x, uint64_t id)
{
    for (struct instance *i = x->instances; i; i = i->next)
        if (i->id == id) return i;
    return NULL;
}

static struct listener *listener_locked(const struct instance *i, uint32_t rank)
{
    for (size_t k = 0; k < i->listeners_n; k++)
        if (i->listeners[k].rank == rank) return &i->listeners[k];
    return NULL;
}

bool catalogue_has_listener(struct indexer *x, struct kvr_worker w)
{
    kvr_lock(&x->lock);
    const struct instance *i = instance_locked(x, w.worker_id);
    bool has = i && listener_locked(i, w.dp_rank);
    kvr_unlock(&x->lock);
    return has;
}

bool catalogue_is_in(struct indexer *x, uint64_t worker_id, const struct partition *p)
{
    kvr_lock(&x->lock);
    const struct instance *i = instance_locked(x, worker_id);
    bool is_in = i && i->part == p;
    kvr_unlock(&x->lock);
    return is_in;
}

size_t catalogue_listeners(struct indexer *x, uint64_t worker_id)
{
    kvr_lock(&x->lock);
    const struct instance *i = instance_locked(x, worker_id);
    size_t n = i ? i->listeners_n : 0;
    kvr_unlock(&x->lock);
    return n;
}

/* A registration whose events come by the event plane. */
static bool is_plane(const char *endpoint)
{
    return strcmp(endpoint, "plane") == 0;
}

/* tcp://host:port (a star and port 0 pass, as in the original), ipc://, inproc://. */
static bool endpoint_ok(const char *e)
{
    if (strlen(e) >= ENDPOINT_MAX) return false;
    if (is_plane(e)) return true;
    if (strncmp(e, "ipc://", 6) == 0) return e[6] != 0;
    if (strncmp(e, "inproc://", 9) == 0) return e[9] != 0;
    if (strncmp(e, "tcp://", 6) != 0) return false;
    const char *colon = strrchr(e + 6, ':');
    uint64_t port;
    return colon && colon > e + 6 && strlen(colon + 1) <= 5 && kvr_parse_u64(colon + 1, strlen(colon + 1), 65535, &port);
}

/* In one piece of memory. */
static struct seed *seed_copy(const struct seed *from)
{
    size_t ranks = from->ranks_n * sizeof *from->ranks;
    struct seed *s = malloc(sizeof *s + ranks + from->memory_len);
    if (!s) return NULL;
    *s = *from;
    s->next = NULL;
    s->ranks = (uint32_t *)(void *)(s + 1);
    s->memory = (char *)s->ranks + ranks;
    if (ranks) memcpy(s->ranks, from->ranks, ranks);
    if (s->memory_len) memcpy(s->memory, from->memory, s->memory_len);
    return s;
}

/* Taken out of the list; NULL: there is none. */
static struct seed *take_seed_locked(struct indexer *x, struct kvr_worker w)
{
    struct seed **at = &x->seeds, *s;
    while (*at && kvr_worker_cmp((*at)->worker, w) != 0) at = &(*at)->next;
    s = *at;
    if (s) *at = s->next;
    return s;
}

void catalogue_seed(struct indexer *x, const struct seed *seed)
{
    struct seed *s = seed_copy(seed);
    if (!s) return;
    kvr_lock(&x->lock);
    free(take_seed_locked(x, s->worker));
    s->next = x->seeds;
    x->seeds = s;
    kvr_unlock(&x->lock);
}

struct seed **catalogue_seeds(struct indexer *x, size_t *n)
{
    size_t most = 0;
    *n = 0;
    kvr_lock(&x->lock);
    for (const struct seed *s = x->seeds; s; s = s->next) most++;
    struct seed **list = calloc(most + 1, sizeof *list);
    for (const struct seed *s = x->seeds; s && list; s = s->next)
        if ((list[*n] = seed_copy(s))) ++*n;
    kvr_unlock(&x->lock);
    return list;
}

static struct instance *instance_make_locked(struct indexer *x, const struct registration *r, struct partition *p)
{
    struct instance *i = calloc(1, sizeof *i);
    if (!i) return NULL;
    i->id = r->instance_id;
    i->part = p;
    p->instances++;
    i->next = x->instances;
    x->instances = i;
    x->instances_n++;
    return i;
}

static void instance_drop_locked(struct indexer *x, struct instance *i)
{
    KVR_UNLINK(x->instances, i);
    x->instances_n--;
    if (--i->part->instances == 0) drop_locked(x, i->part);
    free(i->listeners);
    free(i);
}

/* A pool is known by the hash of its name. */
static int join_pool(const struct registration *r, struct partition *p)
{
    const char *pool = r->tiers.pool;
    if (!*pool) return 0;
    return kvr_index_set_pool(p->index, (struct kvr_worker){r->instance_id, r->dp_rank},
                              kvr_hash_bytes(pool, strlen(pool), kvr_secret()) | 1);
}

static int add_listener_locked(struct indexer *x, struct instance *i, const struct registration *r)
{
    if (i->listeners_n == RANKS_OF_INSTANCE_MAX) return -KVR_ELIMIT;
    if (!kvr_grow(&i->listeners, &i->listeners_cap, i->listeners_n + 1, sizeof *i->listeners)) return -KVR_ENOMEM;
    struct kvr_worker w = {r->instance_id, r->dp_rank};
    struct seed *seed = take_seed_locked(x, w);
    struct kvr_ingest_source src = {.worker = w,
                                    .block_size = i->part->block_size,
                                    .events = is_plane(r->endpoint) ? NULL : r->endpoint,
                                    .replay = r->replay[0] ? r->replay : NULL,
                                    .recover = r->recover[0] ? r->recover : NULL,
                                    .user = i->part,
                                    .any_rank = true,
                                    .tiers = true,
                                    .tier_chunk = r->tiers.chunk / i->part->block_size,
                                    .any_endpoint = true,
                                    .lossy = x->o->max_bytes > 0,
                                    .ranks = seed ? seed->ranks : NULL,
                                    .ranks_n = seed ? seed->ranks_n : 0};
    if (seed) {
        src.from = seed->cursor;
        src.memory = seed->memory;
        src.memory_len = seed->memory_len;
    }
    partition_ref(i->part);
    int rc = join_pool(r, i->part);
    if (!rc) rc = kvr_ingest_add(x->ingest, &src);
    free(seed);
    if (rc) {
        partition_unref(i->part);
        return rc;
    }
    struct listener *l = &i->listeners[i->listeners_n++];
    *l = (struct listener){.rank = r->dp_rank, .tiers = r->tiers};
    snprintf(l->endpoint, sizeof l->endpoint, "%s", r->endpoint);
    snprintf(l->replay, sizeof l->replay, "%s", r->replay);
    snprintf(l->recover, sizeof l->recover, "%s", r->recover);
    x->registrations_version++;
    return 0;
}

/* Returns: the status. */
__attribute__((format(printf, 4, 5))) static int refuse(char *err, size_t cap, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(err, cap, format, args);
    va_end(args);
    return status;
}

static int register_locked(struct indexer *x, const struct registration *r, char *err, size_t cap)
{
    struct instance *i = instance_locked(x, r->instance_id);
    struct partition *p = find_locked(x, r->model, strlen(r->model), r->group, strlen(r->group));
    unsigned long long id = r->instance_id;
    if (i && i->part != p)
        return refuse(err, cap, 409, "instance %llu is already registered for model=%s routing_group=%s", id, i->part->model,
                      i->part->group);
    if (i && listener_locked(i, r->dp_rank)) return refuse(err, cap, 409, "instance %llu dp_rank %u already registered", id, r->dp_rank);
    if (p && p->block_size != r->block_size)
        return refuse(err, cap, 409, "block_size mismatch for model=%s routing_group=%s: existing=%u, requested=%u", r->model, r->group,
                      p->block_size, r->block_size);
    if ((!i && x->instances_n >= INSTANCES_MAX) || (!p && x->partitions_n >= PARTITIONS_MAX))
        return refuse(err, cap, 409, "no room for another registration: at most %d instances and %d partitions", INSTANCES_MAX,
                      PARTITIONS_MAX);
    bool fresh = !i;
    if (!p) p = make_locked(x, r->model, r->group, r->block_size);
    if (p && !i) i = instance_make_locked(x, r, p);
    int rc = i ? add_listener_locked(x, i, r) : -KVR_ENOMEM;
    if (rc == 0) return 0;
    if (i && fresh) instance_drop_locked(x, i);
    else if (p && p->instances == 0) drop_locked(x, p);
    return refuse(err, cap, 500, "%s", kvr_strerror(rc));
}

int catalogue_register(struct indexer *x, const struct registration *r, char *err, size_t cap)
{
    if (!endpoint_ok(r->endpoint))
        return refuse(err, cap, 400, "invalid ZMQ endpoint `%.200s`: expected tcp://host:port, ipc://path, inproc://name or plane",
                      r->endpoint);
    if (is_plane(r->endpoint) && x->o->plane.plane == KVR_PLANE_ZMQ)
        return refuse(err, cap, 400, "endpoint `plane`: this indexer follows no event plane (--event-plane nats or jetstream)");
    if (r->replay[0] && (is_plane(r->endpoint) || !endpoint_ok(r->replay)))
        return refuse(err, cap, 400, "invalid replay endpoint `%.200s`: expected tcp://host:port, ipc://path or inproc://name", r->replay);
    if (r->tiers.chunk % r->block_size) return refuse(err, cap, 400, "kv_offload_chunk must be a multiple of block_size");
    kvr_lock(&x->change_lock);
    kvr_lock(&x->lock);
    int rc = register_locked(x, r, err, cap);
    kvr_unlock(&x->lock);
    kvr_unlock(&x->change_lock);
    if (rc == 0 && x->registrations_changed) x->registrations_changed(x);
    return rc;
}

/* What is to be taken from an instance. 0, or 404 with the reason. */
static int find_for_removal_locked(const struct indexer *x, uint64_t id, const char *model, const char *group, const uint32_t *rank,
                                   struct instance **out, char *err, size_t cap)
{
    struct instance *i = instance_locked(x, id);
    unsigned long long n = id;
    if (!i) return refuse(err, cap, 404, "instance %llu not found", n);
    if (strcmp(i->part->model, model) != 0 || (group && strcmp(i->part->group, group) != 0))
        return refuse(err, cap, 404, "instance %llu is registered for model=%s routing_group=%s", n, i->part->model, i->part->group);
    if (rank && !listener_locked(i, *rank)) return refuse(err, cap, 404, "instance %llu dp_rank %u not found", n, *rank);
    *out = i;
    return 0;
}

int catalogue_unregister(struct indexer *x, uint64_t id, const char *model, const char *group, const uint32_t *rank, char *err, size_t cap)
{
    struct instance *i = NULL;
    struct partition *p = NULL;
    if (!group) rank = NULL; /* without a group the whole instance goes */
    kvr_lock(&x->change_lock);
    kvr_lock(&x->lock);
    int rc = find_for_removal_locked(x, id, model, group, rank, &i, err, cap);
    if (i) {
        p = i->part;
        partition_ref(p);
        struct listener *l = rank ? listener_locked(i, *rank) : NULL;
        if (l && i->listeners_n > 1) {
            *l = i->listeners[--i->listeners_n];
        } else {
            rank = NULL;
            instance_drop_locked(x, i);
        }
        x->registrations_version++;
    }
    kvr_unlock(&x->lock);
    if (p) {
        kvr_ingest_remove(x->ingest, id, rank);
        if (rank) {
            (void)kvr_index_set_pool(p->index, (struct kvr_worker){id, *rank}, 0);
            kvr_index_drop_rank(p->index, (struct kvr_worker){id, *rank});
        } else {
            kvr_index_drop_worker(p->index, id);
        }
        partition_unref(p);
    }
    kvr_unlock(&x->change_lock);
    if (rc == 0 && x->registrations_changed) x->registrations_changed(x);
    return rc;
}

/* ---- states ------------------------------------------------------------------------------------------------- */

const char *listener_state(const struct kvr_view_status *st)
{
    if (!st) return "pending";
    return st->failed ? "failed" : st->paused ? "paused" : st->connected ? "active" : "pending";
}

struct kvr_view_status *catalogue_statuses(struct indexer *x, size_t *n)
{
    size_t cap = 64;
    for (;;) {
        struct kvr_view_status *st = calloc(cap, sizeof *st);
        *n = st ? kvr_ingest_status(x->ingest, st, cap) : 0;
        if (*n <= cap) return st;
        cap = *n + 64;
        free(st);
    }
}

const struct kvr_view_status *catalogue_status_of(const struct kvr_view_status *st, size_t n, const struct instance *i,
                                                  const struct listener *l)
{
    for (size_t k = 0; k < n; k++)
        if (st[k].worker.worker_id == i->id && st[k].worker.dp_rank == l->rank) return &st[k];
    return NULL;
}

int catalogue_pause(struct indexer *x, uint64_t id, uint32_t rank, bool pause, char *err, size_t cap)
{
    int rc = 0;
    size_t n;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    kvr_lock(&x->lock);
    const struct instance *i = instance_locked(x, id);
    struct listener *l = i ? listener_locked(i, rank) : NULL;
    const char *state = l ? l->paused ? "paused" : listener_state(catalogue_status_of(st, n, i, l)) : "";
    unsigned long long of = id;
    if (!i) rc = refuse(err, cap, 404, "instance %llu not found", of);
    else if (!l) rc = refuse(err, cap, 404, "instance %llu dp_rank %u not found", of, rank);
    else if (pause ? strcmp(state, "pending") && strcmp(state, "active") : strcmp(state, "paused") && strcmp(state, "failed"))
        rc = refuse(err, cap, 409, "instance %llu dp_rank %u cannot be %s from status %s", of, rank, pause ? "paused" : "resumed", state);
    else l->paused = pause;
    kvr_unlock(&x->lock);
    free(st);
    if (rc == 0) kvr_ingest_pause(x->ingest, (struct kvr_worker){id, rank}, pause);
    return rc;
}

/* ---- GET /workers ------------------------------------------------------------------------------------------- */

/* failed before pending before active before paused. */
static const char *instance_state(const struct instance *i, const struct kvr_view_status *st, size_t n)
{
    static const char *const order[] = {"failed", "pending", "active"};
    for (size_t o = 0; o < KVR_ARRAY_LEN(order); o++)
        for (size_t k = 0; k < i->listeners_n; k++) {
            const struct kvr_view_status *s = catalogue_status_of(st, n, i, &i->listeners[k]);
            if (strcmp(listener_state(s), order[o]) == 0) return order[o];
        }
    return "paused";
}

static void put_tier_words(struct kvr_buf *b, const struct tier_words *t)
{
    if (t->pool[0]) kvr_json_printf(b, "'kv_pool':%s", t->pool);
    if (t->chunk) kvr_json_printf(b, "'kv_offload_chunk':%u", t->chunk);
}

static void put_listener(struct kvr_buf *b, const struct listener *l, const struct kvr_view_status *s)
{
    kvr_json_printf(b, "'%u':{'endpoint':%s,'status':%s", l->rank, l->endpoint, listener_state(s));
    put_tier_words(b, &l->tiers);
    if (s && s->failed) kvr_json_printf(b, "'last_error':%s", s->reason);
    kvr_json_printf(b, "'trusted':%i", s && s->trusted);
    if (s && !s->trusted) kvr_json_printf(b, "'untrusted_reason':%s", s->reason);
    kvr_json_printf(b, "'view':%s", kvr_view_knowledge_name(s ? s->knowledge : KVR_VIEW_UNKNOWN));
    if (s && s->knowledge != KVR_VIEW_WHOLE) kvr_json_printf(b, "'view_reason':%s", s->reason);
    kvr_json_printf(b, "'trust':%s,'next_sequence':%ju,'gaps':%ju,'restarts':%ju", s ? kvr_view_trust_name(s) : "untrusted",
                    s ? s->next_sequence : 0, s ? s->gaps : 0, s ? s->restarts : 0);
    if (s && s->filtered.block_size_mismatch)
        kvr_json_printf(b, "'block_size_mismatches':%ju,'warning':%s", s->filtered.block_size_mismatch,
                        "the engine's KV block size differs from the registered block_size; its blocks are left out: register it with "
                        "the engine's --block-size");
    kvr_json_close(b, '}');
}

static void put_instance(struct kvr_buf *b, const struct instance *i, const struct kvr_view_status *st, size_t n)
{
    kvr_json_printf(b, "{'instance_id':%ju,'source':'zmq','status':%s,'model_name':%s,'routing_group':%s,'block_size':%u,'endpoints':{",
                    i->id, instance_state(i, st, n), i->part->model, i->part->group, i->part->block_size);
    for (size_t k = 0; k < i->listeners_n; k++) kvr_json_printf(b, "'%u':%s", i->listeners[k].rank, i->listeners[k].endpoint);
    kvr_json_printf(b, "},'listeners':{");
    for (size_t k = 0; k < i->listeners_n; k++) put_listener(b, &i->listeners[k], catalogue_status_of(st, n, i, &i->listeners[k]));
    kvr_json_printf(b, "}}");
}

void catalogue_workers_write(struct indexer *x, const char *model, const char *group, struct kvr_buf *out)
{
    size_t n;
    struct kvr_view_status *st = catalogue_statuses(x, &n);
    kvr_json_open(out, '[');
    kvr_lock(&x->lock);
    for (const struct instance *i = x->instances; i; i = i->next) {
        if ((model && strcmp(i->part->model, model) != 0) || (group && strcmp(i->part->group, group) != 0)) continue;
        put_instance(out, i, st, n);
    }
    kvr_unlock(&x->lock);
    kvr_json_close(out, ']');
    free(st);
}

/* The bodies of the /register calls that would bring the catalogue back, as a JSON array. */
void catalogue_registrations_write(struct indexer *x, struct kvr_buf *b)
{
    kvr_json_open(b, '[');
    kvr_lock(&x->lock);
    for (const struct instance *i = x->instances; i; i = i->next)
        for (size_t k = 0; k < i->listeners_n; k++) {
            const struct listener *l = &i->listeners[k];
            kvr_json_printf(b, "{'instance_id':%ju,'dp_rank':%u,'block_size':%u,'model_name':%s,'routing_group':%s,'endpoint':%s", i->id,
                            l->rank, i->part->block_size, i->part->model, i->part->group, l->endpoint);
            if (l->replay[0]) kvr_json_printf(b, "'replay_endpoint':%s", l->replay);
            if (l->recover[0]) kvr_json_printf(b, "'recover_endpoint':%s", l->recover);
            put_tier_words(b, &l->tiers);
            kvr_json_close(b, '}');
        }
    kvr_unlock(&x->lock);
    kvr_json_close(b, ']');
}

/* ---- peers --------------------------------------------------------------------------------------------------- */

static size_t peer_place_locked(const struct indexer *x, const char *url, size_t len)
{
    size_t i = 0;
    while (i < x->peers_n && (strlen(x->peers[i].url) != len || memcmp(x->peers[i].url, url, len) != 0)) i++;
    return i;
}

bool catalogue_add_peer(struct indexer *x, const char *url, size_t len, bool configured)
{
    kvr_lock(&x->lock);
    size_t i = peer_place_locked(x, url, len);
    bool ok = i < x->peers_n;
    if (ok) x->peers[i].configured |= configured;
    char *copy = !ok && x->peers_n < PEERS_MAX ? strndup(url, len) : NULL;
    if (copy) {
        x->peers[x->peers_n++] = (struct peer){copy, configured};
        ok = true;
    }
    kvr_unlock(&x->lock);
    return ok;
}

bool catalogue_drop_peer(struct indexer *x, const char *url, size_t len)
{
    kvr_lock(&x->lock);
    size_t i = peer_place_locked(x, url, len);
    bool found = i < x->peers_n;
    if (found) {
        free(x->peers[i].url);
        x->peers[i] = x->peers[--x->peers_n];
    }
    kvr_unlock(&x->lock);
    return found;
}

void catalogue_destroy(struct indexer *x)
{
    kvr_plane_feed_close(x->feed);
    kvr_durable_feed_close(x->durable);
    kvr_registry_close(x->registry);
    kvr_ingest_destroy(x->ingest);
    kvr_curve_free(x->curve);
    kvr_nats_close(x->nats);
    kvr_recorder_destroy(x->recorder);
    while (x->instances) instance_drop_locked(x, x->instances);
    while (x->partitions) drop_locked(x, x->partitions);
    while (x->seeds) {
        struct seed *s = x->seeds;
        x->seeds = s->next;
        free(s);
    }
    while (x->peers_n) free(x->peers[--x->peers_n].url);
}
