/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve/discovery/discovery.h"

#include <string.h>

#include "app/serve/common/fields.h"
#include "base/log.h"
#include "wire/prom_page.h"

enum { MAIL_MAX = 65536 };

enum mail_kind { FOUND, GONE, ROUND_BEGINS, ROUND_ENDS, SETTLED };

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
    uint64_t id, hash; /* of the worker; of its description */
    uint64_t round;
};

static struct {
    pthread_mutex_t lock; /* mail */
    struct mail *head, **tail;
    size_t mail_n;
    _Atomic uint64_t dropped;
    /* the main loop's */
    struct found *found;
    size_t found_n;
    uint64_t round, refused;
    bool started, settled;
} d = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t discovery_id_of(const char *url)
{
    uint64_t id = kvr_hash_bytes(url, strlen(url), 0) & ((UINT64_C(1) << 53) - 1);
    return id ? id : 1;
}

/* ---- mail ---------------------------------------------------------------------------------------------------------- */

static void post(enum mail_kind kind, const char *key, const char *spec, size_t len)
{
    struct mail *m = malloc(sizeof *m + len + 1);
    if (m) {
        *m = (struct mail){.kind = kind, .len = len};
        snprintf(m->key, sizeof m->key, "%s", key);
        memcpy(m->spec, spec, len);
        m->spec[len] = 0;
    }
    pthread_mutex_lock(&d.lock);
    bool full = d.mail_n >= MAIL_MAX;
    if (m && !full) {
        if (!d.head) d.tail = &d.head;
        *d.tail = m;
        d.tail = &m->next;
        d.mail_n++;
    }
    pthread_mutex_unlock(&d.lock);
    if (m && !full) return;
    free(m);
    atomic_fetch_add(&d.dropped, 1);
}

void discovery_post_found(struct serve *s, const char *key, const char *spec, size_t len)
{
    (void)s;
    if (len <= DISCOVERY_SPEC_MAX) post(FOUND, key, spec, len);
    else atomic_fetch_add(&d.dropped, 1);
}

void discovery_post_gone(struct serve *s, const char *key)
{
    (void)s;
    post(GONE, key, "", 0);
}

void discovery_post_round(struct serve *s, bool begins)
{
    (void)s;
    post(begins ? ROUND_BEGINS : ROUND_ENDS, "", "", 0);
}

