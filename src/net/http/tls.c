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
#include <time.h>

#include "base/base.h"
#include "base/lock.h"

struct kvr_tls_ctx {
    char *cert_file, *key_file, *ca_file; /* NULL: the certificate was made; no client needs one */
    bool h2;
    struct kvr_lock lock; /* ssl */
    SSL_CTX *ssl;
};

struct kvr_tls {
    SSL *ssl;
    BIO *in, *out; /* owned by ssl */
    /* of a client: */
    struct kvr_tls_peer *peer;
    char *to;       /* whom it speaks to, HOST:PORT */
    time_t checked; /* when the certificate of the session that it would resume was */
};

static void why(char *err, size_t cap, const char *what, const char *file)
{
    char text[160];
    ERR_error_string_n(ERR_peek_error(), text, sizeof text); /* the first one says why, those behind it who had asked */
    snprintf(err, cap, "%s '%s': %s", what, file, text);
    ERR_clear_error();
}

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

/* What both sides have in common. */
static void set_rules(SSL_CTX *c)
{
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    SSL_CTX_set_cipher_list(c, "ECDHE+AESGCM:ECDHE+CHACHA20");
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA);
}

static bool use_pair(SSL_CTX *c, const char *cert_file, const char *key_file, char *err, size_t cap)
{
    if (SSL_CTX_use_certificate_chain_file(c, cert_file) != 1) {
        why(err, cap, "cannot use the certificate", cert_file);
        return false;
    }
    if (SSL_CTX_use_PrivateKey_file(c, key_file, SSL_FILETYPE_PEM) == 1 && SSL_CTX_check_private_key(c) == 1) return true;
    why(err, cap, "cannot use the key", key_file);
    return false;
}

static const unsigned char http1[] = "\x08http/1.1", http2[] = "\x02h2";

/* A client that has ALPN must speak ours (RFC 7301, 3.2): bytes for another protocol are not to be taken for a request. */
static int choose_protocol(SSL *, const unsigned char **out, unsigned char *out_len, const unsigned char *in, unsigned in_len, void *arg)
{
    const unsigned char *ours = arg;
    unsigned char *chosen;
    if (SSL_select_next_proto(&chosen, out_len, ours, ours[0] + 1U, in, in_len) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/* Resumed sessions are those of tickets, whose key is the context's own: none outlives the files that it was begun with. */
static bool ask_clients(SSL_CTX *c, const char *ca_file, char *err, size_t cap)
{
    static const unsigned char name[] = "kvroute";
    SSL_CTX_set_session_id_context(c, name, sizeof name - 1);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(c, 1);
    if (!ca_file) return true;
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca_file);
    if (!names || SSL_CTX_load_verify_locations(c, ca_file, NULL) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        why(err, cap, "cannot use the certificates of", ca_file);
        return false;
    }
    SSL_CTX_set_client_CA_list(c, names);
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    work_out(SSL_CTX_get_cert_store(c));
    return true;
}

/* A key of P-256 and a certificate of its own, which nobody knows before: it keeps a connection from those who only listen. */
static bool make_pair(SSL_CTX *c, char *err, size_t cap)
{
    enum { VERSION_3 = 2, DAYS = 3650 };
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    X509_NAME *name = cert ? X509_get_subject_name(cert) : NULL;
    uint64_t serial = kvr_secret() >> 1;
    bool ok = key && name && X509_set_version(cert, VERSION_3) == 1 && ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), serial) == 1 &&
              X509_gmtime_adj(X509_getm_notBefore(cert), -86400) && X509_time_adj_ex(X509_getm_notAfter(cert), DAYS, 0, NULL) &&
              X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"kvroute", -1, -1, 0) == 1 &&
              X509_set_issuer_name(cert, name) == 1 && X509_set_pubkey(cert, key) == 1 && X509_sign(cert, key, EVP_sha256()) > 0 &&
              SSL_CTX_use_certificate(c, cert) == 1 && SSL_CTX_use_PrivateKey(c, key) == 1;
    if (!ok) why(err, cap, "cannot make a certificate for", "kvroute");
    X509_free(cert);
    EVP_PKEY_free(key);
    return ok;
}

