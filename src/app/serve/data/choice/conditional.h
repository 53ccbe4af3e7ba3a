/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conditional disaggregation: a request for which a prefill worker and a decode worker are up may be served better by one worker that
 * takes all of it. The router is asked, without booking, which worker that would be, and who would compute the prompt for another; the
 * rule (kvroute/disagg.h) decides by what is cached there and how loaded they are.
 *
 * Nothing is reserved: the worker is preferred when the request is booked a moment later. When a question fails there are two legs.
 *
 * Threads: as the request.
 */
#ifndef KVR_SERVE_CONDITIONAL_H
#define KVR_SERVE_CONDITIONAL_H

#include <kvroute/disagg.h>
#include <kvroute/router.h>

#include "app/serve/data/request/outcome.h"

struct data_plane;
struct request;
struct roster_row;

/* For requests whose workers are chosen in that mode. */
struct kvr_disagg_rule conditional_rule(const struct data_plane *data, enum kvr_router_mode mode);
bool conditional_is_on(const struct kvr_disagg_rule *rule);
/* Whom a request would go to as a whole, and to whom for its prompt. */
struct conditional_ways {
    uint64_t isl;
    struct kvr_router_result whole, prefill;
    int prefill_rc; /* an error of the router: `prefill` is nobody */
};
/* *eff_isl: tokens of the prompt that `whole` lacks; *why: static. */
bool conditional_is_local(struct data_plane *data, const struct kvr_disagg_rule *rule, const struct conditional_ways *w, uint64_t *eff_isl,
                          const char **why);
/* Of a request that has just been treated: what is remote may go whole to one worker. Returns: DONE, REFUSED without memory. */
enum outcome conditional_judge(struct request *r, const struct roster_row *row);

#endif
