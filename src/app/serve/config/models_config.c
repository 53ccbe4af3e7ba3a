/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models, as requests see them: models_config.h. */
#include "app/serve/config/models_config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app/serve/config/models_file.h"
#include "app/serve/config/room.h"
#include "app/serve/workers/views/views.h"
#include "wire/prom_page.h"

struct models_config {
    struct models_file file; /* first: holders have its address */
    bool put;                /* over the admin port */
    int64_t since;           /* seconds since 1970 */
    char tag[MODELS_TAG];
    _Atomic unsigned holders;
};

/* ---- reading ----------------------------------------------------------------------------------------- */

/* Says the same wherever it was read. Returns: false without memory. */
static bool make_tag(const struct models_file *f, char out[MODELS_TAG])
{
    struct kvr_buf b = {0};
    unsigned char digest[KVR_DIGEST];
    models_file_write(f, &b);
    bool good = !b.failed && kvr_digest(b.data, b.len, digest);
    if (good) snprintf(out, MODELS_TAG, "\"%016llx\"", (unsigned long long)kvr_load_be64(digest));
    kvr_buf_free(&b);
    return good;
}

bool models_config_next_misfit(const struct serve_options *o, const char *name, const struct models_file *f, size_t *at, char *err,
                               size_t cap)
{
    for (; *at < f->n; ++*at) {
        const struct model_options *m = &f->rules[*at].options;
        if (o->overlap_credit > 0 || model_option(m, MODEL_OVERLAP_CREDIT, 0) <= 0) continue;
        snprintf(err, cap, "%s:%zu: router-kv-overlap-score-credit: 0 is expected, because it is 0 for all models: there is no index", name,
                 m->line);
        ++*at;
        return true;
    }
    return false;
}

/* text NULL: reads the file. NULL with the reason in err. */
static struct models_config *config_new(struct config *config, const void *text, size_t len, char *err, size_t cap)
{
    struct models_config *c = calloc(1, sizeof *c);
    snprintf(err, cap, "out of memory");
    if (!c) return NULL;
    atomic_init(&c->holders, 1);
    c->put = text != NULL;
    c->since = (int64_t)time(NULL);
    struct kvr_yaml_source from = {text ? "body" : config->o->models_file, text, len, NULL};
    int rc = models_file_read(&from, &c->file, err, cap);
    size_t at = 0;
    if (rc == 0 && !models_config_next_misfit(config->o, from.name, &c->file, &at, err, cap) && make_tag(&c->file, c->tag)) return c;
    models_file_free(&c->file);
    free(c);
    return NULL;
}

/* Is one of them routed by what is cached, whatever the others are? */
static bool routes_by_kv(const struct models_file *f)
{
    for (size_t i = 0; i < f->n; i++)
        if (model_option(&f->rules[i].options, MODEL_ROUTER_MODE, KVR_MODE_DIRECT) == KVR_MODE_KV) return true;
    return false;
}

static void exchange(struct config *config, struct models_config *c)
{
    if (c && routes_by_kv(&c->file)) views_want(config->workers);
    kvr_lock(&config->models_lock);
    struct models_config *before = config->models;
    config->models = c;
    kvr_unlock(&config->models_lock);
    if (before) models_config_let_go(&before->file);
}

int models_config_reload(struct config *config, char *err, size_t cap)
{
    struct models_config *c = config_new(config, NULL, 0, err, cap);
    reloads_note(&config->reloads, RELOAD_MODELS, c != NULL);
    if (c) exchange(config, c);
    return c ? 0 : -1;
}

int models_config_put(struct config *config, const void *text, size_t len, char *err, size_t cap)
{
    struct models_config *c = config_new(config, text, len, err, cap);
    reloads_note(&config->reloads, RELOAD_MODELS_PUT, c != NULL);
    if (!c) return -1;
    exchange(config, c);
    reloads_unmark(&config->reloads, RELOAD_MODELS); /* what the file says is a change again, whatever it is */
    return 0;
}

int models_config_open(struct config *config, char *err, size_t cap)
{
    char why[400];
    if (!config->o->models_file || models_config_reload(config, why, sizeof why) == 0) return 0;
    return kvr_refuse(err, cap, "models-file: %s", why);
}

/* ---- what is in force -------------------------------------------------------------------------------- */

/* Only the main loop changes which it is, and that is who asks here. */
static const struct models_config *in_force(const struct config *config)
{
    static const struct models_config none;
    return config->models ? config->models : &none;
}

void models_config_tag(struct config *config, char out[MODELS_TAG])
{
    const struct models_config *c = in_force(config);
    if (c->tag[0]) memcpy(out, c->tag, MODELS_TAG);
    else snprintf(out, MODELS_TAG, "\"none\"");
}

void models_config_write(struct config *config, struct kvr_buf *b)
{
    const struct models_config *c = in_force(config);
    const char *path = config->o->models_file;
    kvr_json_printf(b, "{'config':");
    models_file_write(&c->file, b);
    kvr_json_put_str(b, "source", c->put ? "api" : path ? "file" : "none");
    if (path) kvr_json_put_str(b, "path", path);
    if (c->since) kvr_json_put_moment(b, "since", c->since);
    if (c->put) kvr_json_put_str(b, "until", path ? "the file is read again, or the router ends" : "the router ends");
    kvr_json_close(b, '}');
}

void models_config_metrics(struct config *config, struct kvr_prom_page *out)
{
    kvr_prom_one_if(out, !config->o->select_only, "kvroute_", "models_config_from_api", "gauge",
                    "1 while names of models are those put over the admin port", in_force(config)->put);
}

const struct models_file *models_config_hold(struct config *config)
{
    if (!atomic_load(&config->models)) return NULL;
    kvr_lock(&config->models_lock);
    struct models_config *c = atomic_load(&config->models);
    if (c) atomic_fetch_add(&c->holders, 1);
    kvr_unlock(&config->models_lock);
    return c ? &c->file : NULL;
}

void models_config_let_go(const struct models_file *f)
{
    struct models_config *c = (struct models_config *)(uintptr_t)f;
    if (!c || atomic_fetch_sub(&c->holders, 1) > 1) return;
    models_file_free(&c->file);
    free(c);
}

void models_config_destroy(struct config *config)
{
    exchange(config, NULL);
}
