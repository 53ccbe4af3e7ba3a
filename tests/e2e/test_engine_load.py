# SPDX-License-Identifier: Apache-2.0
"""What engines say of their load: read over HTTP or told on an event plane, shown, used for overload, and let go of when it is old."""
import socket
import threading

import msgpack
import pytest

from conftest import Mock, Process, Publish, ScriptedServer, Select, Serve, call, free_ports, read_sse, wait_for
from http_parts import serve_connections
from nats_parts import NatsClient, NatsServer, envelope

TOKENS = list(range(7000, 7100))
SUBJECT = "namespace.default.component.backend.kv_metrics"
FAST = ["--engine-metrics-interval", 0.05]


@pytest.fixture  # to be named before `start`, so that it ends after what was started
def nats():
    n = NatsServer()
    yield n
    n.stop()


@pytest.fixture
def scripted():
    made = []

    def make(text):
        """An engine's /metrics: .text may be changed."""
        s = ScriptedServer(lambda q: s.text.encode() if isinstance(s.text, str) else s.text, "/metrics")
        s.text = text
        made.append(s)
        return s
    yield make
    for s in made:
        s.close()


def load(s, worker=1, rank=0):
    return next((l["engine"] for l in s.get("/loads") if (l["worker_id"], l["dp_rank"]) == (worker, rank)), None)


def usage(v, blocks=None):
    info = f'vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="{blocks}"}} 1.0\n' if blocks else ""
    return f'vllm:num_requests_running{{engine="0",model_name="m"}} 3.0\nvllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {v}\n{info}'


def test_serve_reads_its_engines_metrics_rank_by_rank(start):
    m = start(Mock, "--num-gpu-blocks", 1000, dp=2, speedup=1)
    s = start(Serve, [m.spec(f",metrics=http://127.0.0.1:{m.port}/metrics")], *FAST)
    wait_for("loads", lambda: load(s, 1, 0) and load(s, 1, 1))
    assert load(s, 1, 1)["running"] == 0 and load(s, 1, 1)["kv_total_blocks"] == 1000 and load(s, 1, 1)["stale"] is False
    c, r = read_sse(s.port, {"prompt": TOKENS, "max_tokens": 5000, "stream": True}, {"x-kvroute-worker": "1", "x-kvroute-dp-rank": "1"})
    assert r.status == 200
    wait_for("running", lambda: load(s, 1, 1) and load(s, 1, 1)["running"] == 1 and load(s, 1, 1)["kv_used_blocks"] >= 6)
    assert load(s, 1, 0)["running"] == 0 and 0 < load(s, 1, 1)["kv_usage"] < 0.1 and load(s, 1, 1)["waiting"] == 0
    assert s.metric("engine_requests_running", worker_id="1", dp_rank="1") == 1 and s.metric("engine_load_stale") == 0
    assert s.metric("engine_metrics_reads_total") > 0 and s.metric("engine_metrics_failures_total") == 0
    assert s.get("/workers")[0]["metrics_endpoint"].endswith("/metrics")
    c.sock.close()
    c.close()


def test_without_metrics_the_engine_is_unknown(start):
    s = start(Serve, [start(Mock)])
    assert load(s) is None


def test_a_full_engine_is_not_chosen_whatever_the_book_says(start, scripted):
    """What others put into an engine is in no router's book."""
    a, b = scripted(usage(0.95, 100)), scripted(usage(0.1))
    mocks = [start(Mock), start(Mock)]
    # the first has told its own number of blocks; of the second we know it
    s = start(Serve, [mocks[0].spec(f",metrics={a.url}"), mocks[1].spec(f",metrics={b.url},total-kv-blocks=1000")], *FAST,
              "--active-decode-blocks-threshold", 0.8)
    wait_for("loads", lambda: load(s, 1) and load(s, 2))
    assert load(s, 1)["kv_used_blocks"] == 95 and load(s, 2)["kv_used_blocks"] == 100
    for i in range(6):
        r = s.complete([i * 100 + k for k in range(60)])
        assert r.status == 200 and r.headers["x-kvroute-worker"] == "2"
    b.text = usage(0.9)
    wait_for("both full", lambda: load(s, 2)["kv_usage"] == 0.9)
    assert s.complete(TOKENS).status == 503 and s.metric("overload_rejections_total") >= 1
    a.text = usage(0.2, 100)
    wait_for("room again", lambda: load(s, 1)["kv_usage"] == 0.2)
    assert s.complete(TOKENS).headers["x-kvroute-worker"] == "1"


