/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/reloads.h says what this is. */
#include "app/serve/config/reloads.h"

#include "wire/prom_page.h"

static const char *const names[RELOAD_FILES_N] = {"api-keys", "models", "certificates"};

void reloads_note(struct reloads *r, enum reload_file file, bool taken)
{
    atomic_store(&r->of[file].seen, true);
    atomic_store(&r->of[file].failed, !taken);
    atomic_fetch_add(taken ? &r->of[file].taken : &r->of[file].refused, 1);
}

void reloads_metrics(const struct reloads *r, struct kvr_prom_page *out)
{
    kvr_prom_family(out, "kvroute_", "config_reloads_total", "counter",
                    "Times that a file was read, the first one too, and taken or refused");
    for (int i = 0; i < RELOAD_FILES_N; i++) {
        if (!atomic_load(&r->of[i].seen)) continue;
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("file", names[i]), KVR_PROM_TEXT("result", "taken")),
                         atomic_load(&r->of[i].taken));
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("file", names[i]), KVR_PROM_TEXT("result", "refused")),
                         atomic_load(&r->of[i].refused));
    }
    kvr_prom_family(out, "kvroute_", "config_last_reload_successful", "gauge",
                    "0: what a file says now was refused, and what it said before holds");
    for (int i = 0; i < RELOAD_FILES_N; i++)
        if (atomic_load(&r->of[i].seen))
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("file", names[i])), !atomic_load(&r->of[i].failed));
}
