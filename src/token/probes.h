/* SPDX-License-Identifier: Apache-2.0 */
/* The questions that an engine is asked before ids made here are trusted: each for something that engines, their releases or their settings
 * do differently. A question names no model: its first member is put in front of it by who asks. */
#ifndef KVR_TOKEN_PROBES_H
#define KVR_TOKEN_PROBES_H

#include <stdbool.h>
#include <stddef.h>

struct kvr_token_probe {
    const char *name;
    bool is_chat;
    const char *members; /* of the question, without the braces around it */
};

extern const struct kvr_token_probe kvr_token_probes[];
extern const size_t kvr_token_probes_n;

#endif
