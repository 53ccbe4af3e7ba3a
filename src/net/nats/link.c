/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads: the client library has a reader, a callback thread, and one thread for each subscription. `lock` guards the
 * listeners and `up`, and is held while listeners run, so that each sees the changes in order and none after unlisten; listeners
 * therefore take no lock under which this file is called. Counters are atomic.
 *
 * Whoever lets go of a subscription last frees the messages that wait in it, by way of a thread of the library that ends with the
 * last connection. So that this is never the delivery thread, kvr_nats_unsubscribe waits for its end, told by a destructor of
 * thread-specific data, and lets go after it.
 */
#include "base/log.h"
#include "net/nats/internal.h"

#include <nats/nats.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/lock.h"

enum { PING_MS = 500, PINGS_OUT = 2, RECONNECT_MS = 100, CONNECT_MS = 2000, SETTLE_MS = 1000, URLS_MAX = 16 };

struct kvr_nats {
    natsConnection *nc;
    struct kvr_lock lock;
    struct {
        kvr_nats_on_state *fn;
        void *ctx;
    } listeners[KVR_NATS_LISTENERS_MAX];
    size_t listeners_n;
    pthread_cond_t closed_cond;
    bool closed;
    struct retired {
        struct retired *next;
        natsSubscription *sub;
    } * retired;          /* under `lock`: freed by a later one, or with the connection */
    _Atomic bool closing; /* by us */
    _Atomic bool up;
    _Atomic uint64_t connects, disconnects, errors, published, publish_failures, received;
};

struct kvr_nats_sub {
    struct kvr_nats *link;
    natsSubscription *sub;
    kvr_nats_on_message *fn;
    void *ctx;
    struct kvr_lock lock;
    pthread_cond_t ended_cond;
    bool ended;
    _Atomic uint64_t dropped;
};

static _Atomic int links; /* connections of this process */

static void free_retired(struct retired *list);

/* ---- state ------------------------------------------------------------------------------------------------------ */

static void set_state(struct kvr_nats *n, bool up)
{
    kvr_lock(&n->lock);
    if (atomic_load(&n->up) != up) {
        atomic_store(&n->up, up);
        atomic_fetch_add(up ? &n->connects : &n->disconnects, 1);
        for (size_t i = 0; i < n->listeners_n; i++) n->listeners[i].fn(n->listeners[i].ctx, up);
    }
    kvr_unlock(&n->lock);
}

static void on_connected(natsConnection *nc, void *closure)
{
    char url[256] = "";
    struct kvr_nats *n = closure;
    natsConnection_GetConnectedUrl(nc, url, sizeof url);
    const char *at = strrchr(url, '@'); /* no passwords in a log */
    kvr_log("kvroute: nats: connected to %s", at ? at + 1 : url);
    set_state(n, true);
}

static void on_disconnected(natsConnection *nc, void *closure)
{
    struct kvr_nats *n = closure;
    const char *why = NULL;
    natsConnection_GetLastError(nc, &why);
    if (atomic_load(&n->up)) kvr_log_warning("kvroute: nats: the connection is lost%s%s", why && *why ? ": " : "", why ? why : "");
    set_state(n, false);
}

/* The last that is called of a connection. */
static void on_closed(natsConnection *nc, void *closure)
{
    struct kvr_nats *n = closure;
    const char *why = NULL;
    natsConnection_GetLastError(nc, &why);
    if (!atomic_load(&n->closing))
        kvr_log_warning("kvroute: nats: refused twice, so it is not tried again until a restart%s%s", why && *why ? ": " : "",
                        why ? why : "");
    set_state(n, false);
    kvr_lock(&n->lock);
    n->closed = true;
    pthread_cond_signal(&n->closed_cond);
    kvr_unlock(&n->lock);
}

