/* SPDX-License-Identifier: Apache-2.0 */
/* app/serve/config/keyring.h says what this is. */
#include "app/serve/config/keyring.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app/serve/config/room.h"
#include "app/serve/workers/table/partition.h"
#include "wire/prom_page.h"

enum { LABELLED_MAX = 256 }; /* keys with metrics of their own; the others share those of OTHERS */
#define OTHERS "_other"

#define REASON(id, reason) reason,
static const char *const refusals[KEY_REFUSALS] = {KEY_REFUSAL_REASONS(REASON)};
#undef REASON

/* ---- use --------------------------------------------------------------------------------------------- */

static void use_let_go(struct key_use *u)
{
    if (!u || atomic_fetch_sub(&u->holders, 1) != 1) return;
    kvr_lock_destroy(&u->lock);
    free(u);
}

static struct key_use *use_new(const char *name)
{
    struct key_use *u = calloc(1, sizeof *u);
    if (!u) return NULL;
    atomic_init(&u->holders, 1);
    kvr_lock_init(&u->lock, KVR_LOCK_KEY_USE);
    snprintf(u->name, sizeof u->name, "%s", name);
    return u;
}

static struct kvr_bucket_rate rate_of(const struct key_limits *l, enum key_bucket which)
{
    return which == KEY_BUCKET_REQUESTS ? (struct kvr_bucket_rate){l->requests_per_second, l->burst_requests}
                                        : (struct kvr_bucket_rate){l->tokens_per_second, l->burst_tokens};
}

static struct kvr_bucket *bucket_of(struct key_use *u, enum key_bucket which)
{
    return which == KEY_BUCKET_REQUESTS ? &u->requests : &u->tokens;
}

bool key_use_enter(struct key_use *u, const struct key_limits *l)
{
    uint64_t ahead = atomic_fetch_add(&u->under_way, 1);
    if (!l->max_concurrent || ahead < l->max_concurrent) return true;
    atomic_fetch_sub(&u->under_way, 1);
    return false;
}

void key_use_leave(struct key_use *u)
{
    atomic_fetch_sub(&u->under_way, 1);
}

double key_use_take(struct key_use *u, const struct key_limits *l, enum key_bucket which, double amount)
{
    struct kvr_bucket_rate rate = rate_of(l, which);
    if (rate.per_second <= 0) return 0;
    kvr_lock(&u->lock);
    double wait = kvr_bucket_take(bucket_of(u, which), rate, kvr_monotonic_ns(), amount);
    kvr_unlock(&u->lock);
    return wait;
}

void key_use_correct(struct key_use *u, const struct key_limits *l, enum key_bucket which, double more)
{
    struct kvr_bucket_rate rate = rate_of(l, which);
    if (rate.per_second <= 0) return;
    kvr_lock(&u->lock);
    kvr_bucket_correct(bucket_of(u, which), rate, kvr_monotonic_ns(), more);
    kvr_unlock(&u->lock);
}

struct key_left key_use_left(struct key_use *u, const struct key_limits *l, enum key_bucket which)
{
    struct kvr_bucket_rate rate = rate_of(l, which);
    if (rate.per_second <= 0) return (struct key_left){0};
    kvr_lock(&u->lock);
    uint64_t now = kvr_monotonic_ns();
    struct key_left left = {true, rate.burst, kvr_bucket_left(bucket_of(u, which), rate, now),
                            kvr_bucket_full_in(bucket_of(u, which), rate, now)};
    kvr_unlock(&u->lock);
    return left;
}

/* ---- rings ------------------------------------------------------------------------------------------- */

static uint64_t place_of(const unsigned char digest[KVR_DIGEST], uint64_t secret)
{
    return kvr_mix64_keyed(kvr_load_be64(digest), secret);
}

static bool make_table(struct keyring *ring)
{
    size_t places = 16;
    while (places < 2 * ring->file.n) places *= 2;
    ring->table = calloc(places, sizeof *ring->table);
    ring->mask = places - 1;
    ring->secret = kvr_secret();
    for (size_t i = 0; ring->table && i < ring->file.n; i++) {
        size_t at = place_of(ring->file.keys[i].digest, ring->secret) & ring->mask;
        while (ring->table[at]) at = (at + 1) & ring->mask;
        ring->table[at] = (uint32_t)(i + 1);
    }
    return ring->table != NULL;
}

