/* SPDX-License-Identifier: Apache-2.0 */
/* OpenSSL between two memory buffers, so that the sockets stay libuv's; net/http/tls.h has ownership and threads. */
#include "net/http/tls.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"

struct kvr_tls_ctx {
    char *cert_file, *key_file;
    struct kvr_lock lock; /* ssl */
    SSL_CTX *ssl;
};

struct kvr_tls {
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
};

static void why(char *err, size_t cap, const char *what, const char *file)
{
    char text[160];
    ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
    snprintf(err, cap, "%s '%s': %s", what, file, text);
    ERR_clear_error();
}

static SSL_CTX *server_ctx(const char *cert_file, const char *key_file, char *err, size_t cap)
{
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());
    if (!c) {
        snprintf(err, cap, "out of memory");
    } else if (SSL_CTX_use_certificate_chain_file(c, cert_file) != 1) {
        why(err, cap, "cannot use the certificate", cert_file);
    } else if (SSL_CTX_use_PrivateKey_file(c, key_file, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(c) != 1) {
        why(err, cap, "cannot use the key", key_file);
    } else {
        SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
        SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION);
        return c;
    }
    SSL_CTX_free(c);
    return NULL;
}

struct kvr_tls_ctx *kvr_tls_ctx_new(const char *cert_file, const char *key_file, char *err, size_t cap)
{
    struct kvr_tls_ctx *c = calloc(1, sizeof *c);
    snprintf(err, cap, "out of memory");
    if (!c) return NULL;
    kvr_lock_init(&c->lock, KVR_LOCK_TLS);
    c->cert_file = strdup(cert_file);
    c->key_file = strdup(key_file);
    if (c->cert_file && c->key_file) c->ssl = server_ctx(cert_file, key_file, err, cap);
    if (c->ssl) return c;
    kvr_tls_ctx_free(c);
    return NULL;
}

int kvr_tls_ctx_reload(struct kvr_tls_ctx *c, char *err, size_t cap)
{
    SSL_CTX *fresh = server_ctx(c->cert_file, c->key_file, err, cap), *old;
    if (!fresh) return -1;
    kvr_lock(&c->lock);
    old = c->ssl;
    c->ssl = fresh;
    kvr_unlock(&c->lock);
    SSL_CTX_free(old); /* sessions that have begun hold it */
    return 0;
}

void kvr_tls_ctx_free(struct kvr_tls_ctx *c)
{
    if (!c) return;
    SSL_CTX_free(c->ssl);
    free(c->cert_file);
    free(c->key_file);
    kvr_lock_destroy(&c->lock);
    free(c);
}

static struct kvr_tls *session(SSL *ssl)
{
    struct kvr_tls *t = calloc(1, sizeof *t);
    BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
    if (!t || !ssl || !in || !out) {
        BIO_free(in);
        BIO_free(out);
        SSL_free(ssl);
        free(t);
        return NULL;
    }
    *t = (struct kvr_tls){ssl, in, out};
    SSL_set_bio(ssl, in, out);
    return t;
}

struct kvr_tls *kvr_tls_new(struct kvr_tls_ctx *ctx)
{
    kvr_lock(&ctx->lock);
    SSL *ssl = SSL_new(ctx->ssl);
    kvr_unlock(&ctx->lock);
    struct kvr_tls *t = session(ssl);
    if (t) SSL_set_accept_state(t->ssl);
    return t;
}

/* ---- the client's side ------------------------------------------------------------------------------- */

static struct {
    struct kvr_lock lock;
    SSL_CTX *ssl;
} trusted = {KVR_LOCK_STATIC(KVR_LOCK_TLS_TRUST), NULL};

/* What the certificates say is worked out here, once. Left to the first handshake that needs it, several threads would find it half done,
 * with an order between them that only the library's own atomics make. */
static void work_out(X509_STORE *store)
{
    STACK_OF(X509_OBJECT) *all = X509_STORE_get0_objects(store);
    for (int i = 0; i < sk_X509_OBJECT_num(all); i++) {
        X509 *cert = X509_OBJECT_get0_X509(sk_X509_OBJECT_value(all, i));
        if (cert) X509_check_purpose(cert, -1, 0);
    }
}