static SSL_CTX *server_ctx(const struct kvr_tls_ctx *t, char *err, size_t cap)
{
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());
    if (!c) {
        snprintf(err, cap, "out of memory");
        return NULL;
    }
    set_rules(c);
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, (void *)(uintptr_t)(t->h2 ? http2 : http1));
    bool has_pair = t->cert_file ? use_pair(c, t->cert_file, t->key_file, err, cap) : make_pair(c, err, cap);
    if (has_pair && ask_clients(c, t->ca_file, err, cap)) return c;
    SSL_CTX_free(c);
    return NULL;
}

static bool copy_text(const char *from, char **to)
{
    *to = from ? strdup(from) : NULL;
    return *to || !from;
}

struct kvr_tls_ctx *kvr_tls_ctx_new(const struct kvr_tls_files *f, char *err, size_t cap)
{
    struct kvr_tls_ctx *c = calloc(1, sizeof *c);
    snprintf(err, cap, "out of memory");
    if (!c) return NULL;
    kvr_lock_init(&c->lock, KVR_LOCK_TLS);
    c->h2 = f->h2;
    if (copy_text(f->cert, &c->cert_file) && copy_text(f->key, &c->key_file) && copy_text(f->client_ca, &c->ca_file))
        c->ssl = server_ctx(c, err, cap);
    if (c->ssl) return c;
    kvr_tls_ctx_free(c);
    return NULL;
}

int kvr_tls_ctx_reload(struct kvr_tls_ctx *c, char *err, size_t cap)
{
    if (!c->cert_file) return 0; /* a new one would be no better */
    SSL_CTX *fresh = server_ctx(c, err, cap), *old;
    if (!fresh) return -1;
    kvr_lock(&c->lock);
    old = c->ssl;
    c->ssl = fresh;
    kvr_unlock(&c->lock);
    SSL_CTX_free(old); /* sessions that have begun hold it */
    return 0;
}

static int64_t ends_at(const X509 *cert)
{
    struct tm t;
    return cert && ASN1_TIME_to_tm(X509_get0_notAfter(cert), &t) == 1 ? (int64_t)timegm(&t) : INT64_MAX;
}

int64_t kvr_tls_ctx_expires(struct kvr_tls_ctx *c)
{
    STACK_OF(X509) *chain = NULL;
    kvr_lock(&c->lock);
    int64_t first = ends_at(SSL_CTX_get0_certificate(c->ssl));
    SSL_CTX_get0_chain_certs(c->ssl, &chain);
    for (int i = 0; i < sk_X509_num(chain); i++) first = KVR_MIN(first, ends_at(sk_X509_value(chain, i)));
    kvr_unlock(&c->lock);
    return first;
}

void kvr_tls_ctx_free(struct kvr_tls_ctx *c)
{
    if (!c) return;
    SSL_CTX_free(c->ssl);
    free(c->cert_file);
    free(c->key_file);
    free(c->ca_file);
    kvr_lock_destroy(&c->lock);
    free(c);
}

enum { ROOM_MAX = 64 * 1024 }; /* of what was sent, that is kept for what will be */

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
    *t = (struct kvr_tls){.ssl = ssl, .in = in, .out = out};
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

enum { SESSIONS = 512, SESSION_S = 3600 };

/* A session with one server, to be resumed. */
struct kept {
    char *to;
    SSL_SESSION *session;
    time_t checked; /* when the server's certificate was */
};

/*
 * Who is believed, as whom. The values stay until the process ends, since copies of endpoints have their address, and so that connections
 * of one set are never taken for those of another; they are some hundred bytes. What was made of the files goes with the last user.
 *
 * Sessions are kept here, so none is resumed with other credentials, and by the server's host and port, since a resumed session does not
 * have its certificate looked at again. Therefore one is not used for longer than an hour after that was done, nor when files were read
 * again since. A place has the last one of those that meet there.
 */
struct kvr_tls_peer {
    struct kvr_tls_peer *next; /* fixed once it is in the list */
    char *ca, *cert, *key, *name;
    bool insecure;
    /* under peers.lock: */
    SSL_CTX *ssl;          /* NULL: nobody uses it, or it is the common one and was not made yet */
    struct kept *sessions; /* SESSIONS places; NULL: there was none yet */
    size_t users;
};

static struct {
    struct kvr_lock lock;
    struct kvr_tls_peer common;
    struct kvr_tls_peer *first; /* of the others, a list that only grows */
    size_t made;                /* of the others, that have an ssl */
} peers = {.lock = KVR_LOCK_STATIC(KVR_LOCK_TLS_TRUST)};

