/* SPDX-License-Identifier: Apache-2.0 */
#include "net/tls.h"

#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct kvr_tls_ctx {
    char *cert_file, *key_file;
    pthread_mutex_t lock; /* ssl */
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
    pthread_mutex_init(&c->lock, NULL);
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
    pthread_mutex_lock(&c->lock);
    old = c->ssl;
    c->ssl = fresh;
    pthread_mutex_unlock(&c->lock);
    SSL_CTX_free(old); /* sessions that have begun hold it */
    return 0;
}

void kvr_tls_ctx_free(struct kvr_tls_ctx *c)
{
    if (!c) return;
    SSL_CTX_free(c->ssl);
    free(c->cert_file);
    free(c->key_file);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

struct kvr_tls *kvr_tls_new(struct kvr_tls_ctx *ctx)
{
    struct kvr_tls *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    pthread_mutex_lock(&ctx->lock);
    t->ssl = SSL_new(ctx->ssl);
    pthread_mutex_unlock(&ctx->lock);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    if (!t->ssl || !t->in || !t->out) {
        BIO_free(t->in);
        BIO_free(t->out);
        SSL_free(t->ssl);
        free(t);
        return NULL;
    }
    SSL_set_bio(t->ssl, t->in, t->out);
    SSL_set_accept_state(t->ssl);
    return t;
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
