/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers are pods: those of an InferencePool (--kubernetes-pool), or of labels (--kubernetes-selector), at each port of the pool's
 * targetPorts (--kubernetes-ports).
 *
 *     pool --selector, ports--> pods --(pod, port)--> found_workers_tell
 *
 * A pod that is ready has a worker for each of its ports, with the port's place as {rank}: an engine with several ranks behind one port is
 * one worker, as elsewhere; with a port for each rank it is as many workers. One that was ready and is not, or is being deleted, gets
 * nothing new (state=draining): its streams and bookings run on, and its views stay until it is gone. A pod that was never ready is no
 * worker yet.
 *
 * A finding's key has the pod's uid. So another pod at the same address is another worker life: the finding of before goes, with its view,
 * before its id, which is made of the address, is given again.
 *
 * Invariants:
 * - Nobody is removed because the API server does not answer (net/kube/kube.h); a pod goes when its DELETED was heard, or a whole list is
 *   without it.
 * - A pool that changes its selector or ports has its pods listed anew: those that stay keep what was learnt of them.
 * - A pool that is gone has no workers; one that cannot be read changes nothing.
 * - An annotation says what a pod's owner may say: no files of this machine, and no keys.
 */
#include <arpa/inet.h>
#include <string.h>
#include <unistd.h>

#include "app/serve/discovery/found_workers.h"
#include "app/serve/discovery/kube_peers.h"
#include "app/serve/peers/replicas.h"
#include "base/log.h"
#include "net/kube/kube.h"
#include "wire/entry.h"
#include "wire/prom_page.h"

#define ACCOUNT "/var/run/secrets/kubernetes.io/serviceaccount/"

enum { PODS_MAX = 16384, URL_LEN = 320 };

/* A pod of the selector. */
struct known_pod {
    uint64_t name; /* a hash */
    char uid[KVR_KUBE_UID_MAX];
    bool ready, listed; /* listed: in the list that is under way */
};

struct discovery_kubernetes {
    struct discovery *room;
    struct kvr_kube *kube;
    struct kvr_kube_watch *pool_watch, *pods_watch;
    struct kube_peers *peers;
    char space[KVR_KUBE_NAME_MAX];
    struct kvr_kube_pool pool; /* selector "": there is none */
    bool pool_listed;          /* by the list that is under way */
    struct known_pod *pods;
    size_t pods_n, pods_cap;
    uint64_t unread; /* pods and pools that could not be read */
};

/* ---- pods ------------------------------------------------------------------------------------------------------------ */

static void complain(struct discovery_kubernetes *k, const char *what, const char *name, const char *why)
{
    k->unread++;
    kvr_log_warning_of(kvr_log_key(kvr_hash_bytes(name, strlen(name), 0), 0, why), "kvroute: kubernetes: %s %s: %s", what, name, why);
}

/* What only the router's own options may say. */
static bool is_refused(const char *key)
{
    return !strncmp(key, "api-key", 7) || !strncmp(key, "tls-", 4);
}

static const char *judge_annotation(const char *keys)
{
    struct kvr_entry e;
    char text[KVR_KUBE_WORKER_MAX + 8];
    const char *why = NULL;
    snprintf(text, sizeof text, "pod,%s", keys);
    if (kvr_entry_parse(text, NULL, 0, &e)) return "out of memory";
    for (size_t i = 0; i < e.n; i++)
        if (is_refused(e.parts[i].key)) why = "its annotation kvroute.io/worker names keys or files; --discovery-worker may";
    kvr_entry_free(&e);
    return why;
}

static bool is_active(const struct kvr_kube_pod *pod, uint16_t port)
{
    for (size_t i = 0; i < pod->active.n; i++)
        if (pod->active.list[i] == port) return true;
    return !pod->has_active;
}

/* Before the keys of all its findings. */
static void put_prefix(const char *name, const char *uid, char *out, size_t cap)
{
    snprintf(out, cap, "%.60s/%s/", name, uid);
}

