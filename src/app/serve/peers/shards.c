/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several indexers (--use-remote-indexer http://a:8090,http://b:8090): each follows a part of the workers.
 *
 * Every ROUND_MS all of them are asked which workers they follow (GET /workers). When all have answered, each of our workers that
 * none follows is registered with the one that follows the fewest ranks (POST /register), and what we have registered and do not
 * have any more is taken away where it is (POST /unregister). So an assignment is made at first sight, stays where it is, is found
 * again by every router and after every restart, and is not made while an indexer is silent: its workers may be there. One that has moved
 * to another address under its id is taken away, and registered anew in the next round.
 *
 * Threads: the main loop's.
 */
#include "app/serve/peers/shards.h"

#include <string.h>

#include "app/serve/common/members.h"
#include "app/serve/peers/room.h"
#include "app/serve/workers/table/roster.h"
#include "app/serve/workers/table/worker.h"
#include "base/map64.h"
#include "net/http/ask.h"
#include "wire/prom_page.h"

enum { ROUND_MS = 1000, CALL_S = 2, ANSWER_MAX = 32 << 20, WORKERS_MAX = 16384, KNOWN_MAX = 1 << 20, CALLS_MAX = 64 };

struct call {
    struct peers *peers;
    size_t shard;
    bool list; /* GET /workers; else a change */
    struct kvr_ask *asking;
    struct call *next;
};

/* A rank somebody follows. */
struct place {
    struct kvr_worker worker;
    size_t shard;
    uint64_t endpoint; /* a hash */
    bool wanted;       /* it is one of ours, where that is now */
    char model[MODEL_MAX];
};

struct shards {
    struct kvr_http_client *client;
    struct call *calls;
    size_t calls_n, answered, failed;
    bool round;
    uint64_t next_ms;
    struct place *places;
    size_t places_n, ranks[REMOTES_MAX];
    struct kvr_map64 known; /* workers that were ours, by where their events were: they may be unregistered */
    _Atomic uint64_t registered, unregistered, refused;
};

static void end_call(struct call *c)
{
    struct shards *sh = c->peers->shards;
    KVR_UNLINK(sh->calls, c);
    sh->calls_n--;
    kvr_ask_cancel(c->asking);
    free(c);
}

/* ---- what they follow ------------------------------------------------------------------------------------------------ */

static uint64_t hash_of(const char *text, size_t len)
{
    return kvr_hash_bytes(text, len, 0);
}

static bool take_instance(struct shards *sh, size_t shard, struct kvr_json v)
{
    struct kvr_json ranks = kvr_json_get(v, "listeners");
    struct place p = {.shard = shard};
    const char *bad = NULL;
    const char *text;
    uint64_t rank;
    size_t len;
    if (!kvr_json_as_u64(kvr_json_get(v, "instance_id"), &p.worker.worker_id) ||
        !member_text(v, "model_name", p.model, sizeof p.model, &bad))
        return false;
    if (kvr_json_type_of(ranks) != KVR_JSON_OBJECT) return true;
    for (struct kvr_json_iter i = kvr_json_iter(ranks); kvr_json_next(&i);) {
        if (!kvr_parse_u64(i.key, i.key_len, UINT32_MAX, &rank)) return false;
        p.worker.dp_rank = (uint32_t)rank;
        if (!kvr_json_as_str(kvr_json_get(i.value, "endpoint"), &text, &len)) return false;
        p.endpoint = hash_of(text, len);
        sh->ranks[shard]++;
        if (sh->places_n < WORKERS_MAX) sh->places[sh->places_n++] = p;
    }
    return true;
}

static bool take_list(const struct call *c, const struct kvr_asked *said)
{
    struct kvr_json o;
    if (said->status != 200 || said->cut || kvr_json_parse(c->peers->process->json, said->data, said->len, &o, NULL)) return false;
    if (kvr_json_type_of(o) != KVR_JSON_ARRAY) return false;
    for (struct kvr_json_iter i = kvr_json_iter(o); kvr_json_next(&i);)
        if (!take_instance(c->peers->shards, c->shard, i.value)) return false;
    return true;
}

/* ---- calls ----------------------------------------------------------------------------------------------------------- */

static void assign(struct peers *peers);

static void over(void *ctx, const struct kvr_asked *said)
{
    struct call *c = ctx;
    struct peers *peers = c->peers;
    struct shards *sh = peers->shards;
    bool list = c->list, ok = list && take_list(c, said);
    if (!list && said->status / 100 != 2 && said->status != 409 && said->status != 404) atomic_fetch_add(&sh->refused, 1);
    c->asking = NULL;
    end_call(c);
    if (!list) return;
    sh->answered += ok;
    sh->failed += !ok;
    if (sh->answered == peers->remote_n) assign(peers);
}

/* body NULL: GET. Takes its bytes. */
static bool start_call(struct peers *peers, size_t shard, const char *path, struct kvr_buf *body)
{
    struct shards *sh = peers->shards;
    struct call *c = sh->calls_n < CALLS_MAX ? calloc(1, sizeof *c) : NULL;
    struct kvr_buf headers = {0};
    if (!c) return false;
    *c = (struct call){.peers = peers, .shard = shard, .list = !body, .next = sh->calls};
    sh->calls = c;
    sh->calls_n++;
    if (peers->remote_keys) kvr_buf_printf(&headers, "Authorization: Bearer %s\r\n", peers->remote_keys[0]);
    struct kvr_ask_config config = {.loop = &peers->process->main_loop,
                                    .client = sh->client,
                                    .endpoint = &peers->remote[shard],
                                    .path = path,
                                    .json = body,
                                    .headers = &headers,
                                    .max = ANSWER_MAX,
                                    .connect_timeout_s = CALL_S,
                                    .timeout_s = CALL_S,
                                    .fn = over,
                                    .ctx = c};
    c->asking = kvr_ask_start(&config);
    if (c->asking) return true;
    end_call(c);
    return false;
}

/* ---- assigning ------------------------------------------------------------------------------------------------------- */

static int by_worker(const void *a, const void *b)
{
    return kvr_worker_cmp(((const struct place *)a)->worker, ((const struct place *)b)->worker);
}

/* The places are in order. */
static struct place *place_of(const struct shards *sh, struct kvr_worker w)
{
    struct place key = {.worker = w};
    return sh->places_n ? bsearch(&key, sh->places, sh->places_n, sizeof key, by_worker) : NULL;
}

static size_t emptiest(const struct peers *peers)
{
    struct shards *sh = peers->shards;
    size_t best = 0;
    for (size_t i = 1; i < peers->remote_n; i++)
        if (sh->ranks[i] < sh->ranks[best]) best = i;
    return best;
}

static const char *events_of(const struct worker *w, uint32_t place)
{
    const char *events = w->ranks[place].endpoints[RANK_EVENTS];
    return *events ? events : "plane";
}

/* Of all its ranks; 0: it has none yet. */
static uint64_t place_of_events(const struct worker *w)
{
    uint64_t all = 0;
    for (uint32_t r = 0; r < w->dp_size && w->ranks[r].endpoints[RANK_EVENTS][0]; r++)
        all = kvr_mix64(all ^ hash_of(events_of(w, r), strlen(events_of(w, r)))) | 1;
    return all;
}

static void put_registration(struct peers *peers, const struct worker *w, uint32_t place, struct kvr_buf *b)
{
    char model[MODEL_MAX + 16];
    const char *replay = w->ranks[place].endpoints[RANK_REPLAY];
    remote_model(peers, w->block_size, model, sizeof model);
    kvr_json_printf(b, "{'instance_id':%ju,'dp_rank':%u,'endpoint':%s", w->id, w->dp_start + place, events_of(w, place));
    if (*replay) kvr_json_put_str(b, "replay_endpoint", replay);
    if (w->recover[0]) kvr_json_put_str(b, "recover_endpoint", w->recover);
    kvr_json_printf(b, "'model_name':%s,'block_size':%u}", model, w->block_size);
}

/* A rank of ours: where it is, it stays; has_moved: unless it is followed at another address than it has now. Returns: is it? */
static bool see_rank(struct peers *peers, const struct worker *w, uint32_t place, bool has_moved)
{
    struct shards *sh = peers->shards;
    struct kvr_buf b = {0};
    struct place *p = place_of(sh, (struct kvr_worker){w->id, w->dp_start + place});
    if (p) {
        p->wanted = !has_moved || p->endpoint == hash_of(events_of(w, place), strlen(events_of(w, place)));
        return !p->wanted;
    }
    if (!w->ranks[place].endpoints[RANK_EVENTS][0] && peers->o->plane.plane == KVR_PLANE_ZMQ && !w->recover[0])
        return false; /* it has no events */
    size_t to = emptiest(peers);
    put_registration(peers, w, place, &b);
    if (!b.failed && start_call(peers, to, "/register", &b)) {
        sh->ranks[to]++;
        atomic_fetch_add(&sh->registered, 1);
    }
    kvr_buf_free(&b);
    return false;
}

/* Routers may have other names for one address, so only what changes here is a move. */
static void see_worker(struct peers *peers, const struct worker *w)
{
    struct kvr_map64 *known = &peers->shards->known;
    const uint64_t *before = kvr_map64_get(known, w->id);
    uint64_t now = place_of_events(w);
    bool has_moved = before && *before && now && *before != now, elsewhere = false;
    for (uint32_t r = 0; r < w->dp_size; r++) elsewhere |= see_rank(peers, w, r, has_moved);
    if (!elsewhere && (now || !before)) (void)kvr_map64_put(known, w->id, now); /* not remembered: it stays registered */
}

static void take_away(struct peers *peers, const struct place *p)
{
    struct shards *sh = peers->shards;
    struct kvr_buf b = {0};
    kvr_json_printf(&b, "{'instance_id':%ju,'dp_rank':%u,'routing_group':'default','model_name':%s}", p->worker.worker_id,
                    p->worker.dp_rank, p->model);
    if (!b.failed && start_call(peers, p->shard, "/unregister", &b)) atomic_fetch_add(&sh->unregistered, 1);
    kvr_buf_free(&b);
}

/* All have said what they follow. */
static void assign(struct peers *peers)
{
    struct shards *sh = peers->shards;
    if (sh->places_n) qsort(sh->places, sh->places_n, sizeof *sh->places, by_worker);
    if (sh->known.n >= KNOWN_MAX) kvr_map64_clear(&sh->known); /* those of now are put back at once */
    const struct roster_row *all = roster_hold(peers->workers, "");
    for (size_t i = 0; all && i < all->servers_n; i++) see_worker(peers, all->servers[i].worker);
    bool seen = all != NULL;
    roster_let_go(all);
    if (!seen) return; /* out of memory: none of them is to be taken away */
    for (size_t i = 0; i < sh->places_n; i++)
        if (!sh->places[i].wanted && kvr_map64_get(&sh->known, sh->places[i].worker.worker_id)) take_away(peers, &sh->places[i]);
}

/* ---- time -------------------------------------------------------------------------------------------------------------- */

static bool ready_to_begin(struct peers *peers)
{
    struct shards *sh = peers->shards;
    if (!sh->client && kvr_http_client_create(&peers->process->main_loop, 30, &sh->client)) return false;
    if (!sh->places) sh->places = malloc(WORKERS_MAX * sizeof *sh->places);
    return sh->places != NULL;
}

void shards_tick(struct peers *peers)
{
    struct shards *sh = peers->shards;
    uint64_t now = kvr_now_ms();
    if (!sh || process_is_ending(peers->process) || !ready_to_begin(peers)) return;
    if (now < sh->next_ms || sh->calls_n) return;
    sh->next_ms = now + ROUND_MS;
    sh->places_n = sh->answered = sh->failed = 0;
    memset(sh->ranks, 0, sizeof sh->ranks);
    for (size_t i = 0; i < peers->remote_n; i++) (void)start_call(peers, i, "/workers", NULL);
}

int shards_start(struct peers *peers)
{
    if (peers->remote_n < 2) return 0;
    peers->shards = calloc(1, sizeof *peers->shards);
    return peers->shards ? 0 : -KVR_ENOMEM;
}

void shards_stop(struct peers *peers)
{
    struct shards *sh = peers->shards;
    if (!sh) return;
    while (sh->calls) end_call(sh->calls);
    if (sh->client) kvr_http_client_close(sh->client);
    free(sh->places);
    kvr_map64_clear(&sh->known);
    free(sh);
    peers->shards = NULL;
}

void shards_metrics(struct peers *peers, struct kvr_prom_page *b)
{
    const struct shards *sh = peers->shards;
    const struct kvr_prom_row rows[] = {
        {"registered_total", "counter", "Ranks registered with an indexer", sh ? atomic_load(&sh->registered) : 0},
        {"unregistered_total", "counter", "Ranks taken away from an indexer", sh ? atomic_load(&sh->unregistered) : 0},
        {"refused_total", "counter", "Registrations refused or not answered", sh ? atomic_load(&sh->refused) : 0},
    };
    kvr_prom_rows(b, sh != NULL, "kvroute_indexer_shards_", rows, KVR_ARRAY_LEN(rows));
}
