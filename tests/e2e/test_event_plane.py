# SPDX-License-Identifier: Apache-2.0
"""KV events over NATS: publishers, routers and indexers on one server; losses, silence, partitions, restarts of every part."""
import time

import pytest

from conftest import Indexer, Mock, Process, Publish, ScriptedServer, Select, Serve, call, free_ports, local_hashes, stays, wait_for
from nats_parts import NatsClient, NatsServer, Proxy, envelope, router_event, stored

EVENTS, BEATS = "namespace.default.component.backend.kv-events", "namespace.default.component.backend.kv-beats"
TOKENS = list(range(1, 33))
HASHES = local_hashes(TOKENS, 4)


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


def plane(url, kind="nats"):
    return ["--event-plane", kind, "--nats-url", url]


def select_on(start, url, *extra):
    s = start(Select, "--block-size", 4, *plane(url), *extra)
    wait_for("the event plane", lambda: s.metric("event_plane_up") == 1)
    return s


def overlap(s, tokens=TOKENS):
    return s.overlap(tokens, model_name="m")


def add_worker(s, i, **more):
    s.worker(i, model_name="m", **more)


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_router_and_indexer_follow_sidecars(start, nats, kind):
    """Two engines, their sidecars, two routers and an indexer: all know the same."""
    mocks = [start(Mock) for _ in range(2)]
    pubs = [start(Publish, m, "--worker-id", i + 1, *plane(nats.url, kind)) for i, m in enumerate(mocks)]
    workers = [f"http://127.0.0.1:{m.port},id={i + 1},recover={p.url}" for i, (m, p) in enumerate(zip(mocks, pubs))]
    routers = [start(Serve, workers, *plane(nats.url, kind)) for _ in range(2)]
    ix = start(Indexer, *plane(nats.url, kind), ready=False)
    for i, p in enumerate(pubs):
        ix.post("/register", {"instance_id": i + 1, "endpoint": "plane", "model_name": "m", "block_size": 16, "recover_endpoint": p.url}, 201)
    for r in routers:
        wait_for("trust", lambda: all(v["trusted"] for v in r.views().values()))
    prompts = [[n * 1000 + k for k in range(160)] for n in range(8)]
    for k, p in enumerate(prompts):
        assert routers[k % 2].complete(p).status == 200
    for p in prompts:
        held = wait_for("the event", lambda: (lambda o: o if max(o.values(), default=0) == 10 else None)(routers[0].overlap(p)))
        assert len([w for w, n in held.items() if n]) == 1
        wait_for("the other router", lambda: routers[1].overlap(p) == held)
        wait_for("the indexer", lambda: {w: n for w, n in ix.scores(p).items()} == {w: n * 16 for w, n in held.items() if n})
    again = routers[1].complete(prompts[0])
    assert int(again.headers["x-kvroute-overlap-blocks"]) >= 9
    assert all(v["gaps"] == 0 for r in routers for v in r.views().values())


def test_envelopes_of_other_publishers(start, nats, client):
    """Dynamo's shapes: one event or several, no version, no beats; a clear makes a view whole."""
    s = select_on(start, nats.url)
    add_worker(s, 7)
    client.publish(EVENTS, envelope(5, 0, router_event(7, 1, "cleared")))
    wait_for("trust", lambda: s.view(7).get("trusted"))
    client.publish(EVENTS, envelope(5, 1, [router_event(7, 2, stored([1, 2], HASHES[:2])), router_event(7, 3, stored([3], HASHES[2:3], 2))]))
    wait_for("both events", lambda: overlap(s) == {(7, 0): 3})
    client.publish(EVENTS, envelope(5, 2, router_event(7, 4, {"removed": {"block_hashes": [3]}}), numbers=True))
    wait_for("a payload of numbers", lambda: overlap(s) == {(7, 0): 2})
    client.publish(EVENTS, b'{"worker_id":7,"event":{"event_id":5,"data":{"stored":{"parent_hash":2,"blocks":[{"block_hash":3,"tokens_hash":%d}]}},"dp_rank":0}}'
                   % HASHES[2])
    wait_for("an event as JSON", lambda: overlap(s) == {(7, 0): 3})
    client.publish(EVENTS, envelope(5, 3, router_event(9, 1, "cleared")))
    client.publish(EVENTS, b"\xc1garbage")
    client.publish(EVENTS, envelope(5, 4, b"\x81\xa1x"))
    client.publish(EVENTS, envelope(5, 4, router_event(7, 6, "cleared"), version=2))
    wait_for("what was refused is counted", lambda: s.metric("event_plane_malformed_total") == 2 and
             s.metric("event_plane_other_version_total") == 1 and s.metric("event_plane_unknown_workers_total") == 1)
    assert s.text().count("event plane: messages are left out") == 2 and "a version that is not known here" in s.text()  # one for each cause
    assert overlap(s) == {(7, 0): 3} and s.view(7).get("trusted")


