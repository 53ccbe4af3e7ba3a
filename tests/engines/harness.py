# SPDX-License-Identifier: Apache-2.0
"""What tests of real engines are made of: the router's process and plain calls from the end-to-end tests, engines from scripts/engines,
and the comparison of what the router predicted with what the engine says it reused."""
import http.client
import importlib.util
import json
import os
import random
import struct
import sys
import time

import msgpack
import zmq

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
os.environ.setdefault("KVROUTE", os.path.join(ROOT, "build/release/kvroute"))
sys.path.insert(0, os.path.join(ROOT, "scripts/engines"))

from engine import ADAPTER, BLOCK, DIR, Engine, stop_all  # noqa: E402,F401  pylint: disable=wrong-import-position,unused-import


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sys.path.append(os.path.join(ROOT, "tests/e2e"))  # behind: both have a conftest
_parts = _load("e2e_parts", os.path.join(ROOT, "tests/e2e/conftest.py"))
Process, Serve, Answer, call, wait_for, free_ports = (
    _parts.Process, _parts.Serve, _parts.Answer, _parts.call, _parts.wait_for, _parts.free_ports)
Leg = _load("leg_parts", os.path.join(ROOT, "tests/e2e/leg_parts.py")).Leg
Mock, Indexer, Publish, Select = _parts.Mock, _parts.Indexer, _parts.Publish, _parts.Select
wait_until = wait_for
# Seconds for which a prefill engine keeps a prompt: a transfer may take half a minute where other programs have the cores, and a prompt that is let
# go of earlier was not forgotten.
LEASE = 900


class Attached:
    """An engine that somebody else started and will end."""

    def __init__(self, url, block=BLOCK):
        self.url, self.port, self.block = url, int(url.rsplit(":", 1)[1]), block
        sources = call(self.port, "GET", "/kv_event_sources").json()
        self.ranks = len(sources)
        self.events, self.replay = (int(sources["0"][k].rsplit(":", 1)[1]) for k in ("endpoint", "replay_endpoint"))
        self.api_key, self.with_events = None, True

    spec = Engine.spec


