/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of the Kubernetes API (wire/kube.h). What is taken into paths, URLs and entries of workers is checked here: names have no other
 * characters than those of the API, addresses are addresses. */
#include "wire/kube.h"

#include <arpa/inet.h>

/* ---- what is around objects ------------------------------------------------------------------------------------------ */

static bool copy_version(struct kvr_json object, char *out, size_t cap)
{
    return kvr_json_copy_name(kvr_json_get(kvr_json_get(object, "metadata"), "resourceVersion"), out, cap);
}

bool kvr_kube_event_read(struct kvr_json line, struct kvr_kube_event *out)
{
    static const struct {
        const char *name;
        enum kvr_kube_event_kind kind;
    } kinds[] = {{"ADDED", KVR_KUBE_IS},
                 {"MODIFIED", KVR_KUBE_IS},
                 {"DELETED", KVR_KUBE_GONE},
                 {"BOOKMARK", KVR_KUBE_BOOKMARK},
                 {"ERROR", KVR_KUBE_ERROR}};
    struct kvr_json type = kvr_json_get(line, "type");
    out->object = kvr_json_get(line, "object");
    if (kvr_json_type_of(out->object) != KVR_JSON_OBJECT) return false;
    bool versioned = copy_version(out->object, out->version, sizeof out->version) && out->version[0];
    for (size_t i = 0; i < KVR_ARRAY_LEN(kinds); i++) {
        if (!kvr_json_is_str(type, kinds[i].name)) continue;
        out->kind = kinds[i].kind;
        return versioned || out->kind == KVR_KUBE_ERROR;
    }
    return false;
}

bool kvr_kube_page_read(struct kvr_json root, struct kvr_kube_page *out)
{
    struct kvr_json more = kvr_json_get(kvr_json_get(root, "metadata"), "continue");
    out->items = kvr_json_get(root, "items");
    out->more[0] = 0;
    if (kvr_json_is_given(out->items) && kvr_json_type_of(out->items) != KVR_JSON_ARRAY) return false;
    if (kvr_json_is_given(more) && !kvr_json_copy_name(more, out->more, sizeof out->more)) return false;
    return copy_version(root, out->version, sizeof out->version) && out->version[0];
}

void kvr_kube_status_read(struct kvr_json root, struct kvr_kube_status *out)
{
    const char *text;
    size_t len;
    *out = (struct kvr_kube_status){.code = 0};
    (void)kvr_json_as_u64(kvr_json_get(root, "code"), &out->code);
    if (kvr_json_as_str(kvr_json_get(root, "message"), &text, &len))
        snprintf(out->message, sizeof out->message, "%.*s", (int)KVR_MIN(len, sizeof out->message - 1), text);
}

/* ---- names and the like ---------------------------------------------------------------------------------------------- */

