/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve/workers/evidence.h"
#include "app/serve/state.h"

#include <string.h>
#include <time.h>

uint64_t now_ms(void)
{
    return kvr_now_ns(kvr_clock_monotonic()) / 1000000;
}

/* ---- --worker ---------------------------------------------------------------------------------------- */

static const char worker_keys[] =
    "id, events, replay, recover, metrics, model, group, block-size, dp-start, dp-size, engine, role, api-key, api-key-env, api-key-file, "
    "max-num-batched-tokens, total-kv-blocks, taint";

static int fail(char *err, size_t cap, const char *text, const char *key, const char *value, const char *allowed)
{
    snprintf(err, cap, "%s: '%.80s': bad value '%.80s' for '%s'; allowed: %s", "--worker", text, value, key, allowed);
    return -1;
}

static bool whole_number(const char *s, uint64_t max, uint64_t *out)
{
    return kvr_parse_u64(s, strlen(s), max, out);
}

/* Endpoint of each rank: the given one, its port raised by the rank's place. */
static bool spread_endpoint(const char *e, uint32_t dp_size, char (*out)[96])
{
    for (uint32_t r = 0; r < dp_size; r++)
        if (!kvr_ingest_endpoint_shift(e, r, out[r], sizeof out[r])) return false;
    return true;
}

bool worker_set_url(struct worker *w, const char *url, size_t len)
{
    bool v1;
    while (len && url[len - 1] == '/') len--;
    v1 = len > 3 && !memcmp(url + len - 3, "/v1", 3);
    if (v1) len -= 3;
    while (len && url[len - 1] == '/') len--;
    if (len >= sizeof w->url || kvr_endpoint_parse(url, len, &w->endpoint)) return false;
    snprintf(w->url, sizeof w->url, "%.*s", (int)len, url);
    if (v1) kvr_log("kvroute: a worker's address ends in /v1; it is taken without: %.400s", w->url);
    return true;
}

/* What is allowed for one that was refused. */
static const char *endpoint_allowed(const char *value)
{
    bool bound = strncmp(value, "tcp://*", 7) == 0;
    return bound ? "the engine's address as seen from here, tcp://host:port ('*' is the engine's own side, which binds it)"
                 : "tcp://host:port or ipc://path";
}