def test_a_lost_event_without_recovery_leaves_a_partial_view(start, nats, client):
    s = select_on(start, nats.url)
    add_worker(s, 7)
    client.publish(EVENTS, envelope(5, 0, router_event(7, 1, "cleared")))
    client.publish(EVENTS, envelope(5, 1, router_event(7, 2, stored([1], HASHES[:1]))))
    wait_for("the block", lambda: overlap(s) == {(7, 0): 1})
    client.publish(EVENTS, envelope(5, 3, router_event(7, 4, stored([9], HASHES[:1]))))
    view = wait_for("the gap", lambda: (lambda v: v if v.get("gaps") == 1 else None)(s.view(7)))
    assert view["view"] == "partial" and "lost" in view["reason"]
    client.publish(EVENTS, envelope(5, 4, router_event(7, 5, "cleared")))  # an empty view is a complete one
    wait_for("whole again", lambda: s.view(7)["view"] == "whole")
    # another life of the publisher whose ids would fit
    client.publish(EVENTS, envelope(6, 0, router_event(7, 6, stored([1], HASHES[:1]))))
    view = wait_for("the other life", lambda: (lambda v: v if v["restarts"] == 1 else None)(s.view(7)))
    assert view["view"] == "partial"
    # a late message of the life before is left out
    client.publish(EVENTS, envelope(5, 5, router_event(7, 6, stored([8], HASHES[:1])), at=1))
    client.publish(EVENTS, envelope(6, 1, router_event(7, 7, "cleared")))
    wait_for("the new life is whole", lambda: s.view(7)["view"] == "whole")
    assert s.view(7)["restarts"] == 1 and overlap(s) == {(7, 0): 0}


def test_the_events_of_a_publisher_are_late_for_an_hour(start, nats, client):
    """It began anew after its clock was set back, and the view kept what the life before had."""
    s = select_on(start, nats.url)
    add_worker(s, 7)
    later = time.time() + 3600
    client.publish(EVENTS, envelope(5, 0, router_event(7, 1, "cleared"), at=later))
    client.publish(EVENTS, envelope(5, 1, router_event(7, 2, stored([1], HASHES[:1])), at=later))
    wait_for("the block", lambda: overlap(s) == {(7, 0): 1})
    client.publish(EVENTS, envelope(6, 0, router_event(7, 1, "cleared")))
    client.publish(EVENTS, envelope(6, 1, router_event(7, 2, stored([1, 2], HASHES[:2]))))
    wait_for("the new life", lambda: s.view(7)["restarts"] == 1 and overlap(s) == {(7, 0): 2})
    assert s.view(7)["view"] == "whole"


