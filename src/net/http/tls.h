/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for connections whose bytes somebody else reads and writes: OpenSSL with memory on both sides. TLS 1.2 and later.
 * Threads: a context may be shared, a session belongs to one thread. */
#ifndef KVR_NET_TLS_H
#define KVR_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>

struct kvr_tls_ctx;
struct kvr_tls;

/* PEM files: the certificate chain and its key. NULL with the reason in err. */
struct kvr_tls_ctx *kvr_tls_ctx_new(const char *cert_file, const char *key_file, char *err, size_t cap);
void kvr_tls_ctx_free(struct kvr_tls_ctx *ctx);
/* Reads the files again, for sessions that begin afterwards; when that fails those of before stay. Any thread. 0, or -1 with the reason. */
int kvr_tls_ctx_reload(struct kvr_tls_ctx *ctx, char *err, size_t cap);

/* Whom this process believes when it connects to others: certificates in a PEM file, or the system's (NULL). Before other threads, or again
 * later, for sessions that begin then; when it fails, what was trusted before stays. Returns: 0, or -1 with the reason in err. */
int kvr_tls_trust(const char *ca_file, char *err, size_t cap);
/* The client's side, to a host whose name or address the certificate must have. NULL: no memory, or nobody is trusted. */
struct kvr_tls *kvr_tls_connect(const char *host, bool is_numeric);
/* Goes on with a handshake. 1: it is over, 0: more must be fed, -1: it failed, err says why. What it has to say is pending. */
int kvr_tls_handshake(struct kvr_tls *t, char *err, size_t cap);
bool kvr_tls_was_closed(const struct kvr_tls *t); /* the other side has said goodbye: what came before is whole */

struct kvr_tls *kvr_tls_new(struct kvr_tls_ctx *ctx); /* the server's side; NULL: no memory */
void kvr_tls_free(struct kvr_tls *t);
bool kvr_tls_is_up(const struct kvr_tls *t); /* the handshake is over */

/* Bytes from the wire. false: no memory. */
bool kvr_tls_feed(struct kvr_tls *t, const char *data, size_t len);
/* Plain bytes out of what was fed. Returns: their number, 0 when more must be fed, -1 when the session is over or broken. */
long kvr_tls_read(struct kvr_tls *t, char *out, size_t cap);
/* Plain bytes to be sent. false: broken. */
bool kvr_tls_write(struct kvr_tls *t, const char *data, size_t len);
void kvr_tls_shutdown(struct kvr_tls *t); /* says goodbye */
/* What has to go out on the wire; borrowed until the next call. Returns: its length. */
size_t kvr_tls_pending(struct kvr_tls *t, char **data);
void kvr_tls_sent(struct kvr_tls *t); /* all of it has been taken */

#endif
