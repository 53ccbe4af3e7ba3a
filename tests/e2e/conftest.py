# SPDX-License-Identifier: Apache-2.0
"""Real processes for end-to-end tests: mock engines, the router, and plain sockets to speak to them.

KVROUTE names the binary under test. Every port is free when it is taken; every wait has a deadline; everything that
a test starts is stopped by its fixture, and a sanitizer's report or a wrong exit code fails the test."""
import http.client
import json
import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import tempfile
import time
import urllib.parse

import msgpack
import pytest
import xxhash
import zmq

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts"))
from http_parts import Handler, HttpServer
import openapi_parts
from ports import free_ports

# Of all servers of tests: with the 5 that Python has, connections are reset when twenty come at once on a busy machine.
socketserver.TCPServer.request_queue_size = 256
BINARY = os.environ.get("KVROUTE", os.path.join(os.path.dirname(__file__), "../../build/asan/kvroute"))
SLOW = float(os.environ.get("KVROUTE_SLOW", "1"))  # sanitizers are slower
# Freed memory is kept back by the address sanitizer; little of it, so that memory can be judged.
os.environ.setdefault("ASAN_OPTIONS", "quarantine_size_mb=8:handle_sigill=2")
os.environ.setdefault("KVROUTE_LAME_DUCK_TIME", "0")  # no balancer watches what tests stop


def wait_for(what, check, timeout=10.0):
    """Waits until check() is true and returns its value."""
    deadline = time.monotonic() + timeout * SLOW
    last, pause = None, 0.005
    while time.monotonic() < deadline:
        try:
            last = check()
            if last:
                return last
        except (OSError, http.client.HTTPException, AssertionError, LookupError) as e:  # of the last: what is looked at is not listed yet
            last = e
        time.sleep(pause)  # between two looks, which cost the one who is looked at something too
        pause = min(pause * 1.3, 0.05)
    raise AssertionError(f"timed out waiting for {what}; last: {last!r}")


def freeze(p):
    """Stops a process; it does nothing more once this returns."""
    p.send_signal(signal.SIGSTOP)
    tasks = f"/proc/{p.pid}/task"
    wait_for("it stands still", lambda: all(open(f"{tasks}/{t}/stat").read().rsplit(")", 1)[1].split()[0] in "TZ" for t in os.listdir(tasks)))


def stays(what, check, seconds):
    """Asserts that check() is true, over and over, for that long: where the passing of time is what is tested."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert check(), f"no longer: {what}"
        time.sleep(0.05)  # between two looks, which cost something too


class ScriptedServer(HttpServer):
    """An HTTP server that answers GET with what `script` returns for the query: bytes, a dict, or a status (with `no` as its body)."""

    def __init__(self, script, path=""):
        self.script, self.asked, self.headers = script, [], []
        scripted = self

        class Answers(Handler):
            protocol_version = "HTTP/1.0"

            def do_GET(self):
                query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
                scripted.headers.append(dict(self.headers))
                scripted.asked.append(query)
                told = scripted.script(query)
                self.answer(told if isinstance(told, int) else 200, b"no" if isinstance(told, int) else told)
        super().__init__(Answers)
        self.url += path


def read_log(file):
    """All that has been written to a file that processes write to. It is read without moving its place, which they share with us: what
    one of them wrote meanwhile would be written over."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")


