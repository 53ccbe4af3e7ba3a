/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options from a YAML file: one key for each. Everything that is wrong is told, with file, line and key, not only the first.
 *
 * A value is what the flag takes, or the same as YAML has it: true and false of a boolean, also under its no-NAME; a list where a flag is
 * repeated or takes commas; a mapping where it takes key=value.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/options_parse.h"

/* A key of the file and its row. */
struct assignment {
    struct options_parse *p;
    const struct option_row *row;
    const char *key;
    bool negated;
    struct kvr_buf words; /* OPT_WORDS, OPT_PAIRS: of a list */
};

static int set_text(const struct kvr_yaml *y, const struct assignment *a, const yaml_node_t *at, const char *text)
{
    char why[512];
    a->p->line = at->start_mark.line + 1;
    if (options_set(a->p, a->row, text)) return 0;
    options_say_bad(a->row, text, why, sizeof why);
    return kvr_yaml_refuse(y, at, a->key, why);
}

/* ---- booleans ---------------------------------------------------------------------------------------- */

/* A boolean may be said twice, under its names, as long as both say the same. */
static int set_bool(const struct kvr_yaml *y, const struct assignment *a, const yaml_node_t *at, size_t earlier)
{
    bool *place = (bool *)(void *)(a->p->options + a->row->offset), before = *place;
    char why[160];
    if (!kvr_yaml_text(at)) return kvr_yaml_refuse(y, at, a->key, "must be a single value: true or false");
    if (set_text(y, a, at, kvr_yaml_text(at))) return -1;
    if (a->negated) *place = !*place;
    if (!earlier || *place == before) return 0;
    snprintf(why, sizeof why, "it makes %s %s, and line %zu says %s; allowed: one of the two", a->row->name, *place ? "true" : "false",
             earlier, before ? "true" : "false");
    return kvr_yaml_refuse(y, at, a->key, why);
}

/* ---- lists and mappings ------------------------------------------------------------------------------ */

static int add_mapping(const struct kvr_yaml *y, const struct assignment *a, const yaml_node_t *map)
{
    struct kvr_entry e;
    if (kvr_entry_read(y, map, a->key, "url", &e)) return -1;
    if (options_add_entry((struct option_entries *)(void *)(a->p->options + a->row->offset), &e) == 0) return 0;
    kvr_entry_free(&e);
    return kvr_yaml_refuse(y, map, a->key, "out of memory");
}

static int list_item(const struct kvr_yaml *y, yaml_node_t *item, void *arg)
{
    struct assignment *a = arg;
    const char *text = kvr_yaml_text(item);
    if (a->row->type == OPT_ENTRIES && item->type == YAML_MAPPING_NODE) return add_mapping(y, a, item);
    if (!text)
        return kvr_yaml_refuse(y, item, a->key,
                               a->row->type == OPT_ENTRIES ? "a list item must be a text, or a mapping with the key url"
                                                           : "a list item must be a text");
    if (a->row->type == OPT_LIST || a->row->type == OPT_ENTRIES) return set_text(y, a, item, text);
    if (!*text || strchr(text, ',')) return kvr_yaml_refuse(y, item, a->key, "a list item must be a text without commas");
    kvr_buf_printf(&a->words, "%s%s", a->words.len ? "," : "", text);
    return 0;
}

static int list_pair(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    const struct assignment *a = arg;
    struct kvr_buf b = {0};
    const char *text = kvr_yaml_text(v);
    if (!text || !*text) return kvr_yaml_refuse(y, v, key, "a text is expected");
    kvr_buf_printf(&b, "%s=%s", key, text);
    int rc = b.failed ? kvr_yaml_refuse(y, v, key, "out of memory") : set_text(y, a, key_node, b.data);
    kvr_buf_free(&b);
    return rc;
}

/* What was put together of a list or a mapping is what the flag takes. */
static int set_joined(const struct kvr_yaml *y, const struct assignment *a, const yaml_node_t *at, const struct kvr_buf *text)
{
    return text->failed ? kvr_yaml_refuse(y, at, a->key, "out of memory") : set_text(y, a, at, text->len ? text->data : "");
}

static int set_list(const struct kvr_yaml *y, struct assignment *a, const yaml_node_t *list)
{
    int rc = kvr_yaml_each_item(y, list, a->key, list_item, a);
    if (rc == 0 && (a->row->type == OPT_WORDS || a->row->type == OPT_PAIRS)) rc = set_joined(y, a, list, &a->words);
    kvr_buf_free(&a->words);
    return rc;
}

