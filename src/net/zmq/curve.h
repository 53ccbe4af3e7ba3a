/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CURVE for ZMQ sockets: connections are encrypted, who connects knows whom it talks to, and who is connected to knows who may.
 *
 *     --zmq-curve-key FILE       our own key pair, of `kvroute curve-key FILE`: what we bind speaks CURVE only, and it is who we are
 *                                where we connect. A file of CZMQ's zcert is taken too, or one with the secret key alone (Z85)
 *     --zmq-curve-clients FILE   the public keys that may connect to what we bind, one a line; needed with a socket that is bound
 *     --zmq-curve-servers FILE   the public keys of what we connect to: KEY, or KEY ENDPOINT for endpoints that begin so; the first
 *                                line that fits counts. Endpoints that no line fits are connected to without CURVE
 *
 * Lines that begin with # and a space, and empty ones, are left out. Files are read once, at the start.
 *
 * Threads: constant once loaded. A door (the answers to "may this key in?") has a thread of its own.
 */
#ifndef KVR_NET_ZMQ_CURVE_H
#define KVR_NET_ZMQ_CURVE_H

#include <stdbool.h>
#include <stddef.h>

struct kvr_curve_options {
    char *key, *clients, *servers;
};

struct kvr_curve;
/* *out NULL when no option is given. Returns: 0, or -1 with the reason in err. */
int kvr_curve_load(const struct kvr_curve_options *o, struct kvr_curve **out, char *err, size_t cap);
void kvr_curve_free(struct kvr_curve *c); /* NULL is fine; after every context it was used in has ended */

/* A socket that will connect to an endpoint. c NULL: nothing is done. Returns: 0, -1 when the socket does not take it. */
int kvr_curve_client(const struct kvr_curve *c, void *socket, const char *endpoint);

/* Guards what is bound in a context. */
struct kvr_curve_door;
/* Before the context's first socket is bound. *out NULL when c is NULL. Returns: 0, -KVR_EINVAL when c has no clients, so that nobody
 * could come in, -KVR_ENOMEM. */
int kvr_curve_door_open(const struct kvr_curve *c, void *zmq, struct kvr_curve_door **out);
/* A socket that will be bound in the door's context. door NULL: nothing is done. Returns: 0, -1 when the socket does not take it. */
int kvr_curve_server(struct kvr_curve_door *door, void *socket);
/* After zmq_ctx_term, which ends its thread, or has it ended. NULL is fine. */
void kvr_curve_door_close(struct kvr_curve_door *door);

/* Writes a new key pair to a file that is not there yet (mode 0600), and the public key to out (41 bytes).
 * Returns: 0, or -1 with the reason in err. */
int kvr_curve_make(const char *path, char out[41], char *err, size_t cap);

#endif
