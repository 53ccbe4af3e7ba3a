/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/admin/reload.h says what this is. */
#include "app/serve/admin/reload.h"

#include <string.h>

#include "app/serve/admin/room.h"
#include "app/serve/config/config.h"
#include "app/serve/config/file_look.h"
#include "app/serve/config/keyring.h"
#include "app/serve/config/models_config.h"
#include "app/serve/config/policies.h"
#include "app/serve/config/port_tls.h"
#include "app/serve/data/data_plane.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "base/log.h"
#include "net/http/access.h"
#include "token/given.h"

enum { PATHS_MAX = 12 };

struct paths {
    const char *list[PATHS_MAX];
    size_t n;
};

/* ---- what there is ----------------------------------------------------------------------------------- */

static struct paths paths_of(const struct serve_options *o, enum reload_file file)
{
    const struct {
        enum reload_file file;
        const char *path; /* NULL: not given */
    } all[] = {{RELOAD_ADMIN_KEYS, o->admin_key_file},
               {RELOAD_API_KEYS, o->api_key_file},
               {RELOAD_MODELS, o->models_file},
               {RELOAD_POLICY, o->policy_config},
               {RELOAD_WORKERS, o->discovery == DISCOVERY_FILE ? o->discovery_target : NULL},
               {RELOAD_CERTIFICATES, o->tls_cert},
               {RELOAD_CERTIFICATES, o->tls_key},
               {RELOAD_CERTIFICATES, o->tls_client_ca},
               {RELOAD_CERTIFICATES, o->admin_tls_cert},
               {RELOAD_CERTIFICATES, o->admin_tls_key},
               {RELOAD_CERTIFICATES, o->admin_tls_client_ca},
               {RELOAD_CERTIFICATES, o->ext_proc_tls_cert},
               {RELOAD_CERTIFICATES, o->ext_proc_tls_key},
               {RELOAD_CERTIFICATES, o->ext_proc_tls_client_ca},
               {RELOAD_CERTIFICATES, o->tls_ca},
               {RELOAD_CERTIFICATES, o->outgoing_tls_cert},
               {RELOAD_CERTIFICATES, o->outgoing_tls_key}};
    struct paths p = {0};
    for (size_t i = 0; i < KVR_ARRAY_LEN(all); i++)
        if (all[i].file == file && all[i].path) p.list[p.n++] = all[i].path;
    return p;
}

static int read_admin_keys(struct admin *admin, char *err, size_t cap)
{
    int rc = kvr_access_reload(admin->access, err, cap);
    reloads_note(config_reloads(admin->config), RELOAD_ADMIN_KEYS, rc == 0);
    return rc;
}

static int read_discovery(struct admin *admin, char *err, size_t cap)
{
    return discovery_reload(admin->discovery, err, cap);
}

static const struct reloadable {
    enum reload_file file;
    const char *option, *stays; /* for the log */
    /* One of them reads, and counts it. */
    int (*read_config)(struct config *config, char *err, size_t cap);
    int (*read)(struct admin *admin, char *err, size_t cap);
} rows[] = {
    {RELOAD_ADMIN_KEYS, "--admin-key-file", "the old keys stay", .read = read_admin_keys},
    {RELOAD_CERTIFICATES, "certificates", "the old certificate stays", port_tls_reload, NULL},
    /* before those who name classes */
    {RELOAD_POLICY, "--router-policy-config", "the old classes stay", policies_reload, NULL},
    {RELOAD_API_KEYS, "--api-key-file", "the old keys stay", keyrings_reload, NULL},
    {RELOAD_MODELS, "--models-file", "what was in force stays", models_config_reload, NULL},
    {RELOAD_WORKERS, "--discovery-target", "nothing is changed", .read = read_discovery},
};

/* ---- folders of tokenizers ---------------------------------------------------------------------------- */

static uint64_t look_at_folder(const char *dir)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"};
    char path[4096];
    uint64_t look = 0;
    for (size_t i = 0; i < KVR_ARRAY_LEN(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        look = file_look(look, path);
    }
    return look;
}

