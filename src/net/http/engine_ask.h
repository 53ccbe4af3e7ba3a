/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks an engine what it is configured with: the questions of wire/engine_survey.h, one after the other, until enough is known.
 *
 * An answer that is too long, or no HTTP, says nothing, and the next question is asked. An engine that breaks off or stays silent ends it
 * without facts: what it has said so far may be half of something else. What an answer may take is bounded, in bytes and in time.
 *
 * On the loop's thread. The client, the parser, the loop and the strings of the configuration outlive the asking, or its cancelling.
 */
#ifndef KVR_NET_ENGINE_ASK_H
#define KVR_NET_ENGINE_ASK_H

#include "net/http/http.h"
#include "wire/engine_facts.h"

/* facts NULL: it broke off, or was silent, and `why` says how (borrowed). Once; the asking is gone afterwards. */
typedef void kvr_engine_ask_fn(void *ctx, const struct kvr_engine_facts *facts, const char *why);

struct kvr_engine_ask_config {
    uv_loop_t *loop;
    struct kvr_http_client *client;
    struct kvr_json_parser *json;
    const struct kvr_endpoint *endpoint; /* copied */
    const char *model;                   /* one that it serves; "": it is asked for one. Copied */
    const char *headers;                 /* formatted lines for each question; "": none. Copied */
    double connect_timeout_s;
    kvr_engine_ask_fn *fn;
    void *ctx;
};

struct kvr_engine_ask;
/* Never calls back before it returns. Returns: NULL without memory. */
struct kvr_engine_ask *kvr_engine_ask_start(const struct kvr_engine_ask_config *config);
void kvr_engine_ask_cancel(struct kvr_engine_ask *a); /* without a callback */

#endif
