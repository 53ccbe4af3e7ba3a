# SPDX-License-Identifier: Apache-2.0
"""Connections and bodies of some keep no others out."""
import socket

from conftest import Mock, Serve, wait_for

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


def hold(port, first=b""):
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    if first:
        s.sendall(first)
    return s


def test_a_process_without_descriptors_goes_on_answering(start):
    """More connections than descriptors, idle, half a request, and streams that nobody reads: those who ask are answered all the same."""
    s = start(Serve, [start(Mock)], limits=[("nofile", 64)])
    body = b'{"prompt":"x","max_tokens":20000,"stream":true}'
    held = [hold(s.port) for _ in range(50)] + [hold(s.port, b"POST /v1/comp") for _ in range(20)] + [hold(s.port, HEAD % len(body) + body) for _ in range(20)]
    try:
        for _ in range(5):
            assert s.complete("a question").status == 200
        assert s.metric("http_evicted_connections_total", port="data") > 0
    finally:
        for h in held:
            h.close()
    wait_for("none left", lambda: s.idle())


def test_large_bodies_that_are_never_finished_keep_no_small_one_out(start):
    s = start(Serve, [start(Mock)], "--max-bodies-bytes", "4MiB")
    held = [hold(s.port, HEAD % (1 << 20) + b'{"prompt":"' + b"y" * 900000) for _ in range(8)]
    try:
        wait_for("some are refused", lambda: s.metric("http_request_bodies_refused_total", port="data") > 0)
        # one that has just begun is a small one still: it may take of their part until it has 64 KiB, and is refused then
        wait_for("no large one has more than its part", lambda: s.metric("http_request_bodies_bytes", port="data") <= 3 << 20)
        assert s.complete("a question").status == 200
    finally:
        for h in held:
            h.close()
    wait_for("given back", lambda: s.metric("http_request_bodies_bytes", port="data") == 0)
