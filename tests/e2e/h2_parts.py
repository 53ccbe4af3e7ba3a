# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 by hand: frames that no client would send, or not so slowly."""
import socket
import struct

from conftest import SLOW

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4


class Raw:
    """Frames by hand."""

    def __init__(self, port, preface=PREFACE, settings=b"", tls=None):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20 * SLOW)
        if tls:
            self.socket = tls.wrap_socket(self.socket)
        if preface:
            self.socket.sendall(preface + self.frame(SETTINGS, 0, 0, settings))

    @staticmethod
    def frame(kind, flags, stream, body=b""):
        return struct.pack("!I", len(body))[1:] + bytes((kind, flags)) + struct.pack("!I", stream) + body

    def send(self, *frame):
        self.socket.sendall(self.frame(*frame))

    @classmethod
    def head(cls, stream, path, end=False, method=b"POST", content_type=b"application/grpc"):
        """Its frame, in literals that are not indexed."""
        fields = [(b":method", method), (b":scheme", b"http"), (b":path", path), (b":authority", b"x"), (b"content-type", content_type), (b"te", b"trailers")]
        text = b"".join(b"\0" + bytes((len(k),)) + k + bytes((len(v),)) + v for k, v in fields)
        return cls.frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, text)

    def call(self, *args, **kw):
        self.socket.sendall(self.head(*args, **kw))

    def exactly(self, n):
        got = b""
        while len(got) < n:
            more = self.socket.recv(n - len(got))
            if not more:
                raise EOFError(got)
            got += more
        return got

    def next(self):
        head = self.exactly(9)
        body = self.exactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, body

    def until(self, kind, **also):
        """The body of the next frame of that kind."""
        while True:
            k, flags, stream, body = self.next()
            if k == kind and not (k in (SETTINGS, PING) and flags & ACK) and also.get("stream", stream) == stream:
                return body

    def ends(self):
        """Reads until the server has closed."""
        try:
            while True:
                self.next()
        except (EOFError, ConnectionError):
            return True


def message(data, flag=0):
    return struct.pack("!BI", flag, len(data)) + data
