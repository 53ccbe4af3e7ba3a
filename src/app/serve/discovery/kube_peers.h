/* SPDX-License-Identifier: Apache-2.0 */
/* Other routers, which are behind a Service (--kubernetes-peers): each ready address but our own is followed at --replica-sync-port. Of a
 * service of both families one is followed, IPv4 where there is any. Threads: the main loop. */
#ifndef KVR_SERVE_KUBE_PEERS_H
#define KVR_SERVE_KUBE_PEERS_H

#include "net/kube/kube.h"

struct kube_peers;
struct peers;

struct kube_peers_config {
    struct kvr_kube *kube;
    const char *space, *service;
    struct peers *peers;
    uint16_t port;
};

struct kube_peers *kube_peers_start(const struct kube_peers_config *config); /* NULL: out of memory */
void kube_peers_stop(struct kube_peers *p);
const struct kvr_kube_watch *kube_peers_watch(const struct kube_peers *p); /* NULL is fine */

#endif