static void on_error(natsConnection *nc, natsSubscription *, natsStatus err, void *closure)
{
    struct kvr_nats *n = closure;
    const char *why = NULL;
    if (atomic_fetch_add(&n->errors, 1) > 100) return; /* counted */
    natsConnection_GetLastError(nc, &why);
    kvr_log_warning("kvroute: nats: %s%s%s", natsStatus_GetText(err), why && *why ? ": " : "", why ? why : "");
}

void kvr__nats_failed(const char *what, natsStatus s)
{
    natsStatus last = NATS_OK;
    const char *why = nats_GetLastError(&last); /* of this thread */
    bool more = last == s && why && *why, none = s == NATS_NO_RESPONDERS;
    kvr_log_warning_of(kvr_log_key((uint64_t)s, 0, what), "kvroute: nats: %s: %s%s%s%s", what, natsStatus_GetText(s), more ? ": " : "",
                       more ? why : "", none ? "; is JetStream on at the server (nats-server -js)?" : "");
}

int kvr_nats_listen(struct kvr_nats *n, kvr_nats_on_state *fn, void *ctx)
{
    int rc = -KVR_ELIMIT;
    kvr_lock(&n->lock);
    if (n->listeners_n < KVR_NATS_LISTENERS_MAX) {
        n->listeners[n->listeners_n].fn = fn;
        n->listeners[n->listeners_n++].ctx = ctx;
        fn(ctx, atomic_load(&n->up));
        rc = 0;
    }
    kvr_unlock(&n->lock);
    return rc;
}

void kvr_nats_unlisten(struct kvr_nats *n, kvr_nats_on_state *fn, void *ctx)
{
    kvr_lock(&n->lock);
    for (size_t i = 0; i < n->listeners_n; i++)
        if (n->listeners[i].fn == fn && n->listeners[i].ctx == ctx) {
            n->listeners[i] = n->listeners[--n->listeners_n];
            break;
        }
    kvr_unlock(&n->lock);
}

bool kvr_nats_is_up(const struct kvr_nats *n)
{
    return atomic_load(&n->up);
}

