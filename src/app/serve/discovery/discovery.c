/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve/discovery/discovery.h"

#include "app/serve/discovery/found.h"
#include "wire/prom_page.h"

int discovery_check(struct serve *s, char *err, size_t cap)
{
    switch (s->o->discovery) {
    case DISCOVERY_FILE: return discovery_file_check(s, err, cap);
    case DISCOVERY_DNS: return discovery_dns_check(s, err, cap);
    default: return 0;
    }
}

int discovery_start(struct serve *s, char *err, size_t cap)
{
    struct discovery *d = s->discovery = found_create();
    if (!d) {
        snprintf(err, cap, "out of memory");
        return -1;
    }
    switch (s->o->discovery) {
    case DISCOVERY_FILE: d->file = discovery_file_start(s, err, cap); return d->file ? 0 : -1;
    case DISCOVERY_DNS: d->dns = discovery_dns_start(s, err, cap); return d->dns ? 0 : -1;
    case DISCOVERY_NATS: d->nats = discovery_nats_start(s, err, cap); return d->nats ? 0 : -1;
    default: d->settled = true; return 0;
    }
}

int discovery_announce(struct serve *s, char *err, size_t cap)
{
    struct discovery *d = s->discovery;
    if (!d || !d->nats || discovery_nats_announce(d->nats) == 0) return 0;
    snprintf(err, cap, "--discovery nats: out of memory, or built without NATS");
    return -1;
}

void discovery_tick(struct serve *s)
{
    if (s->discovery->file) discovery_file_tick(s, s->discovery->file);
    found_take_mail(s);
}

int discovery_reload(struct serve *s, char *err, size_t cap)
{
    return s->discovery->file ? discovery_file_reload(s, s->discovery->file, err, cap) : 0;
}

bool discovery_settled(const struct serve *s)
{
    return s->discovery->settled;
}

void discovery_stop(struct serve *s)
{
    struct discovery *d = s->discovery;
    if (!d) return;
    discovery_file_stop(d->file);
    discovery_nats_stop(d->nats);
    discovery_dns_stop(d->dns);
    d->file = NULL;
    d->nats = NULL;
}

void discovery_free(struct serve *s)
{
    if (s->discovery) discovery_dns_free(s->discovery->dns);
    found_free(s->discovery);
    s->discovery = NULL;
}

void discovery_metrics(const struct serve *s, struct kvr_prom_page *b)
{
    struct discovery *d = s->discovery;
    bool any = s->o->discovery != DISCOVERY_STATIC;
    uint64_t dropped = 0;
    if (any) {
        kvr_lock(&d->lock);
        dropped = d->dropped;
        kvr_unlock(&d->lock);
    }
    kvr_prom_one_if(b, any, "kvroute_", "discovery_workers", "gauge", "Workers that were found", any ? d->found_n : 0);
    kvr_prom_one_if(b, any, "kvroute_", "discovery_refused_total", "counter", "Descriptions of workers that were not taken",
                    any ? d->refused : 0);
    kvr_prom_one_if(b, any, "kvroute_", "discovery_dropped_total", "counter", "Findings that found the mail box full", dropped);
    discovery_dns_metrics(any ? d->dns : NULL, b);
}
