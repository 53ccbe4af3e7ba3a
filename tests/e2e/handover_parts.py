# SPDX-License-Identifier: Apache-2.0
"""Clients that note each request that fails, and what replaces a router beside them."""
import http.client
import json
import socket
import sys
import threading

import pytest

from conftest import SLOW, Mock, Serve, call, wait_for


class Client(threading.Thread):
    """Asks over and over, on connections that it keeps as long as the router does, or a new one each time; a request that fails is noted,
    not asked again."""

    def __init__(self, port, streams=False, fresh=False, pause=0.0):
        super().__init__(daemon=True)
        self.port, self.streams, self.fresh, self.pause = port, streams, fresh, pause
        self.done, self.failed, self.over = 0, [], threading.Event()
        self.start()

    def ask(self, c):
        c.request("POST", "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 4, "stream": self.streams}))
        r = c.getresponse()
        body = r.read()
        whole = body.endswith(b"data: [DONE]\n\n") if self.streams else r.status == 200
        if not whole:
            self.failed.append((r.status, body[-200:]))
        self.done += 1
        if self.fresh:
            c.close()

    def run(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        while not self.over.wait(self.pause):
            try:
                self.ask(c)
            except (OSError, http.client.HTTPException) as e:
                self.failed.append(repr(e))
                c.close()
        c.close()


class Load:
    """Clients of all kinds, which ask without a pause or with one. until(n): so many more answers; end(): none has failed."""

    def __init__(self, port, n=8, pause=0.0):
        self.clients = [Client(port, streams=i % 2 == 1, fresh=i % 4 > 1, pause=pause) for i in range(n)]

    def done(self):
        return sum(c.done for c in self.clients)

    def until(self, n):
        at, each = self.done(), [c.done for c in self.clients]
        wait_for("answers", lambda: self.done() >= at + n and all(c.done > was for c, was in zip(self.clients, each)), 300)

    def end(self):
        for c in self.clients:
            c.over.set()
        for c in self.clients:
            c.join()
            assert not c.failed, c.failed[:3]


LONG_PROMPT = list(range(5000, 5000 + 16 * 100))


def holder_of(s, prompt):
    """Who is asked, by what is known of its cache: all of the prompt but its last block, which no engine reuses whole."""
    r = s.complete(prompt, max_tokens=1)
    assert r.status == 200 and int(r.headers["x-kvroute-overlap-blocks"]) >= len(prompt) // 16 - 1, r.headers
    return int(r.headers["x-kvroute-worker"])


def replaced_in_place(start, tmp_path, requests, pause=0.0):
    """Twice, beside so many requests in all. What engines can say again is their last batch, and the first decisions are right."""
    mocks = [start(Mock, "--kv-buffer-steps", 1) for _ in range(3)]
    args = ("--handover", tmp_path / "ports", "--lame-duck-time", 1, "--threads", 2)
    s = start(Serve, mocks, *args)
    holder = int(s.complete(LONG_PROMPT, max_tokens=1).headers["x-kvroute-worker"])
    wait_for("events", lambda: s.overlap(LONG_PROMPT).get((holder, 0)) == 100)
    for k in range(2):  # a batch each, the second of which takes the place of the first
        for m in mocks:
            call(m.port, "POST", "/v1/completions", {"prompt": [k] * 32, "max_tokens": 1})
        wait_for("views", lambda: all(v["view"] == "whole" and v["blocks"] >= 2 * k + 2 for v in s.views().values()))
    load = Load(s.port, 12, pause)
    for _ in range(2):
        load.until(requests // 4)
        after = start(Serve, mocks, *args, ports=(s.port, s.admin), wait=False)
        taken(s, after)
        assert holder_of(after, LONG_PROMPT) == holder
        assert after.metric("view_takeovers_total") == 3 and ", 0 cut off" in s.text()
        load.until(requests // 4)
        s = after
    if load.done() < requests:
        load.until(requests - load.done())
    load.end()


def taken(before, after):
    assert before.p.wait(60 * SLOW) == 0, after.text()
    wait_for("taken", lambda: "the ports are taken over" in after.text(), 20)


# ---- sockets that systemd keeps ----------------------------------------------------------------------------------------------

LAUNCH = """import os, sys
fds = [os.dup2(int(fd), 100 + i) for i, fd in enumerate(sys.argv[1].split(","))]
for i, fd in enumerate(fds):
    os.dup2(fd, 3 + i)
    os.close(fd)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=sys.argv[2])
os.execv(sys.argv[3], sys.argv[3:])
"""


def activated(names, sockets):
    fds = [s.fileno() for s in sockets]
    return {"under": [sys.executable, "-c", LAUNCH, ",".join(map(str, fds)), ":".join(names)], "fds": fds}


@pytest.fixture
def listening():
    """listening(port): a socket as a socket unit has it."""
    made = []

    def make(port=0, host="127.0.0.1", backlog=4096, shared=False):
        s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind((host, port))
        if backlog:
            s.listen(backlog)
        made.append(s)
        return s
    yield make
    for s in made:
        s.close()


def port_of(s):
    return s.getsockname()[1]


def restarted_by_systemd(start, listening, requests):
    """As `systemctl restart` does it, twice: one ends, and then the next one begins. Who comes between waits, and is answered rightly."""
    mocks = [start(Mock) for _ in range(3)]
    data, admin = listening(), listening()
    run = lambda: start(Serve, mocks, "--threads", 2, ports=(port_of(data), port_of(admin)),  # noqa: E731
                        **activated(["data", "admin"], [data, admin]))
    s = run()
    holder = int(s.complete(LONG_PROMPT, max_tokens=1).headers["x-kvroute-worker"])
    wait_for("events", lambda: s.overlap(LONG_PROMPT).get((holder, 0)) == 100)
    load = Load(port_of(data), 12)
    for _ in range(2):
        load.until(requests // 4)
        s.stop()
        assert ", 0 cut off" in s.text()
        first = []
        asks = threading.Thread(target=lambda: first.append(holder_of(s, LONG_PROMPT)))
        asks.start()  # nobody is there to take it
        s = run()
        asks.join()
        assert first == [holder]
        load.until(requests // 4)
    if load.done() < requests:
        load.until(requests - load.done())
    load.end()
