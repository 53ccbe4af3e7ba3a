# SPDX-License-Identifier: Apache-2.0
"""The data port: routing, headers, errors, HTTP corner cases."""
import http.client
import json
import socket
import threading

import pytest

from conftest import Mock, Serve, call, read_sse, wait_for

TEXT = "The quick brown fox jumps over the lazy dog, again and again. " * 4
CHAT = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 2}


class Upstream(threading.Thread):
    """A worker that records what it gets and answers what it is told."""

    def __init__(self, answer=b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}'):
        super().__init__(daemon=True)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port, self.answer, self.requests, self.open = self.sock.getsockname()[1], answer, [], True
        self.start()

    def run(self):
        while self.open:
            try:
                c, _ = self.sock.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        buf = b""
        try:
            while True:
                while b"\r\n\r\n" not in buf:
                    d = c.recv(65536)
                    if not d:
                        return
                    buf += d
                head, buf = buf.split(b"\r\n\r\n", 1)
                n = next((int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length")), 0)
                while len(buf) < n:
                    buf += c.recv(65536)
                body, buf = buf[:n], buf[n:]
                if head.startswith(b"GET /health"):
                    c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                elif head.startswith((b"GET /v1/models", b"GET /metrics", b"GET /kv_event_sources", b"GET /server_info", b"GET /get_server_info")):
                    c.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                else:
                    self.requests.append((head, body))
                    a = self.answer(len(self.requests)) if callable(self.answer) else self.answer
                    if a is None:
                        c.close()
                        return
                    if isinstance(a, list):
                        for piece in a:
                            if callable(piece):
                                piece()
                            else:
                                c.sendall(piece)
                        c.close()
                        return
                    c.sendall(a)
        except OSError:
            pass

    def spec(self):
        return f"http://127.0.0.1:{self.port}"

    def close(self):
        self.open = False
        self.sock.close()


@pytest.fixture
def upstream():
    made = []

    def make(*a):
        u = Upstream(*a)
        made.append(u)
        return u
    yield make
    for u in made:
        u.close()


def test_chat_and_prefix_reuse(fleet):
    s, mocks = fleet
    first = call(s.port, "POST", "/v1/chat/completions", CHAT)
    assert first.status == 200 and first.headers["x-kvroute-reason"] == "load" and first.headers["x-kvroute-overlap-blocks"] == "0"
    worker = first.headers["x-kvroute-worker"]
    wait_for("events", lambda: s.metric("index_blocks") == sum(m.metric("kvroute_mock_cached_blocks") for m in mocks) > 0)
    for _ in range(3):
        r = call(s.port, "POST", "/v1/chat/completions", CHAT)
        assert r.headers["x-kvroute-worker"] == worker and r.headers["x-kvroute-reason"] == "kv"
        assert int(r.headers["x-kvroute-overlap-blocks"]) * 16 == r.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_stream_is_passed_through_unchanged(start):
    m = start(Mock)
    s = start(Serve, [m])
    body = {"prompt": "same text", "max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}

    def normal(raw):
        return [{k: v for k, v in json.loads(l[6:]).items() if k not in ("id", "created")} if b"[DONE]" not in l else l
                for l in raw.split(b"\n\n") if l]
    direct, routed = call(m.port, "POST", "/v1/completions", body), call(s.port, "POST", "/v1/completions", body)
    assert routed.headers["content-type"] == direct.headers["content-type"]
    assert normal(direct.body) == normal(routed.body) and routed.body.endswith(b"data: [DONE]\n\n")


def test_chunks_come_as_they_are_made(start):
    m = start(Mock, speedup=1)
    s = start(Serve, [m])
    c, r = read_sse(s.port, {"prompt": "x" * 20, "max_tokens": 10, "stream": True})
    first = r.read1(1 << 16)
    assert first.count(b"data: ") < 10 and not r.isclosed()
    while r.read1(1 << 16):
        pass
    c.close()


def test_models_is_the_union(start):
    a, b = start(Mock, "--model", "alpha"), start(Mock, "--model", "beta", "--lora", "beta-lora")
    s = start(Serve, [a, b.spec(",model=beta")])
    wait_for("models", lambda: {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]} == {"alpha", "beta", "beta-lora"})


def test_requests_go_to_workers_of_the_model(start):
    a, b = start(Mock, "--model", "alpha"), start(Mock, "--model", "beta")
    s = start(Serve, [a.spec(",model=alpha"), b.spec(",model=beta")])
    for model, worker in (("alpha", "1"), ("beta", "2")) * 2:
        r = s.complete("hi", model=model)
        assert r.status == 200 and r.headers["x-kvroute-worker"] == worker
    r = s.complete("hi", model="gamma")
    assert r.status == 404 and "gamma" in r.json()["error"]["message"]


def test_lora_goes_to_workers_that_list_it_and_has_its_own_hashes(start):
    a, b = start(Mock), start(Mock, "--lora", "my-lora")
    s = start(Serve, [a, b])
    wait_for("models", lambda: any(m["id"] == "my-lora" for m in call(s.port, "GET", "/v1/models").json()["data"]))
    for _ in range(4):
        assert s.complete(TEXT, model="my-lora").headers["x-kvroute-worker"] == "2"


@pytest.mark.parametrize("body,status", [
    (b"", 400), (b"{", 400), (b"[1]", 400), (b'"x"', 400), (b"nul", 400), (b'{"model": 5}', 400),
    (b'{"prompt": "x", "max_tokens": 1, "model": "nope"}', 404), (b"{} {}", 400), (b'{"a":1}}', 400), (b"\xff\xfe", 400),
])
def test_bad_bodies(same_fleet, body, status):
    s, _ = same_fleet
    r = call(s.port, "POST", "/v1/completions", body)
    assert r.status == status
    e = r.json()["error"]
    assert e["message"] and e["type"]
    assert s.complete("fine").status == 200


@pytest.mark.parametrize("method,path,status", [
    ("GET", "/v1/completions", 405), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("DELETE", "/health", 405),
    ("GET", "/nothing", 404), ("POST", "/", 404), ("GET", "/v2/models", 404),
])
def test_wrong_methods_and_paths(same_fleet, method, path, status):
    s, _ = same_fleet
    r = call(s.port, method, path, b"{}" if method == "POST" else None)
    assert r.status == status and r.json()["error"]["message"]


def test_declared_body_over_the_limit(start):
    s = start(Serve, [start(Mock)], "--max-body-size", "10KiB")
    r = s.complete("x" * 20000)
    assert r.status == 413 and r.json()["error"]["message"]
    assert s.complete("x").status == 200


def test_chunked_body_over_the_limit(start):
    s = start(Serve, [start(Mock)], "--max-body-size", "10KiB")
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20)
    c.putrequest("POST", "/v1/completions")
    c.putheader("Transfer-Encoding", "chunked")
    c.endheaders()
    try:
        for _ in range(20):
            c.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
    except OSError:
        pass
    assert c.getresponse().status == 413


def test_body_reaches_the_engine_byte_for_byte(start, upstream):
    u = upstream()
    s = start(Serve, [u.spec()])
    body = b'{"prompt" : "x",\n "temperature":0.70000000000000001, "seed":12345678901234567890123, "e":1E2, "u":"\\u00e9\xc3\xa9", "new_field":{"a":[]}}'
    assert call(s.port, "POST", "/v1/completions", body).status == 200
    assert wait_for("request", lambda: [b for h, b in u.requests if b"/v1/completions" in h]) == [body]


def test_headers_to_the_engine(start, upstream):
    u = upstream()
    s = start(Serve, [u.spec() + ",dp-start=3,dp-size=2"])
    s.complete("x", headers={"X-Request-Id": "abc-123", "Authorization": "Bearer k", "X-Custom": "1", "Connection": "X-Secret, keep-alive",
                             "X-Secret": "no", "TE": "trailers", "X-Kvroute-Worker": "1"})
    head = next(h for h, b in u.requests if b"/v1/completions" in h).decode().lower()
    assert "x-request-id: abc-123" in head and "authorization: bearer k" in head and "x-custom: 1" in head
    assert "x-secret" not in head and "te:" not in head.split() and "x-kvroute-worker" not in head
    assert head.count("x-data-parallel-rank: ") == 1 and ("rank: 3" in head or "rank: 4" in head) and head.count("host:") == 1 and f"host: 127.0.0.1:{u.port}" in head


def test_request_id_is_made_and_echoed(fleet):
    s, _ = fleet
    a, b = s.complete("x"), s.complete("x")
    assert a.headers["x-request-id"] and a.headers["x-request-id"] != b.headers["x-request-id"]
    assert s.complete("x", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert s.complete("x", headers={"x-request-id": "bad id\x01" if False else "a" * 200}).headers["x-request-id"] != "a" * 200


def test_other_v1_paths_are_passed_through(start, upstream):
    u = upstream(b"HTTP/1.1 418 Teapot\r\nX-Engine: yes\r\nContent-Length: 3\r\n\r\nabc")
    s = start(Serve, [u.spec()])
    r = call(s.port, "POST", "/v1/rerank?x=1", b"not json at all")
    assert (r.status, r.body, r.headers["x-engine"]) == (418, b"abc", "yes")
    head, body = u.requests[-1]
    assert head.startswith(b"POST /v1/rerank?x=1 HTTP/1.1") and body == b"not json at all"
    assert call(s.port, "GET", "/v1/videos/x").status == 418
    assert call(s.port, "POST", "/v1/embeddings", {"input": "x"}).body == b"abc"


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500])
def test_engine_errors_pass_through(start, upstream, status):
    u = upstream(b"HTTP/1.1 %d Oops\r\nContent-Length: 4\r\n\r\nwhy?" % status)
    s = start(Serve, [u.spec(), upstream().spec()])
    r = s.complete("x", headers={"x-kvroute-worker": "1"})
    assert (r.status, r.body) == (status, b"why?")
    assert s.metric("retries_total") == 0