def test_an_old_load_is_stale_and_not_used(start, scripted):
    a = scripted(usage(0.95))
    s = start(Serve, [start(Mock).spec(f",metrics={a.url},total-kv-blocks=100")], *FAST, "--active-decode-blocks-threshold", 0.8,
              "--engine-load-max-age", 1)
    wait_for("full", lambda: s.complete(TOKENS).status == 503)
    a.text = 500
    wait_for("stale", lambda: load(s)["stale"])
    assert load(s)["age_ms"] > 900 and load(s)["running"] == 3
    wait_for("expired", lambda: s.metric("engine_loads_expired_total") == 1)
    assert s.complete(TOKENS).status == 200
    assert s.metric("engine_load_stale") == 1 and s.metric("engine_load_age_seconds") > 0.9 and s.metric("engine_requests_running") == 0
    assert s.get("/workers")[0]["metrics_error"] == "the answer is not 200" and s.metric("engine_metrics_failures_total") > 0
    a.text = usage(0.95)
    wait_for("full again", lambda: s.complete(TOKENS).status == 503)
    assert not load(s)["stale"] and "metrics_error" not in s.get("/workers")[0]


def test_a_load_that_was_read_before_the_engine_told_of_itself_goes_on(start, scripted):
    """What the engine says of itself takes the worker to another partition, whose router has heard of no load yet."""
    a, port = scripted(usage(0.95)), free_ports()
    s = start(Serve, [f"http://127.0.0.1:{port},metrics={a.url},total-kv-blocks=100"], "--engine-metrics-interval", 3600, "--engine-load-max-age",
              7200, "--active-decode-blocks-threshold", 0.8, ready=False)
    wait_for("read", lambda: load(s))
    assert s.get("/workers")[0]["block_size"] == 16
    start(Mock, "--block-size", 32, port=port)
    wait_for("told", lambda: s.get("/workers")[0]["block_size"] == 32 and s.get("/workers")[0]["schedulable"])
    assert load(s)["kv_used_blocks"] == 95 and s.complete(TOKENS).status == 503 and s.metric("overload_rejections_total") == 1


@pytest.mark.parametrize("kind", ["zmq", "nats", "jetstream"])
def test_a_sidecar_tells_the_load_and_its_death_is_noticed(nats, start, kind):
    m = start(Mock, "--num-gpu-blocks", 1000, dp=2, speedup=1)
    plane = [] if kind == "zmq" else ["--event-plane", kind, "--nats-url", nats.url]
    p = start(Publish, m, "--worker-id", 1, "--engine-metrics", f"http://127.0.0.1:{m.port}/metrics", *FAST, *plane, dp=2)
    spec = f"http://127.0.0.1:{m.port}{p.source()},metrics=http://127.0.0.1:{p.port}/metrics" if kind == "zmq" else \
        f"http://127.0.0.1:{m.port},id=1,dp-size=2,recover={p.url}"
    s = start(Serve, [spec], *plane, *FAST, "--engine-load-max-age", 2)
    c, r = read_sse(s.port, {"prompt": TOKENS, "max_tokens": 5000, "stream": True}, {"x-kvroute-worker": "1", "x-kvroute-dp-rank": "1"})
    assert r.status == 200
    wait_for("running", lambda: load(s, 1, 1) and load(s, 1, 1)["running"] == 1 and load(s, 1, 1)["kv_used_blocks"] >= 6)
    assert load(s, 1, 0)["running"] == 0 and load(s, 1, 0)["kv_total_blocks"] == 1000
    own = call(p.port, "GET", "/load").json()
    assert own["worker_id"] == 1 and [k["dp_rank"] for k in own["ranks"]] == [0, 1] and own["ranks"][1]["running"] == 1
    assert own["ranks"][1]["stale"] is False and own["ranks"][1]["kv_total_blocks"] == 1000
    if kind != "zmq":
        assert s.metric("engine_load_reports_total") > 0 and s.metric("engine_load_malformed_total") == 0
    p.kill()
    wait_for("stale", lambda: load(s, 1, 1)["stale"] and s.metric("engine_load_stale") == 2)
    wait_for("expired", lambda: s.metric("engine_loads_expired_total") == 2)
    c.sock.close()
    c.close()


