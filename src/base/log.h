/* SPDX-License-Identifier: Apache-2.0 */
/* The log: lines on stderr.
 *
 * Model. A line has a time (UTC, milliseconds), a level and a message, as text (`2026-11-24T01:02:03.456Z info kvroute: ready`) or as one
 * JSON object (`{"time":"...","level":"info","message":"..."}`), or as a command speaks (kvr_log_set_spoken). A line is at most 4,096 bytes
 * and is written with one write(2), so lines of threads, and of processes that share a pipe, do not mix. Control characters and what is no
 * UTF-8, in whatever argument, come out as \xNN, so that text from the wire can neither begin a line of its own nor speak to a terminal.
 * Each place in the source may write KVR_LOG_LINES_MAX lines a second. What is beyond is counted, and the next line of any place, or
 * kvr_log_finish, is preceded by one that says how many were left out.
 *
 * What may repeat without end, of one thing for one cause, is written once a minute at most: kvr_log_warning_of.
 *
 * Threads: everything here from any thread; nothing allocates, nothing locks. */
#ifndef KVR_BASE_LOG_H
#define KVR_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kvr_log_level { KVR_LOG_ERROR, KVR_LOG_WARNING, KVR_LOG_INFO, KVR_LOG_DEBUG };
enum kvr_log_format { KVR_LOG_TEXT, KVR_LOG_JSON };
enum { KVR_LOG_LINES_MAX = 20 };

/* Names in the order of the two enums, as options give them. */
#define KVR_LOG_LEVELS  "error|warning|info|debug"
#define KVR_LOG_FORMATS "text|json"

/* What a program is told about its log: places in the lists above. */
struct kvr_log_options {
    int format, level;
};

/* One place that logs. Zeroed: nothing was written yet. */
struct kvr_log_site {
    _Atomic uint64_t second;   /* the second that `lines` counts */
    _Atomic uint64_t left_out; /* lines that nothing was said of yet */
    _Atomic uint32_t lines;
    _Atomic int level;
    const char *_Atomic format;
    struct kvr_log_site *_Atomic next; /* in the list of places that have left lines out */
    _Atomic int listed;
};

#define KVR_LOG_AT(level, ...)                                                                                                             \
    do {                                                                                                                                   \
        static struct kvr_log_site log_site_;                                                                                              \
        kvr__log(&log_site_, (level), __VA_ARGS__);                                                                                        \
    } while (0)

/* The program cannot do what it was told to, and stops or refuses. */
#define kvr_log_error(...) KVR_LOG_AT(KVR_LOG_ERROR, __VA_ARGS__)
/* It goes on, with less than it was told to. */
#define kvr_log_warning(...) KVR_LOG_AT(KVR_LOG_WARNING, __VA_ARGS__)
/* What an operator wants to know of normal work. */
#define kvr_log(...)       KVR_LOG_AT(KVR_LOG_INFO, __VA_ARGS__)
#define kvr_log_debug(...) KVR_LOG_AT(KVR_LOG_DEBUG, __VA_ARGS__)

/* The same, KVR_LOG_PACE_S apart for each key; a line after that says how many were held back. Of two keys that meet in the table both
 * may come more often. */
#define kvr_log_warning_of(key, ...)                                                                                                       \
    do {                                                                                                                                   \
        static struct kvr_log_site log_site_;                                                                                              \
        kvr__log_of(&log_site_, (key), KVR_LOG_WARNING, __VA_ARGS__);                                                                      \
    } while (0)
enum { KVR_LOG_PACE_S = 60, KVR_LOG_PACED = 4096 };
/* Of what (a worker, a rank) and of which cause: its text, whose figures do not count. */
uint64_t kvr_log_key(uint64_t what, uint64_t part, const char *cause);
/* Is it time for a line of `key`, at `second`? *held: lines of it that were held back since the last one. */
bool kvr__log_due(uint64_t key, uint64_t second, uint64_t *held);

/* The least important level that is written; KVR_LOG_INFO from the start. */
void kvr_log_set_level(enum kvr_log_level level);
void kvr_log_set_format(enum kvr_log_format format);
/* For commands, until they serve: text lines are for who typed the command. They have neither time nor level, but for the word `warning`,
 * and on a terminal their beginning is coloured, unless NO_COLOR is set. */
void kvr_log_set_spoken(bool spoken);

/* Says of every place how many of its lines were left out. At the end of a program. */
void kvr_log_finish(void);

void kvr__log(struct kvr_log_site *site, enum kvr_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void kvr__log_of(struct kvr_log_site *site, uint64_t key, enum kvr_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

enum { KVR_LOG_TIME_MAX = 32 };
/* The time now as every line has it, UTC with milliseconds. Returns: its length. */
int kvr_log_time(char out[KVR_LOG_TIME_MAX]);

/* Text as it can be printed: control characters, marks that turn the direction, and what is no UTF-8, as \xNN. Cut to fit, ends with 0.
 * Returns: its length. */
size_t kvr_printable(const char *text, size_t len, char *out, size_t cap);

#endif
