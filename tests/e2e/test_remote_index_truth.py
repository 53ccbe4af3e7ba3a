# SPDX-License-Identifier: Apache-2.0
"""A router whose index is elsewhere says so: another block size is refused, the admin port answers from that index or not at all, doctor
looks for no events, and /ready waits for the first validation. So does /ready of a durable stream for its end."""
import json
import subprocess

import pytest

import pytest

from conftest import BINARY, Indexer, Mock, Serve, call, free_ports, stays, wait_for
from nats_parts import NatsServer

TOKENS = list(range(5000, 5160))


@pytest.fixture
def late_nats():  # before `start`, so that it ends after what was started
    made = []

    def make(port):
        made.append(NatsServer(port=port))
        return made[0]
    yield make
    for n in made:
        n.stop()


def bare(m, extra=""):
    return f"http://127.0.0.1:{m.port},id=1{extra}"


def test_an_index_of_another_block_size_is_refused_with_both_sizes(start):
    m = start(Mock)
    server = start(Serve, [m], "--serve-indexer")
    c = start(Serve, [bare(m)], "--block-size", "32", "--use-remote-indexer", f"http://127.0.0.1:{server.admin}", ready=False)
    wait_for("refused", lambda: "is 16, that of this router's workers is 32" in c.text())
    assert c.metric("remote_indexer_up") == 0 and c.metric("remote_indexer_rejected_validations_total") > 0
    assert c.complete(TOKENS).headers["x-kvroute-reason"] == "index-unavailable"
    good = start(Serve, [bare(m)], "--use-remote-indexer", f"http://127.0.0.1:{server.admin}")
    assert good.metric("remote_indexer_up") == 1


def test_an_indexer_of_another_block_size_is_refused_with_both_sizes(start, engine):
    m, ix, e = start(Mock), start(Indexer), engine()
    ix.register(1, e, model="mock", block_size=64)
    c = start(Serve, [bare(m, ",model=mock")], "--use-remote-indexer", f"http://127.0.0.1:{ix.port}", ready=False)
    wait_for("refused", lambda: "its block size is 64, that of this router's workers is 16" in c.text())


def test_the_admin_port_of_a_consumer_answers_from_the_index_it_asks(start):
    mocks = [start(Mock) for _ in range(2)]
    server = start(Serve, [m.spec(f",id={i + 1}") for i, m in enumerate(mocks)], "--serve-indexer")
    c = start(Serve, [f"http://127.0.0.1:{m.port},id={i + 1}" for i, m in enumerate(mocks)], "--use-remote-indexer", f"http://127.0.0.1:{server.admin}")
    assert server.complete(TOKENS, headers={"x-kvroute-worker": "2"}).status == 200
    wait_for("held", lambda: server.overlap(TOKENS)[(2, 0)] == 10)
    assert c.overlap(TOKENS) == server.overlap(TOKENS)
    for path in ("/query", "/query_by_hash"):
        body = {"token_ids": TOKENS} if path == "/query" else {"block_hashes": [1, 2]}
        assert c.post(path, body).json() == server.post(path, body).json()
    large = TOKENS + list(range(100000))  # its body is read on a thread
    assert c.overlap(large) == server.overlap(large)
    r = c.post("/select", {"token_ids": TOKENS}).json()
    assert r["worker_id"] == 2 and r["overlap"]["gpu"] == 160
    r = c.post("/select_and_reserve", {"token_ids": TOKENS, "selection_id": "x"}).json()
    assert r["worker_id"] == 2 and r["overlap"]["gpu"] == 160
    assert call(c.admin, "DELETE", "/reservations/x").status == 200
    mine, theirs = ({w["worker_id"]: w["potential_prefill_tokens"] for w in s.post("/potential_loads", {"token_ids": TOKENS}).json()} for s in (c, server))
    assert mine == theirs and mine[2] < mine[1]
    assert c.overlap([1, 2]) == {(1, 0): 0, (2, 0): 0}  # no whole block
    assert c.post("/overlap_scores", {"token_ids": "x"}).status == 400
    status = c.get("/status")
    assert status["remote_index"].endswith(str(server.admin)) and status["remote_index_error"] == ""
    server.kill()
    wait_for("gone", lambda: c.get("/status")["remote_index_error"])
    for path in ("/overlap_scores", "/query", "/select", "/select_and_reserve", "/potential_loads"):
        r = c.post(path, {"token_ids": TOKENS})
        assert r.status == 503 and "--use-remote-indexer" in r.json()["error"], (path, r.body)
    assert c.complete(TOKENS).status == 200  # requests go on, by load
    assert c.idle()


