/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a table, and values that are read into them from texts. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"
#include "base/log.h"
#include "cli/options_parse.h"

const struct option_row *options_row_negated(struct options_parse *p, const char *name)
{
    if (strncmp(name, "no-", 3) != 0 || options_row(p->t, name)) return NULL;
    const struct option_row *r = options_row_given(p, name + 3);
    return r && r->type == OPT_BOOL && !options_only_flag(r) ? r : NULL;
}

const struct option_row *options_row_given(struct options_parse *p, const char *name)
{
    for (size_t i = 0; i < p->t->n; i++) {
        const struct option_row *r = &p->t->rows[i];
        if (strcmp(r->name, name) || !r->alias_of || !r->values || p->warned[i]) continue;
        kvr_log_warning("kvroute %s: %s is deprecated; use %s", p->t->command, name, r->alias_of);
        p->warned[i] = 1;
    }
    return options_row(p->t, name);
}

static void say_allowed(const struct option_row *r, char *out, size_t cap)
{
    switch (r->type) {
    case OPT_U64: snprintf(out, cap, "a whole number from %.0f to %.0f", r->min, r->max); break;
    case OPT_DOUBLE:
        if (r->max >= 1e300) snprintf(out, cap, "a number >= %g", r->min);
        else snprintf(out, cap, "a number from %g to %g", r->min, r->max);
        break;
    case OPT_SIZE: snprintf(out, cap, "a size in bytes, or with KiB, MiB or GiB"); break;
    case OPT_BOOL: snprintf(out, cap, "true or false"); break;
    case OPT_ENUM: snprintf(out, cap, "%s", r->values); break;
    case OPT_STRING:
    case OPT_WORDS:
    case OPT_PAIRS:
    case OPT_ENTRIES:
    case OPT_LIST: snprintf(out, cap, "a text that is not empty"); break;
    case OPT_GROUP:
    case OPT_MORE: break;
    }
}

void options_say_bad(const struct option_row *r, const char *value, char *out, size_t cap)
{
    char allowed[256];
    bool is_text = r->type == OPT_STRING || r->type >= OPT_LIST;
    if (is_text && *value) { /* any text that is not empty is allowed */
        snprintf(out, cap, "out of memory");
        return;
    }
    say_allowed(r, allowed, sizeof allowed);
    snprintf(out, cap, "bad value '%.200s'; allowed: %s", value, allowed);
}

int options_tell(const struct options_parse *p, const char *fmt, ...)
{
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (p->ear) p->ear->fn(p->ear->arg, text);
    else kvr_log_error("kvroute %s: %s", p->t->command, text);
    return 2;
}

static bool parse_u64(const char *s, double min, double max, uint64_t *out)
{
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s)) return false;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || *end || (double)v < min || (double)v > max) return false;
    *out = v;
    return true;
}

static bool parse_double(const char *s, double min, double max, double *out)
{
    char *end;
    errno = 0;
    double v = strtod(s, &end);
    if (min == -1 && (!strcmp(s, "none") || !strcmp(s, "null"))) return *out = -1, true; /* -1 is off */
    if (end == s || *end || errno || !isfinite(v) || v < min || v > max) return false;
    *out = v;
    return true;
}

static bool parse_size(const char *s, uint64_t *out)
{
    static const struct {
        const char *unit;
        int shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}};
    char *end;
    errno = 0;
    if (!isdigit((unsigned char)*s)) return false;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno) return false;
    while (*end == ' ') end++;
    for (size_t i = 0; i < KVR_ARRAY_LEN(units); i++)
        if (strcasecmp(end, units[i].unit) == 0) {
            if (v > UINT64_MAX >> 1 >> units[i].shift) return false;
            *out = v << units[i].shift;
            return true;
        }
    return false;
}

static bool parse_bool(const char *s, bool *out)
{
    static const char *const yes[] = {"true", "yes", "on", "1"}, *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(s, yes[i]) == 0) return *out = true, true;
        if (strcasecmp(s, no[i]) == 0) return *out = false, true;
    }
    return false;
}

bool options_enum(const char *s, const char *values, int *out)
{
    size_t len = strlen(s);
    int at = 0;
    for (const char *v = values; v; at++) {
        const char *bar = strchr(v, '|');
        size_t n = bar ? (size_t)(bar - v) : strlen(v);
        if (n == len && memcmp(v, s, n) == 0) return *out = at, true;
        v = bar ? bar + 1 : NULL;
    }
    return false;
}

/* The list with room for one more than its n: twice as much whenever it is full. NULL: no memory. */
static void *with_room(void *items, size_t n, size_t size)
{
    bool full = (n & (n - 1)) == 0;
    return full ? realloc(items, (n ? 2 * n : 1) * size) : items;
}

static int list_add(struct option_list *l, const char *value)
{
    char **items = with_room(l->items, l->n, sizeof *items);
    if (!items) return 2;
    l->items = items;
    items[l->n] = strdup(value);
    return items[l->n] ? (l->n++, 0) : 2;
}

static void list_clear(struct option_list *l)
{
    for (size_t i = 0; i < l->n; i++) free(l->items[i]);
    free(l->items);
    *l = (struct option_list){0};
}

int options_add_entry(struct option_entries *l, const struct kvr_entry *e)
{
    struct kvr_entry *items = with_room(l->items, l->n, sizeof *items);
    if (!items) return -1;
    l->items = items;
    items[l->n++] = *e;
    return 0;
}

static bool add_entry_text(const struct options_parse *p, struct option_entries *l, const char *text)
{
    struct kvr_entry e;
    if (!*text || kvr_entry_parse(text, p->line ? p->file : NULL, p->line, &e)) return false;
    if (options_add_entry(l, &e) == 0) return true;
    kvr_entry_free(&e);
    return false;
}

static void entries_clear(struct option_entries *l)
{
    for (size_t i = 0; i < l->n; i++) kvr_entry_free(&l->items[i]);
    free(l->items);
    *l = (struct option_entries){0};
}

void options_clear(const struct option_row *r, void *place)
{
    if (r->type == OPT_LIST) list_clear(place);
    if (r->type == OPT_ENTRIES) entries_clear(place);
}

bool options_take(struct options_parse *p, const struct option_row *r, int source)
{
    size_t at = (size_t)(r - p->t->rows);
    if (p->set[at] > source) return false;
    if (p->set[at] < source) options_clear(r, p->options + r->offset);
    p->set[at] = (unsigned char)source;
    return true;
}

bool options_set(struct options_parse *p, const struct option_row *r, const char *value)
{
    void *place = p->options + r->offset;
    switch (r->type) {
    case OPT_STRING:
    case OPT_WORDS:
    case OPT_PAIRS: {
        char **s = place, *copy = *value ? strdup(value) : NULL;
        if (!copy) return false;
        free(*s);
        *s = copy;
        return true;
    }
    case OPT_U64: return parse_u64(value, r->min, r->max, place);
    case OPT_DOUBLE: return parse_double(value, r->min, r->max, place);
    case OPT_SIZE: return parse_size(value, place);
    case OPT_BOOL: return parse_bool(value, place);
    case OPT_ENUM: return options_enum(value, r->values, place);
    case OPT_LIST: return *value && list_add(place, value) == 0;
    case OPT_ENTRIES: return add_entry_text(p, place, value);
    case OPT_GROUP:
    case OPT_MORE: break;
    }
    return false;
}
