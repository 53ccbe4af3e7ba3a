/* SPDX-License-Identifier: Apache-2.0 */
/* An address and --discovery-worker -> a --worker text. Pure functions. */
#include <string.h>

#include "app/serve/discovery/found_workers.h"
#include "app/serve/workers/table/worker.h"

/* One {...}, without its braces. Returns: false: it is none, and stands for itself. */
static bool put_one(const char *name, size_t len, const struct found_place *at, struct kvr_buf *out)
{
    static const char sum[] = "+rank";
    uint64_t number;
    size_t n = len > sizeof sum - 1 ? len - (sizeof sum - 1) : 0;
    if (kvr_span_is(name, len, "host")) kvr_buf_str(out, at->host);
    else if (kvr_span_is(name, len, "port")) kvr_buf_u64(out, at->port);
    else if (!at->pod) return false;
    else if (kvr_span_is(name, len, "pod")) kvr_buf_str(out, at->pod);
    else if (kvr_span_is(name, len, "rank")) kvr_buf_u64(out, at->rank);
    else if (n && !memcmp(name + n, sum, sizeof sum - 1) && kvr_parse_u64(name, n, 65535, &number)) kvr_buf_u64(out, number + at->rank);
    else return false;
    return true;
}

void found_place_put_keys(const char *keys, const struct found_place *at, struct kvr_buf *out)
{
    for (const char *p = keys; *p;) {
        const char *end = *p == '{' ? strchr(p, '}') : NULL;
        if (end && put_one(p + 1, (size_t)(end - p - 1), at, out)) p = end + 1;
        else kvr_buf_add(out, p++, 1);
    }
}

void found_place_put(const struct discovery *d, const struct found_place *at, struct kvr_buf *out)
{
    kvr_buf_printf(out, "%s://%s:%u", d->o->discovery_scheme ? "https" : "http", at->host, at->port);
    if (at->role) kvr_buf_printf(out, ",role=%s", at->role);
    if (!d->o->discovery_worker) return;
    kvr_buf_str(out, ",");
    found_place_put_keys(d->o->discovery_worker, at, out);
}

int found_place_check(const struct discovery *d, char *err, size_t cap)
{
    const struct found_place somewhere = {.host = "192.0.2.1", .port = 1, .pod = d->o->discovery == DISCOVERY_KUBERNETES ? "pod" : NULL};
    struct kvr_buf b = {0};
    char why[1024] = "out of memory";
    if (!d->o->discovery_worker) return 0;
    struct worker_spec *spec = malloc(sizeof *spec);
    found_place_put(d, &somewhere, &b);
    kvr_buf_add(&b, "", 1);
    int rc = spec && !b.failed ? worker_parse(d->workers, b.data, spec, why, sizeof why) : -1;
    kvr_buf_free(&b);
    free(spec);
    if (rc) snprintf(err, cap, "--discovery-worker: %s", why);
    return rc;
}
