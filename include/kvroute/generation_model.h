/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time of a generated token, learnt from what was observed of a fleet:
 *
 *     ms per token = base + block * blocks in use on the worker
 *
 * and the mean number of tokens that are generated. Two parameters, each at least 0, by least squares over about the last 200
 * observations. With nothing observed all three are 0: generation then costs nothing, and is left out of choices.
 *
 * Threads: the caller serialises.
 */
#ifndef KVROUTE_GENERATION_MODEL_H
#define KVROUTE_GENERATION_MODEL_H

#include <stdint.h>
#include <kvroute/api.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvr_generation_model {
    double base_ms, block_ms;   /* >= 0 */
    double tokens;              /* moving mean of tokens after the first one */
    double n, sx, sxx, sy, sxy; /* decayed sums; blocks in thousands */
    uint64_t observations;
};

KVR_API void kvr_generation_init(struct kvr_generation_model *model);
/* `tokens` (> 0) came within `ms` while `blocks` were in use. Values that are not finite or out of range are ignored. */
KVR_API void kvr_generation_observe(struct kvr_generation_model *model, double blocks, double tokens, double ms);

#ifdef __cplusplus
}
#endif
#endif
