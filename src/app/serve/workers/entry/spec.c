/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A worker as --worker and lines of discovery have it: its URL, and key=value after it. One table of keys (with those of table/kv_keys.c);
 * the result is a struct worker_spec that is in no table yet. Pure functions, but that keys and certificates are read from files.
 */
#include <string.h>

#include "app/serve/workers/entry/worker_key.h"
#include "app/serve/workers/entry/worker_tls.h"
#include "app/serve/workers/table/rank.h"
#include "app/serve/workers/table/room.h"
#include "base/log.h"
#include "wire/entry.h"

enum { ENTRY_MAX = 2047 };

static const char worker_keys[] =
    "id, events, replay, recover, metrics, model, group, block-size, dp-start, dp-size, engine, role, "
    "kv-protocol, kv-lease, kv-domain, kv-pool, kv-offload-chunk, local-prefill, bootstrap, kv-addr, engine-id, tp, pp, decode-cache, "
    "api-key, api-key-env, api-key-file, tls-ca, tls-cert, tls-key, tls-server-name, tls-verify, "
    "max-num-batched-tokens, total-kv-blocks, taint, state";

/* An entry that is read, and where one says what is wrong with it. */
struct reading {
    const struct kvr_entry *e;
    struct worker_spec *out;
    char events[256], replay[256];
    char *err;
    size_t cap;
};

/* api-key, and what may be meant for it. */
static bool is_secret(const char *key)
{
    return !strncmp(key, "api", 3) && strcmp(key, "api-key-env") != 0 && strcmp(key, "api-key-file") != 0;
}

/* The entry as a flag has it, without secrets. */
static void show(const struct kvr_entry *e, char *out, size_t cap)
{
    size_t n = (size_t)snprintf(out, cap, "%s", e->head);
    for (size_t i = 0; i < e->n && n < cap; i++) {
        const struct kvr_entry_part *p = &e->parts[i];
        bool secret = is_secret(p->key);
        const char *key = secret && !p->value ? "***" : p->key, *value = p->value && secret ? "***" : p->value;
        n += (size_t)snprintf(out + n, cap - n, ",%s%s%s", key, value ? "=" : "", value ? value : "");
    }
}

void worker_name(const struct kvr_entry *e, size_t line, char *out, size_t cap)
{
    char shown[128];
    show(e, shown, sizeof shown);
    if (e->file) snprintf(out, cap, "%s:%zu: worker: '%.80s'", e->file, line ? line : e->line, shown);
    else snprintf(out, cap, "--worker: '%.80s'", shown);
}

/* line 0: it is not of one key alone. */
static int fail(const struct reading *r, size_t line, const char *key, const char *value, const char *allowed)
{
    char name[WORKER_NAME_MAX];
    worker_name(r->e, line, name, sizeof name);
    snprintf(r->err, r->cap, "%s: bad value '%.80s' for '%s'; allowed: %s", name, value, key, allowed);
    return -1;
}

static bool whole_number(const char *s, uint64_t max, uint64_t *out)
{
    return kvr_parse_u64(s, strlen(s), max, out);
}

/* Endpoint of each rank: the given one, its port raised by the rank's place. */
static bool spread_endpoint(const char *e, struct worker *w, enum rank_socket which)
{
    for (uint32_t r = 0; *e && r < w->dp_size; r++)
        if (!kvr_ingest_endpoint_shift(e, r, w->ranks[r].endpoints[which], RANK_ENDPOINT_MAX)) return false;
    return true;
}

bool worker_set_url(struct worker *w, const char *url, size_t len)
{
    bool v1;
    while (len && url[len - 1] == '/') len--;
    v1 = len > 3 && !memcmp(url + len - 3, "/v1", 3);
    if (v1) len -= 3;
    while (len && url[len - 1] == '/') len--;
    if (len >= sizeof w->url || kvr_endpoint_parse_any(url, len, &w->endpoint)) return false;
    snprintf(w->url, sizeof w->url, "%.*s", (int)len, url);
    if (v1) kvr_log_warning("kvroute: a worker's address ends in /v1; it is taken without: %.400s", w->url);
    return true;
}

