/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings -> workers of the table. Each finding has a key of its finder and stands for one worker. A finding that is told again changes
 * nothing unless its description is another one; a worker goes when its finding does. Finders on threads of their own post letters, which
 * the main loop takes (found_workers_take_mail).
 *
 * A description that cannot be taken now, since another worker has its id or there is no room, waits in its finding and is tried again when
 * something has gone: an engine may be listed at its new address before it is missed at the old one, and two may swap their ids. It counts
 * as refused once, when all that was told with it has been looked at.
 *
 * Invariants: ids of findings that serve are distinct; a worker that is in the table for another reason is never touched; there are
 * DISCOVERY_FOUND_MAX findings that serve at most, as many again that wait, and MAIL_MAX letters in the mail box.
 */
#include "app/serve/discovery/found_workers.h"

#include <string.h>

#include "app/serve/common/fields.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "base/log.h"

enum { MAIL_MAX = 65536 };

enum mail_kind { FOUND, GONE, SETTLED };

struct mail {
    struct mail *next;
    enum mail_kind kind;
    char key[DISCOVERY_KEY_MAX];
    size_t len;
    char spec[];
};

struct found_worker {
    struct found_worker *next;
    char key[DISCOVERY_KEY_MAX];
    uint64_t round;
    bool drained;            /* by what was told, which alone ends that: not what an operator has drained */
    bool serves;             /* it has a worker: */
    uint64_t id, hash, rest; /* of the worker; of its description, and of that but for the state */
    char *waits;             /* a description that is to be taken; NULL: none */
    size_t waits_len;
    uint64_t wants; /* the id in it */
    bool was_refused;
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

void found_workers_post(struct discovery *d, const char *key, const char *spec, size_t len)
{
    post(d, FOUND, key, spec, len);
}

void found_workers_post_gone(struct discovery *d, const char *key)
{
    post(d, GONE, key, "", 0);
}

void found_workers_post_settled(struct discovery *d)
{
    post(d, SETTLED, "", "", 0);
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static struct found_worker **place_of(struct discovery *d, const char *key)
{
    struct found_worker **at = &d->found;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static void refuse(struct discovery *d, const char *key, const char *why)
{
    d->refused++;
    kvr_log_warning_of(kvr_log_key(kvr_hash_bytes(key, strlen(key), 0), 0, why), "kvroute: discovery: %s: %s", key, why);
}

/* A --worker text, or a worker object as JSON. */
static bool read_spec(struct discovery *d, const char *spec, size_t len, struct worker_spec *out, char *err, size_t cap)
{
    struct kvr_json o;
    if (spec[0] != '{') {
        if (worker_parse(d->workers, spec, out, err, cap)) return false;
        if (!out->has_id) out->id = id_of(out->w.url);
        return true;
    }
    worker_spec_init(d->workers, out);
    char twice[64];
    if (kvr_json_parse(d->process->json, spec, len, &o, NULL) || kvr_json_check_members(d->process->json, twice, sizeof twice)) {
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
    if (!bad && !out->w.url[0] && !d->o->select_only) bad = "endpoint";
    if (bad) field_refusal(bad, err, cap);
    return !bad;
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

static struct found_worker *holder_of(const struct discovery *d, uint64_t id)
{
    struct found_worker *f = d->found;
    while (f && !(f->serves && f->id == id)) f = f->next;
    return f;
}

static bool id_is_free(struct discovery *d, const struct found_worker *mine)
{
    const struct found_worker *holder = holder_of(d, mine->wants);
    if (holder) return holder == mine;
    workers_lock(d->workers);
    bool taken = worker_find_locked(d->workers, mine->wants) != NULL;
    workers_unlock(d->workers);
    return !taken;
}

static void stop_waiting(struct found_worker *f)
{
    free(f->waits);
    f->waits = NULL;
    f->was_refused = false;
}

static void stop_serving(struct discovery *d, struct found_worker *f)
{
    if (!f->serves) return;
    worker_remove(d->workers, f->id);
    f->serves = false;
    d->found_n--;
    d->may_fit = true;
}

static void forget(struct discovery *d, struct found_worker **at)
{
    struct found_worker *f = *at;
    if (!f) return;
    *at = f->next;
    stop_serving(d, f);
    stop_waiting(f);
    d->known_n--;
    free(f);
}

/* The worker of a description, in the table. Returns: NULL, or why not; *err may hold that. */
static const char *become(struct discovery *d, struct found_worker *f, struct worker_spec *w, char *err, size_t cap)
{
    f->wants = w->id;
    if (!id_is_free(d, f)) return "another worker has this id";
    if (!f->serves && d->found_n == DISCOVERY_FOUND_MAX) return "there is no room for another worker";
    if (f->id != w->id) stop_serving(d, f);
    w->w.id = w->id;
    if (worker_add(d->workers, &w->w, err, cap)) {
        stop_serving(d, f);
        return err;
    }
    d->found_n += !f->serves;
    f->serves = true;
    f->id = w->id;
    return NULL;
}

/* What waits. Returns: whether anything has changed; *why: it still waits, for that reason. A description that cannot be read is dropped.
 */
static bool take(struct discovery *d, struct found_worker *f, const char **why, char *err, size_t cap)
{
    struct worker_spec *w = d->scratch;
    bool served = f->serves, draining;
    *why = NULL;
    if (!read_spec(d, f->waits, f->waits_len, w, err, cap)) {
        refuse(d, f->key, err);
        stop_waiting(f);
        return false;
    }
    if ((*why = become(d, f, w, err, cap))) return served && !f->serves;
    f->hash = kvr_hash_bytes(f->waits, f->waits_len, 0);
    f->rest = hash_of_rest(f->waits, f->waits_len, &draining);
    f->drained = draining;
    stop_waiting(f);
    return true;
}

/* Those that keep each other waiting: each wants an id that another one of them has. */
static bool part_swapped(struct discovery *d)
{
    bool any = false;
    for (struct found_worker *f = d->found; f; f = f->next) {
        const struct found_worker *holder = f->waits && f->serves ? holder_of(d, f->wants) : NULL;
        if (!holder || holder == f || !holder->waits) continue;
        stop_serving(d, f);
        any = true;
    }
    return any;
}

/* All that was told is known: what still does not fit is refused. */
static void take_waiting(struct discovery *d)
{
    const char *why;
    char err[400];
    bool again;
    do {
        again = false;
        for (struct found_worker *f = d->found; f; f = f->next)
            if (f->waits) again = take(d, f, &why, err, sizeof err) || again;
    } while (again || part_swapped(d));
    for (struct found_worker **at = &d->found, *f; (f = *at);) {
        if (f->waits) (void)take(d, f, &why, err, sizeof err);
        if (f->waits && !f->was_refused) refuse(d, f->key, why);
        f->was_refused = f->waits;
        if (f->waits || f->serves) at = &f->next;
        else forget(d, at);
    }
    d->may_fit = false;
    d->workers_n = workers_count(d->workers);
}

/* NULL: out of memory, or there are too many. */
static struct found_worker *add(struct discovery *d, struct found_worker **at, const char *key)
{
    struct found_worker *f = d->known_n < 2 * (size_t)DISCOVERY_FOUND_MAX ? calloc(1, sizeof *f) : NULL;
    if (!f) return NULL;
    snprintf(f->key, sizeof f->key, "%s", key);
    *at = f;
    d->known_n++;
    return f;
}

/* Returns: false: the worker is not there. */
static bool tell_state(struct discovery *d, struct found_worker *f, bool draining)
{
    workers_lock(d->workers);
    const struct worker *w = worker_find_locked(d->workers, f->id);
    bool drains = w && atomic_load(&w->draining);
    workers_unlock(d->workers);
    if (draining ? drains : w && !f->drained) return true;
    f->drained = draining;
    return worker_set_draining(d->workers, f->id, draining);
}

void found_workers_tell(struct discovery *d, const char *key, const char *spec, size_t len)
{
    struct found_worker **at = place_of(d, key), *f = *at;
    const char *why;
    char err[400];
    bool draining;
    if (f) f->round = d->round;
    if (f && f->waits && f->waits_len == len && memcmp(f->waits, spec, len) == 0) return;
    if (f && !f->waits && f->hash == kvr_hash_bytes(spec, len, 0)) return;
    if (f && f->serves && f->rest == hash_of_rest(spec, len, &draining) && tell_state(d, f, draining)) {
        f->hash = kvr_hash_bytes(spec, len, 0); /* its views and what was learnt of it stay */
        stop_waiting(f);
        return;
    }
    char *copy = malloc(len + 1);
    if (!copy || !(f = f ? f : add(d, at, key))) {
        refuse(d, key, "there is no room for another worker");
        free(copy);
        return;
    }
    memcpy(copy, spec, len);
    copy[len] = 0;
    stop_waiting(f);
    f->waits = copy;
    f->waits_len = len;
    f->round = d->round;
    (void)take(d, f, &why, err, sizeof err);
    d->may_fit = true;
}

void found_workers_round_begins(struct discovery *d)
{
    d->round++;
    d->in_round = true;
}

void found_workers_round_ends_of(struct discovery *d, const char *prefix)
{
    size_t n = strlen(prefix);
    for (struct found_worker **at = &d->found; *at;) {
        if ((*at)->round != d->round && strncmp((*at)->key, prefix, n) == 0) forget(d, at);
        else at = &(*at)->next;
    }
    take_waiting(d);
    d->in_round = false;
}

void found_workers_round_ends(struct discovery *d, bool whole)
{
    if (whole) found_workers_round_ends_of(d, "");
    else take_waiting(d);
    d->in_round = false;
    d->settled = true;
}

bool found_workers_knows(struct discovery *d, const char *key)
{
    return *place_of(d, key) != NULL;
}

bool found_workers_is_told(struct discovery *d, const char *key)
{
    const struct found_worker *f = *place_of(d, key);
    return f && f->round == d->round;
}

size_t found_workers_told_of(const struct discovery *d, const char *key)
{
    size_t n = 0, len = strlen(key);
    for (const struct found_worker *f = d->found; f; f = f->next)
        n += f->round == d->round && strncmp(f->key, key, len) == 0 && (!f->key[len] || f->key[len] == '#');
    return n;
}

void found_workers_take_mail(struct discovery *d)
{
    kvr_lock(&d->lock);
    struct mail *list = d->head;
    d->head = NULL;
    d->mail_n = 0;
    kvr_unlock(&d->lock);
    bool settled = d->settled;
    while (list) {
        struct mail *m = list;
        list = m->next;
        if (m->kind == FOUND) found_workers_tell(d, m->key, m->spec, m->len);
        else if (m->kind == GONE) forget(d, place_of(d, m->key));
        else settled = true;
        free(m);
    }
    if (!d->in_round && (d->may_fit || d->workers_n != workers_count(d->workers))) take_waiting(d);
    d->settled = settled;
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

bool found_workers_open(struct discovery *d)
{
    d->scratch = calloc(1, sizeof *d->scratch);
    return d->scratch != NULL;
}

void found_workers_close(struct discovery *d)
{
    while (d->head) {
        struct mail *m = d->head;
        d->head = m->next;
        free(m);
    }
    while (d->found) {
        struct found_worker *f = d->found;
        d->found = f->next;
        free(f->waits);
        free(f);
    }
    free(d->scratch);
}
