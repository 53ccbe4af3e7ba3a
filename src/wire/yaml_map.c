/* SPDX-License-Identifier: Apache-2.0 */
/* wire/yaml_map.h says what this is. */
#include "wire/yaml_map.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"

/* ---- documents --------------------------------------------------------------------------------------- */

int kvr_yaml_parse(const char *name, const void *text, size_t len, kvr_yaml_root_fn *fn, void *arg, char *err, size_t cap)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    int rc = -1;
    snprintf(err, cap, "%s: out of memory", name);
    if (!yaml_parser_initialize(&parser)) return -1;
    yaml_parser_set_input_string(&parser, text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        snprintf(err, cap, "%s:%zu: %s", name, parser.problem_mark.line + 1, parser.problem ? parser.problem : "not YAML");
    } else {
        struct kvr_yaml y = {&doc, name, err, cap};
        rc = fn(&y, yaml_document_get_root_node(&doc), arg);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return rc;
}

int kvr_yaml_read(const char *path, kvr_yaml_root_fn *fn, void *arg, char *err, size_t cap)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(KVR_YAML_FILE_MAX + 1) : NULL;
    size_t n = text ? fread(text, 1, KVR_YAML_FILE_MAX + 1, f) : 0;
    int rc = -1;
    if (!f) snprintf(err, cap, "cannot read '%s': %s", path, strerror(errno));
    else if (!text) snprintf(err, cap, "%s: out of memory", path);
    else if (ferror(f)) snprintf(err, cap, "cannot read '%s': %s", path, strerror(errno));
    else if (n > KVR_YAML_FILE_MAX) snprintf(err, cap, "'%s' is larger than 1 MiB", path);
    else rc = kvr_yaml_parse(path, text, n, fn, arg, err, cap);
    free(text);
    if (f) fclose(f);
    return rc;
}

/* ---- mappings and lists ------------------------------------------------------------------------------ */

int kvr_yaml_refuse(const struct kvr_yaml *y, const yaml_node_t *at, const char *key, const char *allowed)
{
    snprintf(y->err, y->cap, "%s:%zu: %.80s: %s", y->name, at->start_mark.line + 1, key, allowed);
    return -1;
}

int kvr_yaml_each_key(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, kvr_yaml_key_fn *fn, void *arg)
{
    if (map->type != YAML_MAPPING_NODE) return kvr_yaml_refuse(y, map, what, "a mapping is expected");
    for (yaml_node_pair_t *i = map->data.mapping.pairs.start; i < map->data.mapping.pairs.top; i++) {
        yaml_node_t *k = yaml_document_get_node(y->doc, i->key), *v = yaml_document_get_node(y->doc, i->value);
        const char *key = k ? kvr_yaml_text(k) : NULL;
        if (!key || !v) return kvr_yaml_refuse(y, map, what, "keys must be texts");
        for (yaml_node_pair_t *e = map->data.mapping.pairs.start; e < i; e++) {
            const char *earlier = kvr_yaml_text(yaml_document_get_node(y->doc, e->key));
            if (earlier && !strcmp(earlier, key)) return kvr_yaml_refuse(y, k, key, "the key occurs twice");
        }
        int rc = fn(y, key, k, v, arg);
        if (rc) return rc;
    }
    return 0;
}

int kvr_yaml_each_item(const struct kvr_yaml *y, const yaml_node_t *list, const char *what, kvr_yaml_item_fn *fn, void *arg)
{
    if (list->type != YAML_SEQUENCE_NODE) return kvr_yaml_refuse(y, list, what, "a list is expected");
    for (yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        int rc = fn(y, yaml_document_get_node(y->doc, *i), arg);
        if (rc) return rc;
    }
    return 0;
}

/* ---- scalars ----------------------------------------------------------------------------------------- */

const char *kvr_yaml_text(const yaml_node_t *n)
{
    if (n->type != YAML_SCALAR_NODE) return NULL;
    const char *s = (const char *)n->data.scalar.value;
    return strlen(s) == n->data.scalar.length ? s : NULL; /* JSON and YAML can write a zero */
}

int kvr_yaml_get_text(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, char *out, size_t cap)
{
    const char *s = kvr_yaml_text(n);
    char allowed[64];
    if (!s || !*s || strlen(s) >= cap) {
        snprintf(allowed, sizeof allowed, "a text of 1 to %zu characters is expected", cap - 1);
        return kvr_yaml_refuse(y, n, key, allowed);
    }
    memcpy(out, s, strlen(s) + 1);
    return 0;
}

int kvr_yaml_get_number(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, double min, double *out)
{
    const char *s = kvr_yaml_text(n);
    char *end = NULL;
    double v = s ? strtod(s, &end) : 0;
    char allowed[64];
    if (!s || end == s || *end || !isfinite(v) || v < min) {
        snprintf(allowed, sizeof allowed, "a number of at least %g is expected", min);
        return kvr_yaml_refuse(y, n, key, allowed);
    }
    *out = v;
    return 0;
}

int kvr_yaml_get_bool(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, bool *out)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    const char *s = kvr_yaml_text(n);
    for (size_t i = 0; s && i < KVR_ARRAY_LEN(words); i++)
        if (!strcasecmp(s, words[i])) {
            *out = i & 1;
            return 0;
        }
    return kvr_yaml_refuse(y, n, key, "true or false is expected");
}