/* What is allowed for one that was refused. */
static const char *endpoint_allowed(const char *value)
{
    bool bound = strncmp(value, "tcp://*", 7) == 0;
    return bound ? "the engine's address as seen from here, tcp://host:port ('*' is the engine's own side, which binds it)"
                 : "tcp://host:port or ipc://path";
}

static int parse_key(struct reading *r, const struct kvr_entry_part *part)
{
    struct worker_spec *o = r->out;
    struct worker *w = &o->w;
    const char *key = part->key, *value = part->value;
    uint64_t n;
    if (!value) return fail(r, part->line, "option", is_secret(key) ? "***" : key, "key=value");
    const struct kv_key *kv = kv_key_find(key);
    if (kv) {
        if (!kv->set(w, value)) return fail(r, part->line, key, value, kv->allowed);
    } else if (!strcmp(key, "id")) {
        if (!whole_number(value, UINT64_MAX, &o->id)) return fail(r, part->line, key, value, "a whole number");
        o->has_id = true;
    } else if (!strcmp(key, "events") || !strcmp(key, "replay")) {
        if (!kvr_ingest_endpoint_ok(value)) return fail(r, part->line, key, value, endpoint_allowed(value));
        snprintf(*key == 'e' ? r->events : r->replay, sizeof r->events, "%s", value);
    } else if (!strcmp(key, "recover")) {
        struct kvr_endpoint e;
        if (strlen(value) >= sizeof w->recover || kvr_endpoint_parse_any(value, strlen(value), &e))
            return fail(r, part->line, key, value, "http://host:port/path, e.g. http://10.0.0.1:5559/kv_recover");
        snprintf(w->recover, sizeof w->recover, "%s", value);
    } else if (!strcmp(key, "metrics")) {
        struct kvr_endpoint e;
        if (strlen(value) >= sizeof w->metrics || kvr_endpoint_parse_any(value, strlen(value), &e))
            return fail(r, part->line, key, value, "http://host[:port][/path] or https://..., e.g. http://10.0.0.1:8000/metrics");
        snprintf(w->metrics, sizeof w->metrics, "%s", value);
    } else if (!strcmp(key, "model") || !strcmp(key, "group")) {
        if (!*value || strlen(value) >= MODEL_MAX) return fail(r, part->line, key, value, "1 to 127 characters");
        snprintf(*key == 'm' ? w->model : w->group, MODEL_MAX, "%s", value);
    } else if (!strcmp(key, "block-size")) {
        if (!whole_number(value, 65536, &n) || n == 0) return fail(r, part->line, key, value, "1 to 65536");
        w->block_size = (uint32_t)n;
        w->given.block_size = true;
    } else if (!strcmp(key, "dp-start")) {
        if (!whole_number(value, 1u << 20, &n)) return fail(r, part->line, key, value, "0 to 1048576");
        w->dp_start = (uint32_t)n;
        w->given.ranks = true;
    } else if (!strcmp(key, "dp-size")) {
        if (!whole_number(value, DP_MAX, &n) || n == 0) return fail(r, part->line, key, value, "1 to 64");
        w->dp_size = (uint32_t)n;
        w->given.ranks = true;
    } else if (!strncmp(key, "api-key", 7) && (!key[7] || !strcmp(key + 7, "-env") || !strcmp(key + 7, "-file"))) {
        if (!worker_key_read(key, value, w->api_key))
            return fail(r, part->line, key, key[7] ? value : "***",
                        "1 to 255 characters that can be seen; api-key-env: a variable, api-key-file: a file that holds them");
    } else if (worker_tls_is_key(key)) {
        const char *allowed;
        if (!worker_tls_set(&o->tls, key, value, &allowed)) return fail(r, part->line, key, value, allowed);
    } else if (!strcmp(key, "engine")) {
        if (!engine_kind_parse(value, &w->engine)) return fail(r, part->line, key, value, "vllm, sglang");
    } else if (!strcmp(key, "max-num-batched-tokens")) {
        if (!whole_number(value, UINT64_MAX, &w->max_num_batched_tokens)) return fail(r, part->line, key, value, "a whole number");
    } else if (!strcmp(key, "total-kv-blocks")) {
        if (!whole_number(value, UINT64_MAX, &w->total_kv_blocks)) return fail(r, part->line, key, value, "a whole number");
    } else if (!strcmp(key, "taint")) {
        if (!*value || strlen(value) >= sizeof w->taints[0] || w->taints_n == TAINTS_MAX)
            return fail(r, part->line, key, value, "1 to 63 characters, at most 16 of them");
        snprintf(w->taints[w->taints_n++], sizeof w->taints[0], "%s", value);
    } else {
        char name[WORKER_NAME_MAX];
        worker_name(r->e, part->line, name, sizeof name);
        snprintf(r->err, r->cap, "%s: unknown key '%.40s'; allowed: %s", name, key, worker_keys);
        return -1;
    }
    return 0;
}

