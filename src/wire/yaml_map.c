/* SPDX-License-Identifier: Apache-2.0 */
/* wire/yaml_map.h says what this is. */
#include "wire/yaml_map.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/base.h"

/* ---- documents --------------------------------------------------------------------------------------- */

enum { DEPTH_MAX = 32, ANCHORS_MAX = 256, DIRECTIVES_MAX = 16, MERGED_MAX = 16 };

/* What y->err says is one finding. Returns: -1. */
static int found(const struct kvr_yaml *y)
{
    if (!y->all) return -1;
    if (y->all->n < KVR_YAML_FINDINGS_MAX) y->all->fn(y->all->arg, y->err);
    y->all->n++;
    return -1;
}

static int refuse_at(const struct kvr_yaml *y, size_t line, const char *text)
{
    snprintf(y->err, y->cap, "%s:%zu: %s", y->name, line, text);
    return found(y);
}

static const yaml_char_t *anchor_of(const yaml_event_t *e)
{
    return e->type == YAML_SCALAR_EVENT           ? e->data.scalar.anchor
           : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor
           : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.anchor
                                                  : NULL;
}

struct survey {
    unsigned depth, anchors, documents;
};

/* Returns: NULL, or what is wrong. */
static const char *survey_event(struct survey *v, const yaml_event_t *e)
{
    if (e->type == YAML_SEQUENCE_START_EVENT || e->type == YAML_MAPPING_START_EVENT) v->depth++;
    if (e->type == YAML_SEQUENCE_END_EVENT || e->type == YAML_MAPPING_END_EVENT) v->depth--;
    if (e->type == YAML_DOCUMENT_START_EVENT) v->documents++;
    if (anchor_of(e)) v->anchors++;
    if (v->depth > DEPTH_MAX) return "it is nested too deeply; allowed: 32 levels";
    if (v->anchors > ANCHORS_MAX) return "there are too many anchors; allowed: 256";
    return v->documents > 1 ? "a second document begins; one is expected" : NULL;
}

/* The library takes quadratic time, of minutes for a file that we read, where lists are in lists, and with anchors and directives. And a
 * second document would be passed over in silence. So a first pass looks at events, which are read one by one. */
static int survey(const struct kvr_yaml *y, yaml_parser_t *parser)
{
    struct survey v = {0};
    yaml_event_t e;
    const char *why = NULL;
    bool end = false;
    while (!why && !end) {
        if (!yaml_parser_parse(parser, &e))
            return refuse_at(y, parser->problem_mark.line + 1, parser->problem ? parser->problem : "not YAML");
        end = e.type == YAML_STREAM_END_EVENT;
        why = survey_event(&v, &e);
        if (why) (void)refuse_at(y, e.start_mark.line + 1, why);
        yaml_event_delete(&e);
    }
    return why ? -1 : 0;
}

static unsigned directives(const char *text, size_t len)
{
    unsigned n = 0;
    for (size_t i = 0; i < len; i++) n += text[i] == '%' && (i == 0 || text[i - 1] == '\n' || text[i - 1] == '\r');
    return n;
}

static int read_document(const struct kvr_yaml *y, yaml_parser_t *parser, kvr_yaml_root_fn *fn, void *arg)
{
    if (!yaml_parser_load(parser, y->doc))
        return refuse_at(y, parser->problem_mark.line + 1, parser->problem ? parser->problem : "not YAML");
    int rc = fn(y, yaml_document_get_root_node(y->doc), arg);
    yaml_document_delete(y->doc);
    return rc;
}

static int parse(const struct kvr_yaml_source *from, kvr_yaml_root_fn *fn, void *arg, char *err, size_t cap)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    struct kvr_yaml y = {&doc, from->name, err, cap, from->all, false};
    int rc = 0;
    if (directives(from->text, from->len) > DIRECTIVES_MAX) return refuse_at(&y, 1, "there are too many directives (%); allowed: 16");
    for (int pass = 0; pass < 2 && rc == 0; pass++) {
        if (!yaml_parser_initialize(&parser)) return refuse_at(&y, 1, "out of memory");
        yaml_parser_set_input_string(&parser, from->text, from->len);
        rc = pass ? read_document(&y, &parser, fn, arg) : survey(&y, &parser);
        yaml_parser_delete(&parser);
    }
    return rc;
}