static bool is_alnum(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool has_only(const char *text, size_t len, const char *more)
{
    for (size_t i = 0; i < len; i++)
        if (!is_alnum(text[i]) && (!text[i] || !strchr(more, text[i]))) return false;
    return true;
}

bool kvr_kube_name_ok(const char *text)
{
    size_t len = strlen(text);
    return len > 0 && len < KVR_KUBE_NAME_MAX && has_only(text, len, "-.") && is_alnum(text[0]);
}

static bool label_ok(const char *key, size_t key_len, const char *value, size_t len)
{
    return key_len > 0 && key_len <= 317 && len <= 63 && has_only(key, key_len, "-._/") && has_only(value, len, "-._");
}

bool kvr_kube_selector_ok(const char *text)
{
    for (;; text++) {
        size_t len = strcspn(text, ","), key = strcspn(text, "=,");
        if (key == len || !label_ok(text, key, text + key + 1, len - key - 1)) return false;
        text += len;
        if (!*text) return true;
    }
}

void kvr_kube_put_query(struct kvr_buf *out, const char *value)
{
    for (; *value; value++) {
        if (has_only(value, 1, "-._~")) kvr_buf_add(out, value, 1);
        else kvr_buf_printf(out, "%%%02X", (unsigned char)*value);
    }
}

static bool add_port(struct kvr_kube_ports *p, uint64_t port)
{
    if (port == 0 || port > 65535 || p->n == KVR_KUBE_PORTS_MAX) return false;
    for (size_t i = 0; i < p->n; i++)
        if (p->list[i] == port) return false;
    p->list[p->n++] = (uint16_t)port;
    return true;
}

bool kvr_kube_ports_parse(const char *text, size_t len, struct kvr_kube_ports *out)
{
    struct kvr_kube_ports p = {.n = 0};
    for (size_t at = 0;; at++) {
        const char *comma = memchr(text + at, ',', len - at);
        size_t end = comma ? (size_t)(comma - text) : len, from = at, to = end;
        uint64_t port;
        while (from < to && text[from] == ' ') from++;
        while (to > from && text[to - 1] == ' ') to--;
        if (!kvr_parse_u64(text + from, to - from, 65535, &port) || !add_port(&p, port)) return false;
        if (!comma) break;
        at = end;
    }
    *out = p;
    return true;
}

/* Returns: false: it cannot be used; out is "" then. */
static bool copy_object_name(struct kvr_json metadata, char *out)
{
    if (kvr_json_copy_name(kvr_json_get(metadata, "name"), out, KVR_KUBE_NAME_MAX) && kvr_kube_name_ok(out)) return true;
    out[0] = 0;
    return false;
}

/* Likewise. */
static bool copy_uid(struct kvr_json metadata, char *out)
{
    if (kvr_json_copy_name(kvr_json_get(metadata, "uid"), out, KVR_KUBE_UID_MAX) && out[0] && has_only(out, strlen(out), "-")) return true;
    out[0] = 0;
    return false;
}

/* Returns: false: it is none, or an IPv6 one with a zone. */
static bool copy_address(struct kvr_json v, char *out, bool *v6)
{
    unsigned char bytes[16];
    if (!kvr_json_copy_name(v, out, KVR_KUBE_ADDRESS_MAX)) return false;
    *v6 = strchr(out, ':') != NULL;
    if (inet_pton(*v6 ? AF_INET6 : AF_INET, out, bytes) == 1) return true;
    out[0] = 0;
    return false;
}

/* ---- pods ------------------------------------------------------------------------------------------------------------ */

static void read_role(struct kvr_json labels, struct kvr_kube_pod *out)
{
    static const char *const roles[][2] = {{"prefill", "prefill"}, {"decode", "decode"}, {"both", "both"}, {"prefill-decode", "both"}};
    struct kvr_json role = kvr_json_get(labels, "llm-d.ai/role");
    for (size_t i = 0; i < KVR_ARRAY_LEN(roles); i++)
        if (kvr_json_is_str(role, roles[i][0])) snprintf(out->role, sizeof out->role, "%s", roles[i][1]);
}

static const char *read_annotations(struct kvr_json notes, struct kvr_kube_pod *out)
{
    struct kvr_json active = kvr_json_get(notes, "inference.networking.k8s.io/active-ports"),
                    worker = kvr_json_get(notes, "kvroute.io/worker");
    const char *text;
    size_t len;
    out->has_active = kvr_json_is_given(active);
    if (out->has_active && (!kvr_json_as_str(active, &text, &len) || (len && !kvr_kube_ports_parse(text, len, &out->active))))
        return "its annotation inference.networking.k8s.io/active-ports is no list of ports";
    if (kvr_json_is_given(worker) && !kvr_json_copy_name(worker, out->worker, sizeof out->worker))
        return "its annotation kvroute.io/worker is longer than 2,047 characters";
    return NULL;
}

const char *kvr_kube_pod_read(struct kvr_json object, struct kvr_kube_pod *out)
{
    struct kvr_json metadata = kvr_json_get(object, "metadata"), status = kvr_json_get(object, "status"),
                    phase = kvr_json_get(status, "phase"), address = kvr_json_get(status, "podIP");
    bool v6;
    memset(out, 0, sizeof *out);
    if (!copy_object_name(metadata, out->name)) return "it has no name";
    if (!copy_uid(metadata, out->uid)) return "it has no uid";
    if (kvr_json_is_given(address) && !kvr_json_is_str(address, "") && !copy_address(address, out->address, &v6))
        return "its podIP is no address";
    for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(status, "conditions")); kvr_json_next(&i);)
        if (kvr_json_is_str(kvr_json_get(i.value, "type"), "Ready")) out->ready = kvr_json_is_str(kvr_json_get(i.value, "status"), "True");
    out->over = kvr_json_is_str(phase, "Succeeded") || kvr_json_is_str(phase, "Failed");
    if (out->over || kvr_json_has(metadata, "deletionTimestamp")) out->ready = false;
    read_role(kvr_json_get(metadata, "labels"), out);
    return read_annotations(kvr_json_get(metadata, "annotations"), out);
}