static int parse_key(struct worker_spec *o, const char *text, char *key, char *events, char *replay, char *err, size_t cap)
{
    struct worker *w = &o->w;
    char *value = strchr(key, '=');
    uint64_t n;
    if (!value) return fail(err, cap, text, "option", key, "key=value");
    *value++ = 0;
    if (!strcmp(key, "id")) {
        if (!whole_number(value, UINT64_MAX, &o->id)) return fail(err, cap, text, key, value, "a whole number");
        o->has_id = true;
    } else if (!strcmp(key, "events") || !strcmp(key, "replay")) {
        if (!kvr_ingest_endpoint_ok(value)) return fail(err, cap, text, key, value, endpoint_allowed(value));
        snprintf(*key == 'e' ? events : replay, 256, "%s", value);
    } else if (!strcmp(key, "recover")) {
        struct kvr_endpoint e;
        if (strlen(value) >= sizeof w->recover || kvr_endpoint_parse_any(value, strlen(value), &e))
            return fail(err, cap, text, key, value, "http://host:port/path, e.g. http://10.0.0.1:5559/kv_recover");
        snprintf(w->recover, sizeof w->recover, "%s", value);
    } else if (!strcmp(key, "metrics")) {
        struct kvr_endpoint e;
        if (strlen(value) >= sizeof w->metrics || kvr_endpoint_parse(value, strlen(value), &e))
            return fail(err, cap, text, key, value, "http://host[:port][/path], e.g. http://10.0.0.1:8000/metrics");
        snprintf(w->metrics, sizeof w->metrics, "%s", value);
    } else if (!strcmp(key, "model") || !strcmp(key, "group")) {
        if (!*value || strlen(value) >= MODEL_MAX) return fail(err, cap, text, key, value, "1 to 127 characters");
        snprintf(*key == 'm' ? w->model : w->group, MODEL_MAX, "%s", value);
    } else if (!strcmp(key, "block-size")) {
        if (!whole_number(value, 65536, &n) || n == 0) return fail(err, cap, text, key, value, "1 to 65536");
        w->block_size = (uint32_t)n;
        w->given.block_size = true;
    } else if (!strcmp(key, "dp-start")) {
        if (!whole_number(value, 1u << 20, &n)) return fail(err, cap, text, key, value, "0 to 1048576");
        w->dp_start = (uint32_t)n;
        w->given.ranks = true;
    } else if (!strcmp(key, "dp-size")) {
        if (!whole_number(value, DP_MAX, &n) || n == 0) return fail(err, cap, text, key, value, "1 to 64");
        w->dp_size = (uint32_t)n;
        w->given.ranks = true;
    } else if (!strncmp(key, "api-key", 7) && (!key[7] || !strcmp(key + 7, "-env") || !strcmp(key + 7, "-file"))) {
        if (!worker_key_read(key, value, w->api_key))
            return fail(err, cap, text, key, key[7] ? value : "***",
                        "1 to 255 characters that can be seen; api-key-env: a variable, api-key-file: a file that holds them");
    } else if (!strcmp(key, "engine")) {
        if (!engine_kind_parse(value, &w->engine)) return fail(err, cap, text, key, value, "vllm, sglang");
    } else if (!strcmp(key, "role")) {
        if (strcmp(value, "both") && strcmp(value, "prefill") && strcmp(value, "decode"))
            return fail(err, cap, text, key, value, "both, prefill, decode");
        snprintf(w->role, sizeof w->role, "%s", value);
    } else if (!strcmp(key, "max-num-batched-tokens")) {
        if (!whole_number(value, UINT64_MAX, &w->max_num_batched_tokens)) return fail(err, cap, text, key, value, "a whole number");
    } else if (!strcmp(key, "total-kv-blocks")) {
        if (!whole_number(value, UINT64_MAX, &w->total_kv_blocks)) return fail(err, cap, text, key, value, "a whole number");
    } else if (!strcmp(key, "taint")) {
        if (!*value || strlen(value) >= sizeof w->taints[0] || w->taints_n == TAINTS_MAX)
            return fail(err, cap, text, key, value, "1 to 63 characters, at most 16 of them");
        snprintf(w->taints[w->taints_n++], sizeof w->taints[0], "%s", value);
    } else {
        snprintf(err, cap, "--worker: '%.80s': unknown key '%.40s'; allowed: %s", text, key, worker_keys);
        return -1;
    }
    return 0;
}

void worker_init(const struct serve *s, struct worker *w)
{
    w->block_size = s->o->block_size ? (uint32_t)s->o->block_size : BLOCK_SIZE_DEFAULT;
    w->given.block_size = s->o->block_size != 0;
    w->dp_size = 1;
    snprintf(w->role, sizeof w->role, "both");
    snprintf(w->group, sizeof w->group, "default");
}

