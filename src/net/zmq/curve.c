/* SPDX-License-Identifier: Apache-2.0 */
/* The door speaks ZAP 1.0 (rfc.zeromq.org/spec/27) at inproc://zeromq.zap.01: version, request id, domain, address, routing id,
 * mechanism, and with CURVE the client's key of 32 bytes; the answer: version, request id, status, text, user, metadata. */
#include "net/zmq/curve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/base.h"

enum { Z85 = 40, KEYS_MAX = 4096, LINE_MAX_LEN = 1024, ZAP_FRAMES = 7 };

struct known {
    char key[Z85 + 1], endpoint[256];
};

struct known_list {
    struct known *items;
    size_t n;
};

struct kvr_curve {
    bool has_key;
    char public_key[Z85 + 1], secret_key[Z85 + 1];
    struct known_list clients, servers;
};

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static bool is_key(const char *s, size_t len)
{
    char text[Z85 + 1];
    uint8_t raw[32];
    if (len != Z85) return false;
    memcpy(text, s, Z85);
    text[Z85] = 0;
    return zmq_z85_decode(raw, text) != NULL;
}

/* Splits a line of words. "name = \"KEY\"" of zcert files counts as KEY when `name` is wanted, as nothing otherwise. */
static size_t words_of(char *line, const char *name, char *out[2])
{
    size_t n = 0;
    char *rest = line, *word, *value = strchr(line, '"');
    if (value && strchr(line, '=') && strchr(line, '=') < value) {
        char *end = strchr(value + 1, '"');
        if (!strstr(line, name) || strstr(line, name) > value || !end) return 0;
        *end = 0;
        out[0] = value + 1;
        return 1;
    }
    while (n < 2 && (word = strsep(&rest, " \t\r\n")))
        if (*word) out[n++] = word;
    return n;
}

static int add_known(struct known_list *l, const char *key, const char *endpoint)
{
    struct known *p = l->n < KEYS_MAX ? realloc(l->items, (l->n + 1) * sizeof *p) : NULL;
    if (!p) return -1;
    l->items = p;
    p = &l->items[l->n++];
    snprintf(p->key, sizeof p->key, "%s", key);
    snprintf(p->endpoint, sizeof p->endpoint, "%s", endpoint ? endpoint : "");
    return 0;
}

/* Keys of a file. name: what a zcert calls them. */
static int read_keys(const char *option, const char *path, const char *name, struct known_list *l, char *err, size_t cap)
{
    char line[LINE_MAX_LEN], *word[2] = {NULL, NULL};
    size_t at = 0;
    int rc = 0;
    FILE *f = fopen(path, "re");
    if (!f) return snprintf(err, cap, "%s: cannot read '%.200s': %s", option, path, strerror(errno)), -1;
    while (rc == 0 && fgets(line, sizeof line, f)) {
        at++;
        if (line[0] == '#' && (line[1] == ' ' || line[1] == '\n' || line[1] == '#')) continue;
        size_t n = words_of(line, name, word);
        if (n == 0 || (n == 1 && (!strcmp(word[0], "curve") || !strcmp(word[0], "metadata")))) continue;
        if (!is_key(word[0], strlen(word[0])))
            rc = snprintf(err, cap, "%s: '%.200s' line %zu is no key; allowed: 40 characters of Z85, as `kvroute curve-key` writes them",
                          option, path, at) > 0;
        else if (add_known(l, word[0], n == 2 ? word[1] : NULL))
            rc = snprintf(err, cap, "%s: '%.200s' has too many keys; allowed: at most %d", option, path, KEYS_MAX) > 0;
    }
    (void)fclose(f);
    if (rc == 0 && l->n == 0) rc = snprintf(err, cap, "%s: '%.200s' has no key", option, path) > 0;
    return rc ? -1 : 0;
}

static int read_own(const struct kvr_curve_options *o, struct kvr_curve *c, char *err, size_t cap)
{
    struct known_list l = {0};
    if (!o->key) return 0;
    int rc = read_keys("--zmq-curve-key", o->key, "secret-key", &l, err, cap);
    if (rc == 0) {
        snprintf(c->secret_key, sizeof c->secret_key, "%s", l.items[l.n - 1].key);
        c->has_key = zmq_curve_public(c->public_key, c->secret_key) == 0;
        rc = c->has_key ? 0 : -1;
        if (rc) snprintf(err, cap, "--zmq-curve-key: this libzmq has no CURVE");
    }
    free(l.items);
    return rc;
}

int kvr_curve_load(const struct kvr_curve_options *o, struct kvr_curve **out, char *err, size_t cap)
{
    *out = NULL;
    if (!o->key && !o->clients && !o->servers) return 0;
    if (!o->key)
        return snprintf(err, cap, "%s: needs --zmq-curve-key, our own key", o->clients ? "--zmq-curve-clients" : "--zmq-curve-servers"), -1;
    struct kvr_curve *c = calloc(1, sizeof *c);
    if (!c) return snprintf(err, cap, "out of memory"), -1;
    int rc = read_own(o, c, err, cap);
    if (rc == 0 && o->clients) rc = read_keys("--zmq-curve-clients", o->clients, "public-key", &c->clients, err, cap);
    if (rc == 0 && o->servers) rc = read_keys("--zmq-curve-servers", o->servers, "public-key", &c->servers, err, cap);
    if (rc) kvr_curve_free(c);
    else *out = c;
    return rc;
}

