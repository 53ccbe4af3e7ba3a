# SPDX-License-Identifier: Apache-2.0
"""Routers that keep no index and ask one that does, over HTTP and NATS: same answers, one owner of a predicted index, and no
harm when it dies."""
import contextlib
import json
import os
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgpack
import pytest

from conftest import Mock, Process, ScriptedServer, Serve, call, free_ports, local_hashes, stays, wait_for
from http_parts import Handler, HttpServer
from nats_parts import NatsClient, NatsServer, Proxy

SCOPE = "namespace.default.component.backend"


@pytest.fixture(autouse=True)  # before `start`, so that it ends after what was started
def nats():
    n = NatsServer()
    yield n
    n.stop()


def prompt(k, n=160):
    return [k * 1000 + i for i in range(n)]


def fleet(start, n=2, **kw):
    mocks = [start(Mock, **kw) for _ in range(n)]
    return mocks, [m.spec(f",id={i + 1}") for i, m in enumerate(mocks)]


def bare(mocks):
    return [f"http://127.0.0.1:{m.port},id={i + 1}" for i, m in enumerate(mocks)]


def up(consumer):
    return wait_for("the remote index", lambda: consumer.metric("remote_indexer_up") == 1)


def over(server, transport, nats):
    """(options of the server, of the consumer)"""
    if transport == "http":
        return [], lambda s: ["--use-remote-indexer", f"http://127.0.0.1:{s.admin}"]
    return ["--event-plane", "nats", "--nats-url", nats.url], lambda s: ["--use-remote-indexer", "nats://", "--nats-url", nats.url]


class PostServer(HttpServer):
    """Answers POST with what script(path) gives; None: never."""

    def __init__(self, script):
        self.stop, self.asked = threading.Event(), []  # (path, type, body)
        outer = self

        class Answers(Handler):
            protocol_version = "HTTP/1.0"

            def do_POST(self):
                outer.asked.append((self.path, self.headers.get("Content-Type"), self.body()))
                answer = script(self.path)
                if answer is None:
                    outer.stop.wait(30)
                    return
                self.answer(200, answer)
        super().__init__(Answers)

    def close(self):
        self.stop.set()
        super().close()


@pytest.mark.parametrize("transport", ["http", "nats"])
def test_consumers_choose_as_the_server_would(start, nats, transport):
    mocks, workers = fleet(start)
    server_args, consumer_args = over(None, transport, nats)
    server = start(Serve, workers, "--serve-indexer", *server_args)
    consumers = [start(Serve, bare(mocks), *consumer_args(server)) for _ in range(2)]
    for c in consumers:
        up(c)
    chosen = {}
    for k in range(6):
        r = server.complete(prompt(k))
        chosen[k] = r.headers["x-kvroute-worker"]
        wait_for("the event", lambda: max(server.overlap(prompt(k)).values()) == 10)
    for c in consumers:
        for k in range(6):
            r = c.complete(prompt(k))
            assert r.status == 200 and r.headers["x-kvroute-worker"] == chosen[k]
            assert int(r.headers["x-kvroute-overlap-blocks"]) >= 9 and r.headers["x-kvroute-reason"] == "kv"
        assert c.metric("remote_indexer_queries_total") == 6 and c.metric("remote_indexer_query_failures_total") == 0
        assert c.metric("index_blocks") == 0
    assert server.metric("served_index_queries_total") == 12


def packed(question):
    """A question in msgpack: a list of hashes is one bin."""
    return msgpack.packb({k: struct.pack(f"<{len(v)}Q", *v) if k.endswith("_hashes") and all(isinstance(x, int) for x in v) else v
                          for k, v in question.items()})


def post_packed(server, path, data):
    return call(server.admin, "POST", path, data, {"Content-Type": "application/msgpack"})


