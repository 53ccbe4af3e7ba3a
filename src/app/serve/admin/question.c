/* SPDX-License-Identifier: Apache-2.0 */
/*
 * struct question: a prompt and who may serve it, read from a body of the admin port, and the questions to a router that follow from it.
 * What /select, /query and the like answer is in selection.c and questions.c. Every refusal names the member (common/fields.c). Main loop.
 */
#include "app/serve/admin/room.h"

#include <math.h>
#include <string.h>
#include <kvroute/hash.h>

#include "app/serve/data/choice/domains.h"
#include "app/serve/data/choice/question.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/views/views.h"
#include "app/serve/workers/workers.h"

/* In place of a member's name. */
static const char no_memory[] = "";

void question_free(struct question *q)
{
    free(q->scores);
    free(q->tokens);
    free(q->locals);
    free(q->seqs);
    free(q->allowed);
    free(q->decode.allowed);
    free(q->whole.allowed);
    kvr_mm_infos_free(&q->mm);
}

const char *get_hashes(struct kvr_json o, const char *key, uint64_t **out, size_t *n)
{
    struct kvr_json v = kvr_json_get(o, key);
    if (kvr_json_type_of(v) != KVR_JSON_ARRAY) return key;
    *n = kvr_json_count(v);
    *out = malloc((*n + 1) * sizeof **out);
    if (!*out) return no_memory;
    return kvr_json_u64_array(v, *out, *n) >= 0 ? NULL : key;
}

/* The tokens that were made of a text. */
static const char *copy_tokens(const struct kvr_ids *ids, struct question *q)
{
    q->tokens_n = ids->n;
    q->tokens = malloc((ids->n + 1) * sizeof *q->tokens);
    if (!q->tokens) return no_memory;
    memcpy(q->tokens, ids->v, ids->n * sizeof *q->tokens);
    return NULL;
}

static const char *read_prompt(struct kvr_json o, const struct kvr_ids *text_ids, struct question *q)
{
    if (text_ids) return copy_tokens(text_ids, q);
    struct kvr_json tokens = kvr_json_get(o, "token_ids"), hashes = kvr_json_get(o, "block_hashes"),
                    seqs = kvr_json_get(o, "sequence_hashes");
    const char *bad = NULL;
    if (!kvr_json_is_given(tokens)) tokens = kvr_json_get(o, "tokens");
    bool has_seqs = kvr_json_is_given(seqs);
    if (kvr_json_is_given(tokens)) {
        if (kvr_json_type_of(tokens) != KVR_JSON_ARRAY) return "token_ids";
        q->tokens_n = kvr_json_count(tokens);
        q->tokens = malloc((q->tokens_n + 1) * sizeof *q->tokens);
        if (!q->tokens) return no_memory;
        return kvr_json_u32_array(tokens, q->tokens, q->tokens_n) >= 0 ? NULL : "token_ids";
    }
    if (has_seqs && (bad = get_hashes(o, "sequence_hashes", &q->seqs, &q->seqs_n))) return bad;
    if (kvr_json_is_given(hashes)) {
        if ((bad = get_hashes(o, "block_hashes", &q->locals, &q->locals_n))) return bad;
        return has_seqs && q->seqs_n != q->locals_n ? "sequence_hashes" : NULL;
    }
    return has_seqs ? NULL : "token_ids";
}

/* Readers of lists that are not absent or null. Returns: whether it is one of at most so many, and all of them are fine. */
static bool is_list(struct kvr_json v, enum kvr_json_type type, size_t max)
{
    return kvr_json_type_of(v) == type && kvr_json_count(v) <= max;
}

static bool read_required(struct kvr_json v, struct question *q)
{
    if (!is_list(v, KVR_JSON_ARRAY, TAINT_LIST_MAX)) return false;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i); q->required_n++)
        if (!kvr_json_copy_name(i.value, q->required[q->required_n], sizeof q->required[0]) || !q->required[q->required_n][0]) return false;
    return true;
}