void kvr_nats_stats(struct kvr_nats *n, struct kvr_nats_stats *out)
{
    *out = (struct kvr_nats_stats){atomic_load(&n->up),      atomic_load(&n->connects),  atomic_load(&n->disconnects),
                                   atomic_load(&n->errors),  atomic_load(&n->published), atomic_load(&n->publish_failures),
                                   atomic_load(&n->received)};
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

/* Without what stands between // and @. */
static void hide_passwords(const char *urls, char *out, size_t cap)
{
    size_t n = 0;
    for (const char *p = urls; *p && n + 1 < cap; p++) {
        const char *at = strncmp(p, "//", 2) == 0 ? p + strcspn(p, "@,") : NULL;
        if (at && *at == '@') {
            n += (size_t)snprintf(out + n, cap - n, "//...");
            n = KVR_MIN(n, cap - 1);
            p = at;
        }
        if (n + 1 < cap) out[n++] = *p;
    }
    out[n] = 0;
}

static int bad(char *err, size_t cap, const char *option, const char *text, natsStatus s, const char *allowed)
{
    char value[256];
    hide_passwords(text, value, sizeof value);
    return kvr_refuse(err, cap, "--%s: bad value '%.200s' (%s); allowed: %s", option, value, natsStatus_GetText(s), allowed);
}

static int set_urls(natsOptions *o, const char *urls, bool *tls, char *err, size_t cap)
{
    static const char allowed[] = "nats://[user:password@]host:port, at most 16, separated by commas";
    char *copy = strdup(urls), *rest = copy, *one;
    const char *list[URLS_MAX];
    int n = 0, rc = 0;
    while (copy && rc == 0 && (one = strsep(&rest, ", "))) {
        if (!*one) continue;
        if (strncmp(one, "tls://", 6) == 0) *tls = true;
        if (n == URLS_MAX) rc = bad(err, cap, "nats-url", urls, NATS_INVALID_ARG, allowed);
        else list[n++] = one;
    }
    natsStatus s = copy ? n ? NATS_OK : NATS_INVALID_ARG : NATS_NO_MEMORY;
    if (rc == 0 && s == NATS_OK) s = natsOptions_SetServers(o, list, n);
    if (rc == 0 && s != NATS_OK) rc = bad(err, cap, "nats-url", urls, s, allowed);
    free(copy);
    return rc;
}

static int set_security(natsOptions *o, const struct kvr_nats_config *c, bool tls, char *err, size_t cap)
{
    natsStatus s = NATS_OK;
    if (c->creds && (s = natsOptions_SetUserCredentialsFromFiles(o, c->creds, NULL)) != NATS_OK)
        return bad(err, cap, "nats-creds", c->creds, s, "a file with a user's credentials");
    if (c->creds && access(c->creds, R_OK)) return bad(err, cap, "nats-creds", c->creds, NATS_NOT_FOUND, "a file that can be read");
    if ((tls || c->ca || c->cert) && (s = natsOptions_SetSecure(o, true)) != NATS_OK)
        return bad(err, cap, "nats-url", c->url, s, "no TLS: the client library has none");
    if (c->ca && (s = natsOptions_LoadCATrustedCertificates(o, c->ca)) != NATS_OK)
        return bad(err, cap, "nats-tls-ca", c->ca, s, "a PEM file of certificates");
    if (!c->cert != !c->key)
        return bad(err, cap, "nats-tls-cert", c->cert ? c->cert : "", NATS_INVALID_ARG, "together with --nats-tls-key");
    if (c->cert && (s = natsOptions_LoadCertificatesChain(o, c->cert, c->key)) != NATS_OK)
        return bad(err, cap, "nats-tls-cert", c->cert, s, "PEM files of a certificate and its key");
    return 0;
}

static void set_behaviour(natsOptions *o, struct kvr_nats *n, const char *name)
{
    natsOptions_SetName(o, name ? name : "kvroute");
    natsOptions_SetTimeout(o, CONNECT_MS);
    natsOptions_SetPingInterval(o, PING_MS);
    natsOptions_SetMaxPingsOut(o, PINGS_OUT);
    natsOptions_SetAllowReconnect(o, true);
    natsOptions_SetMaxReconnect(o, -1);
    natsOptions_SetReconnectWait(o, RECONNECT_MS);
    natsOptions_SetReconnectJitter(o, RECONNECT_MS, RECONNECT_MS);
    natsOptions_SetReconnectBufSize(o, KVR_NATS_PENDING_MAX);
    natsOptions_SetWriteDeadline(o, CONNECT_MS);
    natsOptions_SetSendAsap(o, true);
    natsOptions_SetDisconnectedCB(o, on_disconnected, n);
    natsOptions_SetReconnectedCB(o, on_connected, n);
    natsOptions_SetErrorHandler(o, on_error, n);
    natsOptions_SetClosedCB(o, on_closed, n);
}

/* Nobody there yet is no mistake; being refused is one, which waiting does not mend. */
static natsStatus connect_now_or_later(struct kvr_nats *n, natsOptions *o)
{
    natsStatus s = natsConnection_Connect(&n->nc, o);
    if (s != NATS_NO_SERVER && s != NATS_TIMEOUT && s != NATS_IO_ERROR && s != NATS_CONNECTION_CLOSED) return s;
    natsOptions_SetRetryOnFailedConnect(o, true, on_connected, n);
    return natsConnection_Connect(&n->nc, o);
}

int kvr_nats_connect(const struct kvr_nats_config *c, struct kvr_nats **out, char *err, size_t cap)
{
    struct kvr_nats *n = calloc(1, sizeof *n);
    natsOptions *o = NULL;
    bool tls = false;
    if (!n || natsOptions_Create(&o) != NATS_OK) {
        free(n);
        return kvr_refuse(err, cap, "out of memory");
    }
    kvr_lock_init(&n->lock, KVR_LOCK_NATS);
    pthread_cond_init(&n->closed_cond, NULL);
    int rc = set_urls(o, c->url ? c->url : "nats://127.0.0.1:4222", &tls, err, cap);
    if (rc == 0) rc = set_security(o, c, tls, err, cap);
    set_behaviour(o, n, c->name);
    natsStatus s = rc ? NATS_OK : connect_now_or_later(n, o);
    natsOptions_Destroy(o);
    if (n->nc) atomic_fetch_add(&links, 1);
    if (rc == 0 && s == NATS_OK) on_connected(n->nc, n);
    if (rc == 0 && s != NATS_OK && s != NATS_NOT_YET_CONNECTED)
        rc = bad(err, cap, "nats-url", c->url ? c->url : "nats://127.0.0.1:4222", s, "the address of a NATS server");
    if (rc == 0 && s == NATS_NOT_YET_CONNECTED) kvr_log_warning("kvroute: nats: no server answers yet; kvroute goes on trying");
    if (rc) {
        kvr_nats_close(n);
        return -1;
    }
    *out = n;
    return 0;
}

void kvr_nats_close(struct kvr_nats *n)
{
    if (!n) return;
    if (n->nc) {
        atomic_store(&n->closing, true);
        if (atomic_load(&n->up)) natsConnection_FlushTimeout(n->nc, 500);
        natsConnection_Close(n->nc);
        kvr_lock(&n->lock);
        while (!n->closed) pthread_cond_wait(&n->closed_cond, &n->lock.mutex);
        kvr_unlock(&n->lock);
        free_retired(n->retired);
        natsConnection_Destroy(n->nc);
        if (atomic_fetch_sub(&links, 1) == 1) nats_CloseAndWait(2000); /* the library's own threads and memory */
    }
    pthread_cond_destroy(&n->closed_cond);
    kvr_lock_destroy(&n->lock);
    free(n);
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static int publish_result(struct kvr_nats *n, natsStatus s)
{
    atomic_fetch_add_explicit(s == NATS_OK ? &n->published : &n->publish_failures, 1, memory_order_relaxed);
    return s == NATS_OK ? 0 : s == NATS_INVALID_SUBJECT || s == NATS_INVALID_ARG || s == NATS_MAX_PAYLOAD ? -KVR_EINVAL : -KVR_ELIMIT;
}

int kvr_nats_publish(struct kvr_nats *n, const char *subject, const char *reply, const void *data, size_t len)
{
    if (len > INT32_MAX) return publish_result(n, NATS_MAX_PAYLOAD);
    return publish_result(n, reply ? natsConnection_PublishRequest(n->nc, subject, reply, data, (int)len)
                                   : natsConnection_Publish(n->nc, subject, data, (int)len));
}

int kvr_nats_flush(struct kvr_nats *n, int timeout_ms)
{
    return natsConnection_FlushTimeout(n->nc, timeout_ms) == NATS_OK ? 0 : -KVR_ETIMEDOUT;
}

bool kvr__nats_settle(struct kvr_nats *n)
{
    return kvr_nats_is_up(n) && natsConnection_FlushTimeout(n->nc, SETTLE_MS) == NATS_OK;
}

static void free_retired(struct retired *list)
{
    while (list) {
        struct retired *r = list;
        list = r->next;
        natsSubscription_Destroy(r->sub);
        free(r);
    }
}

void kvr__nats_retire(struct kvr_nats *n, natsSubscription *sub)
{
    struct retired *list = malloc(sizeof *list), **end = &list;
    (void)natsSubscription_Unsubscribe(sub);
    if (!list) return; /* without memory it is kept for good */
    kvr_lock(&n->lock);
    *list = (struct retired){n->retired, sub};
    n->retired = NULL;
    kvr_unlock(&n->lock);
    if (kvr__nats_settle(n)) {
        free_retired(list);
        return;
    }
    while (*end) end = &(*end)->next;
    kvr_lock(&n->lock);
    *end = n->retired;
    n->retired = list;
    kvr_unlock(&n->lock);
}

static void on_message(natsConnection *, natsSubscription *, natsMsg *msg, void *closure)
{
    struct kvr_nats_sub *s = closure;
    struct kvr_nats_message m = {natsMsg_GetSubject(msg), natsMsg_GetReply(msg), natsMsg_GetData(msg), (size_t)natsMsg_GetDataLength(msg)};
    atomic_fetch_add_explicit(&s->link->received, 1, memory_order_relaxed);
    s->fn(s->ctx, &m);
    natsMsg_Destroy(msg);
}

/* The delivery thread has returned from the library's code. */
static void on_thread_ended(void *closure)
{
    struct kvr_nats_sub *s = closure;
    kvr_lock(&s->lock);
    s->ended = true;
    pthread_cond_signal(&s->ended_cond);
    kvr_unlock(&s->lock);
}

static pthread_key_t thread_key;
static bool has_thread_key;

static void make_thread_key(void)
{
    has_thread_key = pthread_key_create(&thread_key, on_thread_ended) == 0;
}

/* The last call on the delivery thread, which still holds the subscription then, and what waits in it. */
static void on_sub_ended(void *closure)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, make_thread_key);
    if (!has_thread_key || pthread_setspecific(thread_key, closure)) on_thread_ended(closure);
}

