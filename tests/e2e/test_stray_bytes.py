# SPDX-License-Identifier: Apache-2.0
"""Bytes of a worker that nobody has asked for: they are no request's answer."""
import http.client
import signal
import socket
import ssl
import threading

import pytest

from conftest import Serve, freeze, wait_for
from tls_parts import Authority

STRAY = b"HTTP/1.1 408 Request Time-out\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: close\r\n\r\nstray"
BODY = b'{"prompt":[1,2,3],"max_tokens":1}'
REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def plain(text):
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)


class Odd:
    """A worker that answers each POST by `said(connection, number)`, on connections that stay."""

    def __init__(self, said, context=None):
        self.said, self.context, self.posts, self.last = said, context, 0, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        try:
            c = self.context.wrap_socket(c, server_side=True) if self.context else c
            f = c.makefile("rb")
            while line := f.readline():
                headers = http.client.parse_headers(f)
                f.read(int(headers.get("content-length", 0)))
                if not line.startswith(b"POST"):
                    c.sendall(plain(b"{}"))
                    continue
                self.posts, self.last = self.posts + 1, c
                self.said(c, self.posts)
        except OSError:
            pass

    def stop(self):
        self.listener.close()


def read_answers(c, n):
    got = b""
    while got.count(b'"who"') < n and b"stray" not in got:
        piece = c.recv(65536)
        assert piece, got
        got += piece
    return got


@pytest.mark.parametrize("ends", [True, False])
def test_a_request_that_had_not_left_was_answered_with_what_an_idle_connection_said(start, ends):
    w = Odd(lambda c, n: c.sendall(plain(b'{"who":%d}' % n)))
    s = start(Serve, [f"http://127.0.0.1:{w.port},block-size=16"], ready=False)
    wait_for("it is up", lambda: s.metric("worker_up") == 1)
    with socket.create_connection(("127.0.0.1", s.port), 30) as k:
        k.sendall(REQUEST)
        assert b'{"who":1}' in read_answers(k, 1)
        wait_for("its connection is back", s.idle)
        freeze(s.p)  # both are there when it looks again
        k.sendall(REQUEST)
        w.last.sendall(STRAY)
        if ends:
            w.last.shutdown(socket.SHUT_RDWR)
        s.p.send_signal(signal.SIGCONT)
        assert b'{"who":2}' in read_answers(k, 1) and w.posts == 2
    w.stop()


def test_a_record_behind_an_answer_was_the_answer_of_the_next_request(start, tmp_path):
    ca = Authority(tmp_path, "a")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*ca.sign("w"))

    def said(c, n):
        if n == 1:
            freeze(s.p)
            c.sendall(plain(b'{"who":1}'))
            c.sendall(plain(b'{"who":"stray"}'))
            s.p.send_signal(signal.SIGCONT)
        else:
            c.sendall(plain(b'{"who":%d}' % n))
    w = Odd(said, context)
    s = start(Serve, [f"https://127.0.0.1:{w.port},block-size=16"], "--tls-ca", ca.file, ready=False)
    wait_for("it is up", lambda: s.metric("worker_up") == 1)
    with socket.create_connection(("127.0.0.1", s.port), 30) as k:
        k.sendall(REQUEST + REQUEST)
        assert b'{"who":2}' in read_answers(k, 2) and w.posts == 2
    w.stop()