void kvr_curve_free(struct kvr_curve *c)
{
    if (!c) return;
    free(c->clients.items);
    free(c->servers.items);
    explicit_bzero(c, sizeof *c);
    free(c);
}

int kvr_curve_make(const char *path, char out[41], char *err, size_t cap)
{
    char secret[Z85 + 1];
    if (zmq_curve_keypair(out, secret)) return snprintf(err, cap, "this libzmq has no CURVE"), -1;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!f) {
        snprintf(err, cap, "cannot make '%.200s': %s", path, strerror(errno));
        if (fd >= 0) (void)close(fd);
        return -1;
    }
    bool ok = fprintf(f, "curve\n    public-key = \"%s\"\n    secret-key = \"%s\"\n", out, secret) > 0;
    ok = fclose(f) == 0 && ok;
    explicit_bzero(secret, sizeof secret);
    if (!ok) snprintf(err, cap, "cannot write '%.200s': %s", path, strerror(errno));
    return ok ? 0 : -1;
}

/* ---- connecting --------------------------------------------------------------------------------------------------------- */

static const struct known *server_of(const struct kvr_curve *c, const char *endpoint)
{
    for (size_t i = 0; i < c->servers.n; i++)
        if (strncmp(endpoint, c->servers.items[i].endpoint, strlen(c->servers.items[i].endpoint)) == 0) return &c->servers.items[i];
    return NULL;
}

int kvr_curve_client(const struct kvr_curve *c, void *socket, const char *endpoint)
{
    const struct known *k = c ? server_of(c, endpoint) : NULL;
    if (!k) return 0;
    return zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, k->key, Z85 + 1) ||
                   zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, c->public_key, Z85 + 1) ||
                   zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, c->secret_key, Z85 + 1)
               ? -1
               : 0;
}

/* ---- the door ----------------------------------------------------------------------------------------------------------- */

struct kvr_curve_door {
    const struct kvr_curve *curve;
    void *rep;
    pthread_t thread;
};

static bool may_enter(const struct kvr_curve *c, const void *raw, size_t len)
{
    char key[Z85 + 1];
    if (len != 32 || !zmq_z85_encode(key, raw, 32)) return false;
    for (size_t i = 0; i < c->clients.n; i++)
        if (strcmp(c->clients.items[i].key, key) == 0) return true;
    return false;
}

static void answer(void *rep, const char *id, size_t id_len, bool ok)
{
    zmq_send(rep, "1.0", 3, ZMQ_SNDMORE);
    zmq_send(rep, id, id_len, ZMQ_SNDMORE);
    zmq_send(rep, ok ? "200" : "400", 3, ZMQ_SNDMORE);
    zmq_send(rep, ok ? "OK" : "no such key", ok ? 2 : 11, ZMQ_SNDMORE);
    zmq_send(rep, "", 0, ZMQ_SNDMORE);
    zmq_send(rep, "", 0, 0);
}

/* Until the context ends. */
static void *door_main(void *arg)
{
    struct kvr_curve_door *d = arg;
    for (;;) {
        char frame[ZAP_FRAMES][256];
        int len[ZAP_FRAMES] = {0}, n = 0, more = 1;
        size_t size = sizeof more;
        while (more) {
            char sink[256];
            int k = zmq_recv(d->rep, n < ZAP_FRAMES ? frame[n] : sink, 256, 0);
            if (k < 0 && zmq_errno() == EINTR) continue;
            if (k < 0) {
                zmq_close(d->rep);
                return NULL;
            }
            if (n < ZAP_FRAMES) len[n] = KVR_MIN(k, 256);
            n++;
            if (zmq_getsockopt(d->rep, ZMQ_RCVMORE, &more, &size)) more = 0;
        }
        bool curve = n == ZAP_FRAMES && len[5] == 5 && memcmp(frame[5], "CURVE", 5) == 0;
        answer(d->rep, frame[1], (size_t)len[1], curve && may_enter(d->curve, frame[6], (size_t)len[6]));
    }
}

int kvr_curve_door_open(const struct kvr_curve *c, void *zmq, struct kvr_curve_door **out)
{
    *out = NULL;
    if (!c) return 0;
    if (!c->clients.n) return -KVR_EINVAL;
    struct kvr_curve_door *d = calloc(1, sizeof *d);
    if (!d) return -KVR_ENOMEM;
    d->curve = c;
    d->rep = zmq_socket(zmq, ZMQ_REP);
    if (d->rep && zmq_bind(d->rep, "inproc://zeromq.zap.01") == 0 && pthread_create(&d->thread, NULL, door_main, d) == 0) {
        *out = d;
        return 0;
    }
    if (d->rep) zmq_close(d->rep);
    free(d);
    return -KVR_ENOMEM;
}

int kvr_curve_server(struct kvr_curve_door *d, void *socket)
{
    int one = 1;
    if (!d) return 0;
    return zmq_setsockopt(socket, ZMQ_CURVE_SERVER, &one, sizeof one) ||
                   zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, d->curve->secret_key, Z85 + 1) ||
                   zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, "kvroute", 7)
               ? -1
               : 0;
}

void kvr_curve_door_close(struct kvr_curve_door *d)
{
    if (!d) return;
    pthread_join(d->thread, NULL);
    free(d);
}
