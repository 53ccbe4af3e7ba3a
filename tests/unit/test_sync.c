/* SPDX-License-Identifier: Apache-2.0 */
/* The replicated log between two of this process: when a snapshot is asked for. */
#include "net/replication/sync.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { VALUES = 20000, VALUE_BYTES = 40 };

struct side {
    struct kvr_sync *_Atomic sync; /* the thread may want it before who has created it has told */
    size_t values;                 /* that its snapshot has */
    bool asks_again;               /* wants everything once more at the first word of a snapshot */
    _Atomic uint64_t events;       /* of snapshots */
    _Atomic uint64_t resets;
};

static void on_event(void *ctx, uint32_t, uint64_t number, const char *, size_t)
{
    struct side *s = ctx;
    if (number) return;
    if (atomic_fetch_add(&s->events, 1) == 0 && s->asks_again) kvr_sync_resync(atomic_load(&s->sync));
}

static void on_reset(void *ctx, uint32_t)
{
    atomic_fetch_add(&((struct side *)ctx)->resets, 1);
}

static void write_snapshot(void *ctx, struct kvr_buf *out)
{
    struct side *s = ctx;
    while (!atomic_load(&s->sync)) usleep(100);                          /* until it is told */
    char value[VALUE_BYTES + 3] = {(char)0x91, (char)0xc4, VALUE_BYTES}; /* msgpack: an array of one, bin 8 */
    (void)kvr_sync_next(atomic_load(&s->sync));
    for (size_t i = 0; i < s->values; i++) kvr_buf_add(out, value, sizeof value);
}

/* A port that is free now. */
static uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    close(fd);
    return ntohs(a.sin_port);
}

/* Returns: its port. */
static uint16_t open_side(struct side *s)
{
    struct kvr_sync_handler h = {on_event, on_reset, write_snapshot, s};
    struct kvr_sync *made;
    uint16_t port = free_port();
    assert_int_equal(kvr_sync_create("127.0.0.1", port, NULL, &h, &made), 0);
    atomic_store(&s->sync, made);
    return port;
}

static uint64_t received(struct side *s)
{
    struct kvr_sync_stats st;
    kvr_sync_stats(s->sync, &st);
    return st.snapshots_received;
}

static bool comes_to(struct side *s, uint64_t snapshots)
{
    for (int i = 0; i < 3000 && received(s) < snapshots; i++) usleep(10000); /* between two looks */
    return received(s) >= snapshots;
}

/* What a follower leaves out, as it does not know the worker yet, comes with the next snapshot: also when the worker comes while one is
 * being taken. */
static void a_snapshot_is_asked_again_when_that_was_wanted_while_one_came(void **)
{
    struct side from = {.values = VALUES}, to = {.asks_again = true};
    char endpoint[64];
    uint16_t port = open_side(&from);
    (void)open_side(&to);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", port);
    assert_int_equal(kvr_sync_add_peer(to.sync, endpoint), 0);
    assert_true(comes_to(&to, 2));
    assert_true(atomic_load(&to.events) >= 2 * VALUES && atomic_load(&to.resets) >= 2);
    kvr_sync_destroy(to.sync);
    kvr_sync_destroy(from.sync);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_snapshot_is_asked_again_when_that_was_wanted_while_one_came)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
