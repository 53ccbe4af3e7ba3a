/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with the connections of sources, told when it has lasted a moment, and again when it is over. The ingest thread's. */
#include "base/log.h"
#include "net/ingest/internal.h"

enum { PATIENCE_MS = 1000 };

static enum kvr_wiring wiring_of(const struct source *s)
{
    if (s->st.events_trouble) return KVR_WIRING_EVENTS;
    if (s->st.replay_trouble) return KVR_WIRING_REPLAY;
    if (s->st.paused) return KVR_WIRING_FINE;
    if (!s->view.connected) return KVR_WIRING_SILENT;
    return s->st.can_replay ? KVR_WIRING_FINE : KVR_WIRING_NO_REPLAY;
}

static const char *why(const struct source *s, enum kvr_wiring w)
{
    switch (w) {
    case KVR_WIRING_EVENTS: return s->st.events_trouble;
    case KVR_WIRING_REPLAY: return s->st.replay_trouble;
    case KVR_WIRING_SILENT: return "no publisher answers there";
    case KVR_WIRING_NO_REPLAY: return "it is followed without a replay endpoint, so what is lost on the way stays lost";
    default: return "its events endpoint answers";
    }
}

void kvr__wiring_look(struct kvr_ingest *in)
{
    if (!in->handler.on_wiring) return;
    for (struct source *s = in->sources; s; s = s->next) {
        enum kvr_wiring is = wiring_of(s);
        if (!s->events[0]) continue;
        if (is != s->wiring || !s->wiring_ms) s->wiring_ms = in->now_ms;
        s->wiring = is;
        if (is == s->wiring_told || in->now_ms - s->wiring_ms < PATIENCE_MS) continue;
        s->wiring_told = is;
        in->handler.on_wiring(in->handler.ctx, s->user, s->st.worker, is, is == KVR_WIRING_REPLAY ? s->replay : s->events, why(s, is));
    }
}

void kvr_ingest_tell_wiring(const char *who, struct kvr_worker worker, enum kvr_wiring wiring, const char *endpoint, const char *text)
{
    unsigned long long id = worker.worker_id;
    if (wiring == KVR_WIRING_FINE) kvr_log("%s %llu rank %u: %s: %s", who, id, worker.dp_rank, endpoint, text);
    else kvr_log_warning_of(kvr_log_key(id, worker.dp_rank, text), "%s %llu rank %u: %s: %s", who, id, worker.dp_rank, endpoint, text);
}
