# SPDX-License-Identifier: Apache-2.0
"""Requests of two legs, many of them, while clients leave, mocks are killed and come back, and transfers fail.

    /usr/bin/python3 tests/soak/disagg.py --protocol vllm-nixl --requests 100000 --blocks 2000 --seed 7

Four prefill and four decode mocks and a router. Every answer is compared with that of a mock alone, as a mock's text is a function of the prompt. At
the end nothing may be held by a mock, waited for, or booked by the router, and no mock may have read blocks that were not kept for it. What was done
and what was left behind is one line; the status is 1 when something was. KVROUTE names the program."""
import argparse
import asyncio
import collections
import contextlib
import json
import os
import random
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("KVROUTE", os.path.join(os.path.dirname(ROOT), "build/release/kvroute"))
sys.path.insert(0, os.path.join(ROOT, "e2e"))
from conftest import SLOW, Mock, Serve, call, free_ports  # noqa: E402
from leg_fleets import engine_of, keys_of, options_of  # noqa: E402

SIDES, CLIENTS, PROMPTS, TOKENS = 4, 48, 400, 4
CANCELLED, STREAMED = 0.14, 0.2
KILLS, SAMPLES = 20, 10  # of a run
SETTLE_S = 60
FAULTS = {"prefill": ("--fault-prefill-status", "503", "--fault-count", "3"), "decode": ("--kv-fail-every", "97")}


def prompt_of(i):
    return f"{i:05d} " + "a prompt of some blocks, " * (2 + i % 7)


class Engine:
    """A mock that can be killed and comes back at the same address."""

    def __init__(self, role, o, n):
        self.role, self.port, self.n, self.o = role, free_ports(), n, o
        self.met = free_ports() if role == "prefill" else 0
        self.kills = 0
        self.start()

    def start(self):
        extra = FAULTS[self.role] if self.n == 0 and self.kills == 0 else ()
        self.mock = Mock("--role", self.role, "--kv-protocol", self.o.protocol, "--kv-lease", self.o.lease, "--num-gpu-blocks", self.o.blocks,
                         *(options_of(self.o.protocol, self.met) if self.met else ()), *extra, port=self.port, with_events=False, speedup=1000, expect=None)

    def spec(self):
        keys = keys_of(self.o.protocol, self.port, self.met) if self.met else ""
        return f"http://127.0.0.1:{self.port},role={self.role},block-size=16,kv-protocol={self.o.protocol},kv-lease={self.o.lease}{keys}"

    def come_back(self, router):
        """The name of an engine is another one each time, and with a push that is configured."""
        self.start()
        if self.met and self.o.protocol == "vllm-nixl-push":
            me = next(w["worker_id"] for w in router.get("/workers") if w["endpoint"] == f"http://127.0.0.1:{self.port}")
            a = call(router.admin, "PATCH", f"/workers/{me}", {"kv_engine_id": engine_of(self.port)})
            assert a.status == 200, a.body

    def kill(self):
        self.kills += 1
        self.mock.kill()

    def kv(self):
        return call(self.port, "GET", "/mock/kv").json()