static void tell_port(struct discovery_kubernetes *k, const struct kvr_kube_pod *pod, size_t rank)
{
    char key[DISCOVERY_KEY_MAX], host[KVR_KUBE_ADDRESS_MAX + 2];
    const struct found_place at = {
        .host = host, .port = k->pool.ports.list[rank], .pod = pod->name, .rank = rank, .role = pod->role[0] ? pod->role : NULL};
    struct kvr_buf b = {0};
    snprintf(host, sizeof host, strchr(pod->address, ':') ? "[%s]" : "%s", pod->address);
    put_prefix(pod->name, pod->uid, key, sizeof key);
    snprintf(key + strlen(key), sizeof key - strlen(key), "%s:%u", host, at.port);
    if (!pod->ready && !found_workers_knows(k->room, key)) return;
    found_place_put(k->room, &at, &b);
    if (pod->worker[0]) kvr_buf_str(&b, ",");
    found_place_put_keys(pod->worker, &at, &b);
    if (!pod->ready) kvr_buf_str(&b, ",state=draining");
    kvr_buf_add(&b, "", 1);
    if (!b.failed) found_workers_tell(k->room, key, b.data, b.len - 1);
    kvr_buf_free(&b);
}

/* Within a round. */
static void tell_pod(struct discovery_kubernetes *k, const struct kvr_kube_pod *pod)
{
    for (size_t i = 0; pod->address[0] && !pod->over && i < k->pool.ports.n; i++)
        if (is_active(pod, k->pool.ports.list[i])) tell_port(k, pod, i);
}

static struct known_pod *find_pod(struct discovery_kubernetes *k, const char *name)
{
    uint64_t hash = kvr_hash_bytes(name, strlen(name), 0);
    for (size_t i = 0; i < k->pods_n; i++)
        if (k->pods[i].name == hash) return &k->pods[i];
    return NULL;
}

static void forget_pod(struct discovery_kubernetes *k, struct known_pod *p)
{
    *p = k->pods[--k->pods_n];
}

/* NULL: there are too many. */
static struct known_pod *note_pod(struct discovery_kubernetes *k, const struct kvr_kube_pod *pod)
{
    struct known_pod *p = find_pod(k, pod->name);
    if (!p) {
        if (k->pods_n == PODS_MAX || !kvr_grow(&k->pods, &k->pods_cap, k->pods_n + 1, sizeof *k->pods)) return NULL;
        p = &k->pods[k->pods_n++];
        p->name = kvr_hash_bytes(pod->name, strlen(pod->name), 0);
    }
    snprintf(p->uid, sizeof p->uid, "%s", pod->uid);
    p->ready = pod->ready && pod->address[0];
    p->listed = true;
    return p;
}

/* A change that a watch tells: a round of the pod alone. */
static void change_pod(struct discovery_kubernetes *k, const struct kvr_kube_pod *pod, bool gone)
{
    char prefix[DISCOVERY_KEY_MAX];
    struct known_pod *p = find_pod(k, pod->name);
    if (p && (gone || strcmp(p->uid, pod->uid) != 0)) {
        found_workers_round_begins(k->room);
        put_prefix(pod->name, p->uid, prefix, sizeof prefix);
        found_workers_round_ends_of(k->room, prefix);
        forget_pod(k, p);
    }
    if (gone) return;
    found_workers_round_begins(k->room);
    if (note_pod(k, pod)) tell_pod(k, pod);
    put_prefix(pod->name, pod->uid, prefix, sizeof prefix);
    found_workers_round_ends_of(k->room, prefix);
}

static void on_pods(void *ctx)
{
    struct discovery_kubernetes *k = ctx;
    for (size_t i = 0; i < k->pods_n; i++) k->pods[i].listed = false;
    found_workers_round_begins(k->room);
}

