/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One look after the other: two questions to the admin port, a screen of text. The loop runs within a question and while it waits for the
 * next; a signal ends it between two looks. On a terminal the screen of before comes back at the end.
 */
#include "app/top/top.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <uv.h>

#include "app/top/screen.h"
#include "base/terminal.h"
#include "net/http/access.h"
#include "net/http/ending.h"
#include "net/http/fetch.h"
#include "wire/json.h"

enum { COLUMNS = 80, ANSWER_S = 3 };

struct top {
    const struct top_options *o;
    char **keys;
    struct kvr_json_parser *json;
    uv_loop_t loop;
    struct kvr_http_client *http;
    uv_signal_t signals[2];
    uv_timer_t timer;
    bool over, due;
    struct top_look before;
};

/* Returns: whether there is an answer; else why, in *err. */
static bool ask(struct top *t, const char *path, struct kvr_fetched *answer, char *err, size_t cap)
{
    char url[600];
    size_t n = strlen(t->o->url);
    while (n && t->o->url[n - 1] == '/') n--;
    snprintf(url, sizeof url, "%.*s%s", (int)KVR_MIN(n, (size_t)500), t->o->url, path);
    struct kvr_fetch f = {&t->loop, t->http, url, NULL, NULL, t->keys ? t->keys[0] : NULL, ANSWER_S};
    kvr_http_fetch(&f, answer);
    if (answer->status == 200) return true;
    if (!answer->status) snprintf(err, cap, "%s: %s", url, answer->error);
    else if (answer->status == 401) snprintf(err, cap, "%s answers 401; does it need --admin-key-file?", url);
    else snprintf(err, cap, "%s answers %d; is it the admin port of a router?", url, answer->status);
    return false;
}

static bool look(struct top *t, struct top_look *out, char *err, size_t cap)
{
    struct kvr_fetched status = {0}, metrics = {0};
    bool seen = ask(t, "/status", &status, err, cap);
    if (seen && !look_read(t->json, status.body.data ? status.body.data : "", status.body.len, out)) {
        snprintf(err, cap, "%s: what it answers is no status of a router", t->o->url);
        seen = false;
    }
    if (seen && ask(t, "/metrics", &metrics, err, cap))
        look_read_metrics(metrics.body.data ? metrics.body.data : "", metrics.body.len, out);
    kvr_fetched_free(&status);
    kvr_fetched_free(&metrics);
    return seen;
}

static struct screen screen_of(const struct top *t)
{
    struct winsize w;
    struct screen s = {.columns = COLUMNS, .coloured = kvr_terminal_coloured(STDOUT_FILENO)};
    if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col && w.ws_row) {
        s.columns = w.ws_col;
        s.rows = t->o->once ? 0 : w.ws_row;
    }
    return s;
}

/* On a terminal over what was there, each line to its end, and nothing below. */
static void show(const struct kvr_buf *text, bool terminal)
{
    if (terminal) fputs("\x1b[H", stdout);
    for (const char *p = text->data, *end = p + text->len; p < end;) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p);
        fwrite(p, 1, n, stdout);
        fputs(terminal ? "\x1b[K\n" : "\n", stdout);
        p += n + 1;
    }
    if (terminal) fputs("\x1b[J", stdout);
    fflush(stdout);
}

/* Returns: whether the router answered. */
static bool one_look(struct top *t, bool terminal)
{
    struct top_look now = {0};
    struct kvr_buf text = {0};
    char err[800];
    struct screen s = screen_of(t);
    bool seen = look(t, &now, err, sizeof err);
    if (seen) {
        screen_put(&text, &s, t->o->url, &now, t->before.workers ? &t->before : NULL);
        look_free(&t->before);
        t->before = now;
    } else {
        look_free(&now);
        kvr_buf_printf(&text, "%.*s\n", (int)s.columns, err);
    }
    if (seen || terminal) show(&text, terminal);
    else kvr_log_error("kvroute top: %s", err);
    kvr_buf_free(&text);
    return seen;
}

static void on_signal(uv_signal_t *s, int)
{
    struct top *t = s->data;
    t->over = true;
    uv_stop(&t->loop);
}

static void on_time(uv_timer_t *timer)
{
    struct top *t = timer->data;
    t->due = true;
}

static void wait_for_next(struct top *t)
{
    t->due = false;
    uv_timer_start(&t->timer, on_time, (uint64_t)(t->o->interval * 1000), 0);
    while (!t->due && !t->over) uv_run(&t->loop, UV_RUN_ONCE);
}

/* Looks until a signal. A router that does not answer is asked again. */
static int watch(struct top *t)
{
    static const int ends[] = {SIGINT, SIGTERM};
    bool terminal = isatty(STDOUT_FILENO), seen = false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(ends); i++) {
        uv_signal_init(&t->loop, &t->signals[i]);
        t->signals[i].data = t;
        uv_signal_start(&t->signals[i], on_signal, ends[i]);
    }
    uv_timer_init(&t->loop, &t->timer);
    t->timer.data = t;
    if (terminal) fputs("\x1b[?1049h\x1b[?25l", stdout); /* another screen, without a cursor */
    while (!t->over) {
        seen = one_look(t, terminal);
        if (ferror(stdout)) t->over = true; /* nobody reads it any more */
        if (!t->over) wait_for_next(t);
    }
    if (terminal) fputs("\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    for (size_t i = 0; i < KVR_ARRAY_LEN(ends); i++) uv_close((uv_handle_t *)&t->signals[i], NULL);
    uv_close((uv_handle_t *)&t->timer, NULL);
    return seen ? 0 : 1;
}

/* Returns: 0, or 2 and what is wrong was told. */
static int check(struct top *t)
{
    const struct top_options *o = t->o;
    struct kvr_endpoint e;
    char err[320];
    if (strlen(o->url) > 500 || kvr_endpoint_parse_any(o->url, strlen(o->url), &e)) {
        kvr_log_error("kvroute top: '%.200s' is no URL; allowed: http:// or https://host[:port]", o->url);
        return 2;
    }
    if (o->key_file && !(t->keys = kvr_keys_read(o->key_file, err, sizeof err))) {
        kvr_log_error("kvroute top: --admin-key-file: %s", err);
        return 2;
    }
    if (o->tls_ca && kvr_tls_trust(&(struct kvr_tls_peer_config){.ca = o->tls_ca}, err, sizeof err)) {
        kvr_log_error("kvroute top: --tls-ca: %s; allowed: a PEM file of certificates", err);
        return 2;
    }
    return 0;
}

int top_main(const struct top_options *o)
{
    struct top t = {.o = o, .json = kvr_json_parser_new()};
    int rc = check(&t);
    (void)signal(SIGPIPE, SIG_IGN);
    if (rc == 0) {
        uv_loop_init(&t.loop);
        rc = !t.json || kvr_http_client_create(&t.loop, ANSWER_S, &t.http) ? 1 : o->once ? !one_look(&t, false) : watch(&t);
        if (t.http) kvr_http_client_close(t.http);
        kvr_loop_end(&t.loop);
    }
    look_free(&t.before);
    kvr_keys_free(t.keys);
    kvr_json_parser_free(t.json);
    return rc;
}
