/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfer domains: where a computed prompt moves fast (kv-domain of a worker: a rack, a zone, a host). --kv-transfer-domain says what
 * follows once a prefill worker that has one was chosen:
 *
 *     off         nothing
 *     preferred   decode workers of its domain cost less, by --kv-transfer-weight
 *     required    no others; and a prefill worker whose domain has no decode worker that is up is not chosen
 *
 * A domain is a taint of its worker, "kv-domain=NAME". Prefill workers without one hand over to every decode worker.
 *
 * Threads: as the request.
 */
#ifndef KVR_SERVE_DOMAINS_H
#define KVR_SERVE_DOMAINS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <kvroute/router.h>

#include "wire/handoff_protocol.h"

struct data_plane;
struct domain_wish;
struct request;
struct roster_row;
struct worker;

/* May that prefill worker hand over to that decode worker? Both are held. */
bool domains_meet(const struct data_plane *data, const struct worker *prefill, const struct worker *decode);
/* Are a prefill worker and a decode worker of the protocol up that may meet? Pinned workers alone count. */
bool domains_any_pair(const struct request *r, const struct roster_row *row, enum kvr_kv_protocol p);
/* Of the prefill workers of the protocol, those that have a decode worker to hand over to; into *ids, malloced. NULL: all of them may be
 * chosen. Returns: false without memory. */
bool domains_prefill_ids(const struct request *r, const struct roster_row *row, enum kvr_kv_protocol p, uint64_t **ids, size_t *n);

/* Puts the domain of the prefill worker into the question. */
void domains_ask(const struct data_plane *data, const struct worker *prefill, struct domain_wish *wish, struct kvr_router_request *rq);

#endif
