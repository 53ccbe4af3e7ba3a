/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The roster is made in two passes over the table: first the names that workers are configured with or list, then every worker into the
 * rows of what it serves, in the order of the table. A worker that has no name and whose engine has not told its models serves whatever is
 * asked, so it is in every row.
 *
 * Invariants: a row's servers are those that worker_serves_locked finds for its model, at the version of the table that the roster is of;
 * each has a reference; the holders of a roster are its place as the current one and the rows of it that are held.
 */
#include "app/serve/workers/table/roster.h"

#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/workers/table/room.h"
#include "base/order.h"

enum { BUCKETS = 1024 };
enum { ANY, UNKNOWN, FIRST_NAMED };

struct roster {
    _Atomic size_t holders;
    uint64_t version;
    size_t left_out, places;
    struct roster_row *rows; /* ANY: of requests that name no model; UNKNOWN: of models that no worker knows; then the models */
    uint32_t *behind;        /* of a row: place of the next of its bucket */
    size_t n, cap;
    uint32_t heads[BUCKETS]; /* place of a row; 0, which has no name: none */
};

static size_t bucket_of(const char *model)
{
    return kvr_hash_bytes(model, strlen(model), kvr_secret()) & (BUCKETS - 1);
}

static struct roster_row *find(const struct roster *r, const char *model)
{
    uint32_t at = r->heads[bucket_of(model)];
    while (at && strcmp(r->rows[at].model, model) != 0) at = r->behind[at];
    return at ? &r->rows[at] : NULL;
}

/* ---- life ------------------------------------------------------------------------------------------------------------ */

static void free_choices(struct roster_row *row)
{
    if (row->whole.ids != row->main.ids) free(row->whole.ids);
    free(row->main.ids);
    for (size_t p = 0; p < KVR_KV_PROTOCOLS; p++) {
        free(row->decode[p].ids);
        free(row->prefill[p].ids);
    }
}

static void roster_free(struct roster *r)
{
    for (size_t i = 0; i < r->n; i++) {
        for (size_t k = 0; k < r->rows[i].servers_n; k++) worker_let_go(r->rows[i].servers[k].worker);
        free(r->rows[i].servers);
        free(r->rows[i].knowers);
        free_choices(&r->rows[i]);
    }
    free(r->rows);
    free(r->behind);
    free(r);
}

static void let_go(struct roster *r)
{
    if (r && atomic_fetch_sub(&r->holders, 1) == 1) roster_free(r);
}

/* One more row. Returns: false without memory. */
static bool add_row(struct roster *r, const char *model)
{
    if (r->n == r->cap) {
        size_t cap = KVR_MAX(r->cap * 2, (size_t)8);
        struct roster_row *rows = realloc(r->rows, cap * sizeof *rows);
        if (rows) r->rows = rows;
        uint32_t *behind = realloc(r->behind, cap * sizeof *behind);
        if (behind) r->behind = behind;
        if (!rows || !behind) return false;
        r->cap = cap;
    }
    r->rows[r->n] = (struct roster_row){.of = r};
    snprintf(r->rows[r->n].model, MODEL_MAX, "%s", model);
    r->behind[r->n] = 0;
    r->n++;
    return true;
}

static struct roster *roster_new(uint64_t version)
{
    struct roster *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    atomic_init(&r->holders, 1);
    r->version = version;
    if (add_row(r, "") && add_row(r, "")) return r;
    roster_free(r);
    return NULL;
}

/* ---- names ----------------------------------------------------------------------------------------------------------- */

static bool add_name(struct roster *r, const char *model)
{
    if (!model || !model[0] || find(r, model)) return true;
    if (r->n == ROSTER_ROWS_MAX) {
        r->left_out++;
        return true;
    }
    size_t b = bucket_of(model);
    if (!add_row(r, model)) return false;
    r->behind[r->n - 1] = r->heads[b];
    r->heads[b] = (uint32_t)(r->n - 1);
    return true;
}

static bool add_names_locked(struct roster *r, const struct workers *ws)
{
    bool ok = !ws->workers || add_name(r, ws->o->model);
    for (const struct worker *w = ws->workers; w && ok; w = w->next) {
        ok = add_name(r, w->model);
        for (size_t i = 0; i < w->models_n && ok; i++) ok = add_name(r, w->models[i].id);
    }
    return ok;
}

