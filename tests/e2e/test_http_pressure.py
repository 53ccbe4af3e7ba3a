# SPDX-License-Identifier: Apache-2.0
"""Clients that take more than they give: they ask without reading, send without ending, connect without speaking."""
import json
import os
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest

import conftest
from conftest import Indexer, Mock, Serve, call, freeze, wait_for
from test_proxy import upstream  # noqa: F401 (a fixture)

MB = 1 << 20


class Asker(threading.Thread):
    """Sends the same request over and over, whatever comes back."""

    def __init__(self, sock, request, times):
        super().__init__(daemon=True)
        self.sock, self.data, self.sent = sock, request * times, 0
        self.start()

    def run(self):
        view = memoryview(self.data)
        try:
            while self.sent < len(view):
                self.sent += self.sock.send(view[self.sent:self.sent + 65536])
        except OSError:
            pass


def at_rest(process):
    """It uses no time to speak of: it has done what it will do."""
    def used():
        with open(f"/proc/{process.p.pid}/stat") as f:
            return sum(map(int, f.read().rsplit(") ", 1)[1].split()[11:13]))
    before = used()
    time.sleep(0.5)  # between two looks
    return used() - before <= 5


def get(path):
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def count_answers(sock, n):
    """Reads until n whole answers have come."""
    buf, seen = b"", 0
    while seen < n:
        d = sock.recv(1 << 20)
        assert d, f"the connection ended after {seen} answers"
        buf += d
        while True:
            end = buf.find(b"\r\n\r\n")
            if end < 0:
                break
            head = buf[:end].lower()
            assert head.startswith(b"http/1.1 200"), head
            total = end + 4 + int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            if len(buf) < total:
                break
            buf, seen = buf[total:], seen + 1
    return seen


@pytest.fixture
def certificate(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key,
                    "-out", cert, "-days", "2", "-subj", "/CN=localhost"], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize("what", ["models", "metrics", "indexer", "indexer over TLS"])
def test_pipelining_without_reading_keeps_memory_bounded(start, certificate, what):
    """Some 30 MiB of answers: the kernel keeps a third of them."""
    cert, key = certificate
    own = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":quarantine_size_mb=1"}  # else most of it is memory that the sanitizer keeps
    if what in ("models", "metrics"):
        s = start(Serve, [start(Mock, "--model", "m" * 100)], env=own)
        port, path, times = (s.port, "/v1/models", 40000) if what == "models" else (s.admin, "/metrics", 600)
    else:
        tls = ["--tls-cert", cert, "--tls-key", key] if "TLS" in what else []
        s = start(Indexer, *tls, plain=not tls, env=own)
        port, path, times = s.port, "/metrics", 2000
    c = wait_for("the port", lambda: socket.create_connection(("127.0.0.1", port), timeout=60 * conftest.SLOW))
    if "TLS" in what:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        c = context.wrap_socket(c)
    c.sendall(get(path))
    count_answers(c, 1)
    before = s.rss_kb()
    Asker(c, get(path), times)
    wait_for("what it will do", lambda: at_rest(s), 60)
    assert s.rss_kb() - before < 6 * 1024
    if "TLS" not in what:  # a TLS socket is not for two threads
        assert count_answers(c, times) == times
    c.close()


