# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between client, router and workers: every clause of the failure behaviour."""
import http.client
import json
import socket
import threading
import time

import pytest

from conftest import SLOW, Mock, Serve, call, read_sse, stays, wait_for
from http_parts import Handler, HttpServer
from test_proxy import TEXT, upstream  # noqa: F401 (fixture)

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def completions(u):
    return [r for r in u.requests if b"/v1/completions" in r[0].split(b"\r\n")[0]]


def test_client_gone_frees_the_load_and_cancels_upstream(start):
    m = start(Mock, speedup=0.5)
    s = start(Serve, [m])
    c, r = read_sse(s.port, {"prompt": TEXT, "max_tokens": 10000, "stream": True})
    r.read1(100)
    assert not s.idle() and m.metric("vllm:num_requests_running") == 1
    c.sock.shutdown(socket.SHUT_RDWR)
    c.close()
    wait_for("freed", s.idle)  # long before the stream would end
    wait_for("cancelled", lambda: m.metric("vllm:num_requests_running") == 0)
    assert s.metric("client_gone_total") == 1


def test_client_gone_before_the_answer(start):
    m = start(Mock, "--fault-hang")
    s = start(Serve, [m])
    c = http.client.HTTPConnection("127.0.0.1", s.port)
    c.request("POST", "/v1/completions", json.dumps({"prompt": TEXT, "max_tokens": 5}))
    wait_for("booked", lambda: not s.idle())
    c.close()
    wait_for("freed", s.idle, 2)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_worker_errors_before_the_first_byte_are_retried_elsewhere(start, upstream, status):
    bad = upstream(b"HTTP/1.1 %d Bad\r\nContent-Length: 0\r\n\r\n" % status)
    good = upstream(OK)
    s = start(Serve, [bad.spec(), good.spec()], "--router-mode", "round-robin")
    rs = [s.complete("x") for _ in range(4)]
    assert all(r.status == 200 and r.headers["x-kvroute-worker"] == "2" for r in rs)
    assert s.metric("retries_total") >= 1 and s.metric("requests_total") == 4
    wait_for("idle", s.idle)


def test_resets_are_retried_elsewhere(start, upstream):
    bad, good = upstream(lambda n: None), upstream(OK)
    s = start(Serve, [bad.spec(), good.spec()], "--router-mode", "round-robin")
    assert all(s.complete("x").status == 200 for _ in range(4))
    assert s.metric("retries_total") >= 1


def test_refused_connections_are_retried_elsewhere(start, upstream):
    dead = socket.socket()
    dead.bind(("127.0.0.1", 0))
    s = start(Serve, [f"http://127.0.0.1:{dead.getsockname()[1]}", upstream(OK).spec()], "--router-mode", "round-robin", "--health-interval", "60")
    assert all(s.complete("x").status == 200 for _ in range(4))
    dead.close()


