/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Session affinity: session id -> (worker, rank), dropped after an idle time.
 *
 * Threads: any. The lock is a leaf; ids are hashed before it is taken.
 */
#include "app/serve/data/state/sessions.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/data/state/room.h"
#include "base/lru.h"

enum { SESSIONS_MAX = 1 << 20, SESSION_ID_MAX = 272 };

struct session {
    struct kvr_lru_entry lru;
    uint64_t touched_ms, told_ms;
    struct kvr_worker worker;
    size_t len;
    char id[];
};

struct session_table {
    struct kvr_lock lock;
    uint64_t ttl_ms;
    struct kvr_lru sessions;
    uint64_t given_up; /* for room, before their time */
};

struct session_table *sessions_create(double ttl_s)
{
    struct session_table *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->ttl_ms = (uint64_t)(ttl_s * 1000);
    kvr_lock_init(&t->lock, KVR_LOCK_SESSIONS);
    if (kvr_lru_init(&t->sessions) == 0) return t;
    free(t);
    return NULL;
}

struct name {
    const char *id;
    size_t len;
};

static bool same(const struct kvr_lru_entry *e, const void *key)
{
    const struct session *s = (const struct session *)e;
    const struct name *n = key;
    return s->len == n->len && memcmp(s->id, n->id, n->len) == 0;
}

static struct session *find(const struct session_table *t, uint64_t hash, const char *id, size_t len)
{
    return (struct session *)kvr_lru_find(&t->sessions, hash, same, &(struct name){id, len});
}

static uint64_t hash_of(const char *id, size_t len)
{
    return kvr_hash_bytes(id, len, kvr_secret());
}

static struct session *oldest(const struct session_table *t)
{
    return (struct session *)t->sessions.oldest;
}

static void drop(struct session_table *t, struct session *s)
{
    kvr_lru_remove(&t->sessions, &s->lru);
    free(s);
}

static void expire(struct session_table *t, uint64_t now)
{
    for (struct session *s; (s = oldest(t)) && (now - s->touched_ms >= t->ttl_ms || t->sessions.n > SESSIONS_MAX);) {
        t->given_up += now - s->touched_ms < t->ttl_ms;
        drop(t, s);
    }
}

bool sessions_get(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker *out)
{
    if (!t) return false;
    uint64_t hash = hash_of(id, len);
    kvr_lock(&t->lock);
    expire(t, now);
    const struct session *s = find(t, hash, id, len);
    if (s) *out = s->worker;
    kvr_unlock(&t->lock);
    return s != NULL;
}

static struct session *add(struct session_table *t, uint64_t hash, const char *id, size_t len)
{
    struct session *s = malloc(sizeof *s + len);
    if (!s) return NULL;
    s->len = len;
    memcpy(s->id, id, len);
    kvr_lru_add(&t->sessions, &s->lru, hash);
    return s;
}

static bool bind_locked(struct session_table *t, uint64_t hash, const char *id, size_t len, uint64_t now, struct kvr_worker w)
{
    struct session *s = find(t, hash, id, len);
    bool news = !s || kvr_worker_cmp(s->worker, w) != 0 || now - s->told_ms >= t->ttl_ms / 4;
    if (s) kvr_lru_touch(&t->sessions, &s->lru);
    else s = add(t, hash, id, len);
    if (!s) return false;
    s->worker = w;
    s->touched_ms = now;
    if (news) s->told_ms = now;
    expire(t, now);
    return news;
}

static bool can_be_bound(const struct session_table *t, size_t len)
{
    return t && len > 0 && len <= SESSION_ID_MAX;
}

bool sessions_bind(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker w)
{
    if (!can_be_bound(t, len)) return false;
    uint64_t hash = hash_of(id, len);
    kvr_lock(&t->lock);
    bool news = bind_locked(t, hash, id, len, now, w);
    kvr_unlock(&t->lock);
    return news;
}

void sessions_adopt(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker w)
{
    if (!can_be_bound(t, len)) return;
    uint64_t hash = hash_of(id, len);
    kvr_lock(&t->lock);
    expire(t, now);
    if (!find(t, hash, id, len)) (void)bind_locked(t, hash, id, len, now, w);
    kvr_unlock(&t->lock);
}

void sessions_forget(struct session_table *t, const char *id, size_t len)
{
    if (!t) return;
    uint64_t hash = hash_of(id, len);
    kvr_lock(&t->lock);
    struct session *s = find(t, hash, id, len);
    if (s) drop(t, s);
    kvr_unlock(&t->lock);
}

struct session_counts sessions_counts(struct session_table *t)
{
    if (!t) return (struct session_counts){0};
    kvr_lock(&t->lock);
    struct session_counts n = {t->sessions.n, t->given_up};
    kvr_unlock(&t->lock);
    return n;
}

void sessions_destroy(struct session_table *t)
{
    if (!t) return;
    while (oldest(t)) drop(t, oldest(t));
    kvr_lru_free(&t->sessions);
    kvr_lock_destroy(&t->lock);
    free(t);
}
