# SPDX-License-Identifier: Apache-2.0
"""Events that a JetStream server did not keep: published again in order, within bounds, and told of when they were lost."""
import base64
import json
import os
import shutil

import msgpack
import pytest

from conftest import Engine, Publish, Serve, call, free_ports, freeze, stays, wait_for
from nats_parts import NatsClient, NatsServer

STREAM = "namespace-default-component-backend-kv-events"


@pytest.fixture(autouse=True)  # before `start`, so that it ends after what was started
def nats():
    n = NatsServer()
    yield n
    n.stop()


@pytest.fixture
def client(nats):
    c = NatsClient(nats.port)
    yield c
    c.close()


@pytest.fixture
def hand(zctx):
    e = Engine(zctx)
    yield e
    e.close()


def plane(nats):
    return ["--event-plane", "jetstream", "--nats-url", nats.url]


def publisher(start, hand, nats):
    """It has heard of the first chain."""
    p = start(Publish, hand, "--worker-id", 7, *plane(nats), block_size=4, with_replay=False)
    hand.heard_by(1)
    chain(hand, 0)
    wait_for("whole", lambda: p.status()["trust"] == "trusted")
    return p


def router(start, nats, p=None, *more):
    """It has nobody to ask, unless it is given the publisher: what it holds is what the stream brought."""
    worker = f"http://127.0.0.1:{free_ports()},id=7" + (f",recover={p.url}" if p else "")
    return start(Serve, [worker], "--block-size", 4, *plane(nats), *more, ready=False)


def keeper(start, nats, p=None):
    """It has written a snapshot, and will write another after two events."""
    r = router(start, nats, p, "--router-snapshot-threshold", 1)
    snapshot(r)
    return r


def snapshot(r, after=0):
    wait_for("a snapshot", lambda: r.metric("durable_written_snapshots_total") > after, 30)


def prompt(n):
    return [n * 1000 + k for k in range(8)]


def chain(hand, n):
    hand.stored([2 * n + 1, 2 * n + 2], prompt(n))


def blocks(r, n):
    return r.overlap(prompt(n)).get((7, 0), 0)


def api(client, what, body=b""):
    answer = json.loads(client.request(f"$JS.API.{what}", body if isinstance(body, bytes) else json.dumps(body).encode(), 30))
    assert "error" not in answer, answer
    return answer


def stored_ids(client):
    """Event ids in the stream, as a reader takes them: what is there again is left out. In order."""
    state, ids = api(client, f"STREAM.INFO.{STREAM}")["state"], []
    for seq in range(state["first_seq"], state["last_seq"] + 1):
        message = api(client, f"STREAM.MSG.GET.{STREAM}", {"seq": seq})["message"]
        event = msgpack.unpackb(msgpack.unpackb(base64.b64decode(message["data"]))["payload"])
        ids += [event["event"]["event_id"]] if not ids or event["event"]["event_id"] > ids[-1] else []
    return ids


def limit(client, most):
    """The stream refuses new messages beyond `most`; -1: it takes all."""
    config = api(client, f"STREAM.INFO.{STREAM}")["config"]
    api(client, f"STREAM.UPDATE.{STREAM}", {**config, "max_msgs": most, "discard": "new" if most > 0 else "old"})


def metric(p, name):
    (line,) = [x for x in call(p.port, "GET", "/metrics").body.decode().splitlines() if x.startswith(f"kvroute_{name}{{")]
    return float(line.split()[-1])


def unread(port):
    """Bytes that wait in the connections of a server."""
    with open("/proc/net/tcp") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    return sum(int(row[4].split(":")[1], 16) for row in rows if int(row[1].split(":")[1], 16) == port)


def newest(p, n):
    return lambda: p.status()["newest_id"] == n


def test_events_that_died_with_the_server_are_missing_in_the_stream(start, nats, hand):
    p = publisher(start, hand, nats)
    r = router(start, nats)
    wait_for("the first", lambda: blocks(r, 0) == 2 and r.view(7)["trusted"] and p.status()["stream"]["waiting"] == 0)
    freeze(nats.p)  # what is written to it now, nobody reads
    hand.stored(list(range(1000, 1200)), [9] * 800)
    wait_for("it is sent; no heartbeat is as large", lambda: unread(nats.port) > 2000 or "published again" in p.text())  # then the connection was lost before
    for n in range(1, 10):
        chain(hand, n)
    wait_for("they are published", newest(p, 12))
    nats.kill()
    for n in range(10, 20):
        chain(hand, n)
    wait_for("all are seen", newest(p, 22))
    nats.start()
    wait_for("all blocks", lambda: all(blocks(r, n) == 2 for n in range(20)), 20)
    wait_for("trust", lambda: r.view(7)["trusted"], 20)
    assert r.view(7)["view"] == "whole" and r.view(7)["gaps"] == 0
    client = NatsClient(nats.port)
    assert stored_ids(client) == list(range(1, 23))
    client.close()
    assert p.status()["stream"]["lost"] == 0 and p.status()["stream"]["again"] > 0