def test_pins(same_fleet):
    s, _ = same_fleet
    for w in ("1", "2", "1"):
        r = s.complete("x", headers={"x-kvroute-worker": w})
        assert (r.headers["x-kvroute-worker"], r.headers["x-kvroute-reason"]) == (w, "pinned")
    assert s.complete("x", headers={"x-worker-instance-id": "2"}).headers["x-kvroute-worker"] == "2"
    for bad in ({"x-kvroute-worker": "99"}, {"x-kvroute-worker": "abc"}, {"x-kvroute-worker": "-1"},
                {"x-kvroute-worker": "1", "x-kvroute-dp-rank": "5"}, {"x-kvroute-worker": "1", "x-kvroute-dp-rank": "x"},
                {"x-request-priority": "soon"}):
        assert 400 <= s.complete("x", headers=bad).status < 500, bad


def test_pinned_worker_that_is_down_is_not_rerouted(fleet):
    s, mocks = fleet
    mocks[0].kill()
    for _ in range(2):
        assert s.complete("x", headers={"x-kvroute-worker": "1"}).status >= 500
    wait_for("health", lambda: s.get("/workers")[0]["status"] == "down")
    assert s.complete("x", headers={"x-kvroute-worker": "1"}).status >= 500
    assert s.complete("x").status == 200