def test_three_attempts_on_different_workers_then_5xx(start, upstream):
    ups = [upstream(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n") for _ in range(5)]
    s = start(Serve, [u.spec() for u in ups], "--router-mode", "round-robin")
    r = s.complete("x")
    assert r.status >= 500 and r.json()["error"]["message"]
    assert sorted(len(completions(u)) for u in ups) == [0, 0, 1, 1, 1]
    wait_for("idle", s.idle)


def says(status, body, *headers, kind="application/json"):
    lines = "".join(h + "\r\n" for h in (f"Content-Type: {kind}", *headers))
    return f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


BUSY = b'{"error": {"message": "no room for a prompt of 900 tokens", "code": 503}}'


@pytest.mark.parametrize("status", [502, 503, 504])
def test_when_every_engine_refuses_the_client_gets_what_the_last_one_says_and_the_longest_time(start, upstream, status):
    ups = [upstream(says(status, b"busy %d" % i, f"Retry-After: {t}", "X-Reason: full", "X-Kvroute-Worker: 9", kind=f"text/plain; n={i}"))
           for i, t in enumerate((3, 7, 5))]
    s = start(Serve, [u.spec() for u in ups], "--breaker-failures", "100")
    asked = [len(completions(u)) for u in ups]
    r = s.complete("x", headers={"x-request-id": "one"})
    assert [len(completions(u)) for u in ups] == [n + 1 for n in asked]
    assert r.status == status and r.body in (b"busy 0", b"busy 1", b"busy 2"), r.body
    assert r.headers["content-type"] == f"text/plain; n={r.body[-1:].decode()}"
    assert r.headers["retry-after"] == "7" and r.headers["x-reason"] == "full" and r.headers["x-request-id"] == "one"
    assert "x-kvroute-worker" not in r.headers
    wait_for("idle", s.idle)


def test_a_worker_alone_that_refuses_is_heard(start, upstream):
    u = upstream(says(503, BUSY, "Retry-After: 7"))
    s = start(Serve, [u.spec()])
    for _ in range(3):
        r = s.complete("x")
        assert (r.status, r.body, r.headers["retry-after"]) == (503, BUSY, "7")
    assert s.complete("x", headers={"x-kvroute-worker": "1"}).body == BUSY


@pytest.mark.parametrize("said, told", [("", "1"), ("soon", "1"), ("-3", "1"), ("0", "1"), ("99999999", "86400"), ("9" * 40, "1"),
                                        ("Thu, 01 Jan 1970 00:00:00 GMT", "1"), ("Fri, 31 Dec 9999 23:59:59 GMT", "86400")])
def test_the_time_that_engines_tell_is_bounded(start, upstream, said, told):
    u = upstream(says(503, BUSY, f"Retry-After: {said}"))
    r = start(Serve, [u.spec()]).complete("x")
    assert r.status == 503 and r.headers["retry-after"] == told and r.body == BUSY


def test_what_engines_say_of_a_refusal_is_bounded(start, upstream):
    u = upstream(says(503, b"x" * (64 * 1024 + 1), "Retry-After: 7"))
    r = start(Serve, [u.spec()]).complete("x")
    assert r.status == 503 and r.headers["retry-after"] == "7" and "every worker that was tried" in r.json()["error"]["message"]


def test_the_last_that_fails_without_a_word_leaves_the_time(start, upstream):
    ups = []

    def answer(n):
        return says(503, BUSY, "Retry-After: 7") if sum(len(completions(u)) for u in ups) == 1 else None  # the second breaks off
    ups += [upstream(answer), upstream(answer)]
    s = start(Serve, [u.spec() for u in ups], "--health-interval", "60")
    r = s.complete("x")
    assert r.status == 502 and "failed on 2 worker(s)" in r.json()["error"]["message"] and r.headers["retry-after"] == "7"


@pytest.mark.parametrize("status", [429, 529])
def test_an_engine_that_limits_its_clients_is_heard_at_once(start, upstream, status):
    ups = [upstream(says(status, BUSY, "Retry-After: 7")) for _ in range(2)]
    s = start(Serve, [u.spec() for u in ups])
    r = s.complete("x")
    assert (r.status, r.body, r.headers["retry-after"]) == (status, BUSY, "7")
    assert sum(len(completions(u)) for u in ups) == 1


def test_saturation_does_not_trip_the_breaker(start, upstream):
    u = upstream(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    v = upstream(b"HTTP/1.1 429 Slow down\r\nContent-Length: 0\r\n\r\n")
    s = start(Serve, [u.spec(), v.spec()], "--breaker-failures", "2")
    for _ in range(8):
        s.complete("x", headers={"x-kvroute-worker": "1"})
        s.complete("x", headers={"x-kvroute-worker": "2"})
    assert not any(w["breaker_open"] for w in s.get("/workers"))


def test_breaker_opens_and_closes(start, upstream):
    bad, good = upstream(lambda n: None if len(completions(bad)) <= 3 else OK), upstream(OK)
    s = start(Serve, [bad.spec(), good.spec()], "--breaker-failures", "3", "--breaker-cooldown", "1", "--router-mode", "round-robin",
              "--health-interval", "60")
    wait_for("opened", lambda: s.complete("x").status == 200 and s.get("/workers")[0]["breaker_open"])
    n = len(completions(bad))
    assert all(s.complete("x").headers["x-kvroute-worker"] == "2" for _ in range(4)) and len(completions(bad)) == n
    wait_for("closed", lambda: s.complete("x").headers["x-kvroute-worker"] == "1")


def test_break_in_mid_stream_is_an_error_event(start):
    m = start(Mock, "--fault-reset-after", "3")
    s = start(Serve, [m])
    r = s.complete("x", max_tokens=50, stream=True)
    assert r.status == 200 and b"[DONE]" not in r.body
    last = r.body.strip().split(b"\n\n")[-1]
    assert json.loads(last[6:])["error"]["message"]
    wait_for("idle", s.idle)
    assert s.metric("errors_total") == 1 and s.metric("retries_total") == 0


def test_truncated_plain_answer_is_a_broken_transfer(start, upstream):
    u = upstream([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"half"])
    s = start(Serve, [u.spec()])
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        r = s.complete("x")
        assert r.status >= 500
        raise http.client.IncompleteRead(b"")


def test_first_token_timeout_is_504_and_not_retried(start):
    a, b = start(Mock, "--fault-hang"), start(Mock, "--fault-hang")
    s = start(Serve, [a, b], "--first-token-timeout", "0.4")
    r = s.complete("x")
    assert r.status == 504 and r.json()["error"]["message"] and s.metric("retries_total") == 0
    wait_for("idle", s.idle)


def test_first_token_timeout_after_bare_stream_headers(start):
    s = start(Serve, [start(Mock, "--fault-bare-stream")], "--first-token-timeout", "0.4")
    assert s.complete("x", stream=True).status == 504


def test_stall_timeout(start, upstream):
    stop = threading.Event()
    u = upstream([SSE, chunk(b'data: {"choices":[]}\n\n'), lambda: stop.wait(20)])
    s = start(Serve, [u.spec()], "--stall-timeout", "0.4")
    r = s.complete([1, 2, 3], stream=True)
    stop.set()
    assert r.status == 200 and b"error" in r.body and b"[DONE]" not in r.body


def test_total_timeout(start):
    s = start(Serve, [start(Mock, speedup=0.2)], "--total-timeout", "0.5")
    r = s.complete("x", max_tokens=1000, stream=True)
    assert b"error" in r.body and b"[DONE]" not in r.body
    wait_for("idle", s.idle)


def test_slow_reader_does_not_stall_out_and_memory_is_bounded(start, upstream):
    piece = chunk(b"data: " + b"x" * 60000 + b"\n\n")
    u = upstream([SSE] + [piece] * 600 + [chunk(b"data: [DONE]\n\n"), b"0\r\n\r\n"])
    s = start(Serve, [u.spec()], "--stall-timeout", "1")
    before = s.rss_kb()
    c, r = read_sse(s.port, {"prompt": [1, 2, 3], "stream": True})
    r.read(10)
    wait_for("paused", lambda: s.metric("requests_active") == 1)
    # longer than the stall timeout, the client being the slow one
    stays("bounded in memory", lambda: s.rss_kb() - before < 40000, 2.5)
    body = r.read()
    assert body.endswith(b"data: [DONE]\n\n") and len(body) > 600 * 60000
    c.close()


def test_no_worker_waits_then_serves(start):
    s = start(Serve, [], "--queue-timeout", "20", ready=False)
    out = []
    t = threading.Thread(target=lambda: out.append(s.complete("x").status))
    t.start()
    wait_for("parked", lambda: s.metric("requests_without_worker") == 1)
    m = start(Mock)
    assert s.post("/workers", {"worker_id": 5, "endpoint": f"http://127.0.0.1:{m.port}"}).status == 201
    t.join()
    assert out == [200]


def test_all_workers_down(start):
    m = start(Mock)
    s = start(Serve, [m], "--queue-timeout", "0.3")
    m.kill()
    assert s.complete("x").status in (502, 503)
    wait_for("down", lambda: s.get("/workers")[0]["status"] == "down")
    r = s.complete("x")
    assert r.status == 503 and r.headers["retry-after"]
    assert call(s.port, "GET", "/ready").status == 503 and call(s.port, "GET", "/health").status == 200


def test_killing_a_worker_under_load_breaks_nothing_that_had_not_begun(start):
    mocks = [start(Mock, speedup=20) for _ in range(3)]
    s = start(Serve, mocks)
    stop, bad, good = threading.Event(), [], []

    def client(i):
        n = 0
        while not stop.is_set():
            n += 1
            r = s.complete([10_000 * (i + 1) + n] * 96, max_tokens=4)  # cached nowhere: any worker will do
            (good if r.status == 200 else bad).append(r.status)

    def streamer():
        while not stop.is_set():
            r = s.complete(TEXT, max_tokens=20, stream=True)
            ended = r.body.endswith(b"[DONE]\n\n")
            told = b'"error"' in r.body
            (good if r.status == 200 and (ended or told) else bad).append((r.status, r.body[-100:]))
    threads = [threading.Thread(target=client, args=(i,)) for i in range(4)] + [threading.Thread(target=streamer) for _ in range(2)]
    for t in threads:
        t.start()
    wait_for("traffic", lambda: len(good) > 50)
    mocks[0].kill()
    wait_for("view gone", lambda: s.view(1).get("blocks") == 0 and not s.view(1)["trusted"])
    wait_for("down", lambda: s.get("/workers")[0]["status"] == "down")
    n = len(good)
    wait_for("traffic goes on", lambda: len(good) > n + 30)
    before = s.get("/workers")[0]["requests"]
    again = start(Mock, port=mocks[0].port, events=mocks[0].events, replay=mocks[0].replay, speedup=20)
    wait_for("back in use", lambda: s.view(1).get("trusted") and s.get("/workers")[0]["requests"] > before)
    stop.set()
    for t in threads:
        t.join()
    assert not bad
    wait_for("idle", s.idle)
    wait_for("view right", lambda: s.view(1)["blocks"] == again.metric("kvroute_mock_cached_blocks"))


def test_kill_9_of_the_router_and_restart(start):
    mocks = [start(Mock, speedup=20) for _ in range(2)]
    s = start(Serve, mocks)
    prompts = [[1000 + i] * 80 + list(range(i * 50, i * 50 + 40)) for i in range(12)]
    for p in prompts:
        assert s.complete(p).status == 200
    c, r = read_sse(s.port, {"prompt": prompts[0], "max_tokens": 500, "stream": True})
    r.read1(10)
    s.kill()
    c.close()
    s2 = start(Serve, mocks)
    wait_for("trusted", lambda: all(v["trusted"] for v in s2.views().values()) and len(s2.views()) == 2)
    for p in prompts:
        r = s2.complete(p)
        assert int(r.headers["x-kvroute-overlap-blocks"]) == len(p) // 16
        assert r.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(p) - 1) // 16 * 16
    # the last request is counted when its answer has left
    wait_for("equal", lambda: s2.metric("predicted_cached_tokens_total") == s2.metric("actual_cached_tokens_total") > 0)


def test_drain_lets_running_requests_finish(start):
    m = start(Mock, speedup=2)
    s = start(Serve, [m])
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 100, "stream": True})
    r.read1(10)
    s.p.terminate()

    def refused():
        try:
            return call(s.port, "GET", "/v1/models", timeout=2).status == 503
        except OSError:
            return True
    wait_for("draining", refused)
    assert r.read().endswith(b"data: [DONE]\n\n")
    c.close()
    s.p.wait(20 * SLOW)
    assert s.p.returncode == 0


