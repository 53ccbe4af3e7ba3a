# SPDX-License-Identifier: Apache-2.0
"""What others read in another way than we do is not passed on: trailers, loose framing, targets, statuses; on every port."""

import pytest

from conftest import Indexer, Mock, Publish, Serve, call
from test_proxy import Upstream, raw

POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
BODY = b'{"prompt":"x"}'
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


def status(out):
    return int(out.split(b" ")[1]) if out else 0


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def pair():
    """A worker that records, and a router before it that tries nobody else and forgives everything."""
    u = Upstream(OK)
    s = Serve([u.spec()], "--no-router-kv-events", "--max-retries", "0", "--breaker-failures", "1000000")
    yield u, s
    u.close()
    s.stop()


@pytest.fixture
def one(pair):
    u, s = pair
    u.answer, u.requests[:] = OK, []
    return u, s


@pytest.mark.parametrize("trailer", [b"X-Kvroute-Worker: 987654321", b"Authorization: Bearer stolen",
                                     b"X-Kvroute-Worker: 987654321\r\nX-More: 1", b"X-Request-Id: mine-mine", b"X-Session-Id: sss-sss"])
def test_trailers_are_no_headers(one, trailer):
    u, s = one
    out = raw(s.port, CHUNKED + b"e\r\n" + BODY + b"\r\n0\r\n" + trailer + b"\r\n\r\n")
    assert status(out) == 200 and b"mine-mine" not in out
    head, body = u.requests[-1]
    assert body == BODY and trailer.split(b"\r\n")[0].split(b": ")[1] not in head and b"x-more" not in head.lower()


