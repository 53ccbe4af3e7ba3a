/* SPDX-License-Identifier: Apache-2.0 */
/* LoRA adapters by name: that of --lora-name, and with --runtime-lora those that requests load and unload, worded as vLLM 0.32 and SGLang
 * do. */
#include "app/mock/state.h"

#include <string.h>

#include "base/base.h"

const char *mock_adapter(const struct mock *m, const char *name, size_t len)
{
    for (size_t i = 0; i < m->adapters_n; i++)
        if (kvr_span_is(name, len, m->adapters[i])) return m->adapters[i];
    return NULL;
}

static bool add(struct mock *m, const char *name)
{
    if (m->adapters_n == MOCK_ADAPTERS_MAX) return false;
    memcpy(m->adapters[m->adapters_n++], name, strlen(name) + 1);
    return true;
}

bool mock_adapters_start(struct mock *m)
{
    return !m->o->lora || (strlen(m->o->lora) < MOCK_ADAPTER_NAME_MAX && add(m, m->o->lora));
}

static void refuse(const struct mock *m, struct kvr_http_conn *c, int status, const char *before, const char *name, const char *after)
{
    char text[320];
    snprintf(text, sizeof text, "%s%s%s", before, name, after);
    mock_reply_error(c, m->o->sglang_info ? 400 : status, text);
}

static void tell(const struct mock *m, struct kvr_http_conn *c, const char *done, const char *name)
{
    char text[256];
    int n = m->o->sglang_info ? snprintf(text, sizeof text, "{\"success\":true,\"error_message\":\"\"}")
                              : snprintf(text, sizeof text, "Success: LoRA adapter '%s' %s successfully.", name, done);
    kvr_http_reply(c, 200, m->o->sglang_info ? "application/json" : NULL, NULL, text, (size_t)n);
}

static bool read_names(struct mock *m, struct kvr_http_conn *c, char name[MOCK_ADAPTER_NAME_MAX], bool *has_path)
{
    const struct kvr_http_request *rq = kvr_http_conn_request(c);
    struct kvr_json o;
    const char *path;
    size_t n = 0;
    bool ok = kvr_json_parse(m->json, rq->body ? rq->body : "", rq->body_len, &o, NULL) == 0 &&
              kvr_json_copy_name(kvr_json_get(o, "lora_name"), name, MOCK_ADAPTER_NAME_MAX) && name[0];
    *has_path = ok && kvr_json_as_str(kvr_json_get(o, "lora_path"), &path, &n) && n;
    return ok;
}

void mock_load_adapter(struct mock *m, struct kvr_http_conn *c)
{
    char name[MOCK_ADAPTER_NAME_MAX];
    bool has_path;
    if (!read_names(m, c, name, &has_path) || !has_path) refuse(m, c, 400, "Both 'lora_name' and 'lora_path' must be provided.", "", "");
    else if (mock_adapter(m, name, strlen(name)))
        refuse(m, c, 400, "The lora adapter '", name,
               "' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.");
    else if (!add(m, name)) refuse(m, c, 500, "there is no room for the lora adapter '", name, "'");
    else tell(m, c, "added", name);
}

void mock_unload_adapter(struct mock *m, struct kvr_http_conn *c)
{
    char name[MOCK_ADAPTER_NAME_MAX];
    bool ignored;
    if (!read_names(m, c, name, &ignored)) {
        refuse(m, c, 400, "'lora_name' needs to be provided to unload a LoRA adapter.", "", "");
        return;
    }
    size_t at = 0;
    while (at < m->adapters_n && strcmp(m->adapters[at], name) != 0) at++;
    if (at == m->adapters_n) {
        refuse(m, c, 404, "The lora adapter '", name, "' cannot be found.");
        return;
    }
    m->adapters_n--;
    memmove(m->adapters[at], m->adapters[at + 1], (m->adapters_n - at) * sizeof m->adapters[0]);
    tell(m, c, "removed", name);
}
