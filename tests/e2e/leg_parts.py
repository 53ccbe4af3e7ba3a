# SPDX-License-Identifier: Apache-2.0
"""Workers of one leg, scripted: what a prefill worker and a decode worker of a real fleet say on the wire, and every way in which they fail."""
import itertools
import json
import socket
import struct
import threading
from http_parts import Handler, HttpServer

PARAMS = {"do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[11, 12, 13]], "remote_engine_id": "9f", "remote_request_id": "cmpl-1",
          "remote_host": "10.0.0.1", "remote_port": 5600, "tp_size": 1}
RESET, HANG = "reset", "hang"


class Pieces:
    """An answer of 200 in chunks of HTTP, so that whoever reads it is told of each alone. Entries besides bytes: HANG (until `go`), RESET."""

    def __init__(self, pieces, kind="text/event-stream"):
        self.pieces, self.kind = pieces, kind


def begins(first, then):
    """An event stream that begins (`first`: bytes, or pieces of them), and goes on (`then`; RESET: breaks off) when the leg's `go` is set."""
    return Pieces(itertools.chain([first] if isinstance(first, bytes) else first, (HANG, then)))


class Leg:
    """Answers POSTs with what `script(n, body)` returns for the n-th (from 0): a status, (status, dict or bytes), bytes of an event stream, Pieces,
    RESET, or HANG (until `go`). `told` has answers to GETs by path, and functions that make them; `aborts` what POST /abort_request was told,
    and `abort_keys` with which Authorization."""

    def __init__(self, script):
        self.script, self.bodies, self.raw, self.heads, self.go, self.gone = script, [], [], [], threading.Event(), threading.Event()
        self.told, self.aborts, self.abort_keys = {}, [], []
        self.lock, self.away, leg = threading.Lock(), False, self

        class Answers(Handler):
            def wait(self):
                """Until `go`; the connection is not kept. Returns: whether the client is there still."""
                self.connection.settimeout(0.05)
                self.close_connection = True
                while not leg.go.wait(0.01):
                    try:
                        there = self.connection.recv(1) != b""
                    except TimeoutError:
                        continue
                    except OSError:
                        there = False
                    if not there:
                        leg.gone.set()
                        return False
                self.connection.settimeout(None)
                return True

            def reset(self):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True

            def reply_in_pieces(self, told):
                self.send_response(200)
                self.send_header("Content-Type", told.kind)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in told.pieces:
                    if piece == RESET:
                        self.reset()
                        return
                    if piece == HANG:
                        if not self.wait():
                            return
                    elif piece:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")

            def do_GET(self):
                if leg.away:
                    self.close_connection = True
                elif self.path == "/health":
                    self.answer(200, b"{}")
                elif self.path == "/v1/models":
                    self.answer(200, {"object": "list", "data": [{"id": m, "object": "model"} for m in leg.models]})
                elif (path := self.path.split("?")[0]) in leg.told:
                    told = leg.told[path]
                    self.answer(200, told() if callable(told) else told)
                else:
                    self.answer(404, b"{}")

            def do_POST(self):
                raw = self.body()
                if self.path == "/abort_request":
                    leg.aborts.append(json.loads(raw)["rid"])
                    leg.abort_keys.append(self.headers["authorization"])
                    self.answer(200, b"{}")
                    return
                with leg.lock:
                    n = len(leg.bodies)
                    leg.raw.append(raw)
                    leg.bodies.append(json.loads(raw))
                    leg.heads.append(dict(self.headers))
                try:
                    self.do(leg.script(n, leg.bodies[n]))
                except OSError:  # the client has left before the answer was written
                    leg.gone.set()
                    raise

            def do(self, told):
                if told == HANG:
                    self.wait()
                elif told == RESET:
                    self.reset()
                elif isinstance(told, Pieces):
                    self.reply_in_pieces(told)
                elif isinstance(told, bytes):
                    self.answer(200, told, "text/event-stream")
                elif isinstance(told, int):
                    self.answer(told, {"error": {"message": f"status {told}", "code": told}})
                else:
                    self.answer(*told)

        self.models = ["m"]
        self.server_of = lambda port: HttpServer(Answers, port)
        self.listen(0)

    def listen(self, port):
        self.away, self.server = False, self.server_of(port)
        self.port = self.server.port

    def spec(self, role, *more):
        return ",".join([f"http://127.0.0.1:{self.port}", f"role={role}", "block-size=16", *more])

    def vanish(self):
        """From now on nobody listens, nor answers on connections that are open what is asked to see whether somebody does."""
        self.away = True
        self.server.close()

    def close(self):
        self.go.set()
        self.vanish()

    @property
    def n(self):
        return len(self.bodies)


def handoff(**more):
    """A prefill worker's answer."""
    return {"id": "p", "object": "text_completion", "choices": [{"index": 0, "text": "x", "finish_reason": "length"}], "kv_transfer_params": {**PARAMS, **more},
            "usage": {"prompt_tokens": 64, "completion_tokens": 1, "total_tokens": 65, "prompt_tokens_details": {"cached_tokens": 32}}}


def answer(text="hello", cached=63):
    """A decode worker's, with what vLLM's says of the cache."""
    return {"id": "d", "object": "text_completion", "choices": [{"index": 0, "text": text, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 64, "completion_tokens": 4, "total_tokens": 68, "prompt_tokens_details": {"cached_tokens": cached}}}


def events(*texts, cached=63):
    chunks = [{"id": "d", "object": "text_completion", "choices": [{"index": 0, "text": t, "finish_reason": None}]} for t in texts]
    chunks.append({"id": "d", "object": "text_completion", "choices": [], "usage": answer(cached=cached)["usage"]})
    return b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"


def prefills(n, body):
    return 200, handoff()


def decodes(n, body):
    return events("a", "b") if body.get("stream") else (200, answer())
