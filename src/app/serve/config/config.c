/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the room of configuration: config.h. Files are read by those who have them. */
#include "app/serve/config/room.h"

#include "app/serve/config/models_config.h"
#include "app/serve/config/port_tls.h"
#include "net/http/tls.h"
#include "wire/prom_page.h"

struct config *config_create(struct process *p, struct workers *workers)
{
    struct config *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->o = p->o;
    c->process = p;
    c->workers = workers;
    kvr_lock_init(&c->keyrings.lock, KVR_LOCK_KEYRING);
    kvr_lock_init(&c->models_lock, KVR_LOCK_MODELS);
    if (p->o->policy_config) reloads_note(&c->reloads, RELOAD_POLICY, true); /* the command line has read it */
    return c;
}

void config_destroy(struct config *c)
{
    if (!c) return;
    keyrings_close(c);
    models_config_destroy(c);
    kvr_lock_destroy(&c->models_lock);
    kvr_tls_ctx_free(c->tls);
    kvr_tls_ctx_free(c->admin_tls);
    kvr_tls_ctx_free(c->picker_tls);
    free(c->profiles_read);
    free(c);
}

void config_second(struct config *c)
{
    port_tls_tick(c);
}

void config_metrics(struct config *c, struct kvr_prom_page *out)
{
    keyrings_metrics(c, out);
    port_tls_metrics(c, out);
    reloads_metrics(&c->reloads, out);
    models_config_metrics(c, out);
}

struct reloads *config_reloads(struct config *c)
{
    return &c->reloads;
}

struct kvr_tls_ctx *config_tls(const struct config *c)
{
    return c->tls;
}

struct kvr_tls_ctx *config_picker_tls(const struct config *c)
{
    return c->picker_tls;
}

struct kvr_tls_ctx *config_admin_tls(const struct config *c)
{
    return c->admin_tls;
}
