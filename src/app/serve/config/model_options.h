/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of the router that a model may have other values of (`options` of --models-file): those that count anew for each request. Names
 * and limits are those of the command line.
 *
 * Threads: what is read does not change.
 */
#ifndef KVR_SERVE_MODEL_OPTIONS_H
#define KVR_SERVE_MODEL_OPTIONS_H

#include <kvroute/select.h>
#include <stddef.h>
#include <yaml.h>

struct kvr_buf;
struct kvr_yaml;

enum model_option {
    MODEL_ROUTER_MODE, /* enum kvr_router_mode, never direct */
    MODEL_OVERLAP_CREDIT,
    MODEL_PREFILL_LOAD_SCALE,
    MODEL_SHARED_MULTIPLIER,
    MODEL_TEMPERATURE,
    MODEL_QUEUE_TIMEOUT,
    MODEL_FIRST_TOKEN_TIMEOUT,
    MODEL_STALL_TIMEOUT,
    MODEL_TOTAL_TIMEOUT,
    MODEL_MAX_RETRIES,
    MODEL_OPTIONS_N
};

/* Zeroed: none. */
struct model_options {
    unsigned set; /* 1 << enum model_option */
    double values[MODEL_OPTIONS_N];
    size_t line; /* of the file */
};

/* Reads a mapping. Returns: 0, or -1 with file, line, key and what is allowed in y->err. */
int model_options_read(const struct kvr_yaml *y, const char *key, yaml_node_t *map, struct model_options *out);
/* A member "options", or nothing when there are none. */
void model_options_write(const struct model_options *m, struct kvr_buf *b);

static inline bool model_option_is_set(const struct model_options *m, enum model_option which)
{
    return m->set >> which & 1;
}

/* What the model says, else what all have. */
static inline double model_option(const struct model_options *m, enum model_option which, double otherwise)
{
    return model_option_is_set(m, which) ? m->values[which] : otherwise;
}

/* What `over` says goes before what `m` says. */
void model_options_add(struct model_options *m, const struct model_options *over);
/* What of it concerns the costs. */
struct kvr_override model_options_override(const struct model_options *m);

#endif
