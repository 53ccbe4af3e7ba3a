/* SPDX-License-Identifier: Apache-2.0 */
/* How files that are read again have been taken: kvroute_config_reloads_total and kvroute_config_last_reload_successful, by file. The main
 * loop notes; any thread reads. */
#ifndef KVR_SERVE_RELOADS_H
#define KVR_SERVE_RELOADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum reload_file { RELOAD_API_KEYS, RELOAD_MODELS, RELOAD_CERTIFICATES, RELOAD_FILES_N };

struct reloads {
    struct {
        _Atomic bool seen;   /* the file is configured */
        _Atomic bool failed; /* the last time */
        _Atomic uint64_t taken, refused;
    } of[RELOAD_FILES_N];
};

struct kvr_prom_page;

/* At the start, too: the first reading of a file. */
void reloads_note(struct reloads *r, enum reload_file file, bool taken);
void reloads_metrics(const struct reloads *r, struct kvr_prom_page *out);

#endif