static void ring_free(struct keyring *ring)
{
    for (size_t i = 0; i < ring->file.n; i++) use_let_go(ring->file.keys[i].use);
    for (size_t i = 0; i < ring->file.models_n; i++) use_let_go(ring->file.models[i].use);
    use_let_go(ring->file.anonymous.use);
    api_keys_free(&ring->file);
    free(ring->table);
    free(ring);
}

void keyring_let_go(struct keyring *ring)
{
    if (ring && atomic_fetch_sub(&ring->holders, 1) == 1) ring_free(ring);
}

struct keyring *keyring_hold(struct config *config)
{
    struct keyrings *k = &config->keyrings;
    if (!k->path) return NULL;
    kvr_lock(&k->lock);
    struct keyring *ring = k->now;
    if (ring) atomic_fetch_add(&ring->holders, 1);
    kvr_unlock(&k->lock);
    return ring;
}

const struct api_key *keyring_find(const struct keyring *ring, struct kvr_text secret)
{
    unsigned char digest[KVR_DIGEST];
    if (!secret.len || secret.len > KEY_SECRET_MAX || !kvr_digest(secret.ptr, secret.len, digest)) return NULL;
    for (size_t at = place_of(digest, ring->secret) & ring->mask; ring->table[at]; at = (at + 1) & ring->mask) {
        const struct api_key *k = &ring->file.keys[ring->table[at] - 1];
        if (kvr_digest_same(k->digest, digest)) return k;
    }
    return NULL;
}

bool keyring_wants_names(const struct keyring *ring)
{
    return ring->file.models_n > 1;
}

const struct limited_model *keyring_model(const struct keyring *ring, const char *model)
{
    if (!model[0]) return ring->file.models_n == 1 ? ring->file.models : NULL; /* it may be that one */
    for (size_t i = 0; i < ring->file.models_n; i++)
        if (!strcmp(ring->file.models[i].model, model)) return &ring->file.models[i];
    return NULL;
}

/* ---- reading the file -------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct key_use *const *)a)->name, (*(struct key_use *const *)b)->name);
}

/* The one of a sorted list with that name, or a new one; with a reference. */
static struct key_use *use_of(struct key_use **known, size_t n, const char *name)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        int cmp = strcmp(known[mid]->name, name);
        if (cmp == 0) {
            atomic_fetch_add(&known[mid]->holders, 1);
            return known[mid];
        }
        if (cmp < 0) lo = mid + 1;
        else hi = mid;
    }
    return use_new(name);
}

/* Gives each key of `ring` the use of the key of `old` with its name; old: NULL: there is none. Returns: false without memory. */
static bool take_over(struct keyring *ring, const struct keyring *old)
{
    size_t n = old ? old->file.n : 0;
    bool ok = true;
    struct key_use **known = malloc((n + 1) * sizeof(struct key_use *));
    if (!known) return false;
    for (size_t i = 0; i < n; i++) known[i] = old->file.keys[i].use;
    qsort(known, n, sizeof(struct key_use *), by_name);
    for (size_t i = 0; i < ring->file.n && ok; i++) ok = (ring->file.keys[i].use = use_of(known, n, ring->file.keys[i].name)) != NULL;
    free(known);
    struct key_use *models[LIMITED_MODELS_MAX];
    n = old ? old->file.models_n : 0;
    for (size_t i = 0; i < n; i++) models[i] = old->file.models[i].use;
    qsort(models, n, sizeof(struct key_use *), by_name);
    for (size_t i = 0; i < ring->file.models_n && ok; i++)
        ok = (ring->file.models[i].use = use_of(models, n, ring->file.models[i].model)) != NULL;
    if (!ok || !ring->file.has_anonymous) return ok;
    struct key_use *nobody = old ? old->file.anonymous.use : NULL;
    return (ring->file.anonymous.use = use_of(&nobody, nobody ? 1 : 0, "anonymous")) != NULL;
}

