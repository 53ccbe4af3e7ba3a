/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of the build: writes an OpenAPI document as JSON.
 *
 *   openapi_json VERSION OUT FILE...      the YAML files, read as one text, so that an anchor of the first is known in the last
 *
 * Of YAML it takes maps, lists, scalars, anchors and "<<". The members x-shared and x-own are places for anchors and left out; the text
 * @VERSION@ stands for VERSION. A mistake fails the build.
 */
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { KEYS_MAX = 256 };

static yaml_document_t doc;
static const char *version;

static _Noreturn void fail(const yaml_node_t *n, const char *why)
{
    fprintf(stderr, "openapi_json: line %zu of the text: %s\n", n ? n->start_mark.line + 1 : 0, why);
    exit(1);
}

static yaml_node_t *node(int i)
{
    return yaml_document_get_node(&doc, i);
}

static const char *text_of(const yaml_node_t *n)
{
    if (n->type != YAML_SCALAR_NODE) fail(n, "a key is no text");
    return (const char *)n->data.scalar.value;
}

static void put_text(FILE *out, const char *s)
{
    fputc('"', out);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') fputc('\\', out);
        if (*s == '\n') fputs("\\n", out);
        else fputc(*s, out);
    }
    fputc('"', out);
}

static bool is_literal(const char *s)
{
    const char *p = s + (*s == '-');
    if (!strcmp(s, "true") || !strcmp(s, "false") || !strcmp(s, "null")) return true;
    if (!isdigit((unsigned char)*p) || (*p == '0' && isdigit((unsigned char)p[1]))) return false;
    p += strspn(p, "0123456789");
    if (*p == '.' && isdigit((unsigned char)p[1])) p += 1 + strspn(p + 1, "0123456789");
    return !*p;
}

static void put_scalar(FILE *out, const yaml_node_t *n)
{
    const char *s = text_of(n);
    bool plain = n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (!strcmp(s, "@VERSION@")) put_text(out, version);
    else if (plain && is_literal(s)) fputs(s, out);
    else put_text(out, s);
}

static void put(FILE *out, const yaml_node_t *n);

struct keys {
    const char *of[KEYS_MAX];
    size_t n;
};

/* Returns: false: it is there already. */
static bool add(struct keys *k, const yaml_node_t *key)
{
    for (size_t i = 0; i < k->n; i++)
        if (!strcmp(k->of[i], text_of(key))) return false;
    if (k->n == KEYS_MAX) fail(key, "a map has too many members");
    k->of[k->n++] = text_of(key);
    return true;
}

static void put_pair(FILE *out, const yaml_node_t *key, const yaml_node_t *value, bool *first)
{
    fputs(*first ? "" : ",", out);
    put_text(out, text_of(key));
    fputc(':', out);
    put(out, value);
    *first = false;
}

/* Members of maps that are merged in, one after the other, but those that are there. */
static void put_merged(FILE *out, const yaml_node_t *n, struct keys *k, bool *first)
{
    if (n->type == YAML_SEQUENCE_NODE) {
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) put_merged(out, node(*i), k, first);
        return;
    }
    if (n->type != YAML_MAPPING_NODE) fail(n, "only maps can be merged");
    yaml_node_pair_t *start = n->data.mapping.pairs.start, *top = n->data.mapping.pairs.top;
    for (yaml_node_pair_t *p = start; p < top; p++) /* its own count before what is merged into it */
        if (strcmp(text_of(node(p->key)), "<<") && add(k, node(p->key))) put_pair(out, node(p->key), node(p->value), first);
    for (yaml_node_pair_t *p = start; p < top; p++)
        if (!strcmp(text_of(node(p->key)), "<<")) put_merged(out, node(p->value), k, first);
}

static bool is_left_out(const yaml_node_t *key)
{
    return !strcmp(text_of(key), "<<") || !strcmp(text_of(key), "x-shared") || !strcmp(text_of(key), "x-own");
}

static void put_map(FILE *out, const yaml_node_t *n)
{
    struct keys k = {.n = 0};
    bool first = true;
    yaml_node_pair_t *start = n->data.mapping.pairs.start, *top = n->data.mapping.pairs.top;
    fputc('{', out);
    for (yaml_node_pair_t *p = start; p < top; p++)
        if (strcmp(text_of(node(p->key)), "<<") && !add(&k, node(p->key))) fail(node(p->key), "a member is there twice");
    for (yaml_node_pair_t *p = start; p < top; p++)
        if (!strcmp(text_of(node(p->key)), "<<")) put_merged(out, node(p->value), &k, &first);
    for (yaml_node_pair_t *p = start; p < top; p++)
        if (!is_left_out(node(p->key))) put_pair(out, node(p->key), node(p->value), &first);
    fputc('}', out);
}

static void put(FILE *out, const yaml_node_t *n)
{
    if (n->type == YAML_SCALAR_NODE) {
        put_scalar(out, n);
    } else if (n->type == YAML_MAPPING_NODE) {
        put_map(out, n);
    } else {
        fputc('[', out);
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top; i++) {
            fputs(i == n->data.sequence.items.start ? "" : ",", out);
            put(out, node(*i));
        }
        fputc(']', out);
    }
}

static void read_more(const char *path, char **text, size_t *len)
{
    char piece[65536];
    FILE *f = fopen(path, "r");
    for (size_t n; f && (n = fread(piece, 1, sizeof piece, f)) > 0; *len += n) {
        *text = realloc(*text, *len + n);
        if (!*text) fail(NULL, "out of memory");
        memcpy(*text + *len, piece, n);
    }
    if (!f || ferror(f) || fclose(f)) fail(NULL, path);
}

int main(int argc, char **argv)
{
    yaml_parser_t parser;
    char *text = NULL;
    size_t len = 0;
    if (argc < 4) return 2;
    version = argv[1];
    for (int i = 3; i < argc; i++) read_more(argv[i], &text, &len);
    yaml_parser_initialize(&parser);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, len);
    if (!yaml_parser_load(&parser, &doc)) {
        fprintf(stderr, "openapi_json: %s, line %zu of the text: %s\n", argv[argc - 1], parser.problem_mark.line + 1, parser.problem);
        return 1;
    }
    FILE *out = fopen(argv[2], "w");
    if (!out || !node(1)) fail(NULL, argv[2]);
    put(out, node(1));
    fputc('\n', out);
    yaml_document_delete(&doc);
    yaml_parser_delete(&parser);
    free(text);
    return fclose(out) ? 1 : 0;
}