static void on_pod(void *ctx, struct kvr_json object, enum kvr_kube_told told)
{
    struct discovery_kubernetes *k = ctx;
    struct kvr_kube_pod pod;
    const char *wrong = kvr_kube_pod_read(object, &pod);
    if (!wrong) wrong = judge_annotation(pod.worker);
    if (wrong) { /* it gets nothing new */
        pod.ready = pod.has_active = false;
        pod.worker[0] = 0;
    }
    if (wrong && told != KVR_KUBE_DELETED) complain(k, "pod", pod.name[0] ? pod.name : "?", wrong);
    if (!pod.name[0] || !pod.uid[0]) return;
    if (told != KVR_KUBE_LISTED) change_pod(k, &pod, told == KVR_KUBE_DELETED);
    else if (note_pod(k, &pod)) tell_pod(k, &pod);
}

static size_t ready_pods(const struct discovery_kubernetes *k)
{
    size_t n = 0;
    for (size_t i = 0; i < k->pods_n; i++) n += k->pods[i].ready;
    return n;
}

static void on_all_pods(void *ctx)
{
    struct discovery_kubernetes *k = ctx;
    for (size_t i = k->pods_n; i-- > 0;)
        if (!k->pods[i].listed) forget_pod(k, &k->pods[i]);
    found_workers_round_ends(k->room, true);
    kvr_log("kvroute: kubernetes: %zu pods with %s in namespace %s, %zu of them ready", k->pods_n, k->pool.selector, k->space,
            ready_pods(k));
}

static bool watch_pods(struct discovery_kubernetes *k)
{
    static const struct kvr_kube_handler handler = {on_pods, on_pod, on_all_pods};
    char path[KVR_KUBE_NAME_MAX + 64];
    snprintf(path, sizeof path, "/api/v1/namespaces/%s/pods", k->space);
    kvr_kube_watch_stop(k->pods_watch);
    k->pods_watch = kvr_kube_watch_start(
        k->kube, &(const struct kvr_kube_watch_config){.path = path, .label_selector = k->pool.selector, .handler = &handler, .ctx = k});
    return k->pods_watch != NULL;
}

/* ---- the pool -------------------------------------------------------------------------------------------------------- */

static void lose_pool(struct discovery_kubernetes *k)
{
    if (!k->pods_watch && k->room->settled) return; /* it is known */
    kvr_log_warning("kvroute: kubernetes: there is no InferencePool %s in namespace %s: no workers until there is one",
                    k->room->o->kubernetes_pool, k->space);
    memset(&k->pool, 0, sizeof k->pool);
    kvr_kube_watch_stop(k->pods_watch);
    k->pods_watch = NULL;
    k->pods_n = 0;
    found_workers_round_begins(k->room);
    found_workers_round_ends(k->room, true);
}

static void on_pools(void *ctx)
{
    struct discovery_kubernetes *k = ctx;
    k->pool_listed = false;
}

static void on_pool(void *ctx, struct kvr_json object, enum kvr_kube_told told)
{
    struct discovery_kubernetes *k = ctx;
    struct kvr_kube_pool pool;
    const char *wrong = kvr_kube_pool_read(object, &pool);
    if (told == KVR_KUBE_DELETED) {
        lose_pool(k);
        return;
    }
    k->pool_listed = true;
    if (wrong) {
        complain(k, "InferencePool", k->room->o->kubernetes_pool, wrong);
        return;
    }
    if (k->pods_watch && memcmp(&pool, &k->pool, sizeof pool) == 0) return; /* its status, say */
    k->pool = pool;
    if (!watch_pods(k)) complain(k, "InferencePool", k->room->o->kubernetes_pool, "out of memory");
}

static void on_all_pools(void *ctx)
{
    struct discovery_kubernetes *k = ctx;
    if (!k->pool_listed) lose_pool(k);
}

static bool watch_pool(struct discovery_kubernetes *k)
{
    static const struct kvr_kube_handler handler = {on_pools, on_pool, on_all_pools};
    char path[KVR_KUBE_NAME_MAX + 96];
    snprintf(path, sizeof path, "/apis/inference.networking.k8s.io/v1/namespaces/%s/inferencepools", k->space);
    k->pool_watch = kvr_kube_watch_start(
        k->kube,
        &(const struct kvr_kube_watch_config){.path = path, .object_name = k->room->o->kubernetes_pool, .handler = &handler, .ctx = k});
    return k->pool_watch != NULL;
}