def test_events_while_the_stream_is_gone_are_lost(start, nats, client, hand):
    """It was deleted: the publisher makes it again."""
    p = publisher(start, hand, nats)
    wait_for("it is stored", lambda: p.status()["stream"]["waiting"] == 0 and stored_ids(client) == [1, 2])
    api(client, f"STREAM.DELETE.{STREAM}")
    for n in range(1, 20):
        chain(hand, n)
    wait_for("all are seen", newest(p, 21))
    wait_for("nothing waits", lambda: p.status()["stream"]["waiting"] == 0, 20)
    assert stored_ids(client) == list(range(3, 22))


def test_events_that_the_stream_refused_for_a_while_are_lost(start, nats, client, hand):
    """Who listens hears them live; who comes later reads them in order."""
    p = publisher(start, hand, nats)
    r = router(start, nats)
    wait_for("the first", lambda: blocks(r, 0) == 2 and r.view(7)["trusted"])
    limit(client, 2)
    for n in range(1, 40):
        chain(hand, n)
    wait_for("they are heard live", lambda: all(blocks(r, n) == 2 for n in range(40)), 30)
    wait_for("they wait", lambda: p.status()["stream"]["waiting"] == 39)
    assert "maximum messages" in p.status()["stream"]["reason"]
    assert p.status()["trust"] == "trusted" and metric(p, "publish_stream_waiting") == 39
    limit(client, -1)
    wait_for("nothing waits", lambda: p.status()["stream"]["waiting"] == 0, 20)
    assert stored_ids(client) == list(range(1, 42)) and p.status()["stream"]["reason"] == ""
    late = router(start, nats)
    wait_for("it has all", lambda: late.view(7).get("view") == "whole" and all(blocks(late, n) == 2 for n in range(40)), 20)
    assert late.view(7)["gaps"] == 0 and r.view(7)["gaps"] == 0


def flood(hand, p, n, before):
    """So many events, in batches, each one an event of its own on the plane."""
    for at in range(0, n, 2000):
        hand.send(hand.batch(*[["BlockStored", [10_000_000 + at + i], None, [at + i, 1, 2, 3], 4, None, "GPU", None] for i in range(2000)]), keep=False)
        wait_for("they are seen", newest(p, before + at + 2000), 30)


def test_a_buffer_of_unstored_events_that_is_full_says_nothing(start, nats, client, hand):
    """What finds no room is counted, and nobody goes on trusting a view that lacks it."""
    p = publisher(start, hand, nats)
    alone, asks = router(start, nats), router(start, nats, p)
    for r in (alone, asks):
        wait_for("the first", lambda: blocks(r, 0) == 2 and r.view(7)["trusted"])
    limit(client, 2)
    flood(hand, p, 68_000, 2)
    st = wait_for("it is full", lambda: (lambda s: s if s["stream"]["lost"] else None)(p.status()))
    assert st["stream"]["waiting"] == 65536 and st["stream"]["lost"] == 68_000 - 65_536
    assert st["trust"] == "untrusted" and st["view"] == "partial" and "lost" in st["reason"] and "maximum messages" in st["reason"]
    assert metric(p, "publish_stream_lost_total") == 68_000 - 65_536 and metric(p, "publish_stream_waiting_bytes") < 64 << 20
    wait_for("the log says so", lambda: "is lost to whoever" in p.text())
    assert p.text().count("is lost to whoever") == 1
    # Nothing follows, and yet it is known.
    wait_for("no trust without anybody to ask", lambda: not alone.view(7)["trusted"] and "missing" in alone.view(7)["reason"], 30)
    tokens = [67_999, 1, 2, 3]
    wait_for("who can ask has all", lambda: asks.view(7)["trusted"] and asks.overlap(tokens) == {(7, 0): 1}, 30)
    limit(client, -1)
    wait_for("what was kept is stored", lambda: p.status()["stream"]["waiting"] == 0, 60)
    assert p.status()["trust"] == "trusted" and p.status()["stream"]["lost"] == 68_000 - 65_536
    wait_for("distrust, once heartbeats have told of what is behind", lambda: not alone.view(7)["trusted"])
    stays("distrust", lambda: not alone.view(7)["trusted"], 1)
    late = router(start, nats)
    wait_for("who comes later neither", lambda: "missing" in late.view(7).get("reason", "") and not late.view(7)["trusted"], 30)
    hand.cleared()
    chain(hand, 1)
    for r in (alone, asks, late):
        wait_for("a clear mends it", lambda: r.view(7)["view"] == "whole" and blocks(r, 1) == 2 and blocks(r, 0) == 0, 20)


def test_an_event_that_no_server_takes_holds_up_the_rest(start, hand):
    """It is larger than a message may be: given up and counted, and what is behind it is stored."""
    small = NatsServer(extra="max_payload: 4096")
    try:
        p = publisher(start, hand, small)
        hand.stored(list(range(1000, 1100)), list(range(400)))
        for n in range(1, 6):
            chain(hand, n)
        wait_for("all are seen", newest(p, 8))
        wait_for("nothing waits", lambda: p.status()["stream"]["waiting"] == 0, 20)
        client = NatsClient(small.port)
        assert stored_ids(client) == [1, 2, 4, 5, 6, 7, 8] and p.status()["stream"]["lost"] == 1
        client.close()
    finally:
        small.stop()


