/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A head and keys with values: URL[,key=value...] as a flag has it, or a mapping of a YAML file that says the same.
 *
 *     http://10.0.0.1:8000,model=m,taint=a,taint=b       url: http://10.0.0.1:8000
 *                                                        model: m
 *                                                        taint: [a, b]
 *
 * In a text a comma ends a value; one that belongs to it is written \, there. In a mapping it is a character like any other, and each part
 * knows its line.
 *
 * Owns: an entry owns all that it points to. Threads: none of its own.
 */
#ifndef KVR_WIRE_ENTRY_H
#define KVR_WIRE_ENTRY_H

#include <stddef.h>

#include "base/buf.h"
#include "wire/yaml_map.h"

struct kvr_entry_part {
    char *key;
    const char *value; /* NULL: the text has no = there. In the key's memory */
    size_t line;       /* of the file; 0: it is from no file */
};

struct kvr_entry {
    char *head;
    char *file; /* NULL: it is from no file */
    size_t line;
    struct kvr_entry_part *parts;
    size_t n;
};

/* file NULL: the text is a flag's, or a variable's. Returns: 0, or -1: out of memory. */
int kvr_entry_parse(const char *text, const char *file, size_t line, struct kvr_entry *out);
/* Of a mapping, the value of whose key `head` is the head. A list stands for its key as often as it has items. Returns: 0, or -1 with the
 * reason refused. */
int kvr_entry_read(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, const char *head, struct kvr_entry *out);
void kvr_entry_free(struct kvr_entry *e);

/* Appends the text of a mapping without a head: key=value,... Returns: 0, or -1 with the reason refused. */
int kvr_entry_join(const struct kvr_yaml *y, const yaml_node_t *map, const char *what, struct kvr_buf *out);

#endif
