/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Idea: a line is put together on the stack and given to the system with one write.
 *
 * Invariants:
 * - A line is valid UTF-8 without control characters (but for the colours of a terminal, at its beginning), ends with its only newline and
 * is at most LINE bytes (what a pipe takes at once).
 * - A site is added to `silenced` at most once, and the list never shrinks: sites are static, so it is walked without a lock.
 * - Each line that is not written is counted in its site's `left_out` once, and whoever exchanges that for 0 says so.
 *
 * When a second begins, threads that log at the same site may each take a few lines of it for their own: the limit is not exact then.
 */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/terminal.h"

enum { LINE = 4096 };

enum manner { LOGGED, SPOKEN, SPOKEN_IN_COLOUR };
static _Atomic int level_max = KVR_LOG_INFO, format_now = KVR_LOG_TEXT, manner_now = LOGGED;
static struct kvr_log_site *_Atomic silenced; /* sites that have left lines out at some time */

static const char *const level_names[] = {"error", "warning", "info", "debug"};

/* ---- text of others ---- */

static size_t sequence_len(unsigned char first)
{
    return first >= 0xf0 && first < 0xf5 ? 4 : first >= 0xe0 && first < 0xf0 ? 3 : first >= 0xc2 && first < 0xe0 ? 2 : 0;
}

/* Whether a sequence of three or four bytes is the shortest form of a character that exists: no surrogate, nothing above U+10FFFF. */
static bool is_character(const unsigned char *p)
{
    return !(p[0] == 0xe0 && p[1] < 0xa0) && !(p[0] == 0xed && p[1] > 0x9f) && !(p[0] == 0xf0 && p[1] < 0x90) &&
           !(p[0] == 0xf4 && p[1] > 0x8f);
}

/* Bytes of the UTF-8 character at p that may stand in a line: 0 for a control character (C0, DEL, C1) and for what is no UTF-8. */
static size_t plain_len(const unsigned char *p, size_t left)
{
    if (*p < 0x80) return *p >= 0x20 && *p != 0x7f;
    size_t n = sequence_len(*p);
    if (!n || n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80) return 0;
    bool c1 = p[0] == 0xc2 && p[1] < 0xa0, separator = p[0] == 0xe2 && p[1] == 0x80 && (p[2] == 0xa8 || p[2] == 0xa9);
    bool turns = p[0] == 0xe2 && ((p[1] == 0x80 && p[2] >= 0xaa && p[2] <= 0xae) || (p[1] == 0x81 && p[2] >= 0xa6 && p[2] <= 0xa9));
    return c1 || separator || turns || !is_character(p) ? 0 : n;
}

size_t kvr_printable(const char *text, size_t len, char *out, size_t cap)
{
    static const char hex[] = "0123456789abcdef";
    const unsigned char *p = (const unsigned char *)text;
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        size_t k = plain_len(p + i, len - i);
        if (n + (k ? k : 4) >= cap) break;
        if (k) {
            memcpy(out + n, p + i, k);
            n += k;
            i += k;
            continue;
        }
        memcpy(out + n, (const char[]){'\\', 'x', hex[p[i] >> 4], hex[p[i] & 15]}, 4);
        n += 4;
        i++;
    }
    if (cap) out[n] = 0;
    return n;
}

/* ---- one line ---- */

/* Year, month and day of a day since 1970-01-01, in the Gregorian calendar. gmtime_r may read files and allocate. Source: Howard
 * Hinnant, "chrono-compatible low-level date algorithms", civil_from_days. */
static void date_of(int64_t days, int *year, int *month, int *day)
{
    int64_t z = days + 719468, era = z / 146097, doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365, doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153;
    *day = (int)(doy - (153 * mp + 2) / 5 + 1);
    *month = (int)(mp < 10 ? mp + 3 : mp - 9);
    *year = (int)(yoe + era * 400 + (*month <= 2));
}

/* v in `width` digits, and `end`. There may be one for each request, so this is no printf. */
static char *put_digits(char *p, int width, int v, char end)
{
    for (int i = width - 1; i >= 0; i--, v /= 10) p[i] = (char)('0' + v % 10);
    p[width] = end;
    return p + width + 1;
}