static void note_folders(struct admin *admin)
{
    for (size_t i = 0; i < admin->o->tokenizer_dirs_n; i++)
        config_reloads(admin->config)->folders[i].read_look = look_at_folder(kvr_given_dir_path(admin->o->tokenizer_dirs[i]));
}

/* As watch() does; each folder by itself, as ids of one that is read again have to earn trust anew. */
static void watch_folders(struct admin *admin)
{
    bool used = tokenizers_are_used(admin->tokenizers) || admin->given_tokens;
    for (size_t i = 0; used && i < admin->o->tokenizer_dirs_n; i++) {
        const char *dir = kvr_given_dir_path(admin->o->tokenizer_dirs[i]);
        uint64_t look = look_at_folder(dir), seen = config_reloads(admin->config)->folders[i].last_look;
        config_reloads(admin->config)->folders[i].last_look = look;
        if (look == config_reloads(admin->config)->folders[i].read_look || look != seen) continue;
        config_reloads(admin->config)->folders[i].read_look = look;
        kvr_log("kvroute %s: --watch-files: --tokenizer-dir: %s: read again", serve_command(admin->o), dir);
        tokenizers_reload(admin->tokenizers, dir);
        kvr_given_tokens_reload(admin->given_tokens);
    }
}

/* ---- one file ---------------------------------------------------------------------------------------- */

enum result { TAKEN, UNCHANGED, REFUSED };

static void add_look(void *look, const char *path)
{
    *(uint64_t *)look = file_look(*(uint64_t *)look, path);
}

static uint64_t look_at(const struct admin *admin, const struct reloadable *row)
{
    struct paths p = paths_of(admin->o, row->file);
    uint64_t look = 0;
    for (size_t i = 0; i < p.n; i++) add_look(&look, p.list[i]);
    if (row->file == RELOAD_CERTIFICATES) kvr_tls_peers_files(add_look, &look);
    return look;
}

/* Looked at before it is read: a change in between is one that is seen later. */
static enum result read_row(struct admin *admin, const struct reloadable *row, const char *by, char *err, size_t cap)
{
    struct paths p = paths_of(admin->o, row->file);
    struct reload_mark now;
    config_reloads(admin->config)->of[row->file].read_look = look_at(admin, row);
    reload_mark_of(p.list, p.n, &now);
    if (row->read ? row->read(admin, err, cap) : row->read_config(admin->config, err, cap)) {
        kvr_log_warning("kvroute %s: %s: %s: %s; %s", serve_command(admin->o), by, row->option, err, row->stays);
        return REFUSED;
    }
    if (row->file == RELOAD_POLICY && atomic_load(&config_reloads(admin->config)->of[RELOAD_API_KEYS].failed))
        config_reloads(admin->config)->of[RELOAD_API_KEYS].read_look = 0; /* keys may have named a class that came just now */
    return reloads_mark(config_reloads(admin->config), row->file, &now) ? TAKEN : UNCHANGED;
}

int reload_file(struct admin *admin, enum reload_file file, const char *by, char *err, size_t cap)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (rows[i].file == file) return read_row(admin, &rows[i], by, err, cap) == REFUSED ? -1 : 0;
    return 0;
}

void reload_begin(struct admin *admin)
{
    if (admin->o->config) config_reloads(admin->config)->config_look = file_look(0, admin->o->config);
    note_folders(admin);
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        struct paths p = paths_of(admin->o, rows[i].file);
        struct reload_mark now;
        config_reloads(admin->config)->of[rows[i].file].read_look = look_at(admin, &rows[i]);
        if (!p.n) continue;
        reload_mark_of(p.list, p.n, &now);
        (void)reloads_mark(config_reloads(admin->config), rows[i].file, &now);
        if (rows[i].file == RELOAD_ADMIN_KEYS)
            reloads_note(config_reloads(admin->config), RELOAD_ADMIN_KEYS, true); /* the others have counted it themselves */
    }
}

/* What is new must look the same twice before it is read. A worker may have come with files of its own meanwhile, which then are read
 * once more than need be. Returns: whether it was. */
