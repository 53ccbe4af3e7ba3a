/* SPDX-License-Identifier: Apache-2.0 */
/* What a program was started with, for those who look at it while it runs: options.h. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "cli/options_parse.h"

/* Without what stands between :// and the last @ of a URL's host, and from the value of an api-key= on. */
static void put_text(struct kvr_buf *out, const char *text)
{
    struct kvr_buf b = {0};
    const char *key = text ? strstr(text, "api-key=") : NULL;
    char *shown = key ? strndup(text, (size_t)(key - text) + strlen("api-key=")) : NULL;
    out->failed |= key && !shown;
    if (key) text = shown;
    for (const char *scheme; text && (scheme = strstr(text, "://")); text = scheme + 3) {
        const char *host = scheme + 3;
        const char *at = memrchr(host, '@', strcspn(host, "/, "));
        kvr_buf_add(&b, text, (size_t)(host - text));
        if (at) scheme += at + 1 - host;
    }
    if (text) kvr_buf_str(&b, text);
    if (key) kvr_buf_str(&b, "...");
    kvr_json_str(out, b.data ? b.data : "", b.len);
    out->failed |= b.failed;
    kvr_buf_free(&b);
    free(shown);
}

static void put_enum(struct kvr_buf *out, const char *values, int place)
{
    for (; place > 0 && strchr(values, '|'); place--) values = strchr(values, '|') + 1;
    kvr_json_str(out, values, strcspn(values, "|"));
}

static void put_value(struct kvr_buf *out, const struct option_row *r, const void *place)
{
    const struct option_list *list = place;
    const struct option_entries *entries = place;
    switch (r->type) {
    case OPT_U64:
    case OPT_SIZE: kvr_json_u64(out, *(const uint64_t *)place); break;
    case OPT_DOUBLE: kvr_json_double(out, *(const double *)place); break;
    case OPT_BOOL: kvr_json_bool(out, *(const bool *)place); break;
    case OPT_ENUM: put_enum(out, r->values, *(const int *)place); break;
    case OPT_LIST:
        kvr_json_open(out, '[');
        for (size_t i = 0; i < list->n; i++) put_text(out, list->items[i]);
        kvr_json_close(out, ']');
        break;
    case OPT_ENTRIES:
        kvr_json_open(out, '[');
        for (size_t i = 0; i < entries->n; i++) put_text(out, entries->items[i].head);
        kvr_json_close(out, ']');
        break;
    default: put_text(out, *(char *const *)place);
    }
}

void options_told(const struct option_table *t, const void *options, const struct options_from *from, struct kvr_buf *out)
{
    static const char *const names[] = {[SOURCE_FILE] = "file", [SOURCE_ENVIRONMENT] = "environment", [SOURCE_FLAG] = "flag"};
    kvr_json_open(out, '[');
    for (size_t i = 0; from->sources && i < t->n; i++) {
        if (from->sources[i] == SOURCE_DEFAULT || !options_own(&t->rows[i])) continue;
        kvr_json_open(out, '{');
        kvr_json_put_str(out, "name", t->rows[i].name);
        kvr_json_key(out, "value");
        put_value(out, &t->rows[i], (const char *)options + t->rows[i].offset);
        kvr_json_put_str(out, "from", names[from->sources[i]]);
        if (from->lines[i]) kvr_json_put_u64(out, "line", from->lines[i]);
        kvr_json_close(out, '}');
    }
    kvr_json_close(out, ']');
}