static bool read_preferred(struct kvr_json v, struct question *q)
{
    if (!is_list(v, KVR_JSON_OBJECT, TAINT_LIST_MAX)) return false;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i); q->preferred_n++) {
        double *weight = &q->preferred_list[q->preferred_n].weight;
        char *name = q->preferred[q->preferred_n];
        if (i.key_len == 0 || i.key_len >= sizeof q->preferred[0] || memchr(i.key, 0, i.key_len)) return false;
        if (!kvr_json_as_double(i.value, weight) || !isfinite(*weight)) return false;
        memcpy(name, i.key, i.key_len);
        name[i.key_len] = 0;
    }
    return true;
}

static bool read_ranges(struct kvr_json v, struct question *q)
{
    uint64_t r[2];
    if (!is_list(v, KVR_JSON_ARRAY, SHARED_RANGES_MAX)) return false;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i); q->shared_n++) {
        if (kvr_json_u64_array(i.value, r, 2) != 2 || r[1] < r[0] || r[1] > UINT32_MAX) return false;
        q->shared[q->shared_n] = (struct kvr_shared_range){(uint32_t)r[0], (uint32_t)r[1]};
    }
    return true;
}

static const char *read_allowed(struct kvr_json o, struct question *q)
{
    static const char name[] = "allowed_worker_ids";
    struct kvr_json v = kvr_json_get(o, name);
    if (!kvr_json_is_given(v)) return NULL;
    if (!is_list(v, KVR_JSON_ARRAY, RANKS_MAX)) return name;
    q->allowed = malloc((kvr_json_count(v) + 1) * sizeof *q->allowed);
    if (!q->allowed) return no_memory;
    for (struct kvr_json_iter i = kvr_json_iter(v); kvr_json_next(&i);)
        if (!kvr_json_as_u64(i.value, &q->allowed[q->allowed_n++])) return name;
    return NULL;
}

static const char *read_constraints(struct kvr_json o, struct question *q)
{
    struct kvr_json c = kvr_json_get(o, "routing_constraints"), v = kvr_json_get(c, "required_taints");
    if (kvr_json_is_given(c) && kvr_json_type_of(c) != KVR_JSON_OBJECT) return "routing_constraints";
    if (kvr_json_is_given(v) && !read_required(v, q)) return "required_taints";
    v = kvr_json_get(c, "preferred_taints");
    if (kvr_json_is_given(v) && !read_preferred(v, q)) return "preferred_taints";
    const char *bad = read_allowed(o, q);
    if (bad) return bad;
    v = kvr_json_get(o, "shared_cache_ranges");
    if (kvr_json_is_given(v) && !read_ranges(v, q)) return "shared_cache_ranges";
    v = kvr_json_get(o, "pinned_worker");
    if (!kvr_json_is_given(v)) return NULL;
    uint64_t rank = 0;
    struct kvr_json r = kvr_json_get(v, "dp_rank");
    q->has_pin = true;
    q->pin_any_rank = !kvr_json_is_given(r);
    if (!kvr_json_as_u64(kvr_json_get(v, "worker_id"), &q->pin.worker_id)) return "pinned_worker";
    if (!q->pin_any_rank && (!kvr_json_as_u64(r, &rank) || rank > UINT32_MAX)) return "pinned_worker";
    q->pin.dp_rank = (uint32_t)rank;
    return NULL;
}