def test_the_words_on_the_wire(start, nats):
    """The request plane's JSON, and our msgpack, over HTTP and NATS."""
    mocks, workers = fleet(start, 1)
    server = start(Serve, workers, "--serve-indexer", "--event-plane", "nats", "--nats-url", nats.url)
    server.complete(prompt(1))
    wait_for("the event", lambda: max(server.overlap(prompt(1)).values()) == 10)
    hashes = local_hashes(prompt(1), 16)
    body = {"model_name": "mock", "block_hashes": hashes[:4] + [1], "device_only": True}
    want = {"device": {"scores": [[{"worker_id": 1, "dp_rank": 0}, 4]], "frequencies": []}, "lower_tier": []}
    client = NatsClient(nats.port)
    wait_for("the service", lambda: server.get("/kv_indexer_info")["ready"])
    over_http = server.post("/kv_indexer_query", body)
    assert over_http.status == 200 and over_http.json()["TieredScores"] == want
    assert json.loads(client.request(f"{SCOPE}.kv_indexer_query.mock", json.dumps(body).encode()))["TieredScores"] == want
    for data, says in ((packed(body), want), (packed({**body, "no": [1], "worker": 3}), want)):
        assert post_packed(server, "/kv_indexer_query", data).json()["TieredScores"] == says
        assert json.loads(client.request(f"{SCOPE}.kv_indexer_query.mock", data))["TieredScores"] == says
    info = json.loads(client.request(f"{SCOPE}.kv_indexer_info", b"{}"))
    assert info["packed"] and info["mode"] == "events" and info["ready"] and info == server.get("/kv_indexer_info")
    for service, bad, text in (("query", {"model_name": "no", "block_hashes": []}, "not served"), ("query", {"model_name": "mock"}, "block_hashes"),
                               ("query", {"model_name": "mock", "block_hashes": ["x"]}, "block_hashes"),
                               ("record_routing_decision", {"model_name": "mock"}, "follows KV events")):
        r = server.post(f"/kv_indexer_{service}", bad)
        assert r.status >= 400 and text in r.json()["Error"]
        r = post_packed(server, f"/kv_indexer_{service}", packed(bad))
        assert r.status >= 400 and text in r.json()["Error"]
    head = {"model_name": "mock"}
    for bad in (b"\x00garbage", packed(body)[:-1], packed(body) + b"x", msgpack.packb({**head, "block_hashes": b"seven by"[:7]}),
                msgpack.packb({**head, "block_hashes": [1, 2]}), b"\x82\xaamodel_name", b"\xdf\xff\xff\xff\xff"):
        assert "Error" in json.loads(client.request(f"{SCOPE}.kv_indexer_query.mock", bad))
        assert post_packed(server, "/kv_indexer_query", bad).status == 400
    assert post_packed(server, "/workers", packed(body)).status == 415
    other = start(Serve, workers)
    assert other.post("/kv_indexer_query", body).status == 404 and post_packed(other, "/kv_indexer_query", packed(body)).status == 404
    client.close()


@pytest.mark.parametrize("transport", ["http", "nats"])
def test_predicted_mode_records_through_the_service(start, nats, transport):
    mocks, _ = fleet(start, with_events=False)
    plane = ["--event-plane", "nats", "--nats-url", nats.url] if transport == "nats" else []
    server = start(Serve, bare(mocks), "--no-router-kv-events", "--serve-indexer", *plane)
    args = over(None, transport, nats)[1](server)
    a, b = (start(Serve, bare(mocks), "--no-router-kv-events", *args) for _ in range(2))
    up(a), up(b)
    first = a.complete("a long common beginning of everything " * 20)
    wait_for("the record", lambda: server.metric("served_index_records_total") == 1)
    second = b.complete("a long common beginning of everything " * 20)
    assert second.headers["x-kvroute-worker"] == first.headers["x-kvroute-worker"] and second.headers["x-kvroute-reason"] == "kv"
    assert a.metric("remote_indexer_write_failures_total") == 0
    r = server.post("/kv_indexer_record_routing_decision", {"model_name": "mock", "worker": {"worker_id": 1, "dp_rank": 0},
                                                            "local_hashes": [1, 2], "sequence_hashes": [1]})
    assert r.status == 400 and r.json() == {"Error": "local and sequence hashes differ in length"}