static bool names_class(const struct kvr_policy *p, const char *name)
{
    for (size_t i = 0; i < p->classes_n; i++)
        if (!strcmp(p->classes[i].family[0] ? p->classes[i].family : p->classes[i].name, name)) return true;
    return false;
}

/* A class that no policy has would be the default one without a word. */
static bool has_class(const struct policy_profile *profiles, size_t n, const struct api_key *k)
{
    bool found = !k->policy_class[0];
    for (size_t i = 0; i < n && !found; i++) found = names_class(&profiles[i].policy, k->policy_class);
    return found;
}

bool keyrings_next_classless(const char *path, const struct api_keys *f, const struct policy_profile *profiles, size_t n, size_t *at,
                             char *err, size_t cap)
{
    for (; *at < f->n + f->has_anonymous; ++*at) {
        const struct api_key *k = *at < f->n ? &f->keys[*at] : &f->anonymous;
        if (has_class(profiles, n, k)) continue;
        snprintf(err, cap, "%.300s:%zu: policy_class '%s': a class without a family, or a family, of --router-policy-config is expected",
                 path, k->line, k->policy_class);
        ++*at;
        return true;
    }
    return false;
}

static int check_classes(const struct config *config, const struct api_keys *f, char *err, size_t cap)
{
    size_t at = 0, n;
    const struct policy_profile *profiles = partitions_policies(config->workers, &n);
    return keyrings_next_classless(config->keyrings.path, f, profiles, n, &at, err, cap) ? -1 : 0;
}

bool keyrings_have_classes(const struct config *config, char *err, size_t cap)
{
    return !config->keyrings.now || check_classes(config, &config->keyrings.now->file, err, cap) == 0;
}

int keyrings_reload(struct config *config, char *err, size_t cap)
{
    struct keyrings *k = &config->keyrings;
    struct keyring *fresh = calloc(1, sizeof *fresh), *old = k->now; /* only this thread changes it */
    snprintf(err, cap, "out of memory");
    if (!fresh) return -1;
    atomic_init(&fresh->holders, 1);
    if (api_keys_read(&(struct kvr_yaml_source){.name = k->path}, &fresh->file, err, cap)) {
        free(fresh);
        reloads_note(&config->reloads, RELOAD_API_KEYS, false);
        return -1;
    }
    if (check_classes(config, &fresh->file, err, cap)) {
        ring_free(fresh);
        reloads_note(&config->reloads, RELOAD_API_KEYS, false);
        return -1;
    }
    if (!take_over(fresh, old) || !make_table(fresh)) {
        ring_free(fresh);
        snprintf(err, cap, "out of memory");
        reloads_note(&config->reloads, RELOAD_API_KEYS, false);
        return -1;
    }
    kvr_lock(&k->lock);
    k->now = fresh;
    kvr_unlock(&k->lock);
    keyring_let_go(old);
    reloads_note(&config->reloads, RELOAD_API_KEYS, true);
    return 0;
}

int keyrings_open(struct config *config, char *err, size_t cap)
{
    char why[400];
    config->keyrings.path = config->o->api_key_file;
    if (!config->keyrings.path || keyrings_reload(config, why, sizeof why) == 0) return 0;
    return kvr_refuse(err, cap, "--api-key-file: %s", why);
}

bool keyrings_are_used(const struct config *config)
{
    return config->keyrings.path != NULL;
}

void keyrings_count_nobodys(struct config *config, enum key_refusal why)
{
    atomic_fetch_add_explicit(&config->keyrings.nobody[why], 1, memory_order_relaxed);
}

void keyrings_close(struct config *config)
{
    keyring_let_go(config->keyrings.now);
    kvr_lock_destroy(&config->keyrings.lock);
}

/* ---- what is shown ----------------------------------------------------------------------------------- */

static void put_limit(struct kvr_buf *b, const char *name, double v)
{
    if (v > 0) kvr_json_put_double(b, name, v);
}

