# SPDX-License-Identifier: Apache-2.0
"""Routers in front of one fleet that tell each other what they book."""
import itertools
import struct
import threading
import time

import msgpack
import pytest
import zmq
from conftest import SLOW, Mock, Select, Serve, call, free_ports, read_sse, stays, wait_for


def pair(start, cls, *args, ports=None, **kw):
    ports = ports or free_ports(2)
    make = lambda i: start(cls, *args, "--replica-sync-port", ports + i, "--replica-sync-peers", f"tcp://127.0.0.1:{ports + 1 - i}", **kw)
    return make(0), make(1), make


def live(*services):
    wait_for("peers", lambda: all(s.metric("replica_sync_live_peers") == 1 for s in services))


def reserve(s, i, tokens, **more):
    return s.ask("/select_and_reserve", {"token_ids": tokens, "selection_id": i, **more})


def test_bookings_are_shared_and_given_back(start):
    a, b, _ = pair(start, Select)
    for s in (a, b):
        s.worker(1)
        s.worker(2)
    live(a, b)
    first = reserve(a, "x", [1] * 40)["worker_id"]
    wait_for("told", lambda: b.loads() == a.loads() and b.loads()[(first, 0)] == (40, 10, 1))
    assert reserve(b, "y", [2] * 40)["worker_id"] == 3 - first  # chooses on the sum of both
    wait_for("told", lambda: a.loads() == b.loads())
    a.ask("/reservations/x/prefill_complete")
    wait_for("prefill", lambda: b.loads()[(first, 0)] == (0, 10, 1))
    for _ in range(17):
        a.ask("/reservations/x/output_block")
    wait_for("output, in steps of 8", lambda: b.loads()[(first, 0)] == (0, 26, 1))
    b.ask("/reservations/x", status=404, method="DELETE")  # not ours to free
    a.ask("/reservations/x", method="DELETE")
    b.ask("/reservations/y", method="DELETE")
    wait_for("idle", lambda: a.idle() and b.idle())


def test_bookings_of_groups_in_places_of_others_are_shared(start):
    a, b, _ = pair(start, Select)
    for s in (a, b):
        s.worker(1)
    live(a, b)
    for i in range(270):
        for s in (a, b):
            s.worker(2, routing_group=f"g{i}")
        reserve(a, f"r{i}", [i] * 40, routing_group=f"g{i}")
        if i % 32 == 0 or i > 260:
            wait_for("told", lambda: b.loads()[(2, 0)] == (40, 10, 1))
        a.ask(f"/reservations/r{i}", method="DELETE")
        if i % 3 == 0:
            for s in (a, b):
                s.ask("/workers/2", method="DELETE")
    wait_for("idle", lambda: a.idle() and b.idle())


def test_a_late_replica_hears_everything(start):
    ports = free_ports(2)
    a = start(Select, "--replica-sync-port", ports)
    a.worker(1)
    for i in range(50):
        reserve(a, f"r{i}", [i] * 40)
    a.ask("/reservations/r3/prefill_complete")
    b = start(Select, "--replica-sync-port", ports + 1)
    b.ask("/replica_sync/register_peer", {"endpoint": f"tcp://127.0.0.1:{ports}"}, 201)
    live(b)
    assert b.idle()  # the worker is not known here yet: left out, counted
    assert b.metric("replica_sync_events_ignored_total") == 50
    b.worker(1)
    wait_for("snapshot", lambda: b.loads() == a.loads())
    assert b.loads()[(1, 0)] == (49 * 40, 500, 50)
    assert b.get("/replica_sync/peers") == [f"tcp://127.0.0.1:{ports}"]
    b.ask("/replica_sync/deregister_peer", {"endpoint": f"tcp://127.0.0.1:{ports}"})
    wait_for("forgotten", b.idle)
    b.ask("/replica_sync/deregister_peer", {"endpoint": f"tcp://127.0.0.1:{ports}"}, 404)
    assert a.loads()[(1, 0)][2] == 50
    for i in range(50):
        a.ask(f"/reservations/r{i}", method="DELETE")


