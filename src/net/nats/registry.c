/* SPDX-License-Identifier: Apache-2.0 */
/* `lock` guards the list of kept keys and what is known of them; it is not held over calls to the server, nor over handlers. */
#include "base/lock.h"
#include "net/nats/registry.h"

#include <nats/nats.h>
#include <pthread.h>
#include <string.h>
#include <kvroute/hash.h>

#include "net/nats/internal.h"

enum { STEP_MS = 50, CALL_MS = 1000, KEPT_MAX = 256, SEEN_MAX = 1 << 20, SEEN_BUCKETS = 4096, SETTLE_MS = 3000 };

struct kept {
    char key[KVR_REGISTRY_KEY_MAX];
    char *value;
    bool exclusive, held, tried, changed;
    char owner[512];
    uint64_t revision, due_ms, renewed_ms;
};

struct seen {
    struct seen *next;
    uint64_t hash, heard_ms;
    char key[KVR_REGISTRY_KEY_MAX];
};

struct kvr_registry {
    struct kvr_registry_config c;
    char bucket[64], watch[KVR_REGISTRY_KEY_MAX];
    uint64_t ttl_ms;
    pthread_t thread;
    struct kvr_lock lock;
    struct kept *kept[KEPT_MAX];
    size_t kept_n;
    bool stop, watched; /* watched: the initial entries have been told */
    /* the thread's own */
    jsCtx *js;
    kvStore *kv;
    kvWatcher *watcher;
    struct seen *seen[SEEN_BUCKETS]; /* the lists and their keys change under `lock` */
    size_t seen_n;
    uint64_t connects; /* of the link, last seen */
    uint64_t renew_ms; /* the watcher is made anew; 0: not. After a reconnect libnats (3.4) renews the watcher's consumer on a thread of its
                        * own, and destroying it meanwhile reads a name that thread has freed */
    uint64_t grace_ms; /* before, nothing is gone */
    bool lost;         /* the bucket: it is made anew when nothing watches it any more */
};

void kvr_registry_token(const char *text, char *out, size_t cap)
{
    size_t n = 0;
    bool changed = !*text;
    for (const char *p = text; *p && n + 20 < cap; p++) {
        bool ok = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') || *p == '-' || *p == '_';
        changed |= !ok;
        out[n++] = ok ? *p : '-';
    }
    changed |= strlen(text) > n;
    out[n] = 0;
    if (changed) snprintf(out + n, cap - n, "-%08x", (unsigned)kvr_hash_bytes(text, strlen(text), 0));
}

/* ---- the bucket --------------------------------------------------------------------------------------------------- */

/* Returns: false when it has to be tried again, as the server has not answered (see kvr__nats_retire). */
static bool drop_watcher(struct kvr_registry *r, bool at_any_rate)
{
    if (!r->watcher) return true;
    (void)kvWatcher_Stop(r->watcher);
    if (!kvr__nats_settle(r->c.link) && !at_any_rate) return false;
    kvWatcher_Destroy(r->watcher);
    r->watcher = NULL;
    return true;
}

static void drop_store(struct kvr_registry *r)
{
    (void)drop_watcher(r, true);
    kvStore_Destroy(r->kv);
    r->kv = NULL;
}

/* Returns: whether it was well. If not, that is told. */
static bool well(const struct kvr_registry *r, const char *what, natsStatus s)
{
    char text[128];
    if (s == NATS_OK) return true;
    snprintf(text, sizeof text, "bucket %s cannot be %s", r->bucket, what);
    kvr__nats_failed(text, s);
    return false;
}

static bool open_store(struct kvr_registry *r)
{
    kvConfig c;
    if (r->lost && !r->watcher) drop_store(r);
    if (r->kv) return true;
    r->lost = false;
    if (!r->js && !well(r, "opened", kvr__nats_jetstream(r->c.link, CALL_MS, &r->js))) return false;
    if (js_KeyValue(&r->kv, r->js, r->bucket) == NATS_OK) return true;
    kvConfig_Init(&c);
    c.Bucket = r->bucket;
    c.History = 1;
    c.TTL = (int64_t)r->ttl_ms * 1000000;
    c.Replicas = r->c.replicas;
    return well(r, "opened", js_CreateKeyValue(&r->kv, r->js, &c));
}

