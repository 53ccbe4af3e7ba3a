/* SPDX-License-Identifier: Apache-2.0 */
/* A folder is read again while threads make ids with it: nothing is used after it was given back, and all of it is given back. Answers of
 * engines come while others are judged. The library is made here: what it gives out is counted, and marked when it is given back. */
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "token/probes.h"
#include "token/tokenizer.h"

enum { THREADS = 4, RELOADS = 200, ALIVE = 0x5a5a, IDS = 3, LAST = 3, PAIRS = 300 };

struct kvr_tok {
    _Atomic unsigned mark;
    uint32_t last; /* of its ids */
};

static _Atomic long alive; /* folders and variants that were not given back */
static _Atomic bool unusable;
static _Atomic bool unlike; /* each variant makes other ids */

static struct kvr_tok *new_one(void)
{
    struct kvr_tok *t = calloc(1, sizeof *t);
    KVR_ASSERT(t);
    atomic_store(&t->mark, ALIVE);
    t->last = LAST;
    atomic_fetch_add(&alive, 1);
    return t;
}

static int load(const char *, const char *, struct kvr_tok **out, struct kvr_tok_buf *err)
{
    if (atomic_load(&unusable)) {
        static char text[] = "json: it is broken";
        *err = (struct kvr_tok_buf){text, sizeof text - 1, 0};
        return KVR_TOK_EBAD;
    }
    *out = new_one();
    return 0;
}

static int variant(const struct kvr_tok *t, const char *, struct kvr_tok **out, struct kvr_tok_buf *)
{
    static _Atomic uint32_t made;
    KVR_ASSERT(atomic_load(&t->mark) == ALIVE);
    *out = new_one();
    if (atomic_load(&unlike)) (*out)->last = LAST + atomic_fetch_add(&made, 1) % (KVR_PROFILES_MAX - 1);
    return 0;
}

static void give_back(struct kvr_tok *t)
{
    KVR_ASSERT(atomic_exchange(&t->mark, 0) == ALIVE);
    atomic_fetch_sub(&alive, 1);
    free(t);
}

static int ask(const struct kvr_tok *t, const char *, size_t, size_t, struct kvr_tok_job **, struct kvr_tok_buf *out)
{
    static _Thread_local uint32_t ids[IDS];
    KVR_ASSERT(atomic_load(&t->mark) == ALIVE);
    memcpy(ids, (const uint32_t[IDS]){1, 2, t->last}, sizeof ids);
    *out = (struct kvr_tok_buf){ids, sizeof ids, 0};
    return 0;
}

static void figures(const struct kvr_tok *t, struct kvr_tok_figures *out)
{
    KVR_ASSERT(atomic_load(&t->mark) == ALIVE);
    *out = (struct kvr_tok_figures){.hits = 5};
}

static int info(const struct kvr_tok *t, struct kvr_tok_buf *out)
{
    static char text[] = "{}";
    KVR_ASSERT(atomic_load(&t->mark) == ALIVE);
    *out = (struct kvr_tok_buf){text, 2, 0};
    return 0;
}

static void keep_buf(struct kvr_tok_buf *) {}

static const struct kvr_token_library library = {
    .load = load, .variant = variant, .free = give_back, .ask = ask, .figures = figures, .info = info, .buf_free = keep_buf};

struct rig {
    struct kvr_token_pool *pool;
    struct kvr_tokenizer *t;
    _Atomic bool stop;
    _Atomic unsigned made;
};

static void open_rig(struct rig *r)
{
    *r = (struct rig){0};
    assert_int_equal(kvr_token_pool_create(2, &r->pool), 0);
    struct kvr_tokenizer_config config = {.lib = &library, .pool = r->pool, .model = "m", .dir = "a"};
    assert_int_equal(kvr_tokenizer_open(&config, &r->t), 0);
}

static void close_rig(struct rig *r)
{
    kvr_token_pool_destroy(r->pool);
    kvr_tokenizer_unref(r->t);
    assert_int_equal(atomic_load(&alive), 0);
}

static void until(struct kvr_tokenizer *t, enum kvr_trust_state wanted)
{
    WAIT_FOR(kvr_tokenizer_state(t) == wanted, 60);
}

static void until_loaded(struct kvr_tokenizer *t)
{
    WAIT_FOR(kvr_tokenizer_state(t) != KVR_TRUST_LOADING, 60);
}

static void reload(struct kvr_tokenizer *t, const char *dir)
{
    uint64_t deadline = seconds_from_now(60);
    int rc = kvr_tokenizer_reload(t, dir);
    while (rc && time_is_left(deadline)) {
        assert_true(rc == -KVR_EEXISTS || rc == -KVR_ELIMIT); /* one is being read, or the pool is full */
        rc = kvr_tokenizer_reload(t, dir);
    }
    assert_int_equal(rc, 0);
}

