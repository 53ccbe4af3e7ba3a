/* SPDX-License-Identifier: Apache-2.0 */
/* What others can do to a socket we bound: how many of them, what they may say, and what is queued for those who do not read. */
#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "net/zmq/guard.h"

enum { PEERS = 6 };

struct rig {
    void *zmq, *pub;
    struct kvr_zmq_budget *budget;
    struct kvr_zmq_guard guard;
    uint16_t port;
};

static uint64_t now_ms(void)
{
    return kvr_now_ns(kvr_clock_monotonic()) / 1000000;
}

static void rig_open(struct rig *r, size_t peers, size_t budget)
{
    char endpoint[64];
    size_t len = sizeof endpoint;
    int zero = 0, none = 0, one = 1;
    memset(r, 0, sizeof *r);
    r->budget = kvr_zmq_budget_new(budget);
    r->zmq = zmq_ctx_new();
    r->pub = zmq_socket(r->zmq, ZMQ_XPUB);
    zmq_setsockopt(r->pub, ZMQ_LINGER, &zero, sizeof zero);
    zmq_setsockopt(r->pub, ZMQ_SNDHWM, &none, sizeof none);
    zmq_setsockopt(r->pub, ZMQ_XPUB_VERBOSE, &one, sizeof one); /* each tells */
    assert_int_equal(kvr_zmq_guard_init(&r->guard, r->zmq, r->pub, peers, r->budget), 0);
    assert_int_equal(zmq_bind(r->pub, "tcp://127.0.0.1:*"), 0);
    assert_int_equal(zmq_getsockopt(r->pub, ZMQ_LAST_ENDPOINT, endpoint, &len), 0);
    r->port = (uint16_t)strtoul(strrchr(endpoint, ':') + 1, NULL, 10);
}

static void rig_close(struct rig *r)
{
    kvr_zmq_guard_close(&r->guard, r->pub);
    zmq_close(r->pub);
    zmq_ctx_term(r->zmq);
    assert_int_equal(atomic_load(&r->budget->bytes), 0); /* nothing is queued any more */
    kvr_zmq_budget_drop(r->budget);
}

static void read_all(int fd, void *data, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t k = read(fd, (char *)data + at, n - at);
        assert_true(k > 0);
        at += (size_t)k;
    }
}