static struct kept *place_of(struct kept *list, const char *to)
{
    uint64_t h = 0;
    for (const char *c = to; *c; c++) h = kvr_mix64(h ^ (unsigned char)*c);
    return &list[h % SESSIONS];
}

static void sessions_free(struct kept *list)
{
    for (size_t i = 0; list && i < SESSIONS; i++) {
        SSL_SESSION_free(list[i].session);
        free(list[i].to);
    }
    free(list);
}

/* A ticket has come, or a handshake of TLS 1.2 is over. Returns: 1: the reference is ours. */
static int on_session(SSL *ssl, SSL_SESSION *session)
{
    const struct kvr_tls *t = SSL_get_app_data(ssl);
    struct kept fresh = {strdup(t->to), session, SSL_session_reused(ssl) ? t->checked : time(NULL)}, old = fresh;
    kvr_lock(&peers.lock);
    struct kvr_tls_peer *p = t->peer;
    if (fresh.to && p->ssl == SSL_get_SSL_CTX(ssl)) {
        if (!p->sessions) p->sessions = calloc(SESSIONS, sizeof *p->sessions);
        struct kept *at = p->sessions ? place_of(p->sessions, t->to) : &old;
        old = *at;
        *at = fresh;
    }
    kvr_unlock(&peers.lock);
    free(old.to);
    if (old.session == session) return 0;
    SSL_SESSION_free(old.session);
    return 1;
}

/* Has the handshake begin with a session of before, if there is one. */
static void resume_locked(struct kvr_tls *t)
{
    const struct kept *k = t->peer->sessions ? place_of(t->peer->sessions, t->to) : NULL;
    time_t now = time(NULL);
    if (!k || !k->to || strcmp(k->to, t->to) != 0 || now < k->checked || now - k->checked > SESSION_S) return;
    t->checked = k->checked;
    SSL_set_session(t->ssl, k->session);
}

static SSL_CTX *client_ctx(const struct kvr_tls_peer *p, char *err, size_t cap)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    if (!c) {
        snprintf(err, cap, "out of memory");
        return NULL;
    }
    set_rules(c);
    SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(c, on_session);
    if ((p->ca ? SSL_CTX_load_verify_locations(c, p->ca, NULL) : SSL_CTX_set_default_verify_paths(c)) != 1) {
        why(err, cap, "cannot use the certificates of", p->ca ? p->ca : "the system");
    } else if (!p->cert || use_pair(c, p->cert, p->key, err, cap)) {
        work_out(SSL_CTX_get_cert_store(c));
        SSL_CTX_set_verify(c, p->insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, NULL);
        return c;
    }
    SSL_CTX_free(c);
    return NULL;
}

static void peer_clear(struct kvr_tls_peer *p)
{
    SSL_CTX_free(p->ssl);
    sessions_free(p->sessions);
    free(p->ca);
    free(p->cert);
    free(p->key);
    free(p->name);
}

static bool peer_fill(struct kvr_tls_peer *p, const struct kvr_tls_peer_config *config, char *err, size_t cap)
{
    snprintf(err, cap, "out of memory");
    *p = (struct kvr_tls_peer){.insecure = config->insecure};
    bool ok = copy_text(config->ca, &p->ca) && copy_text(config->cert, &p->cert) && copy_text(config->key, &p->key) &&
              copy_text(config->server_name, &p->name);
    if (ok && !p->cert != !p->key) {
        snprintf(err, cap, "a certificate and its key are needed, or neither");
        ok = false;
    }
    if (ok && (p->ssl = client_ctx(p, err, cap))) return true;
    peer_clear(p);
    return false;
}