def test_beats_tell_of_a_lost_tail(start, nats, client):
    """Nothing comes after the lost event, but the beat says that there was one: the worker is asked, or the view loses its trust."""
    def answer(q):
        lost = {"event_id": 2, "data": stored([1], HASHES[:1]), "dp_rank": 0}
        if q.get("start") == "2":
            return {"Events": {"epoch": 5, "events": [{"worker_id": 7, "event": lost}], "last_event_id": 2}}
        return {"TreeDump": {"epoch": 5, "events": [], "last_event_id": 1}}
    worker = ScriptedServer(answer, "/kv_recover")
    s = select_on(start, nats.url)
    add_worker(s, 7, recover_endpoint=worker.url)
    add_worker(s, 8)
    for w in (7, 8):
        client.publish(EVENTS, envelope(w, 0, router_event(w, 1, "cleared")))

    def beats(last):
        for w in (7, 8):
            client.publish(BEATS, envelope(w, 0, {"worker_id": w, "dp_rank": 0, "last_event_id": last}, topic="kv-beats"))
        return True
    wait_for("trust", lambda: beats(1) and s.view(8).get("trusted") and s.view(7).get("trusted"))
    wait_for("worker 7 is asked", lambda: beats(2) and overlap(s).get((7, 0)) == 1)
    wait_for("its view is trusted", lambda: beats(2) and s.view(7)["trusted"])
    view = wait_for("worker 8 is not", lambda: beats(2) and (lambda v: v if not v["trusted"] else None)(s.view(8)))
    assert "missing" in view["reason"] and view["gaps"] == 1
    worker.close()


@pytest.mark.parametrize("told_by", ["its first event", "beats"])
def test_another_life_of_a_publisher_that_had_not_spoken(start, nats, client, told_by):
    """What a worker answered does not name its publisher: should that be another soon after, with smaller ids, they are not old ones."""
    last = 100
    worker = ScriptedServer(lambda q: {"TreeDump": {"epoch": last, "events": [{"worker_id": 7, "event": {
        "event_id": 0, "data": stored([1], HASHES[:1]), "dp_rank": 0}}] if last > 1 else [], "last_event_id": last}}, "/kv_recover")
    s = select_on(start, nats.url)
    add_worker(s, 7, recover_endpoint=worker.url)
    wait_for("its content", lambda: s.view(7).get("trusted") and overlap(s) == {(7, 0): 1})
    wait_for("the second question", lambda: len(worker.asked) >= 2)
    stays("trust", lambda: s.view(7)["trusted"], 0.5)
    assert "restored from a dump" not in s.text()  # the second answer has nothing new
    last = 1
    if told_by == "beats":
        def beats():
            client.publish(BEATS, envelope(5, 1, {"worker_id": 7, "dp_rank": 0, "last_event_id": 1}, topic="kv-beats"))
            return True
        wait_for("the worker is asked", lambda: beats() and s.view(7)["trusted"] and overlap(s) == {(7, 0): 0})
    else:
        client.publish(EVENTS, envelope(5, 0, router_event(7, 1, "cleared")))
        wait_for("the clear", lambda: s.view(7)["trusted"] and overlap(s) == {(7, 0): 0})
    wait_for("the restart is counted", lambda: s.view(7)["restarts"] == 1)
    client.publish(EVENTS, envelope(5, 2, router_event(7, 2, stored([1], HASHES[:2]))))
    wait_for("its events", lambda: overlap(s) == {(7, 0): 1})
    worker.close()


def test_the_longest_scope_is_acknowledged(start, nats):
    """Subjects grow with it: of the stream, of the consumer, and of its acknowledgements."""
    args = [*plane(nats.url, "jetstream"), "--namespace", "n" * 63, "--component", "c" * 63]
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, *args)
    r = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *args)
    prompt = list(range(160))
    assert r.complete(prompt).status == 200
    wait_for("the events", lambda: r.overlap(prompt) == {(1, 0): 10})

    def acknowledged():
        streams = nats.ask("/jsz?streams=1&consumers=1")["account_details"][0]["stream_detail"]
        (stream,) = [s for s in streams if s["name"].endswith("-kv-events")]
        (consumer,) = stream["consumer_detail"]
        return stream["state"]["last_seq"] > 0 and consumer["ack_floor"]["stream_seq"] == stream["state"]["last_seq"]
    wait_for("all is acknowledged", acknowledged)


