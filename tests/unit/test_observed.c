/* SPDX-License-Identifier: Apache-2.0 */
/* Two streams of one request meet by its id, on one loop or on two: whoever comes first, and whoever ends first. */
#include "test.h"

#include <pthread.h>
#include <string.h>

#include "app/serve/data/picker/observed.h"
#include "app/serve/data/picker/pick.h"
#include "app/serve/data/state/room.h"

/* ---- a process of some loops ------------------------------------------------------------------------- */

struct place {
    struct loop loop;
    struct picker picker;
};

static struct data_plane plane;

static void on_wake(uv_async_t *) {}

static void place_open(struct place *p, struct observed_table *t)
{
    memset(p, 0, sizeof *p);
    p->loop.data = &plane;
    p->loop.picker = &p->picker;
    p->picker.loop = &p->loop;
    kvr_lock_init(&p->loop.mail_lock, KVR_LOCK_MAIL);
    uv_loop_init(&p->loop.uv);
    uv_async_init(&p->loop.uv, &p->loop.wake, on_wake);
    p->picker.observed = observed_hold(t);
    assert_non_null(p->picker.observed);
}

static void place_close(struct place *p)
{
    picker_take_mail(&p->picker);
    observed_let_go(p->picker.observed);
    uv_close((uv_handle_t *)&p->loop.wake, NULL);
    uv_run(&p->loop.uv, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&p->loop.uv), 0);
    kvr_lock_destroy(&p->loop.mail_lock);
}

static uint64_t counted(_Atomic uint64_t *of)
{
    return atomic_exchange(of, 0);
}

/* ---- a pick, as far as it is needed -------------------------------------------------------------------- */

/* What it hears is in the other members: `pool` of the observer that speaks, `held` how much, `is_told` that it was the last word. */
static void leave(struct pick *p)
{
    observed_leave(p->call.picker, p->observed);
    p->observed = NULL;
}

/* A piece has its number of those that its observer has said, from 1 on. */
static void hear(struct pick *p, const struct kvr_ext_proc_message *m)
{
    KVR_ASSERT(!p->is_told);
    KVR_ASSERT(p->observed);
    KVR_ASSERT(m->kind == KVR_EXT_PROC_RESPONSE_BODY);
    p->held++;
    KVR_ASSERT(m->body.ptr[0] == (char)p->held);
}

static void hear_over(struct pick *p)
{
    KVR_ASSERT(!p->is_told);
    p->is_told = true;
    leave(p);
}

static const struct observed_ear ear = {hear, hear_over};

static void ask(struct pick *p, struct place *on, const char *id)
{
    memset(p, 0, sizeof *p);
    p->call.picker = &on->picker;
    p->observed = observed_ask(&on->picker, p, &ear, id);
}

/* ---- an observer --------------------------------------------------------------------------------------- */

struct speaker {
    struct observed *of;
    bool begun, deaf;
    size_t said;
};

static void come(struct speaker *s, struct place *on, const char *id)
{
    *s = (struct speaker){.of = observed_come(&on->picker, (struct kvr_ext_proc_text){id, strlen(id)})};
}

static void say(struct speaker *s, struct place *on, size_t bytes)
{
    enum { BODY_TAG = 0x2a, BYTES_TAG = 0x0a };
    uint8_t *data = calloc(1, bytes + 16);
    size_t n = 0;
    struct kvr_ext_proc_message m;
    s->begun = s->begun || (s->of && observed_begin(&on->picker, s->of));
    KVR_ASSERT(bytes < 1 << 14 && bytes > 0);
    data[n++] = BODY_TAG;
    data[n++] = (uint8_t)((bytes + 3) | 0x80);
    data[n++] = (uint8_t)((bytes + 3) >> 7);
    data[n++] = BYTES_TAG;
    data[n++] = (uint8_t)(bytes | 0x80);
    data[n++] = (uint8_t)(bytes >> 7);
    data[n] = (uint8_t)++s->said;
    if (s->begun && !s->deaf) {
        KVR_ASSERT(kvr_ext_proc_read(data, n + bytes, &m) == 0);
        s->deaf = !observed_tell(&on->picker, s->of, &m, data, n + bytes);
        kvr_ext_proc_free(&m);
    }
    free(data);
}

