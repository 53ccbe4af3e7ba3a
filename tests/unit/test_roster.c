/* SPDX-License-Identifier: Apache-2.0 */
/* The roster says of any model what a look at every worker says, whatever the table is, and lets go of workers that are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "app/serve/workers/table/role.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"

static struct serve_options options;
static struct process process;
enum { PARTITIONS = 4 }; /* of these the last is of workers that prefill */
static struct partition partitions[PARTITIONS];
static char m1[] = "m1";
static struct kvr_rng rng = {1};

static struct workers *new_workers(void)
{
    struct workers *s = calloc(1, sizeof *s);
    s->o = &options;
    s->process = &process;
    kvr_lock_init(&s->lock, KVR_LOCK_SERVE);
    kvr_lock_init(&s->roster_lock, KVR_LOCK_ROSTER);
    for (int i = 0; i < PARTITIONS; i++)
        partitions[i] = (struct partition){
            .next = i + 1 < PARTITIONS ? &partitions[i + 1] : NULL, .number = (uint64_t)i, .prefills = i + 1 == PARTITIONS};
    s->partitions = partitions;
    return s;
}

static struct worker *add(struct workers *s, uint64_t id)
{
    struct worker *w = calloc(1, sizeof *w), **at = &s->workers;
    w->id = id;
    w->partition = &partitions[kvr_rng_below(&rng, PARTITIONS)];
    w->role = w->partition->prefills ? ROLE_PREFILL : kvr_rng_below(&rng, 4) ? ROLE_BOTH : ROLE_DECODE;
    w->kv_protocol = kvr_rng_below(&rng, 2) ? KVR_KV_VLLM_NIXL : KVR_KV_NONE;
    w->local_prefill = kvr_rng_below(&rng, 2);
    w->engine = kvr_rng_below(&rng, 4) ? ENGINE_VLLM : ENGINE_SGLANG;
    atomic_store(&w->refs, 1);
    while (*at) at = &(*at)->next;
    *at = w;
    s->workers_n++;
    kvr_lock(&s->lock);
    roster_outdate_locked(s);
    kvr_unlock(&s->lock);
    return w;
}

static void take_away(struct workers *s, struct worker *w)
{
    struct worker **at = &s->workers;
    while (*at != w) at = &(*at)->next;
    *at = w->next;
    s->workers_n--;
    atomic_store(&w->removed, true);
    kvr_lock(&s->lock);
    roster_outdate_locked(s);
    kvr_unlock(&s->lock);
    worker_let_go(w);
}

static void end(struct workers *s)
{
    roster_destroy(s);
    while (s->workers) take_away(s, s->workers);
    free(s);
}

static void list_models(struct worker *w, size_t n, const char *begin, unsigned first)
{
    w->models = calloc(n + 1, sizeof *w->models);
    w->models_n = n;
    for (size_t i = 0; i < n; i++) {
        snprintf(w->models[i].id, MODEL_MAX, "%s%u", begin, first + (unsigned)i);
        w->models[i].is_lora = kvr_rng_below(&rng, 3) == 0;
        w->models[i].max_model_len = kvr_rng_below(&rng, 2) ? 1000 + kvr_rng_below(&rng, 9) : 0;
    }
}

/* ---- what a look at every worker says ---------------------------------------------------------------- */

enum job { ANSWERS, TAKES_WHOLE, DECODES, PREFILLS };

static bool does(const struct worker *w, enum job job, enum kvr_kv_protocol p)
{
    bool prefills = w->role == ROLE_PREFILL;
    switch (job) {
    case ANSWERS: return !prefills;
    case TAKES_WHOLE: return !prefills && (w->role == ROLE_BOTH || w->local_prefill);
    case DECODES: return w->role == ROLE_DECODE && w->kv_protocol == p;
    default: return prefills && w->kv_protocol == p;
    }
}

/* The partition that most of its servers that do the job are in, and these. */
static void check_choice(struct workers *s, const char *model, const struct roster_choice *c, enum job job, enum kvr_kv_protocol protocol)
{
    const char *asked = *model ? model : NULL;
    struct partition *best = NULL;
    size_t most = 0, ids = 0;
    bool lora, all = true;
    for (struct partition *p = s->partitions; p; p = p->next) {
        size_t k = 0;
        for (struct worker *w = s->workers; w; w = w->next)
            k += w->partition == p && does(w, job, protocol) && worker_serves_locked(s, w, asked, strlen(model), &lora);
        if (k > most) {
            most = k;
            best = p;
        }
    }
    assert_ptr_equal(c->partition, best);
    for (struct worker *w = s->workers; w; w = w->next) {
        bool in = does(w, job, protocol) && worker_serves_locked(s, w, asked, strlen(model), &lora);
        if (!best || w->partition != best) continue;
        all &= in;
        if (!in) continue;
        assert_true(ids < c->n);
        assert_int_equal(c->ids[ids++], w->id);
    }
    assert_int_equal(c->n, ids);
    if (best) assert_int_equal(c->all, all);
}