class Client:
    """A connection to the router, of one request after the other."""

    def __init__(self, soak):
        self.soak, self.writer = soak, None

    async def send(self, i, stream):
        if not self.writer:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.soak.router.port)
        self.writer.write(self.soak.message(i, stream))

    def leave(self):
        if self.writer:
            self.writer.transport.abort()
        self.writer = None

    async def answer(self):
        """Returns: status, body. The body of a stream that was broken off lacks its end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lower, status, body = head.lower(), int(head[9:12]), b""
        at = lower.find(b"content-length:")
        if at >= 0:
            body = await self.reader.readexactly(int(head[at + 15:head.index(b"\r\n", at)]))
        else:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while size := int(await self.reader.readline() or b"0", 16):
                    body += (await self.reader.readexactly(size + 2))[:size]
                await self.reader.readline()
        if b"connection: close" in lower:
            self.leave()
        return status, body

    async def cancelled(self, rng):
        """It leaves at once, with the first byte, or when its patience is over."""
        patience = rng.choice((0, 0.001, 0.003, 0.01, 0.05, None))
        if patience != 0:
            with contextlib.suppress(asyncio.TimeoutError, ConnectionError):
                await asyncio.wait_for(self.reader.read(1), patience)
        self.leave()


def text_of(body, stream):
    """The text of an answer, and whether it is all of it; None: an error."""
    if not stream:
        told = json.loads(body)
        return (told["choices"][0]["text"], True) if "choices" in told else (None, True)
    text = ""
    for event in body.split(b"\n\n"):
        if event == b"data: [DONE]":
            return text, True
        if event.startswith(b"data: {"):
            told = json.loads(event[6:])
            if "error" in told:
                return None, True
            text += told["choices"][0]["text"] if told["choices"] else ""
    return text, False


class Soak:
    def __init__(self, o):
        self.o, self.rng = o, random.Random(o.seed)
        self.alone = self.router = None
        self.engines, self.told, self.wrong, self.rss = [], collections.Counter(), [], []
        self.next, self.done = 0, 0
        self.progress = asyncio.Event()  # somebody has got on
        self.right = {}

    def message(self, i, stream):
        body = json.dumps({"prompt": prompt_of(i), "max_tokens": TOKENS, "stream": stream}).encode()
        return b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    def begin(self):
        for role in ("prefill", "decode"):
            for n in range(SIDES):
                self.engines.append(Engine(role, self.o, n))
        self.alone = Mock(with_events=False, speedup=1000)
        for i in range(PROMPTS):
            a = call(self.alone.port, "POST", "/v1/completions", {"prompt": prompt_of(i), "max_tokens": TOKENS})
            self.right[i] = a.json()["choices"][0]["text"]
        self.router = Serve([e.spec() for e in self.engines], "--tokenizer", "bytes", "--log-level", "error", *self.o.serve)
        self.router.up("workers", lambda: all(w["status"] == "up" for w in self.router.get("/workers")), 30)

    def end(self):
        for p in (self.router, *(e.mock for e in self.engines), self.alone):
            if p:
                p.stop()

    def judge(self, i, stream, status, body):
        if status != 200:
            self.told[status] += 1
            return
        text, whole = text_of(body, stream)
        if text is None:
            self.told["error event"] += 1
        elif text == self.right[i] if whole else self.right[i].startswith(text):
            self.told["answered" if whole else "broken off"] += 1
        else:
            self.wrong.append((i, status, text))

    async def one(self, client, plan):
        i, stream, cancelled = plan.randrange(PROMPTS), plan.random() < STREAMED, plan.random() < CANCELLED
        try:
            await client.send(i, stream)
            if cancelled:
                self.told["cancelled"] += 1
                await client.cancelled(plan)
            else:
                self.judge(i, stream, *await client.answer())
        except (OSError, asyncio.IncompleteReadError) as e:
            self.told[type(e).__name__] += 1
            client.leave()

    async def work(self):
        client = Client(self)
        while self.next < self.o.requests:
            self.next += 1
            await self.one(client, random.Random(self.o.seed * 1_000_003 + self.next))
            self.done += 1
            self.progress.set()
        client.leave()

    async def reached(self, n):
        while self.done < n:
            self.progress.clear()
            await self.progress.wait()

    async def harm(self):
        """A mock dies, and is back when a while has gone by."""
        step = self.o.requests / (self.o.kills + 1)
        for k in range(self.o.kills):
            await self.reached(int(step * (k + 0.5)))
            e = self.rng.choice(self.engines)
            e.kill()
            await self.reached(int(step * (k + 1)))
            await asyncio.to_thread(e.come_back, self.router)

    async def measure(self):
        for k in range(SAMPLES):
            await self.reached(self.o.requests * (k + 1) // SAMPLES)
            self.rss.append(self.router.rss_kb() // 1024)

    async def run(self):
        begun = time.monotonic()
        await asyncio.gather(self.harm(), self.measure(), *(self.work() for _ in range(CLIENTS)))
        self.seconds = time.monotonic() - begun

    def left(self):
        """What is held, waited for or booked still."""
        kv = [e.kv() for e in self.engines]
        loads = self.router.get("/loads")
        return {"held": sum(len(k["held"]) for k in kv), "waiting": sum(k["waiting_rooms"] for k in kv),
                "booked": sum(x["active_requests"] + x["active_prefill_tokens"] + x["active_decode_blocks"] for x in loads)}

    async def settle(self):
        """Until nothing is left, or the time for it is over."""
        until, never = time.monotonic() + SETTLE_S * SLOW, asyncio.Event()
        while any((await asyncio.to_thread(self.left)).values()) and time.monotonic() < until:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(never.wait(), 0.05)  # between two looks

    def report(self):
        kv, left = [e.kv() for e in self.engines], self.left()
        bad = sum(k["bad_pulls"] for k in kv)
        counted = {what: int(self.router.metric(f"disagg_{what}_total")) for what in ("leg_retries", "releases", "possible_leaks")}
        print(f"{self.o.protocol} seed {self.o.seed}: {self.o.requests} requests, {self.o.requests / self.seconds:.0f}/s,",
              f"{sum(e.kills for e in self.engines)} kills, told {dict(sorted(self.told.items(), key=str))}, wrong {len(self.wrong)}, bad pulls {bad},",
              f"leases run out {sum(k['released']['expired'] for k in kv)}, {counted}, left {left}, RSS MB {self.rss}", flush=True)
        if self.wrong:
            print("wrong:", self.wrong[:5])
        return not (bad or self.wrong or any(left.values()) or not self.told["answered"])


async def soak(s):
    await s.run()
    await s.settle()


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--protocol", default="vllm-nixl")
    p.add_argument("--requests", type=int, default=100_000)
    p.add_argument("--blocks", type=int, default=2000, help="KV blocks of a mock")
    p.add_argument("--kills", type=int, default=KILLS)
    p.add_argument("--lease", type=int, default=4, help="seconds that a mock keeps what nobody asks for")
    p.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    p.add_argument("serve", nargs="*", help="options of the router, after --")
    return p.parse_args()


def main():
    s = Soak(options())
    try:
        s.begin()
        asyncio.run(soak(s))
        return 0 if s.report() else 1
    finally:
        s.end()


if __name__ == "__main__":
    sys.exit(main())