/* ---- pools ----------------------------------------------------------------------------------------------------------- */

static bool read_labels(struct kvr_json labels, char out[KVR_KUBE_SELECTOR_MAX])
{
    const char *text;
    size_t len, at = 0;
    if (kvr_json_type_of(labels) != KVR_JSON_OBJECT) return false;
    for (struct kvr_json_iter i = kvr_json_iter(labels); kvr_json_next(&i);) {
        if (!kvr_json_as_str(i.value, &text, &len) || !label_ok(i.key, i.key_len, text, len)) return false;
        int n = snprintf(out + at, KVR_KUBE_SELECTOR_MAX - at, "%s%.*s=%.*s", at ? "," : "", (int)i.key_len, i.key, (int)len, text);
        if (n < 0 || (size_t)n >= KVR_KUBE_SELECTOR_MAX - at) return false;
        at += (size_t)n;
    }
    return at > 0;
}

static bool read_target_ports(struct kvr_json ports, struct kvr_kube_ports *out)
{
    uint64_t port;
    if (kvr_json_type_of(ports) != KVR_JSON_ARRAY) return false;
    for (struct kvr_json_iter i = kvr_json_iter(ports); kvr_json_next(&i);)
        if (!kvr_json_as_u64(kvr_json_get(i.value, "number"), &port) || !add_port(out, port)) return false;
    return out->n > 0;
}

const char *kvr_kube_pool_read(struct kvr_json object, struct kvr_kube_pool *out)
{
    struct kvr_json spec = kvr_json_get(object, "spec"), labels = kvr_json_get(kvr_json_get(spec, "selector"), "matchLabels"),
                    ports = kvr_json_get(spec, "targetPorts"), protocol = kvr_json_get(spec, "appProtocol");
    memset(out, 0, sizeof *out);
    if (kvr_json_is_given(protocol) && !kvr_json_is_str(protocol, "http"))
        return "its appProtocol is not http: workers are spoken to by HTTP/1.1 alone";
    if (!read_labels(labels, out->selector)) return "its spec.selector.matchLabels is missing, or has what is no label";
    if (!read_target_ports(ports, &out->ports)) return "its spec.targetPorts are not one to eight ports, each of them once";
    return NULL;
}

/* ---- slices ---------------------------------------------------------------------------------------------------------- */

static void add_endpoint(struct kvr_kube_slice *s, struct kvr_json e)
{
    bool ready = true, v6; /* not said: ready */
    (void)kvr_json_as_bool(kvr_json_get(kvr_json_get(e, "conditions"), "ready"), &ready);
    if (!ready || s->n == KVR_KUBE_SLICE_MAX) return;
    s->n += copy_address(kvr_json_at(kvr_json_get(e, "addresses"), 0), s->addresses[s->n], &v6) && v6 == s->v6;
}

const char *kvr_kube_slice_read(struct kvr_json object, struct kvr_kube_slice *out)
{
    struct kvr_json family = kvr_json_get(object, "addressType");
    memset(out, 0, sizeof *out);
    if (!copy_object_name(kvr_json_get(object, "metadata"), out->name)) return "it has no name";
    out->v6 = kvr_json_is_str(family, "IPv6");
    if (!out->v6 && !kvr_json_is_str(family, "IPv4")) return "its addressType is neither IPv4 nor IPv6";
    for (struct kvr_json_iter i = kvr_json_iter(kvr_json_get(object, "endpoints")); kvr_json_next(&i);) add_endpoint(out, i.value);
    return NULL;
}