class Process:
    def __init__(self, *args, expect=0, env=None, limits=(), under=(), fds=()):
        self.args = [BINARY, *map(str, args)]
        openapi_parts.note_ports(args)
        self.log = tempfile.TemporaryFile("w+")
        self.expect = expect
        # limits: (resource, value) of setrlimit, for the process alone; under: a command that becomes it; fds: what it inherits
        limit = ["prlimit", *(f"--{what}={value}" for what, value in limits)] if limits else []
        self.p = subprocess.Popen([*under, *limit, *self.args], stdout=self.log, stderr=subprocess.STDOUT, pass_fds=fds,
                                  env={**os.environ, **(env or {})})

    def text(self):
        return read_log(self.log)

    def up(self, what, check, timeout=10.0):
        """Waits for what it says of itself at the start. One that ends, or takes too long, is ended, and its last words are told."""
        try:
            wait_for(what, lambda: self.p.poll() is not None or check(), timeout)
            if self.p.poll() is None:
                return
            why = f"{what}: ended with {self.p.returncode}"
        except AssertionError as e:
            why = str(e)
        self.kill()
        raise AssertionError(f"{why}\n{' '.join(self.args)}\n{self.text()[-4000:]}")

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()
        self.expect = None

    def stop(self, timeout=20):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
        try:
            self.p.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()
            raise AssertionError(f"did not stop on SIGTERM: {' '.join(self.args)}\n{self.text()}")
        text = self.text()
        assert "Sanitizer" not in text, text
        assert self.expect is None or self.p.returncode == self.expect, f"exit {self.p.returncode}: {text}"

    def rss_kb(self):
        with open(f"/proc/{self.p.pid}/status") as f:
            return int(next((l for l in f if l.startswith("VmRSS")), "- 0").split()[1])  # 0: it has ended


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


SPEAKS_TLS = {}  # port -> the ssl.SSLContext by which call() speaks to it


def call(port, method, path, body=None, headers=None, timeout=30):
    """A body is JSON unless the headers say something else."""
    tls = SPEAKS_TLS.get(port)
    c = (http.client.HTTPSConnection("127.0.0.1", port, timeout=timeout * SLOW, context=tls) if tls else
         http.client.HTTPConnection("127.0.0.1", port, timeout=timeout * SLOW))
    try:
        data = body if isinstance(body, (bytes, str, type(None))) else json.dumps(body)
        said = any(k.lower() == "content-type" for k in headers or {})
        c.request(method, path, data, {**({} if data is None or said else {"Content-Type": "application/json"}), **(headers or {})})
        r = c.getresponse()
        answer = Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, r.read())
    finally:
        c.close()
    openapi_parts.judge(port, method, path, answer)
    return answer


class Mock(Process):
    def __init__(self, *extra, port=None, events=None, replay=None, dp=1, speedup=50, with_replay=True, with_events=True, details=True, tls=None, **kw):
        self.port = port or free_ports()
        SPEAKS_TLS[self.port] = tls
        self.dp = dp
        self.events = events or free_ports(dp)
        self.replay = replay or free_ports(dp)
        self.with_replay, self.with_events = with_replay, with_events
        args = ["mock", "--port", self.port, "--speedup-ratio", speedup, "--dp-size", dp]
        if details:
            args.append("--enable-prompt-tokens-details")
        if with_events:
            args += ["--kv-events", f"tcp://127.0.0.1:{self.events}"]
            if with_replay:
                args += ["--kv-replay", f"tcp://127.0.0.1:{self.replay}"]
        super().__init__(*args, *extra, **kw)
        self.up("mock", lambda: call(self.port, "GET", "/health").status in (200, 503))

    def spec(self, extra=""):
        s = f"{'https' if SPEAKS_TLS[self.port] else 'http'}://127.0.0.1:{self.port}"
        if self.with_events:
            s += f",events=tcp://127.0.0.1:{self.events}"
            if self.with_replay:
                s += f",replay=tcp://127.0.0.1:{self.replay}"
        if self.dp > 1:
            s += f",dp-size={self.dp}"
        return s + extra

    def metric(self, name):
        total = 0
        for line in call(self.port, "GET", "/metrics").body.decode().splitlines():
            if line.startswith(name + "{"):
                total += float(line.split()[-1])
        return total


