/* SPDX-License-Identifier: Apache-2.0 */
/* What --models-file says, as requests see it: models_config.h. */
#include "app/serve/config/models_config.h"

#include <stdlib.h>

#include "app/serve/config/models_file.h"
#include "app/serve/state.h"

struct models_config {
    struct models_file file; /* first: holders have its address */
    _Atomic unsigned holders;
};

static struct models_config *read_file(const char *path, char *err, size_t cap)
{
    struct models_config *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(err, cap, "out of memory");
        return NULL;
    }
    atomic_init(&c->holders, 1);
    if (models_file_read(path, &c->file, err, cap) == 0) return c;
    free(c);
    return NULL;
}

static void exchange(struct serve *s, struct models_config *c)
{
    kvr_lock(&s->models_lock);
    struct models_config *before = s->models;
    s->models = c;
    kvr_unlock(&s->models_lock);
    if (before) models_config_let_go(&before->file);
}

int models_config_reload(struct serve *s, char *err, size_t cap)
{
    struct models_config *c = read_file(s->o->models_file, err, cap);
    reloads_note(&s->reloads, RELOAD_MODELS, c != NULL);
    if (c) exchange(s, c);
    return c ? 0 : -1;
}

int models_config_open(struct serve *s, char *err, size_t cap)
{
    char why[400];
    if (!s->o->models_file || models_config_reload(s, why, sizeof why) == 0) return 0;
    snprintf(err, cap, "models-file: %s", why);
    return -1;
}

const struct models_file *models_config_hold(struct serve *s)
{
    kvr_lock(&s->models_lock);
    struct models_config *c = s->models;
    if (c) atomic_fetch_add(&c->holders, 1);
    kvr_unlock(&s->models_lock);
    return c ? &c->file : NULL;
}

void models_config_let_go(const struct models_file *f)
{
    struct models_config *c = (struct models_config *)(uintptr_t)f;
    if (!c || atomic_fetch_sub(&c->holders, 1) > 1) return;
    models_file_free(&c->file);
    free(c);
}

void models_config_destroy(struct serve *s)
{
    exchange(s, NULL);
}