@pytest.mark.parametrize("transport", ["http", "nats"])
def test_a_dead_index_costs_nothing_but_overlap(start, nats, transport):
    mocks, workers = fleet(start)
    server_args, consumer_args = over(None, transport, nats)
    server = start(Serve, workers, "--serve-indexer", *server_args)
    c = start(Serve, bare(mocks), *consumer_args(server))
    up(c)
    c.complete(prompt(1))
    wait_for("the event", lambda: max(server.overlap(prompt(1)).values()) == 10)
    assert c.complete(prompt(1)).headers["x-kvroute-reason"] == "kv"
    ports = (server.port, server.admin)
    server.kill()
    reasons = [c.complete(prompt(1)).headers["x-kvroute-reason"] for _ in range(30)]
    assert set(reasons) == {"index-unavailable"}
    wait_for("the short circuit", lambda: c.metric("remote_indexer_up") == 0)
    before = c.metric("remote_indexer_queries_total")
    assert c.complete(prompt(1)).status == 200 and c.metric("remote_indexer_queries_total") == before
    assert c.metric("remote_indexer_short_circuits_total") > 0
    start(Serve, workers, "--serve-indexer", *server_args, ports=ports)
    up(c)
    wait_for("overlap again", lambda: c.complete(prompt(1)).headers["x-kvroute-reason"] == "kv")


def test_a_silent_or_lying_index_is_not_waited_for(start):
    """One that hangs, one that answers rubbish, one of the other mode, one that is not ready."""
    mocks, _ = fleet(start, 1)
    info = {"instance": 5, "mode": "events", "ready": True, "why": ""}
    state = {"info": info, "query": {"TieredScores": {"device": {"scores": "no"}}}}
    fake = PostServer(lambda path: state["info"] if path.endswith("info") else state["query"])
    c = start(Serve, bare(mocks), "--use-remote-indexer", fake.url, "--remote-indexer-timeout", 0.05)
    up(c)
    assert c.complete(prompt(1)).headers["x-kvroute-reason"] == "index-unavailable"
    state["query"] = None  # never answers
    assert c.complete(prompt(1)).headers["x-kvroute-reason"] == "index-unavailable"
    assert c.metric("remote_indexer_query_failures_total") >= 2
    state["info"] = {**info, "mode": "predicted", "instance": 6}
    state["query"] = {"TieredScores": {"device": {"scores": []}}, "instance": 6}
    wait_for("the new mode is noticed", lambda: c.complete(prompt(1)).status == 200 and "predicts from routing decisions" in c.text())
    assert c.metric("remote_indexer_up") == 0
    state["info"] = {**info, "ready": False, "why": "restoring"}
    wait_for("not ready", lambda: "it is not ready: restoring" in c.text())
    state["info"], state["query"] = info, {"TieredScores": {"device": {"scores": [[{"worker_id": 1}, 10 ** 12]]}}, "instance": 5}
    up(c)
    told = wait_for("an answer within the time for it", lambda: (h := c.complete(prompt(1)).headers)["x-kvroute-reason"] == "kv" and h)
    assert int(told["x-kvroute-overlap-blocks"]) == 10  # no more than the prompt has
    fake.close()