/* ---- servers --------------------------------------------------------------------------------------------------------- */

static bool add_knower(struct roster_row *row, const struct worker *w)
{
    if (row->knowers_n && row->knowers[row->knowers_n - 1] == w->id) return true;
    if (row->knowers_n == row->knowers_cap) {
        size_t cap = KVR_MAX(row->knowers_cap * 2, (size_t)4);
        uint64_t *grown = realloc(row->knowers, cap * sizeof *grown);
        if (!grown) return false;
        row->knowers = grown;
        row->knowers_cap = cap;
    }
    row->knowers[row->knowers_n++] = w->id;
    return true;
}

static struct roster_server server_of(struct worker *w)
{
    return (struct roster_server){.worker = w,
                                  .partition = w->partition,
                                  .id = w->id,
                                  .protocol = w->kv_protocol,
                                  .role = w->role,
                                  .takes_whole = worker_takes_whole(w),
                                  .is_sglang = w->engine == ENGINE_SGLANG || w->learnt.facts.engine == KVR_FACT_SGLANG,
                                  .has_models = w->models_n > 0};
}

static bool add_server(struct roster *r, struct roster_row *row, const struct roster_server *server, bool is_lora)
{
    if (row->servers_n && row->servers[row->servers_n - 1].worker == server->worker) return true;
    if (r->places == ROSTER_PLACES_MAX) {
        r->left_out += !row->left_out;
        row->left_out = true;
        return true;
    }
    if (row->servers_n == row->servers_cap) {
        size_t cap = KVR_MAX(row->servers_cap * 2, (size_t)4);
        struct roster_server *grown = realloc(row->servers, cap * sizeof *grown);
        if (!grown) return false;
        row->servers = grown;
        row->servers_cap = cap;
    }
    worker_hold(server->worker);
    row->servers[row->servers_n] = *server;
    row->servers[row->servers_n++].is_lora = is_lora;
    r->places++;
    return true;
}

/* Of a name that it has: what it lists it as counts before what it was configured with. */
static bool add_named(struct roster *r, const struct roster_server *server, const char *model, bool is_lora)
{
    struct roster_row *row = find(r, model);
    return !row || (add_server(r, row, server, is_lora) && add_knower(row, server->worker));
}

static bool add_worker_locked(struct roster *r, const struct workers *ws, struct worker *w)
{
    const char *configured = w->model[0] ? w->model : ws->o->model;
    struct roster_server server = server_of(w);
    bool open = !configured && !w->models, ok = add_server(r, &r->rows[ANY], &server, false);
    for (size_t i = UNKNOWN; i < r->n && open && ok; i++) ok = add_server(r, &r->rows[i], &server, false);
    for (size_t i = 0; i < w->models_n && ok; i++) ok = add_named(r, &server, w->models[i].id, w->models[i].is_lora);
    if (configured && ok) ok = add_named(r, &server, configured, false);
    struct roster_row *of_all = ws->o->model && ok ? find(r, ws->o->model) : NULL;
    return ok && (!of_all || add_knower(of_all, w));
}

/* ---- rows ------------------------------------------------------------------------------------------------------------ */

/* Servers that are asked for by partition; partitions are numbered in the order of their list. */
typedef bool part_fn(const struct roster_server *w, enum kvr_kv_protocol p);

static void count_partitions(const struct roster_row *row, part_fn *is, enum kvr_kv_protocol protocol, size_t n[PARTITIONS_MAX])
{
    memset(n, 0, PARTITIONS_MAX * sizeof *n);
    for (size_t i = 0; i < row->servers_n; i++)
        if (is(&row->servers[i], protocol)) n[row->servers[i].partition->number]++;
}

static bool is_any(const struct roster_server *, enum kvr_kv_protocol)
{
    return true;
}

static bool answers(const struct roster_server *w, enum kvr_kv_protocol)
{
    return !w->partition->prefills;
}

static bool takes_whole(const struct roster_server *w, enum kvr_kv_protocol p)
{
    return answers(w, p) && w->takes_whole;
}

static bool decodes(const struct roster_server *w, enum kvr_kv_protocol p)
{
    return w->role == ROLE_DECODE && w->protocol == p;
}