def test_a_sidecar_that_announces_its_engine_tells_its_load_too(nats, start):
    """The events come over ZMQ; what is told over NATS needs no URL."""
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 5, "--nats-url", nats.url, "--announce", f"http://127.0.0.1:{m.port}", "--advertise-host", "127.0.0.1",
              "--engine-metrics", f"http://127.0.0.1:{m.port}/metrics", *FAST)
    s = start(Serve, [], "--discovery", "nats", "--nats-url", nats.url, ready=False)
    wait_for("the load", lambda: load(s, 5) and load(s, 5)["running"] == 0)
    assert not load(s, 5)["stale"] and call(p.port, "GET", "/load").json()["worker_id"] == 5


def test_a_sidecar_tells_no_old_load(start, scripted):
    """Its engine's metrics fail: the sidecar lives, and what it knew ages all the same."""
    a = scripted(usage(0.5, 100))
    m = start(Mock)
    p = start(Publish, m, "--worker-id", 1, "--engine-metrics", a.url, *FAST, "--engine-metrics-max-age", 1)
    s = start(Serve, [f"http://127.0.0.1:{m.port}{p.source()},metrics=http://127.0.0.1:{p.port}/metrics"], *FAST, "--engine-load-max-age", 2)
    wait_for("load", lambda: load(s) and load(s)["running"] == 3)
    a.text = "<html>no metrics</html>"
    wait_for("stale there", lambda: call(p.port, "GET", "/load").json()["ranks"][0]["stale"])
    assert call(p.port, "GET", "/load").json()["error"] == "the answer has no figure that is known here"
    text = call(p.port, "GET", "/metrics").body.decode()
    assert "kvroute_publish_engine_load_age_seconds{" in text and "kvroute_publish_engine_requests_running{" not in text
    wait_for("stale here", lambda: load(s)["stale"])
    assert s.metric("engine_metrics_failures_total") > 0


def test_a_sidecar_that_was_not_told_where_says_so(start):
    p = start(Publish, start(Mock))
    r = call(p.port, "GET", "/load")
    assert r.status == 404 and "--engine-metrics" in r.json()["error"]


class Hostile:
    """Answers every connection by `behave(socket)`; counts those that are open."""

    def __init__(self, behave):
        self.behave, self.open, self.most, self.served, self.lock = behave, 0, 0, 0, threading.Lock()
        self.port = free_ports()
        self.listener = socket.create_server(("127.0.0.1", self.port))
        serve_connections(self.listener, self.serve)

    def serve(self, c):
        with self.lock:
            self.open += 1
            self.served += 1
            self.most = max(self.most, self.open)
        try:
            c.recv(65536)
            self.behave(c)
        except OSError:
            pass
        finally:
            c.close()
            with self.lock:
                self.open -= 1

    def close(self):
        self.listener.close()


def endless(piece):
    def behave(c):
        c.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            c.sendall(piece)
    return behave