static void put_limits(struct kvr_buf *b, const struct key_limits *l)
{
    kvr_json_printf(b, "'limits':{");
    put_limit(b, "requests_per_second", l->requests_per_second);
    put_limit(b, "burst_requests", l->burst_requests);
    put_limit(b, "tokens_per_second", l->tokens_per_second);
    put_limit(b, "burst_tokens", l->burst_tokens);
#define PUT(name, read, of_models)                                                                                                         \
    if (l->name) kvr_json_put_u64(b, #name, l->name);
    KEY_MAXIMA(PUT)
#undef PUT
    kvr_json_close(b, '}');
}

static uint64_t load(const _Atomic uint64_t *v)
{
    return atomic_load_explicit(v, memory_order_relaxed);
}

static uint64_t sum(const _Atomic uint64_t *list, size_t n)
{
    uint64_t all = 0;
    for (size_t i = 0; i < n; i++) all += load(&list[i]);
    return all;
}

static void put_use(struct kvr_buf *b, struct key_use *u, const struct key_limits *l)
{
    struct key_left requests = key_use_left(u, l, KEY_BUCKET_REQUESTS), tokens = key_use_left(u, l, KEY_BUCKET_TOKENS);
    kvr_json_printf(b, "'use':{'concurrent':%ju", load(&u->under_way));
    if (requests.limited) kvr_json_put_double(b, "requests_left", requests.left);
    if (tokens.limited) kvr_json_put_double(b, "tokens_left", tokens.left);
    kvr_json_printf(b, "'requests':%ju,'refused':%ju,'tokens_in':%ju,'tokens_out':%ju}", sum(u->answered, KEY_STATUSES),
                    sum(u->refused, KEY_REFUSALS), load(&u->tokens_in), load(&u->tokens_out));
}

static void put_expiry(struct kvr_buf *b, int64_t expires)
{
    if (expires == INT64_MAX) return;
    kvr_json_put_moment(b, "expires", expires);
    kvr_json_printf(b, "'expired':%i", (int64_t)time(NULL) >= expires);
}

static void put_key(struct kvr_buf *b, const struct api_key *k)
{
    kvr_json_printf(b, "{'name':%s", k->name);
    if (k->models) {
        kvr_json_printf(b, "'models':[");
        for (size_t i = 0; i < k->models_n; i++) kvr_json_str(b, k->models[i], strlen(k->models[i]));
        kvr_json_close(b, ']');
    }
    if (k->required_taints) {
        kvr_json_printf(b, "'required_taints':[");
        for (size_t i = 0; i < k->required_taints->n; i++)
            kvr_json_str(b, k->required_taints->names[i], strlen(k->required_taints->names[i]));
        kvr_json_close(b, ']');
    }
    if (k->policy_class[0]) kvr_json_put_str(b, "policy_class", k->policy_class);
    kvr_json_put_double(b, "weight", k->weight);
    if (k->priority_max >= 0) kvr_json_put_double(b, "priority_max", k->priority_max);
    put_expiry(b, k->expires);
    put_limits(b, &k->limits);
    put_use(b, k->use, &k->limits);
    kvr_json_close(b, '}');
}

void keyrings_write(struct config *config, struct kvr_buf *b)
{
    struct keyring *ring = keyring_hold(config);
    kvr_json_printf(b, "{'keys':[");
    for (size_t i = 0; ring && i < ring->file.n; i++) put_key(b, &ring->file.keys[i]);
    kvr_json_close(b, ']');
    if (ring && ring->file.has_anonymous) {
        kvr_json_key(b, "anonymous");
        put_key(b, &ring->file.anonymous);
    }
    kvr_json_printf(b, "'models':[");
    for (size_t i = 0; ring && i < ring->file.models_n; i++) {
        const struct limited_model *m = &ring->file.models[i];
        kvr_json_printf(b, "{'model':%s", m->model);
        put_limits(b, &m->limits);
        put_use(b, m->use, &m->limits);
        kvr_json_close(b, '}');
    }
    kvr_json_printf(b, "]}");
    keyring_let_go(ring);
}

/* ---- metrics ----------------------------------------------------------------------------------------- */

/* Those with a name of their own, anonymous among them, and the sum of the others. Without a ring: none. */
struct shown {
    size_t n, others_n;
    const struct key_use *list[LABELLED_MAX];
    const struct keyring *ring;
};

static void choose_shown(const struct keyring *ring, struct shown *v)
{
    *v = (struct shown){.ring = ring};
    if (!ring) return;
    if (ring->file.has_anonymous) v->list[v->n++] = ring->file.anonymous.use;
    for (size_t i = 0; i < ring->file.n; i++) {
        if (v->n < LABELLED_MAX) v->list[v->n++] = ring->file.keys[i].use;
        else v->others_n++;
    }
}

/* A counter of a use, by where it is in the struct. */
static uint64_t count_at(const struct key_use *u, size_t offset)
{
    return load((const _Atomic uint64_t *)((const char *)u + offset));
}

static uint64_t others(const struct shown *v, size_t offset)
{
    const struct api_keys *f = &v->ring->file;
    uint64_t all = 0;
    for (size_t i = f->n - v->others_n; i < f->n; i++) all += count_at(f->keys[i].use, offset);
    return all;
}

/* A sample for each key that has one to tell; label NULL: the key's name is the only label. */
static void put_counts(struct kvr_prom_page *out, const struct shown *v, size_t offset, const char *label, const char *value)
{
    struct kvr_prom_pair pairs[2] = {KVR_PROM_TEXT("key", NULL), {label, value, 0}};
    struct kvr_prom_pairs labels = {pairs, label ? 2 : 1};
    for (size_t i = 0; i < v->n + (v->others_n > 0); i++) {
        uint64_t n = i < v->n ? count_at(v->list[i], offset) : others(v, offset);
        pairs[0].text = i < v->n ? v->list[i]->name : OTHERS;
        if (n || !label) kvr_prom_put_u64(out, labels, n);
    }
}

static void put_refused(struct config *config, struct kvr_prom_page *out, const struct shown *v)
{
    kvr_prom_family(out, "kvroute_", "key_refused_total", "counter", "Requests refused by API key; without one: the key is unknown");
    for (size_t i = 0; i < KEY_REFUSALS; i++) {
        uint64_t nobodys = load(&config->keyrings.nobody[i]);
        if (nobodys) kvr_prom_put_u64(out, KVR_PROM_PAIRS(KVR_PROM_TEXT("key", ""), KVR_PROM_TEXT("reason", refusals[i])), nobodys);
        put_counts(out, v, offsetof(struct key_use, refused) + i * sizeof(_Atomic uint64_t), "reason", refusals[i]);
    }
}

void keyrings_metrics(struct config *config, struct kvr_prom_page *out)
{
    static const char *const classes[KEY_STATUSES] = {"other", "1xx", "2xx", "3xx", "4xx", "5xx"};
    struct keyring *ring = keyring_hold(config);
    struct shown v;
    choose_shown(ring, &v);
    kvr_prom_family(out, "kvroute_", "key_requests_total", "counter", "Requests by API key and class of status");
    for (size_t i = 0; i < KEY_STATUSES; i++)
        put_counts(out, &v, offsetof(struct key_use, answered) + i * sizeof(_Atomic uint64_t), "status", classes[i]);
    put_refused(config, out, &v);
    kvr_prom_family(out, "kvroute_", "key_prompt_tokens_total", "counter", "Prompt tokens of answered requests by API key");
    put_counts(out, &v, offsetof(struct key_use, tokens_in), NULL, NULL);
    kvr_prom_family(out, "kvroute_", "key_output_tokens_total", "counter", "Generated tokens by API key");
    put_counts(out, &v, offsetof(struct key_use, tokens_out), NULL, NULL);
    kvr_prom_family(out, "kvroute_", "key_requests_under_way", "gauge", "Requests under way by API key");
    put_counts(out, &v, offsetof(struct key_use, under_way), NULL, NULL);
    keyring_let_go(ring);
}
