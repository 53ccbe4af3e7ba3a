/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --models-file: names that clients may use for models, and what takes a model's place; docs/guides/models.md has the format.
 *
 *     models:
 *       chat:  {alias_of: m}
 *       m:     {targets: [{model: m, weight: 95}, {model: m-new, weight: 5}], fallback: [m-small]}
 *
 * A target may have a rule of its own, which is followed; a model that is its own target is meant as it is. There are no circles and no
 * more than MODEL_STEPS_MAX steps: a file that has them is refused.
 *
 * The draw among targets is weighted rendezvous hashing: of session and target a number u in (0, 1) is made, and the target with the
 * greatest weight / -ln(u) wins. It depends on nothing else, so every router draws alike, in whatever order the targets are written. When
 * one weight changes, sessions move only to that target, or only away from it, and no more than the shares differ.
 *
 * Threads: what is read does not change. Complexity: a look-up is a binary search; a draw is linear in the targets.
 */
#ifndef KVR_SERVE_MODELS_FILE_H
#define KVR_SERVE_MODELS_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "app/serve/common/limits.h"
#include "app/serve/config/model_options.h"
#include "wire/yaml_map.h"

enum { MODEL_RULES_MAX = 1024, MODEL_TARGETS_MAX = 16, MODEL_FALLBACKS_MAX = 8, MODEL_STEPS_MAX = 8 };

struct kvr_buf;

struct model_target {
    char model[MODEL_MAX];
    double weight; /* 0: nobody is sent there */
};

struct model_rule {
    char model[MODEL_MAX];
    struct model_target targets[MODEL_TARGETS_MAX]; /* none: the model itself */
    size_t targets_n;
    bool is_alias;                                  /* the only target is what alias_of says */
    char fallbacks[MODEL_FALLBACKS_MAX][MODEL_MAX]; /* the best first */
    size_t fallbacks_n;
    bool not_on_unavailable, on_overloaded; /* when they are taken; zeroes: as without fallback_on */
    struct model_options options;
};

struct models_file {
    struct model_rule *rules; /* by name, rising */
    size_t n;
};

/* Returns: 0; -1 with file, line, key and what is allowed in err. */
int models_file_read(const struct kvr_yaml_source *from, struct models_file *out, char *err, size_t cap);
void models_file_free(struct models_file *f);
/* As JSON; read again it is the same. */
void models_file_write(const struct models_file *f, struct kvr_buf *b);

/* Returns: NULL: the file says nothing of that name. */
const struct model_rule *models_file_find(const struct models_file *f, const char *model);
/* The model that a session is sent to: `model`, or a name of the file. */
const char *models_file_resolve(const struct models_file *f, const char *model, const void *session, size_t len);

#endif