static SSL_CTX *client_ctx(const char *ca_file, char *err, size_t cap)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    if (!c) {
        snprintf(err, cap, "out of memory");
        return NULL;
    }
    if ((ca_file ? SSL_CTX_load_verify_locations(c, ca_file, NULL) : SSL_CTX_set_default_verify_paths(c)) != 1) {
        why(err, cap, "cannot use the certificates of", ca_file ? ca_file : "the system");
        SSL_CTX_free(c);
        return NULL;
    }
    work_out(SSL_CTX_get_cert_store(c));
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    return c;
}

int kvr_tls_trust(const char *ca_file, char *err, size_t cap)
{
    SSL_CTX *fresh = client_ctx(ca_file, err, cap), *old;
    if (!fresh) return -1;
    kvr_lock(&trusted.lock);
    old = trusted.ssl;
    trusted.ssl = fresh;
    kvr_unlock(&trusted.lock);
    SSL_CTX_free(old);
    return 0;
}

struct kvr_tls *kvr_tls_connect(const char *host, bool is_numeric)
{
    char unused[160];
    kvr_lock(&trusted.lock);
    if (!trusted.ssl) trusted.ssl = client_ctx(NULL, unused, sizeof unused);
    struct kvr_tls *t = session(trusted.ssl ? SSL_new(trusted.ssl) : NULL);
    kvr_unlock(&trusted.lock);
    if (!t) return NULL;
    SSL_set_connect_state(t->ssl);
    bool ok = is_numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(t->ssl), host) == 1
                         : SSL_set1_host(t->ssl, host) == 1 && SSL_set_tlsext_host_name(t->ssl, host) == 1;
    SSL_set_hostflags(t->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (ok) return t;
    kvr_tls_free(t);
    return NULL;
}

int kvr_tls_handshake(struct kvr_tls *t, char *err, size_t cap)
{
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    if (rc == 1) return 1;
    if (SSL_get_error(t->ssl, rc) == SSL_ERROR_WANT_READ) return 0;
    long verdict = SSL_get_verify_result(t->ssl);
    char text[160] = "the peer closed the connection";
    if (verdict != X509_V_OK) snprintf(text, sizeof text, "%s", X509_verify_cert_error_string(verdict));
    else if (ERR_peek_last_error()) ERR_error_string_n(ERR_peek_last_error(), text, sizeof text);
    snprintf(err, cap, "TLS: %s", text);
    ERR_clear_error();
    return -1;
}

bool kvr_tls_was_closed(const struct kvr_tls *t)
{
    return SSL_get_shutdown(t->ssl) & SSL_RECEIVED_SHUTDOWN;
}

void kvr_tls_free(struct kvr_tls *t)
{
    if (!t) return;
    SSL_free(t->ssl);
    free(t);
}

bool kvr_tls_is_up(const struct kvr_tls *t)
{
    return SSL_is_init_finished(t->ssl);
}

bool kvr_tls_feed(struct kvr_tls *t, const char *data, size_t len)
{
    return len <= INT_MAX && BIO_write(t->in, data, (int)len) == (int)len;
}

long kvr_tls_read(struct kvr_tls *t, char *out, size_t cap)
{
    size_t n = 0;
    ERR_clear_error();
    if (SSL_read_ex(t->ssl, out, cap, &n)) return (long)n;
    return SSL_get_error(t->ssl, 0) == SSL_ERROR_WANT_READ ? 0 : -1;
}

bool kvr_tls_write(struct kvr_tls *t, const char *data, size_t len)
{
    size_t n = 0;
    ERR_clear_error();
    return len == 0 || (SSL_write_ex(t->ssl, data, len, &n) && n == len);
}

void kvr_tls_shutdown(struct kvr_tls *t)
{
    ERR_clear_error();
    if (SSL_is_init_finished(t->ssl)) (void)SSL_shutdown(t->ssl);
}

size_t kvr_tls_pending(struct kvr_tls *t, char **data)
{
    long n = BIO_get_mem_data(t->out, data);
    return n > 0 ? (size_t)n : 0;
}

void kvr_tls_sent(struct kvr_tls *t)
{
    (void)BIO_reset(t->out);
}