int worker_parse(const struct serve *s, const char *text, struct worker_spec *out, char *err, size_t cap)
{
    char copy[2048], shown[2048 + 8], *rest = copy, *part, events[256] = "", replay[256] = "";
    struct worker *w = &out->w;
    memset(out, 0, sizeof *out);
    if (strlen(text) >= sizeof copy) {
        snprintf(err, cap, "--worker: the value is longer than 2047 characters");
        return -1;
    }
    memcpy(copy, text, strlen(text) + 1);
    worker_key_hide(text, shown, sizeof shown);
    part = strsep(&rest, ",");
    if (!worker_set_url(w, part, strlen(part))) {
        snprintf(err, cap, "--worker: bad value '%.120s'; allowed: http://host[:port][,key=value...]", shown);
        return -1;
    }
    worker_init(s, w);
    while ((part = strsep(&rest, ",")))
        if (parse_key(out, shown, part, events, replay, err, cap)) return -1;
    w->has_events = w->given.events = events[0] != 0;
    w->given.replay = replay[0] != 0;
    w->given.total_kv_blocks = w->total_kv_blocks != 0;
    if (replay[0] && !events[0]) return fail(err, cap, shown, "replay", replay, "only together with events");
    if (w->recover[0] && !events[0] && s->o->plane.plane == KVR_PLANE_ZMQ)
        return fail(err, cap, shown, "recover", w->recover, "only together with events");
    if ((events[0] && !spread_endpoint(events, w->dp_size, w->events)) || (replay[0] && !spread_endpoint(replay, w->dp_size, w->replay)))
        return fail(err, cap, shown, "events", events, "tcp endpoints whose ports leave room for every rank");
    return 0;
}

/* ---- table ------------------------------------------------------------------------------------------- */

struct worker *worker_find_locked(struct serve *s, uint64_t id)
{
    for (struct worker *w = s->workers; w; w = w->next)
        if (w->id == id) return w;
    return NULL;
}

bool worker_is_schedulable(const struct worker *w, uint64_t now)
{
    return !w->removed && !w->unreachable && w->health != HEALTH_DOWN && w->open_until_ms <= now;
}

void worker_sync_locked(struct serve *s, struct worker *w)
{
    bool ok = worker_is_schedulable(w, now_ms());
    (void)s;
    w->schedulable = ok;
    if (!w->removed) kvr_router_set_schedulable(w->pool->router, w->id, ok);
}

uint64_t worker_room_locked(const struct worker *w, const char *model)
{
    for (size_t i = 0; i < w->models_n; i++)
        if (!*model || strcmp(w->models[i].id, model) == 0) return w->models[i].max_model_len;
    return 0;
}

static void unref_locked(struct worker *w)
{
    if (--w->refs) return;
    free(w->models);
    labels_free(w->series);
    free(w);
}

void worker_unref(struct serve *s, struct worker *w)
{
    if (!w) return;
    pthread_mutex_lock(&s->lock);
    unref_locked(w);
    pthread_mutex_unlock(&s->lock);
}

/* Returns: its place in the table. */
static struct worker **detach_locked(struct serve *s, struct worker *w)
{
    struct worker **p = &s->workers;
    while (*p != w) p = &(*p)->next;
    *p = w->next;
    w->removed = true;
    s->workers_n--;
    s->workers_version++;
    kvr_router_remove_worker(w->pool->router, w->id);
    evidence_forget_locked(s, w->id);
    return p;
}

/* All workers of one model must agree on the block size, or hashes could not be compared. What was not given is learnt: then another size
 * is named, not refused (learn.c). */
static const struct worker *block_size_conflict(const struct serve *s, const struct worker *spec)
{
    for (const struct worker *w = s->workers; w; w = w->next)
        if (w->id != spec->id && w->block_size_known && w->block_size != spec->block_size && !strcmp(w->model, spec->model) &&
            !strcmp(w->group, spec->group))
            return w;
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
    if (w->dp_start == old->dp_start) memcpy(w->loads, old->loads, sizeof w->loads);
    old->models = NULL;
    old->models_n = 0;
}

