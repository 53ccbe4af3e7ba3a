/* SPDX-License-Identifier: Apache-2.0 */
/* The right to serve an index in a scope; see index_claim.c. */
#ifndef KVR_SERVE_INDEX_CLAIM_H
#define KVR_SERVE_INDEX_CLAIM_H

#include <pthread.h>
#include <uv.h>

#include "net/nats/registry.h"

struct index_claim;

struct index_claim_config {
    struct kvr_nats *link;
    const char *scope;
    bool predicted;
    int replicas;
    uint64_t instance, admin_port; /* the latter for people; 0: not known yet */
};

/* Waits until it is clear whether we may. Returns: 0, also when NATS cannot be reached (index_claim_holds tells later), or -1 with who
 * stands in the way in err. */
int index_claim_open(const struct index_claim_config *config, struct index_claim **out, char *err, size_t cap);
void index_claim_close(struct index_claim *c); /* NULL is fine */
/* May we answer now? Any thread. */
bool index_claim_holds(struct index_claim *c);

#endif
