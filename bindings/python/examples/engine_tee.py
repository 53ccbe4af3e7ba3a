# SPDX-License-Identifier: Apache-2.0
"""An engine's KV events, published as ever and kept for routers that have lost some.

    engine --Tee.publish--> [ LocalIndexer ]  <-- GET /kv_recover?start=&end=   (the standard library's HTTP server)
                 |
                 '--------> ZeroMQ PUB: [topic, sequence, msgpack([ts, events, dp_rank])]
    engine --Tee.set_load----------> GET /metrics

    python3 engine_tee.py --events tcp://127.0.0.1:5557 --port 8001
    u=http://127.0.0.1:8001
    kvroute serve --worker $u,events=tcp://127.0.0.1:5557,recover=$u/kv_recover,metrics=$u/metrics

Run as a program it is a toy engine that stores and removes blocks at random; an engine would call publish() with what it does.
Needs pyzmq and msgpack, which engines that publish KV events have."""
import argparse
import json
import random
import re
import struct
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgpack
import zmq

import kvroute


class Tee:
    """Where an engine's KV events go. publish() from the engine's thread; recover() from any."""

    def __init__(self, endpoint, block_size, worker_id=0, dp_rank=0, max_events=1024):
        self.block_size, self.dp_rank, self.sequence, self.load = block_size, dp_rank, 0, None
        self.local = kvroute.LocalIndexer(worker_id, block_size, dp_rank, max_events=max_events)
        self.socket = zmq.Context.instance().socket(zmq.PUB)
        self.socket.linger = 0
        self.socket.sndhwm = 100000
        self.socket.bind(endpoint)

    def publish(self, events, send=True):
        """One batch. Events: ("stored", hashes, parent, tokens), ("removed", hashes), ("cleared",). The local index first: whoever asks
        after a loss finds what was published. `send` False: the batch is lost on the way (for tests)."""
        with self.local.batch():  # a consumer is told the whole batch or none of it
            for event in events:
                self.keep(*event)
        if send:
            wire = [self.on_the_wire(*event) for event in events]
            self.socket.send_multipart([b"", struct.pack(">Q", self.sequence), msgpack.packb([time.time(), wire, self.dp_rank])])
        self.sequence += 1

    def keep(self, kind, *what):
        """What the index cannot take must not stop the engine or its stream: dumps fail from then on, until the next clear."""
        try:
            if kind == "stored":
                hashes, parent, tokens = what
                self.local.apply_stored(self.sequence, tokens, hashes, parent)
            elif kind == "removed":
                self.local.apply_removed(self.sequence, what[0])
            else:
                self.local.apply_cleared(self.sequence)
                self.local.set_incomplete(None)
        except (TypeError, ValueError, OverflowError) as e:
            self.local.set_incomplete(f"batch {self.sequence}: {e}")

    def on_the_wire(self, kind, *what):
        if kind == "stored":
            hashes, parent, tokens = what
            return ["BlockStored", hashes, parent, tokens, self.block_size, None, "GPU", None]
        return ["BlockRemoved", what[0], "GPU"] if kind == "removed" else ["AllBlocksCleared"]

    def recover(self, write, start=None, end=None):
        self.local.write_events_json(write, start, end)

    def set_load(self, running, waiting, kv_usage, kv_total_tokens=0):
        """How loaded the engine is: requests, requests, 0 to 1, tokens that fit into its cache. From any thread, each second or so: a
        router counts its age and stops using it when it is old. An engine that has metrics of its own lets routers read those."""
        self.load = (time.monotonic(), running, waiting, kv_usage, kv_total_tokens)

    def metrics(self):
        """The load as Prometheus text, by the names that `kvroute publish` has."""
        if self.load is None:
            return ""
        at, *figures = self.load
        names = ("load_age_seconds", "requests_running", "requests_waiting", "kv_usage", "kv_total_tokens")
        return "".join(f'# TYPE kvroute_publish_engine_{name} gauge\nkvroute_publish_engine_{name}{{dp_rank="{self.dp_rank}"}} {value}\n'
                       for name, value in zip(names, (time.monotonic() - at, *figures)))

    def close(self):
        self.local.shutdown()
        self.socket.close()


def event_id(query, name):
    """An id from the query string, None when it is not there."""
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,20}", text) or int(text) >= 1 << 64:  # int() alone takes "-1", "1_0" and " 1"
        raise ValueError(f"{name}: bad value {text[:40]!r}; allowed: a whole number, 0 to 2^64 - 1")
    return int(text)


def serve(tee, port, host="127.0.0.1"):
    """Answers GET /kv_recover and /metrics, and what a router asks of an engine to see that it lives. Returns the running server."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            url = urllib.parse.urlsplit(self.path)
            if url.path == "/kv_recover":
                self.answer_recover(dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True)))
            elif url.path == "/metrics":
                self.answer(200, tee.metrics().encode(), "text/plain; version=0.0.4")
            elif url.path in ("/health", "/v1/models"):
                self.answer(200, b'{"object":"list","data":[{"id":"toy","object":"model"}]}')
            else:
                self.answer(404, b'{"Error":"no such path"}')

        def answer_recover(self, query):
            try:
                start, end = event_id(query, "start"), event_id(query, "end")
                if start is not None and end is not None and start > end:
                    raise ValueError(f"start: {start} is above end, {end}; allowed: at most end")
            except ValueError as e:
                self.answer(400, json.dumps({"Error": str(e)}).encode())
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            tee.recover(lambda piece: self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece)), start, end)
            self.wfile.write(b"0\r\n\r\n")

        def answer(self, status, body, kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main():
    p = argparse.ArgumentParser(description="a toy engine with a tee")
    p.add_argument("--events", default="tcp://127.0.0.1:5557")
    p.add_argument("--port", type=int, default=8001)
    p.add_argument("--block-size", type=int, default=16)
    args = p.parse_args()
    tee = Tee(args.events, args.block_size)
    serve(tee, args.port)
    held = []
    while True:
        if held and random.random() < 0.5:
            tee.publish([("removed", [held.pop(random.randrange(len(held)))])])
        else:
            name = random.getrandbits(63)
            tee.publish([("stored", [name], None, [random.randrange(50000) for _ in range(args.block_size)])])
            held.append(name)
        tee.set_load(0, 0, min(len(held) / 1000, 1), 1000 * args.block_size)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