static bool prefills(const struct roster_server *w, enum kvr_kv_protocol p)
{
    return w->partition->prefills && w->protocol == p;
}

static struct partition *most_used_locked(const struct workers *ws, const size_t n[PARTITIONS_MAX])
{
    struct partition *best = NULL;
    for (struct partition *p = ws->partitions; p; p = p->next)
        if (n[p->number] > (best ? n[best->number] : 0)) best = p;
    return best;
}

/* all: workers of each partition. */
static bool choose_locked(const struct workers *ws, const struct roster_row *row, part_fn *is, enum kvr_kv_protocol protocol,
                          const size_t all[PARTITIONS_MAX], struct roster_choice *out)
{
    size_t n[PARTITIONS_MAX];
    count_partitions(row, is, protocol, n);
    out->partition = most_used_locked(ws, n);
    out->all = true;
    if (!out->partition) return true;
    if (!(out->ids = malloc(n[out->partition->number] * sizeof *out->ids))) return false;
    for (size_t i = 0; i < row->servers_n; i++) {
        const struct roster_server *w = &row->servers[i];
        if (w->partition == out->partition && is(w, protocol)) out->ids[out->n++] = w->id;
    }
    out->all = out->n == all[out->partition->number];
    return true;
}

static bool has_roles(const struct roster_row *row)
{
    for (size_t i = 0; i < row->servers_n; i++)
        if (row->servers[i].role != ROLE_BOTH) return true;
    return false;
}

static bool choose_by_role_locked(const struct workers *ws, struct roster_row *row, const size_t all[PARTITIONS_MAX])
{
    bool ok = choose_locked(ws, row, takes_whole, 0, all, &row->whole);
    for (enum kvr_kv_protocol p = 0; ok && p < KVR_KV_PROTOCOLS; p++)
        ok = choose_locked(ws, row, decodes, p, all, &row->decode[p]) && choose_locked(ws, row, prefills, p, all, &row->prefill[p]);
    row->has_roles = true;
    return ok;
}

static bool finish_locked(const struct workers *ws, struct roster_row *row, const size_t all[PARTITIONS_MAX])
{
    if (row->knowers_n) qsort(row->knowers, row->knowers_n, sizeof *row->knowers, kvr_rising_u64);
    bool ok = choose_locked(ws, row, answers, 0, all, &row->main);
    if (ok && has_roles(row)) ok = choose_by_role_locked(ws, row, all);
    else row->whole = row->main;
    for (size_t i = 0; i < row->servers_n; i++) {
        const struct roster_server *w = &row->servers[i];
        row->has_sglang |= w->is_sglang;
        if (!row->room && w->has_models) row->room = worker_room_locked(w->worker, row->model);
        if (w->partition == row->main.partition) row->is_lora |= w->is_lora;
    }
    return ok;
}

/* only: a model for which there was no room; NULL: all of them. */
static struct roster *make_locked(struct workers *ws, const char *only)
{
    size_t all[PARTITIONS_MAX];
    struct roster *r = roster_new(atomic_load(&ws->workers_version));
    bool ok = r && (only ? add_name(r, only) : add_names_locked(r, ws));
    for (struct worker *w = ws->workers; w && ok; w = w->next) ok = add_worker_locked(r, ws, w);
    if (ok) count_partitions(&r->rows[ANY], is_any, 0, all);
    for (size_t i = 0; ok && i < r->n; i++) ok = finish_locked(ws, &r->rows[i], all);
    if (ok) return r;
    if (r) roster_free(r);
    return NULL;
}

/* ---- the current one ------------------------------------------------------------------------------------------------- */

static struct roster *current(struct workers *ws)
{
    kvr_lock(&ws->roster_lock);
    struct roster *r = ws->roster;
    if (r) atomic_fetch_add(&r->holders, 1);
    kvr_unlock(&ws->roster_lock);
    return r;
}

static struct roster *exchange(struct workers *ws, struct roster *r)
{
    kvr_lock(&ws->roster_lock);
    struct roster *before = ws->roster;
    ws->roster = r;
    kvr_unlock(&ws->roster_lock);
    return before;
}

static bool is_current(struct workers *ws, const struct roster *r)
{
    return r && r->version == atomic_load(&ws->workers_version);
}