static bool read_override_member(struct kvr_override *o, const char *key, size_t key_len, struct kvr_json v)
{
    const struct {
        const char *key;
        unsigned bit;
        double *number;
        bool *flag;
    } rows[] = {
        {"overlap_score_credit", KVR_OVERRIDE_OVERLAP_CREDIT, &o->overlap_credit, NULL},
        {"prefill_load_scale", KVR_OVERRIDE_PREFILL_LOAD_SCALE, &o->prefill_load_scale, NULL},
        {"router_temperature", KVR_OVERRIDE_TEMPERATURE, &o->temperature, NULL},
        {"shared_cache_multiplier", KVR_OVERRIDE_SHARED_MULTIPLIER, &o->shared_multiplier, NULL},
        {"assume_kv_reuse", KVR_OVERRIDE_ASSUME_KV_REUSE, NULL, &o->assume_kv_reuse},
        {"track_prefill_tokens", KVR_OVERRIDE_TRACK_PREFILL_TOKENS, NULL, &o->track_prefill_tokens},
    };
    if (kvr_json_type_of(v) == KVR_JSON_NULL) return true;
    if (kvr_span_is(key, key_len, "overlap_score_weight")) { /* the older name */
        if (!kvr_json_as_double(v, &o->prefill_load_scale) || o->prefill_load_scale < 0) return false;
        o->set |= KVR_OVERRIDE_PREFILL_LOAD_SCALE;
        if (o->prefill_load_scale == 0) o->set |= KVR_OVERRIDE_OVERLAP_CREDIT, o->overlap_credit = 0;
        return true;
    }
    for (size_t i = 0; i < KVR_ARRAY_LEN(rows); i++) {
        if (!kvr_span_is(key, key_len, rows[i].key)) continue;
        o->set |= rows[i].bit;
        if (rows[i].flag) return kvr_json_as_bool(v, rows[i].flag);
        return kvr_json_as_double(v, rows[i].number) && *rows[i].number >= 0; /* judged here: another member may write over it */
    }
    return false;
}

/* The library's name of a setting as the member that sets it. */
static const char *member_of(const char *setting)
{
    if (!strcmp(setting, "overlap_credit")) return "overlap_score_credit";
    if (!strcmp(setting, "temperature")) return "router_temperature";
    return !strcmp(setting, "shared_multiplier") ? "shared_cache_multiplier" : setting;
}

/* Returns: false with the member's name in bad. */
static bool read_override(struct kvr_json o, struct kvr_override *out, char *bad, size_t cap)
{
    static const char name[] = "router_config_override";
    struct kvr_json v = kvr_json_get(o, name);
    struct kvr_cost_config c;
    const char *field = name;
    if (!kvr_json_is_given(v)) return true;
    for (struct kvr_json_iter i = kvr_json_iter(v); i.members && kvr_json_next(&i);)
        if (!read_override_member(out, i.key, i.key_len, i.value)) {
            snprintf(bad, cap, "%.*s", (int)KVR_MIN(i.key_len, (size_t)63), i.key);
            return false;
        }
    kvr_cost_config_init(&c);
    if (kvr_json_type_of(v) == KVR_JSON_OBJECT && kvr_override_apply(out, &c, &field) == 0) return true;
    snprintf(bad, cap, "%s", member_of(field));
    return false;
}

/* ids[n] without those that the caller has left out of its list. Returns: how many are left. */
static size_t keep_allowed(const struct question *q, uint64_t *ids, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        bool given = !q->allowed;
        for (size_t k = 0; k < q->allowed_n && !given; k++) given = q->allowed[k] == ids[i];
        if (given) ids[kept++] = ids[i];
    }
    return kept;
}

/* Only these n workers may be chosen; of the caller's list those among them. Takes ids. */
static void narrow_to(struct question *q, uint64_t *ids, size_t n)
{
    n = keep_allowed(q, ids, n);
    free(q->allowed);
    q->allowed = ids;
    q->allowed_n = n;
}

/* Where a partition has other workers too, only those of the scope may be chosen. */
static bool narrow_locked(struct admin *admin, struct question *q)
{
    bool all;
    uint64_t *ids = malloc((workers_count(admin->workers) + 1) * sizeof *ids);
    size_t n = ids ? partition_scope_locked(admin->workers, q->partition, q->model, q->group, ids, &all) : 0;
    if (ids && !all) narrow_to(q, ids, n);
    else free(ids);
    return ids != NULL;
}

/* ---- the partition ----------------------------------------------------------------------------------- */

