/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/workers/entry/worker_tls.h says what this is. */
#include "app/serve/workers/entry/worker_tls.h"

#include <stdio.h>
#include <string.h>

#include "app/serve/common/members.h"
#include "base/log.h"

static const struct {
    const char *key, *field;
    size_t at, cap;
} texts[] = {
    {"tls-ca", "tls_ca", offsetof(struct worker_tls, ca), sizeof((struct worker_tls *)0)->ca},
    {"tls-cert", "tls_cert", offsetof(struct worker_tls, cert), sizeof((struct worker_tls *)0)->cert},
    {"tls-key", "tls_key", offsetof(struct worker_tls, key), sizeof((struct worker_tls *)0)->key},
    {"tls-server-name", "tls_server_name", offsetof(struct worker_tls, name), sizeof((struct worker_tls *)0)->name},
};
static const char verify[] = "tls-verify";

static char *text_at(struct worker_tls *t, size_t i)
{
    return (char *)t + texts[i].at;
}

bool worker_tls_is_key(const char *key)
{
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts); i++)
        if (!strcmp(key, texts[i].key)) return true;
    return !strcmp(key, verify);
}

bool worker_tls_set(struct worker_tls *t, const char *key, const char *value, const char **allowed)
{
    t->given = true;
    if (!strcmp(key, verify)) {
        t->insecure = !strcmp(value, "no");
        *allowed = "yes, no";
        return t->insecure || !strcmp(value, "yes");
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts); i++) {
        if (strcmp(key, texts[i].key) != 0) continue;
        *allowed = "1 to 239 characters";
        if (!*value || strlen(value) >= texts[i].cap) return false;
        snprintf(text_at(t, i), texts[i].cap, "%s", value);
        return true;
    }
    return false;
}

const char *worker_tls_read(struct kvr_json o, struct worker_tls *t)
{
    const char *bad = NULL;
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts); i++) {
        if (kvr_json_type_of(kvr_json_get(o, texts[i].field)) == KVR_JSON_NONE) continue;
        t->given = true;
        if (!member_text(o, texts[i].field, text_at(t, i), texts[i].cap, &bad)) return bad;
    }
    struct kvr_json v = kvr_json_get(o, "tls_verify");
    bool on;
    if (!kvr_json_is_given(v)) return NULL;
    if (!kvr_json_as_bool(v, &on)) return "tls_verify";
    t->given = true;
    t->insecure = !on;
    return NULL;
}

void worker_tls_of(const struct worker *w, struct worker_tls *out)
{
    *out = (struct worker_tls){.given = w->tls != NULL};
    if (!w->tls) return;
    const struct kvr_tls_peer_config c = kvr_tls_peer_told(w->tls);
    const char *const from[] = {c.ca, c.cert, c.key, c.server_name};
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts); i++)
        if (from[i]) snprintf(text_at(out, i), texts[i].cap, "%s", from[i]);
    out->insecure = c.insecure;
}

static const char *or_null(const char *s)
{
    return *s ? s : NULL;
}

int worker_tls_apply(const struct worker_tls *t, struct worker *w, char *err, size_t cap)
{
    w->tls = NULL;
    if (!t->given) return 0;
    if (!w->endpoint.tls)
        return kvr_refuse(err, cap, "tls-ca, tls-cert, tls-key, tls-server-name and tls-verify are for https:// addresses");
    const struct kvr_tls_peer_config c = {or_null(t->ca), or_null(t->cert), or_null(t->key), or_null(t->name), t->insecure};
    w->tls = kvr_tls_peer_get(&c, err, cap);
    if (!w->tls) return -1;
    if (t->insecure)
        kvr_log_warning("kvroute: the certificate of %.300s is not checked (tls-verify=no): anybody may answer for it", w->url);
    kvr_endpoint_trust(&w->endpoint, w->tls);
    return 0;
}

void worker_tls_write(const struct worker *w, struct kvr_buf *out)
{
    struct worker_tls t;
    if (!w->tls) return;
    worker_tls_of(w, &t);
    for (size_t i = 0; i < KVR_ARRAY_LEN(texts); i++)
        if (*text_at(&t, i)) kvr_json_put_str(out, texts[i].field, text_at(&t, i));
    kvr_json_printf(out, "'tls_verify':%i", !t.insecure);
}