static bool watch(struct admin *admin, const struct reloadable *row)
{
    char err[512];
    uint64_t look = look_at(admin, row), seen = config_reloads(admin->config)->of[row->file].last_look;
    config_reloads(admin->config)->of[row->file].last_look = look;
    if (!look || look == config_reloads(admin->config)->of[row->file].read_look || look != seen) return false;
    if (read_row(admin, row, "--watch-files", err, sizeof err) != REFUSED)
        kvr_log("kvroute %s: --watch-files: %s: read again", serve_command(admin->o), row->option);
    return true;
}

void reload_tick(struct admin *admin)
{
    if (admin->o->watch_files <= 0 || kvr_now_ms() < config_reloads(admin->config)->due_ms) return;
    config_reloads(admin->config)->due_ms = kvr_now_ms() + (uint64_t)(admin->o->watch_files * 1000);
    bool any = false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++)
        if (rows[i].file != RELOAD_WORKERS) any = watch(admin, &rows[i]) || any; /* which is looked at in any case */
    if (any) policies_warn_of_keys(admin->config);
    watch_folders(admin);
}

/* ---- all of them ------------------------------------------------------------------------------------- */

static void put_file(struct kvr_buf *b, const char *file, const char *path, const char *result, const char *error)
{
    if (!b) return;
    kvr_json_printf(b, "{'file':%s,'path':%s,'result':%s", file, path, result);
    if (error) kvr_json_put_str(b, "error", error);
    kvr_json_close(b, '}');
}

static bool reload_row(struct admin *admin, const struct reloadable *row, const char *by, struct kvr_buf *out)
{
    static const char *const results[] = {"taken", "unchanged", "refused"};
    char err[512];
    struct paths p = paths_of(admin->o, row->file);
    if (!p.n && row->file != RELOAD_CERTIFICATES) return true; /* workers may have some of their own */
    enum result result = read_row(admin, row, by, err, sizeof err);
    if (!p.n && result == REFUSED) p.list[p.n++] = "(of a worker)";
    for (size_t i = 0; i < p.n; i++) put_file(out, reload_name(row->file), p.list[i], results[result], result == REFUSED ? err : NULL);
    return result != REFUSED;
}

/* What others read or open, on threads of their own: the log tells how it ended. */
static void begin_others(struct admin *admin, struct kvr_buf *out)
{
    note_folders(admin);
    tokenizers_reload(admin->tokenizers, NULL);
    kvr_given_tokens_reload(admin->given_tokens);
    for (size_t i = 0; i < admin->o->tokenizer_dirs_n; i++) put_file(out, "tokenizers", admin->o->tokenizer_dirs[i], "begun", NULL);
    if (data_plane_reopen_access_log(admin->data)) put_file(out, "access-log", admin->o->access_log, "begun", NULL);
}

/* Options count from the start on, so --config is not read again. Who has changed it is told. */
static void tell_of_config(const struct admin *admin, const char *by, struct kvr_buf *out)
{
    static const char why[] =
        "it has changed, and is read at the start only: restart the router (docs/guides/restart.md); workers that come and go "
        "belong into the file of --discovery file, or into POST /workers";
    if (!admin->o->config) return;
    bool changed = file_look(0, admin->o->config) != config_reloads(admin->config)->config_look;
    put_file(out, "config", admin->o->config, "not-read", changed ? why : NULL);
    if (changed) kvr_log_warning("kvroute %s: %s: --config: %s", serve_command(admin->o), by, why);
}

bool reload_all(struct admin *admin, const char *by, struct kvr_buf *out)
{
    bool good = true;
    if (out) kvr_json_printf(out, "{'files':[");
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) good = reload_row(admin, &rows[i], by, out) && good;
    policies_warn_of_keys(admin->config);
    begin_others(admin, out);
    tell_of_config(admin, by, out);
    if (out) kvr_json_printf(out, "]}");
    kvr_log("kvroute %s: %s: read again", serve_command(admin->o), by);
    return good;
}

void reload_post(struct admin *admin, struct kvr_http_conn *c)
{
    struct kvr_buf b = {0};
    bool good = reload_all(admin, "POST /reload", &b);
    admin_reply(c, good ? 200 : 422, &b);
}
