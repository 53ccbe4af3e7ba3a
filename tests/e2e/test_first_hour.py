# SPDX-License-Identifier: Apache-2.0
"""What somebody meets who puts the router in front of their engines for the first time: each mistake is named once, where they look."""
import contextlib
import json
import socket
import subprocess
import threading
import time

import msgpack
import pytest
from conftest import BINARY, Engine, Mock, Serve, call, free_ports, stays, wait_for
from http_parts import Handler, HttpServer
from test_doctor import doctor, problems

MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}


class Worker(HttpServer):
    """An engine's HTTP side that answers as it is told: path -> status, or body (a dict is JSON), or a callable that makes one."""

    def __init__(self, **kw):
        self.answers, self.requests, self.connections = {"/health": 200, "/v1/models": MODELS}, [], []
        mine = self

        class Answers(Handler):
            def setup(self):
                super().setup()
                mine.connections.append(self.connection)

            def do_POST(self):
                body = self.body()
                path = self.path.split("?")[0]
                mine.requests.append((self.command, self.path, dict(self.headers), body))
                a = mine.answers.get(path, 404)
                a = a() if callable(a) else a
                status, out = (a, b"{}") if isinstance(a, int) else a if isinstance(a, tuple) else (200, a)
                kind = "text/event-stream" if isinstance(out, bytes) and out.startswith(b"data:") else "application/json"
                self.answer(status, out.encode() if isinstance(out, str) else out, kind)

            do_GET = do_DELETE = do_POST
        super().__init__(Answers)

    def got(self, path):
        return [r for r in self.requests if r[1].split("?")[0] == path]

    def close(self):
        super().close()
        for c in self.connections:  # a process that has gone answers nobody, on those that it had neither
            with contextlib.suppress(OSError):
                c.shutdown(socket.SHUT_RDWR)


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
    s = start(Serve, [w.url], "--no-router-kv-events", "--health-timeout", 1, ready=False)
    says(s, "worker 1", "is down", why)


def test_a_busy_engine_was_down_because_it_answered_later_than_checks_come(start, worker):
    asked = []
    w = worker(health=lambda: asked.append(time.sleep(2)) or 200)
    s = start(Serve, [w.url], "--no-router-kv-events", ready=False)
    wait_for("answered", lambda: len(asked) > 3)
    assert not lines(s, "is down") and s.get("/workers")[0]["status"] == "up"


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
    assert call(s.admin, "POST", "/workers", {"worker_id": 2, "endpoint": f"http://127.0.0.1:{m.port}{tail}", "force": True}).status == 201
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


# ---- what an engine says of itself -------------------------------------------------------------------------------------


def metrics(block_size=16, blocks=100, engines=(0,), caching="True"):
    return "".join(f'vllm:cache_config_info{{block_size="{block_size}",enable_prefix_caching="{caching}",engine="{e}",num_gpu_blocks="{blocks}"}} 1.0\n'
                   for e in engines)


def source(port, replay=None, host="*"):
    return {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://{host}:{port}", "buffer_steps": 60,
            "replay_endpoint": replay and f"tcp://{host}:{replay}"}


def learnt(s, i=0):
    w = s.get("/workers")[i]
    return w if w["learnt"]["state"] == "answered" else None


def test_a_bare_address_is_enough(start):
    m = start(Mock, "--block-size", 32)
    s = start(Serve, [f"http://127.0.0.1:{m.port}"])
    w = s.get("/workers")[0]
    assert (w["block_size"], w["learnt"]["block_size_from"]) == (32, "/metrics") and w["total_kv_blocks"] == 16384
    assert w["kv_events_endpoints"] == {"0": f"tcp://127.0.0.1:{m.events}"} and w["replay_endpoints"] == {"0": f"tcp://127.0.0.1:{m.replay}"}
    assert [v["trust"] for v in w["views"]] == ["trusted"] and w["learnt"]["notes"] == []
    says(s, "worker 1", "says of itself", "block size 32")
    s.complete("x" * 200)
    wait_for("known", lambda: s.complete("x" * 200).headers["x-kvroute-overlap-blocks"] == "6")
    assert len(lines(s, "says of itself")) == 1