static void stop(struct speaker *s, struct place *on)
{
    if (s->of) observed_over(&on->picker, s->of);
    *s = (struct speaker){0};
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static void the_two_meet_whoever_comes_and_ends_first(void **)
{
    struct place a, b;
    place_open(&a, NULL);
    place_open(&b, a.picker.observed);
    for (unsigned i = 0; i < 8; i++) {
        struct place *other = i & 1 ? &b : &a;
        struct pick p;
        struct speaker o;
        if (i & 2) come(&o, other, "r");
        ask(&p, &a, "r");
        assert_int_equal(observed_has_observer(&a.picker, p.observed), (i & 2) != 0);
        if (!(i & 2)) come(&o, other, "r");
        assert_true(observed_has_observer(&a.picker, p.observed));
        for (unsigned n = 0; n < 3; n++) say(&o, other, 100);
        if (i & 4) {
            leave(&p);
            stop(&o, other);
        }
        picker_take_mail(&a.picker);
        assert_int_equal(p.held, i & 4 && other == &b ? 0 : 3);
        if (i & 4) continue;
        stop(&o, other);
        picker_take_mail(&a.picker);
        assert_true(p.is_told && !p.observed);
    }
    assert_int_equal(counted(&plane.counters.ext_proc_observed_total), 8);
    place_close(&a);
    place_close(&b);
}

static void who_is_alone_or_one_of_two_is_not_heard(void **)
{
    struct place a;
    struct pick p, twin;
    struct speaker o, second;
    place_open(&a, NULL);
    come(&o, &a, "alone");
    say(&o, &a, 1);
    stop(&o, &a);
    come(&o, &a, "");
    assert_null(o.of);
    assert_int_equal(counted(&plane.counters.ext_proc_observers_unknown_total), 2);
    come(&o, &a, "r");
    come(&second, &a, "r");
    assert_null(second.of);
    assert_int_equal(counted(&plane.counters.ext_proc_observers_refused_total), 1);
    ask(&p, &a, "r");
    ask(&twin, &a, "r");
    assert_null(twin.observed);
    say(&o, &a, 1);
    assert_int_equal(counted(&plane.counters.ext_proc_observers_refused_total), 1);
    assert_int_equal(p.held, 0);
    leave(&p);
    ask(&p, &a, "r");
    assert_false(observed_has_observer(&a.picker, p.observed)); /* that one is of the first */
    stop(&o, &a);
    leave(&p);
    place_close(&a);
}

static void a_table_that_is_full_is_counted_and_fills_no_more(void **)
{
    struct speaker *all = calloc(OBSERVED_MAX, sizeof *all), one, another;
    struct place a;
    struct pick p;
    char id[16];
    place_open(&a, NULL);
    for (unsigned i = 0; i < OBSERVED_MAX; i++) {
        snprintf(id, sizeof id, "r%u", i);
        come(&all[i], &a, id);
        assert_non_null(all[i].of);
    }
    ask(&p, &a, "r0");
    assert_non_null(p.observed);
    leave(&p);
    come(&one, &a, "one");
    assert_non_null(one.of);
    ask(&p, &a, "another");
    assert_null(p.observed);
    come(&another, &a, "another");
    assert_null(another.of);
    assert_int_equal(counted(&plane.counters.ext_proc_observers_full_total), 2);
    stop(&one, &a);
    for (unsigned i = 0; i < OBSERVED_MAX; i++) stop(&all[i], &a);
    place_close(&a);
    free(all);
}

static void mail_that_is_full_ends_what_is_heard_but_its_last_word(void **)
{
    enum { PIECE = 16000, PIECES = OBSERVED_MAIL_MAX / PIECE };
    struct place a, b;
    struct pick p;
    struct speaker o;
    place_open(&a, NULL);
    place_open(&b, a.picker.observed);
    ask(&p, &a, "r");
    come(&o, &b, "r");
    while (!o.deaf) say(&o, &b, PIECE);
    assert_in_range(o.said, PIECES - 5, PIECES + 1);
    picker_take_mail(&a.picker);
    assert_int_equal(p.held, o.said - 1);
    stop(&o, &b);
    picker_take_mail(&a.picker);
    assert_true(p.is_told);
    assert_int_equal(counted(&plane.counters.ext_proc_observers_full_total), 1);
    counted(&plane.counters.ext_proc_observed_total);
    place_close(&a);
    place_close(&b);
}

enum { PLACES = 3, EACH = 24, IDS = 40 };

struct crowd {
    struct place place;
    uint64_t seed, ops;
};

static void play(struct crowd *c, struct kvr_rng *rng, struct pick *picks, struct speaker *speakers)
{
    uint32_t i = kvr_rng_below(rng, EACH);
    char id[16];
    snprintf(id, sizeof id, "r%u", kvr_rng_below(rng, IDS));
    switch (kvr_rng_below(rng, 6)) {
    case 0:
        if (!picks[i].observed) ask(&picks[i], &c->place, id);
        break;
    case 1: leave(&picks[i]); break;
    case 2:
        if (!speakers[i].of) come(&speakers[i], &c->place, id);
        break;
    case 3:
        if (speakers[i].of && (speakers[i].begun || !speakers[i].said)) say(&speakers[i], &c->place, 1);
        break;
    case 4: stop(&speakers[i], &c->place); break;
    default: picker_take_mail(&c->place.picker);
    }
}

static void *run(void *arg)
{
    struct crowd *c = arg;
    struct kvr_rng rng = {.state = c->seed};
    struct pick *picks = calloc(EACH, sizeof *picks);
    struct speaker speakers[EACH] = {0};
    for (size_t i = 0; i < EACH; i++) picks[i].call.picker = &c->place.picker;
    for (uint64_t n = 0; n < c->ops; n++) play(c, &rng, picks, speakers);
    for (size_t i = 0; i < EACH; i++) stop(&speakers[i], &c->place);
    for (size_t i = 0; i < EACH; i++) leave(&picks[i]);
    free(picks);
    return NULL;
}

static void on_many_loops_at_once_each_is_freed_once(void **)
{
    static struct crowd crowd[PLACES];
    pthread_t threads[PLACES];
    for (size_t i = 0; i < PLACES; i++) {
        place_open(&crowd[i].place, i ? crowd[0].place.picker.observed : NULL);
        crowd[i].seed = env_u64("KVR_SEED", 1) + i;
        crowd[i].ops = env_u64("KVR_OPS", 100000);
    }
    for (size_t i = 0; i < PLACES; i++) assert_int_equal(pthread_create(&threads[i], NULL, run, &crowd[i]), 0);
    for (size_t i = 0; i < PLACES; i++) pthread_join(threads[i], NULL);
    assert_true(counted(&plane.counters.ext_proc_observed_total) > 0);
    for (size_t i = 0; i < PLACES; i++) place_close(&crowd[i].place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_two_meet_whoever_comes_and_ends_first),
        cmocka_unit_test(who_is_alone_or_one_of_two_is_not_heard),
        cmocka_unit_test(a_table_that_is_full_is_counted_and_fills_no_more),
        cmocka_unit_test(mail_that_is_full_ends_what_is_heard_but_its_last_word),
        cmocka_unit_test(on_many_loops_at_once_each_is_freed_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