/* Nobody takes what is written there. */
static void lose_store(struct kvr_registry *r)
{
    r->lost = true;
    if (!r->watcher || r->renew_ms) return;
    r->renew_ms = kvr_now_ms() + SETTLE_MS;
    r->grace_ms = r->renew_ms + r->ttl_ms;
}

/* ---- keeping ------------------------------------------------------------------------------------------------------ */

static void set_held(struct kvr_registry *r, struct kept *k, bool held)
{
    kvr_lock(&r->lock);
    bool changed = k->held != held;
    k->held = held;
    kvr_unlock(&r->lock);
    if (changed && k->exclusive && r->c.on_lease) r->c.on_lease(r->c.ctx, k->key, held);
}

/* Somebody else's, or ours of a life before: says whose. */
static void look_at_owner(struct kvr_registry *r, struct kept *k)
{
    kvEntry *e = NULL;
    char text[sizeof k->owner] = "";
    if (kvStore_Get(&e, r->kv, k->key) == NATS_OK)
        snprintf(text, sizeof text, "%.*s", kvEntry_ValueLen(e), kvEntry_Value(e) ? (const char *)kvEntry_Value(e) : "");
    kvEntry_Destroy(e);
    kvr_lock(&r->lock);
    memcpy(k->owner, text, sizeof text);
    kvr_unlock(&r->lock);
}

static natsStatus renew(struct kvr_registry *r, struct kept *k, const char *value)
{
    int len = (int)strlen(value);
    if (!k->exclusive) return kvStore_Put(&k->revision, r->kv, k->key, value, len);
    if (k->held) return kvStore_Update(&k->revision, r->kv, k->key, value, len, k->revision);
    return kvStore_Create(&k->revision, r->kv, k->key, value, len);
}

static void keep_one(struct kvr_registry *r, struct kept *k)
{
    uint64_t now = kvr_now_ms();
    kvr_lock(&r->lock);
    bool due = now >= k->due_ms || k->changed;
    char *value = due ? strdup(k->value) : NULL;
    k->changed = false;
    kvr_unlock(&r->lock);
    if (k->held && k->exclusive && now - k->renewed_ms > r->ttl_ms * 4 / 5) set_held(r, k, false);
    if (!value) return;
    natsStatus s = open_store(r) ? renew(r, k, value) : NATS_NOT_FOUND;
    if (s == NATS_NO_RESPONDERS) lose_store(r);
    if (!k->exclusive && r->kv) (void)well(r, "written", s); /* of the others it is how leases work */
    free(value);
    if (s == NATS_OK) {
        k->renewed_ms = now; /* of before the call: the server's clock began no earlier */
        set_held(r, k, true);
    } else if (k->exclusive && s != NATS_TIMEOUT && s != NATS_NOT_FOUND && s != NATS_NO_RESPONDERS) { /* somebody has it */
        set_held(r, k, false);
        look_at_owner(r, k);
    }
    k->due_ms = now + (s == NATS_OK ? r->ttl_ms / 3 : KVR_MIN(r->ttl_ms / 6, (uint64_t)500));
    kvr_lock(&r->lock);
    k->tried |= s != NATS_TIMEOUT && s != NATS_NOT_FOUND && s != NATS_NO_RESPONDERS;
    kvr_unlock(&r->lock);
}

static void keep_all(struct kvr_registry *r)
{
    kvr_lock(&r->lock);
    size_t n = r->kept_n;
    kvr_unlock(&r->lock);
    for (size_t i = 0; i < n; i++) keep_one(r, r->kept[i]); /* entries stay where they are */
}

/* Leases end also without a connection. */
static void end_leases(struct kvr_registry *r)
{
    kvr_lock(&r->lock);
    size_t n = r->kept_n;
    kvr_unlock(&r->lock);
    for (size_t i = 0; i < n; i++) {
        struct kept *k = r->kept[i];
        if (k->exclusive && k->held && kvr_now_ms() - k->renewed_ms > r->ttl_ms * 4 / 5) set_held(r, k, false);
    }
}

/* ---- watching ----------------------------------------------------------------------------------------------------- */

static struct seen **bucket_of(struct kvr_registry *r, const char *key)
{
    return &r->seen[kvr_hash_bytes(key, strlen(key), 0) % SEEN_BUCKETS];
}

