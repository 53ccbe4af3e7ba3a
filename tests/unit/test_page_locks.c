/* SPDX-License-Identifier: Apache-2.0 */
/* Pages and ticks about a large fleet hold no lock that requests take for longer than about a small one: what is written under one holding
 * of a lock, and what is looked at, is one worker's. Counted, not timed: this program stands in for pthread_mutex_lock and
 * pthread_mutex_unlock, so it has nothing to say where a sanitizer does. */
#include <dlfcn.h>

#include "test.h"

#include "app/serve/admin/room.h"
#include "app/serve/workers/views/evidence.h"
#include "app/serve/workers/counts/labels.h"
#include "app/serve/workers/learn.h"
#include "app/serve/workers/table/role.h"
#include "app/serve/workers/table/room.h"
#include "app/serve/workers/table/roster.h"
#include "wire/prom_page.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STANDS_IN 0
#else
#define STANDS_IN 1
#endif

enum { WORKERS = 1000, OF_ONE = 4096 }; /* OF_ONE: bytes about a worker */

static struct {
    const struct kvr_buf *page;
    size_t holds, depth, since, most; /* bytes of the page */
    const struct kvr_lock *of;        /* counted: NULL, none */
    size_t of_n;
} seen;

#if STANDS_IN
static int real(const char *name, pthread_mutex_t *m)
{
    int (*f)(pthread_mutex_t *);
    *(void **)&f = dlsym(RTLD_NEXT, name);
    return f(m);
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
    int rc = real("pthread_mutex_lock", m);
    seen.holds++;
    seen.of_n += seen.of && m == &seen.of->mutex;
    if (seen.depth++ == 0) seen.since = seen.page ? seen.page->len : 0;
    return rc;
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
    if (--seen.depth == 0 && seen.page) seen.most = KVR_MAX(seen.most, seen.page->len - seen.since);
    return real("pthread_mutex_unlock", m);
}
#endif

static struct workers *fleet(void)
{
    static struct serve_options options;
    static struct partition partition;
    struct workers *s = calloc(1, sizeof *s);
    struct kvr_router_config c;
    options = (struct serve_options){.select_only = true, .engine_metrics_interval = 1};
    kvr_router_config_init(&c);
    c.mode = KVR_MODE_LEAST_LOADED;
    assert_int_equal(kvr_router_create(&c, &partition.router, NULL), 0);
    s->o = &options;
    s->labels = labels_create();
    kvr_lock_init(&s->lock, KVR_LOCK_SERVE);
    kvr_lock_init(&s->roster_lock, KVR_LOCK_ROSTER);
    s->partitions = &partition;
    for (uint64_t id = WORKERS; id > 0; id--) {
        struct worker *w = calloc(1, sizeof *w + sizeof *w->ranks);
        *w = (struct worker){.id = id, .partition = &partition, .dp_size = 1, .block_size = 16, .next = s->workers};
        w->ranks = (struct worker_rank *)(w + 1);
        snprintf(w->model, sizeof w->model, "m");
        atomic_store(&w->refs, 1);
        assert_int_equal(kvr_router_set_worker(partition.router, id, 0, 1), 0);
        assert_int_equal(kvr_map64_put(&s->workers_by_id, id, (uint64_t)(uintptr_t)w), 0);
        assert_true(labels_register(s->labels, id));
        s->workers = w;
        s->workers_n++;
    }
    for (const struct worker *w = s->workers; w; w = w->next) labels_request(s, w, "m", 200);
    return s;
}

static void end(struct workers *s)
{
    roster_destroy(s);
    for (struct worker *w; (w = s->workers);) {
        s->workers = w->next;
        worker_let_go(w);
    }
    kvr_router_destroy(s->partitions->router);
    labels_destroy(s->labels);
    kvr_map64_clear(&s->workers_by_id);
    free(s);
}

static void write_loads(struct workers *s, struct kvr_buf *b)
{
    struct admin a = {.o = s->o, .workers = s};
    admin_loads_write(&a, b, NULL, NULL);
}

static void write_workers(struct workers *s, struct kvr_buf *b)
{
    struct admin a = {.o = s->o, .workers = s};
    admin_workers_write(&a, b, NULL, NULL);
}

static void write_labels(struct workers *s, struct kvr_buf *b)
{
    struct kvr_prom_page page = {.out = b};
    labels_metrics(s, &page);
}

/* `of`: the lock that is given back for each worker. */
static void looks_at_one(void (*write)(struct workers *s, struct kvr_buf *b), bool labels)
{
    struct workers *s = fleet();
    struct kvr_buf b = {0};
    roster_let_go(roster_hold(s, "")); /* made before */
    memset(&seen, 0, sizeof seen);
    seen.of = labels ? (const struct kvr_lock *)s->labels : &s->lock; /* its first member */
    seen.page = &b;
    write(s, &b);
    seen.page = NULL;
    assert_false(b.failed);
    assert_true(b.len > WORKERS * 30);
    if (STANDS_IN) {
        assert_in_range(seen.most, 0, OF_ONE);
        assert_in_range(seen.of_n, WORKERS, SIZE_MAX);
    }
    kvr_buf_free(&b);
    end(s);
}

static void test_loads_of_a_large_fleet_hold_up_no_request(void **)
{
    looks_at_one(write_loads, false);
}

static void test_workers_of_a_large_fleet_hold_up_no_request(void **)
{
    looks_at_one(write_workers, false);
}

static void test_counters_of_a_large_fleet_hold_up_no_request(void **)
{
    looks_at_one(write_labels, true);
}

static void test_a_tick_with_nothing_to_do_takes_no_lock_for_a_large_fleet(void **)
{
    struct workers *s = fleet();
    memset(&seen, 0, sizeof seen);
    engine_survey_tick(s);
    assert_int_equal(seen.holds, 0);
    end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads_of_a_large_fleet_hold_up_no_request),
        cmocka_unit_test(test_workers_of_a_large_fleet_hold_up_no_request),
        cmocka_unit_test(test_counters_of_a_large_fleet_hold_up_no_request),
        cmocka_unit_test(test_a_tick_with_nothing_to_do_takes_no_lock_for_a_large_fleet),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
