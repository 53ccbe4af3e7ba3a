# SPDX-License-Identifier: Apache-2.0
"""Two tenants before one fleet: A asks at a steady rate, B floods. What B's flood does to A's time to the first token.

    /usr/bin/python3 tests/soak/tenants.py --seconds 30

Mocks with the timing of an engine, a router with a queue, and five runs: A alone; both in one queue without keys (first come, first served); both
with keys of equal weight; A with four times B's weight; B's key kept to half of the workers (required_taints). Each prints A's median and p99 against
A alone. With --check the status is 1 when the p99 of A in the last run is more than that many times the one of A alone. KVROUTE names the program."""
import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("KVROUTE", os.path.join(os.path.dirname(ROOT), "build/release/kvroute"))
sys.path.insert(0, os.path.join(ROOT, "e2e"))
from conftest import Mock, Serve  # noqa: E402

A, B = "the-key-of-tenant-a", "the-key-of-tenant-b"


def keys(weight_a, apart):
    return f"keys:\n  - {{name: a, key: {A}, weight: {weight_a}}}\n  - {{name: b, key: {B}{', required_taints: [bulk]' if apart else ''}}}\n"


class Client:
    """A connection of one request at a time."""

    def __init__(self, port, key):
        self.port, self.key, self.writer = port, key, None

    async def first_token(self, prompt, max_tokens):
        """Seconds to the first event of the stream; None: it was refused, or broken off."""
        if not self.writer:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({"model": "mock", "prompt": prompt, "max_tokens": max_tokens, "stream": True}).encode()
        self.writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\n"
                          b"Content-Length: %d\r\n\r\n%s" % (self.key.encode(), len(body), body))
        began, first, text = time.monotonic(), None, b""
        while not text.endswith(b"0\r\n\r\n"):
            more = await self.reader.read(65536)
            if not more:
                self.writer = None
                return None
            text += more
            if first is None and b"data: " in text:
                first = time.monotonic() - began
            if first is None and b" 200 " not in text[:20]:
                self.close()
                return None
        return first

    def close(self):
        if self.writer:
            self.writer.close()
        self.writer = None


async def steady(o, router, times, rng, until):
    """Requests at moments that do not depend on the answers."""
    free, tasks = [], set()

    async def one(prompt):
        c = free.pop() if free else Client(router.port, A)
        t = await c.first_token(prompt, o.output)
        free.append(c)
        times.append(t)
    while time.monotonic() < until:
        await asyncio.sleep(rng.expovariate(o.rate_a))
        tasks.add(asyncio.create_task(one([rng.randrange(100, 30000) for _ in range(o.tokens_a)])))
    await asyncio.gather(*tasks)
    for c in free:
        c.close()


async def flood(o, router, rng, until, served):
    """One of B's many clients: asks again as soon as it is answered."""
    c = Client(router.port, B)
    with contextlib.suppress(asyncio.CancelledError, OSError):
        while time.monotonic() < until:
            if await c.first_token([rng.randrange(100, 30000) for _ in range(o.tokens_b)], o.output) is not None:
                served.append(1)
    c.close()


async def load(o, router, floods):
    rng, times, served = random.Random(o.seed), [], []
    until = time.monotonic() + o.seconds
    b = [asyncio.create_task(flood(o, router, random.Random(f"{o.seed}/{i}"), until + 1, served)) for i in range(o.clients_b if floods else 0)]
    await steady(o, router, times, rng, until)
    for t in b:
        t.cancel()
    await asyncio.gather(*b)
    return times, len(served)


def run(o, name, weight_a, floods, apart=False):
    with contextlib.ExitStack() as stack:
        def started(p):
            stack.callback(p.kill)
            return p
        mocks = [started(Mock("--max-num-batched-tokens", o.batch, "--max-num-seqs", o.seqs, with_events=False, speedup=o.speedup, expect=None)) for _ in range(o.workers)]
        flags = ["--no-router-kv-events", "--router-queue-threshold", o.threshold, "--queue-timeout", 600]
        if o.requests:
            flags += ["--router-queue-requests", o.requests]
        if weight_a:
            f = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".yaml"))
            f.write(keys(weight_a, apart))
            f.flush()
            flags += ["--api-key-file", f.name]
        router = started(Serve([f"{m.spec()},max-num-batched-tokens={o.batch}" + (",taint=bulk" if i < o.workers // 2 else "") for i, m in enumerate(mocks)], *flags, expect=None))
        times, served = asyncio.run(load(o, router, floods))
    good = sorted(t * 1000 for t in times if t is not None)
    figures = {"name": name, "n": len(good), "lost": len(times) - len(good), "p50": good[len(good) // 2], "p99": good[int(len(good) * 0.99)], "b": served / o.seconds}
    return figures


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind, value in (("seconds", float, 20), ("seed", int, 7), ("workers", int, 2), ("speedup", float, 1), ("batch", int, 2048), ("seqs", int, 256),
                              ("threshold", float, 0), ("requests", int, 0), ("rate-a", float, 4), ("tokens-a", int, 2000), ("tokens-b", int, 500), ("clients-b", int, 64),
                              ("output", int, 4), ("check", float, 0)):
        p.add_argument(f"--{name}", type=kind, default=value)
    o = p.parse_args()
    runs = [("A alone", 1, False), ("one queue, no keys", 0, True), ("keys, equal weights", 1, True), ("keys, A 4 : B 1", 4, True), ("B on half of them", 1, True, True)]
    alone = None
    print(f"{'':22}{'A: n':>6}{'lost':>6}{'p50 ms':>9}{'p99 ms':>9}{'p99 / alone':>13}{'B: req/s':>10}")
    for name, *how in runs:
        f = run(o, name, *how)
        alone = alone or f
        ratio = f["p99"] / alone["p99"]
        print(f"{name:22}{f['n']:6}{f['lost']:6}{f['p50']:9.1f}{f['p99']:9.1f}{ratio:13.2f}{f['b']:10.1f}", flush=True)
    return 1 if o.check and (ratio > o.check or f["lost"]) else 0


if __name__ == "__main__":
    sys.exit(main())