static int dial(const struct rig *r)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(r->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* A SUB socket by hand (ZMTP 3.0, NULL), subscribed to everything, that reads nothing from then on. */
static int subscribe_by_hand(struct rig *r)
{
    static const char ready[] = "\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB", subscribe[] = "\0\x01\x01";
    unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'}, theirs[64], head[2], body[256], told[8];
    int fd = dial(r);
    assert_int_equal(write(fd, greeting, sizeof greeting), sizeof greeting);
    read_all(fd, theirs, sizeof theirs);
    assert_int_equal(write(fd, ready, sizeof ready - 1), sizeof ready - 1);
    read_all(fd, head, sizeof head);
    read_all(fd, body, head[1]);
    assert_int_equal(write(fd, subscribe, sizeof subscribe - 1), sizeof subscribe - 1);
    assert_true(zmq_recv(r->pub, told, sizeof told, 0) >= 0);
    return fd;
}

static bool step(struct rig *r)
{
    kvr_zmq_guard_step(&r->guard, now_ms());
    return true;
}

static void connections_beyond_the_limit_are_ended(void **)
{
    struct rig r;
    int fd[PEERS];
    char c;
    rig_open(&r, 2, 1 << 20);
    for (int i = 0; i < PEERS; i++) fd[i] = dial(&r);
    WAIT_FOR(step(&r) && atomic_load(&r.guard.refused) == PEERS - 2, 20);
    WAIT_FOR(step(&r) && atomic_load(&r.guard.connections) == 2, 20);
    for (int i = 2; i < PEERS; i++)
        while (read(fd[i], &c, 1) > 0) {
        }
    for (int i = 0; i < PEERS; i++) close(fd[i]);
    WAIT_FOR(step(&r) && atomic_load(&r.guard.connections) == 0, 20);
    int late = dial(&r); /* there is room again */
    WAIT_FOR(step(&r) && atomic_load(&r.guard.connections) == 1, 20);
    close(late);
    rig_close(&r);
}

/* A message that never ends would grow in the socket, where nobody sees it. */
static void a_peer_that_says_too_much_is_ended(void **)
{
    static const unsigned char head[9] = {3, 0, 0, 0, 0, 0, 1, 0, 0}; /* long, more, 64 KiB */
    static const char data[1 << 16];
    struct rig r;
    rig_open(&r, 8, 1 << 20);
    int fd = subscribe_by_hand(&r);
    uint64_t deadline = seconds_from_now(30);
    size_t sent = 0;
    while (sent < 256 << 20 && send(fd, head, sizeof head, MSG_NOSIGNAL) > 0 && send(fd, data, sizeof data, MSG_NOSIGNAL) > 0 &&
           time_is_left(deadline)) {
        sent += sizeof data;
        (void)step(&r);
    }
    WAIT_FOR(step(&r) && atomic_load(&r.guard.talkers) == 1 && atomic_load(&r.guard.connections) == 0, 20);
    assert_true(sent < 64 << 20);
    close(fd);
    rig_close(&r);
}

static int publish(struct rig *r, size_t len)
{
    static const char data[1 << 16];
    zmq_msg_t m;
    int rc = kvr_zmq_message(r->budget, "head", 4, data, len, &m);
    if (rc) kvr_zmq_let_go(r->pub);
    if (rc == 0 && zmq_msg_send(&m, r->pub, ZMQ_DONTWAIT) < 0) zmq_msg_close(&m);
    return rc;
}

static void what_nobody_reads_is_bounded_in_bytes_and_its_reader_is_ended(void **)
{
    enum { BUDGET = 8 << 20 };
    struct rig r;
    int fd[PEERS];
    int refused = 0;
    rig_open(&r, PEERS, BUDGET);
    for (int i = 0; i < PEERS; i++) fd[i] = subscribe_by_hand(&r);
    for (int i = 0; i < 2000; i++) refused += publish(&r, 60000) == -KVR_ELIMIT;
    assert_true(refused > 0);
    assert_true(atomic_load(&r.budget->bytes) <= BUDGET);
    assert_int_equal(atomic_load(&r.budget->refused), refused);
    r.guard.stall_ms = 500;
    WAIT_FOR(step(&r) && atomic_load(&r.guard.stalled) == PEERS && atomic_load(&r.guard.connections) == 0, 30);
    WAIT_FOR(publish(&r, 60000) == 0, 30); /* their queues went with them, though nothing was sent since */
    for (int i = 0; i < PEERS; i++) close(fd[i]);
    rig_close(&r);
}

static void a_reader_that_reads_stays(void **)
{
    struct rig r;
    char buf[1 << 16], endpoint[64];
    int all = 0;
    rig_open(&r, 4, 64 << 20);
    void *sub = zmq_socket(r.zmq, ZMQ_SUB);
    zmq_setsockopt(sub, ZMQ_RCVHWM, &all, sizeof all);
    zmq_setsockopt(sub, ZMQ_SUBSCRIBE, "", 0);
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%u", r.port);
    assert_int_equal(zmq_connect(sub, endpoint), 0);
    assert_true(zmq_recv(r.pub, buf, sizeof buf, 0) >= 0);
    r.guard.stall_ms = 100;
    for (int i = 0; i < 500; i++) {
        assert_int_equal(publish(&r, 60000), 0);
        assert_int_equal(zmq_recv(sub, buf, sizeof buf, 0), 60004);
        (void)step(&r);
    }
    assert_int_equal(atomic_load(&r.guard.stalled) + atomic_load(&r.guard.talkers), 0);
    zmq_close(sub);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_beyond_the_limit_are_ended),
        cmocka_unit_test(a_peer_that_says_too_much_is_ended),
        cmocka_unit_test(what_nobody_reads_is_bounded_in_bytes_and_its_reader_is_ended),
        cmocka_unit_test(a_reader_that_reads_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
