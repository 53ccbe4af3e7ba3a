/* SPDX-License-Identifier: Apache-2.0 */
/* How files that are read again have been taken: kvroute_config_reloads_total and kvroute_config_last_reload_successful, by file; and what
 * they said, to tell whether they say something else now. The main loop notes and marks; any thread reads the metrics. */
#ifndef KVR_SERVE_RELOADS_H
#define KVR_SERVE_RELOADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/http/digest.h"
#include "token/given.h"

enum reload_file {
    RELOAD_API_KEYS,
    RELOAD_MODELS,
    RELOAD_CERTIFICATES,
    RELOAD_ADMIN_KEYS,
    RELOAD_WORKERS, /* of --discovery file */
    RELOAD_POLICY,
    RELOAD_MODELS_PUT, /* over the admin port: no file, but counted alike */
    RELOAD_FILES_N
};

/* Of the bytes of one file, or of several that belong together. */
struct reload_mark {
    bool known; /* all could be read */
    unsigned char digest[KVR_DIGEST];
};

struct reloads {
    struct {
        _Atomic bool seen;   /* the file is configured */
        _Atomic bool failed; /* the last time */
        _Atomic uint64_t taken, refused;
        struct reload_mark mark;       /* of what is in force */
        uint64_t read_look, last_look; /* how its files looked when they were read; when they were looked at the last time (file_look.h) */
    } of[RELOAD_FILES_N];
    struct {
        uint64_t read_look, last_look;
    } folders[KVR_GIVEN_DIRS_MAX]; /* the same of --tokenizer-dir */
    uint64_t config_look;          /* of --config at the start, when alone it is read */
    uint64_t due_ms;               /* the next look, with --watch-files */
};

struct kvr_prom_page;

const char *reload_name(enum reload_file file);
/* At the start, too: the first reading of a file. */
void reloads_note(struct reloads *r, enum reload_file file, bool taken);
void reload_mark_of(const char *const *paths, size_t n, struct reload_mark *out);
/* These are in force now. Returns: whether they are others than before. */
bool reloads_mark(struct reloads *r, enum reload_file file, const struct reload_mark *now);
/* What is in force is not the file's any more. */
void reloads_unmark(struct reloads *r, enum reload_file file);
void reloads_metrics(const struct reloads *r, struct kvr_prom_page *out);

#endif
