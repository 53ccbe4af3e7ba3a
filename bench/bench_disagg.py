# SPDX-License-Identifier: Apache-2.0
"""What requests of two legs cost in the router. usage: bench_disagg.py PATH_OF_KVROUTE

    hand-off   from the last byte of a prefill worker's answer to the first byte of the decode worker's request, as both workers see it (they
               are one thread here): the router's own time, a new connection, and two wakes of processes
    memory     RSS for each stream that is open, of one leg and of two
"""
import asyncio
import json
import select
import socket
import statistics
import threading
import time

from parts import Router, all_ended, get, quantile, until

ROUNDS = 101
STREAMS, STREAM_TOKENS = 400, 4000


def message(status, body, kind="application/json"):
    return b"HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status, kind.encode(), len(body), body)


def handed_over(blocks):
    """A prefill worker's answer."""
    params = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [list(range(blocks))], "remote_engine_id": "9f", "remote_request_id": "r",
              "remote_host": "10.0.0.1", "remote_port": 5600, "tp_size": 1}
    return json.dumps({"id": "p", "choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "kv_transfer_params": params,
                       "usage": {"prompt_tokens": blocks * 16, "completion_tokens": 1, "total_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}}).encode()


ANSWER = message(b"200 OK", json.dumps({"id": "d", "choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "usage": None}).encode())
HEALTHY = message(b"200 OK", b"{}")
MODELS = message(b"200 OK", b'{"object":"list","data":[{"id":"m","object":"model"}]}')


def read_message(c):
    """Returns: its head; None: the other side has gone."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = c.recv(1 << 20)
        if not piece:
            return None
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0)
    got = len(body)
    while got < length:
        got += len(c.recv(1 << 20))
    return head


class Worker:
    """One thread, which serves what comes until `stop`; from then on whoever calls `take`."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.open, self.stopped = [], threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        while not self.stopped.is_set():
            self.take(0.05)

    def take(self, timeout=30):
        """Answers the router's own questions. Returns: connection and moment of the next request that comes; None: none has."""
        until_ = time.monotonic() + timeout
        while time.monotonic() < until_:
            ready, _, _ = select.select([self.listener, *self.open], [], [], max(until_ - time.monotonic(), 0))
            for c in ready:
                if c is self.listener:
                    self.open.append(c.accept()[0])
                    self.open[-1].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    continue
                first = time.perf_counter()
                head = read_message(c)
                if head is None:
                    self.open.remove(c)
                    c.close()
                elif head.startswith(b"POST"):
                    return c, first
                else:
                    c.sendall(MODELS if b"/v1/models" in head else HEALTHY)
        return None

    def stop(self):
        self.stopped.set()
        self.thread.join()


def measure_hand_off(router, prefill, decode, tokens):
    """Returns: microseconds. Everything here is one thread, which waits for the decode worker's request when the last byte has left."""
    took, answer = [], message(b"200 OK", handed_over(tokens // 16))
    for n in range(ROUNDS + 5):
        body = json.dumps({"model": "m", "prompt": [n] + [k * 7 % 50000 for k in range(tokens - 1)], "max_tokens": 4})
        router.conn.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        c, _ = prefill.take()
        c.sendall(answer[:-1])
        time.sleep(0.003)  # the router has read all but the last byte
        answered = time.perf_counter()
        c.sendall(answer[-1:])
        d, asked = decode.take()
        took.append((asked - answered) * 1e6)
        d.sendall(ANSWER)
        r = router.conn.getresponse()
        r.read()
        assert r.status == 200 and r.headers["x-kvroute-disagg"] == "remote", r.status
    return took[5:]  # without the first ones, which make connections and memory


class Streams:
    """Workers whose streams stay open after the first event."""

    def __init__(self, loop):
        self.loop, self.hold = loop, asyncio.Event()

    async def worker(self, prefills):
        server = await asyncio.start_server(lambda r, w: self.serve(r, w, prefills), "127.0.0.1", 0, limit=1 << 22, backlog=1024)
        return server.sockets[0].getsockname()[1]

    async def serve(self, reader, writer, prefills):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")), 0)
                await reader.readexactly(length)
                if not head.startswith(b"POST"):
                    writer.write(MODELS if b"/v1/models" in head else HEALTHY)
                elif prefills:
                    writer.write(message(b"200 OK", handed_over(STREAM_TOKENS // 16)))
                else:
                    event = b'data: {"choices":[{"index":0,"text":"x","finish_reason":null}]}\n\n'
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(event), event))
                    await self.hold.wait()
                    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def stream(self, router, n):
        reader, writer = await asyncio.open_connection("127.0.0.1", router.port, limit=1 << 20)
        body = json.dumps({"model": "m", "prompt": [n + k * 7 % 50000 for k in range(STREAM_TOKENS)], "max_tokens": 9, "stream": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head and (b"disagg: remote" in head) == (router.name == "two legs"), head
        await reader.readuntil(b"\n\n")
        return reader, writer

    async def measure(self, router):
        """Returns: KiB for each open stream. A first round makes what is kept afterwards anyway."""
        for last in (False, True):
            before, self.hold = router.rss_mb(), asyncio.Event()
            opened = [await self.stream(router, n) for n in range(STREAMS)]
            each = (router.rss_mb() - before) * 1024 / STREAMS
            first = each if not last else first
            self.hold.set()
            for reader, writer in opened:
                await reader.readuntil(b"0\r\n\r\n")
                writer.close()
        return first


def up(router, workers):
    until(router.name, lambda: sum(w["status"] == "up" for w in json.loads(get(router.admin, "/workers"))) == workers)
    return router


async def memory():
    streams = Streams(asyncio.get_running_loop())
    p, d = await streams.worker(True), await streams.worker(False)
    make = lambda name, *specs: asyncio.to_thread(lambda: up(Router(name, [f"http://127.0.0.1:{port},block-size=16{keys}" for port, keys in specs]), len(specs)))
    one = await make("one leg", (d, ""))
    two = await make("two legs", (p, ",role=prefill"), (d, ",role=decode"))
    a, b = await streams.measure(one), await streams.measure(two)
    print(f"\n{STREAMS} open streams of prompts of {STREAM_TOKENS} tokens: {a:.1f} KiB each of one leg, {b:.1f} KiB of two, {b / a:.2f} times")


def hand_offs():
    p, d = Worker(), Worker()
    router = up(Router("two legs", [f"http://127.0.0.1:{p.port},role=prefill,block-size=16", f"http://127.0.0.1:{d.port},role=decode,block-size=16"],
                       "--health-interval", 3600), 2)
    p.stop()
    d.stop()
    print(f"{'tokens':>8} {'median us':>10} {'p90 us':>8}   from the last byte of one leg's answer to the first byte of the other's request")
    for tokens in (100, 10_000, 100_000):
        took = measure_hand_off(router, p, d, tokens)
        print(f"{tokens:>8} {statistics.median(took):>10.0f} {quantile(took, 0.9):>8.0f}")


with all_ended():
    hand_offs()
    asyncio.run(memory())
