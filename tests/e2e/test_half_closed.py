# SPDX-License-Identifier: Apache-2.0
"""A client that has sent its request and closes its sending half gets its answer; one that has gone frees its worker, although both send
the same FIN."""
import http.client
import json
import socket
import time

import pytest
from conftest import SLOW, Mock, Select, Serve, call, stays, wait_for


def request(stream=False, tokens=8, minor=1, path="/v1/completions", prompt="hello there"):
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": stream})
    return f"POST {path} HTTP/1.{minor}\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def connect(port):
    return socket.create_connection(("127.0.0.1", port), 20 * SLOW)


def read_all(c):
    return b"".join(iter(lambda: c.recv(65536), b""))


def final(got):
    """What follows interim answers."""
    while got.startswith(b"HTTP/1.1 1"):
        got = got.split(b"\r\n\r\n", 1)[1]
    return got


@pytest.fixture
def slow(start):
    """A router before an engine that takes some time to the first token and then for each."""
    m = start(Mock, with_events=False, speedup=0.2)
    return start(Serve, [m]), m


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_half_after_the_request_gets_the_answer(slow, stream):
    s, m = slow
    with connect(s.port) as c:
        c.sendall(request(stream))
        c.shutdown(socket.SHUT_WR)
        got = final(read_all(c))
    assert got.startswith(b"HTTP/1.1 200 ") and (b"[DONE]" if stream else b'"usage"') in got, got
    assert b"Connection: close" in got and s.metric("client_gone_total") == 0
    wait_for("idle", s.idle)


def test_one_that_closes_its_half_in_the_middle_of_the_answer_gets_the_rest(slow):
    s, m = slow
    with connect(s.port) as c:
        c.sendall(request(True))
        r = http.client.HTTPResponse(c)
        r.begin()
        events = r.readline()
        c.shutdown(socket.SHUT_WR)
        events += r.read()
    assert events.count(b"data: {") == 8 and events.endswith(b"data: [DONE]\n\n"), events


def test_what_was_sent_before_is_answered_in_turn_and_then_the_connection_ends(slow):
    s, m = slow
    health = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with connect(s.port) as c:
        c.sendall(request(tokens=2) + health + health + request(tokens=1) + health + b"GET /hea")  # the last is no request
        c.shutdown(socket.SHUT_WR)
        got = read_all(c)
    assert got.count(b"HTTP/1.1 200 ") == 5 and got.count(b"HTTP/1.1 4") == 0, got
    with connect(s.port) as c:
        c.sendall(health)
        c.shutdown(socket.SHUT_WR)
        assert read_all(c).startswith(b"HTTP/1.1 200 ")
    with connect(s.port) as c:
        c.sendall(request()[:-5])
        c.shutdown(socket.SHUT_WR)
        assert read_all(c) == b"", "half a request has no answer"


def test_a_large_answer_reaches_one_that_reads_late(start):
    s = start(Select)
    with connect(s.port) as c:
        c.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)  # more than the kernel and the write queue take
        c.shutdown(socket.SHUT_WR)
        stays("it lives", lambda: call(s.port, "GET", "/health").status == 200, 0.5)
        assert read_all(c).count(b"HTTP/1.1 200 ") == 400


@pytest.mark.parametrize("how", ["close", "shutdown both", "reset"])
@pytest.mark.parametrize("stream", [False, True])
def test_one_that_has_gone_before_the_answer_frees_its_worker(start, how, stream):
    m = start(Mock, "--fault-hang", with_events=False)
    s = start(Serve, [m])
    c = connect(s.port)
    c.sendall(request(stream))
    wait_for("booked", lambda: not s.idle())
    if how == "shutdown both":
        c.shutdown(socket.SHUT_RDWR)
    if how == "reset":
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if how != "shutdown both":
        c.close()
    wait_for("freed", s.idle)  # long before the stream would end
    assert s.metric("client_gone_total") == 1
    c.close()


def test_one_that_has_gone_in_the_middle_of_a_stream_frees_its_worker(start):
    m = start(Mock, with_events=False, speedup=0.5)
    s = start(Serve, [m])
    c = connect(s.port)
    c.sendall(request(True, tokens=100000))
    while b"data:" not in c.recv(1000):
        pass
    c.shutdown(socket.SHUT_RDWR)  # with nothing unread, so it is a FIN
    c.close()
    wait_for("freed", s.idle, 3)
    wait_for("cancelled", lambda: m.metric("vllm:num_requests_running") == 0)
    assert s.metric("client_gone_total") == 1


def test_one_that_waits_for_a_worker_with_its_half_closed_is_kept_and_one_that_has_gone_is_not(start):
    s = start(Serve, [], "--queue-timeout", 20 * SLOW, ready=False)
    kept, gone = connect(s.port), connect(s.port)
    for c in (kept, gone):
        c.sendall(request())
    wait_for("both wait", lambda: s.metric("requests_without_worker") == 2)
    kept.shutdown(socket.SHUT_WR)
    gone.close()
    wait_for("one waits", lambda: s.metric("requests_without_worker") == 1)
    stays("one waits", lambda: s.metric("requests_without_worker") == 1, 1.5)
    m = start(Mock, with_events=False)
    assert s.post("/workers", {"worker_id": 1, "endpoint": m.spec()}).status == 201
    assert final(read_all(kept)).startswith(b"HTTP/1.1 200 ")
    kept.close()


def test_who_speaks_http_1_0_cannot_be_asked_and_has_gone(start):
    m = start(Mock, "--fault-hang", with_events=False)
    s = start(Serve, [m])
    with connect(s.port) as c:
        c.sendall(request(minor=0))
        wait_for("booked", lambda: not s.idle())
        c.shutdown(socket.SHUT_WR)
        wait_for("freed", s.idle, 2)
        assert read_all(c) == b""


def test_many_that_close_their_half_at_once_hold_nobody_up(slow):
    s, m = slow
    socks = [connect(s.port) for _ in range(100)]
    for i, c in enumerate(socks):
        c.sendall(request(tokens=1, prompt=f"number {i}"))
        c.shutdown(socket.SHUT_WR) if i % 2 else c.close()
    assert all(final(read_all(c)).startswith(b"HTTP/1.1 200 ") for c in socks[1::2])
    wait_for("idle", s.idle)
    assert call(s.port, "GET", "/health").status == 200
