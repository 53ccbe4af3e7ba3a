/* SPDX-License-Identifier: Apache-2.0 */
/* --handover: the ports come from the process before this one, and go to the one after it (net/http/handover.h). Main loop. */
#ifndef KVR_APP_SERVE_HANDOVER_H
#define KVR_APP_SERVE_HANDOVER_H

#include <stdbool.h>
#include <stddef.h>

#include "net/http/handover.h"

struct admin;
struct data_plane;
struct process;

struct handover {
    struct process *process;
    struct data_plane *data;
    struct admin *admin;
    void (*given)(void *ctx); /* the ports are another process's now */
    void *ctx;                /* this and above: before handover_begin */
    struct kvr_handover *offer;
    int sockets[KVR_HANDOVER_FDS_MAX], sockets_n, link; /* from the process before; link: open while waits or takes */
    bool waits, takes, failed;
};

/* Asks for the ports, if there is a process that offers them: the admin port's in sockets[0], then one of each data loop. */
int handover_begin(struct handover *h, char *err, size_t cap);
/* All threads run: offers the ports, or waits for its turn to. */
int handover_start(struct handover *h);
void handover_tick(struct handover *h);
void handover_stop(struct handover *h);

#endif
