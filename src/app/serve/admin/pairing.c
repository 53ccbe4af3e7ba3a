/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two workers for one request: one computes its prompt, another one goes on from it (kvroute/pair.h). The choice of the second, both in an
 * answer, and both bookings of an id.
 *
 * Threads: the main loop's. The first worker's place may come from whatever thread made room (selection.c); the second is chosen and booked
 * when the loop has taken that, so that a router's lock is never taken under another one's.
 */
#include "app/serve/admin/room.h"

#include <string.h>
#include <uv.h>
#include <kvroute/pair.h>

#include "app/serve/data/choice/conditional.h"
#include "app/serve/workers/table/worker.h"
#include "app/serve/workers/workers.h"
#include "wire/handoff.h"

/* ---- a worker ---------------------------------------------------------------------------------------- */

struct reach reach_of(const struct kvr_router_ctx *ctx, struct kvr_worker worker, uint32_t block_size)
{
    const struct kvr_candidate *c;
    const struct kvr_cost *costs;
    struct reach r = {0};
    size_t n = ctx ? kvr_router_candidates(ctx, &c, &costs) : 0;
    for (size_t i = 0; i < n; i++) {
        if (kvr_worker_cmp(c[i].worker, worker)) continue;
        r.gpu = (uint64_t)c[i].device_blocks * block_size;
        r.cpu = r.gpu + (uint64_t)c[i].host_blocks * block_size;
        r.disk = r.cpu + (uint64_t)(c[i].disk_blocks + c[i].external_blocks) * block_size;
    }
    return r;
}

static void put_overlap(struct kvr_buf *b, const struct place *p)
{
    kvr_json_printf(b, "'overlap':{'longest_matched':%ju,'gpu':%ju,'dp':{'%u':%ju},'cpu':%ju,'disk':%ju}", p->reach.disk, p->reach.gpu,
                    p->result.worker.dp_rank, p->reach.gpu, p->reach.cpu, p->reach.disk);
}

void place_write(struct admin *admin, struct kvr_buf *b, const struct place *p)
{
    char url[sizeof((struct worker *)0)->url] = "";
    workers_lock(admin->workers);
    const struct worker *w = worker_find_locked(admin->workers, p->result.worker.worker_id);
    if (w) snprintf(url, sizeof url, "%s", w->url);
    workers_unlock(admin->workers);
    kvr_json_printf(b, "'worker_id':%ju,'dp_rank':%u,'endpoint':%s,'block_size':%u", p->result.worker.worker_id, p->result.worker.dp_rank,
                    url, p->partition->block_size);
    put_overlap(b, p);
    kvr_json_put_u64(b, "effective_prefill_tokens", p->result.prefill_tokens);
}

static void put_place(struct admin *admin, struct kvr_buf *b, const char *key, const struct place *p)
{
    kvr_json_key(b, key);
    if (!p) {
        kvr_json_null(b);
        return;
    }
    kvr_json_open(b, '{');
    place_write(admin, b, p);
    kvr_json_close(b, '}');
}

/* ---- the second worker ------------------------------------------------------------------------------- */

static struct kvr_pair pair_of_question(const struct admin *admin, const struct question *q)
{
    return (struct kvr_pair){.prefill = q->partition->router,
                             .decode = q->decode.partition->router,
                             .domain_prefix = admin->o->kv_transfer_domain == DOMAIN_OFF ? NULL : KV_DOMAIN_TAINT,
                             .domain_required = admin->o->kv_transfer_domain == DOMAIN_REQUIRED,
                             .domain_weight = admin->o->kv_transfer_weight,
                             .keeps_overlap = admin->o->conditional_disagg};
}

int pairing_find_decode(struct admin *admin, const struct question *q, const struct place *first, const char *id, struct place *out)
{
    struct kvr_pair pair = pair_of_question(admin, q);
    struct kvr_pair_ctx ctx = {admin_ctx(admin, q->partition), admin_ctx(admin, q->decode.partition)};
    struct kvr_router_request rq = question_decode_request(q);
    if (!ctx.prefill || !ctx.decode) return -KVR_ENOMEM;
    rq.book = id != NULL;
    rq.id = id;
    rq.id_len = id ? strlen(id) : 0;
    out->partition = q->decode.partition;
    int rc = kvr_pair_find_decode(&pair, &ctx, &rq, first->result.worker, &out->result);
    if (rc == 0) out->reach = reach_of(ctx.decode, out->result.worker, out->partition->block_size);
    return rc;
}

int pairing_look(struct admin *admin, const struct question *q)
{
    struct kvr_router_ctx *ctx = admin_ctx(admin, q->decode.partition);
    struct kvr_router_request rq = question_decode_request(q);
    struct kvr_router_result anybody;
    return ctx ? kvr_router_find_best_match(q->decode.partition->router, ctx, &rq, &anybody) : -KVR_ENOMEM;
}

/* ---- one worker after all ---------------------------------------------------------------------------- */

/* Returns: as kvr_router_find_best_match; who: of all that the question has, but for its partition and its list. */
static int look(struct admin *admin, const struct question *q, struct partition *partition, const uint64_t *allowed, size_t allowed_n,
                struct kvr_router_result *out)
{
    struct kvr_router_ctx *ctx = admin_ctx(admin, partition);
    struct kvr_router_request rq = question_request(q);
    if (partition == q->whole.partition) rq.mode = NULL; /* of no leg */
    rq.allowed = allowed;
    rq.allowed_n = allowed_n;
    return ctx ? kvr_router_find_best_match(partition->router, ctx, &rq, out) : -KVR_ENOMEM;
}

