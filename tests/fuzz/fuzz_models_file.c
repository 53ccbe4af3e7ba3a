/* SPDX-License-Identifier: Apache-2.0 */
/* A file of models is refused with a text that names the file and a line, or every name in it is found and leads to a model that
 * stands for itself, and what is written of it is read as the same. */
#include <string.h>

#include "base/base.h"
#include "base/buf.h"
#include "app/serve/config/models_file.h"

static void use(const struct models_file *f, const struct model_rule *rule)
{
    const char *end = models_file_resolve(f, rule->model, "session", 7);
    KVR_ASSERT(models_file_find(f, rule->model) == rule);
    KVR_ASSERT(!strcmp(end, models_file_resolve(f, end, "session", 7)));
    KVR_ASSERT(rule->targets_n <= MODEL_TARGETS_MAX && rule->fallbacks_n <= MODEL_FALLBACKS_MAX);
}

static void write_and_read(const struct models_file *f)
{
    struct models_file again;
    struct kvr_buf once = {0}, twice = {0};
    char err[512];
    models_file_write(f, &once);
    KVR_ASSERT(!once.failed &&
               models_file_read(&(struct kvr_yaml_source){"again", once.data, once.len, NULL}, &again, err, sizeof err) == 0);
    models_file_write(&again, &twice);
    KVR_ASSERT(once.len == twice.len && !memcmp(once.data, twice.data, once.len));
    models_file_free(&again);
    kvr_buf_free(&once);
    kvr_buf_free(&twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct models_file f;
    char err[512] = "";
    if (size > 1 << 16) return 0;
    if (models_file_read(&(struct kvr_yaml_source){"m.yaml", data, size, NULL}, &f, err, sizeof err)) {
        KVR_ASSERT(strncmp(err, "m.yaml:", 7) == 0 && strlen(err) > 10);
        return 0;
    }
    for (size_t i = 0; i < f.n; i++) use(&f, &f.rules[i]);
    write_and_read(&f);
    models_file_free(&f);
    return 0;
}
