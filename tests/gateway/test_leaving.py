# SPDX-License-Identifier: Apache-2.0
"""A client, an engine or Envoy itself leaves, at any moment: nothing stays booked, and no stream open."""
import asyncio
import collections
import contextlib
import json
import os
import random
import signal
import socket
import struct
import time

import leg_parts
from clients import one, post, read_body, read_head
from conftest import SLOW, Envoy, Mock, wait_for
from test_refusals import BUSY, occupy, slow, specs

CHANGED = 0.1  # seconds until /loads is zero, of a machine that has the time


RESETS = socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)  # when it is closed


def leave(c):
    """As a client that is killed: with a reset."""
    c.setsockopt(*RESETS)
    c.close()


def begin(envoy, body, part=1.0, path="/v1/completions"):
    """Sends a request, or a part of its body. Returns: the socket."""
    data = json.dumps(body).encode()
    c = socket.create_connection(("127.0.0.1", envoy.port), timeout=60)
    c.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data[:int(len(data) * part)])
    return c


def gone(envoy, picker, booked=0):
    wait_for("nothing booked", lambda: picker.booked() == booked)
    wait_for("no stream", lambda: envoy.asking() == booked)


def test_while_it_uploads(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock)])
    c = begin(envoy, {"prompt": "x" * 100000}, 0.5)
    wait_for("seen", lambda: envoy.asking() == 1)
    assert picker.booked() == 0
    leave(c)
    gone(envoy, picker)


def test_while_its_prompt_is_tokenised(gateway, legs, mode):
    def script(n, body):
        return leg_parts.HANG
    leg = legs(script)  # hangs at /tokenize, and at everything else
    envoy, picker = gateway(mode, [leg.spec("both", "block-size=16")], listed=[leg.port])
    c = begin(envoy, {"prompt": "a text whose tokens the engine makes", "max_tokens": 2, "model": "m"})
    wait_for("asked", lambda: leg.n == 1)
    assert picker.booked() == 0
    leave(c)
    gone(envoy, picker)
    wait_for("the question is given up", leg.gone.is_set)


def test_while_it_is_queued(gateway, start, mode):
    mocks = slow(start)
    envoy, picker = gateway(mode, specs(mocks), *BUSY, listed=mocks)
    held = occupy(envoy, picker)
    waiting = [begin(envoy, {"prompt": [i] * 50, "max_tokens": 1}) for i in range(8)]
    wait_for("queued", lambda: picker.metric("router_queue_pending_requests") == 8)
    for c in waiting:
        leave(c)
    wait_for("out of the queue", lambda: picker.metric("router_queue_pending_requests") == 0)
    gone(envoy, picker, 1)
    for c in held:
        c.close()
    gone(envoy, picker)


def test_before_the_answers_head(gateway, start, mode):
    m = start(Mock, "--fault-hang")
    envoy, picker = gateway(mode, [m])
    c = begin(envoy, {"prompt": [1] * 50})
    wait_for("booked", lambda: picker.booked() == 1)
    leave(c)
    gone(envoy, picker)


def test_in_the_middle_of_a_stream(gateway, start, mode):
    m = start(Mock, speedup=0.5)
    envoy, picker = gateway(mode, [m])
    c = begin(envoy, {"prompt": [1] * 50, "max_tokens": 5000, "stream": True})
    assert c.recv(100)
    wait_for("booked", lambda: picker.booked() == 1)
    left = time.monotonic()
    leave(c)
    wait_for("nothing booked", picker.idle)
    assert time.monotonic() - left < CHANGED + 1 * SLOW
    gone(envoy, picker)
    wait_for("cancelled", lambda: m.metric("vllm:num_requests_running") == 0)


def test_the_engine_resets_the_stream(gateway, start, mode):
    envoy, picker = gateway(mode, [start(Mock, "--fault-reset-after", 3)])
    body = json.dumps({"prompt": [1] * 50, "max_tokens": 50, "stream": True}).encode()
    for _ in range(5):
        assert b"[DONE]" not in asyncio.run(one(envoy.port, body))[2]
    gone(envoy, picker)


def test_envoy_is_killed(gateway, start, mode):
    m = start(Mock, speedup=0.5)
    envoy, picker = gateway(mode, [m])
    streams = [begin(envoy, {"prompt": [i] * 50, "max_tokens": 5000, "stream": True}) for i in range(20)]
    wait_for("booked", lambda: picker.booked() == 20)
    envoy.kill()
    wait_for("nothing booked", picker.idle)
    for c in streams:
        c.close()
    again = start(Envoy, mode, [picker], [m])
    assert again.complete([1] * 20).status == 200
    gone(again, picker)


