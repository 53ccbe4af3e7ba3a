/* SPDX-License-Identifier: Apache-2.0 */
/* Which paths of an engine a client may reach through the data port: those that ask for inference. Engines have others beside them, under
 * /v1/ too, that load adapters from their disks, stop them or empty their caches. Any thread. */
#ifndef KVR_SERVE_CLIENT_ROUTES_H
#define KVR_SERVE_CLIENT_ROUTES_H

#include "net/http/http.h"
#include "wire/openai.h"

/* What is routed by its prompt, and where it is posted. NULL: another path. */
const enum kvr_prompt_form *client_route_form(struct kvr_text path);
/* Is it passed to an engine, routed by its prompt or not? `more`: --pass-routes. */
bool client_route_is_passed(struct kvr_text path, const char *more);
/* Of one that is passed: NULL: it takes this method. Else those that it takes, as the header Allow has them. */
const char *client_route_allows(struct kvr_text path, struct kvr_text method, const char *more);
/* Whether --pass-routes can be read: absolute paths that everybody reads alike; one that ends with a star stands for all below. */
bool client_routes_check(const char *more);

#endif