/* Workers of one part of the request. */
struct part {
    struct partition *partition; /* NULL: none */
    uint64_t *ids;
    size_t n;
    bool up;
};

/* Returns: false without memory. */
static bool find_part_locked(struct admin *admin, const struct question *q, enum worker_part part, bool any_protocol,
                             enum kvr_kv_protocol protocol, struct part *out)
{
    struct part_scope scope = {q->model, q->group, part, any_protocol, protocol};
    *out = (struct part){.ids = malloc((workers_count(admin->workers) + 1) * sizeof *out->ids)};
    if (out->ids) out->partition = partition_of_part_locked(admin->workers, &scope, out->ids, &out->n, &out->up);
    return out->ids != NULL;
}

static void take_part(struct question *q, struct part *p)
{
    q->partition = p->partition;
    narrow_to(q, p->ids, p->n);
    p->ids = NULL;
}

/* Returns: 0, -KVR_ENOTFOUND, -KVR_ENOMEM. */
static int find_any_locked(struct admin *admin, struct question *q)
{
    q->partition = partition_find_locked(admin->workers, q->model, q->group);
    return !q->partition ? -KVR_ENOTFOUND : narrow_locked(admin, q) ? 0 : -KVR_ENOMEM;
}

static int find_phase_locked(struct admin *admin, struct question *q)
{
    static const enum worker_part parts[] = {[ASKS_PREFILL] = PART_PREFILL, [ASKS_DECODE] = PART_DECODE, [ASKS_WHOLE] = PART_WHOLE};
    struct part p;
    if (!find_part_locked(admin, q, parts[q->phase], !q->has_protocol, q->protocol, &p)) return -KVR_ENOMEM;
    int rc = p.partition ? 0 : -KVR_ENOTFOUND;
    if (rc == 0) take_part(q, &p);
    free(p.ids);
    return rc;
}

/* The pinned worker; NULL: there is no pin, or no such worker. */
static const struct worker *pinned_locked(struct admin *admin, const struct question *q)
{
    return q->has_pin ? worker_find_locked(admin->workers, q->pin.worker_id) : NULL;
}

/* Of prefill workers those that have somebody to hand over to. */
static void keep_with_partner_locked(struct admin *admin, struct part *prefill, const struct part *decode)
{
    size_t kept = 0;
    uint64_t now = kvr_now_ms();
    prefill->up = false;
    for (size_t i = 0; i < prefill->n; i++) {
        const struct worker *p = worker_find_locked(admin->workers, prefill->ids[i]);
        bool meets = false;
        for (size_t k = 0; k < decode->n && !meets; k++) {
            const struct worker *d = worker_find_locked(admin->workers, decode->ids[k]);
            meets = worker_is_schedulable(d, now) && domains_meet(admin->data, p, d);
        }
        if (!meets) continue;
        prefill->ids[kept++] = p->id;
        prefill->up |= worker_is_schedulable(p, now);
    }
    prefill->n = kept;
}

static struct other_leg take_leg(const struct question *q, struct part *p)
{
    struct other_leg leg = {.partition = p->partition, .allowed = p->ids, .allowed_n = keep_allowed(q, p->ids, p->n)};
    p->ids = NULL;
    return leg;
}

static void take_pair_locked(struct admin *admin, struct question *q, struct part *prefill, struct part *decode, struct part *whole,
                             enum kvr_kv_protocol protocol)
{
    const struct worker *pinned = pinned_locked(admin, q);
    if (whole->up && !pinned) q->whole = take_leg(q, whole);
    q->decode = take_leg(q, decode);
    q->decode.pinned = pinned && pinned->role == ROLE_DECODE;
    q->protocol = protocol;
    q->has_pair = true;
    take_part(q, prefill);
}

