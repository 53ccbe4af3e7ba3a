/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YAML files that people write, read key by key: mappings, lists and scalars of a document, and errors that name the file, the line, the
 * key and what is allowed. A reader of a format gives a function for each kind of mapping; keys that it does not know it refuses itself
 * with kvr_yaml_refuse, so that nothing is passed over.
 *
 * Threads: a document belongs to one thread. Recursion: as deep as the caller's functions, never as deep as the text.
 */
#ifndef KVR_WIRE_YAML_MAP_H
#define KVR_WIRE_YAML_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

enum { KVR_YAML_FILE_MAX = 1 << 20 }; /* bytes */
enum { KVR_YAML_FINDINGS_MAX = 64 };

/* Where somebody wants to hear of everything that is wrong with a document, not only of the first thing: each refusal goes to fn, and the
 * mapping or list in which it happened is read on, until `n` is KVR_YAML_FINDINGS_MAX. */
struct kvr_yaml_findings {
    void (*fn)(void *arg, const char *text);
    void *arg;
    unsigned n;
    bool unreadable; /* what was told is that there is no file to read */
};

/* A document that is being read. `name` stands for the file in messages. */
struct kvr_yaml {
    yaml_document_t *doc;
    const char *name;
    char *err; /* the last refusal */
    size_t cap;
    struct kvr_yaml_findings *all; /* NULL: the first refusal ends the reading */
    bool secret;                   /* a key that is not ours may be a secret in the wrong place: only its first word is told */
};

/* What is done with the document's root. Returns: 0, or -1 with the reason in y->err. */
typedef int kvr_yaml_root_fn(const struct kvr_yaml *y, yaml_node_t *root, void *arg);
/* What is done with a key of a mapping and its value. */
typedef int kvr_yaml_key_fn(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *value, void *arg);
/* What is done with an item of a list. */
typedef int kvr_yaml_item_fn(const struct kvr_yaml *y, yaml_node_t *item, void *arg);

/* Where a document is. */
struct kvr_yaml_source {
    const char *name; /* stands for it in messages */
    const void *text; /* NULL: it is the file of that name, of at most KVR_YAML_FILE_MAX bytes */
    size_t len;
    struct kvr_yaml_findings *all; /* who wants to hear of everything that is wrong; NULL: nobody does */
};

/* Parses the document and hands its root over; NULL: it is empty. There may be one document, nested 32 deep, with 256 anchors. Returns:
 * what fn returns; -1 with the reason in err when there is no such file, the text is no YAML or there is no memory. */
int kvr_yaml_read(const struct kvr_yaml_source *from, kvr_yaml_root_fn *fn, void *arg, char *err, size_t cap);
/* A file's bytes, or a pipe's: whoever writes into it may take up to 10 s between two bytes. The caller frees *text. Returns: 0, or -1
 * with the reason in err: "cannot read 'FILE': ...". */
int kvr_yaml_load(const char *path, char **text, size_t *len, char *err, size_t cap);

/* Writes "FILE:LINE: KEY: ALLOWED". Returns: -1. */
int kvr_yaml_refuse(const struct kvr_yaml *y, const yaml_node_t *at, const char *key, const char *allowed);
/* The same, of a line from 1. */
int kvr_yaml_refuse_line(const struct kvr_yaml *y, size_t line, const char *key, const char *allowed);
/* Calls fn for each key of a mapping, in the file's order, until one does not return 0; keys may not repeat. `what` names the mapping.
 * `<<: *anchor`, or a list of these, takes over what the mapping does not say itself. */
int kvr_yaml_each_key(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, kvr_yaml_key_fn *fn, void *arg);
/* Calls fn for each item of a list. */
int kvr_yaml_each_item(const struct kvr_yaml *y, const yaml_node_t *list, const char *what, kvr_yaml_item_fn *fn, void *arg);

/* A scalar's text, or NULL: it is none, or has a zero in it. Borrowed from the document. */
const char *kvr_yaml_text(const yaml_node_t *n);
/* Values of keys. Each returns 0, or -1 with the reason; *out is untouched then. */
int kvr_yaml_get_text(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, char *out, size_t cap); /* 1 to cap - 1 bytes */
int kvr_yaml_get_number(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, double min, double *out);
int kvr_yaml_get_bool(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, bool *out); /* true, false, yes, no, on, off */

#endif
