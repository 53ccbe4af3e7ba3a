/* SPDX-License-Identifier: Apache-2.0 */
/*
 * EndpointSlices of a service -> routers that are followed (discovery/kube_peers.h). A service has one slice or several; what they have
 * together is what there is, made anew when one of them changes.
 */
#include "app/serve/discovery/kube_peers.h"

#include <string.h>

#include "app/serve/peers/replicas.h"
#include "base/log.h"

enum { SLICES_MAX = 64, FOLLOWED_MAX = 64, ENDPOINT_LEN = 64 };

struct slice {
    struct slice *next;
    bool listed; /* in the list that is under way */
    struct kvr_kube_slice is;
};

struct kube_peers {
    struct peers *peers;
    uint16_t port;
    struct kvr_kube_watch *watch;
    struct slice *slices;
    size_t slices_n;
    char followed[FOLLOWED_MAX][ENDPOINT_LEN];
    size_t followed_n;
};

/* ---- what is followed ------------------------------------------------------------------------------------------------ */

/* An address of this machine, or of this pod. */
static bool is_own(const char *address)
{
    uv_interface_address_t *list;
    int n;
    bool own = false;
    if (uv_interface_addresses(&list, &n)) return false;
    for (int i = 0; i < n && !own; i++) {
        char text[INET6_ADDRSTRLEN] = "";
        if (list[i].address.address4.sin_family == AF_INET6) uv_ip6_name(&list[i].address.address6, text, sizeof text);
        else uv_ip4_name(&list[i].address.address4, text, sizeof text);
        own = strcmp(text, address) == 0;
    }
    uv_free_interface_addresses(list, n);
    return own;
}

static bool holds(char (*list)[ENDPOINT_LEN], size_t n, const char *endpoint)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], endpoint) == 0) return true;
    return false;
}

static size_t wanted(const struct kube_peers *p, char (*out)[ENDPOINT_LEN])
{
    bool v6 = true;
    size_t n = 0;
    for (const struct slice *s = p->slices; s; s = s->next)
        if (!s->is.v6 && s->is.n) v6 = false;
    for (const struct slice *s = p->slices; s; s = s->next)
        for (size_t i = 0; s->is.v6 == v6 && i < s->is.n && n < FOLLOWED_MAX; i++) {
            if (is_own(s->is.addresses[i])) continue;
            snprintf(out[n], ENDPOINT_LEN, v6 ? "tcp://[%s]:%u" : "tcp://%s:%u", s->is.addresses[i], p->port);
            n += !holds(out, n, out[n]);
        }
    return n;
}

static void follow(struct kube_peers *p, const char *endpoint)
{
    int rc = replicas_add_router(p->peers, endpoint);
    if (rc == 0) {
        snprintf(p->followed[p->followed_n++], ENDPOINT_LEN, "%s", endpoint);
        kvr_log("kvroute: kubernetes: router %s is followed", endpoint);
    } else if (rc != -KVR_EEXISTS) {
        kvr_log_warning_of(kvr_log_key(0, 0, "peer"), "kvroute: kubernetes: router %s is not followed: %s", endpoint,
                           rc == -KVR_ELIMIT ? "there are too many" : kvr_strerror(rc));
    }
}

/* First those that have gone: there is room for others then. */
static void follow_wanted(struct kube_peers *p)
{
    char want[FOLLOWED_MAX][ENDPOINT_LEN];
    size_t n = wanted(p, want);
    for (size_t i = p->followed_n; i-- > 0;) {
        if (holds(want, n, p->followed[i])) continue;
        (void)replicas_remove_router(p->peers, p->followed[i]);
        kvr_log("kvroute: kubernetes: router %s is not followed any more", p->followed[i]);
        memmove(p->followed[i], p->followed[--p->followed_n], ENDPOINT_LEN);
    }
    for (size_t i = 0; i < n && p->followed_n < FOLLOWED_MAX; i++)
        if (!holds(p->followed, p->followed_n, want[i])) follow(p, want[i]);
}

/* ---- slices ---------------------------------------------------------------------------------------------------------- */

static struct slice **place_of(struct kube_peers *p, const char *name)
{
    struct slice **at = &p->slices;
    while (*at && strcmp((*at)->is.name, name) != 0) at = &(*at)->next;
    return at;
}

static void drop(struct kube_peers *p, struct slice **at)
{
    struct slice *s = *at;
    if (!s) return;
    *at = s->next;
    p->slices_n--;
    free(s);
}

static void on_begin(void *ctx)
{
    struct kube_peers *p = ctx;
    for (struct slice *s = p->slices; s; s = s->next) s->listed = false;
}

static void on_object(void *ctx, struct kvr_json object, enum kvr_kube_told told)
{
    struct kube_peers *p = ctx;
    struct kvr_kube_slice is;
    const char *wrong = kvr_kube_slice_read(object, &is);
    bool gone = told == KVR_KUBE_DELETED;
    struct slice **at = place_of(p, is.name);
    if (wrong && is.name[0]) kvr_log_debug("kvroute: kubernetes: endpointslice %s: %s", is.name, wrong);
    if (gone || wrong) drop(p, at);
    else if (!*at && p->slices_n < SLICES_MAX && (*at = calloc(1, sizeof **at))) p->slices_n++;
    if (!gone && !wrong && *at) {
        (*at)->is = is;
        (*at)->listed = true;
    }
    follow_wanted(p);
}

static void on_whole(void *ctx)
{
    struct kube_peers *p = ctx;
    for (struct slice **at = &p->slices; *at;) {
        if ((*at)->listed) at = &(*at)->next;
        else drop(p, at);
    }
    follow_wanted(p);
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

struct kube_peers *kube_peers_start(const struct kube_peers_config *config)
{
    static const struct kvr_kube_handler handler = {on_begin, on_object, on_whole};
    char path[2 * KVR_KUBE_NAME_MAX], selector[KVR_KUBE_NAME_MAX + 32];
    struct kube_peers *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->peers = config->peers;
    p->port = config->port;
    snprintf(path, sizeof path, "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices", config->space);
    snprintf(selector, sizeof selector, "kubernetes.io/service-name=%s", config->service);
    p->watch = kvr_kube_watch_start(
        config->kube, &(const struct kvr_kube_watch_config){.path = path, .label_selector = selector, .handler = &handler, .ctx = p});
    if (p->watch) return p;
    free(p);
    return NULL;
}

void kube_peers_stop(struct kube_peers *p)
{
    if (!p) return;
    kvr_kube_watch_stop(p->watch);
    while (p->slices) drop(p, &p->slices);
    free(p);
}

const struct kvr_kube_watch *kube_peers_watch(const struct kube_peers *p)
{
    return p ? p->watch : NULL;
}