/* Both legs of one protocol, when workers of both are up. Returns: -KVR_ENOTFOUND: they are not. */
static int find_pair_of_locked(struct admin *admin, struct question *q, enum kvr_kv_protocol protocol)
{
    struct part prefill, decode = {0}, whole = {0};
    bool memory = find_part_locked(admin, q, PART_PREFILL, false, protocol, &prefill) &&
                  find_part_locked(admin, q, PART_DECODE, false, protocol, &decode) &&
                  find_part_locked(admin, q, PART_WHOLE, true, protocol, &whole);
    if (memory && admin->o->kv_transfer_domain == DOMAIN_REQUIRED) keep_with_partner_locked(admin, &prefill, &decode);
    int rc = !memory ? -KVR_ENOMEM : prefill.up && decode.up ? 0 : -KVR_ENOTFOUND;
    if (rc == 0) take_pair_locked(admin, q, &prefill, &decode, &whole, protocol);
    free(prefill.ids);
    free(decode.ids);
    free(whole.ids);
    return rc;
}

/* Two workers, else one that takes all of the request. Returns: -KVR_ENOENDPOINTS: there are workers, and neither can be had. */
static int find_two_locked(struct admin *admin, struct question *q)
{
    int rc = -KVR_ENOTFOUND;
    const struct worker *pinned = pinned_locked(admin, q);
    for (enum kvr_kv_protocol p = 0; p < KVR_KV_PROTOCOLS && rc == -KVR_ENOTFOUND && !(pinned && pinned->role == ROLE_BOTH); p++)
        if ((!q->has_protocol || q->protocol == p) && (!pinned || pinned->kv_protocol == p)) rc = find_pair_of_locked(admin, q, p);
    if (rc != -KVR_ENOTFOUND) return rc;
    struct part p;
    if (!find_part_locked(admin, q, PART_WHOLE, true, KVR_KV_NONE, &p)) return -KVR_ENOMEM;
    rc = p.partition ? 0 : partition_find_locked(admin->workers, q->model, q->group) ? -KVR_ENOENDPOINTS : -KVR_ENOTFOUND;
    if (rc == 0) take_part(q, &p);
    free(p.ids);
    return rc;
}

static int find_partition(struct admin *admin, struct question *q)
{
    workers_lock(admin->workers);
    int rc = q->two ? find_two_locked(admin, q) : q->phase ? find_phase_locked(admin, q) : find_any_locked(admin, q);
    workers_unlock(admin->workers);
    return rc;
}

static void refuse_partition(struct kvr_http_conn *c, const struct question *q, int rc)
{
    static const char *const none[] = {"no indexer", "no prefill worker", "no decode worker", "no worker of whole requests"};
    char text[2 * MODEL_MAX + 96];
    snprintf(text, sizeof text, "%s for model=%s routing_group=%s", none[q->phase], q->model[0] ? q->model : "default",
             q->group[0] ? q->group : "default");
    if (rc == -KVR_ENOMEM) admin_bad_field(c, no_memory);
    else if (rc == -KVR_ENOENDPOINTS)
        admin_error(c, 503, "no pair of a prefill and a decode worker is up, and no worker of whole requests");
    else admin_error(c, 404, text);
}

/* ---- a question -------------------------------------------------------------------------------------- */

/* Returns: NULL or the member that is wrong. */
static const char *read_legs(struct kvr_json o, struct question *q)
{
    static const char *const phases[] = {"", "prefill", "decode", "aggregated"};
    char phase[16] = "", protocol[24] = "";
    const char *bad = NULL;
    uint64_t legs = q->two ? 2 : 1;
    if (!member_text(o, "phase", phase, sizeof phase, &bad) || !member_text(o, "kv_protocol", protocol, sizeof protocol, &bad) ||
        !member_u64(o, "legs", 2, &legs, &bad))
        return bad;
    if (legs == 0) return "legs";
    while (q->phase < ASKS_WHOLE && strcmp(phase, phases[q->phase])) q->phase++;
    q->two = legs == 2;
    q->has_protocol = protocol[0] != 0;
    if (strcmp(phase, phases[q->phase]) || (q->phase && q->two)) return "phase";
    if (q->has_protocol && !kvr_kv_protocol_parse(protocol, &q->protocol)) return "kv_protocol";
    return NULL;
}