async def first_byte(reader, patience):
    """Or so many seconds without one."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(reader.read(1), patience)


KINDS = ("upload", "at once", "moment", "piece", "whole")  # when a client leaves


class Crowd:
    """Clients of which 64 are under way, and who kills Envoy now and then. Client number n does what seed and n say."""

    def __init__(self, envoy, seed):
        self.envoy, self.seed = envoy, seed
        self.lives, self.failed, self.ended = 0, {}, collections.Counter()

    async def client(self, n):
        rng = random.Random(f"{self.seed}/{n}")
        kind, life = rng.choice(KINDS), self.lives
        body = json.dumps({"prompt": [rng.randrange(50)] * rng.randrange(20, 600), "max_tokens": rng.randrange(1, 30), "stream": True}).encode()
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.envoy.port, limit=1 << 20)
            if rng.random() < 0.5:
                writer.get_extra_info("socket").setsockopt(*RESETS)
            sent = post(body, [("x-request-id", f"{n}")])
            writer.write(sent[:-len(body) // 2] if kind == "upload" else sent)
            await writer.drain()
            if kind in ("upload", "moment"):
                await first_byte(reader, rng.random() * (0.02 if kind == "upload" else 0.2))
            elif kind in ("piece", "whole"):
                status, head = await read_head(reader)
                assert status == 200 and b"x-kvroute-worker" in head, head
                got = await read_body(reader, head, (lambda b: True) if kind == "piece" else None)
                assert kind == "piece" or got.endswith(b"data: [DONE]\n\n"), got[-200:]
            self.ended[kind] += 1
        except (OSError, asyncio.IncompleteReadError, ValueError, AssertionError) as error:
            if life != self.lives:
                self.ended["Envoy killed"] += 1
            else:
                self.failed[str(n)] = kind, repr(error)
        if writer:
            writer.transport.abort()

    def envoy_again(self, n):
        """All wait meanwhile: Envoy ends with the thread that has begun it, so that is this one."""
        self.lives += 1
        self.envoy.p.send_signal(random.Random(f"{self.seed}/kill/{n}").choice((signal.SIGKILL, signal.SIGTERM)))
        self.envoy.p.wait()
        self.envoy.run()

    async def all(self, number, lives):
        numbers = iter(range(number))

        async def one_by_one():
            for n in numbers:
                if n % (number // lives) == number // lives - 1:
                    self.envoy_again(n)
                await asyncio.wait_for(self.client(n), 120 * SLOW)
        await asyncio.gather(*(one_by_one() for _ in range(64)))


def test_many_that_end_in_every_way_leave_nothing(gateway, start, mode):
    """Clients leave while they upload, at once, after a moment, after the first piece, with and without a reset, or never; an engine breaks
    streams off; Envoy is killed or ended, and starts again. KVR_OPS and KVR_SEED for more of them."""
    seed, number = os.environ.get("KVR_SEED", "1"), int(os.environ.get("KVR_OPS", "1000"))
    mocks = [start(Mock, *faults, speedup=20) for faults in ((), (), ("--fault-reset-after", 3))]
    envoy, picker = gateway(mode, [m.spec(",max-num-batched-tokens=2000") for m in mocks], "--router-queue-threshold", 1, listed=mocks)

    async def crowd():
        c = Crowd(envoy, seed)
        await c.all(number, max(3, number // 2000))
        return c
    c = asyncio.run(crowd())
    envoy.access(max(c.failed, key=int))
    served = {d["id"]: d["upstream"] for d in envoy.accesses()}
    breaks = f"127.0.0.1:{mocks[2].port}"
    bad = {n: (served[n], *what) for n, what in c.failed.items() if served.get(n, breaks) != breaks}  # a killed Envoy's last lines are lost
    print(f"seed {seed}: {dict(c.ended)}, broken off {len(c.failed)}, Envoy ended {c.lives} times, {picker.metric('ext_proc_decisions_total'):.0f} decisions")
    assert not bad, (len(bad), list(bad.items())[:5])
    assert c.failed and all(c.ended[kind] for kind in (*KINDS, "Envoy killed")), c.ended
    wait_for("nothing booked", picker.idle, 30)
    gone(envoy, picker)
    for name in ("requests_active", "router_queue_pending_requests", "grpc_streams", "grpc_held_bytes"):
        wait_for(f"no {name}", lambda name=name: picker.metric(name) == 0)
    assert picker.post("/debug/validate", {}).json() == {"status": "ok"}
    wait_for("engines run nothing", lambda: not any(m.metric("vllm:num_requests_running") for m in mocks))
    assert envoy.complete([1] * 20).status == 200
