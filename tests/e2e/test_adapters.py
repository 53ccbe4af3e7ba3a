# SPDX-License-Identifier: Apache-2.0
"""Adapters that an operator loads and unloads at all workers of a model, over the admin port."""
import threading
import time

import pytest

from conftest import Mock, Serve, call, wait_for
from test_first_hour import worker  # noqa: F401

LOADS = ("--model", "m", "--runtime-lora")
TUNE = {"model_name": "m", "lora_name": "tune", "lora_path": "/adapters/tune"}
PROMPT = list(range(64))


def router(start, *workers, extra=()):
    s = start(Serve, list(workers), *extra)
    wait_for("the models", lambda: {m["id"] for m in call(s.port, "GET", "/v1/models").json()["data"]} >= {"m"})
    wait_for("all of them", lambda: all(w["status"] == "up" for w in s.get("/workers")))
    return s


def names(s):
    return {m["id"]: m["parent"] for m in call(s.port, "GET", "/v1/models").json()["data"]}


def test_an_adapter_is_loaded_at_every_worker_and_served_from_then_on(start):
    mocks = [start(Mock, *LOADS) for _ in range(3)]
    s = router(start, *mocks, start(Mock, "--model", "other", "--runtime-lora"))
    assert s.complete(PROMPT, model="tune").status == 404
    r = s.post("/adapters/load", TUNE)
    said = r.json()
    assert r.status == 200 and (said["done"], said["failed"], said["model_name"], said["lora_name"]) == (3, 0, "m", "tune"), said
    assert [w["worker_id"] for w in said["workers"]] == [1, 2, 3]
    assert all(w["status"] == 200 and "'tune' added successfully" in w["body"] and not w["cut"] for w in said["workers"])
    assert names(s) == {"m": None, "tune": "m", "other": None}  # at once: nobody waits for the next health check
    assert {s.complete([n] * 64, model="tune").status for n in range(8)} == {200}
    a, b = s.complete(PROMPT, model="m"), s.complete(PROMPT, model="tune")
    assert b.headers["x-kvroute-overlap-blocks"] == "0" and (a.status, b.status) == (200, 200)  # the adapter's blocks are others
    wait_for("its blocks", lambda: s.complete(PROMPT, model="tune").headers["x-kvroute-reason"] == "kv")
    r = s.post("/adapters/unload", {"model_name": "m", "lora_name": "tune"})
    assert r.status == 200 and all("removed" in w["body"] for w in r.json()["workers"])
    assert "tune" not in names(s) and s.complete(PROMPT, model="tune").status == 404
    assert s.complete(PROMPT, model="m").status == 200


def test_what_each_worker_said_is_told_where_some_refuse(start):
    s = router(start, start(Mock, *LOADS), start(Mock, "--model", "m"), start(Mock, *LOADS, "--lora", "tune"))
    r = s.post("/adapters/load", TUNE)
    said = {w["worker_id"]: w for w in r.json()["workers"]}
    assert r.status == 502 and (r.json()["done"], r.json()["failed"]) == (1, 2), r.body
    assert said[1]["status"] == 200 and said[2]["status"] == 404 and said[3]["status"] == 400 and "already been loaded" in said[3]["body"]
    assert {s.complete([n] * 64, model="tune").headers["x-kvroute-worker"] for n in range(20)} == {"1", "3"}  # only where it is


def test_a_worker_that_is_down_or_silent_keeps_nobody_waiting(start, worker):  # noqa: F811
    go = threading.Event()
    silent = worker(v1__models={"data": [{"id": "m", "object": "model"}]}, v1__load_lora_adapter=lambda: go.wait(60) and 200 or 200)
    talks = worker(v1__models={"data": [{"id": "m", "object": "model"}]}, v1__load_lora_adapter=(500, "x" * 5000))
    gone = worker(v1__models={"data": [{"id": "m", "object": "model"}]})
    s = router(start, silent.url, talks.url, gone.url, start(Mock, *LOADS))
    gone.close()
    began = time.monotonic()
    r = s.post("/adapters/load", {**TUNE, "timeout_secs": 1})
    said = {w["worker_id"]: w for w in r.json()["workers"]}
    go.set()
    assert r.status == 502 and time.monotonic() - began < 20
    assert said[1]["status"] is None and said[1]["error"] == "no answer in time" and said[3]["status"] is None and said[3]["error"]
    assert said[2]["status"] == 500 and said[2]["cut"] and said[2]["body"] == "x" * 1024 and said[4]["status"] == 200
    assert call(s.port, "GET", "/v1/models").status == 200


