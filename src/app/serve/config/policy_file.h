/* SPDX-License-Identifier: Apache-2.0 */
/* --router-policy-config: queue classes from YAML. docs/how/choice.md shows the format. */
#ifndef KVR_SERVE_POLICY_FILE_H
#define KVR_SERVE_POLICY_FILE_H

#include "app/serve/common/options.h"

struct kvr_yaml_findings;

struct policy_file {
    struct policy_profile *profiles; /* "" first, when the root has classes */
    size_t n;
};

/* Returns: 0; -1 with file, line, key and what is allowed in err. all: who wants to hear of everything that is wrong; NULL:
 * nobody does. */
int policy_file_read(const char *path, struct policy_file *out, struct kvr_yaml_findings *all, char *err, size_t cap);
/* The same from memory; `name` stands for the file in messages. */
int policy_file_parse(const char *name, const void *text, size_t len, struct policy_file *out, char *err, size_t cap);
void policy_file_free(struct policy_file *f);

#endif