def test_a_dead_replicas_bookings_go_and_come_back(start):
    a, b, make = pair(start, Select)
    for s in (a, b):
        s.worker(1)
    live(a, b)
    reserve(a, "mine", [1] * 40)
    reserve(b, "theirs", [2] * 40)
    wait_for("both", lambda: a.loads()[(1, 0)][2] == 2)
    b.kill()
    wait_for("right again", lambda: a.loads()[(1, 0)][2] == 1)
    b = make(1)
    b.worker(1)
    wait_for("the same view", lambda: b.loads() == a.loads() and b.loads()[(1, 0)][2] == 1)
    a.ask("/reservations/mine", method="DELETE")
    wait_for("idle", lambda: a.idle() and b.idle())


def test_routes_say_when_it_is_off(start):
    s = start(Select)
    assert s.get("/replica_sync/peers") == []
    assert "replica-sync-port" in s.ask("/replica_sync/register_peer", {"endpoint": "tcp://127.0.0.1:1"}, 400)["error"]


def test_bad_peers_are_refused(start):
    s = start(Select, "--replica-sync-port", free_ports())
    for bad in ("", "nowhere", "http://a:1", "tcp://:5", 7, None):
        s.ask("/replica_sync/register_peer", {"endpoint": bad}, 400)
    s.ask("/replica_sync/register_peer", {"endpoint": "tcp://127.0.0.1:9"}, 201)
    s.ask("/replica_sync/register_peer", {"endpoint": "tcp://127.0.0.1:9"}, 201)  # known: nothing happens


class FakePeer:
    """A publisher by hand: for gaps, restarts and garbage."""

    def __init__(self, ctx):
        self.pub = ctx.socket(zmq.XPUB)
        self.pub.linger = 0
        self.port = self.pub.bind_to_random_port("tcp://127.0.0.1")
        self.publisher, self.next, self.state, self.snapshots = 77, 1, [], 0

    def message(self, kind, number, events=(), topic=b"e", version=1, publisher=None):
        blob = b"".join(e if isinstance(e, bytes) else msgpack.packb(e) for e in events)
        self.pub.send_multipart([topic, msgpack.packb([version, publisher or self.publisher, kind, number, blob])])

    def tell(self, *events, lose=False):
        if not lose:
            self.message(0, self.next, events)
        self.next += len(events)

    def step(self):
        """A beat, and the answers to what was asked."""
        self.message(0, self.next)
        while self.pub.poll(20):
            q = self.pub.recv()
            if q[:2] == b"\x01s":
                self.snapshots += 1
                self.message(1, 0, [[4, 0, self.next - 1]] + self.state, topic=q[1:])
                self.message(2, 1, topic=q[1:])

    def until(self, what, check):
        def look():
            self.step()
            return check()
        wait_for(what, look)


def add(i, worker=1, prefill=40, blocks=(1, 2, 3)):
    return [0, 0, "default", "default", 4, i, worker, 0, struct.pack(f"<{len(blocks)}Q", *blocks), 0, prefill, None, 0]


@pytest.fixture
def fake(zctx):
    p = FakePeer(zctx)
    yield p
    p.pub.close()


def test_gaps_are_seen_and_mended(start, fake):
    s = start(Select, "--replica-sync-port", free_ports(), "--replica-sync-peers", f"tcp://127.0.0.1:{fake.port}")
    s.worker(1)
    fake.until("live", lambda: s.metric("replica_sync_live_peers") == 1)
    fake.tell(add("a"), add("b", blocks=(1, 2, 9)))
    fake.until("heard", lambda: s.loads()[(1, 0)] == (80, 4, 2))
    before = fake.snapshots
    fake.tell([3, 0, "a"], lose=True)  # the free is lost
    fake.state = [add("b", blocks=(1, 2, 9))]
    fake.tell([1, 0, "b"])
    fake.state = [add("b", blocks=(1, 2, 9), prefill=0)]
    fake.until("mended", lambda: s.loads()[(1, 0)] == (0, 3, 1))
    assert fake.snapshots > before and s.metric("replica_sync_gaps_total") == 1
    fake.tell([2, 0, "b", 8, None], lose=True)  # the very last event is lost: the beat tells
    fake.state = [[*add("b", blocks=(1, 2, 9), prefill=0)[:-1], 8]]
    fake.until("mended", lambda: s.loads()[(1, 0)] == (0, 11, 1))
    fake.publisher, fake.next, fake.state = 78, 1, [add("z")]  # another process at the same place
    fake.until("restarted", lambda: s.loads()[(1, 0)] == (40, 3, 1))


