# SPDX-License-Identifier: Apache-2.0
"""What requests were of: model, worker, status class in `kvroute_requests_total`; the cached tokens by model and worker."""
import re
import socket
import threading

from conftest import Mock, Serve, call, free_ports, read_sse, wait_for

TOKENS = list(range(5000, 5100))


def series(s, name):
    """{labels as a sorted tuple: value} of one metric."""
    out = {}
    for line in call(s.admin, "GET", "/metrics").body.decode().splitlines():
        m = re.fullmatch(rf"kvroute_{name}(?:{{(.*)}})? (\S+)", line)
        if m:
            out[tuple(sorted(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m.group(1) or "")))] = float(m.group(2))
    return out


def labels(model, worker, status):
    return (("model", model), ("status", status), ("worker_id", str(worker)))


def test_requests_say_model_worker_and_status_class(start):
    a, b = start(Mock, "--model", "m"), start(Mock, "--model", "m")
    s = start(Serve, [a, b])
    wait_for("models", lambda: call(s.port, "GET", "/v1/models").json()["data"][0]["id"] == "m")
    for worker, n in ((1, 3), (2, 2)):
        for _ in range(n):
            assert s.complete(TOKENS, model="m", headers={"x-kvroute-worker": str(worker)}).status == 200
    assert s.complete(TOKENS, headers={"x-kvroute-worker": "1"}).status == 200  # names no model: it is the worker's
    assert s.complete(TOKENS, model="m", headers={"x-kvroute-worker": "1", "x-kvroute-dp-rank": "77"}).status == 400
    assert s.complete("", model="m", headers={"x-kvroute-worker": "2"}).status == 400  # the engine says so
    assert call(s.port, "POST", "/v1/completions", "{").status == 400
    got = series(s, "requests_total")
    assert got[labels("m", 1, "2xx")] == 4 and got[labels("m", 2, "2xx")] == 2
    assert got[labels("m", 2, "4xx")] == 1
    assert got[labels("other", "none", "4xx")] == 1  # the broken body
    assert sum(got.values()) == 9 == s.get("/status")["requests"]


def test_a_client_names_no_series_of_its_own(start):
    s = start(Serve, [start(Mock, "--model", "m")])
    wait_for("models", lambda: call(s.port, "GET", "/v1/models").json()["data"][0]["id"] == "m")
    for i in range(50):
        assert s.complete(TOKENS, model=f'made up {i}"\n').status == 404
    assert s.complete(TOKENS, model="m").status == 200
    got = series(s, "requests_total")
    assert got == {labels("other", "none", "4xx"): 50, labels("m", 1, "2xx"): 1}


def test_cached_tokens_are_told_by_model_and_worker(start):
    s = start(Serve, [start(Mock, "--model", "m"), start(Mock, "--model", "m")])
    for worker in (1, 2, 2):
        assert s.complete(TOKENS, model="m", headers={"x-kvroute-worker": str(worker)}).status == 200
        wait_for("the blocks", lambda: s.overlap(TOKENS).get((worker, 0)) == 6)
    for name in ("predicted_cached_tokens_total", "actual_cached_tokens_total"):
        got = series(s, name)
        assert got[(("model", "m"), ("worker_id", "2"))] == 96 and got[(("model", "m"), ("worker_id", "1"))] == 0, name
        assert sum(got.values()) == s.get("/status")[name.removesuffix("_total")]


def test_a_removed_workers_series_go(start):
    s = start(Serve, [start(Mock, "--model", "m"), start(Mock, "--model", "m")])
    for worker in (1, 2):
        assert s.complete(TOKENS, model="m", headers={"x-kvroute-worker": str(worker)}).status == 200
    # one that is replaced keeps its own
    assert call(s.admin, "PATCH", "/workers/2", {"total_kv_blocks": 5}).status == 200
    assert series(s, "requests_total")[labels("m", 2, "2xx")] == 1
    assert call(s.admin, "DELETE", "/workers/2").status == 200
    for name in ("requests_total", "predicted_cached_tokens_total", "actual_cached_tokens_total"):
        assert {dict(k)["worker_id"] for k in series(s, name)} == {"1"}, name
    assert s.get("/status")["requests"] == 2


def test_a_client_that_left_is_counted_as_that(start):
    s = start(Serve, [start(Mock, "--model", "m", "--fault-hang")])
    c, _ = None, None
    c = socket.create_connection(("127.0.0.1", s.port))
    body = b'{"model":"m","prompt":[1,2,3]}'
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for("on its way", lambda: s.metric("requests_active") == 1)
    c.close()
    wait_for("counted", lambda: series(s, "requests_total") == {labels("m", 1, "client_gone"): 1})


def test_a_stream_counts_when_its_head_is_sent(start):
    s = start(Serve, [start(Mock, "--model", "m", speedup=1)])
    c, r = read_sse(s.port, {"model": "m", "prompt": TOKENS, "max_tokens": 400, "stream": True})
    assert r.status == 200 and series(s, "requests_total") == {labels("m", 1, "2xx"): 1}
    c.sock.close()
    c.close()
    wait_for("gone", lambda: s.metric("client_gone_total") == 1)
    assert series(s, "requests_total") == {labels("m", 1, "2xx"): 1}  # once


class ClosesKept:
    """An engine that closes a kept connection when the next request comes on it, without an answer."""

    def __init__(self):
        self.port, self.n = free_ports(), 0
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        with c:
            for n in range(2):
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = c.recv(65536)
                    if not piece:
                        return
                    data += piece
                post = data.startswith(b"POST")
                if post and n:
                    return
                body = b"{}"
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                if not post:
                    return

    def close(self):
        self.listener.close()


def test_requests_sent_again_on_a_fresh_connection_are_visible(start):
    engine = ClosesKept()
    try:
        s = start(Serve, [f"http://127.0.0.1:{engine.port}"], "--no-router-kv-events", "--tokenizer", "bytes")
        assert s.metric("reopened_connections_total") == 0
        for _ in range(3):
            assert s.complete("hello").status == 200
        assert s.metric("reopened_connections_total") >= 1 and s.metric("retries_total") == 0
        assert s.metric("requests_total", status="2xx") == 3
    finally:
        engine.close()
