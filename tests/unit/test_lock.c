/* SPDX-License-Identifier: Apache-2.0 */
/* Locks are taken in rising rank; a build with KVR_LOCK_CHECKS ends whoever does not, with the names of both. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/lock.h"

#ifdef KVR_LOCK_CHECKS

static struct kvr_lock table, book, mail;
static struct kvr_rwlock ranks;

static int setup(void **)
{
    kvr_lock_init(&table, KVR_LOCK_SERVE);
    kvr_lock_init(&book, KVR_LOCK_ROUTER);
    kvr_lock_init(&mail, KVR_LOCK_MAIL);
    kvr_rwlock_init(&ranks, KVR_LOCK_INDEX_RANKS);
    return 0;
}

/* What a child process that does it writes to stderr; its end must be an abort. */
static void dies(void (*fn)(void), char *out, size_t cap)
{
    int pipes[2], status;
    size_t n = 0;
    ssize_t k;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], 2);
        close(pipes[0]);
        fn();
        _exit(0);
    }
    close(pipes[1]);
    while (n < cap - 1 && (k = read(pipes[0], out + n, cap - 1 - n)) > 0) n += (size_t)k;
    out[n] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void falling(void)
{
    kvr_lock(&book);
    kvr_lock(&table);
}

static void twice(void)
{
    kvr_lock(&book);
    kvr_lock(&book);
}

static void shared_twice(void)
{
    kvr_read_lock(&ranks);
    kvr_read_lock(&ranks);
}

static void two_of_a_kind(void)
{
    struct kvr_lock other;
    kvr_lock_init(&other, KVR_LOCK_ROUTER);
    kvr_lock(&book);
    kvr_lock(&other);
}

static void given_back_twice(void)
{
    kvr_lock(&book);
    kvr_unlock(&book);
    kvr__lock_given(&book);
}

static void below_what_is_left(void)
{
    kvr_lock(&table);
    kvr_lock(&mail);
    kvr_unlock(&table);
    kvr_lock(&book);
}

static void a_wrong_order_is_refused_and_both_locks_are_named(void **)
{
    char text[16384];
    dies(falling, text, sizeof text);
    assert_non_null(strstr(text, "lock order: the lock of the worker table is taken under that of a router"));
    dies(below_what_is_left, text, sizeof text);
    assert_non_null(strstr(text, "lock order: the lock of a router is taken under that of a data loop's mail"));
}

static void a_lock_is_held_once_and_of_a_rank_one(void **)
{
    char text[16384];
    dies(twice, text, sizeof text);
    assert_non_null(strstr(text, "lock order"));
    dies(shared_twice, text, sizeof text);
    assert_non_null(strstr(text, "lock order"));
    dies(two_of_a_kind, text, sizeof text);
    assert_non_null(strstr(text, "lock order"));
    dies(given_back_twice, text, sizeof text);
}

static void rising_ranks_pass_and_may_be_given_back_in_any_order(void **)
{
    for (int i = 0; i < 100; i++) {
        kvr_lock(&table);
        kvr_lock(&book);
        kvr_read_lock(&ranks);
        kvr_lock(&mail);
        kvr_unlock(&book);
        kvr_unlock(&table);
        kvr_rw_unlock(&ranks);
        kvr_unlock(&mail);
    }
    kvr_lock(&table);
    kvr_unlock(&table);
}

static void *other_thread(void *)
{
    kvr_lock(&table);
    kvr_unlock(&table);
    return NULL;
}

static void what_another_thread_holds_does_not_count(void **)
{
    pthread_t t;
    kvr_lock(&book);
    assert_int_equal(pthread_create(&t, NULL, other_thread, NULL), 0);
    pthread_join(t, NULL);
    kvr_unlock(&book);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_wrong_order_is_refused_and_both_locks_are_named, setup),
        cmocka_unit_test_setup(a_lock_is_held_once_and_of_a_rank_one, setup),
        cmocka_unit_test_setup(rising_ranks_pass_and_may_be_given_back_in_any_order, setup),
        cmocka_unit_test_setup(what_another_thread_holds_does_not_count, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void a_build_without_checks_pays_nothing(void **)
{
    assert_int_equal(sizeof(struct kvr_lock), sizeof(pthread_mutex_t));
    assert_int_equal(sizeof(struct kvr_rwlock), sizeof(pthread_rwlock_t));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_build_without_checks_pays_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