/* That very worker: it is the one by which was decided. */
static void go_whole(struct question *q, struct kvr_worker to)
{
    free(q->allowed);
    q->partition = q->whole.partition;
    q->allowed = q->whole.allowed;
    q->allowed_n = q->whole.allowed_n;
    q->whole = (struct other_leg){0};
    q->has_pair = false;
    q->has_pin = true;
    q->pin = to;
    q->pin_any_rank = false;
}

void pairing_judge(struct admin *admin, struct question *q)
{
    struct kvr_disagg_rule rule = conditional_rule(admin->data, (enum kvr_router_mode)workers_mode(admin->workers));
    struct conditional_ways ways = {.isl = q->isl};
    const char *why;
    bool comparable = q->whole.partition && (!q->locals || q->whole.partition->block_size == q->partition->block_size);
    if (!comparable || !conditional_is_on(&rule)) return;
    if (look(admin, q, q->whole.partition, q->whole.allowed, q->whole.allowed_n, &ways.whole)) return;
    ways.prefill_rc = look(admin, q, q->partition, q->allowed, q->allowed_n, &ways.prefill);
    q->has_eff = true;
    if (conditional_is_local(admin->data, &rule, &ways, &q->eff_isl, &why)) go_whole(q, ways.whole.worker);
}

/* ---- both in an answer ------------------------------------------------------------------------------- */

static const char *treatment(struct admin *admin, const struct question *q, const struct place *first)
{
    if (q->has_pair) return "remote";
    workers_lock(admin->workers);
    const struct worker *w = worker_find_locked(admin->workers, first->result.worker.worker_id);
    bool decodes = w && w->role == ROLE_DECODE;
    workers_unlock(admin->workers);
    return decodes ? "local" : "aggregated";
}

static void put_room(struct kvr_buf *b, enum kvr_kv_protocol protocol, uint32_t rank, uint32_t ranks)
{
    uint64_t random;
    kvr_json_key(b, "room");
    if (protocol != KVR_KV_SGLANG) kvr_json_null(b);
    else if (uv_random(NULL, NULL, &random, sizeof random, 0, NULL)) b->failed = true;
    else kvr_json_u64(b, kvr_handoff_room(random, rank, ranks));
}

/* Where the engines of a pair meet; null where they do not. SGLang's meet in a room, which is another one in each answer, and leads to the
 * prefill worker's rank. */
static void put_bootstrap(struct admin *admin, struct kvr_buf *b, const struct question *q, const struct place *first)
{
    bool meets = q->has_pair && (q->protocol == KVR_KV_SGLANG || q->protocol == KVR_KV_VLLM_MOONCAKE);
    workers_lock(admin->workers);
    const struct worker *w = meets ? worker_find_locked(admin->workers, first->result.worker.worker_id) : NULL;
    struct kv_address at = w ? kv_bootstrap_of(w) : (struct kv_address){0};
    uint32_t ranks = w ? w->dp_size : 0, rank = w ? first->result.worker.dp_rank - w->dp_start : 0;
    workers_unlock(admin->workers);
    kvr_json_key(b, "bootstrap");
    if (!ranks) {
        kvr_json_null(b);
        return;
    }
    kvr_json_printf(b, "{'host':%s,'port':%u", at.host, at.port);
    put_room(b, q->protocol, rank, ranks);
    kvr_json_close(b, '}');
}

void pairing_write(struct admin *admin, struct kvr_buf *b, const struct question *q, const struct place *first, const struct place *second)
{
    kvr_json_printf(b, "'treatment':%s,'kv_protocol':%p", treatment(admin, q, first),
                    q->has_pair ? kvr_kv_protocol_name(q->protocol) : NULL);
    put_place(admin, b, "prefill", second ? first : NULL);
    put_place(admin, b, "decode", second ? second : first);
    put_bootstrap(admin, b, q, first);
    kvr_json_put_u64(b, "eff_isl", q->has_eff ? q->eff_isl : q->isl - KVR_MIN(q->isl, first->result.held_tokens));
}

/* ---- bookings ---------------------------------------------------------------------------------------- */

struct bookings bookings_of(struct admin *admin, const char *id)
{
    struct bookings k = {0};
    struct kvr_worker where;
    for (struct partition *p = partitions_first(admin->workers); p; p = p->next) {
        struct partition **place = p->prefills ? &k.prefill : &k.main;
        if (!*place && kvr_router_where(p->router, id, strlen(id), &where) == 0) *place = p;
    }
    return k;
}

bool bookings_any(const struct bookings *k)
{
    return k->prefill || k->main;
}

/* What is done with a pair is the library's business (kvroute/pair.h); what is booked once has a router's. */
static struct kvr_pair pair_of(const struct bookings *k)
{
    return (struct kvr_pair){.prefill = k->prefill->router, .decode = k->main->router};
}

static struct kvr_router *only_router(const struct bookings *k)
{
    return k->main ? k->main->router : k->prefill ? k->prefill->router : NULL;
}

void bookings_prefill_complete(const struct bookings *k, const char *id)
{
    if (k->prefill && k->main) {
        struct kvr_pair pair = pair_of(k);
        (void)kvr_pair_prefill_completed(&pair, id, strlen(id));
    } else if (only_router(k)) {
        (void)kvr_router_mark_prefill_completed(only_router(k), id, strlen(id));
    }
}

void bookings_renew(const struct bookings *k, const char *id)
{
    if (k->prefill) (void)kvr_router_touch(k->prefill->router, id, strlen(id));
    if (k->main) (void)kvr_router_touch(k->main->router, id, strlen(id));
}

void bookings_free(const struct bookings *k, const char *id)
{
    if (k->prefill) (void)kvr_router_free(k->prefill->router, id, strlen(id));
    if (k->main) (void)kvr_router_free(k->main->router, id, strlen(id));
}
