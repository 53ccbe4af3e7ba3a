# SPDX-License-Identifier: Apache-2.0
"""What the page is made of and fed with: its files, the last hour, the stream of /status. In a browser: make test-page (tests/page)."""
import http.client
import json
import os
import re
import shutil
import socket
import subprocess

import pytest

from conftest import SLOW, Mock, Select, Serve, call, wait_for

FILES = os.path.join(os.path.dirname(__file__), "../../src/app/serve/admin/page")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


class Stream:
    """Who listens to /status/stream."""

    def __init__(self, port):
        self.c = http.client.HTTPConnection("127.0.0.1", port, timeout=30 * SLOW)
        self.c.request("GET", "/status/stream")
        self.r = self.c.getresponse()

    def next(self):
        """The next event; None: the stream has ended as it should."""
        line = self.r.readline()
        if not line:
            return None
        assert line.startswith(b"data: ") and self.r.readline() == b"\n"
        return json.loads(line[6:])

    def close(self):
        self.c.close()
        self.r.close()


@pytest.fixture
def listen():
    made = []

    def make(port):
        made.append(Stream(port))
        return made[-1]
    yield make
    for s in made:
        s.close()


# ---- files ---------------------------------------------------------------------------------------------------


def test_every_file_of_the_page_is_served_as_it_stands(fleet):
    s, _ = fleet
    for name in os.listdir(FILES):
        r = call(s.admin, "GET", "/" if name == "index.html" else f"/page/{name}")
        text = open(os.path.join(FILES, name), encoding="utf-8").read().split("\n", 1)[1]  # the licence's line stays here
        assert r.status == 200 and r.body.decode() == text and r.headers["content-type"] == TYPES[os.path.splitext(name)[1]], name
        for word, path in re.findall(r"""(from|src=|href=) ?['"]([^'"#]+)['"]""", text):  # all that one names is another one
            where = {"from": "/page/" + path.removeprefix("./")}.get(word, "/" + path)
            assert call(s.admin, "GET", where).status == 200, (name, path)
    assert call(s.admin, "GET", "/page/nothing.js").status == call(s.admin, "GET", "/page/").status == 404
    assert call(s.admin, "POST", "/page/main.js", {}).status == 405


