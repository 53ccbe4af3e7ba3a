/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Active health checks, on the main loop: GET /health of every worker each interval, and GET /v1/models of those that
 * are up. A worker that refuses connections to a request is checked at once.
 */
#include "app/serve/workers/engines/health.h"

#include <string.h>

#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/table/room.h"
#include "net/http/ask.h"

enum { MODELS_BODY_MAX = 1 << 20, URGENT_MAX = 256 };

struct check {
    struct check *next;
    struct workers *workers;
    uint64_t id;
    struct kvr_endpoint endpoint;
    struct kvr_ask *asking;
    bool models;
    char key[API_KEY_MAX];
    void (*over)(void *ctx); /* NULL: nobody waits for it */
    void *ctx;
};

struct health_checks {
    uv_timer_t timer;
    uv_async_t urgent;
    struct kvr_lock lock;
    uint64_t ids[URGENT_MAX];
    size_t n;
    struct check *checks;
    bool running;
};

struct health_checks *health_create(void)
{
    struct health_checks *h = calloc(1, sizeof *h);
    if (h) kvr_lock_init(&h->lock, KVR_LOCK_HEALTH);
    return h;
}

void health_destroy(struct health_checks *h)
{
    if (!h) return;
    kvr_lock_destroy(&h->lock);
    free(h);
}

static struct check *check_start(struct workers *ws, uint64_t id, const struct kvr_endpoint *e, const char *key, bool models);

static void check_end(struct check *k)
{
    KVR_UNLINK(k->workers->health_checks->checks, k);
    kvr_ask_cancel(k->asking);
    if (k->over) k->over(k->ctx);
    free(k);
}

static void copy_text(struct kvr_json object, const char *key, char *out, size_t cap)
{
    const char *s;
    size_t len;
    if (kvr_json_as_name(kvr_json_get(object, key), &s, &len) && len < cap) memcpy(out, s, len);
}

static bool read_model(struct kvr_json v, struct model_entry *m)
{
    memset(m, 0, sizeof *m);
    if (!kvr_json_copy_name(kvr_json_get(v, "id"), m->id, sizeof m->id)) return false;
    copy_text(v, "root", m->root, sizeof m->root);
    copy_text(v, "parent", m->parent, sizeof m->parent);
    copy_text(v, "owned_by", m->owned_by, sizeof m->owned_by);
    kvr_json_as_u64(kvr_json_get(v, "created"), &m->created);
    kvr_json_as_u64(kvr_json_get(v, "max_model_len"), &m->max_model_len);
    m->is_lora = kvr_json_type_of(kvr_json_get(v, "parent")) == KVR_JSON_STRING;
    return true;
}

static void note_left_out(const struct check *k, size_t left_out, size_t all)
{
    char text[160];
    snprintf(text, sizeof text, "%zu of %zu models are not served: at most %d, with names of at most %d bytes, are taken", left_out, all,
             MODELS_MAX, MODEL_MAX - 1);
    worker_models_note(k->workers, k->id, text);
}

static void read_models(const struct check *k, const struct kvr_asked *said)
{
    struct workers *ws = k->workers;
    struct kvr_json root;
    if (said->cut || kvr_json_parse(ws->process->json, said->data, said->len, &root, NULL)) {
        worker_models_note(ws, k->id, said->cut ? "the answer is longer than 1 MiB and is not read" : "the answer is not JSON");
        return;
    }
    size_t n = 0, all = 0;
    struct model_entry *list = malloc(MODELS_MAX * sizeof *list);
    if (!list) return;
    for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(root, "data")); kvr_json_next(&i); all++)
        if (n < MODELS_MAX) n += read_model(i.value, &list[n]);
    if (n < all) note_left_out(k, all - n, all);
    struct model_entry *fitted = realloc(list, (n + 1) * sizeof *fitted);
    worker_set_models(ws, k->id, fitted ? fitted : list, n);
}

/* Older questions about the same worker's health: what they would say is not so any more. The list has the newest first. */
static void drop_older(struct check *k)
{
    for (struct check *older = k->next, *next; older; older = next) {
        next = older->next;
        if (older->id == k->id && !older->models) check_end(older);
    }
}

static void judge(void *ctx, const struct kvr_asked *said)
{
    struct check *k = ctx;
    const char *why = said->why;
    char status[80];
    k->asking = NULL;
    if (k->models) {
        if (said->status == 200) read_models(k, said);
        else if (said->status) worker_models_refused(k->workers, k->id, said->status);
        check_end(k);
        return;
    }
    if (!why && (said->status < 200 || said->status >= 300)) {
        snprintf(status, sizeof status, "GET %.40s/health is answered with status %d", k->endpoint.base, said->status);
        why = status;
    }
    drop_older(k);
    worker_set_health(k->workers, k->id, why ? HEALTH_DOWN : HEALTH_UP, why);
    if (!why) check_start(k->workers, k->id, &k->endpoint, k->key, true);
    check_end(k);
}