static struct seen **find_seen(struct kvr_registry *r, const char *key)
{
    struct seen **at = bucket_of(r, key);
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static void forget(struct kvr_registry *r, struct seen **at)
{
    struct seen *s = *at;
    kvr_lock(&r->lock);
    *at = s->next;
    r->seen_n--;
    kvr_unlock(&r->lock);
    if (r->c.on_gone) r->c.on_gone(r->c.ctx, s->key);
    free(s);
}

static void take_entry(struct kvr_registry *r, kvEntry *e)
{
    const char *key = kvEntry_Key(e), *value = kvEntry_Value(e);
    size_t len = (size_t)kvEntry_ValueLen(e);
    struct seen **at = find_seen(r, key);
    if (kvEntry_Operation(e) != kvOp_Put) {
        if (*at) forget(r, at);
        return;
    }
    if (strlen(key) >= sizeof(*at)->key || len > KVR_REGISTRY_VALUE_MAX || (!*at && r->seen_n >= SEEN_MAX)) return;
    uint64_t hash = kvr_hash_bytes(value ? value : "", len, 0);
    bool fresh = !*at;
    if (fresh) {
        struct seen *one = calloc(1, sizeof *one);
        if (!one) return;
        snprintf(one->key, sizeof one->key, "%s", key);
        kvr_lock(&r->lock);
        *at = one;
        r->seen_n++;
        kvr_unlock(&r->lock);
    }
    (*at)->heard_ms = kvr_now_ms();
    if (!fresh && (*at)->hash == hash) return;
    (*at)->hash = hash;
    if (r->c.on_entry) r->c.on_entry(r->c.ctx, key, value ? value : "", len);
}

/* A watcher is of one connection: on another one it may have missed something. */
static void note_reconnect(struct kvr_registry *r)
{
    struct kvr_nats_stats st;
    kvr_nats_stats(r->c.link, &st);
    if (r->watcher && st.connects != r->connects) {
        r->renew_ms = kvr_now_ms() + SETTLE_MS;
        r->grace_ms = r->renew_ms + r->ttl_ms;
    }
    r->connects = st.connects;
}

/* Takes what has come; waits a step for the first. */
static bool watch_step(struct kvr_registry *r)
{
    note_reconnect(r);
    if (r->renew_ms && kvr_now_ms() >= r->renew_ms && !drop_watcher(r, false)) return false;
    if (!r->watcher) {
        if (!open_store(r) || !well(r, "watched", kvStore_Watch(&r->watcher, r->kv, r->watch, NULL))) return false;
        r->renew_ms = 0;
        r->grace_ms = kvr_now_ms() + r->ttl_ms;
    }
    for (int64_t wait = STEP_MS;; wait = 1) { /* 0 is not allowed */
        kvEntry *e = NULL;
        natsStatus s = kvWatcher_Next(&e, r->watcher, wait);
        if (s == NATS_OK && e) take_entry(r, e);
        if (s == NATS_OK && !e) {
            kvr_lock(&r->lock);
            r->watched = true;
            kvr_unlock(&r->lock);
            if (r->c.on_known) r->c.on_known(r->c.ctx);
        }
        kvEntry_Destroy(e);
        if (s == NATS_TIMEOUT) return true;
        if (s != NATS_OK) {
            if (!r->renew_ms) r->renew_ms = kvr_now_ms() + SETTLE_MS;
            return false;
        }
    }
}

static void expire_seen(struct kvr_registry *r)
{
    uint64_t now = kvr_now_ms();
    if (!kvr_nats_is_up(r->c.link) || now < r->grace_ms) return;
    for (size_t b = 0; b < SEEN_BUCKETS; b++)
        for (struct seen **at = &r->seen[b]; *at;) {
            if (now - (*at)->heard_ms > r->ttl_ms) forget(r, at);
            else at = &(*at)->next;
        }
}

/* ---- the thread --------------------------------------------------------------------------------------------------- */

static bool stopping(struct kvr_registry *r)
{
    kvr_lock(&r->lock);
    bool stop = r->stop;
    kvr_unlock(&r->lock);
    return stop;
}

static void *registry_main(void *arg)
{
    struct kvr_registry *r = arg;
    while (!stopping(r)) {
        bool up = kvr_nats_is_up(r->c.link), waited = false;
        if (up) keep_all(r);
        else end_leases(r);
        if (up && r->watch[0]) {
            waited = watch_step(r);
            expire_seen(r);
        }
        if (!waited) nats_Sleep(STEP_MS);
    }
    for (size_t i = 0; i < r->kept_n; i++)
        if (r->kept[i]->held && r->kv && kvr_nats_is_up(r->c.link)) kvStore_Delete(r->kv, r->kept[i]->key);
    note_reconnect(r);
    while (r->watcher && kvr_now_ms() < r->renew_ms) nats_Sleep(STEP_MS);
    drop_store(r);
    jsCtx_Destroy(r->js);
    return NULL;
}

/* ---- from other threads --------------------------------------------------------------------------------------------- */

int kvr_registry_open(const struct kvr_registry_config *c, struct kvr_registry **out)
{
    struct kvr_registry *r = calloc(1, sizeof *r);
    if (!r) return -KVR_ENOMEM;
    r->c = *c;
    r->ttl_ms = (uint64_t)(c->ttl_s * 1000);
    snprintf(r->bucket, sizeof r->bucket, "%s", c->bucket);
    snprintf(r->watch, sizeof r->watch, "%s", c->watch ? c->watch : "");
    kvr_lock_init(&r->lock, KVR_LOCK_REGISTRY);
    if (pthread_create(&r->thread, NULL, registry_main, r)) {
        kvr_lock_destroy(&r->lock);
        free(r);
        return -KVR_ENOMEM;
    }
    *out = r;
    return 0;
}

void kvr_registry_close(struct kvr_registry *r)
{
    if (!r) return;
    kvr_lock(&r->lock);
    r->stop = true;
    kvr_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    for (size_t i = 0; i < r->kept_n; i++) {
        free(r->kept[i]->value);
        free(r->kept[i]);
    }
    for (size_t b = 0; b < SEEN_BUCKETS; b++)
        while (r->seen[b]) {
            struct seen *s = r->seen[b];
            r->seen[b] = s->next;
            free(s);
        }
    kvr_lock_destroy(&r->lock);
    free(r);
}

static struct kept *find_kept_locked(struct kvr_registry *r, const char *key)
{
    for (size_t i = 0; i < r->kept_n; i++)
        if (strcmp(r->kept[i]->key, key) == 0) return r->kept[i];
    return NULL;
}

int kvr_registry_keep(struct kvr_registry *r, const char *key, const char *value, bool exclusive)
{
    char *copy = strdup(value);
    struct kept *fresh = calloc(1, sizeof *fresh);
    int rc = strlen(key) < KVR_REGISTRY_KEY_MAX && strlen(value) <= KVR_REGISTRY_VALUE_MAX ? 0 : -KVR_EINVAL;
    if (!copy || !fresh) rc = -KVR_ENOMEM;
    kvr_lock(&r->lock);
    struct kept *k = find_kept_locked(r, key);
    if (rc == 0 && !k && r->kept_n == KEPT_MAX) rc = -KVR_ELIMIT;
    if (rc == 0 && !k) {
        snprintf(fresh->key, sizeof fresh->key, "%s", key);
        fresh->exclusive = exclusive;
        r->kept[r->kept_n++] = k = fresh;
        fresh = NULL;
    }
    if (rc == 0) {
        free(k->value);
        k->value = copy;
        k->changed = true;
        copy = NULL;
    }
    kvr_unlock(&r->lock);
    free(copy);
    free(fresh);
    return rc;
}

bool kvr_registry_holds(struct kvr_registry *r, const char *key, char *owner, size_t cap)
{
    kvr_lock(&r->lock);
    const struct kept *k = find_kept_locked(r, key);
    bool held = k && k->held;
    if (owner) snprintf(owner, cap, "%s", k && !held ? k->owner : "");
    kvr_unlock(&r->lock);
    return held;
}

bool kvr_registry_sees(struct kvr_registry *r, const char *key)
{
    kvr_lock(&r->lock);
    const struct seen *s = *bucket_of(r, key);
    while (s && strcmp(s->key, key) != 0) s = s->next;
    kvr_unlock(&r->lock);
    return s != NULL;
}

bool kvr_registry_settled(struct kvr_registry *r)
{
    kvr_lock(&r->lock);
    bool settled = r->watched || !r->watch[0];
    for (size_t i = 0; i < r->kept_n; i++) settled &= r->kept[i]->tried;
    kvr_unlock(&r->lock);
    return settled;
}