def test_what_was_given_wins_and_a_difference_is_named(start):
    m = start(Mock, "--block-size", 32)
    s = start(Serve, [f"http://127.0.0.1:{m.port},block-size=16"])
    says(s, "worker 1", "block-size 16 was given, but the engine uses 32 (/metrics)")
    assert s.get("/workers")[0]["block_size"] == 16
    assert call(s.admin, "PATCH", "/workers/1", {"block_size": 32}).status == 200
    wait_for("no note", lambda: learnt(s) and not learnt(s)["learnt"]["notes"])
    assert len(lines(s, "but the engine uses")) == 1


@pytest.mark.parametrize("engine,spec", [(["--block-size", 16], ""), (["--no-enable-prefix-caching"], "")])
def test_what_switches_routing_by_cache_off_is_a_warning(start, engine, spec):
    m = start(Mock, *engine)
    s = start(Serve, [m.spec(spec)], "--block-size", 32, "--log-level", "warning")
    if engine[0] == "--block-size":
        says(s, " warning ", "worker 1", "block-size 32 was given, but the engine uses 16 (/metrics): give block-size=16, or leave it out")
        s.complete("x" * 400)
        says(s, " warning ", "view of worker 1 rank 0 is unknown: the engine's block size is 16, not the configured 32")
    else:
        says(s, " warning ", "worker 1", "prefix caching is off in the engine")


@pytest.mark.parametrize("asked", [True, False])
def test_a_worker_without_events_or_replay_endpoint_is_a_warning(start, worker, zctx, asked):
    """Whether its engine says nothing of itself, or is not asked."""
    e = Engine(zctx)
    try:
        s = start(Serve, [worker().url, f"{worker().url},events=tcp://127.0.0.1:{e.events}"], "--log-level", "warning", "--block-size", 4,
                  *([] if asked else ["--no-ask-engines"]), ready=False)
        says(s, " warning ", "worker 1 ", "no KV events endpoint is")
        says(s, " warning ", "worker 2 ", "no replay endpoint is known, so what is lost on the way stays lost")
    finally:
        e.close()


def test_a_worker_that_comes_back_otherwise_is_learnt_anew(start):
    m = start(Mock, "--block-size", 32)
    s = start(Serve, [f"http://127.0.0.1:{m.port}"])
    m.kill()
    says(s, "worker 1", ") is down:")
    start(Mock, "--block-size", 64, port=m.port, events=m.events, replay=m.replay)
    wait_for("learnt", lambda: s.get("/workers")[0]["block_size"] == 64)
    wait_for("trusted", lambda: s.view().get("trusted"))
    says(s, "worker 1", "block size 64")


def test_an_engine_cannot_send_us_elsewhere(start, worker):
    """Of the endpoints it tells only the port is taken, and none below 1024."""
    port = free_ports(2)
    w = worker(metrics=metrics(), kv_event_sources={"0": source(port, port + 1, "169.254.169.254")})
    x = worker(metrics=metrics(), kv_event_sources={"0": source(22)})
    s = start(Serve, [w.url, x.url], ready=False)
    wait_for("learnt", lambda: learnt(s, 0) and learnt(s, 1))
    a, b = s.get("/workers")
    assert a["kv_events_endpoints"] == {"0": f"tcp://127.0.0.1:{port}"} and a["replay_endpoints"] == {"0": f"tcp://127.0.0.1:{port + 1}"}
    assert b["kv_events_endpoints"] == {} and "give events=" in " ".join(b["learnt"]["notes"])