def test_engines_get_what_their_kind_reads_with_their_own_keys(start, worker):  # noqa: F811
    models = {"data": [{"id": "m", "object": "model"}]}
    v, g = worker(v1__models=models, v1__load_lora_adapter=200, v1__unload_lora_adapter=200), worker(v1__models=models, load_lora_adapter=200, unload_lora_adapter=200)
    s = router(start, v.url + ",api-key=key-of-v", g.url + ",engine=sglang,api-key=key-of-g")
    assert s.post("/adapters/load", {**TUNE, "load_inplace": True, "pinned": True}).status == 200
    assert s.post("/adapters/unload", {"model_name": "m", "lora_name": "tune"}).status == 200
    orders = [[(p, h["Authorization"], b) for _, p, h, b in w.requests if "lora" in p] for w in (v, g)]
    assert orders[0] == [("/v1/load_lora_adapter", "Bearer key-of-v", b'{"lora_name":"tune","lora_path":"/adapters/tune","load_inplace":true}'),
                         ("/v1/unload_lora_adapter", "Bearer key-of-v", b'{"lora_name":"tune"}')]
    assert orders[1] == [("/load_lora_adapter", "Bearer key-of-g", b'{"lora_name":"tune","lora_path":"/adapters/tune","pinned":true}'),
                         ("/unload_lora_adapter", "Bearer key-of-g", b'{"lora_name":"tune"}')]


def test_ranks_of_one_address_are_told_once(start):
    m = start(Mock, *LOADS, dp=2, with_events=False)
    s = router(start, f"http://127.0.0.1:{m.port},dp-size=1", f"http://127.0.0.1:{m.port},dp-start=1,dp-size=1", extra=("--no-router-kv-events",))
    r = s.post("/adapters/load", TUNE)
    assert r.status == 200 and [w["status"] for w in r.json()["workers"]] == [200, 200], r.body


def test_many_workers_are_told_a_few_at_a_time(start, worker):  # noqa: F811
    lock, now, most = threading.Lock(), [0], [0]

    def load():
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)  # so that they overlap
        with lock:
            now[0] -= 1
        return 200
    ws = [worker(v1__models={"data": [{"id": "m", "object": "model"}]}, v1__load_lora_adapter=load) for _ in range(70)]
    s = router(start, *[w.url + ",model=m" for w in ws], extra=("--no-router-kv-events",))
    r = s.post("/adapters/load", TUNE)
    assert r.status == 200 and r.json()["done"] == 70 and 1 < most[0] <= 32, (r.body, most)


@pytest.mark.parametrize("body,field", [
    ({}, "model_name"), ({"model_name": "m"}, "lora_name"), ({"model_name": "m", "lora_name": "t"}, "lora_path"), ({**TUNE, "lora_name": "a\0b"}, "lora_name"),
    ({**TUNE, "lora_path": "p" * 5000}, "lora_path"), ({**TUNE, "timeout_secs": 0}, "timeout_secs"), ({**TUNE, "pinned": 1}, "pinned"), ({**TUNE, "model_name": 7}, "model_name")])
def test_an_order_that_says_too_little_is_refused(served, body, field):
    r = served.post("/adapters/load", body)
    assert r.status == 400 and f"'{field}'".encode() in r.body and b"allowed: " in r.body


def test_a_model_that_nobody_serves_has_no_adapters(served):
    assert served.post("/adapters/load", {**TUNE, "model_name": "x"}).status == 404
    assert served.post("/adapters/load", {**TUNE, "model_name": "tuned"}).status == 404  # an adapter has none of its own
    assert call(served.admin, "GET", "/adapters/load").status == 405


@pytest.fixture(scope="module")
def served():
    m = Mock(*LOADS, "--lora", "tuned")
    s = Serve([m])
    wait_for("its models", lambda: "tuned" in names(s))
    yield s
    s.stop()
    m.stop()


def test_an_operator_who_leaves_does_not_stop_it_and_a_stop_does(start, worker):  # noqa: F811
    go = threading.Event()
    slow = worker(v1__models={"data": [{"id": "m", "object": "model"}]}, v1__load_lora_adapter=lambda: go.wait(60) and 200 or 200)
    fast = start(Mock, *LOADS)
    s = router(start, slow.url, fast)
    with pytest.raises(OSError):
        call(s.admin, "POST", "/adapters/load", TUNE, timeout=0.2)
    assert "tune" in {m["id"] for m in call(fast.port, "GET", "/v1/models").json()["data"]}
    for i in range(3):
        with pytest.raises(OSError):
            call(s.admin, "POST", "/adapters/load", {**TUNE, "lora_name": f"t{i}"}, timeout=0.2)
    assert s.post("/adapters/load", TUNE).status == 503  # four are under way
    go.set()
    wait_for("all have ended", lambda: s.text().count("loaded at 2 of 2 workers") == 4)
    assert s.get("/status")["workers"]
    go.clear()
    with pytest.raises(OSError):
        call(s.admin, "POST", "/adapters/load", {**TUNE, "lora_name": "last"}, timeout=0.2)
    s.stop()  # with a call under way
    go.set()


def test_the_admin_ports_key_is_asked_for(start, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    s = start(Serve, [start(Mock, *LOADS)], "--admin-key-file", tmp_path / "keys")
    assert s.post("/adapters/load", TUNE).status == 401
    assert call(s.admin, "POST", "/adapters/load", TUNE, {"Authorization": "Bearer secret"}).status in (200, 404)
