/* SPDX-License-Identifier: Apache-2.0 */
/* Folders that the operator gives are read again while threads make ids with them (counted_tokenizer.h): nothing is used after it was given
 * back, and all of it is given back. */
#include "test.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include "counted_tokenizer.h"
#include "kvr_tokenizer.h"
#include "token/given.h"

enum { THREADS = 4, RELOADS = 200 };

struct rig {
    char dir[64], named[80];
    char *dirs[2];
    struct counted *counted;
    struct kvr_given_tokens *g;
    _Atomic bool stop;
};

/* The library is loaded once; a test begins where the one before has left its counters. */
static struct counted *find_counters(void)
{
    void *handle = dlopen(KVR_COUNTED_TOKENIZER, RTLD_NOW | RTLD_LOCAL);
    struct counted *c = handle ? dlsym(handle, "counted") : NULL;
    assert_non_null(c);
    return c;
}

static void make_folder(char dir[64])
{
    char path[96];
    snprintf(dir, 64, "/tmp/kvr_given_XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void remove_folder(const char *dir)
{
    char path[96];
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    rmdir(dir);
}

/* Two names for one folder: two readings. */
static void open_rig(struct rig *r)
{
    char why[400];
    *r = (struct rig){.counted = find_counters()};
    make_folder(r->dir);
    snprintf(r->named, sizeof r->named, "m=%s", r->dir);
    r->dirs[0] = r->named;
    r->dirs[1] = r->dir;
    struct kvr_given_tokens_config config = {
        .program = "kvroute test", .lib = KVR_COUNTED_TOKENIZER, .dirs = r->dirs, .dirs_n = 2, .name_max = 100};
    assert_int_equal(kvr_given_tokens_open(&config, &r->g, why, sizeof why), 0);
    assert_int_equal(atomic_load(&r->counted->alive), 2);
}

static void close_rig(struct rig *r)
{
    kvr_given_tokens_close(r->g);
    assert_int_equal(atomic_load(&r->counted->alive), 0);
    remove_folder(r->dir);
}

/* The number of the reading that makes ids of the model. */
static uint32_t reading_of(struct rig *r, const char *model)
{
    struct kvr_ids *ids = NULL;
    char why[200];
    KVR_ASSERT(kvr_given_tokens_make(r->g, model, "{}", 2, &ids, why, sizeof why) == 0 && ids->n == 1);
    uint32_t number = ids->v[0];
    kvr_ids_unref(ids);
    return number;
}

static void until_other(struct rig *r, const char *model, uint32_t than)
{
    WAIT_FOR(reading_of(r, model) != than, 60);
}

static void until_read(struct rig *r, unsigned n)
{
    WAIT_FOR(atomic_load(&r->counted->read) >= n, 60);
}

static void *use(void *arg)
{
    struct rig *r = arg;
    uint32_t last = 0;
    while (!atomic_load(&r->stop)) {
        uint32_t now = reading_of(r, "m");
        KVR_ASSERT(now >= last); /* one that was given up does not come back */
        last = now;
    }
    return NULL;
}

static void folders_are_swapped_under_load(void **)
{
    struct rig r;
    pthread_t threads[THREADS];
    open_rig(&r);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, use, &r), 0);
    for (int i = 0; i < RELOADS; i++) {
        uint32_t m = reading_of(&r, "m"), other = reading_of(&r, "other");
        kvr_given_tokens_reload(r.g);
        if (i % 2) continue; /* the next one comes while this one runs */
        until_other(&r, "m", m);
        until_other(&r, "other", other);
    }
    atomic_store(&r.stop, true);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    close_rig(&r);
}

static void a_folder_that_cannot_be_read_again_stays_as_it_was(void **)
{
    struct rig r;
    open_rig(&r);
    unsigned before = atomic_load(&r.counted->read);
    uint32_t m = reading_of(&r, "m");
    atomic_store(&r.counted->unusable, true);
    kvr_given_tokens_reload(r.g);
    until_read(&r, before + 2);
    assert_int_equal(reading_of(&r, "m"), m);
    kvr_given_tokens_close(r.g); /* which waits for what is being read */
    assert_int_equal(atomic_load(&r.counted->alive), 0);
    atomic_store(&r.counted->unusable, false);
    remove_folder(r.dir);
}

static void what_changes_while_folders_are_read_is_read_once_more(void **)
{
    struct rig r;
    open_rig(&r);
    unsigned before = atomic_load(&r.counted->read);
    counted_hold(r.counted, true);
    kvr_given_tokens_reload(r.g);
    until_read(&r, before + 1); /* it has begun */
    for (int i = 0; i < 100; i++) kvr_given_tokens_reload(r.g);
    assert_int_equal(reading_of(&r, "m"), before - 2); /* ids are made meanwhile */
    counted_hold(r.counted, false);
    until_read(&r, before + 4);
    until_other(&r, "other", before + 1);
    close_rig(&r);
    assert_int_equal(atomic_load(&r.counted->read), before + 4); /* not a hundred times */
}

static void a_program_ends_while_folders_are_read_again(void **)
{
    for (int i = 0; i < 20; i++) {
        struct rig r;
        open_rig(&r);
        kvr_given_tokens_reload(r.g);
        if (i % 2) kvr_given_tokens_reload(r.g);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_are_swapped_under_load),
        cmocka_unit_test(a_folder_that_cannot_be_read_again_stays_as_it_was),
        cmocka_unit_test(what_changes_while_folders_are_read_is_read_once_more),
        cmocka_unit_test(a_program_ends_while_folders_are_read_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
