# SPDX-License-Identifier: Apache-2.0
"""A stream is complete when its last event has gone out: what client and worker do with their connections afterwards changes nothing."""
import json
import re
import socket
import threading

import pytest

from conftest import SLOW, Mock, Serve, call, wait_for
from http_parts import serve_connections

CHAT = "/v1/completions"
USAGE = b'{"prompt_tokens":3,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}}'
# Path, and what the last event of its streams is.
ENDINGS = {
    "[DONE]": (CHAT, b'data: {"choices":[],"usage":' + USAGE + b"}\n\ndata: [DONE]\n\n"),
    "message_stop": ("/v1/messages", b'event: message_stop\ndata: {"type":"message_stop"}\n\n'),
    "response.completed": ("/v1/responses", b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n'),
    "response.incomplete": ("/v1/responses", b'event: response.incomplete\r\ndata: {"type":"response.incomplete","response":{}}\r\n\r\n'),
}


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class HeldEnd:
    """Streams events and keeps the end of the body (`last`) back until `go`; `last` None: closes instead."""

    def __init__(self, events, last=b"0\r\n\r\n"):
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port, self.events, self.last = self.sock.getsockname()[1], events, last
        self.go, self.posts, self.closed = threading.Event(), [], threading.Event()
        serve_connections(self.sock, self.serve)

    def serve(self, c):
        f = c.makefile("rb")
        try:
            while line := f.readline():
                length = 0
                while (h := f.readline()) not in (b"\r\n", b""):
                    if m := re.match(rb"content-length: (\d+)", h, re.I):
                        length = int(m[1])
                f.read(length)
                if not line.startswith(b"POST"):
                    c.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n" if b"models" in line else
                              b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                self.posts.append(c.getpeername())
                c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                c.sendall(chunk(b'data: {"choices":[{"text":"a"}]}\n\n'))
                c.sendall(chunk(self.events))
                self.go.wait(20 * SLOW)
                if self.last is None:
                    break
                c.sendall(self.last)
            else:
                self.closed.set()
        except OSError:
            self.closed.set()
        f.close()
        c.close()

    def spec(self):
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def held():
    made = []

    def make(*a):
        made.append(HeldEnd(*a))
        return made[-1]
    yield make
    for w in made:
        w.go.set()
        w.sock.close()


def stream(s, path=CHAT, session=None):
    """Sends a request; returns its socket."""
    body = json.dumps({"prompt": [1, 2, 3], "stream": True, "max_tokens": 1}).encode()
    c = socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW)
    more = b"x-session-id: %s\r\n" % session.encode() if session else b""
    c.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %d\r\n\r\n" % (path.encode(), more, len(body)) + body)
    return c


def read_until(c, what):
    got = b""
    while what not in got:
        data = c.recv(65536)
        assert data, got
        got += data
        assert b"HTTP/1.1 404" not in got, got
    return got


def router(start, w):
    return start(Serve, [w.spec()], "--no-router-kv-events", "--router-session-affinity-ttl-secs", "60")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_client_that_closes_at_the_last_event_has_not_left(start, held, ending):
    path, events = ENDINGS[ending]
    w = held(events)
    s = router(start, w)
    c = stream(s, path, "s1")
    read_until(c, events)
    c.close()
    wait_for("the end", lambda: s.idle() and s.metric("requests_total", status="2xx") == 1 and s.metric("sessions") == 1)
    assert s.metric("client_gone_total") == 0
    if path == CHAT:
        wait_for("usage", lambda: s.metric("usage_answers_total") == 1)
        assert [d["status"] for d in s.get("/decisions")] == [200]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_client_that_has_the_last_event_finds_no_load_booked(start, held, ending):
    """The worker has not ended its body yet: the client's next question may come before it does."""
    path, events = ENDINGS[ending]
    w = held(events)
    s = router(start, w)
    with stream(s, path, "s1") as c:
        read_until(c, events)
        assert s.idle() and s.metric("sessions") == 1
        w.go.set()
        read_until(c, b"0\r\n\r\n")
    assert s.metric("errors_total") == 0


def test_the_workers_connection_is_used_again_after_its_client_closed(start, held):
    w = held(ENDINGS["[DONE]"][1])
    s = router(start, w)

    def same():  # the worker has a second to end it, which may pass on a busy machine
        w.go.clear()
        c, n = stream(s), s.metric("usage_answers_total")
        read_until(c, b"[DONE]\n\n")
        c.close()
        wait_for("the end", lambda: s.metric("usage_answers_total") > n)
        w.go.set()
        with stream(s) as c:
            read_until(c, b"0\r\n\r\n")
        return w.posts[-1] == w.posts[-2]
    wait_for("one connection for both", same, 20)


def test_a_worker_that_never_ends_its_body_is_not_kept_for_long(start, held):
    w = held(ENDINGS["[DONE]"][1])
    s = router(start, w)
    c = stream(s)
    read_until(c, b"[DONE]\n\n")
    c.close()
    wait_for("the end", lambda: s.metric("usage_answers_total") == 1)
    w.last = chunk(b": more\n\n")
    w.go.set()
    wait_for("closed", w.closed.is_set, 20)


def test_a_client_that_closes_before_the_last_event_has_left(start, held):
    w = held(b'data: {"choices":[]}\n\n' + b"event: message_stop\ndata: {}\n")  # without its blank line
    s = router(start, w)
    c = stream(s)
    read_until(c, b"message_stop")
    c.close()
    wait_for("gone", lambda: s.metric("client_gone_total") == 1)
    assert s.metric("usage_answers_total") == 0 and s.metric("sessions") == 0
    wait_for("cancelled", lambda: w.go.set() or w.closed.is_set())


def test_a_worker_that_breaks_off_after_the_last_event_has_answered(start, held):
    w = held(ENDINGS["[DONE]"][1], None)
    s = router(start, w)
    with stream(s) as c:
        read_until(c, b"[DONE]\n\n")
        w.go.set()
        rest = read_until(c, b"0\r\n\r\n")
    assert b"error" not in rest
    wait_for("the end", lambda: s.metric("usage_answers_total") == 1)
    assert s.metric("errors_total") == 0 and [d["status"] for d in s.get("/decisions")] == [200]


def test_an_answer_of_known_length_is_complete_when_its_bytes_have_gone_out(start):
    s = start(Serve, [start(Mock, "--model", "m")])
    body = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1, "model": "m"}).encode()
    for _ in range(20):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=10 * SLOW)
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head, rest = read_until(c, b"\r\n\r\n").split(b"\r\n\r\n", 1)
        left = int(re.search(rb"content-length: (\d+)", head, re.I)[1]) - len(rest)
        while left:
            left -= len(c.recv(left))
        c.close()
    wait_for("counted", lambda: s.metric("usage_answers_total") == 20)
    assert s.metric("client_gone_total") == 0 and s.metric("requests_total", status="2xx") == 20
