/* SPDX-License-Identifier: Apache-2.0 */
/* base/lru.h against a list that is searched from end to end. KVR_SEED sets the seed, KVR_OPS the number of steps. */
#include "test.h"

#include "base/lru.h"

enum { KEYS = 500, OPS = 20000 };

struct item {
    struct kvr_lru_entry lru;
    uint64_t key;
};

static bool same(const struct kvr_lru_entry *e, const void *key)
{
    return ((const struct item *)e)->key == *(const uint64_t *)key;
}

/* Few hashes for many keys: entries of equal hash are told apart by their keys. */
static uint64_t hash_of(uint64_t key)
{
    return kvr_mix64(key % (KEYS / 3));
}

static struct item *find(const struct kvr_lru *l, uint64_t key)
{
    return (struct item *)kvr_lru_find(l, hash_of(key), same, &key);
}

/* `age`: keys, the oldest first. */
static void check(const struct kvr_lru *l, const uint64_t *age, size_t n)
{
    const struct kvr_lru_entry *e = l->oldest, *before = NULL;
    assert_int_equal(l->n, n);
    for (size_t i = 0; i < n; i++) {
        assert_non_null(e);
        assert_int_equal(((const struct item *)e)->key, age[i]);
        assert_ptr_equal(e->older, before);
        assert_ptr_equal(find(l, age[i]), e);
        before = e;
        e = e->newer;
    }
    assert_null(e);
    assert_ptr_equal(l->newest, before);
}

static void forget(uint64_t *age, size_t *n, uint64_t key)
{
    size_t at = 0;
    while (age[at] != key) at++;
    memmove(age + at, age + at + 1, (--*n - at) * sizeof *age);
}

static void entries_are_found_and_leave_in_the_order_of_their_last_use(void **)
{
    static struct item items[KEYS];
    struct kvr_rng rng = {env_u64("KVR_SEED", 1)};
    uint64_t age[KEYS] = {0}, ops = KVR_MIN(env_u64("KVR_OPS", OPS), (uint64_t)OPS);
    size_t n = 0;
    struct kvr_lru l;
    assert_int_equal(kvr_lru_init(&l), 0);
    for (uint64_t k = 0; k < KEYS; k++) items[k].key = k;
    for (uint64_t op = 0; op < ops; op++) {
        uint64_t key = kvr_rng_below(&rng, KEYS), what = kvr_rng_below(&rng, 4);
        struct item *there = find(&l, key);
        if (!there) {
            kvr_lru_add(&l, &items[key].lru, hash_of(key));
            age[n++] = key;
        } else if (what == 0) {
            kvr_lru_remove(&l, &there->lru);
            forget(age, &n, key);
        } else {
            kvr_lru_touch(&l, &there->lru);
            forget(age, &n, key);
            age[n++] = key;
        }
        if (what == 1 && n > KEYS / 2) {
            assert_int_equal(((struct item *)l.oldest)->key, age[0]);
            forget(age, &n, age[0]);
            kvr_lru_remove(&l, l.oldest);
        }
        if (op % 100 == 0) check(&l, age, n);
    }
    check(&l, age, n);
    assert_true(l.cap > KVR_LRU_FIRST_CAP); /* it has grown on the way */
    while (l.oldest) kvr_lru_remove(&l, l.oldest);
    check(&l, age, 0);
    kvr_lru_free(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(entries_are_found_and_leave_in_the_order_of_their_last_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
