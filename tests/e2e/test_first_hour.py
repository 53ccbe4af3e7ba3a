# SPDX-License-Identifier: Apache-2.0
"""What somebody meets who puts the router in front of their engines for the first time: each mistake is named once, where they look."""
import http.server
import json
import subprocess
import threading
import time

import msgpack
import pytest
from conftest import BINARY, Mock, Serve, call, free_ports, wait_for
from test_doctor import doctor, problems

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}


class Worker:
    """An engine's HTTP side that answers as it is told: path -> status, or body (a dict is JSON), or a callable that makes one."""

    def __init__(self, **kw):
        self.answers, self.requests = {"/health": 200, "/v1/models": MODELS}, []
        mine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                mine.requests.append((self.command, self.path, dict(self.headers), body))
                a = mine.answers.get(path, 404)
                a = a() if callable(a) else a
                status, out = (a, b"{}") if isinstance(a, int) else a if isinstance(a, tuple) else (200, a)
                kind = "text/event-stream" if isinstance(out, bytes) and out.startswith(b"data:") else "application/json"
                out = out if isinstance(out, bytes) else out.encode() if isinstance(out, str) else json.dumps(out).encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(out)))
                self.end_headers()
                try:
                    self.wfile.write(out)
                except OSError:
                    pass  # it has not waited for it

            do_GET = do_POST

            def log_message(self, *a):
                pass
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def got(self, path):
        return [r for r in self.requests if r[1].split("?")[0] == path]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def worker():
    made = []

    def make(**answers):
        w = Worker()
        w.answers.update({"/" + k.replace("__", "/"): v for k, v in answers.items()})
        made.append(w)
        return w
    yield make
    for w in made:
        w.close()


def lines(p, *words):
    return [l for l in p.text().splitlines() if all(w in l for w in words)]


def says(p, *words):
    return wait_for(f"a line with {words}: {p.text()}", lambda: lines(p, *words))


# ---- a worker that cannot be reached ---------------------------------------------------------------------------------


def test_a_worker_that_refuses_is_one_line_and_so_is_its_return(start):
    port = free_ports()
    s = start(Serve, [f"http://127.0.0.1:{port}"], "--no-router-kv-events", ready=False)
    says(s, "worker 1", f"http://127.0.0.1:{port}", "is down", "connection refused")
    m = start(Mock, port=port, with_events=False)
    says(s, "worker 1", "is up again")
    m.kill()
    wait_for("said again", lambda: len(lines(s, "worker 1", "is down")) == 2)
    assert len(lines(s, "is down")) == 2 and len(lines(s, "is up again")) == 1


@pytest.mark.parametrize("health,why", [(500, "status 500"), (lambda: time.sleep(4) or 200, "no answer in time")])
def test_why_a_worker_is_down(start, worker, health, why):
    w = worker(health=health)
    s = start(Serve, [w.url], "--no-router-kv-events", ready=False)
    says(s, "worker 1", "is down", why)


def test_a_name_that_is_unknown(start):
    s = start(Serve, ["http://no-such-host.invalid:8000"], "--no-router-kv-events", ready=False)
    says(s, "worker 1", "no-such-host.invalid", "is down")


def test_an_engine_that_wants_a_key_is_named(start, worker):
    w = worker(v1__models=401)
    s = start(Serve, [w.url], "--no-router-kv-events", ready=False)
    says(s, "worker 1", "/v1/models", "401", "key")


# ---- addresses as users write them ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tail", ["/v1", "/v1/"])
def test_a_base_url_of_an_openai_client_works(start, tail):
    m = start(Mock, with_events=False)
    s = start(Serve, [f"http://127.0.0.1:{m.port}{tail}"], "--no-router-kv-events")
    says(s, "ends in /v1")
    assert s.complete("hello").status == 200
    assert s.get("/workers")[0]["endpoint"] == f"http://127.0.0.1:{m.port}"
    assert call(s.admin, "POST", "/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{m.port}{tail}"}).status == 201
    assert s.get("/workers")[1]["endpoint"] == f"http://127.0.0.1:{m.port}"


def test_the_engines_own_events_address_is_refused_in_the_admin_api(start):
    m = start(Mock)
    s = start(Serve, [m])
    r = call(s.admin, "POST", "/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{m.port}", "kv_events_endpoints": "tcp://*:5557"})
    assert r.status == 400 and "as seen from here" in r.json()["error"]


# ---- replay and doctor -------------------------------------------------------------------------------------------------


def replay(*args):
    return subprocess.run([BINARY, "replay", "--no-progress", *map(str, args)], capture_output=True, text=True, timeout=240)


def test_replay_counts_streams_that_are_only_an_error(worker):
    body = b'data: {"error": {"message": "the prompt is too long", "code": 400}}\n\ndata: [DONE]\n\n'
    w = worker(v1__completions=body)
    r = replay("--url", w.url, "--sessions", 2, "--turns", 1, "--system-tokens", 4, "--turn-tokens", 4, "--concurrency", 1)
    assert r.returncode == 1 and "the prompt is too long" in r.stdout
    assert "requests failed" in r.stdout and [l.split()[-1] for l in r.stdout.splitlines() if l.startswith("requests failed")] == ["2"]


def test_replay_sends_only_tokens_of_the_vocabulary(worker, tmp_path):
    w = worker(v1__completions={"choices": [{"text": "\u00ff~~~"}]})
    trace = tmp_path / "t.jsonl"
    trace.write_text(json.dumps({"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [1, 2]}) + "\n")
    for what in (["--sessions", 2, "--turns", 3, "--system-tokens", 40, "--turn-tokens", 40, "--concurrency", 1], ["--trace", trace]):
        assert replay("--url", w.url, "--vocab", 120, "--no-stream", *what).returncode == 0
    prompts = [json.loads(r[3])["prompt"] for r in w.got("/v1/completions")]
    assert len(prompts) == 7 and max(map(max, prompts)) < 120


def test_doctor_does_not_take_an_idle_engine_for_one_with_a_wrong_clock(start, engine):
    m, e = start(Mock, with_events=False), engine()
    e.send(msgpack.packb([time.time() - 3600, [["BlockStored", [1], None, [1] * 16, 16, None, "GPU", None]], 0]))
    target = f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{e.events},replay=tcp://127.0.0.1:{e.replay_port}"
    got = []
    t = threading.Thread(target=lambda: got.append(doctor("--no-probe", target)))
    t.start()
    while t.is_alive():
        e.serve_replay(0.05)
    rc, report = got[0]
    assert rc == 0 and "clock" not in problems(report), report
    assert [f["verdict"] for f in report["findings"] if f["check"] == "clock"] == ["unknown"]
