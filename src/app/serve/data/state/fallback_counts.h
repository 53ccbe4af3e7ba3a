/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvroute_model_fallbacks_total by model, fallback and reason. Names are those of --models-file, or of what was put in its place, never a
 * client's; of the first 256 series each has its own, the others are counted together under `other`. Series stay when the file changes: a
 * counter that went away would be one that began anew when it came back.
 *
 * Threads: any; a leaf lock for as long as it takes to find a series.
 */
#ifndef KVR_SERVE_FALLBACK_COUNTS_H
#define KVR_SERVE_FALLBACK_COUNTS_H

#include <stddef.h>
#include <stdint.h>

#include "app/serve/common/limits.h"
#include "base/lock.h"

enum { FALLBACK_SERIES_MAX = 256 };

enum fallback_reason { FALLBACK_UNAVAILABLE, FALLBACK_OVERLOADED, FALLBACK_REASONS };

struct fallback_counts {
    struct kvr_lock lock;
    struct fallback_series {
        char model[MODEL_MAX], fallback[MODEL_MAX];
        enum fallback_reason reason;
        uint64_t n;
    } * list;
    size_t n;
    uint64_t others[FALLBACK_REASONS];
};

struct kvr_prom_page;

void fallback_counts_init(struct fallback_counts *c);
void fallback_counts_destroy(struct fallback_counts *c);
void fallback_counts_add(struct fallback_counts *c, const char *model, const char *fallback, enum fallback_reason reason);
void fallback_counts_metrics(struct fallback_counts *c, struct kvr_prom_page *out);

#endif
