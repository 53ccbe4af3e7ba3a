/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Idea: each finding has a key of its finder and stands for one worker. A finding that is told again changes nothing unless its
 * description is another one; a worker goes when its finding does.
 *
 * Invariants: ids of findings are distinct; a worker that is in the table for another reason is never touched; the list has
 * DISCOVERY_FOUND_MAX entries at most and the mail box MAIL_MAX letters.
 */
#include "app/serve/discovery/found.h"

#include <string.h>

#include "app/serve/common/fields.h"
#include "base/log.h"

enum { MAIL_MAX = 65536, REFUSALS_TOLD = 100 };

enum mail_kind { FOUND, GONE, SETTLED };

struct mail {
    struct mail *next;
    enum mail_kind kind;
    char key[DISCOVERY_KEY_MAX];
    size_t len;
    char spec[];
};

struct found {
    struct found *next;
    char key[DISCOVERY_KEY_MAX];
    uint64_t id, hash, rest; /* of the worker; of its description, and of that but for the state */
    uint64_t round;
};

/* A number for a worker that has none, the same at every router: of its address. */
static uint64_t id_of(const char *url)
{
    uint64_t id = kvr_hash_bytes(url, strlen(url), 0) & ((UINT64_C(1) << 53) - 1);
    return id ? id : 1;
}

/* ---- mail ---------------------------------------------------------------------------------------------------------- */

static void post(struct discovery *d, enum mail_kind kind, const char *key, const char *spec, size_t len)
{
    struct mail *m = len <= DISCOVERY_SPEC_MAX ? malloc(sizeof *m + len + 1) : NULL;
    if (m) {
        *m = (struct mail){.kind = kind, .len = len};
        snprintf(m->key, sizeof m->key, "%s", key);
        memcpy(m->spec, spec, len);
        m->spec[len] = 0;
    }
    kvr_lock(&d->lock);
    bool taken = m && d->mail_n < MAIL_MAX;
    if (taken) {
        if (!d->head) d->tail = &d->head;
        *d->tail = m;
        d->tail = &m->next;
        d->mail_n++;
    } else {
        d->dropped++;
    }
    kvr_unlock(&d->lock);
    if (!taken) free(m);
}

void found_post(struct discovery *d, const char *key, const char *spec, size_t len)
{
    post(d, FOUND, key, spec, len);
}

void found_post_gone(struct discovery *d, const char *key)
{
    post(d, GONE, key, "", 0);
}