def test_key_of_the_indexer_in_a_trailer_is_no_key(start, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    s = start(Indexer, "--api-key-file", keys, key="secret")
    out = raw(s.port, b"POST /query HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                      b"2\r\n{}\r\n0\r\nAuthorization: Bearer secret\r\n\r\n")
    assert status(out) == 401


def test_trailers_of_a_worker_are_no_headers(one):
    u, s = one
    u.answer = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n2\r\n{}\r\n0\r\nX-Late: 1\r\n\r\n")
    for _ in range(2):  # over one connection
        r = s.complete("x")
        assert r.status == 200 and r.body == b"{}" and "x-late" not in r.headers


@pytest.mark.parametrize("name,data,wanted", [
    ("space before the colon", POST + b"x-kvroute-worker : 99\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("space in a name", POST + b"Foo Bar: x\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("empty name", POST + b": x\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("no token in a name", POST + b"F(oo: x\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("a line without a colon", POST + b"Foo\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("control character in a value", POST + b"Foo: a\x00b\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("carriage return in a value", POST + b"Foo: a\rb\r\nContent-Length: 14\r\n\r\n" + BODY, 400),
    ("junk after a chunk", CHUNKED + b"e\r\n" + BODY + b"XX0\r\n\r\n", 400),
    ("junk after a chunk size", CHUNKED + b"e x\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    ("line feed after a chunk", CHUNKED + b"e\r\n" + BODY + b"\n0\r\n\r\n", 400),
    ("line feed after a chunk size", CHUNKED + b"e\n" + BODY + b"\r\n0\r\n\r\n", 400),
    ("a huge chunk size", CHUNKED + b"0000000000000000e\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    ("endless chunk extensions", CHUNKED + b"e;" + b"a" * 20000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n", 400),
    ("line feed in the trailers", CHUNKED + b"e\r\n" + BODY + b"\r\n0\r\nA: b\nC: d\r\n\r\n", 400),
    ("folded trailer", CHUNKED + b"e\r\n" + BODY + b"\r\n0\r\nA: b\r\n c\r\n\r\n", 400),
    ("huge trailers", CHUNKED + b"e\r\n" + BODY + b"\r\n0\r\nA: " + b"b" * 70000 + b"\r\n\r\n", 431),
    ("gzip, chunked", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    ("gzip, then chunked", POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    ("chunked, gzip", POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    ("chunked twice", POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    ("chunked in HTTP/1.0", b"POST /v1/completions HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("empty length", POST + b"Content-Length:\r\n\r\n", 400),
    ("signed length", POST + b"Content-Length: +14\r\n\r\n" + BODY, 400),
    ("another expectation", POST + b"Expect: a-miracle\r\nContent-Length: 14\r\n\r\n" + BODY, 417),
    ("another host in the target", b"GET http://a/v1/models HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n", 400),
    ("user in the target", b"GET http://me@x/v1/models HTTP/1.1\r\nHost: me@x\r\nConnection: close\r\n\r\n", 400),
    ("fragment in the target", b"GET /v1/models#x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    ("no path in the target", b"GET * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    ("two spaces", b"GET  /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    ("space after the version", b"GET /v1/models HTTP/1.1 \r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    ("another protocol", b"GET /v1/models RTSP/1.0\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
    ("no version", b"GET /v1/models\r\nHost: x\r\n\r\n", 400),
    ("many names in Connection", b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: " + b"a," * 40 + b"close\r\n\r\n", 400),
])
def test_loose_requests_are_refused(one, name, data, wanted):
    u, s = one
    assert status(raw(s.port, data)) == wanted
    assert not u.requests
    assert call(s.port, "GET", "/health").status == 200


@pytest.mark.parametrize("data", [
    CHUNKED + b"E;a\r\n" + BODY + b"\r\n000\r\nA: b\r\n\r\n",
    b"\r\n\r\n" + POST + b"Content-Length: 14 \r\nX-Empty:\r\n\r\n" + BODY,
    POST.replace(b"/v1", b"http://X/v1") + b"Content-Length: 14\r\n\r\n" + BODY,
    POST + b"Transfer-Encoding: CHUNKED\r\n\r\ne\r\n" + BODY + b"\r\n0\r\n\r\n",
])
def test_what_is_merely_unusual_works(one, data):
    u, s = one
    assert status(raw(s.port, data)) == 200
    assert u.requests[-1][1] == BODY and u.requests[-1][0].startswith(b"POST /v1/completions HTTP/1.1\r\n")


def test_a_method_that_nobody_knows_was_called_malformed(one):
    """RFC 9110, 15.6.2: what is malformed is 400, what is not known 501."""
    for method in (b"QUERY", b"FROBNICATE", b"get"):
        for name in (b"/v1/models", b"/none"):
            out = raw(one[1].port, method + b" " + name + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status(out) == 501 and b"this method is not known" in out, out
    assert status(raw(one[1].port, b"GE(T /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")) == 400


def test_absolute_targets_name_the_path(one):
    _, s = one
    out = raw(s.port, b"GET http://x/v1/models HTTP/1.1\r\nHost: x\r\n\r\nGET http://x HTTP/1.1\r\nHost: x\r\n\r\n"
                      b"GET http://x?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert [int(p.split(b" ")[0]) for p in out.split(b"HTTP/1.1 ")[1:]] == [200, 404, 404]


def test_http_10_knows_no_expectations(one):
    _, s = one
    out = raw(s.port, b"POST /v1/completions HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n" + BODY)
    assert out.startswith(b"HTTP/1.1 200") and b" 100 " not in out
    assert status(raw(s.port, b"POST /v1/completions HTTP/1.0\r\nExpect: a-miracle\r\nContent-Length: 14\r\n\r\n" + BODY)) == 200


def test_head_is_answered_like_get(start):
    mock = start(Mock)
    s, x, p = start(Serve, [mock]), start(Indexer), start(Publish, mock)

    def head(port, path):
        return raw(port, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())

    def names(port, path):
        out = head(port, path)
        assert out.endswith(b"\r\n\r\n") and out.count(b"\r\n\r\n") == 1, out
        get = raw(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()).split(b"\r\n\r\n")[0]

        def parts(h):
            lines = h.strip().split(b"\r\n")
            return lines[0], sorted(l for l in lines[1:] if not l.lower().startswith(b"content-length")), b"content-length" in h.lower()
        assert parts(out) == parts(get), (out, get)
        return out
    for path in ("/v1/models", "/health", "/ready", "/nope"):
        names(s.port, path)
    for path in ("/workers", "/loads", "/metrics", "/", "/nope", "/overlap_scores"):
        names(s.admin, path)
    for path in ("/health", "/workers", "/metrics", "/nope"):
        names(x.port, path)
    for path in ("/health", "/status", "/metrics", "/nope"):
        names(p.port, path)
    assert b"Content-Length: " in head(s.port, "/v1/models")


def test_head_of_a_passed_path_reaches_the_worker_as_head(one):
    u, s = one
    u.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nX-Seen: 1\r\n\r\n"
    out = raw(s.port, b"HEAD /v1/videos/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 3)
    assert out.startswith(b"HTTP/1.1 200") and b"Content-Length: 20\r\n" in out and u.requests[-1][0].startswith(b"HEAD /v1/videos/x ")


# ---- answers of workers ---------------------------------------------------------------------------------

@pytest.mark.parametrize("answer", [
    b"HTTP/1.1 0 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 99 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 1000 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 103 Hints\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 103 Hints\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"\r\n\r\nHTTP/1.1 200 OK\r\n: x\r\nContent-Length: 2\r\n\r\n{}",
    b"\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nFoo : x\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\n: x\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nConnection: " + b"a," * 40 + b"b\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/2.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70000 + b"\r\nContent-Length: 2\r\n\r\n{}",
])
def test_bad_answer_of_a_worker_is_502(one, answer):
    u, s = one
    u.answer = [answer]
    assert s.complete("x").status == 502


@pytest.mark.parametrize("tail", [b"XX0\r\n\r\n", b"\r\n2 x\r\n{}\r\n0\r\n\r\n", b"\n0\r\n\r\n", b"\r\n0\r\nA : b\r\n\r\n"])
def test_loose_chunks_of_a_worker_break_the_answer(one, tail):
    u, s = one
    u.answer = ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}" + tail])
    out = raw(s.port, POST + b"Content-Length: 14\r\n\r\n" + BODY)
    assert status(out) == 502 or not out.endswith(b"0\r\n\r\n"), out


def test_interim_answers_are_passed_over(one):
    u, s = one
    u.answer = (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    for _ in range(3):
        r = s.complete("x")
        assert r.status == 200 and r.body == b"{}" and "link" not in r.headers


def test_unknown_status_of_a_worker_is_passed_on(one):
    u, s = one
    u.answer = (b"HTTP/1.1 799 Odd\r\nContent-Length: 2\r\n\r\n{}")
    assert s.complete("x").status == 799
