# SPDX-License-Identifier: Apache-2.0
"""Routers that hear each other over NATS, without ports or peers: bookings, sessions, late ones, dead ones, an outage."""
import pytest

from conftest import Mock, Select, Serve, free_ports, stays, wait_for
from nats_parts import NatsClient, NatsServer


@pytest.fixture(autouse=True)
def nats():
    n = NatsServer()
    yield n
    n.stop()


def replica(start, nats, cls=Select, *args):
    return start(cls, *args, "--router-replica-sync", "--replica-sync-transport", "nats", "--nats-url", nats.url)


def live(n, *services):
    wait_for("each hears the others", lambda: all(s.metric("replica_sync_live_peers") == n for s in services))


def reserve(s, i, tokens):
    return s.ask("/select_and_reserve", {"token_ids": tokens, "selection_id": i})


def test_bookings_are_shared_between_three(start, nats):
    routers = [replica(start, nats) for _ in range(3)]
    for r in routers:
        r.worker(1)
        r.worker(2)
    live(2, *routers)
    first = reserve(routers[0], "x", [1] * 40)["worker_id"]
    for r in routers[1:]:
        wait_for("told", lambda: r.loads()[(first, 0)] == (40, 10, 1))
    assert reserve(routers[1], "y", [2] * 40)["worker_id"] == 3 - first
    wait_for("told", lambda: routers[0].loads() == routers[1].loads() == routers[2].loads())
    routers[0].ask("/reservations/x/prefill_complete")
    routers[0].ask("/reservations/x", method="DELETE")
    routers[1].ask("/reservations/y", method="DELETE")
    wait_for("idle", lambda: all(r.idle() for r in routers))
    assert len(routers[0].get("/replica_sync/peers")) == 0  # nobody was named


def test_late_and_dead_replicas(start, nats):
    a = replica(start, nats)
    a.worker(1)
    for i in range(50):
        reserve(a, f"r{i}", [i] * 40)
    b = replica(start, nats)
    b.worker(1)
    live(1, a, b)
    wait_for("a snapshot", lambda: b.loads() == a.loads() and b.loads()[(1, 0)][2] == 50)
    reserve(b, "theirs", [9] * 40)
    wait_for("both", lambda: a.loads()[(1, 0)][2] == 51)
    b.kill()
    wait_for("what the dead one booked is forgotten", lambda: a.loads()[(1, 0)][2] == 50)
    c = replica(start, nats)
    c.worker(1)
    wait_for("its successor hears everything", lambda: c.loads() == a.loads())


def test_an_outage_is_mended(start, nats):
    """While NATS is away each goes by its own book; afterwards by both, with nothing counted twice."""
    a, b = replica(start, nats), replica(start, nats)
    for r in (a, b):
        r.worker(1)
    live(1, a, b)
    reserve(a, "before", [1] * 40)
    wait_for("told", lambda: b.loads()[(1, 0)][2] == 1)
    nats.kill()
    wait_for("silence is noticed", lambda: b.loads()[(1, 0)][2] == 0)
    reserve(a, "meanwhile", [2] * 40)
    reserve(b, "theirs", [3] * 40)
    nats.start()
    wait_for("both books", lambda: a.loads() == b.loads() and a.loads()[(1, 0)][2] == 3, 20)


def test_rubbish_on_the_subjects(start, nats):
    a, b = replica(start, nats), replica(start, nats)
    for r in (a, b):
        r.worker(1)
    live(1, a, b)
    c = NatsClient(nats.port)
    root = "namespace.default.component.backend.replica_sync"
    for subject, data in ((f"{root}.zz.e", b"\xc1"), (f"{root}.0000000000000007.e", b"\x95\x01\x02"), (f"{root}.0000000000000007.ask", b"sxyz"),
                          (f"{root}.0000000000000007.e", b"\x95\x01\x07\x00\x05\xc4\x02\x91\xc1"), (f"{root}.7.", b""), (f"{root}.7.e", b"\xdd\xff\xff\xff\xff")):
        c.publish(subject.rstrip("."), data)
    c.flush()
    reserve(a, "x", [1] * 40)
    wait_for("they go on", lambda: b.loads() == a.loads() and b.metric("replica_sync_malformed_total") >= 2)
    c.close()