def test_no_other_host_and_no_script_of_another_origin_is_used(fleet):
    s, _ = fleet
    r = call(s.admin, "GET", "/")
    policy = dict(part.strip().split(" ", 1) for part in r.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and {policy[k] for k in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'" and r.headers["x-content-type-options"] == "nosniff"
    page = r.body.decode()
    assert not re.search(r"\son\w+=|<style|style=|<script>|https?://", page), "the policy would keep it from working"


def test_a_browser_that_has_a_file_is_not_sent_it_again(fleet):
    s, _ = fleet
    tags = {}
    for path in ("/", "/page/main.js", "/page/style.css"):
        r = call(s.admin, "GET", path)
        tags[path] = r.headers["etag"]
        assert r.headers["cache-control"] == "no-cache"  # a new version is seen at once
        again = call(s.admin, "GET", path, headers={"If-None-Match": f'"other", W/{tags[path]}'})
        assert again.status == 304 and not again.body and again.headers["etag"] == tags[path]
        assert call(s.admin, "GET", path, headers={"If-None-Match": '"other"'}).status == 200
    assert len(set(tags.values())) == 3


@pytest.mark.skipif(not shutil.which("node"), reason="needs node")
def test_requests_of_one_id_and_numbers_of_64_bits_are_shown(tmp_path):
    shutil.copytree(FILES, tmp_path / "page")
    (tmp_path / "page" / "package.json").write_text('{"type": "module"}')
    parts = os.path.join(os.path.dirname(__file__), "../page/parts.mjs")
    p = subprocess.run(["node", parts, tmp_path / "page"], capture_output=True, text=True, timeout=60 * SLOW, check=False)
    assert p.returncode == 0, p.stderr


# ---- the last hour -------------------------------------------------------------------------------------------


def test_the_last_hour_has_what_was_counted(fleet):
    s, _ = fleet
    for _ in range(3):
        s.complete("of a prompt that is long enough for some blocks of it to be cached", stream=True, stream_options={"include_usage": True})
    s.complete("x", model="nobody's")

    def agree():  # once nothing moves any more: no two figures are read at one moment
        status = s.get("/status")
        recent, prompt = status["recent"], status["prompt_tokens"]
        assert recent["failures"] == {"refused": 1} and recent["requests"] == 4 and recent["errors"] == status["errors"] and recent["waiting"] == 0
        assert recent["hit_rate"] == pytest.approx(status["actual_cached_tokens"] / prompt, abs=1e-3)
        assert recent["predicted_hit_rate"] == pytest.approx(status["predicted_cached_tokens"] / prompt, abs=1e-3)
        return recent
    recent = wait_for("all are counted", agree)
    assert 0 < recent["ttft_p50_ms"] <= recent["ttft_p99_ms"] and 0 < recent["seconds"]
    history = wait_for("a point", lambda: (h := s.get("/history"))["points"] and h, 30)
    assert history["every_s"] == 10 and set(history["points"][0]) == set(recent)
    assert history["points"][0]["seconds"] == pytest.approx(10, abs=5 * SLOW)
    counted = wait_for("points of all", lambda: (p := s.get("/history")["points"]) and sum(x["requests"] for x in p) == 4 and p, 30)
    assert sum(x["errors"] for x in counted) == s.get("/status")["errors"]
    assert [x["at_ms"] for x in counted] == sorted(x["at_ms"] for x in counted)


def test_nothing_is_said_of_what_has_not_been(start):
    recent = start(Serve, [], ready=False).get("/status")["recent"]
    assert recent["requests"] == 0
    assert [recent[k] for k in ("hit_rate", "predicted_hit_rate", "ttft_p50_ms", "ttft_p99_ms")] == [None] * 4


def test_requests_that_wait_are_told(start):
    s = start(Serve, [], "--queue-timeout", 60, ready=False)
    with socket.create_connection(("127.0.0.1", s.port)) as c:
        body = b'{"model": "m", "prompt": "x"}'
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        wait_for("it waits", lambda: s.get("/status")["recent"]["waiting"] == 1)
    wait_for("it has gone", lambda: s.get("/status")["recent"]["waiting"] == 0)


# ---- the stream ----------------------------------------------------------------------------------------------


def test_the_stream_tells_what_status_tells(fleet, listen):
    s, _ = fleet
    a, b = listen(s.admin), listen(s.admin)
    assert a.r.status == 200 and a.r.getheader("content-type") == "text/event-stream" and a.r.getheader("cache-control") == "no-store"
    first = a.next()
    assert set(first) == set(s.get("/status"))
    s.complete("x")
    wait_for("the request", lambda: a.next()["requests"] == first["requests"] + 1)
    wait_for("the request, to the other", lambda: b.next()["requests"] == first["requests"] + 1)
    assert s.metric("status_listeners") == 2
    a.close()
    wait_for("one has gone", lambda: b.next() and s.metric("status_listeners") == 1)
    assert call(s.admin, "HEAD", "/status/stream").status == 200 and s.metric("status_listeners") == 1
    assert call(s.admin, "POST", "/status/stream", {}).status == 405


def test_select_has_the_page_too(start, listen):
    s = start(Select)
    assert call(s.port, "GET", "/").status == 200
    assert listen(s.port).next()["program"] == "select"


def test_no_more_listen_than_may(fleet, listen):
    s, _ = fleet
    all_of_them = [listen(s.admin) for _ in range(16)]
    r = call(s.admin, "GET", "/status/stream")
    assert r.status == 503 and "/status" in r.json()["error"]
    all_of_them[0].close()
    wait_for("there is room again", lambda: listen(s.admin).r.status == 200)


def test_a_stream_ends_when_the_router_does(start, listen):
    s = start(Serve, [start(Mock)])
    stream = listen(s.admin)
    assert stream.next()
    s.p.terminate()
    wait_for("its end", lambda: stream.next() is None)
    assert wait_for("exit", lambda: s.p.poll() is not None)


def test_who_takes_nothing_is_dropped(start, listen):
    s = start(Serve, [], ready=False)
    for i in range(250):  # so that the kernel's buffers are soon full
        entry = {"worker_id": i, "endpoint": f"http://127.0.0.1:1/{i}", "block_size": 16, "taints": ["x" * 60] * 8}
        assert s.post("/workers", entry).status == 201
    with socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.connect(("127.0.0.1", s.admin))
        c.sendall(b"GET /status/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_for("it listens", lambda: s.metric("status_listeners") == 1)
        wait_for("it is dropped", lambda: s.metric("status_listeners_dropped_total") == 1, 60)
        assert s.metric("status_listeners") == 0
    assert listen(s.admin).next()


def test_options_are_told_with_where_they_were_said_and_without_what_is_secret(start, tmp_path):
    file = tmp_path / "kvroute.yaml"
    file.write_text("health-interval: 0.2\nmodel: m\nworker:\n  - url: http://127.0.0.1:9\n    api-key: geheim\n")
    s = start(Serve, [], "--config", file, "--nats-url", "nats://me:geh@im:geheim@127.0.0.1:1,nats://127.0.0.1:2",
              "--discovery-worker", "model=m,api-key=geheim\\,geheim", ready=False, env={"KVROUTE_QUEUE_TIMEOUT": "7"})
    text = call(s.admin, "GET", "/options").body.decode()
    told = {o["name"]: o for o in json.loads(text)}
    assert told["discovery-worker"]["value"] == "model=m,api-key=..."
    assert "geheim" not in text and "max-retries" not in told
    assert told["nats-url"] == {"name": "nats-url", "value": "nats://127.0.0.1:1,nats://127.0.0.1:2", "from": "flag"}
    assert told["model"] == {"name": "model", "value": "m", "from": "file", "line": 2} and told["worker"]["value"] == ["http://127.0.0.1:9"]
    assert told["queue-timeout"] == {"name": "queue-timeout", "value": 7, "from": "environment"}
    assert told["health-interval"]["from"] == "flag"  # which beats the file
