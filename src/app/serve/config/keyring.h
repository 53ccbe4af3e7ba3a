/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The API keys in force. A keyring does not change once it is made: a request holds the one that it found, and reads it without a lock;
 * reading the file again puts another one in its place for the requests that come then.
 *
 *     request --> keyring --> key --> use        what the key has used: buckets, requests under way, counters
 *                    |                 ^
 *     (replaced)  keyring --> key -----'         the same one, by the key's name: it outlives a reload, and a new secret
 *
 * A key is found by the SHA-256 of what the client sent: one digest for a request, one place of a table (keyed, so that nobody can
 * prepare secrets that meet there), and a comparison in constant time. The table tells nothing by its timing but places of digests, from
 * which no secret can be made.
 *
 * Use is counted for the process, whatever the number of data loops; other routers have their own.
 *
 * Threads: any; changes are the main loop's. Locks: KEYRING to take hold of the one in force, KEY_USE for buckets: leaves, held for a
 * few instructions; never both.
 */
#ifndef KVR_SERVE_KEYRING_H
#define KVR_SERVE_KEYRING_H

#include "app/serve/config/api_keys.h"
#include "base/bucket.h"
#include "base/lock.h"
#include "net/http/http.h"

struct kvr_prom_page;
struct policy_profile;
struct config;

/* Why a request is refused, and how /metrics calls it. */
#define KEY_REFUSAL_REASONS(X)                                                                                                             \
    X(MISSING, "missing")                                                                                                                  \
    X(UNKNOWN, "unknown")                                                                                                                  \
    X(UNLIKE, "unlike_keys")                                                                                                               \
    X(EXPIRED, "expired")                                                                                                                  \
    X(MODEL, "model")                                                                                                                      \
    X(BODY, "body_size")                                                                                                                   \
    X(PROMPT, "prompt_tokens")                                                                                                             \
    X(CONCURRENT, "concurrency")                                                                                                           \
    X(REQUESTS, "requests")                                                                                                                \
    X(TOKENS, "tokens")                                                                                                                    \
    X(UNFINISHED, "unfinished_bodies")

enum key_refusal {
#define KEY_REFUSED(id, reason) KEY_REFUSED_##id,
    KEY_REFUSAL_REASONS(KEY_REFUSED)
#undef KEY_REFUSED
        KEY_REFUSALS
};

enum { KEY_STATUSES = 6 }; /* by the first digit; 0: others */

/* What a key, or a model, uses and has used. */
struct key_use {
    _Atomic size_t holders;
    char name[MODEL_MAX];
    struct kvr_lock lock; /* the buckets */
    struct kvr_bucket requests, tokens;
    _Atomic uint64_t under_way;
    _Atomic uint64_t answered[KEY_STATUSES], refused[KEY_REFUSALS], tokens_in, tokens_out;
};

struct keyring {
    _Atomic size_t holders;
    struct api_keys file;
    uint64_t secret;
    uint32_t *table; /* of file.keys, from 1; 0: free */
    size_t mask;
};

/* Reads the file that is configured, if there is one. Returns: 0, or -1 with the reason in err, which names the option. */
int keyrings_open(struct config *config, char *err, size_t cap);
/* Reads it again; when that fails the keys of before stay. Returns: 0, or -1 with the reason in err. */
int keyrings_reload(struct config *config, char *err, size_t cap);
/* Whether the policy that is in force has the classes that keys name; if not, the first that it has not in err. The main loop's. */
bool keyrings_have_classes(const struct config *config, char *err, size_t cap);
/* The next key of a file, from *at on, whose policy_class none of the profiles has: true, with what is wrong in err. */
bool keyrings_next_classless(const char *path, const struct api_keys *f, const struct policy_profile *profiles, size_t n, size_t *at,
                             char *err, size_t cap);
bool keyrings_are_used(const struct config *config);                      /* a file is configured */
void keyrings_count_nobodys(struct config *config, enum key_refusal why); /* a refusal that is no key's */
void keyrings_close(struct config *config);
/* Names, limits and use of each; no secret. */
void keyrings_write(struct config *config, struct kvr_buf *out);
/* kvroute_key_... */
void keyrings_metrics(struct config *config, struct kvr_prom_page *out);

/* With a reference; NULL: nothing is checked. */
struct keyring *keyring_hold(struct config *config);
void keyring_let_go(struct keyring *ring); /* NULL is fine */
/* Borrowed from the ring. NULL: it has no such key, or there is no memory. */
const struct api_key *keyring_find(const struct keyring *ring, struct kvr_text secret);
/* Several models have limits: of a request that names none nobody could say which are its. */
bool keyring_wants_names(const struct keyring *ring);
/* The limits of a model; NULL: it has none. "": of the only one that has some. */
const struct limited_model *keyring_model(const struct keyring *ring, const char *model);

enum key_bucket { KEY_BUCKET_REQUESTS, KEY_BUCKET_TOKENS };

/* One more request under way. Returns: false: there are as many as may be, and it does not count. */
bool key_use_enter(struct key_use *u, const struct key_limits *l);
void key_use_leave(struct key_use *u);
/* As kvr_bucket_take and kvr_bucket_correct. */
double key_use_take(struct key_use *u, const struct key_limits *l, enum key_bucket which, double amount);
void key_use_correct(struct key_use *u, const struct key_limits *l, enum key_bucket which, double more);

struct key_left {
    bool limited;
    double limit, left, full_in_s;
};
struct key_left key_use_left(struct key_use *u, const struct key_limits *l, enum key_bucket which);

static inline void key_use_refused(struct key_use *u, enum key_refusal why)
{
    atomic_fetch_add_explicit(&u->refused[why], 1, memory_order_relaxed);
}

#endif