int kvr_log_time(char out[KVR_LOG_TIME_MAX])
{
    struct timespec now;
    int year, month, day;
    char *p = out;
    clock_gettime(CLOCK_REALTIME, &now);
    int64_t s = KVR_MAX(now.tv_sec, 0);
    date_of(s / 86400, &year, &month, &day);
    p = put_digits(p, 4, year, '-');
    p = put_digits(p, 2, month, '-');
    p = put_digits(p, 2, day, 'T');
    p = put_digits(p, 2, (int)(s / 3600 % 24), ':');
    p = put_digits(p, 2, (int)(s / 60 % 60), ':');
    p = put_digits(p, 2, (int)(s % 60), '.');
    p = put_digits(p, 3, (int)(now.tv_nsec / 1000000), 'Z');
    *p = 0;
    return (int)(p - out);
}

/* Text that kvr_printable has made, as the inside of a JSON string. */
static size_t put_json_text(const char *text, size_t len, char *out, size_t cap)
{
    size_t n = 0;
    for (size_t i = 0; i < len;) {
        bool escaped = text[i] == '"' || text[i] == '\\';
        size_t k = escaped ? 1 : KVR_MAX(plain_len((const unsigned char *)text + i, len - i), 1);
        if (n + k + escaped > cap) break;
        if (escaped) out[n++] = '\\';
        memcpy(out + n, text + i, k);
        n += k;
        i += k;
    }
    return n;
}

/* "kvroute serve: warning: what is said", the part before the first colon in colours. */
static size_t put_spoken(char line[LINE], enum kvr_log_level level, const char *text, size_t len, bool coloured)
{
    const char *colon = memmem(text, len, ": ", 2), *colour = level == KVR_LOG_ERROR ? "\x1b[1;31m" : "\x1b[1;33m";
    size_t head = colon ? (size_t)(colon - text) + 1 : 0, n = 0;
    coloured &= head > 0 && level <= KVR_LOG_WARNING;
    if (coloured) n = (size_t)snprintf(line, LINE, "%s", colour);
    n += kvr_printable(text, head, line + n, LINE / 2);
    if (coloured) n += (size_t)snprintf(line + n, LINE - n, "\x1b[0m");
    if (level == KVR_LOG_WARNING) n += (size_t)snprintf(line + n, LINE - n, "%swarning:%s", head ? " " : "", head ? "" : " ");
    n += kvr_printable(text + head, len - head, line + n, LINE - n);
    line[n++] = '\n'; /* in the place of the 0 */
    return n;
}

static size_t put_line(char line[LINE], enum kvr_log_level level, const char *text, size_t len)
{
    static const char end[] = "\"}\n";
    char message[LINE];
    enum manner m = (enum manner)atomic_load_explicit(&manner_now, memory_order_relaxed);
    if (m != LOGGED && atomic_load_explicit(&format_now, memory_order_relaxed) == KVR_LOG_TEXT)
        return put_spoken(line, level, text, len, m == SPOKEN_IN_COLOUR);
    size_t n = (size_t)(atomic_load_explicit(&format_now, memory_order_relaxed) == KVR_LOG_JSON ? snprintf(line, LINE, "{\"time\":\"") : 0);
    bool json = n > 0;
    n += (size_t)kvr_log_time(line + n); /* there is room: it is the first */
    if (!json) {
        n += (size_t)snprintf(line + n, LINE - n, " %s ", level_names[level]);
        n += kvr_printable(text, len, line + n, LINE - n);
        line[n++] = '\n'; /* in the place of the 0 */
        return n;
    }
    n += (size_t)snprintf(line + n, LINE - n, "\",\"level\":\"%s\",\"message\":\"", level_names[level]);
    len = kvr_printable(text, len, message, sizeof message);
    n += put_json_text(message, len, line + n, LINE - n - (sizeof end - 1));
    memcpy(line + n, end, sizeof end - 1);
    return n + sizeof end - 1;
}

static void write_line(enum kvr_log_level level, const char *text, size_t len)
{
    char line[LINE];
    size_t n = put_line(line, level, text, len), at = 0;
    while (at < n) {
        ssize_t k = write(STDERR_FILENO, line + at, n - at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) break; /* nobody can be told */
        at += (size_t)k;
    }
}

/* ---- limit of a site ---- */

static uint64_t second_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec + 1; /* never 0, the value of a site that has written nothing */
}

static void tell_left_out(struct kvr_log_site *site)
{
    uint64_t n = atomic_exchange(&site->left_out, 0);
    char text[LINE];
    if (!n) return;
    int len = snprintf(text, sizeof text, "kvroute: log: %llu more lines were left out, of the form '%s'", (unsigned long long)n,
                       atomic_load(&site->format));
    if (len > 0) write_line((enum kvr_log_level)atomic_load(&site->level), text, KVR_MIN((size_t)len, sizeof text - 1));
}