int kvr_nats_subscribe(struct kvr_nats *n, const char *subject, const char *queue, size_t pending_bytes, kvr_nats_on_message *fn, void *ctx,
                       struct kvr_nats_sub **out)
{
    struct kvr_nats_sub *s = calloc(1, sizeof *s);
    if (!s) return -KVR_ENOMEM;
    *s = (struct kvr_nats_sub){.link = n, .fn = fn, .ctx = ctx};
    kvr_lock_init(&s->lock, KVR_LOCK_NATS_SUBSCRIPTION);
    pthread_cond_init(&s->ended_cond, NULL);
    natsStatus rc = queue ? natsConnection_QueueSubscribe(&s->sub, n->nc, subject, queue, on_message, s)
                          : natsConnection_Subscribe(&s->sub, n->nc, subject, on_message, s);
    if (rc == NATS_OK) {
        natsSubscription_SetPendingLimits(s->sub, -1, (int)KVR_MIN(pending_bytes, (size_t)INT32_MAX));
        natsSubscription_SetOnCompleteCB(s->sub, on_sub_ended, s);
        *out = s;
        return 0;
    }
    kvr_lock_destroy(&s->lock);
    pthread_cond_destroy(&s->ended_cond);
    free(s);
    return rc == NATS_NO_MEMORY ? -KVR_ENOMEM : -KVR_EINVAL;
}

