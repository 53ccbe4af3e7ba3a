# SPDX-License-Identifier: Apache-2.0
"""A client, an engine or Envoy itself leaves, at any moment: nothing stays booked, and no stream open."""
import asyncio
import json
import random
import socket
import struct
import time

import leg_parts
from clients import one, open_stream, read_answer
from conftest import SLOW, Envoy, Mock, wait_for
from test_refusals import BUSY, occupy, slow, specs

CHANGED = 0.1  # seconds until /loads is zero, of a machine that has the time


def leave(c):
    """As a client that is killed: with a reset."""
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
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


def test_a_thousand_that_leave_at_any_moment_leave_nothing(gateway, start, mode):
    """Seeded: each of them leaves while it uploads, at once, after a moment, after the first piece, or not at all."""
    mocks = [start(Mock, speedup=20), start(Mock, speedup=20)]
    envoy, picker = gateway(mode, [m.spec(",max-num-batched-tokens=2000") for m in mocks], "--router-queue-threshold", 1, listed=mocks)
    rng = random.Random(42)
    whole = [0]

    async def client(kind, prompt, tokens):
        body = json.dumps({"prompt": prompt, "max_tokens": tokens, "stream": True}).encode()
        if kind == "upload":
            reader, writer = await asyncio.open_connection("127.0.0.1", envoy.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:len(body) // 2])
            await writer.drain()
            await asyncio.sleep(rng.random() * 0.02)
        else:
            reader, writer = await open_stream(envoy.port, body)
            await writer.drain()
            if kind == "moment":
                await asyncio.sleep(rng.random() * 0.2)
            elif kind in ("piece", "whole"):
                status, _, got = await read_answer(reader, (lambda b: True) if kind == "piece" else None)
                assert status == 200, (status, got)
                whole[0] += kind == "whole" and got.endswith(b"data: [DONE]\n\n")
        writer.transport.abort()

    async def everybody():
        under_way = asyncio.Semaphore(64)

        async def turn(kind, prompt, tokens):
            async with under_way:
                await asyncio.wait_for(client(kind, prompt, tokens), 120)
        await asyncio.gather(*(turn(k, p, t) for k, p, t in plan))
    kinds = [k for k in ("upload", "at once", "moment", "piece", "whole") for _ in range(200)]
    rng.shuffle(kinds)
    plan = [(k, [rng.randrange(50)] * rng.randrange(20, 600), rng.randrange(1, 60)) for k in kinds]
    asyncio.run(everybody())
    assert whole[0] == 200
    wait_for("nothing booked", picker.idle, 30)
    gone(envoy, picker)
    assert picker.metric("router_queue_pending_requests") == 0
    assert picker.post("/debug/validate", {}).json() == {"status": "ok"}
    assert envoy.complete([1] * 20).status == 200
