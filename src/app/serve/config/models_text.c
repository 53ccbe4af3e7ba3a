/* SPDX-License-Identifier: Apache-2.0 */
/* Names of models as JSON, with the keys of the file: what models_file_read makes the same rules of. */
#include <string.h>

#include "app/serve/config/models_file.h"
#include "base/buf.h"

static void put_target(struct kvr_buf *b, const struct model_target *t)
{
    kvr_json_printf(b, "{'model':%s,'weight':", t->model);
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
    kvr_json_printf(b, "'targets':[");
    for (size_t i = 0; i < rule->targets_n; i++) put_target(b, &rule->targets[i]);
    kvr_json_close(b, ']');
}

static void put_fallbacks(struct kvr_buf *b, const struct model_rule *rule)
{
    if (!rule->fallbacks_n) return;
    kvr_json_printf(b, "'fallback':[");
    for (size_t i = 0; i < rule->fallbacks_n; i++) kvr_json_str(b, rule->fallbacks[i], strlen(rule->fallbacks[i]));
    kvr_json_close(b, ']');
    if (!rule->on_overloaded) return; /* the default */
    kvr_json_printf(b, rule->not_on_unavailable ? "'fallback_on':['overloaded']" : "'fallback_on':['unavailable','overloaded']");
}

void models_file_write(const struct models_file *f, struct kvr_buf *b)
{
    kvr_json_printf(b, "{'models':{");
    for (size_t i = 0; i < f->n; i++) {
        kvr_json_printf(b, "%s:{", f->rules[i].model);
        put_targets(b, &f->rules[i]);
        put_fallbacks(b, &f->rules[i]);
        model_options_write(&f->rules[i].options, b);
        kvr_json_close(b, '}');
    }
    kvr_json_printf(b, "}}");
}