def test_a_beat_before_its_event_on_a_durable_stream(start, nats, client):
    """Nobody can be asked: the view waits, untrusted, for what the stream may still bring, and is not thrown away."""
    r = start(Select, "--block-size", 4, *plane(nats.url, "jetstream"))
    wait_for("the event plane", lambda: r.metric("event_plane_up") == 1)
    add_worker(r, 7)

    def beats(last):
        client.publish(BEATS, envelope(5, 0, {"worker_id": 7, "dp_rank": 0, "last_event_id": last}, topic="kv-beats"))
        return True
    client.publish(EVENTS, envelope(5, 0, router_event(7, 1, "cleared"), beats=True))
    client.publish(EVENTS, envelope(5, 1, router_event(7, 2, stored([1], HASHES[:1])), beats=True))
    wait_for("the block", lambda: beats(2) and overlap(r) == {(7, 0): 1} and r.view(7)["trusted"])
    wait_for("distrust", lambda: beats(3) and not r.view(7)["trusted"])
    assert "missing" in r.view(7)["reason"] and overlap(r) == {(7, 0): 1} and r.view(7)["gaps"] == 0
    client.publish(EVENTS, envelope(5, 2, router_event(7, 3, stored([2], HASHES[1:2], parent=1)), beats=True))
    wait_for("trust", lambda: beats(3) and r.view(7)["trusted"])
    assert overlap(r) == {(7, 0): 2} and r.view(7)["gaps"] == 0


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_a_silent_publisher_is_not_believed(start, nats, kind):
    """Its beats end: the view is untrusted at once, and dropped; a router that never heard one waits for the first."""
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, *plane(nats.url, kind))
    r = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *plane(nats.url, kind))
    wait_for("trust", lambda: r.view().get("trusted"))
    r.complete(TOKENS)
    wait_for("the blocks", lambda: r.overlap(TOKENS) == {(1, 0): 2})
    wait_for("beats", lambda: r.metric("event_plane_beats_total") >= 1)
    p.kill()
    wait_for("silence is noticed", lambda: not r.view()["trusted"] and "silent" in r.view()["reason"], 20)
    wait_for("the view is dropped", lambda: r.overlap(TOKENS) == {(1, 0): 0}, 20)
    assert r.complete(TOKENS).status == 200
    start(Publish, m, "--worker-id", 1, *plane(nats.url, kind), port=p.port)
    wait_for("its successor is", lambda: r.view()["trusted"] and r.overlap(TOKENS) == {(1, 0): 2}, 20)


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_partition_keeps_requests_going_and_is_repaired(start, nats, kind):
    """The line between router and NATS is cut under load: requests go on, views are untrusted, and right again afterwards."""
    proxy = Proxy(nats.port)
    try:
        mocks = [start(Mock) for _ in range(2)]
        pubs = [start(Publish, m, "--worker-id", i + 1, *plane(nats.url, kind)) for i, m in enumerate(mocks)]
        workers = [f"http://127.0.0.1:{m.port},id={i + 1},recover={p.url}" for i, (m, p) in enumerate(zip(mocks, pubs))]
        r, other = start(Serve, workers, *plane(proxy.url, kind)), start(Serve, workers, *plane(nats.url, kind))
        for x in (r, other):
            wait_for("trust", lambda: len(x.views()) == 2 and all(v["trusted"] for v in x.views().values()))
        proxy.cut()
        n = 0

        def request(router):
            nonlocal n
            n += 1
            assert router.complete([n * 1000 + k for k in range(64)]).status == 200
            return True
        wait_for("distrust", lambda: request(r) and all(not v["trusted"] for v in r.views().values()), 20)
        assert all("event plane is down" in v["reason"] for v in r.views().values())
        stays("requests go on", lambda: request(r) and request(other), 3)
        proxy.heal()
        wait_for("trust again", lambda: request(r) and all(v["trusted"] for v in r.views().values()), 20)
        for k in range(1, n + 1):
            prompt = [k * 1000 + i for i in range(64)]
            wait_for("the same content", lambda: r.overlap(prompt) == other.overlap(prompt))
        blocks = {w: v["blocks"] for w, v in r.views().items()}
        wait_for("the same sizes", lambda: {w: v["blocks"] for w, v in other.views().items()} == blocks)
    finally:
        proxy.stop()


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_nats_dies_and_comes_back(start, nats, kind):
    mocks = [start(Mock) for _ in range(2)]
    pubs = [start(Publish, m, "--worker-id", i + 1, *plane(nats.url, kind)) for i, m in enumerate(mocks)]
    r = start(Serve, [f"http://127.0.0.1:{m.port},id={i + 1},recover={p.url}" for i, (m, p) in enumerate(zip(mocks, pubs))], *plane(nats.url, kind))
    wait_for("trust", lambda: all(v["trusted"] for v in r.views().values()))
    nats.kill()
    wait_for("distrust", lambda: not any(v["trusted"] for v in r.views().values()), 20)
    for k in range(20):
        assert r.complete([k * 1000 + i for i in range(64)]).status == 200
    wait_for("the sidecars to have seen it all", lambda: sum(p.status()["blocks"] for p in pubs) >= 80)
    nats.start()
    wait_for("trust again", lambda: all(v["trusted"] for v in r.views().values()), 20)
    assert all(max(r.overlap([k * 1000 + i for i in range(64)]).values()) == 4 for k in range(20))
    pubs[0].kill()  # a sidecar's new life
    pubs[0] = start(Publish, mocks[0], "--worker-id", 1, *plane(nats.url, kind), port=pubs[0].port)
    wait_for("its new life is believed", lambda: all(v["trusted"] for v in r.views().values()) and
             all(max(r.overlap([k * 1000 + i for i in range(64)]).values()) == 4 for k in range(20)), 20)


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_a_publisher_that_is_back_later_than_the_router(start, nats, kind):
    """What it holds meanwhile is missed by nobody's ids: a stream that keeps events is not believed before a beat, and neither for long."""
    proxy = Proxy(nats.port)
    try:
        m = start(Mock)
        p = start(Publish, m, "--worker-id", 1, *plane(proxy.url, kind))
        r = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *plane(nats.url, kind))
        wait_for("trust", lambda: r.view().get("trusted"))
        assert r.complete(TOKENS).status == 200
        wait_for("the blocks", lambda: r.overlap(TOKENS) == {(1, 0): 2})
        wait_for("beats", lambda: r.metric("event_plane_beats_total") >= 1)
        proxy.cut()
        nats.kill()
        wait_for("distrust", lambda: not r.view()["trusted"], 20)
        nats.start()
        seen = []

        def silent():
            v = r.view()
            seen.append(v["trusted"])
            return not v["trusted"] and "silent" in v["reason"]
        wait_for("silence is noticed", silent, 20)
        assert kind == "nats" or not any(seen)  # over plain NATS the worker itself has been asked
        later = [9000 + i for i in range(64)]
        assert r.complete(later).status == 200
        proxy.heal()
        wait_for("trust again", lambda: r.view()["trusted"], 20)
        assert r.overlap(TOKENS) == {(1, 0): 2} and r.overlap(later) == {(1, 0): 4}
    finally:
        proxy.stop()


