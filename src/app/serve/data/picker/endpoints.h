/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints as gateways name them, and the workers that they are. The request's loop. */
#ifndef KVR_SERVE_PICKER_ENDPOINTS_H
#define KVR_SERVE_PICKER_ENDPOINTS_H

#include "app/serve/data/request/attempt.h"
#include "wire/ext_proc.h"

/* The one that was chosen, and behind it, with commas, the next best as far as --ext-proc-fallbacks allows. Returns: false: no gateway
 * could go there, as the worker's address is a name. */
bool endpoints_list(const struct attempt *a, struct kvr_buf *out);
/* A response came from there: is it where it was sent? If not, the booking moves. */
bool endpoints_served(struct attempt *a, struct kvr_ext_proc_text from);

#endif