@pytest.mark.parametrize("says_packed", [False, True])
def test_questions_are_packed_for_who_reads_them(start, says_packed):
    """JSON for a server that does not say that it reads anything else; the same hashes either way, in a decision's record too."""
    mocks, _ = fleet(start, 1)
    info = {"instance": 5, "mode": "predicted", "ready": True, "why": "", **({"packed": True} if says_packed else {})}
    fake = PostServer(lambda path: info if path.endswith("info") else "Recorded" if "record" in path else
                      {"TieredScores": {"device": {"scores": []}}, "instance": 5})
    c = start(Serve, bare(mocks), "--no-router-kv-events", "--use-remote-indexer", fake.url, "--remote-indexer-timeout", 5)
    up(c)
    assert c.complete(prompt(1)).status == 200
    record = wait_for("the record", lambda: next((a for a in fake.asked if "record" in a[0]), None))
    query = next(a for a in fake.asked if "query" in a[0])
    locals_ = local_hashes(prompt(1), 16)
    for path, kind, body in (query, record):
        assert kind == ("application/msgpack" if says_packed else "application/json")
        q = msgpack.unpackb(body) if says_packed else json.loads(body)
        hashes = {k: list(struct.unpack(f"<{len(v) // 8}Q", v)) if says_packed else v for k, v in q.items() if k.endswith("_hashes")}
        assert isinstance(q["model_name"], str) and hashes.get("block_hashes", hashes.get("local_hashes")) == locals_
    assert q["worker"] == {"worker_id": 1, "dp_rank": 0} and len(hashes["sequence_hashes"]) == len(locals_)
    fake.close()


def test_concurrent_queries_share_connections(start):
    """A hundred at once, on few connections, which stay."""
    mocks, workers = fleet(start, speedup=1000)
    server = start(Serve, workers, "--serve-indexer")
    c = start(Serve, bare(mocks), "--use-remote-indexer", f"http://127.0.0.1:{server.admin}", "--remote-indexer-timeout", 5)
    up(c)
    with ThreadPoolExecutor(16) as pool:
        assert all(r.status == 200 for r in pool.map(lambda k: c.complete(prompt(k)), range(200)))
    assert c.metric("remote_indexer_queries_total") == 200 and c.metric("remote_indexer_query_failures_total") == 0
    pid, inodes = c.p.pid, set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:  # a client's connection, closed since
            pass
    target = f":{server.admin:04X}"
    n = sum(1 for l in open(f"/proc/{pid}/net/tcp") if l.split()[2].endswith(target) and l.split()[3] == "01" and f"socket:[{l.split()[9]}]" in inodes)
    assert 1 <= n <= 20


@pytest.mark.parametrize("args, text", [
    (["--serve-indexer", "--use-remote-indexer", "http://127.0.0.1:1"], "serve-indexer and use-remote-indexer exclude each other"),
    (["--serve-indexer", "--router-kv-overlap-score-credit", "0"], "serve-indexer needs router-kv-overlap-score-credit above 0"),
    (["--use-remote-indexer", "http://127.0.0.1:1", "--router-predicted-ttl-secs", "3"], "exclude each other"),
    (["--use-remote-indexer", "ftp://x"], "--use-remote-indexer: bad value 'ftp://x'"),
    (["--use-remote-indexer", "nats://a"], "--use-remote-indexer: bad value 'nats://a'"),
])
def test_rules_are_refused_at_the_start(start, args, text):
    p = start(Process, "serve", "--port", free_ports(), "--admin-port", free_ports(), *args, expect=None)
    assert p.p.wait(20) in (1, 2) and text in p.text()


def test_a_predicted_index_has_one_owner(start, nats):
    """A second owner says who the first is; when that dies, consumers go on without overlap until there is a new one."""
    mocks, _ = fleet(start, with_events=False)
    args = ["--no-router-kv-events", "--event-plane", "nats", "--nats-url", nats.url]
    text = "the words that all of them have in common " * 20
    owner = start(Serve, bare(mocks), "--serve-indexer", *args)
    c = start(Serve, bare(mocks), *args, "--use-remote-indexer", "nats://")
    up(c)
    c.complete(text)
    wait_for("overlap", lambda: c.complete(text).headers["x-kvroute-reason"] == "kv")
    second = start(Process, "serve", "--port", free_ports(), "--admin-port", free_ports(), "--serve-indexer", *args, expect=1)
    assert second.p.wait(30) == 1
    assert "owned or served already" in second.text() and f"process {owner.p.pid} on " in second.text() and f"admin port {owner.admin}" in second.text()
    events = start(Process, "serve", "--port", free_ports(), "--admin-port", free_ports(), "--serve-indexer", *args[1:], expect=1)
    assert events.p.wait(30) == 1 and "owned by one that predicts" in events.text()
    owner.kill()
    wait_for("degraded", lambda: c.complete(text).headers["x-kvroute-reason"] == "index-unavailable")
    stays("requests go on", lambda: c.complete(text).status == 200, 0.5)
    start(Serve, bare(mocks), "--serve-indexer", *args)
    up(c)
    wait_for("overlap again", lambda: c.complete(text).headers["x-kvroute-reason"] == "kv")