static void check_choices(struct workers *s, const char *model, const struct roster_row *row)
{
    check_choice(s, model, &row->main, ANSWERS, 0);
    check_choice(s, model, &row->whole, TAKES_WHOLE, 0);
    for (enum kvr_kv_protocol p = 0; p < KVR_KV_PROTOCOLS; p++) {
        check_choice(s, model, &row->decode[p], DECODES, p);
        check_choice(s, model, &row->prefill[p], PREFILLS, p);
    }
}

static void check(struct workers *s, const char *model)
{
    const char *asked = *model ? model : NULL;
    size_t n = 0;
    bool lora, is_lora = false, sglang = false, roles = false;
    uint64_t room = 0;
    const struct roster_row *row = roster_hold(s, model);
    assert_non_null(row);
    for (struct worker *w = s->workers; w; w = w->next) {
        bool serves = worker_serves_locked(s, w, asked, strlen(model), &lora), knows = s->o->model && !strcmp(model, s->o->model);
        knows |= *model && !strcmp(w->model, model);
        for (size_t i = 0; i < w->models_n; i++) knows |= !strcmp(w->models[i].id, model);
        assert_int_equal(roster_knows(row, w->id), knows && *model);
        if (!serves) continue;
        assert_true(n < row->servers_n);
        assert_ptr_equal(row->servers[n++].worker, w);
        sglang |= w->engine == ENGINE_SGLANG;
        roles |= w->role != ROLE_BOTH;
        if (!room) room = worker_room_locked(w, model);
        if (w->partition == row->main.partition) is_lora |= lora;
    }
    assert_int_equal(row->servers_n, n);
    check_choices(s, model, row);
    assert_int_equal(row->has_roles, roles);
    assert_int_equal(row->is_lora, is_lora);
    assert_int_equal(row->has_sglang, sglang);
    assert_int_equal(row->room, room);
    roster_let_go(row);
}

static void check_names(struct workers *s)
{
    static const char *const names[] = {"", "m0", "m1", "m2", "m3", "m4", "adapter-0", "adapter-2", "nobody's"};
    for (size_t i = 0; i < KVR_ARRAY_LEN(names); i++) check(s, names[i]);
}

static void any_table_gives_what_a_look_at_every_worker_gives(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 400; seed++) {
        rng.state = seed;
        options.model = kvr_rng_below(&rng, 3) ? NULL : m1;
        struct workers *s = new_workers();
        check_names(s);
        for (unsigned i = 0, n = kvr_rng_below(&rng, 12); i < n; i++) {
            struct worker *w = add(s, kvr_rng_next(&rng));
            if (kvr_rng_below(&rng, 2)) snprintf(w->model, MODEL_MAX, "m%u", kvr_rng_below(&rng, 4));
            if (kvr_rng_below(&rng, 2))
                list_models(w, kvr_rng_below(&rng, 4), kvr_rng_below(&rng, 2) ? "m" : "adapter-", kvr_rng_below(&rng, 3));
            if (kvr_rng_below(&rng, 2)) check_names(s);
        }
        while (s->workers && kvr_rng_below(&rng, 4)) {
            take_away(s, s->workers);
            check_names(s);
        }
        end(s);
    }
}

static void more_models_than_there_is_room_for_are_counted_and_served(void **)
{
    char name[32];
    options.model = NULL;
    struct workers *s = new_workers();
    for (unsigned i = 0; i < 20; i++) list_models(add(s, i + 1), 256, "many-", 256 * i);
    check(s, "many-0");
    assert_int_equal(roster_models_left_out(s), 20 * 256 - (ROSTER_ROWS_MAX - 2));
    for (unsigned i = 0; i < 20 * 256; i += 97) {
        snprintf(name, sizeof name, "many-%u", i);
        check(s, name);
    }
    check(s, "nobody's");
    end(s);
}

static void a_worker_lives_as_long_as_a_row_that_has_it(void **)
{
    options.model = m1;
    struct workers *s = new_workers();
    struct worker *w = add(s, 7);
    const struct roster_row *row = roster_hold(s, "m1");
    take_away(s, w);
    roster_tick(s);
    assert_int_equal(row->servers[0].worker->id, 7);
    assert_int_equal(atomic_load(&w->refs), 2); /* of the rows of m1 and of any model */
    assert_null(roster_pick(s, row, NULL, 0));
    roster_let_go(row);
    row = roster_hold(s, "m1");
    assert_null(row->main.partition);
    assert_int_equal(row->servers_n, 0);
    roster_let_go(row);
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_table_gives_what_a_look_at_every_worker_gives),
        cmocka_unit_test(more_models_than_there_is_room_for_are_counted_and_served),
        cmocka_unit_test(a_worker_lives_as_long_as_a_row_that_has_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