/* ---- options --------------------------------------------------------------------------------------------------------- */

static int bad(const char *option, const char *value, const char *allowed, char *err, size_t cap)
{
    return kvr_refuse(err, cap, "--kubernetes-%s: bad value '%.200s'; allowed: %s", option, value, allowed);
}

int discovery_kubernetes_check(struct discovery *room, char *err, size_t cap)
{
    static const char a_name[] = "the name of an object: letters, digits, - and .";
    const struct serve_options *o = room->o;
    const struct {
        const char *option, *value;
    } names[] = {{"pool", o->kubernetes_pool}, {"namespace", o->kubernetes_namespace}, {"peers", o->kubernetes_peers}};
    struct kvr_kube_ports ports;
    struct kvr_endpoint e;
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++)
        if (names[i].value && !kvr_kube_name_ok(names[i].value)) return bad(names[i].option, names[i].value, a_name, err, cap);
    if (o->kubernetes_selector &&
        (!kvr_kube_selector_ok(o->kubernetes_selector) || strlen(o->kubernetes_selector) >= KVR_KUBE_SELECTOR_MAX))
        return bad("selector", o->kubernetes_selector, "labels with values, e.g. app=vllm,tier=gpu", err, cap);
    if (o->kubernetes_ports && !kvr_kube_ports_parse(o->kubernetes_ports, strlen(o->kubernetes_ports), &ports))
        return bad("ports", o->kubernetes_ports, "one to eight ports, each of them once", err, cap);
    if (o->kubernetes_api && kvr_endpoint_parse_any(o->kubernetes_api, strlen(o->kubernetes_api), &e))
        return bad("api", o->kubernetes_api, "https://host[:port][/path]", err, cap);
    return found_place_check(room, err, cap);
}

/* A file of the service account, or NULL. */
static const char *account_file(const char *given, const char *file)
{
    return given ? given : access(file, R_OK) == 0 ? file : NULL;
}

/* Returns: 0, or -1 with the reason in err. */
static int find_space(struct discovery_kubernetes *k, char *err, size_t cap)
{
    FILE *f = k->room->o->kubernetes_namespace ? NULL : fopen(ACCOUNT "namespace", "re");
    if (k->room->o->kubernetes_namespace) snprintf(k->space, sizeof k->space, "%s", k->room->o->kubernetes_namespace);
    if (f && !fgets(k->space, sizeof k->space, f)) k->space[0] = 0;
    if (f) fclose(f);
    k->space[strcspn(k->space, "\r\n")] = 0;
    if (kvr_kube_name_ok(k->space)) return 0;
    return kvr_refuse(err, cap, "--discovery kubernetes: there is no " ACCOUNT "namespace: use --kubernetes-namespace");
}

