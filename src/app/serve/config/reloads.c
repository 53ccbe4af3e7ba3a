/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/reloads.h says what this is. */
#include "app/serve/config/reloads.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "wire/prom_page.h"

enum { PIECE = 16 << 10 };

static const char *const names[RELOAD_FILES_N] = {"api-keys", "models", "certificates", "admin-keys", "workers", "policy", "models-put"};

const char *reload_name(enum reload_file file)
{
    return names[file];
}

/* ---- what files said --------------------------------------------------------------------------------- */

/* d = SHA-256(d, SHA-256(piece)), the last piece of each file being empty: no file is in memory as a whole. */
static bool add_file(const char *path, unsigned char d[2 * KVR_DIGEST])
{
    unsigned char piece[PIECE];
    struct stat st;
    FILE *f = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? fopen(path, "rbe") : NULL; /* what a pipe says cannot be read twice */
    size_t n = 1;
    bool good = f != NULL;
    while (good && n) {
        n = fread(piece, 1, sizeof piece, f);
        good = kvr_digest(piece, n, d + KVR_DIGEST) && kvr_digest(d, 2 * KVR_DIGEST, d);
    }
    good = good && !ferror(f);
    explicit_bzero(piece, sizeof piece); /* there are private keys among them */
    if (f) fclose(f);
    return good;
}

void reload_mark_of(const char *const *paths, size_t n, struct reload_mark *out)
{
    unsigned char d[2 * KVR_DIGEST] = {0};
    out->known = n > 0;
    for (size_t i = 0; i < n && out->known; i++) out->known = add_file(paths[i], d);
    memcpy(out->digest, d, KVR_DIGEST);
}

bool reloads_mark(struct reloads *r, enum reload_file file, const struct reload_mark *now)
{
    struct reload_mark *mark = &r->of[file].mark;
    bool same = mark->known && now->known && kvr_digest_same(mark->digest, now->digest);
    *mark = *now;
    return !same;
}

void reloads_unmark(struct reloads *r, enum reload_file file)
{
    r->of[file].mark.known = false;
}

/* ---- how they were taken ----------------------------------------------------------------------------- */

void reloads_note(struct reloads *r, enum reload_file file, bool taken)
{
    atomic_store(&r->of[file].seen, true);
    atomic_store(&r->of[file].failed, !taken);
    atomic_fetch_add(taken ? &r->of[file].taken : &r->of[file].refused, 1);
}

void reloads_metrics(const struct reloads *r, struct kvr_prom_page *out)
{
    kvr_prom_family(out, "kvroute_", "config_reloads_total", "counter", "Reads of a file, taken or refused");
    for (int i = 0; i < RELOAD_FILES_N; i++) {
        if (!atomic_load(&r->of[i].seen)) continue;
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("file", names[i]), KVR_PROM_TEXT("result", "taken")),
                         atomic_load(&r->of[i].taken));
        kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("file", names[i]), KVR_PROM_TEXT("result", "refused")),
                         atomic_load(&r->of[i].refused));
    }
    kvr_prom_family(out, "kvroute_", "config_last_reload_successful", "gauge", "0 while what a file says now is refused");
    for (int i = 0; i < RELOAD_FILES_N; i++)
        if (atomic_load(&r->of[i].seen) && i != RELOAD_MODELS_PUT)
            kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("file", names[i])), !atomic_load(&r->of[i].failed));
}