HOSTILE = {
    "one endless line": endless(b"a" * 65536),
    "endless lines": endless(b'vllm:num_requests_running{engine="9999999"} 1\n' * 1000),
    "silence": lambda c: c.recv(1),
    "no HTTP": lambda c: c.sendall(b"\0" * 1000),
    "half": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\nvllm:num_requests_running 5\n"),
    "nonsense": lambda c: c.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nvllm:num_requests_running NaN\nvllm:kv_cache_usage_perc -5\n"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_metrics_cost_a_bounded_amount_and_nothing_else(start, kind):
    h = Hostile(HOSTILE[kind])
    try:
        s = start(Serve, [start(Mock).spec(f",metrics=http://127.0.0.1:{h.port}/metrics")], *FAST)
        before = s.rss_kb()
        wait_for("failures", lambda: s.metric("engine_metrics_failures_total") >= 3)
        assert load(s) is None and s.get("/workers")[0]["metrics_error"] and s.metric("engine_metrics_reads_total") == 0
        assert s.complete(TOKENS).status == 200
        assert s.rss_kb() - before < 60_000 and h.most <= 2  # one at a time; the last may not be closed yet
    finally:
        h.close()


def test_reports_of_others_and_nonsense_on_the_event_plane(nats, start):
    m = start(Mock)
    s = start(Serve, [m.spec(",id=1,total-kv-blocks=100")], "--event-plane", "nats", "--nats-url", nats.url, "--active-decode-blocks-threshold",
              0.8)
    wait_for("the event plane", lambda: s.metric("event_plane_up") == 1)
    c = NatsClient(nats.port)

    def tell(payload, n=[0]):
        n[0] += 1
        c.publish(SUBJECT, envelope(77, n[0], msgpack.packb(payload), topic="kv_metrics"))
        c.flush()
    # NVIDIA Dynamo's: a worker's, then a scheduler's, which says nothing of the engine
    tell({"worker_id": 1, "dp_rank": 0, "active_decode_blocks": None, "active_prefill_tokens": None, "kv_used_blocks": 90})
    wait_for("full", lambda: s.complete(TOKENS).status == 503)
    assert load(s)["kv_used_blocks"] == 90 and "running" not in load(s)
    tell({"worker_id": 1, "dp_rank": 0, "active_decode_blocks": 1, "active_prefill_tokens": 0, "kv_used_blocks": None})
    tell({"worker_id": 9, "kv_used_blocks": 3})
    tell({"worker_id": 1, "dp_rank": 64, "kv_used_blocks": 3})
    wait_for("unknown ones", lambda: s.metric("engine_load_unknown_workers_total") == 2)
    assert load(s)["kv_used_blocks"] == 90
    for bad in ([1], {"worker_id": -1}, {"kv_used_blocks": 5}, {"worker_id": 1, "kv_usage": 7.5}, {"worker_id": 1, "num_requests_running": 2 ** 64 - 1}):
        tell(bad)
    c.publish(SUBJECT, b"\xff" * 1000)
    c.flush()
    wait_for("refused", lambda: s.metric("engine_load_malformed_total") == 6)
    assert load(s)["kv_used_blocks"] == 90 and s.complete(TOKENS).status == 503
    tell({"worker_id": 1, "kv_used_blocks": 10})
    wait_for("room", lambda: s.complete(TOKENS).status == 200)
    c.close()


def test_select_reads_metrics_too(start, scripted):
    a = scripted('sglang:num_running_reqs{dp_rank="0"} 2.0\nsglang:num_queue_reqs{dp_rank="0"} 5.0\nsglang:token_usage{dp_rank="0"} 0.9\n')
    s = start(Select, *FAST, "--active-decode-blocks-threshold", 0.8, "--no-router-kv-events")
    s.worker(1, model_name="m", block_size=16, total_kv_blocks=100, metrics_endpoint=a.url)
    wait_for("load", lambda: load(s))
    assert (load(s)["running"], load(s)["waiting"], load(s)["kv_used_blocks"]) == (2, 5, 90)
    wait_for("full", lambda: s.post("/select", {"model_name": "m", "token_ids": TOKENS}).status == 503)
    for bad in ("ftp://x", 5, "http://" + "x" * 300):
        r = call(s.port, "PATCH", "/workers/1", {"metrics_endpoint": bad})
        assert r.status == 400 and "metrics_endpoint" in r.json()["error"]
    assert call(s.port, "PATCH", "/workers/1", {"metrics_endpoint": None}).status == 200
    assert load(s) is None and "metrics_endpoint" not in s.get("/workers")[0]
    wait_for("chosen", lambda: s.post("/select", {"model_name": "m", "token_ids": TOKENS}).status == 200)


def test_a_wrong_metrics_url_ends_the_start(start):
    p = start(Process, "serve", "--worker", "http://127.0.0.1:1,metrics=nothing", expect=1)
    p.p.wait(20)
    assert "'metrics'" in p.text() and "http://host" in p.text()
    p = start(Process, "publish", "--engine-metrics", "nothing", "--port", free_ports(), "--publish", f"tcp://127.0.0.1:{free_ports()}", expect=1)
    p.p.wait(20)
    assert "--engine-metrics" in p.text() and "http://host" in p.text()