void worker_spec_init(const struct workers *ws, struct worker_spec *spec)
{
    struct worker *w = &spec->w;
    memset(spec, 0, sizeof *spec);
    w->ranks = spec->ranks;
    w->block_size = ws->o->block_size ? (uint32_t)ws->o->block_size : BLOCK_SIZE_DEFAULT;
    w->given.block_size = ws->o->block_size != 0;
    w->dp_size = 1;
    w->kv_protocol = (enum kvr_kv_protocol)ws->o->kv_protocol;
    w->tp = w->pp = 1;
    w->kv_lease = KV_LEASE_DEFAULT_S;
    w->local_prefill = true;
    snprintf(w->group, sizeof w->group, "default");
}

/* What keys say together. */
static int check_keys(const struct workers *ws, const struct reading *r)
{
    struct worker *w = &r->out->w;
    const struct kv_key *wrong = kv_keys_wrong(w);
    if (wrong) {
        char value[300];
        kv_key_value(w, wrong, value, sizeof value);
        return fail(r, 0, wrong->key, value, wrong->allowed);
    }
    char why[320];
    if (worker_tls_apply(&r->out->tls, w, why, sizeof why)) {
        char name[WORKER_NAME_MAX];
        worker_name(r->e, 0, name, sizeof name);
        snprintf(r->err, r->cap, "%s: %s", name, why);
        return -1;
    }
    w->has_events = w->given.events = r->events[0] != 0;
    w->given.replay = r->replay[0] != 0;
    w->given.total_kv_blocks = w->total_kv_blocks != 0;
    if (r->replay[0] && !r->events[0]) return fail(r, 0, "replay", r->replay, "only together with events");
    if (w->recover[0] && !r->events[0] && ws->o->plane.plane == KVR_PLANE_ZMQ)
        return fail(r, 0, "recover", w->recover, "only together with events");
    if (!spread_endpoint(r->events, w, RANK_EVENTS) || !spread_endpoint(r->replay, w, RANK_REPLAY))
        return fail(r, 0, "events", r->events, "tcp endpoints whose ports leave room for every rank");
    return 0;
}

static bool too_long(const struct kvr_entry *e)
{
    size_t n = strlen(e->head);
    for (size_t i = 0; i < e->n; i++) n += strlen(e->parts[i].key) + (e->parts[i].value ? strlen(e->parts[i].value) : 0) + 2;
    return n > ENTRY_MAX;
}

int worker_read(const struct workers *ws, const struct kvr_entry *e, struct worker_spec *out, char *err, size_t cap)
{
    struct reading r = {.e = e, .out = out, .err = err, .cap = cap};
    char name[WORKER_NAME_MAX];
    worker_spec_init(ws, out);
    worker_name(e, 0, name, sizeof name);
    if (too_long(e)) return kvr_refuse(err, cap, "%s: the value is longer than %d characters", name, ENTRY_MAX);
    if (!worker_set_url(&out->w, e->head, strlen(e->head)))
        return kvr_refuse(err, cap, "%s: bad value '%.120s'; allowed: http://host[:port][,key=value...] or https://...", name, e->head);
    for (size_t i = 0; i < e->n; i++)
        if (parse_key(&r, &e->parts[i])) return -1;
    return check_keys(ws, &r);
}

int worker_parse(const struct workers *ws, const char *text, struct worker_spec *out, char *err, size_t cap)
{
    struct kvr_entry e;
    if (kvr_entry_parse(text, NULL, 0, &e)) return kvr_refuse(err, cap, "--worker: out of memory");
    int rc = worker_read(ws, &e, out, err, cap);
    kvr_entry_free(&e);
    return rc;
}
