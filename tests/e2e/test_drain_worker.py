# SPDX-License-Identifier: Apache-2.0
"""One worker of a fleet is drained, restarted and taken in again; and orders that nobody would follow are refused."""

import http.client
import json
import threading

import pytest

from conftest import SLOW, Indexer, Mock, Select, Serve, call, free_ports, read_sse, wait_for


def patch(s, worker, **members):
    return call(s.admin, "PATCH", f"/workers/{worker}", members)


def worker(s, number):
    return next(w for w in s.get("/workers") if w["worker_id"] == number)


# ---- draining ----------------------------------------------------------------------------------------------------------------


def test_a_worker_that_drains_gets_nothing_new_and_ends_what_it_has(start):
    mocks = [start(Mock, speedup=1), start(Mock, speedup=1)]
    s = start(Serve, mocks)
    c, r = read_sse(s.port, {"prompt": [1] * 64, "max_tokens": 200, "stream": True}, {"x-kvroute-worker": "1", "x-session-id": "a"})
    first = r.read1(10)
    assert patch(s, 1, state="draining").status == 200
    w = worker(s, 1)
    assert (w["state"], w["status"], w["schedulable"], w["active_requests"]) == ("draining", "up", False, 1)
    assert w["why_not_schedulable"] == "it is drained (state)" and w["since_s"] >= 0 and w["checked_s_ago"] >= 0
    blocks = w["views"][0]["blocks"]
    for i in range(6):  # its cache would draw them, its session too
        a = s.complete([1] * 64, headers={"x-session-id": "a"} if i % 2 else {})
        assert a.status == 200 and a.headers["x-kvroute-worker"] == "2"
    assert s.metric("worker_draining", worker_id=1) == 1 and s.metric("worker_up", worker_id=1) == 0
    c.close()
    wait_for("ended", lambda: worker(s, 1)["active_requests"] == 0)
    assert patch(s, 1, state="active").status == 200
    w = worker(s, 1)
    assert w["schedulable"] and w["state"] == "active" and w["views"][0]["blocks"] >= blocks and w["views"][0]["view"] == "whole"
    assert s.complete([2] * 64, headers={"x-kvroute-worker": "1"}).status == 200 and first


def test_with_all_workers_drained_the_router_is_not_ready_and_says_so(start):
    s = start(Serve, [start(Mock)], "--queue-timeout", 0.3)
    assert patch(s, 1, state="draining").status == 200
    assert call(s.port, "GET", "/ready").status == 503
    a = s.complete([1] * 64)
    assert a.status == 503, a.body
    assert patch(s, 1, state="active").status == 200
    assert call(s.port, "GET", "/ready").status == 200 and s.complete([1] * 64).status == 200


def test_an_entry_may_say_that_a_worker_drains(start, tmp_path):
    mocks = [start(Mock), start(Mock)]
    s = start(Serve, [mocks[0].spec(), mocks[1].spec(",state=draining")])
    assert {a.headers["x-kvroute-worker"] for a in (s.complete([i] * 64) for i in range(6))} == {"1"}
    f = tmp_path / "workers"
    lines = [f"{m.spec()},id={i + 7}" for i, m in enumerate(mocks)]
    f.write_text("\n".join(lines) + "\n")
    s = start(Serve, [], "--discovery", "file", "--discovery-target", f)
    s.complete([5] * 64, headers={"x-kvroute-worker": "8"})
    wait_for("seen", lambda: s.view(8)["blocks"] == 4)
    f.write_text("\n".join([lines[0], lines[1] + ",state=draining"]) + "\n")
    wait_for("drained", lambda: worker(s, 8)["state"] == "draining", 20)
    assert s.view(8)["blocks"] == 4 and s.view(8)["view"] == "whole"  # it was not added anew
    f.write_text("\n".join(lines) + "\n")
    wait_for("active", lambda: worker(s, 8)["state"] == "active", 20)
    assert s.view(8)["blocks"] == 4


def test_a_worker_that_is_down_tells_since_when_and_why(start):
    m = start(Mock)
    s = start(Serve, [m, start(Mock)])
    m.kill()
    w = wait_for("down", lambda: (w := worker(s, 1))["status"] == "down" and w)
    assert w["why_not_schedulable"] == "its last check failed" and w["last_error"] and w["last_error_s_ago"] >= 0 and w["since_s"] >= 0