static const char *read_fields(struct kvr_json o, const struct kvr_ids *text_ids, struct question *q)
{
    const char *bad = NULL;
    uint64_t strict = 0;
    if (!member_text(o, "model_name", q->model, MODEL_MAX, &bad) || !member_text(o, "lora_name", q->lora, MODEL_MAX, &bad) ||
        !member_text(o, "cache_salt", q->salt, sizeof q->salt, &bad) || !member_text(o, "cache_namespace", q->salt, sizeof q->salt, &bad) ||
        !member_text(o, "routing_group", q->group, MODEL_MAX, &bad) ||
        !member_text(o, "policy_class", q->policy_class, sizeof q->policy_class, &bad) ||
        !member_text(o, "tenant", q->tenant, sizeof q->tenant, &bad) ||
        !member_double(o, "tenant_weight", 0.001, 1000, &q->tenant_weight, &bad) ||
        !member_u64(o, "isl_tokens", UINT32_MAX, &q->isl, &bad) || !member_u64(o, "new_isl_tokens", UINT32_MAX, &q->isl, &bad) ||
        !member_double(o, "priority_jump", -1e9, 1e9, &q->priority, &bad) || !member_u64(o, "strict_priority", UINT32_MAX, &strict, &bad))
        return bad;
    q->strict_priority = (uint32_t)strict;
    bad = read_prompt(o, text_ids, q);
    if (!bad) bad = read_legs(o, q);
    return bad ? bad : read_constraints(o, q);
}

/* Which blocks touch which multimodal objects: the partition says how long a block is. Returns: false after having answered. */
static bool read_mm_infos(struct kvr_http_conn *c, struct kvr_json o, struct question *q)
{
    char why[160];
    uint32_t bs = q->partition->block_size;
    size_t blocks = q->tokens ? KVR_MAX((q->tokens_n + bs - 1) / bs, (size_t)1) : 0;
    int rc = kvr_mm_infos_read(o, blocks, &q->mm, why, sizeof why);
    if (rc == 0) return true;
    question_free(q);
    admin_error(c, rc == -KVR_ENOMEM ? 503 : 400, rc == -KVR_ENOMEM ? kvr_strerror(rc) : why);
    return false;
}

static bool read_question(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, bool two, struct question *q)
{
    char name[64];
    memset(q, 0, sizeof *q);
    q->admin = admin;
    q->two = two;
    views_want(admin->workers);
    const char *bad = read_fields(o, admin->text_ids, q);
    if (!bad && !read_override(o, &q->override, name, sizeof name)) bad = name;
    if (bad) {
        question_free(q);
        admin_bad_field(c, bad);
        return false;
    }
    if (q->phase == ASKS_DECODE) kvr_override_decode_leg(&q->override, admin->o->conditional_disagg);
    int rc = find_partition(admin, q);
    if (rc) {
        question_free(q);
        refuse_partition(c, q, rc);
        return false;
    }
    if (q->has_pair && q->locals && q->decode.partition->block_size != q->partition->block_size) {
        question_free(q);
        admin_bad_field(c, "token_ids"); /* the hashes are of blocks of one size, and each leg has its own */
        return false;
    }
    if (!read_mm_infos(c, o, q)) return false;
    if (admin->fetched) {
        q->scores = malloc((admin->fetched->n + 1) * sizeof *q->scores);
        if (!q->scores) {
            question_free(q);
            admin_error(c, 503, kvr_strerror(-KVR_ENOMEM));
            return false;
        }
        if (admin->fetched->n) memcpy(q->scores, admin->fetched->scores, admin->fetched->n * sizeof *q->scores);
        q->scores_n = admin->fetched->n;
    }
    if (!q->isl) q->isl = q->tokens ? q->tokens_n : (q->locals ? q->locals_n * q->partition->block_size : 0);
    return true;
}

bool question_read(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct question *q)
{
    return read_question(admin, c, o, false, q);
}