@pytest.mark.parametrize("answers,words", [
    (dict(metrics=metrics(), kv_event_sources={}), ["publishes no KV events", "--kv-events-config '{\"enable_kv_cache_events\":true", "replay_endpoint"]),
    (dict(metrics=metrics()), ["no KV events endpoint is known", "give events=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558"]),
    (dict(metrics=metrics(caching="False"), kv_event_sources={}), ["prefix caching is off", "without --no-enable-prefix-caching"]),
    (dict(metrics=metrics(), kv_event_sources={"0": source(20001)}), ["no replay endpoint is known", '"replay_endpoint":"tcp://*:5558"']),
    (dict(server_info={"page_size": 1, "enable_cache_report": False}), ["--enable-cache-report"]),
    (dict(get_server_info={"page_size": 1, "disable_radix_cache": True}), ["without --disable-radix-cache"]),
    (dict(server_info={"page_size": 1, "kv_events_config": None}), ["publishes no KV events", "--kv-events-config '{\"publisher\":\"zmq\""]),
])
def test_the_flag_that_is_missing_is_named_once(start, worker, answers, words):
    w = worker(**answers)
    s = start(Serve, [w.url], ready=False)
    says(s, "worker 1", *words)
    assert any(all(x in n for x in words) for n in learnt(s)["learnt"]["notes"])
    w.answers["/health"] = 500
    says(s, "worker 1", ") is down:")
    before = len(w.got("/metrics"))
    w.answers["/health"] = 200
    says(s, "worker 1", "is up again")
    wait_for("asked again", lambda: len(w.got("/metrics")) > before and learnt(s))
    assert len(lines(s, *words)) == 1


def test_an_engine_that_says_nothing_holds_nothing_up(start, worker):
    w = worker(metrics=lambda: time.sleep(30) or 404)
    s = start(Serve, [w.url], "--restore-timeout", 1)  # ready
    assert s.get("/workers")[0]["block_size"] == 16 and s.get("/workers")[0]["learnt"]["state"] != "answered"


def test_answers_that_are_too_long_or_no_answers(start, worker):
    w = worker(metrics=b"x" * (5 << 20), kv_event_sources=b"[" * 1000, server_info=b'{"page_size":' + b"8" * (2 << 20))
    s = start(Serve, [w.url], ready=False)
    wait_for("asked", lambda: learnt(s))
    assert s.get("/workers")[0]["block_size"] == 16 and w.got("/get_server_info")


def test_nobody_is_asked_who_must_not_be(start, worker):
    w = worker(metrics=metrics(64))
    s = start(Serve, [w.url], "--no-ask-engines")
    wait_for("up", lambda: s.get("/workers")[0]["status"] == "up" and len(w.got("/health")) > 2)
    assert not w.got("/metrics") and not w.got("/kv_event_sources") and s.get("/workers")[0]["block_size"] == 16
    assert "learnt" not in s.get("/workers")[0]


# ---- ranks that nobody mentioned ---------------------------------------------------------------------------------------


def refuses(n, seen):
    def a():
        return (400, {"error": {"message": f"data_parallel_rank 1073741824 is out of range [0, {n})."}}) if seen() else {"choices": []}
    return a


def two_ranks(worker, port, **kw):
    return worker(metrics=metrics(engines=(0, 1)), kv_event_sources={"0": source(port, port + 2), "1": source(port + 1, port + 3)}, **kw)


def test_ranks_that_nobody_mentioned_are_used_when_the_engine_takes_them(start, worker):
    port = free_ports(4)
    w = two_ranks(worker, port)
    w.answers["/v1/completions"] = refuses(2, lambda: w.requests[-1][2].get("X-data-parallel-rank") == "1073741824")
    for spec in (w.url, w.url + f",events=tcp://127.0.0.1:{port},replay=tcp://127.0.0.1:{port + 2}"):
        s = start(Serve, [spec], ready=False)
        wait_for("learnt", lambda: learnt(s))
        a = s.get("/workers")[0]
        assert a["data_parallel_size"] == 2 and a["learnt"]["ranks"] == [0, 1]
        assert a["kv_events_endpoints"] == {str(r): f"tcp://127.0.0.1:{port + r}" for r in (0, 1)}
        assert a["replay_endpoints"] == {str(r): f"tcp://127.0.0.1:{port + 2 + r}" for r in (0, 1)}
        w.requests.clear()
        assert s.complete("x", headers={"x-kvroute-worker": "1", "x-kvroute-dp-rank": "1"}).status == 200
        assert w.got("/v1/completions")[-1][2]["X-data-parallel-rank"] == "1"