/* Says what was left out in seconds that are over. */
static void tell_all_left_out(uint64_t now)
{
    for (struct kvr_log_site *s = atomic_load(&silenced); s; s = atomic_load(&s->next))
        if (atomic_load(&s->left_out) && atomic_load(&s->second) != now) tell_left_out(s);
}

static void leave_out(struct kvr_log_site *site, enum kvr_log_level level, const char *fmt)
{
    atomic_store(&site->format, fmt);
    atomic_store(&site->level, (int)level);
    atomic_fetch_add(&site->left_out, 1);
    if (atomic_exchange(&site->listed, 1)) return;
    struct kvr_log_site *first = atomic_load(&silenced);
    do atomic_store(&site->next, first);
    while (!atomic_compare_exchange_weak(&silenced, &first, site));
}

static bool may_write(struct kvr_log_site *site, uint64_t now)
{
    uint64_t second = atomic_load(&site->second);
    if (second != now && atomic_compare_exchange_strong(&site->second, &second, now)) atomic_store(&site->lines, 0);
    return atomic_fetch_add(&site->lines, 1) < KVR_LOG_LINES_MAX;
}

/* ---- for all ---- */

void kvr_log_set_level(enum kvr_log_level level)
{
    atomic_store(&level_max, (int)level);
}

void kvr_log_set_format(enum kvr_log_format format)
{
    atomic_store(&format_now, (int)format);
}

void kvr_log_set_spoken(bool spoken)
{
    atomic_store(&manner_now, (int)(!spoken ? LOGGED : kvr_terminal_coloured(STDERR_FILENO) ? SPOKEN_IN_COLOUR : SPOKEN));
}

void kvr_log_finish(void)
{
    tell_all_left_out(0);
}

/* ---- paced ---- */

/* Direct-mapped: a key that comes to the place of another takes it. Two threads at one place may write a line too many, or count one too
 * few. */
static struct {
    _Atomic uint64_t key, second, held;
} paced[KVR_LOG_PACED];

uint64_t kvr_log_key(uint64_t what, uint64_t part, const char *cause)
{
    uint64_t h = kvr_mix64(what) ^ kvr_mix64(part + 1);
    for (; *cause; cause++)
        if (*cause < '0' || *cause > '9') h = kvr_mix64(h ^ (unsigned char)*cause);
    return h | 1;
}

bool kvr__log_due(uint64_t key, uint64_t second, uint64_t *held)
{
    size_t at = key / 2 % KVR_LOG_PACED;
    bool known = atomic_load(&paced[at].key) == key;
    if (known && second - atomic_load(&paced[at].second) < KVR_LOG_PACE_S) {
        atomic_fetch_add(&paced[at].held, 1);
        return false;
    }
    atomic_store(&paced[at].key, key);
    atomic_store(&paced[at].second, second);
    uint64_t n = atomic_exchange(&paced[at].held, 0);
    *held = known ? n : 0;
    return true;
}

/* Whether a line of this place may be written now; else it is counted as left out. */
static bool begin_line(struct kvr_log_site *site, enum kvr_log_level level, const char *fmt)
{
    uint64_t now = second_now();
    tell_all_left_out(now);
    if (may_write(site, now)) return true;
    leave_out(site, level, fmt);
    return false;
}

void kvr__log_of(struct kvr_log_site *site, uint64_t key, enum kvr_log_level level, const char *fmt, ...)
{
    uint64_t held;
    char text[LINE];
    va_list ap;
    if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed) || !kvr__log_due(key, second_now(), &held)) return;
    if (!begin_line(site, level, fmt)) return;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap), more = 0;
    va_end(ap);
    if (len < 0) return;
    size_t n = KVR_MIN((size_t)len, sizeof text - 1);
    if (held) more = snprintf(text + n, sizeof text - n, " (%llu more like it were held back since)", (unsigned long long)held);
    write_line(level, text, KVR_MIN(n + (size_t)KVR_MAX(more, 0), sizeof text - 1));
}

void kvr__log(struct kvr_log_site *site, enum kvr_log_level level, const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&level_max, memory_order_relaxed)) return;
    if (!begin_line(site, level, fmt)) return;
    char text[LINE];
    va_list ap;
    va_start(ap, fmt);
    int len = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (len >= 0) write_line(level, text, KVR_MIN((size_t)len, sizeof text - 1));
}