def test_a_server_that_lost_its_streams_is_never_followed_again(start, nats, hand):
    """Streams and buckets are made again, by whoever needs them."""
    p = publisher(start, hand, nats)
    r = keeper(start, nats, p)
    nats.kill()
    shutil.rmtree(os.path.join(nats.dir, "js"))
    nats.start()
    chain(hand, 1)
    chain(hand, 2)
    wait_for("all blocks", lambda: [blocks(r, n) for n in range(3)] == [2, 2, 2] and r.view(7)["trusted"], 40)
    wait_for("a lease", lambda: r.metric("durable_keeper") == 1, 30)
    before = r.metric("durable_written_snapshots_total")
    chain(hand, 3)
    chain(hand, 4)
    snapshot(r, before)


def test_a_stream_with_a_hole_is_never_caught_up_with(start, nats, client, hand):
    """What is missing in the middle is lost, and the ids tell."""
    p = publisher(start, hand, nats)
    for n in range(1, 4):
        chain(hand, n)
    wait_for("they are stored", lambda: p.status()["newest_id"] == 5 and p.status()["stream"]["waiting"] == 0)
    api(client, f"STREAM.MSG.DELETE.{STREAM}", {"seq": 3})
    asks, alone = router(start, nats, p), router(start, nats)
    wait_for("who can ask has all", lambda: asks.view(7).get("view") == "whole" and blocks(asks, 1) == 2, 20)
    wait_for("who cannot has what came after it", lambda: alone.view(7).get("view") == "partial" and blocks(alone, 3) == 2, 20)
    assert blocks(alone, 0) == 0 and alone.metric("durable_restarts_total") == 0


@pytest.mark.parametrize("how", ["DELETE", "PURGE"])
def test_a_snapshot_that_the_stream_does_not_go_on_from_is_used(start, nats, client, hand, how):
    """The stream is another one, or its messages have grown too old: who starts has what the stream has."""
    p = publisher(start, hand, nats)
    r = keeper(start, nats)
    r.kill()
    chain(hand, 1)
    wait_for("it is stored", lambda: p.status()["newest_id"] == 3 and p.status()["stream"]["waiting"] == 0)
    api(client, f"STREAM.{how}.{STREAM}")
    hand.removed([1, 2])
    chain(hand, 2)
    wait_for("they are stored", lambda: p.status()["newest_id"] == 5 and p.status()["stream"]["waiting"] == 0, 20)
    late = router(start, nats, None, "--router-snapshot-threshold", 1)
    wait_for("it has what is in the stream", lambda: late.view(7).get("view") == "partial" and blocks(late, 2) == 2, 20)
    assert blocks(late, 0) == 0 and late.metric("durable_loaded_snapshots_total") == 0
    chain(hand, 3)
    hand.cleared()
    snapshot(late)


def test_the_snapshots_of_a_router_whose_clock_is_behind_the_servers_were_none(start, nats, client, hand):
    """Nobody used them, nothing was purged, and another was written every second."""
    publisher(start, hand, nats)
    keeper(start, nats).kill()
    bucket = "KV_kvroute-snapshots"
    subjects = api(client, f"STREAM.INFO.{bucket}", {"subjects_filter": ">"})["state"]["subjects"]
    kept = {s: base64.b64decode(api(client, f"STREAM.MSG.GET.{bucket}", {"last_by_subj": s})["message"]["data"]) for s in subjects}
    (head,) = [s for s in subjects if s.endswith(".head")]
    told = json.loads(kept.pop(head))
    (version,) = told["versions"]
    for piece, data in kept.items():
        client.request(piece.replace(str(version["version"]), "1000"), data)
    version["version"] = 1000  # it is a time
    client.request(head, json.dumps(told).encode())
    late = router(start, nats)
    wait_for("it is read", lambda: late.metric("durable_loaded_snapshots_total") == 1 and blocks(late, 0) == 2, 20)


def only_two_snapshots_stay_of(n, r, hand, client):
    for n in range(1, n + 1):
        before = r.metric("durable_written_snapshots_total")
        chain(hand, 2 * n)
        chain(hand, 2 * n + 1)
        snapshot(r, before)
    wait_for("two snapshots, and the list", lambda: api(client, "STREAM.INFO.KV_kvroute-snapshots")["state"]["messages"] == 3)


def test_snapshots_leave_a_marker_of_each_piece(start, nats, client, hand):
    publisher(start, hand, nats)
    r = keeper(start, nats)
    only_two_snapshots_stay_of(4, r, hand, client)


def test_a_snapshot_whose_writer_died_stays_for_ever(start, nats, client, hand):
    publisher(start, hand, nats)
    r = keeper(start, nats)
    subjects = api(client, "STREAM.INFO.KV_kvroute-snapshots", {"subjects_filter": ">"})["state"]["subjects"]
    (head,) = [s for s in subjects if s.endswith(".head")]
    client.request(head.replace("head", "1700000000000.0"), b"a piece of it")
    only_two_snapshots_stay_of(2, r, hand, client)