def test_a_snapshot_that_took_longer_than_a_second_and_a_half_never_came(start, fake):
    s = start(Select, "--replica-sync-port", free_ports(), "--replica-sync-peers", f"tcp://127.0.0.1:{fake.port}")
    s.worker(1)
    topic, parts, due = None, 0, 0

    def look():
        nonlocal topic, parts, due
        fake.message(0, fake.next)
        while fake.pub.poll(20):
            if (q := fake.pub.recv())[:2] == b"\x01s":
                topic, parts, due = q[1:], 0, 0
        if topic and time.monotonic() >= due:  # eight parts in two seconds and more
            fake.message(1 if parts < 8 else 2, parts, [add(f"r{parts}")] if parts < 8 else [], topic=topic)
            parts, due, topic = parts + 1, time.monotonic() + 0.3, topic if parts < 8 else None
        return s.metric("replica_sync_live_peers") == 1
    wait_for("live", look)
    assert s.loads()[(1, 0)][2] == 8


def test_garbage_from_a_peer_is_counted(start, fake):
    s = start(Select, "--replica-sync-port", free_ports(), "--replica-sync-peers", f"tcp://127.0.0.1:{fake.port}")
    s.worker(1)
    fake.until("live", lambda: s.metric("replica_sync_live_peers") == 1)
    fake.pub.send_multipart([b"e", b""])
    fake.pub.send_multipart([b"e", b"\xff" * 40])
    fake.pub.send_multipart([b"e"])
    fake.pub.send_multipart([b"e", msgpack.packb([1, 77, 0, 5])])
    fake.pub.send_multipart([b"e", msgpack.packb([1, 77, 0, fake.next, b"\x93\x00"])])
    fake.pub.send_multipart([b"e", msgpack.packb([1, 77, 0, fake.next, msgpack.packb([[1]])])])  # nested
    fake.message(0, fake.next, [add("a")], version=2)
    fake.until("counted", lambda: s.metric("replica_sync_malformed_total") == 6)
    ignored = s.metric("replica_sync_events_ignored_total")
    bad = [[9, 0, "a"], [0, 0], [3, 0, 7], [3, 0, "x" * 300], add("w", worker=99), [2, 0, "a", 1, 5.0], [*add("h")[:8], b"123", 0, 0, None, 0],
           [0, 0, "other", "default", 4, "n", 1, 0, b"", 0, 1, None, 0], [3, 0, "nobody"], [1, 2 ** 40, "a"]]
    fake.tell(*bad)
    fake.until("ignored", lambda: s.metric("replica_sync_events_ignored_total") == ignored + len(bad))
    assert s.idle()
    fake.tell(add("fine"))
    fake.until("goes on", lambda: s.loads()[(1, 0)] == (40, 3, 1))


def test_two_routers_balance_as_one(start):
    """200 requests a second over 4 engines: through two routers the fleet is as even as through one."""
    mocks = [start(Mock, speedup=2) for _ in range(4)]
    one = start(Serve, mocks)
    a, b, _ = pair(start, Serve, mocks)
    live(a, b)
    seconds, rate = 3, 200

    def imbalance(routers, seed):
        samples, threads, stop = [], [], threading.Event()

        def watch():
            while not stop.wait(0.02):
                by = [l["active_decode_blocks"] * 16 + l["active_prefill_tokens"] for l in routers[0].get("/loads")]
                if sum(by) > 20000:
                    samples.append(max(by) * len(by) / sum(by))
        w = threading.Thread(target=watch)
        w.start()
        begin = time.monotonic()
        for i in itertools.count():  # a busy machine takes longer to show enough of it
            if i >= seconds * rate and len(samples) > 10 or time.monotonic() > begin + 30 * SLOW:
                break
            r = routers[i % len(routers)]
            t = threading.Thread(target=r.complete, args=([seed + i] * (200 + i * 37 % 400),), kwargs={"max_tokens": 30})
            t.start()
            threads.append(t)
            stop.wait(max(0.0, begin + (i + 1) / rate - time.monotonic()))  # the open loop's pace
        for t in threads:
            t.join()
        stop.set()
        w.join()
        assert len(samples) > 10
        return sum(samples) / len(samples)
    ratios = []
    while len(ratios) < 3 and not any(r < 1.10 for r in ratios):  # what else the machine does adds to both, not evenly: the least says what it must be
        alone, both = imbalance([one], 1000000 * (1 + len(ratios))), imbalance([a, b], 1000000 * (5 + len(ratios)))
        print(f"max/mean active tokens: one router {alone:.3f}, two {both:.3f}")
        ratios.append(both / alone)
    assert min(ratios) < 1.10, ratios
    wait_for("idle", lambda: a.idle() and b.idle())


