/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs that have missed each other: workers/table/missed_rendezvous.h. */
#include "app/serve/workers/table/missed_rendezvous.h"

#include "app/serve/workers/table/room.h"

void missed_rendezvous_note(struct workers *ws, uint64_t prefill, uint64_t decode)
{
    struct missed_rendezvous *m = &ws->missed;
    size_t at = 0;
    uint64_t until = kvr_now_ms() + (uint64_t)(ws->o->breaker_cooldown * 1000);
    kvr_lock(&ws->lock);
    for (size_t i = 0; i < MISSED_MAX; i++) {
        if (m->pairs[i].until_ms < m->pairs[at].until_ms) at = i;
        if (m->pairs[i].prefill != prefill || m->pairs[i].decode != decode || !m->pairs[i].until_ms) continue;
        at = i;
        break;
    }
    m->pairs[at].prefill = prefill;
    m->pairs[at].decode = decode;
    m->pairs[at].until_ms = until;
    atomic_store(&m->last_ms, until);
    kvr_unlock(&ws->lock);
    atomic_fetch_add(&ws->counters.disagg_rendezvous_missed_total, 1);
}

size_t missed_rendezvous_by(struct workers *ws, uint64_t prefill, uint64_t *out)
{
    struct missed_rendezvous *m = &ws->missed;
    uint64_t now = kvr_now_ms();
    size_t n = 0;
    if (atomic_load(&m->last_ms) <= now) return 0;
    kvr_lock(&ws->lock);
    for (size_t i = 0; i < MISSED_MAX; i++)
        if (m->pairs[i].until_ms > now && m->pairs[i].prefill == prefill) out[n++] = m->pairs[i].decode;
    kvr_unlock(&ws->lock);
    return n;
}

void missed_rendezvous_tick(struct workers *ws)
{
    uint64_t last = atomic_load(&ws->missed.last_ms);
    if (ws->missed.told_ms == last || last > kvr_now_ms()) return;
    ws->missed.told_ms = last;
    ws->hooks.may_route(ws->hooks.ctx);
}