void found_post_settled(struct discovery *d)
{
    post(d, SETTLED, "", "", 0);
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static struct found **place_of(struct discovery *d, const char *key)
{
    struct found **at = &d->found;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static void refuse(struct discovery *d, const char *key, const char *why)
{
    if (d->refused++ < REFUSALS_TOLD) kvr_log_warning("kvroute: discovery: %s: %s", key, why);
}

/* A --worker text, or a worker object as JSON. */
static bool read_spec(struct serve *s, const char *spec, size_t len, struct worker_spec *out, char *err, size_t cap)
{
    struct kvr_json o;
    if (spec[0] != '{') {
        if (worker_parse(s, spec, out, err, cap)) return false;
        if (!out->has_id) out->id = id_of(out->w.url);
        return true;
    }
    worker_spec_init(s, out);
    char twice[64];
    if (kvr_json_parse(s->json, spec, len, &o, NULL) || kvr_json_check_members(s->json, twice, sizeof twice)) {
        snprintf(err, cap, "it is not a JSON object that has each of its fields once");
        return false;
    }
    const char *bad = kvr_json_as_u64(kvr_json_get(o, "worker_id"), &out->id) ? worker_read_object(o, out) : "worker_id";
    struct kvr_unknown_members u;
    worker_unknown_members(o, &u);
    if (u.n) { /* a newer announcer may know more: the worker is taken, and the rest is told */
        char text[512];
        worker_unknown_say(&u, text, sizeof text);
        kvr_log_warning("kvroute: discovery: worker %llu: %s", (unsigned long long)out->id, text);
    }
    if (!bad && !out->w.url[0] && !s->o->select_only) bad = "endpoint";
    if (bad) field_refusal(bad, err, cap);
    return !bad;
}

static bool id_is_free(struct serve *s, uint64_t id, const struct found *mine)
{
    for (const struct found *f = s->discovery->found; f; f = f->next)
        if (f != mine && f->id == id) return false;
    if (mine && mine->id == id) return true;
    kvr_lock(&s->lock);
    bool taken = worker_find_locked(s, id) != NULL;
    kvr_unlock(&s->lock);
    return !taken;
}

static void forget(struct serve *s, const char *key)
{
    struct found **at = place_of(s->discovery, key), *f = *at;
    if (!f) return;
    *at = f->next;
    s->discovery->found_n--;
    worker_remove(s, f->id);
    free(f);
}

/* The description of `f`, or of one that is new when f is NULL. Returns: the finding, or NULL when it was refused. */
static struct found *take(struct serve *s, struct found *f, const char *key, const char *spec, size_t len)
{
    struct discovery *d = s->discovery;
    struct worker_spec *w = d->scratch;
    char err[400];
    if (!read_spec(s, spec, len, w, err, sizeof err)) {
        refuse(d, key, err);
        return NULL;
    }
    if (!id_is_free(s, w->id, f)) {
        refuse(d, key, "another worker has this id");
        return NULL;
    }
    bool fresh = !f;
    if (fresh && (d->found_n == DISCOVERY_FOUND_MAX || !(f = calloc(1, sizeof *f)))) {
        refuse(d, key, "there is no room for another worker");
        return NULL;
    }
    if (!fresh && f->id != w->id) worker_remove(s, f->id);
    w->w.id = w->id;
    if (worker_add(s, &w->w, err, sizeof err)) {
        refuse(d, key, err);
        if (fresh) free(f);
        else forget(s, key);
        return NULL;
    }
    f->id = w->id;
    return f;
}

/* A description without its state, which is the value after `state=`, or the member "state", where it stands first. What is written in
 * another way counts as another description: then the worker is replaced. Returns: a hash; *draining. */
static uint64_t hash_of_rest(const char *spec, size_t len, bool *draining)
{
    static const char *const forms[] = {",state=draining",           ",state=active",
                                        ",\"state\":\"draining\"",   ",\"state\":\"active\"",
                                        ", \"state\": \"draining\"", ", \"state\": \"active\""};
    char rest[DISCOVERY_SPEC_MAX];
    *draining = false;
    for (size_t i = 0; i < KVR_ARRAY_LEN(forms); i++) {
        size_t n = strlen(forms[i]);
        const char *at = len <= sizeof rest ? memmem(spec, len, forms[i], n) : NULL;
        if (!at) continue;
        size_t head = (size_t)(at - spec);
        *draining = i % 2 == 0;
        memcpy(rest, spec, head);
        memcpy(rest + head, at + n, len - head - n);
        return kvr_hash_bytes(rest, len - n, 0);
    }
    return kvr_hash_bytes(spec, len, 0);
}

void found_tell(struct serve *s, const char *key, const char *spec, size_t len)
{
    struct discovery *d = s->discovery;
    struct found **at = place_of(d, key), *f = *at;
    uint64_t hash = kvr_hash_bytes(spec, len, 0);
    bool fresh = !f, draining;
    uint64_t rest = hash_of_rest(spec, len, &draining);
    if (f) f->round = d->round;
    if (f && f->hash == hash) return;
    if (f && f->rest == rest && worker_set_draining(s, f->id, draining)) { /* its views and what was learnt of it stay */
        f->hash = hash;
        return;
    }
    if (!(f = take(s, f, key, spec, len))) return;
    f->hash = hash;
    f->rest = rest;
    f->round = d->round;
    if (!fresh) return;
    snprintf(f->key, sizeof f->key, "%s", key);
    *at = f;
    d->found_n++;
}

void found_round_begins(struct serve *s)
{
    s->discovery->round++;
}

void found_round_ends(struct serve *s)
{
    struct discovery *d = s->discovery;
    for (struct found *f = d->found, *next; f; f = next) {
        next = f->next;
        if (f->round != d->round) forget(s, f->key);
    }
    d->settled = true;
}

void found_take_mail(struct serve *s)
{
    struct discovery *d = s->discovery;
    kvr_lock(&d->lock);
    struct mail *list = d->head;
    d->head = NULL;
    d->mail_n = 0;
    kvr_unlock(&d->lock);
    while (list) {
        struct mail *m = list;
        list = m->next;
        if (m->kind == FOUND) found_tell(s, m->key, m->spec, m->len);
        else if (m->kind == GONE) forget(s, m->key);
        else d->settled = true;
        free(m);
    }
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

struct discovery *found_create(void)
{
    struct discovery *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    kvr_lock_init(&d->lock, KVR_LOCK_FINDINGS);
    d->scratch = calloc(1, sizeof *d->scratch);
    if (d->scratch) return d;
    found_free(d);
    return NULL;
}

void found_free(struct discovery *d)
{
    if (!d) return;
    while (d->head) {
        struct mail *m = d->head;
        d->head = m->next;
        free(m);
    }
    while (d->found) {
        struct found *f = d->found;
        d->found = f->next;
        free(f);
    }
    kvr_lock_destroy(&d->lock);
    free(d->scratch);
    free(d);
}