static void answer(struct kvr_tokenizer *t, const char *who, uint32_t last)
{
    const uint32_t ids[IDS] = {1, 2, last};
    struct kvr_probe_answer answers[KVR_PROBES_MAX] = {{0}};
    for (size_t i = 0; i < kvr_token_probes_n; i++) answers[i] = (struct kvr_probe_answer){true, kvr_ids_new(ids, IDS)};
    assert_true(kvr_tokenizer_probed(t, who, answers, kvr_token_probes_n));
    for (size_t i = 0; i < kvr_token_probes_n; i++) kvr_ids_unref(answers[i].ids);
}

/* An engine agrees with all built-in questions. */
static void agree(struct kvr_tokenizer *t)
{
    answer(t, "an engine", LAST);
}

static void *use(void *arg)
{
    struct rig *r = arg;
    while (!atomic_load(&r->stop)) {
        struct kvr_ids *ids = NULL;
        struct kvr_tokenizer_figures f;
        struct kvr_buf text = {0};
        int rc = kvr_tokenizer_make(r->t, "{}", 2, &ids);
        if (rc == 0) {
            KVR_ASSERT(ids->n == IDS && ids->v[2] == 3);
            kvr_ids_unref(ids);
            atomic_fetch_add(&r->made, 1);
        }
        kvr_tokenizer_figures(r->t, &f);
        kvr_tokenizer_describe(r->t, &text);
        KVR_ASSERT(!text.failed);
        kvr_buf_free(&text);
    }
    return NULL;
}

static void a_folder_is_swapped_under_load(void **)
{
    struct rig r;
    pthread_t threads[THREADS];
    open_rig(&r);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, use, &r), 0);
    for (int i = 0; i < RELOADS; i++) {
        until_loaded(r.t); /* late answers may have found it already */
        agree(r.t);
        if (i % 2) until(r.t, KVR_TRUST_TRUSTED); /* else the answers may come to a folder that was given up */
        reload(r.t, i % 3 ? "a" : "b");
        assert_true(kvr_tokenizer_is_of(r.t, i % 3 ? "a" : "b"));
    }
    atomic_store(&r.stop, true);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    assert_true(atomic_load(&r.made) > 0);
    close_rig(&r);
}

static uint64_t hits(struct kvr_tokenizer *t)
{
    struct kvr_tokenizer_figures f;
    kvr_tokenizer_figures(t, &f);
    return f.cache.hits;
}

static void trust_is_earned_anew_and_a_broken_folder_is_refused(void **)
{
    struct rig r;
    open_rig(&r);
    until(r.t, KVR_TRUST_PROBING);
    agree(r.t);
    until(r.t, KVR_TRUST_TRUSTED);
    uint64_t generation = kvr_tokenizer_generation(r.t);
    assert_int_equal(kvr_tokenizer_reload(r.t, "a"), 0);
    assert_true(kvr_tokenizer_state(r.t) != KVR_TRUST_TRUSTED && kvr_tokenizer_generation(r.t) != generation);
    until(r.t, KVR_TRUST_PROBING);
    assert_int_equal(hits(r.t), 10); /* of both folders: what is counted never goes back */
    atomic_store(&unusable, true);
    assert_int_equal(kvr_tokenizer_reload(r.t, "a"), 0);
    until(r.t, KVR_TRUST_REFUSED);
    assert_int_equal(hits(r.t), 10);
    struct kvr_ids *ids;
    assert_int_equal(kvr_tokenizer_make(r.t, "{}", 2, &ids), KVR_TOK_EUNSUPPORTED);
    atomic_store(&unusable, false);
    assert_int_equal(kvr_tokenizer_reload(r.t, "a"), 0); /* mended: no restart is needed */
    until(r.t, KVR_TRUST_PROBING);
    agree(r.t);
    until(r.t, KVR_TRUST_TRUSTED);
    close_rig(&r);
}

/* Each agrees with a profile, and neither with the other's. */
static void two_engines_that_answer_at_once_are_compared_with_each_other(void **)
{
    atomic_store(&unlike, true);
    for (uint32_t i = 0; i < PAIRS; i++) {
        struct rig r;
        open_rig(&r);
        until(r.t, KVR_TRUST_PROBING);
        answer(r.t, "an engine", LAST + 10 + i % 3);
        answer(r.t, "another", LAST + 30);
        until(r.t, KVR_TRUST_REFUSED);
        close_rig(&r);
    }
    atomic_store(&unlike, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_is_swapped_under_load),
        cmocka_unit_test(trust_is_earned_anew_and_a_broken_folder_is_refused),
        cmocka_unit_test(two_engines_that_answer_at_once_are_compared_with_each_other),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
