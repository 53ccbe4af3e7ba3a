# SPDX-License-Identifier: Apache-2.0
"""What requests were of: model, worker, status class in `kvroute_requests_total`; the cached tokens by model and worker."""
import re
import socket

from conftest import Mock, Serve, call, free_ports, read_sse, wait_for
from http_parts import Handler, HttpServer, serve_connections

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
        serve_connections(self.listener, self.serve)

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


def test_times_and_counts_are_told_by_model(start):
    s = start(Serve, [start(Mock, "--model", "m")])
    wait_for("models", lambda: call(s.port, "GET", "/v1/models").json()["data"][0]["id"] == "m")
    for more in ({"model": "m"}, {}):  # one that names no model has its worker's
        assert s.complete(TOKENS, max_tokens=5, stream=True, stream_options={"include_usage": True}, **more).status == 200
    assert s.complete(TOKENS, max_tokens=5, model="m").status == 200
    assert s.complete(TOKENS, model="made up").status == 404

    def of(name, **more):
        return series(s, name).get(tuple(sorted({"model": "m", **more}.items())), 0)
    wait_for("the end", lambda: of("request_ends_total", reason="length") == 3 and of("requests_running") == 0)
    counts = {n: of(f"{n}_count") for n in ("request_first_token_seconds", "time_to_first_token_seconds", "request_duration_seconds",
                                            "queue_wait_seconds", "time_per_output_token_seconds")}
    assert counts == {"request_first_token_seconds": 2, "time_to_first_token_seconds": 2, "request_duration_seconds": 3, "queue_wait_seconds": 3,
                      "time_per_output_token_seconds": 2}
    assert of("request_duration_seconds_sum") >= of("request_first_token_seconds_sum") >= of("time_to_first_token_seconds_sum") > 0
    assert (of("input_tokens_total", worker_id="1"), of("output_tokens_total", worker_id="1")) == (300, 15)
    assert of("prompt_tokens_total", worker_id="1") == 300 and of("computed_blocks_total", worker_id="1") <= 6 * 3
    assert series(s, "request_ends_total")[(("model", "other"), ("reason", "refused"))] == 1
    assert of("requests_waiting") == 0 and "made up" not in call(s.admin, "GET", "/metrics").body.decode()


def test_requests_that_run_and_those_that_wait_are_told_apart(start):
    s = start(Serve, [start(Mock, "--model", "m", "--fault-hang", "--max-num-batched-tokens", "128").spec(",max-num-batched-tokens=128")],
              "--router-queue-threshold", "0.1")
    wait_for("models", lambda: call(s.port, "GET", "/v1/models").json()["data"][0]["id"] == "m")
    body = b'{"model":"m","prompt":[%s]}' % b",".join(b"%d" % t for t in TOKENS)
    socks = []
    for n in range(2):  # the first never answers, so the second stays in the queue
        socks.append(socket.create_connection(("127.0.0.1", s.port)))
        socks[n].sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for("its place", lambda: (s.metric("requests_running", model="m"), s.metric("requests_waiting", model="m")) == (1, n))
    for c in reversed(socks):
        c.close()
    wait_for("nobody", lambda: s.metric("requests_running") == s.metric("requests_waiting") == 0)
    assert s.metric("request_ends_total", model="m", reason="client_gone") == 2


def test_names_of_engines_are_added_when_asked_for(start):
    m = start(Mock, "--model", "m")
    for kind, names in (("vllm", ["time_to_first_token_seconds_count", "e2e_request_latency_seconds_count", "prompt_tokens_total", "num_requests_running",
                                  "request_success_total"]), ("sglang", ["time_to_first_token_seconds_count", "num_running_reqs", "cached_tokens_total"])):
        s = start(Serve, [m], "--metrics-compat", kind)
        wait_for("models", lambda: call(s.port, "GET", "/v1/models").json()["data"][0]["id"] == "m")
        assert s.complete(TOKENS, model="m", max_tokens=3, stream=True, stream_options={"include_usage": True}).status == 200

        def value(name):
            text = call(s.admin, "GET", "/metrics").body.decode()
            return sum(float(v) for v in re.findall(rf'^{kind}:{name}\{{model_name="m".*\}} (\S+)$', text, re.M))
        wait_for("its end", lambda: s.metric("request_ends_total", model="m", reason="length") == 1)
        assert all(f"# TYPE {kind}:{re.sub('_count$', '', n)} " in call(s.admin, "GET", "/metrics").body.decode() for n in names)
        assert value("time_to_first_token_seconds_count") == 1 and value("prompt_tokens_total") == 100 and value("generation_tokens_total") == 3
    plain = start(Serve, [m])
    text = call(plain.admin, "GET", "/metrics").body.decode()
    assert "vllm:" not in text and "sglang:" not in text


class Namer(HttpServer):
    """A worker that lists 70 models and answers each of them."""

    def __init__(self):
        class Answers(Handler):
            def do_GET(self):
                self.answer(200, {"object": "list", "data": [{"id": f"model-{i}"} for i in range(70)]} if self.path == "/v1/models" else {})

            def do_POST(self):
                self.body()
                self.answer(200, {"choices": [{"text": "", "finish_reason": "stop"}]})
        super().__init__(Answers)


def test_of_seventy_models_sixty_four_have_series_and_the_rest_is_counted_as_other(start):
    n = Namer()
    try:
        s = start(Serve, [n.url], "--no-router-kv-events")
        wait_for("models", lambda: len(call(s.port, "GET", "/v1/models").json()["data"]) == 70)
        for i in range(70):
            assert s.complete([1, 2, 3], model=f"model-{i}").status == 200
        wait_for("the ends", lambda: s.metric("request_ends_total", reason="stop") == 70)
        assert len({dict(k)["model"] for k in series(s, "requests_running")}) == 65
        # of six, the one that the worker is called by may have had its place before
        assert s.metric("request_ends_total", model="other") == s.metric("model_names_left_out_total") == 6
    finally:
        n.close()


def test_requests_whose_workers_fail_are_not_those_that_were_refused(start):
    from alert_parts import Odd
    o = Odd()
    try:
        s = start(Serve, [f"{o.url},model=odd"], "--no-router-kv-events", "--tokenizer", "bytes", "--max-retries", "0")
        assert s.complete([1, 2, 3], model="odd").status == 502
        assert s.complete([1, 2, 3], model="odd", headers={"x-kvroute-worker": "9"}).status in (400, 404)
        ends = {dict(k)["reason"]: v for k, v in series(s, "request_ends_total").items() if v}
        assert ends == {"failed": 1, "refused": 1}
    finally:
        o.close()
