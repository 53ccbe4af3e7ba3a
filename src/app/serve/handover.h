/* SPDX-License-Identifier: Apache-2.0 */
/* --handover: the ports come from the process before this one, and go to the one after it (net/http/handover.h). Main loop, but for
 * handover_listener before it runs. */
#ifndef KVR_APP_SERVE_HANDOVER_H
#define KVR_APP_SERVE_HANDOVER_H

#include "net/http/handover.h"

#include <stdatomic.h>

struct serve;

struct handover {
    struct kvr_handover *offer;
    int sockets[KVR_HANDOVER_FDS_MAX], sockets_n, link; /* from the process before; link: open while waits or takes */
    bool waits, takes, failed;
    _Atomic bool go, given; /* for the loops: take connections; take none any more */
    _Atomic size_t gone;    /* loops that take them */
};

/* The socket of the admin port (0), or of a data loop (1 + its place), for kvr_http_server_config.listener. 0: a new one. */
static inline int handover_listener(const struct handover *h, size_t place)
{
    return place < (size_t)h->sockets_n ? h->sockets[place] : 0;
}

/* Asks for the ports, if there is a process that offers them. */
int handover_begin(struct serve *s, char *err, size_t cap);
/* All threads run: offers the ports, or waits for its turn to. */
int handover_start(struct serve *s);
void handover_tick(struct serve *s);
void handover_stop(struct serve *s);

#endif