def test_ranks_that_nobody_can_choose_are_named_and_never_all_rank_0(start, worker):
    w = two_ranks(worker, free_ports(4), v1__completions={"choices": []})  # it does not read the header
    for spec in (w.url, w.url + ",dp-size=1"):
        s = start(Serve, [spec], ready=False)
        says(s, "worker 1", "2 data-parallel ranks, 0 to 1", "does not take the header X-data-parallel-rank")
        w.requests.clear()
        assert s.complete("x").status == 200 and "X-data-parallel-rank" not in w.got("/v1/completions")[-1][2]
        assert [v["reason"] for v in s.get("/workers")[0]["views"]] == ["the engine has several data-parallel ranks, and does not take one"]


@pytest.mark.parametrize("given,named", [("dp-size=1", True), ("dp-size=3", True), ("dp-start=1,dp-size=1", True), ("dp-size=2", False)])
def test_ranks_that_were_given_otherwise_are_named(start, worker, given, named):
    w = two_ranks(worker, free_ports(4))
    w.answers["/v1/completions"] = refuses(2, lambda: w.requests[-1][2].get("X-data-parallel-rank") == "1073741824")
    s = start(Serve, [w.url + "," + given], ready=False)
    wait_for("learnt", lambda: learnt(s))
    assert bool(lines(s, "was given, but the engine has 2 data-parallel ranks, 0 to 1")) == named
    first = 1 if "dp-start=1" in given else 0
    assert s.complete("x", headers={"x-kvroute-worker": "1", "x-kvroute-dp-rank": str(first)}).status == 200
    assert w.got("/v1/completions")[-1][2]["X-data-parallel-rank"] == str(first)  # it has several: this one is meant


def test_one_address_for_each_rank(start, worker):
    """vLLM with --data-parallel-rank: a place among several engines, of which it knows nothing but its own."""
    port = free_ports(4)
    ws = [worker(metrics=metrics(engines=(r,)), kv_event_sources={str(r): source(port + r, port + 2 + r)}, v1__completions={"choices": []}) for r in (0, 1)]
    s = start(Serve, [w.url for w in ws], ready=False)
    wait_for("learnt", lambda: learnt(s, 0) and learnt(s, 1))
    for r, w in enumerate(s.get("/workers")):
        assert (w["data_parallel_start_rank"], w["data_parallel_size"], w["learnt"]["notes"]) == (r, 1, [])
        assert w["kv_events_endpoints"] == {str(r): f"tcp://127.0.0.1:{port + r}"}
        assert s.complete("x", headers={"x-kvroute-worker": str(r + 1)}).status == 200
        assert "X-data-parallel-rank" not in ws[r].got("/v1/completions")[-1][2]


def test_a_hybrid_engine_counts_its_ranks_from_zero(start, worker):
    port = free_ports(8)
    w = worker(metrics=metrics(engines=(2, 3)), kv_event_sources={str(r): source(port + r, port + 4 + r) for r in (2, 3)})
    w.answers["/v1/completions"] = refuses(2, lambda: w.requests[-1][2].get("X-data-parallel-rank") == "1073741824")
    s = start(Serve, [w.url], ready=False)
    wait_for("learnt", lambda: learnt(s))
    r = s.complete("x", headers={"x-kvroute-worker": "1", "x-kvroute-dp-rank": "3"})
    assert r.headers["x-kvroute-dp-rank"] == "3" and w.got("/v1/completions")[-1][2]["X-data-parallel-rank"] == "1"


# ---- endpoints ---------------------------------------------------------------------------------------------------------


