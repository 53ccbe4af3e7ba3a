/* SPDX-License-Identifier: Apache-2.0 */
/* --router-policy-config: queue classes from YAML. docs/how/choice.md shows the format. */
#ifndef KVR_SERVE_POLICY_FILE_H
#define KVR_SERVE_POLICY_FILE_H

#include "app/serve/common/options.h"
#include "wire/yaml_map.h"

struct policy_file {
    struct policy_profile *profiles; /* "" first, when the root has classes */
    size_t n;
};

/* Returns: 0; -1 with file, line, key and what is allowed in err. */
int policy_file_read(const struct kvr_yaml_source *from, struct policy_file *out, char *err, size_t cap);
void policy_file_free(struct policy_file *f);

#endif
