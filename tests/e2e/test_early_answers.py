# SPDX-License-Identifier: Apache-2.0
"""Workers that answer before they have read the request: what they go on to read is that request and nothing else."""
import json
import random
import socket
import threading

import pytest

from conftest import Serve, call, wait_for
from http_parts import serve_connections

BIG = 8 << 20
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class EarlyWorker:
    """Answers a POST once it has the head, waits until `go`, and only then reads what there is of the body."""

    def __init__(self, first, last=b""):
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)  # so that most of a body waits in the proxy
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(16)
        self.port, self.first, self.last = self.sock.getsockname()[1], first, last
        self.go, self.read, self.posts, self.ended = threading.Event(), [], 0, 0
        serve_connections(self.sock, self.serve)

    def serve(self, c):
        try:
            while self.exchange(c):
                pass
        except OSError:
            pass
        self.ended += 1
        c.close()

    def exchange(self, c):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            d = c.recv(1)
            if not d:
                return False
            head += d
        if head.startswith(b"GET /health"):
            c.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return True
        if not head.startswith(b"POST"):
            c.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        self.posts += 1
        left = next(int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length"))
        c.sendall(self.first)
        self.go.wait(120)
        body = b""
        try:
            while left:
                d = c.recv(min(left, 1 << 20))
                if not d:
                    break
                body += d
                left -= len(d)
        finally:
            self.read.append(body)
        c.sendall(self.last)
        return not left

    def spec(self):
        return f"http://127.0.0.1:{self.port}"


def prompt(seed, size=BIG):
    """A body whose every part tells whose it is."""
    text = random.Random(seed).randbytes(size // 2).hex()
    return json.dumps({"prompt": text, "stream": True}).encode()


def post(port, body):
    s = socket.create_connection(("127.0.0.1", port), timeout=60)
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return s


def until(s, what):
    got = b""
    while what not in got:
        d = s.recv(65536)
        assert d, got
        got += d
    return got


@pytest.fixture
def early():
    made = []

    def make(*a):
        made.append(EarlyWorker(*a))
        return made[-1]
    yield make
    for w in made:
        w.go.set()
        w.sock.close()


def test_worker_that_streams_before_it_has_read_the_prompt_reads_that_prompt(start, early):
    w = early(STREAM + chunk(b'data: {"choices":[]}\n\n'), chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    s = start(Serve, [w.spec()], "--no-router-kv-events", "--router-mode", "round-robin")
    mine = prompt(1)
    c = post(s.port, mine)
    until(c, b"choices")  # the answer has begun, most of the prompt has not left
    others = [post(s.port, prompt(k)) for k in (2, 3)]  # what is allocated meanwhile
    for o in others:
        until(o, b"choices")
    w.go.set()
    until(c, b"0\r\n\r\n")
    for o in others:
        until(o, b"0\r\n\r\n")
        o.close()
    c.close()
    assert sorted(w.read) == sorted([mine, prompt(2), prompt(3)])


def test_client_that_leaves_while_its_prompt_is_being_sent_leaves_no_stray_bytes(start, early):
    w = early(STREAM + chunk(b'data: {"choices":[]}\n\n'))
    s = start(Serve, [w.spec()], "--no-router-kv-events", "--router-mode", "round-robin")
    mine = prompt(4)
    c = post(s.port, mine)
    until(c, b"choices")
    c.close()
    wait_for("the end of the request", lambda: s.metric("client_gone_total") == 1)
    o = post(s.port, prompt(5))
    until(o, b"choices")
    w.go.set()
    wait_for("what the worker has read", lambda: len(w.read) == 2, 60)
    o.close()
    assert mine.startswith(min(w.read, key=len)) and prompt(5) in w.read


def test_connection_whose_request_is_not_sent_yet_is_not_used_again(start, early):
    w = early(WHOLE)
    s = start(Serve, [w.spec()], "--no-router-kv-events", "--router-mode", "round-robin")
    first = call(s.port, "POST", "/v1/completions", prompt(6))
    assert (first.status, first.body) == (200, b"{}")
    second = call(s.port, "POST", "/v1/completions", b'{"prompt":"x"}')  # would be read as the rest of the first one
    assert (second.status, second.body, w.posts) == (200, b"{}", 2)
    w.go.set()
    wait_for("what the worker has read", lambda: len(w.read) == 2, 60)
    assert b'{"prompt":"x"}' in w.read
    assert prompt(6).startswith(max(w.read, key=len))
