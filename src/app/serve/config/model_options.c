/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/model_options.h says what this is. */
#include "app/serve/config/model_options.h"

#include <string.h>
#include <kvroute/router.h>

#include "app/serve/common/options.h"
#include "base/base.h"
#include "base/buf.h"
#include "wire/yaml_map.h"

/* most 0: there is no upper limit. */
static const struct row {
    const char *name;
    double most;
    const char *allowed; /* where there is one */
    bool whole;
} rows[MODEL_OPTIONS_N] = {
    [MODEL_ROUTER_MODE] = {"router-mode", 0, NULL, false},
    [MODEL_OVERLAP_CREDIT] = {"router-kv-overlap-score-credit", 0, NULL, false},
    [MODEL_PREFILL_LOAD_SCALE] = {"router-prefill-load-scale", 0, NULL, false},
    [MODEL_SHARED_MULTIPLIER] = {"shared-cache-multiplier", 1, "a number from 0 to 1 is expected", false},
    [MODEL_TEMPERATURE] = {"router-temperature", 0, NULL, false},
    [MODEL_QUEUE_TIMEOUT] = {"queue-timeout", TIMEOUT_MAX_S, "a number from 0 to 864000 is expected", false},
    [MODEL_FIRST_TOKEN_TIMEOUT] = {"first-token-timeout", TIMEOUT_MAX_S, "a number from 0 to 864000 is expected", false},
    [MODEL_STALL_TIMEOUT] = {"stall-timeout", TIMEOUT_MAX_S, "a number from 0 to 864000 is expected", false},
    [MODEL_TOTAL_TIMEOUT] = {"total-timeout", TIMEOUT_MAX_S, "a number from 0 to 864000 is expected", false},
    [MODEL_MAX_RETRIES] = {"max-retries", RETRIES_MAX, "a whole number from 0 to 7 is expected", true},
};

/* ---- reading ----------------------------------------------------------------------------------------- */

static int read_mode(const struct kvr_yaml *y, const char *key, const yaml_node_t *v, double *out)
{
    const char *s = kvr_yaml_text(v);
    int mode = s ? router_mode_of(s, strlen(s)) : -1;
    if (mode >= 0 && mode != KVR_MODE_DIRECT) {
        *out = mode;
        return 0;
    }
    return kvr_yaml_refuse(y, v, key, "kv, round-robin, random or least-loaded is expected");
}

static int read_number(const struct kvr_yaml *y, const struct row *row, const yaml_node_t *v, double *out)
{
    int rc = kvr_yaml_get_number(y, v, row->name, 0, out);
    if (rc || !row->allowed) return rc;
    bool good = *out <= row->most && (!row->whole || *out == (double)(int)*out);
    return good ? 0 : kvr_yaml_refuse(y, v, row->name, row->allowed);
}

static int refuse_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *at)
{
    struct kvr_buf b = {0};
    kvr_buf_str(&b, "no option that a model can have; allowed: ");
    for (size_t i = 0; i < MODEL_OPTIONS_N; i++) kvr_buf_printf(&b, "%s%s", i ? ", " : "", rows[i].name);
    kvr_buf_add(&b, "", 1);
    int rc = kvr_yaml_refuse(y, at, key, b.failed ? "out of memory" : b.data);
    kvr_buf_free(&b);
    return rc;
}

static int option_key(const struct kvr_yaml *y, const char *key, const yaml_node_t *key_node, yaml_node_t *v, void *arg)
{
    struct model_options *m = arg;
    for (size_t i = 0; i < MODEL_OPTIONS_N; i++) {
        if (strcmp(key, rows[i].name) != 0) continue;
        m->set |= 1U << i;
        return i == MODEL_ROUTER_MODE ? read_mode(y, key, v, &m->values[i]) : read_number(y, &rows[i], v, &m->values[i]);
    }
    return refuse_key(y, key, key_node);
}

int model_options_read(const struct kvr_yaml *y, const char *key, yaml_node_t *map, struct model_options *out)
{
    out->line = map->start_mark.line + 1;
    return kvr_yaml_each_key(y, map, key, option_key, out);
}

/* ---- use --------------------------------------------------------------------------------------------- */

void model_options_write(const struct model_options *m, struct kvr_buf *b)
{
    if (!m->set) return;
    kvr_json_printf(b, "'options':{");
    for (size_t i = 0; i < MODEL_OPTIONS_N; i++) {
        if (!model_option_is_set(m, (enum model_option)i)) continue;
        if (i == MODEL_ROUTER_MODE) {
            kvr_json_put_str(b, rows[i].name, router_mode_name((int)m->values[i]));
            continue;
        }
        kvr_json_key(b, rows[i].name);
        kvr_buf_printf(b, "%.17g", m->values[i]);
        b->comma = true;
    }
    kvr_json_close(b, '}');
}

void model_options_add(struct model_options *m, const struct model_options *over)
{
    for (size_t i = 0; i < MODEL_OPTIONS_N; i++)
        if (model_option_is_set(over, (enum model_option)i)) m->values[i] = over->values[i];
    m->set |= over->set;
}

struct kvr_override model_options_override(const struct model_options *m)
{
    static const unsigned bits[MODEL_OPTIONS_N] = {[MODEL_OVERLAP_CREDIT] = KVR_OVERRIDE_OVERLAP_CREDIT,
                                                   [MODEL_PREFILL_LOAD_SCALE] = KVR_OVERRIDE_PREFILL_LOAD_SCALE,
                                                   [MODEL_SHARED_MULTIPLIER] = KVR_OVERRIDE_SHARED_MULTIPLIER,
                                                   [MODEL_TEMPERATURE] = KVR_OVERRIDE_TEMPERATURE};
    struct kvr_override o = {.overlap_credit = m->values[MODEL_OVERLAP_CREDIT],
                             .prefill_load_scale = m->values[MODEL_PREFILL_LOAD_SCALE],
                             .shared_multiplier = m->values[MODEL_SHARED_MULTIPLIER],
                             .temperature = m->values[MODEL_TEMPERATURE]};
    for (size_t i = 0; i < MODEL_OPTIONS_N; i++)
        if (model_option_is_set(m, (enum model_option)i)) o.set |= bits[i];
    return o;
}
