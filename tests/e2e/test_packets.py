# SPDX-License-Identifier: Apache-2.0
"""How answers leave: a head with the first bytes of its body, and each piece of a stream in one record of TLS."""
import json
import socket
import ssl

import pytest

from conftest import Mock, Serve
from tls_parts import Authority, context

APPLICATION_DATA = 23  # the type of a record, RFC 8446, 5.1


def request(stream, tokens):
    body = json.dumps({"model": "mock", "prompt": list(range(1000, 1064)), "max_tokens": tokens, "stream": stream}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize("stream", [False, True])
def test_a_head_and_the_first_bytes_of_its_body_come_together(start, stream):
    s = start(Serve, [start(Mock, with_events=False)])
    with socket.create_connection(("127.0.0.1", s.port), 20) as c:
        for _ in range(50):
            c.sendall(request(stream, 1))
            first = c.recv(65536)
            head, _, body = first.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and body, "the head came alone"
            whole = first
            while not (whole.endswith(b"0\r\n\r\n") if stream else len(whole) == len(head) + 4 + int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])):
                whole += c.recv(65536)


def records(data):
    """Of TLS: (type, length) of each."""
    at = 0
    while at < len(data):
        n = int.from_bytes(data[at + 3:at + 5], "big")
        yield data[at], n
        at += 5 + n


class Session:
    """A client of TLS that sees the records."""

    def __init__(self, port, c):
        self.s = socket.create_connection(("127.0.0.1", port), 20)
        self.into, self.out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = c.wrap_bio(self.into, self.out, server_hostname="localhost")
        self.seen = b""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.pass_on()

    def pass_on(self):
        if self.out.pending:
            self.s.sendall(self.out.read())
        more = self.s.recv(65536)
        assert more, "the connection was closed"
        self.seen += more
        self.into.write(more)

    def ask(self, data, is_over):
        """Returns: the answer, and the records that it came in."""
        self.tls.write(data)
        self.s.sendall(self.out.read())
        self.seen, answer = b"", b""
        while not is_over(answer):
            try:
                answer += self.tls.read(65536)
            except ssl.SSLWantReadError:
                self.pass_on()
        return answer, [n for kind, n in records(self.seen) if kind == APPLICATION_DATA]


@pytest.fixture
def session(start, tmp_path):
    ca = Authority(tmp_path, "packets")
    cert, key = ca.sign("router")
    c = context(ca.file)
    c.minimum_version = c.maximum_version = ssl.TLSVersion.TLSv1_2  # no tickets among the records of the answer
    s = start(Serve, [start(Mock, with_events=False)], "--tls-cert", cert, "--tls-key", key, tls=c)
    t = Session(s.port, c)
    yield t
    t.s.close()


def test_an_answer_is_one_record_of_tls(session):
    def is_over(answer):
        head, _, body = answer.partition(b"\r\n\r\n")
        return bool(body) and len(body) == int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    for _ in range(5):
        answer, came = session.ask(request(False, 1), is_over)
        assert answer.startswith(b"HTTP/1.1 200") and len(came) == 1, came


def test_a_piece_of_a_stream_is_one_record_of_tls(session):
    answer, came = session.ask(request(True, 20), lambda a: a.endswith(b"0\r\n\r\n"))
    assert answer.count(b"data:") > 15 and len(came) <= answer.count(b"data:") + 2, came
