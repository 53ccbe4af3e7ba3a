/* SPDX-License-Identifier: Apache-2.0 */
#include "app/top/screen.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { FIXED = 60, /* columns of all but the endpoint */ HEAD_LINES = 6 };

#define BOLD   "\x1b[1m"
#define RED    "\x1b[31m"
#define YELLOW "\x1b[33m"

/* A line, cut to the screen. */
static void line(struct kvr_buf *b, const struct screen *s, const char *look, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void line(struct kvr_buf *b, const struct screen *s, const char *look, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    bool shown = s->coloured && *look;
    kvr_buf_printf(b, "%s%.*s%s\n", shown ? look : "", (int)KVR_MIN(s->columns, sizeof text), text, shown ? "\x1b[0m" : "");
}

/* ---- figures, "-" where there is none ------------------------------------------------------------------ */

struct figure {
    char text[24];
};

static struct figure percent(double share)
{
    struct figure f = {"-"};
    if (share >= 0) snprintf(f.text, sizeof f.text, "%.1f%%", 100 * share);
    return f;
}

static struct figure milliseconds(double ms)
{
    struct figure f = {"-"};
    if (ms >= 10000) snprintf(f.text, sizeof f.text, "%.1f s", ms / 1000);
    else if (ms >= 0) snprintf(f.text, sizeof f.text, "%.0f ms", ms);
    return f;
}

static struct figure count(uint64_t n)
{
    struct figure f;
    if (n < 100000) snprintf(f.text, sizeof f.text, "%ju", n);
    else if (n < 100000000) snprintf(f.text, sizeof f.text, "%.1fk", (double)n / 1000);
    else snprintf(f.text, sizeof f.text, "%.1fM", (double)n / 1e6);
    return f;
}

static struct figure duration(uint64_t ms)
{
    struct figure f;
    unsigned long long s = ms / 1000;
    if (s < 60) snprintf(f.text, sizeof f.text, "%llu s", s);
    else if (s < 3600) snprintf(f.text, sizeof f.text, "%llu min", s / 60);
    else if (s < 86400) snprintf(f.text, sizeof f.text, "%llu h %llu min", s / 3600, s / 60 % 60);
    else snprintf(f.text, sizeof f.text, "%llu d %llu h", s / 86400, s / 3600 % 24);
    return f;
}

/* ---- lines ------------------------------------------------------------------------------------------- */

static void put_fleet(struct kvr_buf *b, const struct screen *s, const struct top_look *now, const struct top_look *before)
{
    bool since_start = !before || before->uptime_ms >= now->uptime_ms || before->requests > now->requests;
    uint64_t ms = now->uptime_ms - (since_start ? 0 : before->uptime_ms), requests = now->requests - (since_start ? 0 : before->requests);
    struct figure waiting = {"-"};
    if (now->waiting >= 0) waiting = count((uint64_t)now->waiting);
    line(b, s, "", "requests %s, %.1f a second; running %s, waiting %s; errors %s, retries %s", count(now->requests).text,
         ms ? 1000.0 * (double)requests / (double)ms : 0, count(now->running).text, waiting.text, count(now->errors).text,
         count(now->retries).text);
    line(b, s, "", "last %zu: cached %s predicted, %s delivered; TTFT p50 %s, p90 %s", now->decisions, percent(now->predicted).text,
         percent(now->delivered).text, milliseconds(now->ttft_p50_ms).text, milliseconds(now->ttft_p90_ms).text);
}

static void put_worker(struct kvr_buf *b, const struct screen *s, const struct top_worker *w)
{
    char id[24];
    int n = snprintf(id, sizeof id, "%ju", w->id), room = (int)(s->columns > FIXED + 16 ? s->columns - FIXED : 16);
    struct figure waiting = {"-"};
    if (w->has_waiting) waiting = count(w->waiting);
    bool up = !strcmp(w->state, "up"), whole = !strcmp(w->view, "whole");
    line(b, s,
         !up      ? RED
         : !whole ? YELLOW
                  : "",
         "%8s  %-*.*s  %-8.8s %-8.8s %7s %6s %8s %6s", n > 8 ? id + n - 8 : id, room, room, w->endpoint, w->state, w->view,
         percent(w->cache).text, count(w->running).text, count(w->prefill_tokens).text, waiting.text);
    if (w->why[0] && (!up || !whole)) line(b, s, "", "%8s  %s", "", w->why);
}

void screen_put(struct kvr_buf *b, const struct screen *s, const char *url, const struct top_look *now, const struct top_look *before)
{
    int room = (int)(s->columns > FIXED + 16 ? s->columns - FIXED : 16);
    size_t left = s->rows ? s->rows - KVR_MIN(s->rows, (size_t)HEAD_LINES + 2) : SIZE_MAX, at = 0;
    line(b, s, BOLD, "kvroute %s at %s, mode %s, up %s", now->version, url, now->mode, duration(now->uptime_ms).text);
    put_fleet(b, s, now, before);
    if (now->advice[0]) line(b, s, YELLOW, "%s", now->advice);
    line(b, s, "", "%s", "");
    line(b, s, BOLD, "%8s  %-*.*s  %-8s %-8s %7s %6s %8s %6s", "WORKER", room, room, "ENDPOINT", "STATE", "VIEW", "CACHED", "RUN",
         "PREFILL", "QUEUE");
    for (; at < now->n && left >= 2; at++) {
        size_t lines = 1 + (now->workers[at].why[0] != 0);
        put_worker(b, s, &now->workers[at]);
        left -= KVR_MIN(lines, left);
    }
    if (!now->n) line(b, s, "", "there is no worker");
    if (at < now->n) line(b, s, "", "and %zu more", now->n - at);
}
