/* SPDX-License-Identifier: Apache-2.0 */
/* TLS for connections whose bytes somebody else reads and writes: OpenSSL with memory on both sides. TLS 1.2 and later.
 * Threads: a context may be shared, a session belongs to one thread. */
#ifndef KVR_NET_TLS_H
#define KVR_NET_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct kvr_tls_ctx;
struct kvr_tls;

/* What a port that speaks TLS has: PEM files. Of ALPN it speaks one protocol, and refuses who offers only others. */
struct kvr_tls_files {
    const char *cert, *key; /* both NULL: a key and a certificate that is its own are made, for clients that do not check it */
    const char *client_ca;  /* clients must have a certificate of one of these; NULL: they need none */
    bool h2;                /* the protocol is h2; else http/1.1 */
};

/* The texts are copied. NULL with the reason in err, which names the file. */
struct kvr_tls_ctx *kvr_tls_ctx_new(const struct kvr_tls_files *files, char *err, size_t cap);
void kvr_tls_ctx_free(struct kvr_tls_ctx *ctx);
/* Reads the files again, for sessions that begin afterwards, none of which is a resumed one of before; when that fails those of before
 * stay. Any thread. 0, or -1 with the reason. */
int kvr_tls_ctx_reload(struct kvr_tls_ctx *ctx, char *err, size_t cap);
/* Seconds since 1970 at which the certificate, or one that comes with it, ends first. Any thread. */
int64_t kvr_tls_ctx_expires(struct kvr_tls_ctx *ctx);

/*
 * Whom this process believes when it connects to others, and who it says it is. One for all (kvr_tls_trust), and further ones for peers
 * that need their own, one for each set of values. Whoever has one may keep its address; what was made of its files goes when nobody holds
 * it any more, and nobody can be connected to with it then, until it is got again.
 */
struct kvr_tls_peer_config {
    const char *ca;          /* certificates in a PEM file; NULL: the system's */
    const char *cert, *key;  /* ours; both or neither */
    const char *server_name; /* the name that the certificate must have, and that is sent; NULL: the host's */
    bool insecure;           /* any certificate will do */
};

enum { KVR_TLS_PEERS_MAX = 1024, KVR_TLS_NAME_MAX = 256 };

struct kvr_tls_peer;

/* For peers that name none. Before other threads, or again later, for sessions that begin then; when it fails, what was trusted before
 * stays. Returns: 0, or -1 with the reason in err. */
int kvr_tls_trust(const struct kvr_tls_peer_config *config, char *err, size_t cap);
/* Texts are copied. Returns: the one of these values, new or not; NULL with the reason in err. It is good until another one is got, or for
 * as long as it is held. Threads: one. */
const struct kvr_tls_peer *kvr_tls_peer_get(const struct kvr_tls_peer_config *config, char *err, size_t cap);
/* Any thread; NULL is fine. */
void kvr_tls_peer_hold(const struct kvr_tls_peer *peer);
void kvr_tls_peer_let_go(const struct kvr_tls_peer *peer);
/* What it was made of; borrowed for good. Any thread. */
struct kvr_tls_peer_config kvr_tls_peer_told(const struct kvr_tls_peer *peer);
/* Reads the files of all but the common one that are held again; those that cannot be read stay as they were. Returns: 0, or -1 with the
 * first reason. */
int kvr_tls_peers_reload(char *err, size_t cap);
/* The files of these, each once for each peer that has it. */
void kvr_tls_peers_files(void (*fn)(void *ctx, const char *path), void *ctx);
/* The client's side, to a host whose name or address the certificate must have; it resumes a session of before with that host, port and
 * peer where the server takes it. `peer` NULL: the common one. NULL: no memory, or nobody is trusted. */
struct kvr_tls *kvr_tls_connect(const struct kvr_tls_peer *peer, const char *host, uint16_t port, bool is_numeric);
bool kvr_tls_is_resumed(const struct kvr_tls *t); /* its handshake is over, and was short */
/* Goes on with a handshake. 1: it is over, 0: more must be fed, -1: it failed, err says why. What it has to say is pending. */
int kvr_tls_handshake(struct kvr_tls *t, char *err, size_t cap);
bool kvr_tls_was_closed(const struct kvr_tls *t); /* the other side has said goodbye: what came before is whole */

struct kvr_tls *kvr_tls_new(struct kvr_tls_ctx *ctx); /* the server's side; NULL: no memory */
void kvr_tls_free(struct kvr_tls *t);
bool kvr_tls_is_up(const struct kvr_tls *t);    /* the handshake is over */
bool kvr_tls_has_alpn(const struct kvr_tls *t); /* and the client has asked for the protocol: who does not use ALPN asks for none */

/* Bytes from the wire. false: no memory. */
bool kvr_tls_feed(struct kvr_tls *t, const char *data, size_t len);
/* Plain bytes out of what was fed. Returns: their number, 0 when more must be fed, -1 when the session is over or broken. */
long kvr_tls_read(struct kvr_tls *t, char *out, size_t cap);
/* Plain bytes to be sent, in as few records as they fit in. false: broken. */
bool kvr_tls_write(struct kvr_tls *t, const uv_buf_t *bufs, unsigned n);
void kvr_tls_shutdown(struct kvr_tls *t); /* says goodbye */
/* What has to go out on the wire; borrowed until the next call. Returns: its length. */
size_t kvr_tls_pending(struct kvr_tls *t, char **data);
void kvr_tls_sent(struct kvr_tls *t); /* all of it has been taken */

#endif
