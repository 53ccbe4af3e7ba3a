/* SPDX-License-Identifier: Apache-2.0 */
/* Whether requests should be sent here: data/ready.h. */
#include "app/serve/state.h"

bool serve_ready(struct serve *s, const char **why)
{
    bool up = false;
    uint64_t now = now_ms();
    kvr_lock(&s->lock);
    size_t n = s->workers_n;
    for (const struct worker *w = s->workers; w; w = w->next)
        up |= (w->health == HEALTH_UP || s->o->select_only) && worker_is_schedulable(w, now);
    kvr_unlock(&s->lock);
    *why = "no worker is schedulable";
    if (!up) return false;
    *why = "fewer workers than --min-initial-workers";
    if (n < s->o->min_initial_workers) return false;
    *why = "views are being restored";
    if (!views_settled(s)) return false;
    *why = "the remote index has not been validated";
    if (!remote_settled(s)) return false;
    *why = "shutting down";
    return !atomic_load(&s->draining);
}
