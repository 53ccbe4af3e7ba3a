/* SPDX-License-Identifier: Apache-2.0 */
/* Whether requests should be sent here: data/port/ready.h. */
#include "app/serve/data/port/ready.h"

#include "app/serve/data/state/room.h"
#include "app/serve/peers/remote.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/views/views.h"

bool data_plane_ready(struct data_plane *data, const char **why)
{
    bool up = false;
    uint64_t now = kvr_now_ms();
    *why = "shutting down";
    if (process_is_ending(data->process)) return false;
    const struct roster_row *all = roster_hold(data->workers, "");
    size_t n = all ? all->servers_n : 0;
    for (size_t i = 0; i < n; i++) {
        const struct worker *w = all->servers[i].worker;
        if (w->role == ROLE_PREFILL && !data->o->select_only) continue; /* it answers no request */
        up |= (atomic_load(&w->health) == HEALTH_UP || data->o->select_only) && worker_is_schedulable(w, now);
    }
    roster_let_go(all);
    *why = "no worker is schedulable";
    if (!up) return false;
    *why = "fewer workers than --min-initial-workers";
    if (n < data->o->min_initial_workers) return false;
    *why = "views are being restored";
    if (!views_settled(data->workers)) return false;
    *why = "the remote index has not been validated";
    if (!remote_settled(data->peers)) return false;
    return true;
}
