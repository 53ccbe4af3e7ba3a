/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models as JSON, with the keys of the file: what models_file_parse makes the same rules of. */
#include <string.h>

#include "app/serve/config/models_file.h"
#include "base/buf.h"

/* A name may have quotes in it. */
static void put_key(struct kvr_buf *b, const char *name)
{
    kvr_json_str(b, name, strlen(name));
    kvr_buf_add(b, ":", 1);
    b->comma = false;
}

static void put_target(struct kvr_buf *b, const struct model_target *t)
{
    kvr_json_open(b, '{');
    kvr_json_put_str(b, "model", t->model);
    kvr_json_key(b, "weight");
    kvr_buf_printf(b, "%.17g", t->weight); /* not less: shares would change */
    kvr_json_close(b, '}');
}

static void put_targets(struct kvr_buf *b, const struct model_rule *rule)
{
    if (!rule->targets_n) return;
    if (rule->is_alias) {
        kvr_json_put_str(b, "alias_of", rule->targets[0].model);
        return;
    }
    kvr_json_key(b, "targets");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < rule->targets_n; i++) put_target(b, &rule->targets[i]);
    kvr_json_close(b, ']');
}

static void put_fallbacks(struct kvr_buf *b, const struct model_rule *rule)
{
    if (!rule->fallbacks_n) return;
    kvr_json_key(b, "fallback");
    kvr_json_open(b, '[');
    for (size_t i = 0; i < rule->fallbacks_n; i++) kvr_json_str(b, rule->fallbacks[i], strlen(rule->fallbacks[i]));
    kvr_json_close(b, ']');
    if (!rule->on_overloaded) return; /* the default */
    kvr_json_key(b, "fallback_on");
    kvr_json_open(b, '[');
    if (!rule->not_on_unavailable) kvr_json_str(b, "unavailable", 11);
    kvr_json_str(b, "overloaded", 10);
    kvr_json_close(b, ']');
}

void models_file_write(const struct models_file *f, struct kvr_buf *b)
{
    kvr_json_open(b, '{');
    kvr_json_key(b, "models");
    kvr_json_open(b, '{');
    for (size_t i = 0; i < f->n; i++) {
        put_key(b, f->rules[i].model);
        kvr_json_open(b, '{');
        put_targets(b, &f->rules[i]);
        put_fallbacks(b, &f->rules[i]);
        model_options_write(&f->rules[i].options, b);
        kvr_json_close(b, '}');
    }
    kvr_json_close(b, '}');
    kvr_json_close(b, '}');
}