def test_direct_mode(start):
    s = start(Serve, [start(Mock)], "--router-mode", "direct")
    assert s.complete("x").status == 400
    assert s.complete("x", headers={"x-kvroute-worker": "1"}).status == 200


@pytest.mark.parametrize("mode", ["round-robin", "random", "least-loaded"])
def test_other_modes(start, mode):
    s = start(Serve, [start(Mock), start(Mock)], "--router-mode", mode)
    rs = [s.complete(TEXT) for _ in range(10)]
    assert all(r.status == 200 and r.headers["x-kvroute-reason"] == mode for r in rs)
    seen = [r.headers["x-kvroute-worker"] for r in rs]
    assert mode != "round-robin" or seen.count("1") == 5
    wait_for("idle", s.idle)


def test_views_that_nothing_reads_are_followed_when_something_does(start):
    s = start(Serve, [start(Mock), start(Mock)], "--router-mode", "round-robin")
    assert s.complete(TEXT).status == 200
    assert {v["state"] for v in s.views().values()} == {"none"} and all("nothing reads it" in v["reason"] for v in s.views().values())
    assert s.post("/router_mode", {"router_mode": "kv"}).status == 200
    wait_for("views", lambda: len(s.views()) == 2 and all(v["trusted"] for v in s.views().values()))
    first = s.complete(TEXT)
    wait_for("its blocks", lambda: s.metric("index_blocks") >= len(TEXT) // 16)
    again = s.complete(TEXT)
    assert again.headers["x-kvroute-reason"] == "kv" and s.post("/router_mode", {"router_mode": "round-robin"}).status == 200
    assert {v["state"] for v in s.views().values()} == {"live"} and first.status == 200


@pytest.mark.parametrize("how", ["model", "question"])
def test_views_are_followed_for_one_model_and_for_who_asks(start, tmp_path, how):
    models = tmp_path / "models.yaml"
    models.write_text("models:\n  m: {options: {router-mode: kv}}\n")
    s = start(Serve, [start(Mock)], "--router-mode", "round-robin", *(["--models-file", models] if how == "model" else []))
    if how == "question":
        assert {v["state"] for v in s.views().values()} == {"none"}
        assert s.post("/overlap_scores", {"token_ids": list(range(64))}).status == 200
    wait_for("its view", lambda: all(v["trusted"] for v in s.views().values()))


def test_sessions_stick(start):
    s = start(Serve, [start(Mock), start(Mock)], "--router-session-affinity-ttl-secs", "1")
    first = s.complete("abc", headers={"x-session-id": "s1"})
    w = first.headers["x-kvroute-worker"]
    assert first.headers["x-kvroute-reason"] == "load"
    for i in range(4):
        r = s.complete(f"other text {i}" * 20, headers={"x-session-id": "s1"})
        assert (r.headers["x-kvroute-worker"], r.headers["x-kvroute-reason"]) == (w, "session")
    assert s.metric("sessions") == 1
    wait_for("expiry", lambda: s.complete("z").status == 200 and s.complete("q", headers={"x-session-id": "s2"}).status == 200
             and s.metric("sessions") == 1, 10)


def test_ranks(start):
    m = start(Mock, dp=3)
    s = start(Serve, [m])
    wait_for("views", lambda: len(s.views()) == 3 and all(v["trusted"] for v in s.views().values()))
    for rank in ("2", "0", "1"):
        r = s.complete(TEXT, headers={"x-kvroute-dp-rank": rank, "x-kvroute-worker": "1"})
        assert r.status == 200 and r.headers["x-kvroute-dp-rank"] == rank
    wait_for("events", lambda: s.metric("index_blocks") == 3 * (len(TEXT) // 16))
    assert s.complete(TEXT, headers={"x-data-parallel-rank": "1"}).headers["x-kvroute-dp-rank"] == "1"
    assert s.complete(TEXT).headers["x-kvroute-reason"] == "kv"


def test_cache_salt_separates(fleet):
    s, _ = fleet
    s.complete(TEXT, cache_salt="a")
    wait_for("events", lambda: s.metric("index_blocks") > 0)
    assert s.complete(TEXT, cache_salt="b").headers["x-kvroute-overlap-blocks"] == "0"
    assert s.complete(TEXT).headers["x-kvroute-overlap-blocks"] == "0"
    r = s.complete(TEXT, cache_salt="a")
    assert int(r.headers["x-kvroute-overlap-blocks"]) * 16 >= r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_lora_cache_is_its_own(start):
    s = start(Serve, [start(Mock, "--lora", "my-lora")])
    wait_for("models", lambda: any(m["id"] == "my-lora" for m in call(s.port, "GET", "/v1/models").json()["data"]))
    s.complete(TEXT, model="my-lora")
    wait_for("events", lambda: s.metric("index_blocks") > 0)
    base = s.complete(TEXT)
    assert base.headers["x-kvroute-overlap-blocks"] == "0" and base.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    r = s.complete(TEXT, model="my-lora")
    assert int(r.headers["x-kvroute-overlap-blocks"]) * 16 >= r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_token_prompts_need_no_tokenizer(fleet):
    s, _ = fleet
    tokens = list(range(1000, 1100))
    s.complete(tokens)
    wait_for("events", lambda: s.metric("index_blocks") >= 6)
    assert s.complete(tokens).headers["x-kvroute-overlap-blocks"] == "6"
    r = call(s.port, "POST", "/v1/chat/completions", {**CHAT, "nvext": {"token_data": tokens}})
    assert r.headers["x-kvroute-overlap-blocks"] == "6"
    assert s.metric("tokenize_requests_total") == 0


def test_token_cache(fleet):
    s, _ = fleet
    for _ in range(3):
        s.complete("the same body")
    assert s.metric("tokenize_requests_total") == 1 and s.metric("tokenize_cache_hits_total") == 2


def test_failed_tokenizing_routes_by_load_and_says_so(start, upstream):
    u = upstream(lambda n: b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n" if b"/tokenize" in u.requests[-1][0]
                 else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    s = start(Serve, [u.spec()])
    r = s.complete("text")
    assert r.status == 200 and "token" in r.headers["x-kvroute-reason"]
    assert s.metric("tokenize_failures_total") == 1


def test_predicted_mode(start):
    m = [start(Mock, with_events=False), start(Mock, with_events=False)]
    s = start(Serve, m, "--no-router-kv-events", "--router-ttl-secs", "2")
    first = call(s.port, "POST", "/v1/chat/completions", CHAT)
    r = call(s.port, "POST", "/v1/chat/completions", CHAT)
    assert r.headers["x-kvroute-reason"] == "kv" and r.headers["x-kvroute-worker"] == first.headers["x-kvroute-worker"]
    assert int(r.headers["x-kvroute-overlap-blocks"]) > 10
    assert s.metric("tokenize_requests_total") == 0
    wait_for("expiry", lambda: s.metric("index_blocks") == 0, 10)


def test_priority_goes_sooner(start):
    m = start(Mock, "--max-num-batched-tokens", "64", speedup=0.2)  # the first is still being computed when the others come
    s = start(Serve, [m.spec(",max-num-batched-tokens=64")], "--router-queue-threshold", "0")
    done, threads = [], []

    def go(name, prio):
        s.complete(list(range(2000, 2400)) if name == "first" else [ord(name[0])] * 400, headers={"x-request-priority": str(prio)})
        done.append(name)
    for name, prio in (("first", 0), ("low", 0), ("high", 100)):
        t = threading.Thread(target=go, args=(name, prio))
        t.start()
        threads.append(t)
        if name == "first":
            wait_for("booked", lambda: not s.idle())
        else:
            wait_for("parked", lambda: s.metric("router_queue_pending_requests") == len(threads) - 1)
    for t in threads:
        t.join()
    assert done == ["first", "high", "low"]


# ---- HTTP corner cases ----------------------------------------------------------------------------------

def raw(port, data, timeout=10):
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as c:
        c.sendall(data)
        out = b""
        try:
            while True:
                d = c.recv(65536)
                if not d:
                    return out
                out += d
        except socket.timeout:
            return out  # what came so far; the caller judges


def test_http_10(fleet):
    s, _ = fleet
    body = b'{"prompt":"x","max_tokens":2,"stream":true}'
    out = raw(s.port, b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    head, rest = out.split(b"\r\n\r\n", 1)
    assert b"200" in head.split(b"\r\n")[0] and b"chunked" not in head.lower() and rest.endswith(b"data: [DONE]\n\n")


def test_expect_continue(fleet):
    s, _ = fleet
    body = b'{"prompt":"x","max_tokens":1}'
    with socket.create_connection(("127.0.0.1", s.port), timeout=10) as c:
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body))
        assert c.recv(1000).startswith(b"HTTP/1.1 100")
        c.sendall(body)
        out = b""
        while d := c.recv(65536):
            out += d
    assert out.startswith(b"HTTP/1.1 200")


def test_chunked_request_body(fleet):
    s, _ = fleet
    out = raw(s.port, b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n'
                      b'10\r\n{"prompt":"abc",\r\n10\r\n"max_tokens": 1}\r\n0\r\n\r\n')
    assert out.startswith(b"HTTP/1.1 200") and b'"completion_tokens":1' in out


def test_pipelining(same_fleet):
    s, _ = same_fleet
    body = b'{"prompt":"x","max_tokens":1}'
    one = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    out = raw(s.port, one + get + one + b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert out.count(b"HTTP/1.1 200") == 4


def test_offered_upgrade_is_ignored(same_fleet):
    s, _ = same_fleet
    body = b'{"prompt":"x","max_tokens":1}'
    out = raw(s.port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\n"
                      b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    assert out.startswith(b"HTTP/1.1 200")
    assert raw(s.port, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", 1).startswith(b"HTTP/1.1 200")


def test_keep_alive(same_fleet):
    s, _ = same_fleet
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=10)
    for _ in range(3):
        c.request("POST", "/v1/completions", '{"prompt":"x","max_tokens":1}')
        r = c.getresponse()
        assert r.status == 200
        r.read()
    c.close()


@pytest.mark.parametrize("name,request_bytes", [
    ("cl and te", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two lengths", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"),
    ("different lengths", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    ("bare lf", b"GET /health HTTP/1.1\nHost: x\n\n"),
    ("bare lf in headers", b"GET /health HTTP/1.1\r\nHost: x\nX: y\r\n\r\n"),
    ("space before colon", b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n"),
    ("obs-fold", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n"),
    ("no host", b"GET /health HTTP/1.1\r\n\r\n"),
    ("two hosts", b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: y\r\n\r\n"),
    ("negative length", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"),
    ("huge length", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n"),
    ("bad chunk", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
    ("unknown coding", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n"),
    ("garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    ("http 2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("huge header", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100000 + b"\r\n\r\n"),
    ("many headers", b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 500 + b"\r\n"),
])
def test_malformed_requests_are_refused(same_fleet, name, request_bytes):
    s, _ = same_fleet
    out = raw(s.port, request_bytes)
    status = int(out.split(b" ")[1]) if out else 0
    assert status in (400, 405, 413, 431, 501) or not out, out[:200]
    assert b"200 OK" not in out
    assert call(s.port, "GET", "/health").status == 200


def test_concurrent_requests_leave_no_load(fleet):
    s, _ = fleet
    results = []

    def go(i):
        for k in range(10):
            results.append(s.complete(TEXT[: 50 + i * 20], max_tokens=3, stream=bool(k % 2)).status)
    threads = [threading.Thread(target=go, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [200] * 80
    wait_for("idle", s.idle)
    assert s.metric("requests_total") == 80 and s.metric("errors_total") == 0


def test_two_loops_share_the_work(start):
    s = start(Serve, [start(Mock), start(Mock)], "--threads", "2")
    rs = [s.complete(TEXT) for _ in range(20)]
    assert all(r.status == 200 for r in rs)
    wait_for("the events", lambda: s.complete(TEXT).headers["x-kvroute-reason"] == "kv")
    wait_for("idle", s.idle)


def test_usage_counts_predicted_and_actual(fleet):
    s, mocks = fleet
    for i in range(10):
        s.complete(TEXT + "x" * i)
        wait_for("events", lambda: s.metric("index_blocks") == sum(m.metric("kvroute_mock_cached_blocks") for m in mocks) > 0)
    wait_for("counted", lambda: s.metric("usage_answers_total") == 10)
    wait_for("equal", lambda: s.metric("predicted_cached_tokens_total") == s.metric("actual_cached_tokens_total") > 0)
    assert s.metric("predicted_equals_actual_total") == 10