class Serve(Process):
    def __init__(self, workers, *extra, ready=True, ports=None, wait=True, tls=None, admin_tls=None, **kw):
        self.port, self.admin = ports or (free_ports(), free_ports())
        SPEAKS_TLS.update({self.port: tls, self.admin: admin_tls})
        args = ["serve", "--host", "127.0.0.1", "--port", self.port, "--admin-port", self.admin, "--health-interval", 0.3, "--health-timeout", 10]  # looked at often; a busy machine's worker is not down
        for w in workers:
            args += ["--worker", w if isinstance(w, str) else w.spec()]
        if "--use-remote-indexer" in extra:  # not 0.1 s, which a busy machine may take; a test of slow ones gives its own
            args += ["--remote-indexer-timeout", 2]
        super().__init__(*args, *extra, **kw)
        if not wait:  # it is not expected to start
            return
        self.up("serve", lambda: call(self.port, "GET", "/health").status == 200)
        if ready:
            self.up("ready", lambda: call(self.port, "GET", "/ready").status == 200, 20)

    def complete(self, prompt, max_tokens=2, headers=None, **body):
        return call(self.port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": max_tokens, **body}, headers)

    def get(self, path):
        return call(self.admin, "GET", path).json()

    def post(self, path, body):
        return call(self.admin, "POST", path, body)

    def metric(self, name, **labels):
        """Sum of a metric's samples that have these labels."""
        total = 0.0
        for line in call(self.admin, "GET", "/metrics").body.decode().splitlines():
            if line.startswith(f"kvroute_{name}{{") or line.startswith(f"kvroute_{name} "):
                if all(f'{k}="{v}"' in line for k, v in labels.items()):
                    total += float(line.split()[-1])
        return total

    def views(self):
        return {(w["worker_id"], v["dp_rank"]): v for w in self.get("/workers") for v in w["views"]}

    def view(self, worker=1, rank=0):
        return self.views().get((worker, rank), {"blocks": 0, "trusted": False})  # none yet

    def idle(self):
        """No load is booked anywhere."""
        return all(l["active_prefill_tokens"] == 0 and l["active_decode_blocks"] == 0 and l["active_requests"] == 0
                   for l in self.get("/loads"))

    def overlap(self, tokens, **more):
        r = self.post("/overlap_scores", {"token_ids": tokens, **more})
        assert r.status == 200, r.body
        return {(w["worker_id"], w["dp_rank"]): w["device_blocks"] for w in r.json()["workers"]}


class Engine:
    """A hand-driven KV event publisher in vLLM's framing, with replay."""

    def __init__(self, ctx, events=None, replay=None, topic=False):
        self.events, self.replay_port = events or free_ports(), replay or free_ports()
        self.pub = ctx.socket(zmq.XPUB)
        self.pub.linger = 0
        self.pub.sndhwm = 0
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.subscriptions = 0
        self.pub.bind(f"tcp://127.0.0.1:{self.events}")
        self.router = ctx.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.bind(f"tcp://127.0.0.1:{self.replay_port}")
        self.seq, self.sent, self.topic = 0, [], topic

    def close(self):
        self.pub.close()
        self.router.close()

    def subscribed(self):
        """How many subscriptions have arrived so far: a subscriber that is connected may still miss what is sent before its own."""
        while self.pub.poll(0):
            self.subscriptions += self.pub.recv()[:1] == b"\1"
        return self.subscriptions

    def heard_by(self, n):
        """Waits until so many subscriptions have arrived in all: from then on what is sent reaches them."""
        wait_for(f"{n} subscriptions", lambda: self.subscribed() >= n)

    def batch(self, *events, rank=0):
        return msgpack.packb([time.time(), list(events), rank])

    def send(self, payload, seq=None, drop=False, keep=True):
        if seq is None:
            seq = self.seq
            self.seq += 1
        if keep:
            self.sent.append((seq, payload))
        if not drop:
            self.pub.send_multipart([b"", struct.pack(">Q", seq), payload])
        return seq

    def stored(self, names, tokens, parent=None, block_size=4, **kw):
        self.send(self.batch(["BlockStored", names, parent, tokens, block_size, None, "GPU", None]), **kw)

    def removed(self, names, **kw):
        self.send(self.batch(["BlockRemoved", names, "GPU"]), **kw)

    def cleared(self, **kw):
        self.send(self.batch(["AllBlocksCleared"]), **kw)

    def serve_replay(self, timeout=0.05):
        """Answers replay requests that wait; returns the starts that were asked for."""
        starts = []
        while self.router.poll(timeout * 1000):
            identity, empty, start = self.router.recv_multipart()
            (start,) = struct.unpack(">Q", start)
            starts.append(start)
            head = [identity, b""] + ([b""] if self.topic else [])
            for seq, payload in self.sent:
                if seq >= start:
                    self.router.send_multipart(head + [struct.pack(">Q", seq), payload])
            self.router.send_multipart(head + [b"\xff" * 8, b""])
        return starts

    def until(self, what, check, timeout=10):
        """Answers replay requests until check() is true."""
        def step():
            self.serve_replay(0.005)
            return check()
        return wait_for(what, step, timeout)


def local_hashes(tokens, bs, seed=1337):
    return [xxhash.xxh3_64_intdigest(struct.pack(f"<{bs}I", *tokens[i:i + bs]), seed) for i in range(0, len(tokens) - bs + 1, bs)]


def started():
    made = []

    def make(cls, *args, **kw):
        p = cls(*args, **kw)
        made.append(p)
        return p
    yield make
    errors = []
    for p in reversed(made):
        try:
            p.stop()
        except AssertionError as e:
            errors.append(str(e))
        print(f"--- {' '.join(p.args[1:])}\n{p.text()[-4000:]}")  # shown when the test fails
    assert not errors, "\n".join(errors)


@pytest.fixture
def start():
    """start(Class, ...) makes a process that is stopped, and checked, at the end of the test."""
    yield from started()


@pytest.fixture(scope="module")
def start_once():
    """As `start`, for processes that the tests of a file share: those that change nothing in them."""
    yield from started()


@pytest.fixture
def zctx():
    ctx = zmq.Context()
    yield ctx
    ctx.destroy(linger=0)


@pytest.fixture
def engine(zctx):
    made = []

    def make(**kw):
        e = Engine(zctx, **kw)
        made.append(e)
        return e
    yield make
    for e in made:
        e.close()


@pytest.fixture
def fleet(start):
    """Two mocks and a router."""
    mocks = [start(Mock), start(Mock)]
    return start(Serve, mocks), mocks


@pytest.fixture(scope="module")
def the_fleet(start_once):
    mocks = [start_once(Mock), start_once(Mock)]
    return start_once(Serve, mocks), mocks


@pytest.fixture
def same_fleet(the_fleet):
    """A fleet for requests that change nothing: the tests of a file share it."""
    yield the_fleet
    for p in (the_fleet[0], *the_fleet[1]):
        print(f"--- {' '.join(p.args[1:])}\n{p.text()[-4000:]}")  # shown when the test fails


@pytest.fixture
def legs():
    """legs(script) makes a worker of one leg (leg_parts.py)."""
    import leg_parts  # not by those who load this file alone
    made = []

    def make(script):
        made.append(leg_parts.Leg(script))
        return made[-1]
    yield make
    for leg in made:
        leg.close()


@pytest.fixture
def pair(legs, start):
    """Two prefill workers, two decode workers (scripts), and a router over them."""
    import leg_parts

    def make(*options, prefill=leg_parts.prefills, decode=leg_parts.decodes, keys=(), n=2):
        ps, ds = [legs(prefill) for _ in range(n)], [legs(decode) for _ in range(n)]
        s = start(Serve, [p.spec("prefill", *keys) for p in ps] + [d.spec("decode", *keys) for d in ds], *options)
        wait_for("all workers", lambda: all(w["status"] == "up" for w in s.get("/workers")))
        return s, ps, ds
    return make


def read_sse(port, body, headers=None, until=None, path="/v1/completions"):
    """Opens a stream; returns (connection, response) with headers read."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=30 * SLOW)
    c.request("POST", path, json.dumps(body), headers or {})
    return c, c.getresponse()


class Indexer(Process):
    def __init__(self, *extra, port=None, ready=True, key=None, plain=True, **kw):
        self.port, self.key = port or free_ports(), key
        super().__init__("indexer", "--port", self.port, *extra, **kw)
        if not plain:  # speaks TLS: the test itself waits
            return
        wait_for("indexer", lambda: self.p.poll() is not None or call(self.port, "GET", "/health").status == 200)
        if ready:
            wait_for("ready", lambda: call(self.port, "GET", "/ready").status == 200, 20)

    def call(self, method, path, body=None, headers=None):
        h = {"Content-Type": "application/json"} if body is not None else {}
        if self.key:
            h["Authorization"] = f"Bearer {self.key}"
        return call(self.port, method, path, body, {**h, **(headers or {})})

    def post(self, path, body=None, status=200):
        r = self.call("POST", path, {} if body is None else body)
        assert r.status == status, (r.status, r.body)
        return r.json()

    def get(self, path, status=200):
        r = self.call("GET", path)
        assert r.status == status, (r.status, r.body)
        return r.json()

    def register(self, i, engine, rank=None, replay=True, model="m", block_size=4, status=201, **more):
        body = {"instance_id": i, "endpoint": f"tcp://127.0.0.1:{engine.events}", "model_name": model, "block_size": block_size, **more}
        if replay:
            body["replay_endpoint"] = f"tcp://127.0.0.1:{engine.replay_port}"
        if rank is not None:
            body["dp_rank"] = rank
        return self.post("/register", body, status)

    def listeners(self):
        return {(w["instance_id"], int(r)): l for w in self.get("/workers") for r, l in w["listeners"].items()}

    def trusted(self):
        ls = self.listeners()
        return bool(ls) and all(l["trusted"] for l in ls.values())

    def whole(self):
        ls = self.listeners()
        return bool(ls) and all(l["view"] == "whole" for l in ls.values())

    def scores(self, tokens, model="m", **more):
        r = self.post("/query", {"token_ids": tokens, "model_name": model, **more})
        return {(int(i), int(k)): n for i, ranks in r["scores"].items() for k, n in ranks.items()}

    def metric(self, name):
        total = 0.0
        for line in self.call("GET", "/metrics").body.decode().splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                total += float(line.split()[-1])
        return total


class Publish(Process):
    """The sidecar of one engine: a Mock or a hand-driven Engine."""

    def __init__(self, engine, *extra, port=None, out=None, with_replay=True, dp=1, block_size=16, learns_ranks=False, **kw):
        self.port, self.out, self.dp = port or free_ports(), out or free_ports(dp), dp
        replay = engine.replay if isinstance(engine, Mock) else engine.replay_port
        args = ["publish", "--host", "127.0.0.1", "--port", self.port, "--events", f"tcp://127.0.0.1:{engine.events}",
                "--publish", f"tcp://127.0.0.1:{self.out}", "--restore-timeout", 2]
        args += ([] if learns_ranks else ["--dp-size", dp]) + ([] if block_size is None else ["--block-size", block_size])
        if with_replay:
            args += ["--replay", f"tcp://127.0.0.1:{replay}"]
        super().__init__(*args, *extra, **kw)
        wait_for("publish", lambda: call(self.port, "GET", "/health").status == 200)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/kv_recover"

    def source(self):
        """What a router is told of it."""
        return f",events=tcp://127.0.0.1:{self.out},recover={self.url}" + (f",dp-size={self.dp}" if self.dp > 1 else "")

    def recover(self, **query):
        r = call(self.port, "GET", "/kv_recover?" + "&".join(f"{k}={v}" for k, v in query.items()))
        return r.status, r.json()

    def status(self, rank=0):
        return call(self.port, "GET", "/status").json()["ranks"][rank]


class Select(Process):
    """The selection service. It has Serve's questions, on its one port."""

    def __init__(self, *extra, **kw):
        self.port = self.admin = free_ports()
        super().__init__("select", "--host", "127.0.0.1", "--port", self.port, *extra, **kw)
        wait_for("select", lambda: self.p.poll() is not None or call(self.port, "GET", "/health").status == 200)

    get, post, metric, views = Serve.get, Serve.post, Serve.metric, Serve.views
    idle, overlap, view = Serve.idle, Serve.overlap, Serve.view

    def ask(self, path, body=None, status=200, method="POST", headers=None):
        r = call(self.port, method, path, body, headers)
        assert r.status == status, (r.status, r.body)
        return r.json() if r.body else None

    def worker(self, i, block_size=4, status=201, **more):
        return self.ask("/workers", {"worker_id": i, "endpoint": f"http://10.0.0.{i}:8000", "block_size": block_size, **more}, status)

    def loads(self):
        return {(l["worker_id"], l["dp_rank"]): (l["active_prefill_tokens"], l["active_decode_blocks"], l["active_requests"])
                for l in self.get("/loads")}