/* ---- files ------------------------------------------------------------------------------------------- */

enum { PATIENCE_MS = 10000 };

/* Like read(2), of a descriptor that does not block: a pipe's writer is given some time, and one that never comes is the end. */
static ssize_t read_some(int fd, char *at, size_t cap)
{
    for (;;) {
        ssize_t n = read(fd, at, cap);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
        if (errno == EINTR) continue;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, PATIENCE_MS) > 0) continue;
        errno = ETIMEDOUT;
        return -1;
    }
}

int kvr_yaml_load(const char *path, char **text, size_t *len, char *err, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* else a pipe without a writer holds us up for ever */
    char *out = fd >= 0 ? malloc(KVR_YAML_FILE_MAX + 1) : NULL;
    size_t n = 0;
    ssize_t k = -1;
    if (fd < 0) snprintf(err, cap, "cannot read '%s': %s", path, strerror(errno));
    else if (!out) snprintf(err, cap, "%s: out of memory", path);
    else {
        while (n <= KVR_YAML_FILE_MAX && (k = read_some(fd, out + n, KVR_YAML_FILE_MAX + 1 - n)) > 0) n += (size_t)k;
        if (k < 0) snprintf(err, cap, "cannot read '%s': %s", path, strerror(errno));
        else if (n > KVR_YAML_FILE_MAX) snprintf(err, cap, "cannot read '%s': it is larger than 1 MiB", path);
    }
    if (fd >= 0) close(fd);
    if (k < 0 || n > KVR_YAML_FILE_MAX) {
        free(out);
        return -1;
    }
    *text = out;
    *len = n;
    return 0;
}

int kvr_yaml_read(const struct kvr_yaml_source *from, kvr_yaml_root_fn *fn, void *arg, char *err, size_t cap)
{
    struct kvr_yaml_source loaded = *from;
    char *text;
    if (from->text) return parse(from, fn, arg, err, cap);
    if (kvr_yaml_load(from->name, &text, &loaded.len, err, cap)) {
        if (from->all) from->all->unreadable = true;
        return found(&(struct kvr_yaml){NULL, from->name, err, cap, from->all, false});
    }
    loaded.text = text;
    int rc = parse(&loaded, fn, arg, err, cap);
    free(text);
    return rc;
}

/* ---- mappings and lists ------------------------------------------------------------------------------ */

int kvr_yaml_refuse_line(const struct kvr_yaml *y, size_t line, const char *key, const char *allowed)
{
    size_t word = strspn(key, "abcdefghijklmnopqrstuvwxyz_256"); /* key_sha256 is one */
    snprintf(y->err, y->cap, "%s:%zu: %.*s: %s", y->name, line, y->secret ? (int)KVR_MIN(word, (size_t)80) : 80, key, allowed);
    return found(y);
}

int kvr_yaml_refuse(const struct kvr_yaml *y, const yaml_node_t *at, const char *key, const char *allowed)
{
    return kvr_yaml_refuse_line(y, at->start_mark.line + 1, key, allowed);
}

/* After a refusal: whether the next key or item is looked at all the same. */
static bool goes_on(const struct kvr_yaml *y)
{
    return y->all && y->all->n < KVR_YAML_FINDINGS_MAX;
}

/* Whether a key stands in the mapping before `at`. */
static bool occurred(const struct kvr_yaml *y, const yaml_node_t *map, const yaml_node_pair_t *at, const char *key)
{
    for (const yaml_node_pair_t *e = map->data.mapping.pairs.start; e < at; e++) {
        const char *earlier = kvr_yaml_text(yaml_document_get_node(y->doc, e->key));
        if (earlier && !strcmp(earlier, key)) return true;
    }
    return false;
}

/* A mapping that is read, and what is done with its keys. */
struct walk {
    const struct kvr_yaml *y;
    const yaml_node_t *map;
    const char *what;
    kvr_yaml_key_fn *fn;
    void *arg;
};

/* The places of YAML's merge key: `<<`, not in quotes. */
static bool is_merge(const yaml_node_t *key)
{
    return key->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && !strcmp((const char *)key->data.scalar.value, "<<");
}

