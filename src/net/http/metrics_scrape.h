/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads an engine's /metrics once, over HTTP, for its load. The body is looked at as it comes and not kept; longer than
 * KVR_SCRAPE_BODY_MAX, or not there within the timeout, it is given up.
 *
 * On the loop's thread. The client and the loop outlive the scrape.
 */
#ifndef KVR_NET_METRICS_SCRAPE_H
#define KVR_NET_METRICS_SCRAPE_H

#include "net/http/http.h"
#include "wire/engine_load.h"

enum { KVR_SCRAPE_BODY_MAX = 4 << 20 };

/* error: NULL, or why there are no loads (static text). Once; the scrape is gone afterwards. */
typedef void kvr_scrape_fn(void *ctx, const struct kvr_engine_loads *loads, const char *error);

struct kvr_scrape_config {
    uv_loop_t *loop;
    struct kvr_http_client *client;
    const char *url;                     /* http:// or https://host[:port]/path; copied */
    const struct kvr_tls_peer *tls_peer; /* https: how it is believed; NULL: as all are */
    double timeout_s;
    kvr_scrape_fn *fn;
    void *ctx;
};

struct kvr_scrape;
/* Never calls back before it returns. Returns: 0, -KVR_EINVAL for a bad URL, -KVR_ENOMEM. */
int kvr_scrape_start(const struct kvr_scrape_config *config, struct kvr_scrape **out);
void kvr_scrape_cancel(struct kvr_scrape *s); /* without a callback */

#endif
