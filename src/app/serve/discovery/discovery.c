/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the room, and which finder runs: discovery.h. Main loop. */
#include "app/serve/discovery/discovery.h"

#include "app/serve/discovery/found_workers.h"
#include "wire/prom_page.h"

struct discovery *discovery_create(struct process *p, struct workers *workers, struct config *config, struct peers *peers)
{
    struct discovery *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    *d = (struct discovery){.o = p->o, .process = p, .workers = workers, .config = config, .peers = peers};
    kvr_lock_init(&d->lock, KVR_LOCK_FINDINGS);
    return d;
}

/* By --discovery. Each starts by itself, and is found in its member of struct discovery when it runs. */
static const struct finder {
    const char *words;
    int (*check)(struct discovery *d, char *err, size_t cap); /* NULL: nothing is read before the start */
    int (*start)(struct discovery *d, char *err, size_t cap); /* NULL: nobody looks */
} finders[] = {
    [DISCOVERY_STATIC] = {"", NULL, NULL},
    [DISCOVERY_FILE] = {", more by discovery from a file", discovery_file_check, discovery_file_start},
    [DISCOVERY_DNS] = {", more by discovery from DNS", discovery_dns_check, discovery_dns_start},
    [DISCOVERY_NATS] = {", more by discovery from NATS", NULL, discovery_nats_start},
    [DISCOVERY_KUBERNETES] = {", more by discovery from Kubernetes", discovery_kubernetes_check, discovery_kubernetes_start},
};

const char *discovery_words(const struct serve_options *o)
{
    return finders[o->discovery].words;
}

int discovery_check(struct discovery *d, char *err, size_t cap)
{
    const struct finder *f = &finders[d->o->discovery];
    return f->check ? f->check(d, err, cap) : 0;
}

int discovery_start(struct discovery *d, char *err, size_t cap)
{
    const struct finder *f = &finders[d->o->discovery];
    if (!found_workers_open(d)) return kvr_refuse(err, cap, "out of memory");
    d->settled = !f->start;
    return f->start ? f->start(d, err, cap) : 0;
}

int discovery_announce(struct discovery *d, uint16_t admin_port, char *err, size_t cap)
{
    if (!d->nats || discovery_nats_announce(d->nats, admin_port) == 0) return 0;
    return kvr_refuse(err, cap, "--discovery nats: out of memory, or built without NATS");
}

void discovery_tick(struct discovery *d)
{
    if (d->file) discovery_file_tick(d, d->file);
    found_workers_take_mail(d);
}

int discovery_reload(struct discovery *d, char *err, size_t cap)
{
    return d->file ? discovery_file_reload(d, d->file, err, cap) : 0;
}

bool discovery_settled(const struct discovery *d)
{
    return d->settled;
}

void discovery_stop(struct discovery *d)
{
    discovery_file_stop(d->file);
    discovery_nats_stop(d->nats);
    discovery_dns_stop(d->dns);
    discovery_kubernetes_stop(d->kubernetes);
    d->file = NULL;
    d->nats = NULL;
    d->kubernetes = NULL;
}

void discovery_destroy(struct discovery *d)
{
    if (!d) return;
    discovery_dns_free(d->dns);
    found_workers_close(d);
    kvr_lock_destroy(&d->lock);
    free(d);
}

void discovery_metrics(struct discovery *d, struct kvr_prom_page *b)
{
    bool any = d->o->discovery != DISCOVERY_STATIC;
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
    discovery_kubernetes_metrics(d->kubernetes, b);
}