static int add_locked(struct serve *s, struct worker *w, char *err, size_t cap)
{
    const struct worker *other = w->block_size_known && !w->learns ? block_size_conflict(s, w) : NULL;
    if (other) {
        snprintf(err, cap, "block_size mismatch for model=%s: worker %llu has %u, requested=%u", w->model[0] ? w->model : "default",
                 (unsigned long long)other->id, other->block_size, w->block_size);
        return -1;
    }
    w->pool = pool_get_locked(s, w, err, cap);
    if (!w->pool) return -1;
    struct worker *old = worker_find_locked(s, w->id), **place = &s->workers;
    if (old) {
        w->series = old->series;
        old->series = NULL;
        if (w->learns) inherit_locked(w, old);
        place = detach_locked(s, old);
        unref_locked(old);
    }
    const char *taints[TAINTS_MAX];
    for (size_t i = 0; i < w->taints_n; i++) taints[i] = w->taints[i];
    int rc = kvr_router_set_worker(w->pool->router, w->id, w->dp_start, w->dp_size);
    if (rc == 0) rc = kvr_router_set_taints(w->pool->router, w->id, taints, w->taints_n);
    if (rc) {
        kvr_router_remove_worker(w->pool->router, w->id);
        snprintf(err, cap, "%s", kvr_strerror(rc));
        return -1;
    }
    kvr_router_set_limits(w->pool->router, w->id, w->max_num_batched_tokens, w->total_kv_blocks ? w->total_kv_blocks : w->learnt_kv_blocks);
    engine_load_tell_locked(w);
    bool event_mode = s->o->kv_events && w->pool->index;
    for (uint32_t r = 0; event_mode && r < w->dp_size; r++)
        kvr_router_set_trusted(w->pool->router, (struct kvr_worker){w->id, w->dp_start + r}, false);
    w->refs = 1;
    w->unreachable = !w->url[0] && !s->o->select_only;
    while (!old && *place) place = &(*place)->next;
    w->next = *place;
    *place = w;
    s->workers_n++;
    s->workers_version++;
    worker_sync_locked(s, w);
    return 0;
}

/* What could not be replaced goes on as it was. */
static void follow_again(struct serve *s, struct worker *scratch, uint64_t id)
{
    pthread_mutex_lock(&s->lock);
    const struct worker *old = worker_find_locked(s, id);
    if (old) *scratch = *old;
    pthread_mutex_unlock(&s->lock);
    if (old) views_follow(s, scratch, scratch->pool);
}

int worker_add(struct serve *s, const struct worker *spec, char *err, size_t cap)
{
    struct worker *w = malloc(sizeof *w);
    if (!w) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    *w = *spec;
    views_unfollow(s, w->id);
    pthread_mutex_lock(&s->lock);
    for (uint32_t r = 0; r < DP_MAX; r++) atomic_store(&w->views[r], KVR_VIEW_UNKNOWN);
    memset(w->wiring, 0, sizeof w->wiring);
    w->series = NULL; /* these are of the one it was copied from */
    w->models = NULL;
    w->models_n = 0;
    if (!w->learns) learn_begin(s, w);
    if (!w->learns) w->block_size_known = w->given.block_size || !learns(s, w);
    if (!w->block_size_known) w->block_size = worker_block_size_locked(s, w);
    int rc = add_locked(s, w, err, cap);
    struct pool *pool = w->pool;
    if (rc == 0) w->learns = false;
    pthread_mutex_unlock(&s->lock);
    if (rc) {
        labels_free(w->series);
        follow_again(s, w, spec->id);
        free(w);
        return -1;
    }
    views_follow(s, w, pool);
    replicas_workers_changed(s);
    health_check_now(s, spec->id);
    serve_pump(s);
    return 0;
}

bool worker_remove(struct serve *s, uint64_t id)
{
    struct pool *pool = NULL;
    pthread_mutex_lock(&s->lock);
    struct worker *w = worker_find_locked(s, id);
    if (w) {
        pool = w->pool;
        detach_locked(s, w);
        unref_locked(w);
    }
    pthread_mutex_unlock(&s->lock);
    if (!pool) return false;
    views_unfollow(s, id);
    kvr_router_remove_worker(pool->router, id); /* once more: an event may have been on its way */
    return true;
}

