# SPDX-License-Identifier: Apache-2.0
"""Clients of Envoy that http.client has not: one of HTTP/2 that sends trailers, and many at once in one thread."""
import asyncio
import socket
import ssl

import h2.config
import h2.connection
import h2.events


class H2:
    """One request at a time over HTTP/2. `got` has all events of the last one."""

    def __init__(self, port):
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.c = h2.connection.H2Connection(config=h2.config.H2Configuration(header_encoding="utf-8"))
        self.c.initiate_connection()
        self.flush()

    def flush(self):
        self.sock.sendall(self.c.data_to_send())

    def ask(self, pieces, headers=(), trailers=(), path="/v1/completions"):
        """Sends the pieces as they are, then trailers. Returns: status, headers, body, trailers of the answer."""
        stream = self.c.get_next_available_stream_id()
        self.c.send_headers(stream, [(":method", "POST"), (":scheme", "http"), (":authority", "gateway"), (":path", path),
                                     ("content-type", "application/json"), *headers])
        self.got, self.body, self.over = [], b"", False
        for n, piece in enumerate(pieces):
            while piece:
                room = min(self.c.local_flow_control_window(stream), self.c.max_outbound_frame_size)
                if not room:
                    self.take(stream)
                    continue
                self.c.send_data(stream, piece[:room])
                piece = piece[room:]
                self.flush()
        if trailers:
            self.c.send_headers(stream, list(trailers), end_stream=True)
        else:
            self.c.end_stream(stream)
        self.flush()
        while not self.over:
            self.take(stream)
        heads = {k: v for e in self.got if isinstance(e, h2.events.ResponseReceived) for k, v in e.headers}
        tail = {k: v for e in self.got if isinstance(e, h2.events.TrailersReceived) for k, v in e.headers}
        return int(heads[":status"]), heads, self.body, tail

    def take(self, stream):
        data = self.sock.recv(65536)
        assert data, "the connection is over"
        for e in self.c.receive_data(data):
            self.got.append(e)
            if isinstance(e, h2.events.DataReceived):
                self.body += e.data
                self.c.acknowledge_received_data(e.flow_controlled_length, e.stream_id)
            elif isinstance(e, h2.events.StreamReset):
                raise AssertionError(f"reset: {e.error_code}")
            elif isinstance(e, h2.events.StreamEnded) and e.stream_id == stream:
                self.over = True
        self.flush()

    def close(self):
        self.sock.close()


def post(body, headers=(), path="/v1/completions"):
    """A request as bytes, whose connection is kept."""
    lines = "".join(f"{k}: {v}\r\n" for k, v in headers)
    return f"POST {path} HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


async def read_answer(reader, seen=None):
    """Returns: status, head, body. `seen(body)` is called as it grows; when it returns True reading ends there."""
    status, head = await read_head(reader)
    return status, head, await read_body(reader, head, seen)


async def read_head(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head


async def read_body(reader, head, seen=None):
    lower, body = head.lower(), b""
    if b"transfer-encoding: chunked" in lower:
        while True:
            n = int((await reader.readline()).split(b";")[0], 16)
            piece = await reader.readexactly(n + 2)
            body += piece[:-2]
            if n == 0 or (seen and seen(body)):
                return body
    length = next((int(line.split(b":")[1]) for line in lower.split(b"\r\n") if line.startswith(b"content-length:")), 0)
    return await reader.readexactly(length)


async def open_stream(port, body, headers=()):
    """Sends a request on a connection of its own. Returns: reader, writer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(post(body, headers))
    return reader, writer


async def one(port, body, headers=()):
    """A whole exchange on a connection of its own. Returns: status, head, body; status 0 where it broke off, with what had come."""
    part = [b""]
    try:
        reader, writer = await open_stream(port, body, headers)
    except OSError:
        return 0, b"", b""
    try:
        def keep(b):
            part[0] = b
        return await read_answer(reader, keep)
    except (OSError, asyncio.IncompleteReadError, ValueError):
        return 0, b"", part[0]
    finally:
        writer.close()


def h2_over_tls(port, alpn):
    """Speaks HTTP/2 to a port. Returns: the protocol that was agreed on, the certificate; raises OSError (ssl.SSLError is one) where it is refused."""
    c = ssl.create_default_context()
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    if alpn:
        c.set_alpn_protocols(alpn)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw, c.wrap_socket(raw) as s:
        h = h2.connection.H2Connection()
        h.initiate_connection()
        s.sendall(h.data_to_send())
        if not s.recv(100):  # its settings
            raise ConnectionError("closed")
        return s.selected_alpn_protocol(), s.getpeercert(True)