@pytest.mark.parametrize("threshold", [1, 1000])
def test_a_new_router_knows_who_sends_beats(start, nats, threshold):
    """From the events themselves, or from the snapshot: it does not believe what a publisher that is cut off has left in the stream."""
    proxy = Proxy(nats.port)
    try:
        m = start(Mock)
        p = start(Publish, m, "--worker-id", 1, *plane(proxy.url, "jetstream"))
        workers = [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"]
        more = [*plane(nats.url, "jetstream"), "--router-snapshot-threshold", threshold]
        old = start(Serve, workers, *more)
        wait_for("trust", lambda: old.view().get("trusted"))
        for k in range(4):
            assert old.complete([1000 * k + i for i in range(32)]).status == 200
        wait_for("the blocks", lambda: old.overlap(list(range(3000, 3032))) == {(1, 0): 2})
        if threshold == 1:
            wait_for("a snapshot", lambda: old.metric("durable_written_snapshots_total") >= 1, 20)
        proxy.cut()
        new = start(Serve, workers, *more)
        seen = []

        def silent():
            v = new.view()
            seen.append(v.get("trusted"))
            return v.get("reason") and "silent" in v["reason"]
        wait_for("silence is noticed", silent, 20)
        assert not any(seen) and new.metric("durable_loaded_snapshots_total") == (threshold == 1)
        proxy.heal()
        wait_for("trust", lambda: new.view()["trusted"] and new.overlap(list(range(3000, 3032))) == {(1, 0): 2}, 20)
    finally:
        proxy.stop()


def test_what_a_durable_stream_brought_during_a_pause(start, nats):
    """It is not brought again: the worker is asked."""
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, *plane(nats.url, "jetstream"))
    ix = start(Indexer, "--test-endpoints", *plane(nats.url, "jetstream"), ready=False)
    ix.post("/register", {"instance_id": 1, "endpoint": "plane", "model_name": "m", "block_size": 16, "recover_endpoint": p.url}, 201)
    r = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *plane(nats.url, "jetstream"))
    assert r.complete(TOKENS).status == 200
    wait_for("the blocks", lambda: ix.scores(TOKENS) == {(1, 0): 32})
    ix.post("/test/pause_listener", {"instance_id": 1})
    later = [9000 + i for i in range(64)]
    assert r.complete(later).status == 200
    wait_for("the router has them", lambda: r.overlap(later) == {(1, 0): 4})
    ix.post("/test/resume_listener", {"instance_id": 1})
    wait_for("trust", ix.trusted)
    assert ix.scores(later) == {(1, 0): 64}