class Watch:
    """Hears an engine's events beside the router, to know when the router has heard all that there is to hear.

    Per rank: `seq`, the last number that was heard (-1: none), `stored` and `removed`, blocks so far; `told`: tokens of each store. Hears what is published after it was
    made; seq is asked from the replay endpoint before."""

    def __init__(self, engine, ctx):
        self.engine, self.subs, self.told = engine, [], set()
        self.seq, self.stored, self.removed, self.frames = ({r: 0 for r in range(engine.ranks)} for _ in range(4))
        for r in range(engine.ranks):
            s = ctx.socket(zmq.SUB)
            s.linger, s.rcvhwm = 0, 0
            s.subscribe(b"")
            s.connect(f"tcp://127.0.0.1:{engine.events + r}")
            self.subs.append(s)
            self.seq[r], self.frames[r] = self.ask_last(ctx, r), []

    def ask_last(self, ctx, rank):
        last = -1
        for seq, _ in replay(ctx, self.engine, rank):
            last = seq
        return last

    def drain(self):
        for r, s in enumerate(self.subs):
            while s.poll(0):
                frames = s.recv_multipart()
                self.frames[r].append(frames)
                self.seq[r] = struct.unpack(">Q", frames[1])[0]
                for e in msgpack.unpackb(frames[2], strict_map_key=False)[1]:
                    tag, hashes = (e["type"], e.get("block_hashes", ())) if isinstance(e, dict) else (e[0], e[1] if len(e) > 1 else ())
                    if tag == "BlockStored":
                        self.stored[r] += len(hashes)
                        self.told.add(tuple(e["token_ids"] if isinstance(e, dict) else e[3]))
                    elif tag == "BlockRemoved":
                        self.removed[r] += len(hashes)
        return self

    def fence(self):
        """Waits until all events of what the engine has answered so far are heard: those of a request of its own come after them."""
        prompt = tokens(time.monotonic(), self.engine.block + 1)
        assert post(self.engine, "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 1}).status == 200
        wait_until("the fence's event", lambda: tuple(prompt[:-1]) in self.drain().told, 20)

    def catch_up(self):
        """Waits until what the engine had to publish by now is heard, without a request that would change its cache. The engine's publisher is one
        thread that in turns answers one question for a replay and publishes one batch: the batch of a request's last step, which may still wait
        for it when the request is answered, is published before the second question is answered, and the third answer has it."""
        for r, ctx in enumerate(s.context for s in self.subs):
            for start in (1 << 62, 1 << 62, self.seq[r] + 1):
                news = replay(ctx, self.engine, r, start)
            if news:
                wait_until("the last events", lambda r=r, last=news[-1][0]: self.drain().seq[r] >= last, 20)
        return self

    def close(self):
        for s in self.subs:
            s.close()


def replay(ctx, engine, rank=0, start=0, timeout=5):
    """All batches that the engine's replay buffer has from `start` on: [(sequence, payload)]."""
    d = ctx.socket(zmq.DEALER)
    d.linger = 0
    d.connect(f"tcp://127.0.0.1:{engine.replay + rank}")
    out = []
    try:
        d.send_multipart([b"", struct.pack(">Q", start)])
        while True:
            assert d.poll(timeout * 1000), "the replay endpoint does not answer"
            frames = d.recv_multipart()[-2:]
            if frames[0] == b"\xff" * 8:
                return out
            out.append((struct.unpack(">Q", frames[0])[0], frames[1]))
    finally:
        d.close()


def heard(serve, watches, worker_of=lambda i: i + 1):
    """Whether the router has taken in all events that the watches have heard."""
    views = serve.views()
    for i, w in enumerate(watches):
        w.drain()
        for r, seq in w.seq.items():
            if views.get((worker_of(i), r), {}).get("next_sequence", 0) < seq + 1:
                return False
    return True


def blocks(serve):
    """Of all views."""
    return sum(v["blocks"] for v in serve.views().values())


def words(seed, n):
    """n words that no other seed gives: a prompt of a bit more than n tokens."""
    rng = random.Random(seed)
    return " ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 5))) for _ in range(n))


def tokens(seed, n):
    """n token numbers that no other seed gives, for the tiny models."""
    rng = random.Random(seed)
    return [rng.randrange(4, 2000) for _ in range(n)]


def post(to, path, body, headers=None, timeout=60):
    """POST of a JSON body to a router (or an engine, by its port)."""
    return call(to.port, "POST", path, body, headers, timeout)


def scrape(engine, name):
    """Sum of a metric of the engine's, over its ranks."""
    lines = call(engine.port, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


def stream_and_hang_up(to, path, body, last=b"data: [DONE]", timeout=60):
    """Reads a stream until its last line and closes the connection in the same moment, as OpenAI's Python client does."""
    c = http.client.HTTPConnection("127.0.0.1", to.port, timeout=timeout)
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        read = b""
        while last not in read:
            more = r.read1(65536)
            if not more:
                break
            read += more
        return Answer(r.status, {k.lower(): v for k, v in r.getheaders()}, read)
    finally:
        c.close()


def pieces(answer):
    """The JSON objects of a streamed answer."""
    return [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: ") and line[6:] != "[DONE]"]


def usage(answer):
    """The usage that the answer ends with, in whichever dialect, or None."""
    streamed = "text/event-stream" in answer.headers.get("content-type", "")
    found = None
    for o in pieces(answer) if streamed else [answer.json()]:
        for holder in (o, o.get("response") or {}, o.get("message") or {}):
            if isinstance(holder, dict) and holder.get("usage"):
                found = {**(found or {}), **{k: v for k, v in holder["usage"].items() if v is not None}}
    return found


def cached(answer):
    """Prompt tokens that the engine says it found in its cache. An engine that tells them leaves the member out when there were none."""
    u = usage(answer)
    assert u is not None, f"no usage in {answer.status} {answer.body[-300:]!r}"
    if "cache_read_input_tokens" in u:  # /v1/messages
        return u["cache_read_input_tokens"]
    details = u.get("prompt_tokens_details") or u.get("input_tokens_details") or {}
    return details.get("cached_tokens") or 0


def prompt_tokens(answer):
    u = usage(answer)
    if "prompt_tokens" in u:
        return u["prompt_tokens"]
    return u["input_tokens"] + u.get("cache_read_input_tokens", 0) + u.get("cache_creation_input_tokens", 0)  # /v1/messages divides them


def output_tokens(answer):
    u = usage(answer)
    return u["completion_tokens"] if "completion_tokens" in u else u["output_tokens"]


def predicted(answer, block=BLOCK):
    """Tokens that the router expected to be cached, from its header. An engine computes at least one token: a prompt that is held as a whole
    counts one block less. None: it said nothing."""
    if "x-kvroute-overlap-blocks" not in answer.headers:
        return None
    blocks = int(answer.headers["x-kvroute-overlap-blocks"])
    n = prompt_tokens(answer)
    return min(blocks * block, (n - 1) // block * block)


def worker(answer):
    return int(answer.headers["x-kvroute-worker"])
