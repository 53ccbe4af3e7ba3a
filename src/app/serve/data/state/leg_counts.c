/* SPDX-License-Identifier: Apache-2.0 */
/* Counters and histograms of two legs: data/state/leg_counts.h. */
#include "app/serve/data/state/leg_counts.h"

#include "wire/prom_page.h"

#define NAME(name, text) text,
static const char *const treatments[] = {TOLD_TREATMENTS(NAME)};
static const char *const fallbacks[] = {FALLBACKS(NAME)};
static const char *const leaks[] = {LEAKS(NAME)};
#undef NAME
static const char *const releases[] = {"dispatched", "failed"};
static const char *const legs[] = {"prefill", "decode"};

const char *told_treatment_name(enum told_treatment t)
{
    return treatments[t];
}

void leg_counts_error(struct leg_counts *c, enum leg leg, int status)
{
    atomic_fetch_add(&c->errors[leg][status > 0 && status < LEG_STATUSES ? status : 0], 1);
}

static void put_by(struct kvr_prom_page *b, const char *name, const char *help, const char *label, const char *const *values, size_t n,
                   const _Atomic uint64_t *counts)
{
    kvr_prom_family(b, "kvroute_disagg_", name, "counter", help);
    for (size_t i = 0; i < n; i++) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT(label, values[i])), atomic_load(&counts[i]));
}

static void put_errors(struct kvr_prom_page *b, const struct leg_counts *c)
{
    kvr_prom_family(b, "kvroute_disagg_", "leg_errors_total", "counter", "Legs that have failed, by the worker's status; none: no answer");
    for (size_t leg = 0; leg < LEGS_N; leg++)
        for (uint64_t status = 0; status < LEG_STATUSES; status++) {
            uint64_t n = atomic_load(&c->errors[leg][status]);
            struct kvr_prom_pair label = {"status", status ? NULL : "none", status};
            if (n) kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("leg", legs[leg]), label), n);
        }
}

static void put_seconds(struct kvr_prom_page *b, const char *name, const char *help, const struct kvr_histogram *h)
{
    kvr_prom_family(b, "kvroute_", name, "histogram", help);
    kvr_prom_put_histogram(b, KVR_PROM_NONE, h);
}

void leg_counts_metrics(const struct leg_counts *c, struct kvr_prom_page *b)
{
    put_by(b, "requests_total", "Requests of models with prefill or decode workers, by treatment", "treatment", treatments,
           TOLD_TREATMENTS_N, c->treatments);
    put_by(b, "fallbacks_total", "Requests that were to have two legs, and had one", "why", fallbacks, FALLBACKS_N, c->fallbacks);
    put_by(b, "leg_retries_total", "Legs sent again to another worker", "leg", legs, LEGS_N, c->retries);
    put_errors(b, c);
    put_by(b, "releases_total", "Computed prompts without a client, given to a decode worker to be freed", "how", releases, RELEASE_ENDS,
           c->releases);
    put_by(b, "possible_leaks_total", "Computed prompts that may be held until the lease is over", "why", leaks, LEAKS_N, c->leaks);
    put_seconds(b, "prefill_leg_seconds", "From sending a prompt to a prefill worker to its answer's end", &c->prefill);
    put_seconds(b, "handoff_seconds", "From a computed prompt to sending to the decode worker", &c->handoff);
    put_seconds(b, "kv_wait_seconds", "From sending to the decode worker to its first byte", &c->kv_wait);
}
