/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a worker stands: its health, the breaker, the models that it lists.
 *
 * A request that fails counts for the breaker, which keeps the worker out for a while; a health check says whether it is up. Whenever that
 * makes a worker fit to be chosen, what waits is told (workers_hooks.may_route), after the table's lock was given back.
 */
#include <stdlib.h>
#include <string.h>

#include "app/serve/workers/engines/usage_reporting.h"
#include "app/serve/workers/engines/learnt.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "base/log.h"

static void open_breaker_locked(struct workers *ws, struct worker *w, uint64_t until)
{
    uint64_t due = atomic_load(&ws->breaker_due_ms);
    atomic_store(&w->open_until_ms, until);
    if (!due || until < due) atomic_store(&ws->breaker_due_ms, until);
}

void workers_sync_due(struct workers *ws)
{
    enum { TOLD_MAX = 16 };
    uint64_t due = atomic_load(&ws->breaker_due_ms), now, closed[TOLD_MAX];
    size_t closed_n = 0;
    if (!due || (now = kvr_now_ms()) < due) return;
    due = 0;
    kvr_lock(&ws->lock);
    for (struct worker *w = ws->workers; w; w = w->next) {
        uint64_t until = atomic_load(&w->open_until_ms);
        if (until > now && (!due || until < due)) due = until;
        if (w->schedulable == worker_is_schedulable(w, now)) continue;
        if (!w->schedulable && closed_n < TOLD_MAX) closed[closed_n++] = w->id;
        worker_sync_locked(ws, w);
    }
    atomic_store(&ws->breaker_due_ms, due);
    kvr_unlock(&ws->lock);
    for (size_t i = 0; i < closed_n; i++)
        kvr_log("kvroute: worker %llu gets requests again: worker_id=%llu breaker=closed", (unsigned long long)closed[i],
                (unsigned long long)closed[i]);
}

void worker_report(struct workers *ws, struct worker *w, bool ok)
{
    bool opened = false;
    if (ok && atomic_load(&w->failures) == 0) return; /* as most of the time */
    kvr_lock(&ws->lock);
    if (ok) {
        w->failures = 0;
    } else {
        w->errors++;
        if (++w->failures >= ws->o->breaker_failures) {
            w->failures = 0;
            open_breaker_locked(ws, w, kvr_now_ms() + (uint64_t)(ws->o->breaker_cooldown * 1000));
            atomic_fetch_add(&ws->counters.breaker_opened_total, 1);
            worker_sync_locked(ws, w);
            opened = true;
        }
    }
    kvr_unlock(&ws->lock);
    if (opened)
        kvr_log_warning("kvroute: worker %llu gets no requests for a while, too many in a row have failed: worker_id=%llu breaker=open "
                        "failures=%llu cooldown_s=%g",
                        (unsigned long long)w->id, (unsigned long long)w->id, (unsigned long long)ws->o->breaker_failures,
                        ws->o->breaker_cooldown);
}

/* Of a worker whose health has changed; without the lock of the table. */
static void tell_health(uint64_t id, const char *url, enum health was, enum health is, const char *why)
{
    unsigned long long n = id;
    if (is == HEALTH_DOWN) kvr_log_warning("kvroute: worker %llu (%.200s) is down: %.200s; worker_id=%llu status=down", n, url, why, n);
    else if (was == HEALTH_DOWN) kvr_log("kvroute: worker %llu (%.200s) is up again: worker_id=%llu status=up", n, url, n);
}

void worker_set_health(struct workers *ws, uint64_t id, enum health h, const char *why)
{
    bool came_up = false;
    enum health was = h;
    char url[sizeof((struct worker *)0)->url];
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, id);
    if (w) {
        was = w->health;
        memcpy(url, w->url, sizeof url);
        w->checked_ms = kvr_now_ms();
        if (h != w->health) w->since_ms = w->checked_ms;
        if (h == HEALTH_DOWN) {
            w->error_ms = w->checked_ms;
            snprintf(w->last_error, sizeof w->last_error, "%s", why);
        }
        came_up = h == HEALTH_UP && w->health != HEALTH_UP;
        if (came_up && learns(ws, w)) w->learnt.due_ms = 1; /* it may have been started anew */
        if (came_up) w->open_until_ms = 0;
        if (came_up) atomic_store(&w->ups, ++ws->ups);
        if (h == HEALTH_DOWN) usage_reporting_forget_locked(w, true); /* whatever comes back need not tell */
        w->health = h;
        bool before = w->schedulable;
        worker_sync_locked(ws, w);
        came_up |= w->schedulable && !before;
    }
    kvr_unlock(&ws->lock);
    if (was != h) tell_health(id, url, was, h, why);
    if (came_up) ws->hooks.may_route(ws->hooks.ctx);
}

bool worker_set_draining(struct workers *ws, uint64_t id, bool draining)
{
    bool changed = false, fit = false;
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, id);
    if (w && w->draining != draining) {
        changed = true;
        w->drains = draining;
        atomic_store(&w->draining, draining);
        w->since_ms = kvr_now_ms();
        worker_sync_locked(ws, w);
        fit = w->schedulable;
    }
    kvr_unlock(&ws->lock);
    if (changed)
        kvr_log("kvroute: worker %llu %s; worker_id=%llu state=%s", (unsigned long long)id,
                draining ? "is drained: it gets no new requests" : "gets requests again", (unsigned long long)id,
                draining ? "draining" : "active");
    if (fit) ws->hooks.may_route(ws->hooks.ctx);
    return w != NULL;
}

void worker_models_refused(struct workers *ws, uint64_t id, int status)
{
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, id);
    bool fresh = w && w->models_status != status;
    if (w) w->models_status = status;
    if (fresh && (status == 401 || status == 403))
        kvr_log_warning("kvroute: worker %llu (%.200s) answers GET /v1/models with status %d: it wants a key", (unsigned long long)id,
                        w->url, status);
    else if (fresh)
        kvr_log_warning("kvroute: worker %llu (%.200s) answers GET /v1/models with status %d, so its models are not known",
                        (unsigned long long)id, w->url, status);
    kvr_unlock(&ws->lock);
}

void worker_models_note(struct workers *ws, uint64_t id, const char *text)
{
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, id);
    if (w) w->models_status = 200;
    if (w)
        kvr_log_warning_of(kvr_log_key(id, 0, text), "kvroute: worker %llu (%.200s): GET /v1/models: %s", (unsigned long long)id, w->url,
                           text);
    kvr_unlock(&ws->lock);
}

void worker_set_models(struct workers *ws, uint64_t id, struct model_entry *models, size_t n)
{
    kvr_lock(&ws->lock);
    struct worker *w = worker_find_locked(ws, id);
    if (w && !(w->models && w->models_n == n && memcmp(w->models, models, n * sizeof *models) == 0)) {
        roster_outdate_locked(ws);
        free(w->models);
        w->models = models;
        w->models_n = n;
        models = NULL;
    }
    if (w) w->models_status = 200;
    kvr_unlock(&ws->lock);
    free(models);
}