@pytest.mark.parametrize("kind", ["nats", "jetstream"])
def test_what_the_host_has_is_told_over_the_plane(start, nats, kind):
    """A router on the plane, one that comes later (from a snapshot, or from the sidecar) and one that follows the engine itself: all know the
    same of the device and of the host."""
    m = start(Mock, "--num-gpu-blocks", 33, "--host-kv-blocks", 256)
    p = start(Publish, m, "--worker-id", 1, *plane(nats.url, kind))
    more = [*plane(nats.url, kind), *(["--router-snapshot-threshold", 1] if kind == "jetstream" else [])]
    near, workers = start(Serve, [m]), [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"]
    far = start(Serve, workers, *more)
    wait_for("trust", lambda: near.view().get("trusted") and far.view().get("trusted"))
    prompts = [[n * 1000 + k for k in range(130)] for n in range(9)]

    def tiers(s, t):
        (r,) = s.post("/overlap_scores", {"token_ids": t, "model_name": "mock"}).json()["workers"]
        return r["device_blocks"], r["host_pinned_blocks"]
    for t in prompts:
        assert near.complete(t, max_tokens=1).status == 200
        wait_for("the event", lambda: tiers(near, t) == (8, 8) and near.view()["tiers"])

    def told(s):
        return [tiers(s, t) for t in prompts]
    wait_for("the host's part", lambda: sum(host == 8 for _, host in told(near)) == 9 and any(device < 8 for device, _ in told(near)))
    wait_for("the plane", lambda: told(far) == told(near))
    if kind == "jetstream":
        wait_for("a snapshot", lambda: far.metric("durable_written_snapshots_total") >= 1, 20)
    late = start(Serve, workers, *more)
    wait_for("trust", lambda: late.view().get("trusted"), 20)
    wait_for("what was told before", lambda: told(late) == told(near))
    if kind == "jetstream":
        assert late.metric("durable_loaded_snapshots_total") == 1
    assert near.view()["tiers"]["host_pinned"]["view"] == far.view()["tiers"]["host_pinned"]["view"] == "whole"


@pytest.mark.parametrize("in_dump", [False, True])
def test_a_block_of_the_host_that_a_dump_and_the_plane_bring_is_there_once(start, nats, client, in_dump):
    """A worker's dump may have what came after its last_event_id; the plane brings it, too. One removal takes it."""
    def host(i, data):
        return {**router_event(7, i, data), "storage_tier": "host_pinned", "residency_domain": "worker"}

    def block(*lower):
        return {"stored": {"parent_hash": None, "start_position": None, "blocks": [{"block_hash": 11, "tokens_hash": HASHES[0]}], "lower": lower}}
    tree = {"epoch": 5, "block_size": 4, "last_event_id": 1, "end_event_id": 1 + in_dump, "events": [host(0, block(8, 1, 1, 1, 0, HASHES[0]))] * in_dump}
    new = {"requested_start": 9, "requested_end": None, "newest_available": 9, "epoch": 5}
    worker = ScriptedServer(lambda q: {"TreeDump": tree} if int(q.get("start", 0)) < 2 else {"TooNew": new}, "/kv_recover")
    s = select_on(start, nats.url)
    s.worker(7, model_name="m", recover_endpoint=worker.url)
    wait_for("trust", lambda: s.view(7).get("trusted"))

    def blocks():
        return s.view(7).get("tiers", {}).get("host_pinned", {}).get("blocks", 0)
    client.publish(EVENTS, envelope(5, 0, host(2, block(6, 1, 1, 0, 0, 0))))
    wait_for("stored", lambda: blocks() == 1)
    client.publish(EVENTS, envelope(5, 1, host(3, {"removed": {"block_hashes": [11]}})))
    wait_for("removed", lambda: blocks() == 0)


def test_starts_before_there_is_a_server(start):
    """Everything starts without NATS, says so, and works when it comes."""
    port = free_ports()
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, *plane(f"nats://127.0.0.1:{port}"))
    r = start(Serve, [f"http://127.0.0.1:{m.port},id=1,recover={p.url}"], *plane(f"nats://127.0.0.1:{port}"), ready=False)
    assert r.complete(TOKENS).status == 200
    nats = NatsServer(port=port)
    try:
        wait_for("trust", lambda: r.view().get("trusted"), 20)
        assert r.complete(TOKENS).status == 200 and "no server answers yet" in r.text()
    finally:
        nats.stop()


