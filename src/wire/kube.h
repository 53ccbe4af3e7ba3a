/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Kubernetes API says, as far as workers and routers are found by it: events of a watch, pods, InferencePools and EndpointSlices.
 * Formats: kubernetes.io/docs/reference/using-api/api-concepts (lists in pages, watches, resourceVersion), core/v1 Pod, discovery.k8s.io/v1
 * EndpointSlice, inference.networking.k8s.io/v1 InferencePool, metav1.Status.
 *
 * All of it is read from a text that wire/json.h has parsed. A peer's mistake is a value: an object that cannot be used says why.
 * Threads: pure functions.
 */
#ifndef KVR_WIRE_KUBE_H
#define KVR_WIRE_KUBE_H

#include "base/buf.h"
#include "wire/json.h"

enum {
    KVR_KUBE_NAME_MAX = 254, /* with its end, as all that follow */
    KVR_KUBE_UID_MAX = 40,
    KVR_KUBE_ADDRESS_MAX = 46,
    KVR_KUBE_ROLE_MAX = 16,
    KVR_KUBE_VERSION_MAX = 64,
    KVR_KUBE_CONTINUE_MAX = 4096,
    KVR_KUBE_SELECTOR_MAX = 2048,
    KVR_KUBE_WORKER_MAX = 2048,
    KVR_KUBE_PORTS_MAX = 8,
    KVR_KUBE_SLICE_MAX = 128
};

/* ---- what is around objects ------------------------------------------------------------------------------------------ */

enum kvr_kube_event_kind { KVR_KUBE_IS, KVR_KUBE_GONE, KVR_KUBE_BOOKMARK, KVR_KUBE_ERROR };

/* A line of a watch. */
struct kvr_kube_event {
    enum kvr_kube_event_kind kind; /* ADDED and MODIFIED are KVR_KUBE_IS */
    struct kvr_json object;
    char version[KVR_KUBE_VERSION_MAX]; /* of the object: from where to go on; "" with an error */
};

/* Returns: false: it is no such line. */
bool kvr_kube_event_read(struct kvr_json line, struct kvr_kube_event *out);

/* A page of a list. */
struct kvr_kube_page {
    struct kvr_json items;
    char version[KVR_KUBE_VERSION_MAX];
    char more[KVR_KUBE_CONTINUE_MAX]; /* "": the last one */
};

bool kvr_kube_page_read(struct kvr_json root, struct kvr_kube_page *out);

/* An answer that is no success, or the object of an event that is an error. */
struct kvr_kube_status {
    uint64_t code; /* as of HTTP; 0: not said */
    char message[400];
};

void kvr_kube_status_read(struct kvr_json root, struct kvr_kube_status *out);

/* ---- objects --------------------------------------------------------------------------------------------------------- */

struct kvr_kube_ports {
    uint16_t list[KVR_KUBE_PORTS_MAX];
    size_t n;
};

/* Numbers between commas, each once. Returns: false: it is none. */
bool kvr_kube_ports_parse(const char *text, size_t len, struct kvr_kube_ports *out);

struct kvr_kube_pod {
    char name[KVR_KUBE_NAME_MAX], uid[KVR_KUBE_UID_MAX];
    char address[KVR_KUBE_ADDRESS_MAX]; /* "": it has none yet */
    bool ready;                         /* and is not about to be deleted */
    bool over;                          /* its containers have ended for good: the address may be another pod's */
    char role[KVR_KUBE_ROLE_MAX];       /* label llm-d.ai/role: prefill, decode, both; "": none of these */
    char worker[KVR_KUBE_WORKER_MAX];   /* annotation kvroute.io/worker */
    bool has_active;
    struct kvr_kube_ports active; /* annotation inference.networking.k8s.io/active-ports */
};

/* Returns: NULL, or what is wrong; a name or uid that cannot be read is "". */
const char *kvr_kube_pod_read(struct kvr_json object, struct kvr_kube_pod *out);

struct kvr_kube_pool {
    char selector[KVR_KUBE_SELECTOR_MAX]; /* key=value,... of spec.selector.matchLabels, in their order */
    struct kvr_kube_ports ports;          /* spec.targetPorts, in their order */
};

const char *kvr_kube_pool_read(struct kvr_json object, struct kvr_kube_pool *out);

struct kvr_kube_slice {
    char name[KVR_KUBE_NAME_MAX];
    bool v6;
    char addresses[KVR_KUBE_SLICE_MAX][KVR_KUBE_ADDRESS_MAX]; /* of endpoints that are ready */
    size_t n;
};

const char *kvr_kube_slice_read(struct kvr_json object, struct kvr_kube_slice *out);

/* ---- questions ------------------------------------------------------------------------------------------------------- */

/* A label selector of equalities, key=value,...: the only ones that a Service or an InferencePool has. */
bool kvr_kube_selector_ok(const char *text);
/* The name of an object or a namespace. */
bool kvr_kube_name_ok(const char *text);
/* A value of a query, percent-encoded. */
void kvr_kube_put_query(struct kvr_buf *out, const char *value);

#endif
