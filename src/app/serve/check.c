/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at everything that serve_main reads, by the functions that it reads it with, on a router that does not run. In contrast to a start
 * nothing is written or connected to, and the first thing that is wrong does not end it.
 *
 * What it cannot see: whether ports are free, names resolve, and what others answer.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "app/serve/admin/admin.h"
#include "app/serve/config/api_keys.h"
#include "app/serve/config/config.h"
#include "app/serve/config/keyring.h"
#include "app/serve/config/models_config.h"
#include "app/serve/config/models_file.h"
#include "app/serve/config/policy_file.h"
#include "app/serve/config/port_tls.h"
#include "app/serve/discovery/discovery.h"
#include "app/serve/peers/remote.h"
#include "app/serve/rooms.h"
#include "app/serve/serve.h"
#include "app/serve/tokenizers/tokenizers.h"
#include "app/serve/workers/table/partition.h"
#include "app/serve/workers/workers.h"
#include "net/otlp/otlp.h"
#include "net/zmq/curve.h"
#include "token/given.h"
#include "wire/yaml_map.h"

enum { WHY_MAX = 2048 };

static void fact(const struct serve_check_ear *ear, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fact(const struct serve_check_ear *ear, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    ear->fact(ear->arg, text);
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

/* ---- files ------------------------------------------------------------------------------------------- */

struct file_check {
    struct kvr_yaml_findings all;
    const struct serve_check_ear *ear;
    const char *key;
};

static void on_finding(void *arg, const char *text)
{
    const struct file_check *f = arg;
    f->ear->wrong(f->ear->arg, f->all.unreadable ? f->key : NULL, text);
}

/* o: what the router does; NULL: nobody knows. */
static void check_models(const struct serve_options *o, const char *path, struct file_check *f)
{
    struct models_file models;
    char err[WHY_MAX];
    size_t shared = 0, fallbacks = 0, at = 0;
    if (models_file_read(&(struct kvr_yaml_source){path, .all = &f->all}, &models, err, sizeof err)) return;
    for (size_t i = 0; i < models.n; i++) {
        shared += models.rules[i].targets_n > 1;
        fallbacks += models.rules[i].fallbacks_n > 0;
    }
    fact(f->ear, "%s: models: %zu name%s, %zu of them shared among targets, %zu with fallbacks", path, models.n, plural(models.n), shared,
         fallbacks);
    while (o && models_config_next_misfit(o, path, &models, &at, err, sizeof err)) f->ear->wrong(f->ear->arg, NULL, err);
    models_file_free(&models);
}

static void check_keys(const char *path, struct file_check *f)
{
    struct api_keys keys;
    char err[WHY_MAX];
    size_t ended = 0;
    int64_t now = (int64_t)time(NULL);
    if (api_keys_read(&(struct kvr_yaml_source){path, .all = &f->all}, &keys, err, sizeof err)) return;
    for (size_t i = 0; i < keys.n; i++) ended += keys.keys[i].expires <= now;
    fact(f->ear, "%s: keys: %zu key%s, %zu of them expired; %zu limited model%s; requests without a key: %s", path, keys.n, plural(keys.n),
         ended, keys.models_n, plural(keys.models_n), keys.has_anonymous ? "allowed" : "refused");
    api_keys_free(&keys);
}

static void check_policy(const char *path, struct file_check *f)
{
    struct policy_file policy;
    char err[WHY_MAX];
    size_t classes = 0;
    if (policy_file_read(&(struct kvr_yaml_source){path, .all = &f->all}, &policy, err, sizeof err)) return;
    for (size_t i = 0; i < policy.n; i++) classes += policy.profiles[i].policy.classes_n;
    fact(f->ear, "%s: policy: %zu profile%s, %zu queue class%s", path, policy.n, plural(policy.n), classes, classes == 1 ? "" : "es");
    policy_file_free(&policy);
}

static void check_file(const struct serve_options *o, enum serve_file kind, const char *path, const char *key,
                       const struct serve_check_ear *ear)
{
    struct file_check f = {.ear = ear, .key = key};
    f.all.fn = on_finding;
    f.all.arg = &f;
    switch (kind) {
    case SERVE_FILE_MODELS: check_models(o, path, &f); break;
    case SERVE_FILE_KEYS: check_keys(path, &f); break;
    case SERVE_FILE_POLICY: check_policy(path, &f); break;
    }
    if (f.all.n >= KVR_YAML_FINDINGS_MAX) ear->wrong(ear->arg, NULL, "there may be more that is wrong with this file");
}

void serve_check_file(enum serve_file kind, const char *path, const char *key, const struct serve_check_ear *ear)
{
    check_file(NULL, kind, path, key, ear);
}

/* Of a file that cannot be read it was told already. */
void serve_check_classes(const char *keys_path, const char *policy_path, const struct serve_check_ear *ear)
{
    struct policy_file policy = {0};
    struct api_keys keys;
    char err[WHY_MAX];
    size_t at = 0;
    if (policy_path && policy_file_read(&(struct kvr_yaml_source){.name = policy_path}, &policy, err, sizeof err)) return;
    if (api_keys_read(&(struct kvr_yaml_source){.name = keys_path}, &keys, err, sizeof err) == 0) {
        while (keyrings_next_classless(keys_path, &keys, policy.profiles, policy.n, &at, err, sizeof err)) ear->wrong(ear->arg, NULL, err);
        api_keys_free(&keys);
    }
    policy_file_free(&policy);
}

/* ---- everything -------------------------------------------------------------------------------------- */

/* What start-up refuses with one text. */
static void check_parts(struct rooms *r, const struct serve_check_ear *ear)
{
    const struct serve_options *o = r->process.o;
    char err[WHY_MAX];
    const struct kvr_otlp_config traces = {.endpoint = o->otlp_endpoint};
    if (o->otlp_endpoint && kvr_otlp_check(&traces, err, sizeof err)) ear->wrong(ear->arg, "otlp-endpoint", err);
    port_tls_check(r->config, ear->wrong, ear->arg);
    if (admin_open(r->admin, err, sizeof err)) ear->wrong(ear->arg, o->select_only ? "api-key-file" : "admin-key-file", err);
    if (kvr_curve_load(&o->plane.curve, &r->process.curve, err, sizeof err))
        ear->wrong(ear->arg, o->plane.curve.key ? "zmq-curve-key" : "zmq-curve-servers", err);
    if (kvr_plane_scope(&o->plane, r->process.scope, err, sizeof err)) ear->wrong(ear->arg, "namespace", err);
    if (remote_parse(r->peers, err, sizeof err)) ear->wrong(ear->arg, "use-remote-indexer", err);
    if (o->select_only ? kvr_given_dirs_check(o->tokenizer_dirs, o->tokenizer_dirs_n, MODEL_MAX - 1, err, sizeof err)
                       : tokenizers_check(r->tokenizers, err, sizeof err))
        ear->wrong(ear->arg, "tokenizer-dir", err);
    if (discovery_check(r->discovery, err, sizeof err)) ear->wrong(ear->arg, "discovery-target", err);
}

static void check_workers(struct rooms *r, const struct serve_check_ear *ear)
{
    char err[WHY_MAX];
    for (size_t i = 0; i < r->process.o->workers_n; i++)
        if (rooms_add_worker(r, &r->process.o->workers[i], i + 1, err, sizeof err)) ear->wrong(ear->arg, NULL, err);
}

static size_t partitions_of(const struct rooms *r)
{
    size_t n = 0;
    for (const struct partition *p = partitions_first(r->workers); p; p = p->next) n++;
    return n;
}

static void tell(const struct rooms *r, const struct serve_check_ear *ear)
{
    const struct serve_options *o = r->process.o;
    size_t pools = partitions_of(r);
    char what[512];
    snprintf(what, sizeof what, "%s%s", o->config ? o->config : serve_command(o), o->config ? ": config" : "");
    if (o->select_only) {
        fact(ear, "%s: %s on %s:%llu, mode %s", what, config_admin_tls(r->config) ? "https" : "http", o->admin_host,
             (unsigned long long)o->admin_port, router_mode_name(o->mode));
        return;
    }
    char data[300] = "", picker[300] = "";
    if (!o->picks_only)
        snprintf(data, sizeof data, "data on %s:%llu%s, ", o->host, (unsigned long long)o->port, config_tls(r->config) ? " (https)" : "");
    if (o->ext_proc_port) snprintf(picker, sizeof picker, "ext_proc on %s:%llu, ", o->host, (unsigned long long)o->ext_proc_port);
    fact(ear, "%s: %zu worker%s in %zu pool%s%s; %s%sadmin on %s:%llu%s; mode %s", what, workers_count(r->workers),
         plural(workers_count(r->workers)), pools, plural(pools), discovery_words(o), data, picker, o->admin_host,
         (unsigned long long)o->admin_port, config_admin_tls(r->config) ? " (https)" : "", router_mode_name(o->mode));
}

void serve_check(const struct serve_options *o, const struct serve_check_ear *ear)
{
    struct rooms rooms, *s = &rooms;
    if (!rooms_create(s, o)) {
        ear->wrong(ear->arg, NULL, "out of memory");
        return;
    }
    check_parts(s, ear);
    if (!o->select_only) check_workers(s, ear);
    tell(s, ear);
    if (o->models_file) check_file(o, SERVE_FILE_MODELS, o->models_file, "models-file", ear);
    if (o->api_key_file) serve_check_file(SERVE_FILE_KEYS, o->api_key_file, "api-key-file", ear);
    if (o->policy_config) serve_check_file(SERVE_FILE_POLICY, o->policy_config, "router-policy-config", ear);
    if (o->api_key_file) serve_check_classes(o->api_key_file, o->policy_config, ear);
    rooms_destroy(s);
}
