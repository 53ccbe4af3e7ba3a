/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Both sides of TLS in one thread, whose bytes are carried by hand, and certificates for them (made by OpenSSL: P-256, signed by
 * themselves, of 127.0.0.1, for a day). For tests and the benchmark.
 */
#ifndef KVR_TLS_PAIRS_H
#define KVR_TLS_PAIRS_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>

#include "base/base.h"
#include "net/http/tls.h"

static inline bool write_pem(const char *path, EVP_PKEY *key, X509 *cert)
{
    FILE *f = fopen(path, "we");
    bool ok = f && (key ? PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL) : PEM_write_X509(f, cert)) == 1;
    return f && fclose(f) == 0 && ok;
}

static inline bool make_certificate(const char *cert_path, const char *key_path)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_NAME *name = X509_get_subject_name(cert);
    X509_EXTENSION *san = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -60);
    X509_gmtime_adj(X509_getm_notAfter(cert), 24 * 3600);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)cert_path, -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_set_pubkey(cert, key);
    X509_add_ext(cert, san, -1);
    bool ok = X509_sign(cert, key, EVP_sha256()) > 0 && write_pem(cert_path, NULL, cert) && write_pem(key_path, key, NULL);
    X509_EXTENSION_free(san);
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok;
}

static inline void carry(struct kvr_tls *from, struct kvr_tls *to)
{
    char *data;
    size_t n = kvr_tls_pending(from, &data);
    if (n) KVR_ASSERT(kvr_tls_feed(to, data, n));
    if (n) kvr_tls_sent(from);
}

/* A handshake, and the ticket behind it. Returns: -1: it failed; 1: a session was resumed; 0: none was. */
static inline int shake_hands(struct kvr_tls_ctx *ctx, const struct kvr_tls_peer *peer, uint16_t port)
{
    struct kvr_tls *server = kvr_tls_new(ctx), *client = kvr_tls_connect(peer, "127.0.0.1", port, true);
    char err[256], byte;
    int rc = client ? 0 : -1;
    for (int i = 0; i < 8 && rc == 0; i++) {
        rc = kvr_tls_handshake(client, err, sizeof err);
        carry(client, server);
        (void)kvr_tls_read(server, &byte, 1);
        carry(server, client);
    }
    if (rc == 1) (void)kvr_tls_read(client, &byte, 1);
    int told = rc != 1 || !kvr_tls_is_up(server) ? -1 : kvr_tls_is_resumed(client);
    kvr_tls_free(client);
    kvr_tls_free(server);
    return told;
}

#endif