static int set_mapping(const struct kvr_yaml *y, struct assignment *a, const yaml_node_t *map)
{
    struct kvr_buf b = {0};
    if (a->row->type == OPT_ENTRIES) return add_mapping(y, a, map);
    if (a->row->type == OPT_LIST) return kvr_yaml_each_key(y, map, a->key, list_pair, a);
    int rc = kvr_entry_join(y, map, a->key, &b);
    if (rc == 0) rc = set_joined(y, a, map, &b);
    kvr_buf_free(&b);
    return rc;
}

/* ---- one key ----------------------------------------------------------------------------------------- */

static const char *must_be(enum option_type type)
{
    switch (type) {
    case OPT_LIST: return "must be a text, a list of texts, or a mapping for name=value";
    case OPT_ENTRIES: return "must be a text, a mapping with the key url, or a list of them";
    case OPT_WORDS: return "must be a text, or a list of texts";
    case OPT_PAIRS: return "must be a text, a list of texts, or a mapping";
    default: return "must be a single value";
    }
}

static int set_value(const struct kvr_yaml *y, struct assignment *a, yaml_node_t *v)
{
    enum option_type type = a->row->type;
    if (kvr_yaml_text(v)) return set_text(y, a, v, kvr_yaml_text(v));
    if (v->type == YAML_SCALAR_NODE) return kvr_yaml_refuse(y, v, a->key, "a text without zero bytes is expected");
    if (v->type == YAML_SEQUENCE_NODE && type >= OPT_LIST) return set_list(y, a, v);
    if (v->type == YAML_MAPPING_NODE && type >= OPT_LIST && type != OPT_WORDS) return set_mapping(y, a, v);
    return kvr_yaml_refuse(y, v, a->key, must_be(type));
}

/* Who wrote _ for - is told, and who wrote nearly a key's name. */
static void say_unknown(struct options_parse *p, const char *key, char *out, size_t cap)
{
    char dashes[96];
    snprintf(dashes, sizeof dashes, "%s", key);
    for (char *c = dashes; *c; c++) *c = *c == '_' ? '-' : *c;
    const struct option_row *r = options_row(p->t, dashes);
    const char *negation = "", *near = NULL;
    if (!r) r = options_row_negated(p, dashes);
    if (!r) near = options_nearest(p->t, dashes, &negation);
    if (r && !options_only_flag(r)) snprintf(out, cap, "unknown key '%.80s'; allowed: %.80s", key, dashes);
    else if (near) snprintf(out, cap, "unknown key '%.80s'; did you mean %s%s?", key, negation, near);
    else snprintf(out, cap, "unknown key '%.80s'; `kvroute %s --help all` lists the keys", key, p->t->command);
}

static int file_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct options_parse *p = arg;
    struct assignment a = {.p = p, .row = options_row_given(p, key), .key = key};
    char why[256];
    if (!a.row) {
        a.row = options_row_negated(p, key);
        a.negated = a.row != NULL;
    }
    if (!a.row || options_only_flag(a.row)) {
        say_unknown(p, key, why, sizeof why);
        return kvr_yaml_refuse(y, key_node, key, why);
    }
    size_t *line = &p->lines[a.row - p->t->rows], earlier = *line;
    *line = key_node->start_mark.line + 1;
    if (earlier && a.row->type != OPT_BOOL) {
        snprintf(why, sizeof why, "it is another name of what line %zu says; allowed: one of the two", earlier);
        return kvr_yaml_refuse(y, key_node, key, why);
    }
    if (!options_take(p, a.row, SOURCE_FILE)) return 0;
    return a.row->type == OPT_BOOL ? set_bool(y, &a, v, earlier) : set_value(y, &a, v);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static int read_root(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    return root ? kvr_yaml_each_key(y, root, "options", file_key, arg) : 0;
}

static void on_finding(void *arg, const char *text)
{
    (void)options_tell(arg, "%s", text);
}

int options_read_text(struct options_parse *p, const char *name, const char *text, size_t len)
{
    struct kvr_yaml_findings all = {.fn = on_finding, .arg = p};
    char err[1024];
    p->file = name;
    int rc = kvr_yaml_read(&(struct kvr_yaml_source){name, text, len, &all}, read_root, p, err, sizeof err);
    if (all.n >= KVR_YAML_FINDINGS_MAX) (void)options_tell(p, "%s: there may be more that is wrong", name);
    p->line = 0;
    return rc ? 2 : 0;
}

int options_read_yaml(struct options_parse *p, const char *path)
{
    char err[1024], *text;
    size_t len;
    if (kvr_yaml_load(path, &text, &len, err, sizeof err)) return options_tell(p, "%s%s", p->ear ? "" : "--config: ", err);
    int rc = options_read_text(p, path, text, len);
    free(text);
    return rc;
}