def test_every_worker_is_restarted_in_turn_and_no_request_fails(start):
    mocks = [start(Mock, speedup=4) for _ in range(3)]
    s = start(Serve, mocks)
    over, failed, done = threading.Event(), [], []

    def ask(i):
        while not over.is_set():
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
            try:
                c.request("POST", "/v1/completions", json.dumps({"prompt": [i] * 64, "max_tokens": 8, "stream": bool(i % 2)}))
                r = c.getresponse()
                body = r.read()
                if r.status != 200 or (i % 2 and not body.endswith(b"data: [DONE]\n\n")):
                    failed.append((r.status, body[-200:]))
                done.append(i)
            except (OSError, http.client.HTTPException) as e:
                failed.append(repr(e))
            c.close()
    clients = [threading.Thread(target=ask, args=(i,), daemon=True) for i in range(6)]
    for t in clients:
        t.start()
    for i, m in enumerate(mocks):
        n = len(done)
        wait_for("asking", lambda: len(done) > n + 20)
        assert patch(s, i + 1, state="draining").status == 200
        wait_for("empty", lambda: worker(s, i + 1)["active_requests"] == 0, 30)
        m.stop()
        again = start(Mock, speedup=4, port=m.port, events=m.events, replay=m.replay)
        wait_for("up", lambda: again and worker(s, i + 1)["status"] == "up")
        assert patch(s, i + 1, state="active").status == 200
    over.set()
    for t in clients:
        t.join()
    assert not failed, failed[:3]


# ---- said ok, and did nothing ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method,path,body,near", [
    ("PATCH", "/workers/1", {"draining": True}, "allowed: "), ("PATCH", "/workers/1", {"schedulable": False}, "allowed: "),
    ("PATCH", "/workers/1", {"weight": 3}, "allowed: "), ("PATCH", "/workers/1", {"stat": "draining"}, "did you mean 'state'?"),
    ("POST", "/workers", {"worker_id": 5, "endpoint": "http://127.0.0.1:1", "kv_event_endpoint": "tcp://127.0.0.1:1"}, "did you mean 'kv_events_endpoints'?"),
    ("POST", "/workers", {"worker_id": 5, "endpoint": "http://127.0.0.1:1", "blocksize": 16}, "did you mean 'block_size'?"),
    ("POST", "/busy_threshold", {"active_decode_block_threshold": 0.5}, "did you mean 'active_decode_blocks_threshold'?"),
    ("POST", "/router_mode", {"router_mode": "kv", "model": "m"}, "unknown member 'model'")])
def test_a_member_that_nobody_reads_is_refused_by_name(start, method, path, body, near):
    s = start(Serve, [start(Mock)])
    a = call(s.admin, method, path, body)
    assert a.status == 400 and "unknown member '" in a.json()["error"] and near in a.json()["error"], a.body
    assert [w["worker_id"] for w in s.get("/workers")] == [1] and worker(s, 1)["state"] == "active"


@pytest.mark.parametrize("value", ["gone", "", 1, True, None])
def test_a_state_that_there_is_not_is_refused(start, value):
    s = start(Serve, [start(Mock)])
    a = patch(s, 1, state=value)
    assert a.status == 400 and "active, draining" in a.json()["error"], a.body


def test_a_service_that_stands_in_for_another_names_what_it_ignores(start):
    s = start(Select)
    assert call(s.port, "POST", "/workers", {"worker_id": 1, "endpoint": "http://10.0.0.1:1", "block_size": 4, "wieght": 2}).status == 400
    s.worker(1)
    a = call(s.port, "POST", "/select", {"token_ids": [1] * 8, "block_size": 4, "new\r\nfield": 1, "isl_token": 3})
    assert a.status == 200 and a.headers["x-kvroute-ignored"] == "new??field, isl_token"
    assert "x-kvroute-ignored" not in call(s.port, "POST", "/select", {"token_ids": [1] * 8}).headers


def test_the_indexer_names_what_it_ignores(start):
    ix = start(Indexer)
    a = ix.post("/register", {"instance_id": 1, "endpoint": "tcp://127.0.0.1:1", "model_name": "m", "block_size": 4, "replay_endpont": "x"}, 201)
    assert a == {"status": "ok", "ignored": ["replay_endpont"]}
    assert ix.post("/unregister", {"instance_id": 1, "model_name": "m"}) == {"status": "ok"}


def test_one_address_is_one_worker_unless_forced(start):
    m = start(Mock)
    s = start(Serve, [m])
    other = {"worker_id": 9, "endpoint": f"http://127.0.0.1:{m.port}"}
    a = call(s.admin, "POST", "/workers", other)
    assert a.status == 409 and "worker 1 has this endpoint" in a.json()["error"] and len(s.get("/workers")) == 1
    assert call(s.admin, "POST", "/workers", {**other, "force": True}).status == 201 and len(s.get("/workers")) == 2
    assert "workers 1 and 9 have one address" in s.text()
    twice = start(Serve, [m, m.spec(",id=3")])
    wait_for("told", lambda: "workers 1 and 3 have one address" in twice.text() or "workers 3 and 1 have one address" in twice.text())


def test_a_router_without_workers_says_so(start):
    s = start(Serve, [], ready=False)
    assert "there is no worker and none is looked for" in s.text()
