# SPDX-License-Identifier: Apache-2.0
"""Pages of other origins on the data port: what a browser asks before it sends, and what it needs to show the page an answer."""
import json
import socket

import pytest
from conftest import SLOW, Mock, Serve, call
from test_proxy import upstream  # noqa: F401 (fixture)

UI, OTHER = "https://ui.example", "https://evil.example"
ASK = {"Origin": UI, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang"}
KEYS = "keys:\n- {name: client, key: a-key-of-a-client, requests_per_second: 100}\n"


def preflight(router, path="/v1/chat/completions", **headers):
    return call(router.port, "OPTIONS", path, headers={**ASK, **{k.replace("_", "-"): v for k, v in headers.items()}})


def ask(router, origin=UI, path="/v1/completions", body=None, **headers):
    return call(router.port, "POST", path, body or {"prompt": "x", "max_tokens": 2}, {**({"Origin": origin} if origin else {}), **headers})


def allowed(a):
    return a.headers.get("access-control-allow-origin")


@pytest.fixture(scope="module")
def mock():
    m = Mock(with_events=False)
    yield m
    m.stop()


@pytest.fixture
def named(start, mock):
    return start(Serve, [mock], "--cors-allow-origin", f"http://localhost:3000, {UI}")


def test_a_browser_that_asks_first_is_answered(named):
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/audio/transcriptions", "/health", "/nothing"):
        a = preflight(named, path)
        assert a.status == 204 and a.body == b"" and allowed(a) == UI and a.headers["vary"] == "Origin", (path, a.status, a.headers)
        assert a.headers["access-control-allow-headers"] == ASK["Access-Control-Request-Headers"]
        assert {"GET", "POST", "DELETE"} <= set(a.headers["access-control-allow-methods"].split(", "))
        assert a.headers["access-control-max-age"] == "600" and "access-control-allow-credentials" not in a.headers
    assert allowed(preflight(named, Origin="http://localhost:3000")) == "http://localhost:3000"
    assert named.metric("requests_total") == 0


def test_a_page_of_another_origin_is_refused_and_told_so(named):
    for origin in (OTHER, "http://ui.example", UI + ":8443", "null", "https://ui.example.evil.example", ""):
        a = preflight(named, Origin=origin)
        assert a.status == 403 and allowed(a) is None and a.headers["vary"] == "Origin" and "--cors-allow-origin" in a.json()["error"]["message"]
    a = ask(named, OTHER)
    assert a.status == 200 and allowed(a) is None and a.headers["vary"] == "Origin", "the browser keeps the answer from the page"


def test_answers_and_errors_name_the_origin_and_what_a_page_may_see(named):
    answers = [ask(named), ask(named, body={"prompt": "x", "stream": True, "max_tokens": 2}), call(named.port, "GET", "/v1/models", headers={"Origin": UI}),
               call(named.port, "GET", "/health", headers={"Origin": UI}), ask(named, body="no JSON"), ask(named, path="/nothing"),
               ask(named, body={"prompt": "x", "model": "nobodys"}), call(named.port, "GET", "/v1/completions", headers={"Origin": UI})]
    assert [a.status for a in answers] == [200, 200, 200, 200, 400, 404, 404, 405]
    for a in answers:
        assert allowed(a) == UI and a.headers["vary"] == "Origin"
        shown = {h.strip().lower() for h in a.headers["access-control-expose-headers"].split(",")}
        assert {h for h in a.headers if h.startswith("x-")} <= shown and {"retry-after", "x-request-id", "x-kvroute-worker"} <= shown
    for length, status in ((64 << 20, 413), (-1, 400)):  # refused before it is a request
        with socket.create_connection(("127.0.0.1", named.port), 10 * SLOW) as c:
            c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: {UI}\r\nContent-Length: {length}\r\n\r\n".encode())
            got = b"".join(iter(lambda: c.recv(65536), b""))
        assert got.startswith(b"HTTP/1.1 %d " % status), got
        assert (f"Access-Control-Allow-Origin: {UI}\r\n".encode() in got) == (status == 413), "a head that is malformed names nobody"
    assert allowed(ask(named, None)) is None


def test_a_browser_asks_without_a_key_and_the_page_sends_one(start, mock, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    s = start(Serve, [mock], "--cors-allow-origin", UI, "--api-key-file", tmp_path / "keys")
    assert preflight(s).status == 204
    a = ask(s)
    assert a.status == 401 and allowed(a) == UI and "x-request-id" in a.headers["access-control-expose-headers"]
    a = ask(s, Authorization="Bearer a-key-of-a-client")
    assert a.status == 200 and allowed(a) == UI and a.headers["x-ratelimit-limit-requests"]
    assert {h for h in a.headers if h.startswith("x-")} <= {h.strip() for h in a.headers["access-control-expose-headers"].split(",")}
    assert call(s.port, "OPTIONS", "/v1/completions", headers={"Origin": UI}).status == 405, "no question of a browser"


def test_all_origins(start, mock):
    s = start(Serve, [mock], "--cors-allow-origin", "*", "--cors-max-age", 5)
    a = preflight(s, Origin=OTHER)
    assert a.status == 204 and allowed(a) == "*" and "vary" not in a.headers and a.headers["access-control-max-age"] == "5"
    assert allowed(ask(s, None)) == allowed(ask(s, "null")) == "*"
    assert "access-control-allow-headers" not in preflight(s, Access_Control_Request_Headers="bad(header)").headers


def test_a_browsers_certificate_goes_along_where_that_is_allowed(start, mock):
    s = start(Serve, [mock], "--cors-allow-origin", UI, "--cors-allow-credentials")
    for a in (preflight(s), ask(s)):
        assert allowed(a) == UI and a.headers["access-control-allow-credentials"] == "true"
    assert "access-control-allow-credentials" not in ask(s, OTHER).headers


ENGINES = (b"HTTP/1.1 %s X\r\nContent-Type: application/json\r\nAccess-Control-Allow-Origin: *\r\nAccess-Control-Allow-Credentials: true\r\n"
           b"Access-Control-Expose-Headers: x-engine\r\nVary: Origin\r\nX-Engine: 1\r\nContent-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize("status", [b"200", b"404", b"503"])
def test_what_an_engine_says_of_origins_is_not_said_twice(start, upstream, status):
    u = upstream(ENGINES % status)

    def lines(*options):
        s = start(Serve, [u.spec()], *options)
        with socket.create_connection(("127.0.0.1", s.port), 10 * SLOW) as c:
            body = json.dumps({"prompt": "x"})
            c.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nOrigin: {UI}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            got = b"".join(iter(lambda: c.recv(65536), b""))
        head = got.split(b"\r\n\r\n")[0].decode().lower().split("\r\n")
        return [line for line in head if line.startswith("access-control-allow-")]
    assert lines("--cors-allow-origin", UI) == [f"access-control-allow-origin: {UI}"]
    assert lines("--cors-allow-origin", OTHER) == []
    assert lines() == ["access-control-allow-origin: *", "access-control-allow-credentials: true"], "without the option it is the engine's business"


def test_without_the_option_nothing_is_said(start, mock):
    s = start(Serve, [mock])
    assert preflight(s).status == 405
    for a in (preflight(s), ask(s)):
        assert not [h for h in a.headers if h.startswith("access-control") or h == "vary"]


@pytest.mark.parametrize("options, text", [
    (["--cors-allow-origin", "ui.example"], "'ui.example'"), (["--cors-allow-origin", f"{UI},{UI}/"], f"'{UI}/'"), (["--cors-allow-origin", ""], "''"),
    (["--cors-allow-origin", "https://*.example"], "'https://*.example'"), (["--cors-allow-origin", f"{UI}:443"], "scheme's own port"),
    (["--cors-allow-credentials"], "needs cors-allow-origin"), (["--cors-allow-credentials", "--cors-allow-origin", f"{UI},*"], "not *"),
])
def test_origins_that_no_browser_sends_are_refused_at_the_start(start, options, text):
    s = start(Serve, [], *options, wait=False, expect=None)
    assert s.p.wait(20) != 0 and text in s.text(), s.text()