def test_a_router_that_is_killed_at_work_leaves_no_load_behind_and_comes_back_with_the_others(start):
    """Restarted, it chooses like the other one."""
    mocks = [start(Mock, speedup=2) for _ in range(4)]
    a, b, make = pair(start, Serve, mocks)
    live(a, b)
    held = [threading.Thread(target=swallow, args=(a,))]
    held[0].start()
    wait_for("told", lambda: not b.idle() and not a.idle())
    opened = threading.Thread(target=swallow, args=(b,))
    opened.start()
    wait_for("b's too", lambda: sum(l["active_requests"] for l in a.get("/loads")) == 2)
    b.kill()
    wait_for("right", lambda: sum(l["active_requests"] for l in a.get("/loads")) == 1)
    b2 = make(1)
    strip = lambda s: [{k: l[k] for k in ("worker_id", "active_prefill_tokens", "active_requests")} for l in s.get("/loads")]
    wait_for("like the other", lambda: strip(a) == strip(b2) and not b2.idle())
    question = {"token_ids": list(range(600)), "model_name": "mock"}
    busy = next(l["worker_id"] for l in a.get("/loads") if l["active_requests"])
    for _ in range(5):
        assert a.post("/select", question).json()["worker_id"] != busy != b2.post("/select", question).json()["worker_id"]
    a.kill()
    for t in held + [opened]:
        t.join()


def swallow(s):
    try:
        call(s.port, "POST", "/v1/completions", {"prompt": [6] * 3000, "max_tokens": 3000, "stream": True})
    except OSError:
        pass
    except Exception as e:  # noqa: BLE001 - the router is killed in the middle
        assert "IncompleteRead" in repr(e) or "RemoteDisconnected" in repr(e) or "BadStatusLine" in repr(e), repr(e)


def test_the_bookings_of_a_router_with_two_addresses_counted_twice(start):
    ports = free_ports(2)
    a = start(Select, "--replica-sync-port", ports, "--replica-sync-host", "0.0.0.0")
    b = start(Select, "--replica-sync-port", ports + 1, "--replica-sync-peers", f"tcp://127.0.0.1:{ports},tcp://127.0.0.2:{ports}")
    for s in (a, b):
        s.worker(1)
    wait_for("noticed", lambda: "are one router" in b.text())
    live(b)
    reserve(a, "x", [1] * 40)
    wait_for("told", lambda: b.loads() == a.loads())
    stays("once", lambda: b.loads() == a.loads(), 0.5)
    gone = next(e for e in ("127.0.0.1", "127.0.0.2") if f"{e}:{ports} and" in b.text())
    assert b.ask("/replica_sync/deregister_peer", {"endpoint": f"tcp://{gone}:{ports}"}) is not None
    live(b)
    wait_for("at the other one", lambda: b.loads() == a.loads())
    a.ask("/reservations/x", method="DELETE")
    wait_for("idle", b.idle)


@pytest.mark.parametrize("change", ["DELETE", "PATCH"])
def test_a_worker_that_changes_on_one_router_leaves_no_booking_on_the_other(start, change):
    a, b, _ = pair(start, Serve, [start(Mock, speedup=0.3).spec(",id=1")])
    live(a, b)
    c, r = read_sse(a.port, {"model": "mock", "prompt": list(range(400)), "max_tokens": 200, "stream": True})
    wait_for("it is told", lambda: sum(l["active_requests"] for l in b.get("/loads")) == 1)
    answer = call(a.admin, change, "/workers/1", {"max_num_batched_tokens": 9999} if change == "PATCH" else None)
    assert answer.status in (200, 204), answer.body
    c.close()
    wait_for("it is over", a.idle)
    wait_for("here, too", b.idle)
