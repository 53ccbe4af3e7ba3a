/* SPDX-License-Identifier: Apache-2.0 */
/* How much there may be of what clients, engines and operators name. */
#ifndef KVR_SERVE_LIMITS_H
#define KVR_SERVE_LIMITS_H

enum {
    MODEL_MAX = 128,
    MODELS_MAX = 256,
    DP_MAX = 64,
    PARTITIONS_MAX = 256,
    TAINTS_MAX = 16,
    TAINT_LIST_MAX = 16,
    KEY_TAINTS_MAX = 8,
    SHARED_RANGES_MAX = 64,
    RANKS_MAX = 8192,
    REMOTES_MAX = 16,
    ID_MAX = 128,
    TRIES_MAX = 8,
    SPARE_BODIES_MAX = 4 << 20, /* bytes, of a loop */
    STATUS_CLIENT_GONE = 499
};

#endif