static int find_api(const struct serve_options *o, char *out, size_t cap, char *err, size_t err_cap)
{
    const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT");
    if (o->kubernetes_api) {
        snprintf(out, cap, "%s", o->kubernetes_api);
        return 0;
    }
    if (!host || !*host || !port || !*port) {
        snprintf(err, err_cap, "--discovery kubernetes: there is no KUBERNETES_SERVICE_HOST and _PORT, as a pod has: use --kubernetes-api");
        return -1;
    }
    snprintf(out, cap, strchr(host, ':') ? "https://[%.200s]:%.20s" : "https://%.200s:%.20s", host, port);
    return 0;
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

/* Returns: 0, or -1 with the reason in err. */
static int open_all(struct discovery_kubernetes *k, char *err, size_t cap)
{
    const struct serve_options *o = k->room->o;
    char url[URL_LEN], why[400];
    if (discovery_kubernetes_check(k->room, err, cap) || find_space(k, err, cap) || find_api(o, url, sizeof url, err, cap)) return -1;
    const struct kvr_kube_config config = {.loop = &k->room->process->main_loop,
                                           .api = url,
                                           .ca = account_file(o->kubernetes_ca, ACCOUNT "ca.crt"),
                                           .token_file = account_file(o->kubernetes_token_file, ACCOUNT "token")};
    if (kvr_kube_open(&config, &k->kube, why, sizeof why)) return kvr_refuse(err, cap, "--discovery kubernetes: %s", why);
    snprintf(err, cap, "--discovery kubernetes: out of memory");
    if (o->kubernetes_pool) return watch_pool(k) ? 0 : -1;
    snprintf(k->pool.selector, sizeof k->pool.selector, "%s", o->kubernetes_selector);
    (void)kvr_kube_ports_parse(o->kubernetes_ports, strlen(o->kubernetes_ports), &k->pool.ports);
    return watch_pods(k) ? 0 : -1;
}

int discovery_kubernetes_start(struct discovery *room, char *err, size_t cap)
{
    struct discovery_kubernetes *k = calloc(1, sizeof *k);
    snprintf(err, cap, "out of memory");
    if (!k) return -1;
    k->room = room;
    int rc = open_all(k, err, cap);
    if (rc == 0 && room->o->kubernetes_peers) {
        const struct kube_peers_config peers = {.kube = k->kube,
                                                .space = k->space,
                                                .service = room->o->kubernetes_peers,
                                                .peers = room->peers,
                                                .port = (uint16_t)room->o->replica_sync_port};
        if (!(k->peers = kube_peers_start(&peers))) rc = -1;
    }
    if (rc == 0) room->kubernetes = k;
    else discovery_kubernetes_stop(k);
    return rc;
}

void discovery_kubernetes_stop(struct discovery_kubernetes *k)
{
    if (!k) return;
    kube_peers_stop(k->peers);
    kvr_kube_watch_stop(k->pods_watch);
    kvr_kube_watch_stop(k->pool_watch);
    kvr_kube_close(k->kube);
    free(k->pods);
    free(k);
}

/* ---- metrics --------------------------------------------------------------------------------------------------------- */

void discovery_kubernetes_metrics(const struct discovery_kubernetes *k, struct kvr_prom_page *b)
{
    static const char *const resources[] = {"inferencepools", "pods", "endpointslices"};
    const struct kvr_kube_watch *watches[] = {k ? k->pool_watch : NULL, k ? k->pods_watch : NULL, k ? kube_peers_watch(k->peers) : NULL};
    static const struct kvr_prom_member rows[] = {
        {"watching", "gauge", "1: the API server tells of changes now", offsetof(struct kvr_kube_stats, watching)},
        {"lists_total", "counter", "Lists that were whole", offsetof(struct kvr_kube_stats, lists)},
        {"events_total", "counter", "Changes that were told, and bookmarks", offsetof(struct kvr_kube_stats, events)},
        {"errors_total", "counter", "Questions refused or broken off, and watches that were too old",
         offsetof(struct kvr_kube_stats, errors)},
    };
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        kvr_prom_family(b, "kvroute_kubernetes_", rows[i].name, rows[i].type, rows[i].help);
        for (size_t j = 0; j < KVR_ARRAY_LEN(watches); j++) {
            struct kvr_kube_stats st = {0};
            if (!watches[j]) continue;
            kvr_kube_watch_stats(watches[j], &st);
            kvr_prom_put_u64(b, KVR_PROM_PAIRS(KVR_PROM_TEXT("resource", resources[j])),
                             *(const uint64_t *)((const char *)&st + rows[i].at));
        }
    }
    kvr_prom_one_if(b, k, "kvroute_kubernetes_", "pods", "gauge", "Pods of the pool or with the labels", k ? k->pods_n : 0);
    kvr_prom_one_if(b, k, "kvroute_kubernetes_", "pods_ready", "gauge", "Pods that may be chosen", k ? ready_pods(k) : 0);
    kvr_prom_one_if(b, k, "kvroute_kubernetes_", "unread_total", "counter", "Pods and pools that cannot be used as they are",
                    k ? k->unread : 0);
}
