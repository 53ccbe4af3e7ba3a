/* SPDX-License-Identifier: Apache-2.0 */
/* wire/entry.h says what this is. */
#include "wire/entry.h"

#include <stdlib.h>
#include <string.h>

static int add(struct kvr_entry *e, const char *key, size_t key_len, const char *value, size_t line)
{
    size_t value_len = value ? strlen(value) : 0;
    struct kvr_entry_part *parts = realloc(e->parts, (e->n + 1) * sizeof *parts);
    if (!parts) return -1;
    e->parts = parts;
    char *text = malloc(key_len + value_len + 2);
    if (!text) return -1;
    memcpy(text, key, key_len);
    text[key_len] = 0;
    memcpy(text + key_len + 1, value ? value : "", value_len + 1);
    parts[e->n++] = (struct kvr_entry_part){text, value ? text + key_len + 1 : NULL, line};
    return 0;
}

static int place(struct kvr_entry *e, const char *file, size_t line)
{
    *e = (struct kvr_entry){.line = line};
    e->file = file ? strdup(file) : NULL;
    return file && !e->file ? -1 : 0;
}

/* The text up to the next comma that ends a part, into `out`, which has room for all of it. Returns: what is behind the comma, or NULL. */
static const char *next_part(const char *text, char *out)
{
    for (; *text && *text != ','; text++) {
        if (text[0] == '\\' && text[1] == ',') text++;
        *out++ = *text;
    }
    *out = 0;
    return *text ? text + 1 : NULL;
}

int kvr_entry_parse(const char *text, const char *file, size_t line, struct kvr_entry *out)
{
    char *part = malloc(strlen(text) + 1);
    int rc = place(out, file, line) || !part ? -1 : 0;
    const char *rest = rc ? NULL : next_part(text, part);
    if (rc == 0 && !(out->head = strdup(part))) rc = -1;
    while (rc == 0 && rest) {
        rest = next_part(rest, part);
        const char *equals = strchr(part, '=');
        rc = add(out, part, equals ? (size_t)(equals - part) : strlen(part), equals ? equals + 1 : NULL, line);
    }
    free(part);
    if (rc) kvr_entry_free(out);
    return rc;
}

void kvr_entry_free(struct kvr_entry *e)
{
    for (size_t i = 0; i < e->n; i++) free(e->parts[i].key);
    free(e->parts);
    free(e->head);
    free(e->file);
    *e = (struct kvr_entry){0};
}

/* ---- mappings ---------------------------------------------------------------------------------------- */

struct reading {
    struct kvr_entry *e;
    const char *head, *key; /* key: that of the list which is read */
};

static int add_value(const struct kvr_yaml *y, const char *key, const yaml_node_t *v, struct kvr_entry *e)
{
    const char *text = kvr_yaml_text(v);
    if (!text) return kvr_yaml_refuse(y, v, key, "a text or a number is expected");
    return add(e, key, strlen(key), text, v->start_mark.line + 1) ? kvr_yaml_refuse(y, v, key, "out of memory") : 0;
}

static int value_item(const struct kvr_yaml *y, yaml_node_t *v, void *arg)
{
    const struct reading *r = arg;
    return add_value(y, r->key, v, r->e);
}

static int entry_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct reading *r = arg;
    if (!*key || strpbrk(key, ",=")) return kvr_yaml_refuse(y, key_node, key, "a key without , and = is expected");
    if (r->head && !strcmp(key, r->head)) {
        const char *text = kvr_yaml_text(v);
        if (!text || !*text) return kvr_yaml_refuse(y, v, key, "a text is expected");
        r->e->head = strdup(text);
        return r->e->head ? 0 : kvr_yaml_refuse(y, v, key, "out of memory");
    }
    if (v->type != YAML_SEQUENCE_NODE) return add_value(y, key, v, r->e);
    r->key = key;
    return kvr_yaml_each_item(y, v, key, value_item, r);
}

int kvr_entry_read(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, const char *head, struct kvr_entry *out)
{
    struct reading r = {out, head, NULL};
    int rc = place(out, y->name, map->start_mark.line + 1) ? kvr_yaml_refuse(y, map, what, "out of memory") : 0;
    if (rc == 0) rc = kvr_yaml_each_key(y, map, what, entry_key, &r);
    if (rc == 0 && head && !out->head) {
        char text[64];
        snprintf(text, sizeof text, "the key %s is missing", head);
        rc = kvr_yaml_refuse(y, map, what, text);
    }
    if (rc) kvr_entry_free(out);
    return rc;
}

int kvr_entry_join(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, struct kvr_buf *out)
{
    struct kvr_entry e;
    if (kvr_entry_read(y, map, what, NULL, &e)) return -1;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < e.n; i++) {
        const char *v = e.parts[i].value;
        size_t len = strlen(v);
        if (len && v[len - 1] == '\\')
            rc = kvr_yaml_refuse_line(y, e.parts[i].line, e.parts[i].key, "a value that does not end in \\ is expected");
        kvr_buf_printf(out, "%s%s=", out->len ? "," : "", e.parts[i].key);
        for (; *v; v++) kvr_buf_printf(out, *v == ',' ? "\\%c" : "%c", *v);
    }
    kvr_entry_free(&e);
    return rc;
}
