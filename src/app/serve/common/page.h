/* SPDX-License-Identifier: Apache-2.0 */
/* Families of the /metrics page under the prefix kvroute_: what each room's metrics function writes with (wire/prom_page.h). */
#ifndef KVR_SERVE_PAGE_H
#define KVR_SERVE_PAGE_H

#include "base/histogram.h"
#include "wire/prom_page.h"

static inline void put_family(struct kvr_prom_page *b, const char *name, const char *type, const char *help)
{
    kvr_prom_family(b, "kvroute_", name, type, help);
}

static inline void put_histogram(struct kvr_prom_page *b, const char *name, const char *help, const struct kvr_histogram *h)
{
    put_family(b, name, "histogram", help);
    kvr_prom_put_histogram(b, KVR_PROM_NONE, h);
}

static inline void put_gauge(struct kvr_prom_page *b, const char *name, const char *help, double v)
{
    kvr_prom_one_double(b, "kvroute_", name, "gauge", help, v);
}

#endif