int kvr_tls_trust(const struct kvr_tls_peer_config *config, char *err, size_t cap)
{
    struct kvr_tls_peer fresh, old;
    if (!peer_fill(&fresh, config, err, cap)) return -1;
    kvr_lock(&peers.lock);
    old = peers.common;
    peers.common = fresh;
    kvr_unlock(&peers.lock);
    peer_clear(&old);
    return 0;
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

static struct kvr_tls_peer *find_peer_locked(const struct kvr_tls_peer_config *c)
{
    struct kvr_tls_peer *p = peers.first;
    while (p && !(same_text(p->ca, c->ca) && same_text(p->cert, c->cert) && same_text(p->key, c->key) &&
                  same_text(p->name, c->server_name) && p->insecure == c->insecure))
        p = p->next;
    return p;
}

/* What was made of its files, and of sessions with them, to be freed outside of the lock. */
struct made {
    SSL_CTX *ssl;
    struct kept *sessions;
};

static struct made exchange_locked(struct kvr_tls_peer *p, SSL_CTX *ssl)
{
    struct made old = {p->ssl, p->sessions};
    peers.made += (ssl != NULL) - (size_t)(p->ssl != NULL);
    p->ssl = ssl;
    p->sessions = NULL;
    return old;
}

static void made_free(struct made m)
{
    SSL_CTX_free(m.ssl); /* sessions that have begun hold it */
    sessions_free(m.sessions);
}

/* Of those that were got and that nobody has held since. */
static void drop_unused(void)
{
    struct made m;
    do {
        m = (struct made){0};
        kvr_lock(&peers.lock);
        for (struct kvr_tls_peer *p = peers.first; p && !m.ssl; p = p->next)
            if (!p->users && p->ssl) m = exchange_locked(p, NULL);
        kvr_unlock(&peers.lock);
        made_free(m);
    } while (m.ssl);
}

const struct kvr_tls_peer *kvr_tls_peer_get(const struct kvr_tls_peer_config *config, char *err, size_t cap)
{
    struct kvr_tls_peer *fresh = calloc(1, sizeof *fresh), *there;
    snprintf(err, cap, "out of memory");
    if (!fresh) return NULL;
    if (!peer_fill(fresh, config, err, cap)) {
        free(fresh);
        return NULL;
    }
    drop_unused(); /* before the limit is judged */
    kvr_lock(&peers.lock);
    there = find_peer_locked(config);
    bool full = (!there || !there->ssl) && peers.made >= KVR_TLS_PEERS_MAX;
    if (!there && !full) {
        fresh->next = peers.first;
        peers.first = there = fresh;
        peers.made++;
        fresh = NULL;
    } else if (there && !there->ssl && !full) {
        (void)exchange_locked(there, fresh->ssl);
        fresh->ssl = NULL;
    }
    kvr_unlock(&peers.lock);
    if (full) snprintf(err, cap, "there are %d sets of TLS files already", KVR_TLS_PEERS_MAX);
    if (fresh) peer_clear(fresh);
    free(fresh);
    return full ? NULL : there;
}

static struct kvr_tls_peer *own(const struct kvr_tls_peer *p)
{
    return (struct kvr_tls_peer *)(uintptr_t)p;
}

void kvr_tls_peer_hold(const struct kvr_tls_peer *p)
{
    if (!p) return;
    kvr_lock(&peers.lock);
    own(p)->users++;
    kvr_unlock(&peers.lock);
}

void kvr_tls_peer_let_go(const struct kvr_tls_peer *p)
{
    if (!p) return;
    kvr_lock(&peers.lock);
    struct made m = --own(p)->users ? (struct made){0} : exchange_locked(own(p), NULL);
    kvr_unlock(&peers.lock);
    made_free(m);
}

struct kvr_tls_peer_config kvr_tls_peer_told(const struct kvr_tls_peer *p)
{
    return (struct kvr_tls_peer_config){p->ca, p->cert, p->key, p->name, p->insecure};
}

static bool is_used(const struct kvr_tls_peer *p)
{
    kvr_lock(&peers.lock);
    bool used = p->ssl != NULL;
    kvr_unlock(&peers.lock);
    return used;
}

int kvr_tls_peers_reload(char *err, size_t cap)
{
    char text[320];
    int rc = 0;
    kvr_lock(&peers.lock);
    struct kvr_tls_peer *p = peers.first;
    kvr_unlock(&peers.lock);
    for (; p; p = p->next) { /* the list only grows, at its head */
        SSL_CTX *fresh = is_used(p) ? client_ctx(p, text, sizeof text) : NULL;
        if (!fresh && is_used(p)) {
            if (rc == 0) snprintf(err, cap, "%s", text);
            rc = -1;
        }
        if (!fresh) continue;
        struct made old = {fresh, NULL};
        kvr_lock(&peers.lock);
        if (p->ssl) old = exchange_locked(p, fresh);
        kvr_unlock(&peers.lock);
        made_free(old);
    }
    return rc;
}

void kvr_tls_peers_files(void (*fn)(void *ctx, const char *path), void *ctx)
{
    kvr_lock(&peers.lock);
    const struct kvr_tls_peer *p = peers.first;
    kvr_unlock(&peers.lock);
    for (; p; p = p->next) { /* the list only grows, at its head; the names of files do not change */
        if (!is_used(p)) continue;
        const char *const files[] = {p->ca, p->cert, p->key};
        for (size_t i = 0; i < KVR_ARRAY_LEN(files); i++)
            if (files[i]) fn(ctx, files[i]);
    }
}

static bool expect_name(SSL *ssl, const char *name, bool is_numeric)
{
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return is_numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1
                      : SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

/* A server's sessions are apart by its whole address: behind two ports of a host there may be two. */
static bool remember_whom(struct kvr_tls *t, struct kvr_tls_peer *peer, const char *host, uint16_t port)
{
    size_t cap = strlen(host) + sizeof ":65535";
    t->peer = peer;
    t->to = malloc(cap);
    if (t->to) snprintf(t->to, cap, "%s:%u", host, port);
    SSL_set_app_data(t->ssl, t);
    return t->to;
}

struct kvr_tls *kvr_tls_connect(const struct kvr_tls_peer *to, const char *host, uint16_t port, bool is_numeric)
{
    struct kvr_tls_peer *peer = to ? own(to) : &peers.common;
    char unused[320];
    kvr_lock(&peers.lock);
    if (!peer->ssl && peer == &peers.common) peers.common.ssl = client_ctx(peer, unused, sizeof unused);
    struct kvr_tls *t = session(peer->ssl ? SSL_new(peer->ssl) : NULL);
    bool ok = t && remember_whom(t, peer, host, port) &&
              (peer->name ? expect_name(t->ssl, peer->name, false) : expect_name(t->ssl, host, is_numeric));
    if (ok) resume_locked(t);
    kvr_unlock(&peers.lock);
    if (ok && SSL_set_alpn_protos(t->ssl, http1, sizeof http1 - 1) == 0) {
        SSL_set_connect_state(t->ssl);
        return t;
    }
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
    else if (ERR_peek_last_error())
        ERR_error_string_n(ERR_peek_error(), text, sizeof text); /* the first one says why, those behind it who had asked */
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
    if (t->to && SSL_is_init_finished(t->ssl)) SSL_set_shutdown(t->ssl, SSL_SENT_SHUTDOWN); /* else its session could not be resumed */
    SSL_free(t->ssl);
    free(t->to);
    free(t);
}

bool kvr_tls_is_resumed(const struct kvr_tls *t)
{
    return SSL_session_reused(t->ssl);
}

bool kvr_tls_is_up(const struct kvr_tls *t)
{
    return SSL_is_init_finished(t->ssl);
}

bool kvr_tls_has_alpn(const struct kvr_tls *t)
{
    const unsigned char *chosen;
    unsigned len;
    SSL_get0_alpn_selected(t->ssl, &chosen, &len);
    return len > 0;
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

static bool write_piece(struct kvr_tls *t, const char *data, size_t len)
{
    size_t n = 0;
    return len == 0 || (SSL_write_ex(t->ssl, data, len, &n) && n == len);
}

bool kvr_tls_write(struct kvr_tls *t, const uv_buf_t *bufs, unsigned n)
{
    char record[SSL3_RT_MAX_PLAIN_LENGTH];
    size_t used = 0;
    bool ok = true;
    ERR_clear_error();
    for (unsigned i = 0; i < n && ok; i++) {
        if (used + bufs[i].len > sizeof record) {
            ok = write_piece(t, record, used);
            used = 0;
        }
        if (bufs[i].len > sizeof record) {
            ok = ok && write_piece(t, bufs[i].base, bufs[i].len);
        } else if (bufs[i].len) {
            memcpy(record + used, bufs[i].base, bufs[i].len);
            used += bufs[i].len;
        }
    }
    return ok && write_piece(t, record, used);
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
    BUF_MEM *room = NULL;
    (void)BIO_get_mem_ptr(t->out, &room);
    BIO *fresh = room && room->max > ROOM_MAX ? BIO_new(BIO_s_mem()) : NULL;
    if (!fresh) {
        (void)BIO_reset(t->out);
        return;
    }
    SSL_set0_wbio(t->ssl, fresh); /* a reset keeps all the room that was ever needed, and writes zeros to it */
    t->out = fresh;
}