def test_deleting_a_worker_does_not_cut_its_streams(start):
    m = start(Mock, speedup=2)
    s = start(Serve, [m])
    c, r = read_sse(s.port, {"prompt": "x", "max_tokens": 100, "stream": True})
    r.read1(10)
    assert call(s.admin, "DELETE", "/workers/1").status == 200
    assert s.get("/workers") == []
    assert r.read().endswith(b"data: [DONE]\n\n")
    c.close()


def test_stale_pooled_connections_are_replaced_silently(start, upstream):
    u = upstream(lambda n: OK if n != 2 else None)  # the second request on a kept connection meets a reset
    s = start(Serve, [u.spec(), upstream(OK).spec()])
    for _ in range(4):
        assert s.complete("x", headers={"x-kvroute-worker": "1"}).status == 200
    assert s.metric("retries_total") == 0


def test_slow_start_is_waited_for(start):
    m = start(Mock, "--startup-time", "1.5")
    s = start(Serve, [m], ready=False)
    assert call(s.port, "GET", "/ready").status == 503
    wait_for("ready", lambda: call(s.port, "GET", "/ready").status == 200)
    assert s.complete("x").status == 200


def test_an_older_check_does_not_bring_back_a_worker_that_a_newer_one_found_gone(start):
    """The second look at its health is answered late, after the third one has found nobody."""
    looks, late = [], threading.Event()

    class Health(Handler):
        def do_GET(self):
            if self.path != "/health":
                self.send_error(404)
                return
            looks.append(1)
            n = len(looks)
            if n == 2:
                late.wait(30)
            if n > 2:
                self.close_connection = True
                return
            self.answer(200)
    server = HttpServer(Health)
    s = start(Serve, [server.url + ",model=m"], "--health-interval", 0.1, ready=False)
    wait_for("it is gone", lambda: s.get("/workers")[0]["status"] == "down")
    late.set()
    seen = len(looks)
    wait_for("further looks", lambda: len(looks) > seen + 3)
    assert s.get("/workers")[0]["status"] == "down" and "is up again" not in s.text()
    server.close()
