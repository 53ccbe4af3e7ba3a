/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /status, and /status/stream: the same again and again, as server-sent events, to those who listen.
 *
 *     every second, while somebody listens --> one text --> each listener that has taken the one before
 *
 * With thousands of workers the text takes long to write: it is written as seldom as keeps that to a hundredth of a core. A listener that
 * has not taken the one before is passed over, and is dropped when that has happened BEHIND_MAX times in a row, so there is never more than
 * one text in the queue of a connection. Main loop.
 */
#include "app/serve/admin/room.h"

#include <string.h>
#include <time.h>

#include "app/serve/config/keyring.h"
#include "app/serve/config/port_tls.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/data/state/quality.h"
#include "app/serve/peers/remote.h"
#include "app/serve/workers/workers.h"

enum { EVERY_MS = 1000, SHARE = 100, BEHIND_MAX = 5 };

static void put_totals(struct admin *admin, struct kvr_buf *b)
{
    struct data_totals t = data_plane_totals(admin->data);
    kvr_json_printf(b,
                    "'requests':%ju,'retries':%ju,'errors':%ju,'prompt_tokens':%ju,'predicted_cached_tokens':%ju,"
                    "'actual_cached_tokens':%ju,'sessions':%ju,'responses':%ju",
                    t.requests, t.retries, t.errors, t.prompt_tokens, t.predicted_cached_tokens, t.actual_cached_tokens, t.sessions,
                    t.responses);
}

static void status_write(struct admin *admin, struct kvr_buf *b)
{
    kvr_json_printf(b,
                    "{'version':%s,'program':%s,'mode':%s,'overlap_score_credit':%g,'prefill_load_scale':%g,'uptime_ms':%ju,"
                    "'ending':%i",
                    kvr_version(), serve_command(admin->o), router_mode_name(workers_mode(admin->workers)), admin->o->overlap_credit,
                    admin->o->prefill_load_scale, kvr_now_ms() - admin->process->started_ms, process_is_ending(admin->process));
    if (admin->remotes_n) { /* the index is elsewhere */
        kvr_json_printf(b, "'remote_index':%s,'remote_index_error':%s", admin->o->use_remote_indexer, remote_why(admin));
    }
    put_totals(admin, b);
    kvr_json_printf(b, "'client_keys':%i,'certificates':", keyrings_are_used(admin->config));
    port_tls_write(admin->config, b);
    kvr_json_key(b, "recent");
    history_recent_write(admin, b);
    kvr_json_key(b, "workers");
    admin_workers_write(admin, b, NULL, NULL);
    kvr_json_key(b, "loads");
    admin_loads_write(admin, b, NULL, NULL);
    kvr_json_key(b, "last_minute");
    quality_write(admin->data, b);
    kvr_json_key(b, "decisions");
    data_plane_decisions_write(admin->data, b, 50);
    kvr_json_close(b, '}');
}

void status_get(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    status_write(admin, &b);
    admin_reply(c, 200, &b);
}

/* ---- the stream ---------------------------------------------------------------------------------------- */

static void remove_at(struct status_listeners *all, size_t i)
{
    all->all[i] = all->all[--all->n];
}

/* Returns: whether it is one no more. */
static bool send_to(struct status_listeners *all, struct status_listener *l, const struct kvr_buf *text)
{
    if (kvr_http_all_sent(l->conn)) {
        l->behind = 0;
        kvr_http_write(l->conn, text->data, text->len);
        return false;
    }
    if (++l->behind < BEHIND_MAX) return false;
    all->dropped++;
    kvr_http_abort(l->conn);
    return true;
}

/* Of this thread: a machine that is busy with something else makes a picture no dearer. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

void status_second(struct admin *admin)
{
    struct status_listeners *all = &admin->listeners;
    struct kvr_buf b = {0};
    uint64_t begun = kvr_now_ms(), begun_of_cpu = cpu_ns();
    if (!all->n || begun < all->due_ms) return;
    kvr_buf_str(&b, "data: "); /* JSON as it is written here has no line ends */
    status_write(admin, &b);
    kvr_buf_str(&b, "\n\n");
    for (size_t i = 0; !b.failed && i < all->n;) {
        if (send_to(all, &all->all[i], &b)) remove_at(all, i);
        else i++;
    }
    kvr_buf_free(&b);
    all->due_ms = begun + (cpu_ns() - begun_of_cpu) * SHARE / 1000000;
}

void status_stream(struct admin *admin, struct kvr_http_conn *c)
{
    static const char headers[] = "Content-Type: text/event-stream\r\nCache-Control: no-store\r\nX-Accel-Buffering: no\r\n";
    struct status_listeners *all = &admin->listeners;
    if (process_is_ending(admin->process)) {
        admin_error(c, 503, "shutting down");
        return;
    }
    if (all->n == STATUS_LISTENERS_MAX) {
        admin_error(c, 503, "as many listen as may; GET /status tells the same");
        return;
    }
    kvr_http_start(c, 200, headers, sizeof headers - 1, -1);
    if (kvr_http_conn_request(c)->is_head) {
        kvr_http_end(c);
        return;
    }
    kvr_http_conn_set_user(c, admin);
    all->all[all->n++] = (struct status_listener){c, 0};
    if (all->n == 1) status_second(admin); /* else it has the next one */
}

bool status_gone(struct admin *admin, const struct kvr_http_conn *c)
{
    struct status_listeners *all = &admin->listeners;
    for (size_t i = 0; i < all->n; i++) {
        if (all->all[i].conn != c) continue;
        remove_at(all, i);
        return true;
    }
    return false;
}

void status_end(struct admin *admin)
{
    struct status_listeners *all = &admin->listeners;
    while (all->n) kvr_http_end(all->all[--all->n].conn);
}