def test_sessions_are_shared(start, nats):
    """What one router has bound, the other follows; the first binding wins."""
    mocks = [start(Mock) for _ in range(2)]
    workers = [m.spec(f",id={i + 1}") for i, m in enumerate(mocks)]
    a, b = (replica(start, nats, Serve, workers, "--router-session-affinity-ttl-secs", "60") for _ in range(2))
    live(1, a, b)
    for k in range(6):
        r = a.complete([k] * 40, headers={"x-session-id": f"s{k}", "x-kvroute-worker": str(k % 2 + 1)})
        assert r.status == 200
    wait_for("b has heard of them", lambda: b.metric("sessions") == 6)  # who asks before would bind the session itself
    for k in range(6):
        r = b.complete([1000 + k] * 40, headers={"x-session-id": f"s{k}"})
        assert (r.headers["x-kvroute-worker"], r.headers["x-kvroute-reason"]) == (str(k % 2 + 1), "session")


def found(start, nats, sync, ports=None, peers=()):
    more = ["--replica-sync-peers", ",".join(peers)] if peers else []
    return start(Serve, ["http://127.0.0.1:9,id=1"], "--discovery", "nats", "--nats-url", nats.url, "--advertise-host", "127.0.0.1",
                 "--replica-sync-port", sync, "--no-ask-engines", *more, ports=ports, ready=False)


def test_a_router_that_came_back_within_its_lease_was_dropped_by_its_fellows_for_good(start, nats):
    """Its new key names the endpoint while the old one still does; the end of the old one takes nothing away."""
    sync, ports = free_ports(), (free_ports(), free_ports())
    a, b = found(start, nats, free_ports()), found(start, nats, sync, ports)
    live(1, a, b)
    b.kill()
    b = found(start, nats, sync, ports)
    wait_for("it is there again", lambda: b.metric("replica_sync_live_peers") == 1)
    stays("it is a peer", lambda: a.metric("replica_sync_peers") == 1, 9)  # the lease is 5 s
    live(1, a, b)
    b.kill()
    wait_for("it has gone", lambda: a.metric("replica_sync_peers") == 0, 20)


def test_a_peer_that_was_given_stays_when_the_key_that_names_it_ends(start, nats):
    sync = free_ports()
    b = found(start, nats, sync)
    a = found(start, nats, free_ports(), peers=[f"tcp://127.0.0.1:{sync}"])
    live(1, a, b)
    b.kill()
    stays("it was given", lambda: a.metric("replica_sync_peers") == 1, 9)


def test_a_router_beyond_the_most_peers_was_left_out_without_a_word(start, nats):
    """It is told, and followed when another one has gone."""
    c = NatsClient(nats.port)
    c.subscribe("$KV.kvroute-registry.router.>")
    a = found(start, nats, free_ports())
    keys = c.next(30)[0].rsplit(".", 1)[0]

    def put(ports):
        for n in ports:
            c.publish(f"{keys}.{n}", b'{"replica_sync":"tcp://127.0.0.1:%d"}' % n)
        c.flush()

    def peers():
        put(range(3, 67))  # the first two are not kept
        return set(a.get("/replica_sync/peers"))
    put(range(1, 67))
    wait_for("the warning", lambda: all(f"tcp://127.0.0.1:{n} is not followed" in a.text() for n in (65, 66)))
    wait_for("the others", lambda: a.metric("replica_sync_peers") == 64)
    wait_for("there is room", lambda: peers() == {f"tcp://127.0.0.1:{n}" for n in range(3, 67)}, 20)
    c.close()