def test_unfinished_bodies_share_a_budget(start, upstream):
    u = upstream()
    s = start(Serve, [u.spec()], "--no-router-kv-events", "--max-bodies-bytes", "8MiB", "--max-body-size", "5MiB")
    held = []
    for i in range(6):  # 3 MiB of 4 each; one address has a share of 5 MiB
        c = socket.create_connection(("127.0.0.1", s.port), timeout=30 * conftest.SLOW, source_address=(f"127.0.0.{i + 2}", 0))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (4 * MB))
        try:
            c.sendall(b"x" * (3 * MB))
        except OSError:
            pass  # refused already
        held.append(c)
    wait_for("refusals", lambda: s.metric("http_request_bodies_refused_total", port="data") >= 3)
    assert 3 * MB <= s.metric("http_request_bodies_bytes", port="data") <= 8 * MB
    refused = b""
    for c in held:
        c.settimeout(0.2)
        try:
            refused += c.recv(4096)
        except OSError:
            pass
    assert b"HTTP/1.1 503" in refused and b"Retry-After: " in refused
    for c in held:
        c.close()
    wait_for("memory given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)
    body = {"prompt": "x" * (4 * MB)}  # of a client that left the router may read its last only now
    wait_for("room", lambda: call(s.port, "POST", "/v1/completions", body).status == 200)
    wait_for("memory given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)


def test_declared_length_reserves_nothing(start, upstream):
    s = start(Serve, [upstream().spec()], "--no-router-kv-events", "--max-bodies-bytes", "4MiB")
    held = []
    for _ in range(20):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\nx" % (3 * MB))
        held.append(c)
    wait_for("a byte of each", lambda: s.metric("http_request_bodies_bytes", port="data") >= 20)
    assert s.metric("http_request_bodies_bytes", port="data") < MB
    assert call(s.port, "POST", "/v1/completions", {"prompt": "x" * MB}).status == 200
    for c in held:
        c.close()


def endless(n):
    return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"] + [b"10000\r\n" + b"x" * 65536 + b"\r\n"] * n


def test_client_that_does_not_read_its_stream_is_cut_off_and_the_worker_is_let_go(start, upstream):
    u = upstream(lambda n: endless(10000))
    s = start(Serve, [u.spec()], "--no-router-kv-events", "--client-write-timeout", "1", "--stall-timeout", "600")
    c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
    body = b'{"prompt":"x","stream":true}'
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    wait_for("the cut", lambda: s.metric("http_write_timeouts_total", port="data") == 1, 20)
    wait_for("no load", lambda: s.idle() and s.metric("client_gone_total") == 1)
    with pytest.raises(OSError):  # a reset, not an end
        while c.recv(1 << 20):
            pass
    c.close()


@pytest.mark.parametrize("last", [b"", b"\x00\r\n\r\n"])  # open, or closing after a refusal
def test_client_that_does_not_read_ended_answers_is_cut_off(start, last):
    s = start(Serve, [start(Mock)], "--client-write-timeout", "1")
    held = []
    for _ in range(5):
        c = socket.create_connection(("127.0.0.1", s.admin), timeout=30)
        Asker(c, get("/metrics") * 400 + last, 1)
        held.append(c)
    wait_for("the cut", lambda: s.metric("http_write_timeouts_total", port="admin") == 5, 30)
    for c in held:
        c.close()


def test_slow_reader_that_goes_on_is_not_cut_off(start, upstream):
    size = 16 * MB
    u = upstream(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size)
    s = start(Serve, [u.spec()], "--no-router-kv-events", "--client-write-timeout", "3")
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    c.connect(("127.0.0.1", s.port))
    c.settimeout(30)
    c.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 14\r\n\r\n{"prompt":"x"}')
    got, began = 0, time.monotonic()
    while got < size:
        if time.monotonic() - began < 7:
            time.sleep(0.1)  # that is what makes it slow
        d = c.recv(MB)
        assert d, f"cut off after {got} bytes"
        got += len(d)
    assert s.metric("http_write_timeouts_total") == 0
    c.close()


def test_few_descriptors_and_many_idle_connections_leave_room_for_others(start, monkeypatch, tmp_path):
    mock = start(Mock)
    limited = tmp_path / "limited"
    limited.write_text(f'#!/bin/sh\nulimit -n 64\nexec "{conftest.BINARY}" "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr(conftest, "BINARY", str(limited))
    s = start(Serve, [mock])
    held = []
    for _ in range(100):
        c = socket.create_connection(("127.0.0.1", s.port), timeout=30)
        held.append(c)
    for i in range(8):
        assert s.complete(f"prompt {i}").status == 200
    assert s.metric("http_evicted_connections_total", port="data") > 0
    assert call(s.port, "GET", "/v1/models").status == 200 and json.loads(call(s.admin, "GET", "/workers").body)
    for c in held:
        c.close()


def test_a_request_that_has_arrived_is_read_before_its_connection_is_called_idle(start):
    """A program that was held up finds new connections, and requests on old ones, in the same turn: those have not been idle."""
    s = start(Serve, [start(Mock)], "--max-connections", 4)
    held = [socket.create_connection(("127.0.0.1", s.port), timeout=30) for _ in range(4)]
    time.sleep(0.5)  # so long nothing has come on them
    freeze(s.p)
    with open(f"/proc/{s.p.pid}/stat") as stat:  # it runs on for a moment
        wait_for("stopped", lambda: (stat.seek(0), stat.read().rsplit(")", 1)[1].split()[0] == "T")[1])
    new = [socket.create_connection(("127.0.0.1", s.port), timeout=30) for _ in range(3)]
    held[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    time.sleep(0.3)
    s.p.send_signal(signal.SIGCONT)
    assert held[0].recv(4096).startswith(b"HTTP/1.1 200")
    wait_for("room for the others", lambda: s.metric("http_evicted_connections_total", port="data") == 3)
    for c in held + new:
        c.close()