void kvr_nats_unsubscribe(struct kvr_nats_sub *s)
{
    if (!s) return;
    natsSubscription_Unsubscribe(s->sub);
    kvr_lock(&s->lock);
    while (!s->ended) pthread_cond_wait(&s->ended_cond, &s->lock.mutex);
    kvr_unlock(&s->lock);
    kvr__nats_retire(s->link, s->sub);
    kvr_lock_destroy(&s->lock);
    pthread_cond_destroy(&s->ended_cond);
    free(s);
}

uint64_t kvr_nats_sub_dropped(const struct kvr_nats_sub *s)
{
    int64_t n = 0;
    return natsSubscription_GetDropped(s->sub, &n) == NATS_OK && n > 0 ? (uint64_t)n : 0;
}

void kvr_nats_inbox(char *out, size_t cap)
{
    natsInbox *inbox = NULL;
    out[0] = 0;
    if (natsInbox_Create(&inbox) == NATS_OK) snprintf(out, cap, "%s", inbox);
    natsInbox_Destroy(inbox);
}

natsConnection *kvr__nats_connection(struct kvr_nats *n)
{
    return n->nc;
}

natsStatus kvr__nats_jetstream(struct kvr_nats *link, int64_t wait_ms, jsCtx **out)
{
    jsOptions o;
    jsOptions_Init(&o);
    o.Wait = wait_ms;
    return natsConnection_JetStream(out, kvr__nats_connection(link), &o);
}