def test_swapped_endpoints_are_named(start):
    m = start(Mock)
    s = start(Serve, [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{m.replay},replay=tcp://127.0.0.1:{m.events}"], ready=False)
    says(s, "worker 1 rank 0", f"events=tcp://127.0.0.1:{m.replay}", "swapped?")
    assert "swapped" in s.view()["events_error"]
    assert len(lines(s, "events=tcp", "swapped")) == 1


def test_a_replay_endpoint_that_is_the_events_port_is_named(start):
    m = start(Mock)
    s = start(Serve, [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{m.events},replay=tcp://127.0.0.1:{m.events}"], ready=False)
    says(s, "worker 1 rank 0", f"replay=tcp://127.0.0.1:{m.events}", "another kind of socket")


def test_an_events_endpoint_where_nobody_answers_is_named(start):
    m, port = start(Mock), free_ports()
    s = start(Serve, [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{port}"], ready=False)
    says(s, "worker 1 rank 0", f"events=tcp://127.0.0.1:{port}", "no publisher answers there")


def test_an_engine_that_dies_is_not_said_to_answer(start):
    m = start(Mock)
    s = start(Serve, [f"http://127.0.0.1:{m.port},events=tcp://127.0.0.1:{free_ports()}"], ready=False)
    says(s, "worker 1 rank 0", "no publisher answers there")
    m.kill()
    wait_for("the worker is down", lambda: s.get("/workers")[0]["status"] == "down")
    stays("nothing answers", lambda: "its events endpoint answers" not in s.text(), 1)


def test_doctor_says_what_the_router_has_noticed(start):
    m = start(Mock, "--block-size", 32)
    s = start(Serve, [f"http://127.0.0.1:{m.port},block-size=16"], ready=False)
    wait_for("learnt", lambda: learnt(s))
    rc, report = doctor("--no-probe", f"http://127.0.0.1:{s.admin}")
    assert rc == 1 and any("the engine uses 32" in f["detail"] for f in report["findings"] if f["check"] == "configuration")


# ---- lists of models that are too long -------------------------------------------------------------------------------


def many(n, **more):
    return {"object": "list", "data": [{"id": "m", "object": "model"}] + [{"id": f"a{i}", "object": "model", "parent": "m", **more} for i in range(n)]}


def served(s):
    return {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]}


def test_models_beyond_the_most_of_a_worker_were_left_out_without_a_word(start, worker):
    listed = many(300)
    listed["data"][1]["id"] = "n" * 128
    w = worker(v1__models=listed, v1__completions={"choices": [{"text": "x"}]})
    s = start(Serve, [w.url], "--no-router-kv-events", "--no-ask-engines")
    says(s, "warning", "worker 1", w.url, "45 of 301 models are not served", "at most 256", "127 bytes")
    assert s.complete([1], model="a1").status == 200 and s.complete([1], model="a299").status == 404
    n = len(w.got("/v1/models"))
    wait_for("it is asked again", lambda: len(w.got("/v1/models")) > n + 2)
    assert len(lines(s, "models are not served")) == 1


def test_a_worker_whose_list_of_models_is_too_long_was_taken_to_serve_any_name(start, worker):
    w = worker(v1__models=many(3), v1__completions={"choices": [{"text": "x"}]})
    s = start(Serve, [w.url], "--no-router-kv-events", "--no-ask-engines")
    wait_for("the list", lambda: served(s) == {"m", "a0", "a1", "a2"})
    for answer, text in ((many(2000, note="x" * 1000), "longer than 1 MiB"), ("<html>", "not JSON")):
        w.answers["/v1/models"] = answer
        says(s, "warning", "worker 1", "GET /v1/models", text)
        assert served(s) == {"m", "a0", "a1", "a2"} and s.complete([1], model="other").status == 404


# ---- an engine that tells no tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("answer, why", [(401, "status 401"), ({"tokens": "none"}, "no list of tokens that can be taken"),
                                         (lambda: time.sleep(3) or 200, "no answer in time"), (None, "connection")])
def test_an_engine_that_never_tells_tokens_switched_routing_by_cache_off_without_a_line(start, worker, answer, why):
    def closes():
        raise ConnectionError
    w = worker(tokenize=answer or closes, v1__completions={"choices": [{"text": "x"}]})
    s = start(Serve, [f"{w.url},events=tcp://127.0.0.1:{free_ports()}"], "--tokenizer", "engine", "--tokenize-timeout", 0.5, "--no-ask-engines",
              ready=False)
    for _ in range(2):
        r = s.complete("hello", model="m")
        assert (r.status, r.headers["x-kvroute-reason"]) == (200, "load-tokenize-failed")
    says(s, "warning", "worker 1", w.url, "POST /tokenize", why)
    assert len(lines(s, "POST /tokenize")) == 1