/* Of several threads that find it out of date, one makes it. */
static struct roster *renew(struct workers *ws)
{
    struct roster *before = NULL;
    kvr_lock(&ws->lock);
    struct roster *r = current(ws);
    if (!is_current(ws, r)) {
        let_go(r);
        r = make_locked(ws, NULL);
        if (r) atomic_fetch_add(&r->holders, 1);
        if (r) before = exchange(ws, r);
    }
    kvr_unlock(&ws->lock);
    let_go(before);
    return r;
}

static struct roster *up_to_date(struct workers *ws)
{
    struct roster *r = current(ws);
    if (is_current(ws, r)) return r;
    let_go(r);
    return renew(ws);
}

static struct roster *made_for(struct workers *ws, const char *model)
{
    kvr_lock(&ws->lock);
    struct roster *r = make_locked(ws, model);
    kvr_unlock(&ws->lock);
    return r;
}

const struct roster_row *roster_hold(struct workers *ws, const char *model)
{
    struct roster *r = up_to_date(ws);
    const struct roster_row *row = r && *model ? find(r, model) : NULL;
    if (r && *model && (row ? row->left_out : r->left_out > 0)) {
        let_go(r);
        r = made_for(ws, model);
        row = r ? find(r, model) : NULL;
    }
    if (!r) return NULL;
    return row ? row : &r->rows[*model ? UNKNOWN : ANY];
}

void roster_let_go(const struct roster_row *row)
{
    if (row) let_go(row->of);
}

void roster_each_model(struct workers *ws, void (*fn)(void *ctx, const struct roster_row *row), void *ctx)
{
    struct roster *r = up_to_date(ws);
    for (size_t i = FIRST_NAMED; r && i < r->n; i++) fn(ctx, &r->rows[i]);
    let_go(r);
}

bool roster_knows(const struct roster_row *row, uint64_t id)
{
    return row->knowers_n && bsearch(&id, row->knowers, row->knowers_n, sizeof id, kvr_rising_u64);
}

size_t roster_workers_n(const struct roster_row *row)
{
    return row->of->rows[ANY].servers_n;
}

const struct worker *roster_next_up(const struct roster_row *row, const struct roster_choice *choice, struct roster_walk *at)
{
    uint64_t now = kvr_now_ms();
    while (at->server < row->servers_n && at->id < choice->n) {
        const struct worker *w = row->servers[at->server++].worker;
        if (w->id != choice->ids[at->id]) continue;
        at->id++;
        if (worker_is_schedulable(w, now)) return w;
    }
    return NULL;
}

bool roster_any_up(const struct roster_row *row, const struct roster_choice *choice)
{
    return roster_next_up(row, choice, &(struct roster_walk){0}) != NULL;
}

/* What a worker is given does not change: who is registered anew is another object. */
static bool has_taint(const struct worker *w, const char *taint)
{
    for (size_t i = 0; i < w->taints_n; i++)
        if (!strcmp(w->taints[i], taint)) return true;
    return false;
}

static bool has_taints(const struct worker *w, const char *const *taints, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!has_taint(w, taints[i])) return false;
    return true;
}

struct worker *roster_pick(struct workers *ws, const struct roster_row *row, const char *const *taints, size_t taints_n)
{
    uint64_t now = kvr_now_ms();
    size_t n = row->servers_n, at = n ? kvr_mix64(atomic_fetch_add(&ws->process->next_id, 1)) % n : 0; /* spread over them */
    for (size_t i = 0; i < n; i++) {
        struct worker *w = row->servers[(at + i) % n].worker;
        if (!worker_is_schedulable(w, now) || !has_taints(w, taints, taints_n)) continue;
        atomic_fetch_add(&w->refs, 1);
        return w;
    }
    return NULL;
}

void roster_outdate_locked(struct workers *ws)
{
    atomic_fetch_add(&ws->workers_version, 1);
}

void roster_tick(struct workers *ws)
{
    let_go(up_to_date(ws));
}

size_t roster_models_left_out(struct workers *ws)
{
    struct roster *r = current(ws);
    size_t n = r ? r->left_out : 0;
    let_go(r);
    return n;
}

void roster_destroy(struct workers *ws)
{
    let_go(exchange(ws, NULL));
}