bool question_read_pair(struct admin *admin, struct kvr_http_conn *c, struct kvr_json o, struct question *q)
{
    return read_question(admin, c, o, true, q);
}

static int mode_option(const struct question *q)
{
    const struct serve_options *o = q->admin->o;
    if (q->has_pair || q->phase == ASKS_PREFILL) return o->prefill_mode;
    return q->phase == ASKS_DECODE ? o->decode_mode : 0;
}

static uint64_t tenant_of(const struct question *q)
{
    return q->tenant[0] ? kvr_hash_bytes(q->tenant, strlen(q->tenant), kvr_secret()) | 1 : 0;
}

struct kvr_router_request question_request(const struct question *q)
{
    const struct admin *admin = q->admin;
    struct kvr_router_request rq = {.mode = question_leg_mode(admin->data, mode_option(q)),
                                    .tokens = q->tokens,
                                    .tokens_n = q->tokens_n,
                                    .locals = q->locals,
                                    .locals_n = q->locals_n,
                                    .seqs = q->seqs,
                                    .seqs_n = q->seqs_n,
                                    .isl = q->isl,
                                    .scores = q->scores,
                                    .scores_n = q->scores_n,
                                    .lora = q->lora,
                                    .lora_len = strlen(q->lora),
                                    .salt = q->salt,
                                    .salt_len = strlen(q->salt),
                                    .mm = q->mm.blocks,
                                    .mm_n = q->mm.n,
                                    .shared = q->shared,
                                    .shared_n = q->shared_n,
                                    .allowed = q->allowed,
                                    .allowed_n = q->allowed_n,
                                    .required_n = q->required_n,
                                    .preferred_n = q->preferred_n,
                                    .pinned = q->has_pin && !q->decode.pinned,
                                    .pin_any_rank = q->pin_any_rank,
                                    .pin = q->pin,
                                    .priority_jump = q->priority,
                                    .strict_priority = q->strict_priority,
                                    .tenant = tenant_of(q),
                                    .tenant_weight = q->tenant_weight,
                                    .policy_class = q->policy_class,
                                    .policy_class_len = strlen(q->policy_class),
                                    .override = &q->override};
    struct question *w = (struct question *)(uintptr_t)q; /* pointers into itself, for whoever moved it */
    for (size_t i = 0; i < q->required_n; i++) w->required_ptr[i] = q->required[i];
    for (size_t i = 0; i < q->preferred_n; i++) w->preferred_list[i].name = q->preferred[i];
    rq.required_taints = q->required_ptr;
    rq.preferred_taints = q->preferred_list;
    return rq;
}

struct kvr_router_request question_decode_request(const struct question *q)
{
    struct kvr_router_request rq = question_request(q);
    rq.mode = question_leg_mode(q->admin->data, q->admin->o->decode_mode);
    rq.allowed = q->decode.allowed;
    rq.allowed_n = q->decode.allowed_n;
    rq.pinned = q->decode.pinned;
    if (q->partition->block_size != q->decode.partition->block_size)
        rq.mm_n = 0; /* by blocks of the other size, and nothing is looked up */
    return rq;
}

uint64_t *question_locals(const struct question *q, size_t *n)
{
    uint32_t bs = q->partition->block_size;
    *n = q->locals ? q->locals_n : kvr_hash_block_count(q->tokens_n, bs, false);
    uint64_t *out = malloc((*n + 1) * sizeof *out);
    if (!out) return NULL;
    if (q->locals) memcpy(out, q->locals, *n * sizeof *out);
    else
        (void)kvr_hash_locals(q->tokens, q->tokens_n, bs, false, kvr_hash_seed(q->lora, strlen(q->lora), q->salt, strlen(q->salt)),
                              q->mm.blocks, q->mm.n, out);
    return out;
}

struct kvr_router_ctx *admin_ctx(struct admin *admin, struct partition *partition)
{
    return ctx_get(&admin->ctxs, partition);
}