/* Who waits for one may ask others. */
void health_forget(struct workers *ws, uint64_t id)
{
    for (struct check *k = ws->health_checks->checks; k;) {
        bool is_its = k->id == id;
        struct check *next = k->next;
        if (is_its) check_end(k);
        k = is_its ? ws->health_checks->checks : next;
    }
}

static double seconds_for_an_answer(const struct serve_options *o)
{
    return o->health_timeout > 0 ? o->health_timeout : KVR_MAX(o->health_interval, 1.0);
}

/* NULL: out of memory. */
static struct check *check_start(struct workers *ws, uint64_t id, const struct kvr_endpoint *e, const char *key, bool models)
{
    struct kvr_buf headers = {0};
    struct check *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    k->workers = ws;
    k->id = id;
    k->endpoint = *e;
    k->models = models;
    snprintf(k->key, sizeof k->key, "%s", key);
    worker_key_put(key, &headers);
    struct kvr_ask_config config = {.loop = &ws->process->main_loop,
                                    .client = ws->process->client,
                                    .endpoint = e,
                                    .path = models ? "/v1/models" : "/health",
                                    .headers = &headers,
                                    .max = models ? MODELS_BODY_MAX : 0,
                                    .connect_timeout_s = ws->o->connect_timeout,
                                    .timeout_s = seconds_for_an_answer(ws->o),
                                    .fn = judge,
                                    .ctx = k};
    k->next = ws->health_checks->checks;
    ws->health_checks->checks = k;
    k->asking = kvr_ask_start(&config);
    if (k->asking) return k;
    check_end(k);
    return NULL;
}

bool health_ask_models(struct workers *ws, uint64_t worker_id, void (*over)(void *ctx), void *ctx)
{
    kvr_lock(&ws->lock);
    const struct worker *w = worker_find_locked(ws, worker_id);
    kvr_unlock(&ws->lock);
    struct check *k = w ? check_start(ws, worker_id, &w->endpoint, w->api_key, true) : NULL;
    if (!k) return false;
    k->over = over;
    k->ctx = ctx;
    return true;
}

static void check_all(struct workers *ws, const uint64_t *only, size_t only_n)
{
    struct target {
        uint64_t id;
        struct kvr_endpoint endpoint;
        char key[API_KEY_MAX];
    } * t;
    size_t n = 0;
    t = calloc(ws->workers_n + 1, sizeof *t);
    for (const struct worker *w = ws->workers; w && t; w = w->next) {
        bool wanted = !only;
        for (size_t i = 0; i < only_n; i++) wanted |= only[i] == w->id;
        if (!wanted || w->unreachable) continue;
        t[n].id = w->id;
        memcpy(t[n].key, w->api_key, sizeof t[n].key);
        t[n++].endpoint = w->endpoint;
    }
    for (size_t i = 0; i < n; i++) check_start(ws, t[i].id, &t[i].endpoint, t[i].key, false);
    free(t);
}

/* Of all workers, so also of those that are to be looked at at once. */
static void on_interval(uv_timer_t *t)
{
    struct workers *ws = t->data;
    struct health_checks *h = ws->health_checks;
    kvr_lock(&h->lock);
    h->n = 0;
    kvr_unlock(&h->lock);
    check_all(ws, NULL, 0);
}

static void on_urgent(uv_async_t *a)
{
    struct workers *ws = a->data;
    struct health_checks *h = ws->health_checks;
    uint64_t ids[URGENT_MAX];
    kvr_lock(&h->lock);
    size_t n = h->n;
    memcpy(ids, h->ids, n * sizeof *ids);
    h->n = 0;
    kvr_unlock(&h->lock);
    if (n) check_all(ws, ids, n);
}

void health_check_now(struct workers *ws, uint64_t id)
{
    struct health_checks *h = ws->health_checks;
    kvr_lock(&h->lock);
    bool listed = h->n == URGENT_MAX; /* then the interval will do */
    for (size_t i = 0; i < h->n; i++) listed |= h->ids[i] == id;
    if (!listed) h->ids[h->n++] = id;
    if (h->running) uv_async_send(&h->urgent);
    kvr_unlock(&h->lock);
}

int health_start(struct workers *ws)
{
    struct health_checks *h = ws->health_checks;
    int rc = kvr_http_client_create(&ws->process->main_loop, 3, &ws->process->client);
    if (rc) return rc;
    uv_timer_init(&ws->process->main_loop, &h->timer);
    uv_async_init(&ws->process->main_loop, &h->urgent, on_urgent);
    h->timer.data = h->urgent.data = ws;
    kvr_lock(&h->lock);
    h->running = true;
    kvr_unlock(&h->lock);
    uv_timer_start(&h->timer, on_interval, 0, (uint64_t)(ws->o->health_interval * 1000) + 1);
    return 0;
}

void health_stop(struct workers *ws)
{
    struct health_checks *h = ws->health_checks;
    kvr_lock(&h->lock);
    bool was = h->running;
    h->running = false;
    kvr_unlock(&h->lock);
    if (!was) return;
    uv_close((uv_handle_t *)&h->timer, NULL);
    uv_close((uv_handle_t *)&h->urgent, NULL);
    while (h->checks) check_end(h->checks);
    kvr_http_client_close(ws->process->client);
}