def test_four_frames_over_zmq(start, zctx):
    """The envelope without any server: the sidecar's own socket."""
    m = start(Mock)
    p = start(Publish, m, "--publish-format", "envelope")
    r = start(Serve, [f"http://127.0.0.1:{m.port},id=1{p.source()}"])
    assert r.complete(TOKENS * 4).status == 200
    wait_for("the event", lambda: r.overlap(TOKENS * 4) == {(1, 0): 8})
    assert r.view()["trusted"] and r.view()["gaps"] == 0


def test_users_and_tls(start, tmp_path):
    import subprocess
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    nats = NatsServer(extra=f'authorization {{ user: u, password: secret }}\ntls {{ cert_file: "{cert}", key_file: "{key}" }}')
    try:
        url = f"tls://u:secret@localhost:{nats.port}"
        s = start(Select, *plane(url), "--nats-tls-ca", cert)
        wait_for("connected", lambda: s.metric("event_plane_up") == 1)
        assert "secret" not in s.text()
        for args, why in ((plane(f"tls://u:wrong@localhost:{nats.port}") + ["--nats-tls-ca", cert], "Authentication"), (plane(url), "SSL")):
            p = start(Process, "select", "--port", free_ports(), *args, expect=1)
            assert p.p.wait(30) == 1 and "--nats-url" in p.text() and why in p.text(), p.text()
            assert "secret" not in p.text() and "wrong" not in p.text()
    finally:
        nats.stop()


@pytest.mark.parametrize("args, text", [
    (["--nats-url", "http:/x:y:z"], "--nats-url: bad value"),
    (["--nats-creds", "/nowhere"], "--nats-creds: bad value '/nowhere'"),
    (["--nats-tls-cert", "/nowhere"], "--nats-tls-cert"),
    (["--namespace", "a.b"], "--namespace: bad value 'a.b'"),
    (["--component", "a b"], "--component: bad value 'a b'"),
])
def test_bad_options_are_named(start, args, text):
    s = start(Process, "serve", "--event-plane", "nats", "--port", free_ports(), "--admin-port", free_ports(), *args, expect=1)
    assert s.p.wait(20) == 1 and text in s.text()


def test_registering_a_plane_that_is_not_followed(start):
    ix = start(Indexer)
    assert "follows no event plane" in ix.post("/register", {"instance_id": 1, "endpoint": "plane", "model_name": "m", "block_size": 4}, 400)["error"]
