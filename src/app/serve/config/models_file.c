/* SPDX-License-Identifier: Apache-2.0 */
/* Reads names of models from YAML, and draws among their targets: models_file.h. */
#include "app/serve/config/models_file.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "wire/yaml_map.h"

static const double WEIGHT_MAX = 1e6;

/* ---- one model --------------------------------------------------------------------------------------- */

static int read_model(const struct kvr_yaml *y, const yaml_node_t *n, const char *key, char *out)
{
    if (kvr_yaml_get_text(y, n, key, out, MODEL_MAX)) return -1;
    if (n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && (!strcmp(out, "null") || !strcmp(out, "~")))
        return kvr_yaml_refuse(y, n, key, "the name of a model is expected; one that is null has quotes");
    for (const char *c = out; *c; c++)
        if ((unsigned char)*c < 0x21 || (unsigned char)*c > 0x7e) /* it goes into a header */
            return kvr_yaml_refuse(y, n, key, "a name of printable ASCII without spaces is expected");
    return 0;
}

static int target_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct model_target *t = arg;
    if (!strcmp(key, "model")) return read_model(y, v, key, t->model);
    if (strcmp(key, "weight") != 0) return kvr_yaml_refuse(y, key_node, key, "unknown key of a target; allowed: model, weight");
    int rc = kvr_yaml_get_number(y, v, key, 0, &t->weight);
    return rc == 0 && t->weight > WEIGHT_MAX ? kvr_yaml_refuse(y, v, key, "a number from 0 to 1000000 is expected") : rc;
}

static int target_item(const struct kvr_yaml *y, yaml_node_t *n, void *arg)
{
    struct model_rule *rule = arg;
    struct model_target t = {"", -1};
    if (rule->targets_n == MODEL_TARGETS_MAX) return kvr_yaml_refuse(y, n, "targets", "at most 16 targets");
    if (kvr_yaml_each_key(y, n, "targets", target_key, &t)) return -1;
    if (!t.model[0] || t.weight < 0) return kvr_yaml_refuse(y, n, "targets", "each target needs model and weight");
    for (size_t i = 0; i < rule->targets_n; i++)
        if (!strcmp(rule->targets[i].model, t.model)) return kvr_yaml_refuse(y, n, t.model, "the target occurs twice");
    rule->targets[rule->targets_n++] = t;
    return 0;
}

static int read_targets(const struct kvr_yaml *y, const char *key, yaml_node_t *v, struct model_rule *rule)
{
    double sum = 0;
    if (rule->targets_n) return kvr_yaml_refuse(y, v, key, "alias_of and targets exclude each other");
    if (kvr_yaml_each_item(y, v, key, target_item, rule)) return -1;
    for (size_t i = 0; i < rule->targets_n; i++) sum += rule->targets[i].weight;
    return sum > 0 ? 0 : kvr_yaml_refuse(y, v, key, "a target with a weight above 0 is expected");
}

static int read_alias(const struct kvr_yaml *y, const char *key, const yaml_node_t *v, struct model_rule *rule)
{
    if (rule->targets_n) return kvr_yaml_refuse(y, v, key, "alias_of and targets exclude each other");
    rule->targets[0].weight = 1;
    rule->targets_n = 1;
    rule->is_alias = true;
    return read_model(y, v, key, rule->targets[0].model);
}

static int fallback_item(const struct kvr_yaml *y, yaml_node_t *n, void *arg)
{
    struct model_rule *rule = arg;
    char *out = rule->fallbacks[rule->fallbacks_n];
    if (rule->fallbacks_n == MODEL_FALLBACKS_MAX) return kvr_yaml_refuse(y, n, "fallback", "at most 8 models");
    if (read_model(y, n, "fallback", out)) return -1;
    for (size_t i = 0; i < rule->fallbacks_n; i++)
        if (!strcmp(rule->fallbacks[i], out)) return kvr_yaml_refuse(y, n, out, "the fallback occurs twice");
    rule->fallbacks_n++;
    return 0;
}

/* What a fallback is taken for. */
struct causes {
    bool unavailable, overloaded;
};

static int cause_item(const struct kvr_yaml *y, yaml_node_t *n, void *arg)
{
    struct causes *c = arg;
    const char *s = kvr_yaml_text(n);
    bool *cause = s && !strcmp(s, "unavailable") ? &c->unavailable : s && !strcmp(s, "overloaded") ? &c->overloaded : NULL;
    if (!cause) return kvr_yaml_refuse(y, n, "fallback_on", "allowed: unavailable, overloaded");
    *cause = true;
    return 0;
}

static int read_causes(const struct kvr_yaml *y, const char *key, yaml_node_t *v, struct model_rule *rule)
{
    struct causes c = {0};
    if (kvr_yaml_each_item(y, v, key, cause_item, &c)) return -1;
    if (!c.unavailable && !c.overloaded) return kvr_yaml_refuse(y, v, key, "one of unavailable, overloaded is expected, or both");
    rule->not_on_unavailable = !c.unavailable;
    rule->on_overloaded = c.overloaded;
    return 0;
}

