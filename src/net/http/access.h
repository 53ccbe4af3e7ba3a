/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may use a port that changes or tells what a program holds: the admin port, `select`, `indexer`, `publish`. Such ports are
 * not for web pages, and two kinds of these reach them through the browser of somebody who may: a page that sends a request to
 * the port (its Origin is foreign, and without a question asked first the body cannot be said to be JSON), and one whose own name
 * was pointed at the port (DNS rebinding: the Host is a name that is not ours). So a request must have
 *
 *     Host           an IP literal, a loopback name, the address that is bound, this machine's name, or one that is configured
 *     Origin         none, the Host itself, or a host that is configured
 *     Authorization  Bearer with one of the keys, if there are keys
 *     Content-Type   application/json when there is a body (where the route takes it, application/msgpack)
 *
 * An IP literal is safe as a Host: a page that was loaded from that address is the only one with it.
 *
 * Threads: check from any; reload from one at a time, beside checks. The rest is fixed after the creation.
 */
#ifndef KVR_NET_HTTP_ACCESS_H
#define KVR_NET_HTTP_ACCESS_H

#include "net/http/http.h"

struct kvr_prom_page;

enum { KVR_KEY_MAX = 4096 }; /* bytes of a line in a file of keys, with its end */

struct kvr_access;

/* The strings are copied. */
struct kvr_access_config {
    const char *bind;       /* the address that is listened on; NULL: none */
    const char *hosts;      /* comma list of names; ".domain": all under it; "*": every Host (not every Origin). NULL: none */
    const char *key_file;   /* one key a line, # and empty lines are left out; NULL: no key is needed */
    const char *advertised; /* the name others are told; NULL: none */
};

/* err: why not, naming the value and what is allowed, to be put behind the option's name. Returns: 0 or -1. */
int kvr_access_create(const struct kvr_access_config *config, struct kvr_access **out, char *err, size_t cap);
void kvr_access_destroy(struct kvr_access *a); /* NULL is fine */
/* Reads the keys again; when that fails those of before stay. Returns: 0, or -1 with the reason in err. */
int kvr_access_reload(struct kvr_access *a, char *err, size_t cap);
bool kvr_access_has_keys(const struct kvr_access *a);

enum {
    KVR_ACCESS_PROBE = 1,   /* the route tells nothing (/health, /ready): a GET of it is open to all */
    KVR_ACCESS_KEYLESS = 2, /* a GET needs no key: the page that asks for one */
    KVR_ACCESS_PACKED = 4   /* the body may be msgpack */
};

struct kvr_access_refusal {
    int status;        /* 401, 403, 415 */
    const char *extra; /* header lines of the answer, or NULL */
    char text[400];    /* with bytes of the request: to be escaped where it is written */
};

/* Returns: whether the request may go on; if not, `out` is the answer and it is counted. */
bool kvr_access_check(struct kvr_access *a, const struct kvr_http_request *rq, unsigned flags, struct kvr_access_refusal *out);
/* How much of its body is wanted of who sends this head, for kvr_http_server_config.body_room: nothing of who has no valid key. Counts
 * nothing: kvr_access_check refuses it when it is handed over. */
size_t kvr_access_body_room(struct kvr_access *a, const struct kvr_http_request *rq);
/* Is it that media type, whatever its parameters? */
bool kvr_media_type_is(struct kvr_text value, const char *type);
/* kvroute_access_refused_total by reason. */
void kvr_access_metrics(struct kvr_access *a, struct kvr_prom_page *out);
uint64_t kvr_access_refused_keys(struct kvr_access *a);

/* Without a key, on an address that others reach: a line that says so, for the program's log. false: there is nothing to say. */
bool kvr_access_warning(struct kvr_access *a, char *out, size_t cap);

/* A file of keys as an array that ends with NULL; each malloc'd. NULL with the reason in err: not readable, or no key. */
char **kvr_keys_read(const char *path, char *err, size_t cap);
void kvr_keys_free(char **keys);

#endif
