/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends spans to a collector: OTLP over HTTP, as JSON, by a thread of its own.
 *
 *    data loops --kvr_otlp_give--> queue (bounded) --512 spans, or 5 s--> POST /v1/traces, one at a time
 *
 * An answer of 429, 502, 503 or 504, and no answer, are tried again, at most five times, after Retry-After or a pause that doubles; any
 * other error is final. Spans that are given up are counted by reason:
 *   queue_full  the collector is slower than the requests, or away       refused  it has answered with another error, or taken a part
 *   retries     five tries were in vain                                  exit     they were left when the program ended
 *
 * Threads: kvr_otlp_give and the figures from any; create and destroy from the owner.
 */
#ifndef KVR_NET_OTLP_H
#define KVR_NET_OTLP_H

#include "net/http/http.h"
#include "wire/otlp_json.h"

struct kvr_otlp;
struct kvr_prom_page;

struct kvr_otlp_config {
    const char *endpoint;     /* http[s]://host[:port][/path], to which /v1/traces is added */
    const char *service_name; /* copied, like the rest */
    const char *instance_id;
};

/* Returns: 0, or a negative code with the reason in err. */
int kvr_otlp_check(const struct kvr_otlp_config *c, char *err, size_t cap); /* starts nothing */
int kvr_otlp_create(const struct kvr_otlp_config *config, struct kvr_otlp **out, char *err, size_t cap);
/* Sends what waits, for up to two seconds. NULL is fine. */
void kvr_otlp_destroy(struct kvr_otlp *o);
/* Owns: takes the set. Never waits for the network. NULL: the set is freed. */
void kvr_otlp_give(struct kvr_otlp *o, struct kvr_span_set *set);
/* As Prometheus text. NULL is fine: nothing. */
void kvr_otlp_metrics(struct kvr_otlp *o, struct kvr_prom_page *out);

#endif
