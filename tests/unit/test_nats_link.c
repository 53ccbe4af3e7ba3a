/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to a NATS server: what it still holds when it goes. */
#include "nats_server.h"

#include <stdatomic.h>

#include "net/nats/link.h"

enum { ROUNDS = 40, MESSAGES = 500, TAKEN = 3 };

static void slowly(void *ctx, const struct kvr_nats_message *)
{
    struct timespec pause = {.tv_nsec = 1000000};
    _Atomic int *n = ctx;
    atomic_fetch_add(n, 1);
    nanosleep(&pause, NULL); /* a handler that is slower than what comes */
}

/* The last connection of a process goes while messages wait for their handler. That nothing is left is the leak checker's word. */
static void what_waits_is_given_back(void **)
{
    struct server s;
    server_start(&s);
    for (int i = 0; i < ROUNDS; i++) {
        struct kvr_nats_config c = {.url = s.url};
        struct kvr_nats *link;
        struct kvr_nats_sub *sub;
        _Atomic int taken = 0;
        char err[256];
        assert_int_equal(kvr_nats_connect(&c, &link, err, sizeof err), 0);
        assert_int_equal(kvr_nats_subscribe(link, "a", NULL, 1 << 20, slowly, &taken, &sub), 0);
        for (int k = 0; k < MESSAGES; k++) assert_int_equal(kvr_nats_publish(link, "a", NULL, "x", 1), 0);
        assert_int_equal(kvr_nats_flush(link, 5000), 0);
        WAIT_FOR(atomic_load(&taken) >= TAKEN, 20);
        kvr_nats_unsubscribe(sub);
        int at_the_end = atomic_load(&taken);
        kvr_nats_close(link);
        assert_true(at_the_end < MESSAGES && atomic_load(&taken) == at_the_end);
    }
    server_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_waits_is_given_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
