# SPDX-License-Identifier: Apache-2.0
"""Many requests, one after the other and at once, over one connection between Envoy and its picker."""
import asyncio
import json

from clients import open_stream, post, read_answer
from conftest import SLOW, Mock, call, cluster, wait_for


def test_ten_thousand_requests_over_one_connection_have_no_error(gateway, start, mode):
    """Envoy resets the stream of every request; libraries that count resets say GOAWAY after a thousand. At most 500 requests a second."""
    requests, kept, rate = 10000, 16, 500
    mocks = [start(Mock, "--num-gpu-blocks", 2000, speedup=1000, with_events=False) for _ in range(2)]
    envoy, picker = gateway(mode, mocks)
    bad = []

    async def client(n, began):
        reader, writer = await asyncio.open_connection("127.0.0.1", envoy.port)
        loop = asyncio.get_running_loop()
        for i in range(n, requests, kept):
            await asyncio.sleep(max(0, began + i / rate - loop.time()))
            writer.write(post(json.dumps({"prompt": [i % 97] * 24, "max_tokens": 1}).encode()))
            status, _, body = await read_answer(reader)
            if status != 200:
                bad.append((i, status, body))
        writer.close()

    async def everybody():
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(client(n, began) for n in range(kept)))
    asyncio.run(everybody())
    assert not bad, bad[:3]
    assert picker.metric("ext_proc_decisions_total") == requests
    assert envoy.stats("cluster.kvroute.upstream_cx_total") == 1 and envoy.stats("cluster.kvroute.upstream_cx_close_notify") == 0
    wait_for("idle", picker.idle)


def one_connection(conf):
    """An edit: Envoy opens a second connection at 1,024 streams."""
    options = next(iter(cluster(conf, "kvroute")["typed_extension_protocol_options"].values()))
    options["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"] = 100000


def test_two_thousand_streams_at_once_over_one_connection(gateway, start, mode):
    """All of them run, each costs the picker 64 KiB at most, and nothing is left of them."""
    streams = 2000
    mocks = [start(Mock, "--max-num-seqs", 4000, "--num-gpu-blocks", 200000, speedup=0.2, with_events=False) for _ in range(2)]
    envoy, picker = gateway(mode, mocks, edits=[one_connection])
    assert envoy.complete([1] * 20).status == 200
    before = picker.rss_kb()
    body = [json.dumps({"prompt": [i % 97] * 24, "max_tokens": 4000, "stream": True}).encode() for i in range(97)]

    async def everybody():
        opened, arriving = [], asyncio.Semaphore(100)

        async def begin(i):
            async with arriving:
                reader, writer = await open_stream(envoy.port, body[i % 97])
                status, _, _ = await read_answer(reader, lambda b: True)
                assert status == 200
                opened.append(writer)
        await asyncio.gather(*(begin(i) for i in range(streams)))
        told = await asyncio.to_thread(lambda: (picker.booked(), envoy.asking(), picker.rss_kb(), envoy.stats("cluster.kvroute.upstream_cx_active")))
        for writer in opened:
            writer.transport.abort()
        return told
    booked, asking, after, connections = asyncio.run(everybody())
    assert (booked, asking, connections) == (streams, streams, 1)
    limit = 64 if SLOW == 1 else 256  # a sanitizer has accounts of its own
    assert after - before <= limit * streams, f"{(after - before) / streams:.1f} KiB a stream"
    wait_for("idle", picker.idle, 30)
    wait_for("no stream", lambda: envoy.asking() == 0)
    assert call(picker.admin, "GET", "/ready").status == 200
