# SPDX-License-Identifier: Apache-2.0
"""Bodies of who has no key: the answer is there when the head is, and nothing of the body is held or taken for a request."""
import json
import socket

import pytest

from conftest import Indexer, Mock, Serve, call, wait_for
from tls_parts import Authority, context

KEY, SMALL_KEY = "a-key-of-a-client", "a-key-with-a-limit"
KEYS = f"keys:\n- {{name: client, key: {KEY}}}\n- {{name: small, key: {SMALL_KEY}, max_body_size: 1000}}\n- {{name: late, key: an-old-key, expires: 2020-01-31}}\n"
SENT_ON = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"  # where a body belongs


def head(path, framing, headers=""):
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n{headers}\r\n".encode()


def connect(port, tls=None):
    c = socket.create_connection(("127.0.0.1", port), 20)
    return tls.wrap_socket(c) if tls else c


def read_all(c):
    """What comes until the other side ends; a reset is an end, too."""
    got = b""
    try:
        while more := c.recv(1 << 16):
            got += more
    except ConnectionError:
        pass
    return got


def bearer(key):
    return f"Authorization: Bearer {key}\r\n"


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.yaml"
    path.write_text(KEYS)
    return path


@pytest.fixture(params=["", "tls"])
def served(request, start, keys, tmp_path):
    """The router, and how to connect."""
    if not request.param:
        return start(Serve, [start(Mock)], "--api-key-file", keys, "--access-log", tmp_path / "log"), None
    ca = Authority(tmp_path, "strangers")
    cert, key = ca.sign("router")
    tls = context(ca.file)
    tls.check_hostname = False
    return start(Serve, [start(Mock)], "--api-key-file", keys, "--tls-cert", cert, "--tls-key", key, "--access-log", tmp_path / "log", tls=tls), tls


FRAMINGS = {"a length": "Content-Length: 8000000", "a small length": "Content-Length: 2", "chunks": "Transfer-Encoding: chunked",
            "a question first": "Content-Length: 8000000\r\nExpect: 100-continue"}


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/v1/models"])
def test_who_has_no_key_is_told_so_before_the_body_has_come(served, framing, path):
    s, tls = served
    for i, (who, code) in enumerate([("", b"invalid_api_key"), (bearer("nobodys-secret-key"), b"invalid_api_key"), (bearer("an-old-key"), b"expired_api_key")]):
        with connect(s.port, tls) as c:
            c.sendall(head(path, framing, who + "x-request-id: a-stranger\r\n"))
            got = read_all(c)  # of the body there was not one byte
        if path == "/v1/models":  # which takes none from anybody
            assert got.startswith(b"HTTP/1.1 405 "), got
            continue
        status = 403 if b"expired" in code else 401
        assert got.startswith(b"HTTP/1.1 %d " % status) and code in got and b"Connection: close" in got and b"100 Continue" not in got, got
        assert b"x-request-id: a-stranger" in got
        assert s.metric("key_refused_total", key="late" if status == 403 else "", reason=["missing", "unknown", "expired"][i]) == 1
    assert s.metric("http_request_bodies_bytes", port="data") == 0


def test_a_strangers_body_is_not_held_while_it_comes_and_is_no_request(served, tmp_path):
    s, tls = served
    socks = []
    for _ in range(20):
        c = connect(s.port, tls)
        socks.append(c)
        c.sendall(head("/v1/completions", "Content-Length: 4000000", "") + SENT_ON * 100)
    answers = [read_all(c) for c in socks]
    assert s.metric("http_request_bodies_bytes", port="data") == 0
    assert all(a.startswith(b"HTTP/1.1 401 ") and a.count(b"HTTP/1.1 ") == 1 for a in answers), answers
    for c in socks:
        c.close()
    lines = lambda: [json.loads(l) for l in (tmp_path / "log").read_text().splitlines() if '"status":401' in l]  # noqa: E731
    wait_for("all are in the log", lambda: len(lines()) == 20)
    assert {(l["path"], l["ending"]) for l in lines()} == {("/v1/completions", "refused")}


def test_a_body_beyond_its_keys_limit_is_refused_when_that_is_known(served):
    s, tls = served
    for framing, sent in (("Content-Length: 1001", b""), ("Transfer-Encoding: chunked", b"3e8\r\n" + b"[" * 1000 + b"\r\n1\r\n[")):
        with connect(s.port, tls) as c:
            c.sendall(head("/v1/completions", framing, bearer(SMALL_KEY)) + sent)
            got = read_all(c)
        assert got.startswith(b"HTTP/1.1 413 ") and b"request_too_large" in got and b"max_body_size is 1000" in got, got
    assert s.metric("key_refused_total", key="small", reason="body_size") == 2
    assert s.metric("http_request_bodies_bytes", port="data") == 0
    for size in (1000, 999):  # which is not beyond it
        body = json.dumps({"prompt": "x", "max_tokens": 1}).ljust(size)
        assert call(s.port, "POST", "/v1/completions", body.encode(), {"Authorization": f"Bearer {SMALL_KEY}"}).status == 200


def test_who_has_a_key_may_ask_whether_to_send_the_body(served):
    s, tls = served
    body = b'{"prompt":"x","max_tokens":1}'
    with connect(s.port, tls) as c:
        c.sendall(head("/v1/completions", f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close", bearer(KEY)))
        first = c.recv(100)
        assert first.startswith(b"HTTP/1.1 100 "), first
        c.sendall(body)
        assert read_all(c).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("port", ["admin", "indexer"])
def test_the_other_ports_read_no_body_of_who_has_no_key(start, tmp_path, port):
    (tmp_path / "keys").write_text(KEY + "\n")
    if port == "admin":
        s = start(Serve, [], "--admin-key-file", tmp_path / "keys", ready=False)
        at, path = s.admin, "/workers"
    else:
        s = start(Indexer, "--api-key-file", tmp_path / "keys", ready=False)
        at, path = s.port, "/query"
    for framing in FRAMINGS.values():
        with connect(at) as c:
            c.sendall(head(path, framing))
            got = read_all(c)
        assert got.startswith(b"HTTP/1.1 401 ") and b"Connection: close" in got and b"100 Continue" not in got, got
    with connect(at) as c:  # the key is looked at, not only that there is one
        c.sendall(head(path, "Content-Length: 2\r\nConnection: close", bearer(KEY)) + b"{}")
        assert not read_all(c).startswith(b"HTTP/1.1 401 ")


def test_what_the_router_answers_itself_reads_no_large_body(start):
    s = start(Serve, [start(Mock)])
    for path, status in (("/nothing", 404), ("/health", 405)):
        with connect(s.port) as c:
            c.sendall(head(path, "Content-Length: 65537"))
            assert read_all(c).startswith(b"HTTP/1.1 %d " % status)
        assert call(s.port, "POST", path, b"x" * 65536).status == status  # which is read, and the connection stays
