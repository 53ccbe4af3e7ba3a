/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/policies.h says what this is. */
#include "app/serve/config/policies.h"

#include <stdlib.h>
#include <string.h>

#include "app/serve/config/policy_file.h"
#include "app/serve/config/room.h"
#include "app/serve/workers/table/partition.h"
#include "base/log.h"

static bool has(const struct policy_profile *list, size_t n, const char *model)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].model, model)) return true;
    return false;
}

/* The first model of a that b has not; NULL: none. The root's classes are no model's. */
static const char *missing(const struct policy_profile *a, size_t a_n, const struct policy_profile *b, size_t b_n)
{
    for (size_t i = 0; i < a_n; i++)
        if (a[i].model[0] && !has(b, b_n, a[i].model)) return a[i].model;
    return NULL;
}

/* Of `select` every model has a partition of its own in any case. */
static int check_models(const struct config *config, const struct policy_file *fresh, char *err, size_t cap)
{
    size_t n;
    const struct policy_profile *now = partitions_policies(config->workers, &n);
    const char *added = missing(fresh->profiles, fresh->n, now, n), *gone = missing(now, n, fresh->profiles, fresh->n);
    if (config->o->select_only || (!added && !gone)) return 0;
    return kvr_refuse(
        err, cap,
        "%s: models: '%s' %s; which models have classes of their own cannot change while the router runs, because their workers are "
        "kept apart: restart it",
        config->o->policy_config, added ? added : gone, added ? "is new" : "is gone");
}

int policies_reload(struct config *config, char *err, size_t cap)
{
    struct policy_file fresh;
    int rc = policy_file_read(&(struct kvr_yaml_source){.name = config->o->policy_config}, &fresh, err, cap);
    if (rc == 0 && check_models(config, &fresh, err, cap)) {
        policy_file_free(&fresh);
        rc = -1;
    }
    if (rc == 0 && partitions_set_policies(config->workers, fresh.profiles, fresh.n)) {
        snprintf(err, cap, "out of memory");
        policy_file_free(&fresh);
        rc = -1;
    }
    if (rc == 0) {
        free(config->profiles_read); /* those of the start are the command line's */
        config->profiles_read = fresh.profiles;
    }
    reloads_note(&config->reloads, RELOAD_POLICY, rc == 0);
    return rc;
}

void policies_warn_of_keys(const struct config *config)
{
    char why[400];
    if (config->o->policy_config && !keyrings_have_classes(config, why, sizeof why))
        kvr_log_warning("kvroute serve: %s; such requests wait in the default class now", why);
}
