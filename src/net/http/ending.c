/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a program's end: net/http/ending.h. */
#include "net/http/ending.h"

#include "base/log.h"
#include "net/http/systemd.h"

enum { LOOK_MS = 20 };

static void enter(struct kvr_ending *e, enum kvr_ending_phase phase, double seconds)
{
    uv_update_time(e->loop);
    e->phase = phase;
    e->deadline_ms = uv_now(e->loop) + (uint64_t)(seconds * 1000);
    e->config.enter(e->config.ctx, phase);
}

static void drain(struct kvr_ending *e)
{
    kvr_log("%s: draining for %g s at most; a second signal stops at once", e->config.program, e->config.drain_s);
    enter(e, KVR_DRAINING, e->config.drain_s);
}

static void over(struct kvr_ending *e)
{
    e->phase = KVR_OVER;
    uv_timer_stop(&e->timer);
    uv_stop(e->loop);
}

static void on_look(uv_timer_t *t)
{
    struct kvr_ending *e = t->data;
    bool late = uv_now(e->loop) >= e->deadline_ms;
    if (e->phase == KVR_LAME && late) drain(e);
    else if (e->phase == KVR_DRAINING && (late || e->config.is_done(e->config.ctx))) over(e);
}

void kvr_ending_begin(struct kvr_ending *e, const char *why, bool lame_duck)
{
    if (e->phase == KVR_LAME && !lame_duck) drain(e);
    if (e->phase != KVR_SERVING) return;
    uv_timer_start(&e->timer, on_look, LOOK_MS, LOOK_MS);
    if (!lame_duck || e->config.lame_duck_s <= 0) {
        drain(e);
        return;
    }
    kvr_log("%s: %s: not ready any more, and serving for another %g s; a second signal stops at once", e->config.program, why,
            e->config.lame_duck_s);
    enter(e, KVR_LAME, e->config.lame_duck_s);
}

static void on_signal(uv_signal_t *s, int number)
{
    struct kvr_ending *e = s->data;
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";
    kvr_systemd_tell("STOPPING=1\nSTATUS=%s: ending", name);
    if (e->signalled) {
        over(e);
        return;
    }
    e->signalled = true;
    if (e->phase != KVR_SERVING) kvr_log("%s: %s: it is ending; a second signal stops at once", e->config.program, name);
    kvr_ending_begin(e, name, number == SIGTERM);
}

void kvr_ending_init(struct kvr_ending *e, uv_loop_t *loop, const struct kvr_ending_config *config)
{
    *e = (struct kvr_ending){.loop = loop, .config = *config};
    uv_signal_init(loop, &e->term);
    uv_signal_init(loop, &e->intr);
    uv_timer_init(loop, &e->timer);
    e->term.data = e->intr.data = e->timer.data = e;
    uv_signal_start(&e->term, on_signal, SIGTERM);
    uv_signal_start(&e->intr, on_signal, SIGINT);
}

void kvr_ending_tell(const struct kvr_ending *e, struct kvr_http_shared *const *ports, size_t n)
{
    uint64_t finished = 0, cut = 0;
    for (size_t i = 0; i < n; i++) {
        finished += atomic_load(&ports[i]->last_answers);
        cut += atomic_load(&ports[i]->cut_off);
    }
    if (e->phase != KVR_SERVING)
        kvr_log("%s: stopped: %llu answers finished since the end began, %llu cut off", e->config.program, (unsigned long long)finished,
                (unsigned long long)cut);
}

void kvr_free_closed(uv_handle_t *h)
{
    free(h->data);
}

static void close_handle(uv_handle_t *h, void *)
{
    if (!uv_is_closing(h)) uv_close(h, NULL);
}

void kvr_loop_end(uv_loop_t *loop)
{
    uv_walk(loop, close_handle, NULL);
    uv_run(loop, UV_RUN_DEFAULT);
    uv_loop_close(loop);
}