static int rule_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct model_rule *rule = arg;
    if (!strcmp(key, "alias_of")) return read_alias(y, key, v, rule);
    if (!strcmp(key, "targets")) return read_targets(y, key, v, rule);
    if (!strcmp(key, "fallback")) return kvr_yaml_each_item(y, v, key, fallback_item, rule);
    if (!strcmp(key, "fallback_on")) return read_causes(y, key, v, rule);
    if (!strcmp(key, "options")) return model_options_read(y, key, v, &rule->options);
    return kvr_yaml_refuse(y, key_node, key, "unknown key of a model; allowed: alias_of, targets, fallback, fallback_on, options");
}

/* ---- the document ------------------------------------------------------------------------------------ */

static int model_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct models_file *out = arg;
    if (out->n == MODEL_RULES_MAX) return kvr_yaml_refuse(y, key_node, "models", "at most 1024 models");
    struct model_rule *grown = realloc(out->rules, (out->n + 1) * sizeof *grown);
    if (!grown) return kvr_yaml_refuse(y, key_node, key, "out of memory");
    out->rules = grown;
    struct model_rule *rule = memset(&grown[out->n], 0, sizeof *grown);
    if (read_model(y, key_node, "models", rule->model)) return -1;
    out->n++;
    if (kvr_yaml_each_key(y, v, key, rule_key, rule)) return -1;
    if (!rule->fallbacks_n && (rule->not_on_unavailable || rule->on_overloaded))
        return kvr_yaml_refuse(y, v, key, "fallback_on needs fallback");
    return 0;
}

static int root_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    if (!strcmp(key, "models")) return kvr_yaml_each_key(y, v, key, model_key, arg);
    return kvr_yaml_refuse(y, key_node, key, "unknown key; allowed: models");
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct model_rule *)a)->model, ((const struct model_rule *)b)->model);
}

/* Steps that a rule may take, from what is known of its targets. */
static unsigned steps_of(const struct models_file *f, const struct model_rule *rule, const unsigned char *steps)
{
    unsigned most = 0;
    for (size_t i = 0; i < rule->targets_n; i++) {
        const struct model_rule *to = models_file_find(f, rule->targets[i].model);
        if (to != rule) most = KVR_MAX(most, 1U + (to ? steps[to - f->rules] : 0U));
    }
    return most;
}

/* Each round knows chains that are longer by one; in a circle they never end. The line is the document's: a name may be used before it is
 * written. */
static int check_chains(const struct kvr_yaml *y, const yaml_node_t *at, const struct models_file *f)
{
    unsigned char steps[MODEL_RULES_MAX] = {0};
    for (int round = 0; round <= MODEL_STEPS_MAX; round++)
        for (size_t i = 0; i < f->n; i++) {
            steps[i] = (unsigned char)steps_of(f, &f->rules[i], steps);
            if (steps[i] > MODEL_STEPS_MAX)
                return kvr_yaml_refuse(y, at, f->rules[i].model, "its targets lead in a circle, or over more than 8 steps");
        }
    return 0;
}

static int read_document(const struct kvr_yaml *y, yaml_node_t *root, void *arg)
{
    struct models_file *out = arg;
    if (!root) return kvr_yaml_refuse_line(y, 1, "models", "the file is empty; the key is expected");
    if (kvr_yaml_each_key(y, root, "models", root_key, out)) return -1;
    if (out->n) qsort(out->rules, out->n, sizeof *out->rules, by_name);
    return check_chains(y, root, out);
}

int models_file_read(const struct kvr_yaml_source *from, struct models_file *out, char *err, size_t cap)
{
    memset(out, 0, sizeof *out);
    int rc = kvr_yaml_read(from, read_document, out, err, cap);
    if (rc) models_file_free(out);
    return rc;
}

void models_file_free(struct models_file *f)
{
    free(f->rules);
    *f = (struct models_file){0};
}

/* ---- look-up and draw -------------------------------------------------------------------------------- */

static int against_name(const void *key, const void *rule)
{
    return strcmp(key, ((const struct model_rule *)rule)->model);
}

const struct model_rule *models_file_find(const struct models_file *f, const char *model)
{
    return f->n ? bsearch(model, f->rules, f->n, sizeof *f->rules, against_name) : NULL;
}

/* FNV-1a: the same in every process. Who picks a session so that it meets a certain target has only picked that target. */
static uint64_t hash_on(uint64_t h, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    for (size_t i = 0; i < len; i++) h = (h ^ p[i]) * 0x100000001b3ULL;
    return h;
}

static double between_0_and_1(uint64_t h)
{
    return ((double)(kvr_mix64(h) >> 11) + 0.5) / 9007199254740992.0; /* 2^53 */
}

static const char *draw(const struct model_rule *rule, const void *session, size_t len)
{
    const char *best = rule->model;
    double most = -1;
    for (size_t i = 0; i < rule->targets_n; i++) {
        const struct model_target *t = &rule->targets[i];
        uint64_t h = hash_on(0xcbf29ce484222325ULL, t->model, strlen(t->model) + 1); /* the zero parts them */
        double score = t->weight / -log(between_0_and_1(hash_on(h, session, len)));
        if (t->weight <= 0 || score <= most) continue;
        most = score;
        best = t->model;
    }
    return best;
}

const char *models_file_resolve(const struct models_file *f, const char *model, const void *session, size_t len)
{
    for (int step = 0; step < MODEL_STEPS_MAX; step++) {
        const struct model_rule *rule = models_file_find(f, model);
        const char *to = rule && rule->targets_n ? draw(rule, session, len) : model;
        if (!strcmp(to, model)) return to;
        model = to;
    }
    return model;
}
