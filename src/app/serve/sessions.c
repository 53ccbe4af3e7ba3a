/* SPDX-License-Identifier: Apache-2.0 */
/* Session affinity: session id -> (worker, rank), dropped after an idle time. Under serve.lock. */
#include "app/serve/state.h"

#include <string.h>
#include <kvroute/hash.h>

enum { SESSIONS_MAX = 1 << 20, SESSION_ID_MAX = 256 };

struct session {
    struct session *bucket_next, *older, *newer;
    uint64_t hash, touched_ms, told_ms;
    struct kvr_worker worker;
    size_t len;
    char id[];
};

struct session_table {
    uint64_t ttl_ms;
    struct session **buckets;
    size_t cap, n;
    uint64_t given_up; /* for room, before their time */
    struct session *oldest, *newest;
};

struct session_table *sessions_create(double ttl_s)
{
    struct session_table *t = calloc(1, sizeof *t);
    if (!t) return NULL;
    t->ttl_ms = (uint64_t)(ttl_s * 1000);
    t->cap = 1024;
    t->buckets = calloc(t->cap, sizeof(struct session *));
    if (t->buckets) return t;
    free(t);
    return NULL;
}

static struct session **place(const struct session_table *t, uint64_t hash, const char *id, size_t len)
{
    struct session **p = &t->buckets[hash & (t->cap - 1)];
    while (*p && !((*p)->hash == hash && (*p)->len == len && memcmp((*p)->id, id, len) == 0)) p = &(*p)->bucket_next;
    return p;
}

static void unlink_age(struct session_table *t, struct session *s)
{
    *(s->older ? &s->older->newer : &t->oldest) = s->newer;
    *(s->newer ? &s->newer->older : &t->newest) = s->older;
}

static void link_newest(struct session_table *t, struct session *s)
{
    s->older = t->newest;
    s->newer = NULL;
    *(t->newest ? &t->newest->newer : &t->oldest) = s;
    t->newest = s;
}

static void drop(struct session_table *t, struct session *s)
{
    *place(t, s->hash, s->id, s->len) = s->bucket_next;
    unlink_age(t, s);
    t->n--;
    free(s);
}

static void expire(struct session_table *t, uint64_t now)
{
    while (t->oldest && (now - t->oldest->touched_ms >= t->ttl_ms || t->n > SESSIONS_MAX)) {
        t->given_up += now - t->oldest->touched_ms < t->ttl_ms;
        drop(t, t->oldest);
    }
}

bool sessions_get(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker *out)
{
    if (!t) return false;
    expire(t, now);
    const struct session *s = *place(t, kvr_hash_bytes(id, len, kvr_secret()), id, len);
    if (s) *out = s->worker;
    return s != NULL;
}

static void grow(struct session_table *t)
{
    size_t cap = t->cap * 2;
    struct session **b = calloc(cap, sizeof *b);
    if (!b) return;
    for (size_t i = 0; i < t->cap; i++)
        for (struct session *s = t->buckets[i], *next; s; s = next) {
            next = s->bucket_next;
            s->bucket_next = b[s->hash & (cap - 1)];
            b[s->hash & (cap - 1)] = s;
        }
    free(t->buckets);
    t->buckets = b;
    t->cap = cap;
}

bool sessions_bind(struct session_table *t, const char *id, size_t len, uint64_t now, struct kvr_worker w)
{
    if (!t || len == 0 || len > SESSION_ID_MAX) return false;
    uint64_t hash = kvr_hash_bytes(id, len, kvr_secret());
    struct session *s = *place(t, hash, id, len);
    bool news = !s || kvr_worker_cmp(s->worker, w) != 0 || now - s->told_ms >= t->ttl_ms / 4;
    if (s) {
        unlink_age(t, s);
    } else {
        if (t->n >= t->cap) grow(t);
        s = malloc(sizeof *s + len);
        if (!s) return false;
        s->hash = hash;
        s->len = len;
        memcpy(s->id, id, len);
        struct session **head = &t->buckets[hash & (t->cap - 1)];
        s->bucket_next = *head;
        *head = s;
        t->n++;
    }
    s->worker = w;
    s->touched_ms = now;
    if (news) s->told_ms = now;
    link_newest(t, s);
    expire(t, now);
    return news;
}

void sessions_forget(struct session_table *t, const char *id, size_t len)
{
    struct session *s = t ? *place(t, kvr_hash_bytes(id, len, kvr_secret()), id, len) : NULL;
    if (s) drop(t, s);
}

size_t sessions_count(const struct session_table *t)
{
    return t ? t->n : 0;
}

uint64_t sessions_given_up(const struct session_table *t)
{
    return t ? t->given_up : 0;
}

void sessions_destroy(struct session_table *t)
{
    if (!t) return;
    while (t->oldest) drop(t, t->oldest);
    free(t->buckets);
    free(t);
}
