/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ports come from: the process before this one, and they go to the one after it (--handover, net/http/handover.h); or systemd,
 * which keeps them (net/http/systemd.h); or nowhere, and they are opened. Main loop. */
#ifndef KVR_APP_SERVE_HANDOVER_H
#define KVR_APP_SERVE_HANDOVER_H

#include <stdbool.h>
#include <stddef.h>

#include "app/serve/workers/views/succession.h"
#include "net/http/handover.h"

struct admin;
struct data_plane;
struct process;
struct workers;

struct handover {
    struct process *process;
    struct workers *workers;
    struct data_plane *data;
    struct admin *admin;
    void (*taken)(void *ctx); /* the ports are this process's, and the one before may be told so */
    void (*given)(void *ctx); /* they are another process's now */
    void *ctx;                /* this and above: before handover_begin */
    struct kvr_handover *offer;
    int sockets[KVR_HANDOVER_FDS_MAX], sockets_n, link; /* from the process before; link: open while waits or takes */
    unsigned ready_ticks;
    struct succession succession;
    bool waits, takes, failed;
    char program[4096]; /* the path of this one's file */
    uv_process_t next;  /* while next_runs */
    bool next_runs;
};

/* Asks for the ports, if there is a process that offers them, else takes those of systemd: the admin port's in sockets[0] (0: none), then
 * one of each data loop; sockets_n 0: neither. */
int handover_begin(struct handover *h, char *err, size_t cap);
/* All threads run: offers the ports, or waits for its turn to. */
int handover_start(struct handover *h);
void handover_tick(struct handover *h);
/* Starts the file that is now where this process's was, with its command line: it will ask for the ports. One that fails changes nothing.
 */
void handover_start_next(struct handover *h);
/* The ports are being closed: they can be opened, and are not to be had here any more. */
void handover_withdraw(struct handover *h);
void handover_stop(struct handover *h);

#endif