def test_an_owner_that_is_cut_off_stops_answering(start, nats):
    """Its lease ends: it says so on its own port; healed, it goes on."""
    proxy = Proxy(nats.port)
    try:
        mocks, _ = fleet(start, 1, with_events=False)
        owner = start(Serve, bare(mocks), "--serve-indexer", "--no-router-kv-events", "--event-plane", "nats", "--nats-url", proxy.url)
        wait_for("ready", lambda: owner.get("/kv_indexer_info")["ready"])
        proxy.cut()
        wait_for("the lease ends", lambda: not owner.get("/kv_indexer_info")["ready"], 20)
        r = owner.post("/kv_indexer_query", {"model_name": "mock", "block_hashes": [1]})
        assert r.status == 503 and "lost its claim" in r.json()["Error"]
        proxy.heal()
        wait_for("it has it again", lambda: owner.get("/kv_indexer_info")["ready"], 20)
    finally:
        proxy.stop()


def test_servers_that_follow_events_may_be_many(start, nats):
    """Two serve; one dies; consumers hardly notice. A predicted one is refused beside them."""
    mocks, workers = fleet(start)
    args = ["--event-plane", "nats", "--nats-url", nats.url]
    servers = [start(Serve, workers, "--serve-indexer", *args) for _ in range(2)]
    c = start(Serve, bare(mocks), "--nats-url", nats.url, "--use-remote-indexer", "nats://")
    up(c)
    c.complete(prompt(1))
    for s in servers:
        wait_for("the event", lambda: max(s.overlap(prompt(1)).values()) == 10)
    for s in servers:
        wait_for("ready", lambda: s.get("/kv_indexer_info")["ready"])
    asked = lambda: c.complete(prompt(1)).headers["x-kvroute-reason"] == "kv"
    wait_for("both are asked", lambda: asked() and all(s.metric("served_index_queries_total") > 0 for s in servers))
    for _ in range(20):
        assert asked()
    p = start(Process, "serve", "--port", free_ports(), "--admin-port", free_ports(), "--serve-indexer", "--no-router-kv-events", *args, expect=1)
    assert p.p.wait(30) == 1 and "owned or served already" in p.text()
    servers[0].kill()
    wait_for("the other one answers", lambda: c.complete(prompt(1)).headers["x-kvroute-reason"] == "kv" and c.metric("remote_indexer_up") == 1)


def test_a_server_that_was_not_ready_yet_stood_for_all_of_them(start, nats):
    """It has nothing to do, and answers first."""
    mocks, _ = fleet(start)
    servers, over = NatsClient(nats.port), threading.Event()
    servers.subscribe(f"{SCOPE}.kv_indexer_info")

    def answer():
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                servers.next(0.2)
                for i, ready in enumerate((False, True)):
                    servers.publish(servers.reply, json.dumps({"instance": i, "mode": "events", "ready": ready, "why": "restoring"}).encode())
    t = threading.Thread(target=answer)
    t.start()
    try:
        up(start(Serve, bare(mocks), "--nats-url", nats.url, "--use-remote-indexer", "nats://", ready=False))
    finally:
        over.set()
        t.join()
        servers.close()