def doctor(*args):
    r = subprocess.run([BINARY, "doctor", "--json", *map(str, args)], capture_output=True, text=True, timeout=240, check=False)
    return json.loads(r.stdout)["findings"]


def test_doctor_looks_for_no_events_at_a_consumer(start):
    m = start(Mock)
    server = start(Serve, [m], "--serve-indexer")
    c = start(Serve, [bare(m)], "--use-remote-indexer", f"http://127.0.0.1:{server.admin}")
    found = doctor(f"http://127.0.0.1:{c.admin}")
    assert not [f for f in found if f["check"] == "events endpoint"], found
    assert [f["verdict"] for f in found if f["check"] == "remote index"] == ["ok"]
    server.kill()
    wait_for("gone", lambda: c.get("/status")["remote_index_error"])
    found = doctor(f"http://127.0.0.1:{c.admin}")
    assert [f["verdict"] for f in found if f["check"] == "remote index"] == ["problem"]


def test_ready_waits_for_the_first_validation_of_the_remote_index(start):
    m, port = start(Mock), free_ports()
    c = start(Serve, [bare(m)], "--use-remote-indexer", f"http://127.0.0.1:{port}", "--restore-timeout", "600", ready=False)
    ready = lambda: call(c.port, "GET", "/ready")
    wait_for("a worker", lambda: b"remote index" in ready().body)
    stays("not ready", lambda: ready().status == 503, 0.5)
    server = start(Serve, [m], "--serve-indexer", ports=(free_ports(), port))
    wait_for("ready", lambda: ready().status == 200)
    server.kill()
    wait_for("gone", lambda: c.metric("remote_indexer_up") == 0)
    assert ready().status == 200  # requests go on, by load
    late = start(Serve, [bare(m)], "--use-remote-indexer", f"http://127.0.0.1:{port}", "--restore-timeout", "0.5")  # is ready in the end
    assert late.metric("remote_indexer_up") == 0


def test_ready_waits_until_a_durable_stream_has_been_caught_up_with(late_nats, start):
    m, port = start(Mock), free_ports()
    plane = ["--event-plane", "jetstream", "--nats-url", f"nats://127.0.0.1:{port}", "--restore-timeout", "600"]
    s = start(Serve, [bare(m)], *plane, ready=False)
    ix = start(Indexer, *plane, ready=False)
    ix.post("/register", {"instance_id": 1, "endpoint": "plane", "model_name": "m", "block_size": 16}, 201)
    ready = lambda p: call(p.port, "GET", "/ready")
    wait_for("a worker", lambda: b"views" in ready(s).body)
    stays("not ready", lambda: ready(s).status == 503 and ready(ix).status == 503, 1)
    assert b"stream" in ready(ix).body
    n = late_nats(port)
    p = start_publisher(start, m, n)
    for router in (s, ix):
        wait_for("ready", lambda: ready(router).status == 200, 30)
    assert p.p.poll() is None and s.view()["trusted"]


def start_publisher(start, m, n):
    from conftest import Process
    args = ["--host", "127.0.0.1", "--port", free_ports(), "--events", f"tcp://127.0.0.1:{m.events}", "--replay", f"tcp://127.0.0.1:{m.replay}"]
    return start(Process, "publish", *args, "--worker-id", 1, "--event-plane", "jetstream", "--nats-url", n.url)