/* Keys of a mapping that another one takes over; what that says itself, or one of the first `before` of the list, is left out. */
static int merge_one(const struct walk *w, const yaml_node_t *from, const yaml_node_t *list, size_t before)
{
    int worst = 0;
    if (from->type != YAML_MAPPING_NODE) return kvr_yaml_refuse(w->y, from, "<<", "a mapping, or a list of mappings, is expected");
    for (yaml_node_pair_t *i = from->data.mapping.pairs.start; i < from->data.mapping.pairs.top; i++) {
        yaml_node_t *k = yaml_document_get_node(w->y->doc, i->key), *v = yaml_document_get_node(w->y->doc, i->value);
        const char *key = k ? kvr_yaml_text(k) : NULL;
        bool known = key && occurred(w->y, w->map, w->map->data.mapping.pairs.top, key);
        int rc = 0;
        for (size_t n = 0; key && n < before && !known; n++) {
            const yaml_node_t *other = yaml_document_get_node(w->y->doc, list->data.sequence.items.start[n]);
            known = other->type == YAML_MAPPING_NODE && occurred(w->y, other, other->data.mapping.pairs.top, key);
        }
        if (!key || !v) rc = kvr_yaml_refuse(w->y, k ? k : from, w->what, "keys must be texts");
        else if (occurred(w->y, from, i, key)) rc = kvr_yaml_refuse(w->y, k, key, "the key occurs twice");
        else if (is_merge(k)) rc = kvr_yaml_refuse(w->y, k, key, "a mapping that is taken over cannot take over another one");
        else if (!known) rc = w->fn(w->y, key, k, v, w->arg);
        if (rc && !goes_on(w->y)) return rc;
        if (rc) worst = rc;
    }
    return worst;
}

static int merge(const struct walk *w, const yaml_node_t *v)
{
    int worst = 0;
    if (v->type != YAML_SEQUENCE_NODE) return merge_one(w, v, NULL, 0);
    size_t n = (size_t)(v->data.sequence.items.top - v->data.sequence.items.start);
    if (n > MERGED_MAX) return kvr_yaml_refuse(w->y, v, "<<", "at most 16 mappings");
    for (size_t i = 0; i < n; i++) {
        int rc = merge_one(w, yaml_document_get_node(w->y->doc, v->data.sequence.items.start[i]), v, i);
        if (rc && !goes_on(w->y)) return rc;
        if (rc) worst = rc;
    }
    return worst;
}

int kvr_yaml_each_key(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, kvr_yaml_key_fn *fn, void *arg)
{
    const struct walk w = {y, map, what, fn, arg};
    int worst = 0;
    if (map->type != YAML_MAPPING_NODE) return kvr_yaml_refuse(y, map, what, "a mapping is expected");
    for (yaml_node_pair_t *i = map->data.mapping.pairs.start; i < map->data.mapping.pairs.top; i++) {
        yaml_node_t *k = yaml_document_get_node(y->doc, i->key), *v = yaml_document_get_node(y->doc, i->value);
        const char *key = k ? kvr_yaml_text(k) : NULL;
        int rc;
        if (!key || !v) rc = kvr_yaml_refuse(y, k ? k : map, what, "keys must be texts");
        else if (occurred(y, map, i, key)) rc = kvr_yaml_refuse(y, k, key, "the key occurs twice");
        else rc = is_merge(k) ? merge(&w, v) : fn(y, key, k, v, arg);
        if (rc && !goes_on(y)) return rc;
        if (rc) worst = rc;
    }
    return worst;
}

int kvr_yaml_each_item(const struct kvr_yaml *y, const yaml_node_t *list, const char *what, kvr_yaml_item_fn *fn, void *arg)
{
    int worst = 0;
    if (list->type != YAML_SEQUENCE_NODE) return kvr_yaml_refuse(y, list, what, "a list is expected");
    for (yaml_node_item_t *i = list->data.sequence.items.start; i < list->data.sequence.items.top; i++) {
        int rc = fn(y, yaml_document_get_node(y->doc, *i), arg);
        if (rc && !goes_on(y)) return rc;
        if (rc) worst = rc;
    }
    return worst;
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