void worker_report(struct serve *s, struct worker *w, bool ok)
{
    pthread_mutex_lock(&s->lock);
    if (ok) {
        w->failures = 0;
    } else {
        w->errors++;
        if (++w->failures >= s->o->breaker_failures) {
            w->failures = 0;
            w->open_until_ms = now_ms() + (uint64_t)(s->o->breaker_cooldown * 1000);
            atomic_fetch_add(&s->metrics.breaker_opened_total, 1);
            worker_sync_locked(s, w);
        }
    }
    pthread_mutex_unlock(&s->lock);
}

static void tell_health(const struct worker *w, enum health h, const char *why)
{
    if (h == HEALTH_DOWN) kvr_log("kvroute: worker %llu (%.200s) is down: %.200s", (unsigned long long)w->id, w->url, why);
    else if (w->health == HEALTH_DOWN) kvr_log("kvroute: worker %llu (%.200s) is up again", (unsigned long long)w->id, w->url);
}

void worker_set_health(struct serve *s, uint64_t id, enum health h, const char *why)
{
    bool came_up = false;
    pthread_mutex_lock(&s->lock);
    struct worker *w = worker_find_locked(s, id);
    if (w) {
        came_up = h == HEALTH_UP && w->health != HEALTH_UP;
        if (came_up && learns(s, w)) w->learnt.due_ms = 1; /* it may have been started anew */
        if (came_up) w->open_until_ms = 0;
        if (h != w->health) tell_health(w, h, why);
        if (h == HEALTH_DOWN) telling_forget_locked(w, true); /* whatever comes back need not tell */
        w->health = h;
        bool before = w->schedulable;
        worker_sync_locked(s, w);
        came_up |= w->schedulable && !before;
    }
    pthread_mutex_unlock(&s->lock);
    if (came_up) serve_pump(s);
}

void worker_models_refused(struct serve *s, uint64_t id, int status)
{
    pthread_mutex_lock(&s->lock);
    struct worker *w = worker_find_locked(s, id);
    bool fresh = w && w->models_status != status;
    if (w) w->models_status = status;
    if (fresh && (status == 401 || status == 403))
        kvr_log("kvroute: worker %llu (%.200s) answers GET /v1/models with status %d: it wants a key", (unsigned long long)id, w->url,
                status);
    else if (fresh)
        kvr_log("kvroute: worker %llu (%.200s) answers GET /v1/models with status %d, so its models are not known", (unsigned long long)id,
                w->url, status);
    pthread_mutex_unlock(&s->lock);
}

void worker_set_models(struct serve *s, uint64_t id, struct model_entry *models, size_t n)
{
    pthread_mutex_lock(&s->lock);
    struct worker *w = worker_find_locked(s, id);
    if (w) {
        free(w->models);
        w->models = models;
        w->models_n = n;
        w->models_status = 200;
        models = NULL;
    }
    pthread_mutex_unlock(&s->lock);
    free(models);
}

static bool name_is(const char *name, const char *s, size_t len)
{
    return strlen(name) == len && memcmp(name, s, len) == 0;
}

bool worker_serves_locked(const struct serve *s, const struct worker *w, const char *model, size_t len, bool *is_lora)
{
    *is_lora = false;
    if (!model) return true;
    for (size_t i = 0; i < w->models_n; i++)
        if (name_is(w->models[i].id, model, len)) {
            *is_lora = w->models[i].is_lora;
            return true;
        }
    if (w->model[0]) return name_is(w->model, model, len);
    if (s->o->model && name_is(s->o->model, model, len)) return true;
    return w->models == NULL && !s->o->model; /* not known yet: let the engine say */
}

void workers_destroy(struct serve *s)
{
    while (s->workers) {
        struct worker *w = s->workers;
        detach_locked(s, w);
        unref_locked(w);
    }
}

void serve_pump(struct serve *s)
{
    for (size_t i = 0; i < s->loops_n; i++)
        if (atomic_load(&s->loops[i]->parked_n)) uv_async_send(&s->loops[i]->wake);
}