void discovery_post_settled(struct serve *s)
{
    (void)s;
    post(SETTLED, "", "", 0);
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static struct found **place_of(const char *key)
{
    struct found **at = &d.found;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    return at;
}

static void refuse(const char *key, const char *why)
{
    if (d.refused++ < 100) kvr_log_warning("kvroute: discovery: %s: %s", key, why);
}

/* A --worker text, or a worker object as JSON. */
static bool read_spec(struct serve *s, const char *spec, size_t len, struct worker_spec *out, char *err, size_t cap)
{
    struct kvr_json o;
    if (spec[0] != '{') {
        if (worker_parse(s, spec, out, err, cap)) return false;
        if (!out->has_id) out->id = discovery_id_of(out->w.url);
        return true;
    }
    *out = (struct worker_spec){0};
    worker_init(s, &out->w);
    char twice[64];
    if (kvr_json_parse(s->json, spec, len, &o, NULL) || kvr_json_check_members(s->json, twice, sizeof twice)) {
        snprintf(err, cap, "it is not a JSON object that has each of its fields once");
        return false;
    }
    const char *bad = kvr_json_as_u64(kvr_json_get(o, "worker_id"), &out->id) ? worker_read_object(o, &out->w) : "worker_id";
    if (!bad && !out->w.url[0] && !s->o->select_only) bad = "endpoint";
    if (bad) field_refusal(bad, err, cap);
    return !bad;
}

static bool id_is_free(struct serve *s, uint64_t id, const struct found *mine)
{
    for (const struct found *f = d.found; f; f = f->next)
        if (f != mine && f->id == id) return false;
    if (mine && mine->id == id) return true;
    kvr_lock(&s->lock);
    bool taken = worker_find_locked(s, id) != NULL;
    kvr_unlock(&s->lock);
    return !taken;
}

void discovery_found(struct serve *s, const char *key, const char *spec, size_t len)
{
    struct found **at = place_of(key), *f = *at;
    static struct worker_spec w;
    char err[400];
    uint64_t hash = kvr_hash_bytes(spec, len, 0);
    if (f) f->round = d.round;
    if (f && f->hash == hash) return;
    if (!read_spec(s, spec, len, &w, err, sizeof err)) {
        refuse(key, err);
        return;
    }
    if (!id_is_free(s, w.id, f)) {
        refuse(key, "another worker has this id");
        return;
    }
    if (!f && (d.found_n == DISCOVERY_FOUND_MAX || !(f = calloc(1, sizeof *f)))) {
        refuse(key, "there is no room for another worker");
        return;
    }
    if (f->id && f->id != w.id) worker_remove(s, f->id);
    w.w.id = w.id;
    bool fresh = !f->id;
    if (worker_add(s, &w.w, err, sizeof err)) {
        refuse(key, err);
        if (fresh) free(f);
        else discovery_gone(s, key);
        return;
    }
    f->id = w.id;
    f->hash = hash;
    f->round = d.round;
    if (!fresh) return;
    snprintf(f->key, sizeof f->key, "%s", key);
    f->next = NULL;
    *at = f;
    d.found_n++;
}

void discovery_gone(struct serve *s, const char *key)
{
    struct found **at = place_of(key), *f = *at;
    if (!f) return;
    *at = f->next;
    d.found_n--;
    worker_remove(s, f->id);
    free(f);
}

void discovery_round(struct serve *s, bool begins)
{
    if (begins) {
        d.round++;
        return;
    }
    for (struct found *f = d.found, *next; f; f = next) {
        next = f->next;
        if (f->round != d.round) discovery_gone(s, f->key);
    }
    d.settled = true;
}

static void take_mail(struct serve *s)
{
    pthread_mutex_lock(&d.lock);
    struct mail *list = d.head;
    d.head = NULL;
    d.mail_n = 0;
    pthread_mutex_unlock(&d.lock);
    while (list) {
        struct mail *m = list;
        list = m->next;
        if (m->kind == FOUND) discovery_found(s, m->key, m->spec, m->len);
        else if (m->kind == GONE) discovery_gone(s, m->key);
        else if (m->kind == SETTLED) d.settled = true;
        else discovery_round(s, m->kind == ROUND_BEGINS);
        free(m);
    }
}

/* ---- life ---------------------------------------------------------------------------------------------------------- */

int discovery_start(struct serve *s, char *err, size_t cap)
{
    d.started = true;
    switch (s->o->discovery) {
    case DISCOVERY_FILE: return discovery_file_start(s, err, cap);
    case DISCOVERY_DNS: return discovery_dns_start(s, err, cap);
    case DISCOVERY_NATS: return discovery_nats_start(s, err, cap);
    default: d.settled = true; return 0;
    }
}

void discovery_tick(struct serve *s)
{
    if (s->o->discovery == DISCOVERY_FILE) discovery_file_tick(s);
    take_mail(s);
}

void discovery_reload(struct serve *s)
{
    if (s->o->discovery == DISCOVERY_FILE) discovery_file_reload(s);
}

bool discovery_settled(void)
{
    return d.settled;
}

void discovery_stop(struct serve *s)
{
    if (!d.started) return;
    if (s->o->discovery == DISCOVERY_DNS) discovery_dns_stop();
    if (s->o->discovery == DISCOVERY_NATS) discovery_nats_stop();
    while (d.head) {
        struct mail *m = d.head;
        d.head = m->next;
        free(m);
    }
    while (d.found) {
        struct found *f = d.found;
        d.found = f->next;
        free(f);
    }
}

void discovery_metrics(struct serve *s, struct kvr_prom_page *b)
{
    if (s->o->discovery == DISCOVERY_STATIC) return;
    kvr_prom_one_u64(b, "kvroute_", "discovery_workers", "gauge", "Workers that were found", d.found_n);
    kvr_prom_one_u64(b, "kvroute_", "discovery_refused_total", "counter", "Descriptions of workers that were not taken", d.refused);
    kvr_prom_one_u64(b, "kvroute_", "discovery_dropped_total", "counter", "Findings that found the mail box full", atomic_load(&d.dropped));
}
